//! The main job in small: a recorded episode, scored as the student saw it and again with its outcome known.
//!
//! Owns the bundled episode, and its steps as they are shown. Deliberately absent: printing, files, and how it is scored.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use crate::model::Error;
use crate::pipeline::{Framing, Reader, Texts, outline};
use crate::store::hindsight::Hindsight;
use crate::wire::hindsight::{ScoredStep, StepTokens};
use crate::wire::openai_episodes;
use backsight_chat::messages;
use backsight_chat::tokenizer::Tokenizer;
use backsight_core::episode::{Content, Episode, Message};
use backsight_core::lens::{Lens, Lenses, OUTCOME_TEMPLATE, OutcomeLens, Placement, PlainLens, Wording};
use backsight_core::tokens::{Logprob, TokenId};

/// An agent that mends a failing test, with mistakes and recoveries.
pub const EPISODE: &str = include_str!("../examples/episodes/fix_failing_test.jsonl");

/// Reads the bundled episode.
pub fn bundled() -> Result<Episode, Error> {
    let json: Map<String, Value> = serde_json::from_str(EPISODE.trim()).map_err(|why| broken(&why))?;
    openai_episodes::read(&json, "bundled").map_err(|why| broken(&why))
}

/// An episode's conversation as `chat render` reads it.
pub fn conversation(episode: &Episode) -> Value {
    let messages: Vec<Value> = episode.messages.iter().map(messages::to_json).collect();
    json!({"messages": messages, "tools": episode.tools})
}

/// The tokens of the longest sequence in which the episode is read knowing its outcome.
pub fn longest(episode: &Episode, texts: &Texts) -> Result<usize, Error> {
    let template = Wording::parse(OUTCOME_TEMPLATE).map_err(|why| broken(&why))?;
    let lenses = Lenses::default().and(Arc::new(OutcomeLens { template, placement: Placement::First }), 0);
    let framing = Framing { tool_text: texts.needed_tool_text(false), ..Framing::default() };
    let reader = Reader { texts, framing: &framing, limit: None };
    let outline = outline(episode, &framing, &lenses, &|text| texts.n_tokens(text));
    let read = reader.read(episode, &outline.map_err(|why| broken(&why))?);
    let views = read.steps.iter().flatten().flat_map(|step| &step.views);
    Ok(views.filter_map(|view| view.seen.as_ref().ok()).map(|seen| seen.tip.len()).max().unwrap_or(0))
}

/// One action under both lenses, and what it was worth.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// The tool it calls, or its first words.
    pub title: String,
    /// What each of its tokens reads.
    pub texts: Vec<String>,
    /// The logprob of each as the student saw the conversation.
    pub plain: Vec<Option<Logprob>>,
    /// The logprob of each when the outcome is known.
    pub outcome: Vec<Option<Logprob>>,
    /// What was computed from them.
    pub scored: ScoredStep,
}

impl Step {
    /// How much likelier the outcome makes a token of this action on average; `None` where a score is missing.
    pub fn change(&self) -> Option<f64> {
        Some(self.scored.mean_logprob? - self.scored.plain_mean_logprob?)
    }
}

/// The steps of a scored episode.
pub fn steps(episode: &Episode, hindsight: &Hindsight, tokenizer: &Tokenizer) -> Result<Vec<Step>, Error> {
    let tokens = hindsight.tokens.as_ref().ok_or_else(|| broken(&"its tokens were not kept"))?;
    let text = |id: &TokenId| tokenizer.decode(&[*id]).map_err(|error| broken(&error));
    let step = |(scored, of_step): (&ScoredStep, &StepTokens)| {
        let ids = match (of_step.sequence.and_then(|idx| tokens.sequences.get(idx)), of_step.span) {
            (Some(sequence), Some([start, end])) => &sequence[start..end],
            _ => &[],
        };
        Ok(Step {
            title: title(&episode.messages[scored.message_index]),
            texts: ids.iter().map(text).collect::<Result<_, _>>()?,
            plain: of_step.through(tokens.lens(PlainLens.name())).cloned().unwrap_or_default(),
            outcome: of_step.through(Some(0)).cloned().unwrap_or_default(),
            scored: scored.clone(),
        })
    };
    hindsight.scores.steps.iter().zip(&tokens.steps).map(step).collect()
}

/// A tool's name and the beginning of its arguments, or the first words.
fn title(message: &Message) -> String {
    match message.tool_calls.first() {
        Some(call) => format!("{} {}", call.name, messages::arguments_text(&call.arguments)),
        None => message.content.as_ref().map(Content::text).unwrap_or_default(),
    }
}

fn broken(why: &impl ToString) -> Error {
    let what = format!("the bundled episode cannot be used: {}", why.to_string());
    Error::invalid(what, "try another model with --model")
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;

    #[test]
    fn the_bundled_episode_is_one() {
        let episode = bundled().unwrap();
        assert_eq!((episode.steps().len(), episode.tools.is_empty()), (24, false));
        assert_eq!(episode.outcome.as_ref().unwrap().reward, 1.0);
        let first = &episode.steps()[0];
        assert!(!title(&episode.messages[first.message_idx]).is_empty());
        assert_eq!(conversation(&episode)["messages"].as_array().unwrap().len(), episode.messages.len());
    }
}
