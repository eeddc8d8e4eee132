//! Which endpoint the requests of one call go to, and which endpoints answered them.
//!
//! Owns [`Endpoints`] and [`follow`]. A call may take several requests, by several ways through a client; weights belong
//! to endpoints, so whoever keeps the answer must know who gave it. Clients know nothing of it: it travels with the task.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

tokio::task_local! {
    static OF_TASK: Route;
}

#[derive(Clone, Default)]
struct Route {
    home: Option<u64>,
    answered: Arc<AtomicU64>,
}

/// Some endpoints of a model, by their places. Beyond sixty-four, several share a bit: what concerns one of them then
/// concerns the others too, which costs a question asked again and never a wrong name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Endpoints(pub u64);

impl Endpoints {
    /// Every one.
    pub const ALL: Self = Self(u64::MAX);

    /// The endpoint at this place.
    pub fn one(place: usize) -> Self {
        Self(1 << (place % 64))
    }

    /// Whether the endpoint at this place is among them.
    pub fn contain(self, place: usize) -> bool {
        self.0 & Self::one(place).0 != 0
    }
}

/// Does `call`, whose requests go where `home` leads if there is one. Tells who answered: of a model that is reached
/// over no endpoint nobody can say, so that may be any.
pub async fn follow<T>(home: Option<u64>, call: impl Future<Output = T>) -> (T, Endpoints) {
    let route = Route { home, answered: Arc::default() };
    let done = OF_TASK.scope(route.clone(), call).await;
    let answered = match route.answered.load(Ordering::Relaxed) {
        0 => Endpoints::ALL,
        some => Endpoints(some),
    };
    (done, answered)
}

/// Where the requests of this task go: to its home, or where their own beginning leads.
pub(super) fn sticky(own: u64) -> u64 {
    OF_TASK.try_with(|route| route.home).ok().flatten().unwrap_or(own)
}

/// An endpoint has answered a request of this task.
pub(super) fn answered(place: usize) {
    // Outside of a call, as when a server is looked at, nobody asks.
    let _ = OF_TASK.try_with(|route| route.answered.fetch_or(Endpoints::one(place).0, Ordering::Relaxed));
}
