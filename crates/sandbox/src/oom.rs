//! Who is killed first when memory runs out: a program, never the sandbox's first process.
//!
//! Programs inherit the kernel's preference at their start, and cannot change it: their `/proc` is
//! read-only, whatever rights the machine gives us. The first process keeps the preference that we have.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::process::{Child, Command};

use super::sys;

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

    /// Starts a program, which goes first. Its process takes on that preference from ours, and gives us our own
    /// back before it becomes the program: no program ever runs while we could go instead.
    pub fn start(&self, command: &mut Command) -> io::Result<Child> {
        sys::write_before_exec(command, self.file.try_clone()?.into(), self.ours.to_string());
        self.set(OF_PROGRAMS.max(self.ours))?;
        let child = command.spawn();
        // There may have been no process; the kernel lets everybody go back to what it had.
        let _ = self.set(self.ours);
        child
    }

    fn set(&self, preference: i32) -> io::Result<()> {
        self.file.write_all_at(preference.to_string().as_bytes(), 0)
    }
}
