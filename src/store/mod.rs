//! What is kept of a run, and that only one process writes to it.
//!
//! Owns the lock on a run directory and the ledger of paid calls. The ledger is a
//! [`Model`](crate::model::Model) around another model, so `model` does not know it exists.

mod disk;
pub mod fingerprint;
pub mod key;
pub mod ledger;
pub mod lock;
mod record;

pub use self::fingerprint::{Fingerprint, Identity};
pub use self::key::seed_for;
pub use self::ledger::{Ledger, Ledgered};
pub use self::lock::{LockError, RunLock};
