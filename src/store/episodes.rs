//! Finds and loads recorded episodes, whoever recorded them.
//!
//! Owns the search for episode directories (`result.json` + `pi_session.jsonl`), our own records,
//! OpenAI-style JSON Lines and Atropos groups, and reading them one at a time. Whatever is wrong with
//! an episode fails that episode, with file, line and reason; the others go on. Deliberately absent:
//! choosing among them.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::layout::{EPISODES, is_run};
use crate::wire::fault::{Fault, object_on_line};
use crate::wire::{atropos, episode_record, openai_episodes, pi_result, pi_session};
use backsight_core::episode::{Episode, Outcome, steps_of};
use backsight_core::subtasks::submitted_plan;

/// The file with a directory episode's outcome.
pub const RESULT: &str = "result.json";
/// The file with a directory episode's conversation.
pub const SESSION: &str = "pi_session.jsonl";

/// The mark some editors put before a text.
pub const BOM: &[u8] = "\u{feff}".as_bytes();

/// What is wrong with a file of blank lines.
const NO_EPISODE: &str = "there is no episode in the file";

/// Something on disk that holds episodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A directory with one episode.
    Directory(PathBuf),
    /// A file with one record.
    Record(PathBuf),
    /// A file with an episode or a group on each line.
    Lines(PathBuf),
}

/// An episode and where it came from.
#[derive(Clone, Debug, PartialEq)]
pub struct Loaded {
    /// The episode.
    pub episode: Episode,
    /// The directory or file.
    pub path: PathBuf,
    /// The line, for files with many.
    pub line: Option<usize>,
    /// The episode's id as its files write it.
    pub file_id: Value,
    /// Its reward as its files write it.
    pub file_reward: Option<serde_json::Number>,
    /// Its subtasks' scores as its files write them.
    pub file_scores: Map<String, Value>,
    /// What was left out of the conversation, and why.
    pub notes: Vec<String>,
}

/// What is wrong with a file or a directory: why it could not be read or written, or no episode loaded from it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}{}: {why}", path.display(), line.map(|line| format!(" line {line}")).unwrap_or_default())]
pub struct BadFile {
    /// The file or directory.
    pub path: PathBuf,
    /// The line, where one is to blame.
    pub line: Option<usize>,
    /// What is wrong.
    pub why: String,
}

impl BadFile {
    /// A file as a whole.
    pub(super) fn new(path: &Path, why: impl std::fmt::Display) -> Self {
        Self { path: path.to_owned(), line: None, why: why.to_string() }
    }

    /// What a file holds.
    pub(super) fn fault(path: &Path, Fault { line, why }: Fault) -> Self {
        Self { path: path.to_owned(), line, why }
    }

    /// What the episode is called that could not be loaded: its directory, or its file and line.
    pub fn episode(&self) -> String {
        let of = |path: &Path| path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
        let file = of(&self.path);
        match (self.path.parent(), self.line) {
            (Some(directory), _) if file == RESULT || file == SESSION => of(directory),
            (_, Some(line)) => format!("{file}:{line}"),
            _ => file,
        }
    }
}

/// Finds the episodes below a directory or in a file, in natural order of their names.
pub fn find(input: &Path) -> Result<Vec<Source>, BadFile> {
    if input.is_file() {
        return match has_no_line(input) {
            Ok(false) => Ok(vec![file_source(input)]),
            Ok(true) => Err(BadFile::new(input, NO_EPISODE)),
            Err(error) => Err(BadFile::new(input, error)),
        };
    }
    if input.join(RESULT).is_file() || input.join(SESSION).is_file() {
        return Ok(vec![Source::Directory(input.to_owned())]);
    }
    let entries = list(input)?;
    let named = |path: &&PathBuf| path.is_dir() && name(path).starts_with("episode_");
    let directories: Vec<_> = entries.iter().filter(named).cloned().map(Source::Directory).collect();
    if !directories.is_empty() {
        return Ok(directories);
    }
    let records = input.join(EPISODES);
    let files = if records.is_dir() { list(&records)? } else { entries };
    let is_json = |path: &&PathBuf| path.is_file() && matches!(extension(path), "json" | "jsonl");
    let files: Vec<_> = files.iter().filter(is_json).map(|path| file_source(path)).collect();
    let nothing = "no episodes here; help: it needs episode_*/ with result.json and pi_session.jsonl, \
                   or .json and .jsonl files";
    if files.is_empty() { Err(BadFile::new(input, nothing)) } else { Ok(files) }
}

/// The run directory of an input for which none is named: the run it is part of, else one inside its directory or beside
/// its file.
pub fn run_dir_for(input: &Path) -> PathBuf {
    let parent = |path: &Path| match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    };
    let directory = if input.is_file() { parent(input) } else { input.to_owned() };
    let run = Some(parent(&directory)).filter(|_| name(&directory) == EPISODES);
    let of_run = [directory.clone()].into_iter().chain(run).find(|it| is_run(it));
    of_run.unwrap_or_else(|| directory.join(".backsight"))
}

/// Loads sources one after the other, an episode at a time.
pub fn load(sources: Vec<Source>) -> impl Iterator<Item = Result<Loaded, BadFile>> {
    let mut seen: HashMap<String, String> = HashMap::new();
    sources.into_iter().flat_map(load_source).map(move |loaded| {
        let loaded = loaded?;
        let id = &loaded.episode.id;
        let place = match loaded.line {
            Some(line) => format!("{} line {line}", loaded.path.display()),
            None => loaded.path.display().to_string(),
        };
        if let Some(first) = seen.insert(id.clone(), place) {
            let why = format!("the id `{id}` is already used by {first}");
            return Err(BadFile { path: loaded.path, line: loaded.line, why });
        }
        Ok(loaded)
    })
}

fn load_source(source: Source) -> Box<dyn Iterator<Item = Result<Loaded, BadFile>> + Send> {
    match source {
        Source::Directory(path) => Box::new(std::iter::once(load_directory(&path))),
        Source::Record(path) => Box::new(std::iter::once(load_record(&path))),
        Source::Lines(path) => match File::open(&path) {
            Ok(file) => Box::new(load_lines(path, file)),
            Err(error) => Box::new(std::iter::once(Err(BadFile::new(&path, error)))),
        },
    }
}

/// Loads the episode in one directory.
pub fn load_directory(directory: &Path) -> Result<Loaded, BadFile> {
    let result_path = directory.join(RESULT);
    let session_path = directory.join(SESSION);
    let result = pi_result::parse(&read(&result_path)?).map_err(|it| BadFile::fault(&result_path, it))?;
    let session = pi_session::parse(&read(&session_path)?).map_err(|it| BadFile::fault(&session_path, it))?;
    if session.messages.len() < 2 {
        return Err(BadFile::new(&session_path, "there are fewer than two messages"));
    }
    let id = if name(directory).is_empty() { "episode".to_owned() } else { name(directory) };
    let left_out = session.left_out.iter().map(|it| format!("{SESSION} {it}")).collect();
    let file_id = Some(result.episode_id.clone()).filter(|it| !it.is_null());
    let (file_reward, file_scores) = (Some(result.reward.clone()), result.frozen_scores.clone());
    let episode = episode(id, result, session).map_err(|it| BadFile::fault(&session_path, it))?;
    let loaded = loaded(episode, directory, None);
    let file_id = file_id.unwrap_or_else(|| loaded.file_id.clone());
    Ok(Loaded { file_id, file_reward, file_scores, notes: left_out, ..loaded })
}

fn episode(
    id: String,
    result: pi_result::EpisodeResult,
    session: pi_session::Session,
) -> Result<Episode, Fault> {
    let task = openai_episodes::task_of(result.task, &session.messages);
    let mut episode = Episode::new(id, task, session.messages);
    episode.started_at = session.started_at;
    let reward = result.reward.as_f64().ok_or_else(|| Fault::new("the reward is out of range"))?;
    episode.outcome = Ok(Outcome { reward, components: Vec::new() });
    episode.progress = result.progress;
    let plan = episode.progress.plan.take();
    episode.progress.plan = plan.or_else(|| submitted_plan(&episode.messages, &session.failed_results));
    episode.failed_results = session.failed_results;
    episode.set_compactions(session.compactions).map_err(Fault::new)?;
    episode.set_steps(steps_of(&episode.messages)).map_err(Fault::new)?;
    Ok(episode)
}

fn load_record(path: &Path) -> Result<Loaded, BadFile> {
    let content = read(path)?;
    let value = serde_json::from_str(&content).map_err(|error| BadFile::fault(path, Fault::json(&error)))?;
    let episode = episode_record::from_json(&value).map_err(|fault| BadFile::fault(path, fault))?;
    Ok(loaded(episode, path, None))
}

fn loaded(episode: Episode, path: &Path, line: Option<usize>) -> Loaded {
    let scores = episode.progress.subtask_scores.iter().map(|(id, score)| (id.clone(), (*score).into()));
    Loaded {
        path: path.to_owned(),
        line,
        file_id: episode.id.clone().into(),
        file_reward: episode.outcome.as_ref().ok().and_then(|it| serde_json::Number::from_f64(it.reward)),
        file_scores: scores.collect(),
        notes: Vec::new(),
        episode,
    }
}

/// The episodes of a file's lines, read as they are asked for. A file that cannot be read further has no further lines.
fn load_lines(path: PathBuf, file: File) -> impl Iterator<Item = Result<Loaded, BadFile>> {
    let mut lines = (1..).zip(BufReader::new(file).split(b'\n'));
    let (mut has_lines, mut is_over) = (false, false);
    let next = move || {
        // What cannot be read may say so again at every try.
        if is_over {
            return None;
        }
        let line = lines.find(|(_, line)| !line.as_ref().is_ok_and(|it| is_blank(it)));
        let had_lines = std::mem::replace(&mut has_lines, true);
        match line {
            Some((line, Ok(bytes))) => Some(episodes_on_line(&path, line, &bytes)),
            Some((_, Err(error))) => {
                is_over = true;
                Some(vec![Err(BadFile::new(&path, error))])
            }
            None => (!had_lines).then(|| vec![Err(BadFile::new(&path, NO_EPISODE))]),
        }
    };
    std::iter::from_fn(next).flatten()
}

fn episodes_on_line(path: &Path, line: usize, bytes: &[u8]) -> Vec<Result<Loaded, BadFile>> {
    let bytes = bytes.strip_prefix(BOM).filter(|_| line == 1).unwrap_or(bytes);
    let text = std::str::from_utf8(bytes).map_err(Fault::new);
    let stem = path.file_stem().map(|stem| stem.to_string_lossy()).unwrap_or_default();
    let episodes = match text.and_then(|text| object_on_line(line, text)) {
        Ok(json) => read_line(json, &format!("{stem}:{line}")),
        Err(why) => vec![Err(why)],
    };
    let finish = |it: Result<Episode, Fault>| match it {
        Ok(episode) => Ok(loaded(episode, path, Some(line))),
        Err(why) => Err(BadFile::fault(path, why.on(line))),
    };
    episodes.into_iter().map(finish).collect()
}

/// The episodes an object on a line stands for.
fn read_line(json: Map<String, Value>, default_id: &str) -> Vec<Result<Episode, Fault>> {
    if episode_record::recognises(&json) {
        vec![episode_record::from_json(&Value::Object(json))]
    } else if atropos::recognises(&json) {
        atropos::read(&json, default_id).unwrap_or_else(|fault| vec![Err(fault)])
    } else if openai_episodes::recognises(&json) {
        vec![openai_episodes::read(&json, default_id)]
    } else {
        let why = "neither an episode (`messages`, `reward`) nor a group (`tokens`, `masks`, `scores`)";
        vec![Err(Fault::new(why))]
    }
}

/// Whether a file has only blank lines, or none.
fn has_no_line(path: &Path) -> io::Result<bool> {
    for line in BufReader::new(File::open(path)?).split(b'\n') {
        if !is_blank(&line?) {
            return Ok(false);
        }
    }
    Ok(true)
}

fn is_blank(line: &[u8]) -> bool {
    line.strip_prefix(BOM).unwrap_or(line).trim_ascii().is_empty()
}

fn file_source(path: &Path) -> Source {
    let path = path.to_owned();
    if extension(&path) == "json" { Source::Record(path) } else { Source::Lines(path) }
}

fn extension(path: &Path) -> &str {
    path.extension().and_then(|extension| extension.to_str()).unwrap_or("")
}

/// The last part of a path.
pub(super) fn name(path: &Path) -> String {
    path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

/// What is in a directory, in natural order of the names.
pub(super) fn list(directory: &Path) -> Result<Vec<PathBuf>, BadFile> {
    let entries = fs::read_dir(directory).map_err(|error| BadFile::new(directory, error))?;
    let paths = entries.map(|entry| entry.map(|entry| entry.path()));
    let mut paths = paths.collect::<io::Result<Vec<_>>>().map_err(|error| BadFile::new(directory, error))?;
    paths.sort_by(|a, b| natural(&name(a), &name(b)));
    Ok(paths)
}

/// Reads a text file; what is not UTF-8 is named by its line.
fn read(path: &Path) -> Result<String, BadFile> {
    let mut bytes = fs::read(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => BadFile::new(path, "the file is missing"),
        _ => BadFile::new(path, error),
    })?;
    if bytes.starts_with(BOM) {
        bytes.drain(..BOM.len());
    }
    String::from_utf8(bytes).map_err(|error| {
        let valid = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = valid.iter().filter(|byte| **byte == b'\n').count() + 1;
        BadFile::fault(path, Fault::at(line, "not UTF-8"))
    })
}

/// Orders names as people do: runs of digits by their value, so `episode_2` comes before `episode_10`.
pub fn natural(a: &str, b: &str) -> Ordering {
    let (mut rest_a, mut rest_b) = (a, b);
    loop {
        let ((head_a, tail_a), (head_b, tail_b)) = (chunk(rest_a), chunk(rest_b));
        if head_a.is_empty() || head_b.is_empty() {
            return head_a.len().cmp(&head_b.len()).then_with(|| a.cmp(b));
        }
        let order = match (digits(head_a), digits(head_b)) {
            (Some(a), Some(b)) => a.len().cmp(&b.len()).then_with(|| a.cmp(b)),
            _ => head_a.cmp(head_b),
        };
        if order != Ordering::Equal {
            return order;
        }
        (rest_a, rest_b) = (tail_a, tail_b);
    }
}

/// The longest head that is all digits or has none.
fn chunk(text: &str) -> (&str, &str) {
    let is_digit = |c: char| c.is_ascii_digit();
    let first = text.chars().next().is_some_and(is_digit);
    text.split_at(text.find(|c| is_digit(c) != first).unwrap_or(text.len()))
}

/// The digits without leading zeros, if it begins with one.
fn digits(chunk: &str) -> Option<&str> {
    chunk.starts_with(|c: char| c.is_ascii_digit()).then(|| chunk.trim_start_matches('0'))
}
