//! How the parts work together. Read this first.
//!
//! `collect` and `evaluate` are the same work on different tasks: [`student`] says how a model is spoken
//! to, [`slots`] which episodes there are to run, [`batch`] runs those that are missing, several at a
//! time, and [`watch`] notices when there is no point in going on. What was made is in the run directory
//! before anybody is told of it, so a run can be killed at any moment and continued. Deliberately
//! absent: printing, and reading configurations.

pub mod batch;
pub mod evaluation;
pub mod slots;
pub mod student;
pub mod watch;
