//! Room that is given back while a request waits for its next try.
//!
//! Owns [`Resting`], by which whoever bounds the requests of its tasks learns how many of them only wait. Requests
//! know nothing of it: it travels with the task.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;

tokio::task_local! {
    static OF_TASK: Resting;
}

/// How many requests of some tasks wait for their next try; clones share it.
#[derive(Clone, Debug, Default)]
pub(super) struct Resting(Arc<Resters>);

#[derive(Debug, Default)]
struct Resters {
    n: AtomicUsize,
    more: Notify,
}

impl Resting {
    /// How many wait now.
    pub(super) fn count(&self) -> usize {
        self.0.n.load(Ordering::SeqCst)
    }

    /// Returns when one more waits.
    pub(super) async fn more(&self) {
        self.0.more.notified().await;
    }

    /// Does `work` as one of those tasks.
    pub(super) async fn watch<T>(self, work: impl Future<Output = T>) -> T {
        OF_TASK.scope(self, work).await
    }
}

/// The request of this task waits until this is dropped.
pub(super) fn rest() -> Rest {
    let resting = OF_TASK.try_with(Clone::clone).ok();
    if let Some(Resting(state)) = &resting {
        state.n.fetch_add(1, Ordering::SeqCst);
        state.more.notify_one();
    }
    Rest(resting)
}

/// A wait; it ends when dropped.
pub(super) struct Rest(Option<Resting>);

impl Drop for Rest {
    fn drop(&mut self) {
        if let Some(Resting(state)) = &self.0 {
            state.n.fetch_sub(1, Ordering::SeqCst);
        }
    }
}
