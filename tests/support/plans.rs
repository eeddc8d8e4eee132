//! Plans whose requests were all asked for already.

use backsight_core::plan::{Plan, Unanswered};
use backsight_core::score::{ScoreJob, SpanScore};

/// Puts all jobs' scores together; a request without an answer fails the jobs that need it and no other.
pub fn distribute(
    plan: &Plan,
    jobs: &[ScoreJob],
    answers: &[Option<Vec<SpanScore>>],
) -> Vec<Result<Vec<SpanScore>, Unanswered>> {
    let answer = |request: usize| answers.get(request)?.as_deref();
    (0..jobs.len()).map(|job| plan.assemble(jobs, job, answer)).collect()
}
