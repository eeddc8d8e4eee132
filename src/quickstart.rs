//! The main job in small: a recorded episode, scored as the student saw it and again with its outcome known.
//!
//! Owns the bundled episode, the outcome's words, and the way from messages to the logprobs of every action
//! under both lenses. Deliberately absent: printing, files, and where the model comes from.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::chat::render::{needed_tool_text, render_conversation};
use crate::chat::source::ChatTemplates;
use crate::chat::spans;
use crate::chat::template::{Now, RenderInput, Template};
use crate::chat::tokenizer::Tokenizer;
use crate::chat::tool_text;
use crate::episode::{Content, Message, Role, ToolText};
use crate::model::{Error, Model};
use crate::score::{ScoreJob, SpanScore};
use crate::tokens::{Logprob, TokenId, TokenSpan};
use crate::wire::messages;

/// An agent that mends a failing test, with mistakes and recoveries.
const EPISODE: &str = include_str!("../examples/episodes/fix_failing_test.jsonl");
/// A pass over fewer new tokens than this uses the machine badly; a pass over many says nothing for long.
const TOKENS_PER_PASS: usize = 512;

/// A recorded episode: what was said, with which tools, and what came of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Recorded {
    /// Its name.
    pub id: String,
    /// The conversation.
    pub messages: Vec<Message>,
    /// The tools' schemas.
    pub tools: Vec<Value>,
    /// What the task's check gave.
    pub reward: f64,
}

/// Reads the bundled episode.
pub fn bundled() -> Result<Recorded, Error> {
    let json: Value = serde_json::from_str(EPISODE.trim()).map_err(|why| broken(&why))?;
    let messages = messages::list_from_json(&json["messages"]).map_err(|why| broken(&why))?;
    Ok(Recorded {
        id: json["id"].as_str().unwrap_or_default().to_owned(),
        messages,
        tools: json["tools"].as_array().cloned().unwrap_or_default(),
        reward: json["reward"].as_f64().ok_or_else(|| broken(&"it has no reward"))?,
    })
}

impl Recorded {
    /// The conversation as `chat render` reads it.
    pub fn conversation(&self) -> Value {
        let messages: Vec<Value> = self.messages.iter().map(messages::to_json).collect();
        json!({"messages": messages, "tools": self.tools})
    }

    /// The same episode told to somebody who knows how it ended: the outcome stands in the first user message.
    pub fn with_outcome(&self) -> Self {
        let mut told = self.clone();
        if let Some(first) = told.messages.iter_mut().find(|message| message.role == Role::User) {
            let text = first.content.as_ref().map(Content::text).unwrap_or_default();
            first.content = Some(Content::Text(format!("{text}\n\n{}", outcome_text(self.reward))));
        }
        told
    }
}

/// What the outcome lens says.
fn outcome_text(reward: f64) -> String {
    format!("[Hindsight, unseen by whoever acted]\nFinal reward {reward:.3}.")
}

/// An episode as tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct Tokenised {
    /// One sequence while history only grows.
    pub sequences: Vec<Vec<TokenId>>,
    /// Each action: its message, its sequence and where it is in there.
    pub actions: Vec<(usize, usize, TokenSpan)>,
    /// How tools were written, where the template's own way does not serve.
    pub tool_text: Option<ToolText>,
}

impl Tokenised {
    /// The tokens of an action.
    pub fn action(&self, idx: usize) -> &[TokenId] {
        let (_, sequence, span) = self.actions[idx];
        &self.sequences[sequence][span.range()]
    }

    /// Renders and encodes an episode, and finds its actions.
    pub fn new(episode: &Recorded, templates: &ChatTemplates, tokenizer: &Tokenizer) -> Result<Self, Error> {
        let template = templates.select(true).map_err(|error| invalid(&error, error.help()))?;
        let messages: Vec<Value> = episode.messages.iter().map(messages::to_json).collect();
        let input = RenderInput {
            messages: &messages,
            tools: Some(&episode.tools),
            add_generation_prompt: false,
            vars: templates.special_tokens(),
            now: Some(Now::utc(0)),
        };
        let tool_text = needed_tool_text(&template, &input);
        let rendering = render_conversation(&template, &input, tool_text);
        let shown = rendering.map_err(|error| invalid(&error, error.help()))?.messages;
        let tools = input.tools.filter(|_| tool_text.is_none());
        Self::of_shown(&template, &RenderInput { messages: &shown, tools, ..input }, tokenizer, tool_text)
    }

    fn of_shown(
        template: &Template,
        input: &RenderInput<'_>,
        tokenizer: &Tokenizer,
        tool_text: Option<ToolText>,
    ) -> Result<Self, Error> {
        let role = |message: &Value| message.get("role").and_then(Value::as_str).and_then(Role::from_name);
        let roles: Option<Vec<Role>> = input.messages.iter().map(role).collect();
        let roles = roles.ok_or_else(|| broken(&"a message has no role"))?;
        let growing = template.growing(input).map_err(|error| invalid(&error, error.help()))?;
        let mut render = |view: spans::View<'_>| growing.view(view);
        let found = spans::turns(&roles, &mut render, tokenizer)
            .map_err(|error| invalid(&error, "use a model with another chat template".to_owned()))?;
        let actions = found.turns.iter().map(|turn| (turn.message_idx, turn.sequence, turn.span)).collect();
        Ok(Self { sequences: found.sequences, actions, tool_text })
    }

    /// The jobs that score every action, with the actions each of them is for. Later jobs continue earlier
    /// ones, so a model that remembers prefixes computes every token once.
    pub fn jobs(&self) -> Result<Vec<(ScoreJob, Vec<usize>)>, Error> {
        let (mut jobs, mut from) = (Vec::new(), 0);
        while from < self.actions.len() {
            let to = self.pass_end(from);
            let sequence = self.actions[from].1;
            let spans: Vec<TokenSpan> = self.actions[from..to].iter().map(|action| action.2).collect();
            let end = spans.last().map_or(0, |span| span.end());
            let job = ScoreJob::new(Arc::from(&self.sequences[sequence][..end]), spans, 0);
            jobs.push((job.map_err(|why| broken(&why))?, (from..to).collect()));
            from = to;
        }
        Ok(jobs)
    }

    /// The end of the pass that begins with the action `from`.
    fn pass_end(&self, from: usize) -> usize {
        let (_, sequence, first) = self.actions[from];
        let is_over = |&(_, other, span): &(usize, usize, TokenSpan)| {
            other != sequence || span.end() > first.start() + TOKENS_PER_PASS
        };
        let behind = self.actions[from + 1..].iter().position(is_over);
        behind.map_or(self.actions.len(), |idx| from + 1 + idx)
    }
}

/// One action under both lenses.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// Which assistant message of the episode it is.
    pub message_idx: usize,
    /// The tool it calls, or its first words.
    pub title: String,
    /// Its tokens.
    pub tokens: Vec<TokenId>,
    /// What each token reads.
    pub texts: Vec<String>,
    /// The logprob of each as the student saw the conversation.
    pub plain: Vec<Option<Logprob>>,
    /// The logprob of each when the outcome is known.
    pub outcome: Vec<Option<Logprob>>,
}

impl Step {
    /// How much likelier the outcome makes a token of this action on average; `None` where a logprob is missing.
    pub fn change(&self) -> Option<f64> {
        Some(mean(&self.outcome)? - mean(&self.plain)?)
    }

    /// One line of the scores file.
    pub fn to_json(&self, episode: &str, step: usize) -> Value {
        let values = |values: &[Option<Logprob>]| -> Vec<Option<f64>> {
            values.iter().map(|it| it.map(Logprob::get)).collect()
        };
        json!({
            "episode": episode, "step": step, "message": self.message_idx, "action": self.title,
            "tokens": self.tokens, "texts": self.texts,
            "logprobs": {"plain": values(&self.plain), "outcome": values(&self.outcome)},
            "mean": {"plain": mean(&self.plain), "outcome": mean(&self.outcome), "change": self.change()},
        })
    }
}

/// The mean of logprobs, if none is missing.
pub fn mean(values: &[Option<Logprob>]) -> Option<f64> {
    let sum: f64 = values.iter().map(|it| it.map(Logprob::get)).sum::<Option<f64>>()?;
    (!values.is_empty()).then(|| sum / values.len() as f64)
}

/// Puts the scores of both lenses side by side.
pub fn steps(
    episode: &Recorded,
    tokens: &Tokenised,
    tokenizer: &Tokenizer,
    plain: &[SpanScore],
    outcome: &[SpanScore],
) -> Result<Vec<Step>, Error> {
    let actions: Vec<usize> = episode
        .messages
        .iter()
        .enumerate()
        .filter(|(_, it)| it.role == Role::Assistant)
        .map(|it| it.0)
        .collect();
    let mut steps = Vec::with_capacity(actions.len());
    for (idx, &message_idx) in actions.iter().enumerate() {
        let ids = tokens.action(idx).to_vec();
        let text = |id: &TokenId| tokenizer.decode(&[*id]).map_err(|error| broken(&error));
        steps.push(Step {
            message_idx,
            title: title(&episode.messages[message_idx]),
            texts: ids.iter().map(text).collect::<Result<_, _>>()?,
            plain: plain[idx].logprobs().collect(),
            outcome: outcome[idx].logprobs().collect(),
            tokens: ids,
        });
    }
    Ok(steps)
}

/// A tool's name and the beginning of its arguments, or the first words.
fn title(message: &Message) -> String {
    match message.tool_calls.first() {
        Some(call) => format!("{} {}", call.name, messages::arguments_text(&call.arguments)),
        None => message.content.as_ref().map(Content::text).unwrap_or_default(),
    }
}

/// Scores every action of an episode; `done` is told how many tokens of how many are read.
pub async fn score(
    model: &dyn Model,
    tokens: &Tokenised,
    done: &(dyn Fn(usize) + Sync),
) -> Result<Vec<SpanScore>, Error> {
    let mut scores = BTreeMap::new();
    for (job, actions) in tokens.jobs()? {
        let scored = model.score(&job).await?;
        done(job.end_needed());
        scores.extend(actions.into_iter().zip(scored.spans));
    }
    Ok(scores.into_values().collect())
}

/// Refuses two renderings whose actions are not the same tokens: their logprobs could not be compared.
pub fn check_same_actions(plain: &Tokenised, outcome: &Tokenised) -> Result<(), Error> {
    let same = plain.actions.len() == outcome.actions.len()
        && (0..plain.actions.len()).all(|idx| plain.action(idx) == outcome.action(idx));
    if same {
        return Ok(());
    }
    Err(broken(&"the outcome changes the tokens of an action"))
}

/// The name of a rendering, for people.
pub fn tool_text_name(choice: Option<ToolText>) -> &'static str {
    choice.map_or("the template's own way", tool_text::name)
}

fn broken(why: &impl ToString) -> Error {
    let what = format!("the bundled episode cannot be used: {}", why.to_string());
    Error::Invalid { what, help: "try another model with --model".to_owned() }
}

fn invalid(what: &impl ToString, help: String) -> Error {
    Error::Invalid { what: what.to_string(), help }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;

    #[test]
    fn the_outcome_stands_in_the_first_user_message_alone() {
        let plain = bundled().unwrap();
        let told = plain.with_outcome();
        let changed: Vec<usize> =
            (0..plain.messages.len()).filter(|&idx| plain.messages[idx] != told.messages[idx]).collect();
        assert_eq!(changed, [1]);
        let text = told.messages[1].content.as_ref().unwrap().text();
        assert!(text.ends_with("\n\n[Hindsight, unseen by whoever acted]\nFinal reward 1.000."), "{text}");
    }

    #[test]
    fn a_mean_needs_every_value() {
        let of = |values: &[Option<f64>]| -> Option<f64> {
            mean(&values.iter().map(|it| it.map(|it| Logprob::new(it).unwrap())).collect::<Vec<_>>())
        };
        assert_eq!(of(&[Some(-1.0), Some(-2.0)]), Some(-1.5));
        assert_eq!(of(&[Some(-1.0), None]), None);
        assert_eq!(of(&[]), None);
    }

    #[test]
    fn passes_hold_every_action_once_and_break_where_the_sequence_does() {
        let span = |start, end| TokenSpan::new(start, end).unwrap();
        let actions =
            vec![(2, 0, span(10, 300)), (4, 0, span(400, 500)), (6, 0, span(600, 2000)), (8, 1, span(5, 9))];
        let tokens = Tokenised { sequences: vec![vec![7; 2000], vec![8; 9]], actions, tool_text: None };
        let jobs = tokens.jobs().unwrap();
        let shape: Vec<_> = jobs.iter().map(|(job, of)| (job.tokens().len(), of.clone())).collect();
        assert_eq!(shape, [(500, vec![0, 1]), (2000, vec![2]), (9, vec![3])]);
    }
}
