//! A model that remembers how it is doing.
//!
//! Owns [`Watched`], which stands outside of everything else a model is wrapped in. When there is no point in asking
//! on, which is [`Outlook`]'s to say, all later calls end at once.

use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;

use crate::event::{Event, Tell};
use crate::model::outlook::Outlook;
use crate::model::{
    ChatAnswer, ChatRequest, Error, GenerateRequest, Generated, Limits, Model, Place, Scored, Usage,
};
use backsight_core::score::ScoreJob;

/// A model that stops answering when there is no point in asking.
pub struct Watched {
    inner: Arc<dyn Model>,
    tell: Option<Tell>,
    outlook: Outlook,
}

impl Watched {
    /// `inner`, which has not failed yet; `tell` hears of each of its turns.
    pub fn new(inner: Arc<dyn Model>, tell: Option<Tell>) -> Arc<Self> {
        Arc::new(Self { inner, tell, outlook: Outlook::default() })
    }

    /// `inner`, whose failures are noted there.
    pub fn sharing(inner: Arc<dyn Model>, outlook: Outlook) -> Arc<dyn Model> {
        Arc::new(Self { inner, tell: None, outlook })
    }

    /// The same watch over `inner`: what stops one stops all.
    pub fn over(&self, inner: Arc<dyn Model>) -> Self {
        Self { inner, tell: self.tell.clone(), outlook: self.outlook.clone() }
    }

    /// Whether there is a point in asking on.
    pub fn outlook(&self) -> &Outlook {
        &self.outlook
    }

    async fn ask<T>(&self, call: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        if let Some(error) = self.outlook.stopped_by() {
            return Err(error);
        }
        let begun = self.outlook.begin();
        let answer = call.await;
        self.outlook.heed(begun, &answer);
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

    async fn chat_many(&self, requests: &[ChatRequest]) -> Vec<Result<ChatAnswer, Error>> {
        if let Some(error) = self.outlook.stopped_by() {
            return vec![Err(error); requests.len()];
        }
        let (begun, began) = (self.outlook.begin(), Instant::now());
        let answers = self.inner.chat_many(requests).await;
        for (request, answer) in requests.iter().zip(&answers) {
            self.told(&request.place, began, answer, |it| it.usage);
        }
        // They were one call: it found a server if one of them was answered.
        let one = answers.iter().find(|it| it.is_ok()).or(answers.first());
        one.into_iter().for_each(|answer| self.outlook.heed(begun, answer));
        answers
    }

    fn limits(&self) -> &Limits {
        self.inner.limits()
    }
}
