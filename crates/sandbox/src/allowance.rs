//! How much work outside the sandbox a call may cause, and whether anybody still waits for it.
//!
//! What a student asks for costs us, not its sandbox, when we read and compare its files. Work is counted in bytes
//! gone through, which no busy machine distorts. Whoever loops asks at every turn of the loop.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Why work ended before it was done. Worded for the student, who can act on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Stopped {
    /// It went through more than it may.
    #[error("this would go through more than {} MiB of text; ask for less, or use the terminal", .0 >> 20)]
    TooMuch(u64),
    /// Nobody waits for it any more.
    #[error("nobody waits for this any more")]
    Unwanted,
}

/// What one call may go through. It belongs to the thread that works.
#[derive(Debug)]
pub struct Allowance {
    max: u64,
    left: Cell<u64>,
    is_unwanted: Arc<AtomicBool>,
}

impl Allowance {
    /// Allows going through `max` bytes.
    pub fn new(max: u64) -> Self {
        Self { max, left: Cell::new(max), is_unwanted: Arc::default() }
    }

    /// What ends the work when it is dropped.
    pub(super) fn wanted(&self) -> Wanted {
        Wanted(Arc::clone(&self.is_unwanted))
    }

    /// Goes through `n_bytes` more, unless that is too much or nobody waits.
    pub fn spend(&self, n_bytes: usize) -> Result<(), Stopped> {
        if self.is_unwanted.load(Ordering::Relaxed) {
            return Err(Stopped::Unwanted);
        }
        let left = self.left.get().checked_sub(n_bytes as u64).ok_or(Stopped::TooMuch(self.max))?;
        self.left.set(left);
        Ok(())
    }

    /// How many bytes were gone through.
    pub fn spent(&self) -> u64 {
        self.max - self.left.get()
    }
}

/// Held by whoever waits for the work.
#[derive(Debug)]
pub(super) struct Wanted(Arc<AtomicBool>);

impl Drop for Wanted {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_ends_when_it_is_too_much_or_unwanted() {
        let allowance = Allowance::new(3 << 20);
        assert_eq!((allowance.spend(1 << 20), allowance.spent()), (Ok(()), 1 << 20));
        let stopped = allowance.spend(3 << 20);
        assert_eq!(stopped, Err(Stopped::TooMuch(3 << 20)));
        let wanted = allowance.wanted();
        assert_eq!(allowance.spend(1), Ok(()));
        drop(wanted);
        assert_eq!(allowance.spend(1), Err(Stopped::Unwanted));
    }
}
