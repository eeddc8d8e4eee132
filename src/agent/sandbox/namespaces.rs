//! Our side of the namespace sandbox: starting the launcher once, and one channel per sandbox.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use tokio::process::Child;
use tokio::sync::{Mutex as AsyncMutex, oneshot, watch};

use super::backend::{Backend, Start};
use super::cgroup;
use super::channel::{self, Channel, Received};
use super::error::SandboxError;
use super::job::Ended;
use super::launcher::{HIDDEN_ARGUMENT, this_program_answers};
use super::protocol::{Containment, Exit, Reply, Request, Spec};

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
    /// One that was begun before anybody needed it.
    spare: Option<Spare>,
    /// Kept so that the process is collected when it ends.
    _process: Child,
}

/// A supervisor that waits to be told what to make, or a sandbox that it makes or has made already.
#[derive(Debug)]
struct Spare {
    channel: Channel,
    /// What it was told.
    packet: Option<Vec<u8>>,
}

/// The channel to a supervisor at work.
struct Launched {
    channel: Channel,
    /// Whether it was told before anybody needed it, so that what it met may have passed since.
    is_old: bool,
}

impl Launcher {
    /// A launcher that runs `program`, or ourselves.
    pub fn new(program: Option<PathBuf>) -> Self {
        Self { program, running: AsyncMutex::new(None) }
    }

    /// Has a supervisor make a sandbox, unless one like it was made ahead.
    async fn launch(&self, spec: &Spec, ahead: Ahead) -> Result<Launched, SandboxError> {
        let packet = spec.encode();
        // Without protection each is in a place of its own, and there is nothing to be made ahead.
        let next = Some(packet.as_slice()).filter(|_| !spec.unprotected);
        let mut running = self.running.lock().await;
        for is_last_try in [false, true] {
            if running.is_none() {
                *running = Some(self.start()?);
            }
            let Some(launcher) = running.as_mut() else { break };
            match launcher.launch(&packet, next, ahead).await {
                Ok(launched) => return Ok(launched),
                Err(error) if is_last_try => return Err(self.failed(error)),
                // It was killed; another one does as well.
                Err(_) => *running = None,
            }
        }
        Err(SandboxError::Ended)
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

/// Whether a sandbox that was made ahead may be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ahead {
    Welcome,
    Refused,
}

impl Running {
    /// Takes the sandbox that was made ahead if it is what `packet` describes, else has it made; and has the next
    /// one made ahead, so that nobody has to wait for it.
    async fn launch(&mut self, packet: &[u8], next: Option<&[u8]>, ahead: Ahead) -> io::Result<Launched> {
        let launched = match self.spare.take() {
            Some(Spare { channel, packet: Some(made) }) if made == packet && ahead == Ahead::Welcome => {
                Launched { channel, is_old: true }
            }
            Some(Spare { channel, packet: None }) => self.tell(channel, packet).await?,
            // Its end is its maker's business as soon as we let go of it.
            _ => self.tell(self.fork().await?, packet).await?,
        };
        // A launcher that cannot fork any more is replaced when the next sandbox is wanted.
        self.spare = self.prepare(next).await.ok();
        Ok(launched)
    }

    async fn prepare(&self, next: Option<&[u8]>) -> io::Result<Spare> {
        let channel = self.fork().await?;
        if let Some(packet) = next {
            channel.send(packet, &[]).await?;
        }
        Ok(Spare { channel, packet: next.map(<[u8]>::to_vec) })
    }

    async fn tell(&self, channel: Channel, packet: &[u8]) -> io::Result<Launched> {
        channel.send(packet, &[]).await?;
        Ok(Launched { channel, is_old: false })
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
    gone: watch::Receiver<bool>,
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
    /// Starts a sandbox. A launcher that dies over the request is replaced, and asked once more; so is it when a
    /// sandbox that was made ahead turns out to have failed or ended.
    pub async fn start(launcher: &Launcher, spec: &Spec) -> Result<Started, SandboxError> {
        let launched = launcher.launch(spec, Ahead::Welcome).await?;
        let is_old = launched.is_old;
        match Self::await_ready(launcher, launched.channel).await {
            Err(SandboxError::Launcher { .. }) => {}
            Err(_) if is_old => {}
            Ok(started) if is_old && started.backend.channel.is_closed() => {}
            started => return started,
        }
        let again = launcher.launch(spec, Ahead::Refused).await?;
        Self::await_ready(launcher, again.channel).await
    }

    async fn await_ready(launcher: &Launcher, channel: Channel) -> Result<Started, SandboxError> {
        let mut containment = Containment::default();
        let workspace = loop {
            let Received { packet, descriptors } = match channel.receive().await {
                // Whoever should have read the description is gone.
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Received::default(),
                received => received?,
            };
            match Reply::decode(&packet) {
                Ok(Reply::Contained(it)) => containment = it,
                Ok(Reply::Ready) => break descriptors.into_iter().next().ok_or(SandboxError::Ended)?,
                Ok(Reply::Failed { step, errno }) => return Err(SandboxError::Refused { step, errno }),
                _ => return Err(launcher.failed(io::Error::other("it ended without an answer"))),
            }
        };
        Ok(Started { backend: Self::listen(channel), workspace, containment })
    }

    fn listen(channel: Channel) -> Self {
        let (channel, pending) = (Arc::new(channel), Pending::default());
        let (sender, gone) = watch::channel(false);
        let reader = tokio::spawn(read_replies(Arc::clone(&channel), Arc::clone(&pending), sender));
        Self { channel, pending, gone, reader }
    }
}

impl Drop for Namespaces {
    /// Closes the socket, at which the supervisor kills everything.
    fn drop(&mut self) {
        self.reader.abort();
    }
}

async fn read_replies(channel: Arc<Channel>, pending: Pending, gone: watch::Sender<bool>) {
    while let Ok(Received { packet, .. }) = channel.receive().await {
        let (job, ended) = match Reply::decode(&packet) {
            Ok(Reply::Exited { job, exit }) => (job, Ok(exit)),
            Ok(Reply::NotStarted { job, errno }) => (job, Err(errno)),
            // The socket closed, or the other end is not ours any more.
            _ => break,
        };
        if let Some(waiting) = lock(&pending).remove(&job) {
            // Nobody may be waiting any more.
            let _ = waiting.send(ended);
        }
    }
    for (_, waiting) in lock(&pending).drain() {
        let _ = waiting.send(Ok(Exit::Lost));
    }
    let _ = gone.send(true);
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
            Ok(()) if !*self.gone.borrow() => Ok(receiver),
            Err(error) if error.kind() == io::ErrorKind::ArgumentListTooLong => {
                lock(&self.pending).remove(&job);
                Err(SandboxError::BadCommand("it is longer than 200 KiB"))
            }
            _ => {
                lock(&self.pending).remove(&job);
                Err(SandboxError::Ended)
            }
        }
    }

    async fn kill(&self, job: u64) {
        // A sandbox that is gone has killed it already.
        let _ = self.channel.send(&Request::Kill { job }.encode(), &[]).await;
    }

    async fn stop(&self) {
        self.channel.close();
        let _ = self.gone.clone().wait_for(|gone| *gone).await;
    }
}
