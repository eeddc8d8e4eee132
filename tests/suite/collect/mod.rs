//! `backsight collect` and `backsight evaluate` as a user runs them: against a server that answers like vLLM or
//! SGLang and says what a script says, and on the embedded model.
#![expect(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

mod embedded;
mod evaluate;
mod file_tools;
mod groups;
mod kill;
pub mod place;
mod references;
mod refusals;
mod stops;
mod weights;
