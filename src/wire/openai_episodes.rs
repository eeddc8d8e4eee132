//! Episodes as JSON Lines of OpenAI-style messages, one episode a line, written by users' own tools.
//!
//! `{"id"?, "task"?, "messages": […], "tools"?, "reward", "subtasks"?: {name: score}, "plan"?}`;
//! `phase` and `plan_score` are understood too. Tool arguments are objects, strings or the
//! `{"arguments": "<json>"}` wrapper. The surprise: `task` is a name, or an object with `id` and
//! `prompt`. Deliberately absent: guessing a reward.

use serde_json::{Map, Value};

use super::fault::{Fault, number, numbers, optional, plan, text, wrong};
use backsight_chat::messages::list_from_json;
use backsight_core::episode::{Episode, Message, Outcome, Progress, Role, Task, steps_of};
use backsight_core::hash::sha256;
use backsight_core::subtasks::submitted_plan;

/// Whether a line looks like one of these episodes.
pub fn recognises(json: &Map<String, Value>) -> bool {
    json.contains_key("messages") && !json.contains_key("tokens") && !json.contains_key("format")
}

/// Reads the object on one line; `default_id` names an episode that has no `id`.
pub fn read(json: &Map<String, Value>, default_id: &str) -> Result<Episode, Fault> {
    let list = json.get("messages").unwrap_or(&Value::Null);
    let messages = list_from_json(list).map_err(Fault::new)?;
    let reward = number(json, "reward")?.ok_or_else(|| Fault::new("there is no `reward`"))?;
    let no_scores = json.get("subtasks").is_some_and(Value::is_null);
    let progress = Progress {
        phase: text(json, "phase")?,
        plan_score: number(json, "plan_score")?,
        plan: plan(json)?.or_else(|| submitted_plan(&messages, &[])),
        subtask_scores: if no_scores { Vec::new() } else { numbers(json, "subtasks")? },
        ..Progress::default()
    };
    let mut episode = Episode::new(id(json, default_id)?, task(json, &messages)?, messages);
    episode.tools = optional(json, "tools", "a list", Value::as_array)?.cloned().unwrap_or_default();
    episode.outcome = Ok(Outcome { reward, components: Vec::new() });
    episode.progress = progress;
    episode.set_steps(steps_of(&episode.messages)).map_err(Fault::new)?;
    Ok(episode)
}

fn id(json: &Map<String, Value>, default: &str) -> Result<String, Fault> {
    let id = |it: &Value| match it {
        Value::String(id) => Some(id.clone()),
        Value::Number(id) => Some(id.to_string()),
        _ => None,
    };
    Ok(optional(json, "id", "a string or a number", id)?.unwrap_or_else(|| default.to_owned()))
}

fn task(json: &Map<String, Value>, messages: &[Message]) -> Result<Task, Fault> {
    match json.get("task") {
        None | Some(Value::Null) => Ok(task_of(None, messages)),
        Some(Value::String(name)) => Ok(task_of(Some(name.clone()), messages)),
        Some(Value::Object(task)) => {
            let mut found = task_of(text(task, "id")?, messages);
            found.prompt = text(task, "prompt")?.unwrap_or(found.prompt);
            found.difficulty = text(task, "difficulty")?;
            Ok(found)
        }
        Some(other) => Err(wrong("task", "a string or an object", other)),
    }
}

/// The task of an episode whose record names it or not: without a name, equal first prompts are the same task.
pub fn task_of(name: Option<String>, messages: &[Message]) -> Task {
    let first = messages.iter().find(|message| message.role == Role::User);
    let prompt = first.and_then(|message| message.content.as_ref()).map(|content| content.text());
    let prompt = prompt.unwrap_or_default();
    Task {
        id: name.unwrap_or_else(|| format!("prompt-{}", &sha256(&prompt)[..12])),
        prompt,
        difficulty: None,
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;
    use serde_json::json;

    fn read_value(value: Value) -> Result<Episode, Fault> {
        read(value.as_object().unwrap(), "talks:1")
    }

    #[test]
    fn an_episode_a_line() {
        let episode = read_value(json!({
            "id": 7, "task": {"id": "sort", "prompt": "p"}, "reward": 1, "subtasks": {"b": 0.5, "a": 0.25}, "plan": ["b", "a"],
            "messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}],
            "tools": [{"type": "function"}],
        }))
        .unwrap();
        assert_eq!((episode.id.as_str(), episode.task.id.as_str(), episode.steps().len()), ("7", "sort", 1));
        assert_eq!(episode.outcome.unwrap().reward, 1.0);
        assert_eq!(episode.progress.subtask_scores, [("b".to_owned(), 0.5), ("a".to_owned(), 0.25)]);
        assert_eq!(episode.progress.plan.unwrap()[1].id, "a");
    }

    #[test]
    fn what_is_null_or_empty_is_absent() {
        let call =
            json!({"id": "a", "function": {"name": "submit_plan", "arguments": {"subtasks": ["S1", "S2"]}}});
        let messages = json!([
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "a", "content": "{}"},
        ]);
        let episode = read_value(json!({
            "messages": messages, "reward": 1, "subtasks": null, "plan": [], "tools": null, "phase": null, "task": null, "id": null,
        }))
        .unwrap();
        assert_eq!(episode.progress.subtask_scores, []);
        let plan = episode.progress.plan.unwrap();
        assert_eq!(
            plan.iter().map(|it| it.id.as_str()).collect::<Vec<_>>(),
            ["S1", "S2"],
            "as it was submitted"
        );
    }

    #[test]
    fn faults_say_what_is_wrong() {
        let check = |value: Value, expected: &str| {
            assert_eq!(read_value(value.clone()).unwrap_err().to_string(), expected, "{value}");
        };
        let talk = json!([{"role": "user", "content": "hi"}]);
        check(json!({"messages": talk}), "there is no `reward`");
        check(json!({"messages": talk, "reward": null}), "`reward` must be a number, not null");
        check(json!({"reward": 1}), "messages must be a list, not null");
        check(
            json!({"messages": [{"role": "user", "content": null}], "reward": 1}),
            "message 0: the user message has null content",
        );
        check(
            json!({"messages": talk, "reward": 1, "subtasks": {"a": null}}),
            "`subtasks.a` must be a number, not null",
        );
        check(
            json!({"messages": talk, "reward": 1, "plan": [1]}),
            "`plan` must be a list of names or of objects with an `id`",
        );
    }

    #[test]
    fn an_unnamed_task_is_its_prompt() {
        let talk = |text: &str| json!({"messages": [{"role": "user", "content": text}], "reward": 0.0});
        let task = |text| read_value(talk(text)).unwrap().task.id;
        assert_eq!(task("a"), task("a"));
        assert_ne!(task("a"), task("b"));
        assert_eq!(read_value(talk("a")).unwrap().id, "talks:1");
    }
}
