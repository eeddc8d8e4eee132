//! Where tasks come from, and loading them from there.

use std::collections::HashSet;
use std::path::PathBuf;

use super::builtin::builtin;
use super::dataset::{Dataset, DatasetOptions, Skipped, read_jsonl};
use super::hub::parquet_files;
use super::parquet::read_parquet;
use super::split::{Split, SplitOptions, shuffle, split_builtin, split_dataset};
use super::{CodingTask, TaskError};
use crate::hf::HuggingFace;

/// Where tasks come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TaskSource {
    /// Those we bring, or the one of that name.
    Builtin(Option<String>),
    /// A file: Parquet by its ending, JSON lines otherwise.
    File(PathBuf),
    /// A split of a dataset of the hub.
    Hub {
        /// The dataset, as `owner/name` or `owner/name:config`.
        name: String,
        /// The split.
        split: String,
    },
}

impl TaskSource {
    /// What was typed: `builtin`, the name of a built-in task, or a file.
    pub fn parse(text: &str) -> Self {
        let is_builtin = builtin().is_ok_and(|tasks| tasks.iter().any(|it| it.task.id == text));
        match text {
            "builtin" => Self::Builtin(None),
            name if is_builtin => Self::Builtin(Some(name.to_owned())),
            path => Self::File(path.into()),
        }
    }

    /// Loads all its tasks, with the rows that are none.
    pub async fn load(&self, options: &DatasetOptions, hub: &HuggingFace) -> Result<Dataset, TaskError> {
        match self {
            Self::Builtin(name) => {
                let is_wanted = |it: &CodingTask| name.as_ref().is_none_or(|name| it.task.id == *name);
                let tasks = builtin()?.into_iter().filter(is_wanted).collect();
                Dataset { tasks, skipped: Vec::new() }.or_empty(name.as_deref().unwrap_or("builtin"))
            }
            Self::File(path) if path.extension().is_some_and(|it| it == "parquet") => {
                let name = path.file_stem().map_or_else(|| "dataset".into(), |it| it.to_string_lossy());
                read_parquet(&[path], &name, options)
            }
            Self::File(path) => read_jsonl(path, options),
            Self::Hub { name, split } => read_parquet(&parquet_files(hub, name, split).await?, name, options),
        }
    }
}

/// The tasks of several sources together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loaded {
    /// The tasks in the order of their sources, no two with the same id.
    pub tasks: Vec<CodingTask>,
    /// The rows that are none, each with the source it is in.
    pub skipped: Vec<(TaskSource, Skipped)>,
}

/// Loads all sources; at least one task, or an error.
pub async fn load_all(
    sources: &[TaskSource],
    options: &DatasetOptions,
    hub: &HuggingFace,
) -> Result<Loaded, TaskError> {
    let mut loaded = Loaded { tasks: Vec::new(), skipped: Vec::new() };
    for source in sources {
        let Dataset { tasks, skipped } = source.load(options, hub).await?;
        loaded.tasks.extend(tasks);
        loaded.skipped.extend(skipped.into_iter().map(|it| (source.clone(), it)));
    }
    make_ids_unique(&mut loaded.tasks);
    Ok(loaded)
}

/// Splits the tasks of `sources` into those for training and those held out.
///
/// Of tasks that were named one by one none is held out: whoever names a task wants it.
pub fn split_all(
    sources: &[TaskSource],
    mut tasks: Vec<CodingTask>,
    options: &SplitOptions,
) -> Result<Split, TaskError> {
    if are_named(sources) && !tasks.is_empty() {
        shuffle(&mut tasks, options.seed);
        return Ok(Split { train: tasks, eval: Vec::new() });
    }
    match sources {
        [TaskSource::Builtin(None)] => split_builtin(tasks, options),
        _ => split_dataset(tasks, options),
    }
}

/// Whether every task was named by itself.
pub fn are_named(sources: &[TaskSource]) -> bool {
    sources.iter().all(|source| matches!(source, TaskSource::Builtin(Some(_))))
}

/// Episodes are known by their task's id, so of equal ones the later get a number.
fn make_ids_unique(tasks: &mut [CodingTask]) {
    let mut seen: HashSet<String> = HashSet::new();
    for task in tasks {
        let id = &mut task.task.id;
        let numbered = |n: usize| format!("{id}~{n}");
        let free = (2..).map(numbered).find(|it| !seen.contains(it));
        if seen.contains(id) {
            *id = free.unwrap_or_default();
        }
        seen.insert(id.clone());
    }
}

impl std::fmt::Display for TaskSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Builtin(None) => f.write_str("builtin"),
            Self::Builtin(Some(name)) | Self::Hub { name, .. } => f.write_str(name),
            Self::File(path) => path.display().fmt(f),
        }
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;

    async fn n_tasks(text: &str) -> Result<usize, String> {
        let hub = HuggingFace::from_env(|_| None).unwrap();
        let loaded = TaskSource::parse(text).load(&DatasetOptions::default(), &hub).await;
        loaded.map(|it| it.tasks.len()).map_err(|error| error.to_string())
    }

    #[tokio::test]
    async fn sources_are_told_apart() {
        let dir = tempfile::tempdir().unwrap();
        let jsonl = dir.path().join("tasks.jsonl");
        std::fs::write(&jsonl, "{\"task\": \"T\", \"tests\": \"assert True\"}\n").unwrap();
        assert_eq!(n_tasks("builtin").await, Ok(8));
        assert_eq!(n_tasks("flatten").await, Ok(1));
        assert_eq!(n_tasks(jsonl.to_str().unwrap()).await, Ok(1));
        let parquet = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/datasets/tasks.zstd.parquet");
        assert_eq!(n_tasks(parquet).await, Ok(2));
        assert!(n_tasks("no such file").await.unwrap_err().contains("no such file"));
    }

    #[tokio::test]
    async fn a_bad_name_is_refused_before_anything_is_asked() {
        let source = TaskSource::Hub { name: "../etc".into(), split: "train".into() };
        let error = source.load(&DatasetOptions::default(), &HuggingFace::from_env(|_| None).unwrap()).await;
        assert!(error.unwrap_err().to_string().starts_with("\"../etc\" is no name of a dataset"));
    }

    async fn split(texts: &[&str], options: &SplitOptions) -> Result<(usize, usize), String> {
        let sources: Vec<TaskSource> = texts.iter().map(|text| TaskSource::parse(text)).collect();
        let hub = HuggingFace::from_env(|_| None).unwrap();
        let loaded = load_all(&sources, &DatasetOptions::default(), &hub).await.unwrap();
        let split = split_all(&sources, loaded.tasks, options).map_err(|error| error.to_string())?;
        Ok((split.train.len(), split.eval.len()))
    }

    #[tokio::test]
    async fn named_tasks_are_all_trained_on_and_files_are_split() {
        let options = SplitOptions::default();
        assert_eq!(split(&["flatten"], &options).await, Ok((1, 0)));
        assert_eq!(split(&["flatten", "two_sum"], &options).await, Ok((2, 0)));
        assert_eq!(split(&["builtin"], &options).await, Ok((6, 2)));
        let parquet = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/datasets/tasks.zstd.parquet");
        let two = SplitOptions { eval_size: 2, ..SplitOptions::default() };
        assert_eq!(split(&[parquet, "flatten"], &two).await, Ok((1, 2)));
        let none_left = split(&[parquet], &options).await.unwrap_err();
        assert!(none_left.starts_with("2 tasks with 10 held out leave none to train on"), "{none_left}");
    }

    #[tokio::test]
    async fn tasks_of_several_files_keep_apart() {
        let parquet = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/datasets/tasks.zstd.parquet");
        let sources = [parquet, parquet, parquet].map(TaskSource::parse);
        let hub = HuggingFace::from_env(|_| None).unwrap();
        let loaded = load_all(&sources, &DatasetOptions::default(), &hub).await.unwrap();
        let ids: Vec<&str> = loaded.tasks.iter().map(|it| it.task.id.as_str()).collect();
        assert_eq!(ids, ["7", "9", "7~2", "9~2", "7~3", "9~3"]);
        assert_eq!(loaded.skipped.len(), 3);
        assert_eq!(loaded.skipped[0].0.to_string(), parquet);
    }
}
