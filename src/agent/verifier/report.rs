//! What the hidden tests found, and the level of correctness that follows.

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
    /// Nothing: the tests can judge no solution, whatever it does.
    Unusable,
}

/// What the hidden tests found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TestReport {
    /// How many assertions held.
    pub n_passed: u64,
    /// How many did not.
    pub n_failed: u64,
    /// Why the tests did not come to their end; absent when they did.
    pub error: Option<String>,
    /// Whether the tests can judge no solution: the error is theirs then.
    pub is_unusable: bool,
    /// The first assertions one by one.
    pub assertions: Vec<Assertion>,
    /// What both sides printed.
    pub output: String,
    /// How long it took.
    pub duration: Duration,
}

impl TestReport {
    /// A report on a solution that cannot even be run.
    pub fn failed(error: String, duration: Duration) -> Self {
        Self {
            n_passed: 0,
            n_failed: 0,
            error: Some(error),
            is_unusable: false,
            assertions: Vec::new(),
            output: String::new(),
            duration,
        }
    }

    /// Reads the examiner's output: its report is what follows the secret.
    pub fn read(output: &str, secret: &str, timed_out: bool, duration: Duration) -> Self {
        let without = |reason: &str| {
            let output = output.to_owned();
            Self { output, ..Self::failed(reason.to_owned(), duration) }
        };
        let Some((before, report)) = output.rsplit_once(secret) else {
            return without(if timed_out {
                "the tests ran out of time"
            } else {
                "the tests did not come to their end"
            });
        };
        let Ok(report) = serde_json::from_str::<Value>(report) else {
            return without("the report cannot be read");
        };
        let count = |key: &str| report[key].as_u64().unwrap_or(0);
        let assertions = report["assertions"].as_array().into_iter().flatten().map(read_assertion);
        Self {
            n_passed: count("passed"),
            n_failed: count("failed"),
            error: report["error"].as_str().map(str::to_owned),
            is_unusable: report["unusable"].as_bool().unwrap_or(false),
            assertions: assertions.collect(),
            output: before.trim_end_matches('\n').to_owned(),
            duration,
        }
    }

    /// This report on solved tests, unless they fail in one process with the solution: then that one. Such tests are not
    /// unusable, since they were usable.
    #[must_use]
    pub fn unless(self, together: Self) -> Self {
        if together.is_solved() {
            return self;
        }
        let note = "\nthe tests hold with stand-ins for the solution, and fail in one process with it\n";
        Self { is_unusable: false, output: together.output.clone() + note, ..together }
    }

    /// As an episode keeps it.
    pub fn verification(&self) -> Verification {
        Verification {
            n_passed: self.n_passed,
            n_failed: self.n_failed,
            error: self.error.clone(),
            assertions: self.assertions.clone(),
            output: self.output.clone(),
            seconds: self.duration.as_secs_f64(),
        }
    }

    /// What it comes to.
    pub fn level(&self) -> Level {
        match (&self.error, self.n_passed, self.n_failed) {
            _ if self.is_unusable => Level::Unusable,
            (None, 1.., 0) => Level::Solved,
            (_, _, 0) => Level::NotRun,
            _ => Level::Wrong,
        }
    }

    /// Whether the task is solved.
    pub fn is_solved(&self) -> bool {
        self.level() == Level::Solved
    }

    /// The level of correctness; none where the tests are unusable.
    pub fn correctness(&self) -> Option<f64> {
        match self.level() {
            Level::Solved => Some(1.0),
            Level::Wrong => Some(0.2),
            Level::NotRun => Some(0.1),
            Level::Unusable => None,
        }
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

    #[test]
    fn running_out_of_time_is_said() {
        let report = TestReport::read("", SECRET, true, Duration::ZERO);
        assert_eq!(report.error.as_deref(), Some("the tests ran out of time"));
    }
}
