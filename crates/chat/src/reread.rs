//! Conversations re-read: the context of each action as the student saw it, and with a lens written into it.
//!
//! Owns [`Manner`], how conversations become text, and [`Shown`], one conversation as its template is given
//! it. An edit adds to one message or puts others before it, and the template renders that like everything else;
//! only what it changes is rendered and encoded again.
//! Deliberately absent: what a lens says and where it is written.

use std::ops::Range;

use serde_json::{Map, Value};

use super::drops::{Losses, Part, lost_answer};
use super::error::TextError;
use super::near::Likeness;
use super::parts;
use super::render::render_conversation;
use super::spans::{self, Reread, Wanted};
use super::talk::{Portion, Talk};
use super::template::{Growing, Now, RenderInput, Rendered, Template};
use super::tokenizer::Tokenizer;
use super::tool_text;
use crate::messages::{ArgumentForm, to_json_with};
use backsight_core::episode::{Message, Role, ToolText};
use backsight_core::lens::{self, Edit};
use backsight_core::tree::TokenTree;

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
    /// Those of them that are actions.
    original_actions: Vec<usize>,
    /// The original messages as JSON.
    plain: Vec<Value>,
    /// What the template is given: the same, or with tools written as text and parts of text joined. Every rendering
    /// keeps the actions' order and number.
    messages: Vec<Value>,
    actions: Vec<usize>,
    growing: Growing<'a>,
    losses: Losses,
    likeness: Likeness,
}

/// The end of a prompt, rendered as if messages in the middle were not there.
pub struct PromptEnd {
    /// The first action behind those that are left out.
    pub first_action: usize,
    /// The prompt without an addition.
    pub plain: String,
    /// The prompt with it.
    pub seen: String,
}

impl<'a> Shown<'a> {
    /// Renders the whole conversation once, which refuses one whose tool calls would be lost.
    pub fn new(manner: Manner<'a>, original: &'a [Message]) -> Result<Self, TextError> {
        let plain: Vec<Value> = original.iter().map(json).collect();
        let input = manner.input(&plain);
        let rendering = render_conversation(manner.template, &input, manner.tool_text)?;
        let (messages, losses) = (rendering.messages, rendering.losses);
        let tools = input.tools.filter(|_| manner.tool_text.is_none());
        let growing = manner.template.growing(&RenderInput { messages: &messages, tools, ..input })?;
        let is_action = |idx: &usize| original[*idx].role == Role::Assistant;
        let original_actions = (0..original.len()).filter(is_action).collect();
        let is_action = |idx: &usize| messages[*idx]["role"] == Role::Assistant.name();
        let actions = (0..messages.len()).filter(is_action).collect();
        let likeness = Likeness::of(manner.template.source(), &messages);
        Ok(Self { manner, original, original_actions, plain, messages, actions, growing, losses, likeness })
    }

    /// Finds the actions at the assistant messages `wanted`, in order, each with its context under each of its edits.
    ///
    /// An action whose own words the template leaves out is an error: its tokens are not those that were sampled.
    pub fn reread(
        &self,
        wanted: &[(usize, Vec<Edit<'_>>)],
        tokenizer: &Tokenizer,
        tree: &mut TokenTree,
    ) -> Reread {
        let placed = wanted.iter().map(|(action, edits)| {
            let edits = edits.iter().map(|edit| (*edit, self.round(*edit)));
            (self.place_of(*action), edits.collect())
        });
        let actions: Vec<Wanted<'_>> = placed.collect();
        let mut found = spans::reread(&actions, &self.likeness, &mut &*self, tokenizer, tree);
        let lost = self.losses.parts.iter().filter(|loss| loss.part == Part::Text);
        for place in lost.map(|loss| loss.message_idx) {
            let turn = actions.binary_search_by_key(&place, |(action, _)| *action);
            let why = lost_answer(self.manner.template, &self.messages, &self.losses, place);
            if let (Ok(turn), Some(why)) = (turn, why) {
                found.turns[turn] = Err(spans::refused(place + 1)(why));
            }
        }
        found
    }

    /// The text before the action at `action`, with something added to it or not.
    pub fn prompt(&self, action: usize, edit: Edit<'_>) -> Result<String, TextError> {
        self.prompt_without(action, edit, &(0..0))
    }

    /// What an addition near the end of a prompt does there; none where only the whole prompt can tell.
    pub fn prompt_end(&self, action: usize, edit: Edit<'_>) -> Option<PromptEnd> {
        let place = self.place_of(action);
        let (without, _) = self.likeness.without(place.checked_sub(1)?..place, 0)?;
        let first_action = self.original_place(without.end);
        let is_behind = matches!(edit, Edit::Behind { target, .. } if target > first_action);
        let prompt = |edit| self.prompt_without(action, edit, &without).ok();
        let (plain, seen) = is_behind.then(|| prompt(Edit::Nothing).zip(prompt(edit)))??;
        Some(PromptEnd { first_action, plain, seen })
    }

    /// The original message of an action that the template is given at `place`; the first for the first.
    fn original_place(&self, place: usize) -> usize {
        let nth = self.actions.partition_point(|action| *action < place);
        if place == 0 { 0 } else { self.original_actions[nth] }
    }

    /// The same as if some of the messages the template is given were not there.
    fn prompt_without(
        &self,
        action: usize,
        edit: Edit<'_>,
        without: &Range<usize>,
    ) -> Result<String, TextError> {
        let place = self.place_of(action);
        let rendered = match edit {
            Edit::Nothing => self.growing.part(place, true, without, &[]),
            Edit::Behind { target, text } => {
                self.growing.part(place, true, without, &self.written(action, target, text))
            }
            Edit::Before { target, messages } => self.with_more(action, target, messages, without),
        };
        rendered.map(|rendered| rendered.text)
    }

    /// How many actions stand before the message that an edit goes to.
    fn round(&self, edit: Edit<'_>) -> usize {
        match edit {
            Edit::Nothing => 0,
            Edit::Behind { target, .. } | Edit::Before { target, .. } => self.n_actions_before(target),
        }
    }

    fn n_actions_before(&self, message_idx: usize) -> usize {
        self.original_actions.partition_point(|action| *action < message_idx)
    }

    /// Where an assistant message is among those the template is given.
    fn place_of(&self, action: usize) -> usize {
        self.actions.get(self.n_actions_before(action)).copied().unwrap_or(self.messages.len())
    }

    /// What the template is given otherwise where a text stands behind that of a message before an action. A named
    /// rendering joins no message with one beyond an action, so only those around it are rendered again.
    fn written(&self, action: usize, target: usize, text: &str) -> Vec<(usize, Value)> {
        let mut written = self.original[target].clone();
        lens::write(&mut written, text);
        let written = json(&written);
        let Some(choice) = self.manner.tool_text else {
            return vec![(target, parts::like(written, &self.messages[target]))];
        };
        let round = self.n_actions_before(target);
        let first = round.checked_sub(1);
        let start = first.map_or(0, |nth| self.original_actions[nth]);
        let end = self.original_actions.get(round).map_or(action, |next| action.min(*next));
        let mut around = self.plain[start..end].to_vec();
        around[target - start] = written;
        let input = self.manner.input(&around);
        let tools = input.tools.filter(|_| first.is_none());
        let shown = tool_text::apply(choice, self.manner.template, &RenderInput { tools, ..input });
        let place = first.map_or(0, |nth| self.actions[nth]);
        let shown = shown.into_iter().zip(&self.messages[place..]).enumerate();
        let shown = shown.map(|(idx, (new, old))| (place + idx, parts::like(new, old)));
        shown.filter(|(idx, new)| *new != self.messages[*idx]).take(1).collect()
    }

    /// The text before an action whose context has more messages: all of it rendered anew.
    fn with_more(
        &self,
        action: usize,
        target: usize,
        messages: &[Message],
        without: &Range<usize>,
    ) -> Result<Rendered, TextError> {
        let (start, end) = match without.is_empty() {
            true => (0, 0),
            false => (self.original_place(without.start), self.original_place(without.end)),
        };
        let kept = [&self.original[..start], &self.original[end..action]].concat();
        let target = if target < start { target } else { target - (end - start) };
        let seen: Vec<Value> = Edit::Before { target, messages }.apply(&kept).iter().map(json).collect();
        let input = RenderInput { add_generation_prompt: true, ..self.manner.input(&seen) };
        Ok(render_conversation(self.manner.template, &input, self.manner.tool_text)?.rendered)
    }
}

impl Talk for &Shown<'_> {
    fn render(&mut self, portion: Portion<'_>, without: &Range<usize>) -> Result<String, TextError> {
        (&mut &self.growing).render(portion, without)
    }

    fn edited(
        &mut self,
        message_idx: usize,
        edit: Edit<'_>,
        without: &Range<usize>,
    ) -> Result<String, TextError> {
        let nth = self.actions.partition_point(|place| *place < message_idx);
        self.prompt_without(self.original_actions[nth], edit, without)
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
        let mut tree = TokenTree::default();
        let found = Shown::new(manner, &talk).unwrap().reread(&wanted, &tokenizer, &mut tree);
        let whole = |messages: &[Message]| {
            let text = Shown::new(manner, messages)
                .unwrap()
                .growing
                .part(messages.len(), true, &(0..0), &[])
                .unwrap()
                .text;
            tokenizer.encode(&text).unwrap().ids
        };
        for ((action, edits), turn) in wanted.into_iter().zip(found.turns) {
            let (turn, contexts) = turn.unwrap();
            let contexts: Vec<_> = contexts.into_iter().map(|it| tree.all(it.unwrap())).collect();
            let plain = whole(&talk[..action]);
            assert_eq!(contexts[0], whole(&edits[0].apply(&talk[..action])), "{action} under the lens");
            assert_eq!(contexts[1], plain, "{action} under no lens");
            assert_eq!(
                tree.all(found.sequences[turn.sequence])[..turn.span.start()],
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
