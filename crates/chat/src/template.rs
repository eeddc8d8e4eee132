//! Chat templates: a conversation in, the very text transformers' `apply_chat_template` gives out.
//!
//! Compared with transformers 5.22.2; what is said of transformers in this folder is said of that version.
//! Owns [`Template`] and its input. Where templates come from is left to `source`, what
//! they silently leave out to `drops`, the template language to `jinja`. Nothing here falls back to
//! another rendering: a template that fails is an error.

use std::error::Error as _;
use std::ops::Range;
use std::sync::Arc;

use minijinja::ErrorKind;
use serde_json::{Map, Value};

use super::error::TextError;
pub use super::jinja::Now;
use super::jinja::{self, NeedsTime, Raised};
use super::talk::{Portion, Talk};
use crate::messages::REASONING_FIELDS;

/// What helps where a template does not take a conversation.
const OTHER_TALK: &str =
    "change the conversation to what this template expects, or give another one with --template FILE";

/// What a template is given.
#[derive(Clone, Copy, Debug)]
pub struct RenderInput<'a> {
    /// The conversation: JSON objects, keys in the order they were written.
    pub messages: &'a [Value],
    /// The tools' schemas; none at all is different from an empty list.
    pub tools: Option<&'a [Value]>,
    /// Whether the text ends where the assistant is to speak.
    pub add_generation_prompt: bool,
    /// Further variables, such as `bos_token` or `enable_thinking`. They win over everything else.
    pub vars: &'a Map<String, Value>,
    /// What `strftime_now` shows.
    pub now: Option<Now>,
}

/// A rendered conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rendered {
    /// The text.
    pub text: String,
    /// Where the template's `{% generation %}` blocks are, in bytes of the text. As in transformers, a
    /// block inside a macro or a captured part is taken to start where the text of that part starts.
    pub generation: Vec<Range<usize>>,
}

/// A chat template that has been read.
#[derive(Debug)]
pub struct Template {
    compiled: jinja::Compiled,
    source: String,
    origin: String,
}

impl Template {
    /// Reads a template; `origin` is what errors call it.
    pub fn compile(source: &str, origin: &str) -> Result<Self, TextError> {
        match jinja::compile(source) {
            Ok(compiled) => Ok(Self { compiled, source: source.to_owned(), origin: origin.to_owned() }),
            Err(error) => {
                let what = format!("{origin}: line {}: {}", error.line, error.message);
                Err(TextError::new(what, "check the file, or give another template with --template FILE"))
            }
        }
    }

    /// The template's text.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The template's file.
    pub fn origin(&self) -> &str {
        &self.origin
    }

    /// Renders exactly what is given, byte for byte as transformers does.
    pub fn render(&self, input: &RenderInput<'_>) -> Result<Rendered, TextError> {
        self.growing(input)?.part(input.messages.len(), input.add_generation_prompt, &(0..0), &[])
    }

    /// Prepares a conversation that is rendered message by message: its values are made once, not for every length.
    pub fn growing(&self, input: &RenderInput<'_>) -> Result<Growing<'_>, TextError> {
        let failed = |error: minijinja::Error| self.error(&error);
        let message = |it| jinja::from_json(&with_reasoning(it)?).map_err(failed);
        let messages = input.messages.iter().enumerate().map(message).collect::<Result<_, _>>()?;
        let given = Arc::from(input.messages);
        let tools = input.tools.map_or(Value::Null, |tools| Value::Array(tools.to_vec()));
        let own = [("tools", &tools), ("documents", &Value::Null)].into_iter();
        let all = own.chain(input.vars.iter().map(|(name, value)| (name.as_str(), value)));
        let variable = |(name, value): (&str, &Value)| Ok((name.to_owned(), jinja::from_json(value)?));
        let variables = all.map(variable).collect::<Result<_, _>>().map_err(failed)?;
        Ok(Growing { template: self, given, messages, variables, now: input.now })
    }

    fn error(&self, error: &minijinja::Error) -> TextError {
        let source = error.source();
        let (what, help) = if let Some(Raised(message)) = source.and_then(|it| it.downcast_ref()) {
            (format!("the template refuses this conversation: {message}"), OTHER_TALK)
        } else if let Some(unknown) = source.filter(|it| it.is::<NeedsTime>()) {
            (unknown.to_string(), "give the time with --now")
        } else if error.kind() == ErrorKind::OutOfFuel {
            let what = format!("the template takes too much: {}", jinja::message(error));
            (what, "check the template; it may not end")
        } else {
            (format!("the template fails on this conversation: {}", jinja::message(error)), OTHER_TALK)
        };
        let line = error.line().map_or_else(String::new, |line| format!(": line {line}"));
        TextError::new(format!("{}{line}: {what}", self.origin), help)
    }
}

/// A conversation to be rendered up to one message after another.
pub struct Growing<'t> {
    template: &'t Template,
    /// The messages as they were given.
    given: Arc<[Value]>,
    messages: Vec<minijinja::Value>,
    /// Everything but the messages; of several values with one name the last counts.
    variables: Vec<(String, minijinja::Value)>,
    now: Option<Now>,
}

impl Growing<'_> {
    /// Renders the first `n_messages`, with or without the generation prompt behind them, as if the messages `without`
    /// were not there, with others in the place of some.
    pub fn part(
        &self,
        n_messages: usize,
        add_generation_prompt: bool,
        without: &Range<usize>,
        instead: &[(usize, Value)],
    ) -> Result<Rendered, TextError> {
        let failed = |error: minijinja::Error| self.template.error(&error);
        let n_messages = n_messages.min(self.messages.len());
        let message = |idx: usize| match instead.iter().find(|(other, _)| *other == idx) {
            Some((_, other)) => jinja::from_json(&with_reasoning((idx, other))?).map_err(failed),
            None => Ok(self.messages[idx].clone()),
        };
        let shown = (0..without.start.min(n_messages)).chain(without.end..n_messages);
        let messages = shown.map(message).collect::<Result<_, _>>()?;
        let own = [
            ("messages", jinja::list(messages).map_err(failed)?),
            ("add_generation_prompt", minijinja::Value::from(add_generation_prompt)),
        ];
        let own = own.map(|(name, value)| (name.to_owned(), value)).into_iter();
        let rendered =
            jinja::render(&self.template.compiled, own.chain(self.variables.iter().cloned()), self.now);
        rendered.map(|(text, generation)| Rendered { text, generation }).map_err(failed)
    }
}

impl Talk for &Growing<'_> {
    fn render(&mut self, portion: Portion<'_>, without: &Range<usize>) -> Result<String, TextError> {
        let said = portion.said.iter().map(|&(idx, words)| (idx, saying(&self.given[idx], words)));
        let said: Vec<(usize, Value)> = said.collect();
        Ok(self.part(portion.n_messages, portion.generation_prompt, without, &said)?.text)
    }
}

/// The message with nothing but these words to say.
fn saying(message: &Value, words: &str) -> Value {
    let is_said = |name: &str| name == "tool_calls" || REASONING_FIELDS.contains(&name);
    let fields = message.as_object().into_iter().flatten().filter(|(name, _)| !is_said(name));
    let mut fields: Map<String, Value> = fields.map(|(name, value)| (name.clone(), value.clone())).collect();
    fields.insert("content".to_owned(), Value::String(words.to_owned()));
    Value::Object(fields)
}

/// The message with its reasoning under both names that templates read, as transformers has it.
fn with_reasoning((message_idx, message): (usize, &Value)) -> Result<Value, TextError> {
    let Value::Object(fields) = message else {
        let what = format!("message {message_idx} is not a JSON object");
        return Err(TextError::new(what, "give a JSON array of objects with `role` and `content`"));
    };
    let reasoning = REASONING_FIELDS.iter().find_map(|name| fields.get(*name).filter(|it| !it.is_null()));
    let Some(reasoning) = reasoning else { return Ok(message.clone()) };
    let mut aliased = Map::new();
    aliased.insert("thinking".to_owned(), reasoning.clone());
    aliased.extend(fields.iter().map(|(name, value)| (name.clone(), value.clone())));
    aliased.insert("reasoning_content".to_owned(), reasoning.clone());
    Ok(Value::Object(aliased))
}
