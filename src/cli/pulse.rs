//! A word a minute while something takes long.
//!
//! On a terminal a bar shows how far it is. In a log there is no bar, and a command that waits for a slow server would
//! say nothing for as long as that takes.

use std::io::IsTerminal;
use std::pin::pin;
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval_at};

/// How often it is said how far it is.
const PERIOD: Duration = Duration::from_secs(60);

/// Does `work`; every minute `say` says how far it is, unless a terminal shows that.
pub(super) async fn with_pulse<T>(work: impl Future<Output = T>, say: impl Fn()) -> T {
    match std::io::stderr().is_terminal() {
        true => work.await,
        false => pulsing(PERIOD, work, say).await,
    }
}

async fn pulsing<T>(period: Duration, work: impl Future<Output = T>, say: impl Fn()) -> T {
    let mut work = pin!(work);
    let mut beats = interval_at(Instant::now() + period, period);
    beats.set_missed_tick_behavior(MissedTickBehavior::Skip);
    loop {
        tokio::select! {
            biased;
            done = &mut work => return done,
            _ = beats.tick() => say(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use tokio::time::sleep;

    use super::*;

    async fn n_words(seconds: u64) -> u32 {
        let n = Cell::new(0);
        let work = async {
            sleep(Duration::from_secs(seconds)).await;
            7
        };
        assert_eq!(pulsing(PERIOD, work, || n.set(n.get() + 1)).await, 7);
        n.get()
    }

    #[tokio::test(start_paused = true)]
    async fn long_work_says_a_word_a_minute() {
        assert_eq!(n_words(59).await, 0);
        assert_eq!(n_words(61).await, 1);
        assert_eq!(n_words(3601).await, 60);
    }
}
