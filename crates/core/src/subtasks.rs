//! Which phase and which subtask of its plan every step belongs to.
//!
//! Owns the reading of the planning tools `submit_plan` and `advance`, called directly, with the
//! `openenv_` prefix, or through the `mcp` proxy tool. A transition counts when the result of that
//! very call says so: results are matched by `tool_call_id` and read uncut. Deliberately absent:
//! transitions that an environment makes by itself on a timeout; no message shows them.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use crate::episode::{Arguments, Message, Progress, Role, Subtask, ToolCall};
use crate::named;

/// What the student was about when it took a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Before a plan was accepted; also every step of an episode that has no plan.
    Planning,
    /// Working on the plan's subtasks.
    Executing,
}

named!(Phase: Planning = "planning", Executing = "executing");

/// Where a step stands in its plan.
#[derive(Clone, Debug, PartialEq)]
pub struct PlanPlace {
    /// Planning or executing.
    pub phase: Phase,
    /// The subtask it belongs to, where one is known.
    pub subtask: Option<String>,
    /// The dense reward: the plan's score while planning, the subtask's score while executing. Without
    /// one the episode's own reward counts.
    pub reward: Option<f64>,
}

/// The places of all steps.
#[derive(Clone, Debug, PartialEq)]
pub struct PlanPlaces {
    /// One per assistant message, in order.
    pub steps: Vec<PlanPlace>,
    /// How many subtasks the student itself brought to an end.
    pub completed: usize,
}

/// The subtasks' ids in the plan's order. Without a plan the scores name them: they are filled in when a plan is accepted.
pub fn subtask_ids(progress: &Progress) -> Vec<&str> {
    match &progress.plan {
        Some(plan) => plan.iter().map(|subtask| subtask.id.as_str()).collect(),
        None => progress.subtask_scores.iter().map(|(id, _)| id.as_str()).collect(),
    }
}

/// Finds each step's place. `failed` are the messages in which a tool reported failure.
pub fn places(messages: &[Message], failed: &[usize], progress: &Progress) -> PlanPlaces {
    let ids = subtask_ids(progress);
    let transitions = transitions(messages, failed);
    let mut next = transitions.iter().peekable();
    let mut state = PlanState { phase: Phase::Planning, idx: None, completed: BTreeSet::new() };
    let mut steps = Vec::new();
    for (message_idx, message) in messages.iter().enumerate() {
        while let Some(transition) = next.next_if(|it| it.result_idx == message_idx) {
            state.apply(transition, &ids);
        }
        if message.role == Role::Assistant {
            steps.push(state.place(&ids, progress));
        }
    }
    PlanPlaces { steps, completed: state.completed.len() }
}

/// The plan as the student submitted it, for records that do not keep it: the last one that was accepted.
pub fn submitted_plan(messages: &[Message], failed: &[usize]) -> Option<Vec<Subtask>> {
    let accepted = transitions(messages, failed);
    let accepted = accepted.into_iter().filter(|it| it.kind == Kind::SubmitPlan);
    accepted.rev().find_map(|it| subtasks_in(&tool_arguments(it.call)?))
}

/// Reads a list of subtasks: objects with an `id`, or bare names.
pub fn read_plan(list: &[Value]) -> Option<Vec<Subtask>> {
    let subtask = |value: &Value| {
        let text = |key| value.get(key).and_then(Value::as_str).map(str::to_owned);
        let id = value.as_str().map(str::to_owned).or_else(|| text("id"))?;
        Some(Subtask { id, description: text("description"), acceptance: text("acceptance_criteria") })
    };
    list.iter().map(subtask).collect()
}

struct PlanState {
    phase: Phase,
    idx: Option<usize>,
    completed: BTreeSet<usize>,
}

impl PlanState {
    fn apply(&mut self, transition: &Transition<'_>, ids: &[&str]) {
        let named = |key| {
            let name = transition.answer.get(key).and_then(Value::as_str)?;
            ids.iter().position(|id| *id == name)
        };
        match transition.kind {
            Kind::SubmitPlan => {
                self.phase = Phase::Executing;
                self.idx = Some(0);
            }
            Kind::Advance => {
                self.completed.extend(self.idx.filter(|idx| *idx < ids.len()));
                let following = self.idx.map_or(0, |idx| idx + 1).min(ids.len().saturating_sub(1));
                self.idx = Some(named("next_subtask_id").unwrap_or(following));
            }
        }
    }

    fn place(&self, ids: &[&str], progress: &Progress) -> PlanPlace {
        let phase = self.phase;
        if phase == Phase::Planning {
            return PlanPlace { phase, subtask: None, reward: progress.plan_score };
        }
        let subtask = self.idx.and_then(|idx| ids.get(idx));
        let score = |id: &str| {
            let found = progress.subtask_scores.iter().find(|(name, _)| name == id);
            // The environment counts a planned subtask that was never scored as zero.
            found.map_or(0.0, |(_, score)| *score)
        };
        let reward = subtask.map(|id| score(id));
        PlanPlace { phase, subtask: subtask.map(|id| (*id).to_owned()), reward }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    SubmitPlan,
    Advance,
}

/// A planning call that succeeded.
struct Transition<'m> {
    kind: Kind,
    call: &'m ToolCall,
    result_idx: usize,
    answer: Map<String, Value>,
}

fn transitions<'m>(messages: &'m [Message], failed: &[usize]) -> Vec<Transition<'m>> {
    let mut open: Vec<&ToolCall> = Vec::new();
    let mut found = Vec::new();
    for (result_idx, message) in messages.iter().enumerate() {
        match message.role {
            Role::Assistant => open = message.tool_calls.iter().collect(),
            Role::Tool => {
                let Some(call) = take_answered(&mut open, message) else { continue };
                let succeeded = || (!failed.contains(&result_idx)).then(|| answer(message))?;
                if let Some((kind, answer)) = kind(call).zip(succeeded()) {
                    found.push(Transition { kind, call, result_idx, answer });
                }
            }
            _ => {}
        }
    }
    found
}

/// Takes the call that a result answers: the first open one with its id, or simply the first where there are no ids.
fn take_answered<'m>(open: &mut Vec<&'m ToolCall>, result: &Message) -> Option<&'m ToolCall> {
    let id = result.tool_call_id.as_deref().filter(|id| !id.is_empty());
    let answers = |call: &&ToolCall| match (id, call.id.as_deref()) {
        (Some(result), Some(call)) => result == call,
        _ => true,
    };
    let idx = open.iter().position(answers)?;
    Some(open.remove(idx))
}

fn kind(call: &ToolCall) -> Option<Kind> {
    let through_proxy = match &call.arguments {
        Arguments::Object(arguments) if call.name == "mcp" => arguments.get("tool").and_then(Value::as_str),
        _ => None,
    };
    let name = through_proxy.unwrap_or(&call.name);
    match name.replace("openenv_", "").as_str() {
        "submit_plan" => Some(Kind::SubmitPlan),
        "advance" => Some(Kind::Advance),
        _ => None,
    }
}

/// The arguments of the tool that is really called: the proxy has them under `args`, as an object or as text.
fn tool_arguments(call: &ToolCall) -> Option<Map<String, Value>> {
    let Arguments::Object(arguments) = &call.arguments else { return None };
    if call.name == "mcp" { object(arguments.get("args")?) } else { Some(arguments.clone()) }
}

fn subtasks_in(arguments: &Map<String, Value>) -> Option<Vec<Subtask>> {
    match arguments.get("subtasks")? {
        Value::Array(list) => read_plan(list),
        Value::String(text) => read_plan(serde_json::from_str::<Value>(text).ok()?.as_array()?),
        _ => None,
    }
}

fn object(value: &Value) -> Option<Map<String, Value>> {
    match value {
        Value::Object(object) => Some(object.clone()),
        Value::String(text) => serde_json::from_str(text).ok(),
        _ => None,
    }
}

/// The JSON object a successful planning tool answers with; anything else is a failure.
fn answer(result: &Message) -> Option<Map<String, Value>> {
    let text = result.content.as_ref()?.text();
    let answer: Map<String, Value> = serde_json::from_str(text.trim()).ok()?;
    (!answer.contains_key("error")).then_some(answer)
}
