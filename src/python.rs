//! How CPython writes numbers and JSON, for the modules that must reproduce its bytes.
//!
//! The functions themselves are pure and live beside the templates that need them most.

pub use crate::chat::python::*;
