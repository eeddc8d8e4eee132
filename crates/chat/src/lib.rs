//! Text to tokens and back: the only place where either happens.
//!
//! Owns chat templates, tokenizers, action spans and tool-call parsers, and reads the formats these are written
//! in: messages and tools as JSON, tokenizers out of `tokenizer.json` and GGUF.
//!
//! ```
//! use backsight_chat::template::{RenderInput, Template};
//! use serde_json::{Map, json};
//!
//! let source = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}";
//! let template = Template::compile(source, "chat_template.jinja").unwrap();
//! let messages = [json!({"role": "user", "content": "hi"})];
//! let input = RenderInput {
//!     messages: &messages, tools: None, add_generation_prompt: false, vars: &Map::new(), now: None,
//! };
//! assert_eq!(template.render(&input).unwrap().text, "<user>hi");
//! ```

pub mod arguments;
pub mod detect;
pub mod drops;
pub mod error;
mod files;
pub mod format;
pub mod gguf;
mod header;
pub mod incremental;
mod jinja;
pub mod json;
pub mod messages;
pub mod near;
pub mod parse;
pub mod parts;
mod probe;
pub mod recorded;
pub mod render;
pub mod reread;
pub mod source;
pub mod spans;
pub mod talk;
pub mod template;
pub mod tokenizer;
pub mod tool_text;
pub mod vocabulary;
