//! Who is killed first when memory runs out: a program, never the sandbox's first process.
//!
//! Programs inherit the kernel's preference at their start, and cannot change it: their `/proc` is
//! read-only, whatever rights the machine gives us. The first process keeps the preference that we have.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;

const FILE: &str = "/proc/self/oom_score_adj";
/// Under memory pressure of the whole machine too, programs of sandboxes go before anything else.
const OF_PROGRAMS: i32 = 500;

/// The preference of the first process, which is also that of what it starts.
#[derive(Debug)]
pub struct Preference {
    file: File,
    ours: i32,
}

impl Preference {
    /// To be called while `/proc` can still be written to.
    pub fn open() -> io::Result<Self> {
        let ours = fs::read_to_string(FILE)?.trim().parse().unwrap_or(0);
        Ok(Self { file: File::options().write(true).open(FILE)?, ours })
    }

    /// Starts a program, which goes first; for that moment the first process goes with it.
    pub fn start<T>(&self, start: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        self.set(OF_PROGRAMS.max(self.ours))?;
        let started = start();
        // The kernel lets everybody go back to what it had.
        let _ = self.set(self.ours);
        started
    }

    fn set(&self, preference: i32) -> io::Result<()> {
        self.file.write_all_at(preference.to_string().as_bytes(), 0)
    }
}
