//! `run`: the whole main job on one directory: collect, judge while that goes on, distil.

use std::path::PathBuf;

use serde_json::json;

use super::call::Call;
use super::collect;
use super::distill::{self, Asked};
use super::episodes::{self, Ask};
use super::failure::Failure;
use super::stdout;

pub(super) fn run(call: &Call) -> Result<(), Failure> {
    let dir: PathBuf = call.get("run")?;
    let stage = call.stage("distill")?;
    // What is wrong with any stage is said before the first is begun.
    let asked = Asked::read(&stage)?;
    let early = asked.lens.is_some().then(|| stage.config.clone());
    let config = call.stage("collect")?.config;
    let ask = Ask { stage: "collect", config, dir: &dir, talk: call.talk("episode"), early };
    let finished = collect::made(ask)?;
    let (collected, table) = (finished.summary.to_json(), collect::table(&finished));
    if !call.is_json() {
        stdout::data(table.as_bytes())?;
    }
    let stopped = finished.done.stopped.is_some();
    let verdict = episodes::verdict(&finished);
    drop(finished);
    if stopped {
        return verdict;
    }
    let (summary, done) = distill::distilled(&stage, asked)?;
    match call.is_json() {
        true => stdout::json(&json!({"collect": collected, "distill": summary.to_json()}))?,
        false => stdout::data(distill::table::table(&summary).as_bytes())?,
    }
    verdict.and(distill::verdict(&summary, &done))
}
