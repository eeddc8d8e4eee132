//! Where tasks come from, and loading them from there.

use std::path::PathBuf;

use super::builtin::builtin;
use super::dataset::{Dataset, DatasetOptions, read_jsonl};
use super::hub::{Hub, HubError, HubName, HubSettings};
use super::parquet::read_parquet;
use super::split::{Split, SplitOptions, split_builtin, split_dataset};
use super::{CodingTask, TaskError};

/// Where tasks come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TaskSource {
    /// Those we bring.
    Builtin,
    /// One of those we bring.
    BuiltinNamed(String),
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
            "builtin" => Self::Builtin,
            name if is_builtin => Self::BuiltinNamed(name.to_owned()),
            path => Self::File(path.into()),
        }
    }

    /// Loads all its tasks, with the rows that are none.
    pub async fn load(&self, options: &DatasetOptions, hub: &HubSettings) -> Result<Dataset, TaskError> {
        match self {
            Self::Builtin => Ok(without_skipped(builtin()?)),
            Self::BuiltinNamed(name) => Ok(without_skipped(named(name)?)),
            Self::File(path) if path.extension().is_some_and(|it| it == "parquet") => {
                let name = path.file_stem().map_or_else(|| "dataset".into(), |it| it.to_string_lossy());
                read_parquet(&[path], &name, options)
            }
            Self::File(path) => read_jsonl(path, options),
            Self::Hub { name, split } => {
                let parsed = HubName::parse(name).ok_or_else(|| HubError::BadName(name.clone()))?;
                let files = Hub::new(hub.clone()).parquet_files(&parsed, split).await?;
                read_parquet(&files, name, options)
            }
        }
    }

    /// Splits its tasks into those for training and those held out.
    pub fn split(&self, tasks: Vec<CodingTask>, options: &SplitOptions) -> Result<Split, TaskError> {
        match self {
            Self::Builtin | Self::BuiltinNamed(_) => split_builtin(tasks, options),
            Self::File(_) | Self::Hub { .. } => split_dataset(tasks, options),
        }
    }
}

fn named(name: &str) -> Result<Vec<CodingTask>, TaskError> {
    let tasks: Vec<CodingTask> = builtin()?.into_iter().filter(|it| it.task.id == name).collect();
    let none = || TaskError::Empty { name: name.to_owned(), reason: None };
    if tasks.is_empty() { Err(none()) } else { Ok(tasks) }
}

fn without_skipped(tasks: Vec<CodingTask>) -> Dataset {
    Dataset { tasks, skipped: Vec::new() }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;

    async fn n_tasks(text: &str) -> Result<usize, String> {
        let hub = HubSettings::from_variables(|_| None);
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
        let error = source.load(&DatasetOptions::default(), &HubSettings::from_variables(|_| None)).await;
        assert!(error.unwrap_err().to_string().starts_with("\"../etc\" is no name of a dataset"));
    }

    #[test]
    fn one_built_in_task_can_be_trained_on() {
        let source = TaskSource::parse("flatten");
        let split = source.split(named("flatten").unwrap(), &SplitOptions::default()).unwrap();
        assert_eq!((split.train.len(), split.eval.len()), (1, 0));
    }
}
