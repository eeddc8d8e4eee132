//! How much a server differs from itself, and so the smallest change that can be seen on it.
//!
//! Owns the rule. Batches, caches and scheduling move logprobs a little from one request to the next; a difference
//! counts as a change only beyond a stated multiple of the largest such movement that was seen.

use futures_util::future::join_all;

use super::Error;
use backsight_core::tokens::Logprob;

/// Differences up to so many times the largest noise that was seen are noise.
pub const NOISE_MULTIPLE: f64 = 5.0;
/// What logprobs in single precision can tell apart, on average over a text.
const FINEST: f64 = 2e-6;
/// How often something is measured one at a time, and then so many at once, to see how much it differs.
const ALONE: usize = 2;
const TOGETHER: usize = 4;

/// The mean difference of logprobs up to which weights count as the same, on a server with so much noise.
pub fn tolerance(noise: f64) -> f64 {
    (NOISE_MULTIPLE * noise).max(FINEST)
}

/// The mean difference of logprobs of the same tokens; `None` when there is nothing to compare.
pub fn mean_difference(a: &[Option<Logprob>], b: &[Option<Logprob>]) -> Option<f64> {
    let both = a.iter().zip(b).filter_map(|(a, b)| Some((a.as_ref()?.get() - b.as_ref()?.get()).abs()));
    let differences: Vec<f64> = both.collect();
    (!differences.is_empty()).then(|| differences.iter().sum::<f64>() / differences.len() as f64)
}

/// What measuring something several times gave.
#[derive(Clone, Debug, PartialEq)]
pub struct Noisy<T> {
    /// A measurement.
    pub first: T,
    /// The largest difference to it.
    pub noise: f64,
    /// How many measurements it took.
    pub n_measured: u64,
}

/// Measures several times, alone and in company. What changes in the middle of that looks like noise, and as such would
/// hide every smaller change for ever: noise is believed only if it comes again.
pub async fn noise_of<T, F: Future<Output = Result<T, Error>>>(
    measure: impl Fn() -> F,
    difference: impl Fn(&T, &T) -> Option<f64>,
) -> Result<Noisy<T>, Error> {
    let once = measure_round(&measure, &difference).await?;
    if tolerance(once.noise) <= FINEST {
        return Ok(once);
    }
    let again = measure_round(&measure, &difference).await?;
    let n_measured = once.n_measured + again.n_measured;
    let (less, more) = if again.noise < once.noise { (again, once) } else { (once, again) };
    let comes_again = more.noise <= tolerance(less.noise);
    let noise = if comes_again { more.noise } else { less.noise };
    Ok(Noisy { first: less.first, noise, n_measured })
}

async fn measure_round<T, F: Future<Output = Result<T, Error>>>(
    measure: impl Fn() -> F,
    difference: impl Fn(&T, &T) -> Option<f64>,
) -> Result<Noisy<T>, Error> {
    let first = measure().await?;
    let mut noise: f64 = 0.0;
    for _ in 1..ALONE {
        noise = noise.max(difference(&first, &measure().await?).unwrap_or(0.0));
    }
    for other in join_all((0..TOGETHER).map(|_| measure())).await {
        noise = noise.max(difference(&first, &other?).unwrap_or(0.0));
    }
    Ok(Noisy { first, noise, n_measured: (ALONE + TOGETHER) as u64 })
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// Measures these values one after the other, the last of them for ever.
    async fn check(values: &[f64], expected: (f64, f64, u64)) {
        let n = AtomicUsize::new(0);
        let measure = || async {
            let at = n.fetch_add(1, Ordering::Relaxed).min(values.len() - 1);
            Ok(values[at])
        };
        let found = noise_of(measure, |a: &f64, b: &f64| Some((a - b).abs())).await.unwrap();
        assert_eq!((found.first, found.noise, found.n_measured), expected, "{values:?}");
    }

    #[tokio::test]
    async fn noise_comes_again_and_a_change_does_not() {
        check(&[1.0], (1.0, 0.0, 6)).await;
        check(&[1.0, 1.25, 1.0, 1.0, 1.5, 1.0, 1.0, 1.25, 1.0], (1.0, 0.5, 12)).await;
        for n_old in 1..6 {
            check(&[vec![1.0; n_old], vec![3.0]].concat(), (3.0, 0.0, 12)).await;
        }
        // A change in the second round: the first one was quieter.
        check(&[1.0, 1.0, 1.25, 1.0, 1.0, 1.0, 1.0, 9.0], (1.0, 0.25, 12)).await;
    }
}
