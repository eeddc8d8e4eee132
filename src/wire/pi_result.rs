//! `result.json`, what the published trajectory collector writes beside each session file.
//!
//! Owns its conversion to an outcome. The surprises: `frozen_scores` is filled with zeros when a
//! plan is accepted, so its keys are the plan's; a failed episode has only `error` and a few counters;
//! numbers may be null, which fails the episode here, with the line.

use serde_json::{Map, Value};

use super::fault::{Fault, number, numbers, plan, text, wrong};
use backsight_core::episode::Progress;

/// What `result.json` says.
#[derive(Clone, Debug, PartialEq)]
pub struct EpisodeResult {
    /// As written: a number, a string, or null where there is none.
    pub episode_id: Value,
    /// The episode's reward, as written.
    pub reward: serde_json::Number,
    /// The subtasks' scores, as written.
    pub frozen_scores: Map<String, Value>,
    /// Plan, phase and scores.
    pub progress: Progress,
    /// The task's name, where the collector knew one.
    pub task: Option<String>,
}

/// Reads a whole file.
pub fn parse(content: &str) -> Result<EpisodeResult, Fault> {
    let json: &Map<String, Value> = &serde_json::from_str(content).map_err(|error| Fault::json(&error))?;
    let at = |key| move |fault| Fault { line: line_of(content, key), ..fault };
    let reward = reward(json).map_err(|(key, fault)| at(key)(fault))?;
    let scores = numbers(json, "frozen_scores").map_err(at("frozen_scores"))?;
    let progress = Progress {
        phase: text(json, "phase").map_err(at("phase"))?,
        plan_score: number(json, "plan_score").map_err(at("plan_score"))?,
        plan: plan(json).map_err(at("plan"))?,
        subtask_scores: scores,
        turns: json.get("turns").and_then(Value::as_u64),
        tool_calls: json.get("tool_call_count").and_then(Value::as_u64),
    };
    Ok(EpisodeResult {
        episode_id: json.get("episode_id").cloned().unwrap_or(Value::Null),
        reward,
        frozen_scores: json.get("frozen_scores").and_then(Value::as_object).cloned().unwrap_or_default(),
        progress,
        task: ["task_id", "task"].iter().find_map(|key| json.get(*key)?.as_str()).map(str::to_owned),
    })
}

/// The reward, or what is wrong and under which key.
fn reward(json: &Map<String, Value>) -> Result<serde_json::Number, (&'static str, Fault)> {
    match (json.get("episode_reward"), json.get("error").and_then(Value::as_str)) {
        (Some(Value::Number(reward)), _) => Ok(reward.clone()),
        (_, Some(error)) => Err(("error", Fault::new(format_args!("the collector gave up: {error}")))),
        (None, None) => Err(("episode_reward", Fault::new("there is no `episode_reward`"))),
        (Some(other), None) => Err(("episode_reward", wrong("episode_reward", "a number", other))),
    }
}

/// The line on which a key stands.
fn line_of(content: &str, key: &str) -> Option<usize> {
    let quoted = format!("\"{key}\"");
    let is_key = |(at, _): &(usize, &str)| content[at + quoted.len()..].trim_start().starts_with(':');
    let (at, _) = content.match_indices(&quoted).find(is_key)?;
    Some(content[..at].matches('\n').count() + 1)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;

    #[test]
    fn faults_name_the_line() {
        let check = |content: &str, expected: &str| {
            assert_eq!(parse(content).unwrap_err().to_string(), expected, "{content}");
        };
        check(
            "{\n \"episode_reward\": 0.5,\n \"plan_score\": null\n}",
            "line 3: `plan_score` must be a number, not null",
        );
        check("{\n \"episode_reward\": null}", "line 2: `episode_reward` must be a number, not null");
        check("{}", "there is no `episode_reward`");
        check("{\"error\": \"boom\", \"turns\": 0}", "line 1: the collector gave up: boom");
        check(
            "{\"episode_reward\": 1,\n\"frozen_scores\": {\"S1\": null}}",
            "line 2: `frozen_scores.S1` must be a number, not null",
        );
        check("{\"episode_reward\": \"1\"}", "line 1: `episode_reward` must be a number, not a string");
        check("{\"episode_reward\": NaN}", "line 1: not JSON: expected value");
    }

    #[test]
    fn what_is_left_out_is_absent() {
        for plan in ["null", "[]"] {
            let result = parse(&format!("{{\"episode_reward\": 1, \"plan\": {plan}}}")).unwrap();
            assert_eq!(result.progress, Progress::default(), "{plan}");
        }
        let result = parse("{\"episode_reward\": 1}").unwrap();
        assert_eq!((result.reward.to_string(), result.episode_id), ("1".to_owned(), Value::Null));
    }
}
