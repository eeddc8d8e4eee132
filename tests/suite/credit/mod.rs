//! `backsight credit` as a user runs it: against servers that answer like SGLang and vLLM, and on the embedded model.
#![expect(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]
#![expect(clippy::print_stdout, reason = "counted figures are for people")]

mod dry;
mod embedded;
mod exact;
mod flags;
mod kill;
mod lenses;
mod names;
pub mod numbers;
pub mod place;
mod plans;
mod resume;
mod told;
