//! `collect`: groups of episodes, an agent on a task each.

use std::sync::Arc;

use serde_json::Value;

use super::block_on;
use super::call::Call;
use super::episodes::{self, Ask, Finished};
use super::failure::Failure;
use super::stdout;
use crate::config::parts::{CollectPart, RunPart, TaskPart};
use crate::metrics;
use crate::pipeline::slots::Chosen;
use crate::tasks::CodingTask;
use crate::tasks::source::{TaskSource, split_all};

pub(super) fn run(call: &Call) -> Result<(), Failure> {
    let (collect, run): (CollectPart, RunPart) = (call.read()?, call.read()?);
    let (config, talk) = (call.config.clone(), Arc::new(call.talk("episode")));
    let ask = Ask { stage: "collect", config, dir: &run.run, talk, temperature: collect.agent_temperature };
    let mut finished = block_on(episodes::run(ask, &choosing(&collect)))??;
    keep(&mut finished)?;
    let text = if call.is_json() { episodes::as_json(&finished) } else { table(&finished) };
    stdout::data(text.as_bytes())?;
    episodes::verdict(&finished)
}

/// Adds the metrics to the summary, and writes it.
pub(super) fn keep(finished: &mut Finished) -> Result<(), Failure> {
    finished.summary.more.extend(metrics::train(finished.digests.iter().flatten()));
    finished.run.keep_summary(&finished.summary).map_err(episodes::run_failure)
}

/// How episodes are chosen.
pub(super) fn choosing(
    collect: &CollectPart,
) -> impl Fn(&TaskPart, &[TaskSource], Vec<CodingTask>) -> Result<Chosen, Failure> {
    move |part, sources, tasks| choose(collect, part, sources, tasks)
}

/// One group for each training task, or as many as were asked for.
fn choose(
    collect: &CollectPart,
    part: &TaskPart,
    sources: &[TaskSource],
    tasks: Vec<CodingTask>,
) -> Result<Chosen, Failure> {
    let train = split_all(sources, tasks, &part.split()).map_err(episodes::task_failure)?.train;
    let n_groups = collect.groups.unwrap_or(train.len());
    Ok(Chosen { tasks: train.into_iter().map(Arc::new).collect(), n_groups, group_size: collect.group_size })
}

fn table(finished: &Finished) -> String {
    let more = &finished.summary.more;
    let shown = |key: &str| {
        let number = more.get(key).and_then(Value::as_f64);
        number.map_or_else(|| "-".to_owned(), |it| format!("{it:.3}"))
    };
    format!(
        "{}reward     mean {} (correctness {}, efficiency {}, tool usage {})\nsolved     {} of {}\n",
        episodes::table(finished),
        shown("train/mean_reward"),
        shown("train/mean_correctness"),
        shown("train/mean_efficiency"),
        shown("train/mean_tool_usage"),
        finished.summary.made("solved_episodes"),
        finished.summary.made("episodes"),
    )
}
