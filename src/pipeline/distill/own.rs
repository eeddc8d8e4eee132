//! The student's own logprobs: from sampling where they were kept, re-read where they were not; and whether the two agree.

use std::sync::Arc;

use serde_json::{Value, json};

use super::Work;
use crate::model::Model;
use backsight_core::credit::distill::Audit;
use backsight_core::credit::sum::mean;
use backsight_core::episode::{Episode, Version};
use backsight_core::mix::{after, mix};
use backsight_core::score::SpanScore;
use backsight_core::tokens::Logprob;

/// What is known of the student's numbers.
pub(super) struct Own {
    /// By step, one for each token of its action; empty where the step could not be read.
    pub(super) logprobs: Vec<Vec<Option<Logprob>>>,
    /// What the student says of the actions it read again, by step.
    pub(super) read: Vec<(usize, SpanScore)>,
    /// How many actions it could not read again.
    pub(super) n_lost: usize,
    /// How far sampled and re-read numbers are apart, by step, where both are there.
    audited: Vec<(usize, f64)>,
    /// Why nothing was looked at again.
    skipped: Option<&'static str>,
}

impl Own {
    /// Why the episode's rows are not to be trusted, if so.
    pub(super) fn quarantine(&self, max_mean_diff: f64) -> Option<String> {
        let (step, diff) = self.audited.iter().find(|(_, diff)| *diff > max_mean_diff)?;
        Some(format!(
            "quarantined: sampled and re-read logprobs of step {step} are {diff:.3} nats apart on average, so its \
             template, its tokens or its weights are others"
        ))
    }

    pub(super) fn audit_row(&self) -> Value {
        json!({"steps": self.audited.iter().map(|(step, diff)| json!([step, diff])).collect::<Vec<_>>(),
               "skipped": self.skipped})
    }
}

impl Work<'_> {
    /// The student's numbers; nothing where the run was stopped before they were there.
    pub(super) async fn own(&self) -> Option<Own> {
        let sampled: Vec<Vec<Option<Logprob>>> =
            (0..self.actions.len()).map(|step| self.sampled(step)).collect();
        let skipped = self.why_no_audit();
        let looked_at = if skipped.is_none() { self.looked_at(&sampled) } else { Vec::new() };
        let lacks = |step: &usize| sampled[*step].iter().any(Option::is_none) && self.is_whole(*step);
        let mut wanted: Vec<usize> = (0..sampled.len()).filter(lacks).chain(looked_at.clone()).collect();
        wanted.sort_unstable();
        wanted.dedup();
        let read = self.re_read(&wanted).await?;
        let n_lost = wanted.len() - read.len();
        let (mut logprobs, mut audited) = (sampled, Vec::new());
        for (step, score) in &read {
            let (step, again) = (*step, score.logprobs().collect::<Vec<_>>());
            let pairs = logprobs[step].iter().zip(&again);
            let apart =
                |(a, b): (&Option<Logprob>, &Option<Logprob>)| Some(((*a)?.get() - (*b)?.get()).abs());
            let apart: Vec<f64> = pairs.filter_map(apart).collect();
            if looked_at.contains(&step) {
                audited.extend(mean(&apart).map(|mean| (step, mean)));
            }
            logprobs[step].iter_mut().zip(again).for_each(|(own, again)| *own = own.or(again));
        }
        Some(Own { logprobs, read, n_lost, audited, skipped })
    }

    /// What was recorded while the action was sampled.
    fn sampled(&self, step: usize) -> Vec<Option<Logprob>> {
        let Some(action) = &self.actions[step] else { return Vec::new() };
        let recorded = self.episode.steps()[step].tokens.as_ref().map(|it| it.logprobs.clone());
        let mut logprobs = recorded.unwrap_or_default();
        logprobs.resize(action.ids.len(), None);
        logprobs
    }

    /// Whether an action is read in the very context it was sampled in: one that is shortened says other numbers.
    fn is_whole(&self, step: usize) -> bool {
        self.plain.steps[step].as_ref().is_ok_and(|read| read.window.dropped.is_empty())
    }

    fn why_no_audit(&self) -> Option<&'static str> {
        let now = self.student.version_now();
        if self.shared.options.audit == Audit::Off {
            Some("it was not asked for")
        } else if moved(&self.episode, now.as_deref()) {
            Some("the weights that sampled it are others by now")
        } else {
            None
        }
    }

    fn looked_at(&self, sampled: &[Vec<Option<Logprob>>]) -> Vec<usize> {
        let has_any = |step: &usize| sampled[*step].iter().any(Option::is_some) && self.is_whole(*step);
        let steps: Vec<usize> = (0..sampled.len()).filter(has_any).collect();
        match (self.shared.options.audit, steps.len()) {
            (Audit::Off, _) | (_, 0) => Vec::new(),
            (Audit::All, _) => steps,
            (Audit::Sample, n) => {
                let seed = self
                    .episode
                    .id
                    .bytes()
                    .fold(self.shared.options.seed, |seed, byte| mix(after(seed) ^ u64::from(byte)));
                vec![steps[(seed % n as u64) as usize]]
            }
        }
    }

    /// What the student says of these actions as it reads them now, where it says anything.
    async fn re_read(&self, steps: &[usize]) -> Option<Vec<(usize, SpanScore)>> {
        let is_wanted = |step: usize, _| steps.contains(&step);
        let asking = self.plain_jobs.plan(&self.plain, is_wanted, self.student.limits());
        let model: Arc<dyn Model> = Arc::clone(&self.student) as Arc<dyn Model>;
        let answers = asking.ask(&model, &self.pace(0), || !self.shared.brake.is_stopped()).await;
        if self.shared.brake.is_stopped() && asking.is_cut_short(&answers) {
            return None;
        }
        let of_step = |step: &usize| Some((*step, self.plain_jobs.score(*step, 0, &answers).ok()?.clone()));
        Some(steps.iter().filter_map(of_step).collect())
    }
}

/// Whether an episode was sampled by other weights than those that answer now, or by several.
fn moved(episode: &Episode, now: Option<&str>) -> bool {
    let of_now = |version: &Version| matches!(version, Version::Known(name) if Some(name.as_str()) == now);
    !episode.versions.is_empty() && !episode.versions.iter().all(|it| of_now(&it.version))
}
