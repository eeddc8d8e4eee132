//! Training rows from scored episodes, as the published dataset builder writes them and with weights per token.
//!
//! Owns the rows, their file and the summary beside it. The published keys come first and in their order,
//! so that published trainers read the rows; ours follow where an episode's tokens are known: the
//! conversation's ids, a weight for each, and where every step stands in them. Deliberately absent:
//! how advantages are computed, which is `credit::advantage`.

use std::io;
use std::path::Path;

use serde_json::{Map, Number, Value, json};

use super::parquet::{self, ParquetError};
use crate::credit::advantage::{
    EpisodeAdvantage, EpisodeCredit, Normalise, Options as AdvantageOptions, advantages,
};
use crate::credit::sum::mean;
use crate::python::{JsonStyle, json_dumps};
use crate::store::atomic;
use crate::store::episodes::{LoadError, Loaded, SESSION};
use crate::store::hindsight::Hindsight;
use crate::tokens::TokenId;
use crate::wire::hindsight::HindsightTokens;
use crate::wire::messages::to_json;
use crate::wire::published;

/// The rows' file.
pub const TRAIN: &str = "hcapo_train.jsonl";
/// The same rows for readers of columns.
pub const TRAIN_PARQUET: &str = "hcapo_train.parquet";
/// What the rows are made of.
pub const SUMMARY: &str = "hcapo_summary.json";

/// How messages are written into rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageForm {
    /// With thinking and uncut results, tool arguments as strings.
    Faithful,
    /// As the published loader converts them.
    Published,
}

/// What goes into a dataset, and how it is weighed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Options {
    /// Episodes with less reward are left out.
    pub min_reward: f64,
    /// Weight of the steps' own part.
    pub omega: f64,
    /// Whether to take Q_H after smoothing.
    pub smoothed: bool,
    /// Which episodes are compared with each other.
    pub normalise: Normalise,
}

impl Default for Options {
    fn default() -> Self {
        Self { min_reward: 0.2, omega: 1.0, smoothed: true, normalise: Normalise::Global }
    }
}

/// A scored episode on its way into a row.
#[derive(Clone, Debug, PartialEq)]
pub struct ScoredEpisode {
    /// Its task's id.
    pub task: String,
    /// Its messages as rows have them.
    pub messages: Vec<Value>,
    /// Its scores.
    pub hindsight: Hindsight,
}

/// The conversation's tokens with their weights.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenRow {
    /// The ids of each sequence.
    pub ids: Vec<Vec<TokenId>>,
    /// A weight for each id; zero for everything that is no action.
    pub weights: Vec<Vec<f64>>,
    /// For each step its sequence, start and end; nothing where its tokens are not known.
    pub spans: Vec<Option<[usize; 3]>>,
}

/// One row.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// The conversation.
    pub messages: Vec<Value>,
    /// Each step's weight, to six decimals.
    pub step_weights: Vec<f64>,
    /// Each step's message.
    pub step_messages: Vec<usize>,
    /// The episode's id.
    pub episode_id: Value,
    /// Its reward.
    pub reward: Number,
    /// Its reward against the other episodes, to six decimals.
    pub reward_advantage: f64,
    /// Its tokens, where they are known.
    pub tokens: Option<TokenRow>,
}

/// A whole dataset.
#[derive(Clone, Debug, PartialEq)]
pub struct Dataset {
    /// One per episode that has any weight.
    pub rows: Vec<Row>,
    /// What they are made of.
    pub summary: Value,
    /// What the person should know.
    pub notes: Vec<String>,
}

/// Why a dataset could not be written.
#[derive(Debug, thiserror::Error)]
pub enum DatasetError {
    /// The disk said no.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The rows do not go into columns.
    #[error(transparent)]
    Parquet(#[from] ParquetError),
}

/// Takes a loaded and scored episode; the published form is made from its session file again.
pub fn scored_episode(
    loaded: &Loaded,
    hindsight: Hindsight,
    form: MessageForm,
) -> Result<ScoredEpisode, LoadError> {
    let session = loaded.path.join(SESSION);
    let messages = match form {
        MessageForm::Published if session.is_file() => published_messages(&session)?,
        _ => loaded.episode.messages.iter().map(to_json).collect(),
    };
    Ok(ScoredEpisode { task: loaded.episode.task.id.clone(), messages, hindsight })
}

fn published_messages(session: &Path) -> Result<Vec<Value>, LoadError> {
    let failed = |line, why| LoadError { path: session.to_owned(), line, why };
    let text = std::fs::read_to_string(session).map_err(|error| failed(None, error.to_string()))?;
    let messages = published::messages(&text, published::MAX_TOOL_RESULT_CHARS);
    messages.map_err(|fault| failed(fault.line, fault.why))
}

/// Weighs the steps of all episodes and makes the rows.
pub fn build(episodes: &[ScoredEpisode], options: &Options) -> Dataset {
    let reward = |it: &ScoredEpisode| it.hindsight.scores.reward.as_f64();
    let kept = episodes.iter().filter(|it| reward(it).is_some_and(|reward| reward >= options.min_reward));
    let kept: Vec<&ScoredEpisode> = kept.collect();
    let credits: Vec<_> = kept.iter().map(|it| episode_credit(it, options)).collect();
    let weighed = advantages(&credits, &advantage_options(options));
    let mut notes = Vec::new();
    let rows: Vec<Row> =
        kept.iter().zip(&weighed).filter_map(|(it, weighed)| row(it, weighed, &mut notes)).collect();
    let n_without_credit = credits.iter().flat_map(|it| &it.q).filter(|q| q.is_none()).count();
    Dataset { summary: summary(kept.len(), n_without_credit, &rows, options), rows, notes }
}

fn advantage_options(options: &Options) -> AdvantageOptions {
    AdvantageOptions { omega: options.omega, normalise: options.normalise }
}

fn episode_credit<'e>(episode: &'e ScoredEpisode, options: &Options) -> EpisodeCredit<'e> {
    let scores = &episode.hindsight.scores;
    EpisodeCredit {
        task: &episode.task,
        reward: scores.reward.as_f64().unwrap_or(0.0),
        q: scores.steps.iter().map(|step| step.credit(options.smoothed)).collect(),
    }
}

/// The row of an episode; none when nothing of it has weight.
fn row(episode: &ScoredEpisode, weighed: &EpisodeAdvantage, notes: &mut Vec<String>) -> Option<Row> {
    let scores = &episode.hindsight.scores;
    let is_action = |(_, message): &(usize, &Value)| message["role"] == "assistant";
    let mut step_messages: Vec<usize> =
        episode.messages.iter().enumerate().filter(is_action).map(|(idx, _)| idx).collect();
    let (n_scored, n_actions) = (weighed.weights.len(), step_messages.len());
    if n_scored != n_actions {
        let id = &scores.episode_id;
        notes.push(format!("episode {id} has {n_actions} assistant messages and {n_scored} scored steps; the rest is left out"));
    }
    let n_steps = n_scored.min(n_actions);
    step_messages.truncate(n_steps);
    let step_weights: Vec<f64> = weighed.weights[..n_steps].iter().map(|it| rounded(*it, 6)).collect();
    weighed.weights[..n_steps].iter().any(|weight| *weight > 0.0).then(|| Row {
        messages: episode.messages.clone(),
        tokens: episode.hindsight.tokens.as_ref().map(|tokens| token_row(tokens, &step_weights)),
        step_weights,
        step_messages,
        episode_id: scores.episode_id.clone(),
        reward: scores.reward.clone(),
        reward_advantage: rounded(weighed.reward_advantage, 6),
    })
}

fn token_row(tokens: &HindsightTokens, step_weights: &[f64]) -> TokenRow {
    let mut weights: Vec<Vec<f64>> = tokens.sequences.iter().map(|ids| vec![0.0; ids.len()]).collect();
    let mut spans = vec![None; step_weights.len()];
    for step in &tokens.steps {
        let place = step.sequence.zip(step.span);
        let (Some((sequence, [start, end])), Some(weight)) = (place, step_weights.get(step.step_index))
        else {
            continue;
        };
        if let Some(own) = weights.get_mut(sequence).and_then(|all| all.get_mut(start..end)) {
            own.fill(*weight);
            spans[step.step_index] = Some([sequence, start, end]);
        }
    }
    TokenRow { ids: tokens.sequences.clone(), weights, spans }
}

impl Row {
    /// The row as one line of JSON, as Python writes it.
    pub fn to_line(&self) -> String {
        json_dumps(&Value::Object(self.to_json()), &JsonStyle::transformers())
    }

    fn to_json(&self) -> Map<String, Value> {
        let mut json = Map::new();
        let mut put = |key: &str, value: Value| json.insert(key.to_owned(), value);
        put("messages", self.messages.clone().into());
        put("step_advantages", self.step_weights.clone().into());
        put("step_message_indices", self.step_messages.clone().into());
        put("_episode_id", self.episode_id.clone());
        put("_reward", self.reward.clone().into());
        put("_grpo_advantage", self.reward_advantage.into());
        put("_num_steps", self.step_weights.len().into());
        if let Some(tokens) = &self.tokens {
            put("token_ids", json!(tokens.ids));
            put("token_weights", json!(tokens.weights));
            put("step_spans", json!(tokens.spans));
        }
        json
    }
}

fn summary(n_loaded: usize, n_without_credit: usize, rows: &[Row], options: &Options) -> Value {
    let all: Vec<f64> = rows.iter().flat_map(|row| row.step_weights.iter().copied()).collect();
    let positive: Vec<f64> = all.iter().copied().filter(|weight| *weight > 0.0).collect();
    let number = |value: Option<f64>| value.map_or(Value::from(0), |value| rounded(value, 4).into());
    let least = all.iter().copied().reduce(f64::min);
    let largest = all.iter().copied().reduce(f64::max);
    let normalise = if options.normalise == Normalise::Task { "task" } else { "global" };
    json!({
        "total_episodes_loaded": n_loaded,
        "episodes_in_dataset": rows.len(),
        "total_steps": all.len(),
        "nonzero_steps": positive.len(),
        "advantage_stats": {
            "min": number(least),
            "max": number(largest),
            "mean": number(mean(&all)),
            "nonzero_mean": number(mean(&positive)),
        },
        "config": {"omega": options.omega, "min_reward": options.min_reward, "use_smoothed": options.smoothed, "normalise": normalise},
        "steps_without_credit": n_without_credit,
    })
}

/// Python's `round`: to the nearest decimal of the exact value.
fn rounded(value: f64, decimals: usize) -> f64 {
    format!("{value:.decimals$}").parse().unwrap_or(value)
}

/// Writes rows and summary into a directory, each file atomically.
pub fn write(directory: &Path, dataset: &Dataset) -> Result<(), DatasetError> {
    std::fs::create_dir_all(directory)?;
    let lines: String = dataset.rows.iter().map(|row| row.to_line() + "\n").collect();
    atomic::write(&directory.join(TRAIN), lines.as_bytes())?;
    atomic::write(&directory.join(TRAIN_PARQUET), &parquet::file(&dataset.rows)?)?;
    let summary = json_dumps(&dataset.summary, &JsonStyle::default().indented("  "));
    atomic::write(&directory.join(SUMMARY), summary.as_bytes())?;
    Ok(())
}
