//! Which values are paths, and replacing them.

use std::path::{Component, Path, PathBuf};

use toml::{Table, Value};

use super::Config;
use super::keys::{self, Accepts, Key};
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
    match (&key.accepts, key.name) {
        (Accepts::Path, _) => true,
        (Accepts::Program, _) => word.contains('/'),
        (_, "tasks") => matches!(TaskSource::parse(word), TaskSource::File(_)),
        (_, "model") => word.starts_with("./") || word.starts_with("../"),
        _ => false,
    }
}

/// Whether a tokenizer is named as on the hub: there is no directory that would be meant.
fn is_name(key: &Key, word: &str, path: &Path) -> bool {
    key.name.ends_with("tokenizer") && is_repo(word) && !path.exists() && !Path::new(word).exists()
}

impl Config {
    /// As a file in `dir` has it: paths begin there, however they were typed, so that a directory can be moved with
    /// what it was made from. Only what has nothing in common with it but the root is told from there.
    pub fn seen_from(&self, dir: &Path) -> Self {
        let dir = dir.canonicalize().unwrap_or_else(|_| dir.to_owned());
        let values = replaced(self.values.clone(), |path| way(&dir, &settled(path)));
        Self { values, ..self.clone() }
    }
}

/// A path without links and `..` in the directories it goes through.
fn settled(path: &Path) -> PathBuf {
    let whole = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    match (whole.parent().map(Path::canonicalize), whole.file_name()) {
        (Some(Ok(parent)), Some(name)) => parent.join(name),
        _ => whole,
    }
}

/// The way from one directory to another place.
fn way(from: &Path, to: &Path) -> PathBuf {
    let n_common = from.components().zip(to.components()).take_while(|(a, b)| a == b).count();
    if n_common <= 1 {
        return to.to_owned();
    }
    let up = from.components().skip(n_common).map(|_| Component::ParentDir);
    up.chain(to.components().skip(n_common)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ways_lead_from_one_place_to_another() {
        let check = |from: &str, to: &str, expected: &str| {
            assert_eq!(way(Path::new(from), Path::new(to)), Path::new(expected), "{from} to {to}");
        };
        check("/home/ann/runs/a", "/home/ann/tasks.jsonl", "../../tasks.jsonl");
        check("/home/ann/runs/a", "/home/ann/runs/a/x", "x");
        check("/home/ann/runs/a", "/data/x", "/data/x");
        check("/home/ann", "/home/ben/x", "../ben/x");
    }
}
