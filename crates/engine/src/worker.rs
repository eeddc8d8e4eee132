//! The thread on which an engine lives, so that nobody waits for numbers on the async runtime.
//!
//! Owns the queue of requests and the order of work: what waits to be scored is scored together, then
//! every continuation under way grows by one token, all in one pass. A request nobody waits for any
//! more is dropped. Deliberately absent: text.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use tokio::sync::oneshot;

use super::engine::{Engine, no_threads};
use super::generate::Sequence;
use backsight_core::model::{Error, GenerateRequest, Generated, Scored};
use backsight_core::score::ScoreJob;

type Reply<T> = oneshot::Sender<Result<T, Error>>;

enum Request {
    Score(ScoreJob, Reply<Scored>),
    Generate(Box<GenerateRequest>, Reply<Generated>),
}

/// A continuation and who waits for it.
type UnderWay = (Sequence, Reply<Generated>);

/// The way to an engine on its own thread, which ends when this is dropped.
pub(super) struct Worker {
    requests: Sender<Request>,
}

impl Worker {
    /// Gives the engine a thread.
    pub(super) fn start(engine: Engine) -> Result<Self, Error> {
        let (requests, waiting) = channel();
        let thread = thread::Builder::new().name("embedded-model".to_owned());
        let started = thread.spawn(move || work(engine, &waiting));
        started.map_err(|why| no_threads(format!("the embedded model gets no thread: {why}")))?;
        Ok(Self { requests })
    }

    /// Scores a job.
    pub(super) async fn score(&self, job: &ScoreJob) -> Result<Scored, Error> {
        self.ask(|reply| Request::Score(job.clone(), reply)).await
    }

    /// Samples a continuation.
    pub(super) async fn generate(&self, request: &GenerateRequest) -> Result<Generated, Error> {
        self.ask(|reply| Request::Generate(Box::new(request.clone()), reply)).await
    }

    async fn ask<T>(&self, request: impl FnOnce(Reply<T>) -> Request) -> Result<T, Error> {
        let (reply, answer) = oneshot::channel();
        self.requests.send(request(reply)).map_err(|_| gone())?;
        answer.await.map_err(|_| gone())?
    }
}

fn gone() -> Error {
    Error::Unreachable {
        server: "the embedded model".to_owned(),
        why: "its thread has ended, which is a bug".to_owned(),
    }
}

fn work(mut engine: Engine, requests: &Receiver<Request>) {
    let mut under_way = Vec::new();
    while let Some(arrived) = next(requests, under_way.is_empty()) {
        let mut jobs = Vec::new();
        for request in arrived {
            match request {
                Request::Score(job, reply) => jobs.push((job, reply)),
                Request::Generate(request, reply) => match engine.admit(&request) {
                    Ok(sequence) => under_way.push((sequence, reply)),
                    // Whoever asked may have gone, which is no concern of ours.
                    Err(error) => drop(reply.send(Err(error))),
                },
            }
        }
        score(&mut engine, jobs);
        step(&mut engine, &mut under_way);
    }
}

/// What has arrived; waits for something only when there is nothing else to do. `None` when nobody can ask any more.
fn next(requests: &Receiver<Request>, is_idle: bool) -> Option<Vec<Request>> {
    let first = if is_idle { Some(requests.recv().ok()?) } else { None };
    Some(first.into_iter().chain(requests.try_iter()).collect())
}

fn score(engine: &mut Engine, waiting: Vec<(ScoreJob, Reply<Scored>)>) {
    let wanted = waiting.into_iter().filter(|(_, reply)| !reply.is_closed());
    let (jobs, replies): (Vec<_>, Vec<_>) = wanted.unzip();
    for (reply, scored) in replies.into_iter().zip(engine.score_many(&jobs)) {
        drop(reply.send(scored));
    }
}

/// Lengthens every continuation by one token and hands over those that are finished.
fn step(engine: &mut Engine, under_way: &mut Vec<UnderWay>) {
    under_way.retain(|(_, reply)| !reply.is_closed());
    let open = under_way.iter_mut().map(|(sequence, _)| sequence).filter(|it| !it.is_finished());
    let mut open: Vec<&mut Sequence> = open.collect();
    if !open.is_empty() {
        engine.step(&mut open);
    }
    for (sequence, reply) in under_way.extract_if(.., |(sequence, _)| sequence.is_finished()) {
        drop(reply.send(sequence.into_generated()));
    }
}
