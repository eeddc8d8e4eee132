//! What is on disk: recorded episodes, their scores, and what is kept of a run.
//!
//! Owns reading and writing files so that a crash loses nothing, the lock on a run directory and the
//! ledger of paid calls. The ledger is a [`Model`](crate::model::Model) around another model, so
//! `model` does not know it exists. What the bytes of foreign files mean is the business of `wire`.

pub(crate) mod atomic;
mod blocks;
mod disk;
pub(crate) mod episodes;
pub(crate) mod fingerprint;
pub(crate) mod hindsight;
pub(crate) mod journal;
pub(crate) mod kept;
pub(crate) mod layout;
pub(crate) mod ledger;
pub(crate) mod ledgered;
pub(crate) mod lock;
pub(crate) mod reader;
mod record;
pub(crate) mod run;
pub(crate) mod spool;
pub(crate) mod stamp;
pub(crate) mod summary;
pub(crate) mod versions;

pub use self::episodes::load_directory;
pub use self::fingerprint::{Fingerprint, Identity};
pub use self::kept::keep;
pub use self::ledger::Ledger;
pub use self::ledgered::{Ledgered, RunPlace, Stands};
pub use self::lock::{LockError, RunLock};
pub use self::reader::RunReader;
pub use self::versions::{NewWeights, Versions, WeightRules};
pub use crate::model::key::{Key, ModelId};
pub use crate::wire::episode_record::{from_json as episode_from_json, to_json as episode_to_json};
