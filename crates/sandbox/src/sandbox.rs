//! One sandbox: programs are run in it, and its files are reached through it.
//!
//! Owns [`Sandbox`] and what it is told. How it is contained is behind `backend`.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tempfile::TempDir;

use super::backend::Backend;
use super::budget::Budget;
use super::capture::Capture;
use super::config::Containment;
use super::error::SandboxError;
use super::job::{Input, Job};
use super::protocol::{Ended, Exit, Run};
use super::sys::lock;
use super::workspace::Workspace;

/// How long a killed program may take to be gone before it is given up.
const KILL_GRACE: Duration = Duration::from_secs(5);
/// No kernel takes a longer argument.
const MAX_ARGUMENT: usize = 128 << 10;

/// What to run.
#[derive(Debug)]
pub enum Program {
    /// A line for the shell.
    Shell(String),
    /// A program and its arguments.
    Argv(Vec<String>),
}

/// Where a program reads from and writes to; what it writes elsewhere is captured.
#[derive(Debug)]
pub enum Streams {
    /// It reads these bytes; both its outputs are captured as one.
    Captured(Vec<u8>),
    /// It reads what [`Sandbox::write_background`] sends it while it runs; both its outputs are captured as one.
    Fed,
    /// It reads and writes these descriptors; its standard error is captured.
    Connected {
        /// Its standard input.
        stdin: OwnedFd,
        /// Its standard output.
        stdout: OwnedFd,
    },
}

/// A program to run in a sandbox.
#[derive(Debug)]
pub struct Command {
    /// What.
    pub program: Program,
    /// Where, as the episode sees it; the workspace when absent.
    pub cwd: Option<String>,
    /// Variables besides the sandbox's own.
    pub env: Vec<(String, String)>,
    /// Its streams.
    pub streams: Streams,
    /// When it is killed.
    pub timeout: Duration,
    /// How much processor time its sandbox may use until it ends, whichever of its processes does; without limit
    /// when absent. Where that cannot be measured (in a container) it is killed after this time.
    pub processor_time: Option<Duration>,
    /// How many bytes of its output are kept.
    pub output_cap: usize,
}

impl Command {
    /// A line for the shell, with nothing to read, two minutes of time and a mebibyte of output.
    pub fn shell(line: impl Into<String>) -> Self {
        Self {
            program: Program::Shell(line.into()),
            cwd: None,
            env: Vec::new(),
            streams: Streams::Captured(Vec::new()),
            timeout: Duration::from_secs(120),
            processor_time: None,
            output_cap: 1 << 20,
        }
    }

    /// A program and its arguments; the rest as for `shell`.
    pub fn argv<S: Into<String>>(argv: impl IntoIterator<Item = S>) -> Self {
        let argv = argv.into_iter().map(Into::into).collect();
        Self { program: Program::Argv(argv), ..Self::shell("") }
    }
}

/// What became of a program.
#[derive(Clone, Debug)]
pub struct Output {
    /// How it ended.
    pub exit: Exit,
    /// What it wrote.
    pub capture: Capture,
    /// Whether it was killed because its time or its processor time was over.
    pub timed_out: bool,
    /// How long it ran.
    pub duration: Duration,
    /// The processor time used meanwhile; absent where no limit was asked for, or it cannot be measured.
    pub processor_time: Option<Duration>,
}

/// A program in the background.
#[derive(Clone, Debug)]
pub struct BackgroundStatus {
    /// Its name.
    pub id: u64,
    /// What it was called with.
    pub command: String,
    /// How it ended; absent while it runs.
    pub exit: Option<Exit>,
    /// How long it ran, or has run so far.
    pub duration: Duration,
    /// What it wrote so far.
    pub capture: Capture,
}

/// One running sandbox. Dropping it kills everything in it.
#[derive(Debug)]
pub struct Sandbox {
    backend: Box<dyn Backend>,
    workspace: Workspace,
    shell: String,
    env: Vec<(String, String)>,
    containment: Containment,
    next_job: AtomicU64,
    background: Mutex<BTreeMap<u64, Job>>,
    /// What of the machine belongs to the episode; removed when all in it is dead.
    _directory: Option<TempDir>,
}

impl Sandbox {
    pub(super) fn new(
        backend: Box<dyn Backend>,
        workspace: Workspace,
        shell: &str,
        env: Vec<(String, String)>,
        containment: Containment,
        directory: Option<TempDir>,
    ) -> Self {
        let (shell, next_job, background) = (shell.to_owned(), AtomicU64::new(1), Mutex::default());
        Self { backend, workspace, shell, env, containment, next_job, background, _directory: directory }
    }

    /// The episode's files.
    pub fn workspace(&self) -> &Workspace {
        &self.workspace
    }

    /// Which limits hold for the whole episode.
    pub fn containment(&self) -> Containment {
        self.containment
    }

    /// Runs a program to its end, or kills it when its time is over.
    pub async fn run(&self, command: Command) -> Result<Output, SandboxError> {
        self.run_beside(command, &[]).await
    }

    /// Runs a program that has others work for it: the processor time of their sandboxes counts as its own.
    pub async fn run_beside(&self, command: Command, others: &[&Sandbox]) -> Result<Output, SandboxError> {
        let timeout = command.timeout;
        // The shell itself is there, so it is the directory that is not.
        let directory = command.cwd.clone().filter(|_| matches!(command.program, Program::Shell(_)));
        let counted = [&[self], others].concat().iter().map(|it| &*it.backend).collect();
        let budget = Budget::open(counted, command.processor_time).await;
        let (id, job) = self.start(command).await?;
        let in_time = tokio::select! {
            end = job.wait() => Some(end),
            () = tokio::time::sleep(timeout) => None,
            () = budget.exhausted() => None,
        };
        let timed_out = in_time.is_none();
        let (ended, duration) = match in_time {
            Some(end) => end,
            None => self.kill_and_wait(id, &job).await,
        };
        let exit = started(ended, &job.command, directory)?;
        let processor_time = budget.used().await;
        Ok(Output { exit, capture: job.output(), timed_out, duration, processor_time })
    }

    /// The processor time that its programs have used so far; absent where it is not known.
    pub async fn processor_time(&self) -> Option<Duration> {
        self.backend.processor_time().await
    }

    async fn kill_and_wait(&self, id: u64, job: &Job) -> (Ended, Duration) {
        self.backend.kill(id).await;
        let end = tokio::time::timeout(KILL_GRACE, job.wait()).await;
        end.unwrap_or_else(|_| (Ok(Exit::Lost), job.started.elapsed()))
    }

    /// Starts a program and leaves it running; its name. Its timeout does not count.
    pub async fn start_background(&self, command: Command) -> Result<u64, SandboxError> {
        let (id, job) = self.start(command).await?;
        lock(&self.background).insert(id, job);
        Ok(id)
    }

    /// The names of all programs in the background, in the order they were started.
    pub fn background(&self) -> Vec<u64> {
        lock(&self.background).keys().copied().collect()
    }

    /// One program in the background.
    pub fn poll_background(&self, id: u64) -> Option<BackgroundStatus> {
        lock(&self.background).get(&id).map(|job| status(id, job))
    }

    /// Waits for the end of a program in the background, no longer than `timeout`; what became of it so far.
    pub async fn wait_background(&self, id: u64, timeout: Duration) -> Option<BackgroundStatus> {
        let job = lock(&self.background).get(&id).cloned()?;
        // Whether it ended in time is in its status.
        let _ = tokio::time::timeout(timeout, job.wait()).await;
        Some(status(id, &job))
    }

    /// Sends bytes to a program in the background that is fed, as many as it has room for; how many.
    pub fn write_background(&self, id: u64, bytes: &[u8]) -> Option<io::Result<usize>> {
        lock(&self.background).get(&id).map(|job| job.input.write(bytes))
    }

    /// Ends what a program in the background reads; false where there is no such program.
    pub fn close_background(&self, id: u64) -> bool {
        lock(&self.background).get(&id).map(|job| job.input.close()).is_some()
    }

    /// Forgets a program in the background and what it wrote. It runs on if it runs.
    pub fn forget_background(&self, id: u64) {
        lock(&self.background).remove(&id);
    }

    /// Kills a program in the background and returns what became of it.
    pub async fn kill_background(&self, id: u64) -> Option<BackgroundStatus> {
        let job = lock(&self.background).get(&id).cloned()?;
        if job.ended().is_none() {
            let _ = self.kill_and_wait(id, &job).await;
        }
        Some(status(id, &job))
    }

    /// Kills everything and returns when it is dead. The workspace can still be read.
    pub async fn stop(&self) {
        self.backend.stop().await;
    }

    async fn start(&self, command: Command) -> Result<(u64, Job), SandboxError> {
        let job = self.next_job.fetch_add(1, Ordering::Relaxed);
        let Command { program, cwd, env, streams, output_cap, .. } = command;
        let text = match &program {
            Program::Shell(line) => line.clone(),
            Program::Argv(argv) => argv.join(" "),
        };
        let argv = self.argv(program)?;
        let (output, writer) = io::pipe()?;
        let (stdin, stdout, input) = connect(streams, &writer)?;
        let env = self.env.iter().cloned().chain(env).collect();
        let cwd = cwd.unwrap_or_else(|| self.workspace.inside().to_owned());
        let run = Run { job, argv, cwd, env };
        let ended = self.backend.start(run, [stdin, stdout, writer.into()]).await?;
        Ok((job, Job::watch(text, input, output.into(), output_cap, ended)?))
    }

    fn argv(&self, program: Program) -> Result<Vec<String>, SandboxError> {
        let argv = match program {
            Program::Shell(line) => vec![self.shell.clone(), "-c".to_owned(), line],
            Program::Argv(argv) => argv,
        };
        if argv.is_empty() {
            return Err(SandboxError::BadCommand("it is empty"));
        }
        if argv.iter().any(|it| it.contains('\0')) {
            return Err(SandboxError::BadCommand("it contains a NUL character"));
        }
        if argv.iter().any(|it| it.len() >= MAX_ARGUMENT) {
            return Err(SandboxError::BadCommand("an argument is longer than 128 KiB"));
        }
        Ok(argv)
    }
}

/// Standard input and output of a program, and what can be written into the former while it runs.
fn connect(streams: Streams, output: &io::PipeWriter) -> io::Result<(OwnedFd, OwnedFd, Input)> {
    let (stdin, input) = match streams {
        Streams::Connected { stdin, stdout } => return Ok((stdin, stdout, Input::default())),
        Streams::Captured(bytes) if bytes.is_empty() => (File::open("/dev/null")?.into(), Input::default()),
        Streams::Captured(bytes) => (feed(bytes)?, Input::default()),
        Streams::Fed => {
            let (reader, writer) = io::pipe()?;
            (reader.into(), Input::open(writer.into())?)
        }
    };
    Ok((stdin, output.try_clone()?.into(), input))
}

/// An input that holds these bytes, which are written without waiting for them to be read.
fn feed(bytes: Vec<u8>) -> io::Result<OwnedFd> {
    let (reader, writer) = io::pipe()?;
    let mut writer = tokio::net::unix::pipe::Sender::from_owned_fd(writer.into())?;
    // A program that does not read to the end is its own business.
    tokio::spawn(async move { drop(tokio::io::AsyncWriteExt::write_all(&mut writer, &bytes).await) });
    Ok(reader.into())
}

fn started(ended: Ended, program: &str, directory: Option<String>) -> Result<Exit, SandboxError> {
    ended.map_err(|errno| {
        let error = io::Error::from_raw_os_error(errno);
        match directory.filter(|_| [libc::ENOENT, libc::ENOTDIR, libc::EACCES].contains(&errno)) {
            Some(directory) => SandboxError::NoDirectory { directory, error },
            None => SandboxError::NotStarted { program: program.to_owned(), error },
        }
    })
}

fn status(id: u64, job: &Job) -> BackgroundStatus {
    let end = job.ended();
    BackgroundStatus {
        id,
        command: job.command.clone(),
        exit: end.map(|(ended, _)| ended.unwrap_or(Exit::Lost)),
        duration: end.map_or_else(|| job.started.elapsed(), |(_, duration)| duration),
        capture: job.output(),
    }
}
