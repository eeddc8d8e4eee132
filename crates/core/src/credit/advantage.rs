//! From the credit of many episodes to the weights a trainer gives their steps.
//!
//! Owns the advantage of the published dataset builder: the episode's reward against its group
//! (Eq. 3) plus the step's normalised Q_H (Eq. 8), negative parts of good episodes dropped ("do no
//! harm"), what is left scaled to a mean of one. A step without credit is left out of every mean and
//! weighs nothing.

use std::collections::HashMap;

use super::sum::{mean, sum};
use crate::named;

/// Which episodes are compared with each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Normalise {
    /// All of them.
    Global,
    /// Those of the same task.
    Task,
}

named!(Normalise: Global = "global", Task = "task");

/// How advantages are made.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdvantageOptions {
    /// Weight of the step's part.
    pub omega: f64,
    /// Which episodes are compared.
    pub normalise: Normalise,
}

/// One episode's numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct EpisodeCredit<'a> {
    /// The task it is an attempt at.
    pub task: &'a str,
    /// Its reward.
    pub reward: f64,
    /// Its steps' Q_H, absent where a step has no credit.
    pub q: Vec<Option<f64>>,
}

/// What became of one episode.
#[derive(Clone, Debug, PartialEq)]
pub struct EpisodeAdvantage {
    /// Its reward against its group.
    pub reward_advantage: f64,
    /// Its steps' advantages, absent where a step has no credit.
    pub steps: Vec<Option<f64>>,
    /// What a trainer multiplies the steps' losses with.
    pub weights: Vec<f64>,
}

/// Advantages and weights of all episodes, in their order.
pub fn advantages(episodes: &[EpisodeCredit<'_>], options: &AdvantageOptions) -> Vec<EpisodeAdvantage> {
    let mut groups: HashMap<&str, Vec<&EpisodeCredit<'_>>> = HashMap::new();
    for episode in episodes {
        groups.entry(group(episode, options)).or_default().push(episode);
    }
    let scales: HashMap<_, _> =
        groups.into_iter().map(|(name, peers)| (name, group_scales(&peers))).collect();
    let raw = |episode| raw_advantage(episode, &scales[group(episode, options)], options);
    scaled_to_mean_one(episodes.iter().map(raw).collect())
}

fn group<'a>(episode: &EpisodeCredit<'a>, options: &AdvantageOptions) -> &'a str {
    match options.normalise {
        Normalise::Global => "",
        Normalise::Task => episode.task,
    }
}

/// A mean and a spread to measure with.
#[derive(Clone, Copy)]
struct Scale {
    mean: f64,
    deviation: f64,
}

impl Scale {
    /// Population deviation; values that are all equal are measured in ones.
    fn of(values: &[f64]) -> Self {
        // Their mean as it is computed may be another number than each of them, and that far from it they all would be.
        if let [first, rest @ ..] = values
            && rest.iter().all(|it| it == first)
        {
            return Self { mean: *first, deviation: 1.0 };
        }
        let mean = mean(values).unwrap_or(0.0);
        let squares = values.iter().map(|value| (value - mean) * (value - mean));
        let variance = if values.is_empty() { 0.0 } else { sum(squares) / values.len() as f64 };
        Self { mean, deviation: if variance == 0.0 { 1.0 } else { variance.sqrt() } }
    }

    fn measure(self, value: f64) -> f64 {
        (value - self.mean) / self.deviation
    }
}

/// The scales of rewards and of Q_H in a group.
fn group_scales(group: &[&EpisodeCredit<'_>]) -> (Scale, Scale) {
    let rewards: Vec<f64> = group.iter().map(|episode| episode.reward).collect();
    let q: Vec<f64> = group.iter().flat_map(|episode| episode.q.iter().copied().flatten()).collect();
    (Scale::of(&rewards), Scale::of(&q))
}

fn raw_advantage(
    episode: &EpisodeCredit<'_>,
    (rewards, credits): &(Scale, Scale),
    options: &AdvantageOptions,
) -> EpisodeAdvantage {
    let reward_advantage = rewards.measure(episode.reward); // Eq. 3
    let step = |q: &Option<f64>| {
        let own = credits.measure((*q)?);
        // Do no harm: a good episode's step is never worth less than the episode.
        let own = if reward_advantage > 0.0 && own < 0.0 { 0.0 } else { own };
        Some(reward_advantage + options.omega * own).filter(|it| it.is_finite()) // Eq. 8
    };
    EpisodeAdvantage { reward_advantage, steps: episode.q.iter().map(step).collect(), weights: Vec::new() }
}

/// Gives weights: the positive advantages divided by their mean, zero for the others.
fn scaled_to_mean_one(mut episodes: Vec<EpisodeAdvantage>) -> Vec<EpisodeAdvantage> {
    let steps = episodes.iter().flat_map(|episode| episode.steps.iter().copied().flatten());
    let positive: Vec<f64> = steps.filter(|advantage| *advantage > 0.0).collect();
    let unit = mean(&positive).unwrap_or(1.0);
    for episode in &mut episodes {
        let weigh = |it: &Option<f64>| it.filter(|advantage| *advantage > 0.0).map_or(0.0, |it| it / unit);
        episode.weights = episode.steps.iter().map(weigh).collect();
    }
    episodes
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const GLOBAL: AdvantageOptions = AdvantageOptions { omega: 1.0, normalise: Normalise::Global };

    fn episode(task: &'static str, reward: f64, q: &[Option<f64>]) -> EpisodeCredit<'static> {
        EpisodeCredit { task, reward, q: q.to_vec() }
    }

    #[test]
    fn tasks_are_compared_within_themselves_when_asked() {
        let episodes = [
            episode("easy", 0.9, &[Some(0.9)]),
            episode("easy", 0.7, &[Some(0.7)]),
            episode("hard", 0.1, &[Some(0.1)]),
            episode("hard", 0.3, &[Some(0.3)]),
        ];
        let signs = |normalise| {
            let all = advantages(&episodes, &AdvantageOptions { normalise, ..GLOBAL });
            all.iter().map(|it| it.reward_advantage > 0.0).collect::<Vec<_>>()
        };
        assert_eq!(signs(Normalise::Global), [true, true, false, false]);
        assert_eq!(signs(Normalise::Task), [true, false, false, true]);
    }

    /// The mean of three times 0.003 is not 0.003, nor is its distance from it nothing.
    #[test]
    fn equal_rewards_are_worth_nothing_to_each_other() {
        for reward in [0.003, 0.007, 0.85] {
            let all = advantages(&vec![episode("t", reward, &[Some(reward)]); 3], &GLOBAL);
            assert!(all.iter().all(|it| it.reward_advantage == 0.0 && it.steps == [Some(0.0)]), "{reward}");
        }
    }

    #[test]
    fn a_step_without_credit_weighs_nothing_and_moves_no_mean() {
        let with =
            advantages(&[episode("t", 1.0, &[Some(0.4), None]), episode("t", 0.0, &[Some(0.1)])], &GLOBAL);
        let without =
            advantages(&[episode("t", 1.0, &[Some(0.4)]), episode("t", 0.0, &[Some(0.1)])], &GLOBAL);
        assert_eq!((with[0].steps[1], with[0].weights[1]), (None, 0.0));
        assert_eq!(with[0].weights[0], without[0].weights[0]);
        assert_eq!(with[1], without[1]);
    }

    proptest! {
        #[test]
        fn weights_are_finite_not_negative_and_mean_one(
            all in prop::collection::vec((-1.0..1.0, prop::collection::vec(prop::option::of(-1.0..1.0), 0..5)), 0..6),
        ) {
            let episodes: Vec<_> = all.iter().map(|(reward, q)| episode("t", *reward, q)).collect();
            let weighed = advantages(&episodes, &GLOBAL);
            let positive: Vec<f64> = weighed.iter().flat_map(|it| it.weights.clone()).filter(|it| *it > 0.0).collect();
            prop_assert!(weighed.iter().flat_map(|it| &it.weights).all(|it| it.is_finite() && *it >= 0.0));
            if let Some(mean) = mean(&positive) {
                prop_assert!((mean - 1.0).abs() < 1e-9);
            }
        }
    }
}
