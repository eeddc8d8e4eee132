//! The files of a model, and what is said of one that cannot be used.

use std::fs::{self, File};
use std::io::BufReader;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::gguf::Gguf;

/// A file that is missing, unreadable or not what it should be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}: {why}", path.display())]
pub struct BadFile {
    /// Which file.
    pub path: PathBuf,
    /// What is wrong with it.
    pub why: String,
}

impl BadFile {
    pub(super) fn new(path: &Path, why: impl ToString) -> Self {
        Self { path: path.to_owned(), why: why.to_string() }
    }
}

pub(super) fn read(path: &Path) -> Result<Vec<u8>, BadFile> {
    fs::read(path).map_err(|error| BadFile::new(path, error))
}

pub(super) fn read_text(path: &Path) -> Result<String, BadFile> {
    fs::read_to_string(path).map_err(|error| BadFile::new(path, error))
}

/// A file's JSON; null if there is no such file.
pub(super) fn read_json(path: &Path) -> Result<Value, BadFile> {
    if !path.exists() {
        return Ok(Value::Null);
    }
    serde_json::from_slice(&read(path)?).map_err(|error| BadFile::new(path, format!("not JSON: {error}")))
}

pub(super) fn read_gguf(path: &Path) -> Result<Gguf, BadFile> {
    let file = File::open(path).map_err(|error| BadFile::new(path, error))?;
    Gguf::read(BufReader::new(file)).map_err(|error| BadFile::new(path, error))
}

/// A token is a string or an object with its `content`.
pub(super) fn token_text(token: &Value) -> Option<&str> {
    token.as_str().or_else(|| token.get("content")?.as_str())
}
