//! Conversations as a lens shows them.

use backsight::episode::Message;
use backsight::lens::{Placement, target, write};

/// The messages before an action with the lens written into them.
pub fn inject(before: &[Message], text: &str, placement: Placement) -> Option<Vec<Message>> {
    let target = target(before, placement)?;
    let mut messages = before.to_vec();
    write(&mut messages[target], text);
    Some(messages)
}
