//! Where each action is among the tokens of a rendered conversation.
//!
//! Owns [`turns`], which renders and encodes every step as the student saw it, [`reread`], which does the
//! same for chosen steps and under another prompt too, and [`borders`], which finds each message in one
//! rendering. The prefix property is checked at every step: where a template
//! rewrites history, the step gets a token sequence of its own; where the tokenizer would merge the
//! prompt's last token with the action's first, the two are encoded apart, as they were sampled. Where an
//! action does not stand right behind its prompt is left to `header`. Everything here is made from text and
//! so is `rendered`; recorded ids need none of it.

use super::header;
use super::incremental::Incremental;
use super::tokenizer::{Tokenizer, TokenizerError};
use super::view::{Render, View};
use backsight_core::episode::Role;
use backsight_core::tokens::{TokenId, TokenSpan};

/// Renders other prompts for the action at a message, whose own prompt is given: the same context with something added.
pub type Others<'r, E> = dyn FnMut(usize, &str) -> Vec<Result<String, E>> + 'r;

/// Why a conversation has no spans.
#[derive(Debug, thiserror::Error)]
pub enum SpanError<E> {
    /// The template refused a part of the conversation.
    #[error("the first {n_messages} messages cannot be rendered: {why}")]
    Template {
        /// How many messages were to be rendered.
        n_messages: usize,
        /// What the template said.
        why: E,
    },
    /// The tokenizer refused the text.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// Nothing of the assistant's message is rendered.
    #[error("the template renders nothing for message {message_idx}, an assistant's")]
    EmptyAction {
        /// Which message.
        message_idx: usize,
    },
    /// The rendering with the action differs from the prompt before it, and the action cannot be told apart.
    #[error(
        "the template rewrites what stands before message {message_idx}, and the action cannot be found in it"
    )]
    Lost {
        /// Which message.
        message_idx: usize,
    },
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

/// One assistant turn as the student saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Turn {
    /// The assistant's message.
    pub message_idx: usize,
    /// Which of the token sequences it is in.
    pub sequence: usize,
    /// The action inside that sequence: thinking, prose, tool calls and the end-of-turn token.
    pub span: TokenSpan,
    /// How its start was found.
    pub border: Border,
    /// Whether the action ends with an end-of-turn token.
    pub ended: bool,
}

/// All turns of a conversation with the sequences they are in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Turns {
    /// One sequence while history only grows; another begins where it was rewritten.
    pub sequences: Vec<Vec<TokenId>>,
    /// The assistant turns in order.
    pub turns: Vec<Turn>,
    /// How many bytes went through the tokenizer.
    pub encoded_bytes: u64,
}

/// Finds every assistant turn of a conversation with these roles.
pub fn turns<E>(
    roles: &[Role],
    render: &mut Render<'_, E>,
    tokenizer: &Tokenizer,
) -> Result<Turns, SpanError<E>> {
    let Reread { sequences, turns, encoded_bytes } =
        reread(&assistants(roles), render, &mut |_, _| Vec::new(), tokenizer);
    let turns = turns.into_iter().map(|turn| turn.map(|(turn, _)| turn)).collect::<Result<_, _>>()?;
    Ok(Turns { sequences, turns, encoded_bytes })
}

/// A turn, and the tokens before its action under each of the other prompts.
pub type RereadTurn<E> = (Turn, Vec<Result<Vec<TokenId>, SpanError<E>>>);

/// A turn under several prompts, or why it is not found.
pub type Found<E> = Result<RereadTurn<E>, SpanError<E>>;

/// Turns under several prompts. What cannot be found fails alone.
pub struct Reread<E> {
    /// The sequences as the student saw them.
    pub sequences: Vec<Vec<TokenId>>,
    /// One for each action that was asked for.
    pub turns: Vec<Found<E>>,
    /// How many bytes went through the tokenizer.
    pub encoded_bytes: u64,
}

/// Finds the turns of the assistant messages `actions`, in order, and encodes what `others` renders for each of them.
pub fn reread<E>(
    actions: &[usize],
    render: &mut Render<'_, E>,
    others: &mut Others<'_, E>,
    tokenizer: &Tokenizer,
) -> Reread<E> {
    let mut sequences = Vec::new();
    let (turns, encoded_bytes) = walk(actions, render, others, tokenizer, &mut |ids| sequences.push(ids));
    Reread { sequences, turns, encoded_bytes }
}

/// What a sequence has beyond a rendering it begins like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Beyond {
    /// How many tokens are the rendering's first.
    pub shared: usize,
    /// Those that follow.
    pub ids: Vec<TokenId>,
}

/// All turns of a conversation beside one rendering of it, in memory that grows with the text and not with its square.
pub fn turns_beside<E>(
    ids: &[TokenId],
    roles: &[Role],
    render: &mut Render<'_, E>,
    tokenizer: &Tokenizer,
) -> Result<(Vec<Turn>, Vec<Beyond>), SpanError<E>> {
    let mut sequences = Vec::new();
    let mut keep = |sequence: Vec<TokenId>| {
        let shared = sequence.iter().zip(ids).take_while(|(a, b)| a == b).count();
        sequences.push(Beyond { shared, ids: sequence[shared..].to_vec() });
    };
    let (turns, _) = walk(&assistants(roles), render, &mut |_, _| Vec::new(), tokenizer, &mut keep);
    let turns = turns.into_iter().map(|turn| turn.map(|(turn, _)| turn)).collect::<Result<_, _>>()?;
    Ok((turns, sequences))
}

fn assistants(roles: &[Role]) -> Vec<usize> {
    (0..roles.len()).filter(|idx| roles[*idx] == Role::Assistant).collect()
}

/// Goes through the actions, hands every sequence to `done` when it is complete, and says how many bytes were encoded.
fn walk<E>(
    actions: &[usize],
    render: &mut Render<'_, E>,
    others: &mut Others<'_, E>,
    tokenizer: &Tokenizer,
    done: &mut dyn FnMut(Vec<TokenId>),
) -> (Vec<Found<E>>, u64) {
    let mut encoder = Incremental::new(tokenizer);
    let mut chain = Chain { last: Vec::new(), n_done: 0, done };
    let mut turns = Vec::new();
    for &message_idx in actions {
        let found = step(message_idx, render, others, tokenizer, &mut encoder);
        turns.push(found.map(|Step { ids, span, border, ended, others }| {
            let sequence = chain.add(ids);
            (Turn { message_idx, sequence, span, border, ended }, others)
        }));
    }
    chain.finish();
    (turns, encoder.encoded_bytes())
}

/// The sequence that steps continue.
struct Chain<'d> {
    last: Vec<TokenId>,
    n_done: usize,
    done: &'d mut dyn FnMut(Vec<TokenId>),
}

impl Chain<'_> {
    /// Continues the sequence if `ids` do, otherwise begins another; gives the index of the one that holds `ids`.
    fn add(&mut self, ids: Vec<TokenId>) -> usize {
        if !ids.starts_with(&self.last) {
            self.finish();
        }
        self.last = ids;
        self.n_done
    }

    fn finish(&mut self) {
        if !self.last.is_empty() {
            (self.done)(std::mem::take(&mut self.last));
            self.n_done += 1;
        }
    }
}

/// One step's sequence, from the first token of its context to the last of its action.
struct Step<E> {
    ids: Vec<TokenId>,
    span: TokenSpan,
    border: Border,
    ended: bool,
    /// The context under each of the other prompts.
    others: Vec<Result<Vec<TokenId>, SpanError<E>>>,
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
fn text<E>(
    message_idx: usize,
    render: &mut Render<'_, E>,
    tokenizer: &Tokenizer,
) -> Result<Text, SpanError<E>> {
    let refused = |n_messages| move |why| SpanError::Template { n_messages, why };
    let full = render(View::messages(message_idx + 1)).map_err(refused(message_idx + 1))?;
    let (prompt, at, border) = match render(View::prompt(message_idx)) {
        Ok(prompt) if full.starts_with(&prompt) => {
            let at = prompt.len();
            (prompt, at, Border::Prefix)
        }
        Ok(prompt) => {
            let at = header::end(message_idx, &full, render, tokenizer)?;
            let at = at.ok_or(SpanError::Lost { message_idx })?;
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

/// Renders and encodes one step: the prompt as the student saw it, then the action.
fn step<E>(
    message_idx: usize,
    render: &mut Render<'_, E>,
    others: &mut Others<'_, E>,
    tokenizer: &Tokenizer,
    encoder: &mut Incremental<'_>,
) -> Result<Step<E>, SpanError<E>> {
    let text = text(message_idx, render, tokenizer)?;
    let prompt_ids = encoder.encode(&text.prompt)?.to_vec();
    let encode = |other: Result<String, E>| {
        let text = other.map_err(|why| SpanError::Template { n_messages: message_idx, why })?;
        Ok(encoder.edited(&text)?)
    };
    let others = others(message_idx, &text.prompt).into_iter().map(encode).collect();
    let at = prompt_ids.len();
    let (mut ids, border) = behind_prompt(&prompt_ids, &text, tokenizer, encoder)?;
    let (end, ended) = action_end(&ids, at, tokenizer)?;
    if end == at {
        return Err(SpanError::EmptyAction { message_idx });
    }
    ids.truncate(end);
    Ok(Step { ids, span: TokenSpan::at(at, end - at), border, ended, others })
}

/// The ids of prompt and action: of both together where the action stands behind the prompt and they keep the prompt's, else of each.
fn behind_prompt(
    prompt_ids: &[TokenId],
    text: &Text,
    tokenizer: &Tokenizer,
    encoder: &mut Incremental<'_>,
) -> Result<(Vec<TokenId>, Border), TokenizerError> {
    let stands_behind = matches!(text.border, Border::Prefix | Border::Unprompted);
    if stands_behind {
        let full_ids = encoder.encode(&text.full)?;
        if full_ids.starts_with(prompt_ids) {
            return Ok((full_ids.to_vec(), text.border));
        }
    }
    let ids = [prompt_ids, &tokenizer.encode_ids(&text.full[text.at..])?].concat();
    Ok((ids, if stands_behind { Border::Merged } else { text.border }))
}

/// Where the action that starts at `start` ends, and whether an end-of-turn token ends it.
///
/// Templates write a line break behind that token which the student never sampled; it is left out. A
/// turn whose files name no end token ends with its last special token if only white space follows.
fn action_end(ids: &[TokenId], start: usize, tokenizer: &Tokenizer) -> Result<(usize, bool), TokenizerError> {
    let last = |is_end: &dyn Fn(TokenId) -> bool| {
        ids[start..].iter().rposition(|&id| is_end(id)).map(|position| start + position + 1)
    };
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
pub fn borders<E>(
    roles: &[Role],
    ids: &[TokenId],
    render: &mut Render<'_, E>,
    tokenizer: &Tokenizer,
) -> Result<Vec<Option<usize>>, TokenizerError> {
    let mut encoder = Incremental::new(tokenizer);
    let mut borders = vec![Some(0)];
    for n in 1..=roles.len() {
        // Some templates write the system's text into a later message.
        let frames = matches!(roles[n - 1], Role::System | Role::Developer);
        let text = render(View::messages(n)).ok().filter(|_| !frames || header::shows(n, render));
        let border = match text {
            Some(text) => {
                let before = encoder.encode(&text)?;
                ids.starts_with(before).then_some(before.len())
            }
            None => None,
        };
        borders.push(border);
    }
    Ok(borders)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use std::path::Path;

    use super::*;

    fn tokenizer() -> Tokenizer {
        Tokenizer::open(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/tokenizers/chatml"))
            .unwrap()
    }

    /// Renders `(role, text)` pairs; `header` is the generation prompt, `strip` removes earlier thinking as Qwen3 does.
    fn chatml<'m>(
        conversation: &'m [(&'m str, &'m str)],
        header: &'m str,
        strip: bool,
    ) -> impl FnMut(View<'_>) -> Result<String, String> + 'm {
        move |View { n_messages: n, generation_prompt, said }| {
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
        let mut render = |view: View<'_>| -> Result<String, String> {
            Ok(match (view.n_messages, view.generation_prompt) {
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
    fn inst<'m>(talk: &'m [(&'m str, &'m str)]) -> impl FnMut(View<'_>) -> Result<String, String> + 'm {
        move |View { n_messages, said, .. }| {
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
        let mut render = |view: View<'_>| {
            if view.n_messages == 0 { Err("no messages".to_owned()) } else { chatml(view) }
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
        let mut render = |View { n_messages, generation_prompt, said }: View<'_>| -> Result<String, String> {
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
        let mut render =
            |view: View<'_>| -> Result<String, String> { Ok("<|im_start|>".repeat(view.n_messages.min(1))) };
        let error = turns(&[Role::User, Role::Assistant], &mut render, &tokenizer).unwrap_err();
        assert_eq!(error.to_string(), "the template renders nothing for message 1, an assistant's");
    }

    /// The texts between the borders of a whole conversation; `None` where one of the two is unknown.
    fn between(talk: &[(&str, &str)], render: &mut Render<'_, String>) -> Vec<Option<String>> {
        let tokenizer = tokenizer();
        let ids = tokenizer.encode(&render(View::prompt(talk.len())).unwrap()).unwrap().ids;
        let borders = borders(&roles(talk), &ids, render, &tokenizer).unwrap();
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
