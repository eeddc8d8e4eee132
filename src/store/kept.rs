//! An opened model made fit for a run: recognised, metered, its weights watched and its answers kept.
//!
//! Owns [`keep`], the one way from a server to a model whose calls are in the ledger. What the ledger does is
//! `ledger`'s business, when weights are measured again that of `versions`, who may pay how much is the meter's.

use std::sync::Arc;

use futures_util::future::join_all;

use super::fingerprint::{Fingerprint, Identity};
use super::ledger::{Ledger, Recognition};
use super::ledgered::{Ledgered, RunPlace};
use super::versions::{Gauge, Measure, NewWeights, Patience, Versions, WeightRules, reason};
use crate::model::budget::{Budgeted, Meter};
use crate::model::key::ModelId;
use crate::model::noise::{Noisy, noise_of};
use crate::model::probe::probe_ids;
use crate::model::{Error, Opened, Transport};
use backsight_core::tokens::TokenId;

/// The model behind its meter and the ledger, and whether the ledger knew it.
///
/// The model is known by who it says it is and by the logprobs of a probe text, which are measured now and again.
pub async fn keep(
    opened: &Opened,
    ledger: Arc<Ledger>,
    meter: Arc<Meter>,
    place: RunPlace,
    rules: WeightRules,
) -> Result<(Ledgered, Recognition), Error> {
    let (identity, probe, role) = (identity(opened), probe_ids(opened), meter.role());
    let gauges = gauges(opened, &identity, &probe, rules).await?;
    let mut known = Vec::new();
    for gauge in &gauges {
        known.push(ledger.identify(&gauge.expected, gauge.noise).await?);
    }
    if gauges.is_empty() {
        let fingerprint = Fingerprint::measure(&*opened.model, identity, &probe).await?;
        known.push(ledger.identify(&fingerprint, 0.0).await?);
    }
    let recognition = known[0].1;
    let models: Vec<ModelId> = known.into_iter().map(|it| it.0).collect();
    ledger.resume(role, &models).await?;
    let (transport, names) = (opened.transport.clone(), ledger.names().await?);
    let versions = Versions::new(Arc::clone(&ledger), role, rules, transport, gauges, (models, names));
    let budgeted = Arc::new(Budgeted::new(Arc::clone(&opened.model), meter));
    Ok((Ledgered::new(ledger, budgeted, versions, role, place), recognition))
}

fn identity(opened: &Opened) -> Identity {
    let info = &opened.info;
    Identity {
        kind: info.kind.name.to_owned(),
        version: info.version.clone(),
        model: info.model.clone(),
        weights: info.weight_version.clone(),
    }
}

/// A gauge for every endpoint. A model in this process cannot change, and one that scores nothing cannot be measured.
async fn gauges(
    opened: &Opened,
    identity: &Identity,
    probe: &[TokenId],
    rules: WeightRules,
) -> Result<Vec<Gauge>, Error> {
    let Some(transport) = opened.transport.as_ref().filter(|_| opened.model.limits().scores) else {
        return Ok(Vec::new());
    };
    let n_endpoints = transport.answers().len();
    let all = (0..n_endpoints).map(|idx| gauge(opened, transport.only(&[idx]), identity, probe));
    let gauges: Vec<Gauge> = join_all(all).await.into_iter().collect::<Result<_, _>>()?;
    // Replicas beside a trainer are synced one after another; otherwise they are to be one model.
    if rules.new_weights == NewWeights::Stop {
        check_same_weights(&gauges)?;
    }
    Ok(gauges)
}

/// Refuses servers that differ from each other by more than from themselves.
fn check_same_weights(gauges: &[Gauge]) -> Result<(), Error> {
    let Some((first, others)) = gauges.split_first() else { return Ok(()) };
    let same = |it: &&Gauge| it.expected.agrees(&first.expected, it.noise.max(first.noise));
    let Some(other) = others.iter().find(|it| !same(it)) else { return Ok(()) };
    let why = reason(Some(&other.expected), &first.expected);
    let what = format!("{} has other weights than {}: {why}", other.server, first.server);
    Err(Error::invalid(what, "name servers of one model with the same weights"))
}

async fn gauge(
    opened: &Opened,
    endpoint: Result<Transport, Error>,
    identity: &Identity,
    probe: &[TokenId],
) -> Result<Gauge, Error> {
    let endpoint = endpoint?;
    let (brief, patient) = (opened.over(endpoint.briefly()), opened.over(endpoint.clone()));
    let (identity, probe) = (identity.clone(), Arc::<[TokenId]>::from(probe));
    let measure: Measure = Box::new(move |patience| {
        let model = Arc::clone(if patience == Patience::Brief { &brief } else { &patient });
        let (identity, probe) = (identity.clone(), Arc::clone(&probe));
        Box::pin(async move { Fingerprint::measure(&*model, identity, &probe).await })
    });
    let Noisy { first: expected, noise, n_measured } =
        noise_of(|| measure(Patience::Full), Fingerprint::mean_difference).await?;
    Ok(Gauge { server: endpoint.server(), measure, expected, noise, n_measured })
}
