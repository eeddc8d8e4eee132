//! The Docker sandbox: one container per episode, driven through the engine's command line.
//!
//! The arguments are pure functions. The container lives as long as our end of its standard input:
//! when we go away, however that happens, its first process reads the end and the engine removes it.
//! The workspace is a directory of the machine, so its size is not limited; memory, processes and
//! processors are, by the engine, for the episode as a whole.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Mutex;
use std::time::Duration;

use async_trait::async_trait;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::process::{Child, ChildStdin, Command};
use tokio::sync::{Mutex as AsyncMutex, oneshot};

use super::backend::Backend;
use super::config::{Limits, Priority, SandboxConfig, WORKSPACE};
use super::error::SandboxError;
use super::protocol::{Ended, Exit, Run};
use super::sys::lock;

/// The image may have to be fetched first.
const START_TIMEOUT: Duration = Duration::from_secs(600);
const READY: &str = "ready";

/// What one container is called, holds and is for.
#[derive(Debug)]
pub struct Container {
    pub name: String,
    /// The directory of the machine that becomes the workspace.
    pub workspace: String,
    /// The user and group inside, and so of the files.
    pub user: (u32, u32),
    /// Whose programs it is for.
    pub priority: Priority,
}

/// The arguments that start a container which lives until its standard input ends.
fn run_arguments(config: &SandboxConfig, container: &Container) -> Vec<String> {
    let Container { name, workspace, user: (uid, gid), priority } = container;
    let Limits { memory, processes, file_size, cpu_seconds, open_files, scratch, .. } = config.limits;
    let network = if config.network { "bridge" } else { "none" };
    let mut arguments = words(
        "run --rm --interactive --init --read-only --cap-drop ALL --security-opt no-new-privileges --ipc private",
    );
    arguments.extend(config.docker.runtime.iter().flat_map(|it| ["--runtime".to_owned(), it.clone()]));
    arguments.extend(words(&format!(
        "--network {network} --memory {memory} --memory-swap {memory} --pids-limit {processes} --shm-size {scratch} \
         --ulimit nofile={open_files}:{open_files} --ulimit fsize={file_size}:{file_size} \
         --ulimit cpu={cpu_seconds}:{cpu_seconds} --ulimit core=0:0 --cpu-shares {} --name {name} \
         --user {uid}:{gid} --workdir {WORKSPACE} --mount",
        priority.share_of(1024)
    )));
    arguments.push(format!("type=bind,source={workspace},destination={WORKSPACE}"));
    arguments.extend(words(&format!("--tmpfs /tmp:rw,nosuid,nodev,size={scratch}")));
    arguments.extend([config.docker.image.clone(), "sh".to_owned(), "-c".to_owned()]);
    arguments.push(format!("echo {READY}; exec cat >/dev/null"));
    arguments
}

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

/// The arguments that run a program in a container, which first notes its process id.
fn exec_arguments(name: &str, run: &Run) -> Vec<String> {
    let Run { job, argv, cwd, env } = run;
    let mut arguments = words("exec --interactive --workdir");
    arguments.push(cwd.clone());
    // The image knows where its programs are.
    for (variable, value) in env.iter().filter(|(variable, _)| variable != "PATH") {
        arguments.extend(["--env".to_owned(), format!("{variable}={value}")]);
    }
    let note = format!("echo $$ > /tmp/.job-{job}; exec \"$@\"");
    arguments.extend([name.to_owned(), "sh".to_owned(), "-c".to_owned(), note, "sh".to_owned()]);
    arguments.extend(argv.iter().cloned());
    arguments
}

/// The arguments that kill a program and its session.
fn kill_arguments(name: &str, job: u64) -> Vec<String> {
    let kill = format!("kill -s KILL -- -\"$(cat /tmp/.job-{job})\"");
    vec!["exec".to_owned(), name.to_owned(), "sh".to_owned(), "-c".to_owned(), kill]
}

#[derive(Debug)]
pub struct Docker {
    program: PathBuf,
    name: String,
    /// The clients that wait for programs, by our names for those; one that is not held any more is killed.
    clients: Mutex<HashMap<u64, oneshot::Sender<()>>>,
    /// The client that holds the container, and the input whose end ends it.
    holder: AsyncMutex<Option<(Child, ChildStdin)>>,
}

impl Docker {
    /// Starts a container and waits until it answers.
    pub async fn start(config: &SandboxConfig, container: Container) -> Result<Self, SandboxError> {
        let program = &config.docker.program;
        let failed = |error: std::io::Error| SandboxError::Docker(format!("{}: {error}", program.display()));
        let mut holder = Command::new(program)
            .args(run_arguments(config, &container))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()
            .map_err(failed)?;
        let stdin = holder.stdin.take();
        let late = |_| SandboxError::Docker("the container did not start within 10 minutes".to_owned());
        tokio::time::timeout(START_TIMEOUT, await_ready(&mut holder)).await.map_err(late)??;
        Ok(Self {
            program: program.clone(),
            name: container.name,
            clients: Mutex::default(),
            holder: AsyncMutex::new(stdin.map(|stdin| (holder, stdin))),
        })
    }

    async fn call(&self, arguments: Vec<String>) {
        let mut command = Command::new(&self.program);
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        // The container may be gone already, which is what was wanted.
        let _ = command.status().await;
    }
}

/// Waits for the word of the container's first process.
async fn await_ready(holder: &mut Child) -> Result<(), SandboxError> {
    let mut line = String::new();
    if let Some(stdout) = holder.stdout.take() {
        BufReader::new(stdout).read_line(&mut line).await?;
    }
    if line.trim() == READY {
        return Ok(());
    }
    let mut reason = Vec::new();
    if let Some(stderr) = holder.stderr.take() {
        stderr.take(4096).read_to_end(&mut reason).await?;
    }
    Err(SandboxError::Docker(format!(
        "the container did not start: {}",
        String::from_utf8_lossy(&reason).trim()
    )))
}

/// Waits for a program's client, which is killed when it is unwanted.
async fn wait_for(mut client: Child, unwanted: oneshot::Receiver<()>, sender: oneshot::Sender<Ended>) {
    let status = tokio::select! {
        status = client.wait() => status,
        _ = unwanted => {
            // It may have ended a moment ago.
            let _ = client.start_kill();
            client.wait().await
        }
    };
    // Nobody may be waiting any more.
    let _ = sender.send(Ok(status.map_or(Exit::Lost, Exit::from)));
}

#[async_trait]
impl Backend for Docker {
    async fn start(&self, run: Run, streams: [OwnedFd; 3]) -> Result<oneshot::Receiver<Ended>, SandboxError> {
        let [stdin, stdout, stderr] = streams.map(Stdio::from);
        let mut client = Command::new(&self.program);
        client.args(exec_arguments(&self.name, &run)).stdin(stdin).stdout(stdout).stderr(stderr);
        let (sender, ended) = oneshot::channel();
        match client.process_group(0).spawn() {
            Ok(client) => {
                let (wanted, unwanted) = oneshot::channel();
                lock(&self.clients).insert(run.job, wanted);
                tokio::spawn(wait_for(client, unwanted, sender));
            }
            // Nobody has gone away yet.
            Err(error) => drop(sender.send(Err(error.raw_os_error().unwrap_or(libc::EINVAL)))),
        }
        Ok(ended)
    }

    async fn kill(&self, job: u64) {
        self.call(kill_arguments(&self.name, job)).await;
        lock(&self.clients).remove(&job);
    }

    /// The engine can be asked only from inside, where it could be made to lie.
    async fn processor_time(&self) -> Option<Duration> {
        None
    }

    async fn stop(&self) {
        let holder = self.holder.lock().await.take();
        self.call(words(&format!("rm --force {}", self.name))).await;
        lock(&self.clients).clear();
        if let Some((mut child, stdin)) = holder {
            drop(stdin);
            let _ = child.wait().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::super::config::DockerConfig;
    use super::*;

    #[test]
    fn containers_are_started_locked_down() {
        let container = |priority| Container {
            name: "backsight-1".to_owned(),
            workspace: "/tmp/w".to_owned(),
            user: (1000, 100),
            priority,
        };
        let config = SandboxConfig::default();
        let expected = expect![[r#"
            run --rm --interactive --init --read-only --cap-drop ALL --security-opt no-new-privileges --ipc private --network none --memory 2147483648 --memory-swap 2147483648 --pids-limit 128 --shm-size 67108864 --ulimit nofile=1024:1024 --ulimit fsize=268435456:268435456 --ulimit cpu=600:600 --ulimit core=0:0 --cpu-shares 1024 --name backsight-1 --user 1000:100 --workdir /workspace --mount type=bind,source=/tmp/w,destination=/workspace --tmpfs /tmp:rw,nosuid,nodev,size=67108864 python:3.12-slim sh -c echo ready; exec cat >/dev/null"#]];
        expected.assert_eq(&run_arguments(&config, &container(Priority::Episode)).join(" "));
        let docker = DockerConfig { runtime: Some("runsc".to_owned()), ..config.docker };
        let config = SandboxConfig { network: true, docker, ..SandboxConfig::default() };
        let other = run_arguments(&config, &container(Priority::Verifier));
        for expected in [["--network", "bridge"], ["--cpu-shares", "10240"], ["--runtime", "runsc"]] {
            assert!(other.windows(2).any(|it| it == expected), "{expected:?}");
        }
    }

    #[test]
    fn programs_are_named_so_that_they_can_be_killed() {
        let env = [("PATH".to_owned(), "/bin".to_owned()), ("HOME".to_owned(), "/tmp".to_owned())];
        let argv = ["sh".to_owned(), "-c".to_owned(), "echo 'a b'".to_owned()];
        let run = Run { job: 7, argv: argv.to_vec(), cwd: "/workspace/sub".to_owned(), env: env.to_vec() };
        let arguments = exec_arguments("box", &run);
        let expected = [
            "exec",
            "--interactive",
            "--workdir",
            "/workspace/sub",
            "--env",
            "HOME=/tmp",
            "box",
            "sh",
            "-c",
            "echo $$ > /tmp/.job-7; exec \"$@\"",
            "sh",
            "sh",
            "-c",
            "echo 'a b'",
        ];
        assert_eq!(arguments, expected);
        assert_eq!(kill_arguments("box", 7)[4], "kill -s KILL -- -\"$(cat /tmp/.job-7)\"");
    }
}
