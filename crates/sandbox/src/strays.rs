//! Killing every process that descends from us, whatever sessions and groups it made for itself.
//!
//! Works in a process that has made itself the one who adopts orphans: then no descendant can leave the
//! tree, and it is enough to walk it until it is empty.

use std::time::{Duration, Instant};

use rustix::process::{Signal, WaitOptions, kill_process, wait};

use super::family;

/// A process the kernel cannot kill at once, or that is not ours to kill, is waited for so long.
const PATIENCE: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(2);

/// Kills all descendants and returns when they are dead.
pub fn kill_all() {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let family = family::members();
        let [_, descendants @ ..] = &family[..] else { return };
        if descendants.is_empty() || Instant::now() > deadline {
            return;
        }
        // Stopped first, so that none of them can fork while the others are killed.
        for signal in [Signal::STOP, Signal::KILL] {
            for member in descendants {
                // It may have ended a moment ago.
                let _ = kill_process(member.pid, signal);
            }
        }
        while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {}
        std::thread::sleep(PAUSE);
    }
}
