//! Training rows from scored episodes, as the published dataset builder writes them and with weights per token.
//!
//! Owns the rows, their file and the summary beside it. The published keys come first and in their order,
//! so that published trainers read the rows; ours follow where an episode's tokens are known: the
//! conversation's ids, a weight for each, and where every step stands in them. Deliberately absent:
//! how advantages are computed, which is `credit::advantage`.

use std::io::{self, Write as _};
use std::path::Path;

use serde_json::{Value, json};

use super::actions::{Action, Located, MessageForm, locate};
use super::parquet;
use super::row::{Row, TokenRow};
use crate::store::atomic::Pending;
use crate::store::episodes::{BadFile, Loaded};
use crate::store::hindsight::Hindsight;
use crate::wire::hindsight::HindsightTokens;
use backsight_core::credit::advantage::{
    AdvantageOptions, EpisodeAdvantage, EpisodeCredit, Normalise, advantages,
};
use backsight_core::credit::sum::mean;
use backsight_core::python::{JsonStyle, json_dumps};

/// The rows' file.
pub const TRAIN: &str = "hcapo_train.jsonl";
/// The same rows for readers of columns.
pub const TRAIN_PARQUET: &str = "hcapo_train.parquet";
/// What the rows are made of.
pub const SUMMARY: &str = "hcapo_summary.json";

/// What goes into a dataset, and how it is weighed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RowOptions {
    /// Episodes with less reward are left out.
    pub min_reward: f64,
    /// Weight of the steps' own part.
    pub omega: f64,
    /// Whether to take Q_H after smoothing.
    pub smoothed: bool,
    /// Which episodes are compared with each other.
    pub normalise: Normalise,
}

impl Default for RowOptions {
    fn default() -> Self {
        Self { min_reward: 0.2, omega: 1.0, smoothed: true, normalise: Normalise::Global }
    }
}

/// A scored episode on its way into a row.
#[derive(Clone, Debug, PartialEq)]
pub struct ScoredEpisode {
    /// Its name among the episodes.
    pub id: String,
    /// Its task's id.
    pub task: String,
    /// Its messages as rows have them.
    pub messages: Vec<Value>,
    /// Which of them are actions, and which scored steps those are.
    pub actions: Vec<Action>,
    /// Its scores.
    pub hindsight: Hindsight,
}

/// Why an episode that could be used has no row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LeftOut {
    /// It is worth less than was asked for.
    BelowMinReward,
    /// No step of it is better than the average.
    NoWeight,
}

/// A whole dataset.
#[derive(Clone, Debug, PartialEq)]
pub struct Dataset {
    /// One per episode that has any weight.
    pub rows: Vec<Row>,
    /// What they are made of.
    pub summary: Value,
    /// The episodes without a row, by name.
    pub left_out: Vec<(String, LeftOut)>,
}

/// Puts a loaded episode and its scores together, with notes for the person; the published form is made from its
/// session file again.
pub fn scored_episode(
    loaded: &Loaded,
    mut hindsight: Hindsight,
    form: MessageForm,
) -> Result<(ScoredEpisode, Vec<String>), BadFile> {
    if hindsight.scores.episode_id.is_null() {
        hindsight.scores.episode_id = loaded.file_id.clone();
    }
    let Located { messages, actions, notes } = locate(loaded, &hindsight.scores.steps, form)?;
    let (id, task) = (loaded.episode.id.clone(), loaded.episode.task.id.clone());
    Ok((ScoredEpisode { id, task, messages, actions, hindsight }, notes))
}

/// Weighs the steps of all episodes and makes the rows.
pub fn build(episodes: Vec<ScoredEpisode>, options: &RowOptions) -> Dataset {
    let reward = |it: &ScoredEpisode| it.hindsight.scores.reward.as_f64();
    let is_kept = |it: &ScoredEpisode| reward(it).is_some_and(|reward| reward >= options.min_reward);
    let (kept, poor): (Vec<_>, Vec<_>) = episodes.into_iter().partition(is_kept);
    let mut left_out: Vec<_> = poor.into_iter().map(|it| (it.id, LeftOut::BelowMinReward)).collect();
    let credits: Vec<_> = kept.iter().map(|it| episode_credit(it, options)).collect();
    let weigh = AdvantageOptions { omega: options.omega, normalise: options.normalise };
    let weighed = advantages(&credits, &weigh);
    let n_without_credit = credits.iter().flat_map(|it| &it.q).filter(|q| q.is_none()).count();
    let mut rows = Vec::new();
    for (episode, weighed) in kept.into_iter().zip(&weighed) {
        if weighed.weights.iter().any(|weight| *weight > 0.0) {
            rows.push(row(episode, weighed));
        } else {
            left_out.push((episode.id, LeftOut::NoWeight));
        }
    }
    Dataset { summary: summary(&rows, &left_out, n_without_credit, options), rows, left_out }
}

fn episode_credit<'e>(episode: &'e ScoredEpisode, options: &RowOptions) -> EpisodeCredit<'e> {
    let scores = &episode.hindsight.scores;
    let credit = |action: &Action| scores.steps[action.step?].credit(options.smoothed);
    EpisodeCredit {
        task: &episode.task,
        reward: scores.reward.as_f64().unwrap_or(0.0),
        q: episode.actions.iter().map(credit).collect(),
    }
}

fn row(episode: ScoredEpisode, weighed: &EpisodeAdvantage) -> Row {
    let ScoredEpisode { messages, actions, hindsight: Hindsight { scores, tokens }, .. } = episode;
    let weights = weighed.steps.iter().zip(&weighed.weights);
    Row {
        messages,
        step_weights: weights.map(|(credit, weight)| credit.map(|_| rounded(*weight, 6))).collect(),
        step_messages: actions.iter().map(|action| action.message).collect(),
        episode_id: scores.episode_id,
        reward: scores.reward,
        reward_advantage: rounded(weighed.reward_advantage, 6),
        tokens: tokens.map(|tokens| token_row(tokens, &actions)),
    }
}

fn token_row(tokens: HindsightTokens, actions: &[Action]) -> TokenRow {
    let span = |action: &Action| {
        let step = tokens.steps.iter().find(|step| Some(step.step_index) == action.step)?;
        let (sequence, [start, end]) = step.sequence.zip(step.span)?;
        Some([sequence, start, end])
    };
    TokenRow { spans: actions.iter().map(span).collect(), ids: tokens.whole_sequences() }
}

fn summary(
    rows: &[Row],
    left_out: &[(String, LeftOut)],
    n_without_credit: usize,
    options: &RowOptions,
) -> Value {
    let n_without_weight = left_out.iter().filter(|(_, why)| *why == LeftOut::NoWeight).count();
    let n_steps: usize = rows.iter().map(|row| row.step_weights.len()).sum();
    let known: Vec<f64> = rows.iter().flat_map(|row| row.step_weights.iter().copied().flatten()).collect();
    let positive: Vec<f64> = known.iter().copied().filter(|weight| *weight > 0.0).collect();
    let number = |value: Option<f64>| value.map_or(Value::from(0), |value| rounded(value, 4).into());
    let least = known.iter().copied().reduce(f64::min);
    let largest = known.iter().copied().reduce(f64::max);
    json!({
        "total_episodes_loaded": rows.len() + n_without_weight,
        "episodes_in_dataset": rows.len(),
        "total_steps": n_steps,
        "nonzero_steps": positive.len(),
        "advantage_stats": {
            "min": number(least),
            "max": number(largest),
            "mean": number(mean(&known)),
            "nonzero_mean": number(mean(&positive)),
        },
        "config": {"omega": options.omega, "min_reward": options.min_reward, "use_smoothed": options.smoothed, "normalise": options.normalise.name()},
        "steps_without_credit": n_without_credit,
        "episodes_below_min_reward": left_out.len() - n_without_weight,
        "episodes_without_weight": n_without_weight,
    })
}

/// Python's `round`: to the nearest decimal of the exact value.
fn rounded(value: f64, decimals: usize) -> f64 {
    format!("{value:.decimals$}").parse().unwrap_or(value)
}

/// Writes rows and summary into a directory. All files are whole on the disk before the first takes its name.
pub fn write(directory: &Path, dataset: &Dataset) -> io::Result<()> {
    std::fs::create_dir_all(directory)?;
    let mut lines = Pending::create(&directory.join(TRAIN))?;
    for row in &dataset.rows {
        writeln!(lines, "{}", row.to_line())?;
    }
    let mut columns = Pending::create(&directory.join(TRAIN_PARQUET))?;
    parquet::write(&dataset.rows, &mut columns).map_err(io::Error::other)?;
    let mut summary = Pending::create(&directory.join(SUMMARY))?;
    summary.write_all(json_dumps(&dataset.summary, &JsonStyle::default().indented("  ")).as_bytes())?;
    for file in [lines, columns, summary] {
        file.commit()?;
    }
    Ok(())
}
