//! How much a server differs from itself, and so the smallest change that can be seen on it.
//!
//! Owns the rule. Batches, caches and scheduling move logprobs a little from one request to the next; a difference
//! counts as a change only beyond a stated multiple of the largest such movement that was seen.

use futures_util::future::join_all;

use super::Error;

/// Differences up to so many times the largest noise that was seen are noise.
pub const NOISE_MULTIPLE: f64 = 5.0;
/// What logprobs in single precision can tell apart, on average over a text.
const FINEST: f64 = 2e-6;
/// How often something is measured one at a time, and then so many at once, to see how much it differs.
const ALONE: usize = 2;
const TOGETHER: usize = 4;
/// So many measurements are made in all.
pub const N_MEASURED: u64 = (ALONE + TOGETHER) as u64;

/// The mean difference of logprobs up to which weights count as the same, on a server with so much noise.
pub fn tolerance(noise: f64) -> f64 {
    (NOISE_MULTIPLE * noise).max(FINEST)
}

/// Measures several times, alone and in company: the first measurement, and the largest difference to it.
pub async fn noise_of<T, F: Future<Output = Result<T, Error>>>(
    measure: impl Fn() -> F,
    difference: impl Fn(&T, &T) -> Option<f64>,
) -> Result<(T, f64), Error> {
    let first = measure().await?;
    let mut noise: f64 = 0.0;
    for _ in 1..ALONE {
        noise = noise.max(difference(&first, &measure().await?).unwrap_or(0.0));
    }
    for other in join_all((0..TOGETHER).map(|_| measure())).await {
        noise = noise.max(difference(&first, &other?).unwrap_or(0.0));
    }
    Ok((first, noise))
}
