//! A model that remembers how it is doing.
//!
//! Owns [`Watched`], which stands outside of everything else a model is wrapped in. A failure that no
//! later call can escape (a budget used up, a disk that is full) ends all later calls at once, and so
//! does a server that has failed several calls in a row although each was tried again for a minute.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use async_trait::async_trait;

use crate::event::Event;
use crate::model::{
    ChatAnswer, ChatRequest, Error, GenerateRequest, Generated, Limits, Model, Place, Scored, Usage,
};
use backsight_core::score::ScoreJob;

/// So many calls in a row that found no working server mean that there is none.
const GONE_AFTER: u32 = 3;

/// Who is told of each turn.
pub type TellTurn = Arc<dyn Fn(&Event) + Send + Sync>;

/// A model that stops answering when there is no point in asking.
pub struct Watched {
    inner: Arc<dyn Model>,
    tell: Option<TellTurn>,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    /// Failures since the last success that another time might have passed, and the last of them.
    in_a_row: u32,
    last: Option<Error>,
    stopped_by: Option<Error>,
}

impl Watched {
    /// `inner`, which has not failed yet; `tell` hears of each of its turns.
    pub fn new(inner: Arc<dyn Model>, tell: Option<TellTurn>) -> Arc<Self> {
        Arc::new(Self { inner, tell, state: Arc::default() })
    }

    /// The same watch over `inner`: what stops one stops all.
    pub fn over(&self, inner: Arc<dyn Model>) -> Self {
        Self { inner, tell: self.tell.clone(), state: Arc::clone(&self.state) }
    }

    /// Why nothing more is asked; none while there is hope.
    pub fn stopped_by(&self) -> Option<Error> {
        self.lock().stopped_by.clone()
    }

    /// Why nothing more can be hoped for now that all is over: what stopped it, or the failure it ended with.
    pub fn ended_by(&self) -> Option<Error> {
        let state = self.lock();
        state.stopped_by.clone().or_else(|| state.last.clone())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn ask<T>(&self, call: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        if let Some(error) = self.stopped_by() {
            return Err(error);
        }
        let answer = call.await;
        self.lock().note(answer.as_ref().err());
        answer
    }

    fn told<T>(&self, place: &Place, began: Instant, answer: &Result<T, Error>, usage: fn(&T) -> Usage) {
        let Some(tell) = &self.tell else { return };
        let tokens = answer.as_ref().map(usage).map(|it| (it.prompt_tokens, it.completion_tokens));
        tell(&Event::Turn {
            id: format!("{}-{}", place.task, place.episode),
            turn: place.step,
            tokens: tokens.map_err(Error::to_string),
            seconds: began.elapsed().as_secs_f64(),
        });
    }
}

impl State {
    fn note(&mut self, error: Option<&Error>) {
        match error {
            None => (self.in_a_row, self.last) = (0, None),
            Some(error) if error.stops_the_run() => {
                self.stopped_by.get_or_insert_with(|| error.clone());
            }
            Some(error) if error.may_pass() => {
                self.in_a_row += 1;
                // A garbled answer comes from a server that is there.
                self.last = Some(error.clone()).filter(|error| !matches!(error, Error::Garbled { .. }));
                if self.in_a_row >= GONE_AFTER {
                    self.stopped_by.get_or_insert_with(|| error.clone());
                }
            }
            // A server that refuses one request works.
            Some(_) => {}
        }
    }
}

#[async_trait]
impl Model for Watched {
    async fn generate(&self, request: &GenerateRequest) -> Result<Generated, Error> {
        let began = Instant::now();
        let answer = self.ask(self.inner.generate(request)).await;
        self.told(&request.place, began, &answer, |it| it.usage);
        answer
    }

    async fn score(&self, job: &ScoreJob) -> Result<Scored, Error> {
        self.ask(self.inner.score(job)).await
    }

    async fn chat(&self, request: &ChatRequest) -> Result<ChatAnswer, Error> {
        let began = Instant::now();
        let answer = self.ask(self.inner.chat(request)).await;
        self.told(&request.place, began, &answer, |it| it.usage);
        answer
    }

    fn limits(&self) -> &Limits {
        self.inner.limits()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gone() -> Error {
        Error::Unreachable { server: "s".into(), why: "refused".into() }
    }

    fn budget() -> Error {
        Error::Budget { role: "student".into(), what: "tokens", limit: 9 }
    }

    fn refused() -> Error {
        Error::Refused { server: "s".into(), status: 400, message: "no".into() }
    }

    fn check(calls: &[Option<Error>], stopped_by: Option<Error>, ended_by: Option<Error>) {
        let mut state = State::default();
        calls.iter().for_each(|call| state.note(call.as_ref()));
        assert_eq!(
            (state.stopped_by.clone(), state.stopped_by.or(state.last)),
            (stopped_by, ended_by),
            "{calls:?}"
        );
    }

    #[test]
    fn it_stops_when_there_is_no_point_in_asking() {
        check(&[None, Some(refused()), Some(refused()), Some(refused())], None, None);
        check(&[Some(budget()), None], Some(budget()), Some(budget()));
        check(&[Some(gone()), Some(gone()), None, Some(gone())], None, Some(gone()));
        check(&[Some(gone()), Some(gone()), Some(gone()), None], Some(gone()), Some(gone()));
        check(&[Some(gone()), None], None, None);
    }
}
