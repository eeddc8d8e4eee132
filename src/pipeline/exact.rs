//! The contexts of actions whose ids were recorded: the very tokens the student saw, and the lens between them.

use std::ops::Range;

use super::reader::Reader;
use super::rendered::no_place;
use super::shorten::{ActionContext, Actions, Context, Contexts};
use super::{Loss, Reason};
use backsight_chat::near::Repeats;
use backsight_chat::recorded::{Insertion, insert, insert_in_end};
use backsight_chat::reread::{PromptEnd, Shown};
use backsight_core::episode::{Content, Episode, Message};
use backsight_core::lens::{Edit, View};
use backsight_core::tokens::{TokenId, TokenSpan};
use backsight_core::tree::{Replacement, Replacements, Tip, TokenTree};

/// A conversation of recorded ids.
pub(super) struct Exact<'a> {
    pub(super) reader: Reader<'a>,
    pub(super) episode: &'a Episode,
    /// The actions of the conversation that are recorded.
    pub(super) of: Actions<'a>,
    /// Where the episode's sequences are in the tree.
    pub(super) sequences: Vec<Tip>,
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
    /// Where an action is; every wanted step has its tokens.
    fn recorded(&self, nth: usize) -> Option<(usize, TokenSpan)> {
        let tokens = self.episode.steps()[self.of.wanted[nth].0].tokens.as_ref()?;
        Some((tokens.sequence, tokens.span))
    }

    /// What the student saw before an action.
    fn before(&self, nth: usize) -> &'a [TokenId] {
        self.recorded(nth).map_or(&[], |(sequence, span)| &self.episode.sequences[sequence][..span.start()])
    }

    fn shown<'m>(&'m self, messages: &'m [Message]) -> Option<Shown<'m>> {
        Shown::new(self.reader.manner(self.episode, &self.episode.tools), messages).ok()
    }

    /// The context of an action without what is cut; what is known is used unless this one `is_checked`.
    fn context(
        &self,
        nth: usize,
        is_checked: bool,
        kept: &Kept<'_>,
        known: &mut Known<'a>,
        tree: &mut TokenTree,
    ) -> Context {
        let (step, action) = self.of.wanted[nth];
        let before = &kept.messages[..action - kept.cut.messages.len()];
        let sequence = self.recorded(nth).map_or(0, |(sequence, _)| sequence);
        let plain = self.plain(nth, kept.cut, tree);
        let mut through = |View { lens, addition }: &'a View| {
            let Some(edit) = addition.edit(before) else { return (*lens, Err(no_place())) };
            if edit == Edit::Nothing {
                return (*lens, Ok(plain));
            }
            let key = (sequence, edit);
            let near = match known.found.sure(&key) {
                Some(known) => Some(known.clone()),
                None if kept.is_trusting => self.edited_at_end(nth, before.len(), edit, kept, (tree, plain)),
                None => None,
            };
            let found = match near.clone().filter(|_| !is_checked) {
                Some(near) => Ok(near),
                None => self.edited(nth, before, edit, kept, &tree.all(plain)),
            };
            known.differs |= is_checked && near.is_some_and(|near| found.as_ref().ok() != Some(&near));
            known.differs |= match &found {
                Ok(replacement) => !known.found.agrees(key, replacement.clone()),
                Err(_) => is_checked && known.found.sure(&key).is_some(),
            };
            (*lens, found.map(|replacement| known.replacements.grow(tree, plain, replacement)))
        };
        let views = self.of.views[step].iter().map(&mut through).collect();
        Context { views, dropped: kept.cut.messages.clone() }
    }

    /// What something written near the end of a context does to it, from that end alone; none where that does not tell.
    fn edited_at_end(
        &self,
        nth: usize,
        action: usize,
        edit: Edit<'_>,
        kept: &Kept<'_>,
        (tree, plain): (&TokenTree, Tip),
    ) -> Option<Replacement> {
        let PromptEnd { first_action, plain: unseen, seen } =
            kept.shown.as_ref()?.prompt_end(action, edit)?;
        let first_action = first_action + kept.cut.messages_before(first_action);
        let first = self.of.wanted.partition_point(|(_, action)| *action < first_action);
        let (sequence, _) = self.recorded(nth)?;
        let (own, span) = self.recorded(first)?;
        let start = kept.cut.moved(span).filter(|_| own == sequence)?.start();
        let sampled = self.sampled(first..nth, sequence, kept.cut);
        let sampled: Vec<_> = sampled.map(|it| TokenSpan::at(it.start() - start, it.len())).collect();
        let end = tree.tokens(plain, start..plain.len());
        let Replacement { positions, with } =
            insert_in_end(&self.reader.texts.tokenizer, &end, &sampled, (&unseen, &seen)).ok()?;
        Some(Replacement { positions: positions.start + start..positions.end + start, with })
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
        before: &[Message],
        edit: Edit<'_>,
        kept: &Kept<'_>,
        plain: &[TokenId],
    ) -> Result<Replacement, Loss> {
        let prompt = |edit| kept.shown.as_ref()?.prompt(before.len(), edit).ok();
        let rendered = prompt(Edit::Nothing).zip(prompt(edit));
        let (content, addition) = written(before, edit);
        let insertion = Insertion {
            rendered: rendered.as_ref().map(|(plain, seen)| (plain.as_str(), seen.as_str())),
            content: &content,
            addition: &addition,
        };
        let sequence = self.recorded(nth).map_or(0, |(sequence, _)| sequence);
        let sampled: Vec<_> = self.sampled(0..nth, sequence, kept.cut).collect();
        let found = insert(&self.reader.texts.tokenizer, plain, &sampled, &insertion);
        found.map_err(|error| Loss::new(Reason::Recorded, error))
    }

    /// The contexts of these actions without what is cut; none if what was trusted does not hold where it is checked.
    fn without(
        &self,
        cut: &Cut,
        nths: &[usize],
        tree: &mut TokenTree,
        is_trusting: bool,
    ) -> Option<Vec<Context>> {
        let messages = self.of.without(&cut.messages, nths);
        let kept = Kept { cut, messages: &messages, shown: self.shown(&messages), is_trusting };
        let (mut known, mut contexts) = (Known::default(), Vec::with_capacity(nths.len()));
        for (idx, nth) in nths.iter().enumerate() {
            let is_checked = !is_trusting || (idx + 1).is_power_of_two() || idx + 1 == nths.len();
            contexts.push(self.context(*nth, is_checked, &kept, &mut known, tree));
            if known.differs && is_trusting {
                return None;
            }
        }
        Some(contexts)
    }

    /// These actions as far as they are in a sequence, moved by what is cut out.
    fn sampled(&self, nths: Range<usize>, sequence: usize, cut: &Cut) -> impl Iterator<Item = TokenSpan> {
        let here = nths.filter_map(|nth| self.recorded(nth)).filter(move |(own, _)| *own == sequence);
        here.filter_map(|(_, span)| cut.moved(span))
    }

    /// The tokens to cut so that these messages are left out: from the first token of one action to that of
    /// another. What asks the model to speak stands before both and must be the same.
    fn cut(&self, nth: usize, dropped: &Range<usize>) -> Option<Cut> {
        let (sequence, _) = self.recorded(nth)?;
        let here = (0..=nth).filter(|it| self.recorded(*it).is_some_and(|(it, _)| it == sequence));
        let here: Vec<usize> = here.collect();
        let at = |idx: usize| here.iter().copied().find(|nth| self.of.wanted[*nth].1 >= idx);
        let (first, last) = (at(dropped.start)?, at(dropped.end)?);
        let messages = self.of.wanted[first].1..self.of.wanted[last].1;
        let tokens = self.before(first).len()..self.before(last).len();
        (self.header(first) == self.header(last)).then_some(Cut { messages, tokens })
    }

    /// The tokens before an action from the last special one on.
    fn header(&self, nth: usize) -> &'a [TokenId] {
        let before = self.before(nth);
        let special = before.iter().rposition(|id| self.reader.texts.tokenizer.is_special(*id));
        special.map_or(&[], |at| &before[at..])
    }

    /// The contexts of actions that are in one sequence.
    fn of_sequence(
        &self,
        dropped: &Range<usize>,
        nths: &[usize],
        tree: &mut TokenTree,
    ) -> Vec<ActionContext> {
        let cut = match (dropped.is_empty(), nths.last()) {
            (false, Some(last)) => self.cut(*last, dropped),
            _ => Some(Cut::default()),
        };
        let Some(cut) = cut else {
            let why = "the recorded tokens are too long, and where a step begins in them is not found";
            return nths.iter().map(|_| Err(Loss::new(Reason::Context, why))).collect();
        };
        let contexts = self.without(&cut, nths, tree, true).or_else(|| self.without(&cut, nths, tree, false));
        contexts.unwrap_or_default().into_iter().map(Ok).collect()
    }
}

impl Contexts for Exact<'_> {
    fn actions(&self) -> &Actions<'_> {
        &self.of
    }

    fn place(&self, nth: usize) -> Result<(usize, TokenSpan), Loss> {
        self.recorded(nth).ok_or_else(|| Loss::new(Reason::Recorded, "the action's tokens are not recorded"))
    }

    fn action(&self, nth: usize, _tree: &TokenTree) -> Vec<TokenId> {
        let place = self.recorded(nth);
        place
            .map_or_else(Vec::new, |(sequence, span)| self.episode.sequences[sequence][span.range()].to_vec())
    }

    fn contexts(&self, dropped: &Range<usize>, nths: &[usize], tree: &mut TokenTree) -> Vec<ActionContext> {
        let sequence = |nth: &usize| self.recorded(*nth).map(|(sequence, _)| sequence);
        let chunks = nths.chunk_by(|a, b| sequence(a) == sequence(b));
        chunks.flat_map(|nths| self.of_sequence(dropped, nths, tree)).collect()
    }
}

/// The conversation without what is cut, up to the last of some actions.
struct Kept<'k> {
    cut: &'k Cut,
    messages: &'k [Message],
    /// As its template is given it, if that renders it.
    shown: Option<Shown<'k>>,
    /// Whether the end of a context may stand for the whole.
    is_trusting: bool,
}

/// What is left out of a recorded sequence.
#[derive(Default)]
struct Cut {
    messages: Range<usize>,
    tokens: Range<usize>,
}

impl Cut {
    /// How many messages are cut out before one of those that are left.
    fn messages_before(&self, kept: usize) -> usize {
        if kept < self.messages.start { 0 } else { self.messages.len() }
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

/// The text of the message that something is written behind, and what is; nothing where whole messages are added.
fn written(before: &[Message], edit: Edit<'_>) -> (String, String) {
    let Edit::Behind { target, .. } = edit else { return Default::default() };
    let text_of = |message: &Message| message.content.as_ref().map(Content::text).unwrap_or_default();
    let (content, seen) = (text_of(&before[target]), text_of(&edit.apply(before)[target]));
    let addition = seen[content.len()..].to_owned();
    (content, addition)
}
