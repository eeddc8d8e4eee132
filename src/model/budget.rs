//! What each role has paid, and the limits the user set on it.
//!
//! Owns [`Meter`] (counts and limits of one role) and [`Budgeted`], a model that asks its meter before
//! each call. The ledger stands outside of it, so answers it already has cost nothing here. A call that
//! the transport had to send several times is one request: only its last answer told what it cost.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use tokio::sync::Notify;

use super::{ChatAnswer, ChatRequest, Error, GenerateRequest, Generated, Limits, Model, Scored, Usage};
use backsight_core::episode::Message;
use backsight_core::named;
use backsight_core::score::ScoreJob;

/// For whom a model works.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ModelRole {
    /// The policy whose tokens are trained.
    Student,
    /// The model that re-reads them.
    Teacher,
    /// The model that votes on hints.
    Judge,
}

named!(ModelRole: Student = "student", Teacher = "teacher", Judge = "judge");

/// How much a role may pay; `None` is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Allowance {
    /// Calls.
    pub max_requests: Option<u64>,
    /// Tokens sent and sampled together, cached ones included.
    pub max_tokens: Option<u64>,
}

/// What a role has paid.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spent {
    /// Calls that were answered.
    pub requests: u64,
    /// Tokens sent.
    pub prompt_tokens: u64,
    /// Of those, found in a server's cache, as far as servers told.
    pub cached_tokens: u64,
    /// Tokens sampled.
    pub completion_tokens: u64,
}

impl std::ops::AddAssign for Spent {
    fn add_assign(&mut self, other: Self) {
        self.requests += other.requests;
        self.prompt_tokens += other.prompt_tokens;
        self.cached_tokens += other.cached_tokens;
        self.completion_tokens += other.completion_tokens;
    }
}

impl Spent {
    /// The tokens a limit is compared with.
    pub fn tokens(&self) -> u64 {
        self.prompt_tokens + self.completion_tokens
    }
}

/// Counts what one role pays and knows when to stop.
#[derive(Debug)]
pub struct Meter {
    role: ModelRole,
    allowance: Allowance,
    account: Mutex<Account>,
    settled: Notify,
}

#[derive(Debug, Default)]
struct Account {
    spent: Spent,
    /// How many calls are under way, and what they may still cost.
    under_way: u64,
    reserved: u64,
}

impl Meter {
    /// A meter at zero.
    pub fn new(role: ModelRole, allowance: Allowance) -> Arc<Self> {
        Arc::new(Self { role, allowance, account: Mutex::default(), settled: Notify::new() })
    }

    /// What has been paid so far.
    pub fn spent(&self) -> Spent {
        self.lock().spent
    }

    /// For whom it counts.
    pub fn role(&self) -> ModelRole {
        self.role
    }

    /// Sets aside one request of up to `tokens`. Where only what is set aside for others stands in the
    /// way, waits until their real cost is known: a call is refused only if it truly does not fit.
    async fn reserve(self: &Arc<Self>, tokens: u64) -> Result<Reservation, Error> {
        loop {
            let settled = self.settled.notified();
            if let Some(room) = self.try_reserve(tokens)? {
                return Ok(room);
            }
            settled.await;
        }
    }

    /// Room for the first of calls of these sizes, and for as many of the following as there is room for at once.
    async fn reserve_some(
        self: &Arc<Self>,
        sizes: impl Iterator<Item = u64>,
    ) -> Result<Vec<Reservation>, Error> {
        let mut sizes = sizes;
        let Some(first) = sizes.next() else { return Ok(Vec::new()) };
        let mut rooms = vec![self.reserve(first).await?];
        rooms.extend(sizes.map_while(|size| self.try_reserve(size).ok().flatten()));
        Ok(rooms)
    }

    /// Sets it aside if there is room now.
    fn try_reserve(self: &Arc<Self>, tokens: u64) -> Result<Option<Reservation>, Error> {
        let mut account = self.lock();
        let requests =
            (account.spent.requests, 1, account.under_way, self.allowance.max_requests, "requests");
        let sizes = (account.spent.tokens(), tokens, account.reserved, self.allowance.max_tokens, "tokens");
        for (spent, more, under_way, limit, what) in [requests, sizes] {
            let (Some(limit), settled) = (limit, spent.saturating_add(more)) else { continue };
            if settled > limit {
                return Err(Error::Budget { role: self.role.name().to_owned(), what, limit });
            }
            if settled.saturating_add(under_way) > limit {
                return Ok(None);
            }
        }
        account.under_way += 1;
        account.reserved += tokens;
        Ok(Some(Reservation { meter: Arc::clone(self), tokens, usage: None }))
    }

    fn lock(&self) -> MutexGuard<'_, Account> {
        self.account.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Room for one call, given back when dropped; what the call cost is added then.
struct Reservation {
    meter: Arc<Meter>,
    tokens: u64,
    usage: Option<Usage>,
}

impl Reservation {
    /// Adds the cost of an answer; a call without one costs nothing.
    fn settle<T>(mut self, outcome: Result<T, Error>, usage: impl Fn(&T) -> Usage) -> Result<T, Error> {
        self.usage = outcome.as_ref().ok().map(usage);
        outcome
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let mut account = self.meter.lock();
        account.reserved = account.reserved.saturating_sub(self.tokens);
        account.under_way -= 1;
        if let Some(usage) = self.usage {
            account.spent.requests += 1;
            account.spent.prompt_tokens += usage.prompt_tokens;
            account.spent.cached_tokens += usage.cached_tokens.unwrap_or(0);
            account.spent.completion_tokens += usage.completion_tokens;
        }
        drop(account);
        self.meter.settled.notify_waiters();
    }
}

/// A model that stops when its role has paid what it may.
pub struct Budgeted {
    inner: Arc<dyn Model>,
    meter: Arc<Meter>,
}

impl Budgeted {
    /// `inner`, metered.
    pub fn new(inner: Arc<dyn Model>, meter: Arc<Meter>) -> Self {
        Self { inner, meter }
    }
}

#[async_trait]
impl Model for Budgeted {
    async fn generate(&self, request: &GenerateRequest) -> Result<Generated, Error> {
        let most = request.prompt.len() + request.sampling.max_tokens;
        let room = self.meter.reserve(most as u64).await?;
        room.settle(self.inner.generate(request).await, |it| it.usage)
    }

    async fn score(&self, job: &ScoreJob) -> Result<Scored, Error> {
        let room = self.meter.reserve(job.tokens().len() as u64).await?;
        room.settle(self.inner.score(job).await, |it| it.usage)
    }

    /// Sends as many together as the limits allow; each of them counts as a request.
    async fn score_many(&self, jobs: &[ScoreJob]) -> Vec<Result<Scored, Error>> {
        let mut answers = Vec::with_capacity(jobs.len());
        while answers.len() < jobs.len() {
            let rest = &jobs[answers.len()..];
            match self.meter.reserve_some(rest.iter().map(|job| job.tokens().len() as u64)).await {
                Err(error) => answers.push(Err(error)),
                Ok(rooms) => {
                    let scored = self.inner.score_many(&rest[..rooms.len()]).await;
                    let settled = rooms.into_iter().zip(scored);
                    answers.extend(settled.map(|(room, scored)| room.settle(scored, |it| it.usage)));
                }
            }
        }
        answers
    }

    /// The same of conversations: a draw counts as a request also where several are made in one.
    async fn chat_many(&self, requests: &[ChatRequest]) -> Vec<Result<ChatAnswer, Error>> {
        let mut answers = Vec::with_capacity(requests.len());
        while answers.len() < requests.len() {
            let rest = &requests[answers.len()..];
            match self.meter.reserve_some(rest.iter().map(guessed_tokens)).await {
                Err(error) => answers.push(Err(error)),
                Ok(rooms) => {
                    let said = self.inner.chat_many(&rest[..rooms.len()]).await;
                    let settled = rooms.into_iter().zip(said);
                    answers.extend(settled.map(|(room, said)| room.settle(said, |it| it.usage)));
                }
            }
        }
        answers
    }

    async fn chat(&self, request: &ChatRequest) -> Result<ChatAnswer, Error> {
        let room = self.meter.reserve(guessed_tokens(request)).await?;
        room.settle(self.inner.chat(request).await, |it| it.usage)
    }

    fn limits(&self) -> &Limits {
        self.inner.limits()
    }

    fn top_k_limit(&self) -> Option<usize> {
        self.inner.top_k_limit()
    }
}

/// A guess at the tokens of a conversation and its answer that somebody else's tokenizer will see, at four bytes each.
pub(super) fn guessed_tokens(request: &ChatRequest) -> u64 {
    let of_message = |message: &Message| {
        let text = message.content.as_ref().map_or(0, |content| content.text().len());
        let thought = message.reasoning.as_ref().map_or(0, String::len);
        (text + thought) / 4 + 4
    };
    let prompt: usize = request.messages.iter().map(of_message).sum();
    (prompt + request.sampling.max_tokens) as u64
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;
    use backsight_core::tokens::TokenSpan;
    use std::time::Duration;

    /// Charges `tokens` for each score, after a second; refuses a job of one token, and does not answer one of two.
    struct Priced(u64, Limits);

    #[async_trait]
    impl Model for Priced {
        async fn generate(&self, _: &GenerateRequest) -> Result<Generated, Error> {
            unreachable!("only scores are asked for")
        }

        async fn score(&self, job: &ScoreJob) -> Result<Scored, Error> {
            tokio::time::sleep(Duration::from_secs(1)).await;
            if job.tokens().len() == 1 {
                return Err(Error::Invalid { what: "too short".into(), help: String::new() });
            }
            if job.tokens().len() == 2 {
                return Err(Error::Unreachable { server: "s".into(), why: "reset".into() });
            }
            let usage = Usage { prompt_tokens: self.0, cached_tokens: Some(2), completion_tokens: 1 };
            Ok(Scored { spans: vec![], version: None, usage })
        }

        async fn chat(&self, _: &ChatRequest) -> Result<ChatAnswer, Error> {
            unreachable!("only scores are asked for")
        }

        fn limits(&self) -> &Limits {
            &self.1
        }
    }

    fn budgeted(max_requests: Option<u64>, max_tokens: Option<u64>, price: u64) -> (Budgeted, Arc<Meter>) {
        let meter = Meter::new(ModelRole::Judge, Allowance { max_requests, max_tokens });
        (Budgeted::new(Arc::new(Priced(price, Limits::default())), Arc::clone(&meter)), meter)
    }

    fn job(n_tokens: u32) -> ScoreJob {
        ScoreJob::new((0..n_tokens).collect(), vec![TokenSpan::at(0, 1)], 0).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn requests_are_counted_and_limited() {
        let (model, meter) = budgeted(Some(2), None, 10);
        model.score(&job(5)).await.unwrap();
        assert!(
            matches!(model.score(&job(1)).await, Err(Error::Invalid { .. })),
            "never sent, never counted"
        );
        assert!(
            matches!(model.score(&job(2)).await, Err(Error::Unreachable { .. })),
            "never answered, never counted"
        );
        model.score(&job(5)).await.unwrap();
        let error = model.score(&job(5)).await.unwrap_err();
        assert_eq!(error.to_string(), "the limit of 2 requests for the judge is reached");
        assert!(error.stops_the_run());
        let paid = Spent { requests: 2, prompt_tokens: 20, cached_tokens: 4, completion_tokens: 2 };
        assert_eq!(meter.spent(), paid);
    }

    /// One answer more may be had: of two calls at once the second waits, and goes if the first gets none.
    #[tokio::test(start_paused = true)]
    async fn a_call_takes_the_place_of_one_that_was_not_answered() {
        let (model, meter) = budgeted(Some(1), None, 10);
        let (gone, here) = (job(2), job(5));
        let (first, second) = tokio::join!(model.score(&gone), model.score(&here));
        assert!(first.is_err() && second.is_ok());
        assert_eq!(meter.spent().requests, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn tokens_never_pass_their_limit() {
        let (model, meter) = budgeted(None, Some(100), 39);
        let model = Arc::new(model);
        let calls: Vec<_> = (0..10)
            .map(|_| {
                let model = Arc::clone(&model);
                tokio::spawn(async move { model.score(&job(40)).await })
            })
            .collect();
        let mut answered = 0;
        for call in calls {
            match call.await.unwrap() {
                Ok(_) => answered += 1,
                Err(error) => {
                    assert_eq!(error.to_string(), "the limit of 100 tokens for the judge is reached")
                }
            }
        }
        assert_eq!((answered, meter.spent().tokens()), (2, 80));
    }

    #[tokio::test(start_paused = true)]
    async fn of_several_jobs_as_many_are_sent_as_may_be() {
        let together = async |max_requests, max_tokens| {
            let (model, meter) = budgeted(max_requests, max_tokens, 9);
            let answers = model.score_many(&[job(20), job(20), job(1), job(20), job(20)]).await;
            let errors: Vec<bool> = answers.iter().map(Result::is_err).collect();
            (errors, meter.spent().requests, meter.lock().reserved)
        };
        assert_eq!(together(None, None).await, (vec![false, false, true, false, false], 4, 0));
        assert_eq!(together(Some(2), None).await, (vec![false, false, true, true, true], 2, 0));
        // What was set aside for the first two stands in the way of the others until its real cost is known.
        assert_eq!(together(None, Some(50)).await, (vec![false, false, true, false, false], 4, 0));
        assert_eq!(together(None, Some(45)).await, (vec![false, false, true, false, true], 3, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_waits_for_the_real_cost_of_others() {
        let (model, _) = budgeted(None, Some(100), 10);
        let job = job(80);
        let (one, two) = tokio::join!(model.score(&job), model.score(&job));
        assert!(one.is_ok() && two.is_ok(), "each cost eleven although eighty were set aside");
    }

    #[tokio::test(start_paused = true)]
    async fn an_abandoned_call_gives_its_room_back() {
        let (model, meter) = budgeted(None, Some(100), 10);
        let _ = tokio::time::timeout(Duration::from_millis(10), model.score(&job(90))).await;
        assert_eq!(meter.lock().reserved, 0);
        model.score(&job(90)).await.unwrap();
    }
}
