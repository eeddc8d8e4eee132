//! Many sandboxes and whole episodes at once, and what they leave behind: nothing, also when we are killed.
//!
//! One test at a time in a process of its own, because it counts what this process has.
#![expect(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]
#![expect(clippy::print_stdout, reason = "measured times are for people")]

#[path = "support/student.rs"]
mod student;
mod support;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::support::machine::{descendants, is_alive, supervisors};
use crate::support::scripted::Scripted;
use async_trait::async_trait;
use backsight::agent::{AgentSetting, EpisodePlace, run_episode};
use backsight::episode::Stop;
use backsight::model::{ChatAnswer, ChatRequest, Error, GenerateRequest, Generated, Limits, Model, Scored};
use backsight::sandbox::{Command, Exit, Limits as SandboxLimits, Sandbox, SandboxConfig, Sandboxes};
use backsight::score::ScoreJob;
use backsight::tasks::{Case, Check, CodingTask, Stdio};
use tokio::sync::Barrier;

const N_SANDBOXES: usize = 200;

/// Held by each test: they count the same things.
static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

fn sandboxes() -> Sandboxes {
    sandboxes_with(SandboxLimits::default())
}

fn sandboxes_with(limits: SandboxLimits) -> Sandboxes {
    let init = Some(PathBuf::from(env!("CARGO_BIN_EXE_backsight")));
    Sandboxes::new(SandboxConfig { init, limits, ..SandboxConfig::default() })
}

/// What this process and its descendants hold of the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Held {
    processes: usize,
    mounts: usize,
    descriptors: usize,
    /// Control groups whose supervisor is dead.
    groups: usize,
    directories: usize,
}

impl Held {
    fn now() -> Self {
        let own = process::id();
        let count = |dir: &Path, prefix: &str| {
            let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
            entries.filter(|it| it.file_name().to_string_lossy().starts_with(prefix)).count()
        };
        Self {
            processes: descendants(own).len(),
            mounts: std::fs::read_to_string("/proc/self/mountinfo").unwrap().lines().count(),
            descriptors: std::fs::read_dir("/proc/self/fd").unwrap().count(),
            groups: groups().1,
            directories: count(&std::env::temp_dir(), &format!("backsight-{own}-")),
        }
    }
}

/// How many control groups there are with a living supervisor, and with a dead one.
fn groups() -> (usize, usize) {
    let (alive, dead): (Vec<u32>, Vec<u32>) = supervisors().into_iter().partition(|pid| is_alive(*pid));
    (alive.len(), dead.len())
}

/// Waits until nothing more than `expected` is held.
async fn settle(expected: &Held) -> Held {
    let deadline = Instant::now() + Duration::from_secs(60);
    while Instant::now() < deadline && Held::now() != *expected {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Held::now()
}

/// What is held once nothing changes any more.
async fn rest() -> Held {
    let mut last = Held::now();
    let mut n_same = 0;
    while n_same < 10 {
        tokio::time::sleep(Duration::from_millis(50)).await;
        let now = Held::now();
        n_same = if now == last { n_same + 1 } else { 0 };
        last = now;
    }
    last
}

/// One sandbox as an agent would use it: files, commands, a background process left running. All
/// meet at the barrier before the first ends.
async fn use_sandbox(sandboxes: Arc<Sandboxes>, idx: usize, meeting: Arc<Barrier>) {
    let sandbox = sandboxes.start().await.unwrap_or_else(|error| panic!("{error}"));
    let workspace = sandbox.workspace();
    workspace.blocking(move |it| it.write("solution.py", format!("print({idx})").as_bytes())).await.unwrap();
    sandbox.start_background(Command::shell("setsid sleep 1000")).await.unwrap();
    let output = sandbox.run(Command::shell("python3 solution.py")).await.unwrap();
    assert_eq!((output.exit, output.capture.text()), (Exit::Code(0), format!("{idx}\n")));
    if meeting.wait().await.is_leader() {
        println!("all at once: {:?}", Held::now());
    }
    meeting.wait().await;
    // Half of them are stopped, the others only dropped.
    if idx.is_multiple_of(2) {
        sandbox.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_hundred_sandboxes_leave_nothing_behind() {
    let _alone = ALONE.lock().await;
    let sandboxes = Arc::new(sandboxes());
    // What is made once, the launcher and the runtime's own threads and pipes, is no leak.
    use_sandbox(Arc::clone(&sandboxes), 0, Arc::new(Barrier::new(1))).await;
    let before = rest().await;
    assert_eq!(
        (before.processes, before.groups),
        (2, 0),
        "launcher and spare supervisor are left: {before:?}"
    );
    let began = Instant::now();
    let (mut episodes, meeting) = (tokio::task::JoinSet::new(), Arc::new(Barrier::new(N_SANDBOXES)));
    for idx in 0..N_SANDBOXES {
        episodes.spawn(use_sandbox(Arc::clone(&sandboxes), idx, Arc::clone(&meeting)));
    }
    while let Some(done) = episodes.join_next().await {
        done.unwrap();
    }
    println!("{N_SANDBOXES} concurrent sandboxes in {:?}", began.elapsed());
    let after = settle(&before).await;
    println!("before {before:?}\nafter  {after:?}");
    assert_eq!(after, before);
    drop(sandboxes);
    let none = rest().await;
    println!("without the launcher {none:?}");
    assert_eq!((none.processes, none.groups, none.mounts), (0, 0, before.mounts));
}

/// A student whose episodes meet before their last turn, so that all of them are under way at once.
struct Meeting {
    inner: Scripted,
    barrier: Barrier,
}

#[async_trait]
impl Model for Meeting {
    async fn generate(&self, request: &GenerateRequest) -> Result<Generated, Error> {
        if request.place.step == 2 {
            if self.barrier.wait().await.is_leader() {
                println!("all at once: {:?}", Held::now());
            }
            self.barrier.wait().await;
        }
        self.inner.generate(request).await
    }

    async fn score(&self, job: &ScoreJob) -> Result<Scored, Error> {
        self.inner.score(job).await
    }

    async fn chat(&self, request: &ChatRequest) -> Result<ChatAnswer, Error> {
        self.inner.chat(request).await
    }

    fn limits(&self) -> &Limits {
        self.inner.limits()
    }
}

/// The student of every fourth episode is wrong.
fn is_wrong(episode: usize) -> bool {
    episode % 4 == 3
}

/// The task of an episode: four are judged by hidden tests, the next four by what their program prints.
fn task(episode: usize) -> CodingTask {
    let task = student::task();
    if (episode / 4).is_multiple_of(2) {
        return task;
    }
    let case = Case { input: String::new(), output: "3\n".to_owned() };
    let check = Check::Stdio(Stdio { cases: vec![case], ..Stdio::default() });
    CodingTask { check: Some(check), ..task }
}

/// A student that writes a solution, looks at it, leaves a process behind and answers.
fn student() -> Scripted {
    let right = student::call(
        "write_file",
        r#"{"path": "solution.py", "content": "def add(a, b):\n    return a + b\nif __name__ == '__main__':\n    print(add(1, 2))\n"}"#,
    );
    let wrong = right.replace("a + b", "a - b");
    let look = student::call("terminal", r#"{"command": "grep -c add solution.py"}"#);
    let server = student::call("terminal", r#"{"command": "setsid sleep 1000", "background": true}"#);
    let leaves_one = format!("{look}\n{server}");
    let tokenizer = student::tokenizer();
    let end = tokenizer.end_ids()[0];
    Scripted::new(720).on_generate(move |request| {
        let solution = if is_wrong(request.place.episode) { &wrong } else { &right };
        let text = *[solution, &leaves_one, "Done."].get(request.place.step)?;
        Some([tokenizer.encode(text).ok()?.ids, vec![end]].concat())
    })
}

/// Runs that many episodes at once; the reward of each.
async fn rewards(setting: &AgentSetting, n_episodes: usize) -> BTreeMap<usize, f64> {
    let student = Arc::new(Meeting { inner: student(), barrier: Barrier::new(n_episodes) });
    let setting = Arc::new(AgentSetting { student, ..setting.clone() });
    let mut episodes = tokio::task::JoinSet::new();
    for episode in 0..n_episodes {
        let setting = Arc::clone(&setting);
        let place = EpisodePlace { episode, ..student::place() };
        episodes.spawn(async move { (episode, run_episode(&setting, &task(episode), place).await) });
    }
    let mut rewards = BTreeMap::new();
    while let Some(done) = episodes.join_next().await {
        let (idx, episode) = done.unwrap();
        assert_eq!(episode.stop, Some(Stop::Answered), "{:?} {:?}", episode.outcome, episode.messages);
        rewards.insert(idx, episode.outcome.unwrap().reward);
    }
    rewards
}

/// 110 busy processes, each a session of its own, so that no scheduler takes them for one.
const BUSY: &str = "for i in $(seq 110); do setsid sh -c 'while :; do :; done' & done; echo up; wait";
/// Takes memory until it is killed for it, again and again.
const GREEDY: &str = r#"while :; do python3 -c '
blocks = []
while True:
    blocks.append(bytearray(b"x" * (1 << 20)))
'; echo up; done"#;

/// An episode beside the others whose command takes all it can get; returns when it has begun to.
async fn start_hog(sandboxes: &Sandboxes, line: &str) -> Sandbox {
    let sandbox = sandboxes.start().await.unwrap();
    let hog = sandbox.start_background(Command::shell(line)).await.unwrap();
    while !sandbox.poll_background(hog).unwrap().capture.text().contains("up") {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    sandbox
}

#[tokio::test(flavor = "multi_thread")]
async fn hogs_beside_two_hundred_episodes_change_no_reward_and_leave_nothing() {
    let _alone = ALONE.lock().await;
    let mut setting = student::setting(student::saying(&[]));
    // Many times what these tests use, and less than they would take by the clock beside 110 equals.
    setting.options.verifier_time = Duration::from_secs(10);
    let sandboxes = sandboxes_with(SandboxLimits { memory: 256 << 20, ..SandboxLimits::default() });
    drop(sandboxes.start().await.unwrap());
    let alone = rewards(&setting, 8).await;
    let wrong: Vec<usize> = alone.iter().filter(|(_, it)| **it < 1.0).map(|(idx, _)| *idx).collect();
    assert_eq!((wrong, alone.len()), (vec![3, 7], 8), "each is rewarded as it deserves: {alone:?}");
    let before = rest().await;
    assert_eq!(
        (before.processes, before.groups),
        (4, 0),
        "of hogs and of episodes launcher and spare supervisor are left: {before:?}"
    );
    let hogs = [start_hog(&sandboxes, BUSY).await, start_hog(&sandboxes, GREEDY).await];
    let began = Instant::now();
    let beside = rewards(&setting, N_SANDBOXES).await;
    println!("{N_SANDBOXES} concurrent episodes beside hogs in {:?}", began.elapsed());
    let moved: Vec<_> = beside.iter().filter(|(idx, it)| alone.get(&(*idx % 8)) != Some(it)).collect();
    assert_eq!((moved, beside.len()), (vec![], N_SANDBOXES), "alone: {alone:?}");
    let left = hogs.map(|hog| hog.poll_background(hog.background()[0]).unwrap().exit);
    assert_eq!(left, [None, None], "they were there all the time");
    let after = settle(&before).await;
    println!("before {before:?}\nafter  {after:?}");
    assert_eq!(after, before);
}

/// Prints how long things take; for people, because times on a shared machine prove nothing.
#[tokio::test]
async fn starting_is_measured_against_a_plain_shell() {
    let _alone = ALONE.lock().await;
    let sandboxes = sandboxes();
    drop(sandboxes.start().await.unwrap());
    let (mut plain, mut start, mut first) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..50 {
        let began = Instant::now();
        process::Command::new("sh").args(["-c", "true"]).status().unwrap();
        plain.push(began.elapsed());
        let began = Instant::now();
        let sandbox = sandboxes.start().await.unwrap();
        start.push(began.elapsed());
        sandbox.run(Command::argv(["sh", "-c", "true"])).await.unwrap();
        first.push(began.elapsed());
    }
    let median = |times: &mut Vec<Duration>| {
        times.sort();
        times[times.len() / 2].as_secs_f64() * 1e3
    };
    let (plain, start, first) = (median(&mut plain), median(&mut start), median(&mut first));
    println!(
        "median of 50: sh -c true {plain:.2} ms, sandbox start {start:.2} ms ({:.1}x), start and sh -c true inside {first:.2} ms ({:.1}x)",
        start / plain,
        first / plain
    );
}

#[tokio::test]
async fn a_killed_launcher_is_replaced() {
    let _alone = ALONE.lock().await;
    let sandboxes = sandboxes();
    let first = sandboxes.start().await.unwrap();
    let launcher = descendants(process::id()).into_iter().find(|pid| is_ours(*pid)).unwrap();
    kill(launcher);
    let second = sandboxes.start().await.unwrap();
    for sandbox in [&first, &second] {
        // Sandboxes do not need the launcher that made them.
        assert_eq!(sandbox.run(Command::shell("exit 5")).await.unwrap().exit, Exit::Code(5));
    }
}

/// Run by `a_killed_owner_takes_everything_with_it`.
#[tokio::test]
#[ignore = "a helper of another test"]
async fn owner_helper() {
    let sandboxes = sandboxes();
    let sandbox = sandboxes.start().await.unwrap();
    sandbox.start_background(Command::shell("setsid setsid sleep 1000 & sleep 1000")).await.unwrap();
    let output = sandbox.run(Command::shell("sleep 0.3; echo up")).await.unwrap();
    println!("state {}", output.capture.text().trim());
    sandbox.run(Command::shell("sleep 1000")).await.unwrap();
}

/// Kills a process that owns a sandbox in the hardest way, and counts what is left of it.
#[test]
fn a_killed_owner_takes_everything_with_it() {
    let _alone = ALONE.blocking_lock();
    for kills_supervisor in [false, true] {
        let mut owner = process::Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "owner_helper", "--nocapture"])
            .stdout(process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(owner.stdout.take().unwrap()).lines().map(Result::unwrap);
        lines.find(|line| line.contains("state up")).unwrap();
        let family = descendants(owner.id());
        // Launcher, supervisor, init, and at least two programs.
        assert!(family.len() >= 5, "{family:?}");
        assert!(groups().0 > 0, "there is a control group while it lives");
        if kills_supervisor {
            // The launcher and the supervisor are killed with their owner: the kernel must do the rest.
            family.iter().filter(|pid| is_ours(**pid)).take(2).for_each(|pid| kill(*pid));
        }
        owner.kill().unwrap();
        owner.wait().unwrap();
        let deadline = Instant::now() + Duration::from_secs(30);
        let left = || {
            family
                .iter()
                .filter(|pid| Path::new(&format!("/proc/{pid}/stat")).exists() && is_alive(**pid))
                .count()
        };
        while Instant::now() < deadline && (left() > 0 || (!kills_supervisor && Held::now().groups > 0)) {
            std::thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(left(), 0, "processes live on");
        if kills_supervisor {
            // Nobody was left to remove the group; the next launcher does.
            let runtime = tokio::runtime::Runtime::new().unwrap();
            runtime.block_on(async { sandboxes().start().await.unwrap().stop().await });
        }
        assert_eq!(Held::now().groups, 0, "control groups are left");
    }
}

fn is_ours(pid: u32) -> bool {
    let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&command).contains("__sandbox-init")
}

fn kill(pid: u32) {
    assert!(process::Command::new("kill").args(["-9", &pid.to_string()]).status().unwrap().success());
}
