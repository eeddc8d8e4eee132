//! The scores of a read episode, asked for through a plan.
//!
//! Owns which jobs an episode has and which of them are wanted. A wanted score that fails is its step's own
//! loss. Deliberately absent: carrying the plan out, which is `model::planned`'s business.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use super::read::ReadEpisode;
use crate::model::planned::{Pace, score_at};
use crate::model::{Error, JobScores, Model};
use backsight_core::lens::Lenses;
use backsight_core::model::Limits;
use backsight_core::plan::{Figures, Plan, TipJob, plan_tree};
use backsight_core::score::SpanScore;
use backsight_core::tokens::TokenId;

/// An episode's jobs.
pub(super) struct Jobs {
    all: Vec<TipJob>,
    /// The job of each step through each lens.
    of_step: Vec<Vec<Option<usize>>>,
}

impl Jobs {
    /// A job for the last `n_tokens` of every step through every lens; 0 is the whole action.
    pub(super) fn new(read: &ReadEpisode, lenses: &Lenses, n_tokens: usize) -> Self {
        let mut all = Vec::new();
        let mut of_step = vec![vec![None; lenses.len()]; read.steps.len()];
        for (lens, through) in lenses.iter().enumerate() {
            for (step, jobs) in read.steps.iter().zip(&mut of_step) {
                let view = step.as_ref().ok().and_then(|step| step.view(lens));
                if let Some(seen) = view.and_then(|seen| seen.as_ref().ok()) {
                    jobs[lens] = Some(all.len());
                    let spans = vec![seen.action(n_tokens)];
                    all.push(TipJob { tip: seen.tip, spans, top_k: through.top_k, chosen: None });
                }
            }
        }
        Self { all, of_step }
    }

    /// The same jobs, with the candidates that are chosen at each of the so many positions of a step's action.
    pub(super) fn choosing(mut self, chosen: impl Fn(usize, usize) -> Vec<Arc<[TokenId]>>) -> Self {
        for (step, jobs) in self.of_step.iter().enumerate() {
            for job in jobs.iter().flatten() {
                let job = &mut self.all[*job];
                job.chosen = Some(chosen(step, job.spans.iter().map(|span| span.len()).sum()));
            }
        }
        self
    }

    /// The requests that give those scores of an episode that are wanted, by step and lens.
    pub(super) fn plan(
        &self,
        read: &ReadEpisode,
        is_wanted: impl Fn(usize, usize) -> bool,
        limits: &Limits,
    ) -> Asking {
        let of_step = |(step, jobs): (usize, &Vec<Option<usize>>)| {
            let wanted = jobs.iter().enumerate().filter(|(lens, _)| is_wanted(step, *lens));
            wanted.filter_map(|(_, job)| *job).collect::<Vec<_>>()
        };
        let mut wanted: Vec<usize> = self.of_step.iter().enumerate().flat_map(of_step).collect();
        wanted.sort_unstable();
        let chosen = wanted.iter().map(|job| self.all[*job].clone()).collect();
        Asking { plan: plan_tree(Arc::clone(&read.tree), chosen, limits), wanted }
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// A step's score through a lens, from the answers, or why there is none.
    pub(super) fn score<'a>(
        &self,
        step: usize,
        lens: usize,
        answers: &'a Answers,
    ) -> Result<&'a SpanScore, String> {
        let job = self.of_step[step][lens].ok_or("the step was not asked for")?;
        match answers.0.get(&job) {
            Some(Ok(score)) => Ok(score),
            Some(Err(error)) => Err(error.to_string()),
            None => Err("not asked: the run was stopped".to_owned()),
        }
    }
}

/// What is asked for: some of the jobs, and the plan that gives their scores.
pub(super) struct Asking {
    wanted: Vec<usize>,
    plan: Plan,
}

impl Asking {
    /// For how many scores.
    pub(super) fn n_scores(&self) -> usize {
        self.wanted.len()
    }

    /// What it costs.
    pub(super) fn figures(&self) -> Figures {
        self.plan.figures
    }

    /// Asks; `settled` is told of each score that is done with and says whether to go on.
    pub(super) async fn ask(
        &self,
        model: &Arc<dyn Model>,
        pace: &Pace,
        mut settled: impl FnMut() -> bool + Send,
    ) -> Answers {
        let mut answers = HashMap::new();
        let mut settle = |idx: usize, scores: Result<JobScores, Error>| {
            // Every job has one span.
            let score = scores.map(|scores| scores.spans.into_iter().next()).transpose();
            answers.extend(score.map(|score| (self.wanted[idx], score)));
            if settled() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        };
        score_at(pace, model, &self.plan, &mut settle).await;
        Answers(answers)
    }

    /// Whether every wanted score is there.
    pub(super) fn is_answered(&self, answers: &Answers) -> bool {
        self.wanted.iter().all(|job| matches!(answers.0.get(job), Some(Ok(_))))
    }

    /// Whether a job of a run that was stopped was never asked for, may not be sent any more, or found no server.
    pub(super) fn is_cut_short(&self, answers: &Answers) -> bool {
        self.wanted.iter().any(|job| match answers.0.get(job) {
            Some(Err(error)) => error.leaves_open(),
            Some(Ok(_)) => false,
            None => true,
        })
    }
}

/// What came back, by job.
pub(super) struct Answers(HashMap<usize, Result<SpanScore, Error>>);
