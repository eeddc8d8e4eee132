//! What happened in an episode so far: messages, and the tokens the student saw and sampled.
//!
//! Owns the one sequence of ids that only ever grows. What the student saw before an action is what
//! stands before it here, to the token. Deliberately absent: deciding what happens next.

use serde_json::Value;

use crate::model::SampledToken;
use backsight_chat::format::Opening;
use backsight_core::episode::{
    ActionTokens, Content, Episode, Message, Progress, Role, Task, TokenSource, ToolCall, steps_of,
};
use backsight_core::tokens::{TokenId, TokenSpan};

use super::tools::{ToolResult, cut};

/// How much of a result's whole text is stored; a student can print without end.
const STORED_CHARS: usize = 1_000_000;

/// An episode while it happens.
pub(super) struct Transcript {
    episode: Episode,
    ids: Vec<TokenId>,
    actions: Vec<ActionTokens>,
    /// Whether the student speaks next from inside a thought.
    pub opens_thought: bool,
}

impl Transcript {
    /// Begins with the system prompt, if there is one, and the task.
    pub fn new(id: String, task: &Task, system: Option<&str>, tools: Vec<Value>) -> Self {
        let system = system.map(|text| Message::text(Role::System, text));
        let user = Message::text(Role::User, task.prompt.as_str());
        let mut episode = Episode::new(id, task.clone(), system.into_iter().chain([user]).collect());
        episode.tools = tools;
        Self { episode, ids: Vec::new(), actions: Vec::new(), opens_thought: false }
    }

    /// The episode as it stands; its steps are not filled in before [`Transcript::into_episode`].
    pub fn episode(&self) -> &Episode {
        &self.episode
    }

    /// The same, to be added to.
    pub fn episode_mut(&mut self) -> &mut Episode {
        &mut self.episode
    }

    /// Everything the student has seen and sampled.
    pub fn ids(&self) -> &[TokenId] {
        &self.ids
    }

    /// Takes the first prompt.
    pub fn open(&mut self, opening: Opening) {
        self.ids = opening.ids;
        self.opens_thought = opening.opens_thought;
        self.episode.token_source = TokenSource::Exact;
    }

    /// Takes what stands between two actions.
    pub fn extend(&mut self, ids: &[TokenId], opens_thought: bool) {
        self.ids.extend_from_slice(ids);
        self.opens_thought = opens_thought;
    }

    /// Takes the tokens of an action.
    pub fn sampled(&mut self, tokens: Vec<SampledToken>) {
        let span = TokenSpan::at(self.ids.len(), tokens.len());
        self.ids.extend(tokens.iter().map(|token| token.id));
        let logprobs = tokens.iter().map(|token| token.logprob).collect();
        let top = tokens.into_iter().map(|token| token.top).collect();
        self.actions.push(ActionTokens { sequence: 0, span, logprobs, top });
    }

    /// Takes an action's message; its calls get ids where they have none.
    pub fn acted(&mut self, mut message: Message) -> Vec<ToolCall> {
        let turn = self.n_turns();
        for (idx, call) in message.tool_calls.iter_mut().enumerate() {
            // Nine letters and digits, because some templates insist on that.
            call.id.get_or_insert_with(|| format!("c{:04}{:04}", turn % 10_000, idx % 10_000));
        }
        // Many templates cannot join a text that is missing; servers put an empty one there too.
        message.content.get_or_insert_with(|| Content::Text(String::new()));
        let calls = message.tool_calls.clone();
        self.episode.messages.push(message);
        calls
    }

    /// Takes what a tool answered to a call.
    pub fn answered(&mut self, call: &ToolCall, result: ToolResult) {
        let answer = Message {
            tool_call_id: call.id.clone(),
            name: Some(call.name.clone()),
            ..Message::text(Role::Tool, result.content)
        };
        self.take_answer(answer, result.full, result.is_error);
    }

    /// Takes what the student is told where it called nothing that could be read.
    pub fn corrected(&mut self, result: ToolResult) {
        self.take_answer(Message::text(Role::User, result.content), None, true);
    }

    fn take_answer(&mut self, message: Message, whole: Option<String>, is_error: bool) {
        let message_idx = self.episode.messages.len();
        if is_error {
            self.episode.failed_results.push(message_idx);
        }
        if let Some(whole) = whole {
            let whole = cut::cut_middle(&whole, STORED_CHARS).unwrap_or(whole);
            self.episode.whole_results.push((message_idx, whole));
        }
        self.episode.messages.push(message);
    }

    /// The message of the last action.
    pub fn last_action(&self) -> Option<usize> {
        self.episode.messages.iter().rposition(|message| message.role == Role::Assistant)
    }

    /// How often the student has spoken.
    pub fn n_turns(&self) -> usize {
        self.episode.messages.iter().filter(|message| message.role == Role::Assistant).count()
    }

    /// The tools that were called, in order.
    pub fn tools_called(&self) -> impl Iterator<Item = &str> {
        self.episode.messages.iter().flat_map(|it| &it.tool_calls).map(|call| call.name.as_str())
    }

    /// The episode with its steps and their tokens.
    pub fn into_episode(self) -> Episode {
        let (n_turns, n_calls) = (self.n_turns(), self.tools_called().count());
        let Self { mut episode, ids, actions, .. } = self;
        episode.progress =
            Progress { turns: Some(n_turns as u64), tool_calls: Some(n_calls as u64), ..Progress::default() };
        let mut steps = steps_of(&episode.messages);
        steps.iter_mut().zip(actions).for_each(|(step, tokens)| step.tokens = Some(tokens));
        if !ids.is_empty() {
            episode.sequences = vec![ids];
        }
        if let Err(error) = episode.set_steps(steps) {
            episode.outcome = Err(error.to_string());
        }
        episode
    }
}
