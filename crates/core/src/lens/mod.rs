//! How a step's context is re-seen: what is added to it before its action is read again.
//!
//! A lens is one file here: it says what it adds for each step of an episode, or that it has nothing to add there.
//! Owns [`Lens`], where additions go among the messages before an action ([`Addition::edit`]), and windows over
//! conversations that are too long. Deliberately absent: tokens; whoever has them counts.

mod hint;
mod outcome;
mod placebo;
mod plain;
mod template;
mod views;
mod window;

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use crate::episode::{Content, Episode, Message, Role};
use crate::named;
use crate::subtasks::PlanPlace;

pub use hint::{Given, HintLens};
pub use outcome::{OUTCOME_TEMPLATE, OutcomeLens};
pub use placebo::PlaceboLens;
pub use plain::PlainLens;
pub use template::{BadTemplate, OutcomeFacts, Piece, Wording};
pub use views::{Lenses, Through, View};
pub use window::{Room, TooLong, Window, windows};

/// What is added to a step's context before its action is read again.
pub trait Lens: fmt::Debug + Send + Sync {
    /// Its name in files and flags.
    fn name(&self) -> &'static str;

    /// Where it writes; nowhere if it adds nothing.
    fn placement(&self) -> Option<Placement>;

    /// What it adds for each step of an episode, in order; none where it does not apply.
    fn additions(&self, told: &Told<'_>) -> Result<Vec<Option<Addition>>, NoAddition>;

    /// Its name with its placement: what is measured through it is told apart by this.
    fn key(&self) -> String {
        key(self.name(), self.placement())
    }
}

/// What a lens of that name is called with its placement, the one it has by itself where none is named.
pub fn key_of(name: &str, placement: Option<Placement>) -> String {
    let own = match name {
        "outcome" | "placebo" => Some(Placement::First),
        "hint" => Some(Placement::LastUser),
        _ => None,
    };
    key(name, placement.or(own))
}

fn key(name: &str, placement: Option<Placement>) -> String {
    placement.map_or_else(|| name.to_owned(), |placement| format!("{name}-{}", placement.name()))
}

/// The names of all lenses.
pub const NAMES: [&str; 4] = ["outcome", "hint", "placebo", "plain"];

/// What lenses are made of.
#[derive(Clone, Debug)]
pub struct Ingredients {
    /// Where to write, if not where the lens does by itself.
    pub placement: Option<Placement>,
    /// The outcome's words.
    pub template: Wording,
    /// What hints say, by episode and step.
    pub given: HashMap<(String, usize), Given>,
    /// Which sentences a placebo says.
    pub seed: u64,
}

/// The lens of that name; none where there is no such, or it cannot write there.
pub fn named(name: &str, of: Ingredients) -> Option<Arc<dyn Lens>> {
    let placement = |own| Some(of.placement.unwrap_or(own)).filter(|it| *it != Placement::Turns);
    Some(match name {
        "outcome" => Arc::new(OutcomeLens { placement: placement(Placement::First)?, template: of.template }),
        "hint" => {
            Arc::new(HintLens { placement: of.placement.unwrap_or(Placement::LastUser), given: of.given })
        }
        "placebo" => {
            let like = if of.given.is_empty() { "outcome" } else { "hint" };
            Arc::new(PlaceboLens { seed: of.seed, like: named(like, of)? })
        }
        "plain" if of.placement.is_none() => Arc::new(PlainLens),
        _ => return None,
    })
}

/// An episode as lenses are told of it.
#[derive(Clone, Copy)]
pub struct Told<'a> {
    /// The episode.
    pub episode: &'a Episode,
    /// Where each of its steps stands.
    pub places: &'a [PlanPlace],
    /// How many subtasks the student itself brought to an end.
    pub completed: usize,
    /// How many tokens a text has, or about as many where no tokenizer is at hand.
    pub n_tokens: &'a dyn Fn(&str) -> usize,
}

/// Why a lens has nothing to say about a whole episode.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoAddition {
    /// It tells the reward, and there is none.
    #[error("{0}")]
    NoReward(String),
    /// Its template gives no text.
    #[error(transparent)]
    Template(#[from] BadTemplate),
}

/// What a lens adds to one step's context.
#[derive(Clone, Debug, PartialEq)]
pub enum Addition {
    /// Nothing: the action is read as it was sampled.
    Nothing,
    /// A text, behind the text of a message.
    Text(Placement, String),
    /// Whole messages before the last user message: a worked exchange.
    Turns(Vec<Message>),
}

/// Where a lens writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Placement {
    /// Into the first user message, so that all steps under one text share one sequence.
    First,
    /// Into the last user message before the action.
    LastUser,
    /// Into the last message before the action, so that all steps share the conversation up to there.
    Last,
    /// As whole messages before the last user message.
    Turns,
}

named!(Placement: First = "first", LastUser = "last_user", Last = "last", Turns = "turns");

/// An addition at its place among the messages before an action.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Edit<'a> {
    /// They stay as they are.
    Nothing,
    /// A text behind that of the message at `target`.
    Behind {
        /// The message.
        target: usize,
        /// The text.
        text: &'a str,
    },
    /// Messages before the one at `target`.
    Before {
        /// The message.
        target: usize,
        /// The messages.
        messages: &'a [Message],
    },
}

impl Addition {
    /// Where it goes among the messages before an action; none where nothing stands that it could go to.
    pub fn edit<'a>(&'a self, before: &[Message]) -> Option<Edit<'a>> {
        match self {
            Self::Nothing => Some(Edit::Nothing),
            Self::Text(placement, text) => Some(Edit::Behind { target: target(before, *placement)?, text }),
            Self::Turns(messages) => {
                Some(Edit::Before { target: target(before, Placement::Turns)?, messages })
            }
        }
    }
}

impl Edit<'_> {
    /// The messages with the addition among them.
    pub fn apply(&self, before: &[Message]) -> Vec<Message> {
        let mut seen = before.to_vec();
        match *self {
            Self::Nothing => {}
            Self::Behind { target, text } => write(&mut seen[target], text),
            Self::Before { target, messages } => drop(seen.splice(target..target, messages.iter().cloned())),
        }
        seen
    }
}

/// The message an addition goes to, among those before the action; none when nothing stands there.
///
/// A supplied system prompt stays as it is, so that it is shared by all lenses; another action is never touched.
pub fn target(before: &[Message], placement: Placement) -> Option<usize> {
    let is_user = |message: &Message| message.role == Role::User;
    let not_an_action = |message: &Message| message.role != Role::Assistant;
    match placement {
        Placement::First => before.iter().position(is_user).or_else(|| before.iter().position(not_an_action)),
        Placement::LastUser | Placement::Turns => {
            before.iter().rposition(is_user).or_else(|| before.iter().rposition(not_an_action))
        }
        Placement::Last => before.iter().rposition(not_an_action),
    }
}

/// Writes the lens behind a message's text, after an empty line.
pub fn write(message: &mut Message, text: &str) {
    let addition = format!("\n\n{text}");
    match &mut message.content {
        None => message.content = Some(Content::Text(text.to_owned())),
        Some(Content::Text(content)) => content.push_str(&addition),
        Some(Content::Parts(parts)) => parts.push(addition),
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;

    fn talk(roles: &[Role]) -> Vec<Message> {
        roles.iter().enumerate().map(|(idx, role)| Message::text(*role, idx.to_string())).collect()
    }

    #[test]
    fn a_lens_never_touches_an_action() {
        use Role::{Assistant, System, Tool, User};
        let at = |roles: &[Role], placement| target(&talk(roles), placement);
        assert_eq!(at(&[System, User, Assistant, Tool], Placement::First), Some(1));
        assert_eq!(at(&[System, User, Assistant, Tool], Placement::Last), Some(3));
        assert_eq!(at(&[User, Assistant], Placement::Last), Some(0));
        assert_eq!(at(&[User, Assistant, User, Assistant, Tool], Placement::LastUser), Some(2));
        assert_eq!(at(&[User, Assistant, Tool], Placement::Turns), Some(0));
        assert_eq!(at(&[System, Assistant, Tool], Placement::First), Some(0));
        assert_eq!((at(&[Assistant], Placement::First), at(&[], Placement::Last)), (None, None));
    }

    #[test]
    fn the_lens_stands_behind_the_text() {
        let mut parts = Message::text(Role::User, "");
        parts.content = Some(Content::Parts(vec!["a".into(), "b".into()]));
        let before = [parts, Message::text(Role::User, "c")];
        let addition = Addition::Text(Placement::First, "LENS".to_owned());
        let seen = addition.edit(&before).unwrap().apply(&before);
        assert_eq!(seen[0].content.as_ref().unwrap().text(), "ab\n\nLENS");
        assert_eq!(seen[1].content.as_ref().unwrap().text(), "c");
    }
    #[test]
    fn an_exchange_stands_before_the_last_user_message() {
        let before = talk(&[Role::System, Role::User, Role::Assistant, Role::User]);
        let exchange = talk(&[Role::User, Role::Assistant]);
        let addition = Addition::Turns(exchange.clone());
        let seen = addition.edit(&before).unwrap().apply(&before);
        assert_eq!(seen, [&before[..3], &exchange, &before[3..]].concat());
        assert_eq!(Addition::Nothing.edit(&[]).unwrap().apply(&before), before);
    }
}
