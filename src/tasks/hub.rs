//! Datasets of the Hugging Face hub: which of a repository's Parquet files are a split.
//!
//! The hub makes Parquet files of every dataset it can read, as `CONFIG/SPLIT/0000.parquet` on a branch of its own; of a
//! split that is too large it makes the beginning, as `partial-SPLIT`. Owns that choice; fetching is left to `hf`.

use std::path::PathBuf;

use super::TaskError;
use crate::hf::{HubError, HuggingFace, Repo, is_part};

/// A dataset on the hub: `owner/name`, or `owner/name:config`.
fn parse(text: &str) -> Option<(&str, Option<&str>)> {
    let (repo, config) = text.split_once(':').map_or((text, None), |(repo, config)| (repo, Some(config)));
    let is_fine = repo.split('/').count() <= 2 && repo.split('/').chain(config).all(is_part);
    is_fine.then_some((repo, config))
}

/// The Parquet files of one split of a dataset, as local copies in order. Those of the newest commit are fetched once.
pub async fn parquet_files(hub: &HuggingFace, name: &str, split: &str) -> Result<Vec<PathBuf>, TaskError> {
    let (name, config) = parse(name).ok_or_else(|| TaskError::BadName(name.to_owned()))?;
    let repo = Repo::dataset(name);
    let listing = hub.files(&repo).await.map_err(|error| match error {
        HubError::NotFound { .. } => TaskError::NoParquet(name.to_owned()),
        other => other.into(),
    })?;
    let repo = repo.at(&listing.commit);
    let mut paths = Vec::new();
    for file in choose(&listing.files, (name, config), split)? {
        paths.push(hub.fetch(&repo, file, &|_, _| {}).await?);
    }
    Ok(paths)
}

/// Configuration and split of a Parquet file.
fn place(path: &str) -> Option<(&str, &str)> {
    let (config, rest) = path.split_once('/')?;
    let (split, file) = rest.split_once('/')?;
    file.ends_with(".parquet").then_some((config, split.strip_prefix("partial-").unwrap_or(split)))
}

/// The files of a split: of the configuration that was named, else of the default one, else of the first that has it.
fn choose<'f>(
    files: &'f [String],
    (name, config): (&str, Option<&str>),
    split: &str,
) -> Result<Vec<&'f str>, TaskError> {
    let placed = || files.iter().filter_map(|file| Some((place(file)?, file.as_str())));
    let configs: Vec<&str> =
        placed().filter(|((_, of), _)| *of == split).map(|((config, _), _)| config).collect();
    let default = || configs.iter().find(|it| **it == "default").or(configs.first()).copied();
    let config = config.or_else(default);
    let mut chosen: Vec<&str> =
        placed().filter(|(at, _)| config.is_some_and(|it| *at == (it, split))).map(|it| it.1).collect();
    chosen.sort_unstable();
    if !chosen.is_empty() {
        return Ok(chosen);
    }
    let mut available: Vec<String> =
        placed().map(|((config, split), _)| format!("{config}/{split}")).collect();
    available.dedup();
    let (name, split, available) = (name.to_owned(), split.to_owned(), available.join(", "));
    Err(TaskError::NoSplit { name, split, available })
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_lead_elsewhere() {
        assert_eq!(parse("owner/name"), Some(("owner/name", None)));
        assert_eq!(parse("name:main"), Some(("name", Some("main"))));
        for bad in ["", "a/b/c", "../x", "a/..", "a b", "a/b:", "a/b:../c", "a?b", "/a"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }

    fn check(name: &str, split: &str, expected: Result<&[&str], &str>) {
        let files = [
            "README.md",
            "hard/train/0000.parquet",
            "default/train/0001.parquet",
            "default/train/0000.parquet",
            "default/partial-test/0000.parquet",
        ];
        let files = files.map(str::to_owned);
        let chosen = choose(&files, parse(name).unwrap(), split);
        let chosen = chosen.map_err(|error| error.to_string().lines().next().unwrap().to_owned());
        assert_eq!(chosen.as_deref().map_err(String::as_str), expected);
    }

    #[test]
    fn the_split_is_looked_for_in_the_right_configuration() {
        check("o/n", "train", Ok(&["default/train/0000.parquet", "default/train/0001.parquet"]));
        check("o/n:hard", "train", Ok(&["hard/train/0000.parquet"]));
        check("o/n", "test", Ok(&["default/partial-test/0000.parquet"]));
        let available = "it has hard/train, default/train, default/test";
        check("o/n:hard", "test", Err(&format!("dataset o/n has no split \"test\"; {available}")));
        check("o/n", "evil", Err(&format!("dataset o/n has no split \"evil\"; {available}")));
    }
}
