//! Finding a model's weights: a Hugging Face directory or a GGUF file.
//!
//! Owns opening, checking and reading tensors by name. All that can be wrong is found before the first
//! number is read: the files' lengths, every tensor's presence, shape and format, the memory. What is
//! done with the numbers is the business of `weights`.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::BufReader;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::config::{Config, ConfigError, Family};
use crate::ggml::Format;
use crate::hf_config::HfConfig;
use crate::safetensors::{SafetensorsError, read_header, read_index};
use backsight_chat::gguf::{Gguf, GgufError};

/// Why a model was not loaded.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum LoadError {
    /// A file is missing or unreadable.
    #[error("{}: {why}", path.display())]
    Unreadable {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        why: String,
    },
    /// Neither a model directory nor a GGUF file.
    #[error("{}: {why}", path.display())]
    NotAModel {
        /// Which path.
        path: PathBuf,
        /// What it lacks.
        why: String,
    },
    /// A GGUF file that is none.
    #[error("{}: {source}", path.display())]
    Gguf {
        /// Which file.
        path: PathBuf,
        /// What is wrong.
        source: GgufError,
    },
    /// A safetensors file that is none.
    #[error("{}: {source}", path.display())]
    Safetensors {
        /// Which file.
        path: PathBuf,
        /// What is wrong.
        source: SafetensorsError,
    },
    /// A model of another kind.
    #[error("{}: {source}", path.display())]
    Config {
        /// Which model.
        path: PathBuf,
        /// What is wrong.
        source: ConfigError,
    },
    /// A tensor the configuration promises is not there.
    #[error("{}: the tensor {name} is missing", path.display())]
    MissingTensor {
        /// Which file or directory.
        path: PathBuf,
        /// Which tensor.
        name: String,
    },
    /// A tensor does not have the shape that the configuration promises.
    #[error("{}: the tensor {name} has the shape {found:?} instead of {expected:?}", path.display())]
    Shape {
        /// Which file.
        path: PathBuf,
        /// Which tensor.
        name: String,
        /// As stored.
        found: Vec<usize>,
        /// As configured.
        expected: Vec<usize>,
    },
    /// Numbers in a format we do not read.
    #[error("{}: the tensor {name} has the number format {format}, which cannot be read", path.display())]
    Format {
        /// Which file.
        path: PathBuf,
        /// Which tensor.
        name: String,
        /// As the file names it.
        format: String,
    },
    /// A tensor lies beyond the file's end.
    #[error("{}: the file is cut: {name} should end at byte {end}, the file has {len}", path.display())]
    Truncated {
        /// Which file.
        path: PathBuf,
        /// Which tensor.
        name: String,
        /// Where it should end.
        end: u64,
        /// The file's length.
        len: u64,
    },
    /// The tokenizer has ids the model does not know.
    #[error("the tokenizer has {tokenizer} tokens, the model only {model}")]
    Vocabulary {
        /// Tokens of the tokenizer.
        tokenizer: usize,
        /// Rows of the embedding.
        model: usize,
    },
    /// The weights would not fit.
    #[error("the model needs {needed_mib} MiB of memory, {available_mib} MiB are available")]
    Memory {
        /// Weights as f32, in MiB.
        needed_mib: u64,
        /// What the system says is available, in MiB.
        available_mib: u64,
    },
    /// No threads to compute with.
    #[error("the engine's threads cannot be started: {0}")]
    Threads(String),
}

impl LoadError {
    /// What to do about it.
    pub fn help(&self) -> &'static str {
        match self {
            Self::Unreadable { .. } | Self::NotAModel { .. } => {
                "name a directory with config.json and *.safetensors, or a .gguf file"
            }
            Self::Gguf { .. }
            | Self::Safetensors { .. }
            | Self::Truncated { .. }
            | Self::MissingTensor { .. } => {
                "fetch the file again; if that does not help, it was written by a program we do not know"
            }
            Self::Config { source, .. } => source.help(),
            Self::Shape { .. } => "check that config.json and the weights belong to the same model",
            Self::Format { .. } => "use f32, f16, bf16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K or Q6_K",
            Self::Vocabulary { .. } => "use the tokenizer that came with the model",
            Self::Memory { .. } => "close other programs, or use a smaller model",
            Self::Threads(_) => "check the limit on processes (ulimit -u)",
        }
    }
}

/// A model's files, opened and not yet read.
#[derive(Debug)]
pub struct WeightSource {
    path: PathBuf,
    files: Vec<OpenFile>,
    tensors: HashMap<String, Tensor>,
    /// GGUF names its tensors otherwise, and stores Llama's queries and keys for another way of rotating.
    gguf: Option<Family>,
}

#[derive(Debug)]
struct OpenFile {
    path: PathBuf,
    len: u64,
    file: File,
}

/// Where a tensor's numbers are.
#[derive(Clone, Debug)]
struct Tensor {
    file: usize,
    shape: Vec<usize>,
    format: Result<Format, String>,
    start: u64,
}

impl WeightSource {
    /// Opens `path` and reads everything but the weights.
    pub fn open(path: &Path) -> Result<(Self, Config), LoadError> {
        if path.is_dir() { Self::open_directory(path) } else { Self::open_gguf(path) }
    }

    fn open_directory(dir: &Path) -> Result<(Self, Config), LoadError> {
        let config_path = dir.join("config.json");
        let json = fs::read(&config_path).map_err(|why| unreadable(&config_path, why))?;
        let not_a_model =
            |why: serde_json::Error| LoadError::NotAModel { path: config_path.clone(), why: why.to_string() };
        let hf: HfConfig = serde_json::from_slice(&json).map_err(not_a_model)?;
        let config =
            Config::from_hf(&hf).map_err(|source| LoadError::Config { path: dir.to_owned(), source })?;
        let mut source =
            Self { path: dir.to_owned(), files: Vec::new(), tensors: HashMap::new(), gguf: None };
        for file in weight_files(dir)? {
            source.add_safetensors(&file)?;
        }
        Ok((source, config))
    }

    fn add_safetensors(&mut self, path: &Path) -> Result<(), LoadError> {
        let opened = OpenFile::open(path)?;
        let header = read_header(BufReader::new(&opened.file));
        let header = header.map_err(|source| LoadError::Safetensors { path: path.to_owned(), source })?;
        for (name, info) in header {
            if info.end > opened.len {
                return Err(LoadError::Truncated {
                    path: path.to_owned(),
                    name,
                    end: info.end,
                    len: opened.len,
                });
            }
            let format = safetensors_format(&info.dtype).ok_or(info.dtype);
            self.tensors.insert(
                name,
                Tensor { file: self.files.len(), shape: info.shape, format, start: info.start },
            );
        }
        self.files.push(opened);
        Ok(())
    }

    fn open_gguf(path: &Path) -> Result<(Self, Config), LoadError> {
        let opened = OpenFile::open(path)?;
        let gguf = Gguf::read(BufReader::new(&opened.file));
        let gguf = gguf.map_err(|source| LoadError::Gguf { path: path.to_owned(), source })?;
        let tensors = gguf.tensors.into_iter().map(|(name, info)| {
            let format = Format::from_gguf(info.kind).ok_or_else(|| format!("ggml type {}", info.kind));
            (name, Tensor { file: 0, shape: info.shape, format, start: info.start })
        });
        let tensors = tensors.collect();
        let mut source =
            Self { path: path.to_owned(), files: vec![opened], tensors, gguf: Some(Family::Llama) };
        let vocab =
            source.tensors.get("token_embd.weight").and_then(|it| it.shape.first().copied()).unwrap_or(0);
        let divisors = source.rotation_divisors()?;
        let has = |name: &str| source.tensors.contains_key(name);
        let config = Config::from_gguf(&gguf.metadata, vocab, has, divisors.as_deref());
        let config = config.map_err(|source| LoadError::Config { path: path.to_owned(), source })?;
        source.gguf = Some(config.family);
        Ok((source, config))
    }

    /// The divisors of stretched rotations, which a GGUF file stores as a tensor.
    fn rotation_divisors(&self) -> Result<Option<Vec<f32>>, LoadError> {
        let Some(tensor) = self.tensors.get("rope_freqs.weight") else { return Ok(None) };
        self.check_stored("rope_freqs.weight", tensor)?;
        self.read_stored("rope_freqs.weight", tensor).map(Some)
    }

    /// Whether rows of queries and keys are stored as llama.cpp reorders them for Llama: pairs beside each other.
    pub fn pairs_adjacent(&self) -> bool {
        self.gguf == Some(Family::Llama)
    }

    /// Checks that a tensor is there, has this shape, a format we read, and lies inside its file.
    pub fn check(&self, name: &str, shape: &[usize]) -> Result<(), LoadError> {
        let (name, tensor) = self.find(name)?;
        if tensor.shape != shape {
            let (found, expected) = (tensor.shape.clone(), shape.to_vec());
            return Err(LoadError::Shape { path: self.path_of(tensor), name, found, expected });
        }
        self.check_stored(&name, tensor)
    }

    fn check_stored(&self, name: &str, tensor: &Tensor) -> Result<(), LoadError> {
        let (path, len) = (self.path_of(tensor), self.files[tensor.file].len);
        let wrong = |format: String| LoadError::Format { path: path.clone(), name: name.to_owned(), format };
        let format = tensor.format.clone().map_err(wrong)?;
        let row = tensor.shape.last().copied().unwrap_or(1);
        let row_bytes =
            format.bytes(row).ok_or_else(|| wrong(format!("{format:?} with rows of {row}")))? as u64;
        let n_rows = tensor.shape.iter().rev().skip(1).try_fold(1u64, |n, &dim| n.checked_mul(dim as u64));
        let size = n_rows.and_then(|n| n.checked_mul(row_bytes)).unwrap_or(u64::MAX);
        let end = tensor.start.saturating_add(size);
        if end > len {
            return Err(LoadError::Truncated { path, name: name.to_owned(), end, len });
        }
        Ok(())
    }

    /// The numbers of a tensor that was checked.
    pub fn read(&self, name: &str) -> Result<Vec<f32>, LoadError> {
        let (name, tensor) = self.find(name)?;
        self.read_stored(&name, tensor)
    }

    fn read_stored(&self, name: &str, tensor: &Tensor) -> Result<Vec<f32>, LoadError> {
        let path = self.path_of(tensor);
        let n = tensor.shape.iter().product();
        let wrong = |format: String| LoadError::Format { path: path.clone(), name: name.to_owned(), format };
        let format = tensor.format.clone().map_err(wrong)?;
        let mut bytes = vec![0; format.bytes(n).unwrap_or(0)];
        let read = self.files[tensor.file].file.read_exact_at(&mut bytes, tensor.start);
        read.map_err(|why| unreadable(&path, why))?;
        Ok(format.decode(&bytes))
    }

    /// A tensor by its Hugging Face name, with the name it is stored under.
    fn find(&self, name: &str) -> Result<(String, &Tensor), LoadError> {
        let stored = if self.gguf.is_some() { gguf_name(name) } else { name.to_owned() };
        match self.tensors.get(&stored) {
            Some(tensor) => Ok((stored, tensor)),
            None => Err(LoadError::MissingTensor { path: self.path.clone(), name: stored }),
        }
    }

    fn path_of(&self, tensor: &Tensor) -> PathBuf {
        self.files[tensor.file].path.clone()
    }
}

impl OpenFile {
    fn open(path: &Path) -> Result<Self, LoadError> {
        let file = File::open(path).map_err(|why| unreadable(path, why))?;
        let len = file.metadata().map_err(|why| unreadable(path, why))?.len();
        Ok(Self { path: path.to_owned(), len, file })
    }
}

fn unreadable(path: &Path, why: std::io::Error) -> LoadError {
    LoadError::Unreadable { path: path.to_owned(), why: why.to_string() }
}

fn safetensors_format(dtype: &str) -> Option<Format> {
    match dtype {
        "F32" => Some(Format::F32),
        "F16" => Some(Format::F16),
        "BF16" => Some(Format::BF16),
        _ => None,
    }
}

/// The safetensors files that a model directory must hold: those of its index, or the one that needs none.
pub fn weight_files(dir: &Path) -> Result<Vec<PathBuf>, LoadError> {
    let (single, index) = (dir.join("model.safetensors"), dir.join("model.safetensors.index.json"));
    if !index.exists() {
        return Ok(vec![single]);
    }
    let json = fs::read(&index).map_err(|why| unreadable(&index, why))?;
    let map = read_index(&json).map_err(|source| LoadError::Safetensors { path: index.clone(), source })?;
    let mut names: Vec<String> = map.into_values().collect();
    names.sort();
    names.dedup();
    // The index is untrusted: its names must stay inside the directory.
    match names.iter().find(|name| Path::new(name).file_name().is_none_or(|it| it != name.as_str())) {
        Some(outside) => {
            Err(LoadError::NotAModel { path: index, why: format!("{outside} is no plain file name") })
        }
        None => Ok(names.iter().map(|name| dir.join(name)).collect()),
    }
}

/// Parts of tensor names, as Hugging Face and as llama.cpp call them.
const NAMES: &[(&str, &str)] = &[
    ("model.layers.", "blk."),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
    ("input_layernorm", "attn_norm"),
    ("post_attention_layernorm", "ffn_norm"),
    ("model.embed_tokens", "token_embd"),
    ("model.norm", "output_norm"),
    ("lm_head", "output"),
];

fn gguf_name(name: &str) -> String {
    NAMES.iter().fold(name.to_owned(), |name, (hf, gguf)| name.replace(hf, gguf))
}

/// Refuses when `needed` bytes are more than the system has. Where it does not say, nothing is refused.
pub fn check_memory(needed: u64) -> Result<(), LoadError> {
    let Some(available) = available_memory() else { return Ok(()) };
    if needed <= available {
        return Ok(());
    }
    let mib = |bytes: u64| bytes >> 20;
    Err(LoadError::Memory { needed_mib: mib(needed), available_mib: mib(available) })
}

/// What Linux says could still be used, in bytes.
pub fn available_memory() -> Option<u64> {
    let meminfo = fs::read_to_string("/proc/meminfo").ok()?;
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_translated() {
        let check = |hf: &str, gguf: &str| assert_eq!(gguf_name(hf), gguf);
        check("model.layers.12.self_attn.q_proj.bias", "blk.12.attn_q.bias");
        check("model.layers.0.post_attention_layernorm.weight", "blk.0.ffn_norm.weight");
        check("model.layers.0.self_attn.k_norm.weight", "blk.0.attn_k_norm.weight");
        check("model.embed_tokens.weight", "token_embd.weight");
        check("model.norm.weight", "output_norm.weight");
        check("lm_head.weight", "output.weight");
    }

    #[test]
    fn memory_is_compared_with_what_is_there() {
        assert_eq!(check_memory(1 << 20), Ok(()));
        if available_memory().is_some() {
            assert!(matches!(check_memory(u64::MAX), Err(LoadError::Memory { .. })));
        }
    }
}
