//! What stops the work on a run before all was done, and the brake that everybody heeds who works on it.

use std::sync::OnceLock;

use crate::model::Error;
use crate::model::outlook::Outlook;

/// Why nothing more is begun.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Stopped {
    /// The model cannot be asked any more.
    #[error("{0}")]
    Model(Error),
    /// Something cannot be written any more.
    #[error("{0}")]
    Disk(String),
    /// A signal of this number.
    #[error("signal {0}")]
    Signal(u8),
}

/// Stops the work when going on is pointless: one of those it asks cannot be asked any more, or nothing can be written.
#[derive(Debug)]
pub(super) struct Brake<const N: usize> {
    /// Of each of those that are asked.
    pub(super) outlooks: [Outlook; N],
    /// Why nothing can be written.
    pub(super) disk: OnceLock<String>,
}

impl<const N: usize> Default for Brake<N> {
    fn default() -> Self {
        Self { outlooks: std::array::from_fn(|_| Outlook::default()), disk: OnceLock::new() }
    }
}

impl<const N: usize> Brake<N> {
    pub(super) fn is_stopped(&self) -> bool {
        self.disk.get().is_some() || self.outlooks.iter().any(Outlook::is_stopped)
    }

    /// The first failure of several is the one that is told.
    pub(super) fn unwritable(&self, why: String) {
        let _ = self.disk.set(why);
    }

    pub(super) fn stopped(&self) -> Option<Stopped> {
        let disk = self.disk.get().cloned().map(Stopped::Disk);
        disk.or_else(|| self.outlooks.iter().find_map(Outlook::ended_by).map(Stopped::Model))
    }
}
