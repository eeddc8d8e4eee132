//! Where each action is among the tokens of a rendered conversation.
//!
//! Owns [`reread`], which renders and encodes chosen steps as the student saw them and under another prompt too,
//! [`turns_beside`], which does it for every step beside one rendering, and [`borders`], which finds each message in one
//! rendering. The prefix property is checked at every step: where a template
//! rewrites history, the step gets a token sequence of its own; where the tokenizer would merge the
//! prompt's last token with the action's first, the two are encoded apart, as they were sampled. Where an
//! action does not stand right behind its prompt is left to `header`. Everything here is made from text and
//! so is `rendered`; recorded ids need none of it.

use super::error::TextError;
use super::header;
use super::incremental::{Change, Incremental, change, common_prefix};
use super::near::{Likeness, Near, Repeats};
use super::talk::{Portion, Render, Talk};
use super::tokenizer::Tokenizer;
use backsight_core::episode::Role;
use backsight_core::lens::Edit;
use backsight_core::named;
use backsight_core::tokens::{TokenId, TokenSpan};
use backsight_core::tree::{Replacements, Tip, TokenTree};

/// What helps where a rendering does not show an action.
const LOOK: &str = "look at the text with --format text, or choose --tool-text";

/// The template refused the first messages.
pub(super) fn refused(n_messages: usize) -> impl FnOnce(TextError) -> TextError {
    move |why| {
        let help = why.help();
        TextError::new(format!("the first {n_messages} messages cannot be rendered: {why}"), help)
    }
}

/// How the border between prompt and action was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Border {
    /// The prompt's ids are a prefix of the ids with the action.
    Prefix,
    /// The tokenizer would merge across the border, so both sides were encoded apart.
    Merged,
    /// The generation prompt says something else than the rendered turn begins with (an opened `<think>`); the
    /// action begins where they part and was put behind the prompt the student saw.
    Parted,
    /// The context was rewritten too; the action was found in it and put behind the prompt the student saw.
    Rewritten,
    /// The template renders no prompt here, so what it writes before the turn's own words stands for one.
    Unprompted,
}

named!(
    Border: Prefix = "prefix", Merged = "merged", Parted = "parted", Rewritten = "rewritten",
    Unprompted = "unprompted",
);

/// One assistant turn as the student saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Turn {
    /// The assistant's message.
    pub message_idx: usize,
    /// Which of the token sequences it is in.
    pub sequence: usize,
    /// Where its action ends in the tree of those.
    pub tip: Tip,
    /// The action inside that sequence: thinking, prose, tool calls and the end-of-turn token.
    pub span: TokenSpan,
    /// How its start was found.
    pub border: Border,
    /// Whether the action ends with an end-of-turn token.
    pub ended: bool,
}

/// What is added to a context, and how many actions stand before the message it goes to.
pub type Placed<'w> = (Edit<'w>, usize);

/// An action, by its message, and what is added to its context.
pub type Wanted<'w> = (usize, Vec<Placed<'w>>);

/// A turn, and the tokens before its action with each of the additions.
pub type RereadTurn = (Turn, Vec<Result<Tip, TextError>>);

/// A turn under several prompts, or why it is not found.
pub type Found = Result<RereadTurn, TextError>;

/// Turns under several prompts. What cannot be found fails alone.
pub struct Reread {
    /// The sequences as the student saw them.
    pub sequences: Vec<Tip>,
    /// One for each action that was asked for.
    pub turns: Vec<Found>,
    /// How many bytes went through the tokenizer.
    pub encoded_bytes: u64,
}

/// Finds the turns of the assistant messages `wanted`, in order, each with its context under each of its additions.
///
/// Only the end of the conversation is rendered for each, if it is what `likeness` says; whole renderings check that on
/// the way and on the last, and where one differs everything is rendered whole.
pub fn reread<T: Talk>(
    wanted: &[Wanted<'_>],
    likeness: &Likeness,
    talk: &mut T,
    tokenizer: &Tokenizer,
    tree: &mut TokenTree,
) -> Reread {
    match Walk::new(likeness, talk, tokenizer, tree).reread(wanted) {
        Ok(found) => found,
        Err(Distrust) => reread(wanted, &Likeness::default(), talk, tokenizer, tree),
    }
}

/// What a sequence has beyond a rendering it begins like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Beyond {
    /// How many tokens are the rendering's first.
    pub shared: usize,
    /// Those that follow.
    pub ids: Vec<TokenId>,
}

/// Turns, and what their sequences have beyond a rendering.
pub type Beside = Result<(Vec<Turn>, Vec<Beyond>), TextError>;

/// All turns of a conversation beside one rendering of it.
pub fn turns_beside<T: Talk>(
    ids: &[TokenId],
    roles: &[Role],
    likeness: &Likeness,
    talk: &mut T,
    tokenizer: &Tokenizer,
) -> Beside {
    let mut tree = TokenTree::default();
    let actions = (0..roles.len()).filter(|idx| roles[*idx] == Role::Assistant);
    let wanted: Vec<Wanted<'_>> = actions.map(|action| (action, Vec::new())).collect();
    let found = reread(&wanted, likeness, talk, tokenizer, &mut tree);
    let turns = found.turns.into_iter().map(|turn| turn.map(|(turn, _)| turn)).collect::<Result<_, _>>()?;
    let rendering = tree.grow(Tip::EMPTY, ids);
    // From the last on: each is looked for where the one behind it was.
    let mut near = rendering;
    let beyond = |tip: &Tip| {
        near = tree.cut(if tip.len() > near.len() { rendering } else { near }, tip.len());
        let shared = tree.shared(near, *tip);
        Beyond { shared, ids: tree.tokens(*tip, shared..tip.len()) }
    };
    let mut beyond: Vec<Beyond> = found.sequences.iter().rev().map(beyond).collect();
    beyond.reverse();
    Ok((turns, beyond))
}

/// A short rendering did not stand for the whole one.
struct Distrust;

impl Change {
    /// The same in a whole text, of which `near` is the short one; none if it is not certain where that is.
    fn moved(mut self, is_in_front: bool, near: &Near) -> Option<Self> {
        let is_certain = match is_in_front {
            true => self.bytes.end <= near.front.min(near.back + near.steady),
            false => self.bytes.start >= near.back,
        };
        let by = if is_in_front { 0 } else { near.longer_by };
        self.bytes = self.bytes.start + by..self.bytes.end + by;
        is_certain.then_some(self)
    }

    fn applied(&self, text: &str) -> String {
        [&text[..self.bytes.start], &self.with, &text[self.bytes.end..]].concat()
    }
}

/// Goes through a conversation, at the cost of what is new in each of its renderings.
struct Walk<'a, 'w, T> {
    likeness: &'a Likeness,
    talk: &'a mut T,
    tokenizer: &'a Tokenizer,
    encoder: Incremental<'a>,
    tree: &'a mut TokenTree,
    /// Where the encoder's ids are in the tree.
    tip: Tip,
    /// What the encoder's text is: so many messages, with the generation prompt or without.
    last: Option<(usize, bool)>,
    replacements: Replacements,
    /// What additions do to the text.
    known: Repeats<Edit<'w>, Change>,
    /// Whether this step is compared with whole renderings, and whether one differed.
    is_checked: bool,
    differs: bool,
}

impl<'a, 'w, T: Talk> Walk<'a, 'w, T> {
    fn new(
        likeness: &'a Likeness,
        talk: &'a mut T,
        tokenizer: &'a Tokenizer,
        tree: &'a mut TokenTree,
    ) -> Self {
        let (encoder, tip) = (Incremental::new(tokenizer), Tip::EMPTY);
        let (replacements, known) = (Replacements::default(), Repeats::default());
        let (last, is_checked, differs) = (None, false, false);
        Self { likeness, talk, tokenizer, encoder, tree, tip, last, replacements, known, is_checked, differs }
    }

    fn reread(mut self, wanted: &[Wanted<'w>]) -> Result<Reread, Distrust> {
        let (mut turns, mut sequences) = (Vec::with_capacity(wanted.len()), Vec::new());
        for (nth, (message_idx, edits)) in wanted.iter().enumerate() {
            self.is_checked = (nth + 1).is_power_of_two() || nth + 1 == wanted.len();
            let found = self.step(*message_idx, edits)?;
            turns.push(found.map(|(turn, others)| {
                (Turn { sequence: self.continued(&mut sequences, turn.tip), ..turn }, others)
            }));
        }
        Ok(Reread { sequences, turns, encoded_bytes: self.encoder.encoded_bytes() })
    }

    /// Continues the last sequence if `tip` does, otherwise begins another; gives the index of the one that holds it.
    fn continued(&self, sequences: &mut Vec<Tip>, tip: Tip) -> usize {
        match sequences.last_mut() {
            Some(last) if self.tree.shared(*last, tip) == last.len() => *last = tip,
            _ => sequences.push(tip),
        }
        sequences.len() - 1
    }

    /// A short rendering of the last text that leaves enough to show what the messages before `end` change; none
    /// where the whole is needed.
    fn near(&mut self, end: usize, wider: u32) -> Option<Near> {
        let (n_messages, generation_prompt) = self.last?;
        let window = self.likeness.without(n_messages.saturating_sub(1)..end, wider)?;
        let portion = Portion { n_messages, generation_prompt, said: &[] };
        let last = self.talk.render(portion, &window.0).ok()?;
        Near::new(self.encoder.text(), last, window)
    }

    /// Encodes a text that is given short or whole.
    fn encode(&mut self, text: &str, near: Option<&Near>) -> Result<usize, TextError> {
        let same = common_prefix(near.map_or(self.encoder.text(), |near| &near.last), text);
        self.change(same + near.map_or(0, |near| near.longer_by), &text[same..])
    }

    /// Encodes the text up to `keep` with `tail` behind it; gives how many ids stay.
    fn change(&mut self, keep: usize, tail: &str) -> Result<usize, TextError> {
        self.known.retain(|splice| splice.bytes.end <= keep);
        let n_same = self.encoder.change(keep, tail)?;
        let kept = self.tree.cut(self.tip, n_same);
        self.tip = self.tree.grow(kept, &self.encoder.ids()[n_same..]);
        Ok(n_same)
    }

    /// Renders and encodes one step.
    fn step(&mut self, message_idx: usize, edits: &[Placed<'w>]) -> Result<Found, Distrust> {
        for wider in 0.. {
            let near = self.near(message_idx + 1, wider);
            let text = self.text(message_idx, near.as_ref());
            match (near, text) {
                (None, text) => return Ok(text.and_then(|text| self.take(message_idx, &text, None, edits))),
                (Some(near), Ok(text)) if near.holds(&text.prompt) && near.holds(&text.full) => {
                    let step = self.take(message_idx, &text, Some(&near), edits);
                    return if self.is_wrong(message_idx, &text) { Err(Distrust) } else { Ok(step) };
                }
                (Some(_), _) => {}
            }
        }
        Err(Distrust)
    }

    /// Whether a step that is checked is not what its whole rendering gives.
    fn is_wrong(&mut self, message_idx: usize, text: &Text) -> bool {
        if !self.is_checked {
            return false;
        }
        let Ok(whole) = self.text(message_idx, None) else { return true };
        let is_behind = matches!(text.border, Border::Prefix | Border::Unprompted);
        let encoded = if is_behind { &whole.full } else { &whole.prompt };
        let action = |text: &Text| text.full[text.at..].to_owned();
        self.differs
            || whole.border != text.border
            || action(&whole) != action(text)
            || self.encoder.text() != encoded
    }

    fn text(&mut self, message_idx: usize, near: Option<&Near>) -> Result<Text, TextError> {
        let without = near.map_or(0..0, |near| near.without.clone());
        text(message_idx, &mut |portion: Portion<'_>| self.talk.render(portion, &without), self.tokenizer)
    }

    /// Encodes a step: the prompt as the student saw it, then the action. Its sequence is still to be named.
    fn take(&mut self, message_idx: usize, text: &Text, near: Option<&Near>, edits: &[Placed<'w>]) -> Found {
        self.encode(&text.prompt, near)?;
        self.last = Some((message_idx, true));
        let prompt = self.tip;
        let plain = Prompt { message_idx, text: &text.prompt, near };
        let others = edits.iter().map(|edit| self.other(plain, *edit)).collect();
        let (action, border) = self.behind_prompt(message_idx, prompt, text)?;
        let (n_action, ended) = action_end(&action, self.tokenizer)?;
        if n_action == 0 {
            let what = format!("the template renders nothing for message {message_idx}, an assistant's");
            return Err(TextError::new(what, LOOK));
        }
        let tip = self.tree.grow(prompt, &action[..n_action]);
        let span = TokenSpan::at(prompt.len(), n_action);
        Ok((Turn { message_idx, sequence: 0, tip, span, border, ended }, others))
    }

    /// The action's ids: of both together where it stands behind the prompt and they keep the prompt's, else its own.
    fn behind_prompt(
        &mut self,
        message_idx: usize,
        prompt: Tip,
        text: &Text,
    ) -> Result<(Vec<TokenId>, Border), TextError> {
        let action = &text.full[text.at..];
        if !matches!(text.border, Border::Prefix | Border::Unprompted) {
            return Ok((self.tokenizer.encode_ids(action)?, text.border));
        }
        self.change(self.encoder.text().len(), action)?;
        self.last = Some((message_idx + 1, false));
        if self.tree.shared(prompt, self.tip) == prompt.len() {
            return Ok((self.encoder.ids()[prompt.len()..].to_vec(), text.border));
        }
        Ok((self.tokenizer.encode_ids(action)?, Border::Merged))
    }

    /// The context with something added.
    fn other(&mut self, prompt: Prompt<'_>, placed: Placed<'w>) -> Result<Tip, TextError> {
        if placed.0 == Edit::Nothing {
            return Ok(self.tip);
        }
        let splice = self.splice(prompt, placed).map_err(refused(prompt.message_idx))?;
        let replacement = self.encoder.edited(&splice.bytes, &splice.with)?;
        Ok(self.replacements.grow(self.tree, self.tip, replacement))
    }

    /// What an addition does to the prompt that was encoded last: what it did twice before, or as it is rendered.
    fn splice(&mut self, prompt: Prompt<'_>, placed: Placed<'w>) -> Result<Change, TextError> {
        let edit = placed.0;
        let short = match self.known.sure(&edit).filter(|_| prompt.near.is_some()) {
            Some(known) => Some(known.clone()),
            None => self.short_splice(prompt, placed),
        };
        if let Some(splice) = short.as_ref().filter(|_| !self.is_checked) {
            self.remember(edit, splice);
            return Ok(splice.clone());
        }
        let seen = self.talk.edited(prompt.message_idx, edit, &(0..0))?;
        self.differs |= short.is_some_and(|splice| splice.applied(self.encoder.text()) != seen);
        let splice = change(self.encoder.text(), &seen);
        self.remember(edit, &splice);
        Ok(splice)
    }

    /// Remembers what an addition does. What reaches the end of the prompt stands elsewhere in the next one.
    fn remember(&mut self, edit: Edit<'w>, splice: &Change) {
        let is_inside = splice.bytes.end < self.encoder.text().len();
        if is_inside && matches!(edit, Edit::Behind { .. }) {
            self.known.agrees(edit, splice.clone());
        }
    }

    fn short_splice(&mut self, prompt: Prompt<'_>, (edit, round): Placed<'w>) -> Option<Change> {
        let near = prompt.near.filter(|near| round == 0 || round > self.likeness.round(near.without.end))?;
        let seen = self.talk.edited(prompt.message_idx, edit, &near.without).ok()?;
        change(prompt.text, &seen).moved(round == 0, near)
    }
}

/// A prompt that something is added to, whole or short.
#[derive(Clone, Copy)]
struct Prompt<'p> {
    message_idx: usize,
    text: &'p str,
    near: Option<&'p Near>,
}

/// A step as text.
struct Text {
    prompt: String,
    /// The conversation with the action.
    full: String,
    /// Where the action begins in it.
    at: usize,
    border: Border,
}

/// Renders one step: the prompt as the student saw it, and the action.
fn text(message_idx: usize, render: &mut Render<'_>, tokenizer: &Tokenizer) -> Result<Text, TextError> {
    let full = render(Portion::messages(message_idx + 1)).map_err(refused(message_idx + 1))?;
    let (prompt, at, border) = match render(Portion::prompt(message_idx)) {
        Ok(prompt) if full.starts_with(&prompt) => {
            let at = prompt.len();
            (prompt, at, Border::Prefix)
        }
        Ok(prompt) => {
            let at = header::end(message_idx, &full, render, tokenizer)?;
            let at = at.ok_or_else(|| lost(message_idx))?;
            let border = if prompt.starts_with(&full[..at]) { Border::Parted } else { Border::Rewritten };
            (prompt, at, border)
        }
        Err(why) => {
            let at = header::own(message_idx, &full, render).ok_or_else(|| refused(message_idx)(why))?;
            (full[..at].to_owned(), at, Border::Unprompted)
        }
    };
    Ok(Text { prompt, full, at, border })
}

/// The rendering with the action differs from the prompt before it, and the action cannot be told apart.
fn lost(message_idx: usize) -> TextError {
    let what = format!(
        "the template rewrites what stands before message {message_idx}, and the action cannot be found in it"
    );
    TextError::new(what, LOOK)
}

/// How many of the ids behind a prompt are the action, and whether an end-of-turn token ends it.
///
/// Templates write a line break behind that token which the student never sampled; it is left out. A
/// turn whose files name no end token ends with its last special token if only white space follows.
fn action_end(ids: &[TokenId], tokenizer: &Tokenizer) -> Result<(usize, bool), TextError> {
    let last = |is_end: &dyn Fn(TokenId) -> bool| ids.iter().rposition(|&id| is_end(id)).map(|at| at + 1);
    if let Some(end) = last(&|id| tokenizer.end_ids().contains(&id)) {
        return Ok((end, true));
    }
    match last(&|id| tokenizer.is_special(id)) {
        Some(end) if tokenizer.decode(&ids[end..])?.trim().is_empty() => Ok((end, true)),
        _ => Ok((ids.len(), false)),
    }
}

/// Finds the borders between messages among the ids of one rendering: where the first begins and where each of them ends.
///
/// A border is known where the messages before it, rendered alone, are what the whole begins with, token for
/// token. It is `None` where a template shows them otherwise when more follow, writes them elsewhere, or where
/// the tokenizer joins neighbours. What a template writes before the first message belongs to that message.
pub fn borders<T: Talk>(
    roles: &[Role],
    ids: &[TokenId],
    likeness: &Likeness,
    talk: &mut T,
    tokenizer: &Tokenizer,
) -> Result<Vec<Option<usize>>, TextError> {
    let mut tree = TokenTree::default();
    match Walk::new(likeness, talk, tokenizer, &mut tree).borders(roles, ids) {
        Err(Distrust) => borders(roles, ids, &Likeness::default(), talk, tokenizer),
        Ok(borders) => borders,
    }
}

/// Where messages end among the ids of a rendering, or why the text cannot be encoded.
type Borders = Result<Vec<Option<usize>>, TextError>;

impl<T: Talk> Walk<'_, '_, T> {
    fn borders(mut self, roles: &[Role], ids: &[TokenId]) -> Result<Borders, Distrust> {
        let (mut borders, mut alike) = (vec![Some(0)], 0);
        for n in 1..=roles.len() {
            // Some templates write the system's text into a later message.
            let frames = matches!(roles[n - 1], Role::System | Role::Developer);
            match self.advance(n, frames, n.is_power_of_two() || n == roles.len())? {
                Ok(Some(n_same)) => {
                    let (found, from) = (self.encoder.ids(), alike.min(n_same));
                    alike = from + ids[from..].iter().zip(&found[from..]).take_while(|(a, b)| a == b).count();
                    borders.push((alike == found.len()).then_some(alike));
                }
                Ok(None) => borders.push(None),
                Err(error) => return Ok(Err(error)),
            }
        }
        Ok(Ok(borders))
    }

    /// Encodes the first `n` messages and says how many ids stay; nothing if they are not shown.
    fn advance(
        &mut self,
        n: usize,
        frames: bool,
        is_checked: bool,
    ) -> Result<Result<Option<usize>, TextError>, Distrust> {
        for wider in 0.. {
            let near = self.near(n, wider);
            let without = near.as_ref().map_or(0..0, |near| near.without.clone());
            let text = self.talk.render(Portion::messages(n), &without).ok();
            if near.as_ref().is_some_and(|near| !text.as_ref().is_some_and(|text| near.holds(text))) {
                continue;
            }
            let shows =
                |talk: &mut T| header::shows(n, &mut |portion: Portion<'_>| talk.render(portion, &without));
            let Some(text) = text.filter(|_| !frames || shows(self.talk)) else { return Ok(Ok(None)) };
            let n_same = self.encode(&text, near.as_ref());
            self.last = Some((n, false));
            if is_checked && near.is_some() {
                let whole = self.talk.render(Portion::messages(n), &(0..0)).ok();
                whole.filter(|whole| whole == self.encoder.text()).ok_or(Distrust)?;
            }
            return Ok(n_same.map(Some));
        }
        Err(Distrust)
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use std::ops::Range;
    use std::path::Path;

    use super::*;

    fn tokenizer() -> Tokenizer {
        Tokenizer::open(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/tokenizers/chatml"))
            .unwrap()
    }

    /// A conversation that is always rendered whole.
    struct Whole<'a, 'r>(&'a mut Render<'r>);

    impl Talk for Whole<'_, '_> {
        fn render(&mut self, portion: Portion<'_>, _: &Range<usize>) -> Result<String, TextError> {
            (self.0)(portion)
        }
    }

    #[derive(Debug)]
    struct Turns {
        sequences: Vec<Vec<TokenId>>,
        turns: Vec<Turn>,
    }

    /// Every assistant turn of a conversation with these roles.
    fn turns(roles: &[Role], render: &mut Render<'_>, tokenizer: &Tokenizer) -> Result<Turns, TextError> {
        let mut whole = Whole(render);
        let (turns, beyond) = turns_beside(&[], roles, &Likeness::default(), &mut whole, tokenizer)?;
        Ok(Turns { sequences: beyond.into_iter().map(|it| it.ids).collect(), turns })
    }

    /// Renders `(role, text)` pairs; `header` is the generation prompt, `strip` removes earlier thinking as Qwen3 does.
    fn chatml<'m>(
        conversation: &'m [(&'m str, &'m str)],
        header: &'m str,
        strip: bool,
    ) -> impl FnMut(Portion<'_>) -> Result<String, TextError> + 'm {
        move |Portion { n_messages: n, generation_prompt, said }| {
            let mut text = String::new();
            for (idx, (role, content)) in conversation[..n].iter().enumerate() {
                let said = said.iter().find(|(said, _)| *said == idx);
                let content = said.map_or(*content, |(_, words)| words);
                let rewritten = strip && idx + 1 < n && *role == "assistant";
                let content = if rewritten { content.split("</think>").last().unwrap() } else { content };
                text.push_str(&format!("<|im_start|>{role}\n{content}<|im_end|>\n"));
            }
            if generation_prompt {
                text.push_str(header);
            }
            Ok(text)
        }
    }

    const TALK: &[(&str, &str)] = &[
        ("user", "hi"),
        ("assistant", "<think>a</think>yes"),
        ("user", "and?"),
        ("assistant", "<think>b</think>no"),
    ];

    fn roles(talk: &[(&str, &str)]) -> Vec<Role> {
        talk.iter().map(|(role, _)| Role::from_name(role).unwrap()).collect()
    }

    /// Each turn as `sequence border action`.
    fn shown(talk: &[(&str, &str)], header: &str, strip: bool) -> Vec<String> {
        let tokenizer = tokenizer();
        let turns = turns(&roles(talk), &mut chatml(talk, header, strip), &tokenizer).unwrap();
        let show = |turn: &Turn| {
            let action = &turns.sequences[turn.sequence][turn.span.range()];
            format!("{} {:?} {:?}", turn.sequence, turn.border, tokenizer.decode(action).unwrap())
        };
        turns.turns.iter().map(show).collect()
    }

    #[test]
    fn actions_include_thinking_and_end_token_but_not_the_line_break() {
        let expected =
            ["0 Prefix \"<think>a</think>yes<|im_end|>\"", "0 Prefix \"<think>b</think>no<|im_end|>\""];
        assert_eq!(shown(TALK, "<|im_start|>assistant\n", false), expected);
    }

    #[test]
    fn rewritten_history_gets_a_sequence_of_its_own() {
        let expected =
            ["0 Prefix \"<think>a</think>yes<|im_end|>\"", "1 Prefix \"<think>b</think>no<|im_end|>\""];
        assert_eq!(shown(TALK, "<|im_start|>assistant\n", true), expected);
    }

    #[test]
    fn an_opened_thought_that_is_not_repeated_stays_in_the_prompt() {
        let header = "<|im_start|>assistant\n<think>\n";
        // The second answer begins like the thought that is opened, the third with what joins the header's line break.
        for answer in ["yes", "<thanks", "\n\nyes"] {
            let talk = [("user", "hi"), ("assistant", answer)];
            let tokenizer = tokenizer();
            let turns = turns(&roles(&talk), &mut chatml(&talk, header, false), &tokenizer).unwrap();
            assert_eq!(turns.turns[0].border, Border::Parted);
            let (before, action) = turns.sequences[0].split_at(turns.turns[0].span.start());
            assert_eq!(
                tokenizer.decode(before).unwrap(),
                format!("<|im_start|>user\nhi<|im_end|>\n{header}")
            );
            assert_eq!(tokenizer.decode(action).unwrap(), format!("{answer}<|im_end|>"));
        }
    }

    #[test]
    fn a_merge_across_the_border_is_undone() {
        let talk = [("user", "hi"), ("assistant", "  return")];
        let tokenizer = tokenizer();
        let mut render = |portion: Portion<'_>| -> Result<String, TextError> {
            Ok(match (portion.n_messages, portion.generation_prompt) {
                (1, true) => "<|im_start|>hi  ".to_owned(),
                (1, false) => "<|im_start|>hi".to_owned(),
                _ => "<|im_start|>hi    return<|im_end|>".to_owned(),
            })
        };
        let turns = turns(&roles(&talk), &mut render, &tokenizer).unwrap();
        assert_eq!(turns.turns[0].border, Border::Merged);
        let prompt = tokenizer.encode("<|im_start|>hi  ").unwrap().ids;
        assert_eq!(turns.sequences[0][..turns.turns[0].span.start()], prompt);
    }

    /// Writes the system's text into the user message that is last, and no generation prompt, as Mistral's templates do.
    fn inst<'m>(talk: &'m [(&'m str, &'m str)]) -> impl FnMut(Portion<'_>) -> Result<String, TextError> + 'm {
        move |Portion { n_messages, said, .. }| {
            let words = |idx: usize| said.iter().find(|it| it.0 == idx).map_or(talk[idx].1, |it| it.1);
            let mut text = "<|im_start|>".to_owned();
            for (idx, (role, _)) in talk[..n_messages].iter().enumerate() {
                match *role {
                    "system" => {}
                    "user" if idx + 1 == n_messages => {
                        text.push_str(&format!("[INST]{} {}[/INST]", words(0), words(idx)));
                    }
                    "user" => text.push_str(&format!("[INST]{}[/INST]", words(idx))),
                    _ => text.push_str(&format!(" {}<|im_end|>", words(idx))),
                }
            }
            Ok(text)
        }
    }

    const FRAMED: &[(&str, &str)] = &[
        ("system", "frame"),
        ("user", "[/INST] ask"),
        ("assistant", "yes"),
        ("user", "more"),
        ("assistant", "no"),
    ];

    #[test]
    fn a_rewritten_context_is_replaced_by_the_one_the_student_saw() {
        let tokenizer = tokenizer();
        let turns = turns(&roles(FRAMED), &mut inst(FRAMED), &tokenizer).unwrap();
        let texts: Vec<_> = turns.sequences.iter().map(|ids| tokenizer.decode(ids).unwrap()).collect();
        let expected = [
            "<|im_start|>[INST]frame [/INST] ask[/INST] yes<|im_end|>",
            "<|im_start|>[INST][/INST] ask[/INST] yes<|im_end|>[INST]frame more[/INST] no<|im_end|>",
        ];
        assert_eq!(texts, expected);
        let action =
            |turn: &Turn| tokenizer.decode(&turns.sequences[turn.sequence][turn.span.range()]).unwrap();
        assert_eq!(turns.turns.iter().map(action).collect::<Vec<_>>(), [" yes<|im_end|>", " no<|im_end|>"]);
        assert!(turns.turns.iter().all(|turn| turn.border == Border::Rewritten));
    }

    #[test]
    fn a_conversation_that_the_assistant_opens_has_its_action_too() {
        let talk = [("assistant", "hello"), ("user", "hi"), ("assistant", "yes")];
        let mut chatml = chatml(&talk, "<|im_start|>assistant\n", false);
        let mut render = |portion: Portion<'_>| {
            if portion.n_messages == 0 { Err(TextError::new("no messages", "")) } else { chatml(portion) }
        };
        let tokenizer = tokenizer();
        let turns = turns(&roles(&talk), &mut render, &tokenizer).unwrap();
        let action =
            |turn: &Turn| tokenizer.decode(&turns.sequences[turn.sequence][turn.span.range()]).unwrap();
        assert_eq!(turns.turns.iter().map(action).collect::<Vec<_>>(), ["hello<|im_end|>", "yes<|im_end|>"]);
        assert_eq!((turns.turns[0].border, turns.sequences.len()), (Border::Unprompted, 1));
    }

    #[test]
    fn a_special_token_is_not_parted() {
        let tokenizer = tokenizer();
        // Both ways to begin a turn start with the same letters.
        let mut render =
            |Portion { n_messages, generation_prompt, said }: Portion<'_>| -> Result<String, TextError> {
                let words =
                    |idx: usize, own| said.iter().find(|it| it.0 == idx).map_or(own, |it| it.1).to_owned();
                let asked = format!("{}<|im_end|>", words(0, "hi"));
                let tail = if generation_prompt { "<|im_end|>" } else { "" };
                Ok(match n_messages {
                    1 => asked + tail,
                    _ => asked + "<|im_start|>" + &words(1, "yes") + "<|im_end|>",
                })
            };
        let turns = turns(&[Role::User, Role::Assistant], &mut render, &tokenizer).unwrap();
        let action = &turns.sequences[0][turns.turns[0].span.range()];
        assert_eq!(tokenizer.decode(action).unwrap(), "<|im_start|>yes<|im_end|>");
    }

    #[test]
    fn an_action_that_vanishes_is_an_error() {
        let tokenizer = tokenizer();
        let mut render = |portion: Portion<'_>| -> Result<String, TextError> {
            Ok("<|im_start|>".repeat(portion.n_messages.min(1)))
        };
        let error = turns(&[Role::User, Role::Assistant], &mut render, &tokenizer).unwrap_err();
        assert_eq!(error.to_string(), "the template renders nothing for message 1, an assistant's");
    }

    /// The texts between the borders of a whole conversation; `None` where one of the two is unknown.
    fn between(talk: &[(&str, &str)], render: &mut Render<'_>) -> Vec<Option<String>> {
        let tokenizer = tokenizer();
        let ids = tokenizer.encode(&render(Portion::prompt(talk.len())).unwrap()).unwrap().ids;
        let borders =
            borders(&roles(talk), &ids, &Likeness::default(), &mut Whole(render), &tokenizer).unwrap();
        let text = |pair: &[Option<usize>]| Some(tokenizer.decode(&ids[pair[0]?..pair[1]?]).unwrap());
        borders.windows(2).map(text).collect()
    }

    #[test]
    fn messages_are_found_in_one_rendering() {
        let texts = between(TALK, &mut chatml(TALK, "<|im_start|>assistant\n", false));
        assert_eq!(texts[0].as_deref(), Some("<|im_start|>user\nhi<|im_end|>\n"));
        let last = "<|im_start|>assistant\n<think>b</think>no<|im_end|>\n";
        assert_eq!(texts[3].as_deref(), Some(last));
    }

    #[test]
    fn a_border_that_was_rewritten_is_unknown() {
        let texts = between(TALK, &mut chatml(TALK, "<|im_start|>assistant\n", true));
        let user = Some("<|im_start|>user\nhi<|im_end|>\n".to_owned());
        let last = Some("<|im_start|>assistant\n<think>b</think>no<|im_end|>\n".to_owned());
        assert_eq!(texts, [user, None, None, last]);
    }

    #[test]
    fn a_message_that_is_written_elsewhere_has_no_border() {
        // The system's text is in the last question, and every question was shown otherwise when it was last.
        assert_eq!(between(FRAMED, &mut inst(FRAMED)), vec![None; 5]);
    }
}
