//! Our side of the namespace sandbox: starting the launcher once, and one channel per sandbox.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use tokio::process::Child;
use tokio::sync::{Mutex as AsyncMutex, oneshot, watch};

use super::backend::Backend;
use super::cgroup;
use super::channel::{self, Channel};
use super::config::Containment;
use super::error::SandboxError;
use super::launcher::{HIDDEN_ARGUMENT, this_program_answers};
use super::protocol::{End, Ended, Exit, Fork, Reply, Request, Run, Spec};
use super::sys::lock;

const OURSELVES: &str = "/proc/self/exe";
/// A launcher, or the supervisor that waits in store, may die while it is asked.
const MAX_TRIES: usize = 3;

/// The launcher process, started when the first sandbox is and again should it die.
#[derive(Debug)]
pub struct Launcher {
    program: Option<PathBuf>,
    running: AsyncMutex<Option<Running>>,
}

#[derive(Debug)]
struct Running {
    channel: Channel,
    /// The channel to a supervisor that waits to be told what to make.
    spare: Option<Channel>,
    /// Kept so that the process is collected when it ends.
    _process: Child,
}

impl Launcher {
    /// A launcher that runs `program`, or ourselves.
    pub fn new(program: Option<PathBuf>) -> Self {
        Self { program, running: AsyncMutex::new(None) }
    }

    /// Has a supervisor make a sandbox; the channel to it. A launcher that fails is not asked again.
    async fn launch(&self, spec: &Spec) -> Result<Channel, SandboxError> {
        let mut running = self.running.lock().await;
        let mut launcher = running.take().map_or_else(|| self.start(), Ok)?;
        let channel = launcher.launch(spec).await.map_err(|error| self.failed(error))?;
        *running = Some(launcher);
        Ok(channel)
    }

    fn start(&self) -> Result<Running, SandboxError> {
        cgroup::sweep();
        let program = self.program()?;
        let (ours, theirs) = channel::pair()?;
        let process = tokio::process::Command::new(program)
            .arg0("backsight")
            .arg(HIDDEN_ARGUMENT)
            .env_clear()
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| self.failed(error))?;
        Ok(Running { channel: Channel::new(ours)?, spare: None, _process: process })
    }

    fn program(&self) -> Result<&Path, SandboxError> {
        match &self.program {
            Some(program) => Ok(program),
            None if this_program_answers() => Ok(Path::new(OURSELVES)),
            // Running a program that does not know the argument would start it all over again.
            None => Err(self.failed(io::Error::other("it does not answer to the hidden argument"))),
        }
    }

    fn failed(&self, error: io::Error) -> SandboxError {
        let program = self.program.clone().unwrap_or_else(|| OURSELVES.into());
        SandboxError::Launcher { program, error }
    }
}

impl Running {
    /// Hands a sandbox's description to the supervisor that waits for one, and has the next one forked.
    async fn launch(&mut self, spec: &Spec) -> io::Result<Channel> {
        let channel = match self.spare.take() {
            Some(channel) => channel,
            None => self.fork().await?,
        };
        channel.send(spec, &[]).await?;
        // A launcher that cannot fork any more is replaced when the next sandbox is wanted.
        self.spare = self.fork().await.ok();
        Ok(channel)
    }

    /// Has a supervisor forked that listens to the other end of the returned channel.
    async fn fork(&self) -> io::Result<Channel> {
        let (ours, theirs) = channel::pair()?;
        self.channel.send(&Fork::Supervisor, &[theirs.as_fd()]).await?;
        Channel::new(ours)
    }
}

type Pending = Arc<Mutex<HashMap<u64, oneshot::Sender<Ended>>>>;

#[derive(Debug)]
pub struct Namespaces {
    channel: Arc<Channel>,
    pending: Pending,
    /// What was measured last.
    used: watch::Receiver<Duration>,
    /// Why it is no more, when it is.
    end: watch::Receiver<Option<End>>,
    reader: tokio::task::JoinHandle<()>,
}

/// A sandbox that runs, its workspace's directory, and which limits hold for the whole episode.
pub type Started = (Namespaces, OwnedFd, Containment);

impl Namespaces {
    /// Starts a sandbox. A launcher that dies over it is replaced and asked again.
    pub async fn start(launcher: &Launcher, spec: &Spec) -> Result<Started, SandboxError> {
        for _ in 1..MAX_TRIES {
            match Self::start_once(launcher, spec).await {
                Err(SandboxError::Launcher { .. }) => {}
                started => return started,
            }
        }
        Self::start_once(launcher, spec).await
    }

    async fn start_once(launcher: &Launcher, spec: &Spec) -> Result<Started, SandboxError> {
        let channel = launcher.launch(spec).await?;
        match channel.receive().await {
            Ok(Some((Reply::Ready(containment), mut descriptors))) => {
                let workspace = descriptors.pop().ok_or(SandboxError::Ended(End::Unknown))?;
                Ok((Self::listen(channel), workspace, containment))
            }
            Ok(Some((Reply::Refused(refusal), _))) => Err(SandboxError::Refused(refusal)),
            Ok(Some((Reply::Over(end), _))) => Err(SandboxError::Ended(end)),
            // Whoever should have read the description is gone.
            _ => Err(launcher.failed(io::Error::other("it ended without an answer"))),
        }
    }

    /// Waits for its end.
    async fn ended(&self) -> End {
        let mut end = self.end.clone();
        end.wait_for(Option::is_some).await.ok().and_then(|it| *it).unwrap_or(End::Unknown)
    }

    fn listen(channel: Channel) -> Self {
        let (channel, pending) = (Arc::new(channel), Pending::default());
        let (used_sender, used) = watch::channel(Duration::ZERO);
        let (end_sender, end) = watch::channel(None);
        let reading = read_replies(Arc::clone(&channel), Arc::clone(&pending), used_sender, end_sender);
        Self { channel, pending, used, end, reader: tokio::spawn(reading) }
    }
}

impl Drop for Namespaces {
    /// Closes the socket, at which the supervisor kills everything.
    fn drop(&mut self) {
        self.reader.abort();
    }
}

async fn read_replies(
    channel: Arc<Channel>,
    pending: Pending,
    used: watch::Sender<Duration>,
    over: watch::Sender<Option<End>>,
) {
    let mut end = End::Unknown;
    loop {
        match channel.receive().await {
            Ok(Some((Reply::Ended { job, ended }, _))) => {
                // Nobody may be waiting any more.
                let _ = lock(&pending).remove(&job).map(|waiting| waiting.send(ended));
            }
            Ok(Some((Reply::Measured(time), _))) => drop(used.send_replace(time)),
            // The groups are removed before the socket closes.
            Ok(Some((Reply::Over(it), _))) => end = it,
            // It ended before it read all that we sent; what it said is still there.
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {}
            // The socket closed, or the other end is not ours any more.
            _ => break,
        }
    }
    for (_, waiting) in lock(&pending).drain() {
        let _ = waiting.send(Ok(Exit::Lost));
    }
    let _ = over.send(Some(end));
}

#[async_trait]
impl Backend for Namespaces {
    async fn start(&self, run: Run, streams: [OwnedFd; 3]) -> Result<oneshot::Receiver<Ended>, SandboxError> {
        let (job, (sender, receiver)) = (run.job, oneshot::channel());
        lock(&self.pending).insert(job, sender);
        let error = match self.channel.send(&Request::Run(run), &streams.each_ref().map(AsFd::as_fd)).await {
            Ok(()) if self.end.borrow().is_none() => return Ok(receiver),
            Err(error) if error.kind() == io::ErrorKind::ArgumentListTooLong => {
                SandboxError::BadCommand("it is longer than 200 KiB")
            }
            _ => SandboxError::Ended(self.ended().await),
        };
        lock(&self.pending).remove(&job);
        Err(error)
    }

    async fn kill(&self, job: u64) {
        // A sandbox that is gone has killed it already.
        let _ = self.channel.send(&Request::Kill(job), &[]).await;
    }

    async fn processor_time(&self) -> Option<Duration> {
        let mut used = self.used.clone();
        used.mark_unchanged();
        self.channel.send(&Request::Measure, &[]).await.ok()?;
        used.changed().await.ok()?;
        Some(*used.borrow())
    }

    async fn stop(&self) {
        self.channel.close();
        self.ended().await;
    }
}
