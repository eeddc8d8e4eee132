//! Conversations re-read: the context of each action as the student saw it, and with a lens written into it.
//!
//! Owns [`Manner`], how conversations become text, and [`Shown`], one conversation as its template is given
//! it. A lens changes one message, and the template renders that like everything else; where many steps
//! share it, on the first and the last of them. Only what it changes is encoded again. Deliberately
//! absent: what a lens says and where it is written.

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::drops::{Losses, lost_answer};
use super::incremental::{common_prefix, common_suffix};
use super::parts;
use super::render::render_conversation;
use super::spans::{self, Reread, SpanError};
use super::template::{Growing, Now, RenderInput, Template, TemplateError};
use super::tokenizer::Tokenizer;
use super::tool_text;
use super::view::View;
use crate::messages::{ArgumentForm, to_json_with};
use backsight_core::episode::{Message, Role, ToolText};
use backsight_core::lens;

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
    /// What the template is given: the same, or with tools written as text and parts of text joined.
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
        let spliced = self.splices(wanted);
        let mut render = |view: View<'_>| self.growing.view(view);
        let mut other = |place, prompt: &str| {
            let Some((action, lens)) = lens_at(place) else { return Ok(None) };
            let known = spliced.get(&(lens.target, lens.text)).and_then(|splice| splice.apply(prompt));
            known.map_or_else(|| self.prompt(action, Some(lens)), Ok).map(Some)
        };
        let mut found = spans::reread(&actions, &mut render, &mut other, tokenizer);
        for (turn, place) in found.turns.iter_mut().zip(&actions) {
            if let Some(why) = lost_answer(self.manner.template, &self.messages, &self.losses, *place) {
                *turn = Err(SpanError::Template { n_messages: place + 1, why });
            }
        }
        found
    }

    /// What the same lens in the same message does to the text of every step: found out on the first such
    /// step, and kept only if it gives what the template renders for the last.
    fn splices<'w>(&self, wanted: &[(usize, Option<Lens<'w>>)]) -> HashMap<(usize, &'w str), Splice> {
        let mut ends: HashMap<(usize, &str), (usize, usize)> = HashMap::new();
        for (action, lens) in wanted {
            let Some(Lens { target, text }) = *lens else { continue };
            ends.entry((target, text)).and_modify(|(_, last)| *last = *action).or_insert((*action, *action));
        }
        let shared = ends.into_iter().filter(|(_, (first, last))| first < last);
        let found = shared.filter_map(|((target, text), (first, last))| {
            let lens = Some(Lens { target, text });
            let splice = Splice::between(&self.prompt(first, None).ok()?, &self.prompt(first, lens).ok()?);
            let holds = splice.apply(&self.prompt(last, None).ok()?)? == self.prompt(last, lens).ok()?;
            holds.then_some(((target, text), splice))
        });
        found.collect()
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
        let Some(choice) = self.manner.tool_text else {
            return self.growing.with(lens.target, &parts::like(target, &self.messages[lens.target]));
        };
        let mut before = self.plain[..action].to_vec();
        before[lens.target] = target;
        let shown = tool_text::apply(choice, self.manner.template, &self.manner.input(&before));
        let shown: Vec<Value> =
            shown.into_iter().zip(&self.messages).map(|(new, old)| parts::like(new, old)).collect();
        let changed = shown.iter().zip(&self.messages).position(|(new, old)| new != old);
        changed.map_or_else(|| Ok(self.growing.clone()), |idx| self.growing.with(idx, &shown[idx]))
    }
}

/// How a text with a lens differs from the same text without: in one place.
struct Splice {
    /// The text up to the end of what is replaced.
    head: String,
    /// Where what is replaced begins.
    start: usize,
    /// What stands there instead.
    with: String,
}

impl Splice {
    fn between(plain: &str, seen: &str) -> Self {
        let start = common_prefix(plain, seen);
        let rest = common_suffix(&plain[start..], &seen[start..]);
        let head = plain[..plain.len() - rest].to_owned();
        Self { head, start, with: seen[start..seen.len() - rest].to_owned() }
    }

    /// The same done to a text that begins alike.
    fn apply(&self, plain: &str) -> Option<String> {
        let tail = plain.strip_prefix(&self.head)?;
        Some([&self.head[..self.start], &self.with, tail].concat())
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

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use std::path::Path;

    use super::*;
    use backsight_core::episode::Content;
    use backsight_core::lens::{Placement, target, write};

    /// A plain template, and one that shows the first message otherwise once there are more than four.
    const PLAIN: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
    const FICKLE: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if loop.first and messages | length > 4 %}long ago: {{ m.content }}{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

    /// Without white space around what is said; with a line break behind it; with a prompt that depends on it.
    const TRIMS: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content | trim }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
    const BREAKS: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}\n\n<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
    const HEEDS: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% if 'it went' in messages[-1].content %}words {% endif %}{% endif %}";

    fn talk() -> Vec<Message> {
        let role = |idx: usize| if idx.is_multiple_of(2) { Role::User } else { Role::Assistant };
        let end = |idx: usize| if idx.is_multiple_of(4) { "" } else { "  \n" };
        (0..12).map(|idx| Message::text(role(idx), format!("words {idx}{}", end(idx)))).collect()
    }

    /// Every context under the lens is what rendering and encoding it whole gives.
    fn check(template: &str, placement: Placement) {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/tokenizers/chatml");
        let tokenizer = Tokenizer::open(&dir).unwrap();
        let template = Template::compile(template, "t").unwrap();
        let (talk, vars) = (talk(), Map::new());
        let manner = Manner { template: &template, vars: &vars, tools: &[], tool_text: None, now: None };
        let actions: Vec<usize> = (0..talk.len()).filter(|idx| talk[*idx].role == Role::Assistant).collect();
        // Two lenses by turns, so that steps that share one are not neighbours.
        let text = |action: usize| if action % 4 == 1 { "it went well" } else { "it went badly" };
        let lens =
            |action: usize| Lens { target: target(&talk[..action], placement).unwrap(), text: text(action) };
        let wanted: Vec<_> = actions.iter().map(|&action| (action, Some(lens(action)))).collect();
        let found = Shown::new(manner, &talk).unwrap().reread(&wanted, &tokenizer);
        let whole = |messages: &[Message]| {
            let text =
                Shown::new(manner, messages).unwrap().growing.render(messages.len(), true).unwrap().text;
            tokenizer.encode(&text).unwrap().ids
        };
        for (&action, turn) in actions.iter().zip(found.turns) {
            let mut seen = talk[..action].to_vec();
            let written = target(&seen, placement).unwrap();
            write(&mut seen[written], text(action));
            let (turn, lens) = turn.unwrap();
            assert_eq!(lens.unwrap(), whole(&seen), "{action} under the lens");
            let plain = &found.sequences[turn.sequence][..turn.span.start()];
            assert_eq!(plain, whole(&talk[..action]), "{action} as the student saw it");
        }
    }

    /// A message in parts is joined for this template, with a lens in it as without.
    #[test]
    fn a_lens_in_text_that_comes_in_parts_is_rendered_like_the_rest() {
        let template =
            Template::compile(&PLAIN.replace("{{ m.content }}", "{{ '' + m.content }}"), "t").unwrap();
        let parts = |role, texts: [&str; 2]| Message {
            content: Some(Content::Parts(texts.map(str::to_owned).into())),
            ..Message::text(role, "")
        };
        let (talk, vars) =
            ([parts(Role::User, ["count ", "up"]), parts(Role::Assistant, ["1 ", "2"])], Map::new());
        for tool_text in [None, Some(ToolText::Hermes), Some(ToolText::Flatten)] {
            let manner = Manner { template: &template, vars: &vars, tools: &[], tool_text, now: None };
            let shown = Shown::new(manner, &talk).unwrap();
            let prompt = |lens| shown.prompt(1, lens).unwrap();
            let expected =
                |text: &str| format!("<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n");
            assert_eq!(prompt(None), expected("count up"));
            assert_eq!(prompt(Some(Lens { target: 0, text: "it went" })), expected("count up\n\nit went"));
        }
    }

    #[test]
    fn a_lens_is_rendered_as_the_template_has_it() {
        for template in [PLAIN, FICKLE, TRIMS, BREAKS, HEEDS] {
            check(template, Placement::First);
            check(template, Placement::Last);
        }
    }
}
