//! `collect`: groups of episodes, an agent on a task each.

use std::path::PathBuf;
use std::sync::Arc;

use serde_json::Value;

use super::block_on;
use super::call::Call;
use super::episodes::{self, Ask, Finished};
use super::failure::Failure;
use super::output::number;
use crate::metrics;
use crate::pipeline::slots::Chosen;
use crate::tasks::CodingTask;
use crate::tasks::source::{TaskSource, split_all};
use crate::tasks::split::SplitOptions;

pub(super) fn run(call: &Call) -> Result<(), Failure> {
    let dir: PathBuf = call.get("run")?;
    let (config, talk) = (call.config.clone(), call.talk("episode"));
    let finished = made(Ask { stage: "collect", config, dir: &dir, talk, early: None })?;
    episodes::end(call, &finished, table)
}

/// Runs the episodes, adds their metrics to the summary, and writes it.
pub(super) fn made(ask: Ask<'_>) -> Result<Finished, Failure> {
    let (groups, group_size): (Option<usize>, usize) =
        (ask.config.get("groups")?, ask.config.get("group_size")?);
    // One group for each training task, or as many as were asked for.
    let choose = |split: &SplitOptions, sources: &[TaskSource], tasks: Vec<CodingTask>| {
        let train = split_all(sources, tasks, split)?.train;
        let n_groups = groups.unwrap_or(train.len());
        Ok(Chosen { tasks: train.into_iter().map(Arc::new).collect(), n_groups, group_size })
    };
    let mut finished = block_on(episodes::run(ask, &choose))??;
    finished.summary.more.extend(metrics::train(finished.done.digests.iter().flatten()));
    finished.run.keep_summary(&finished.summary)?;
    Ok(finished)
}

pub(super) fn table(finished: &Finished) -> String {
    let more = &finished.summary.more;
    let shown = |key: &str| number(more.get(key).and_then(Value::as_f64));
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
