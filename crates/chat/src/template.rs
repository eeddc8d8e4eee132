//! Chat templates: a conversation in, the very text transformers' `apply_chat_template` gives out.
//!
//! Compared with transformers 5.22.2; what is said of transformers in this folder is said of that version.
//! Owns [`Template`], its input and its errors. Where templates come from is left to `source`, what
//! they silently leave out to `drops`, the template language to `jinja`. Nothing here falls back to
//! another rendering: a template that fails is an error.

use std::error::Error as _;
use std::ops::Range;
use std::sync::Arc;

use minijinja::ErrorKind;
use serde_json::{Map, Value};

pub use super::jinja::Now;
use super::jinja::{self, NeedsTime, Raised};
use super::talk::{Portion, Talk};
use crate::messages::REASONING_FIELDS;

/// Why a conversation could not be rendered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// The template is not Jinja, or uses a part of it that is not supported.
    #[error("{origin}: line {line}: {message}")]
    Syntax {
        /// The template's file.
        origin: String,
        /// The line of the template.
        line: usize,
        /// What is wrong.
        message: String,
    },
    /// The template refused the conversation with a message of its own.
    #[error("{origin}{}: the template refuses this conversation: {message}", at_line(line))]
    Raised {
        /// The template's file.
        origin: String,
        /// The line of the template, where known.
        line: Option<usize>,
        /// What the template says.
        message: String,
    },
    /// The template failed on the conversation.
    #[error("{origin}{}: the template fails on this conversation: {message}", at_line(line))]
    Failed {
        /// The template's file.
        origin: String,
        /// The line of the template, where known.
        line: Option<usize>,
        /// What it tried to do.
        message: String,
    },
    /// The template prints the date and was not told which.
    #[error("{origin}{}: the template asks for the current time, and none was given", at_line(line))]
    NeedsTime {
        /// The template's file.
        origin: String,
        /// The line of the template, where known.
        line: Option<usize>,
    },
    /// The template does not come to an end, or produces too much.
    #[error("{origin}{}: the template takes too much: {message}", at_line(line))]
    TooMuch {
        /// The template's file.
        origin: String,
        /// The line of the template, where known.
        line: Option<usize>,
        /// Which limit was reached.
        message: String,
    },
    /// A message is no JSON object.
    #[error("message {message_idx} is not a JSON object")]
    NotAMessage {
        /// Which message.
        message_idx: usize,
    },
    /// A tool call is not in the rendered text, so a model would see an empty action.
    #[error("{origin}: the template leaves out {what} of the call of {tool:?} in message {message_idx}")]
    DroppedToolCall {
        /// The template's file.
        origin: String,
        /// Which message holds the call.
        message_idx: usize,
        /// The tool that is called.
        tool: String,
        /// What is missing: `the name`, `the arguments` or both.
        what: &'static str,
    },
    /// What somebody says is not in the rendered text.
    #[error("{origin}: the template leaves out the text of message {message_idx}, {whose}{}", if *.beside_call { " beside a tool call" } else { "" })]
    DroppedText {
        /// The template's file.
        origin: String,
        /// Which message.
        message_idx: usize,
        /// Whose it is, in words.
        whose: &'static str,
        /// Whether a tool call stands beside it.
        beside_call: bool,
    },
    /// A number of a tool call's arguments that no rendering could show as it is.
    #[error(
        "message {message_idx}: the arguments of call {call_idx} hold the integer {number}, which is too large to be passed on exactly"
    )]
    InexactNumber {
        /// Which message.
        message_idx: usize,
        /// Which of its calls.
        call_idx: usize,
        /// The number as it is written.
        number: String,
    },
}

fn at_line(line: &Option<usize>) -> String {
    line.map_or_else(String::new, |line| format!(": line {line}"))
}

impl TemplateError {
    /// What to do about it.
    pub fn help(&self) -> String {
        match self {
            Self::Syntax { .. } => "check the file, or give another template with --template FILE".to_owned(),
            Self::Raised { .. } | Self::Failed { .. } => {
                "change the conversation to what this template expects, or give another one with --template FILE"
                    .to_owned()
            }
            Self::NeedsTime { .. } => "give the time with --now".to_owned(),
            Self::TooMuch { .. } => "check the template; it may not end".to_owned(),
            Self::NotAMessage { .. } => "give a JSON array of objects with `role` and `content`".to_owned(),
            Self::DroppedToolCall { .. } => {
                "choose how tool calls are written with --tool-text hermes or --tool-text flatten".to_owned()
            }
            Self::DroppedText { beside_call: true, .. } => {
                "write calls as text behind it with --tool-text hermes or --tool-text flatten".to_owned()
            }
            Self::DroppedText { .. } => {
                "give each message's content as one string, or another template with --template FILE".to_owned()
            }
            Self::InexactNumber { .. } => {
                "give the number as a string, or write calls as text with --tool-text hermes".to_owned()
            }
        }
    }
}

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
    pub fn compile(source: &str, origin: &str) -> Result<Self, TemplateError> {
        match jinja::compile(source) {
            Ok(compiled) => Ok(Self { compiled, source: source.to_owned(), origin: origin.to_owned() }),
            Err(error) => Err(TemplateError::Syntax {
                origin: origin.to_owned(),
                line: error.line,
                message: error.message,
            }),
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
    pub fn render(&self, input: &RenderInput<'_>) -> Result<Rendered, TemplateError> {
        self.growing(input)?.render(input.messages.len(), input.add_generation_prompt)
    }

    /// Prepares a conversation that is rendered message by message: its values are made once, not for every length.
    pub fn growing(&self, input: &RenderInput<'_>) -> Result<Growing<'_>, TemplateError> {
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

    fn error(&self, error: &minijinja::Error) -> TemplateError {
        let origin = self.origin.clone();
        let line = error.line();
        let source = error.source();
        if let Some(Raised(message)) = source.and_then(|it| it.downcast_ref()) {
            return TemplateError::Raised { origin, line, message: message.clone() };
        }
        if source.is_some_and(|it| it.is::<NeedsTime>()) {
            return TemplateError::NeedsTime { origin, line };
        }
        let message = error.detail().map_or_else(|| error.kind().to_string(), str::to_owned);
        match error.kind() {
            ErrorKind::OutOfFuel => TemplateError::TooMuch { origin, line, message },
            _ => TemplateError::Failed { origin, line, message },
        }
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
    /// Renders a part of the conversation, as if the messages `without` were not in it.
    pub fn portion(&self, portion: Portion<'_>, without: &Range<usize>) -> Result<String, TemplateError> {
        let said = portion.said.iter().map(|&(idx, words)| (idx, saying(&self.given[idx], words)));
        let said: Vec<(usize, Value)> = said.collect();
        let rendered = self.part(portion.n_messages, portion.generation_prompt, without, &said)?;
        Ok(rendered.text)
    }

    /// Renders the first `n_messages`, with or without the generation prompt behind them.
    pub fn render(&self, n_messages: usize, add_generation_prompt: bool) -> Result<Rendered, TemplateError> {
        self.part(n_messages, add_generation_prompt, &(0..0), &[])
    }

    /// The same as if the messages `without` were not there, with others in the place of some.
    pub fn part(
        &self,
        n_messages: usize,
        add_generation_prompt: bool,
        without: &Range<usize>,
        instead: &[(usize, Value)],
    ) -> Result<Rendered, TemplateError> {
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
        let rendered = self.template.compiled.render(own.chain(self.variables.iter().cloned()), self.now);
        rendered.map(|(text, generation)| Rendered { text, generation }).map_err(failed)
    }
}

impl Talk for &Growing<'_> {
    type Error = TemplateError;

    fn render(&mut self, portion: Portion<'_>, without: &Range<usize>) -> Result<String, TemplateError> {
        self.portion(portion, without)
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
fn with_reasoning((message_idx, message): (usize, &Value)) -> Result<Value, TemplateError> {
    let Value::Object(fields) = message else {
        return Err(TemplateError::NotAMessage { message_idx });
    };
    let reasoning = REASONING_FIELDS.iter().find_map(|name| fields.get(*name).filter(|it| !it.is_null()));
    let Some(reasoning) = reasoning else { return Ok(message.clone()) };
    let mut aliased = Map::new();
    aliased.insert("thinking".to_owned(), reasoning.clone());
    aliased.extend(fields.iter().map(|(name, value)| (name.clone(), value.clone())));
    aliased.insert("reasoning_content".to_owned(), reasoning.clone());
    Ok(Value::Object(aliased))
}
