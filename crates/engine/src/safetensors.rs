//! Safetensors files, as Hugging Face writes them: a length, a JSON header, the numbers.
//!
//! Owns the header and the index of a model split over several files. The surprise: offsets count from
//! the end of the header, whose length is padded with spaces. Deliberately absent: the numbers.

use std::collections::HashMap;
use std::io::Read;

use serde::Deserialize;
use serde_json::Value;

/// Why bytes are no usable safetensors file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SafetensorsError {
    /// The file ends too early.
    #[error("it ends in the middle of its header")]
    Truncated,
    /// The header is longer than any real one.
    #[error("its header claims {0} bytes, so it is no safetensors file")]
    TooLong(u64),
    /// The header is not the JSON it should be.
    #[error("its header is broken: {0}")]
    Broken(String),
}

/// The longest header that is believed, as in the reference implementation.
const MAX_HEADER: u64 = 100_000_000;

/// Where a tensor lies and what it looks like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredTensor {
    /// `F32`, `BF16`, …
    pub dtype: String,
    /// The dimensions, outermost first.
    pub shape: Vec<usize>,
    /// Its first byte in the file.
    pub start: u64,
    /// One behind its last byte.
    pub end: u64,
}

#[derive(Deserialize)]
struct Entry {
    dtype: String,
    shape: Vec<usize>,
    data_offsets: [u64; 2],
}

/// The tensors of a file by name.
pub fn read_header(mut file: impl Read) -> Result<HashMap<String, StoredTensor>, SafetensorsError> {
    let mut len = [0; 8];
    file.read_exact(&mut len).map_err(|_| SafetensorsError::Truncated)?;
    let len = u64::from_le_bytes(len);
    if len > MAX_HEADER {
        return Err(SafetensorsError::TooLong(len));
    }
    let mut header = Vec::new();
    let read = file.take(len).read_to_end(&mut header);
    if read.ok().is_none_or(|n| n as u64 != len) {
        return Err(SafetensorsError::Truncated);
    }
    let entries: HashMap<String, Value> = serde_json::from_slice(&header).map_err(broken)?;
    let tensors = entries.into_iter().filter(|(name, _)| name != "__metadata__");
    tensors.map(|(name, entry)| Ok((name, place(entry, len + 8)?))).collect()
}

/// Makes offsets count from the file's first byte.
fn place(entry: Value, data: u64) -> Result<StoredTensor, SafetensorsError> {
    let Entry { dtype, shape, data_offsets: [start, end] } = serde_json::from_value(entry).map_err(broken)?;
    match (start.checked_add(data), end.checked_add(data)) {
        (Some(start), Some(end)) if start <= end => Ok(StoredTensor { dtype, shape, start, end }),
        _ => Err(SafetensorsError::Broken(format!("offsets {start} to {end} are no range"))),
    }
}

fn broken(why: serde_json::Error) -> SafetensorsError {
    SafetensorsError::Broken(why.to_string())
}

#[derive(Deserialize)]
struct Index {
    weight_map: HashMap<String, String>,
}

/// The file of each tensor, from `model.safetensors.index.json`.
pub fn read_index(json: &[u8]) -> Result<HashMap<String, String>, SafetensorsError> {
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
        assert_eq!(read_header(&file(header)[..]).unwrap_err().to_string(), message);
    }

    #[test]
    fn a_header_is_read() {
        let header =
            r#"{"__metadata__":{"format":"pt"},"w":{"dtype":"BF16","shape":[2,2],"data_offsets":[0,8]}} "#;
        let tensors = read_header(&file(header)[..]).unwrap();
        let start = header.len() as u64 + 8;
        let expected = StoredTensor { dtype: "BF16".to_owned(), shape: vec![2, 2], start, end: start + 8 };
        assert_eq!(tensors, HashMap::from([("w".to_owned(), expected)]));
    }

    #[test]
    fn what_is_wrong_is_said() {
        check(r#"{"w":{"dtype":"F32","shape":[1]}}"#, "its header is broken: missing field `data_offsets`");
        check(
            r#"{"w":{"dtype":"F32","shape":[1],"data_offsets":[8,4]}}"#,
            "its header is broken: offsets 8 to 4 are no range",
        );
        assert_eq!(read_header(&[9, 0, 0][..]), Err(SafetensorsError::Truncated));
        assert_eq!(read_header(&file("{}")[..9]), Err(SafetensorsError::Truncated));
        assert_eq!(
            read_header(&b"<!DOCTYPE html>"[..]),
            Err(SafetensorsError::TooLong(0x5059_5443_4f44_213c))
        );
    }

    #[test]
    fn an_index_names_the_file_of_each_tensor() {
        let json = br#"{"metadata":{"total_size":8},"weight_map":{"w":"model-00001-of-00002.safetensors"}}"#;
        assert_eq!(read_index(json).unwrap()["w"], "model-00001-of-00002.safetensors");
    }
}
