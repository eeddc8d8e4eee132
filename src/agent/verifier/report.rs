//! What the hidden tests found, and the level of correctness that follows.

use std::ops::Deref;
use std::time::Duration;

use serde_json::Value;

use backsight_core::episode::{Assertion, Verification};

/// What hidden tests say about a solution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// Every assertion held, there was one, and the tests came to their end.
    Solved,
    /// An assertion failed.
    Wrong,
    /// No assertion failed, but the solution raised, hung, ended, or is none.
    NotRun,
    /// Nothing: the tests hold in one process with the solution, and stand-ins for its objects do not show it.
    Undecided,
    /// Nothing: the tests can judge no solution, whatever it does.
    Unusable,
}

/// What a report's numbers are worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Worth {
    /// They count, unless the other witness says otherwise.
    Counted,
    /// They count whoever says otherwise: plain data alone refuted an assertion, or the solution ended its process.
    Refuted,
    /// They do not count: the other witness says otherwise.
    Undecided,
    /// They do not count: the tests can judge no solution, and the error is theirs.
    Unusable,
}

/// What the hidden tests found, as an episode keeps it, and what it is worth.
#[derive(Clone, Debug, PartialEq)]
pub struct TestReport {
    /// What they found.
    pub found: Verification,
    /// What its numbers are worth.
    pub worth: Worth,
}

impl Deref for TestReport {
    type Target = Verification;

    fn deref(&self) -> &Verification {
        &self.found
    }
}

impl TestReport {
    /// A report on a solution that cannot even be run.
    pub fn failed(error: String, duration: Duration) -> Self {
        let seconds = duration.as_secs_f64();
        let found = Verification { error: Some(error), seconds, ..Verification::default() };
        Self { found, worth: Worth::Counted }
    }

    /// Reads the examiner's output: its report is what follows the secret.
    pub fn read(output: &str, secret: &str, timed_out: bool, duration: Duration) -> Self {
        let failed = |reason: &str| Self::failed(reason.to_owned(), duration).saying(output);
        let Some((before, report)) = output.rsplit_once(secret) else {
            let why = if timed_out { "ran out of time" } else { "did not come to their end" };
            return failed(&format!("the tests {why}"));
        };
        let Ok(report) = serde_json::from_str::<Value>(report) else {
            return failed("the report cannot be read");
        };
        let count = |key: &str| report[key].as_u64().unwrap_or(0);
        let assertions = report["assertions"].as_array().into_iter().flatten().map(read_assertion);
        let found = Verification {
            n_passed: count("passed"),
            n_failed: count("failed"),
            error: report["error"].as_str().map(str::to_owned),
            assertions: assertions.collect(),
            output: before.trim_end_matches('\n').to_owned(),
            seconds: duration.as_secs_f64(),
        };
        Self { found, worth: read_worth(&report) }
    }

    /// The same with more output.
    #[must_use]
    pub(super) fn saying(mut self, output: &str) -> Self {
        self.found.output.push_str(output);
        self
    }

    /// What this report, of tests that saw stand-ins, and that of the same tests in one process with the solution say
    /// together. Tests that were usable stay so.
    #[must_use]
    pub fn with(self, together: Self) -> Self {
        match (self.is_solved(), together.is_solved()) {
            (true, false) => {
                let note =
                    "\nthe tests hold with stand-ins for the solution, and fail in one process with it\n";
                Self { worth: Worth::Counted, ..together }.saying(note)
            }
            (false, true) if self.worth != Worth::Refuted => {
                let note =
                    "\nthe tests fail with stand-ins for the solution, and hold in one process with it\n";
                Self { worth: Worth::Undecided, ..self }.saying(note)
            }
            _ => self,
        }
    }

    /// What went wrong first; nothing where nothing did.
    pub fn problem(&self) -> String {
        let failed = self.assertions.iter().find(|it| !it.passed);
        let told = failed.map(|it| format!("{} ({})", it.text, it.detail));
        self.error.clone().or(told).unwrap_or_default()
    }

    /// What it comes to.
    pub fn level(&self) -> Level {
        match (self.worth, &self.error, self.n_passed, self.n_failed) {
            (Worth::Unusable, ..) => Level::Unusable,
            (Worth::Undecided, ..) => Level::Undecided,
            (_, None, 1.., 0) => Level::Solved,
            (_, _, _, 0) => Level::NotRun,
            _ => Level::Wrong,
        }
    }

    /// Whether the task is solved.
    pub fn is_solved(&self) -> bool {
        self.level() == Level::Solved
    }

    /// The level of correctness; none where the tests decide nothing.
    pub fn correctness(&self) -> Option<f64> {
        match self.level() {
            Level::Solved => Some(1.0),
            Level::Wrong => Some(0.2),
            Level::NotRun => Some(0.1),
            Level::Undecided | Level::Unusable => None,
        }
    }
}

fn read_worth(report: &Value) -> Worth {
    let is = |key: &str| report[key].as_bool().unwrap_or(false);
    match (is("unusable"), is("refuted")) {
        (true, _) => Worth::Unusable,
        (_, true) => Worth::Refuted,
        _ => Worth::Counted,
    }
}

fn read_assertion(value: &Value) -> Assertion {
    let text = |key: &str| value[key].as_str().unwrap_or("").to_owned();
    Assertion {
        line: value["line"].as_u64().unwrap_or(0),
        text: text("text"),
        passed: value["passed"].as_bool().unwrap_or(false),
        detail: text("detail"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "5ec2e7";

    fn check(output: &str, correctness: impl Into<Option<f64>>, error: Option<&str>) {
        let report = TestReport::read(output, SECRET, false, Duration::ZERO);
        assert_eq!((report.correctness(), report.error.as_deref()), (correctness.into(), error), "{output}");
    }

    #[test]
    fn only_what_follows_the_secret_counts() {
        check("hi\n5ec2e7{\"passed\": 3, \"failed\": 0, \"error\": null, \"assertions\": []}\n", 1.0, None);
        check("5ec2e7{\"passed\": 3, \"failed\": 1, \"error\": null}", 0.2, None);
        check(
            "5ec2e7{\"passed\": 3, \"failed\": 1, \"error\": \"ValueError: x\"}",
            0.2,
            Some("ValueError: x"),
        );
        check(
            "5ec2e7{\"passed\": 3, \"failed\": 0, \"error\": \"ValueError: x\"}",
            0.1,
            Some("ValueError: x"),
        );
        check("5ec2e7{\"passed\": 0, \"failed\": 0, \"error\": null}", 0.1, None);
        check(
            "{\"passed\": 3, \"failed\": 0}\nAll tests passed!",
            0.1,
            Some("the tests did not come to their end"),
        );
        check(
            "5ec2e7{\"passed\": 1, \"failed\": 0, \"error\": \"no\", \"unusable\": true}",
            None,
            Some("no"),
        );
        check(
            "5ec2e7{\"passed\": 1, \"failed\": 1, \"error\": \"no\", \"unusable\": true}",
            None,
            Some("no"),
        );
        check("5ec2e7{\"passed\": 3", 0.1, Some("the report cannot be read"));
        check("", 0.1, Some("the tests did not come to their end"));
    }

    #[test]
    fn assertions_are_listed() {
        let output = "x\n5ec2e7{\"passed\": 0, \"failed\": 1, \"error\": null, \"assertions\": [{\"line\": 2, \"text\": \"f() == 1\", \"passed\": false, \"detail\": \"2 != 1\"}]}";
        let report = TestReport::read(output, SECRET, false, Duration::ZERO);
        let expected = Assertion { line: 2, text: "f() == 1".into(), passed: false, detail: "2 != 1".into() };
        assert_eq!(report.assertions, [expected]);
        assert_eq!(report.output, "x");
    }

    /// What two witnesses say together, each by its numbers of assertions that held and failed.
    #[test]
    fn two_witnesses_decide() {
        let said = |(passed, failed, more): (u32, u32, &str)| {
            let output = format!("{SECRET}{{\"passed\": {passed}, \"failed\": {failed}{more}}}");
            TestReport::read(&output, SECRET, false, Duration::ZERO)
        };
        let (holds, fails, raises) = ((1, 0, ""), (0, 1, ""), (1, 0, ", \"error\": \"x\""));
        let (refuted, unusable) =
            ((0, 1, ", \"refuted\": true"), (1, 0, ", \"error\": \"x\", \"unusable\": true"));
        let cases = [
            (holds, holds, Level::Solved),
            (holds, fails, Level::Wrong),
            (holds, raises, Level::NotRun),
            (holds, unusable, Level::NotRun),
            (fails, raises, Level::Wrong),
            (raises, fails, Level::NotRun),
            (fails, holds, Level::Undecided),
            (raises, holds, Level::Undecided),
            (refuted, holds, Level::Wrong),
            (refuted, raises, Level::Wrong),
        ];
        for (apart, together, level) in cases {
            assert_eq!(said(apart).with(said(together)).level(), level, "{apart:?} {together:?}");
        }
    }

    #[test]
    fn running_out_of_time_is_said() {
        let report = TestReport::read("", SECRET, true, Duration::ZERO);
        assert_eq!(report.error.as_deref(), Some("the tests ran out of time"));
    }
}
