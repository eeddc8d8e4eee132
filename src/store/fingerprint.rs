//! Which model answers: who it says it is, and what it says about a fixed text.
//!
//! Owns [`Fingerprint`] and the rule by which two of them are the same model. A name and an address
//! prove little, because weights are replaced behind both; the logprobs of a probe text tell. Where
//! it is remembered is the ledger's business.

use serde::{Deserialize, Serialize};

use crate::model::{Error, Model};
use backsight_core::score::ScoreJob;
use backsight_core::tokens::{Logprob, TokenId, TokenSpan};

/// Logprobs of the probe that differ by more than this on average belong to another model.
pub const LARGEST_MEAN_DIFFERENCE: f64 = 0.05;

/// Who a server says it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// The kind of server: `vllm`, `sglang`, …
    pub kind: String,
    /// Its version, where told.
    pub version: Option<String>,
    /// The model's name.
    pub model: String,
    /// The version of the weights, where told.
    pub weights: Option<String>,
}

/// An identity with evidence.
#[derive(Clone, Debug, PartialEq)]
pub struct Fingerprint {
    /// Who the server says it is.
    pub identity: Identity,
    /// The probe text, as ids; empty for a model that cannot score.
    pub probe: Vec<TokenId>,
    /// The logprobs of the probe's tokens.
    pub logprobs: Vec<Option<Logprob>>,
}

impl Fingerprint {
    /// Scores `probe` with `model`. A model that cannot score is known by its identity alone.
    pub async fn measure(model: &dyn Model, identity: Identity, probe: &[TokenId]) -> Result<Self, Error> {
        if !model.limits().scores || probe.is_empty() {
            return Ok(Self { identity, probe: Vec::new(), logprobs: Vec::new() });
        }
        let span = TokenSpan::at(0, probe.len());
        let job = ScoreJob::new(probe.into(), vec![span], 0).map_err(|why| Error::Invalid {
            what: format!("the probe text cannot be scored: {why}"),
            help: "give a probe text of at least two tokens".to_owned(),
        })?;
        let scored = model.score(&job).await?;
        let logprobs = scored.spans.iter().flat_map(|span| span.logprobs()).collect();
        Ok(Self { identity, probe: probe.to_vec(), logprobs })
    }

    /// The mean difference of the probe's logprobs; `None` when the two cannot be compared, because
    /// the identities or probes differ or a value is there only in one of them.
    pub fn mean_difference(&self, other: &Self) -> Option<f64> {
        let comparable = self.identity == other.identity && self.probe == other.probe;
        if !comparable || self.logprobs.len() != other.logprobs.len() {
            return None;
        }
        let (mut sum, mut n_compared) = (0.0, 0usize);
        for pair in self.logprobs.iter().zip(&other.logprobs) {
            match pair {
                (Some(a), Some(b)) => (sum, n_compared) = (sum + (a.get() - b.get()).abs(), n_compared + 1),
                (None, None) => {}
                _ => return None,
            }
        }
        Some(if n_compared == 0 { 0.0 } else { sum / n_compared as f64 })
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;

    fn fingerprint(logprobs: &[Option<f64>]) -> Fingerprint {
        let logprobs: Vec<_> = logprobs.iter().map(|it| it.map(|it| Logprob::new(it).unwrap())).collect();
        let identity = Identity { kind: "vllm".into(), model: "m".into(), ..Identity::default() };
        Fingerprint { identity, probe: (0..logprobs.len() as u32).collect(), logprobs }
    }

    fn check(a: &[Option<f64>], b: &[Option<f64>], difference: Option<f64>) {
        let (a, b) = (fingerprint(a), fingerprint(b));
        assert_eq!(a.mean_difference(&b), difference);
        assert_eq!(b.mean_difference(&a), difference);
    }

    #[test]
    fn probes_differ_by_the_mean_over_what_both_have() {
        let base = [None, Some(-1.0), Some(-2.0)];
        check(&base, &base, Some(0.0));
        check(&base, &[None, Some(-1.0), Some(-2.0625)], Some(0.03125));
        check(&base, &[None, Some(-1.0625), Some(-2.0625)], Some(0.0625));
        check(&base, &[None, Some(-1.5), Some(-1.5)], Some(0.5));
    }

    #[test]
    fn a_value_that_only_one_has_cannot_be_compared() {
        let base = [None, Some(-1.0), Some(-2.0)];
        check(&base, &[None, Some(-1.0), None], None);
        check(&base, &[None, Some(-1.0)], None);
        check(&base, &[], None);
    }

    #[test]
    fn without_a_probe_the_identity_decides() {
        check(&[], &[], Some(0.0));
        let mut other = fingerprint(&[]);
        other.identity.weights = Some("step-200".into());
        assert_eq!(other.mean_difference(&fingerprint(&[])), None);
    }
}
