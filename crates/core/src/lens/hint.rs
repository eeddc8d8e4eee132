//! The hint lens says what somebody who saw the next state would have said before the action; its texts are given.

use std::collections::HashMap;

use super::{Addition, Lens, NoAddition, Placement, Told};
use crate::episode::Message;

/// The line a hint stands under, as published.
const MARKER: &str = "[user's hint / instruction]";

/// What is given for one step.
#[derive(Clone, Debug, PartialEq)]
pub enum Given {
    /// A hint in words.
    Text(String),
    /// A worked exchange: whole messages.
    Exchange(Vec<Message>),
}

/// Says what is given, step by step.
#[derive(Clone, Debug)]
pub struct HintLens {
    /// By episode and step; a step without one is not seen through this lens.
    pub given: HashMap<(String, usize), Given>,
    /// Where words are written; an exchange stands before the last user message.
    pub placement: Placement,
}

impl Lens for HintLens {
    fn name(&self) -> &'static str {
        "hint"
    }

    fn placement(&self) -> Option<Placement> {
        Some(self.placement)
    }

    fn additions(&self, told: &Told<'_>) -> Result<Vec<Option<Addition>>, NoAddition> {
        let addition = |step: usize| {
            Some(match self.given.get(&(told.episode.id.clone(), step))? {
                Given::Text(hint) => Addition::Text(self.placement, format!("{MARKER}\n{}", hint.trim())),
                Given::Exchange(messages) => Addition::Turns(messages.clone()),
            })
        };
        Ok((0..told.places.len()).map(addition).collect())
    }
}
