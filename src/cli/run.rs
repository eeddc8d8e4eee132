//! `run`: the whole main job on one directory: collect, judge while that goes on, credit where that is wanted, distil.

use std::path::PathBuf;

use serde_json::{Map, Value};

use super::call::Call;
use super::collect;
use super::credit::{self, args::CreditArgs};
use super::distill::{self, Asked};
use super::episodes::{self, Ask};
use super::failure::Failure;
use super::stdout;
use backsight_core::lens;

pub(super) fn run(call: &Call) -> Result<(), Failure> {
    let dir: PathBuf = call.get("run")?;
    let stage = call.stage("distill")?;
    // What is wrong with any stage is said before the first is begun.
    let asked = Asked::read(&stage)?;
    let crediting = crediting(call)?;
    let early = asked.lens.is_some().then(|| stage.config.clone());
    let config = call.stage("collect")?.config;
    let ask = Ask { stage: "collect", config, dir: &dir, talk: call.talk("episode"), early };
    let finished = collect::made(ask)?;
    let mut told = Told { is_json: call.is_json(), all: Map::new() };
    told.stage("collect", finished.summary.to_json(), || collect::table(&finished))?;
    let stopped = finished.done.stopped.is_some();
    let verdict = episodes::verdict(&finished);
    drop(finished);
    let ended = if stopped { verdict } else { rest(crediting.as_ref(), &stage, asked, verdict, &mut told) };
    // What was made is told also where a later stage was stopped.
    told.end()?;
    ended
}

/// The stages behind `collect`, which ended with `verdict`.
fn rest(
    crediting: Option<&Call>,
    stage: &Call,
    asked: Asked,
    mut verdict: Result<(), Failure>,
    told: &mut Told,
) -> Result<(), Failure> {
    if let Some(stage) = crediting {
        let (summary, done) = credit::scored(&credit_args(stage)?)?;
        told.stage("credit", summary.to_json(), || credit::table::totals(&summary))?;
        let own = credit::verdict(&summary, &done);
        if done.stopped.is_some() {
            return own;
        }
        verdict = verdict.and(own);
    }
    let (summary, done) = distill::distilled(stage, asked)?;
    told.stage("distill", summary.to_json(), || distill::table::table(&summary))?;
    verdict.and(distill::verdict(&summary, &done))
}

/// What has been told of the stages: to people at once, to machines at the end.
struct Told {
    is_json: bool,
    all: Map<String, Value>,
}

impl Told {
    fn stage(&mut self, name: &str, summary: Value, table: impl FnOnce() -> String) -> Result<(), Failure> {
        if !self.is_json {
            return stdout::data(table().as_bytes());
        }
        self.all.insert(name.to_owned(), summary);
        Ok(())
    }

    fn end(self) -> Result<(), Failure> {
        if self.is_json { stdout::json(&Value::Object(self.all)) } else { Ok(()) }
    }
}

/// The stage that credits, where one is wanted: what it re-reads under is the outcome, whatever hints are judged, and
/// every step is rewarded as its episode was, whose tasks have no parts.
fn crediting(call: &Call) -> Result<Option<Call>, Failure> {
    match (call.config.is("credit_enabled"), call.config.is("ship_credit")) {
        (false, true) => {
            let what = "--ship-credit ships credit, and no step gets any";
            Err(Failure::input(what, "give --credit-enabled true too, or leave out --ship-credit"))
        }
        (false, false) => Ok(None),
        (true, _) => {
            let mut stage = call.stage("credit")?;
            stage.config.say("lens", lens::NAMES[0]);
            stage.config.say("dense_rewards", false);
            // A group is compared whole, whatever its rewards are.
            stage.config.leave_out("min_reward");
            credit::check(&credit_args(&stage)?)?;
            Ok(Some(stage))
        }
    }
}

/// What is asked of it. The student's own server is asked, so what the published scorer's environment says of another
/// does not count.
fn credit_args(stage: &Call) -> Result<CreditArgs<'_>, Failure> {
    CreditArgs::read(stage, |_| None)
}
