//! What happened in an episode so far: messages, and the tokens the student saw and sampled.
//!
//! Owns the one sequence of ids that only ever grows. What the student saw before an action is what
//! stands before it here, to the token. Deliberately absent: deciding what happens next.

use serde_json::Value;

use crate::model::SampledToken;
use backsight_core::episode::{
    ActionTokens, Content, Episode, Message, Progress, Role, Task, TokenSource, ToolCall, steps_of,
};
use backsight_core::tokens::{TokenId, TokenSpan};

use super::tools::{ToolResult, cut};

/// The key of the limit on what an episode records of tools' results.
pub(super) const EPISODE_OUTPUT: &str = "episode_output_chars";
/// Less of a whole result tells nothing that the student was not shown.
const WORTH_KEEPING: usize = 1000;

/// An episode while it happens.
#[derive(Clone)]
pub(super) struct Transcript {
    /// As it stands; its steps are not filled in before [`Transcript::into_episode`].
    pub episode: Episode,
    ids: Vec<TokenId>,
    actions: Vec<ActionTokens>,
    /// Whether the student speaks next from inside a thought.
    pub opens_thought: bool,
    /// How many characters of results may still be shown.
    pub shown_left: usize,
    /// How many of whole results may still be kept.
    whole_left: usize,
}

impl Transcript {
    /// Begins with the system prompt, if there is one, and the task; records at most `output_chars` of tools' results.
    pub fn new(
        id: String,
        task: &Task,
        system: Option<&str>,
        tools: Vec<Value>,
        output_chars: usize,
    ) -> Self {
        let system = system.map(|text| Message::text(Role::System, text));
        let user = Message::text(Role::User, task.prompt.as_str());
        let mut episode = Episode::new(id, task.clone(), system.into_iter().chain([user]).collect());
        episode.tools = tools;
        let half = output_chars / 2;
        let (shown_left, whole_left) = (output_chars - half, half);
        Self { episode, ids: Vec::new(), actions: Vec::new(), opens_thought: false, shown_left, whole_left }
    }

    /// Everything the student has seen and sampled.
    pub fn ids(&self) -> &[TokenId] {
        &self.ids
    }

    /// Takes what stands between two actions.
    pub fn extend(&mut self, ids: &[TokenId], opens_thought: bool) {
        self.ids.extend_from_slice(ids);
        self.opens_thought = opens_thought;
        self.episode.token_source = TokenSource::Exact;
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

    /// As much of a whole result as may still be kept, if that is worth keeping. What is kept counts from now on, so
    /// that results which wait for others of their turn are bounded too.
    pub fn afford(&mut self, result: &mut ToolResult) {
        let Some(whole) = result.full.take() else { return };
        let kept = match cut::cut_middle(&whole, self.whole_left, "") {
            None => Some(whole),
            Some(cut) => {
                result.reached.push(EPISODE_OUTPUT);
                (self.whole_left >= WORTH_KEEPING).then_some(cut)
            }
        };
        self.whole_left = self.whole_left.saturating_sub(kept.as_ref().map_or(0, |it| it.chars().count()));
        result.full = kept;
    }

    /// Takes what a tool answered to a call; its whole text must have been afforded.
    pub fn answered(&mut self, call: &ToolCall, result: ToolResult) {
        let answer = Message {
            tool_call_id: call.id.clone(),
            name: Some(call.name.clone()),
            ..Message::text(Role::Tool, result.content.as_str())
        };
        self.take_answer(answer, result);
    }

    /// Takes what the student is told where it called nothing that could be read.
    pub fn corrected(&mut self, result: ToolResult) {
        self.take_answer(Message::text(Role::User, result.content.as_str()), result);
    }

    fn take_answer(&mut self, message: Message, result: ToolResult) {
        let message_idx = self.episode.messages.len();
        self.shown_left = self.shown_left.saturating_sub(result.content.chars().count());
        if result.is_error {
            self.episode.failed_results.push(message_idx);
        }
        for key in result.reached {
            if !self.episode.limits_reached.iter().any(|it| it == key) {
                self.episode.limits_reached.push(key.to_owned());
            }
        }
        self.episode.whole_results.extend(result.full.map(|whole| (message_idx, whole)));
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

    /// The episode as it stands, with its steps and their tokens.
    pub fn so_far(&self) -> Episode {
        self.clone().into_episode()
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
