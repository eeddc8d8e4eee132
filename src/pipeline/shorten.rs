//! Contexts that fit the model's: whole messages are left out of those that are too long.
//!
//! Owns the choice of what is left out, made from estimated lengths and checked against the real ones. How
//! a context is made without some messages is the business of whoever has the tokens.

use std::collections::BTreeMap;
use std::ops::Range;

use super::{Loss, Reason};
use backsight_core::episode::Message;
use backsight_core::lens::{Room, TooLong, View, Window, windows};
use backsight_core::tokens::{TokenId, TokenSpan};
use backsight_core::tree::{Tip, TokenTree};

/// How often a choice that turned out too long is made again with less room.
const ATTEMPTS: usize = 6;

/// What stands before an action as seen through a lens, or why that is not known.
pub(super) type ViewContext = (usize, Result<Tip, Loss>);

/// What stands before an action, or why that is not known.
pub(super) type ActionContext = Result<Context, Loss>;

/// What stands before an action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Context {
    /// Through each lens.
    pub(super) views: Vec<ViewContext>,
    /// The messages that are really left out.
    pub(super) dropped: Range<usize>,
}

impl Context {
    /// The tokens of the longest view: what fits it fits all.
    fn longest(&self) -> usize {
        self.views.iter().filter_map(|(_, view)| view.as_ref().ok()).map(Tip::len).max().unwrap_or(0)
    }
}

/// Some actions of one conversation, in order.
pub(super) struct Actions<'a> {
    /// The conversation.
    pub(super) messages: &'a [Message],
    /// Each step and its message.
    pub(super) wanted: Vec<(usize, usize)>,
    /// What each step is seen through.
    pub(super) views: &'a [Vec<View>],
}

impl Actions<'_> {
    /// The conversation up to the last of these actions, without what is left out.
    pub(super) fn without(&self, dropped: &Range<usize>, nths: &[usize]) -> Vec<Message> {
        let end = nths.last().map_or(dropped.end, |nth| self.wanted[*nth].1 + 1);
        [&self.messages[..dropped.start], &self.messages[dropped.end..end]].concat()
    }

    /// The assistant messages that they are.
    fn messages_of(&self) -> Vec<usize> {
        self.wanted.iter().map(|(_, action)| *action).collect()
    }
}

/// What stands before the actions of a conversation.
pub(super) trait Contexts {
    /// Those actions.
    fn actions(&self) -> &Actions<'_>;
    /// The sequence and the span of the `nth` action, nothing left out.
    fn place(&self, nth: usize) -> Result<(usize, TokenSpan), Loss>;
    /// The tokens of the `nth` action.
    fn action(&self, nth: usize, tree: &TokenTree) -> Vec<TokenId>;
    /// The contexts of some actions when these messages are left out.
    fn contexts(&self, dropped: &Range<usize>, nths: &[usize], tree: &mut TokenTree) -> Vec<ActionContext>;

    /// How many tokens the `nth` action has.
    fn n_action(&self, nth: usize) -> usize {
        self.place(nth).map_or(0, |(_, span)| span.len())
    }
}

/// The contexts of all actions, those that are longer than `limit` together with their action shortened, and what was
/// left out for that.
pub(super) fn fitted(
    of: &dyn Contexts,
    limit: Option<usize>,
    tree: &mut TokenTree,
) -> Vec<Result<(Vec<ViewContext>, Window), Loss>> {
    let limit = limit.unwrap_or(usize::MAX);
    let mut found = of.contexts(&(0..0), &(0..of.actions().wanted.len()).collect::<Vec<_>>(), tree);
    let whole: Vec<usize> = found.iter().map(|it| it.as_ref().map_or(0, Context::longest)).collect();
    if overflow(of, &found, limit) > 0 {
        found = shortened(of, found, limit, tree);
    }
    let fit = |(nth, found): (usize, ActionContext)| {
        let context = found?;
        let needed = context.longest() + of.n_action(nth);
        if needed > limit {
            return Err(Loss::new(Reason::Context, TooLong { needed, limit }));
        }
        let n_dropped_tokens = whole[nth].saturating_sub(context.longest());
        Ok((context.views, Window { dropped: context.dropped, n_dropped_tokens }))
    };
    found.into_iter().enumerate().map(fit).collect()
}

/// By how many tokens the longest is too long.
fn overflow(of: &dyn Contexts, found: &[ActionContext], limit: usize) -> usize {
    let size =
        |(nth, found): (usize, &ActionContext)| Some(found.as_ref().ok()?.longest() + of.n_action(nth));
    found.iter().enumerate().filter_map(size).max().unwrap_or(0).saturating_sub(limit)
}

/// Leaves messages out until everything fits that can; lengths are estimates, so the room shrinks where they were short.
fn shortened(
    of: &dyn Contexts,
    whole: Vec<ActionContext>,
    limit: usize,
    tree: &mut TokenTree,
) -> Vec<ActionContext> {
    let mut reserved = most_added(of, &whole);
    let mut found = windowed(of, &whole, Room { limit, reserved }, tree);
    for _ in 1..ATTEMPTS {
        match overflow(of, &found, limit) {
            0 => break,
            more => reserved += more,
        }
        found = windowed(of, &whole, Room { limit, reserved }, tree);
    }
    found
}

/// The most tokens a lens adds.
fn most_added(of: &dyn Contexts, whole: &[ActionContext]) -> usize {
    let sizes = whole.iter().enumerate().filter_map(|(nth, context)| {
        let (_, span) = of.place(nth).ok()?;
        Some(context.as_ref().ok()?.longest().saturating_sub(span.start()))
    });
    sizes.max().unwrap_or(0)
}

fn windowed(
    of: &dyn Contexts,
    whole: &[ActionContext],
    room: Room,
    tree: &mut TokenTree,
) -> Vec<ActionContext> {
    let Actions { messages, .. } = of.actions();
    let chosen = windows(messages, &lengths(of), &of.actions().messages_of(), room);
    let mut found = whole.to_vec();
    let mut by_window: BTreeMap<(usize, usize), Vec<usize>> = BTreeMap::new();
    for (nth, window) in chosen.into_iter().enumerate() {
        match window {
            _ if found[nth].is_err() => {}
            Err(too_long) => found[nth] = Err(Loss::new(Reason::Context, too_long)),
            Ok(window) if window.dropped.is_empty() => {}
            Ok(Window { dropped, .. }) => {
                by_window.entry((dropped.start, dropped.end)).or_default().push(nth)
            }
        }
    }
    for ((start, end), nths) in by_window {
        for (nth, context) in nths.iter().zip(of.contexts(&(start..end), &nths, tree)) {
            found[*nth] = context;
        }
    }
    found
}

/// The tokens of each message, as far as the actions' places tell: what stands between two actions
/// is counted with the first message there.
fn lengths(of: &dyn Contexts) -> Vec<usize> {
    let mut lengths = vec![0; of.actions().messages.len()];
    let (mut message, mut end) = (0, 0);
    for (nth, action) in of.actions().messages_of().into_iter().enumerate() {
        let Ok((_, span)) = of.place(nth) else { continue };
        lengths[message] += span.start().saturating_sub(end);
        lengths[action] += span.len();
        (message, end) = ((action + 1).min(lengths.len() - 1), span.end());
    }
    lengths
}
