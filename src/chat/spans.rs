//! Where each action is among the tokens of a rendered conversation.
//!
//! Owns [`turns`], which renders and encodes every step as the student saw it, [`reread`], which does the
//! same for chosen steps and under another prompt too, and [`messages`], which finds each message in one
//! rendering. The prefix property is checked at every step: where a template
//! rewrites history, the step gets a token sequence of its own; where the tokenizer would merge the
//! prompt's last token with the action's first, the two are encoded apart, as they were sampled.
//! Everything here is made from text and so is `rendered`; recorded ids need none of it.

use super::incremental::{Incremental, common_prefix};
use super::tokenizer::{Tokenizer, TokenizerError};
use crate::episode::{ActionTokens, Role};
use crate::tokens::{TokenId, TokenSpan};

/// Renders the first messages of a conversation, with or without the generation prompt behind them.
pub type Render<'r, E> = dyn FnMut(usize, bool) -> Result<String, E> + 'r;

/// Renders another prompt for the action at a message, whose own prompt is given: the same context with something added.
pub type Other<'r, E> = dyn FnMut(usize, &str) -> Result<Option<String>, E> + 'r;

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
    /// The generation prompt holds text that the rendered action does not repeat; the action begins where they part.
    Parted,
    /// The context was rewritten too; the action was found behind the generation prompt and put behind the prompt the student saw.
    Rewritten,
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

impl Turn {
    /// As an episode keeps it; a rendering has no logprobs.
    pub fn action_tokens(&self) -> ActionTokens {
        ActionTokens { sequence: self.sequence, span: self.span, logprobs: Vec::new(), top: Vec::new() }
    }
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
    let assistants = roles.iter().enumerate().filter(|(_, role)| **role == Role::Assistant);
    let actions: Vec<usize> = assistants.map(|(message_idx, _)| message_idx).collect();
    let Reread { sequences, turns, encoded_bytes } =
        reread(&actions, render, &mut |_, _| Ok(None), tokenizer);
    let turns = turns.into_iter().map(|turn| turn.map(|(turn, _)| turn)).collect::<Result<_, _>>()?;
    Ok(Turns { sequences, turns, encoded_bytes })
}

/// A turn, and the tokens before its action under the other prompt, where there is one.
pub type RereadTurn = (Turn, Option<Vec<TokenId>>);

/// Turns under two prompts. What cannot be found fails alone.
pub struct Reread<E> {
    /// The sequences as the student saw them.
    pub sequences: Vec<Vec<TokenId>>,
    /// One for each action that was asked for.
    pub turns: Vec<Result<RereadTurn, SpanError<E>>>,
    /// How many bytes went through the tokenizer.
    pub encoded_bytes: u64,
}

/// Finds the turns of the assistant messages `actions`, in order, and encodes what `other` renders for each of them.
pub fn reread<E>(
    actions: &[usize],
    render: &mut Render<'_, E>,
    other: &mut Other<'_, E>,
    tokenizer: &Tokenizer,
) -> Reread<E> {
    let mut encoder = Incremental::new(tokenizer);
    let (mut sequences, mut turns) = (Vec::new(), Vec::new());
    for &message_idx in actions {
        let found = step(message_idx, render, other, tokenizer, &mut encoder);
        turns.push(found.map(|Step { ids, span, border, ended, other }| {
            let sequence = chain(&mut sequences, ids);
            (Turn { message_idx, sequence, span, border, ended }, other)
        }));
    }
    Reread { sequences, turns, encoded_bytes: encoder.encoded_bytes() }
}

/// One step's sequence, from the first token of its context to the last of its action.
struct Step {
    ids: Vec<TokenId>,
    span: TokenSpan,
    border: Border,
    ended: bool,
    /// The context under the other prompt.
    other: Option<Vec<TokenId>>,
}

/// Where an action starts in a sequence that may go on behind it.
struct Start {
    ids: Vec<TokenId>,
    at: usize,
    border: Border,
}

/// Continues the last sequence if `ids` do, otherwise begins another; gives the index of the one that holds `ids`.
fn chain(sequences: &mut Vec<Vec<TokenId>>, ids: Vec<TokenId>) -> usize {
    match sequences.last_mut() {
        Some(last) if ids.starts_with(last) => *last = ids,
        _ => sequences.push(ids),
    }
    sequences.len() - 1
}

/// Renders and encodes one step: the prompt as the student saw it, then the action.
fn step<E>(
    message_idx: usize,
    render: &mut Render<'_, E>,
    other: &mut Other<'_, E>,
    tokenizer: &Tokenizer,
    encoder: &mut Incremental<'_>,
) -> Result<Step, SpanError<E>> {
    let refused = |why| SpanError::Template { n_messages: message_idx, why };
    let mut render = |n_messages, add_generation_prompt| {
        render(n_messages, add_generation_prompt).map_err(|why| SpanError::Template { n_messages, why })
    };
    let prompt = render(message_idx, true)?;
    let full = render(message_idx + 1, false)?;
    let prompt_ids = encoder.encode(&prompt)?.to_vec();
    let other = other(message_idx, &prompt).map_err(refused)?;
    let other = other.map(|text| encoder.edited(&text)).transpose()?;
    let start = if full.starts_with(&prompt) {
        behind_prompt(&prompt_ids, &full[prompt.len()..], encoder.encode(&full)?, tokenizer)?
    } else {
        let bare = render(message_idx, false)?;
        match parted(&prompt_ids, &bare, &prompt, &full, encoder)? {
            Some(start) => start,
            None => {
                let action = found_again(&bare, &prompt, &full).ok_or(SpanError::Lost { message_idx })?;
                Start { border: Border::Rewritten, ..behind_prompt(&prompt_ids, action, &[], tokenizer)? }
            }
        }
    };
    let Start { mut ids, at, border } = start;
    let (end, ended) = action_end(&ids, at, tokenizer)?;
    if end == at {
        return Err(SpanError::EmptyAction { message_idx });
    }
    ids.truncate(end);
    let other = other.map(|ids| without_tail(ids, &prompt_ids[at.min(prompt_ids.len())..]));
    let other = other.map(|ids| ids.ok_or(SpanError::Lost { message_idx })).transpose()?;
    Ok(Step { ids, span: TokenSpan::at(at, end - at), border, ended, other })
}

/// The other prompt without what the action does not repeat of the generation prompt.
fn without_tail(mut ids: Vec<TokenId>, tail: &[TokenId]) -> Option<Vec<TokenId>> {
    let kept = ids.len().checked_sub(tail.len()).filter(|kept| ids[*kept..] == *tail)?;
    ids.truncate(kept);
    Some(ids)
}

/// The action's text stands right behind the prompt's: take the ids of both together if they keep the prompt's.
fn behind_prompt(
    prompt_ids: &[TokenId],
    action: &str,
    full_ids: &[TokenId],
    tokenizer: &Tokenizer,
) -> Result<Start, TokenizerError> {
    let at = prompt_ids.len();
    if full_ids.starts_with(prompt_ids) {
        return Ok(Start { ids: full_ids.to_vec(), at, border: Border::Prefix });
    }
    let ids = [prompt_ids, &tokenizer.encode(action)?.ids].concat();
    Ok(Start { ids, at, border: Border::Merged })
}

/// The generation prompt says more than the rendered action repeats (an opened `<think>`): the action begins where the ids part.
fn parted(
    prompt_ids: &[TokenId],
    bare: &str,
    prompt: &str,
    full: &str,
    encoder: &mut Incremental<'_>,
) -> Result<Option<Start>, TokenizerError> {
    let only_generation_prompt_differs =
        prompt.starts_with(bare) && common_prefix(prompt, full) >= bare.len();
    if !only_generation_prompt_differs {
        return Ok(None);
    }
    let full_ids = encoder.encode(full)?;
    let at = prompt_ids.iter().zip(full_ids).take_while(|(a, b)| a == b).count();
    Ok(Some(Start { ids: full_ids.to_vec(), at, border: Border::Parted }))
}

/// The text behind the generation prompt in a rendering whose context was rewritten, if that prompt stands there exactly once.
fn found_again<'f>(bare: &str, prompt: &str, full: &'f str) -> Option<&'f str> {
    let header = prompt.strip_prefix(bare).filter(|header| !header.is_empty())?;
    let rest = &full[common_prefix(prompt, full)..];
    let mut places = rest.match_indices(header);
    let (place, _) = places.next()?;
    places.next().is_none().then(|| &rest[place + header.len()..])
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

/// Finds each message among the ids of one rendering: its span, or `None` where the template mixes it with its neighbours.
///
/// What a template writes before the first message belongs to that message.
pub fn messages<E>(
    n_messages: usize,
    ids: &[TokenId],
    render: &mut Render<'_, E>,
    tokenizer: &Tokenizer,
) -> Result<Vec<Option<TokenSpan>>, TokenizerError> {
    let mut encoder = Incremental::new(tokenizer);
    let mut borders = vec![Some(0)];
    for n in 1..=n_messages {
        let border = match render(n, false) {
            Ok(text) => Some(encoder.encode(&text)?.iter().zip(ids).take_while(|(a, b)| a == b).count()),
            Err(_) => None,
        };
        borders.push(border);
    }
    let span = |pair: &[Option<usize>]| TokenSpan::new(pair[0]?, pair[1]?).ok();
    Ok(borders.windows(2).map(span).collect())
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use std::path::Path;

    use super::*;

    fn tokenizer() -> Tokenizer {
        Tokenizer::open(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tokenizers/chatml"))
            .unwrap()
    }

    /// Renders `(role, text)` pairs; `header` is the generation prompt, `strip` removes earlier thinking as Qwen3 does.
    fn chatml<'m>(
        conversation: &'m [(&'m str, &'m str)],
        header: &'m str,
        strip: bool,
    ) -> impl FnMut(usize, bool) -> Result<String, String> + 'm {
        move |n, add_generation_prompt| {
            let mut text = String::new();
            for (idx, (role, content)) in conversation[..n].iter().enumerate() {
                let rewritten = strip && idx + 1 < n && *role == "assistant";
                let content = if rewritten { content.split("</think>").last().unwrap() } else { content };
                text.push_str(&format!("<|im_start|>{role}\n{content}<|im_end|>\n"));
            }
            if add_generation_prompt {
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
    fn an_opened_thought_that_is_not_repeated_parts_the_ids() {
        let talk = [("user", "hi"), ("assistant", "yes")];
        assert_eq!(shown(&talk, "<|im_start|>assistant\n<think>\n", false), ["0 Parted \"yes<|im_end|>\""]);
    }

    #[test]
    fn a_merge_across_the_border_is_undone() {
        let talk = [("user", "hi"), ("assistant", "  return")];
        let tokenizer = tokenizer();
        let mut render = |n: usize, generation: bool| -> Result<String, String> {
            Ok(match (n, generation) {
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

    #[test]
    fn a_rewritten_context_is_replaced_by_the_one_the_student_saw() {
        let tokenizer = tokenizer();
        let mut render = |n: usize, generation: bool| -> Result<String, String> {
            let tail = if generation { "<|im_start|>assistant\n" } else { "" };
            Ok(match n {
                1 => format!("<|im_start|>user\nlong<|im_end|>\n{tail}"),
                _ => "<|im_start|>user\nshort<|im_end|>\n<|im_start|>assistant\nyes<|im_end|>\n".to_owned(),
            })
        };
        let turns = turns(&[Role::User, Role::Assistant], &mut render, &tokenizer).unwrap();
        let text = tokenizer.decode(&turns.sequences[0]).unwrap();
        assert_eq!(text, "<|im_start|>user\nlong<|im_end|>\n<|im_start|>assistant\nyes<|im_end|>");
        assert_eq!(turns.turns[0].border, Border::Rewritten);
    }

    #[test]
    fn an_action_that_vanishes_is_an_error() {
        let tokenizer = tokenizer();
        let mut render =
            |n: usize, _: bool| -> Result<String, String> { Ok("<|im_start|>".repeat(n.min(1))) };
        let error = turns(&[Role::User, Role::Assistant], &mut render, &tokenizer).unwrap_err();
        assert_eq!(error.to_string(), "the template renders nothing for message 1, an assistant's");
    }

    #[test]
    fn messages_are_found_in_one_rendering() {
        let tokenizer = tokenizer();
        let mut render = chatml(TALK, "<|im_start|>assistant\n", false);
        let ids = tokenizer.encode(&render(4, true).unwrap()).unwrap().ids;
        let spans = messages(4, &ids, &mut render, &tokenizer).unwrap();
        let text = |span: &Option<TokenSpan>| tokenizer.decode(&ids[span.unwrap().range()]).unwrap();
        let texts: Vec<_> = spans.iter().map(text).collect();
        assert_eq!(texts[0], "<|im_start|>user\nhi<|im_end|>\n");
        assert_eq!(texts[3], "<|im_start|>assistant\n<think>b</think>no<|im_end|>\n");
    }
}
