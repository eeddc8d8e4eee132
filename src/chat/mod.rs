//! Text to tokens and back: the only place where either happens.
//!
//! Owns chat templates, tokenizers, action spans and tool-call parsers.

pub mod arguments;
pub mod detect;
pub mod drops;
pub mod format;
mod header;
pub mod incremental;
mod jinja;
pub mod parse;
mod probe;
pub mod python;
pub mod recorded;
pub mod render;
pub mod reread;
pub mod source;
pub mod spans;
pub mod template;
pub mod tokenizer;
pub mod tool_text;
pub mod vocabulary;
