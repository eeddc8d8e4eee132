//! The contexts of actions that are rendered from text.

use std::ops::Range;

use super::reader::Reader;
use super::shorten::{ActionContext, Actions, Context, Contexts, ViewContext};
use super::{Loss, Reason};
use backsight_chat::error::TextError;
use backsight_chat::reread::{Manner, Shown};
use backsight_chat::spans::{Found, Turn};
use backsight_core::episode::Message;
use backsight_core::lens::Edit;
use backsight_core::tokens::{TokenId, TokenSpan};
use backsight_core::tree::{Tip, TokenTree};

/// A rendered conversation.
pub(super) struct Rendered<'a> {
    reader: Reader<'a>,
    manner: Manner<'a>,
    of: Actions<'a>,
    /// The conversation's sequences.
    pub(super) sequences: Vec<Tip>,
    turns: Vec<SeenTurn>,
}

/// A turn with what is seen before it through each lens, or why it cannot be read.
type SeenTurn = Result<(Turn, Vec<ViewContext>), Loss>;

impl<'a> Rendered<'a> {
    /// Renders a conversation; an error is one of all its steps.
    pub(super) fn new(
        reader: Reader<'a>,
        manner: Manner<'a>,
        of: Actions<'a>,
        tree: &mut TokenTree,
    ) -> Result<Self, Loss> {
        let mut all = Self { reader, manner, of, sequences: Vec::new(), turns: Vec::new() };
        (all.sequences, all.turns) = all.read(all.of.messages, &all.of.wanted, tree)?;
        Ok(all)
    }

    fn read(
        &self,
        messages: &[Message],
        wanted: &[(usize, usize)],
        tree: &mut TokenTree,
    ) -> Result<(Vec<Tip>, Vec<SeenTurn>), Loss> {
        let shown = Shown::new(self.manner, messages)
            .map_err(|error| Loss::new(Reason::Rendering, format!("{error}; help: {}", error.help())))?;
        let edits = |(step, action): &(usize, usize)| {
            let views = self.of.views[*step].iter();
            views.map(|view| (view.lens, view.addition.edit(&messages[..*action]))).collect::<Vec<_>>()
        };
        let edits: Vec<_> = wanted.iter().map(edits).collect();
        let there =
            |edits: &Vec<(usize, Option<Edit<'a>>)>| edits.iter().filter_map(|(_, edit)| *edit).collect();
        let asked: Vec<_> = wanted.iter().zip(&edits).map(|(it, edits)| (it.1, there(edits))).collect();
        let found = shown.reread(&asked, &self.reader.texts.tokenizer, tree);
        let turns = found.turns.into_iter().zip(edits);
        Ok((found.sequences, turns.map(|(turn, edits)| seen(tree, turn, edits)).collect()))
    }
}

impl Contexts for Rendered<'_> {
    fn actions(&self) -> &Actions<'_> {
        &self.of
    }

    fn place(&self, nth: usize) -> Result<(usize, TokenSpan), Loss> {
        self.turns[nth].as_ref().map(|(turn, _)| (turn.sequence, turn.span)).map_err(Loss::clone)
    }

    fn action(&self, nth: usize, tree: &TokenTree) -> Vec<TokenId> {
        let turn = self.turns[nth].as_ref();
        turn.map_or_else(|_| Vec::new(), |(turn, _)| tree.tokens(turn.tip, turn.span.range()))
    }

    fn contexts(&self, dropped: &Range<usize>, nths: &[usize], tree: &mut TokenTree) -> Vec<ActionContext> {
        if dropped.is_empty() {
            let whole = |nth: &usize| {
                let (_, views) = self.turns[*nth].as_ref().map_err(Loss::clone)?;
                Ok(Context { views: views.clone(), dropped: dropped.clone() })
            };
            return nths.iter().map(whole).collect();
        }
        let moved = |nth: &usize| (self.of.wanted[*nth].0, self.of.wanted[*nth].1 - dropped.len());
        let wanted: Vec<(usize, usize)> = nths.iter().map(moved).collect();
        let turns = match self.read(&self.of.without(dropped, nths), &wanted, tree) {
            Ok((_, turns)) => turns,
            Err(loss) => return nths.iter().map(|_| Err(loss.clone())).collect(),
        };
        let context = |(nth, turn): (&usize, &SeenTurn)| {
            let (turn, views) = turn.as_ref().map_err(Loss::clone)?;
            match tree.tokens(turn.tip, turn.span.range()) == self.action(*nth, tree) {
                true => Ok(Context { views: views.clone(), dropped: dropped.clone() }),
                false => Err(Loss::new(Reason::Rendering, "the action reads otherwise in a shorter context")),
            }
        };
        nths.iter().zip(&turns).map(context).collect()
    }
}

/// A turn with what is seen before it through each lens; `edits` are what the lenses add, where they find a place.
fn seen(tree: &TokenTree, turn: Found, edits: Vec<(usize, Option<Edit<'_>>)>) -> SeenTurn {
    let (turn, contexts) = turn.map_err(|error| Loss::new(Reason::Rendering, error))?;
    let (mut contexts, plain) = (contexts.into_iter(), tree.cut(turn.tip, turn.span.start()));
    let view = |(lens, edit): (usize, Option<Edit<'_>>)| {
        let found = edit.and_then(|edit| Some((edit, contexts.next()?))).ok_or_else(no_place);
        (lens, found.and_then(|(edit, context)| shown_by(tree, plain, edit, context)))
    };
    let views = edits.into_iter().map(view).collect();
    Ok((turn, views))
}

/// A context in which what was added is there to be seen.
fn shown_by(
    tree: &TokenTree,
    plain: Tip,
    edit: Edit<'_>,
    context: Result<Tip, TextError>,
) -> Result<Tip, Loss> {
    let context = context.map_err(|error| Loss::new(Reason::Rendering, error))?;
    if edit != Edit::Nothing && tree.are_equal(context, plain) {
        let why = "the template does not show the message the lens is written into";
        return Err(Loss::new(Reason::NoPlace, why));
    }
    Ok(context)
}

/// Nothing stands before the action.
pub(super) fn no_place() -> Loss {
    Loss::new(Reason::NoPlace, "no message stands before the action that the lens could be written into")
}
