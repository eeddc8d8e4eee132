//! Which values are paths, and replacing them.

use std::path::{Path, PathBuf};

use toml::{Table, Value};

use super::keys::{self, Key, Shape};
use crate::hf::is_repo;
use crate::tasks::source::TaskSource;

/// The values with every path in them replaced.
pub(super) fn replaced(mut values: Table, replace: impl Fn(&Path) -> PathBuf) -> Table {
    for (name, value) in &mut values {
        let Some(key) = keys::find(name) else { continue };
        let words = match value {
            Value::Array(items) => items.as_mut_slice(),
            one => std::slice::from_mut(one),
        };
        for word in words {
            if let Value::String(text) = word
                && is_path(key, text)
            {
                let path = replace(Path::new(text));
                if !is_name(key, text, &path) {
                    *text = path.display().to_string();
                }
            }
        }
    }
    values
}

/// Whether a word is meant as a path: some keys take names too.
fn is_path(key: &Key, word: &str) -> bool {
    match (&key.shape, key.name) {
        (Shape::Path, _) => true,
        (Shape::Program, _) => word.contains('/'),
        (_, "tasks") => matches!(TaskSource::parse(word), TaskSource::File(_)),
        (_, "model") => word.starts_with("./") || word.starts_with("../"),
        _ => false,
    }
}

/// Whether a tokenizer is named as on the hub: there is no directory that would be meant.
fn is_name(key: &Key, word: &str, path: &Path) -> bool {
    key.name.ends_with("tokenizer") && is_repo(word) && !path.exists() && !Path::new(word).exists()
}
