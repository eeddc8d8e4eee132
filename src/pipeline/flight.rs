//! Room for episodes in flight: whoever works on many at once holds only so much of them.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use backsight_core::episode::{Episode, Message};

/// What room is counted in.
const BYTES_A_PERMIT: usize = 1 << 10;

/// Room for so many bytes.
pub(super) struct Flight {
    permits: Arc<Semaphore>,
    n_permits: usize,
}

impl Flight {
    /// That much of it.
    pub(super) fn of(n_bytes: usize) -> Self {
        let n_permits = n_bytes / BYTES_A_PERMIT;
        Self { permits: Arc::new(Semaphore::new(n_permits)), n_permits }
    }

    /// Waits until there is room for an episode of this size; one that is larger than all of it is alone.
    pub(super) async fn room_for(&self, n_bytes: usize) -> Option<OwnedSemaphorePermit> {
        let n_permits = (n_bytes / BYTES_A_PERMIT + 1).min(self.n_permits);
        Arc::clone(&self.permits).acquire_many_owned(n_permits as u32).await.ok()
    }
}

/// About how many bytes an episode's text has.
pub(super) fn n_bytes(episode: &Episode) -> usize {
    episode.messages.iter().map(Message::n_bytes).sum()
}
