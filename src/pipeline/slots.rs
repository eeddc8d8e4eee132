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

/// What a run is to consist of, before it is known which tasks can be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chosen {
    /// The tasks, in order.
    pub tasks: Vec<Arc<CodingTask>>,
    /// How many groups there are to be.
    pub n_groups: usize,
    /// How many attempts make a group.
    pub group_size: usize,
}

impl Chosen {
    /// How many usable tasks it needs.
    pub fn n_wanted(&self) -> usize {
        self.n_groups.min(self.tasks.len())
    }

    /// The episodes there are to be of the tasks that can be used. With as many tasks as groups, each task is for one
    /// group: where too many are refused, there are fewer groups.
    pub fn slots(&self, usable: &[Arc<CodingTask>]) -> Vec<Slot> {
        let comes_again = self.n_groups > self.tasks.len();
        let n_groups = if comes_again { self.n_groups } else { self.n_groups.min(usable.len()) };
        groups(usable, n_groups, self.group_size)
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
pub(super) mod tests {
    use super::*;
    use backsight_core::episode::Task;

    pub(in crate::pipeline) fn task(id: &str) -> Arc<CodingTask> {
        let task = Task { id: id.to_owned(), prompt: String::new(), difficulty: None };
        let asked = "p".repeat(300);
        Arc::new(CodingTask { task, asked, check: None, tests_shown: false, references: Vec::new() })
    }

    #[test]
    fn no_two_episodes_have_the_same_name() {
        let ids: Vec<_> =
            groups(&[task("a"), task("b")], 3, 2).iter().map(|slot| (slot.group, slot.id())).collect();
        let expected = [(0, "a-0"), (0, "a-1"), (1, "b-0"), (1, "b-1"), (2, "a-2"), (2, "a-3")];
        assert_eq!(ids, expected.map(|(group, id)| (group, id.to_owned())));
        assert_eq!(groups(&[], 3, 2), []);
    }

    #[test]
    fn refused_tasks_are_replaced_while_there_are_others() {
        let tasks: Vec<_> = ["a", "b", "c"].map(task).into();
        let chosen = |n_groups| Chosen { tasks: tasks.clone(), n_groups, group_size: 1 };
        let ids = |n_groups, usable: &[usize]| {
            let usable: Vec<_> = usable.iter().map(|idx| Arc::clone(&tasks[*idx])).collect();
            chosen(n_groups).slots(&usable).iter().map(Slot::id).collect::<Vec<_>>()
        };
        assert_eq!((chosen(2).n_wanted(), chosen(7).n_wanted()), (2, 3));
        assert_eq!(ids(2, &[0, 2]), ["a-0", "c-0"]);
        assert_eq!(ids(3, &[0, 2]), ["a-0", "c-0"]);
        assert_eq!(ids(5, &[0, 2]), ["a-0", "c-0", "a-1", "c-1", "a-2"]);
    }
}
