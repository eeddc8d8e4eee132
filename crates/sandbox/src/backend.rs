//! What every kind of sandbox can do: start a program, kill it, end.

use std::os::fd::OwnedFd;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::oneshot;

use super::error::SandboxError;
use super::protocol::{Ended, Run};

/// One running sandbox of some kind.
#[async_trait]
pub trait Backend: Send + Sync + std::fmt::Debug {
    /// Starts a program with its standard input, output and error; the receiver gets its end.
    async fn start(&self, run: Run, streams: [OwnedFd; 3]) -> Result<oneshot::Receiver<Ended>, SandboxError>;

    /// Kills a program and what it started in its session; one that ended already is no error.
    async fn kill(&self, job: u64);

    /// The processor time that all its programs have used together; absent where it is not known.
    async fn processor_time(&self) -> Option<Duration>;

    /// Kills everything and returns when it is dead.
    async fn stop(&self);
}
