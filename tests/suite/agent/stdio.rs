//! Programs judged by what they print: levels, what is told, and that a case shares nothing with another.

use std::time::Duration;

use backsight::agent::{TestReport, Verifier};
use backsight::sandbox::{Limits, SandboxKind};
use backsight::tasks::{Case, Cases, Check, Stdio};

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
    let stdio = Stdio { cases: Cases::Plain(cases.iter().map(case).collect()), time: None };
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
    let wrong = check("print(int(input()) ** 2)", &TWICE, (0.2, 1, 2, None)).await;
    let told: Vec<_> =
        wrong.assertions.iter().map(|it| (it.text.as_str(), it.passed, it.detail.as_str())).collect();
    let expected = [
        ("case 1", false, "line 1: \"1\" printed, \"2\" expected"),
        ("case 2", true, ""),
        ("case 3", false, "line 1: \"9\" printed, \"6\" expected"),
    ];
    assert_eq!(told, expected);
    let zero = "case 2: the program ended with exit code 1: ZeroDivisionError: division by zero";
    let crashing = "n = int(input())\nprint(2 * n)\n1 / (2 - n)";
    check(crashing, &TWICE, (0.1, 1, 0, Some(zero))).await;
    let after = "n = int(input())\nprint(7)\n1 / (2 - n)";
    check(after, &TWICE, (0.2, 0, 1, Some(zero))).await;
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
