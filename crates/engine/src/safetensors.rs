//! Safetensors files, as Hugging Face writes them: a length, a JSON header, the numbers.
//!
//! Owns the header and the index of a model split over several files. The surprise: offsets count from
//! the end of the header, whose length is padded with spaces. Deliberately absent: the numbers.

use std::collections::HashMap;
use std::fmt::Display;
use std::io::Read;

use serde::Deserialize;
use serde_json::Value;

/// The longest header that is believed, as in the reference implementation.
const MAX_HEADER: u64 = 100_000_000;

const TRUNCATED: &str = "it ends in the middle of its header";

/// Where a tensor lies and what it looks like.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct StoredTensor {
    /// `F32`, `BF16`, …
    pub dtype: String,
    /// The dimensions, outermost first.
    pub shape: Vec<usize>,
    /// Its first byte in the file, and one behind its last.
    #[serde(rename = "data_offsets")]
    pub range: [u64; 2],
}

/// The tensors of a file by name, or why the bytes are no usable safetensors file.
pub fn read_header(mut file: impl Read) -> Result<HashMap<String, StoredTensor>, String> {
    let mut len = [0; 8];
    file.read_exact(&mut len).map_err(|_| TRUNCATED)?;
    let len = u64::from_le_bytes(len);
    if len > MAX_HEADER {
        return Err(format!("its header claims {len} bytes, so it is no safetensors file"));
    }
    let mut header = Vec::new();
    let read = file.take(len).read_to_end(&mut header);
    if read.ok().is_none_or(|n| n as u64 != len) {
        return Err(TRUNCATED.to_owned());
    }
    let entries: HashMap<String, Value> = serde_json::from_slice(&header).map_err(broken)?;
    let tensors = entries.into_iter().filter(|(name, _)| name != "__metadata__");
    tensors.map(|(name, entry)| Ok((name, place(entry, len + 8)?))).collect()
}

/// Makes offsets count from the file's first byte.
fn place(entry: Value, data: u64) -> Result<StoredTensor, String> {
    let tensor: StoredTensor = serde_json::from_value(entry).map_err(broken)?;
    let [start, end] = tensor.range;
    match (start.checked_add(data), end.checked_add(data)) {
        (Some(start), Some(end)) if start <= end => Ok(StoredTensor { range: [start, end], ..tensor }),
        _ => Err(broken(format!("offsets {start} to {end} are no range"))),
    }
}

fn broken(why: impl Display) -> String {
    format!("its header is broken: {why}")
}

#[derive(Deserialize)]
struct Index {
    weight_map: HashMap<String, String>,
}

/// The file of each tensor, from `model.safetensors.index.json`.
pub fn read_index(json: &[u8]) -> Result<HashMap<String, String>, String> {
    serde_json::from_slice::<Index>(json).map(|index| index.weight_map).map_err(broken)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;

    fn file(header: &str) -> Vec<u8> {
        [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &[0; 8]].concat()
    }

    fn check(header: &str, message: &str) {
        assert_eq!(read_header(&file(header)[..]).unwrap_err(), message);
    }

    #[test]
    fn a_header_is_read() {
        let header =
            r#"{"__metadata__":{"format":"pt"},"w":{"dtype":"BF16","shape":[2,2],"data_offsets":[0,8]}} "#;
        let tensors = read_header(&file(header)[..]).unwrap();
        let start = header.len() as u64 + 8;
        let expected =
            StoredTensor { dtype: "BF16".to_owned(), shape: vec![2, 2], range: [start, start + 8] };
        assert_eq!(tensors, HashMap::from([("w".to_owned(), expected)]));
    }

    #[test]
    fn what_is_wrong_is_said() {
        check(r#"{"w":{"dtype":"F32","shape":[1]}}"#, "its header is broken: missing field `data_offsets`");
        check(
            r#"{"w":{"dtype":"F32","shape":[1],"data_offsets":[8,4]}}"#,
            "its header is broken: offsets 8 to 4 are no range",
        );
        assert_eq!(read_header(&[9, 0, 0][..]), Err(TRUNCATED.to_owned()));
        assert_eq!(read_header(&file("{}")[..9]), Err(TRUNCATED.to_owned()));
        let page = read_header(&b"<!DOCTYPE html>"[..]).unwrap_err();
        assert_eq!(page, "its header claims 5789751444030890300 bytes, so it is no safetensors file");
    }

    #[test]
    fn an_index_names_the_file_of_each_tensor() {
        let json = br#"{"metadata":{"total_size":8},"weight_map":{"w":"model-00001-of-00002.safetensors"}}"#;
        assert_eq!(read_index(json).unwrap()["w"], "model-00001-of-00002.safetensors");
    }
}
