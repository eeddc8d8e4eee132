//! A model whose every answer is kept: behind its budget, and behind the ledger of a run directory.
//!
//! Owns the beginning and the end of whatever is paid for: what the ledger knows of the model, and what it all cost.

use std::path::Path;
use std::sync::Arc;

use crate::model::budget::{Allowance, Meter, ModelRole};
use crate::model::notice::Notices;
use crate::model::{Error, Opened};
use crate::store::fingerprint::differs;
use crate::store::ledger::Recognition;
use crate::store::run::RunDir;
use crate::store::summary::Summary;
use crate::store::{Ledger, Ledgered, RunPlace, WeightRules, keep};

/// On which terms a model is asked.
pub struct Terms {
    /// For whom it works.
    pub role: ModelRole,
    /// What it may cost.
    pub allowance: Allowance,
    /// Where its draws belong.
    pub place: RunPlace,
    /// When its weights are measured again, and what a change means.
    pub rules: WeightRules,
}

/// A model that pays for nothing twice.
pub struct Paid {
    /// The model.
    pub model: Arc<Ledgered>,
    /// What this process spends on it.
    pub meter: Arc<Meter>,
    /// Whether the ledger knew it.
    pub recognition: Recognition,
    ledger: Arc<Ledger>,
}

impl Paid {
    /// Puts an opened model behind its meter and the ledger of a run.
    ///
    /// The model is asked for a short probe text, by which the ledger knows it again.
    pub async fn open(opened: &Opened, run: &RunDir, terms: Terms) -> Result<Self, Error> {
        let (meter, ledger) = (Meter::new(terms.role, terms.allowance), Ledger::open(run.lock())?);
        let (model, recognition) =
            keep(opened, Arc::clone(&ledger), Arc::clone(&meter), terms.place, terms.rules).await?;
        Ok(Self { model: Arc::new(model), meter, recognition, ledger })
    }

    /// Notes what a person should know about it; `outputs` is where results are, if there are any by now.
    pub async fn note(&self, notices: &Notices, outputs: &Path, are_there: bool) -> Result<(), Error> {
        if let Recognition::Changed(difference) = self.recognition {
            let by = difference.map(|it| format!(" ({})", differs(Some(it)))).unwrap_or_default();
            notices.add(format!("the model is another than last time{by}; old answers are not used"));
        }
        if are_there && self.ledger.is_empty().await? {
            notices.add(format!(
                "there are results at {} but {} is missing or empty: what was paid for them is paid again",
                outputs.display(),
                self.ledger.path().display()
            ));
        }
        Ok(())
    }

    /// Adds to a summary what it all cost.
    pub async fn settle(&self, summary: &mut Summary, notices: &Notices) -> Result<(), Error> {
        self.ledger.notice().into_iter().for_each(|notice| notices.add(notice));
        summary.spent += self.meter.spent();
        summary.weights = summary.weights.take().or(self.model.checks());
        summary.paid = self.ledger.paid().await?;
        let found = summary.number("found_in_ledger") + self.model.all_lookups().found;
        summary.more.insert("found_in_ledger".to_owned(), found.into());
        Ok(())
    }
}
