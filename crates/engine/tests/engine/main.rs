//! The crate as others use it.

mod load;
mod scores;
#[path = "../../../../tests/support/tiny.rs"]
mod tiny;
