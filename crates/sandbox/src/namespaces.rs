//! Our side of the namespace sandbox: starting the launcher once, and one channel per sandbox.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tokio::process::Child;
use tokio::sync::{Mutex as AsyncMutex, oneshot, watch};

use super::backend::{Backend, Start};
use super::cgroup;
use super::channel::{self, Channel, Received};
use super::config::Containment;
use super::error::SandboxError;
use super::job::Ended;
use super::launcher::{HIDDEN_ARGUMENT, this_program_answers};
use super::protocol::{End, Exit, Reply, Request, Spec};

/// What asks the launcher for a supervisor; the socket beside it is what counts.
const FORK: &[u8] = b"fork";
const OURSELVES: &str = "/proc/self/exe";

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

    /// Has a supervisor make a sandbox; the channel to it.
    async fn launch(&self, spec: &Spec) -> Result<Channel, SandboxError> {
        let packet = spec.encode();
        let mut running = self.running.lock().await;
        for is_last_try in [false, true] {
            if running.is_none() {
                *running = Some(self.start()?);
            }
            let Some(launcher) = running.as_mut() else { break };
            match launcher.launch(&packet).await {
                Ok(channel) => return Ok(channel),
                Err(error) if is_last_try => return Err(self.failed(error)),
                // It was killed; another one does as well.
                Err(_) => *running = None,
            }
        }
        Err(SandboxError::Ended(End::Unknown))
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
    async fn launch(&mut self, packet: &[u8]) -> io::Result<Channel> {
        let channel = match self.spare.take() {
            Some(channel) => channel,
            None => self.fork().await?,
        };
        channel.send(packet, &[]).await?;
        // A launcher that cannot fork any more is replaced when the next sandbox is wanted.
        self.spare = self.fork().await.ok();
        Ok(channel)
    }

    /// Has a supervisor forked that listens to the other end of the returned channel.
    async fn fork(&self) -> io::Result<Channel> {
        let (ours, theirs) = channel::pair()?;
        self.channel.send(FORK, &[theirs.as_fd()]).await?;
        Channel::new(ours)
    }
}

type Pending = Arc<Mutex<HashMap<u64, oneshot::Sender<Ended>>>>;

/// One sandbox.
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

/// A sandbox that runs, its workspace's directory, and what is limited as a whole.
pub struct Started {
    /// The sandbox.
    pub backend: Namespaces,
    /// The workspace's directory.
    pub workspace: OwnedFd,
    /// Which limits hold for the episode.
    pub containment: Containment,
}

impl Namespaces {
    /// Starts a sandbox. A launcher that dies over the request is replaced, and asked once more.
    pub async fn start(launcher: &Launcher, spec: &Spec) -> Result<Started, SandboxError> {
        match Self::start_once(launcher, spec).await {
            Err(SandboxError::Launcher { .. }) => Self::start_once(launcher, spec).await,
            started => started,
        }
    }

    async fn start_once(launcher: &Launcher, spec: &Spec) -> Result<Started, SandboxError> {
        let channel = launcher.launch(spec).await?;
        let mut containment = Containment::default();
        let workspace = loop {
            let Received { packet, descriptors } = match channel.receive().await {
                // Whoever should have read the description is gone.
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Received::default(),
                received => received?,
            };
            match Reply::decode(&packet) {
                Ok(Reply::Contained(it)) => containment = it,
                Ok(Reply::Ready) => {
                    break descriptors.into_iter().next().ok_or(SandboxError::Ended(End::Unknown))?;
                }
                Ok(Reply::Failed { step, errno }) => return Err(SandboxError::Refused { step, errno }),
                Ok(Reply::Over(end)) => return Err(SandboxError::Ended(end)),
                _ => return Err(launcher.failed(io::Error::other("it ended without an answer"))),
            }
        };
        Ok(Started { backend: Self::listen(channel), workspace, containment })
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
        let packet = match channel.receive().await {
            Ok(Received { packet, .. }) => packet,
            // It ended before it read all that we sent; what it said is still there.
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => continue,
            Err(_) => break,
        };
        match Reply::decode(&packet) {
            Ok(Reply::Exited { job, exit }) => tell(&pending, job, Ok(exit)),
            Ok(Reply::NotStarted { job, errno }) => tell(&pending, job, Err(errno)),
            Ok(Reply::Measured(time)) => drop(used.send_replace(time)),
            // The groups are removed before the socket closes.
            Ok(Reply::Over(it)) => end = it,
            // The socket closed, or the other end is not ours any more.
            _ => break,
        }
    }
    for (_, waiting) in lock(&pending).drain() {
        let _ = waiting.send(Ok(Exit::Lost));
    }
    let _ = over.send(Some(end));
}

fn tell(pending: &Pending, job: u64, ended: Ended) {
    if let Some(waiting) = lock(pending).remove(&job) {
        // Nobody may be waiting any more.
        let _ = waiting.send(ended);
    }
}

fn lock(pending: &Pending) -> std::sync::MutexGuard<'_, HashMap<u64, oneshot::Sender<Ended>>> {
    pending.lock().unwrap_or_else(PoisonError::into_inner)
}

#[async_trait]
impl Backend for Namespaces {
    async fn start(&self, start: Start) -> Result<oneshot::Receiver<Ended>, SandboxError> {
        let Start { job, argv, cwd, env, stdin, stdout, stderr } = start;
        let (sender, receiver) = oneshot::channel();
        lock(&self.pending).insert(job, sender);
        let packet = Request::Run { job, cwd, argv, env }.encode();
        let sent = self.channel.send(&packet, &[stdin.as_fd(), stdout.as_fd(), stderr.as_fd()]).await;
        match sent {
            Ok(()) if self.end.borrow().is_none() => Ok(receiver),
            Err(error) if error.kind() == io::ErrorKind::ArgumentListTooLong => {
                lock(&self.pending).remove(&job);
                Err(SandboxError::BadCommand("it is longer than 200 KiB"))
            }
            _ => {
                lock(&self.pending).remove(&job);
                Err(SandboxError::Ended(self.ended().await))
            }
        }
    }

    async fn kill(&self, job: u64) {
        // A sandbox that is gone has killed it already.
        let _ = self.channel.send(&Request::Kill { job }.encode(), &[]).await;
    }

    async fn processor_time(&self) -> Option<Duration> {
        let mut used = self.used.clone();
        used.mark_unchanged();
        self.channel.send(&Request::Measure.encode(), &[]).await.ok()?;
        used.changed().await.ok()?;
        Some(*used.borrow())
    }

    async fn stop(&self) {
        self.channel.close();
        self.ended().await;
    }
}
