//! `dataset`: training rows from scored episodes, and an account of what was made and what was lost.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::call::Call;
use super::episodes::run_failure;
use super::failure::Failure;
use super::output::{self, one_line};
use super::sources::sources;
use super::stdout;
use crate::pipeline::batch::now;
use crate::ship::actions::MessageForm;
use crate::ship::dataset::{
    self, Dataset, LeftOut, Options, SUMMARY, ScoredEpisode, TRAIN, TRAIN_PARQUET, build, scored_episode,
};
use crate::store::episodes::{BadFile, Loaded, Source, load};
use crate::store::hindsight;
use crate::store::run::RunDir;
use crate::store::summary::Summary;

/// An episode that could not be used.
struct Lost {
    episode: String,
    why: String,
}

/// The episodes of an input, usable or not.
#[derive(Default)]
struct Input {
    episodes: Vec<ScoredEpisode>,
    lost: Vec<Lost>,
    notes: Vec<String>,
    best_reward: Option<f64>,
}

pub(super) fn run(call: &Call) -> Result<(), Failure> {
    let (options, out): (_, PathBuf) = (options(call)?, call.get("out")?);
    let (dir, lens, form) = (call.run_dir()?, call.result()?, call.choice("message_form")?);
    let sources = sources(&call.inputs()?)?;
    let run = RunDir::open(&dir, "dataset").map_err(run_failure)?;
    run.note_config(call.config.to_table()).map_err(run_failure)?;
    let input = read(sources, &Scores { run_dir: &dir, lens: &lens, form });
    let (lost, notes, best_reward) = (input.lost, input.notes, input.best_reward);
    let dataset = build(input.episodes, &options);
    let account = Account {
        min_reward: options.min_reward,
        out: &out,
        as_json: call.is_json(),
        dataset: &dataset,
        lost: &lost,
        notes: &notes,
        best_reward,
    };
    if !dataset.rows.is_empty() {
        dataset::write(&out, &dataset).map_err(|error| unwritable(&out, &error))?;
    }
    account.keep(&run)?;
    account.tell()
}

fn options(call: &Call) -> Result<Options, Failure> {
    Ok(Options {
        min_reward: call.get("min_reward")?,
        omega: call.get("omega")?,
        smoothed: call.get("smoothed")?,
        normalise: call.choice("normalise")?,
    })
}

/// Where scores are, and how messages are written.
struct Scores<'a> {
    run_dir: &'a Path,
    lens: &'a str,
    form: MessageForm,
}

fn unwritable(directory: &Path, error: &dataset::DatasetError) -> Failure {
    let help = "free some space, or name another directory with --out; nothing there was changed";
    Failure::stopped(format!("{}: {error}", directory.display()), help)
}

/// Reads every episode with its scores; what is wrong with one is its own loss.
fn read(sources: Vec<Source>, scores: &Scores<'_>) -> Input {
    let mut input = Input::default();
    load(sources).for_each(|loaded| input.take(loaded, scores));
    input
}

impl Input {
    fn take(&mut self, loaded: Result<Loaded, BadFile>, scores: &Scores<'_>) {
        let loaded = match loaded {
            Ok(loaded) => loaded,
            Err(error) => return self.lose(error.episode(), error.to_string()),
        };
        match with_scores(&loaded, scores) {
            Ok((episode, notes)) => {
                self.notes.extend(notes);
                self.notes.extend(stale(&loaded, &episode));
                let reward = episode.hindsight.scores.reward.as_f64();
                self.best_reward = [self.best_reward, reward].into_iter().flatten().reduce(f64::max);
                self.episodes.push(episode);
            }
            Err(why) => self.lose(loaded.episode.id, why),
        }
    }

    fn lose(&mut self, episode: String, why: String) {
        self.lost.push(Lost { episode, why });
    }
}

fn with_scores(loaded: &Loaded, scores: &Scores<'_>) -> Result<(ScoredEpisode, Vec<String>), String> {
    if let Err(why) = &loaded.episode.outcome {
        return Err(format!("the episode failed: {why}"));
    }
    let directory = hindsight::directory_of(loaded, scores.run_dir);
    let found = hindsight::read(&directory, scores.lens).map_err(|error| error.to_string())?;
    let found = found.ok_or("not scored; help: run backsight credit first")?;
    let found = hindsight::credited(found)?;
    scored_episode(loaded, found, scores.form).map_err(|error| error.to_string())
}

/// Credit computed with another reward than the episode has now.
fn stale(loaded: &Loaded, episode: &ScoredEpisode) -> Option<String> {
    let scored = episode.hindsight.scores.reward.as_f64();
    let now = loaded.file_reward.as_ref().and_then(serde_json::Number::as_f64);
    let (scored, now) = scored.zip(now).filter(|(scored, now)| scored != now)?;
    let id = &loaded.episode.id;
    Some(format!("{id}: its reward is {now} now, but its credit was computed with {scored}, which is used"))
}

/// What became of everything.
struct Account<'a> {
    min_reward: f64,
    out: &'a Path,
    as_json: bool,
    dataset: &'a Dataset,
    lost: &'a [Lost],
    notes: &'a [String],
    best_reward: Option<f64>,
}

impl Account<'_> {
    /// Writes down what became of it.
    fn keep(&self, run: &RunDir) -> Result<(), Failure> {
        let mut summary = Summary { stage: "dataset", notices: self.notes.to_vec(), ..Summary::default() };
        summary.made.insert("rows", self.dataset.rows.len() as u64);
        self.lost.iter().for_each(|lost| summary.lose("episodes", &lost.why));
        let left_out = self.dataset.left_out.iter();
        left_out.for_each(|(_, why)| summary.lose("rows", &self.reason(*why)));
        summary.more.insert("dataset".to_owned(), self.dataset.summary.clone());
        let (rows, lost) = (summary.made("rows"), summary.lost("episodes"));
        let ended = json!({"made": rows, "lost": lost, "files": self.files()});
        run.add_event(&output::event_of("ended", ended))
            .and_then(|()| {
                run.add_metrics(&json!({"time": now(), "dataset/rows": rows, "dataset/lost": lost}))
            })
            .and_then(|()| run.keep_summary(&summary))
            .map_err(run_failure)
    }

    fn tell(&self) -> Result<(), Failure> {
        self.notes.iter().for_each(|note| output::tell(self.as_json, "note", note));
        let shown = if self.as_json { format!("{}\n", self.json()) } else { self.text() };
        stdout::data(shown.as_bytes())?;
        match (self.dataset.rows.is_empty(), self.lost.len()) {
            (true, _) => Err(self.nothing()),
            (false, 0) => Ok(()),
            (false, n) => Err(Failure::losses(
                format!("{n} of {} episodes could not be used", self.n_episodes()),
                "mend what is said about each; the same command makes the dataset again",
            )),
        }
    }

    fn n_episodes(&self) -> usize {
        self.dataset.rows.len() + self.dataset.left_out.len() + self.lost.len()
    }

    fn n_left_out(&self, why: LeftOut) -> usize {
        self.dataset.left_out.iter().filter(|(_, it)| *it == why).count()
    }

    /// Why there is no dataset at all.
    fn nothing(&self) -> Failure {
        let (min, best) = (self.min_reward, self.best_reward);
        let help = match best.filter(|best| *best < min) {
            Some(best) => format!("lower --min-reward: the best reward is {best}"),
            None if best.is_none() => "score the episodes with backsight credit first".to_owned(),
            None => "give it episodes that differ: no step is better than the average".to_owned(),
        };
        Failure::losses("no episode has a row, so no dataset was written", help)
    }

    fn files(&self) -> Vec<PathBuf> {
        let names = [TRAIN, TRAIN_PARQUET, SUMMARY].iter().filter(|_| !self.dataset.rows.is_empty());
        names.map(|name| self.out.join(name)).collect()
    }

    fn json(&self) -> Value {
        let lost = self.lost.iter().map(|it| json!({"episode": it.episode, "why": it.why}));
        let left_out = self.dataset.left_out.iter();
        let left_out = left_out.map(|(id, why)| json!({"episode": id, "why": self.reason(*why)}));
        json!({
            "files": self.files(),
            "summary": self.dataset.summary,
            "left_out": left_out.collect::<Vec<_>>(),
            "lost": lost.collect::<Vec<_>>(),
            "notes": self.notes,
        })
    }

    fn reason(&self, why: LeftOut) -> String {
        match why {
            LeftOut::BelowMinReward => format!("its reward is below {}", self.min_reward),
            LeftOut::NoWeight => "no step of it is better than the average".to_owned(),
        }
    }

    fn text(&self) -> String {
        let count = |key: &str| self.dataset.summary[key].as_u64().unwrap_or(0);
        let n_rows = self.dataset.rows.len();
        let with_tokens = self.dataset.rows.iter().filter(|row| row.tokens.is_some()).count();
        let mut text = line("episodes", self.n_episodes(), "");
        text += &some("  in the dataset", n_rows, &format!("{with_tokens} with weights for each token"));
        for why in [LeftOut::BelowMinReward, LeftOut::NoWeight] {
            text += &some("  left out", self.n_left_out(why), &self.reason(why));
        }
        for (why, names) in self.losses() {
            text += &line("  lost", names.len(), &format!("{}: {}", listed(&names), one_line(why)));
        }
        text += &some("steps", count("total_steps") as usize, "");
        text += &some("  with weight", count("nonzero_steps") as usize, "mean 1");
        let no_credit = count("steps_without_credit") as usize;
        text += &some("  without credit", no_credit, "weight 0, in no mean");
        text + &self.made()
    }

    /// The lost episodes by reason.
    fn losses(&self) -> BTreeMap<&str, Vec<&str>> {
        let mut losses: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for Lost { episode, why } in self.lost {
            losses.entry(why).or_default().push(episode);
        }
        losses
    }

    fn made(&self) -> String {
        self.files().iter().map(|path| format!("made {}\n", path.display())).collect()
    }
}

/// How many episodes are named before the rest is only counted; `--json` names all.
const N_NAMED: usize = 5;

fn listed(names: &[&str]) -> String {
    let more = names.len().saturating_sub(N_NAMED);
    let named = one_line(&names[..names.len() - more].join(", "));
    if more > 0 { format!("{named} and {more} more") } else { named }
}

fn line(what: &str, n: usize, about: &str) -> String {
    format!("{what:<18}{n:>7}  {about}").trim_end().to_owned() + "\n"
}

/// The line, unless there is nothing to count.
fn some(what: &str, n: usize, about: &str) -> String {
    if n > 0 { line(what, n, about) } else { String::new() }
}
