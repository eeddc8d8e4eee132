//! What every kind of sandbox can do: start a program, kill it, end.

use std::os::fd::OwnedFd;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::oneshot;

use super::error::SandboxError;
use super::job::Ended;

/// A program to start, with its three streams.
#[derive(Debug)]
pub struct Start {
    /// Our name for it.
    pub job: u64,
    /// The program and its arguments.
    pub argv: Vec<String>,
    /// Where it starts, as the episode sees it.
    pub cwd: String,
    /// Its whole environment.
    pub env: Vec<(String, String)>,
    /// Standard input.
    pub stdin: OwnedFd,
    /// Standard output.
    pub stdout: OwnedFd,
    /// Standard error.
    pub stderr: OwnedFd,
}

/// One running sandbox of some kind.
#[async_trait]
pub trait Backend: Send + Sync + std::fmt::Debug {
    /// Starts a program; the receiver gets its end.
    async fn start(&self, start: Start) -> Result<oneshot::Receiver<Ended>, SandboxError>;

    /// Kills a program and what it started in its session; one that ended already is no error.
    async fn kill(&self, job: u64);

    /// The processor time that all its programs have used together; absent where it is not known.
    async fn processor_time(&self) -> Option<Duration>;

    /// Kills everything and returns when it is dead.
    async fn stop(&self);
}
