//! What a teacher says of actions under what it is given to read, asked for through one plan at a time.

use std::collections::HashMap;
use std::sync::Arc;

use super::{Loss, Reason, Work};
use crate::model::Model;
use crate::pipeline::ReadEpisode;
use crate::pipeline::ask::{Answers, Asking, Jobs};
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

/// The student's own candidates at each token of actions, by step.
type Candidates = HashMap<usize, Vec<Arc<[TokenId]>>>;

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
            Ok(read) => read,
            Err(why) => {
                let lost =
                    |step: &usize| Taught { step: *step, lens: keys[0].clone(), score: Err(why.clone()) };
                return Some(steps.iter().map(lost).collect());
            }
        };
        let chosen = match self.shared.options.at_student {
            true => Some(self.candidates(&steps).await?),
            false => None,
        };
        let jobs = match &chosen {
            Some(chosen) => jobs.choosing(|step, _| chosen.get(&step).cloned().unwrap_or_default()),
            None => jobs,
        };
        let refusals = steps.iter().filter_map(|step| Some((*step, refusal(&read, chosen.as_ref(), *step)?)));
        let refusals: HashMap<usize, Loss> = refusals.collect();
        // Where there is something else to read a step under, it is wanted.
        let asking = jobs.plan(&read, |step, _| !refusals.contains_key(&step), self.teacher.limits());
        self.begun(asking.n_scores(), asking.figures().computed_tokens());
        let answers = self.answers(&asking).await?;
        let score = |step: usize, lens: usize| -> Option<Result<SpanScore, Loss>> {
            if let Some(loss) = refusals.get(&step) {
                return Some(Err(loss.clone()));
            }
            Some(match read.steps[step].as_ref().ok()?.view(lens)? {
                Err(loss) => Err(loss.clone()),
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

    /// Asks through a plan; nothing where the run was stopped. An action with chosen candidates takes several requests,
    /// and where the weights are in doubt between two of them its numbers do not belong together: then it is asked for
    /// once more, and the ledger has what stood.
    async fn answers(&self, asking: &Asking) -> Option<Answers> {
        let model: Arc<dyn Model> = Arc::clone(&self.teacher) as Arc<dyn Model>;
        let mut is_again = false;
        loop {
            let answers = asking.ask(&model, &self.pace(1), || !self.shared.brake.is_stopped()).await;
            if self.shared.brake.is_stopped() && asking.is_cut_short(&answers) {
                return None;
            }
            if is_again || !self.shared.options.at_student || asking.is_answered(&answers) {
                return Some(answers);
            }
            is_again = true;
        }
    }

    /// The student's own candidates at each token of these actions, which the teacher is asked about; none for an action
    /// that could not be read. Nothing where the run was stopped before they were known.
    async fn candidates(&self, steps: &[usize]) -> Option<Candidates> {
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

/// Why a step is not asked about, if so: what would be left out of its context would be in the gap, and without the
/// student's candidates there is nothing to ask where those are wanted.
fn refusal(read: &ReadEpisode, chosen: Option<&Candidates>, step: usize) -> Option<Loss> {
    match &read.steps[step] {
        Err(loss) => Some(loss.clone()),
        Ok(read) if !read.window.dropped.is_empty() => {
            Some(Loss::new(Reason::Context, "only a part of its context fits"))
        }
        Ok(_) if chosen.is_some_and(|it| !it.contains_key(&step)) => {
            Some(Loss::new(Reason::Logprob, "the student's own candidates are not known"))
        }
        Ok(_) => None,
    }
}
