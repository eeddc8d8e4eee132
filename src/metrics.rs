//! What is measured about episodes: one list of names, whatever file or table they go to.
//!
//! Owns [`Digest`], the little of an episode that metrics and tables need, and the metrics of training
//! and evaluation under their published names. Pure. An episode that failed has no numbers and is in
//! no mean; how many there are is told beside.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use backsight_core::episode::{Content, Episode, Outcome, Role, Stop, TokenSource, Version};

/// A correctness from here up passes.
pub const PASSES: f64 = 0.8;
/// How much of an answer is kept.
const RESPONSE_CHARS: usize = 500;
/// How much of a reason is counted with; what servers say behind that differs from time to time.
const LOSS_CHARS: usize = 200;

/// What metrics and tables need of an episode.
#[derive(Clone, Debug, PartialEq)]
pub struct Digest {
    /// Its id.
    pub id: String,
    /// Its task.
    pub task: String,
    /// What it was worth, or why that is not known.
    pub outcome: Result<Outcome, String>,
    /// Why it ended.
    pub stop: Option<&'static str>,
    /// How many steps it has.
    pub steps: usize,
    /// What the student said last.
    pub response: String,
    /// Whether its tokens are those that were sampled.
    pub is_exact: bool,
    /// The weights that sampled it, or between which it was sampled.
    pub versions: BTreeSet<String>,
}

impl Digest {
    /// Of an episode.
    pub fn of(episode: &Episode) -> Self {
        let said = episode.messages.iter().rev().find(|message| message.role == Role::Assistant);
        let response = said.and_then(|message| message.content.as_ref()).map(Content::text);
        Self {
            id: episode.id.clone(),
            task: episode.task.id.clone(),
            outcome: episode.outcome.clone(),
            stop: episode.stop.map(|stop| stop.name()),
            steps: episode.steps().len(),
            response: response.unwrap_or_default().chars().take(RESPONSE_CHARS).collect(),
            is_exact: episode.token_source == TokenSource::Exact,
            versions: episode.versions.iter().flat_map(|it| names(&it.version)).cloned().collect(),
        }
    }

    /// Whether the hidden tests passed.
    pub fn is_solved(&self) -> bool {
        self.correctness().is_some_and(|it| it >= PASSES)
    }

    /// What the hidden tests came to, where they ran.
    pub fn correctness(&self) -> Option<f64> {
        self.outcome.as_ref().ok()?.component("correctness")
    }

    /// One that is not run, because the tests of its task are known to judge nobody.
    pub fn of_unusable(id: String, task: String, why: &str) -> Self {
        let stop = Some(Stop::UnusableTests.name());
        let outcome = Err(why.to_owned());
        let (response, versions) = (String::new(), BTreeSet::new());
        Self { id, task, outcome, stop, steps: 0, response, is_exact: false, versions }
    }

    /// Why the tests of its task can judge nobody, if that is so.
    pub fn unusable_tests(&self) -> Option<&str> {
        let why = self.outcome.as_ref().err()?;
        (self.stop == Some(Stop::UnusableTests.name())).then_some(why)
    }

    /// Whether it has no outcome and another attempt in its place would have none either.
    pub fn is_final(&self) -> bool {
        let ends = [Stop::UnusableTests, Stop::Undecided].map(|stop| Some(stop.name()));
        self.outcome.is_err() && ends.contains(&self.stop)
    }

    /// Why it was lost, in words that episodes with the same fate share.
    pub fn loss(&self) -> Option<String> {
        if self.is_final() {
            return self.stop.map(str::to_owned);
        }
        let why = self.outcome.as_ref().err()?.lines().next().unwrap_or_default();
        let behind_turn = why.strip_prefix("turn ").and_then(|it| it.split_once(": ")).map(|it| it.1);
        Some(behind_turn.unwrap_or(why).chars().take(LOSS_CHARS).collect())
    }
}

fn names(version: &Version) -> Vec<&String> {
    match version {
        Version::Known(name) => vec![name],
        Version::Between(before, after) => vec![before, after],
        Version::Unknown => Vec::new(),
    }
}

/// The mean; none of nothing.
pub fn mean(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let (sum, n) = values.into_iter().fold((0.0, 0u32), |(sum, n), value| (sum + value, n + 1));
    (n > 0).then(|| sum / f64::from(n))
}

/// Means over outcomes, by their published names without the stage: of rewards, of components, of those that pass.
fn means(stage: &str, outcomes: &[&Outcome], names: &[&str]) -> Map<String, Value> {
    let component =
        |name: &str| -> Vec<f64> { outcomes.iter().filter_map(|it| it.component(name)).collect() };
    let of = |name: &&str| match name.strip_prefix("mean_") {
        None => mean(component("correctness").into_iter().map(|it| f64::from(u8::from(it >= PASSES)))),
        Some("reward") => mean(outcomes.iter().map(|it| it.reward)),
        Some(name) => mean(component(name)),
    };
    names.iter().map(|name| (format!("{stage}/{name}"), json!(of(name)))).collect()
}

/// The metrics of distillation by their published names, of the hints and the scored turns of each episode.
pub fn opd(episodes: &[(u64, u64)]) -> Map<String, Value> {
    let of = |number: fn(&(u64, u64)) -> u64| episodes.iter().map(move |it| number(it) as f64);
    let with_hints = episodes.iter().map(|it| f64::from(u8::from(it.0 > 0)));
    let metrics = json!({
        "opd/mean_hints_per_rollout": mean(of(|it| it.0)), "opd/mean_turns_scored": mean(of(|it| it.1)),
        "opd/hint_rate": mean(with_hints), "opd/total_hints": of(|it| it.0).sum::<f64>() as u64,
        "opd/total_scored_turns": of(|it| it.1).sum::<f64>() as u64,
    });
    metrics.as_object().cloned().unwrap_or_default()
}

/// The metrics of episodes that were collected for training, by their published names.
pub fn train<'a>(digests: impl IntoIterator<Item = &'a Digest>) -> Map<String, Value> {
    let made: Vec<&Outcome> = digests.into_iter().filter_map(|it| it.outcome.as_ref().ok()).collect();
    let names = ["mean_reward", "mean_correctness", "mean_efficiency", "mean_tool_usage", "pass_rate"];
    let mut map = means("train", &made, &names);
    map.insert("train/total_rollouts".to_owned(), json!(made.len()));
    map
}

/// The metrics of an evaluation by their published names. Where tasks were attempted more than once, the means are
/// over attempts, and their number and pass@k are told too.
///
/// `tasks` are the attempts at each task.
pub fn eval(tasks: &[Vec<&Digest>]) -> Map<String, Value> {
    let made: Vec<&Outcome> = tasks.iter().flatten().filter_map(|it| it.outcome.as_ref().ok()).collect();
    let mut map = means("eval", &made, &["mean_correctness", "mean_reward", "pass_rate"]);
    let is_made = |attempts: &&Vec<&Digest>| attempts.iter().any(|it| it.outcome.is_ok());
    map.insert("eval/n_items".to_owned(), json!(tasks.iter().filter(is_made).count()));
    let attempts = tasks.iter().map(Vec::len).max().unwrap_or(0);
    if attempts > 1 {
        map.insert("eval/n_attempts".to_owned(), json!(made.len()));
        map.extend(ks(attempts).map(|k| (format!("eval/pass@{k}"), json!(mean_pass_at(tasks, k)))));
    }
    map
}

/// 1, 2, 4, … and the number of attempts itself.
fn ks(attempts: usize) -> impl Iterator<Item = usize> {
    let powers = (0..).map(|it| 1usize << it).take_while(move |k| *k < attempts);
    powers.chain([attempts])
}

/// The mean of pass@k over the tasks with at least `k` attempts that were made.
fn mean_pass_at(tasks: &[Vec<&Digest>], k: usize) -> Option<f64> {
    mean(tasks.iter().filter_map(|attempts| {
        let made: Vec<bool> =
            attempts.iter().filter(|it| it.correctness().is_some()).map(|it| it.is_solved()).collect();
        pass_at(made.len(), made.iter().filter(|it| **it).count(), k)
    }))
}

/// The unbiased estimate of the chance that one of `k` attempts passes, given that `c` of `n` did: `1 - C(n-c, k) / C(n, k)`.
pub fn pass_at(n: usize, c: usize, k: usize) -> Option<f64> {
    if k == 0 || k > n || c > n {
        return None;
    }
    if n - c < k {
        return Some(1.0);
    }
    // The quotient of the two numbers of choices, factor by factor, so that neither overflows.
    let none_passes: f64 = (n - c + 1..=n).map(|it| 1.0 - k as f64 / it as f64).product();
    Some(1.0 - none_passes)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn digest(outcome: Result<f64, &str>) -> Digest {
        let numbers = |correctness: f64| Outcome {
            reward: correctness / 2.0,
            components: vec![("correctness".to_owned(), correctness)],
        };
        Digest {
            id: "t-0".into(),
            task: "t".into(),
            outcome: outcome.map(numbers).map_err(str::to_owned),
            stop: None,
            steps: 1,
            response: String::new(),
            is_exact: true,
            versions: BTreeSet::new(),
        }
    }

    #[test]
    fn the_estimate_is_the_share_of_choices_that_hold_a_pass() {
        assert_eq!(pass_at(4, 0, 2), Some(0.0));
        assert_eq!(pass_at(4, 4, 1), Some(1.0));
        assert_eq!(pass_at(4, 3, 2), Some(1.0));
        assert!((pass_at(4, 1, 2).unwrap() - 0.5).abs() < 1e-12);
        assert!((pass_at(5, 2, 2).unwrap() - 0.7).abs() < 1e-12);
        assert_eq!((pass_at(4, 1, 5), pass_at(4, 1, 0), pass_at(2, 3, 1)), (None, None, None));
        assert!(pass_at(10_000, 3, 5_000).unwrap() > 0.87);
    }

    #[test]
    fn what_was_lost_is_in_no_mean() {
        let all = [digest(Ok(1.0)), digest(Ok(0.2)), digest(Err("turn 3: server gone\nhelp: x"))];
        let metrics = train(&all);
        assert_eq!(metrics["train/mean_correctness"], json!(0.6));
        assert_eq!(metrics["train/mean_reward"], json!(0.3));
        assert_eq!(metrics["train/pass_rate"], json!(0.5));
        assert_eq!(metrics["train/total_rollouts"], json!(2));
        assert_eq!(metrics["train/mean_efficiency"], Value::Null);
        assert_eq!(all[2].loss().as_deref(), Some("server gone"));
        let metrics = eval(&[all.iter().collect()]);
        assert_eq!((&metrics["eval/n_items"], &metrics["eval/pass_rate"]), (&json!(1), &json!(0.5)));
        assert_eq!(metrics["eval/n_attempts"], json!(2));
        let none = [all[2].clone()];
        assert_eq!(eval(&[none.iter().collect()])["eval/n_items"], json!(0));
        assert_eq!((&metrics["eval/pass@1"], &metrics["eval/pass@2"]), (&json!(0.5), &json!(1.0)));
        assert_eq!(metrics["eval/pass@3"], Value::Null);
    }

    #[test]
    fn one_attempt_has_no_pass_at_k() {
        let one = digest(Ok(1.0));
        assert!(!eval(&[vec![&one]]).keys().any(|key| key.contains('@')));
        assert_eq!(eval(&[])["eval/mean_reward"], Value::Null);
        assert_eq!(ks(6).collect::<Vec<_>>(), [1, 2, 4, 6]);
    }

    proptest! {
        #[test]
        fn the_estimate_is_that_of_counting(n in 1usize..9, c in 0usize..9, k in 1usize..9) {
            prop_assume!(c <= n && k <= n);
            let subsets = (0u32..1 << n).filter(|set| set.count_ones() as usize == k);
            let (mut hits, mut all) = (0.0, 0.0);
            for set in subsets {
                all += 1.0;
                hits += f64::from(u8::from(set & ((1 << c) - 1) != 0));
            }
            prop_assert!((pass_at(n, c, k).unwrap() - hits / all).abs() < 1e-9);
        }
    }
}
