//! How much work outside the sandbox a call may cause, and whether anybody still waits for it.
//!
//! What a student asks for costs us, not its sandbox, when we read and compare its files. Work is counted in bytes
//! gone through, which no busy machine distorts. Whoever loops asks at every turn of the loop.

use std::cell::Cell;

use tokio::sync::oneshot;

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
    /// Closed when nobody waits any more; absent where the work is always wanted.
    waiting: Option<oneshot::Sender<()>>,
}

impl Allowance {
    /// Allows going through `max` bytes.
    pub fn new(max: u64) -> Self {
        Self { max, left: Cell::new(max), waiting: None }
    }

    /// Allows it for as long as whoever waits for the work holds what is returned beside.
    pub(super) fn while_wanted(max: u64) -> (Self, oneshot::Receiver<()>) {
        let (waiting, wanted) = oneshot::channel();
        (Self { waiting: Some(waiting), ..Self::new(max) }, wanted)
    }

    /// Goes through `n_bytes` more, unless that is too much or nobody waits.
    pub fn spend(&self, n_bytes: usize) -> Result<(), Stopped> {
        if self.waiting.as_ref().is_some_and(oneshot::Sender::is_closed) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_ends_when_it_is_too_much_or_unwanted() {
        let (allowance, wanted) = Allowance::while_wanted(3 << 20);
        assert_eq!((allowance.spend(1 << 20), allowance.spent()), (Ok(()), 1 << 20));
        let stopped = allowance.spend(3 << 20);
        assert_eq!(stopped, Err(Stopped::TooMuch(3 << 20)));
        assert_eq!(allowance.spend(1), Ok(()));
        drop(wanted);
        assert_eq!(allowance.spend(1), Err(Stopped::Unwanted));
    }
}
