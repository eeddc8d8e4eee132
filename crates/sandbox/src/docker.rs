//! The Docker sandbox: one container per episode, driven through the engine's command line.
//!
//! The arguments are pure functions. The container lives as long as our end of its standard input:
//! when we go away, however that happens, its first process reads the end and the engine removes it.
//! The workspace is a directory of the machine, so its size is not limited; memory, processes and
//! processors are, by the engine, for the episode as a whole.

use std::process::Stdio;
use std::time::Duration;

use async_trait::async_trait;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::process::{Child, ChildStdin, Command};
use tokio::sync::{Mutex, oneshot};

use super::backend::{Backend, Start};
use super::config::WORKSPACE;
use super::config::{DockerConfig, Limits, Priority};
use super::error::SandboxError;
use super::hostdir::HostDir;
use super::job::Ended;
use super::processes::{Processes, bare_command};

/// The image may have to be fetched first.
const START_TIMEOUT: Duration = Duration::from_secs(600);
const READY: &str = "ready";

/// What a container is made from.
#[derive(Clone, Debug)]
pub struct Container<'a> {
    /// Its name.
    pub name: &'a str,
    /// The image.
    pub image: &'a str,
    /// The engine's runtime, if it is to be another than its own.
    pub runtime: Option<&'a str>,
    /// The directory of the machine that becomes the workspace.
    pub workspace: &'a str,
    /// The user and group inside, and so of the files.
    pub user: (u32, u32),
    /// The limits.
    pub limits: &'a Limits,
    /// Whose programs it is for.
    pub priority: Priority,
    /// Whether it may use the network.
    pub network: bool,
}

/// The arguments that start a container which lives until its standard input ends.
pub fn run_arguments(container: &Container<'_>) -> Vec<String> {
    let Container { name, image, runtime, workspace, user: (uid, gid), limits, priority, network } =
        container;
    let mut arguments = words("run --rm --interactive --init --read-only --cap-drop ALL");
    arguments.extend(words("--security-opt no-new-privileges --ipc private"));
    arguments.extend(runtime.iter().flat_map(|it| ["--runtime".to_owned(), (*it).to_owned()]));
    arguments.extend(["--network".to_owned(), if *network { "bridge" } else { "none" }.to_owned()]);
    arguments.extend(limit_arguments(limits));
    arguments.extend(["--cpu-shares".to_owned(), priority.share_of(1024).to_string()]);
    arguments.extend(["--name".to_owned(), (*name).to_owned(), "--user".to_owned(), format!("{uid}:{gid}")]);
    arguments.extend(["--workdir".to_owned(), WORKSPACE.to_owned()]);
    arguments.extend(["--mount".to_owned(), format!("type=bind,source={workspace},destination={WORKSPACE}")]);
    arguments.extend(["--tmpfs".to_owned(), format!("/tmp:rw,nosuid,nodev,size={}", limits.scratch)]);
    arguments.push((*image).to_owned());
    arguments.extend(["sh".to_owned(), "-c".to_owned(), format!("echo {READY}; exec cat >/dev/null")]);
    arguments
}

fn limit_arguments(limits: &Limits) -> Vec<String> {
    let Limits { memory, processes, file_size, cpu_seconds, open_files, scratch, .. } = limits;
    words(&format!(
        "--memory {memory} --memory-swap {memory} --pids-limit {processes} --shm-size {scratch} \
         --ulimit nofile={open_files}:{open_files} --ulimit fsize={file_size}:{file_size} \
         --ulimit cpu={cpu_seconds}:{cpu_seconds} --ulimit core=0:0"
    ))
}

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

/// The arguments that run a program in a container, which first notes its process id.
pub fn exec_arguments(
    name: &str,
    job: u64,
    cwd: &str,
    env: &[(String, String)],
    argv: &[String],
) -> Vec<String> {
    let mut arguments = words("exec --interactive --workdir");
    arguments.push(cwd.to_owned());
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
pub fn kill_arguments(name: &str, job: u64) -> Vec<String> {
    let kill = format!("kill -s KILL -- -\"$(cat /tmp/.job-{job})\"");
    vec!["exec".to_owned(), name.to_owned(), "sh".to_owned(), "-c".to_owned(), kill]
}

/// The arguments that remove a container, dead or alive.
pub fn remove_arguments(name: &str) -> Vec<String> {
    vec!["rm".to_owned(), "--force".to_owned(), name.to_owned()]
}

/// One container.
#[derive(Debug)]
pub struct Docker {
    config: DockerConfig,
    name: String,
    processes: Processes,
    /// The client that holds the container, and the input whose end ends it.
    holder: Mutex<Option<(Child, ChildStdin)>>,
    _directory: HostDir,
}

impl Docker {
    /// Starts a container and waits until it answers.
    pub async fn start(
        config: &DockerConfig,
        container: &Container<'_>,
        directory: HostDir,
    ) -> Result<Self, SandboxError> {
        let failed =
            |error: std::io::Error| SandboxError::Docker(format!("{}: {error}", config.program.display()));
        let mut holder = Command::new(&config.program)
            .args(run_arguments(container))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()
            .map_err(failed)?;
        let stdin = holder.stdin.take();
        tokio::time::timeout(START_TIMEOUT, await_ready(&mut holder)).await.map_err(|_| {
            SandboxError::Docker("the container did not start within 10 minutes".to_owned())
        })??;
        Ok(Self {
            config: config.clone(),
            name: container.name.to_owned(),
            processes: Processes::default(),
            holder: Mutex::new(stdin.map(|stdin| (holder, stdin))),
            _directory: directory,
        })
    }

    async fn call(&self, arguments: Vec<String>) {
        let mut command = Command::new(&self.config.program);
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

#[async_trait]
impl Backend for Docker {
    async fn start(&self, start: Start) -> Result<oneshot::Receiver<Ended>, SandboxError> {
        let Start { job, argv, cwd, env, stdin, stdout, stderr } = start;
        let mut command = bare_command(&self.config.program, [stdin, stdout, stderr]);
        command.args(exec_arguments(&self.name, job, &cwd, &env, &argv));
        Ok(self.processes.start(job, command))
    }

    async fn kill(&self, job: u64) {
        self.call(kill_arguments(&self.name, job)).await;
        self.processes.kill(job);
    }

    /// The engine can be asked only from inside, where it could be made to lie.
    async fn processor_time(&self) -> Option<Duration> {
        None
    }

    async fn stop(&self) {
        let holder = self.holder.lock().await.take();
        self.call(remove_arguments(&self.name)).await;
        self.processes.kill_all();
        if let Some((mut child, stdin)) = holder {
            drop(stdin);
            let _ = child.wait().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    #[test]
    fn containers_are_started_locked_down() {
        let limits = Limits::default();
        let container = Container {
            name: "backsight-1",
            image: "python:3.12-slim",
            runtime: None,
            workspace: "/tmp/w",
            user: (1000, 100),
            limits: &limits,
            priority: Priority::Episode,
            network: false,
        };
        let expected = expect![[r#"
            run --rm --interactive --init --read-only --cap-drop ALL --security-opt no-new-privileges --ipc private --network none --memory 2147483648 --memory-swap 2147483648 --pids-limit 128 --shm-size 67108864 --ulimit nofile=1024:1024 --ulimit fsize=268435456:268435456 --ulimit cpu=600:600 --ulimit core=0:0 --cpu-shares 1024 --name backsight-1 --user 1000:100 --workdir /workspace --mount type=bind,source=/tmp/w,destination=/workspace --tmpfs /tmp:rw,nosuid,nodev,size=67108864 python:3.12-slim sh -c echo ready; exec cat >/dev/null"#]];
        expected.assert_eq(&run_arguments(&container).join(" "));
        let runtime = Some("runsc");
        let other = Container { network: true, priority: Priority::Verifier, runtime, ..container };
        let other = run_arguments(&other);
        for expected in [["--network", "bridge"], ["--cpu-shares", "10240"], ["--runtime", "runsc"]] {
            assert!(other.windows(2).any(|it| it == expected), "{expected:?}");
        }
    }

    #[test]
    fn programs_are_named_so_that_they_can_be_killed() {
        let env = [("PATH".to_owned(), "/bin".to_owned()), ("HOME".to_owned(), "/tmp".to_owned())];
        let argv = ["sh".to_owned(), "-c".to_owned(), "echo 'a b'".to_owned()];
        let arguments = exec_arguments("box", 7, "/workspace/sub", &env, &argv);
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
        assert_eq!(remove_arguments("box"), ["rm", "--force", "box"]);
    }
}
