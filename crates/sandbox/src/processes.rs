//! Programs that are children of ours: for no sandbox at all, and for a container engine's client.
//!
//! Owns starting them in sessions of their own, waiting for them and killing them.

use std::collections::HashMap;
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::sync::oneshot;

use super::job::Ended;
use super::protocol::Exit;
use super::sys;

/// The children that run, by our names for them.
#[derive(Clone, Debug, Default)]
pub struct Processes(Arc<Mutex<HashMap<u64, Pid>>>);

impl Processes {
    /// Starts a child; the receiver gets its end.
    pub fn start(&self, job: u64, mut command: std::process::Command) -> oneshot::Receiver<Ended> {
        let (sender, receiver) = oneshot::channel();
        sys::in_own_session(&mut command);
        let mut command = tokio::process::Command::from(command);
        match command.kill_on_drop(true).spawn() {
            Ok(mut child) => {
                let pid = child.id().and_then(|it| i32::try_from(it).ok()).and_then(Pid::from_raw);
                self.lock().extend(pid.map(|pid| (job, pid)));
                let processes = self.clone();
                tokio::spawn(async move {
                    let status = child.wait().await;
                    processes.lock().remove(&job);
                    // Nobody may be waiting any more.
                    let _ = sender.send(Ok(status.map_or(Exit::Lost, exit_of)));
                });
            }
            Err(error) => {
                let _ = sender.send(Err(error.raw_os_error().unwrap_or(libc::EINVAL)));
            }
        }
        receiver
    }

    /// Kills a child's session.
    pub fn kill(&self, job: u64) {
        if let Some(pid) = self.lock().get(&job) {
            // It may have ended a moment ago.
            let _ = kill_process_group(*pid, Signal::KILL);
        }
    }

    /// Kills all of them.
    pub fn kill_all(&self) {
        for pid in self.lock().values() {
            let _ = kill_process_group(*pid, Signal::KILL);
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<u64, Pid>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn exit_of(status: std::process::ExitStatus) -> Exit {
    use std::os::unix::process::ExitStatusExt;
    match (status.code(), status.signal()) {
        (Some(code), _) => Exit::Code(code),
        (None, Some(signal)) => Exit::Signal(signal),
        (None, None) => Exit::Lost,
    }
}

/// A command with nothing of ours but the three streams.
pub fn bare_command(
    program: impl AsRef<std::ffi::OsStr>,
    streams: [std::os::fd::OwnedFd; 3],
) -> std::process::Command {
    let mut command = std::process::Command::new(program);
    let [stdin, stdout, stderr] = streams.map(Stdio::from);
    command.stdin(stdin).stdout(stdout).stderr(stderr);
    command
}
