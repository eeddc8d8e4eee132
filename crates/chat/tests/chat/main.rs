//! The crate as others use it.

mod encoding;
mod format;
mod parse;
mod sources;
mod templates;
mod templates_fuzz;
mod tools;
