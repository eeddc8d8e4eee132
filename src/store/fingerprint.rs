//! Which weights answer: who the server says it is, and what it says about a fixed text.
//!
//! Owns [`Fingerprint`] and the rule by which two of them are of the same weights. A name and an address prove
//! little, because weights are replaced behind both; the logprobs of a probe text tell, as far as a server repeats
//! itself: what differs by more than the [`tolerance`] for the noise it has shown is a change. When to measure is the
//! business of `versions`, where it is remembered that of the ledger.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::model::noise::{mean_difference, tolerance};
use crate::model::{Error, Model};
use backsight_core::hash::hex;
use backsight_core::score::ScoreJob;
use backsight_core::tokens::{Logprob, TokenId, TokenSpan};

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
    /// Scores `probe` with `model`. A model that cannot score is known by its identity alone. A version of the weights
    /// that comes with the scores is the one they have.
    pub async fn measure(model: &dyn Model, identity: Identity, probe: &[TokenId]) -> Result<Self, Error> {
        if !model.limits().scores || probe.is_empty() {
            return Ok(Self { identity, probe: Vec::new(), logprobs: Vec::new() });
        }
        let span = TokenSpan::at(0, probe.len());
        let job = ScoreJob::new(probe.into(), vec![span], 0).map_err(|why| {
            let what = format!("the probe text cannot be scored: {why}");
            Error::invalid(what, "give a probe text of at least two tokens")
        })?;
        let scored = model.score(&job).await?;
        let logprobs = scored.spans.iter().flat_map(|span| span.logprobs()).collect();
        let weights = scored.version.or(identity.weights);
        Ok(Self { identity: Identity { weights, ..identity }, probe: probe.to_vec(), logprobs })
    }

    /// The mean difference of the probe's logprobs; `None` when the two cannot be compared, because
    /// the identities or probes differ or a value is there only in one of them.
    pub fn mean_difference(&self, other: &Self) -> Option<f64> {
        let places = |it: &'_ Self| it.logprobs.iter().map(Option::is_some).collect::<Vec<_>>();
        let comparable = self.identity == other.identity && self.probe == other.probe;
        let comparable = comparable && places(self) == places(other);
        comparable.then(|| mean_difference(&self.logprobs, &other.logprobs).unwrap_or(0.0))
    }

    /// Whether the two are of the same weights, on a server with so much noise.
    pub fn agrees(&self, other: &Self, noise: f64) -> bool {
        self.mean_difference(other).is_some_and(|by| by <= tolerance(noise))
    }

    /// The name of these weights: eight hexadecimal digits that follow from what was measured. None without evidence.
    pub fn version(&self) -> Option<String> {
        if self.probe.is_empty() {
            return None;
        }
        let mut hash = Sha256::new();
        let Identity { kind, version, model, weights } = &self.identity;
        for part in [Some(kind), version.as_ref(), Some(model), weights.as_ref()] {
            hash.update([u8::from(part.is_some())]);
            hash.update(part.map_or(&[][..], |part| part.as_bytes()));
        }
        self.probe.iter().for_each(|id| hash.update(id.to_le_bytes()));
        self.logprobs.iter().flatten().for_each(|it| hash.update(it.get().to_bits().to_le_bytes()));
        Some(hex(&hash.finalize()[..4]))
    }
}

/// How two measurements differ, for people.
pub fn differs(by: Option<f64>) -> String {
    match by {
        Some(by) if by < 0.01 => format!("the logprobs of a probe text differ by {by:.1e} on average"),
        Some(by) => format!("the logprobs of a probe text differ by {by:.2} on average"),
        None => "it gives other positions of a probe text a logprob".to_owned(),
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;

    fn fingerprint(values: &[Option<f64>]) -> Fingerprint {
        let identity = Identity { kind: "vllm".into(), model: "m".into(), ..Identity::default() };
        let logprobs = values.iter().map(|it| it.map(|value| Logprob::new(value).unwrap())).collect();
        Fingerprint { identity, probe: vec![1; values.len()], logprobs }
    }

    fn check(a: &[Option<f64>], b: &[Option<f64>], difference: Option<f64>) {
        let (a, b) = (fingerprint(a), fingerprint(b));
        let b = Fingerprint { probe: a.probe.clone(), ..b };
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
        assert_eq!(other.version(), None);
    }

    #[test]
    fn the_noise_that_was_seen_decides_what_is_a_change() {
        let (base, near) = (fingerprint(&[Some(-1.0)]), fingerprint(&[Some(-1.0001)]));
        assert!(!base.agrees(&near, 0.0) && !base.agrees(&near, 1e-5) && base.agrees(&near, 1e-4));
        assert!(base.agrees(&base, 0.0));
    }

    #[test]
    fn a_version_is_named_after_what_was_measured() {
        let base = fingerprint(&[None, Some(-1.0)]);
        let mut told = base.clone();
        told.identity.weights = Some("step-2".into());
        let names = [&base, &fingerprint(&[None, Some(-1.5)]), &told].map(|it| it.version().unwrap());
        assert!(names.iter().all(|name| name.len() == 8));
        assert!(names[0] != names[1] && names[1] != names[2] && names[0] != names[2]);
        assert_eq!(base.version(), base.clone().version());
    }
}
