//! What is on disk: recorded episodes, their scores, and what is kept of a run.
//!
//! Owns reading and writing files so that a crash loses nothing, the lock on a run directory and the
//! ledger of paid calls. The ledger is a [`Model`](crate::model::Model) around another model, so
//! `model` does not know it exists. What the bytes of foreign files mean is the business of `wire`.

pub mod atomic;
mod disk;
pub mod episodes;
pub mod fingerprint;
pub mod hindsight;
pub mod journal;
pub mod kept;
pub mod key;
pub mod ledger;
pub mod lock;
mod record;
pub mod run;
pub mod spool;
pub mod summary;

pub use self::fingerprint::{Fingerprint, Identity};
pub use self::kept::keep;
pub use self::key::seed_for;
pub use self::ledger::{Ledger, Ledgered};
pub use self::lock::{LockError, RunLock};
