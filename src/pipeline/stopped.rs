//! What stops the work on a run before all was done.

use crate::model::Error;

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
