//! Text to tokens and back: the only place where either happens.
//!
//! Owns chat templates, tokenizers, action spans and tool-call parsers.

pub mod incremental;
pub mod python;
pub mod spans;
pub mod tokenizer;
pub mod vocabulary;
