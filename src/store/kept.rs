//! An opened model made fit for a run: recognised, metered, and its answers kept.
//!
//! Owns [`keep`], the one way from a server to a model whose calls are in the ledger. What the ledger does is
//! `ledger`'s business, who may pay how much is the meter's.

use std::sync::Arc;

use super::fingerprint::{Fingerprint, Identity, LARGEST_MEAN_DIFFERENCE};
use super::ledger::{Ledger, Ledgered, Recognition, RunPlace};
use crate::model::Error;
use crate::model::budget::{Budgeted, Meter};
use crate::model::doubt::Check;
use crate::model::probe::probe_ids;
use crate::model::{Opened, Transport};

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
    if let Some(transport) = opened.transport.as_ref().filter(|_| !fingerprint.probe.is_empty()) {
        transport.check_with(same_model(opened, fingerprint));
    }
    let role = meter.role();
    let budgeted = Arc::new(Budgeted::new(Arc::clone(&opened.model), meter));
    Ok((Ledgered::new(ledger, budgeted, id, role, place), recognition))
}

/// Measures the fingerprint of a server that came back, and compares.
fn same_model(opened: &Opened, expected: Fingerprint) -> Check<Transport> {
    let (known, expected) = (opened.known(), Arc::new(expected));
    Arc::new(move |transport| {
        let (server, expected) = (transport.server(), Arc::clone(&expected));
        let model = known.over(transport);
        Box::pin(async move {
            let found = Fingerprint::measure(&*model, expected.identity.clone(), &expected.probe).await;
            match found.map(|found| found.mean_difference(&expected)) {
                Ok(Some(by)) if by <= LARGEST_MEAN_DIFFERENCE => Ok(()),
                Ok(by) => Err(Error::Changed { server, why: differs(by) }),
                Err(Error::Refused { status, message, .. }) => {
                    let why = format!("it refuses the probe text: HTTP {status}: {message}");
                    Err(Error::Changed { server, why })
                }
                Err(error) => Err(error),
            }
        })
    })
}

fn differs(by: Option<f64>) -> String {
    match by {
        Some(by) => format!("the logprobs of a probe text differ by {by:.2} on average"),
        None => "it gives other positions of a probe text a logprob".to_owned(),
    }
}
