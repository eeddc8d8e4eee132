//! GGUF: model files of llama.cpp and ggml, versions 2 and 3, little-endian.
//!
//! Reads the header: metadata, the list of tensors and where their bytes start. The tensors
//! themselves are left to whoever computes with them. The surprises: lengths come from the file and
//! may lie, so nothing is allocated before its bytes have been read; the alignment of the data is
//! itself a metadata entry; offsets of tensors count from the start of the data, not of the file.

use std::io::{self, Read};

/// Where the data starts if the file does not say: at the next multiple of this.
const DEFAULT_ALIGNMENT: u64 = 32;
/// No header is larger; the biggest vocabularies take a few tens of megabytes.
const MAX_HEADER: u64 = 512 << 20;
/// No tensor has more dimensions (ggml's limit).
const MAX_DIMS: u32 = 4;
/// No vocabulary comes near this many metadata values; each takes more memory than it may take bytes.
const MAX_VALUES: u64 = 8 << 20;
/// Arrays of arrays deeper than this are refused.
const MAX_DEPTH: usize = 4;

/// Why a file is no GGUF header.
#[derive(Debug, thiserror::Error)]
pub enum GgufError {
    /// The first four bytes are others.
    #[error("this is no GGUF file: it starts with {found:?}")]
    NotGguf {
        /// The first bytes.
        found: [u8; 4],
    },
    /// A version that is laid out differently.
    #[error("GGUF version {version} is not supported; versions 2 and 3 are")]
    Version {
        /// What the file says.
        version: u32,
    },
    /// The file ends inside the header.
    #[error("the file ends inside its header, while {what} are read")]
    Truncated {
        /// What was being read.
        what: &'static str,
    },
    /// The header contradicts itself or the format.
    #[error("the header is broken: {why}")]
    Broken {
        /// What is wrong.
        why: String,
    },
    /// The file cannot be read.
    #[error("the file cannot be read: {0}")]
    Io(io::Error),
}

/// A metadata value.
#[derive(Clone, Debug, PartialEq)]
pub enum GgufValue {
    /// An unsigned integer of any width.
    Uint(u64),
    /// A signed integer of any width.
    Int(i64),
    /// A float of either width.
    Float(f64),
    /// A truth value.
    Bool(bool),
    /// Text.
    Text(String),
    /// A string that is not UTF-8, such as a piece of a character in a vocabulary.
    Bytes(Vec<u8>),
    /// Values of one type.
    Array(Vec<GgufValue>),
}

impl GgufValue {
    /// The text, if it is text.
    pub fn as_text(&self) -> Option<&str> {
        if let Self::Text(text) = self { Some(text) } else { None }
    }

    /// The integer, if it is one that is not negative.
    pub fn as_uint(&self) -> Option<u64> {
        match self {
            Self::Uint(number) => Some(*number),
            Self::Int(number) => u64::try_from(*number).ok(),
            _ => None,
        }
    }

    /// The values, if it is an array.
    pub fn as_array(&self) -> Option<&[Self]> {
        if let Self::Array(values) = self { Some(values) } else { None }
    }
}

/// A tensor in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// Its name.
    pub name: String,
    /// Its extents, the fastest-changing one first.
    pub shape: Vec<u64>,
    /// ggml's number for how it is stored (0 is f32, 1 is f16, 3 is q4_1, …).
    pub ggml_type: u32,
    /// Where it starts, counted from [`Gguf::data_offset`].
    pub offset: u64,
}

/// The header of a GGUF file.
#[derive(Clone, Debug, PartialEq)]
pub struct Gguf {
    /// The version of the format.
    pub version: u32,
    /// The metadata in the order of the file.
    pub metadata: Vec<(String, GgufValue)>,
    /// The tensors in the order of the file.
    pub tensors: Vec<TensorInfo>,
    /// What tensors are aligned to.
    pub alignment: u64,
    /// Where in the file the tensors' bytes start.
    pub data_offset: u64,
}

impl Gguf {
    /// Reads the header from the start of a file.
    pub fn read(source: impl Read) -> Result<Self, GgufError> {
        let mut reader =
            Reader { source: source.take(MAX_HEADER), pos: 0, n_values: 0, what: "its first bytes" };
        let magic = reader.bytes()?;
        if magic != *b"GGUF" {
            return Err(GgufError::NotGguf { found: magic });
        }
        reader.what = "its first fields";
        let version = reader.u32()?;
        if !(2..=3).contains(&version) {
            return Err(GgufError::Version { version });
        }
        let n_tensors = reader.u64()?;
        let n_entries = reader.u64()?;
        let metadata = reader.repeat(n_entries, Reader::entry)?;
        let tensors = reader.repeat(n_tensors, Reader::tensor)?;
        let alignment = alignment(&metadata)?;
        let data_offset = reader.pos.next_multiple_of(alignment);
        Ok(Self { version, metadata, tensors, alignment, data_offset })
    }

    /// The metadata value of that key.
    pub fn get(&self, key: &str) -> Option<&GgufValue> {
        self.metadata.iter().find(|(name, _)| name == key).map(|(_, value)| value)
    }
}

fn alignment(metadata: &[(String, GgufValue)]) -> Result<u64, GgufError> {
    let given = metadata.iter().find(|(name, _)| name == "general.alignment");
    match given.map(|(_, value)| value.as_uint()) {
        None => Ok(DEFAULT_ALIGNMENT),
        Some(Some(alignment)) if alignment.is_power_of_two() && alignment <= 1 << 20 => Ok(alignment),
        Some(_) => broken("general.alignment is no sensible power of two"),
    }
}

fn broken<T>(why: impl Into<String>) -> Result<T, GgufError> {
    Err(GgufError::Broken { why: why.into() })
}

/// Reads little-endian values and knows how far it is.
struct Reader<R> {
    source: R,
    pos: u64,
    n_values: u64,
    /// What is being read, for errors.
    what: &'static str,
}

impl<R: Read> Reader<R> {
    fn bytes<const N: usize>(&mut self) -> Result<[u8; N], GgufError> {
        let mut bytes = [0; N];
        self.source.read_exact(&mut bytes).map_err(|error| self.error(error))?;
        self.pos += N as u64;
        Ok(bytes)
    }

    fn error(&self, error: io::Error) -> GgufError {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => GgufError::Truncated { what: self.what },
            _ => GgufError::Io(error),
        }
    }

    fn u32(&mut self) -> Result<u32, GgufError> {
        self.bytes().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, GgufError> {
        self.bytes().map(u64::from_le_bytes)
    }

    /// Reads `n` things. The vector grows as they arrive: `n` may lie.
    fn repeat<T>(
        &mut self,
        n: u64,
        mut read: impl FnMut(&mut Self) -> Result<T, GgufError>,
    ) -> Result<Vec<T>, GgufError> {
        let mut items = Vec::new();
        for _ in 0..n {
            items.push(read(self)?);
        }
        Ok(items)
    }

    fn string(&mut self) -> Result<Vec<u8>, GgufError> {
        let len = self.u64()?;
        let mut bytes = Vec::new();
        let n_read =
            self.source.by_ref().take(len).read_to_end(&mut bytes).map_err(|error| self.error(error))?;
        self.pos += n_read as u64;
        if n_read as u64 == len { Ok(bytes) } else { Err(GgufError::Truncated { what: self.what }) }
    }

    fn name(&mut self) -> Result<String, GgufError> {
        String::from_utf8(self.string()?).or_else(|_| broken("a name is not UTF-8"))
    }

    fn entry(&mut self) -> Result<(String, GgufValue), GgufError> {
        self.what = "metadata entries";
        let key = self.name()?;
        let kind = self.u32()?;
        let value = self.value(kind, 0)?;
        Ok((key, value))
    }

    fn value(&mut self, kind: u32, depth: usize) -> Result<GgufValue, GgufError> {
        self.n_values += 1;
        if self.n_values > MAX_VALUES {
            return broken(format!("more than {MAX_VALUES} metadata values"));
        }
        Ok(match kind {
            0 => GgufValue::Uint(u8::from_le_bytes(self.bytes()?).into()),
            1 => GgufValue::Int(i8::from_le_bytes(self.bytes()?).into()),
            2 => GgufValue::Uint(u16::from_le_bytes(self.bytes()?).into()),
            3 => GgufValue::Int(i16::from_le_bytes(self.bytes()?).into()),
            4 => GgufValue::Uint(self.u32()?.into()),
            5 => GgufValue::Int(i32::from_le_bytes(self.bytes()?).into()),
            6 => GgufValue::Float(f32::from_le_bytes(self.bytes()?).into()),
            7 => GgufValue::Bool(self.bytes()? != [0]),
            8 => match String::from_utf8(self.string()?) {
                Ok(text) => GgufValue::Text(text),
                Err(error) => GgufValue::Bytes(error.into_bytes()),
            },
            9 if depth < MAX_DEPTH => {
                let kind = self.u32()?;
                let n_values = self.u64()?;
                GgufValue::Array(self.repeat(n_values, |reader| reader.value(kind, depth + 1))?)
            }
            9 => return broken("arrays are nested too deeply"),
            10 => GgufValue::Uint(self.u64()?),
            11 => GgufValue::Int(i64::from_le_bytes(self.bytes()?)),
            12 => GgufValue::Float(f64::from_le_bytes(self.bytes()?)),
            _ => return broken(format!("unknown metadata type {kind}")),
        })
    }

    fn tensor(&mut self) -> Result<TensorInfo, GgufError> {
        self.what = "the tensors";
        let name = self.name()?;
        let n_dims = self.u32()?;
        if n_dims > MAX_DIMS {
            return broken(format!("tensor {name:?} has {n_dims} dimensions"));
        }
        let shape = self.repeat(n_dims.into(), Self::u64)?;
        Ok(TensorInfo { name, shape, ggml_type: self.u32()?, offset: self.u64()? })
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn string(text: &str) -> Vec<u8> {
        [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
    }

    fn entry(key: &str, kind: u32, value: &[u8]) -> Vec<u8> {
        [string(key), kind.to_le_bytes().to_vec(), value.to_vec()].concat()
    }

    /// A small file: three metadata entries and one tensor.
    fn file() -> Vec<u8> {
        let array = [&8u32.to_le_bytes()[..], &2u64.to_le_bytes(), &string("<s>"), &string("</s>")].concat();
        let tensor = [&3u64.to_le_bytes()[..], b"w.0", &2u32.to_le_bytes(), &5u64.to_le_bytes()].concat();
        [
            b"GGUF".to_vec(),
            3u32.to_le_bytes().to_vec(),
            1u64.to_le_bytes().to_vec(),
            3u64.to_le_bytes().to_vec(),
            entry("general.alignment", 4, &64u32.to_le_bytes()),
            entry("tokenizer.chat_template", 8, &string("{{ x }}")),
            entry("tokenizer.ggml.tokens", 9, &array),
            tensor,
            7u64.to_le_bytes().to_vec(),
            3u32.to_le_bytes().to_vec(),
            128u64.to_le_bytes().to_vec(),
        ]
        .concat()
    }

    #[test]
    fn a_header_is_read_whole() {
        let gguf = Gguf::read(file().as_slice()).unwrap();
        assert_eq!(gguf.get("tokenizer.chat_template").unwrap().as_text(), Some("{{ x }}"));
        assert_eq!(gguf.get("tokenizer.ggml.tokens").unwrap().as_array().unwrap()[1].as_text(), Some("</s>"));
        let tensor = TensorInfo { name: "w.0".to_owned(), shape: vec![5, 7], ggml_type: 3, offset: 128 };
        assert_eq!(gguf.tensors, [tensor]);
        assert_eq!((gguf.alignment, gguf.data_offset), (64, (file().len() as u64).next_multiple_of(64)));
    }

    #[test]
    fn every_truncation_is_an_error() {
        let file = file();
        for len in 0..file.len() {
            assert!(Gguf::read(&file[..len]).is_err(), "{len} bytes were taken for a whole header");
        }
    }

    #[test]
    fn lengths_that_lie_allocate_nothing() {
        let huge = u64::MAX.to_le_bytes();
        let header =
            |n_entries: &[u8]| [b"GGUF", &3u32.to_le_bytes()[..], &0u64.to_le_bytes(), n_entries].concat();
        let one = 1u64.to_le_bytes();
        let cases = [
            header(&huge),
            [header(&one), huge.to_vec()].concat(),
            [header(&one), entry("k", 8, &huge)].concat(),
            [header(&one), entry("k", 9, &[&4u32.to_le_bytes()[..], &huge].concat())].concat(),
        ];
        for case in cases {
            assert!(matches!(Gguf::read(case.as_slice()), Err(GgufError::Truncated { .. })));
        }
    }

    #[test]
    fn foreign_files_are_named_as_such() {
        let read = |bytes: &[u8]| Gguf::read(bytes).unwrap_err().to_string();
        assert_eq!(read(b"PK\x03\x04 zip"), "this is no GGUF file: it starts with [80, 75, 3, 4]");
        assert_eq!(read(b"GGUF\x01\0\0\0"), "GGUF version 1 is not supported; versions 2 and 3 are");
        assert_eq!(
            read(b"GGUF\x03\0\0\0\x01"),
            "the file ends inside its header, while its first fields are read"
        );
    }

    proptest! {
        #[test]
        fn broken_headers_never_panic(flips in prop::collection::vec((0usize..400, any::<u8>()), 1..8)) {
            let mut file = file();
            for (at, byte) in flips {
                let len = file.len();
                file[at % len] = byte;
            }
            let _ = Gguf::read(file.as_slice());
        }
    }
}
