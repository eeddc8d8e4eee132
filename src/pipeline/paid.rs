//! A model whose every answer is kept: behind its budget, and behind the ledger of a run directory.

use std::sync::Arc;

use crate::model::Error;
use crate::model::Opened;
use crate::model::budget::Meter;
use crate::store::ledger::{Recognition, RunPlace};
use crate::store::{Ledger, Ledgered, RunLock, keep};

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
    /// Puts an opened model behind its meter and the ledger of the locked directory; `command` names the place of its draws.
    ///
    /// The model is asked for a short probe text, by which the ledger knows it again.
    pub async fn open(
        opened: &Opened,
        lock: RunLock,
        meter: Arc<Meter>,
        command: &str,
    ) -> Result<Self, Error> {
        let place = RunPlace { run: command.to_owned(), seed: 0 };
        Self::open_at(opened, Arc::new(lock), meter, place).await
    }

    /// The same for draws that depend on a seed.
    pub async fn open_at(
        opened: &Opened,
        lock: Arc<RunLock>,
        meter: Arc<Meter>,
        place: RunPlace,
    ) -> Result<Self, Error> {
        let ledger = Ledger::open(lock)?;
        let (model, recognition) = keep(opened, Arc::clone(&ledger), meter, place).await?;
        let model = Arc::new(model);
        Ok(Self { model, ledger, recognition })
    }

    /// What a person should know about it.
    pub fn notice(&self) -> Option<String> {
        let Recognition::Changed(difference) = self.recognition else { return None };
        let by = difference.map(|it| format!(" (logprobs differ by {it:.2} on average)")).unwrap_or_default();
        Some(format!("the model is another than last time{by}; old answers are not used"))
    }
}
