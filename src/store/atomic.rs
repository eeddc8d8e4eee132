//! Writing files so that a reader, or the next run after a crash, sees the old content or the new and never a part.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

/// Replaces the content of `path`, or of what it is a link to: a temporary file beside it is written, synced and renamed over it.
pub fn write(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut file = Pending::create(path)?;
    file.write_all(content)?;
    file.commit()
}

/// A file that is being written beside its final name; dropped before [`commit`](Self::commit) it leaves nothing behind.
#[derive(Debug)]
pub struct Pending {
    path: PathBuf,
    temporary: Temporary,
    writer: BufWriter<File>,
}

/// A file that is gone when this is.
#[derive(Debug)]
struct Temporary(PathBuf);

impl Drop for Temporary {
    fn drop(&mut self) {
        // After a commit the name is free already; otherwise the error that matters came before.
        let _ = fs::remove_file(&self.0);
    }
}

impl Pending {
    /// Begins the new content of `path`; through a link its target is written, and the link stays.
    pub fn create(path: &Path) -> io::Result<Self> {
        let path = followed(path)?;
        let temporary = Temporary(temporary_beside(&path)?);
        let writer = BufWriter::new(File::create(&temporary.0)?);
        Ok(Self { path, temporary, writer })
    }

    /// Puts the content in place once it has reached the disk.
    pub fn commit(self) -> io::Result<()> {
        let Self { path, temporary, writer } = self;
        writer.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()?;
        fs::rename(&temporary.0, &path)?;
        let directory =
            path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        // The name is in the directory, which has to reach the disk too.
        File::open(directory)?.sync_all()
    }
}

impl Write for Pending {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.writer.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer.flush()
    }
}

/// Links that lead to one another further than this lead nowhere.
const MOST_LINKS: usize = 40;

/// What a path leads to through links, whether or not it is there.
fn followed(path: &Path) -> io::Result<PathBuf> {
    let mut path = path.to_owned();
    for _ in 0..MOST_LINKS {
        match fs::read_link(&path) {
            Ok(target) => path = path.parent().unwrap_or(Path::new("")).join(target),
            // It is no link.
            Err(_) => return Ok(path),
        }
    }
    Err(io::Error::other("the link leads nowhere"))
}

/// Takes away what processes that were killed left of files in a directory that nobody else writes to; `is_meant` is
/// given a file's final name.
pub fn sweep(directory: &Path, is_meant: impl Fn(&str) -> bool) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        if name.to_str().and_then(final_name).is_some_and(&is_meant) {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// The name that a temporary file would have had in the end.
fn final_name(temporary: &str) -> Option<&str> {
    let (name, process) = temporary.strip_prefix('.')?.strip_suffix(".tmp")?.rsplit_once('.')?;
    process.parse::<u32>().is_ok().then_some(name)
}

/// A name of this process's own, hidden, in the same directory, because a rename is atomic only within one file system.
fn temporary_beside(path: &Path) -> io::Result<PathBuf> {
    let name = path.file_name().ok_or_else(|| io::Error::other("the path names no file"))?;
    let name = format!(".{}.{}.tmp", name.to_string_lossy(), std::process::id());
    Ok(path.with_file_name(name))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;

    #[test]
    fn the_content_is_replaced_and_nothing_else_is_left() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.json");
        write(&path, b"old").unwrap();
        write(&path, b"new").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_link_stays_and_its_target_is_written() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        fs::create_dir(at("far")).unwrap();
        std::os::unix::fs::symlink("far/b", at("a")).unwrap();
        std::os::unix::fs::symlink("a", at("c")).unwrap();
        for content in ["new", "newer"] {
            write(&at("c"), content.as_bytes()).unwrap();
            assert_eq!(fs::read_to_string(at("far/b")).unwrap(), content);
            assert!(at("a").is_symlink() && at("c").is_symlink());
        }
        std::os::unix::fs::symlink("ring", at("ring")).unwrap();
        assert!(write(&at("ring"), b"x").is_err());
    }

    #[test]
    fn content_that_is_never_committed_leaves_no_trace() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a");
        write(&path, b"old").unwrap();
        let mut half = Pending::create(&path).unwrap();
        half.write_all(b"half").unwrap();
        drop(half);
        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn what_a_killed_process_left_is_swept_away_and_nothing_else() {
        let directory = tempfile::tempdir().unwrap();
        let ours = [".a.json.17.tmp", ".a.b.json.4194304.tmp"];
        let others = ["a.json", ".a.json.tmp", "a.json.17.tmp", ".a.json.x.tmp", ".other.17.tmp", ".tmp"];
        for name in ours.iter().chain(&others) {
            fs::write(directory.path().join(name), b"x").unwrap();
        }
        sweep(directory.path(), |name| name != "other").unwrap();
        let is_there = |name: &&str| directory.path().join(name).exists();
        assert!(!ours.iter().any(is_there) && others.iter().all(is_there));
    }

    #[test]
    fn a_failed_write_keeps_the_old_content() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a");
        fs::create_dir(&path).unwrap();
        fs::write(path.join("inside"), b"x").unwrap();
        assert!(write(&path, b"new").is_err(), "a directory is not replaced by a file");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }
}
