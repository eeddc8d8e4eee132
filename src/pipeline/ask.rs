//! The scores of a read episode, asked for through a plan.
//!
//! Owns which jobs an episode has and which of them are wanted. A wanted score that fails is its step's own
//! loss. Deliberately absent: carrying the plan out, which is `model::planned`'s business.

use std::ops::ControlFlow;
use std::sync::Arc;

use super::read::{ReadEpisode, Seen};
use crate::model::planned::{Pace, score_at};
use crate::model::{Error, JobScores, Model};
use backsight_core::lens::Lenses;
use backsight_core::plan::{Backend, Figures, plan};
use backsight_core::score::{ScoreJob, SpanScore};

/// An episode's jobs.
pub(super) struct Jobs {
    all: Vec<ScoreJob>,
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
                let seen = view.and_then(|seen| seen.as_ref().ok());
                if let Some(job) = seen.and_then(|seen| job(seen, n_tokens, through.top_k)) {
                    jobs[lens] = Some(all.len());
                    all.push(job);
                }
            }
        }
        Self { all, of_step }
    }

    /// What scoring all of them takes.
    pub(super) fn figures(&self, backend: &Backend) -> Figures {
        plan(&self.all, backend).figures
    }

    /// The jobs that give these scores, named by step and lens, in order.
    pub(super) fn wanted(&self, scores: impl IntoIterator<Item = (usize, usize)>) -> Vec<usize> {
        let jobs = scores.into_iter().filter_map(|(step, lens)| self.of_step[step][lens]);
        let mut jobs: Vec<usize> = jobs.collect();
        jobs.sort_unstable();
        jobs
    }

    /// What scoring some of them takes.
    pub(super) fn figures_of(&self, wanted: &[usize], backend: &Backend) -> Figures {
        plan(&self.chosen(wanted), backend).figures
    }

    fn chosen(&self, wanted: &[usize]) -> Vec<ScoreJob> {
        wanted.iter().map(|job| self.all[*job].clone()).collect()
    }

    /// Asks for some of them; `settled` is told of each that is done with and says whether to go on.
    pub(super) async fn ask(
        &self,
        wanted: &[usize],
        model: &Arc<dyn Model>,
        pace: &Pace,
        mut settled: impl FnMut() -> bool + Send,
    ) -> Answers {
        let mut answers: Vec<Option<Result<SpanScore, Error>>> = self.all.iter().map(|_| None).collect();
        let mut settle = |idx: usize, scores: Result<JobScores, Error>| {
            // Every job has one span.
            answers[wanted[idx]] = scores.map(|scores| scores.spans.into_iter().next()).transpose();
            if settled() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        };
        score_at(pace, model, &self.chosen(wanted), &mut settle).await;
        Answers(answers)
    }

    /// A step's score through a lens, from the answers, or why there is none.
    pub(super) fn score<'a>(
        &self,
        step: usize,
        lens: usize,
        answers: &'a Answers,
    ) -> Result<&'a SpanScore, String> {
        let job = self.of_step[step][lens].ok_or("the step was not asked for")?;
        match answers.0.get(job) {
            Some(Some(Ok(score))) => Ok(score),
            Some(Some(Err(error))) => Err(error.to_string()),
            _ => Err("not asked: the run was stopped".to_owned()),
        }
    }
}

fn job(seen: &Seen, n_tokens: usize, top_k: usize) -> Option<ScoreJob> {
    ScoreJob::new(Arc::clone(&seen.tokens), vec![seen.action(n_tokens)], top_k).ok()
}

/// What came back, by job.
pub(super) struct Answers(Vec<Option<Result<SpanScore, Error>>>);

impl Answers {
    /// Whether a job of a run that was stopped was never asked for, may not be sent any more, or found no server.
    pub(super) fn is_cut_short(&self, wanted: &[usize]) -> bool {
        wanted.iter().any(|job| match self.0.get(*job) {
            Some(Some(Err(error))) => error.leaves_open(),
            Some(Some(Ok(_))) => false,
            _ => true,
        })
    }
}
