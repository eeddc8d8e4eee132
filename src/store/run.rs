//! The run directory: what all stages of a run keep, and that one process at a time keeps it.
//!
//! Owns [`RunDir`], which works on one stage: the lock, the stage's section of `config.toml` and `summary.json` and the
//! refusal of another configuration, `episodes/`, and the journals, whose lines name the stage. What other stages wrote
//! stays as it is. Everything but the journals is written whole or not at all. The ledger stands in the same directory
//! and is opened with the lock this holds; who only reads takes a [`RunReader`].

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Value, json};
use toml::Table;

use super::atomic;
use super::episodes::BadFile;
use super::hindsight::file_name;
use super::journal::Journal;
use super::layout::{CONFIG_FILE, EPISODES, EVENTS, METRICS, SUMMARY, VERDICTS};
use super::lock::{LockError, RunLock};
use super::reader::RunReader;
use super::summary::Summary;
use crate::config::{Config, Difference, FOUND};
use crate::wire::episode_record;
use backsight_core::episode::Episode;

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
    /// It holds episodes that another stage made.
    #[error("{} holds the episodes of `{stage}`", dir.display())]
    OtherEpisodes {
        /// The directory.
        dir: PathBuf,
        /// Who made them.
        stage: &'static str,
    },
    /// A file cannot be read or written.
    #[error(transparent)]
    File(#[from] BadFile),
}

impl RunError {
    /// What the user can do about it.
    pub fn help(&self) -> &'static str {
        match self {
            Self::Lock(error) => error.help(),
            Self::OtherConfig { .. } => {
                "give the same configuration to continue, or choose another directory with --run"
            }
            Self::OtherEpisodes { .. } => "choose another directory with --run",
            Self::File(_) => "free some space or mend the directory; the same command continues",
        }
    }

    /// Whether the user asked for something wrong, as opposed to bad luck.
    pub fn is_usage(&self) -> bool {
        matches!(self, Self::OtherConfig { .. } | Self::OtherEpisodes { .. })
    }
}

fn listed(differences: &[Difference]) -> String {
    differences.iter().map(Difference::to_string).collect::<Vec<_>>().join(", ")
}

/// What tasks' own solutions came to.
const REFERENCES: &str = "references.jsonl";

/// The stages that make episodes, each in a directory of its own: a group is never made of both.
const MAKE_EPISODES: [&str; 2] = ["collect", "evaluate"];

/// A run directory that is ours, for one stage.
#[derive(Debug)]
pub struct RunDir {
    lock: Arc<RunLock>,
    reader: RunReader,
    stage: &'static str,
    section: String,
    events: Journal,
    metrics: Journal,
    references: Journal,
    verdicts: Journal,
}

impl RunDir {
    /// Locks `dir`, which is made if need be, to work on a stage.
    pub fn open(dir: &Path, stage: &'static str) -> Result<Self, RunError> {
        let lock = Arc::new(RunLock::acquire(dir)?);
        let episodes = dir.join(EPISODES);
        let made = if MAKE_EPISODES.contains(&stage) { fs::create_dir_all(&episodes) } else { Ok(()) };
        made.map_err(|error| BadFile::new(&episodes, error))?;
        for directory in [dir.to_owned(), episodes].into_iter().filter(|it| it.is_dir()) {
            atomic::sweep(&directory, |_| true).map_err(|error| BadFile::new(&directory, error))?;
        }
        let journal = |name: &str| Journal::at(&dir.join(name));
        let (events, metrics) = (journal(EVENTS), journal(METRICS));
        let (references, verdicts) = (journal(REFERENCES), journal(VERDICTS));
        let (reader, section) = (RunReader::new(dir), stage.to_owned());
        Ok(Self { lock, reader, stage, section, events, metrics, references, verdicts })
    }

    /// The same for one of several results of the stage, which has sections of its own.
    #[must_use]
    pub fn for_result(self, result: Option<&str>) -> Self {
        let section = result.map_or(self.stage.to_owned(), |result| format!("{}.{result}", self.stage));
        Self { section, ..self }
    }

    /// The directory.
    pub fn dir(&self) -> &Path {
        self.lock.dir()
    }

    /// The lock, for the ledger.
    pub fn lock(&self) -> Arc<RunLock> {
        Arc::clone(&self.lock)
    }

    /// What is there, for reading.
    pub fn reader(&self) -> &RunReader {
        &self.reader
    }

    /// The configuration the stage was made with; none for a new one.
    pub fn stored_config(&self) -> Result<Option<Table>, RunError> {
        let mut all = self.reader.config().map_err(|error| self.failed(CONFIG_FILE, error))?;
        Ok(all.remove(&self.section).and_then(|it| it.as_table().cloned()))
    }

    /// Takes `config` for this stage, or refuses it because the directory was made with another one.
    pub fn keep_config(&self, config: &Config) -> Result<(), RunError> {
        let all = self.reader.config().map_err(|error| self.failed(CONFIG_FILE, error))?;
        let makes = MAKE_EPISODES.contains(&self.stage);
        let others = MAKE_EPISODES.into_iter().filter(|it| makes && *it != self.stage);
        if let Some(stage) = others.into_iter().find(|it| all.contains_key(*it)) {
            return Err(RunError::OtherEpisodes { dir: self.dir().to_owned(), stage });
        }
        let stored = self.stored_config()?;
        self.refuse(stored.map(|stored| config.differences(&stored)).unwrap_or_default())?;
        self.note_config(config.to_table())
    }

    /// Takes what the stage is asked for and what was found out, or refuses it because something of that decides and
    /// was another.
    pub fn keep_found(&self, config: &Config, found: Table, decide: &[&str]) -> Result<(), RunError> {
        let stored = self.stored_config()?;
        let stored = stored.as_ref().and_then(|it| it.get(FOUND)).and_then(|it| it.as_table());
        let differs = |stored: &Table, key: &str| {
            let shown = |table: &Table| table.get(key).map(ToString::to_string);
            let (before, now) = (shown(stored), shown(&found));
            (before != now).then(|| Difference { key: key.to_owned(), before, now })
        };
        let differing = stored.iter().flat_map(|stored| decide.iter().filter_map(|key| differs(stored, key)));
        self.refuse(differing.collect())?;
        let mut section = config.to_table();
        section.insert(FOUND.to_owned(), found.into());
        self.note_config(section)
    }

    fn refuse(&self, differences: Vec<Difference>) -> Result<(), RunError> {
        match differences.is_empty() {
            true => Ok(()),
            false => Err(RunError::OtherConfig { dir: self.dir().to_owned(), differences }),
        }
    }

    /// Writes down what the stage is asked for, whatever it was before.
    pub fn note_config(&self, section: Table) -> Result<(), RunError> {
        let mut all = self.reader.config().map_err(|error| self.failed(CONFIG_FILE, error))?;
        all.insert(self.section.clone(), section.into());
        self.write(CONFIG_FILE, all.to_string().as_bytes())
    }

    /// Records an episode, in place of an earlier one of the same id.
    pub fn keep_episode(&self, episode: &Episode) -> Result<(), RunError> {
        let name = format!("{EPISODES}/{}.json", file_name(&episode.id));
        let json =
            episode_record::to_json(episode).map_err(|error| self.failed(&name, io::Error::other(error)))?;
        self.write(&name, format!("{json}\n").as_bytes())
    }

    /// Records what happened.
    pub fn add_event(&self, event: &Value) -> Result<(), RunError> {
        self.events.add(&self.of_stage(event)).map_err(|error| self.failed(EVENTS, error))
    }

    /// Records a row of metrics.
    pub fn add_metrics(&self, row: &Value) -> Result<(), RunError> {
        self.metrics.add(&self.of_stage(row)).map_err(|error| self.failed(METRICS, error))
    }

    fn of_stage(&self, row: &Value) -> Value {
        let mut row = row.clone();
        row["stage"] = json!(self.stage);
        row
    }

    /// Records what a task's own solution came to.
    pub fn add_reference(&self, row: &Value) -> Result<(), RunError> {
        self.references.add(row).map_err(|error| self.failed(REFERENCES, error))
    }

    /// Records the votes on a pair; of several lines about one, the last counts.
    pub fn add_verdict(&self, row: &Value) -> Result<(), RunError> {
        self.verdicts.add(row).map_err(|error| self.failed(VERDICTS, error))
    }

    /// What tasks' own solutions came to.
    pub fn references(&self) -> Vec<Value> {
        self.reader.lines_from(REFERENCES, 0).unwrap_or_default().0
    }

    /// The stage's rows of metrics there are.
    pub fn metrics(&self) -> Vec<Value> {
        self.own_lines(METRICS)
    }

    /// What happened so far in the stage.
    pub fn events(&self) -> Vec<Value> {
        self.own_lines(EVENTS)
    }

    fn own_lines(&self, name: &str) -> Vec<Value> {
        let mut lines = self.reader.lines_from(name, 0).unwrap_or_default().0;
        lines.retain(|line| line["stage"] == self.stage);
        lines
    }

    /// Records what became of the stage.
    pub fn keep_summary(&self, summary: &Summary) -> Result<(), RunError> {
        let mut all = self.reader.summary().map_err(|error| self.failed(SUMMARY, error))?;
        all.insert(self.section.clone(), summary.to_json());
        self.write(SUMMARY, format!("{:#}\n", Value::Object(all)).as_bytes())
    }

    /// Writes a file of the run, whole or not at all.
    pub fn write(&self, name: &str, content: &[u8]) -> Result<(), RunError> {
        let path = self.dir().join(name);
        atomic::write(&path, content).map_err(|error| self.failed(name, error))
    }

    fn failed(&self, name: &str, error: io::Error) -> RunError {
        BadFile::new(&self.dir().join(name), error).into()
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
        RunDir::open(dir.path(), "collect").unwrap().keep_config(&config("1")).unwrap();
        let run = RunDir::open(dir.path(), "collect").unwrap();
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
    fn stages_leave_each_other_alone() {
        let dir = tempfile::tempdir().unwrap();
        let collect = RunDir::open(dir.path(), "collect").unwrap();
        collect.keep_config(&config("1")).unwrap();
        collect.keep_summary(&Summary { stage: "collect", left: 2, ..Summary::default() }).unwrap();
        collect.add_event(&json!({"event": "began"})).unwrap();
        drop(collect);
        let credit = RunDir::open(dir.path(), "credit").unwrap();
        assert_eq!((credit.stored_config().unwrap(), credit.events()), (None, vec![]));
        let credit = credit.for_result(Some("hint-last_user"));
        credit.note_config(Table::new()).unwrap();
        credit.keep_summary(&Summary { stage: "credit", left: 3, ..Summary::default() }).unwrap();
        credit.add_event(&json!({"event": "began"})).unwrap();
        let view = credit.reader();
        let (summary, (events, _)) = (view.summary().unwrap(), view.events_from(0).unwrap());
        assert_eq!(
            (&summary["collect"]["left"], &summary["credit.hint-last_user"]["left"]),
            (&json!(2), &json!(3))
        );
        assert_eq!(events.iter().map(|it| &it["stage"]).collect::<Vec<_>>(), ["collect", "credit"]);
        assert_eq!(view.config().unwrap()["collect"]["seed"].as_integer(), Some(1));
        drop(credit);
        let evaluate = RunDir::open(dir.path(), "evaluate").unwrap().keep_config(&config("1")).unwrap_err();
        assert!(evaluate.to_string().ends_with("holds the episodes of `collect`"), "{evaluate}");
    }

    #[test]
    fn one_process_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let first = RunDir::open(dir.path(), "collect").unwrap();
        assert!(matches!(RunDir::open(dir.path(), "collect"), Err(RunError::Lock(LockError::InUse { .. }))));
        drop(first);
        assert!(RunDir::open(dir.path(), "collect").is_ok());
    }

    #[test]
    fn episodes_of_any_id_come_back() {
        let dir = tempfile::tempdir().unwrap();
        let run = RunDir::open(dir.path(), "collect").unwrap();
        let long = "x".repeat(400);
        for id in ["flatten-0", "a/b", "../../etc/passwd", ".hidden", "ä ö", &long, "a_b", ""] {
            assert_eq!(run.reader().episode(id), None);
            run.keep_episode(&episode(id)).unwrap();
            assert_eq!(run.reader().episode(id), Some(episode(id)), "{id}");
        }
        assert_eq!(fs::read_dir(dir.path().join(EPISODES)).unwrap().count(), 8);
    }

    #[test]
    fn what_a_killed_run_was_writing_is_taken_away() {
        let dir = tempfile::tempdir().unwrap();
        drop(RunDir::open(dir.path(), "collect").unwrap());
        let left = ["episodes/.a.json.17.tmp", ".summary.json.17.tmp"].map(|name| dir.path().join(name));
        left.iter().for_each(|path| fs::write(path, "{").unwrap());
        let _run = RunDir::open(dir.path(), "collect").unwrap();
        assert!(!left.iter().any(|path| path.exists()));
    }

    #[test]
    fn half_an_episode_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let run = RunDir::open(dir.path(), "collect").unwrap();
        fs::write(dir.path().join("episodes/a.json"), "{\"format\": \"backsi").unwrap();
        assert_eq!(run.reader().episode("a"), None);
    }
}
