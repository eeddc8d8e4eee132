//! Text to tokens and back: the only place where either happens.
//!
//! Owns chat templates, tokenizers, action spans and tool-call parsers.

pub mod arguments;
pub mod drops;
pub mod python;
pub mod render;
pub mod source;
pub mod template;
pub mod tool_text;

mod jinja;
mod probe;
