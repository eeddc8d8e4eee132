//! Plans whose requests were all asked for already.

use backsight_core::plan::{Plan, Unanswered};
use backsight_core::score::SpanScore;

/// Puts all jobs' scores together; a request without an answer fails the jobs that need it and no other.
pub fn distribute(
    plan: &Plan,
    answers: &[Option<Vec<SpanScore>>],
) -> Vec<Result<Vec<SpanScore>, Unanswered>> {
    let answer = |request: usize| answers.get(request)?.as_deref();
    (0..plan.n_jobs()).map(|job| plan.assemble(job, answer)).collect()
}
