//! A model whose every answer is kept: behind its budget, and behind the ledger of a run directory.

use std::path::Path;
use std::sync::Arc;

use crate::model::Error;
use crate::model::Opened;
use crate::model::budget::Meter;
use crate::store::fingerprint::differs;
use crate::store::ledger::Recognition;
use crate::store::{Ledger, Ledgered, RunPlace, WeightRules, keep};

/// A model that pays for nothing twice.
pub struct Paid {
    /// The model.
    pub model: Arc<Ledgered>,
    /// Its ledger.
    pub ledger: Arc<Ledger>,
    /// Whether the ledger knew it.
    pub recognition: Recognition,
}

impl Paid {
    /// Puts an opened model behind its meter and the ledger, which may serve several roles.
    ///
    /// The model is asked for a short probe text, by which the ledger knows it again.
    pub async fn open(
        opened: &Opened,
        ledger: &Arc<Ledger>,
        meter: Arc<Meter>,
        place: RunPlace,
        rules: WeightRules,
    ) -> Result<Self, Error> {
        let (model, recognition) = keep(opened, Arc::clone(ledger), meter, place, rules).await?;
        Ok(Self { model: Arc::new(model), ledger: Arc::clone(ledger), recognition })
    }

    /// What to say when there are results at `outputs` but no record of what they cost.
    pub async fn forgotten(&self, outputs: &Path, are_there: bool) -> Result<Option<String>, Error> {
        let is_forgotten = are_there && self.ledger.is_empty().await?;
        Ok(is_forgotten.then(|| {
            format!(
                "there are results at {} but {} is missing or empty: what was paid for them is paid again",
                outputs.display(),
                self.ledger.path().display()
            )
        }))
    }

    /// What a person should know about it.
    pub fn notice(&self) -> Option<String> {
        let Recognition::Changed(difference) = self.recognition else { return None };
        let by = difference.map(|it| format!(" ({})", differs(Some(it)))).unwrap_or_default();
        Some(format!("the model is another than last time{by}; old answers are not used"))
    }
}
