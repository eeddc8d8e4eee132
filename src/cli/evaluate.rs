//! `evaluate`: how well a model does on tasks that were held out.

use std::sync::Arc;

use serde_json::Value;

use super::block_on;
use super::call::Call;
use super::episodes::{self, Ask, Finished};
use super::failure::Failure;
use super::stdout;
use crate::config::parts::{AgentPart, EvaluatePart, RunPart, TaskPart};
use crate::pipeline::evaluation::{self, Setting};
use crate::pipeline::slots::Chosen;
use crate::tasks::source::{TaskSource, are_named, split_all};
use crate::tasks::{CodingTask, TaskError};

pub(super) fn run(call: &Call) -> Result<(), Failure> {
    let (evaluate, agent): (EvaluatePart, AgentPart) = (call.read()?, call.read()?);
    let (run, talk): (RunPart, _) = (call.read()?, Arc::new(call.talk("episode")));
    let temperature = evaluate.eval_temperature;
    if evaluate.attempts > 1 && temperature == 0.0 {
        talk.note("at temperature 0 all attempts at a task are the same; give --eval-temperature");
    }
    let ask = Ask { stage: "evaluate", config: call.config.clone(), dir: &run.run, talk, temperature };
    let choose = |part: &TaskPart, sources: &[TaskSource], tasks: Vec<CodingTask>| {
        choose(&evaluate, part, sources, tasks)
    };
    let mut finished = block_on(episodes::run(ask, &choose))??;
    let seconds = evaluation::seconds_worked(&finished.run.events());
    let max_new_tokens = agent.max_turn_tokens;
    keep(&mut finished, |model| Setting { model, max_new_tokens, temperature, seconds })?;
    let text = if call.is_json() { episodes::as_json(&finished) } else { table(&finished) };
    stdout::data(text.as_bytes())?;
    episodes::verdict(&finished)
}

/// The tasks held out, as many as are to be evaluated; every task where that was asked for, or where each was named.
fn choose(
    evaluate: &EvaluatePart,
    part: &TaskPart,
    sources: &[TaskSource],
    tasks: Vec<CodingTask>,
) -> Result<Chosen, Failure> {
    let tasks = if evaluate.eval_tasks == "all" || are_named(sources) {
        tasks
    } else {
        let held_out = split_all(sources, tasks, &part.split()).map_err(none_held_out)?.eval;
        held_out.into_iter().take(part.eval_size).collect()
    };
    if tasks.is_empty() {
        let help = "raise --eval-size or --eval-split-ratio, or evaluate every task with --eval-tasks all";
        return Err(Failure::input("no task is held out", help));
    }
    let (n_groups, group_size) = (tasks.len(), evaluate.attempts);
    Ok(Chosen { tasks: tasks.into_iter().map(Arc::new).collect(), n_groups, group_size })
}

/// Too few tasks to hold some out may still be evaluated, all of them.
fn none_held_out(error: TaskError) -> Failure {
    match error {
        TaskError::NothingToTrain { n_tasks, n_eval } => Failure::input(
            format!("{n_tasks} tasks with {n_eval} held out leave none to train on"),
            "lower --eval-size, or evaluate every task with --eval-tasks all",
        ),
        other => episodes::task_failure(other),
    }
}

/// Writes `metrics.json`, `samples.jsonl` and `summary.json`.
fn keep(finished: &mut Finished, setting: impl Fn(String) -> Setting) -> Result<(), Failure> {
    let metrics = evaluation::metrics(&finished.slots, &finished.digests);
    let file = evaluation::metrics_file(&setting(finished.model.clone()), &metrics);
    finished.summary.more.extend(metrics);
    let samples = evaluation::samples_file(&finished.slots, &finished.digests);
    let run = &finished.run;
    let written = run
        .write("metrics.json", format!("{file:#}\n").as_bytes())
        .and_then(|()| run.write("samples.jsonl", samples.as_bytes()))
        .and_then(|()| run.keep_summary(&finished.summary));
    written.map_err(episodes::run_failure)
}

fn table(finished: &Finished) -> String {
    let mut text = episodes::table(finished);
    for (key, value) in finished.summary.more.iter().filter(|(key, _)| key.starts_with("eval/")) {
        let shown = match value {
            Value::Number(number) if number.is_f64() => format!("{:.3}", number.as_f64().unwrap_or_default()),
            Value::Null => "-".to_owned(),
            other => other.to_string(),
        };
        text.push_str(&format!("{key:<22} {shown}\n"));
    }
    text
}
