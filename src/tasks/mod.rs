//! Tasks: what a student is asked, with the hidden tests that decide.
//!
//! Owns the built-in tasks, datasets as JSON lines, Parquet files or repositories of the Hugging Face
//! hub in the layouts they are published in, how a solution is judged, the prompt around a task, and
//! splitting tasks into those for training and those held out. Running tests is left to the agent's verifier.

pub(crate) mod builtin;
mod calls;
pub(crate) mod check;
pub(crate) mod dataset;
pub(crate) mod hub;
pub(crate) mod layout;
mod packed;
pub(crate) mod parquet;
pub(crate) mod prompt;
mod row;
pub(crate) mod source;
pub(crate) mod split;

pub use self::builtin::builtin;
pub(crate) use self::calls::is_identifier;
pub use self::check::{Case, Check, Stdio};
pub use self::dataset::{Dataset, DatasetOptions, Skipped, read_jsonl};

use std::path::PathBuf;

use crate::hf::HubError;
use backsight_core::episode::Task;

/// A task whose solution is a program, with the tests that check it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CodingTask {
    /// What the student is told.
    pub task: Task,
    /// What is asked, as its author wrote it: without the words around it in the prompt.
    pub asked: String,
    /// How its solution is judged. Absent where a command of the user's decides.
    pub check: Option<Check>,
    /// Whether the prompt quotes tests that decide.
    pub tests_shown: bool,
    /// Solutions that are known, the likeliest first. Never shown; they tell whether the check can be used.
    pub references: Vec<String>,
}

/// A sum over everything in the tasks, in their order.
pub fn sum_of(tasks: &[CodingTask]) -> String {
    check::sum_of(tasks.iter().flat_map(|CodingTask { task, check, .. }| {
        [task.id.as_str(), &task.prompt].into_iter().chain(check.iter().flat_map(Check::texts))
    }))
}

/// Why there are no tasks.
#[derive(Debug, thiserror::Error)]
pub enum TaskError {
    /// A file cannot be read.
    #[error("tasks cannot be read from {path}: {error}\nhelp: check --tasks")]
    Unreadable {
        /// Which file.
        path: PathBuf,
        /// Why not.
        error: std::io::Error,
    },
    /// Every row is unusable.
    #[error("{name} holds no usable task{}\nhelp: name the columns with --prompt-field and --test-field", first(.reason))]
    Empty {
        /// The dataset.
        name: String,
        /// Why its first row is unusable.
        reason: Option<String>,
    },
    /// The hub does not give a dataset.
    #[error("{}\nhelp: {}", .0, .0.help())]
    Hub(#[from] HubError),
    /// No name that the hub would take.
    #[error("{0:?} is no name of a dataset\nhelp: write --dataset-name owner/name, or owner/name:config")]
    BadName(String),
    /// There is no such dataset, or it has no Parquet files.
    #[error(
        "the hub has no Parquet files for dataset {0}\nhelp: check --dataset-name; datasets that need code to load have none, private ones need HF_TOKEN"
    )]
    NoParquet(String),
    /// There is no such split.
    #[error(
        "dataset {name} has no split {split:?}; it has {available}\nhelp: choose one with --dataset-split, a configuration with owner/name:config"
    )]
    NoSplit {
        /// The dataset.
        name: String,
        /// What was asked for.
        split: String,
        /// What there is, as `config/split`.
        available: String,
    },
    /// A built-in task is not what it should be.
    #[error("the built-in task {name} cannot be read: {reason}")]
    BadBuiltin {
        /// Which one.
        name: &'static str,
        /// What is wrong.
        reason: String,
    },
    /// Nothing would be left to train on.
    #[error(
        "{n_tasks} tasks with {n_eval} held out leave none to train on\nhelp: lower --eval-size or --eval-split-ratio, or give more tasks"
    )]
    NothingToTrain {
        /// How many there are.
        n_tasks: usize,
        /// How many would be held out.
        n_eval: usize,
    },
    /// A share that is none.
    #[error(
        "eval_split_ratio is {0}, which is no share\nhelp: give a number from 0 up to, but not including, 1"
    )]
    BadRatio(f64),
}

fn first(reason: &Option<String>) -> String {
    reason.as_ref().map_or(String::new(), |reason| format!(" (first row: {reason})"))
}
