//! Things a person should know about a model that are no failures: a limit that was met, a value left out.
//!
//! Owns the list that clients write to and the command line reads. Each notice is kept once, however
//! often it comes up. Deliberately absent: printing.

use std::sync::{Arc, Mutex, PoisonError};

/// A list of notices; clones share it.
#[derive(Clone, Debug, Default)]
pub struct Notices(Arc<Mutex<List>>);

#[derive(Debug, Default)]
struct List {
    all: Vec<String>,
    n_taken: usize,
}

impl Notices {
    /// Adds a notice unless it is there already.
    pub fn add(&self, notice: impl Into<String>) {
        let notice = notice.into();
        let mut list = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !list.all.contains(&notice) {
            list.all.push(notice);
        }
    }

    /// Every notice so far.
    pub fn all(&self) -> Vec<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).all.clone()
    }

    /// The notices that were not taken before.
    pub fn take(&self) -> Vec<String> {
        let mut list = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let new = list.all[list.n_taken..].to_vec();
        list.n_taken = list.all.len();
        new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_notice_is_kept_and_taken_once() {
        let notices = Notices::default();
        let other = notices.clone();
        notices.add("a");
        other.add("a");
        other.add("b");
        assert_eq!(notices.take(), ["a", "b"]);
        notices.add("a");
        notices.add("c");
        assert_eq!(other.take(), ["c"]);
        assert_eq!(notices.all(), ["a", "b", "c"]);
    }
}
