//! A directory of the machine that belongs to one episode, for the kinds of sandbox that need one.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// Removed with everything in it when dropped.
#[derive(Debug)]
pub struct HostDir(PathBuf);

impl HostDir {
    /// Makes one that only its owner can enter.
    pub fn create() -> io::Result<Self> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let base = std::env::temp_dir();
        for _ in 0..1000 {
            let name = format!("backsight-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
            match DirBuilder::new().mode(0o700).create(base.join(&name)) {
                Ok(()) => return Ok(Self(base.join(name))),
                // Left over by a process with our id that was killed.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Opens it.
    pub fn open(&self) -> io::Result<OwnedFd> {
        Ok(File::open(&self.0)?.into())
    }

    /// Gives it to another user.
    pub fn give_to(&self, uid: u32, gid: u32) -> io::Result<()> {
        std::os::unix::fs::chown(&self.0, Some(uid), Some(gid))
    }
}

impl Drop for HostDir {
    fn drop(&mut self) {
        // What cannot be removed is only untidy.
        let _ = fs::remove_dir_all(&self.0);
    }
}
