//! How the parts work together. Read this first.
//!
//! [`credit`] takes episodes and a lens in and gives scored steps and their credit: an episode is outlined and
//! read (`outline`, `read`: which sequences hold its actions), asked for (`ask`: the scores that are wanted, through
//! a plan), and what came back is put together with what an earlier run left (`resume`).
//!
//! `collect` and `evaluate` are the same work on different tasks: [`student`] says how a model is spoken
//! to, [`slots`] which episodes there are to run, [`batch`] runs those that are missing, several at a
//! time, and [`watch`] notices when there is no point in going on.
//!
//! What was made is in the run directory before anybody is told of it, so a run can be killed at any moment and
//! continued. Deliberately absent: printing, and reading configurations.

mod ask;
pub mod batch;
pub mod credit;
pub mod evaluation;
mod exact;
mod loss;
pub mod outline;
pub mod paid;
pub mod read;
mod rendered;
pub mod resume;
mod shorten;
pub mod slots;
pub mod student;
pub mod watch;

pub use self::ask::EMBEDDED;
pub use self::loss::{Loss, Reason};
