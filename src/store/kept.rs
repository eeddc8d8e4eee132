//! An opened model made fit for a run: recognised, metered, and its answers kept.
//!
//! Owns [`keep`], the one way from a server to a model whose calls are in the ledger. What the ledger does is
//! `ledger`'s business, who may pay how much is the meter's.

use std::sync::Arc;

use super::fingerprint::{Fingerprint, Identity};
use super::ledger::{Ledger, Ledgered, Recognition, RunPlace};
use crate::model::Error;
use crate::model::budget::{Budgeted, Meter};
use crate::model::open::Opened;
use crate::model::probe::probe_ids;

/// The model behind its meter and the ledger, and whether the ledger knew it.
///
/// The model is known by who it says it is and by the logprobs of a probe text, which are measured now.
pub async fn keep(
    opened: &Opened,
    ledger: Arc<Ledger>,
    meter: Arc<Meter>,
    place: RunPlace,
) -> Result<(Ledgered, Recognition), Error> {
    let info = &opened.info;
    let identity = Identity {
        kind: info.kind.name().to_owned(),
        version: info.version.clone(),
        model: info.model.clone(),
        weights: info.weight_version.clone(),
    };
    let fingerprint = Fingerprint::measure(&*opened.model, identity, &probe_ids(opened)).await?;
    let (id, recognition) = ledger.identify(&fingerprint).await?;
    let role = meter.role();
    let budgeted = Arc::new(Budgeted::new(Arc::clone(&opened.model), meter));
    Ok((Ledgered::new(ledger, budgeted, id, role, place), recognition))
}
