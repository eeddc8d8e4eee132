//! Asks a judge about an action and its next state, and reads what it says.
//!
//! Owns how many answers are drawn, and how. The words of the questions and what the answers decide together are the
//! business of the core's `hint`.

use std::sync::Arc;

use crate::model::{ChatAnswer, ChatRequest, Constraint, Error, Model, Place, Sampling};
use backsight_core::episode::{Content, Episode, Message, Role};
use backsight_core::hint::{Pair, Question, Vote, read_evaluation, read_exchange};

/// How a judge is asked.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Manner {
    /// Votes on each pair.
    pub votes: usize,
    /// Tokens of one answer at most, thinking included.
    pub answer_tokens: usize,
    /// How votes are drawn.
    pub temperature: f64,
    /// Whether answers are forced into form.
    pub structured: bool,
    /// Characters that are shown of each part of an action.
    pub max_chars: usize,
}

/// A model in the role of the judge.
pub struct Judge {
    /// Who answers.
    pub model: Arc<dyn Model>,
    /// How it is asked.
    pub manner: Manner,
}

impl Judge {
    /// The votes on a pair, in their order; one that failed says why.
    pub async fn votes(&self, episode: &Episode, pair: &Pair) -> Vec<Result<Vote, Error>> {
        let answers = self.model.chat_many(&self.requests(Question::Hint, episode, pair)).await;
        answers.into_iter().map(|answer| answer.map(|answer| Vote::read(&said(&answer)))).collect()
    }

    /// What a pair's action was worth; nothing where the answer cannot be read.
    pub async fn evaluate(&self, episode: &Episode, pair: &Pair) -> Result<Option<i8>, Error> {
        let request = self.request(Question::Evaluation, episode, pair, 0);
        Ok(read_evaluation(&said(&self.model.chat(&request).await?)))
    }

    /// A worked exchange that shows a hint; none where the answer cannot be read.
    pub async fn exchange(
        &self,
        episode: &Episode,
        pair: &Pair,
        hint: &str,
    ) -> Result<Option<Vec<Message>>, Error> {
        let request = self.request(Question::Exchange(hint), episode, pair, 0);
        Ok(read_exchange(&said(&self.model.chat(&request).await?)).map(Vec::from))
    }

    /// The requests of all votes on a pair, which differ in their place alone.
    pub fn requests(&self, question: Question<'_>, episode: &Episode, pair: &Pair) -> Vec<ChatRequest> {
        (0..self.manner.votes).map(|vote| self.request(question, episode, pair, vote)).collect()
    }

    fn request(&self, question: Question<'_>, episode: &Episode, pair: &Pair, vote: usize) -> ChatRequest {
        let Manner { answer_tokens, temperature, structured, max_chars, .. } = self.manner;
        let shown = question.shown(episode, pair, max_chars);
        ChatRequest {
            messages: vec![Message::text(Role::System, question.words()), Message::text(Role::User, shown)],
            tools: Vec::new(),
            sampling: Sampling {
                temperature,
                seed: None,
                constraint: structured.then(|| Constraint::Regex(question.form().to_owned())),
                ..Sampling::greedy(answer_tokens)
            },
            place: Place { task: question.about(&episode.id), episode: 0, step: pair.step, vote },
        }
    }
}

fn said(answer: &ChatAnswer) -> String {
    answer.message.content.as_ref().map(Content::text).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forced_answers_can_be_read() {
        for (text, hintable) in [
            ("\\boxed{-1}", Some(false)),
            ("\\boxed{1}\n[HINT_START]look at the file first[HINT_END]", Some(true)),
        ] {
            assert!(
                regex::Regex::new(&format!("^(?:{})$", Question::Hint.form()))
                    .is_ok_and(|form| form.is_match(text))
            );
            assert_eq!(Vote::read(text).hintable, hintable);
        }
        let exchange = "[USER_START]count the lines[USER_END]\n[AGENT_START]I run wc first[AGENT_END]";
        let form = format!("^(?:{})$", Question::Exchange("").form());
        assert!(regex::Regex::new(&form).is_ok_and(|form| form.is_match(exchange)));
        assert!(read_exchange(exchange).is_some());
    }
}
