//! The files of a model, and what is said of one that cannot be used.

use std::fmt::Display;
use std::fs::{self, File};
use std::io::BufReader;
use std::path::Path;

use serde_json::Value;

use super::error::TextError;
use super::gguf::Gguf;

/// A file that is missing, unreadable or not what it should be.
pub(super) fn bad_file(path: &Path, why: impl Display) -> TextError {
    TextError::new(format!("{}: {why}", path.display()), "check the path and the file")
}

pub(super) fn read(path: &Path) -> Result<Vec<u8>, TextError> {
    fs::read(path).map_err(|error| bad_file(path, error))
}

pub(super) fn read_text(path: &Path) -> Result<String, TextError> {
    fs::read_to_string(path).map_err(|error| bad_file(path, error))
}

/// A file's JSON; null if there is no such file.
pub(super) fn read_json(path: &Path) -> Result<Value, TextError> {
    if !path.exists() {
        return Ok(Value::Null);
    }
    serde_json::from_slice(&read(path)?).map_err(|error| bad_file(path, format!("not JSON: {error}")))
}

pub(super) fn read_gguf(path: &Path) -> Result<Gguf, TextError> {
    let file = File::open(path).map_err(|error| bad_file(path, error))?;
    Gguf::read(BufReader::new(file)).map_err(|error| bad_file(path, error))
}

/// A token is a string or an object with its `content`.
pub(super) fn token_text(token: &Value) -> Option<&str> {
    token.as_str().or_else(|| token.get("content")?.as_str())
}
