//! The contexts of actions whose ids were recorded: the very tokens the student saw, and the lens between them.

use std::ops::Range;

use super::reader::Reader;
use super::rendered::no_place;
use super::shorten::{Context, Contexts};
use super::{Loss, Reason};
use backsight_chat::near::Repeats;
use backsight_chat::recorded::{Insertion, insert};
use backsight_chat::reread::Shown;
use backsight_core::episode::{Content, Conversation, Episode, Message};
use backsight_core::lens::{Edit, View};
use backsight_core::tokens::{TokenId, TokenSpan};
use backsight_core::tree::{Replacement, Replacements, Tip, TokenTree};

/// A conversation of recorded ids.
pub(super) struct Exact<'a> {
    reader: Reader<'a>,
    episode: &'a Episode,
    messages: &'a [Message],
    /// Each step and its message.
    wanted: Vec<(usize, usize)>,
    /// What each step is seen through.
    views: &'a [Vec<View>],
    /// Where the episode's sequences are in the tree.
    sequences: Vec<Tip>,
}

/// What additions do to the contexts of a sequence, which begin alike.
#[derive(Default)]
struct Known<'v> {
    found: Repeats<(usize, Edit<'v>), Replacement>,
    replacements: Replacements,
    /// Whether one did otherwise than before, or was not found where it is looked at itself.
    differs: bool,
}

impl<'a> Exact<'a> {
    /// The actions of a conversation that are recorded.
    pub(super) fn new(
        reader: Reader<'a>,
        episode: &'a Episode,
        conversation: &'a Conversation,
        wanted: Vec<(usize, usize)>,
        views: &'a [Vec<View>],
        sequences: Vec<Tip>,
    ) -> Self {
        Self { reader, episode, messages: &conversation.messages, wanted, views, sequences }
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

    /// The context of an action without what is cut; `known` is used unless this one is to be looked at itself.
    fn context(
        &self,
        nth: usize,
        cut: &Cut,
        messages: &[Message],
        shown: Option<&Shown<'_>>,
        (known, is_last, tree): (&mut Known<'a>, bool, &mut TokenTree),
    ) -> Context {
        let (step, action) = self.wanted[nth];
        let action = action - cut.messages.len();
        let sequence = self.recorded(nth).map_or(0, |(sequence, _)| sequence);
        let plain = self.plain(nth, cut, tree);
        let mut through = |View { lens, addition }: &'a View| {
            let Some(edit) = addition.edit(&messages[..action]) else { return (*lens, Err(no_place())) };
            if edit == Edit::Nothing {
                return (*lens, Ok(plain));
            }
            let key = (sequence, edit);
            let found = match known.found.sure(&key).filter(|_| !is_last) {
                Some(known) => Ok(known.clone()),
                None => self.edited(nth, cut, &messages[..action], edit, shown, &tree.all(plain)),
            };
            known.differs |= match &found {
                Ok(replacement) => !known.found.agrees(key, replacement.clone()),
                Err(_) => is_last,
            };
            (*lens, found.map(|replacement| known.replacements.grow(tree, plain, replacement)))
        };
        let views = self.views[step].iter().map(&mut through).collect();
        Context { views, dropped: cut.messages.clone() }
    }

    /// What the student saw before an action, without what is cut.
    fn plain(&self, nth: usize, cut: &Cut, tree: &mut TokenTree) -> Tip {
        let Some((sequence, span)) = self.recorded(nth) else { return Tip::EMPTY };
        let whole = self.sequences[sequence];
        match cut.tokens.is_empty() {
            true => tree.cut(whole, span.start()),
            false => {
                let kept = tree.cut(whole, cut.tokens.start);
                tree.grow(kept, &self.before(nth)[cut.tokens.end..])
            }
        }
    }

    /// What something added to its messages does to a recorded context.
    fn edited(
        &self,
        nth: usize,
        cut: &Cut,
        before: &[Message],
        edit: Edit<'_>,
        shown: Option<&Shown<'_>>,
        plain: &[TokenId],
    ) -> Result<Replacement, Loss> {
        let prompt = |edit| shown?.prompt(before.len(), edit).ok();
        let rendered = prompt(Edit::Nothing).zip(prompt(edit));
        let (content, addition) = written(before, edit);
        let insertion = Insertion {
            rendered: rendered.as_ref().map(|(plain, seen)| (plain.as_str(), seen.as_str())),
            content: &content,
            addition: &addition,
        };
        let found = insert(&self.reader.texts.tokenizer, plain, &self.sampled(nth, cut), &insertion);
        found.map_err(|error| Loss::new(Reason::Recorded, error))
    }

    /// The contexts of these actions with nothing cut; none if what was trusted does not hold on the last of them.
    fn whole(&self, nths: &[usize], tree: &mut TokenTree, is_trusting: bool) -> Option<Vec<Context>> {
        let (shown, mut known) = (self.shown(self.messages), Known::default());
        let mut contexts = Vec::with_capacity(nths.len());
        for (idx, nth) in nths.iter().enumerate() {
            let how = (&mut known, !is_trusting || idx + 1 == nths.len(), &mut *tree);
            contexts.push(self.context(*nth, &Cut::default(), self.messages, shown.as_ref(), how));
        }
        (!known.differs || !is_trusting).then_some(contexts)
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

    fn shortened(&self, nth: usize, dropped: &Range<usize>, tree: &mut TokenTree) -> Result<Context, Loss> {
        let cut = self.cut(nth, dropped).ok_or_else(|| {
            let why = "the recorded tokens are too long, and where a step begins in them is not found";
            Loss::new(Reason::Context, why)
        })?;
        let kept = [&self.messages[..cut.messages.start], &self.messages[cut.messages.end..]].concat();
        let how = (&mut Known::default(), true, tree);
        Ok(self.context(nth, &cut, &kept, self.shown(&kept).as_ref(), how))
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

    fn action(&self, nth: usize, _tree: &TokenTree) -> Vec<TokenId> {
        let place = self.recorded(nth);
        place
            .map_or_else(Vec::new, |(sequence, span)| self.episode.sequences[sequence][span.range()].to_vec())
    }

    fn contexts(
        &self,
        dropped: &Range<usize>,
        nths: &[usize],
        tree: &mut TokenTree,
    ) -> Vec<Result<Context, Loss>> {
        if !dropped.is_empty() {
            return nths.iter().map(|nth| self.shortened(*nth, dropped, tree)).collect();
        }
        let whole = self.whole(nths, tree, true).or_else(|| self.whole(nths, tree, false));
        whole.unwrap_or_default().into_iter().map(Ok).collect()
    }
}

/// What is left out of a recorded sequence.
#[derive(Default)]
struct Cut {
    messages: Range<usize>,
    tokens: Range<usize>,
}

impl Cut {
    /// A span after the cut; none if it is cut out.
    fn moved(&self, span: TokenSpan) -> Option<TokenSpan> {
        if span.end() <= self.tokens.start {
            return Some(span);
        }
        let start = span.start().checked_sub(self.tokens.end)?;
        Some(TokenSpan::at(start + self.tokens.start, span.len()))
    }
}

/// The text of the message that something is written behind, and what is; nothing where whole messages are added.
fn written(before: &[Message], edit: Edit<'_>) -> (String, String) {
    let Edit::Behind { target, .. } = edit else { return Default::default() };
    let text_of = |message: &Message| message.content.as_ref().map(Content::text).unwrap_or_default();
    let (content, seen) = (text_of(&before[target]), text_of(&edit.apply(before)[target]));
    let addition = seen[content.len()..].to_owned();
    (content, addition)
}
