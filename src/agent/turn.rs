//! One turn of a student: asked in its own tokens, or over a chat route, and read.
//!
//! Owns both ways of asking and what can go wrong with them. In its own tokens a student is asked with
//! exactly the ids that are recorded. Over a chat route the server renders; the episode says so.
//! Deliberately absent: calling tools, and ending an episode.

use serde_json::Value;
use tokio::time::Instant;

use crate::agent::force::call_pattern;
use crate::model::key::seed_for;
use crate::model::{self, ChatRequest, Constraint, Finish, GenerateRequest, Place, Sampling};
use crate::tasks::CodingTask;
use backsight_chat::error::TextError;
use backsight_chat::format::{ChatFormat, ReadAction};
use backsight_chat::parse::Parser;
use backsight_chat::template::Now;
use backsight_core::episode::{Content, Message, Role, Stop};

use super::setting::{AgentSetting, EpisodePlace};
use super::transcript::Transcript;

/// What servers call the end of an answer that did not come to its end.
const BROKEN_OFF: [&str; 5] = ["abort", "cancelled", "content_filter", "error", "refusal"];

/// Why an episode cannot go on, other than by the student's doing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Breakdown {
    pub stop: Stop,
    pub why: String,
}

impl Breakdown {
    pub fn new(why: impl Into<String>) -> Self {
        Self { stop: Stop::Failed, why: why.into() }
    }
}

impl From<model::Error> for Breakdown {
    fn from(error: model::Error) -> Self {
        let help = error.help().map(|help| format!("\nhelp: {help}")).unwrap_or_default();
        Self::new(format!("{error}{help}"))
    }
}

impl From<TextError> for Breakdown {
    fn from(error: TextError) -> Self {
        Self::new(format!("{error}\nhelp: {}", error.help()))
    }
}

/// What a student said in a turn.
pub(super) struct Said {
    pub message: Message,
    /// Why pieces that looked like calls are none.
    pub malformed: Vec<String>,
    /// Which limit cut it short, if one did.
    pub cut: Option<Stop>,
}

/// One attempt at a task, and its way of asking its student.
pub(super) struct Attempt<'a> {
    pub setting: &'a AgentSetting,
    pub task: &'a CodingTask,
    pub place: &'a EpisodePlace,
    pub deadline: Instant,
}

impl Attempt<'_> {
    /// Asks in the student's own tokens; nothing if the context has no room.
    pub async fn exact(&self, format: &ChatFormat, talk: &mut Transcript) -> Result<Option<Said>, Breakdown> {
        if !self.grow(format, talk)? {
            return Ok(None);
        }
        let room = self.budget() - talk.ids().len();
        let max_tokens = room.min(self.setting.options.max_turn_tokens);
        let request = GenerateRequest {
            prompt: talk.ids().to_vec(),
            sampling: self.sampling(talk, max_tokens, self.constraint(format, talk)?),
            stop_ids: format.tokenizer().end_ids().to_vec(),
            top_k: self.setting.options.student_topk,
            place: self.draw(talk),
        };
        let generated = self.in_time(self.setting.student.generate(&request)).await??;
        check_finish(&generated.finish)?;
        if generated.tokens.is_empty() {
            return Err(Breakdown::new("the student's server sampled no token at all"));
        }
        let ids: Vec<_> = generated.tokens.iter().map(|token| token.id).collect();
        let opened_thought = talk.opens_thought;
        talk.sampled(generated.tokens);
        let ReadAction { message, malformed } = format.read(&ids, opened_thought, &talk.episode.tools)?;
        let is_full = max_tokens < self.setting.options.max_turn_tokens;
        let limit = if is_full { Stop::ContextFull } else { Stop::TurnCut };
        let cut = (generated.finish == Finish::Length).then_some(limit);
        Ok(Some(Said { message, malformed, cut }))
    }

    /// Puts what comes before the turn behind the ids so far; false if there is no room for it and one token more.
    fn grow(&self, format: &ChatFormat, talk: &mut Transcript) -> Result<bool, Breakdown> {
        let now = Now::utc(self.place.started_at);
        let (messages, tools) = (&talk.episode.messages, &talk.episode.tools);
        let (ids, opens_thought) = match talk.last_action() {
            None => {
                let opening = format.opening(messages, tools, now)?;
                self.check_opening(opening.ids.len())?;
                (opening.ids, opening.opens_thought)
            }
            Some(action_idx) => {
                let between = format.between(messages, action_idx, tools, now)?;
                // A turn that was cut never ended; the template's end is put there for it, unsampled.
                let has_ended = talk.ids().last().is_some_and(|id| format.is_end(*id));
                let end = between.end.filter(|_| !has_ended);
                (end.into_iter().chain(between.ids).collect(), between.opens_thought)
            }
        };
        let fits = talk.ids().len() + ids.len() < self.budget();
        if fits {
            talk.extend(&ids, opens_thought);
        }
        Ok(fits)
    }

    /// A student that cannot even read its task has done nothing wrong.
    fn check_opening(&self, n_tokens: usize) -> Result<(), Breakdown> {
        let budget = self.budget();
        if n_tokens < budget {
            return Ok(());
        }
        Err(Breakdown::new(format!(
            "the task with its tools has {n_tokens} tokens and leaves no room in a context of {budget}\n\
             help: raise --context-budget, or serve the model with a longer context"
        )))
    }

    /// Asks over a chat route; nothing if the server says that the context is full.
    pub async fn chat(&self, parser: Option<Parser>, talk: &Transcript) -> Result<Option<Said>, Breakdown> {
        let request = ChatRequest {
            messages: talk.episode.messages.clone(),
            tools: talk.episode.tools.clone(),
            sampling: self.sampling(talk, self.setting.options.max_turn_tokens, None),
            place: self.draw(talk),
        };
        let answer = match self.in_time(self.setting.student.chat(&request)).await? {
            Err(error) if talk.n_turns() > 0 && is_context_full(&error) => return Ok(None),
            answer => answer?,
        };
        check_finish(&answer.finish)?;
        let cut = (answer.finish == Finish::Length).then_some(Stop::TurnCut);
        let message = Message { role: Role::Assistant, ..answer.message };
        Ok(Some(read_chat(message, parser, &request.tools, cut)))
    }

    /// How many tokens a sequence may have.
    fn budget(&self) -> usize {
        let own = self.setting.options.context_budget.unwrap_or(usize::MAX);
        own.min(self.setting.student.limits().context_length.unwrap_or(usize::MAX))
    }

    fn draw(&self, talk: &Transcript) -> Place {
        let (task, episode) = (self.task.task.id.clone(), self.place.episode);
        Place { task, episode, step: talk.n_turns(), vote: 0 }
    }

    fn sampling(&self, talk: &Transcript, max_tokens: usize, constraint: Option<Constraint>) -> Sampling {
        Sampling {
            temperature: self.setting.options.agent_temperature,
            top_p: 1.0,
            top_k: None,
            seed: Some(seed_for(self.setting.options.seed, &self.draw(talk))),
            max_tokens,
            constraint,
        }
    }

    fn constraint(&self, format: &ChatFormat, talk: &Transcript) -> Result<Option<Constraint>, Breakdown> {
        let turn = talk.n_turns();
        let forced = self.setting.options.forced_calls.as_ref().filter(|it| turn < it.turns);
        let Some(forced) = forced else { return Ok(None) };
        let may_be_called = |it: &&Value| forced.tool(turn).is_none_or(|name| it["function"]["name"] == name);
        let tools: Vec<Value> = talk.episode.tools.iter().filter(may_be_called).cloned().collect();
        let pattern = call_pattern(format.parser(), &tools, forced.max_text, forced.arguments(turn));
        let none = || {
            let name = format.parser().name();
            Breakdown::new(format!(
                "calls in the format `{name}` cannot be forced\nhelp: leave out --forced-calls"
            ))
        };
        // A thought that the prompt has opened must be closed before a call counts.
        let close = if talk.opens_thought { "</think>\\n\\n" } else { "" };
        Ok(Some(Constraint::Regex(format!("{close}{}", pattern.ok_or_else(none)?))))
    }

    /// Waits for an answer as long as the episode lasts.
    async fn in_time<T>(&self, answer: impl Future<Output = T>) -> Result<T, Breakdown> {
        let seconds = self.setting.options.episode_time.as_secs();
        tokio::time::timeout_at(self.deadline, answer).await.map_err(|_| Breakdown {
            stop: Stop::WallClock,
            why: format!(
                "the episode's {seconds} seconds were over before the student had answered\nhelp: raise --episode-seconds, or see why the server is slow"
            ),
        })
    }
}

/// An answer that the server broke off is no action of the student's.
fn check_finish(finish: &Finish) -> Result<(), Breakdown> {
    match finish {
        Finish::Other(word) if BROKEN_OFF.contains(&word.as_str()) => {
            Err(Breakdown::new(format!("the student's server broke its answer off: {word}")))
        }
        _ => Ok(()),
    }
}

/// What a chat route answered; calls are read out of the text only where the server did not.
fn read_chat(mut message: Message, parser: Option<Parser>, tools: &[Value], cut: Option<Stop>) -> Said {
    let text = message.content.as_ref().map(Content::text).unwrap_or_default();
    let Some(parser) = parser.filter(|_| message.tool_calls.is_empty()) else {
        return Said { message, malformed: Vec::new(), cut };
    };
    let parsed = parser.parse(&text, tools);
    if !parsed.calls.is_empty() {
        message.tool_calls = parsed.calls.iter().map(|call| call.to_tool_call()).collect();
        message.content = parsed.content.map(Content::Text);
    }
    Said { message, malformed: parsed.malformed, cut }
}

/// Whether a server refuses a conversation because it is too long for it.
fn is_context_full(error: &model::Error) -> bool {
    let model::Error::Refused { status: 400 | 413, message, .. } = error else { return false };
    let message = message.to_lowercase();
    ["context length", "context_length", "context window", "maximum context", "too long"]
        .iter()
        .any(|words| message.contains(words))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_that_were_broken_off_are_no_actions() {
        let fails = |finish: Finish| check_finish(&finish).err().map(|failure| failure.why);
        assert_eq!(fails(Finish::Stop), None);
        assert_eq!(fails(Finish::Other("eos_token".into())), None);
        let why = "the student's server broke its answer off: abort".to_owned();
        assert_eq!(fails(Finish::Other("abort".into())), Some(why));
    }

    #[test]
    fn a_full_context_is_told_from_other_refusals() {
        let check = |status: u16, message: &str, expected: bool| {
            let error = model::Error::Refused { server: "s".into(), status, message: message.into() };
            assert_eq!(is_context_full(&error), expected, "{message}");
        };
        check(400, "This model's maximum context length is 4096 tokens. However, you requested 5000", true);
        check(400, "error code: context_length_exceeded", true);
        check(413, "prompt is too long: 210000 tokens > 200000 maximum", true);
        check(400, "unknown model", false);
        check(401, "context length", false);
        let gone = model::Error::Unreachable { server: "s".into(), why: "context length".into() };
        assert!(!is_context_full(&gone));
    }
}
