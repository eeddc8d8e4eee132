//! Splits tasks into those for training and those held out, the same way for the same seed.
//!
//! Pure. The order comes from a generator written out here, so that it is the same on every
//! machine and in every version.

use super::{CodingTask, TaskError};
use backsight_core::mix::next;

/// How many tasks are held out.
#[derive(Clone, Debug, PartialEq)]
pub struct SplitOptions {
    /// At least this many.
    pub eval_size: usize,
    /// At least this share.
    pub eval_split_ratio: f64,
    /// What the order comes from.
    pub seed: u64,
}

impl Default for SplitOptions {
    fn default() -> Self {
        Self { eval_size: 10, eval_split_ratio: 0.15, seed: 0 }
    }
}

/// Tasks for training and tasks held out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Split {
    /// For training; never empty.
    pub train: Vec<CodingTask>,
    /// Held out.
    pub eval: Vec<CodingTask>,
}

/// Splits a dataset: the larger of `eval_size` and the share is held out.
pub fn split_dataset(tasks: Vec<CodingTask>, options: &SplitOptions) -> Result<Split, TaskError> {
    let share = (checked_ratio(options)? * tasks.len() as f64).floor() as usize;
    take_eval(tasks, share.max(options.eval_size), options.seed)
}

/// Splits the built-in tasks, which are too few for a fixed size: the share is held out.
pub fn split_builtin(tasks: Vec<CodingTask>, options: &SplitOptions) -> Result<Split, TaskError> {
    let n_train = ((1.0 - checked_ratio(options)?) * tasks.len() as f64 + 1e-9).floor() as usize;
    let n_eval = tasks.len().saturating_sub(n_train.max(1));
    take_eval(tasks, n_eval, options.seed)
}

fn checked_ratio(options: &SplitOptions) -> Result<f64, TaskError> {
    let ratio = options.eval_split_ratio;
    if (0.0..1.0).contains(&ratio) { Ok(ratio) } else { Err(TaskError::BadRatio(ratio)) }
}

fn take_eval(mut tasks: Vec<CodingTask>, n_eval: usize, seed: u64) -> Result<Split, TaskError> {
    if n_eval >= tasks.len() {
        return Err(TaskError::NothingToTrain { n_tasks: tasks.len(), n_eval });
    }
    shuffle(&mut tasks, seed);
    let train = tasks.split_off(n_eval);
    Ok(Split { train, eval: tasks })
}

/// Fisher and Yates's shuffle with a SplitMix64 generator.
pub fn shuffle<T>(items: &mut [T], seed: u64) {
    let mut state = seed;
    for end in (1..items.len()).rev() {
        items.swap(end, below(&mut state, end as u64 + 1) as usize);
    }
}

/// A number below `bound`, every one equally likely.
fn below(state: &mut u64, bound: u64) -> u64 {
    // Numbers from the last, incomplete round would favour the small ones.
    let fair = u64::MAX - u64::MAX % bound;
    loop {
        let number = next(state);
        if number < fair {
            return number % bound;
        }
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::tasks::builtin::builtin;
    use backsight_core::episode::Task;

    fn tasks(n_tasks: usize) -> Vec<CodingTask> {
        let task = |idx: usize| Task { id: idx.to_string(), prompt: String::new(), difficulty: None };
        (0..n_tasks)
            .map(|idx| CodingTask {
                task: task(idx),
                asked: String::new(),
                check: None,
                tests_shown: false,
                references: Vec::new(),
            })
            .collect()
    }

    fn check(
        n_tasks: usize,
        eval_size: usize,
        eval_split_ratio: f64,
        expected: Result<(usize, usize), &str>,
    ) {
        let split = split_dataset(tasks(n_tasks), &SplitOptions { eval_size, eval_split_ratio, seed: 1 });
        let sizes = split.map(|it| (it.train.len(), it.eval.len())).map_err(|it| it.to_string());
        assert_eq!(sizes, expected.map_err(str::to_owned), "{n_tasks} tasks");
    }

    #[test]
    fn the_larger_of_size_and_share_is_held_out() {
        check(100, 10, 0.15, Ok((85, 15)));
        check(40, 10, 0.15, Ok((30, 10)));
        check(3, 0, 0.0, Ok((3, 0)));
    }

    #[test]
    fn an_empty_training_set_is_refused() {
        let help = "help: lower --eval-size or --eval-split-ratio, or give more tasks";
        check(10, 10, 0.15, Err(&format!("10 tasks with 10 held out leave none to train on\n{help}")));
        check(0, 0, 0.0, Err(&format!("0 tasks with 0 held out leave none to train on\n{help}")));
        let no_share = "which is no share\nhelp: give a number from 0 up to, but not including, 1";
        check(9, 1, 1.0, Err(&format!("eval_split_ratio is 1, {no_share}")));
        check(9, 1, f64::NAN, Err(&format!("eval_split_ratio is NaN, {no_share}")));
    }

    #[test]
    fn the_built_in_tasks_are_split_six_to_two() {
        let split = split_builtin(builtin().unwrap(), &SplitOptions::default()).unwrap();
        assert_eq!((split.train.len(), split.eval.len()), (6, 2));
    }

    #[test]
    fn the_order_depends_on_the_seed_alone() {
        let order = |seed| {
            let mut numbers: Vec<u32> = (0..10).collect();
            shuffle(&mut numbers, seed);
            numbers
        };
        assert_eq!(order(0), order(0));
        assert_ne!(order(0), order(1));
        // The generator's published first number for seed 0.
        assert_eq!(next(&mut 0), 0xe220_a839_7b1d_cdaf);
    }

    proptest! {
        #[test]
        fn nothing_is_lost(n_tasks in 0usize..50, eval_size in 0usize..20, ratio in 0.0f64..1.0, seed: u64) {
            let options = SplitOptions { eval_size, eval_split_ratio: ratio, seed };
            if let Ok(Split { train, eval }) = split_dataset(tasks(n_tasks), &options) {
                prop_assert!(!train.is_empty() && eval.len() >= eval_size);
                let mut ids: Vec<usize> = train.iter().chain(&eval).map(|it| it.task.id.parse().unwrap()).collect();
                ids.sort_unstable();
                prop_assert_eq!(ids, (0..n_tasks).collect::<Vec<_>>());
            }
        }
    }
}
