//! Files that only grow: one JSON value a line, each written whole.
//!
//! Owns [`Journal`]. A line that a crash cut short is taken away before the next is added, so a
//! reader never finds half a line in the middle. Lines are not synced one by one: after a power cut
//! the last of them may be missing. A file is made with its first line.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use serde_json::Value;

/// How much of a file's end is looked at at a time.
const BLOCK: u64 = 64 << 10;

/// A file that grows line by line.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    file: Mutex<Option<File>>,
}

impl Journal {
    /// The file at `path`, whether or not it is there.
    pub fn at(path: &Path) -> Self {
        Self { path: path.to_owned(), file: Mutex::default() }
    }

    /// Adds a line.
    pub fn add(&self, value: &Value) -> io::Result<()> {
        let line = format!("{value}\n");
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let open = match file.take() {
            Some(open) => open,
            None => begin(&self.path)?,
        };
        file.insert(open).write_all(line.as_bytes())
    }
}

/// Opens a file behind its last whole line.
fn begin(path: &Path) -> io::Result<File> {
    let mut file = OpenOptions::new().read(true).append(true).create(true).open(path)?;
    let whole = end_of_last_line(&mut file)?;
    file.set_len(whole)?;
    Ok(file)
}

/// Where the last whole line ends.
fn end_of_last_line(file: &mut File) -> io::Result<u64> {
    let mut end = file.metadata()?.len();
    while end > 0 {
        let start = end.saturating_sub(BLOCK);
        let mut block = vec![0; (end - start) as usize];
        file.seek(SeekFrom::Start(start))?;
        file.read_exact(&mut block)?;
        if let Some(at) = block.iter().rposition(|byte| *byte == b'\n') {
            return Ok(start + at as u64 + 1);
        }
        end = start;
    }
    Ok(0)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(before: &str, expected: &str) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("events.jsonl");
        std::fs::write(&path, before).unwrap();
        let journal = Journal::at(&path);
        journal.add(&json!({"n": 1})).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), expected);
    }

    #[test]
    fn lines_are_added_behind_the_last_whole_one() {
        check("", "{\"n\":1}\n");
        check("{}\n", "{}\n{\"n\":1}\n");
        check("{}\n{\"cut", "{}\n{\"n\":1}\n");
        check("{\"cut", "{\"n\":1}\n");
        let long = "x".repeat(200_000);
        check(&format!("{{}}\n{long}"), "{}\n{\"n\":1}\n");
        check(&format!("{long}\n"), &format!("{long}\n{{\"n\":1}}\n"));
    }
}
