//! The main job in small: a recorded episode, scored as the student saw it and again with its outcome known.
//!
//! Owns the bundled episode, what is asked of the pipeline for it, and its steps as they are shown. Deliberately absent:
//! printing, files, and where the model comes from; the work itself is the pipeline's.

use std::path::Path;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use crate::model::Error;
use crate::model::Opened;
use crate::pipeline::credit::Options;
use crate::pipeline::outline::{Framing, outline};
use crate::pipeline::reader::{Reader, Texts, hash};
use crate::pipeline::resume::Asked;
use crate::store::hindsight::{Hindsight, Settings};
use crate::wire::hindsight::{Provenance, ScoredStep, StepTokens};
use crate::wire::openai_episodes;
use backsight_chat::messages;
use backsight_chat::render::needed_tool_text;
use backsight_chat::template::{Now, RenderInput};
use backsight_chat::tokenizer::Tokenizer;
use backsight_core::credit::hcapo::Params;
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

/// What is asked of the pipeline: both lenses, everything else as it is by default; tools as text where the template needs it.
pub fn options(episode: &Episode, opened: &Opened, texts: &Texts, run_dir: &Path) -> Result<Options, Error> {
    let template = Wording::parse(OUTCOME_TEMPLATE).map_err(|why| broken(&why))?;
    let lens = OutcomeLens { template, placement: Placement::First };
    let now = Some(Now::utc(0));
    let messages: Vec<Value> = episode.messages.iter().map(messages::to_json).collect();
    let input = RenderInput {
        messages: &messages,
        tools: Some(&episode.tools),
        add_generation_prompt: false,
        vars: texts.vars(),
        now,
    };
    let tool_text = needed_tool_text(texts.template(true), &input);
    let provenance = Provenance {
        backsight: env!("CARGO_PKG_VERSION").to_owned(),
        model: Some(opened.info.model.clone()),
        server: Some(opened.info.kind.name.to_owned()),
        template_sha256: Some(texts.template_sha256()),
        lens_sha256: Some(hash(OUTCOME_TEMPLATE)),
        lens: Some(lens.name().to_owned()),
        placement: Some(lens.placement.name().to_owned()),
        ..Provenance::default()
    };
    let settings = Settings { params: Params::default(), max_logprob_tokens: 0 };
    Ok(Options {
        framing: Framing { tool_text, now, ..Framing::default() },
        lenses: Lenses::default().and(Arc::new(lens), 0).and(Arc::new(PlainLens), 0),
        asked: Asked { settings, provenance },
        min_reward: f64::NEG_INFINITY,
        overwrite: true,
        limit: opened.model.limits().context_length.map(|length| length.saturating_sub(1)),
        requests_at_once: 1,
        episodes_at_once: 1,
        run_dir: run_dir.to_owned(),
    })
}

/// The tokens of the longest sequence that is to be read.
pub fn longest(episode: &Episode, texts: &Texts, options: &Options) -> usize {
    let Options { framing, lenses, .. } = options;
    let reader = Reader { texts, framing, limit: None };
    let outlined = outline(episode, framing, lenses, &|text| texts.n_tokens(text));
    let read = outlined.map(|outline| reader.read(episode, &outline));
    let views = read.iter().flat_map(|read| read.steps.iter().flatten()).flat_map(|step| &step.views);
    views.filter_map(|view| view.seen.as_ref().ok()).map(|seen| seen.tip.len()).max().unwrap_or(0)
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
    Error::Invalid { what, help: "try another model with --model".to_owned() }
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
