//! How a student is spoken to and understood in its own tokens.
//!
//! Owns [`ChatFormat`]: a model's template, tokenizer and tool-call format together. It makes the first
//! prompt of a conversation, finds what the template writes between one action and the next, and reads
//! an action. History is never rendered again: what stands in front of an action stays the ids that are
//! recorded, also where the template would by now write it differently (Qwen3 forgets old thinking).
//! Deliberately absent: asking the model, and running what it calls.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::drops::drops;
use super::error::TextError;
use super::parse::{ParsedCall, Parser};
use super::probe::{calls, for_each_call, mark, marked_arguments};
use super::render::{given, render_conversation};
use super::template::{Now, RenderInput, Template};
use super::tokenizer::Tokenizer;
use crate::messages::{ArgumentForm, to_json_with};
use backsight_core::episode::{Content, Message, Role, ToolText};
use backsight_core::tokens::TokenId;

const THINK: &str = "<think>";
const END_THINK: &str = "</think>";
/// What is marked in a call. Its name is not: some templates repeat it with the result.
const CALL_MARKS: [&str; 2] = ["key", "value"];

/// A model's template, tokenizer and tool-call format.
pub struct ChatFormat {
    template: Template,
    vars: Map<String, Value>,
    tokenizer: Arc<Tokenizer>,
    parser: Parser,
    tool_text: Option<ToolText>,
    shows_reasoning: bool,
}

/// A conversation up to where the student is to speak.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opening {
    /// Its ids.
    pub ids: Vec<TokenId>,
    /// Whether it ends inside a thought that the student is to finish.
    pub opens_thought: bool,
}

/// What stands between one action and the next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Between {
    /// The token with which the template ends the action; none where it has no such token.
    pub end: Option<TokenId>,
    /// Everything behind it up to where the student speaks again.
    pub ids: Vec<TokenId>,
    /// Whether it ends inside a thought that the student is to finish.
    pub opens_thought: bool,
}

/// An action that has been read.
#[derive(Clone, Debug, PartialEq)]
pub struct ReadAction {
    /// The message it amounts to.
    pub message: Message,
    /// Why each piece that looked like a call is none, in words for the student.
    pub malformed: Vec<String>,
}

impl ChatFormat {
    /// A format; `vars` are what the template is given beside the conversation.
    pub fn new(
        template: Template,
        vars: Map<String, Value>,
        tokenizer: Arc<Tokenizer>,
        parser: Parser,
        tool_text: Option<ToolText>,
    ) -> Self {
        let shows_reasoning = !drops(&template, &vars, Some(Now::utc(0))).reasoning;
        Self { template, vars, tokenizer, parser, tool_text, shows_reasoning }
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// The format in which calls are written.
    pub fn parser(&self) -> Parser {
        self.parser
    }

    /// The named rendering of tools, where the template's own is not used.
    pub fn tool_text(&self) -> Option<ToolText> {
        self.tool_text
    }

    /// Whether a token ends an action.
    pub fn is_end(&self, id: TokenId) -> bool {
        match self.tokenizer.end_ids() {
            [] => self.tokenizer.is_special(id),
            ends => ends.contains(&id),
        }
    }

    /// The first prompt of a conversation.
    pub fn opening(&self, messages: &[Message], tools: &[Value], now: Now) -> Result<Opening, TextError> {
        let messages: Vec<Value> = messages.iter().map(to_json).collect();
        let (messages, tools) = (&messages, (!tools.is_empty()).then_some(tools));
        let input =
            RenderInput { messages, tools, add_generation_prompt: true, vars: &self.vars, now: Some(now) };
        let text = render_conversation(&self.template, &input, self.tool_text)?.rendered.text;
        Ok(Opening { ids: self.tokenizer.encode(&text)?.ids, opens_thought: opens_thought(&text) })
    }

    /// What stands between the action that is message `action_idx` and the next one, given what the world answered.
    ///
    /// The conversation is rendered with marks in place of everything the student ever wrote, so neither its
    /// words nor how a template would repeat them matter. Only what follows the action's end is encoded, with
    /// the end in front of it, as it stands in the whole text.
    pub fn between(
        &self,
        messages: &[Message],
        action_idx: usize,
        tools: &[Value],
        now: Now,
    ) -> Result<Between, TextError> {
        let skeleton = skeleton(messages, action_idx);
        let has_several = messages.iter().any(|it| it.tool_calls.len() > 1);
        match self.tail(&skeleton, action_idx, tools, now) {
            // Some templates refuse several calls at once; what follows the last one is the same without the others.
            Err(_) if has_several && self.render(&skeleton, tools, true, now).is_err() => {
                let single: Vec<Value> = skeleton.into_iter().enumerate().map(with_last_call).collect();
                self.tail(&single, action_idx, tools, now)
            }
            found => found,
        }
    }

    /// What follows the last mark of an action, rendered with and without what the world answered.
    fn tail(
        &self,
        skeleton: &[Value],
        action_idx: usize,
        tools: &[Value],
        now: Now,
    ) -> Result<Between, TextError> {
        let no_tail = |why| self.no_tail(action_idx, why);
        let mut masked = skeleton.to_vec();
        for (idx, message) in masked.iter_mut().enumerate().skip(action_idx + 1) {
            message["content"] = mark("result", idx, 0).into();
        }
        let (text, masked) =
            (self.render(skeleton, tools, true, now)?, self.render(&masked, tools, true, now)?);
        let action_end = last_mark(&masked, &skeleton[action_idx], action_idx)
            .ok_or_else(|| no_tail("it leaves the action out"))?;
        let n_closing = masked[action_end..].find(&mark("result", action_idx + 1, 0));
        let closing =
            &masked[action_end..action_end + n_closing.ok_or_else(|| no_tail("it leaves the answer out"))?];
        let (end, n_more) = match self.end_in(closing)? {
            Some((end, offset)) => (Some(end), offset),
            None => {
                let alone = self.render(&skeleton[..=action_idx], tools, false, now)?;
                let alone = alone.get(action_end..).ok_or_else(|| no_tail("it needs the answer"))?;
                (None, self.common(alone, closing)?)
            }
        };
        let start = action_end + n_more;
        if !text.is_char_boundary(start) || text[..start] != masked[..start] {
            return Err(no_tail("the answer changes what stands before it"));
        }
        let ids = self.tokenizer.encode(&text[start..])?.ids;
        let ids = match (end, ids.split_first()) {
            (None, _) => ids,
            (Some(end), Some((first, rest))) if *first == end => rest.to_vec(),
            (Some(_), _) => return Err(no_tail("its end merges with what follows")),
        };
        Ok(Between { end, ids, opens_thought: opens_thought(&text) })
    }

    /// Reads what the student sampled, given the tools it was told of.
    pub fn read(
        &self,
        ids: &[TokenId],
        opened_thought: bool,
        tools: &[Value],
    ) -> Result<ReadAction, TextError> {
        let ids = match ids.split_last() {
            Some((last, before)) if self.is_end(*last) => before,
            _ => ids,
        };
        let text = self.tokenizer.decode(ids)?;
        Ok(self.read_text(&text, opened_thought, tools))
    }

    /// Parts an action's text into thinking, prose and calls. Calls inside a thought are none.
    fn read_text(&self, text: &str, opened_thought: bool, tools: &[Value]) -> ReadAction {
        let (reasoning, rest) = split_thought(text, opened_thought);
        let parsed = self.parser.parse(rest, tools);
        let content = if self.shows_reasoning || reasoning.is_none() {
            parsed.content
        } else {
            // A template that knows no reasoning shows it as the text it was written as.
            Some(format!("{}{}", &text[..text.len() - rest.len()], parsed.content.unwrap_or_default()))
        };
        let reasoning = reasoning.filter(|it| self.shows_reasoning && !it.is_empty());
        let message = Message {
            role: Role::Assistant,
            content: content.map(Content::Text),
            reasoning: reasoning.map(str::to_owned),
            tool_calls: parsed.calls.iter().map(ParsedCall::to_tool_call).collect(),
            tool_call_id: None,
            name: None,
        };
        ReadAction { message, malformed: parsed.malformed }
    }

    /// The first token in `closing` that ends an action, and where it begins.
    fn end_in(&self, closing: &str) -> Result<Option<(TokenId, usize)>, TextError> {
        let encoded = self.tokenizer.encode(closing)?;
        let mut tokens = encoded.ids.iter().zip(&encoded.offsets);
        Ok(tokens.find(|(id, _)| self.is_end(**id)).map(|(id, offset)| (*id, offset.start)))
    }

    /// How many bytes the tokens take up with which both texts begin.
    fn common(&self, a: &str, b: &str) -> Result<usize, TextError> {
        let (a, b) = (self.tokenizer.encode(a)?, self.tokenizer.encode(b)?);
        let n_same = a.ids.iter().zip(&b.ids).take_while(|(a, b)| a == b).count();
        Ok(n_same.checked_sub(1).map_or(0, |last| b.offsets[last].end))
    }

    fn render(
        &self,
        messages: &[Value],
        tools: &[Value],
        add_generation_prompt: bool,
        now: Now,
    ) -> Result<String, TextError> {
        let tools = (!tools.is_empty()).then_some(tools);
        let input = RenderInput { messages, tools, add_generation_prompt, vars: &self.vars, now: Some(now) };
        let given = given(&self.template, &input, self.tool_text)?;
        let input = RenderInput { messages: &given.messages, tools: given.tools, ..input };
        Ok(self.template.render(&input)?.text)
    }

    /// It cannot be told what the template writes behind an action.
    fn no_tail(&self, message_idx: usize, why: &str) -> TextError {
        let origin = self.template.origin();
        TextError::new(
            format!("{origin}: what the template writes behind message {message_idx} cannot be told: {why}"),
            "choose how tools are written with --tool-text hermes, or give another template with --template FILE",
        )
    }
}

fn to_json(message: &Message) -> Value {
    to_json_with(message, ArgumentForm::Object)
}

fn opens_thought(text: &str) -> bool {
    text.trim_end().ends_with(THINK)
}

/// The conversation with marks for everything the student wrote and for every answer up to `action_idx`.
fn skeleton(messages: &[Message], action_idx: usize) -> Vec<Value> {
    let shape = |(idx, message): (usize, &Message)| match message.role {
        Role::Assistant => marked_action(idx, message),
        Role::Tool if idx < action_idx => with_content(to_json(message), mark("result", idx, 0)),
        _ => to_json(message),
    };
    messages.iter().enumerate().map(shape).collect()
}

fn marked_action(idx: usize, message: &Message) -> Value {
    let mut json = to_json(message);
    if message.reasoning.is_some() {
        json["reasoning_content"] = mark("reasoning", idx, 0).into();
    }
    mark_calls(idx, &mut json);
    // What follows calls does not depend on the prose before them, and some templates put that behind the results.
    let has_calls = !message.tool_calls.is_empty();
    with_content(json, if has_calls { String::new() } else { mark("content", idx, 0) })
}

/// The message with no call but the last.
fn with_last_call((idx, mut message): (usize, Value)) -> Value {
    if let Some(calls) = message.get_mut("tool_calls").and_then(Value::as_array_mut) {
        calls.drain(..calls.len().saturating_sub(1));
    }
    mark_calls(idx, &mut message);
    message
}

fn mark_calls(idx: usize, message: &mut Value) {
    for_each_call(message, |call_idx, function| {
        function.insert("arguments".to_owned(), marked_arguments(idx, call_idx));
    });
}

fn with_content(mut message: Value, text: String) -> Value {
    message["content"] = Value::String(text);
    message
}

/// Where the last mark of an action ends in a rendering.
fn last_mark(text: &str, action: &Value, idx: usize) -> Option<usize> {
    let calls =
        (0..calls(action).len()).flat_map(|call_idx| CALL_MARKS.map(|what| mark(what, idx, call_idx)));
    let marks = ["content", "reasoning"].map(|what| mark(what, idx, 0)).into_iter().chain(calls);
    marks.filter_map(|mark| text.rfind(&mark).map(|at| at + mark.len())).max()
}

/// A leading thought, and what follows it. A thought that is never finished is all there is.
fn split_thought(text: &str, is_open: bool) -> (Option<&str>, &str) {
    let body = match text.trim_start().strip_prefix(THINK) {
        Some(body) => body,
        None if is_open => text,
        None => return (None, text),
    };
    let (thought, rest) = body.split_once(END_THINK).unwrap_or((body, ""));
    (Some(thought.trim_matches('\n')), rest.trim_start_matches('\n'))
}
