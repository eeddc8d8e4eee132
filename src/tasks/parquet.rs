//! Datasets as Parquet files, read row by row.

use std::fs::File;
use std::path::Path;

use parquet::errors::ParquetError;
use parquet::file::reader::{FileReader, SerializedFileReader};

use super::TaskError;
use super::dataset::{Dataset, DatasetOptions, read_row};

/// Reads Parquet files as one dataset; `name` begins the ids of rows that have none.
pub fn read_parquet(
    paths: &[impl AsRef<Path>],
    name: &str,
    options: &DatasetOptions,
) -> Result<Dataset, TaskError> {
    let mut dataset = Dataset::default();
    let mut read = |path: &Path| -> Result<(), ParquetError> {
        let reader = SerializedFileReader::new(File::open(path)?)?;
        for row in reader.get_row_iter(None)? {
            let idx = dataset.tasks.len() + dataset.skipped.len();
            dataset.take(idx, read_row(&row?.to_json_value(), name, idx, options));
        }
        Ok(())
    };
    for path in paths.iter().map(AsRef::as_ref) {
        let unreadable =
            |error| TaskError::Unreadable { path: path.to_owned(), error: std::io::Error::other(error) };
        read(path).map_err(unreadable)?;
    }
    dataset.or_empty(name)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;

    fn fixture(name: &str) -> String {
        format!("{}/tests/fixtures/datasets/{name}", env!("CARGO_MANIFEST_DIR"))
    }

    #[test]
    fn every_compression_gives_the_same_tasks() {
        for compression in ["snappy", "zstd", "gzip", "none"] {
            let path = fixture(&format!("tasks.{compression}.parquet"));
            let dataset = read_parquet(&[path], "set", &DatasetOptions::default()).unwrap();
            let read: Vec<_> = dataset
                .tasks
                .iter()
                .map(|it| {
                    (
                        it.task.id.as_str(),
                        it.task.difficulty.as_deref(),
                        it.check.as_ref().map_or(0, |it| it.texts()[1].lines().count()),
                    )
                })
                .collect();
            assert_eq!(read, [("7", Some("easy"), 2), ("9", None, 2)], "{compression}");
            let skipped: Vec<_> =
                dataset.skipped.iter().map(|it| (it.line, it.reason.split(':').next())).collect();
            assert_eq!(skipped, [(2, Some("it has no question"))]);
        }
    }

    #[test]
    fn several_files_are_one_dataset() {
        let paths = ["tasks.zstd.parquet", "tasks.none.parquet"].map(fixture);
        let dataset = read_parquet(&paths, "set", &DatasetOptions::default()).unwrap();
        assert_eq!(dataset.tasks.len(), 4);
        assert_eq!(dataset.skipped.iter().map(|it| it.line).collect::<Vec<_>>(), [2, 5]);
    }

    #[test]
    fn a_file_that_is_none_is_an_error() {
        for path in ["make_parquet.py", "nothing.parquet"].map(fixture) {
            let error = read_parquet(&[&path], "set", &DatasetOptions::default()).unwrap_err().to_string();
            assert!(error.contains(&path) && error.contains("help:"), "{error}");
        }
    }
}
