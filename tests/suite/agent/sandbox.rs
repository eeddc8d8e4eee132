//! The sandbox as its users see it: programs run, limits are told, failures are explained.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use backsight::sandbox::{
    Command, DockerConfig, End, Exit, Limits, Priority, Sandbox, SandboxConfig, SandboxError, SandboxKind,
    Sandboxes, Streams,
};

use super::{init, python, sandboxes, shell, start, start_kind};

#[tokio::test]
async fn programs_run_with_input_environment_and_directory() {
    let sandbox = start(Limits::default()).await;
    sandbox.workspace().write("dir/file.txt", b"hello").unwrap();
    let mut command = Command::shell("cat - file.txt; echo \" $NAME\"; pwd");
    command.cwd = Some("/workspace/dir".into());
    command.env = vec![("NAME".into(), "value".into())];
    command.streams = Streams::Captured(b"input ".to_vec());
    let output = sandbox.run(command).await.unwrap();
    assert_eq!(
        (output.exit, output.capture.text().as_str()),
        (Exit::Code(0), "input hello value\n/workspace/dir\n")
    );
}

#[tokio::test]
async fn ends_are_told_apart() {
    let sandbox = start(Limits::default()).await;
    assert_eq!(shell(&sandbox, "exit 7").await.0, Exit::Code(7));
    assert_eq!(shell(&sandbox, "kill -SEGV $$").await.0, Exit::Signal(11));
    let error = sandbox.run(Command::argv(["/no/such/program"])).await.unwrap_err();
    assert!(
        matches!(&error, SandboxError::NotStarted { error, .. } if error.raw_os_error() == Some(2)),
        "{error}"
    );
    let error = sandbox.run(Command::shell("x".repeat(1 << 20))).await.unwrap_err();
    assert!(matches!(error, SandboxError::BadCommand(_)), "{error}");
    let error = sandbox.run(Command::shell("a\0b")).await.unwrap_err();
    assert!(matches!(error, SandboxError::BadCommand(_)), "{error}");
}

#[tokio::test]
async fn both_sides_see_the_same_files() {
    let sandbox = start(Limits::default()).await;
    sandbox.workspace().write("from_outside.txt", b"one").unwrap();
    let (_, text) =
        shell(&sandbox, "cat from_outside.txt; echo two > from_outside.txt; mkdir d; echo three > d/x").await;
    assert_eq!(text, "one");
    let read = |path: &str| String::from_utf8(sandbox.workspace().read(path, 99).unwrap().bytes).unwrap();
    assert_eq!((read("from_outside.txt").as_str(), read("d/x").as_str()), ("two\n", "three\n"));
    sandbox.workspace().write("d/x", b"four").unwrap();
    let (_, owner) = shell(&sandbox, "cat d/x; stat -c ' %U' from_outside.txt d/x").await;
    assert_eq!(owner, "four agent\n agent");
}

#[tokio::test]
async fn python_is_there_under_both_names_and_nothing_of_its_home() {
    let sandbox = start(Limits::default()).await;
    let (exit, versions) = shell(&sandbox, "python --version && python3 --version").await;
    assert_eq!(exit, Exit::Code(0), "{versions}");
    let modules = "import ctypes, decimal, json, multiprocessing, sqlite3, ssl, unittest; print('fine')";
    assert_eq!(python(&sandbox, modules).await, "fine");
    let prefix = python(&sandbox, "import sys; print(sys.prefix)").await;
    if Path::new(&prefix).starts_with("/root") || Path::new(&prefix).starts_with("/home") {
        let home = Path::new(&prefix).components().take(3).collect::<std::path::PathBuf>();
        let (_, seen) =
            shell(&sandbox, &format!("find /root /home -maxdepth 9 -not -path '{prefix}*' 2>/dev/null"))
                .await;
        let outside: Vec<&str> = seen.lines().filter(|it| !Path::new(&prefix).starts_with(it)).collect();
        assert_eq!(outside, Vec::<&str>::new(), "below {}", home.display());
    }
    let (exit, _) = shell(&sandbox, &format!("touch {prefix}/x || touch {prefix}/lib/x")).await;
    assert_ne!(exit, Exit::Code(0));
}

#[tokio::test]
async fn processes_can_talk_to_themselves() {
    let sandbox = start(Limits::default()).await;
    let program = "
import multiprocessing, socket
server = socket.create_server(('127.0.0.1', 0))
client = socket.create_connection(server.getsockname())
client.sendall(b'loop')
print(server.accept()[0].recv(9).decode())
with multiprocessing.Pool(2) as pool:
    print(sum(pool.map(abs, range(-9, 9))))
";
    assert_eq!(python(&sandbox, program).await, "loop\n81");
}

#[tokio::test]
async fn a_command_that_ignores_everything_ends_with_its_time() {
    let sandbox = start(Limits::default()).await;
    let mut command =
        Command::shell("trap '' TERM INT HUP; echo started; sleep 1000 & while :; do sleep 1; done");
    command.timeout = Duration::from_millis(600);
    let output = sandbox.run(command).await.unwrap();
    assert_eq!((output.exit, output.timed_out), (Exit::Signal(9), true));
    // On a busy machine it has not come so far.
    assert!("started\n".starts_with(&output.capture.text()));
    let (_, left) = shell(&sandbox, "ls /proc | grep -c '^[0-9]'").await;
    assert!(left.parse::<u32>().unwrap() <= 5, "{left} processes are left");
}

#[tokio::test]
async fn a_command_ends_though_its_children_keep_printing() {
    let sandbox = start(Limits::default()).await;
    let mut command = Command::shell("setsid sh -c 'while :; do echo noise; done' & sleep 0.2; echo done");
    command.output_cap = 4096;
    let output = sandbox.run(command).await.unwrap();
    assert_eq!((output.exit, output.timed_out), (Exit::Code(0), false));
    assert!(output.capture.text().len() < 6000);
}

#[tokio::test]
async fn background_programs_are_listed_polled_and_killed() {
    let sandbox = start(Limits::default()).await;
    let id = sandbox.start_background(Command::shell("echo ready; sleep 1000")).await.unwrap();
    let quick = sandbox.start_background(Command::shell("exit 3")).await.unwrap();
    loop {
        let is_ready = sandbox.poll_background(id).unwrap().capture.text() == "ready\n";
        if is_ready && sandbox.poll_background(quick).unwrap().exit == Some(Exit::Code(3)) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let exits: Vec<_> =
        sandbox.background().into_iter().map(|id| (id, sandbox.poll_background(id).unwrap().exit)).collect();
    assert_eq!(exits, [(id, None), (quick, Some(Exit::Code(3)))]);
    assert_eq!(sandbox.kill_background(id).await.unwrap().exit, Some(Exit::Signal(9)));
    assert!(sandbox.kill_background(999).await.is_none() && sandbox.poll_background(999).is_none());
}

#[tokio::test]
async fn a_stopped_sandbox_runs_nothing_but_its_files_stay() {
    let sandbox = start(Limits::default()).await;
    sandbox.workspace().write("kept.txt", b"kept").unwrap();
    let waiting = sandbox.start_background(Command::shell("sleep 1000")).await.unwrap();
    sandbox.stop().await;
    let error = sandbox.run(Command::shell("true")).await.unwrap_err();
    assert!(matches!(error, SandboxError::Ended(End::Stopped)), "{error}");
    let lost = sandbox.wait_background(waiting, Duration::from_secs(3600)).await.unwrap();
    assert_eq!(lost.exit, Some(Exit::Lost));
    assert_eq!(sandbox.workspace().read("kept.txt", 9).unwrap().bytes, b"kept");
}

#[tokio::test]
async fn the_wall_clock_ends_a_sandbox() {
    let sandbox = start(Limits { wall_seconds: 1, ..Limits::default() }).await;
    match sandbox.run(Command::shell("sleep 1000")).await {
        Ok(output) => assert_eq!((output.exit, output.timed_out), (Exit::Lost, false)),
        // On a busy machine it is over before anything can be run.
        Err(error) => assert!(matches!(error, SandboxError::Ended(End::WallClock)), "{error}"),
    }
}

#[tokio::test]
async fn programs_that_cannot_be_the_launcher_are_refused() {
    let start = async |init: &str| {
        let config = SandboxConfig { init: Some(init.into()), ..SandboxConfig::default() };
        Sandboxes::new(config).start().await.unwrap_err().to_string()
    };
    let missing = start("/no/such/launcher").await;
    assert!(missing.contains("/no/such/launcher") && missing.contains("help:"), "{missing}");
    let other = start("/bin/true").await;
    assert!(other.contains("help:"), "{other}");
    let unset = Sandboxes::new(SandboxConfig::default()).start().await.unwrap_err().to_string();
    assert!(unset.contains("does not answer to the hidden argument"), "{unset}");
}

/// The limits on this machine are those of whole episodes; where they are not, tests that count on
/// it must fail here first.
#[tokio::test]
async fn memory_is_limited_per_episode_here() {
    let sandbox = start(Limits::default()).await;
    assert!(
        sandbox.containment().memory_per_episode,
        "no cgroup for memory could be made: {:?}",
        sandbox.containment()
    );
}

/// The processes of this machine that were called with a word, by id.
fn processes_called(word: &str) -> Vec<u32> {
    let pids =
        std::fs::read_dir("/proc").unwrap().flatten().filter_map(|it| it.file_name().to_str()?.parse().ok());
    let has_word = |pid: &u32| {
        let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&command).split('\0').any(|it| it == word)
    };
    pids.filter(has_word).collect()
}

/// A number in `/proc/PID/stat`, counted from the parent's id.
fn stat(pid: u32, field: usize) -> i64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.rsplit_once(')').unwrap().1.split_whitespace().nth(1 + field).unwrap().parse().unwrap()
}

/// A program of a sandbox that only waits, and the sandbox's first process, by the machine's ids.
async fn program_and_init(sandbox: &Sandbox) -> (u32, u32) {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let word = format!("called-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
    let wait = Command::argv(["sh", "-c", "sleep 1000 & wait", &word]);
    sandbox.start_background(wait).await.unwrap();
    loop {
        if let [program] = processes_called(&word)[..] {
            return (program, u32::try_from(stat(program, 0)).unwrap());
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Burns processor time in four processes at once, one of them out of sight, until it is stopped.
const BUSY: &str = "
import os
for _ in range(2):
    os.fork()
if os.fork() == 0:
    os.setsid()
while True:
    pass
";

#[tokio::test]
async fn processor_time_is_that_of_all_processes_together() {
    for kind in [SandboxKind::Namespaces, SandboxKind::None] {
        let sandbox = start_kind(kind, Limits::default()).await;
        let allowed = Duration::from_secs(1);
        let mut command = Command::argv(["python3", "-c", BUSY]);
        (command.processor_time, command.timeout) = (Some(allowed), Duration::from_secs(3600));
        let output = sandbox.run(command).await.unwrap();
        assert!(output.timed_out && output.processor_time.unwrap() >= allowed, "{output:?}");
        let one = sandbox.processor_time().await.unwrap();
        assert!(one >= allowed, "the sandbox itself says so: {one:?}");
    }
}

#[tokio::test]
async fn processor_time_counts_what_others_do_for_a_program() {
    let (asking, working) = (start(Limits::default()).await, start(Limits::default()).await);
    working.start_background(Command::argv(["python3", "-c", BUSY])).await.unwrap();
    let wait = |processor_time| Command { processor_time, ..Command::shell("sleep 1000") };
    let output = asking.run_beside(wait(Some(Duration::from_secs(1))), &[&working]).await.unwrap();
    assert!(output.timed_out && output.processor_time.unwrap() >= Duration::from_secs(1), "{output:?}");
}

/// A machine that gives a program nothing for longer than it may use is none of its fault.
#[tokio::test]
async fn a_program_that_gets_no_processor_goes_on_when_it_gets_one() {
    let sandbox = start(Limits::default()).await;
    let allowed = Duration::from_millis(1500);
    let wait = "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)\nprint('went on')";
    let mut command = Command::argv(["python3", "-c", wait]);
    (command.processor_time, command.timeout) = (Some(allowed), Duration::from_secs(3600));
    let wake = "until pid=$(grep -ls '^State:.T' /proc/[0-9]*/status | cut -d/ -f3) && [ $pid ]; do sleep 0.05; done; sleep 3; kill -CONT $pid";
    let (output, _) = tokio::join!(sandbox.run(command), shell(&sandbox, wake));
    let output = output.unwrap();
    assert_eq!((output.exit, output.capture.text().as_str()), (Exit::Code(0), "went on\n"));
    assert!(!output.timed_out && output.processor_time.unwrap() < allowed, "{output:?}");
}

/// What a control group's file says for a process, in version 1 or 2.
fn group_setting(pid: u32, controller: &str, [v1, v2]: [&str; 2]) -> String {
    let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    let path = |wanted: &str| {
        let of = |line: &str| line.split(':').nth(1).unwrap().split(',').any(|it| it == wanted);
        groups.lines().find(|line| of(line)).map(|line| line.splitn(3, ':').nth(2).unwrap())
    };
    let file = match path(controller) {
        Some(path) => format!("/sys/fs/cgroup/{controller}{path}/{v1}"),
        None => format!("/sys/fs/cgroup{}/{v2}", path("").unwrap()),
    };
    std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{file}: {error}")).trim().to_owned()
}

/// The limits on this machine are those of whole episodes, as for memory.
#[tokio::test]
async fn episodes_share_the_processors_and_their_judges_go_first() {
    let sandboxes = sandboxes(SandboxKind::Namespaces, Limits::default());
    let shares = async |priority| {
        let sandbox = sandboxes.start_for(priority).await.unwrap();
        assert!(sandbox.containment().processors_per_episode, "{:?}", sandbox.containment());
        let (program, _) = program_and_init(&sandbox).await;
        let share: u64 = group_setting(program, "cpu", ["cpu.shares", "cpu.weight"]).parse().unwrap();
        (share, stat(program, 15))
    };
    let (episode, verifier) = (shares(Priority::Episode).await, shares(Priority::Verifier).await);
    assert_eq!((verifier.0, verifier.1, episode.1), (10 * episode.0, 0, 0));
    assert!([100, 1024].contains(&episode.0), "as any other group: {}", episode.0);
}

/// So many busy processes, each a session of its own, so that no scheduler takes them for one.
fn busy(n_processes: usize) -> Command {
    Command::shell(format!(
        "for i in $(seq {n_processes}); do setsid sh -c 'while :; do :; done' & done; wait"
    ))
}

/// What a judge with one busy process for each processor gets beside an episode with eight, as a share of what both
/// use. Counted over two seconds of processor time, however long a busy machine takes to give them.
async fn share_of_a_judge(sandboxes: &Sandboxes) -> f64 {
    let n_processors = std::thread::available_parallelism().unwrap().get();
    let episode = sandboxes.start_for(Priority::Episode).await.unwrap();
    let judge = sandboxes.start_for(Priority::Verifier).await.unwrap();
    episode.start_background(busy(8 * n_processors)).await.unwrap();
    judge.start_background(busy(n_processors)).await.unwrap();
    let used = async || (episode.processor_time().await.unwrap(), judge.processor_time().await.unwrap());
    let until = async |is_enough: &dyn Fn(Duration, Duration) -> bool| loop {
        let (episode, judge) = used().await;
        if is_enough(episode, judge) {
            return (episode, judge);
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    let begun = Duration::from_millis(100);
    let before = until(&|episode, judge| episode.min(judge) >= begun).await;
    let enough = before.0 + before.1 + Duration::from_secs(2);
    let after = until(&|episode, judge| episode + judge >= enough).await;
    let (episode, judge) = ((after.0 - before.0).as_secs_f64(), (after.1 - before.1).as_secs_f64());
    judge / (episode + judge)
}

#[tokio::test]
async fn a_judge_gets_its_share_beside_many_busy_processes() {
    let share = share_of_a_judge(&sandboxes(SandboxKind::Namespaces, Limits::default())).await;
    // Ten of eleven parts are its own; as one process among nine it would get a ninth.
    assert!(share > 0.7, "{share:.3}");
}

#[tokio::test]
async fn a_program_goes_before_the_first_process_and_cannot_change_that() {
    let sandbox = start(Limits::default()).await;
    let (_, said) = shell(&sandbox, "cat /proc/1/oom_score_adj /proc/self/oom_score_adj").await;
    let ours = std::fs::read_to_string("/proc/self/oom_score_adj").unwrap();
    assert_eq!(said, format!("{ours}{}", ours.trim().parse::<i32>().unwrap().max(500)));
    let tries = "for it in oom_score_adj oom_adj autogroup comm; do echo 0 2>/dev/null > /proc/self/$it && echo $it; done; nice -n -5 true && renice -n 0 $$";
    let (_, said) =
        shell(&sandbox, &format!("{tries}; (echo end > /dev/stdout) | cat; cat <(echo fine)")).await;
    assert!(said.ends_with("end\nfine") && !said.contains("adj"), "{said}");
}

/// Takes memory that belongs to no process until somebody is killed, having made itself the last to be.
const UNSELFISH: &str = "
import os
try:
    open('/proc/self/oom_score_adj', 'w').write('0')
except OSError:
    pass
file = os.memfd_create('x')
while True:
    os.write(file, bytes(1 << 20))
";

#[tokio::test]
async fn a_program_cannot_have_the_sandbox_killed_for_its_memory() {
    let sandbox = start(Limits { memory: 64 << 20, ..Limits::default() }).await;
    for _ in 0..3 {
        let output = sandbox.run(Command::argv(["python3", "-c", UNSELFISH])).await.unwrap();
        assert_eq!(output.exit, Exit::Signal(9), "{}", output.capture.text());
    }
    assert_eq!(shell(&sandbox, "echo fine").await.1, "fine");
}

async fn end_of(sandbox: &Sandbox) -> String {
    // It may have ended before.
    let _ = sandbox.run(Command::shell("sleep 1000")).await;
    sandbox.run(Command::shell("true")).await.unwrap_err().to_string()
}

#[tokio::test]
async fn a_lost_sandbox_says_why() {
    let sandbox = start(Limits { wall_seconds: 1, ..Limits::default() }).await;
    let over = end_of(&sandbox).await;
    assert!(over.contains("its time was over") && over.contains("--sandbox-wall-seconds"), "{over}");
    if is_root() {
        let sandbox = start(Limits::default()).await;
        let (_, init) = program_and_init(&sandbox).await;
        rustix::process::kill_process(
            rustix::process::Pid::from_raw(init as i32).unwrap(),
            rustix::process::Signal::KILL,
        )
        .unwrap();
        let killed = end_of(&sandbox).await;
        assert!(killed.contains("signal 9") && !killed.contains("wall"), "{killed}");
        let sandbox = start(Limits { memory: 64 << 20, ..Limits::default() }).await;
        let wait = "until [ -e go ]; do sleep 0.05; done; exec python3 -c \"$0\"";
        let hog = sandbox.start_background(Command::argv(["sh", "-c", wait, UNSELFISH])).await.unwrap();
        let (_, init) = program_and_init(&sandbox).await;
        std::fs::write(format!("/proc/{init}/oom_score_adj"), "1000").unwrap();
        sandbox.workspace().write("go", b"").unwrap();
        while sandbox.poll_background(hog).unwrap().exit.is_none() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let memory = sandbox.run(Command::shell("true")).await.unwrap_err().to_string();
        assert!(memory.contains("--sandbox-memory-mb") && !memory.contains("wall"), "{memory}");
    }
}

/// A stand-in for the engine's client: `run` says ready and waits for the end of its input, `exec`
/// runs the program here, and every call is written down.
const FAKE_DOCKER: &str = r#"#!/bin/sh
here=$(dirname "$0")
echo "$@" >> "$here/calls"
case "$1" in
run)
  for word in "$@"; do case "$word" in type=bind,source=*) word=${word#*source=}; echo "${word%%,*}" > "$here/workspace";; esac; done
  echo ready; cat > /dev/null; echo ended >> "$here/calls";;
exec)
  shift; while [ "$1" != "${1#--}" ]; do case "$1" in --interactive) shift;; --env) export "$2"; shift 2;; *) shift 2;; esac; done
  shift; cd "$(cat "$here/workspace")"; exec "$@";;
esac
"#;

fn docker(dir: &Path, script: &str) -> Sandboxes {
    let program = dir.join("docker");
    std::fs::write(&program, script).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    let docker = DockerConfig { program, runtime: Some("runsc".to_owned()), ..DockerConfig::default() };
    Sandboxes::new(SandboxConfig { kind: SandboxKind::Docker, docker, ..SandboxConfig::default() })
}

#[tokio::test]
async fn a_container_is_started_used_and_removed() {
    let dir = tempfile::tempdir().unwrap();
    let sandbox = docker(dir.path(), FAKE_DOCKER).start().await.unwrap();
    sandbox.workspace().write("x.txt", b"hello").unwrap();
    assert_eq!(
        shell(&sandbox, "cat x.txt; echo \" $LANG\"; exit 4").await,
        (Exit::Code(4), "hello C.UTF-8".into())
    );
    let mut slow = Command::shell("sleep 1000");
    slow.timeout = Duration::from_millis(300);
    assert!(sandbox.run(slow).await.unwrap().timed_out);
    sandbox.stop().await;
    let calls = std::fs::read_to_string(dir.path().join("calls")).unwrap();
    let verbs: Vec<&str> = calls.lines().map(|it| it.split(' ').next().unwrap()).collect();
    assert_eq!(verbs[..4], ["run", "exec", "exec", "exec"], "{calls}");
    assert!(verbs.contains(&"rm") && verbs.contains(&"ended"), "{calls}");
    assert!(calls.contains("kill -s KILL") && calls.contains(" --runtime runsc "), "{calls}");
}

#[tokio::test]
async fn an_engine_that_does_not_start_says_why() {
    let dir = tempfile::tempdir().unwrap();
    let sandboxes = docker(dir.path(), "#!/bin/sh\necho 'Cannot connect to the daemon' >&2\nexit 1\n");
    let error = sandboxes.start().await.unwrap_err().to_string();
    assert!(error.contains("Cannot connect to the daemon") && error.contains("help:"), "{error}");
}

#[tokio::test]
async fn without_a_sandbox_programs_run_all_the_same() {
    let sandbox = start_kind(SandboxKind::None, Limits::default()).await;
    sandbox.workspace().write("x.txt", b"hello").unwrap();
    assert_eq!(shell(&sandbox, "cat x.txt").await, (Exit::Code(0), "hello".into()));
    let mut slow = Command::shell("sleep 1000 & sleep 1000");
    slow.timeout = Duration::from_millis(200);
    assert!(sandbox.run(slow).await.unwrap().timed_out);
    let directory = sandbox.workspace().inside().to_owned();
    assert!(Path::new(&directory).exists());
    drop(sandbox);
    assert!(!Path::new(&directory).exists());
}

/// A sandbox in a test that was started again as somebody else, with a copy of the launcher.
fn config_of_helper(limits: Limits) -> SandboxConfig {
    let init = std::env::var_os("BACKSIGHT_TEST_INIT").map(Into::into);
    SandboxConfig { init, limits, ..SandboxConfig::default() }
}

/// A virtual environment of its own below the directory for temporary files.
fn make_venv() -> (tempfile::TempDir, std::path::PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let venv = dir.path().canonicalize().unwrap().join("venv");
    let made = std::process::Command::new("python3")
        .args(["-m", "venv", "--without-pip"])
        .arg(&venv)
        .status()
        .unwrap();
    assert!(made.success());
    (dir, venv)
}

#[tokio::test]
async fn an_interpreter_below_tmp_is_the_one_that_runs() {
    let (_dir, venv) = make_venv();
    for kind in [SandboxKind::Namespaces, SandboxKind::None] {
        let python_path = Some(venv.join("bin/python3"));
        let config = SandboxConfig { kind, init: init(), python: python_path, ..SandboxConfig::default() };
        let sandboxes = Sandboxes::new(config);
        sandboxes.try_out().await.unwrap_or_else(|error| panic!("{error}"));
        let sandbox = sandboxes.start().await.unwrap();
        let prefix = python(&sandbox, "import sys; print(sys.prefix)").await;
        assert_eq!(Path::new(&prefix), venv);
        let (exit, _) = shell(&sandbox, "echo x > /tmp/mine && cat /tmp/mine").await;
        assert_eq!(exit, Exit::Code(0), "the rest of /tmp is the episode's own");
    }
}

#[tokio::test]
async fn an_interpreter_under_another_name_is_the_one_that_runs() {
    let (_dir, venv) = make_venv();
    // `python3` beside it is something else.
    for name in ["python", "python3"] {
        std::fs::remove_file(venv.join("bin").join(name)).unwrap();
        std::fs::write(venv.join("bin").join(name), "#!/bin/sh\necho another\n").unwrap();
        std::fs::set_permissions(venv.join("bin").join(name), PermissionsExt::from_mode(0o755)).unwrap();
    }
    let base = std::process::Command::new("python3")
        .args(["-c", "import sys; print(sys._base_executable)"])
        .output()
        .unwrap();
    let base = String::from_utf8(base.stdout).unwrap();
    std::os::unix::fs::symlink(base.trim(), venv.join("bin/python-x")).unwrap();
    let python_path = Some(venv.join("bin/python-x"));
    let sandboxes =
        Sandboxes::new(SandboxConfig { init: init(), python: python_path, ..SandboxConfig::default() });
    match sandboxes.try_out().await {
        // Whether an environment is recognised through our name for it depends on the interpreter; if it is
        // not, that must be said.
        Ok(_) => {
            let sandbox = sandboxes.start().await.unwrap();
            assert_eq!(Path::new(&python(&sandbox, "import sys; print(sys.prefix)").await), venv);
        }
        Err(error) => assert!(error.to_string().contains("and should be"), "{error}"),
    }
}

#[tokio::test]
async fn our_own_program_cannot_be_read_where_it_would_be_shown() {
    let (_dir, venv) = make_venv();
    let [ours, copy] = ["backsight", "copy"].map(|name| venv.join("bin").join(name));
    std::fs::copy(init().unwrap(), &ours).unwrap();
    std::fs::hard_link(&ours, &copy).unwrap();
    let python_path = Some(venv.join("bin/python3"));
    let config = SandboxConfig { init: Some(ours.clone()), python: python_path, ..SandboxConfig::default() };
    let sandbox = Sandboxes::new(config).start().await.unwrap();
    // The hidden tests of a built-in task.
    let look = |path: &Path| format!("grep -c 'from solution import merge_intervals' {}", path.display());
    assert_eq!(shell(&sandbox, &look(&copy)).await.0, Exit::Code(0), "the control did not work");
    let (exit, said) = shell(&sandbox, &look(&ours)).await;
    assert!(exit != Exit::Code(0) && said.contains("denied"), "{exit:?} {said}");
    let (exit, _) = shell(&sandbox, "grep -c merge_intervals /proc/1/exe").await;
    assert_ne!(exit, Exit::Code(0));
}

#[tokio::test]
async fn without_a_sandbox_nothing_is_left_running_either() {
    let sandbox = start_kind(SandboxKind::None, Limits::default()).await;
    let strays = "
        setsid sh -c 'echo $$ >> pids; sleep 300' &
        (setsid setsid env -i sh -c 'echo $$ >> pids; exec sleep 300' &) &
        (trap '' TERM HUP INT; setsid sh -c 'echo $BASHPID $$ >> pids; while :; do sleep 1; done' &) &
        while [ \"$(cat pids 2>/dev/null | wc -l)\" -lt 3 ]; do sleep 0.05; done; cat pids";
    let (exit, pids) = shell(&sandbox, strays).await;
    let pids: Vec<u32> = pids.split_whitespace().map(|it| it.parse().unwrap()).collect();
    assert!(exit == Exit::Code(0) && pids.len() >= 3, "{pids:?}");
    let alive = || pids.iter().filter(|pid| Path::new(&format!("/proc/{pid}")).exists()).count();
    assert!(alive() >= 3, "the control did not work");
    sandbox.stop().await;
    assert_eq!(alive(), 0, "every process is dead when it has stopped");
}

/// Run by other tests as an ordinary user, and as the root of a container.
#[tokio::test]
#[ignore = "a helper of other tests"]
async fn works_helper() {
    let sandbox = Sandboxes::new(config_of_helper(Limits::default())).start().await;
    let sandbox = sandbox.unwrap_or_else(|error| panic!("{error}"));
    sandbox.workspace().write("x", b"1").unwrap();
    let line = "id -u; cat x; python3 -c 'print(2)'; touch /usr/x /etc/x 2>/dev/null || echo no; grep CapEff /proc/self/status";
    let (exit, text) = shell(&sandbox, line).await;
    assert_eq!(
        (exit, text.replace('\t', " ").as_str()),
        (Exit::Code(0), "1000\n12\nno\nCapEff: 0000000000000000")
    );
    let limits = Limits { processes: 20, memory: 512 << 20, ..Limits::default() };
    let sandbox = Sandboxes::new(config_of_helper(limits)).start().await.unwrap();
    if !sandbox.containment().memory_per_episode {
        // Then each process is limited by itself, and memory that belongs to none does not exist.
        let hog = "try:\n    bytearray(1 << 30)\nexcept MemoryError:\n    print('bounded')\nimport os\ntry:\n    os.memfd_create('x')\nexcept OSError:\n    print('absent')";
        assert_eq!(python(&sandbox, hog).await, "bounded\nabsent");
    }
    let niceness = python(&sandbox, "import os; print(os.nice(0))").await;
    let by_group = sandbox.containment().processors_per_episode;
    assert_eq!(niceness, if by_group { "0" } else { "10" }, "without groups niceness puts episodes last");
    let n_forks: u32 = python(&sandbox, super::redteam::FORKS).await.parse().unwrap();
    assert!((10..20).contains(&n_forks), "{n_forks}");
}

/// Run by `a_kernel_that_forbids_namespaces_is_an_error_with_its_reason`.
#[tokio::test]
#[ignore = "a helper of another test"]
async fn refused_helper() {
    let error = Sandboxes::new(config_of_helper(Limits::default())).start().await.unwrap_err().to_string();
    let expected = "the sandbox cannot be made, because the kernel refuses user namespaces: cannot create user, mount, pid, network, ipc and uts namespaces: No space left on device (os error 28)\nhelp: raise the number of namespaces (sysctl user.max_user_namespaces), or lower --concurrency";
    assert_eq!(error, expected);
}

/// Runs a helper of this program behind `prefix`, with copies that everybody may read.
fn run_helper(prefix: &[&str], helper: &str) {
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let (test, init_copy) = (dir.path().join("test"), dir.path().join("init"));
    std::fs::copy(std::env::current_exe().unwrap(), &test).unwrap();
    std::fs::copy(init().unwrap(), &init_copy).unwrap();
    let output = std::process::Command::new(prefix[0])
        .args(&prefix[1..])
        .arg(&test)
        .args(["--ignored", "--exact", helper, "--nocapture"])
        .env("BACKSIGHT_TEST_INIT", &init_copy)
        .current_dir("/")
        .output()
        .unwrap();
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

/// Tests that run as an ordinary user show by themselves that one can make sandboxes; what needs
/// root to be set up can only be shown as root.
fn is_root() -> bool {
    std::os::unix::fs::MetadataExt::uid(&std::fs::metadata("/proc/self").unwrap()) == 0
}

#[test]
fn an_ordinary_user_can_make_sandboxes() {
    if is_root() {
        let ordinary = ["setpriv", "--reuid", "23456", "--regid", "23456", "--clear-groups", "--"];
        run_helper(&ordinary, "agent::sandbox::works_helper");
    }
}

/// Run by `without_groups_niceness_decides_where_it_counts`.
#[tokio::test]
#[ignore = "a helper of another test"]
async fn niceness_helper() {
    let sandboxes = Sandboxes::new(config_of_helper(Limits::default()));
    let containment = sandboxes.try_out().await.unwrap();
    assert!(!containment.processors_per_episode && !containment.memory_per_episode, "{containment:?}");
    let share = share_of_a_judge(&sandboxes).await;
    // An eighth of the processes and each ten times as heavy: more than half. Among sessions: a ninth.
    assert!(share > if containment.niceness_counts { 0.4 } else { 0.0 }, "{share:.3}");
}

/// A machine on which nobody may make a control group, because none can be seen.
#[test]
fn without_groups_niceness_decides_where_it_counts() {
    if is_root() {
        let hide = "umount -a -l -t cgroup,cgroup2 && exec \"$0\" \"$@\"";
        run_helper(&["unshare", "-m", "sh", "-c", hide], "agent::sandbox::niceness_helper");
        run_helper(&["unshare", "-m", "sh", "-c", hide], "agent::sandbox::works_helper");
    }
}

/// Runs a program in user and mount namespaces with 65536 ids, as containers without privileges have.
const CONTAINER: &str = "
import ctypes, os, sys
ready, mapped = os.pipe(), os.pipe()
pid = os.fork()
if pid == 0:
    assert ctypes.CDLL(None).unshare(0x10000000 | 0x00020000) == 0
    os.write(ready[1], b'1')
    os.read(mapped[0], 1)
    os.setgid(0)
    os.setuid(0)
    os.execvp(sys.argv[1], sys.argv[1:])
os.read(ready[0], 1)
for kind in ('uid', 'gid'):
    with open(f'/proc/{pid}/{kind}_map', 'w') as file:
        file.write('0 0 65536')
os.write(mapped[1], b'1')
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
";

#[test]
fn the_root_of_a_container_can_make_sandboxes() {
    if is_root() {
        run_helper(&["python3", "-c", CONTAINER], "agent::sandbox::works_helper");
    }
}

#[test]
fn a_kernel_that_forbids_namespaces_is_an_error_with_its_reason() {
    if is_root() {
        // The switch is that of the new user namespace alone.
        let forbid = "echo 0 > /proc/sys/user/max_user_namespaces; exec \"$0\" \"$@\"";
        run_helper(&["python3", "-c", CONTAINER, "sh", "-c", forbid], "agent::sandbox::refused_helper");
    }
}
