//! Signals: SIGINT and SIGTERM end every command at once, wherever it is, with a word and 128 plus their number.
//!
//! Nothing has to be put in order first: what was paid is in a ledger, and files are written whole or not at all. A
//! command that has children to end or a summary to write holds [`Orderly`] meanwhile and is told instead. Only the
//! first signal is: the next one ends it at once too.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::runtime;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;

use super::failure::Failure;
use super::output;

/// Who is told of the next signal instead of being ended by it.
static ORDERLY: Mutex<Option<oneshot::Sender<u8>>> = Mutex::new(None);
/// Whether the end is told as an event.
static AS_JSON: AtomicBool = AtomicBool::new(false);

/// From now on signals are heeded, by a thread of their own: no computation keeps them waiting.
pub(super) fn listen(as_json: bool) -> Result<(), Failure> {
    AS_JSON.store(as_json, Ordering::Relaxed);
    let failed = |error: std::io::Error| {
        Failure::stopped(format!("signals cannot be listened for: {error}"), "try again")
    };
    let runtime = runtime::Builder::new_current_thread().enable_io().build().map_err(failed)?;
    let listening = runtime.enter();
    let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
    drop(listening);
    let heed_all = async move {
        loop {
            tokio::select! {
                _ = interrupt.recv() => heed(2),
                _ = terminate.recv() => heed(15),
            }
        }
    };
    let thread = std::thread::Builder::new().name("signals".to_owned());
    thread.spawn(move || runtime.block_on(heed_all)).map(drop).map_err(failed)
}

/// Does `work`, which is dropped by a signal: for work that has children to end.
pub(super) async fn unless_interrupted<T>(work: impl Future<Output = T>) -> Result<T, Failure> {
    let mut orderly = Orderly::begin();
    tokio::select! {
        done = work => Ok(done),
        number = orderly.signal() => Err(Failure::signal(number)),
    }
}

/// While this is held, a signal is told and ends nothing. One at a time.
pub(super) struct Orderly(oneshot::Receiver<u8>);

impl Orderly {
    /// Takes the next signal upon itself.
    pub(super) fn begin() -> Self {
        let (tell, told) = oneshot::channel();
        *lock() = Some(tell);
        Self(told)
    }

    /// Ends with the number of the signal that asks us to end.
    pub(super) async fn signal(&mut self) -> u8 {
        match (&mut self.0).await {
            Ok(number) => number,
            // Somebody else has taken it upon himself.
            Err(_) => std::future::pending().await,
        }
    }
}

impl Drop for Orderly {
    fn drop(&mut self) {
        *lock() = None;
        // A signal that came too late to be heard is not forgotten.
        if let Ok(number) = self.0.try_recv() {
            end(number);
        }
    }
}

fn lock() -> MutexGuard<'static, Option<oneshot::Sender<u8>>> {
    ORDERLY.lock().unwrap_or_else(PoisonError::into_inner)
}

fn heed(number: u8) {
    let told = lock().take().is_some_and(|orderly| orderly.send(number).is_ok());
    if !told {
        end(number);
    }
}

fn end(number: u8) -> ! {
    output::clear_line();
    Failure::signal(number).report(AS_JSON.load(Ordering::Relaxed));
    std::process::exit(128 + i32::from(number))
}
