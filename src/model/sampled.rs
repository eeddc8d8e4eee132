//! Whether the logprobs a server reports for sampled tokens are the model's own.
//!
//! Some servers report them after the temperature was applied (SGLang unless told otherwise, vLLM
//! with `--logprobs-mode processed_logprobs`), and every server reports them after a constraint
//! masked the vocabulary. Such numbers are no student logprobs, so they are left out. Owns the test:
//! halving the temperature doubles the distance between two candidates only where it was applied.
//! Deliberately absent: sending the two requests, which the clients do.

use tokio::sync::OnceCell;

use super::kind::Remote;
use super::{Error, GenerateRequest, Generated, Place, Sampling, check_prompt};
use backsight_core::tokens::{TokenId, TopK};

/// Differences between two runs of one server stay far below this.
const NOISE: f64 = 1e-2;

/// Whether a server reports the model's own logprobs, whatever it samples with; known once it was asked.
#[derive(Default)]
pub struct Sampled(OnceCell<bool>);

impl Sampled {
    /// What `draw` draws for `request`, whose logprobs are left out unless they are the model's own. `help` says how to
    /// start a server so that they are.
    pub async fn draw<F: Future<Output = Result<Generated, Error>>>(
        &self,
        request: &GenerateRequest,
        remote: &Remote,
        help: &str,
        draw: impl Fn(GenerateRequest) -> F,
    ) -> Result<Generated, Error> {
        check_prompt(&request.prompt)?;
        remote.check(&request.prompt)?;
        let server = remote.transport.server();
        let is_own = if request.sampling.constraint.is_some() {
            remote.notices.add(format!(
                "{server} reports logprobs under the constraint rather than the model's own; they are left out"
            ));
            false
        } else if [0.0, 1.0].contains(&request.sampling.temperature) {
            // At these a server that applies the temperature reports the model's own values all the same.
            true
        } else {
            let id = request.prompt.first().copied().unwrap_or_default();
            let first_row = async |temperature| {
                let drawn = draw(probe_request(id, temperature)).await?;
                Ok(drawn.tokens.into_iter().next().map(|token| token.top).unwrap_or_default())
            };
            let compare = || async { Ok(are_same(&first_row(0.5).await?, &first_row(1.0).await?)) };
            let is_own = *self.0.get_or_try_init(compare).await?;
            if !is_own {
                remote.notices.add(format!(
                    "{server} reports logprobs after the temperature rather than the model's own; they are left out; \
                     {help}, or sample at temperature 1"
                ));
            }
            is_own
        };
        let mut drawn = draw(request.clone()).await?;
        for token in drawn.tokens.iter_mut().filter(|_| !is_own) {
            (token.logprob, token.top) = (None, TopK::default());
        }
        Ok(drawn)
    }
}

/// A request for one token after `id`, with the two likeliest candidates.
fn probe_request(id: TokenId, temperature: f64) -> GenerateRequest {
    let sampling = Sampling { temperature, ..Sampling::greedy(1) };
    GenerateRequest { prompt: vec![id], sampling, stop_ids: Vec::new(), top_k: 2, place: Place::default() }
}

/// Whether the candidates at temperatures 0.5 and 1 are those of one distribution; not where that cannot be told.
fn are_same(half: &TopK, one: &TopK) -> bool {
    let near = |half: f64, one: f64| one > 2.0 * NOISE && (half - one).abs() < NOISE + one / 4.0;
    gap(half).zip(gap(one)).is_some_and(|(half, one)| near(half, one))
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

    fn check(half: &[f64], one: &[f64], expected: bool) {
        let row = |values: &[f64]| {
            TopK::new((0..).zip(values).map(|(id, &it)| (id, Logprob::new(it).unwrap())).collect())
        };
        assert_eq!(are_same(&row(half), &row(one)), expected);
    }

    #[test]
    fn applied_temperatures_are_told_from_others() {
        check(&[-1.9, -2.7], &[-1.9, -2.7], true);
        check(&[-1.2, -2.8], &[-1.9, -2.7], false);
        check(&[-1.900_01, -2.700_02], &[-1.9, -2.7], true);
        check(&[-1.9, -1.9], &[-1.9, -1.9], false);
        check(&[-1.9], &[-1.9], false);
        check(&[], &[], false);
    }
}
