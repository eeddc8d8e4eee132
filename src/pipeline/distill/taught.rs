//! What a teacher says of actions under what it is given to read, asked for through one plan at a time.

use std::collections::HashMap;
use std::sync::Arc;

use super::{Loss, Reason, Work};
use crate::model::Model;
use crate::pipeline::ReadEpisode;
use crate::pipeline::ask::Jobs;
use backsight_core::lens::{Given, HintLens, Lenses, PlaceboLens, Placement, PlainLens};
use backsight_core::score::SpanScore;
use backsight_core::tokens::{TokenId, TopK};

/// Through what actions are read.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Through {
    /// As they were sampled.
    Plain,
    /// Under hints written here, and under as many words about nothing where that is wanted.
    Hint(Placement, bool),
}

/// What is given to read, by step.
pub(super) type Hints = HashMap<usize, Given>;

/// What the teacher says of an action through a lens, or why it says nothing.
#[derive(Clone, Debug)]
pub(super) struct Taught {
    pub(super) step: usize,
    /// The lens's name in files.
    pub(super) lens: String,
    pub(super) score: Result<SpanScore, Loss>,
}

/// Actions read under what is given, and not asked for yet.
pub(super) struct Under {
    steps: Vec<usize>,
    keys: Vec<String>,
    read: Result<(ReadEpisode, Jobs), Loss>,
}

impl Work<'_> {
    /// Reads the actions of some steps under what is given for each.
    pub(super) async fn under(&self, through: &Through, hints: Hints) -> Under {
        let steps: Vec<usize> = hints.keys().copied().collect();
        let lenses = self.lenses(through, hints);
        let (keys, limit) = (lenses.keys(), self.shared.options.limits[1]);
        Under { steps, keys, read: self.shared.read(&self.episode, lenses, limit).await }
    }

    /// Asks what the teacher says of them; nothing where the run was stopped.
    pub(super) async fn taught(&self, Under { steps, keys, read }: Under) -> Option<Vec<Taught>> {
        let (read, jobs) = match read {
            Ok((read, jobs)) => match self.shared.options.at_student {
                false => (read, jobs),
                true => {
                    let chosen = self.candidates(&steps).await?;
                    let of_step = |step: usize, _| chosen.get(&step).cloned().unwrap_or_default();
                    (read, jobs.choosing(of_step))
                }
            },
            Err(why) => {
                let lost =
                    |step: &usize| Taught { step: *step, lens: keys[0].clone(), score: Err(why.clone()) };
                return Some(steps.iter().map(lost).collect());
            }
        };
        // Where there is something to read a step under, it is wanted.
        let asking = jobs.plan(&read, |_, _| true, self.teacher.limits());
        self.begun(asking.n_scores(), asking.figures().computed_tokens());
        let model: Arc<dyn Model> = Arc::clone(&self.teacher) as Arc<dyn Model>;
        let answers = asking.ask(&model, &self.pace(1), || !self.shared.brake.is_stopped()).await;
        if self.shared.brake.is_stopped() && asking.is_cut_short(&answers) {
            return None;
        }
        let score = |step: usize, lens: usize| -> Option<Result<SpanScore, Loss>> {
            let read = match &read.steps[step] {
                Ok(read) => read,
                Err(loss) => return Some(Err(loss.clone())),
            };
            Some(match read.view(lens)? {
                Err(loss) => Err(loss.clone()),
                // What is left out would be in the gap.
                Ok(_) if !read.window.dropped.is_empty() => {
                    Err(Loss::new(Reason::Context, "only a part of its context fits"))
                }
                Ok(_) => {
                    jobs.score(step, lens, &answers).cloned().map_err(|why| Loss::new(Reason::Server, why))
                }
            })
        };
        let of_step = |step: &usize| {
            let of_lens = |(lens, key): (usize, &String)| {
                Some(Taught { step: *step, lens: key.clone(), score: score(*step, lens)? })
            };
            keys.iter().enumerate().filter_map(of_lens).collect::<Vec<_>>()
        };
        Some(steps.iter().flat_map(of_step).collect())
    }

    /// The student's own candidates at each token of these actions, which the teacher is asked about; none for an action
    /// that could not be read. Nothing where the run was stopped before they were known.
    async fn candidates(&self, steps: &[usize]) -> Option<HashMap<usize, Vec<Arc<[TokenId]>>>> {
        let own = match steps.iter().all(|step| self.recorded_top(*step).is_some()) {
            true => None,
            false => Some(self.own().await?),
        };
        let of_step = |step: &usize| {
            let read = || own?.top(*step);
            let top = self.recorded_top(*step).map(|top| top.iter().collect()).or_else(read)?;
            Some((*step, top.into_iter().map(|top| self.likeliest(top)).collect()))
        };
        Some(steps.iter().filter_map(of_step).collect())
    }

    /// The student's likeliest candidates; the teacher is not asked about one that it does not have.
    fn likeliest(&self, top: &TopK) -> Arc<[TokenId]> {
        let n_ids = self.teacher.limits().vocab_size.unwrap_or(usize::MAX);
        let ids = top.entries().iter().take(self.shared.options.student_k).map(|(id, _)| *id);
        ids.filter(|id| (*id as usize) < n_ids).collect()
    }

    fn lenses(&self, through: &Through, hints: Hints) -> Lenses {
        let (k, seed) = (self.shared.options.k, self.shared.options.seed);
        match through {
            Through::Plain => Lenses::default().and(Arc::new(PlainLens), k),
            Through::Hint(placement, with_placebo) => {
                let given = hints.into_iter().map(|(step, it)| ((self.episode.id.clone(), step), it));
                let hint = Arc::new(HintLens { given: given.collect(), placement: *placement });
                let lenses = Lenses::default().and(Arc::clone(&hint) as Arc<dyn super::Lens>, k);
                match with_placebo {
                    true => lenses.and(Arc::new(PlaceboLens { like: hint, seed }), k),
                    false => lenses,
                }
            }
        }
    }

    fn begun(&self, n_scores: usize, tokens: u64) {
        let id = self.episode.id.clone();
        (self.shared.tell)(&super::Event::Begun { id, scores: n_scores as u64, tokens });
    }
}
