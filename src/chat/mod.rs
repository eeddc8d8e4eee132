//! Text to tokens and back: the only place where either happens.
//!
//! Owns chat templates, tokenizers, action spans and tool-call parsers.

pub mod python;
pub mod template;

mod jinja;
