//! The crate as others use it.

mod encoding;
mod format;
mod near;
mod parse;
mod sources;
mod templates;
mod templates_fuzz;
mod tools;
