//! Tries the solutions that a dataset brings, before anything is paid for.
//!
//! A check that no known solution passes says nothing about a student's, so its task is refused. Only as many tasks
//! are tried as a run needs, and what was found is kept in the run directory. A task that brings no solution is
//! taken as it is.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::available_parallelism;
use std::time::Duration;

use futures_util::{StreamExt as _, stream};
use serde_json::{Value, json};

use crate::agent::{Level, TestReport, Verifier};
use crate::store::run::RunDir;
use crate::tasks::check::sum_of;
use crate::tasks::{Check, CodingTask};
use backsight_sandbox::{SandboxError, Sandboxes};

/// What tasks are tried with.
pub struct Bench<'a> {
    /// Where solutions run.
    pub sandboxes: &'a Sandboxes,
    /// How long the tests of one may take.
    pub time: Duration,
    /// Where it is written down what was found.
    pub run: &'a RunDir,
    /// How many tasks were tried so far.
    pub n_tried: AtomicUsize,
}

/// The tasks that can be used, and those that cannot.
#[derive(Debug, Default)]
pub struct Tried {
    /// In their order, as many as were wanted if there are so many.
    pub usable: Vec<Arc<CodingTask>>,
    /// The ids of the others, with the reason.
    pub refused: Vec<(String, String)>,
}

/// Why a task is refused; none where it can be used.
type Refusal = Option<String>;

impl Bench<'_> {
    /// The first `n_wanted` usable tasks.
    pub async fn first_usable(
        &self,
        tasks: &[Arc<CodingTask>],
        n_wanted: usize,
    ) -> Result<Tried, SandboxError> {
        let known = self.known();
        let at_once = available_parallelism().map_or(1, usize::from);
        let trials = stream::iter(tasks).map(|task| self.trial(task, &known)).buffered(at_once);
        let mut trials = std::pin::pin!(trials.zip(stream::iter(tasks)));
        let mut tried = Tried::default();
        while tried.usable.len() < n_wanted
            && let Some((trial, task)) = trials.next().await
        {
            match trial? {
                None => tried.usable.push(Arc::clone(task)),
                Some(why) => tried.refused.push((task.task.id.clone(), why)),
            }
        }
        Ok(tried)
    }

    /// What an earlier process found out, by the tasks' sums.
    fn known(&self) -> HashMap<String, Refusal> {
        let read =
            |row: &Value| Some((row["sum"].as_str()?.to_owned(), row["refused"].as_str().map(str::to_owned)));
        self.run.references().iter().filter_map(read).collect()
    }

    async fn trial(
        &self,
        task: &CodingTask,
        known: &HashMap<String, Refusal>,
    ) -> Result<Refusal, SandboxError> {
        let Some(check) = task.check.as_ref().filter(|_| !task.references.is_empty()) else {
            return Ok(None);
        };
        let texts = check.texts().into_iter().chain(task.references.iter().map(String::as_str));
        let sum = sum_of(texts.chain([task.asked.as_str()]));
        if let Some(refused) = known.get(&sum) {
            return Ok(refused.clone());
        }
        let refused = self.try_out(task, check).await?;
        self.n_tried.fetch_add(1, Ordering::Relaxed);
        // What cannot be written down is found out again.
        let _ = self.run.add_reference(&json!({"sum": sum, "task": task.task.id, "refused": refused}));
        Ok(refused)
    }

    /// One solution that passes is enough; the first tells why none does.
    async fn try_out(&self, task: &CodingTask, check: &Check) -> Result<Refusal, SandboxError> {
        let mut reason = None;
        for reference in &task.references {
            let report = self.judge(task, check, reference).await?;
            if report.is_solved() {
                return Ok(None);
            }
            reason.get_or_insert_with(|| why_refused(&report));
        }
        Ok(reason)
    }

    async fn judge(
        &self,
        task: &CodingTask,
        check: &Check,
        solution: &str,
    ) -> Result<TestReport, SandboxError> {
        let sandbox = self.sandboxes.start().await?;
        let solution = solution.to_owned();
        let written =
            sandbox.workspace().blocking(move |it| it.write("solution.py", solution.as_bytes())).await;
        match written {
            Ok(()) => {
                let verifier = Verifier::new(self.sandboxes, self.time).of_task(&task.asked);
                verifier.judge(&sandbox, check).await
            }
            Err(error) => Ok(TestReport::failed(error.to_string(), Duration::ZERO)),
        }
    }
}

/// What is told before the colon is the same for tasks of one kind.
fn why_refused(report: &TestReport) -> String {
    let error = report.error.as_deref().unwrap_or_default();
    match (report.level(), report.assertions.iter().find(|it| !it.passed)) {
        (Level::Unusable, _) => format!("its tests cannot be used: {error}"),
        (Level::Undecided, _) => format!("its own solution stays undecided: {}", report.problem()),
        (_, Some(failed)) => format!("its own solution fails its tests: {} ({})", failed.text, failed.detail),
        _ => format!("its own solution does not come through its tests: {error}"),
    }
}
