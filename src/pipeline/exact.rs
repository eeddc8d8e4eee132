//! The contexts of actions whose ids were recorded: the very tokens the student saw, and the lens between them.

use std::ops::Range;

use super::reader::Reader;
use super::rendered::no_place;
use super::shorten::{Context, Contexts};
use super::{Loss, Reason};
use backsight_chat::recorded::{Insertion, insert};
use backsight_chat::reread::{Lens, Shown};
use backsight_core::episode::{Content, Conversation, Episode, Message};
use backsight_core::lens::{target, write};
use backsight_core::tokens::{TokenId, TokenSpan};

/// A conversation of recorded ids.
pub(super) struct Exact<'a> {
    reader: Reader<'a>,
    episode: &'a Episode,
    messages: &'a [Message],
    /// Each step and its message.
    wanted: Vec<(usize, usize)>,
    /// What the lens says, by step.
    texts: &'a [String],
}

impl<'a> Exact<'a> {
    /// The actions of a conversation that are recorded.
    pub(super) fn new(
        reader: Reader<'a>,
        episode: &'a Episode,
        conversation: &'a Conversation,
        wanted: Vec<(usize, usize)>,
        texts: &'a [String],
    ) -> Self {
        Self { reader, episode, messages: &conversation.messages, wanted, texts }
    }

    /// Where an action is; every wanted step has its tokens.
    fn recorded(&self, nth: usize) -> Option<(usize, TokenSpan)> {
        let tokens = self.episode.steps()[self.wanted[nth].0].tokens.as_ref()?;
        Some((tokens.sequence, tokens.span))
    }

    /// What the student saw before an action.
    fn before(&self, nth: usize) -> &'a [TokenId] {
        self.recorded(nth).map_or(&[], |(sequence, span)| &self.episode.sequences[sequence][..span.start()])
    }

    fn shown<'m>(&'m self, messages: &'m [Message]) -> Option<Shown<'m>> {
        Shown::new(self.reader.manner(self.episode, &self.episode.tools), messages).ok()
    }

    fn context(
        &self,
        nth: usize,
        cut: &Cut,
        messages: &[Message],
        shown: Option<&Shown<'_>>,
    ) -> Result<Context, Loss> {
        let (step, action) = self.wanted[nth];
        let action = action - cut.messages.len();
        let plain = cut.apply(self.before(nth));
        let target = target(&messages[..action], self.reader.lens.placement).ok_or_else(no_place)?;
        let lens = Lens { target, text: &self.texts[step] };
        let rendered = shown.and_then(|shown| {
            Some((shown.prompt(action, None).ok()?, shown.prompt(action, Some(lens)).ok()?))
        });
        let (content, addition) = written(&messages[target], lens.text);
        let insertion = Insertion {
            rendered: rendered.as_ref().map(|(plain, seen)| (plain.as_str(), seen.as_str())),
            content: &content,
            addition: &addition,
        };
        let lens = insert(&self.reader.texts.tokenizer, &plain, &self.sampled(nth, cut), &insertion);
        let lens = lens.map_err(|error| Loss::new(Reason::Recorded, error))?;
        let plain = self.reader.with_plain.then_some(plain);
        Ok(Context { lens, plain, dropped: cut.messages.clone() })
    }

    /// The actions that stand before this one in the same sequence, moved by what is cut out.
    fn sampled(&self, nth: usize, cut: &Cut) -> Vec<TokenSpan> {
        let steps = self.episode.steps().iter().filter_map(|step| step.tokens.as_ref());
        let Some((sequence, own)) = self.recorded(nth) else { return Vec::new() };
        let before = steps.filter(|it| it.sequence == sequence && it.span.end() <= own.start());
        before.filter_map(|it| cut.moved(it.span)).collect()
    }

    /// The tokens to cut so that these messages are left out: from the first token of one action to that of
    /// another. What asks the model to speak stands before both and must be the same.
    fn cut(&self, nth: usize, dropped: &Range<usize>) -> Option<Cut> {
        let (sequence, _) = self.recorded(nth)?;
        let here = (0..=nth).filter(|it| self.recorded(*it).is_some_and(|(it, _)| it == sequence));
        let here: Vec<usize> = here.collect();
        let at = |idx: usize| here.iter().copied().find(|nth| self.wanted[*nth].1 >= idx);
        let (first, last) = (at(dropped.start)?, at(dropped.end)?);
        let messages = self.wanted[first].1..self.wanted[last].1;
        let tokens = self.before(first).len()..self.before(last).len();
        (self.header(first) == self.header(last)).then_some(Cut { messages, tokens })
    }

    /// The tokens before an action from the last special one on.
    fn header(&self, nth: usize) -> &'a [TokenId] {
        let before = self.before(nth);
        let special = before.iter().rposition(|id| self.reader.texts.tokenizer.is_special(*id));
        special.map_or(&[], |at| &before[at..])
    }

    fn shortened(&self, nth: usize, dropped: &Range<usize>) -> Result<Context, Loss> {
        let cut = self.cut(nth, dropped).ok_or_else(|| {
            let why = "the recorded tokens are too long, and where a step begins in them is not found";
            Loss::new(Reason::Context, why)
        })?;
        let kept = [&self.messages[..cut.messages.start], &self.messages[cut.messages.end..]].concat();
        self.context(nth, &cut, &kept, self.shown(&kept).as_ref())
    }
}

impl Contexts for Exact<'_> {
    fn messages(&self) -> &[Message] {
        self.messages
    }

    fn actions(&self) -> Vec<usize> {
        self.wanted.iter().map(|(_, action)| *action).collect()
    }

    fn place(&self, nth: usize) -> Result<(usize, TokenSpan), Loss> {
        self.recorded(nth).ok_or_else(|| Loss::new(Reason::Recorded, "the action's tokens are not recorded"))
    }

    fn action(&self, nth: usize) -> &[TokenId] {
        self.recorded(nth).map_or(&[], |(sequence, span)| &self.episode.sequences[sequence][span.range()])
    }

    fn contexts(&self, dropped: &Range<usize>, nths: &[usize]) -> Vec<Result<Context, Loss>> {
        if !dropped.is_empty() {
            return nths.iter().map(|nth| self.shortened(*nth, dropped)).collect();
        }
        let shown = self.shown(self.messages);
        nths.iter().map(|nth| self.context(*nth, &Cut::default(), self.messages, shown.as_ref())).collect()
    }
}

/// What is left out of a recorded sequence.
#[derive(Default)]
struct Cut {
    messages: Range<usize>,
    tokens: Range<usize>,
}

impl Cut {
    fn apply(&self, context: &[TokenId]) -> Vec<TokenId> {
        [&context[..self.tokens.start], &context[self.tokens.end..]].concat()
    }

    /// A span after the cut; none if it is cut out.
    fn moved(&self, span: TokenSpan) -> Option<TokenSpan> {
        if span.end() <= self.tokens.start {
            return Some(span);
        }
        let start = span.start().checked_sub(self.tokens.end)?;
        Some(TokenSpan::at(start + self.tokens.start, span.len()))
    }
}

/// A message's text, and what the lens adds to it.
fn written(message: &Message, text: &str) -> (String, String) {
    let text_of = |message: &Message| message.content.as_ref().map(Content::text).unwrap_or_default();
    let (before, mut seen) = (text_of(message), message.clone());
    write(&mut seen, text);
    let addition = text_of(&seen)[before.len()..].to_owned();
    (before, addition)
}
