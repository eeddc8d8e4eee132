//! Asking a model for what a plan needs: each request after the one whose tokens it builds upon.
//!
//! Owns the jobs of a read episode, the order of their requests, and which of them are needed at all. An answer that fails
//! fails the steps that rest on it and no other. Deliberately absent: how many tokens are in flight,
//! which is the model's own business.

use std::collections::BTreeSet;
use std::sync::Arc;

use tokio::task::JoinSet;

use super::read::{ReadEpisode, Seen};
use crate::model::{Error, Limits, Model, Scored};
use crate::plan::{Backend, Plan, plan};
use crate::score::{ScoreJob, SpanScore};

/// The embedded engine is asked in passes over so many scored positions, so that progress can be told.
const EMBEDDED_PASS: usize = 512;

/// The embedded engine, as episodes are asked of it.
pub const EMBEDDED: Backend = Backend { max_scored: Some(EMBEDDED_PASS), ..Backend::EMBEDDED };

/// What a model does with requests for scores, as far as its cost goes.
pub(super) fn backend(limits: &Limits, is_embedded: bool) -> Backend {
    let max_scored = EMBEDDED.max_scored.filter(|_| is_embedded);
    Backend { caches_scores: limits.cached_scores, start_index: limits.start_index, max_scored }
}

/// An episode's jobs, and the plan that serves them.
pub(super) struct Asking {
    jobs: Vec<ScoreJob>,
    pub(super) plan: Plan,
    /// The job of each step under the lens, and without it.
    of_step: Vec<[Option<usize>; 2]>,
}

/// Which of a step's two scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Which {
    Lens = 0,
    Plain = 1,
}

impl Asking {
    /// Plans the scoring of every step's last `n_tokens`; 0 is the whole action.
    pub(super) fn new(read: &ReadEpisode, n_tokens: usize, backend: &Backend) -> Self {
        let mut jobs = Vec::new();
        let mut of_step = vec![[None; 2]; read.steps.len()];
        for which in [Which::Lens, Which::Plain] {
            for (step, places) in read.steps.iter().zip(&mut of_step) {
                let seen = step.as_ref().ok().and_then(|step| match which {
                    Which::Lens => Some(&step.lens),
                    Which::Plain => step.plain.as_ref(),
                });
                if let Some(job) = seen.and_then(|seen| job(seen, n_tokens)) {
                    places[which as usize] = Some(jobs.len());
                    jobs.push(job);
                }
            }
        }
        let plan = plan(&jobs, backend);
        Self { jobs, plan, of_step }
    }

    /// The requests that give these scores.
    pub(super) fn requests_for(&self, wanted: impl IntoIterator<Item = (usize, Which)>) -> BTreeSet<usize> {
        let jobs = wanted.into_iter().filter_map(|(step, which)| self.of_step[step][which as usize]);
        jobs.flat_map(|job| self.plan.requests_of(job)).collect()
    }

    /// A step's score from the answers, or why there is none.
    pub(super) fn score(&self, step: usize, which: Which, answers: &Answers) -> Result<SpanScore, String> {
        let job = self.of_step[step][which as usize].ok_or("the step was not asked for")?;
        let answer = |request: usize| answers.of(request);
        match self.plan.assemble(&self.jobs, job, answer) {
            Ok(spans) => spans.into_iter().next().ok_or_else(|| "the answer is empty".to_owned()),
            Err(unanswered) => Err(answers.why_not(unanswered.request)),
        }
    }
}

fn job(seen: &Seen, n_tokens: usize) -> Option<ScoreJob> {
    ScoreJob::new(Arc::clone(&seen.tokens), vec![seen.action(n_tokens)], 0).ok()
}

/// What came back, by request.
pub(super) struct Answers(Vec<Option<Result<Scored, Error>>>);

impl Answers {
    fn of(&self, request: usize) -> Option<&[SpanScore]> {
        self.0.get(request)?.as_ref()?.as_ref().ok().map(|scored| scored.spans.as_slice())
    }

    fn why_not(&self, request: usize) -> String {
        match self.0.get(request) {
            Some(Some(Err(error))) => error.to_string(),
            Some(Some(Ok(_))) => "the answer is not what was asked for".to_owned(),
            _ => "not asked: the run was stopped".to_owned(),
        }
    }

    /// Whether a request was never sent, or refused because nothing more may be sent.
    pub(super) fn is_cut_short(&self, needed: &BTreeSet<usize>) -> bool {
        needed.iter().any(|idx| match self.0.get(*idx) {
            Some(Some(Err(error))) => error.stops_the_run(),
            Some(Some(Ok(_))) => false,
            _ => true,
        })
    }
}

/// Sends the `needed` requests of a plan in its order, at most `at_once` at a time; `done` is told of
/// each answer and says whether to go on.
pub(super) async fn ask(
    model: &Arc<dyn Model>,
    plan: &Plan,
    needed: &BTreeSet<usize>,
    at_once: usize,
    done: impl Fn(usize, &Result<Scored, Error>) -> bool,
) -> Answers {
    let mut answers: Vec<Option<Result<Scored, Error>>> = plan.requests.iter().map(|_| None).collect();
    let after = |idx: usize| plan.requests[idx].after.filter(|after| needed.contains(after));
    let (mut ready, waiting): (BTreeSet<usize>, BTreeSet<usize>) =
        needed.iter().copied().partition(|idx| after(*idx).is_none());
    let mut tasks = JoinSet::new();
    let mut goes_on = true;
    loop {
        while goes_on && tasks.len() < at_once.max(1) {
            let Some(idx) = ready.pop_first() else { break };
            let (model, ask) = (Arc::clone(model), plan.requests[idx].ask.clone());
            tasks.spawn(async move { (idx, model.score(&ask).await) });
        }
        let Some(finished) = tasks.join_next().await else { break };
        // A task that panicked leaves its request without an answer.
        let Ok((idx, answer)) = finished else { continue };
        goes_on &= done(idx, &answer);
        answers[idx] = Some(answer);
        ready.extend(waiting.iter().copied().filter(|it| after(*it) == Some(idx)));
    }
    Answers(answers)
}
