//! What gives way when a context is too small: whole messages are left out, the lens never.
//!
//! Deliberately absent: tokens; lengths are given.

use std::ops::Range;

use super::{Placement, target};
use crate::episode::{Message, Role};

/// How much room there is, in tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// What the context holds.
    pub limit: usize,
    /// What the lens takes, and whatever else is added to the messages.
    pub reserved: usize,
}

/// Which messages a step is re-read without.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Window {
    /// The messages that are left out; empty when everything fits.
    pub dropped: Range<usize>,
    /// How many tokens those have.
    pub n_dropped_tokens: usize,
}

/// A step that does not fit, however much is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the first messages, the lens and the action need {needed} tokens and the context holds {limit}")]
pub struct TooLong {
    /// Tokens needed at least.
    pub needed: usize,
    /// Tokens there are.
    pub limit: usize,
}

/// Chooses for each action (in order) what is left out so that it fits.
///
/// Everything up to the first user message stays. What goes is a run of whole steps behind it, never a
/// call without its result. When the run has to grow, half the room is freed at once, so that many steps
/// share one beginning and a server's cache helps.
pub fn windows(
    messages: &[Message],
    lengths: &[usize],
    actions: &[usize],
    room: Room,
) -> Vec<Result<Window, TooLong>> {
    let n_head = target(messages, Placement::First).map_or(0, |idx| idx + 1);
    let mut total = 0;
    let ends = std::iter::once(0).chain(lengths.iter().map(|length| {
        total += length;
        total
    }));
    let conversation = Lengths { messages, ends: ends.collect(), n_head, reserved: room.reserved };
    let mut begin = n_head;
    let window = |&action: &usize| {
        if conversation.needed(begin, action) > room.limit {
            begin = conversation.next_begin(begin, action, room.limit)?;
        }
        let dropped = if begin > n_head { n_head..begin } else { 0..0 };
        Ok(Window { n_dropped_tokens: conversation.sum(dropped.clone()), dropped })
    };
    actions.iter().map(window).collect()
}

struct Lengths<'m> {
    messages: &'m [Message],
    /// The tokens before each message, and of all.
    ends: Vec<usize>,
    n_head: usize,
    reserved: usize,
}

impl Lengths<'_> {
    /// The tokens of a step whose context is the head and what follows from `begin` on.
    fn needed(&self, begin: usize, action: usize) -> usize {
        let head = self.sum(0..self.n_head.min(action));
        head + self.sum(begin.min(action)..action + 1) + self.reserved
    }

    fn sum(&self, messages: Range<usize>) -> usize {
        self.ends[messages.end] - self.ends[messages.start]
    }

    /// The first place to begin from that leaves half of the room free, or the last place if none does.
    fn next_begin(&self, begin: usize, action: usize, limit: usize) -> Result<usize, TooLong> {
        let least = self.needed(action, action);
        if least > limit {
            return Err(TooLong { needed: least, limit });
        }
        let comfortable = least + (limit - least) / 2;
        let mut borders = (begin..action).filter(|idx| self.messages[*idx].role != Role::Tool);
        Ok(borders.find(|idx| self.needed(*idx, action) <= comfortable).unwrap_or(action))
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn talk(roles: &[Role]) -> Vec<Message> {
        roles.iter().enumerate().map(|(idx, role)| Message::text(*role, idx.to_string())).collect()
    }

    /// A prompt, then steps of a call and its result.
    fn steps(n: usize) -> (Vec<Message>, Vec<usize>) {
        let pair = [Role::Assistant, Role::Tool];
        let roles: Vec<_> =
            [Role::System, Role::User].into_iter().chain(pair.into_iter().cycle().take(2 * n)).collect();
        (talk(&roles), (0..n).map(|step| 2 + 2 * step).collect())
    }

    #[test]
    fn windows_move_in_big_steps_and_keep_the_head() {
        let (messages, actions) = steps(6);
        let lengths = vec![10; messages.len()];
        let found = windows(&messages, &lengths, &actions, Room { limit: 75, reserved: 5 });
        let dropped: Vec<_> = found.iter().map(|it| it.as_ref().unwrap().dropped.clone()).collect();
        assert_eq!(dropped, [0..0, 0..0, 0..0, 2..6, 2..6, 2..10]);
        assert_eq!(found[5].as_ref().unwrap().n_dropped_tokens, 80);
        let small = windows(&messages, &lengths, &actions[..1], Room { limit: 34, reserved: 5 });
        let message = "the first messages, the lens and the action need 35 tokens and the context holds 34";
        assert_eq!(small[0].as_ref().unwrap_err().to_string(), message);
    }

    proptest! {
        #[test]
        fn a_window_fits_and_leaves_no_result_without_its_call(
            lengths in prop::collection::vec(1_usize..40, 14), limit in 20_usize..300, reserved in 0_usize..20,
        ) {
            let (messages, actions) = steps(6);
            for (found, action) in windows(&messages, &lengths, &actions, Room { limit, reserved }).iter().zip(&actions) {
                let total: usize = lengths[..=*action].iter().sum();
                match found {
                    Ok(Window { dropped, n_dropped_tokens }) => {
                        prop_assert!(total - n_dropped_tokens + reserved <= limit);
                        prop_assert!(dropped.is_empty() || (dropped.start == 2 && messages[dropped.end].role == Role::Assistant));
                    }
                    Err(_) => prop_assert!(lengths[0] + lengths[1] + lengths[*action] + reserved > limit),
                }
            }
        }
    }
}
