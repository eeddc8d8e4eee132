//! Which episodes a run consists of.
//!
//! Owns [`Slot`]: a task and the number of an attempt at it, which together name the episode and every
//! draw in it. Pure: the same tasks give the same slots, in the same order, whatever was done before.

use std::collections::HashMap;
use std::sync::Arc;

use crate::tasks::CodingTask;

/// One episode that there is to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slot {
    /// What is asked.
    pub task: Arc<CodingTask>,
    /// Which group it belongs to, from 0.
    pub group: usize,
    /// Which attempt at the task it is, from 0.
    pub episode: usize,
}

impl Slot {
    /// The id of its episode.
    pub fn id(&self) -> String {
        format!("{}-{}", self.task.task.id, self.episode)
    }
}

/// Groups of `group_size` attempts, each at the next task; after the last task the first comes again,
/// with attempts of new numbers.
pub fn groups(tasks: &[Arc<CodingTask>], n_groups: usize, group_size: usize) -> Vec<Slot> {
    let mut n_before: HashMap<&str, usize> = HashMap::new();
    let mut slots = Vec::with_capacity(n_groups.saturating_mul(group_size));
    for (group, task) in tasks.iter().cycle().take(n_groups).enumerate() {
        let first = n_before.entry(task.task.id.as_str()).or_default();
        let attempts = *first..*first + group_size;
        *first += group_size;
        slots.extend(attempts.map(|episode| Slot { task: Arc::clone(task), group, episode }));
    }
    slots
}

#[cfg(test)]
mod tests {
    use super::*;
    use backsight_core::episode::Task;

    #[test]
    fn no_two_episodes_have_the_same_name() {
        let task = |id: &str| {
            let task = Task { id: id.to_owned(), prompt: String::new(), difficulty: None };
            Arc::new(CodingTask { task, asked: "p".repeat(300), test_code: None })
        };
        let ids: Vec<_> =
            groups(&[task("a"), task("b")], 3, 2).iter().map(|slot| (slot.group, slot.id())).collect();
        let expected = [(0, "a-0"), (0, "a-1"), (1, "b-0"), (1, "b-1"), (2, "a-2"), (2, "a-3")];
        assert_eq!(ids, expected.map(|(group, id)| (group, id.to_owned())));
        assert_eq!(groups(&[], 3, 2), []);
    }
}
