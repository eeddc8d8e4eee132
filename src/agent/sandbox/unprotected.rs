//! No sandbox: programs run as we do, in a directory of their own. `SandboxKind::warning` says so.

use async_trait::async_trait;
use tokio::sync::oneshot;

use super::backend::{Backend, Start};
use super::error::SandboxError;
use super::hostdir::HostDir;
use super::job::Ended;
use super::processes::{Processes, bare_command};

/// An episode that runs without protection.
#[derive(Debug)]
pub struct Unprotected {
    processes: Processes,
    /// Its files are removed with it.
    _directory: HostDir,
}

impl Unprotected {
    /// An episode in `directory`.
    pub fn new(directory: HostDir) -> Self {
        Self { processes: Processes::default(), _directory: directory }
    }
}

#[async_trait]
impl Backend for Unprotected {
    async fn start(&self, start: Start) -> Result<oneshot::Receiver<Ended>, SandboxError> {
        let Start { job, argv, cwd, env, stdin, stdout, stderr } = start;
        let (program, arguments) = argv.split_first().ok_or(SandboxError::BadCommand("it is empty"))?;
        let mut command = bare_command(program, [stdin, stdout, stderr]);
        command.args(arguments).current_dir(cwd).env_clear().envs(env);
        Ok(self.processes.start(job, command))
    }

    async fn kill(&self, job: u64) {
        self.processes.kill(job);
    }

    async fn stop(&self) {
        self.processes.kill_all();
    }
}

impl Drop for Unprotected {
    fn drop(&mut self) {
        self.processes.kill_all();
    }
}
