//! The student's own logprobs: from sampling where they were kept, re-read where they were not; and whether the two agree.

use std::sync::Arc;

use serde_json::{Value, json};

use super::Work;
use crate::model::Model;
use backsight_core::credit::distill::{Audit, knows_likeliest};
use backsight_core::credit::sum::mean;
use backsight_core::episode::{Episode, Version};
use backsight_core::mix::{after, mix};
use backsight_core::score::SpanScore;
use backsight_core::tokens::{Logprob, TopK};

/// What is known of the student's numbers.
pub(super) struct Own {
    /// By step, one for each token of its action; empty where the step could not be read.
    pub(super) logprobs: Vec<Vec<Option<Logprob>>>,
    /// What the student says of the actions it read again, by step.
    pub(super) read: Vec<(usize, SpanScore)>,
    /// The actions that could not be read again, and why.
    pub(super) lost: Vec<(usize, String)>,
    /// How far sampled and re-read numbers are apart, by step, where both are there.
    audited: Vec<(usize, f64)>,
    /// Why nothing was looked at again.
    skipped: Option<&'static str>,
}

/// Scores of actions that were read again, and the others with what went wrong.
type ReRead = (Vec<(usize, SpanScore)>, Vec<(usize, String)>);

impl Own {
    /// Why the episode's rows are not to be trusted, if so.
    pub(super) fn quarantine(&self, max_mean_diff: f64) -> Option<String> {
        let (step, diff) = self.audited.iter().find(|(_, diff)| *diff > max_mean_diff)?;
        Some(format!(
            "quarantined: sampled and re-read logprobs of step {step} are {diff:.3} nats apart on average, so its \
             template, its tokens or its weights are others"
        ))
    }

    /// The student's candidates at each token of an action, if it was read again.
    pub(super) fn top(&self, step: usize) -> Option<Vec<&TopK>> {
        let (_, score) = self.read.iter().find(|(read, _)| *read == step)?;
        Some(score.scores().iter().map(|it| &it.top).collect())
    }

    pub(super) fn audit_row(&self) -> Value {
        json!({"steps": self.audited.iter().map(|(step, diff)| json!([step, diff])).collect::<Vec<_>>(),
               "skipped": self.skipped})
    }
}

impl Work<'_> {
    /// The student's numbers; nothing where the run was stopped before they were there.
    pub(super) async fn own(&self) -> Option<&Own> {
        self.own.get_or_init(|| self.find_own()).await.as_ref()
    }

    async fn find_own(&self) -> Option<Own> {
        let sampled: Vec<Vec<Option<Logprob>>> =
            (0..self.actions.len()).map(|step| self.sampled(step)).collect();
        let skipped = self.why_no_audit();
        let looked_at = if skipped.is_none() { self.looked_at(&sampled) } else { Vec::new() };
        let lacks_top = |step: usize| self.shared.options.at_student && self.recorded_top(step).is_none();
        let lacks = |step: &usize| {
            (sampled[*step].iter().any(Option::is_none) || lacks_top(*step)) && self.is_whole(*step)
        };
        let mut wanted: Vec<usize> = (0..sampled.len()).filter(lacks).chain(looked_at.clone()).collect();
        wanted.sort_unstable();
        wanted.dedup();
        let (read, lost) = self.re_read(&wanted).await?;
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
        Some(Own { logprobs, read, lost, audited, skipped })
    }

    /// What was recorded while the action was sampled.
    fn sampled(&self, step: usize) -> Vec<Option<Logprob>> {
        let Some(action) = &self.actions[step] else { return Vec::new() };
        let recorded = self.episode.steps()[step].tokens.as_ref().map(|it| it.logprobs.clone());
        let mut logprobs = recorded.unwrap_or_default();
        logprobs.resize(action.ids.len(), None);
        logprobs
    }

    /// The student's candidates at each token of an action, as recorded while it was sampled; none where they are not all
    /// there, or fewer than are wanted.
    pub(super) fn recorded_top(&self, step: usize) -> Option<&[TopK]> {
        let (action, k) = (self.actions[step].as_ref()?, self.shared.options.student_k);
        let top = &self.episode.steps()[step].tokens.as_ref()?.top;
        knows_likeliest(&action.ids, top, k).then_some(&top[..])
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

    /// What the student says of these actions as it reads them now, and why it says nothing of the others.
    async fn re_read(&self, steps: &[usize]) -> Option<ReRead> {
        let is_wanted = |step: usize, _| steps.contains(&step);
        let asking = self.plain_jobs.plan(&self.plain, is_wanted, self.student.limits());
        let model: Arc<dyn Model> = Arc::clone(&self.student) as Arc<dyn Model>;
        let answers = asking.ask(&model, &self.pace(0), || !self.shared.brake.is_stopped()).await;
        if self.shared.brake.is_stopped() && asking.is_cut_short(&answers) {
            return None;
        }
        let (mut read, mut lost) = ReRead::default();
        for step in steps {
            match self.plain_jobs.score(*step, 0, &answers) {
                Ok(score) => read.push((*step, score.clone())),
                Err(why) => lost.push((*step, why)),
            }
        }
        Some((read, lost))
    }
}

/// Whether an episode was sampled by other weights than those that answer now, or by several.
fn moved(episode: &Episode, now: Option<&str>) -> bool {
    let of_now = |version: &Version| matches!(version, Version::Known(name) if Some(name.as_str()) == now);
    !episode.versions.is_empty() && !episode.versions.iter().all(|it| of_now(&it.version))
}
