//! No sandbox: programs run as we do, in a directory of their own. `SandboxKind::warning` says so.
//!
//! A supervisor starts them all the same, and adopts whatever they leave behind: when the episode ends,
//! every process that descends from it is killed, however it hid itself from its parents. One that kills
//! the supervisor first escapes that too; only a sandbox prevents it.

use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::oneshot;

use super::backend::{Backend, Start};
use super::config::{Limits, Priority};
use super::error::SandboxError;
use super::hostdir::HostDir;
use super::job::Ended;
use super::namespaces::{Launcher, Namespaces};
use super::protocol::Spec;

/// An episode that runs without protection.
#[derive(Debug)]
pub struct Unprotected {
    programs: Namespaces,
    /// Its files are removed with it.
    _directory: HostDir,
}

impl Unprotected {
    /// An episode in `directory`.
    pub async fn start(
        launcher: &Launcher,
        limits: &Limits,
        directory: HostDir,
    ) -> Result<Self, SandboxError> {
        let workspace = directory.path().display().to_string();
        let (limits, priority) = (limits.clone(), Priority::Verifier);
        let spec = Spec { root: Vec::new(), workspace, limits, priority, network: true, unprotected: true };
        let started = Namespaces::start(launcher, &spec).await?;
        Ok(Self { programs: started.backend, _directory: directory })
    }
}

#[async_trait]
impl Backend for Unprotected {
    async fn start(&self, start: Start) -> Result<oneshot::Receiver<Ended>, SandboxError> {
        self.programs.start(start).await
    }

    async fn kill(&self, job: u64) {
        self.programs.kill(job).await;
    }

    async fn processor_time(&self) -> Option<Duration> {
        self.programs.processor_time().await
    }

    async fn stop(&self) {
        self.programs.stop().await;
    }
}
