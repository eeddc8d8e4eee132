//! How the parts work together. Read this first.
//!
//! `credit` takes episodes and a lens in and gives scored steps and their credit: an episode is outlined and
//! read (`outline`, `read`: which sequences hold its actions), asked for (`ask`: the scores that are wanted, through
//! a plan), and what came back is put together with what an earlier run left (`resume`). `weighed` compares the credit
//! of a task's episodes, and `forecast` says what all of that would cost.
//!
//! `collect` and `evaluate` are the same work on different tasks: `student` says how a model is spoken
//! to, `slots` which episodes there are to run, `batch` runs those that are missing, several at a
//! time, and `watch` notices when there is no point in going on.
//!
//! What was made is in the run directory before anybody is told of it, so a run can be killed at any moment and
//! continued. Deliberately absent: printing, and reading configurations.

mod ask;
pub(crate) mod batch;
pub(crate) mod census;
pub(crate) mod credit;
pub(crate) mod distill;
pub(crate) mod evaluation;
mod exact;
mod flight;
pub(crate) mod forecast;
mod loss;
pub(crate) mod outline;
pub(crate) mod paid;
pub(crate) mod read;
pub(crate) mod reader;
pub(crate) mod references;
mod rendered;
pub(crate) mod report;
pub(crate) mod resume;
mod shorten;
pub(crate) mod slots;
mod stopped;
pub(crate) mod student;
pub(crate) mod watch;
pub(crate) mod weighed;

pub(crate) use self::loss::{Loss, Reason};
pub use self::outline::{Framing, outline};
pub use self::read::{ReadEpisode, ReadStep, Seen};
pub use self::reader::{Reader, Texts};
pub(crate) use self::stopped::Stopped;
