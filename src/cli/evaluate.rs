//! `evaluate`: how well a model does on tasks that were held out.

use std::path::PathBuf;
use std::sync::Arc;

use serde_json::{Value, json};

use super::block_on;
use super::call::Call;
use super::episodes::{self, Ask, Finished};
use super::failure::Failure;
use super::output::number;
use crate::pipeline::evaluation;
use crate::pipeline::slots::Chosen;
use crate::tasks::source::{TaskSource, are_named, split_all};
use crate::tasks::split::SplitOptions;
use crate::tasks::{CodingTask, TaskError};

pub(super) fn run(call: &Call) -> Result<(), Failure> {
    let (dir, talk): (PathBuf, _) = (call.get("run")?, call.talk("episode"));
    let (attempts, temperature): (usize, f64) = (call.get("attempts")?, call.get("eval_temperature")?);
    if attempts > 1 && temperature == 0.0 {
        talk.note("at temperature 0 all attempts at a task are the same; give --eval-temperature");
    }
    let all = call.get::<String>("eval_tasks")? == "all";
    let choose = |split: &SplitOptions, sources: &[TaskSource], tasks: Vec<CodingTask>| {
        let tasks = if all || are_named(sources) { tasks } else { held_out(split, sources, tasks)? };
        if tasks.is_empty() {
            let help =
                "raise --eval-size or --eval-split-ratio, or evaluate every task with --eval-tasks all";
            return Err(Failure::input("no task is held out", help));
        }
        let (n_groups, group_size) = (tasks.len(), attempts);
        Ok(Chosen { tasks: tasks.into_iter().map(Arc::new).collect(), n_groups, group_size })
    };
    let ask = Ask { stage: "evaluate", config: call.config.clone(), dir: &dir, talk, early: None };
    let mut finished = block_on(episodes::run(ask, &choose))??;
    let max_new_tokens: usize = call.get("max_turn_tokens")?;
    keep(&mut finished, &json!({"max_new_tokens": max_new_tokens, "temperature": temperature}))?;
    episodes::end(call, &finished, table)
}

/// The tasks held out, as many as are to be evaluated.
fn held_out(
    split: &SplitOptions,
    sources: &[TaskSource],
    tasks: Vec<CodingTask>,
) -> Result<Vec<CodingTask>, Failure> {
    match split_all(sources, tasks, split) {
        Ok(tasks) => Ok(tasks.eval.into_iter().take(split.eval_size).collect()),
        // They may still be evaluated, all of them.
        Err(TaskError::NothingToTrain { n_tasks, n_eval }) => Err(Failure::input(
            format!("{n_tasks} tasks with {n_eval} held out leave none to train on"),
            "lower --eval-size, or evaluate every task with --eval-tasks all",
        )),
        Err(other) => Err(other.into()),
    }
}

/// Writes `metrics.json`, `samples.jsonl` and `summary.json`.
fn keep(finished: &mut Finished, generation: &Value) -> Result<(), Failure> {
    let metrics = evaluation::metrics(&finished.done.slots, &finished.done.digests);
    let seconds = evaluation::seconds_worked(&finished.run.events());
    let file = evaluation::metrics_file(&finished.model, generation, seconds, &metrics);
    finished.summary.more.extend(metrics);
    let samples = evaluation::samples_file(&finished.done.slots, &finished.done.digests);
    let run = &finished.run;
    run.write("metrics.json", format!("{file:#}\n").as_bytes())?;
    run.write("samples.jsonl", samples.as_bytes())?;
    Ok(run.keep_summary(&finished.summary)?)
}

fn table(finished: &Finished) -> String {
    let mut text = episodes::table(finished);
    for (key, value) in finished.summary.more.iter().filter(|(key, _)| key.starts_with("eval/")) {
        let shown = if value.is_u64() { value.to_string() } else { number(value.as_f64()) };
        text.push_str(&format!("{key:<22} {shown}\n"));
    }
    text
}
