//! The run directory: what one run keeps, and that one process at a time keeps it.
//!
//! Owns [`RunDir`]: the lock, `config.toml` and the refusal of another configuration, `episodes/`,
//! `events.jsonl`, `metrics.jsonl` and `summary.json`. Everything but the journals is written whole or
//! not at all. The ledger stands in the same directory and is opened with the lock this holds.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;
use toml::Table;

use super::atomic;
use super::episodes::{LoadError, Source, load};
use super::hindsight::file_name;
use super::journal::Journal;
use super::lock::{LockError, RunLock};
use super::summary::{SUMMARY, Summary};
use crate::config::{Config, ConfigError, Difference, File, parse_toml};
use crate::wire::episode_record;
use backsight_core::episode::Episode;

/// The configuration a run was made with.
pub const CONFIG_FILE: &str = "config.toml";
/// Where episodes are.
pub const EPISODES: &str = "episodes";

/// Why a run directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// It cannot be locked.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// It was made with another configuration.
    #[error("{} was made with another configuration: {}", dir.display(), listed(differences))]
    OtherConfig {
        /// The directory.
        dir: PathBuf,
        /// The keys that differ.
        differences: Vec<Difference>,
    },
    /// Its own configuration cannot be read.
    #[error("{0}")]
    BadConfig(ConfigError),
    /// A file cannot be read or written.
    #[error("{}: {error}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
}

impl RunError {
    /// What the user can do about it.
    pub fn help(&self) -> &'static str {
        match self {
            Self::Lock(error) => error.help(),
            Self::OtherConfig { .. } => {
                "give the same configuration to continue, or choose another directory with --run"
            }
            Self::BadConfig(_) => "choose another directory with --run",
            Self::File { .. } => "free some space or mend the directory; the same command continues",
        }
    }

    /// Whether the user asked for something wrong, as opposed to bad luck.
    pub fn is_usage(&self) -> bool {
        matches!(self, Self::OtherConfig { .. } | Self::BadConfig(_))
    }
}

fn listed(differences: &[Difference]) -> String {
    differences.iter().map(Difference::to_string).collect::<Vec<_>>().join(", ")
}

/// What tasks' own solutions came to.
const REFERENCES: &str = "references.jsonl";

/// A run directory that is ours.
#[derive(Debug)]
pub struct RunDir {
    lock: Arc<RunLock>,
    events: Journal,
    metrics: Journal,
    references: Journal,
}

impl RunDir {
    /// Locks `dir`, which is made if need be.
    pub fn open(dir: &Path) -> Result<Self, RunError> {
        let lock = Arc::new(RunLock::acquire(dir)?);
        let journal = |name: &str| {
            let path = dir.join(name);
            Journal::open(&path).map_err(|error| RunError::File { path, error })
        };
        let (events, metrics) = (journal("events.jsonl")?, journal("metrics.jsonl")?);
        let references = journal(REFERENCES)?;
        let episodes = dir.join(EPISODES);
        let prepared = fs::create_dir_all(&episodes).and_then(|()| atomic::sweep(dir, |_| true));
        let prepared = prepared.and_then(|()| atomic::sweep(&episodes, |_| true));
        prepared.map_err(|error| RunError::File { path: episodes, error })?;
        Ok(Self { lock, events, metrics, references })
    }

    /// The directory.
    pub fn dir(&self) -> &Path {
        self.lock.dir()
    }

    /// The lock, for the ledger.
    pub fn lock(&self) -> Arc<RunLock> {
        Arc::clone(&self.lock)
    }

    /// The configuration it was made with; none for a new one.
    pub fn stored_config(&self) -> Result<Option<Table>, RunError> {
        let path = self.dir().join(CONFIG_FILE);
        let text = match fs::read_to_string(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(RunError::File { path, error }),
            Ok(text) => text,
        };
        let file = File { name: &path.display().to_string(), text: &text };
        parse_toml(file).map(Some).map_err(RunError::BadConfig)
    }

    /// Takes `config` for this run, or refuses it because the directory was made with another one.
    pub fn keep_config(&self, config: &Config) -> Result<(), RunError> {
        if let Some(stored) = self.stored_config()? {
            let differences = config.differences(&stored);
            if !differences.is_empty() {
                return Err(RunError::OtherConfig { dir: self.dir().to_owned(), differences });
            }
        }
        self.write(CONFIG_FILE, config.to_toml().as_bytes())
    }

    /// The recorded episode of that id; none if there is none, or it cannot be read.
    pub fn episode(&self, id: &str) -> Option<Episode> {
        let path = self.dir().join(EPISODES).join(format!("{}.json", file_name(id)));
        let loaded: Result<_, LoadError> = load(vec![Source::Record(path)]).next()?;
        loaded.ok().map(|it| it.episode).filter(|episode| episode.id == id)
    }

    /// Records an episode, in place of an earlier one of the same id.
    pub fn keep_episode(&self, episode: &Episode) -> Result<(), RunError> {
        let name = format!("{EPISODES}/{}.json", file_name(&episode.id));
        let json = episode_record::to_json(episode).map_err(|error| RunError::File {
            path: self.dir().join(&name),
            error: io::Error::other(error),
        })?;
        self.write(&name, format!("{json}\n").as_bytes())
    }

    /// Records what happened.
    pub fn add_event(&self, event: &Value) -> Result<(), RunError> {
        self.events.add(event).map_err(|error| self.failed("events.jsonl", error))
    }

    /// Records a row of metrics.
    pub fn add_metrics(&self, row: &Value) -> Result<(), RunError> {
        self.metrics.add(row).map_err(|error| self.failed("metrics.jsonl", error))
    }

    /// Records what a task's own solution came to.
    pub fn add_reference(&self, row: &Value) -> Result<(), RunError> {
        self.references.add(row).map_err(|error| self.failed(REFERENCES, error))
    }

    /// What tasks' own solutions came to.
    pub fn references(&self) -> Vec<Value> {
        self.lines(REFERENCES)
    }

    /// The rows of metrics there are.
    pub fn metrics(&self) -> Vec<Value> {
        self.lines("metrics.jsonl")
    }

    /// What happened so far.
    pub fn events(&self) -> Vec<Value> {
        self.lines("events.jsonl")
    }

    fn lines(&self, name: &str) -> Vec<Value> {
        let text = fs::read_to_string(self.dir().join(name)).unwrap_or_default();
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// Records what became of the run.
    pub fn keep_summary(&self, summary: &Summary) -> Result<(), RunError> {
        self.write(SUMMARY, format!("{:#}\n", summary.to_json()).as_bytes())
    }

    /// Writes a file of the run, whole or not at all.
    pub fn write(&self, name: &str, content: &[u8]) -> Result<(), RunError> {
        let path = self.dir().join(name);
        atomic::write(&path, content).map_err(|error| self.failed(name, error))
    }

    fn failed(&self, name: &str, error: io::Error) -> RunError {
        RunError::File { path: self.dir().join(name), error }
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;
    use crate::config::Typed;
    use backsight_core::episode::{Message, Role, Task};

    fn config(seed: &str) -> Config {
        let typed: Typed = [("seed", vec![seed.to_owned()])].into();
        Config::resolve("collect", None, &typed).unwrap()
    }

    fn episode(id: &str) -> Episode {
        let task = Task { id: "t".into(), prompt: "p".into(), difficulty: None };
        Episode::new(id, task, vec![Message::text(Role::User, "p")])
    }

    #[test]
    fn another_configuration_is_refused_by_its_keys() {
        let dir = tempfile::tempdir().unwrap();
        RunDir::open(dir.path()).unwrap().keep_config(&config("1")).unwrap();
        let run = RunDir::open(dir.path()).unwrap();
        run.keep_config(&config("1")).unwrap();
        let refused = run.keep_config(&config("2")).unwrap_err();
        assert!(
            refused.to_string().ends_with("was made with another configuration: seed (was 1, now 2)"),
            "{refused}"
        );
        assert!(refused.is_usage());
        run.keep_config(&config("1")).unwrap();
    }

    #[test]
    fn one_process_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let first = RunDir::open(dir.path()).unwrap();
        assert!(matches!(RunDir::open(dir.path()), Err(RunError::Lock(LockError::InUse { .. }))));
        drop(first);
        assert!(RunDir::open(dir.path()).is_ok());
    }

    #[test]
    fn episodes_of_any_id_come_back() {
        let dir = tempfile::tempdir().unwrap();
        let run = RunDir::open(dir.path()).unwrap();
        let long = "x".repeat(400);
        for id in ["flatten-0", "a/b", "../../etc/passwd", ".hidden", "ä ö", &long, "a_b", ""] {
            assert_eq!(run.episode(id), None);
            run.keep_episode(&episode(id)).unwrap();
            assert_eq!(run.episode(id), Some(episode(id)), "{id}");
        }
        assert_eq!(fs::read_dir(dir.path().join(EPISODES)).unwrap().count(), 8);
    }

    #[test]
    fn what_a_killed_run_was_writing_is_taken_away() {
        let dir = tempfile::tempdir().unwrap();
        drop(RunDir::open(dir.path()).unwrap());
        let left = ["episodes/.a.json.17.tmp", ".summary.json.17.tmp"].map(|name| dir.path().join(name));
        left.iter().for_each(|path| fs::write(path, "{").unwrap());
        let _run = RunDir::open(dir.path()).unwrap();
        assert!(!left.iter().any(|path| path.exists()));
    }

    #[test]
    fn half_an_episode_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let run = RunDir::open(dir.path()).unwrap();
        fs::write(dir.path().join("episodes/a.json"), "{\"format\": \"backsi").unwrap();
        assert_eq!(run.episode("a"), None);
    }
}
