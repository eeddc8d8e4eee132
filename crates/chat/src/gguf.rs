//! GGUF files, as llama.cpp writes them (versions 2 and 3, little endian): header, metadata and where tensors lie.
//!
//! Owns the container. The surprise: a tensor's dimensions are listed innermost first, the other way
//! round than everybody else's; [`TensorInfo::shape`] turns them. The numbers inside are the business
//! of `ggml`. Deliberately absent: what the keys mean. A file is untrusted input: no length in it is
//! believed before that many bytes were read.

use std::collections::HashMap;
use std::fmt::Display;
use std::io::Read;

use serde_json::Value;

/// Where a tensor lies and what it looks like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// The dimensions, outermost first.
    pub shape: Vec<usize>,
    /// The number ggml gives to its type.
    pub kind: u32,
    /// Its first byte in the file.
    pub start: u64,
}

/// All of a GGUF file but the tensors' numbers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Gguf {
    /// By key. A float that is not finite is null.
    pub metadata: HashMap<String, Value>,
    /// By name.
    pub tensors: HashMap<String, TensorInfo>,
}

impl Gguf {
    /// Reads from the beginning of a file up to the tensors' numbers, or says why the bytes are no usable GGUF file.
    pub fn read(file: impl Read) -> Result<Self, String> {
        let mut bytes = Bytes { file, read: 0 };
        if bytes.array("the header")? != *b"GGUF" {
            return Err("it does not begin with `GGUF`".to_owned());
        }
        let version = bytes.u32("the header")?;
        if !(2..=3).contains(&version) {
            return Err(format!("it has GGUF version {version}, only 2 and 3 can be read"));
        }
        let (n_tensors, n_keys) = (bytes.u64("the header")?, bytes.u64("the header")?);
        let mut gguf = Self::default();
        for _ in 0..n_keys {
            let key = bytes.text("the metadata")?;
            let kind = bytes.u32("the metadata")?;
            let value = bytes.value(kind, &key, 0)?;
            gguf.metadata.insert(key, value);
        }
        gguf.tensors = (0..n_tensors).map(|_| bytes.tensor()).collect::<Result<_, _>>()?;
        gguf.place_tensors(bytes.read)?;
        Ok(gguf)
    }

    /// Offsets in the file count from the end of the header, rounded up; this makes them count from the file's first byte.
    fn place_tensors(&mut self, header: u64) -> Result<(), String> {
        let alignment = match self.metadata.get("general.alignment").map(Value::as_u64) {
            None => 32,
            Some(Some(it)) if it > 0 => it,
            Some(_) => return Err(broken("general.alignment is no positive number")),
        };
        let data = header.next_multiple_of(alignment);
        for (name, tensor) in &mut self.tensors {
            let start = tensor.start.checked_add(data);
            tensor.start = start.ok_or_else(|| broken(format!("tensor {name} lies beyond all files")))?;
        }
        Ok(())
    }
}

fn broken(what: impl Display) -> String {
    format!("it is broken: {what}")
}

fn truncated(what: &str) -> String {
    format!("it ends in the middle of {what}")
}

/// Bytes in the order of the file, counted.
struct Bytes<R> {
    file: R,
    read: u64,
}

impl<R: Read> Bytes<R> {
    fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N], String> {
        let mut bytes = [0; N];
        self.file.read_exact(&mut bytes).map_err(|_| truncated(what))?;
        self.read += N as u64;
        Ok(bytes)
    }

    fn u32(&mut self, what: &str) -> Result<u32, String> {
        self.array(what).map(u32::from_le_bytes)
    }

    fn u64(&mut self, what: &str) -> Result<u64, String> {
        self.array(what).map(u64::from_le_bytes)
    }

    fn text(&mut self, what: &str) -> Result<String, String> {
        let len = self.u64(what)?;
        let mut bytes = Vec::new();
        let read = self.file.by_ref().take(len).read_to_end(&mut bytes);
        if read.ok().is_none_or(|n| n as u64 != len) {
            return Err(truncated(what));
        }
        self.read += len;
        String::from_utf8(bytes).map_err(|_| broken(format!("a text in {what} is not UTF-8")))
    }

    fn value(&mut self, kind: u32, key: &str, depth: u32) -> Result<Value, String> {
        Ok(match kind {
            0 => u8::from_le_bytes(self.array(key)?).into(),
            1 => i8::from_le_bytes(self.array(key)?).into(),
            2 => u16::from_le_bytes(self.array(key)?).into(),
            3 => i16::from_le_bytes(self.array(key)?).into(),
            4 => self.u32(key)?.into(),
            5 => i32::from_le_bytes(self.array(key)?).into(),
            6 => f32::from_le_bytes(self.array(key)?).into(),
            7 => (self.array::<1>(key)? != [0]).into(),
            8 => self.text(key)?.into(),
            9 if depth < 4 => self.list(key, depth + 1)?,
            10 => self.u64(key)?.into(),
            11 => i64::from_le_bytes(self.array(key)?).into(),
            12 => f64::from_le_bytes(self.array(key)?).into(),
            _ => return Err(broken(format!("{key} has the unknown type {kind}"))),
        })
    }

    fn list(&mut self, key: &str, depth: u32) -> Result<Value, String> {
        let (kind, len) = (self.u32(key)?, self.u64(key)?);
        (0..len).map(|_| self.value(kind, key, depth)).collect()
    }

    fn tensor(&mut self) -> Result<(String, TensorInfo), String> {
        let what = "the list of tensors";
        let name = self.text(what)?;
        let n_dims = self.u32(what)?;
        if n_dims > 4 {
            return Err(broken(format!("tensor {name} has {n_dims} dimensions")));
        }
        let too_large = |_| broken(format!("tensor {name} is too large"));
        let dim = |_| usize::try_from(self.u64(what)?).map_err(too_large);
        let mut shape: Vec<usize> = (0..n_dims).map(dim).collect::<Result<_, _>>()?;
        shape.reverse();
        let kind = self.u32(what)?;
        Ok((name, TensorInfo { shape, kind, start: self.u64(what)? }))
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn text(out: &mut Vec<u8>, text: &str) {
        out.extend((text.len() as u64).to_le_bytes());
        out.extend(text.as_bytes());
    }

    /// A file with one key of each kind that matters and one tensor.
    fn small() -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(3u32.to_le_bytes());
        out.extend(1u64.to_le_bytes());
        out.extend(4u64.to_le_bytes());
        text(&mut out, "general.architecture");
        out.extend(8u32.to_le_bytes());
        text(&mut out, "llama");
        text(&mut out, "eps");
        out.extend(6u32.to_le_bytes());
        out.extend(0.5f32.to_le_bytes());
        text(&mut out, "tokens");
        out.extend(9u32.to_le_bytes());
        out.extend(8u32.to_le_bytes());
        out.extend(2u64.to_le_bytes());
        text(&mut out, "a");
        text(&mut out, "Ġb");
        text(&mut out, "negative");
        out.extend(5u32.to_le_bytes());
        out.extend((-7i32).to_le_bytes());
        text(&mut out, "w");
        out.extend(2u32.to_le_bytes());
        out.extend(64u64.to_le_bytes());
        out.extend(3u64.to_le_bytes());
        out.extend(2u32.to_le_bytes());
        out.extend(128u64.to_le_bytes());
        out
    }

    #[test]
    fn keys_and_tensors_are_read() {
        let bytes = small();
        let gguf = Gguf::read(&bytes[..]).unwrap();
        let key = |key: &str| &gguf.metadata[key];
        assert_eq!(key("general.architecture").as_str(), Some("llama"));
        assert_eq!(key("eps").as_f64(), Some(0.5));
        assert_eq!(key("tokens")[1].as_str(), Some("Ġb"));
        assert_eq!(key("negative"), &Value::from(-7));
        let start = (bytes.len() as u64).next_multiple_of(32) + 128;
        assert_eq!(gguf.tensors["w"], TensorInfo { shape: vec![3, 64], kind: 2, start });
    }

    #[test]
    fn a_file_cut_anywhere_is_an_error() {
        let bytes = small();
        for len in 0..bytes.len() {
            let cut = Gguf::read(&bytes[..len]).unwrap_err();
            assert!(cut.starts_with("it ends in the middle of "), "cut at {len}: {cut}");
        }
    }

    #[test]
    fn what_is_not_gguf_is_told_apart() {
        let check = |bytes: &[u8], message: &str| {
            assert_eq!(Gguf::read(bytes).unwrap_err(), message);
        };
        check(b"PK\x03\x04....", "it does not begin with `GGUF`");
        check(b"GGUF\x00\x00\x00\x03....", "it has GGUF version 50331648, only 2 and 3 can be read");
        let mut huge = small();
        huge[24..32].copy_from_slice(&u64::MAX.to_le_bytes());
        check(&huge, "it ends in the middle of the metadata");
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(place in 0usize..200, byte in any::<u8>()) {
            let mut bytes = small();
            let place = place % bytes.len();
            bytes[place] = byte;
            let _ = Gguf::read(&bytes[..]);
        }
    }
}
