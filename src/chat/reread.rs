//! Conversations re-read: the context of each action as the student saw it, and with a lens written into it.
//!
//! Owns [`Manner`], how conversations become text, and [`Shown`], one conversation as its template is given
//! it. A lens changes one message, so it is rendered by the template like everything else, and only
//! what it changes is encoded again. Deliberately absent: what a lens says and where it is written.

use serde_json::{Map, Value};

use super::drops::{Losses, lost_answer};
use super::render::render_conversation;
use super::spans::{self, Reread, SpanError, View};
use super::template::{Growing, Now, RenderInput, Template, TemplateError};
use super::tokenizer::Tokenizer;
use super::tool_text;
use crate::episode::{Message, Role, ToolText};
use crate::lens;
use crate::wire::messages::{ArgumentForm, to_json_with};

/// How conversations become text.
#[derive(Clone, Copy)]
pub struct Manner<'a> {
    /// The chat template.
    pub template: &'a Template,
    /// What it is given beside the conversation.
    pub vars: &'a Map<String, Value>,
    /// The tools' schemas; none is no list at all.
    pub tools: &'a [Value],
    /// The named rendering of tools, if the template's own does not serve.
    pub tool_text: Option<ToolText>,
    /// What a template that prints the date prints.
    pub now: Option<Now>,
}

impl<'a> Manner<'a> {
    fn input<'m>(&self, messages: &'m [Value]) -> RenderInput<'m>
    where
        'a: 'm,
    {
        let tools = Some(self.tools).filter(|tools| !tools.is_empty());
        RenderInput { messages, tools, add_generation_prompt: false, vars: self.vars, now: self.now }
    }
}

/// A text, and the message before an action it is written into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lens<'a> {
    /// The message.
    pub target: usize,
    /// The text.
    pub text: &'a str,
}

/// A conversation as its template is given it.
pub struct Shown<'a> {
    manner: Manner<'a>,
    original: &'a [Message],
    /// The original messages as JSON.
    plain: Vec<Value>,
    /// What the template is given: the same, or with tools written as text.
    messages: Vec<Value>,
    growing: Growing<'a>,
    losses: Losses,
}

impl<'a> Shown<'a> {
    /// Renders the whole conversation once, which refuses one whose tool calls would be lost.
    pub fn new(manner: Manner<'a>, original: &'a [Message]) -> Result<Self, TemplateError> {
        let plain: Vec<Value> = original.iter().map(json).collect();
        let input = manner.input(&plain);
        let rendering = render_conversation(manner.template, &input, manner.tool_text)?;
        let (messages, losses) = (rendering.messages, rendering.losses);
        let tools = input.tools.filter(|_| manner.tool_text.is_none());
        let growing = manner.template.growing(&RenderInput { messages: &messages, tools, ..input })?;
        Ok(Self { manner, original, plain, messages, growing, losses })
    }

    /// Finds the actions at the assistant messages `wanted`, in order, each with its context under its lens.
    ///
    /// An action whose own words the template leaves out is an error: its tokens are not those that were sampled.
    pub fn reread(
        &self,
        wanted: &[(usize, Option<Lens<'_>>)],
        tokenizer: &Tokenizer,
    ) -> Reread<TemplateError> {
        let actions: Vec<usize> = wanted.iter().map(|(action, _)| self.place_of(*action)).collect();
        let lens_at = |place: usize| {
            let idx = actions.iter().position(|action| *action == place)?;
            wanted[idx].1.map(|lens| (wanted[idx].0, lens))
        };
        let mut render = |view: View<'_>| self.growing.view(view);
        let mut other =
            |place| lens_at(place).map(|(action, lens)| self.prompt(action, Some(lens))).transpose();
        let mut found = spans::reread(&actions, &mut render, &mut other, tokenizer);
        for (turn, place) in found.turns.iter_mut().zip(&actions) {
            if let Some(why) = lost_answer(self.manner.template, &self.messages, &self.losses, *place) {
                *turn = Err(SpanError::Template { n_messages: place + 1, why });
            }
        }
        found
    }

    /// The text before the action at `action`, with a lens or without.
    pub fn prompt(&self, action: usize, lens: Option<Lens<'_>>) -> Result<String, TemplateError> {
        let place = self.place_of(action);
        let rendered = match lens {
            None => self.growing.render(place, true),
            Some(lens) => self.through(action, lens)?.render(place, true),
        };
        rendered.map(|rendered| rendered.text)
    }

    /// Where an assistant message is among those the template is given. Every rendering keeps their order and number.
    fn place_of(&self, action: usize) -> usize {
        let nth = self.original[..action].iter().filter(|message| message.role == Role::Assistant).count();
        let is_action = |idx: &usize| self.messages[*idx]["role"] == Role::Assistant.name();
        (0..self.messages.len()).filter(is_action).nth(nth).unwrap_or(self.messages.len())
    }

    /// The conversation with the lens in the message it is written into.
    fn through(&self, action: usize, lens: Lens<'_>) -> Result<Growing<'a>, TemplateError> {
        let mut target = self.original[lens.target].clone();
        lens::write(&mut target, lens.text);
        let target = json(&target);
        let Some(choice) = self.manner.tool_text else { return self.growing.with(lens.target, &target) };
        let mut before = self.plain[..action].to_vec();
        before[lens.target] = target;
        let shown = tool_text::apply(choice, self.manner.template, &self.manner.input(&before));
        let changed = shown.iter().zip(&self.messages).position(|(new, old)| new != old);
        changed.map_or_else(|| Ok(self.growing.clone()), |idx| self.growing.with(idx, &shown[idx]))
    }
}

/// A message as a template is given it. A call without text has an empty one: so servers show it, and many
/// templates fail on null.
fn json(message: &Message) -> Value {
    let mut json = to_json_with(message, ArgumentForm::Object);
    if json["content"].is_null() {
        json["content"] = Value::String(String::new());
    }
    json
}
