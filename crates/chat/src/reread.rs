//! Conversations re-read: the context of each action as the student saw it, and with a lens written into it.
//!
//! Owns [`Manner`], how conversations become text, and [`Shown`], one conversation as its template is given
//! it. An edit adds to one message or puts others before it, and the template renders that like everything else;
//! where many steps share it, on the first and the last of them. Only what it changes is encoded again.
//! Deliberately absent: what a lens says and where it is written.

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::drops::{Losses, lost_answer};
use super::incremental::{common_prefix, common_suffix};
use super::parts;
use super::render::render_conversation;
use super::spans::{self, Reread, SpanError};
use super::template::{Growing, Now, RenderInput, Rendered, Template, TemplateError};
use super::tokenizer::Tokenizer;
use super::tool_text;
use super::view::View;
use crate::messages::{ArgumentForm, to_json_with};
use backsight_core::episode::{Message, Role, ToolText};
use backsight_core::lens::{self, Edit};

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

    /// Finds the actions at the assistant messages `wanted`, in order, each with its context under each of its edits.
    ///
    /// An action whose own words the template leaves out is an error: its tokens are not those that were sampled.
    pub fn reread<'w>(
        &self,
        wanted: &[(usize, Vec<Edit<'w>>)],
        tokenizer: &Tokenizer,
    ) -> Reread<TemplateError> {
        let actions: Vec<usize> = wanted.iter().map(|(action, _)| self.place_of(*action)).collect();
        let spliced = self.splices(wanted);
        let mut render = |view: View<'_>| self.growing.view(view);
        let mut others = |place: usize, prompt: &str| {
            let found = actions.binary_search(&place).map(|idx| &wanted[idx]);
            let Ok((action, edits)) = found else { return Vec::new() };
            let edited = |edit: &Edit<'w>| match splice_of(edit, &spliced).and_then(|it| it.apply(prompt)) {
                Some(known) => Ok(known),
                None => self.prompt(*action, *edit),
            };
            edits.iter().map(edited).collect()
        };
        let mut found = spans::reread(&actions, &mut render, &mut others, tokenizer);
        for (turn, place) in found.turns.iter_mut().zip(&actions) {
            if let Some(why) = lost_answer(self.manner.template, &self.messages, &self.losses, *place) {
                *turn = Err(SpanError::Template { n_messages: place + 1, why });
            }
        }
        found
    }

    /// What the same text in the same message does to the prompt of every step: found out on the first such
    /// step, and kept only if it gives what the template renders for the last.
    fn splices<'w>(&self, wanted: &[(usize, Vec<Edit<'w>>)]) -> Splices<'w> {
        let mut ends: HashMap<(usize, &str), (usize, usize)> = HashMap::new();
        let edits = wanted.iter().flat_map(|(action, edits)| edits.iter().map(move |edit| (*action, edit)));
        for (action, edit) in edits {
            let Edit::Behind { target, text } = *edit else { continue };
            ends.entry((target, text)).and_modify(|(_, last)| *last = action).or_insert((action, action));
        }
        let shared = ends.into_iter().filter(|(_, (first, last))| first < last);
        let found = shared.filter_map(|((target, text), (first, last))| {
            let edit = Edit::Behind { target, text };
            let plain = |action| self.prompt(action, Edit::Nothing).ok();
            let splice = Splice::between(&plain(first)?, &self.prompt(first, edit).ok()?);
            let holds = splice.apply(&plain(last)?)? == self.prompt(last, edit).ok()?;
            holds.then_some(((target, text), splice))
        });
        found.collect()
    }

    /// The text before the action at `action`, with something added to it or not.
    pub fn prompt(&self, action: usize, edit: Edit<'_>) -> Result<String, TemplateError> {
        let place = self.place_of(action);
        let rendered = match edit {
            Edit::Nothing => self.growing.render(place, true),
            Edit::Behind { target, text } => self.through(action, target, text)?.render(place, true),
            Edit::Before { .. } => self.with_more(action, edit),
        };
        rendered.map(|rendered| rendered.text)
    }

    /// Where an assistant message is among those the template is given. Every rendering keeps their order and number.
    fn place_of(&self, action: usize) -> usize {
        let nth = self.original[..action].iter().filter(|message| message.role == Role::Assistant).count();
        let is_action = |idx: &usize| self.messages[*idx]["role"] == Role::Assistant.name();
        (0..self.messages.len()).filter(is_action).nth(nth).unwrap_or(self.messages.len())
    }

    /// The conversation with a text behind that of a message before an action.
    fn through(&self, action: usize, target: usize, text: &str) -> Result<Growing<'a>, TemplateError> {
        let mut written = self.original[target].clone();
        lens::write(&mut written, text);
        let written = json(&written);
        let Some(choice) = self.manner.tool_text else {
            return self.growing.with(target, &parts::like(written, &self.messages[target]));
        };
        let mut before = self.plain[..action].to_vec();
        before[target] = written;
        let shown = tool_text::apply(choice, self.manner.template, &self.manner.input(&before));
        let shown: Vec<Value> =
            shown.into_iter().zip(&self.messages).map(|(new, old)| parts::like(new, old)).collect();
        let changed = shown.iter().zip(&self.messages).position(|(new, old)| new != old);
        changed.map_or_else(|| Ok(self.growing.clone()), |idx| self.growing.with(idx, &shown[idx]))
    }

    /// The text before an action whose context has more messages: all of it rendered anew.
    fn with_more(&self, action: usize, edit: Edit<'_>) -> Result<Rendered, TemplateError> {
        let seen: Vec<Value> = edit.apply(&self.original[..action]).iter().map(json).collect();
        let input = RenderInput { add_generation_prompt: true, ..self.manner.input(&seen) };
        Ok(render_conversation(self.manner.template, &input, self.manner.tool_text)?.rendered)
    }
}

type Splices<'w> = HashMap<(usize, &'w str), Splice>;

fn splice_of<'s, 'w>(edit: &Edit<'w>, splices: &'s Splices<'w>) -> Option<&'s Splice> {
    match edit {
        Edit::Behind { target, text } => splices.get(&(*target, *text)),
        Edit::Nothing | Edit::Before { .. } => None,
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
    use backsight_core::lens::{Addition, Placement};

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
        let added = |action: usize| match placement {
            Placement::Turns => Addition::Turns(vec![Message::text(Role::User, text(action))]),
            _ => Addition::Text(placement, text(action).to_owned()),
        };
        let additions: Vec<_> = actions.iter().map(|&action| (action, added(action))).collect();
        let wanted: Vec<_> = additions
            .iter()
            .map(|(action, it)| (*action, vec![it.edit(&talk[..*action]).unwrap(), Edit::Nothing]))
            .collect();
        let found = Shown::new(manner, &talk).unwrap().reread(&wanted, &tokenizer);
        let whole = |messages: &[Message]| {
            let text =
                Shown::new(manner, messages).unwrap().growing.render(messages.len(), true).unwrap().text;
            tokenizer.encode(&text).unwrap().ids
        };
        for ((action, edits), turn) in wanted.into_iter().zip(found.turns) {
            let (turn, contexts) = turn.unwrap();
            let contexts: Vec<_> = contexts.into_iter().map(Result::unwrap).collect();
            let plain = whole(&talk[..action]);
            assert_eq!(contexts[0], whole(&edits[0].apply(&talk[..action])), "{action} under the lens");
            assert_eq!(contexts[1], plain, "{action} under no lens");
            assert_eq!(
                found.sequences[turn.sequence][..turn.span.start()],
                plain,
                "{action} as it was sampled"
            );
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
            let prompt = |edit| shown.prompt(1, edit).unwrap();
            let expected =
                |text: &str| format!("<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n");
            assert_eq!(prompt(Edit::Nothing), expected("count up"));
            assert_eq!(prompt(Edit::Behind { target: 0, text: "it went" }), expected("count up\n\nit went"));
        }
    }

    #[test]
    fn a_lens_is_rendered_as_the_template_has_it() {
        for template in [PLAIN, FICKLE, TRIMS, BREAKS, HEEDS] {
            Placement::ALL.iter().for_each(|placement| check(template, *placement));
        }
    }
}
