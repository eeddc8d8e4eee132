//! The verifier: judges what an episode left behind, by hidden tests or by what a program prints (`stdio`).
//!
//! The solution is hostile to it. First every process of the episode is dead. Then two fresh
//! sandboxes are made: in one, the *candidate* runs the solution, on a copy of the workspace without
//! the student's tests and everything else that could steer Python; in the other, the *examiner* runs
//! our copy of the tests and asks the candidate for values over a pipe. Only plain data comes back, so
//! no code of the solution runs where assertions are decided. The tests have passed when the
//! examiner's report comes back behind a secret that was made for this run: never because of an exit
//! status or a word in the output.
//!
//! Then the tests are run once more in one process with the solution, in a third sandbox, and the two runs decide
//! together. What holds in both is solved. What fails in the second fails: stand-ins show less of objects than Python
//! does, and nobody is rewarded for what they do not show. What fails with stand-ins alone is *undecided*, since it may
//! be their fault, unless plain data alone refuted an assertion (an object where tests that look at none expect data is
//! its content and no more) or the solution ended its process. The second run can be forged, which wins nothing: an
//! undecided episode has no reward, so a forger escapes being a negative at most.
//!
//! Two rules, both about the tests alone:
//!
//! * *Nothing comes from the solution that the tests did not take from it by name* (`reading.py`): from a
//!   module that is called `solution` or that the task names, by a star (only what the solution defines,
//!   no builtin and no name that the tests bind), or, where the tests take nothing so, by the names that
//!   nobody binds. Libraries never come from it.
//! * *Tests are unusable by what they are, never by what a solution does.* It is decided before the solution
//!   is asked anything, by the text: no Python, no assertion, a package or a fixture that is missing here, a
//!   name of nobody, what does not reach another process (files, programs, threads, the environment,
//!   identity, subclasses); or because the script fails in the part that comes before it needs the solution,
//!   for which its imports of the solution wait. Everything else that goes wrong is the solution's failure:
//!   whatever it raises or returns, and whatever the tests raise on that.
//!
//! What is believed: plain data, compared by the examiner's own interpreter. An object of the solution
//! answers for itself, which counts only where the tests show that they expect an object (`remote.py`);
//! where they do not, the solution has failed. Two objects are equal if the solution says so and their
//! attributes are equal plain data, told before it could know what they should be (`equality.py`). A dead or unreadable solution has
//! failed, whatever the tests catch.
//!
//! A solution sees the arguments of the calls, one after the other. Python alone is supported.

mod compare;
mod report;
mod stdio;

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::sync::{Arc, LazyLock};
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

use serde_json::json;
use tokio::io::AsyncWriteExt;
use tokio::net::unix::pipe;
use tokio::sync::Semaphore;

use crate::tasks::{Check, is_identifier};
use backsight_core::hash::hex;
use backsight_sandbox::{
    Allowance, Command, FileEntry, FileError, Output, Priority, Sandbox, SandboxError, Sandboxes, Selection,
    Streams, Workspace,
};

pub use report::{Level, TestReport, Worth};

const CANDIDATE: &str = concat!(include_str!("codec.py"), include_str!("candidate.py"));
const EXAMINER: &str = concat!(
    include_str!("codec.py"),
    include_str!("remote.py"),
    include_str!("equality.py"),
    include_str!("counting.py"),
    include_str!("reading.py"),
    include_str!("testing.py"),
    include_str!("examiner.py")
);

/// Bytes of output kept of each side; the report is shorter than the end of it.
const OUTPUT_BYTES: usize = 1 << 20;
/// Bytes that are copied for the candidate at most, modules of Python before all other files.
const MAX_COPY: u64 = 64 << 20;
/// What may be gone through to find them: some 250,000 names, fewer where directories are deep.
const MAX_LOOK: u64 = 64 << 20;

/// What tests may take by the clock, as a multiple of their processor time: on a machine that is short of
/// processors they wait rather than fail, and a solution that only sleeps ends all the same.
const CLOCK_FACTOR: u32 = 4;

/// No more tests run at once than there are processors: how many episodes end together must not decide
/// whether one of them is solved.
static PROCESSORS: LazyLock<Semaphore> = LazyLock::new(|| Semaphore::new(n_processors()));

fn n_processors() -> usize {
    available_parallelism().map_or(1, usize::from)
}

/// Runs hidden tests.
#[derive(Debug)]
pub struct Verifier<'a> {
    sandboxes: &'a Sandboxes,
    time: Time,
    asked: &'a str,
}

/// How long programs may take, by the processor and by the clock.
#[derive(Clone, Copy, Debug)]
struct Time {
    processor: Duration,
    clock: Duration,
}

impl Time {
    fn of(processor: Duration) -> Self {
        Self { processor, clock: processor.saturating_mul(CLOCK_FACTOR) }
    }
}

impl<'a> Verifier<'a> {
    /// A verifier that gives tests and solution together `timeout` of processor time, and four times as long
    /// by the clock, in sandboxes like those of episodes that go before them where processors are short.
    pub fn new(sandboxes: &'a Sandboxes, timeout: Duration) -> Self {
        Self { sandboxes, time: Time::of(timeout), asked: "" }
    }

    /// The same with so long by the clock.
    pub fn by_the_clock(self, clock: Duration) -> Self {
        Self { time: Time { clock, ..self.time }, ..self }
    }

    /// The same for a task that asks so: the modules and functions that it names may be the solution's.
    pub fn of_task(self, asked: &'a str) -> Self {
        Self { asked, ..self }
    }

    /// Ends an episode and judges its files. An error means that nothing is known about the solution.
    pub async fn judge(&self, episode: &Sandbox, check: &Check) -> Result<TestReport, SandboxError> {
        match check {
            Check::Script(test_code) => self.verify(episode, test_code).await,
            Check::Stdio(stdio) => self.run_cases(episode, stdio).await,
        }
    }

    /// Ends an episode and runs `test_code` against its files. An error means that nothing is known
    /// about the solution, because a sandbox could not be made.
    pub async fn verify(&self, episode: &Sandbox, test_code: &str) -> Result<TestReport, SandboxError> {
        episode.stop().await;
        // It is never closed.
        let _processor = PROCESSORS.acquire().await.ok();
        let started = Instant::now();
        let start = || self.sandboxes.start_for(Priority::Verifier);
        let (candidate, examiner) = tokio::try_join!(start(), start())?;
        let taken = async {
            let solution = Solution::of(episode.workspace()).await?;
            let copied = solution.copy_to(candidate.workspace()).await?;
            Ok::<_, FileError>((solution, copied))
        };
        let (solution, copied) = match taken.await {
            Ok(taken) => taken,
            Err(error) => return Ok(TestReport::failed(error.to_string(), started.elapsed())),
        };
        let secret = secret()?;
        let (modules, named) = (module_names(&copied.entries), names_in(self.asked));
        let mut job = json!({
            "secret": secret, "test_code": test_code, "modules": modules, "named": named, "together": false,
        });
        let (exam, printed) = self.examine(&examiner, &candidate, format!("{job}\n")).await?;
        let output = exam.capture.text();
        let read = |exam: &Output, output: &str| {
            TestReport::read(output, &secret, exam.timed_out, started.elapsed())
        };
        let mut report = read(&exam, &output).saying(&printed);
        if output.contains(&secret) && report.worth != Worth::Unusable {
            job["together"] = true.into();
            let exam = self.examine_together(&solution, format!("{job}\n")).await?;
            report = report.with(read(&exam, &exam.capture.text()));
        }
        tokio::join!(candidate.stop(), examiner.stop());
        Ok(report.saying(&left_out(&copied)))
    }

    /// Runs both sides; what the examiner did, and what the candidate printed.
    async fn examine(
        &self,
        examiner: &Sandbox,
        candidate: &Sandbox,
        job: String,
    ) -> Result<(Output, String), SandboxError> {
        let (questions, questions_in) = io::pipe()?;
        let (answers, answers_in) = io::pipe()?;
        let exam = self.exam(answers, questions_in);
        let hand_over = async {
            // The job goes first through the pipe that then belongs to the candidate. The solution itself
            // runs only when the examiner asks for it, having read its job: nothing is left to steal.
            let answers_in = write_first(answers_in, &job).await?;
            candidate.start_background(python(CANDIDATE, questions, answers_in)).await
        };
        let others = [candidate];
        let (exam, job) = tokio::join!(examiner.run_beside(exam, &others), hand_over);
        let printed = candidate.kill_background(job?).await.map(|it| it.capture.text());
        Ok((exam?, printed.unwrap_or_default()))
    }

    /// The examiner with its limits.
    fn exam(&self, stdin: impl Into<OwnedFd>, stdout: impl Into<OwnedFd>) -> Command {
        let mut exam = python(EXAMINER, stdin, stdout);
        exam.processor_time = Some(self.time.processor);
        exam.timeout = self.time.clock;
        exam
    }

    /// Runs the tests once more, with the solution in their process.
    async fn examine_together(&self, solution: &Solution<'_>, job: String) -> Result<Output, SandboxError> {
        let sandbox = self.sandboxes.start_for(Priority::Verifier).await?;
        // What could be copied before can be copied again.
        solution.copy_to(sandbox.workspace()).await.map_err(io::Error::other)?;
        let (jobs, jobs_in) = io::pipe()?;
        // Nobody listens, and who writes there must not wait.
        let nowhere = File::options().write(true).open("/dev/null")?;
        let exam = self.exam(jobs, nowhere);
        let (exam, written) = tokio::join!(sandbox.run(exam), write_first(jobs_in, &job));
        written?;
        sandbox.stop().await;
        exam
    }
}

/// A Python program of ours with its two streams connected.
fn python(program: &str, stdin: impl Into<OwnedFd>, stdout: impl Into<OwnedFd>) -> Command {
    let mut command = Command::argv(["python3", "-I", "-B", "-u", "-c", program]);
    command.streams = Streams::Connected { stdin: stdin.into(), stdout: stdout.into() };
    command.output_cap = OUTPUT_BYTES;
    command
}

/// Writes to a pipe without blocking us; the pipe as it was, for a program that blocks.
async fn write_first(writer: impl Into<OwnedFd>, text: &str) -> io::Result<OwnedFd> {
    let mut writer = pipe::Sender::from_owned_fd(writer.into())?;
    match writer.write_all(text.as_bytes()).await {
        // An examiner that died before it read its job is seen by its missing report.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
        result => result?,
    }
    writer.into_blocking_fd()
}

/// The files of an episode that may be part of its solution.
struct Solution<'a> {
    workspace: &'a Workspace,
    selection: Arc<Selection>,
}

impl<'a> Solution<'a> {
    async fn of(workspace: &'a Workspace) -> Result<Self, FileError> {
        let is_first = |path: &str| path.ends_with(".py");
        let select = move |from: &Workspace, allowance: &Allowance| {
            from.select(MAX_COPY, is_kept, is_first, allowance)
        };
        Ok(Self { workspace, selection: Arc::new(workspace.within(MAX_LOOK, select).await?) })
    }

    /// Copies them; what came of it.
    async fn copy_to(&self, to: &Workspace) -> Result<Selection, FileError> {
        let (to, selection) = (to.clone(), Arc::clone(&self.selection));
        // How much that is was decided before.
        let copy = move |from: &Workspace, allowance: &Allowance| from.copy_into(&to, &selection, allowance);
        self.workspace.within(u64::MAX, copy).await
    }
}

/// What is told about files that the tests do not see.
fn left_out(copied: &Selection) -> String {
    let left = match copied.n_left {
        0 => String::new(),
        n_left => format!("\n{n_left} large or many files were not copied for the tests\n"),
    };
    let cut = "\nthere are more files and directories than are looked through for the tests\n";
    left + if copied.is_cut { cut } else { "" }
}

/// Whether a file may be part of a solution: nothing that Python would run unasked, or instead of the
/// solution's text. A file that is named like a test may be, and the student's tests judge nobody.
fn is_kept(path: &str) -> bool {
    let parts: Vec<&str> = path.split('/').collect();
    let (name, directories) = parts.split_last().map_or((path, &[][..]), |(name, rest)| (*name, rest));
    let is_unwanted_dir =
        |dir: &&str| *dir == "__pycache__" || dir.starts_with('.') || dir.ends_with(".egg-info");
    let steers_python = ["sitecustomize.py", "usercustomize.py", "pyvenv.cfg"].contains(&name);
    let is_derived = [".pth", ".pyc", ".pyo"].iter().any(|end| name.ends_with(end));
    !(steers_python || is_derived || directories.iter().any(is_unwanted_dir))
}

/// What can be imported from the top of a workspace.
fn module_names(entries: &[FileEntry]) -> BTreeSet<&str> {
    let names = entries.iter().filter_map(|entry| match entry.path.split_once('/') {
        Some((directory, _)) => Some(directory),
        // A link may lead to a directory.
        None => entry.path.strip_suffix(".py").or(entry.is_link.then_some(&*entry.path)),
    });
    names.filter(|name| is_identifier(name)).collect()
}

/// What a task's text names as a part of a program: `shapes.py`, `area(w)`, "the module shapes", words in backticks.
fn names_in(asked: &str) -> BTreeSet<&str> {
    const KINDS: [&str; 9] =
        ["def", "class", "from", "import", "module", "package", "function", "file", "method"];
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let mut kind = "";
    let mut names = BTreeSet::new();
    for word in asked.split(|c| !is_word(c)).filter(|word| !word.is_empty()) {
        // A part of a text begins behind the text's own beginning.
        let begin = word.as_ptr() as usize - asked.as_ptr() as usize;
        let (before, after) = (&asked[..begin], &asked[begin + word.len()..]);
        let is_quoted = ['`', '\'', '"'].iter().any(|it| before.ends_with(*it) && after.starts_with(*it));
        let is_called = [".py", "(", "/"].iter().any(|it| after.starts_with(it));
        if (is_quoted || is_called || KINDS.contains(&kind)) && is_identifier(word) {
            names.insert(word);
        }
        kind = word;
    }
    names
}

/// 128 random bits as text.
fn secret() -> io::Result<String> {
    let mut bytes = [0u8; 16];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(hex(&bytes))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;

    #[test]
    fn what_steers_python_or_tests_is_not_copied() {
        let kept =
            ["solution.py", "pkg/__init__.py", "data/words.txt", "a/b/c.py", "test_utils.py", "tests/a.py"];
        let left_out = [
            "sitecustomize.py",
            "usercustomize.py",
            "x.pth",
            "__pycache__/solution.cpython-311.pyc",
            "solution.pyc",
            ".pytest_cache/v/cache",
            ".git/config",
        ];
        assert_eq!(kept.map(is_kept), kept.map(|_| true));
        assert_eq!(left_out.map(is_kept), left_out.map(|_| false));
    }

    #[test]
    fn modules_are_what_can_be_imported() {
        let file =
            |path: &str| FileEntry { path: path.to_owned(), is_dir: false, is_link: false, n_bytes: 1 };
        let entries = ["solution.py", "pkg/a.py", "data.txt", "my-file.py"].map(file);
        assert_eq!(Vec::from_iter(module_names(&entries)), ["pkg", "solution"]);
        let links = ["linked", "other.py"].map(|path| FileEntry { is_link: true, ..file(path) });
        assert_eq!(Vec::from_iter(module_names(&links)), ["linked", "other"]);
    }

    #[test]
    fn names_are_what_a_task_names_as_code() {
        let asked = "Write shapes.py with area(w, h), and the package geometry; `units` too. Tabulate numpy.\n\ndef add(a, b):";
        let expected = ["add", "area", "geometry", "shapes", "units"];
        assert_eq!(Vec::from_iter(names_in(asked)), expected);
        assert_eq!(names_in("größe(x) und é`ü`").len(), 2);
    }

    #[test]
    fn secrets_differ() {
        let (a, b) = (secret().unwrap(), secret().unwrap());
        assert_eq!(a.len(), 32);
        assert_ne!(a, b);
    }

    #[test]
    fn the_programs_fit_into_an_argument() {
        // Linux takes no argument of 128 KiB.
        assert!(CANDIDATE.len() < 128 << 10 && EXAMINER.len() < 128 << 10);
    }
}
