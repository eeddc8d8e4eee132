//! Tool calls in what a model wrote: one parser per family of formats.
//!
//! Owns reading calls out of text. Running them, giving them ids and telling the student about the
//! ones that could not be read is the agent's business; writing calls into a prompt that of the
//! chat templates.
//!
//! What is read, and the exact text of `arguments`, follows the parsers that came with the agentic
//! distillation environment, which in turn follow vLLM's. Where those lose or garble something,
//! these do better, and each such place says so: a call always has a name, a name never runs over
//! a marker of its format, content is what stands before the first call, or absent, and a marker in
//! a string of JSON arguments is part of that string.
//!
//! Model output is hostile input. Every parser makes one pass with a cursor that only moves
//! forward, nothing recurses deeper than [`MAX_DEPTH`], and nothing fails: text that is no call is
//! content.

mod deepseek;
mod glm;
mod hermes;
mod json;
mod kimi;
mod literal;
mod llama;
mod mistral;
mod qwen3_coder;
mod scan;
mod schema;

use serde_json::Value;

use self::json::Json;
use self::scan::excerpt;
use backsight_core::episode::{Arguments, ToolCall};

pub use json::MAX_DEPTH;

/// A format in which a model writes tool calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Parser {
    /// `<tool_call>{"name": …, "arguments": …}</tool_call>`; also Qwen 2.5 and Qwen 3.
    Hermes,
    /// The same in `<longcat_tool_call>`.
    Longcat,
    /// `[TOOL_CALLS] [{"name": …}]`, or `[TOOL_CALLS]name{…}` since version 11 of its tokenizer.
    Mistral,
    /// A bare JSON object with a name and arguments or parameters; Llama 3 and 4.
    LlamaJson,
    /// `<function=name><parameter=key>value</parameter></function>`.
    Qwen3Coder,
    /// A name and a fenced block of JSON between DeepSeek's own markers.
    DeepseekV3,
    /// A name and JSON between the same markers, without the fence.
    DeepseekV31,
    /// `functions.name:0` and JSON between Kimi's markers.
    KimiK2,
    /// `<tool_call>name`, a line break, `<arg_key>` and `<arg_value>` pairs.
    Glm45,
    /// The same without the line break.
    Glm47,
}

/// Every name and the parser it means, the canonical name of a parser first. Formats that ask for more of a text come
/// before those that ask for less.
pub(super) const NAMES: [(&str, Parser); 13] = [
    ("hermes", Parser::Hermes),
    ("qwen", Parser::Hermes),
    ("longcat", Parser::Longcat),
    ("mistral", Parser::Mistral),
    ("qwen3_coder", Parser::Qwen3Coder),
    ("kimi_k2", Parser::KimiK2),
    ("deepseek_v3", Parser::DeepseekV3),
    ("deepseek_v3_1", Parser::DeepseekV31),
    ("deepseek_v31", Parser::DeepseekV31),
    ("glm45", Parser::Glm45),
    ("glm47", Parser::Glm47),
    ("llama3_json", Parser::LlamaJson),
    ("llama4_json", Parser::LlamaJson),
];

impl Parser {
    /// Every name [`Parser::from_name`] knows, aliases included.
    pub fn all_names() -> [&'static str; NAMES.len()] {
        NAMES.map(|(name, _)| name)
    }

    /// The parser of that name, as the servers' `--tool-call-parser` spells it, or which names there are.
    pub fn from_name(name: &str) -> Result<Self, String> {
        let found = NAMES.into_iter().find(|&(known, _)| known == name);
        let known = || Self::all_names().join(", ");
        let unknown = || format!("no tool-call parser is called `{name}`; known are {}", known());
        found.map(|(_, parser)| parser).ok_or_else(unknown)
    }

    /// The canonical name; aliases have none of their own.
    pub fn name(self) -> &'static str {
        NAMES.into_iter().find(|&(_, parser)| parser == self).map_or("", |(name, _)| name)
    }

    /// Reads the calls in `text`.
    ///
    /// `tools` are the schemas the model was given, as far as they are known. Formats that carry values as bare
    /// text need them to tell a string from a number.
    pub fn parse(self, text: &str, tools: &[Value]) -> Parsed {
        match self {
            // A closing tag in a string ends the call and breaks it: the recorded vectors hold Hermes to that.
            Self::Hermes => hermes::parse(text, hermes::HERMES, scan::find),
            Self::Longcat => hermes::parse(text, hermes::LONGCAT, json::find_outside),
            Self::Mistral => mistral::parse(text),
            Self::LlamaJson => llama::parse(text),
            Self::Qwen3Coder => qwen3_coder::parse(text, tools),
            Self::DeepseekV3 => deepseek::parse(text, deepseek::fenced_call),
            Self::DeepseekV31 => deepseek::parse(text, deepseek::bare_call),
            Self::KimiK2 => kimi::parse(text),
            Self::Glm45 => glm::parse(text, tools, &glm::GLM45),
            Self::Glm47 => glm::parse(text, tools, &glm::GLM47),
        }
    }
}

/// What a parser made of a text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Parsed {
    /// The text before the first call, without surrounding whitespace, absent when that is empty;
    /// the whole text, untouched, when there is no call.
    pub content: Option<String>,
    /// The calls in order.
    pub calls: Vec<ParsedCall>,
    /// Why each piece that looked like a call could not be read, in a form the student can be told.
    ///
    /// Pieces that could be read are in `calls` beside these, with one exception: in the formats
    /// of `Hermes`, `Longcat` and `Mistral`'s list a broken piece of JSON voids every call of the
    /// text, since what was meant by the rest is then doubtful.
    pub malformed: Vec<String>,
}

impl Parsed {
    /// What was found in `text`, given where the calls begin: those among `pieces`, unless one is broken, and what is
    /// wrong with the others.
    fn new(
        text: &str,
        start: Option<usize>,
        pieces: impl IntoIterator<Item = Result<ParsedCall, NoCall>>,
    ) -> Self {
        let (mut calls, mut malformed, mut is_void) = (Vec::new(), Vec::new(), false);
        for piece in pieces {
            is_void |= matches!(piece, Err(NoCall::Broken(_)));
            match piece {
                Ok(call) => calls.push(call),
                Err(NoCall::Other(why) | NoCall::Broken(why)) => malformed.push(why),
            }
        }
        if is_void {
            calls.clear();
        }
        let content = if calls.is_empty() { text } else { scan::strip(&text[..start.unwrap_or(0)]) };
        let is_absent = content.is_empty() && !calls.is_empty();
        Self { content: (!is_absent).then(|| content.to_owned()), calls, malformed }
    }
}

/// A call as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParsedCall {
    /// The id, where the student wrote one.
    pub id: Option<String>,
    /// The tool's name; never empty.
    pub name: String,
    /// The arguments as text: JSON as Python's `json.dumps` writes it where the format carries
    /// JSON or values that can be converted, otherwise what the student wrote.
    pub arguments: String,
}

impl ParsedCall {
    fn new(name: &str, arguments: impl Into<String>) -> Self {
        Self { id: None, name: name.to_owned(), arguments: arguments.into() }
    }

    /// The call as part of a message. Arguments that are no JSON object stay text, as does one with a number that
    /// would be changed.
    pub fn to_tool_call(&self) -> ToolCall {
        let arguments = match crate::json::read(&self.arguments) {
            Ok(Value::Object(fields)) => Arguments::Object(fields),
            _ => Arguments::Text(self.arguments.clone()),
        };
        ToolCall { id: self.id.clone(), name: self.name.clone(), arguments }
    }
}

/// A JSON object as Python's `json.dumps(ensure_ascii=False)` writes it back, every digit of its integers kept.
pub(super) fn object_dumps(text: &str) -> Option<String> {
    json::loads(text).ok().filter(|value| matches!(value, Json::Object(_))).map(|value| value.dumps())
}

/// Why a piece of a text is no call.
enum NoCall {
    /// It says nothing, or something else: the other calls stand.
    Other(String),
    /// It was meant as a call and is broken: none of the calls stands.
    Broken(String),
}

/// The call that an object means, written as `text`; `read` makes its arguments what they are passed on as.
fn call_of(
    value: &Json,
    text: &str,
    read: impl FnOnce(Option<&Json>) -> Result<String, NoCall>,
) -> Result<ParsedCall, NoCall> {
    let Json::Object(fields) = value else {
        return Err(NoCall::Other(format!("{} is no JSON object", excerpt(text))));
    };
    let arguments = read(fields.get("arguments"))?;
    match fields.get("name") {
        None => Err(NoCall::Other(format!("{} has no `name`", excerpt(text)))),
        Some(Json::Text(name)) if !name.is_empty() => Ok(ParsedCall::new(name, arguments)),
        Some(_) => Err(NoCall::Broken(format!("{} has a `name` that is no name", excerpt(text)))),
    }
}

#[cfg(test)]
mod tests;
