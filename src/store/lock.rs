//! One process per run directory.
//!
//! Owns [`RunLock`]: an exclusive lock of the operating system on `run.lock`. The system releases it
//! when the process ends, however it ends, so there is nothing to clean up after a crash. The file
//! stays behind with the last holder's process id; its presence means nothing.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};

/// The name of the locked file.
pub const LOCK_FILE: &str = "run.lock";

/// The right to write to a run directory, until dropped.
#[derive(Debug)]
pub struct RunLock {
    dir: PathBuf,
    _file: File,
}

/// Why a run directory cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another process has it.
    #[error("the run directory {dir} is in use by {holder}")]
    InUse {
        /// The directory.
        dir: PathBuf,
        /// `process 4711`, or `another process` while that one is still starting.
        holder: String,
    },
    /// The directory or the file cannot be made.
    #[error("the run directory {dir} cannot be locked: {why}")]
    Failed {
        /// The directory.
        dir: PathBuf,
        /// What the system said.
        why: io::Error,
    },
}

impl LockError {
    /// What the user can do about it.
    pub fn help(&self) -> &'static str {
        match self {
            Self::InUse { .. } => "wait for it or stop it, or choose another directory with --run",
            Self::Failed { .. } => "choose a directory that can be written to with --run",
        }
    }
}

impl RunLock {
    /// Makes `dir` if need be and locks it for this process.
    pub fn acquire(dir: &Path) -> Result<Self, LockError> {
        let failed = |why| LockError::Failed { dir: dir.to_owned(), why };
        std::fs::create_dir_all(dir).map_err(failed)?;
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).create(true).truncate(false);
        let mut file = options.open(dir.join(LOCK_FILE)).map_err(failed)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(LockError::InUse { dir: dir.to_owned(), holder: holder(&mut file) });
            }
            Err(TryLockError::Error(why)) => return Err(failed(why)),
        }
        sign(&mut file).map_err(failed)?;
        Ok(Self { dir: dir.to_owned(), _file: file })
    }

    /// The directory that is locked.
    pub fn dir(&self) -> &Path {
        &self.dir
    }
}

/// Writes our process id, for the message another process gives.
fn sign(file: &mut File) -> io::Result<()> {
    file.set_len(0)?;
    file.rewind()?;
    writeln!(file, "{}", std::process::id())
}

fn holder(file: &mut File) -> String {
    let mut text = String::new();
    let read = file.read_to_string(&mut text);
    match read.ok().and_then(|_| text.trim().parse::<u32>().ok()) {
        Some(pid) => format!("process {pid}"),
        None => "another process".to_owned(),
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;

    #[test]
    fn a_second_holder_is_told_who_is_first() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("runs/one");
        let first = RunLock::acquire(&dir).unwrap();
        let refused = RunLock::acquire(&dir).unwrap_err();
        let expected =
            format!("the run directory {} is in use by process {}", dir.display(), std::process::id());
        assert_eq!(refused.to_string(), expected);
        drop(first);
        assert_eq!(RunLock::acquire(&dir).unwrap().dir(), dir);
    }

    #[test]
    fn a_stale_file_is_no_lock() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(LOCK_FILE), "999999999 and some more text\n").unwrap();
        drop(RunLock::acquire(dir.path()).unwrap());
        let text = std::fs::read_to_string(dir.path().join(LOCK_FILE)).unwrap();
        assert_eq!(text, format!("{}\n", std::process::id()));
    }

    #[test]
    fn a_directory_that_cannot_be_made_is_named() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("file"), "").unwrap();
        let error = RunLock::acquire(&dir.path().join("file/run")).unwrap_err();
        assert!(error.to_string().contains("file/run cannot be locked"), "{error}");
    }
}
