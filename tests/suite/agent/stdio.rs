//! Programs judged by what they print: levels, what is told, and that a case shares nothing with another.

use std::time::Duration;

use backsight::agent::{TestReport, Verifier};
use backsight::sandbox::{Limits, SandboxKind};
use backsight::tasks::{Case, Check, Stdio};

use super::sandboxes;

/// Long enough for any machine.
const LONG: Duration = Duration::from_secs(120);

async fn judge(files: &[(&str, &str)], cases: &[(&str, &str)], time: Duration) -> TestReport {
    let sandboxes = sandboxes(SandboxKind::Namespaces, Limits::default());
    let episode = sandboxes.start().await.unwrap_or_else(|error| panic!("{error}"));
    for (path, text) in files {
        episode.workspace().write(path, text.as_bytes()).unwrap();
    }
    let case =
        |(input, output): &(&str, &str)| Case { input: (*input).to_owned(), output: (*output).to_owned() };
    let stdio = Stdio { cases: cases.iter().map(case).collect(), ..Stdio::default() };
    Verifier::new(&sandboxes, time).judge(&episode, &Check::Stdio(stdio)).await.unwrap()
}

/// Level, passed and failed cases, and the error.
async fn check(program: &str, cases: &[(&str, &str)], expected: (f64, u64, u64, Option<&str>)) -> TestReport {
    let report = judge(&[("solution.py", program)], cases, LONG).await;
    let (level, n_passed, n_failed, error) = expected;
    let found = (report.correctness(), report.n_passed, report.n_failed, report.error.as_deref());
    assert_eq!(found, (Some(level), n_passed, n_failed, error), "{program}: {report:#?}");
    report
}

const TWICE: [(&str, &str); 3] = [("1\n", "2\n"), ("2\n", "4\n"), ("3", "6")];

#[tokio::test]
async fn levels_follow_from_what_is_printed() {
    check("print(2 * int(input()))", &TWICE, (1.0, 3, 0, None)).await;
    let wrong = check("n = int(input())\nprint(2 * n if n < 2 else 5)", &TWICE, (0.2, 1, 1, None)).await;
    let told: Vec<_> =
        wrong.assertions.iter().map(|it| (it.text.as_str(), it.passed, it.detail.as_str())).collect();
    assert_eq!(told, [("case 1", true, ""), ("case 2", false, "line 1: \"5\" printed, \"4\" expected")]);
    assert_eq!(wrong.output, "\n1 of 3 cases were not run: the last one decided\n");
    let zero = "case 2: the program ended with exit code 1: ZeroDivisionError: division by zero";
    let crashing = "n = int(input())\nprint(2 * n)\n1 / (2 - n)";
    check(crashing, &TWICE, (0.1, 1, 0, Some(zero))).await;
    let after = "n = int(input())\nprint(7)\n1 / (2 - n)";
    check(after, &TWICE, (0.2, 0, 1, None)).await;
    check("import os\nos.abort()", &TWICE, (0.1, 0, 0, Some("case 1: the program was ended by signal 6")))
        .await;
    let missing = judge(&[("main.py", "print(2)")], &TWICE, LONG).await;
    assert_eq!(
        (missing.correctness(), missing.error.as_deref()),
        (Some(0.1), Some("there is no solution.py"))
    );
}

#[tokio::test]
async fn a_program_may_have_modules_and_read_or_not() {
    let files = [
        ("solution.py", "from helper import double\nprint(double(int(input())))"),
        ("helper.py", "def double(x): return 2 * x"),
    ];
    assert_eq!(judge(&files, &TWICE, LONG).await.correctness(), Some(1.0));
    let large = "x".repeat(1 << 20);
    check("print(1)", &[(&large, "1")], (1.0, 1, 0, None)).await;
    check("print(len(input()))", &[(&large, "1048576")], (1.0, 1, 0, None)).await;
    check("print(input())", &[(&large, &large)], (1.0, 1, 0, None)).await;
}

#[tokio::test]
async fn a_program_that_does_not_end_is_ended() {
    let slow = judge(&[("solution.py", "while True: pass")], &TWICE, Duration::from_secs(1)).await;
    assert_eq!(
        (slow.correctness(), slow.error.as_deref()),
        (Some(0.1), Some("case 1: the program ran out of time"))
    );
    // Nobody waits for what would only be more of it.
    let long = judge(&[("solution.py", "while True: print('x')")], &TWICE[..1], LONG).await;
    assert_eq!((long.correctness(), long.n_failed), (Some(0.2), 1));
    assert_eq!(long.assertions[0].detail, "it printed far more than was expected");
}

#[tokio::test]
async fn what_is_left_behind_holds_nobody_up() {
    let program = "import os, time\nprint(2 * int(input()), flush=True)\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(100000)\n";
    check(program, &TWICE, (1.0, 3, 0, None)).await;
}

/// Cases run at the same time, on the same machine: no file and no process of one is there for another.
#[tokio::test]
async fn cases_share_nothing() {
    let lonely = "import os, time\nnames = os.listdir('/tmp') + os.listdir('/dev/shm') + os.listdir('.')\nn_processes = sum(it.isdigit() for it in os.listdir('/proc'))\nfor place in ('.', '/tmp', '/dev/shm'):\n    open(place + '/mine', 'w')\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(100000)\nprint(sorted(names), n_processes)";
    let alone = ("", "['solution.py'] 2");
    check(lonely, &[alone; 8], (1.0, 8, 0, None)).await;
}

/// Both cases of a pair are within the time when they begin at once; one after the other they are not.
#[tokio::test]
async fn cases_at_once_have_no_more_time_than_one_after_the_other() {
    let busy = "import time\nwhile time.process_time() < 1: pass\nprint(2 * int(input()))";
    let report = judge(&[("solution.py", busy)], &TWICE, Duration::from_millis(1800)).await;
    let error = Some("case 2: the program ran out of time");
    assert_eq!((report.n_passed, report.n_failed, report.error.as_deref()), (1, 0, error), "{report:#?}");
}

#[tokio::test]
async fn files_that_are_too_many_are_told_of() {
    let many = "import os\nfor i in range(5001): open(f'{i}.txt', 'w')";
    let sandboxes = sandboxes(SandboxKind::Namespaces, Limits::default());
    let episode = sandboxes.start().await.unwrap();
    episode.workspace().write("solution.py", b"print(2 * int(input()))").unwrap();
    super::python(&episode, many).await;
    let cases = TWICE.map(|(input, output)| Case { input: input.to_owned(), output: output.to_owned() });
    let check = Check::Stdio(Stdio { cases: cases.into(), ..Stdio::default() });
    let report = Verifier::new(&sandboxes, LONG).judge(&episode, &check).await.unwrap();
    assert_eq!(report.correctness(), Some(1.0), "{report:#?}");
    assert_eq!(report.output, "\n2 large or many files were not copied for the tests\n");
}
