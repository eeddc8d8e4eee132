//! Finding a model's weights: a Hugging Face directory or a GGUF file.
//!
//! Owns opening, checking and reading tensors by name. All that can be wrong is found before the first
//! number is read: the files' lengths, every tensor's presence, shape and format, the memory. What is
//! done with the numbers is the business of `weights`.

use std::collections::{BTreeSet, HashMap};
use std::fmt::Display;
use std::fs::{self, File};
use std::io::BufReader;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::config::{Config, Family};
use crate::ggml::Format;
use crate::hf_config::HfConfig;
use crate::safetensors::{read_header, read_index};
use backsight_chat::gguf::Gguf;
use backsight_core::model::Error;

const NO_MODEL: &str = "name a directory with config.json and *.safetensors, or a .gguf file";
const DAMAGED: &str =
    "fetch the file again; if that does not help, it was written by a program we do not know";
const UNREADABLE_FORMAT: &str = "use f32, f16, bf16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K or Q6_K";

/// The divisors of stretched rotations, which a GGUF file stores as a tensor.
const DIVISORS: &str = "rope_freqs.weight";

/// A model's files, opened and not yet read.
#[derive(Debug)]
pub struct WeightSource {
    path: PathBuf,
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
    file: Arc<OpenFile>,
    shape: Vec<usize>,
    format: Result<Format, String>,
    start: u64,
}

impl WeightSource {
    /// Opens `path` and reads everything but the weights.
    pub fn open(path: &Path) -> Result<(Self, Config), Error> {
        if path.is_dir() { Self::open_directory(path) } else { Self::open_gguf(path) }
    }

    fn open_directory(dir: &Path) -> Result<(Self, Config), Error> {
        let config = dir.join("config.json");
        let hf: HfConfig =
            serde_json::from_slice(&read(&config)?).map_err(|why| unfit(&config, why, NO_MODEL))?;
        let config = Config::from_hf(&hf).map_err(|why| unfit(dir, &why, why.help()))?;
        let mut tensors = HashMap::new();
        for path in weight_files(dir)? {
            let file = OpenFile::open(&path)?;
            let header = read_header(BufReader::new(&file.file)).map_err(|why| unfit(&path, why, DAMAGED))?;
            for (name, info) in header {
                file.check_end(&name, info.range[1])?;
                let format = Format::from_safetensors(&info.dtype).ok_or(info.dtype);
                let [start, _] = info.range;
                tensors.insert(name, Tensor { file: Arc::clone(&file), shape: info.shape, format, start });
            }
        }
        Ok((Self { path: dir.to_owned(), tensors, gguf: None }, config))
    }

    fn open_gguf(path: &Path) -> Result<(Self, Config), Error> {
        let file = OpenFile::open(path)?;
        let gguf = Gguf::read(BufReader::new(&file.file)).map_err(|why| unfit(path, why, DAMAGED))?;
        let tensors = gguf.tensors.into_iter().map(|(name, info)| {
            let format = Format::from_gguf(info.kind).ok_or_else(|| format!("ggml type {}", info.kind));
            (name, Tensor { file: Arc::clone(&file), shape: info.shape, format, start: info.start })
        });
        let tensors: HashMap<String, Tensor> = tensors.collect();
        let vocab = tensors.get("token_embd.weight").and_then(|it| it.shape.first().copied()).unwrap_or(0);
        let config = Config::from_gguf(&gguf.metadata, vocab, |name| tensors.contains_key(name));
        let mut config = config.map_err(|why| unfit(path, &why, why.help()))?;
        let source = Self { path: path.to_owned(), tensors, gguf: Some(config.family) };
        if source.tensors.contains_key(DIVISORS) {
            source.check(DIVISORS, &[config.frequencies.len()])?;
            let divisors = source.read(DIVISORS)?;
            config.frequencies.iter_mut().zip(divisors).for_each(|(frequency, it)| *frequency /= it);
        }
        Ok((source, config))
    }

    /// Whether rows of queries and keys are stored as llama.cpp reorders them for Llama: pairs beside each other.
    pub fn pairs_adjacent(&self) -> bool {
        self.gguf == Some(Family::Llama)
    }

    /// Checks that a tensor is there, has this shape, a format we read, and lies inside its file.
    pub fn check(&self, name: &str, shape: &[usize]) -> Result<(), Error> {
        let (name, tensor) = self.find(name)?;
        if tensor.shape != shape {
            let what = format!("has the shape {:?} instead of {shape:?}", tensor.shape);
            let help = "check that config.json and the weights belong to the same model";
            return Err(tensor.unfit(&name, &what, help));
        }
        let format = tensor.format(&name)?;
        let row = shape.last().copied().unwrap_or(1);
        let row_bytes = format.bytes(row);
        let row_bytes =
            row_bytes.ok_or_else(|| tensor.strange(&name, &format!("{format:?} with rows of {row}")))?;
        let n_rows = shape.iter().rev().skip(1).try_fold(1u64, |n, &dim| n.checked_mul(dim as u64));
        let size = n_rows.and_then(|n| n.checked_mul(row_bytes as u64)).unwrap_or(u64::MAX);
        tensor.file.check_end(&name, tensor.start.saturating_add(size))
    }

    /// The numbers of a tensor that was checked.
    pub fn read(&self, name: &str) -> Result<Vec<f32>, Error> {
        let (name, tensor) = self.find(name)?;
        let format = tensor.format(&name)?;
        let mut bytes = vec![0; format.bytes(tensor.shape.iter().product()).unwrap_or(0)];
        let read = tensor.file.file.read_exact_at(&mut bytes, tensor.start);
        read.map_err(|why| unfit(&tensor.file.path, why, NO_MODEL))?;
        Ok(format.decode(&bytes))
    }

    /// A tensor by its Hugging Face name, with the name it is stored under.
    fn find(&self, name: &str) -> Result<(String, &Tensor), Error> {
        let stored = if self.gguf.is_some() { gguf_name(name) } else { name.to_owned() };
        match self.tensors.get(&stored) {
            Some(tensor) => Ok((stored, tensor)),
            None => Err(unfit(&self.path, format!("the tensor {stored} is missing"), DAMAGED)),
        }
    }
}

impl Tensor {
    fn format(&self, name: &str) -> Result<Format, Error> {
        self.format.clone().map_err(|format| self.strange(name, &format))
    }

    fn strange(&self, name: &str, format: &str) -> Error {
        let what = format!("has the number format {format}, which cannot be read");
        self.unfit(name, &what, UNREADABLE_FORMAT)
    }

    fn unfit(&self, name: &str, what: &str, help: &str) -> Error {
        unfit(&self.file.path, format!("the tensor {name} {what}"), help)
    }
}

impl OpenFile {
    fn open(path: &Path) -> Result<Arc<Self>, Error> {
        let file = File::open(path).and_then(|file| Ok((file.metadata()?.len(), file)));
        let (len, file) = file.map_err(|why| unfit(path, why, NO_MODEL))?;
        Ok(Arc::new(Self { path: path.to_owned(), len, file }))
    }

    /// Refuses a tensor that lies beyond the file's end.
    fn check_end(&self, name: &str, end: u64) -> Result<(), Error> {
        if end <= self.len {
            return Ok(());
        }
        let what = format!("the file is cut: {name} should end at byte {end}, the file has {}", self.len);
        Err(unfit(&self.path, what, DAMAGED))
    }
}

fn unfit(path: &Path, why: impl Display, help: &str) -> Error {
    Error::invalid(format!("{}: {why}", path.display()), help)
}

fn read(path: &Path) -> Result<Vec<u8>, Error> {
    fs::read(path).map_err(|why| unfit(path, why, NO_MODEL))
}

/// The safetensors files that a model directory must hold: those of its index, or the one that needs none.
pub fn weight_files(dir: &Path) -> Result<Vec<PathBuf>, Error> {
    let (single, index) = (dir.join("model.safetensors"), dir.join("model.safetensors.index.json"));
    if !index.exists() {
        return Ok(vec![single]);
    }
    let map = read_index(&read(&index)?).map_err(|why| unfit(&index, why, DAMAGED))?;
    let names: BTreeSet<String> = map.into_values().collect();
    // The index is untrusted: its names must stay inside the directory.
    match names.iter().find(|name| Path::new(name).file_name().is_none_or(|it| it != name.as_str())) {
        Some(outside) => Err(unfit(&index, format!("{outside} is no plain file name"), NO_MODEL)),
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

/// Refuses when what is to be kept needs more bytes than the system has. Where it does not say, nothing is refused.
pub fn check_memory(what: impl Display, needed: u64, help: &str) -> Result<(), Error> {
    match available_memory().filter(|&available| needed > available) {
        Some(available) => Err(Error::invalid(
            format!("{what} {} MiB of memory, {} MiB are available", needed >> 20, available >> 20),
            help,
        )),
        None => Ok(()),
    }
}

/// What Linux says could still be used, in bytes.
fn available_memory() -> Option<u64> {
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
        assert_eq!(check_memory("it needs", 1 << 20, ""), Ok(()));
        if available_memory().is_some() {
            let error = check_memory("it needs", u64::MAX, "buy more").map_err(|error| error.to_string());
            assert!(error.is_err_and(|it| it.starts_with("it needs 17592186044415 MiB of memory, ")));
        }
    }
}
