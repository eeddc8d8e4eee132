//! Whether an endpoint that failed is still the model it was: a server that comes back may have other weights.
//!
//! Owns `Doubts`: which endpoints are in doubt, and that the first answer of such an endpoint is not handed on
//! before somebody has looked. What is looked at is the business of the [`Check`], which whoever keeps answers gives.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use futures_util::future::BoxFuture;
use tokio::sync::Mutex;

use super::Error;
use super::retry::{Failure, Kind};

/// Looks at the one endpoint of a way `T` to it; [`Error::Changed`] says that it is another model than before.
pub type Check<T> = Arc<dyn Fn(T) -> BoxFuture<'static, Result<(), Error>> + Send + Sync>;

/// The doubts about the endpoints of one transport `T`.
pub(super) struct Doubts<T> {
    each: Vec<Doubt>,
    check: OnceLock<Check<T>>,
    changed: OnceLock<Error>,
}

#[derive(Default)]
struct Doubt {
    /// How often it was raised.
    raised: AtomicU64,
    /// How many of those are settled.
    settled: AtomicU64,
    /// One look at a time; whoever comes meanwhile waits for what it shows.
    looking: Mutex<()>,
}

impl Doubt {
    /// How many doubts there have been, if not all of them are settled.
    fn open(&self) -> Option<u64> {
        let raised = self.raised.load(Ordering::SeqCst);
        (raised > self.settled.load(Ordering::SeqCst)).then_some(raised)
    }
}

impl<T> Doubts<T> {
    /// No doubts about so many endpoints.
    pub(super) fn new(n_endpoints: usize) -> Self {
        let each = (0..n_endpoints).map(|_| Doubt::default()).collect();
        Self { each, check: OnceLock::new(), changed: OnceLock::new() }
    }

    /// From now on this is how endpoints in doubt are looked at; the first check given stays.
    pub(super) fn check_with(&self, check: Check<T>) {
        let _ = self.check.set(check);
    }

    /// Takes note of a failure. One after which the server may be another process raises a doubt.
    pub(super) fn take(&self, idx: usize, failure: &Failure) {
        // A busy server says so itself, and a refusal is an answer.
        let is_busy = matches!(failure.error, Error::Unavailable { status: 408 | 425 | 429 | 529, .. });
        if failure.kind != Kind::Refused && !is_busy {
            self.each[idx].raised.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Returns once the endpoint is beyond doubt; fails when it is another model, or when nobody can tell yet.
    pub(super) async fn settle(
        &self,
        idx: usize,
        endpoint: impl FnOnce() -> Result<T, Error>,
    ) -> Result<(), Error> {
        let doubt = &self.each[idx];
        let Some(check) = self.check.get().filter(|_| doubt.open().is_some()) else { return Ok(()) };
        let _looking = doubt.looking.lock().await;
        self.fail_if_changed()?;
        let Some(n_raised) = doubt.open() else { return Ok(()) };
        let found = check(endpoint()?).await;
        match &found {
            // A doubt that was raised meanwhile stays.
            Ok(()) => doubt.settled.store(n_raised, Ordering::SeqCst),
            Err(error @ Error::Changed { .. }) => drop(self.changed.set(error.clone())),
            Err(_) => {}
        }
        found
    }

    /// Fails once an endpoint was found to be another model.
    pub(super) fn fail_if_changed(&self) -> Result<(), Error> {
        self.changed.get().cloned().map_or(Ok(()), Err)
    }
}
