//! A run directory as others see it: read without its lock, also while a process works on it.
//!
//! Owns [`RunReader`]. Files are written whole or grow by whole lines, so whatever is read here is something that was true:
//! a reader that follows a run asks for the lines behind those it has seen.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use toml::Table;

use super::episodes::{BadFile, Source, find, load};
use super::hindsight::{file_name, scores_file};
use super::layout::{CONFIG_FILE, EPISODES, EVENTS, METRICS, SUMMARY, VERDICTS};
use backsight_core::episode::Episode;

/// A run directory, for reading.
#[derive(Clone, Debug)]
pub struct RunReader {
    dir: PathBuf,
}

impl RunReader {
    /// Of a directory that is a run's.
    pub fn new(dir: &Path) -> Self {
        Self { dir: dir.to_owned() }
    }

    /// The directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// What was asked for, by stage; empty before the first.
    pub fn config(&self) -> io::Result<Table> {
        let text = or_nothing(fs::read_to_string(self.dir.join(CONFIG_FILE)))?;
        text.parse().map_err(io::Error::other)
    }

    /// How many episodes of one task were made to be compared with each other, where that is known.
    pub fn group_size(&self) -> Option<usize> {
        let size = self.config().ok()?.get("collect")?.get("group_size")?.as_integer()?;
        usize::try_from(size).ok().filter(|it| *it > 0)
    }

    /// What became of the stages that ended; empty before the first.
    pub fn summary(&self) -> io::Result<Map<String, Value>> {
        Ok(json(&self.dir.join(SUMMARY))?.unwrap_or_default())
    }

    /// What happened behind the first `at` bytes of the journal, and how many bytes there are then.
    pub fn events_from(&self, at: u64) -> io::Result<(Vec<Value>, u64)> {
        self.lines_from(EVENTS, at)
    }

    /// The rows of metrics behind the first `at` bytes, in the same way.
    pub fn metrics_from(&self, at: u64) -> io::Result<(Vec<Value>, u64)> {
        self.lines_from(METRICS, at)
    }

    /// The votes on pairs; of several lines about one, the last counts.
    pub fn verdicts(&self) -> Vec<Value> {
        self.lines_from(VERDICTS, 0).unwrap_or_default().0
    }

    /// The whole lines of a journal; one that a crash cut short is passed over.
    pub(super) fn lines_from(&self, name: &str, at: u64) -> io::Result<(Vec<Value>, u64)> {
        let mut text = Vec::new();
        or_nothing(File::open(self.dir.join(name)).and_then(|mut file| {
            file.seek(SeekFrom::Start(at))?;
            file.read_to_end(&mut text)
        }))?;
        let end = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |it| it + 1);
        let lines = text[..end].split(|byte| *byte == b'\n');
        Ok((lines.filter_map(|line| serde_json::from_slice(line).ok()).collect(), at + end as u64))
    }

    /// The recorded episodes there are, in natural order of their names.
    pub fn episodes(&self) -> Vec<Episode> {
        load(find(&self.dir.join(EPISODES)).unwrap_or_default()).flatten().map(|it| it.episode).collect()
    }

    /// The recorded episode of that id; none if there is none, or it cannot be read.
    pub fn episode(&self, id: &str) -> Option<Episode> {
        let path = self.dir.join(EPISODES).join(format!("{}.json", file_name(id)));
        let loaded: Result<_, BadFile> = load(vec![Source::Record(path)]).next()?;
        loaded.ok().map(|it| it.episode).filter(|episode| episode.id == id)
    }

    /// An episode's scores through a lens, named with its placement.
    pub fn scores(&self, id: &str, lens: &str) -> io::Result<Option<Value>> {
        json(&self.dir.join(EPISODES).join(file_name(id)).join(scores_file(lens)))
    }
}

/// What a JSON file holds; nothing while there is none.
fn json<T: DeserializeOwned>(path: &Path) -> io::Result<Option<T>> {
    match or_nothing(fs::read(path))?.as_slice() {
        [] => Ok(None),
        text => serde_json::from_slice(text).map(Some).map_err(io::Error::other),
    }
}

/// What a file that is not there yet holds.
fn or_nothing<T: Default>(read: io::Result<T>) -> io::Result<T> {
    match read {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(T::default()),
        read => read,
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_follower_sees_each_whole_line_once() {
        let dir = tempfile::tempdir().unwrap();
        let view = RunReader::new(dir.path());
        assert_eq!(view.events_from(0).unwrap(), (vec![], 0));
        assert!(view.config().unwrap().is_empty() && view.summary().unwrap().is_empty());
        fs::write(dir.path().join(EVENTS), "{\"n\": 1}\n{\"n\":").unwrap();
        let (events, at) = view.events_from(0).unwrap();
        assert_eq!((events, at), (vec![json!({"n": 1})], 9));
        fs::write(dir.path().join(EVENTS), "{\"n\": 1}\n{\"n\": 2}\n").unwrap();
        assert_eq!(view.events_from(at).unwrap(), (vec![json!({"n": 2})], 18));
    }
}
