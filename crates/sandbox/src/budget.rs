//! The processor time that a program may use, counted over the sandboxes that work together on it.

use std::sync::LazyLock;
use std::thread::available_parallelism;
use std::time::Duration;

use super::backend::Backend;

/// The shortest time between two looks.
const PAUSE: Duration = Duration::from_millis(20);

static N_PROCESSORS: LazyLock<u32> =
    LazyLock::new(|| available_parallelism().ok().and_then(|it| u32::try_from(it.get()).ok()).unwrap_or(1));

/// A limit on what some sandboxes use together, if there is one.
#[derive(Debug)]
pub struct Budget<'a> {
    sandboxes: Vec<&'a dyn Backend>,
    allowed: Option<Duration>,
    /// What they had used before; absent where there is no limit, or one of them cannot tell.
    before: Option<Duration>,
}

impl<'a> Budget<'a> {
    /// Counts from now on.
    pub async fn open(sandboxes: Vec<&'a dyn Backend>, allowed: Option<Duration>) -> Self {
        let before = if allowed.is_some() { total(&sandboxes).await } else { None };
        Self { sandboxes, allowed, before }
    }

    /// What they have used together; absent where nobody counted.
    pub async fn used(&self) -> Option<Duration> {
        let before = self.before?;
        Some(total(&self.sandboxes).await?.saturating_sub(before))
    }

    /// Waits until the limit is reached. Where that cannot be told, the clock stands for it.
    pub async fn exhausted(&self) {
        match (self.allowed, self.before) {
            (None, _) => std::future::pending().await,
            (Some(allowed), None) => tokio::time::sleep(allowed).await,
            (Some(allowed), Some(_)) => self.reached(allowed).await,
        }
    }

    async fn reached(&self, allowed: Duration) {
        let mut used = Duration::ZERO;
        while used < allowed {
            // All processors together cannot use up the rest sooner.
            let soonest = (allowed - used) / *N_PROCESSORS;
            tokio::time::sleep(soonest.max(PAUSE)).await;
            match self.used().await {
                Some(now) => used = now,
                // A sandbox is gone, and its programs with it: whoever waits for them hears of that.
                None => return std::future::pending().await,
            }
        }
    }
}

async fn total(sandboxes: &[&dyn Backend]) -> Option<Duration> {
    let mut total = Duration::ZERO;
    for sandbox in sandboxes {
        total += sandbox.processor_time().await?;
    }
    Some(total)
}
