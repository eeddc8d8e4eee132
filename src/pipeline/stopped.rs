//! What stops the work on a run before all was done.

use std::fmt;

use crate::model::Error;

/// Why nothing more is begun.
#[derive(Clone, Debug, PartialEq)]
pub enum Stopped {
    /// The model cannot be asked any more.
    Model(Error),
    /// Something cannot be written any more.
    Disk(String),
    /// A signal of this number.
    Signal(u8),
}

impl fmt::Display for Stopped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Model(error) => error.fmt(f),
            Self::Disk(why) => f.write_str(why),
            Self::Signal(number) => write!(f, "signal {number}"),
        }
    }
}
