//! Whether the logprobs a server reports for sampled tokens are the model's own.
//!
//! Some servers report them after the temperature was applied (SGLang unless told otherwise, vLLM
//! with `--logprobs-mode processed_logprobs`), and every server reports them after a constraint
//! masked the vocabulary. Such numbers are no student logprobs, so they are left out. Owns the test:
//! halving the temperature doubles the distance between two candidates only where it was applied.
//! Deliberately absent: sending the two requests, which the clients do.

use super::{GenerateRequest, Place, Sampling};
use backsight_core::tokens::{TokenId, TopK};

/// What the reported logprobs are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reported {
    /// Those of the model at temperature 1, whatever was sampled with.
    Own,
    /// Those of the distribution that was sampled from, or something that cannot be told.
    Other,
}

/// How many candidates the test needs.
pub const PROBE_TOP_K: usize = 2;
/// The two temperatures that are compared.
pub const PROBE_TEMPERATURES: [f64; 2] = [0.5, 1.0];
/// Differences between two runs of one server stay far below this.
const NOISE: f64 = 1e-2;

/// Whether at this temperature a server that applies it reports the model's own values all the same.
pub fn is_neutral(temperature: f64) -> bool {
    temperature == 0.0 || temperature == 1.0
}

/// The notice that a constraint leaves no logprobs.
pub fn constrained(server: &str) -> String {
    format!("{server} reports logprobs under the constraint rather than the model's own; they are left out")
}

/// The notice that the temperature leaves no logprobs.
pub fn scaled(server: &str, help: &str) -> String {
    format!(
        "{server} reports logprobs after the temperature rather than the model's own; they are left out; \
         {help}, or sample at temperature 1"
    )
}

/// A request for one token after `id`, with the two likeliest candidates.
pub fn probe_request(id: TokenId, temperature: f64) -> GenerateRequest {
    let sampling =
        Sampling { temperature, top_p: 1.0, top_k: None, seed: Some(0), max_tokens: 1, constraint: None };
    GenerateRequest {
        prompt: vec![id],
        sampling,
        stop_ids: Vec::new(),
        top_k: PROBE_TOP_K,
        place: Place::default(),
    }
}

/// Compares the candidates at the two probe temperatures.
pub fn judge(half: &TopK, one: &TopK) -> Reported {
    match (gap(half), gap(one)) {
        (Some(half), Some(one)) if one > 2.0 * NOISE && (half - one).abs() < NOISE + one / 4.0 => {
            Reported::Own
        }
        _ => Reported::Other,
    }
}

/// How far the second candidate lies behind the first.
fn gap(row: &TopK) -> Option<f64> {
    match row.entries() {
        [first, second, ..] => Some(first.1.get() - second.1.get()),
        _ => None,
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;
    use backsight_core::tokens::Logprob;

    fn check(half: &[f64], one: &[f64], expected: Reported) {
        let row = |values: &[f64]| {
            TopK::new((0..).zip(values).map(|(id, &it)| (id, Logprob::new(it).unwrap())).collect())
        };
        assert_eq!(judge(&row(half), &row(one)), expected);
    }

    #[test]
    fn applied_temperatures_are_told_from_others() {
        check(&[-1.9, -2.7], &[-1.9, -2.7], Reported::Own);
        check(&[-1.2, -2.8], &[-1.9, -2.7], Reported::Other);
        check(&[-1.900_01, -2.700_02], &[-1.9, -2.7], Reported::Own);
        check(&[-1.9, -1.9], &[-1.9, -1.9], Reported::Other);
        check(&[-1.9], &[-1.9], Reported::Other);
        check(&[], &[], Reported::Other);
    }
}
