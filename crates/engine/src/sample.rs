//! Drawing a token from logits.
//!
//! Owns temperature, top-k, top-p and the repeatable dice. The logits given may already be masked with
//! negative infinity. Deliberately absent: the reported logprobs, which are those of the model itself.

use std::hash::{BuildHasher, RandomState};

use super::head::best;
use backsight_core::mix::{after, mix, share};
use backsight_core::model::{Place, Sampling};
use backsight_core::tokens::TokenId;

/// Dice that fall the same way for the same seed and the same place.
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    /// Without a seed, every call rolls differently.
    pub fn new(seed: Option<u64>, place: &Place) -> Self {
        let seed = seed.unwrap_or_else(|| RandomState::new().hash_one(()));
        let numbers = [place.episode, place.step, place.vote].map(|it| it as u64);
        let task = place.task.bytes().map(u64::from);
        // Every number is mixed in before the next, so places that differ anywhere give unrelated rolls.
        Self(task.chain(numbers).fold(mix(after(seed)), |state, number| mix(after(state ^ number))))
    }

    /// A number in `[0, 1)`.
    fn roll(&mut self) -> f64 {
        self.0 = after(self.0);
        share(mix(after(self.0)))
    }
}

/// Draws a token; `None` when no token is possible.
pub fn draw(logits: &[f32], sampling: &Sampling, dice: &mut Dice) -> Option<TokenId> {
    let possible = logits.iter().zip(0..).filter(|(logit, _)| logit.is_finite());
    let candidates: Vec<(f32, TokenId)> = possible.map(|(&logit, id)| (logit, id)).collect();
    if sampling.temperature == 0.0 {
        return best(candidates, 1).first().map(|it| it.1);
    }
    let candidates = match sampling.top_k {
        Some(k) => best(candidates, k.max(1)),
        None => candidates,
    };
    let weighted = nucleus(weights(&candidates, sampling.temperature), sampling.top_p);
    pick(&weighted, dice.roll())
}

/// Probabilities at a temperature, up to a common factor.
fn weights(candidates: &[(f32, TokenId)], temperature: f64) -> Vec<(f64, TokenId)> {
    let largest = candidates.iter().map(|it| it.0).fold(f32::NEG_INFINITY, f32::max);
    let weight = |logit: f32| ((f64::from(logit) - f64::from(largest)) / temperature).exp();
    candidates.iter().map(|&(logit, id)| (weight(logit), id)).collect()
}

/// The smallest set of likeliest candidates that has `top_p` of the probability.
fn nucleus(mut candidates: Vec<(f64, TokenId)>, top_p: f64) -> Vec<(f64, TokenId)> {
    if top_p >= 1.0 {
        return candidates;
    }
    let total: f64 = candidates.iter().map(|it| it.0).sum();
    // All that lie below this together have less than the probability to be cut off, so only the others need sorting.
    let least = total * (1.0 - top_p) / candidates.len() as f64;
    candidates.retain(|it| it.0 >= least);
    candidates.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    let mut before = 0.0;
    let kept = candidates.iter().take_while(|it| {
        let keep = before < top_p * total;
        before += it.0;
        keep
    });
    let n = kept.count().max(1);
    candidates.truncate(n);
    candidates
}

/// The candidate on which `roll` falls.
fn pick(candidates: &[(f64, TokenId)], roll: f64) -> Option<TokenId> {
    let mut left = roll * candidates.iter().map(|it| it.0).sum::<f64>();
    let found = candidates.iter().find(|it| {
        left -= it.0;
        left < 0.0
    });
    // Rounding may leave a trace behind the last one.
    found.or(candidates.iter().rfind(|it| it.0 > 0.0)).map(|it| it.1)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn sampling(temperature: f64, top_p: f64, top_k: Option<usize>) -> Sampling {
        Sampling { temperature, top_p, top_k, seed: None, max_tokens: 1, constraint: None }
    }

    fn dice(seed: u64) -> Dice {
        Dice::new(Some(seed), &Place::default())
    }

    /// How often each token is drawn in 20,000 draws.
    fn shares(logits: &[f32], sampling: &Sampling) -> BTreeMap<TokenId, f64> {
        let (mut dice, mut shares) = (dice(1), BTreeMap::new());
        for _ in 0..20_000 {
            *shares.entry(draw(logits, sampling, &mut dice).unwrap()).or_insert(0.0) += 1.0 / 20_000.0;
        }
        shares
    }

    fn check(logits: &[f32], sampling: &Sampling, expected: &[(TokenId, f64)]) {
        let shares = shares(logits, sampling);
        assert_eq!(
            shares.keys().copied().collect::<Vec<_>>(),
            expected.iter().map(|it| it.0).collect::<Vec<_>>()
        );
        for &(id, share) in expected {
            assert!((shares[&id] - share).abs() < 0.015, "token {id}: {} instead of {share}", shares[&id]);
        }
    }

    const MASKED: f32 = f32::NEG_INFINITY;

    #[test]
    fn draws_follow_the_distribution_that_was_asked_for() {
        let logits = [0.5f32.ln(), 0.3f32.ln(), MASKED, 0.15f32.ln(), 0.05f32.ln()];
        check(&logits, &sampling(1.0, 1.0, None), &[(0, 0.5), (1, 0.3), (3, 0.15), (4, 0.05)]);
        check(&logits, &sampling(1.0, 1.0, Some(2)), &[(0, 0.625), (1, 0.375)]);
        check(&logits, &sampling(1.0, 0.79, None), &[(0, 0.625), (1, 0.375)]);
        check(&logits, &sampling(1.0, 0.81, None), &[(0, 0.526), (1, 0.316), (3, 0.158)]);
        check(&logits, &sampling(1.0, 0.0, None), &[(0, 1.0)]);
        let half: f64 = [0.5, 0.3, 0.15, 0.05].iter().map(|p: &f64| p.sqrt()).sum();
        let share = |p: f64| p.sqrt() / half;
        check(
            &logits,
            &sampling(2.0, 1.0, None),
            &[(0, share(0.5)), (1, share(0.3)), (3, share(0.15)), (4, share(0.05))],
        );
        check(&logits, &sampling(0.0, 1.0, None), &[(0, 1.0)]);
    }

    #[test]
    fn among_equals_the_lowest_id_is_taken_and_nothing_comes_of_nothing() {
        assert_eq!(draw(&[1.0, 2.0, 2.0], &sampling(0.0, 1.0, None), &mut dice(1)), Some(1));
        assert_eq!(draw(&[MASKED, f32::NAN], &sampling(1.0, 1.0, None), &mut dice(1)), None);
        assert_eq!(draw(&[MASKED], &sampling(0.0, 1.0, None), &mut dice(1)), None);
    }

    #[test]
    fn dice_repeat_with_the_seed_and_differ_with_the_place() {
        let rolls = |seed: Option<u64>, place: &Place| {
            let mut dice = Dice::new(seed, place);
            [dice.roll(), dice.roll()]
        };
        let place = Place { vote: 1, ..Place::default() };
        assert_eq!(rolls(Some(7), &place), rolls(Some(7), &place));
        assert_ne!(rolls(Some(7), &place), rolls(Some(7), &Place::default()));
        assert_ne!(rolls(Some(7), &place), rolls(Some(8), &place));
        assert_ne!(rolls(None, &place), rolls(None, &place));
    }

    proptest! {
        #[test]
        fn only_possible_tokens_are_drawn(
            logits in proptest::collection::vec(prop_oneof![Just(MASKED), -20f32..20.0], 1..40),
            temperature in 0.0f64..3.0, top_p in 0.0f64..=1.0, top_k in proptest::option::of(1usize..10), seed in any::<u64>(),
        ) {
            let drawn = draw(&logits, &sampling(temperature, top_p, top_k), &mut dice(seed));
            match drawn {
                Some(id) => prop_assert!(logits[id as usize].is_finite()),
                None => prop_assert!(logits.iter().all(|it| !it.is_finite())),
            }
        }
    }
}
