//! One episode from the first message to the reward: the student speaks, its calls are run, the tests decide.
//!
//! Owns [`run_episode`], which never fails: what goes wrong is in the episode with its reason. A turn
//! without a call ends an episode; so do its limits, each under a name of its own. Then every process of
//! the episode is dead before hidden tests decide. What is sampled, and what it costs, is up to the model
//! that is handed in; many episodes at once, and where they are kept, to the caller.

use tokio::time::Instant;

use crate::tasks::CodingTask;
use crate::wire::episode_record;
use backsight_core::episode::{Episode, Stop, ToolCall};

use super::reward::{self, RewardRule};
use super::setting::{AgentSetting, EpisodePlace, SoFar, Speech};
use super::tools::{ToolResult, Toolbox, cut, schema};
use super::transcript::{EPISODE_OUTPUT, Transcript};
use super::turn::{Attempt, Breakdown, Said};
use super::verifier::{Level, TestReport, Verifier};
use backsight_sandbox::{Sandbox, SandboxError};

/// How many calls of one turn are run.
const MAX_CALLS: usize = 64;

/// Runs one episode. It never fails: what goes wrong is recorded in it.
pub async fn run_episode(setting: &AgentSetting, task: &CodingTask, place: EpisodePlace) -> Episode {
    let id = format!("{}-{}", task.task.id, place.episode);
    let system = setting.options.system_prompt.as_deref();
    let tools = schema::schemas_with(setting.sandboxes.config().has_network());
    let mut talk = Transcript::new(id, &task.task, system, tools, setting.options.episode_output_chars);
    let begun = &mut talk.episode;
    begun.started_at = Some(place.started_at);
    begun.temperature = Some(setting.options.agent_temperature);
    begun.tests_shown = task.check.as_ref().map(|_| task.tests_shown);
    if let Speech::Exact(format) = &setting.speech {
        begun.tool_text = format.tool_text();
    }
    let sandbox = match setting.sandboxes.start().await {
        Ok(sandbox) => sandbox,
        Err(error) => return failed(talk.into_episode(), Breakdown::new(error.to_string())),
    };
    let deadline = Instant::now() + setting.options.episode_time;
    let attempt = Attempt { setting, task, place: &place, deadline };
    let stop = converse(&attempt, &mut talk, &sandbox).await;
    sandbox.stop().await;
    match stop {
        Ok(stop) => settle(&attempt, talk, &sandbox, stop).await,
        Err(failure) => failed(talk.into_episode(), failure),
    }
}

fn failed(mut episode: Episode, Breakdown { stop, why }: Breakdown) -> Episode {
    episode.stop = Some(stop);
    episode.outcome = Err(why);
    episode
}

/// Lets the student work until it answers without a call, or a limit is reached.
async fn converse(
    attempt: &Attempt<'_>,
    talk: &mut Transcript,
    sandbox: &Sandbox,
) -> Result<Stop, Breakdown> {
    let setting = attempt.setting;
    let tools = Toolbox::new(sandbox, setting.tool_limits.clone());
    for turn in 0..setting.options.max_agent_turns {
        if Instant::now() >= attempt.deadline {
            return Ok(Stop::WallClock);
        }
        let said = match &setting.speech {
            Speech::Exact(format) => attempt.exact(format, talk).await,
            Speech::Chat(parser) => attempt.chat(*parser, talk).await,
        };
        let Some(Said { message, malformed, cut }) = said.map_err(|failure| at_turn(turn, failure))? else {
            return Ok(Stop::ContextFull);
        };
        let calls = talk.acted(message);
        let stop = match (calls.is_empty(), cut, malformed.is_empty()) {
            (true, Some(limit), _) => Some(limit),
            (true, None, true) => Some(Stop::Answered),
            (true, None, false) => {
                talk.corrected(ToolResult::error(&unreadable(&malformed)));
                None
            }
            (false, ..) => {
                let answered = answer(attempt, talk, &tools, &calls, &malformed).await;
                answered.map_err(|why| at_turn(turn, Breakdown::new(why)))?;
                None
            }
        };
        setting.on_step.iter().for_each(|tell| tell(&SoFar(&*talk), turn));
        if let Some(stop) = stop {
            return Ok(stop);
        }
    }
    Ok(Stop::TurnLimit)
}

fn at_turn(turn: usize, Breakdown { stop, why }: Breakdown) -> Breakdown {
    Breakdown { stop, why: format!("turn {}: {why}", turn + 1) }
}

/// Runs the calls of a turn in order, since later ones may need what earlier ones did; an error if the sandbox is gone.
async fn answer(
    attempt: &Attempt<'_>,
    talk: &mut Transcript,
    tools: &Toolbox<'_>,
    calls: &[ToolCall],
    malformed: &[String],
) -> Result<(), String> {
    let mut results = Vec::with_capacity(calls.len());
    for (idx, call) in calls.iter().enumerate() {
        let result = match idx < MAX_CALLS {
            true => tokio::time::timeout_at(attempt.deadline, tools.call(&call.name, &call.arguments)).await,
            false => Ok(ToolResult::error(&format!("Only the first {MAX_CALLS} calls of a turn are run."))),
        };
        let mut result = result.unwrap_or_else(|_| ToolResult::error("The time for this task is over."));
        talk.afford(&mut result);
        results.push(result);
    }
    fit(&mut results, tools, talk, attempt.setting.options.turn_output_chars).await;
    if let Some(last) = results.last_mut().filter(|_| !malformed.is_empty()) {
        last.content = format!("{}\n{}", last.content, ToolResult::error(&unreadable(malformed)).content);
    }
    let broken = results.iter().find_map(|result| result.broken.clone());
    calls.iter().zip(results).for_each(|(call, result)| talk.answered(call, result));
    broken.map_or(Ok(()), Err)
}

/// Cuts the longest results of a turn until all of them together have at most `max` characters, and no more than the
/// episode may still show.
async fn fit(results: &mut [ToolResult], tools: &Toolbox<'_>, talk: &mut Transcript, max: usize) {
    let lengths: Vec<usize> = results.iter().map(|result| result.content.chars().count()).collect();
    let left = talk.shown_left;
    let limit = cut::shared_limit(&lengths, max.min(left));
    for (result, _) in results.iter_mut().zip(lengths).filter(|(_, length)| *length > limit) {
        let had_whole = result.full.is_some();
        tools.shorten(result, limit).await;
        if !had_whole {
            talk.afford(result);
        }
        if left < max {
            result.reached.push(EPISODE_OUTPUT);
            result.content.push_str(USED_UP);
        }
    }
}

/// What a student is told when nothing more can be shown.
const USED_UP: &str = "\n[this task may show no more output of tools; finish with what you know]";

/// What a student is told about calls that could not be read.
fn unreadable(malformed: &[String]) -> String {
    format!("Invalid JSON in tool call: {}. Please retry with valid JSON.", malformed.join("; "))
}

/// Verifies and rewards what an episode left behind.
async fn settle(attempt: &Attempt<'_>, talk: Transcript, sandbox: &Sandbox, stop: Stop) -> Episode {
    let setting = attempt.setting;
    let report = verify(attempt, sandbox).await;
    let n_turns = talk.n_turns();
    let tool_usage = reward::tool_usage(talk.tools_called());
    let efficiency = reward::efficiency(n_turns, setting.options.max_agent_turns);
    let mut episode = talk.into_episode();
    episode.stop = Some(stop);
    let report = match report {
        Ok(report) => report,
        Err(error) => return failed(episode, Breakdown::new(error.to_string())),
    };
    episode.verification = report.as_ref().map(|it| it.found.clone());
    let correctness = report.as_ref().and_then(TestReport::correctness);
    episode.outcome = Ok(reward::reward(correctness, efficiency, tool_usage, &setting.reward.weights));
    match (ask_custom(&setting.reward, &episode).await, correctness) {
        (Ok(None), Some(_)) => episode,
        (Ok(None), None) => failed(episode, undecided(report)),
        (Ok(Some(number)), _) => rewarded(episode, number, correctness.is_some()),
        (Err(why), _) => failed(episode, Breakdown::new(why)),
    }
}

/// What the hidden tests say; nothing where there are none.
async fn verify(attempt: &Attempt<'_>, sandbox: &Sandbox) -> Result<Option<TestReport>, SandboxError> {
    let Attempt { setting, task, .. } = attempt;
    let Some(check) = &task.check else { return Ok(None) };
    let verifier = Verifier::new(&setting.sandboxes, setting.options.verifier_time).of_task(&task.asked);
    verifier.judge(sandbox, check).await.map(Some)
}

/// Why tests alone give no reward.
fn undecided(report: Option<TestReport>) -> Breakdown {
    let Some(report) = report else {
        return Breakdown::new("the task has no tests and there is no reward command");
    };
    let (stop, kind) = match report.level() {
        Level::Undecided => (Stop::Undecided, "undecided"),
        _ => (Stop::UnusableTests, "unusable"),
    };
    Breakdown { stop, why: format!("the tests are {kind}: {}", report.problem()) }
}

/// The episode with another reward; what it would have been is kept beside it, where the tests decided.
fn rewarded(mut episode: Episode, number: f64, is_decided: bool) -> Episode {
    if let Ok(outcome) = &mut episode.outcome {
        if is_decided {
            outcome.components.push(("published".to_owned(), outcome.reward));
        }
        outcome.reward = number;
    }
    episode
}

/// The reward of the user's own command, if there is one.
async fn ask_custom(rule: &RewardRule, episode: &Episode) -> Result<Option<f64>, String> {
    let Some(custom) = &rule.custom else { return Ok(None) };
    let json = episode_record::to_json(episode).map_err(|error| error.to_string())?;
    reward::custom_reward(&custom.command, &json, custom.timeout).await.map(Some)
}
