//! From an episode to the token sequences its actions are scored in.
//!
//! Owns how a [`Reader`] reads an episode:
//! recorded ids where there are any, everything else rendered; each action through each of its lenses,
//! within the model's context. Deliberately absent: which requests follow.

use std::sync::Arc;

use super::exact::Exact;
use super::outline::Outline;
use super::reader::Reader;
use super::rendered::Rendered;
use super::shorten::{Actions, Contexts, fitted};
use super::{Loss, Reason};
use backsight_core::episode::{Conversation, Episode, TokenSource};
use backsight_core::lens::Window;
use backsight_core::tokens::TokenSpan;
use backsight_core::tree::{Tip, TokenTree};

/// A sequence and where the action in it begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Context and action.
    pub tip: Tip,
    /// How many of its tokens are context.
    pub n_context: usize,
}

impl Seen {
    /// Its action's last `n` tokens; all of them for 0.
    pub fn action(&self, n: usize) -> TokenSpan {
        let whole = TokenSpan::at(self.n_context, self.tip.len() - self.n_context);
        if n == 0 { whole } else { whole.last(n) }
    }
}

/// One step's action as seen through one lens.
#[derive(Clone, Debug, PartialEq)]
pub struct ReadView {
    /// Which lens.
    pub lens: usize,
    /// Its context through that lens, and its action; or why there is none.
    pub seen: Result<Seen, Loss>,
}

/// One step's sequences.
#[derive(Clone, Debug, PartialEq)]
pub struct ReadStep {
    /// The conversation's sequence its action is in, and where.
    pub place: (usize, TokenSpan),
    /// What it is seen through, in the order of the lenses.
    pub views: Vec<ReadView>,
    /// What of the episode's messages was left out, the same for all views.
    pub window: Window,
}

/// An episode as tokens.
#[derive(Clone, Debug)]
pub struct ReadEpisode {
    /// All its sequences, each token that several begin with once.
    pub tree: Arc<TokenTree>,
    /// The conversation without a lens.
    pub sequences: Vec<Tip>,
    /// Exact if every action's ids were recorded.
    pub source: TokenSource,
    /// One for each step.
    pub steps: Vec<Result<ReadStep, Loss>>,
}

impl ReadStep {
    /// Whether some of its context was left out.
    pub(super) fn is_shortened(&self) -> bool {
        !self.window.dropped.is_empty()
    }

    /// What is seen through a lens; nothing where it does not apply.
    pub fn view(&self, lens: usize) -> Option<&Result<Seen, Loss>> {
        self.views.iter().find(|view| view.lens == lens).map(|view| &view.seen)
    }
}

impl Reader<'_> {
    /// Reads an episode; what cannot be read is lost alone.
    pub fn read(&self, episode: &Episode, outline: &Outline) -> ReadEpisode {
        let is_exact = |step: usize| is_exact(episode, step);
        let n_steps = episode.steps().len();
        let unread = || Err(Loss::new(Reason::Unreadable, "the step is in no conversation"));
        let mut tree = TokenTree::default();
        let mut all = ReadEpisode {
            sequences: episode.sequences.iter().map(|ids| tree.grow(Tip::EMPTY, ids)).collect(),
            source: if episode.is_exact() { TokenSource::Exact } else { TokenSource::Rendered },
            steps: (0..n_steps).map(|_| unread()).collect(),
            tree: Arc::new(tree),
        };
        for conversation in &episode.conversations() {
            let wanted = steps_where(conversation, &is_exact);
            let sequences = all.sequences.clone();
            let of = Actions { messages: &conversation.messages, wanted, views: &outline.views };
            self.take(&mut all, episode, &Exact { reader: *self, episode, of, sequences }, 0);
        }
        if episode.is_exact() {
            return all;
        }
        if !(0..n_steps).any(is_exact) {
            all.sequences.clear();
        }
        for conversation in &outline.conversations {
            let wanted = steps_where(conversation, &|step| !is_exact(step));
            self.take_rendered(&mut all, episode, conversation, wanted, outline);
        }
        all
    }

    fn take_rendered(
        &self,
        all: &mut ReadEpisode,
        episode: &Episode,
        conversation: &Conversation,
        wanted: Vec<(usize, usize)>,
        outline: &Outline,
    ) {
        if wanted.is_empty() {
            return;
        }
        let tools = if episode.tools.is_empty() { &self.framing.tools } else { &episode.tools };
        let manner = self.manner(episode, tools);
        let steps: Vec<usize> = wanted.iter().map(|(step, _)| *step).collect();
        let of = Actions { messages: &conversation.messages, wanted, views: &outline.views };
        match Rendered::new(*self, manner, of, Arc::make_mut(&mut all.tree)) {
            Err(loss) => steps.iter().for_each(|step| all.steps[*step] = Err(loss.clone())),
            Ok(contexts) => {
                let before = all.sequences.len();
                all.sequences.extend_from_slice(&contexts.sequences);
                self.take(all, episode, &contexts, before);
            }
        }
    }

    /// Takes what fits of one conversation; its sequences begin at `first_sequence`.
    fn take(&self, all: &mut ReadEpisode, episode: &Episode, contexts: &dyn Contexts, first_sequence: usize) {
        let tree = Arc::make_mut(&mut all.tree);
        let fitted = fitted(contexts, self.limit, tree);
        for ((nth, (step, action)), found) in contexts.actions().wanted.iter().enumerate().zip(fitted) {
            let message_idx = episode.steps()[*step].message_idx;
            all.steps[*step] = found.and_then(|(views, window)| {
                let (sequence, span) = contexts.place(nth)?;
                let action_ids = contexts.action(nth, tree);
                let mut seen =
                    |context: Tip| Seen { tip: tree.grow(context, &action_ids), n_context: context.len() };
                let views = views.into_iter();
                Ok(ReadStep {
                    place: (first_sequence + sequence, span),
                    views: views.map(|(lens, it)| ReadView { lens, seen: it.map(&mut seen) }).collect(),
                    window: shifted(window, message_idx, *action),
                })
            });
        }
    }
}

fn is_exact(episode: &Episode, step: usize) -> bool {
    episode.token_source == TokenSource::Exact && episode.steps()[step].tokens.is_some()
}

fn steps_where(conversation: &Conversation, holds: &dyn Fn(usize) -> bool) -> Vec<(usize, usize)> {
    conversation.steps.iter().filter(|(step, _)| holds(*step)).copied().collect()
}

/// The window in the episode's own counting of messages: conversations may have others in front.
fn shifted(window: Window, message_idx: usize, action: usize) -> Window {
    let shift = |idx: usize| (idx + message_idx).saturating_sub(action);
    match window.dropped.is_empty() {
        true => Window::default(),
        false => Window { dropped: shift(window.dropped.start)..shift(window.dropped.end), ..window },
    }
}
