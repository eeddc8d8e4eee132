//! Hindsight credit for steps (HCAPO, arXiv 2603.08754): equations 5 to 7 and the smoothing of appendix A.
//!
//! Owns the way from a step's mean logprob under the outcome lens to its Q_H. A step without a score
//! has no π, is left out of the mean and gets no credit but a reason; discounts still count it, and
//! smoothing passes over it. Numbers are evaluated in the order of the published scorer, so equal
//! inputs give equal bits.

use std::collections::HashMap;
use std::sync::Arc;

use super::sum::mean;
use crate::lens::{Lens, PlainLens};
use crate::named;
use crate::tokens::Logprob;

/// How credit is carried back from later steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Smoothing {
    /// An average that reaches back from the end, as the published scorer has it.
    Recursive,
    /// One step, on the unsmoothed Q_H, as the paper has it.
    Paper,
    /// None at all.
    None,
}

named!(Smoothing: Recursive = "recursive", Paper = "paper", None = "none");

/// What a step's hindsight probability is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ratio {
    /// The mean over the trajectory (Eq. 7).
    Mean,
    /// The same action without the lens.
    Lift,
}

named!(Ratio: Mean = "mean", Lift = "lift");

impl Ratio {
    /// The lens beside hindsight's own that scores are needed through.
    pub fn reference(self) -> Option<Arc<dyn Lens>> {
        match self {
            Self::Mean => None,
            Self::Lift => Some(Arc::new(PlainLens)),
        }
    }
}

/// The hyper-parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Params {
    /// T_temp of Eq. 6; zero and below act as one.
    pub t_temp: f64,
    /// Discount per step.
    pub gamma: f64,
    /// Least ρ.
    pub c_min: f64,
    /// Largest ρ.
    pub c_max: f64,
    /// Weight of a step's own Q_H when smoothing.
    pub alpha: f64,
    /// How to smooth.
    pub smoothing: Smoothing,
    /// Smooth only with later steps of the same subtask.
    pub within_subtasks: bool,
    /// Reward steps by their subtask instead of by the episode.
    pub dense_rewards: bool,
    /// What ρ compares with.
    pub ratio: Ratio,
}

impl Params {
    /// Those of the published scorer.
    pub const PUBLISHED: Self = Self {
        t_temp: 5.0,
        gamma: 0.95,
        c_min: 0.8,
        c_max: 1.2,
        alpha: 0.5,
        smoothing: Smoothing::Recursive,
        within_subtasks: false,
        dense_rewards: true,
        ratio: Ratio::Mean,
    };
}

impl Default for Params {
    fn default() -> Self {
        Self::PUBLISHED
    }
}

/// What is known of a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepScore<'a> {
    /// Mean logprob of the action's tokens under the outcome lens.
    pub lens: Option<f64>,
    /// The same under the plain lens, where [`Ratio::Lift`] needs it.
    pub plain: Option<f64>,
    /// Its subtask, or its phase where it has none.
    pub group: &'a str,
    /// Its subtask's reward; without one the episode's counts.
    pub reward: Option<f64>,
}

/// What a step was worth.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepCredit {
    /// π_hind.
    pub pi_hind: f64,
    /// ρ.
    pub rho: f64,
    /// Q_H.
    pub q_h: f64,
    /// Q_H after smoothing.
    pub q_h_smoothed: f64,
}

/// Why a step has no credit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoCredit {
    /// It was not scored under the lens.
    #[error("the action has no score")]
    NoScore,
    /// It was not scored under the plain lens.
    #[error("the action has no score under the plain lens")]
    NoPlainScore,
    /// Some number on the way overflowed or was none to begin with.
    #[error("the credit is not a finite number")]
    NotFinite,
}

/// The credit of an episode's steps.
#[derive(Clone, Debug, PartialEq)]
pub struct Credit {
    /// One per step.
    pub steps: Vec<Result<StepCredit, NoCredit>>,
    /// Mean π_hind of the steps that were scored; none when no step was.
    pub pi_mean: Option<f64>,
    /// Whether any step was rewarded by its subtask.
    pub dense_rewards_used: bool,
}

/// The mean logprob of an action's tokens; none when a token has none, for a part says nothing about the whole.
pub fn mean_logprob(logprobs: impl IntoIterator<Item = Option<Logprob>>) -> Option<f64> {
    let known: Option<Vec<f64>> = logprobs.into_iter().map(|it| it.map(Logprob::get)).collect();
    mean(&known?)
}

/// Computes the credit of all steps of one episode.
pub fn credit(steps: &[StepScore<'_>], episode_reward: f64, params: &Params) -> Credit {
    let pi: Vec<Option<f64>> = steps.iter().map(|step| pi_hind(step.lens?, params)).collect();
    let known: Vec<f64> = pi.iter().copied().flatten().collect();
    let pi_mean = mean(&known);
    // The last step of each group; steps of other groups in between count for the discount.
    let ends: HashMap<&str, usize> = steps.iter().enumerate().map(|(t, step)| (step.group, t)).collect();
    let raw = steps.iter().zip(&pi).enumerate().map(|(t, (step, pi))| {
        let no_score = if step.lens.is_some() { NoCredit::NotFinite } else { NoCredit::NoScore };
        let pi_hind = pi.ok_or(no_score)?;
        let rho = rho(step, pi_hind, pi_mean.unwrap_or(0.0), params)?;
        let end = if params.dense_rewards { ends[step.group] } else { steps.len() - 1 };
        let q_h = q_h(rho, end - t, reward(step, episode_reward, params), params);
        finite(q_h).map(|q_h| StepCredit { pi_hind, rho, q_h, q_h_smoothed: q_h })
    });
    let mut credited: Vec<_> = raw.collect();
    smooth(&mut credited, steps, params);
    let dense_rewards_used = params.dense_rewards && steps.iter().any(|step| step.reward.is_some());
    Credit { steps: credited, pi_mean, dense_rewards_used }
}

/// Eq. 6: π_hind = exp( 1/(T_temp·|a|) · Σ log π ), with the mean over the action's tokens given.
fn pi_hind(mean_logprob: f64, params: &Params) -> Option<f64> {
    Some(tempered(mean_logprob, params)).filter(|pi| pi.is_finite())
}

fn tempered(mean_logprob: f64, params: &Params) -> f64 {
    if params.t_temp > 0.0 { (mean_logprob / params.t_temp).exp() } else { mean_logprob.exp() }
}

/// Eq. 7: ρ = clip( π_hind / mean π_hind, C_min, C_max ); `lift` takes the action without the lens for the mean.
fn rho(step: &StepScore<'_>, pi_hind: f64, pi_mean: f64, params: &Params) -> Result<f64, NoCredit> {
    let ratio = match params.ratio {
        Ratio::Mean if pi_mean == 0.0 => pi_hind / 1e-12,
        Ratio::Mean => pi_hind / pi_mean,
        Ratio::Lift => {
            let (lens, plain) = step.lens.zip(step.plain).ok_or(NoCredit::NoPlainScore)?;
            tempered(lens - plain, params)
        }
    };
    let below_max = if ratio < params.c_max { ratio } else { params.c_max };
    finite(if below_max > params.c_min { below_max } else { params.c_min })
}

/// Eq. 5: Q_H = ρ · γ^(steps to go) · R, multiplied from left to right.
fn q_h(rho: f64, steps_to_go: usize, reward: f64, params: &Params) -> f64 {
    rho * params.gamma.powf(steps_to_go as f64) * reward
}

fn reward(step: &StepScore<'_>, episode_reward: f64, params: &Params) -> f64 {
    step.reward.filter(|_| params.dense_rewards).unwrap_or(episode_reward)
}

fn finite(value: f64) -> Result<f64, NoCredit> {
    if value.is_finite() { Ok(value) } else { Err(NoCredit::NotFinite) }
}

/// Appendix A: Q~_t = α·Q_t + (1−α)·Q_{t+1}, where t+1 is the next step that has credit.
fn smooth(credited: &mut [Result<StepCredit, NoCredit>], steps: &[StepScore<'_>], params: &Params) {
    if params.smoothing == Smoothing::None {
        return;
    }
    let mut following: HashMap<&str, StepCredit> = HashMap::new();
    for (entry, step) in credited.iter_mut().zip(steps).rev() {
        let Ok(own) = *entry else { continue };
        let chain = if params.within_subtasks { step.group } else { "" };
        let smoothed = following.get(chain).map_or(own.q_h, |next| blend(own.q_h, next, params));
        *entry = finite(smoothed).map(|q_h_smoothed| StepCredit { q_h_smoothed, ..own });
        if let Ok(own) = *entry {
            following.insert(chain, own);
        }
    }
}

fn blend(own: f64, next: &StepCredit, params: &Params) -> f64 {
    let next = match params.smoothing {
        Smoothing::Recursive => next.q_h_smoothed,
        Smoothing::Paper | Smoothing::None => next.q_h,
    };
    params.alpha * own + (1.0 - params.alpha) * next
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Input A of the published vectors.
    const STEPS: [(f64, &str, f64); 7] = [
        (-0.5, "planning", 0.82),
        (-1.25, "planning", 0.82),
        (-0.1, "S1", 0.45),
        (-2.0, "S1", 0.45),
        (-0.75, "S1", 0.45),
        (-3.5, "S2", 0.2),
        (-0.3, "S2", 0.2),
    ];

    fn steps(left_out: &[usize]) -> Vec<StepScore<'static>> {
        let step = |(t, &(lens, group, reward)): (usize, &(f64, &'static str, f64))| StepScore {
            lens: Some(lens).filter(|_| !left_out.contains(&t)),
            plain: None,
            group,
            reward: Some(reward),
        };
        STEPS.iter().enumerate().map(step).collect()
    }

    fn smoothed(steps: &[StepScore<'_>], params: &Params) -> Vec<Option<f64>> {
        let credit = credit(steps, 0.5391, params);
        credit.steps.iter().map(|step| step.ok().map(|it| it.q_h_smoothed)).collect()
    }

    #[test]
    fn the_paper_smooths_one_step() {
        let params = Params { smoothing: Smoothing::Paper, ..Params::default() };
        let expected = [
            0.8347271832369842,
            0.6404570068752146,
            0.4217201156570857,
            0.4186919091526716,
            0.31664679349558594,
            0.19302645906621707,
            0.23405291813243415,
        ];
        assert_eq!(smoothed(&steps(&[]), &params), expected.map(Some));
    }

    #[test]
    fn smoothing_can_stay_within_subtasks() {
        let params = Params { within_subtasks: true, ..Params::default() };
        let all = smoothed(&steps(&[]), &params);
        assert_eq!(all[1], Some(0.7935640137504291), "the last planning step keeps its own");
        assert_eq!(all[4], Some(0.48129358699117186), "the last step of S1 keeps its own");
        assert_eq!(all[5], Some(0.19302645906621707));
    }

    #[test]
    fn a_step_without_a_score_is_passed_over() {
        let params = Params { smoothing: Smoothing::Paper, ..Params::default() };
        let with_gap = credit(&steps(&[3, 6]), 0.5391, &params);
        assert_eq!(with_gap.steps[3], Err(NoCredit::NoScore));
        let of = |t: usize| with_gap.steps[t].ok();
        let known = [0, 1, 2, 4, 5].map(|t| (STEPS[t].0 / 5.0).exp());
        assert_eq!(with_gap.pi_mean, mean(&known), "the mean is over the scored steps");
        let expected = of(2).zip(of(4)).map(|(own, next)| 0.5 * own.q_h + 0.5 * next.q_h);
        assert_eq!(of(2).map(|it| it.q_h_smoothed), expected, "smoothing looks to the next with credit");
        assert_eq!(of(5).map(|it| it.q_h_smoothed), of(5).map(|it| it.q_h), "the last with credit");
        assert_eq!(of(5).map(|it| it.q_h), of(5).map(|it| it.rho * 0.95 * 0.2), "discounts count every step");
    }

    #[test]
    fn lift_compares_with_the_plain_lens() {
        let params = Params { ratio: Ratio::Lift, t_temp: 1.0, ..Params::default() };
        let step = |lens, plain| StepScore { lens, plain, group: "planning", reward: None };
        let all = [
            step(Some(-1.0), Some(-1.1)),
            step(Some(-1.0), Some(-9.0)),
            step(Some(-9.0), Some(-1.0)),
            step(Some(-1.0), None),
            step(None, Some(-1.0)),
        ];
        let credit = credit(&all, 1.0, &params);
        let rho: Vec<_> = credit.steps.iter().map(|step| step.map(|it| it.rho)).collect();
        let lifted = (-1.0_f64 - -1.1).exp();
        assert_eq!(rho, [Ok(lifted), Ok(1.2), Ok(0.8), Err(NoCredit::NoPlainScore), Err(NoCredit::NoScore)]);
        assert!(!credit.dense_rewards_used, "no step has a reward of its own");
    }

    fn any_step() -> impl Strategy<Value = StepScore<'static>> {
        let number = || prop_oneof![3 => (-9.0..0.5).prop_map(Some), 1 => any::<Option<f64>>()];
        let group = prop_oneof![Just("planning"), Just("S1"), Just("")];
        (number(), number(), group, number()).prop_map(|(lens, plain, group, reward)| StepScore {
            lens,
            plain,
            group,
            reward,
        })
    }

    fn any_params() -> impl Strategy<Value = Params> {
        let number = || prop_oneof![3 => -1.0..6.0, 1 => any::<f64>()];
        let smoothing =
            prop_oneof![Just(Smoothing::Recursive), Just(Smoothing::Paper), Just(Smoothing::None)];
        let ratio = prop_oneof![Just(Ratio::Mean), Just(Ratio::Lift)];
        let numbers = (number(), number(), number(), number(), number());
        (numbers, smoothing, ratio, any::<bool>(), any::<bool>()).prop_map(
            |((t_temp, gamma, c_min, c_max, alpha), smoothing, ratio, within_subtasks, dense_rewards)| {
                Params {
                    t_temp,
                    gamma,
                    c_min,
                    c_max,
                    alpha,
                    smoothing,
                    within_subtasks,
                    dense_rewards,
                    ratio,
                }
            },
        )
    }

    proptest! {
        #[test]
        fn credit_never_panics_and_is_always_finite(
            steps in prop::collection::vec(any_step(), 0..12),
            reward in prop_oneof![3 => -1.0..1.0, 1 => any::<f64>()],
            params in any_params(),
        ) {
            let credit = credit(&steps, reward, &params);
            prop_assert_eq!(credit.steps.len(), steps.len());
            for step in credit.steps.iter().flatten() {
                for value in [step.pi_hind, step.rho, step.q_h, step.q_h_smoothed] {
                    prop_assert!(value.is_finite());
                }
            }
            prop_assert!(credit.pi_mean.is_none_or(|mean| !mean.is_nan()));
        }

        #[test]
        fn without_discount_an_absent_step_is_as_if_it_had_never_been(
            mut steps in prop::collection::vec(any_step(), 1..8), at in any::<prop::sample::Index>(),
        ) {
            let at = at.index(steps.len());
            steps[at].lens = None;
            let params = Params { gamma: 1.0, ..Params::default() };
            let mut with = credit(&steps, 0.5, &params);
            prop_assert_eq!(with.steps.remove(at), Err(NoCredit::NoScore));
            steps.remove(at);
            let without = credit(&steps, 0.5, &params);
            prop_assert_eq!((with.steps, with.pi_mean), (without.steps, without.pi_mean));
        }
    }
}
