//! Which values are paths, and replacing them.

use std::path::{Path, PathBuf};

use toml::{Table, Value};

use super::keys::{self, Key, Shape};
use crate::tasks::source::TaskSource;

/// The values with every path in them replaced.
pub(super) fn replaced(values: Table, replace: impl Fn(&Path) -> PathBuf) -> Table {
    let word = |key: &Key, word: String| {
        if is_path(key, &word) { replace(Path::new(&word)).display().to_string() } else { word }
    };
    let of = |key: &Key, value| match value {
        Value::String(text) => Value::String(word(key, text)),
        Value::Array(items) => {
            let item = |item| match item {
                Value::String(text) => Value::String(word(key, text)),
                other => other,
            };
            Value::Array(items.into_iter().map(item).collect())
        }
        other => other,
    };
    let keyed = |(name, value): (String, Value)| match keys::find(&name) {
        Some(key) => (name, of(key, value)),
        None => (name, value),
    };
    values.into_iter().map(keyed).collect()
}

/// Whether a word is meant as a path: some keys take names too.
fn is_path(key: &Key, word: &str) -> bool {
    match (key.shape, key.name) {
        (Shape::Path, _) => true,
        (Shape::Program, _) => word.contains('/'),
        (_, "tasks") => matches!(TaskSource::parse(word), TaskSource::File(_)),
        (_, "model") => word.starts_with("./") || word.starts_with("../"),
        _ => false,
    }
}
