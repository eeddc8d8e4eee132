//! Text to tokens and back: the only place where either happens.
//!
//! Owns chat templates, tokenizers, action spans and tool-call parsers.

pub mod incremental;
mod jinja;
pub mod parse;
pub mod python;
pub mod spans;
pub mod template;
pub mod tokenizer;
pub mod vocabulary;
