//! Our own episode record, version 1: versioned JSON that keeps exact token ids and logprobs.
//!
//! Written and read by this program, and specified in `docs/formats.md`. Owns the conversion in both
//! directions, which loses nothing. The surprise for readers: `tokens` says whether the ids are the
//! sampled ones (`exact`) or were made from text (`rendered`).

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use serde_with::skip_serializing_none;

use super::fault::Fault;
use super::named;
use backsight_chat::messages::{self, ArgumentForm, list_from_json, to_json_with};
use backsight_core::episode::{
    ActionTokens, Assertion, Compaction, Episode, Message, Outcome, Progress, Step, Stop, Subtask, Task,
    TokenSource, TokenVersion, ToolText, Verification, Version,
};
use backsight_core::tokens::{Logprob, TokenId, TokenSpan, TopK};

/// What `format` says.
pub const FORMAT: &str = "backsight.episode";
/// The version this writes, and the newest it reads.
pub const VERSION: u64 = 1;

#[skip_serializing_none]
#[derive(Serialize, Deserialize)]
struct Record {
    format: String,
    version: u64,
    id: String,
    #[serde(with = "TaskRecord")]
    task: Task,
    started_at: Option<i64>,
    #[serde(default)]
    tools: Vec<Value>,
    #[serde(default, with = "named::option")]
    tool_text: Option<ToolText>,
    messages: Value,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    failed_results: Vec<usize>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    whole_results: Vec<WholeResultRecord>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    limits_reached: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    compactions: Vec<CompactionRecord>,
    temperature: Option<f64>,
    #[serde(with = "named")]
    tokens: TokenSource,
    #[serde(default)]
    sequences: Vec<Vec<TokenId>>,
    steps: Vec<StepRecord>,
    stop: Option<String>,
    tests_shown: Option<bool>,
    verification: Option<VerificationRecord>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    versions: Vec<VersionRecord>,
    outcome: OutcomeRecord,
    #[serde(default)]
    progress: ProgressRecord,
}

#[skip_serializing_none]
#[derive(Serialize, Deserialize)]
#[serde(remote = "Task")]
struct TaskRecord {
    id: String,
    prompt: String,
    difficulty: Option<String>,
}

#[derive(Serialize, Deserialize)]
struct WholeResultRecord {
    message_idx: usize,
    text: String,
}

#[skip_serializing_none]
#[derive(Serialize, Deserialize)]
struct VerificationRecord {
    passed: u64,
    failed: u64,
    error: Option<String>,
    #[serde(default)]
    assertions: Vec<AssertionRecord>,
    #[serde(default)]
    output: String,
    seconds: f64,
}

#[derive(Serialize, Deserialize)]
struct AssertionRecord {
    line: u64,
    text: String,
    passed: bool,
    #[serde(default)]
    detail: String,
}

/// `version` is null where it is not known; `between` then names the two it is one of, if that is known.
#[skip_serializing_none]
#[derive(Serialize, Deserialize)]
struct VersionRecord {
    step: usize,
    span: [usize; 2],
    #[serialize_always]
    version: Option<String>,
    between: Option<[String; 2]>,
    told: Option<String>,
}

#[derive(Serialize, Deserialize)]
struct CompactionRecord {
    at: usize,
    kept_from: usize,
    summary: Value,
}

#[skip_serializing_none]
#[derive(Serialize, Deserialize)]
struct StepRecord {
    message_idx: usize,
    next_state: [usize; 2],
    action: Option<ActionRecord>,
}

#[derive(Serialize, Deserialize)]
struct ActionRecord {
    sequence: usize,
    span: [usize; 2],
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    logprobs: Vec<Option<f64>>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    top: Vec<Vec<(TokenId, f64)>>,
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum OutcomeRecord {
    Ended {
        reward: f64,
        #[serde(default)]
        components: Map<String, Value>,
    },
    Failed {
        error: String,
    },
}

#[skip_serializing_none]
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct ProgressRecord {
    phase: Option<String>,
    plan_score: Option<f64>,
    plan: Option<Vec<PlannedRecord>>,
    #[serde(skip_serializing_if = "Map::is_empty")]
    subtask_scores: Map<String, Value>,
    turns: Option<u64>,
    tool_calls: Option<u64>,
}

#[skip_serializing_none]
#[derive(Serialize, Deserialize)]
#[serde(remote = "Subtask")]
struct SubtaskRecord {
    id: String,
    description: Option<String>,
    #[serde(rename = "acceptance_criteria")]
    acceptance: Option<String>,
}

#[derive(Serialize, Deserialize)]
struct PlannedRecord(#[serde(with = "SubtaskRecord")] Subtask);

/// Whether an object is one of our records, of whatever version.
pub fn recognises(json: &Map<String, Value>) -> bool {
    json.get("format").and_then(Value::as_str) == Some(FORMAT)
}

/// The episode as our record.
pub fn to_json(episode: &Episode) -> Result<Value, serde_json::Error> {
    let message = |message: &Message| to_json_with(message, ArgumentForm::Object);
    let whole_result = |(message_idx, text)| WholeResultRecord { message_idx, text };
    let compaction = |it: &Compaction| CompactionRecord {
        at: it.at,
        kept_from: it.kept_from,
        summary: message(&it.summary),
    };
    serde_json::to_value(Record {
        format: FORMAT.to_owned(),
        version: VERSION,
        id: episode.id.clone(),
        task: episode.task.clone(),
        started_at: episode.started_at,
        tools: episode.tools.clone(),
        tool_text: episode.tool_text,
        messages: episode.messages.iter().map(message).collect(),
        failed_results: episode.failed_results.clone(),
        whole_results: episode.whole_results.iter().cloned().map(whole_result).collect(),
        limits_reached: episode.limits_reached.clone(),
        compactions: episode.compactions().iter().map(compaction).collect(),
        temperature: episode.temperature,
        tokens: episode.token_source,
        sequences: episode.sequences.clone(),
        steps: episode.steps().iter().map(step_record).collect(),
        stop: episode.stop.map(|stop| stop.name().to_owned()),
        tests_shown: episode.tests_shown,
        verification: episode.verification.clone().map(verification_record),
        versions: episode.versions.iter().cloned().map(version_record).collect(),
        outcome: outcome_record(&episode.outcome),
        progress: progress_record(&episode.progress),
    })
}

/// Reads a record.
pub fn from_json(value: &Value) -> Result<Episode, Fault> {
    let version = value.get("version").and_then(Value::as_u64);
    if let Some(newer) = version.filter(|version| *version > VERSION) {
        let why =
            format!("the record has version {newer}, this program reads up to {VERSION}; use a newer one");
        return Err(Fault::new(why));
    }
    let record: Record =
        Deserialize::deserialize(value).map_err(|error: serde_json::Error| Fault::new(error))?;
    episode(record)
}

fn episode(record: Record) -> Result<Episode, Fault> {
    let messages = list_from_json(&record.messages).map_err(Fault::new)?;
    let mut episode = Episode::new(record.id, record.task, messages);
    episode.started_at = record.started_at;
    episode.tools = record.tools;
    episode.tool_text = record.tool_text;
    episode.failed_results = record.failed_results;
    episode.whole_results = record.whole_results.into_iter().map(|it| (it.message_idx, it.text)).collect();
    episode.limits_reached = record.limits_reached;
    episode.temperature = record.temperature;
    episode.stop = record.stop.as_deref().map(stop).transpose()?;
    episode.tests_shown = record.tests_shown;
    episode.verification = record.verification.map(verification);
    episode.versions = record.versions.into_iter().map(version).collect::<Result<_, _>>()?;
    episode.token_source = record.tokens;
    episode.sequences = record.sequences;
    episode.outcome = outcome(record.outcome)?;
    episode.progress = progress(record.progress)?;
    let compactions = record.compactions.into_iter().map(compaction).collect::<Result<_, _>>()?;
    episode.set_compactions(compactions).map_err(Fault::new)?;
    let steps = record.steps.into_iter().enumerate().map(|(idx, it)| step(idx, it));
    episode.set_steps(steps.collect::<Result<_, _>>()?).map_err(Fault::new)?;
    Ok(episode)
}

fn stop(name: &str) -> Result<Stop, Fault> {
    let known = Stop::NAMES.join(", ");
    let unknown = || Fault::new(format_args!("`stop` is {name:?}; known are {known}"));
    Stop::from_name(name).ok_or_else(unknown)
}

fn verification_record(found: Verification) -> VerificationRecord {
    let Verification { n_passed: passed, n_failed: failed, error, assertions, output, seconds } = found;
    let assertion = |Assertion { line, text, passed, detail }| AssertionRecord { line, text, passed, detail };
    let assertions = assertions.into_iter().map(assertion).collect();
    VerificationRecord { passed, failed, error, assertions, output, seconds }
}

fn verification(record: VerificationRecord) -> Verification {
    let VerificationRecord { passed: n_passed, failed: n_failed, error, assertions, output, seconds } =
        record;
    let assertion = |AssertionRecord { line, text, passed, detail }| Assertion { line, text, passed, detail };
    let assertions = assertions.into_iter().map(assertion).collect();
    Verification { n_passed, n_failed, error, assertions, output, seconds }
}

fn version_record(found: TokenVersion) -> VersionRecord {
    let TokenVersion { step, span, version, told } = found;
    let (version, between) = match version {
        Version::Known(name) => (Some(name), None),
        Version::Between(before, after) => (None, Some([before, after])),
        Version::Unknown => (None, None),
    };
    VersionRecord { step, span: [span.start(), span.end()], version, between, told }
}

fn version(record: VersionRecord) -> Result<TokenVersion, Fault> {
    let VersionRecord { step, span: [start, end], version, between, told } = record;
    let version = match (version, between) {
        (Some(name), _) => Version::Known(name),
        (None, Some([before, after])) => Version::Between(before, after),
        (None, None) => Version::Unknown,
    };
    let span = TokenSpan::new(start, end).map_err(Fault::new)?;
    Ok(TokenVersion { step, span, version, told })
}

fn step_record(step: &Step) -> StepRecord {
    let row = |top: &TopK| top.entries().iter().map(|(id, logprob)| (*id, logprob.get())).collect();
    let action = step.tokens.as_ref().map(|tokens| ActionRecord {
        sequence: tokens.sequence,
        span: [tokens.span.start(), tokens.span.end()],
        logprobs: tokens.logprobs.iter().map(|it| it.map(Logprob::get)).collect(),
        top: tokens.top.iter().map(row).collect(),
    });
    let next_state = [step.next_state.start, step.next_state.end];
    StepRecord { message_idx: step.message_idx, next_state, action }
}

fn step(idx: usize, record: StepRecord) -> Result<Step, Fault> {
    let wrong = |why: &dyn std::fmt::Display| Fault::new(format_args!("step {idx}: {why}"));
    let tokens = match record.action {
        None => None,
        Some(ActionRecord { sequence, span: [start, end], logprobs, top }) => {
            let span = TokenSpan::new(start, end).map_err(|error| wrong(&error))?;
            let logprob = |value: f64| Logprob::new(value).map_err(|error| wrong(&error));
            let logprobs = logprobs.into_iter().map(|it| it.map(logprob).transpose());
            let row = |row: Vec<(TokenId, f64)>| {
                let entries = row.into_iter().map(|(id, value)| Ok((id, logprob(value)?)));
                entries.collect::<Result<Vec<_>, Fault>>().map(TopK::new)
            };
            let top = top.into_iter().map(row).collect::<Result<_, _>>()?;
            Some(ActionTokens { sequence, span, logprobs: logprobs.collect::<Result<_, _>>()?, top })
        }
    };
    let [start, end] = record.next_state;
    Ok(Step { message_idx: record.message_idx, next_state: start..end, tokens })
}

fn compaction(record: CompactionRecord) -> Result<Compaction, Fault> {
    let summary = messages::from_json(&record.summary);
    let summary = summary.map_err(|why| Fault::new(format_args!("a compaction's summary: {why}")))?;
    Ok(Compaction { at: record.at, summary, kept_from: record.kept_from })
}

fn outcome_record(outcome: &Result<Outcome, String>) -> OutcomeRecord {
    match outcome {
        Ok(Outcome { reward, components }) => {
            OutcomeRecord::Ended { reward: *reward, components: number_map(components) }
        }
        Err(error) => OutcomeRecord::Failed { error: error.clone() },
    }
}

fn outcome(record: OutcomeRecord) -> Result<Result<Outcome, String>, Fault> {
    Ok(match record {
        OutcomeRecord::Ended { reward, components } => {
            Ok(Outcome { reward, components: numbers(components, "outcome.components")? })
        }
        OutcomeRecord::Failed { error } => Err(error),
    })
}

fn progress_record(progress: &Progress) -> ProgressRecord {
    let Progress { phase, plan_score, plan, subtask_scores, turns, tool_calls } = progress.clone();
    let plan = plan.map(|plan| plan.into_iter().map(PlannedRecord).collect());
    ProgressRecord { phase, plan_score, plan, subtask_scores: number_map(&subtask_scores), turns, tool_calls }
}

fn progress(record: ProgressRecord) -> Result<Progress, Fault> {
    let ProgressRecord { phase, plan_score, plan, subtask_scores, turns, tool_calls } = record;
    let subtask_scores = numbers(subtask_scores, "progress.subtask_scores")?;
    let plan = plan.map(|plan| plan.into_iter().map(|it| it.0).collect());
    Ok(Progress { phase, plan_score, plan, subtask_scores, turns, tool_calls })
}

fn number_map(numbers: &[(String, f64)]) -> Map<String, Value> {
    numbers.iter().map(|(name, value)| (name.clone(), json!(value))).collect()
}

fn numbers(map: Map<String, Value>, key: &str) -> Result<Vec<(String, f64)>, Fault> {
    let json: Map<String, Value> = [(key.to_owned(), Value::Object(map))].into_iter().collect();
    super::fault::numbers(&json, key)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;
    use backsight_core::episode::{Role, steps_of};

    fn full() -> Episode {
        let task = Task { id: "t".into(), prompt: "fix".into(), difficulty: Some("easy".into()) };
        let roles = [Role::System, Role::User, Role::Assistant, Role::Tool, Role::Assistant];
        let mut episode = Episode::new("e", task, roles.map(|role| Message::text(role, "x")).into());
        episode.started_at = Some(1_777_000_000);
        episode.tools = vec![json!({"type": "function"})];
        episode.tool_text = Some(ToolText::Hermes);
        episode.failed_results = vec![3];
        episode.whole_results = vec![(3, "xyz".into())];
        episode.limits_reached = vec!["tool_work_mb".into()];
        episode.temperature = Some(0.7);
        episode.stop = Some(Stop::WallClock);
        episode.tests_shown = Some(true);
        let assertion = Assertion { line: 2, text: "a == b".into(), passed: false, detail: "1 != 2".into() };
        episode.verification = Some(Verification {
            n_passed: 3,
            n_failed: 1,
            error: None,
            assertions: vec![assertion],
            output: "out".into(),
            seconds: 0.25,
        });
        episode.sequences = vec![vec![1, 2, 3, 4], vec![9]];
        episode.token_source = TokenSource::Exact;
        let components = vec![("tests".to_owned(), 0.5), ("a".to_owned(), 0.0)];
        episode.outcome = Ok(Outcome { reward: 0.25, components });
        let subtask = Subtask { id: "S1".into(), description: Some("d".into()), acceptance: None };
        episode.progress = Progress {
            phase: Some("DONE".into()),
            plan_score: Some(0.75),
            plan: Some(vec![subtask]),
            subtask_scores: vec![("S1".into(), 0.1)],
            turns: Some(2),
            tool_calls: None,
        };
        let summary = Message::text(Role::User, "sum");
        episode.set_compactions(vec![Compaction { at: 4, summary, kept_from: 3 }]).unwrap();
        let mut steps = steps_of(&episode.messages);
        let logprob = |value| Logprob::new(value).ok();
        steps[0].tokens = Some(ActionTokens {
            sequence: 0,
            span: TokenSpan::at(1, 2),
            logprobs: vec![logprob(-0.1), None],
            top: vec![TopK::new(vec![(7, logprob(-0.2).unwrap())]), TopK::default()],
        });
        episode.set_steps(steps).unwrap();
        episode
    }

    #[test]
    fn nothing_is_lost_on_the_way() {
        let text = to_json(&full()).unwrap().to_string();
        assert_eq!(from_json(&serde_json::from_str(&text).unwrap()), Ok(full()));
        let mut failed = full();
        failed.outcome = Err("timeout".into());
        assert_eq!(from_json(&to_json(&failed).unwrap()), Ok(failed));
    }

    #[test]
    fn faults_are_named() {
        let check = |pointer: &str, value: Value, expected: &str| {
            let mut json = to_json(&full()).unwrap();
            *json.pointer_mut(pointer).unwrap() = value;
            assert_eq!(from_json(&json).unwrap_err().to_string(), expected);
        };
        check("/version", json!(2), "the record has version 2, this program reads up to 1; use a newer one");
        let bored = "`stop` is \"bored\"; known are answered, turn_limit, turn_cut, context_full, wall_clock, unusable_tests, undecided, failed";
        check("/stop", json!("bored"), bored);
        check("/steps/0/action/span", json!([3, 1]), "step 0: span [3, 1) ends before it starts");
        let positive = "step 0: 0.5 is positive, so it is not the logarithm of a probability";
        check("/steps/0/action/logprobs/0", json!(0.5), positive);
        check("/steps/0/action/span", json!([3, 9]), "the action of step 0 lies outside the recorded tokens");
    }
}
