//! Judges a program by what it prints: the strongest check there is.
//!
//! Nothing is shared with the solution. `solution.py` is run once for each input, each time in a sandbox of its own
//! on a fresh copy of the workspace, so that nothing it does in one case (files, processes left behind) is seen by
//! another; what should come out is never in any sandbox, and only bytes come back, which are compared here. An
//! output that is wrong, or longer than it could rightly be, fails its case; so does a program that ends with a
//! failure or takes too long. The first case that goes wrong decides, so no later one is run. As many cases run at
//! once as there are processors, and count in their order: the verdict is that of one after the other.

use std::borrow::Cow;
use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use futures_util::future::try_join_all;
use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe;

use super::compare::{Difference, difference};
use super::{PROCESSORS, Solution, TestReport, Time, Verifier, Worth, left_out, n_processors, write_first};
use crate::tasks::{Case, Stdio};
use backsight_core::episode::{Assertion, Verification};
use backsight_sandbox::{Capture, Command, Exit, Output, Priority, Sandbox, SandboxError, Streams};

/// The program.
const PROGRAM: &str = "solution.py";
/// The processor time a case may take where its task says nothing longer: limits are made for other languages and
/// machines. All cases together have the verifier's time, in which what we do between them does not count.
const CASE_TIME: Duration = Duration::from_secs(10);
/// Bytes that are read beyond what is expected: white space, and fractions with more digits.
const MORE_BYTES: usize = 64 << 10;
/// Bytes kept of what is printed as errors.
const ERROR_BYTES: usize = 16 << 10;
/// Cases that are listed one by one, and characters of what they printed.
const MAX_LISTED: usize = 500;
const MAX_CHARS: usize = 150;

impl Verifier<'_> {
    /// Ends an episode and runs its program on every input.
    pub(super) async fn run_cases(
        &self,
        episode: &Sandbox,
        stdio: &Stdio,
    ) -> Result<TestReport, SandboxError> {
        episode.stop().await;
        let started = Instant::now();
        let failed = |why: String| TestReport::failed(why, started.elapsed());
        let cases = match unpacked(stdio).await {
            Ok(cases) => cases,
            Err(why) => return Ok(TestReport { worth: Worth::Unusable, ..failed(why) }),
        };
        let workspace = episode.workspace();
        if workspace.blocking(|it| it.read(PROGRAM, 0)).await.is_err() {
            return Ok(failed(format!("there is no {PROGRAM}")));
        }
        let solution = match Solution::of(workspace).await {
            Ok(solution) => solution,
            Err(error) => return Ok(failed(error.to_string())),
        };
        let each = stdio.time.unwrap_or_default().max(CASE_TIME);
        let found = self.run_all(&solution, &cases, each).await?;
        let left = left_over(&found, cases.len()) + &left_out(&solution.selection);
        let seconds = started.elapsed().as_secs_f64();
        Ok(TestReport { found: Verification { seconds, ..found }, worth: Worth::Counted }.saying(&left))
    }

    /// Runs cases, some at once, until one decides.
    async fn run_all(
        &self,
        solution: &Solution<'_>,
        cases: &[Case],
        each: Duration,
    ) -> Result<Verification, SandboxError> {
        let (mut found, mut left) = (Verification::default(), self.time);
        for some in cases.chunks(n_processors()) {
            let time = left.at_most(each);
            let rans = try_join_all(some.iter().map(|case| self.run_case(solution, case, time))).await?;
            for (case, ran) in some.iter().zip(rans) {
                let ran = ran.within(left);
                left = left.without(&ran);
                count(&mut found, case, &ran);
                // No further case could change the level.
                if found.error.is_some() || found.n_failed > 0 {
                    return Ok(found);
                }
            }
        }
        Ok(found)
    }

    /// Runs the program on one input, in a sandbox of its own.
    async fn run_case(&self, solution: &Solution<'_>, case: &Case, time: Time) -> Result<Ran, SandboxError> {
        // It is never closed.
        let _processor = PROCESSORS.acquire().await.ok();
        let sandbox = self.sandboxes.start_for(Priority::Verifier).await?;
        if let Err(error) = solution.copy_to(sandbox.workspace()).await {
            return Ok(Ran { output: Err(error.to_string()), printed: Vec::new(), is_long: false });
        }
        let (stdin, input) = io::pipe()?;
        let (printed, stdout) = io::pipe()?;
        let run = async {
            let output = sandbox.run(program(stdin.into(), stdout.into(), time)).await;
            // What it left behind may hold its output open.
            sandbox.stop().await;
            output
        };
        let read = read(&sandbox, printed.into(), case.output.len() * 2 + MORE_BYTES);
        // Closed when it is written; a program that does not read it to the end is its own business.
        let feed = async { drop(write_first(input, &case.input).await) };
        let (output, printed, ()) = tokio::join!(run, read, feed);
        let (printed, is_long) = printed?;
        Ok(Ran { output: Ok(output?), printed, is_long })
    }
}

/// The cases as they are, unpacked where nothing else has to wait for it.
async fn unpacked(stdio: &Stdio) -> Result<Cow<'_, [Case]>, String> {
    if stdio.packed.is_none() {
        return stdio.all();
    }
    let packed = stdio.clone();
    let unpacked = tokio::task::spawn_blocking(move || packed.all().map(Cow::into_owned)).await;
    unpacked.map_err(|error| error.to_string())?.map(Cow::Owned)
}

impl Time {
    fn at_most(self, processor: Duration) -> Self {
        let most = Self::of(processor);
        Self { processor: self.processor.min(most.processor), clock: self.clock.min(most.clock) }
    }

    /// What is left after a case.
    fn without(self, ran: &Ran) -> Self {
        let Ok(output) = &ran.output else { return self };
        Self {
            processor: self.processor.saturating_sub(used(output)),
            clock: self.clock.saturating_sub(output.duration),
        }
    }
}

/// The processor time of a program, or what stands for it where nobody counted.
fn used(output: &Output) -> Duration {
    output.processor_time.unwrap_or(output.duration)
}

fn program(stdin: OwnedFd, stdout: OwnedFd, time: Time) -> Command {
    let mut command = Command::argv(["python3", PROGRAM]);
    command.streams = Streams::Connected { stdin, stdout };
    // Programs that print much are slow without a buffer, and none is talked with here.
    command.env = vec![("PYTHONUNBUFFERED".to_owned(), String::new())];
    command.processor_time = Some(time.processor);
    command.timeout = time.clock;
    command.output_cap = ERROR_BYTES;
    command
}

/// Reads what is printed, up to `most` bytes, and whether there was more; a program that prints more is ended.
async fn read(sandbox: &Sandbox, printed: OwnedFd, most: usize) -> io::Result<(Vec<u8>, bool)> {
    let mut bytes = Vec::new();
    pipe::Receiver::from_owned_fd(printed)?.take(most as u64 + 1).read_to_end(&mut bytes).await?;
    let is_long = bytes.len() > most;
    if is_long {
        sandbox.stop().await;
    }
    Ok((bytes, is_long))
}

/// What became of a program in one case.
struct Ran {
    /// How it ended, or why it could not be begun.
    output: Result<Output, String>,
    printed: Vec<u8>,
    is_long: bool,
}

impl Ran {
    /// The same as it would have been after the cases before it, which ran at the same time: out of time where they
    /// left less than it took.
    fn within(mut self, left: Time) -> Self {
        if let Ok(output) = &mut self.output {
            output.timed_out |= used(output) > left.processor || output.duration > left.clock;
        }
        self
    }

    /// What is wrong with its output, if anything is; an error where it did not come to its end.
    fn mistake(&self, expected: &str) -> Result<Option<String>, String> {
        if self.is_long {
            return Ok(Some("it printed far more than was expected".to_owned()));
        }
        let output = self.output.as_ref().map_err(Clone::clone)?;
        match output.exit {
            _ if output.timed_out => return Err("the program ran out of time".to_owned()),
            Exit::Code(0) => {}
            Exit::Code(code) => {
                return Err(format!("the program ended with exit code {code}{}", complaint(&output.capture)));
            }
            Exit::Signal(signal) => return Err(format!("the program was ended by signal {signal}")),
            Exit::Lost => return Err("the program ended with its sandbox".to_owned()),
        }
        let printed = String::from_utf8_lossy(&self.printed);
        Ok(difference(&printed, expected).map(told))
    }
}

/// The last line of what a program printed as errors.
fn complaint(errors: &Capture) -> String {
    errors.text().trim_end().lines().last().map_or(String::new(), |line| format!(": {}", short(line)))
}

fn told(Difference { line, printed, expected }: Difference<'_>) -> String {
    let shown =
        |text: Option<&str>| text.map_or_else(|| "nothing".to_owned(), |text| format!("{:?}", short(text)));
    format!("line {line}: {} printed, {} expected", shown(printed), shown(expected))
}

fn short(text: &str) -> String {
    text.chars().take(MAX_CHARS).collect()
}

/// Counts a case in what the cases have shown so far.
fn count(found: &mut Verification, case: &Case, ran: &Ran) {
    let text = format!("case {}", n_run(found) + 1);
    let mistake = ran.mistake(&case.output);
    if !matches!(mistake, Ok(None)) {
        found.output = ran.output.as_ref().map(|it| it.capture.text()).unwrap_or_default();
    }
    let detail = match mistake {
        Ok(mistake) => mistake,
        Err(why) => {
            found.error = Some(format!("{text}: {why}"));
            return;
        }
    };
    let passed = detail.is_none();
    found.n_passed += u64::from(passed);
    found.n_failed += u64::from(!passed);
    if found.assertions.len() < MAX_LISTED {
        found.assertions.push(Assertion { line: 0, text, passed, detail: detail.unwrap_or_default() });
    }
}

/// How many cases were run.
fn n_run(found: &Verification) -> usize {
    (found.n_passed + found.n_failed) as usize + usize::from(found.error.is_some())
}

/// Says how many cases were not run.
fn left_over(found: &Verification, n_cases: usize) -> String {
    match n_cases - n_run(found) {
        0 => String::new(),
        n_left => format!("\n{n_left} of {n_cases} cases were not run: the last one decided\n"),
    }
}
