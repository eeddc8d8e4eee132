//! `dataset`: training rows from scored episodes, and an account of what was made and what was lost.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::call::Call;
use super::failure::Failure;
use super::interrupt::Orderly;
use super::output::one_line;
use super::sources::sources;
use super::stdout;
use super::voice::{self, Voice};
use crate::event::Event;
use crate::pipeline::batch::now;
use crate::ship::actions::MessageForm;
use crate::ship::dataset::{
    self, Dataset, LeftOut, RowOptions, SUMMARY, ScoredEpisode, TRAIN, TRAIN_PARQUET, build, scored_episode,
};
use crate::store::episodes::{BadFile, Loaded, load};
use crate::store::hindsight;
use crate::store::run::RunDir;
use crate::store::summary::Summary;

pub(super) fn run(call: &Call) -> Result<(), Failure> {
    let (options, out): (_, PathBuf) = (options(call)?, call.get("out")?);
    let (dir, lens, form) = (call.run_dir()?, call.result()?, call.choice("message_form")?);
    let sources = sources(&call.inputs()?)?;
    let voice = Voice::new(RunDir::open(&dir, "dataset")?, call.talk("row"));
    voice.run.note_config(call.config.to_table())?;
    let (mut episodes, mut lost, mut notes) = (Vec::new(), Vec::new(), Vec::new());
    for loaded in load(sources) {
        match with_scores(loaded, &dir, &lens, form) {
            Ok((episode, more)) => {
                episodes.push(episode);
                notes.extend(more);
            }
            Err(why) => lost.push(why),
        }
    }
    notes.iter().for_each(|note| voice.notices.add(note));
    let rewards = episodes.iter().filter_map(|it: &ScoredEpisode| it.hindsight.scores.reward.as_f64());
    let (min_reward, best_reward) = (options.min_reward, rewards.reduce(f64::max));
    let dataset = build(episodes, &options);
    let account = Account { min_reward, best_reward, out: &out, dataset, lost, notes };
    account.keep(&voice)?;
    let shown = if call.is_json() { format!("{}\n", account.json()) } else { account.text() };
    stdout::data(shown.as_bytes())?;
    account.verdict()
}

fn options(call: &Call) -> Result<RowOptions, Failure> {
    Ok(RowOptions {
        min_reward: call.get("min_reward")?,
        omega: call.get("omega")?,
        smoothed: call.get("smoothed")?,
        normalise: call.choice("normalise")?,
    })
}

/// An episode with its scores and what should be known about it; or its name, with why it cannot be used.
fn with_scores(
    loaded: Result<Loaded, BadFile>,
    run_dir: &Path,
    lens: &str,
    form: MessageForm,
) -> Result<(ScoredEpisode, Vec<String>), (String, String)> {
    let loaded = loaded.map_err(|error| (error.episode(), error.to_string()))?;
    let unusable = |why: String| (loaded.episode.id.clone(), why);
    let bad = |error: BadFile| unusable(error.to_string());
    if let Err(why) = &loaded.episode.outcome {
        return Err(unusable(format!("the episode failed: {why}")));
    }
    let found = hindsight::read(&hindsight::directory_of(&loaded, run_dir), lens).map_err(bad)?;
    let found = found.ok_or_else(|| unusable("not scored; help: run backsight credit first".to_owned()))?;
    let found = hindsight::credited(found).map_err(unusable)?;
    let (episode, mut notes) = scored_episode(&loaded, found, form).map_err(bad)?;
    notes.extend(stale(&loaded, &episode));
    Ok((episode, notes))
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
    dataset: Dataset,
    /// The episodes that could not be used, by name, with the reason.
    lost: Vec<(String, String)>,
    notes: Vec<String>,
    best_reward: Option<f64>,
}

impl Account<'_> {
    /// Writes the dataset and what became of it; a signal waits for the end of that.
    fn keep(&self, voice: &Voice) -> Result<(), Failure> {
        let _whole = Orderly::begin();
        if !self.dataset.rows.is_empty() {
            dataset::write(self.out, &self.dataset).map_err(|error| {
                let help = "free some space, or name another directory with --out; nothing there was changed";
                Failure::stopped(format!("{}: {error}", self.out.display()), help)
            })?;
        }
        let mut summary = Summary { stage: "dataset", ..Summary::default() };
        summary.made.insert("rows", self.dataset.rows.len() as u64);
        self.lost.iter().for_each(|(_, why)| summary.lose("episodes", why));
        let left_out = self.dataset.left_out.iter();
        left_out.for_each(|(_, why)| summary.lose("rows", &self.reason(*why)));
        summary.more.insert("dataset".to_owned(), self.dataset.summary.clone());
        summary.more.insert("files".to_owned(), json!(self.files()));
        let (rows, lost) = (summary.made("rows"), summary.lost("episodes"));
        summary.notices = voice.notices.all();
        voice.news();
        let ended = Event::Ended { made: rows, lost, left: 0, seconds: summary.seconds };
        voice.run.add_event(&ended.to_json(now()))?;
        voice.run.add_metrics(&json!({"time": now(), "dataset/rows": rows, "dataset/lost": lost}))?;
        Ok(voice.run.keep_summary(&summary)?)
    }

    fn verdict(&self) -> Result<(), Failure> {
        if self.dataset.rows.is_empty() {
            return Err(self.nothing());
        }
        let n_lost = self.lost.len() as u64;
        let what = format!("{n_lost} of {} episodes could not be used", self.n_episodes());
        let help = "mend what is said about each; the same command makes the dataset again";
        voice::verdict(None, n_lost, what, help)
    }

    fn n_episodes(&self) -> usize {
        self.dataset.rows.len() + self.dataset.left_out.len() + self.lost.len()
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
        let lost = self.lost.iter().map(|(episode, why)| json!({"episode": episode, "why": why}));
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
            let n_left_out = self.dataset.left_out.iter().filter(|(_, it)| *it == why).count();
            text += &some("  left out", n_left_out, &self.reason(why));
        }
        let mut losses: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        self.lost.iter().for_each(|(episode, why)| losses.entry(why).or_default().push(episode));
        for (why, names) in losses {
            text += &line("  lost", names.len(), &format!("{}: {}", listed(&names), one_line(why)));
        }
        text += &some("steps", count("total_steps") as usize, "");
        text += &some("  with weight", count("nonzero_steps") as usize, "mean 1");
        let no_credit = count("steps_without_credit") as usize;
        text += &some("  without credit", no_credit, "weight 0, in no mean");
        text.extend(self.files().iter().map(|path| format!("made {}\n", path.display())));
        text
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
