//! Scoring many jobs through a plan: fewer requests, in an order that suits the backend's cache.
//!
//! Owns the execution of a [`Plan`] over a [`Model`]: what waits for what, how much is under way, short requests
//! sent together, and answers put together job by job. A job whose request failed because of other jobs in it is
//! asked for alone, so one bad job spoils no other. Deliberately absent: which requests there are, which is `plan`'s
//! business, and what becomes of the scores.

use std::collections::{BTreeSet, VecDeque};
use std::ops::ControlFlow;
use std::sync::Arc;

use tokio::task::JoinSet;

use super::outlook::Outlook;
use super::resting::Resting;
use super::{Error, Model, Scored, Usage};
use backsight_core::plan::{Figures, Plan, plan};
use backsight_core::score::{ScoreJob, SpanScore};

/// Requests that wait for a permit cost memory for nothing; more than this many are never under way.
const UNDER_WAY: usize = 256;
/// As many requests are sent together at most.
const BATCH_REQUESTS: usize = 32;
/// Requests sent together compute about this many tokens at most; one that computes more goes alone.
const BATCH_TOKENS: usize = 4096;
/// Whoever answered: a plan does not know its server.
const THE_MODEL: &str = "the model";

/// What a plan came to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Planned {
    /// What was expected of it.
    pub figures: Figures,
    /// What the answers say they cost, those from a ledger included.
    pub usage: Usage,
    /// How many jobs were asked for alone after a request they shared had failed.
    pub n_alone: usize,
    /// Why the rest was not asked for, if so.
    pub stopped_by: Option<Error>,
}

impl Planned {
    /// What this and a later plan came to together; the first is what was expected of all of it.
    #[must_use]
    pub fn and(self, later: Self) -> Self {
        if self == Self::default() {
            return later;
        }
        let mut usage = self.usage;
        usage += later.usage;
        Self { figures: self.figures, usage, n_alone: self.n_alone + later.n_alone, ..later }
    }

    /// Notes that nothing more can be asked.
    pub fn stop(&mut self, why: Error) {
        self.stopped_by.get_or_insert(why);
    }
}

/// The scores of a job, put together from answers of one version.
#[derive(Clone, Debug, PartialEq)]
pub struct JobScores {
    /// One per span, in the job's order.
    pub spans: Vec<SpanScore>,
    /// The weights behind them, where that is known.
    pub version: Option<String>,
    /// Since when those were never in doubt when they were asked for.
    pub unbroken_since: u64,
}

/// Is told what became of a job, by its index; once for each, in the order in which they are settled. After a break
/// nothing more is asked for or told.
pub type Settle<'a> = dyn FnMut(usize, Result<JobScores, Error>) -> ControlFlow<()> + Send + 'a;

/// How a plan is carried out.
#[derive(Clone, Debug)]
pub struct Pace {
    /// At most so many requests are under way.
    pub at_once: usize,
    /// Whether there is a point in going on; plans over one model share it.
    pub outlook: Outlook,
}

impl Default for Pace {
    fn default() -> Self {
        Self { at_once: UNDER_WAY, outlook: Outlook::default() }
    }
}

/// Scores `jobs` through a plan. An error that stops the run settles every job that has no scores yet.
pub async fn score_planned(model: &Arc<dyn Model>, jobs: &[ScoreJob], settle: &mut Settle<'_>) -> Planned {
    score_at(&Pace::default(), model, &plan(jobs, model.limits()), settle).await
}

/// Carries out a plan at a pace of one's own.
pub async fn score_at(pace: &Pace, model: &Arc<dyn Model>, plan: &Plan, settle: &mut Settle<'_>) -> Planned {
    let mut work = Work::new(pace, model, plan, settle);
    work.begin();
    let resting = work.resting.clone();
    while !work.is_over && !pace.outlook.is_stopped() && work.send() {
        tokio::select! {
            finished = work.under_way.join_next() => work.take(finished),
            // A request that waits for its next try makes room for another.
            () = resting.more() => {}
        }
    }
    while let Some(finished) = work.under_way.join_next().await {
        work.take(Some(finished));
    }
    work.end()
}

/// What a task asked for: requests of the plan, or a job for itself.
#[derive(Clone, Copy)]
enum Sent {
    Request(usize),
    Alone(usize),
}

/// What was asked for, since when the weights were never in doubt then, and what came of it.
type Finished = (Vec<Sent>, u64, Vec<Result<Scored, Error>>);

/// A request of the plan and what has come of it.
struct Request {
    /// The jobs it serves.
    jobs: Vec<usize>,
    /// The requests that wait for it.
    next: Vec<usize>,
    /// Its answer, until all its jobs are settled.
    answer: Option<JobScores>,
    /// How many of its jobs are not settled yet.
    n_open: usize,
}

/// A job and what it still waits for.
struct Job {
    requests: Vec<usize>,
    n_open: usize,
    course: Course,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Course {
    /// Its requests are to be answered.
    Planned,
    /// It is asked for alone.
    Alone,
    /// Its scores, or why there are none, are known.
    Settled,
}

struct Work<'a, 's> {
    pace: &'a Pace,
    model: &'a Arc<dyn Model>,
    plan: &'a Plan,
    settle: &'a mut Settle<'s>,
    requests: Vec<Request>,
    jobs: Vec<Job>,
    /// Requests that may be sent; the plan's order is the one in which a small cache serves best.
    ready: BTreeSet<usize>,
    alone: VecDeque<usize>,
    under_way: JoinSet<Finished>,
    n_under_way: usize,
    resting: Resting,
    usage: Usage,
    n_alone: usize,
    /// Whether nobody wants to know any more.
    is_over: bool,
}

impl<'a, 's> Work<'a, 's> {
    fn new(pace: &'a Pace, model: &'a Arc<dyn Model>, plan: &'a Plan, settle: &'a mut Settle<'s>) -> Self {
        let request = |_| Request { jobs: Vec::new(), next: Vec::new(), answer: None, n_open: 0 };
        let mut requests: Vec<Request> = plan.requests.iter().map(request).collect();
        let mut jobs = Vec::with_capacity(plan.n_jobs());
        for job in 0..plan.n_jobs() {
            let needs: Vec<usize> = plan.requests_of(job).into_iter().collect();
            for &it in &needs {
                requests[it].jobs.push(job);
                requests[it].n_open += 1;
            }
            jobs.push(Job { n_open: needs.len(), requests: needs, course: Course::Planned });
        }
        let mut ready = BTreeSet::new();
        for (idx, request) in plan.requests.iter().enumerate() {
            match request.after {
                Some(after) => requests[after].next.push(idx),
                None => drop(ready.insert(idx)),
            }
        }
        Self {
            pace,
            model,
            plan,
            settle,
            requests,
            jobs,
            ready,
            alone: VecDeque::new(),
            under_way: JoinSet::new(),
            n_under_way: 0,
            resting: Resting::default(),
            usage: Usage::NOTHING,
            n_alone: 0,
            is_over: false,
        }
    }

    /// Settles the jobs that need no request.
    fn begin(&mut self) {
        for job in 0..self.jobs.len() {
            if self.jobs[job].n_open == 0 {
                self.assemble(job);
            }
        }
    }

    /// Sends what may be sent; says whether there is anything to wait for.
    fn send(&mut self) -> bool {
        while self.room() > 0 {
            let batch = match self.alone.pop_front() {
                Some(job) => vec![Sent::Alone(job)],
                None => self.next_batch(),
            };
            if batch.is_empty() {
                break;
            }
            self.spawn(batch);
        }
        !self.under_way.is_empty()
    }

    /// How many more requests may be under way; those that wait for their next try take no room but in memory.
    fn room(&self) -> usize {
        let n_sent = self.n_under_way.saturating_sub(self.resting.count());
        self.pace
            .at_once
            .clamp(1, UNDER_WAY)
            .saturating_sub(n_sent)
            .min(UNDER_WAY.saturating_sub(self.n_under_way))
    }

    /// The next requests to send: several short ones where the model takes them together.
    fn next_batch(&mut self) -> Vec<Sent> {
        let most = if self.model.limits().batches { BATCH_REQUESTS.min(self.room()) } else { 1 };
        let (mut batch, mut tokens) = (Vec::new(), 0);
        while let Some(&idx) = self.ready.first().filter(|_| batch.len() < most) {
            let request = &self.plan.requests[idx];
            tokens += if request.chooses() { BATCH_TOKENS } else { request.n_tokens() - request.cached };
            if !batch.is_empty() && tokens > BATCH_TOKENS {
                break;
            }
            batch.extend(self.ready.pop_first().map(Sent::Request));
        }
        batch
    }

    fn spawn(&mut self, sent: Vec<Sent>) {
        // Tokens are written out only now: of all prompts of a plan at once there may be very many.
        let ask = |sent: &Sent| match *sent {
            Sent::Request(idx) => self.plan.ask(idx),
            Sent::Alone(job) => self.plan.job(job),
        };
        let jobs: Vec<ScoreJob> = sent.iter().filter_map(ask).collect();
        let (model, outlook) = (Arc::clone(self.model), self.pace.outlook.clone());
        self.n_under_way += jobs.len();
        let work = async move {
            let (since, begun) = (model.unbroken_since(), outlook.begin());
            let scored = match &jobs[..] {
                [only] => vec![model.score(only).await],
                several => model.score_many(several).await,
            };
            scored.iter().for_each(|scored| outlook.heed(begun, scored));
            (sent, since, scored)
        };
        self.under_way.spawn(self.resting.clone().watch(work));
    }

    fn take(&mut self, finished: Option<Result<Finished, tokio::task::JoinError>>) {
        // A task that died leaves its jobs unsettled, which the end sees, and its room taken.
        let Some(Ok((sent, since, scored))) = finished else { return };
        self.n_under_way -= sent.len();
        for (sent, scored) in sent.into_iter().zip(scored) {
            let scores = scored.map(|Scored { spans, version, usage }| {
                self.usage += usage;
                JobScores { spans, version, unbroken_since: since }
            });
            match sent {
                Sent::Request(request) => self.take_one(request, scores),
                Sent::Alone(job) => self.finish(job, scores),
            }
        }
    }

    fn take_one(&mut self, request: usize, scores: Result<JobScores, Error>) {
        self.ready.extend(std::mem::take(&mut self.requests[request].next));
        match scores {
            Ok(scores) => {
                self.requests[request].answer = Some(scores);
                for job in self.requests[request].jobs.clone() {
                    self.jobs[job].n_open -= 1;
                    if self.jobs[job].n_open == 0 && self.jobs[job].course == Course::Planned {
                        self.assemble(job);
                    }
                }
            }
            Err(error) => self.take_failure(request, &error),
        }
    }

    /// The failure of a request is that of its job, if it has only one; else each is asked for alone.
    fn take_failure(&mut self, request: usize, error: &Error) {
        let jobs = self.requests[request].jobs.clone();
        let is_own = jobs.len() == 1 && jobs.iter().all(|&job| self.jobs[job].requests.len() == 1);
        for job in jobs {
            match self.jobs[job].course {
                // Alone it would be answered at a length that no server writes.
                Course::Planned if self.plan.is_chosen(job) => self.finish(job, Err(error.clone())),
                Course::Planned if is_own || error.stops_the_run() => self.finish(job, Err(error.clone())),
                Course::Planned => self.ask_alone(job),
                Course::Alone | Course::Settled => {}
            }
        }
    }

    fn ask_alone(&mut self, job: usize) {
        self.jobs[job].course = Course::Alone;
        self.alone.push_back(job);
        self.n_alone += 1;
    }

    /// Puts a job's scores together. Answers of different weights do not belong together: one request gives one version.
    fn assemble(&mut self, job: usize) {
        let answers = self.jobs[job].requests.iter().filter_map(|&it| self.requests[it].answer.as_ref());
        let weights: BTreeSet<_> = answers.map(|it| (it.version.clone(), it.unbroken_since)).collect();
        if weights.len() > 1 && self.plan.is_chosen(job) {
            let why = "its weights were in doubt between two requests";
            return self.finish(job, Err(Error::garbled(THE_MODEL, why)));
        }
        if weights.len() > 1 {
            return self.ask_alone(job);
        }
        let (version, unbroken_since) = weights.into_iter().next().unwrap_or_default();
        let answer = |request: usize| self.requests[request].answer.as_ref().map(|it| &it.spans[..]);
        let spans = self.plan.assemble(job, answer);
        let scores = spans.map(|spans| JobScores { spans, version, unbroken_since });
        self.finish(job, scores.map_err(|why| Error::garbled(THE_MODEL, why.to_string())));
    }

    /// Settles a job and forgets the answers that nobody needs any more.
    fn finish(&mut self, job: usize, result: Result<JobScores, Error>) {
        self.jobs[job].course = Course::Settled;
        for request in std::mem::take(&mut self.jobs[job].requests) {
            self.requests[request].n_open -= 1;
            if self.requests[request].n_open == 0 {
                self.requests[request].answer = None;
            }
        }
        if !self.is_over {
            self.is_over = (self.settle)(job, result).is_break();
        }
    }

    /// Settles what is left over when the run was stopped.
    fn end(mut self) -> Planned {
        let stopped_by = self.pace.outlook.ended_by();
        let why = stopped_by.clone().unwrap_or_else(|| Error::garbled(THE_MODEL, "its request was lost"));
        for job in 0..self.jobs.len() {
            if self.jobs[job].course != Course::Settled {
                self.finish(job, Err(why.clone()));
            }
        }
        let (figures, usage) = (self.plan.figures, self.usage);
        Planned { figures, usage, n_alone: self.n_alone, stopped_by }
    }
}
