//! Tasks, episodes and steps: what was asked, what the student did, what the world answered.
//!
//! Owns the shape of an episode and its invariants: steps are assistant messages in order, every
//! action's tokens lie inside a recorded sequence, and it is always known whether those tokens are
//! the sampled ones or were rendered from text. Reading and writing episodes is the business of
//! `wire` and `store`; rendering them of `chat`.

use std::ops::Range;

use serde_json::{Map, Value};

use crate::named;
use crate::tokens::{Logprob, TokenId, TokenSpan, TopK};

/// What is asked, and how hard it is said to be. How success is checked belongs to `tasks`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    /// Stable name, unique in its dataset.
    pub id: String,
    /// What the student is told.
    pub prompt: String,
    /// As the dataset says it (`easy`, `medium`, …).
    pub difficulty: Option<String>,
}

/// Who speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// Instructions that frame the conversation.
    System,
    /// Instructions by the application, a role of their own in some templates.
    Developer,
    /// The person, or whoever stands in for one.
    User,
    /// The student.
    Assistant,
    /// A tool's result.
    Tool,
}

named!(
    Role: System = "system", Developer = "developer", User = "user", Assistant = "assistant", Tool = "tool"
);

/// A message's text: one string, or the text parts it was sent in (templates treat the two differently).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// One string.
    Text(String),
    /// Text parts in order.
    Parts(Vec<String>),
}

impl Content {
    /// The text, parts joined without a separator.
    pub fn text(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Parts(parts) => parts.concat(),
        }
    }
}

/// The arguments of a tool call.
#[derive(Clone, Debug, PartialEq)]
pub enum Arguments {
    /// A JSON object, keys in the order they were written.
    Object(Map<String, Value>),
    /// Text that is no JSON object, or one with an integer beyond 64 bits: what the student wrote, kept as it is.
    Text(String),
}

/// One call of a tool by the student.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolCall {
    /// Links the call to its result, where the format has ids.
    pub id: Option<String>,
    /// The tool's name.
    pub name: String,
    /// What it is called with.
    pub arguments: Arguments,
}

/// One message of a conversation.
#[derive(Clone, Debug, PartialEq)]
pub struct Message {
    /// Who speaks.
    pub role: Role,
    /// The text; a pure tool call may have none.
    pub content: Option<Content>,
    /// The student's thinking, where it is kept apart from the content.
    pub reasoning: Option<String>,
    /// The student's calls.
    pub tool_calls: Vec<ToolCall>,
    /// For a tool's result: the call it answers.
    pub tool_call_id: Option<String>,
    /// For a tool's result: the tool's name.
    pub name: Option<String>,
}

impl Message {
    /// A message with text and nothing else.
    pub fn text(role: Role, text: impl Into<String>) -> Self {
        Self {
            role,
            content: Some(Content::Text(text.into())),
            reasoning: None,
            tool_calls: Vec::new(),
            tool_call_id: None,
            name: None,
        }
    }

    /// About how many bytes its text, its thinking and its calls have.
    pub fn n_bytes(&self) -> usize {
        let arguments = |call: &ToolCall| match &call.arguments {
            Arguments::Object(object) => object.values().map(|value| value.to_string().len()).sum(),
            Arguments::Text(text) => text.len(),
        };
        let content = self.content.as_ref().map_or(0, |content| content.text().len());
        let calls: usize = self.tool_calls.iter().map(arguments).sum();
        content + self.reasoning.as_ref().map_or(0, String::len) + calls
    }
}

/// A named way to write tools into a conversation whose template ignores them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ToolText {
    /// Schemas in the system message, calls as `<tool_call>` text, results as tool or user messages.
    Hermes,
    /// Plain text in square brackets, as the published hindsight scorer writes it.
    Flatten,
}

named!(ToolText: Hermes = "hermes", Flatten = "flatten");

/// Whether token ids are what was sampled or a reconstruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TokenSource {
    /// The very ids the student saw and sampled.
    Exact,
    /// Made from text by template and tokenizer.
    Rendered,
}

named!(TokenSource: Exact = "exact", Rendered = "rendered");

/// Where an action's tokens are, and what the student thought of them while sampling.
#[derive(Clone, Debug, PartialEq)]
pub struct ActionTokens {
    /// Index into the episode's sequences. There is one sequence while history only grows, more when it was rewritten.
    pub sequence: usize,
    /// The action inside that sequence; everything before it is the step's context.
    pub span: TokenSpan,
    /// The student's logprob of each token, empty when none were recorded.
    pub logprobs: Vec<Option<Logprob>>,
    /// The student's own candidates at each token, empty when none were recorded.
    pub top: Vec<TopK>,
}

/// Which weights some tokens came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Version {
    /// The ones with this name, measured before and after.
    Known(String),
    /// One of these two: the weights changed around the tokens.
    Between(String, String),
    /// They could not be measured.
    Unknown,
}

/// Which weights sampled some of a step's tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenVersion {
    /// The step.
    pub step: usize,
    /// Which tokens, counted from the first of its action.
    pub span: TokenSpan,
    /// The weights, as they were measured.
    pub version: Version,
    /// The weights, as the server names them, where it does.
    pub told: Option<String>,
}

/// One action and the next state it led to.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// The assistant message that is the action.
    pub message_idx: usize,
    /// The messages with which the world answered; empty after the last action.
    pub next_state: Range<usize>,
    /// The action's tokens, when they are known.
    pub tokens: Option<ActionTokens>,
}

/// What became of an episode.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// The number the task's check gave.
    pub reward: f64,
    /// What the reward is made of, by name, in the order of its formula.
    pub components: Vec<(String, f64)>,
}

impl Outcome {
    /// The component of that name.
    pub fn component(&self, name: &str) -> Option<f64> {
        self.components.iter().find(|(it, _)| it == name).map(|(_, value)| *value)
    }
}

/// Why an episode that was run here came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stop {
    /// The student answered without calling a tool.
    Answered,
    /// It had as many turns as it may have.
    TurnLimit,
    /// A turn reached its limit of tokens before it called a tool.
    TurnCut,
    /// The context has no room for what comes next.
    ContextFull,
    /// Its time was over.
    WallClock,
    /// Its task's tests can judge nobody, so it has no reward; another attempt would have none either.
    UnusableTests,
    /// Its task's tests could not be decided for what it left behind, so it has no reward; another attempt may have one.
    Undecided,
    /// Something broke that is not the student's doing.
    Failed,
}

named!(
    Stop: Answered = "answered", TurnLimit = "turn_limit", TurnCut = "turn_cut", ContextFull = "context_full",
    WallClock = "wall_clock", UnusableTests = "unusable_tests", Undecided = "undecided", Failed = "failed"
);

/// One assertion of a task's tests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assertion {
    /// The line of the tests, from 1; 0 where there is none of its own.
    pub line: u64,
    /// What it says.
    pub text: String,
    /// Whether it held.
    pub passed: bool,
    /// Why not.
    pub detail: String,
}

/// What a task's tests found in what an episode left behind.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Verification {
    /// How many assertions held.
    pub n_passed: u64,
    /// How many did not.
    pub n_failed: u64,
    /// Why the tests did not come to their end; absent when they did.
    pub error: Option<String>,
    /// The first assertions one by one.
    pub assertions: Vec<Assertion>,
    /// What was printed.
    pub output: String,
    /// How long it took.
    pub seconds: f64,
}

/// A sequence as a trainer takes it: which tokens are the student's own, and what it thought of them.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainedSequence<'a> {
    /// The ids.
    pub ids: &'a [TokenId],
    /// For each id whether the student sampled it.
    pub trained: Vec<bool>,
    /// For each id the student's logprob, where it sampled the token and the logprob is known.
    pub logprobs: Vec<Option<Logprob>>,
}

/// One part of a plan the student made for itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subtask {
    /// The name by which scores and transitions refer to it.
    pub id: String,
    /// What it is about.
    pub description: Option<String>,
    /// When it counts as done.
    pub acceptance: Option<String>,
}

/// How far an episode with a plan came; empty where there was no plan.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Progress {
    /// Where it stood at the end, as its environment calls it.
    pub phase: Option<String>,
    /// What the plan itself was found worth.
    pub plan_score: Option<f64>,
    /// The plan, in order.
    pub plan: Option<Vec<Subtask>>,
    /// What each subtask was found worth, in the order they were written down.
    pub subtask_scores: Vec<(String, f64)>,
    /// How many turns the environment counted.
    pub turns: Option<u64>,
    /// How many tool calls the environment counted.
    pub tool_calls: Option<u64>,
}

/// A place where the student's history was replaced by a summary of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Compaction {
    /// The first message written under the new history.
    pub at: usize,
    /// The message that stands for what was forgotten.
    pub summary: Message,
    /// The first message that was kept word for word; everything before it is in the summary.
    pub kept_from: usize,
}

/// A conversation as the student saw it: one that only grows.
#[derive(Clone, Debug, PartialEq)]
pub struct Conversation {
    /// Its messages.
    pub messages: Vec<Message>,
    /// The steps that were taken in it, each as (`step_idx`, index of its action among these messages).
    pub steps: Vec<(usize, usize)>,
}

/// One attempt at one task, from the first message to the stop.
#[derive(Clone, Debug, PartialEq)]
pub struct Episode {
    /// Unique among the episodes it is loaded with.
    pub id: String,
    /// What was asked.
    pub task: Task,
    /// Seconds since 1970 at which it began; templates that print the date are given this.
    pub started_at: Option<i64>,
    /// The tools' JSON schemas as the student was shown them.
    pub tools: Vec<Value>,
    /// The named rendering of tools, where the template's own was not used.
    pub tool_text: Option<ToolText>,
    /// The whole conversation.
    pub messages: Vec<Message>,
    /// The recorded token sequences.
    pub sequences: Vec<Vec<TokenId>>,
    /// Whether those are exact.
    pub token_source: TokenSource,
    /// How it ended, or why it did not.
    pub outcome: Result<Outcome, String>,
    /// How far its plan came.
    pub progress: Progress,
    /// The messages in which a tool reports a failure that its text need not show, in order.
    pub failed_results: Vec<usize>,
    /// The whole text of results of which the student saw the beginning and the end, by message.
    pub whole_results: Vec<(usize, String)>,
    /// The limits on tools that it reached, by their keys, in that order.
    pub limits_reached: Vec<String>,
    /// Why it ended, if it was run here.
    pub stop: Option<Stop>,
    /// The temperature it was sampled with, where known.
    pub temperature: Option<f64>,
    /// Whether the prompt quoted tests that decide; absent where there are none, or nobody said.
    pub tests_shown: Option<bool>,
    /// What the task's tests found, if they ran.
    pub verification: Option<Verification>,
    /// Which weights sampled its actions, in order; empty where nobody looked.
    pub versions: Vec<TokenVersion>,
    compactions: Vec<Compaction>,
    steps: Vec<Step>,
}

impl Episode {
    /// An episode without steps, tokens or outcome.
    pub fn new(id: impl Into<String>, task: Task, messages: Vec<Message>) -> Self {
        Self {
            id: id.into(),
            task,
            started_at: None,
            tools: Vec::new(),
            tool_text: None,
            messages,
            sequences: Vec::new(),
            token_source: TokenSource::Rendered,
            outcome: Err("the episode has not ended".to_owned()),
            progress: Progress::default(),
            failed_results: Vec::new(),
            whole_results: Vec::new(),
            limits_reached: Vec::new(),
            stop: None,
            temperature: None,
            tests_shown: None,
            verification: None,
            versions: Vec::new(),
            compactions: Vec::new(),
            steps: Vec::new(),
        }
    }

    /// The steps in order; a step's index here is its `step_idx`.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// Checks `steps` against messages and sequences, and takes them, or says which does not fit.
    pub fn set_steps(&mut self, steps: Vec<Step>) -> Result<(), String> {
        let mut next_message = 0;
        for (step_idx, step) in steps.iter().enumerate() {
            self.check_place(step_idx, step, next_message)?;
            self.check_tokens(step_idx, step)?;
            next_message = step.next_state.end;
        }
        self.steps = steps;
        Ok(())
    }

    /// The recorded sequences as a trainer takes them; a token is trained where it lies in an action.
    pub fn trained_sequences(&self) -> Vec<TrainedSequence<'_>> {
        let blank = |ids: &'_ Vec<TokenId>| (vec![false; ids.len()], vec![None; ids.len()]);
        let mut rows: Vec<_> = self.sequences.iter().map(blank).collect();
        for action in self.steps.iter().filter_map(|step| step.tokens.as_ref()) {
            let Some((trained, logprobs)) = rows.get_mut(action.sequence) else { continue };
            let values = action.logprobs.iter().copied().chain(std::iter::repeat(None));
            for (position, logprob) in action.span.range().zip(values) {
                trained[position] = true;
                logprobs[position] = logprob;
            }
        }
        let row = |(ids, (trained, logprobs))| TrainedSequence { ids, trained, logprobs };
        self.sequences.iter().map(Vec::as_slice).zip(rows).map(row).collect()
    }

    /// The places where history was replaced, in order.
    pub fn compactions(&self) -> &[Compaction] {
        &self.compactions
    }

    /// Checks `compactions` against the messages, and takes them, or says which does not fit.
    pub fn set_compactions(&mut self, compactions: Vec<Compaction>) -> Result<(), String> {
        let mut last = 0;
        for (index, compaction) in compactions.iter().enumerate() {
            let Compaction { at, kept_from, .. } = *compaction;
            if kept_from > at || at < last || at > self.messages.len() {
                return Err(format!("compaction {index} is out of order"));
            }
            last = at;
        }
        self.compactions = compactions;
        Ok(())
    }

    /// Whether every action's tokens are the sampled ones; an episode without actions is what its record says.
    pub fn is_exact(&self) -> bool {
        self.token_source == TokenSource::Exact && self.steps.iter().all(|step| step.tokens.is_some())
    }

    /// The conversations the student saw, one before each compaction and one after the last; those without a step are left out.
    pub fn conversations(&self) -> Vec<Conversation> {
        let starts = std::iter::once(None).chain(self.compactions.iter().map(Some));
        let ends = self.compactions.iter().map(|it| it.at).chain([self.messages.len()]);
        let all = starts.zip(ends).map(|(compaction, end)| self.conversation(compaction, end));
        all.filter(|conversation| !conversation.steps.is_empty()).collect()
    }

    /// The conversation that begins with `compaction` and ends before message `end`. Instructions are never forgotten.
    fn conversation(&self, compaction: Option<&Compaction>, end: usize) -> Conversation {
        let frames = |message: &&Message| matches!(message.role, Role::System | Role::Developer);
        let n_frames = self.messages.iter().take_while(frames).count();
        let (mut messages, begin, from) = match compaction {
            None => (Vec::new(), 0, 0),
            Some(Compaction { at, summary, kept_from }) => {
                let head = self.messages[..n_frames.min(end)].iter().chain([summary]);
                (head.cloned().collect(), *at, (*kept_from).max(n_frames).min(end))
            }
        };
        let n_head = messages.len();
        messages.extend_from_slice(&self.messages[from..end]);
        let taken_here = |(_, step): &(usize, &Step)| (begin..end).contains(&step.message_idx);
        let steps = self.steps.iter().enumerate().filter(taken_here);
        let steps = steps.map(|(idx, step)| (idx, step.message_idx - from + n_head)).collect();
        Conversation { messages, steps }
    }

    fn check_place(&self, step_idx: usize, step: &Step, next_message: usize) -> Result<(), String> {
        let message_idx = step.message_idx;
        if self.messages.get(message_idx).is_none_or(|message| message.role != Role::Assistant) {
            return Err(format!("step {step_idx} is message {message_idx}, which is no assistant message"));
        }
        let Range { start, end } = step.next_state;
        let in_order = next_message <= message_idx && start == message_idx + 1 && start <= end;
        let fits = in_order && end <= self.messages.len();
        fits.then_some(()).ok_or_else(|| format!("step {step_idx} is out of order"))
    }

    fn check_tokens(&self, step_idx: usize, step: &Step) -> Result<(), String> {
        let Some(tokens) = &step.tokens else { return Ok(()) };
        let sequence = self.sequences.get(tokens.sequence);
        if sequence.is_none_or(|sequence| tokens.span.end() > sequence.len()) {
            return Err(format!("the action of step {step_idx} lies outside the recorded tokens"));
        }
        let n_tokens = tokens.span.len();
        let counts = [("logprobs", tokens.logprobs.len()), ("top-K rows", tokens.top.len())];
        match counts.into_iter().find(|&(_, n_values)| n_values != 0 && n_values != n_tokens) {
            Some((what, n_values)) => {
                Err(format!("the action of step {step_idx} has {n_tokens} tokens but {n_values} {what}"))
            }
            None => Ok(()),
        }
    }
}

impl Conversation {
    /// The same with a system prompt in front, unless it has instructions of its own.
    #[must_use]
    pub fn with_system(mut self, prompt: &str) -> Self {
        let framed =
            self.messages.first().is_some_and(|it| matches!(it.role, Role::System | Role::Developer));
        if !framed {
            self.messages.insert(0, Message::text(Role::System, prompt));
            self.steps.iter_mut().for_each(|(_, message_idx)| *message_idx += 1);
        }
        self
    }

    /// The same with every tool's result cut to so many characters.
    #[must_use]
    pub fn with_results_cut(mut self, max_chars: usize) -> Self {
        for message in self.messages.iter_mut().filter(|message| message.role == Role::Tool) {
            let text = message.content.take().map(|content| cut_text(&content.text(), max_chars));
            message.content = text.map(Content::Text);
        }
        self
    }
}

/// The first `max_chars` characters and a note of how many there were.
pub fn cut_text(text: &str, max_chars: usize) -> String {
    match text.char_indices().nth(max_chars) {
        None => text.to_owned(),
        Some((end, _)) => {
            format!("{}\n... [truncated, {} chars total]", &text[..end], text.chars().count())
        }
    }
}

/// The steps of a conversation: each assistant message, with what follows it up to the next one.
pub fn steps_of(messages: &[Message]) -> Vec<Step> {
    let is_action = |&idx: &usize| messages[idx].role == Role::Assistant;
    let actions: Vec<usize> = (0..messages.len()).filter(is_action).collect();
    let ends = actions.iter().skip(1).copied().chain([messages.len()]);
    let step = |(&message_idx, end)| Step { message_idx, next_state: message_idx + 1..end, tokens: None };
    actions.iter().zip(ends).map(step).collect()
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;

    fn episode() -> Episode {
        let task = Task { id: "t".into(), prompt: "fix it".into(), difficulty: None };
        let roles = [Role::User, Role::Assistant, Role::Tool, Role::Assistant];
        let mut episode = Episode::new("e", task, roles.map(|role| Message::text(role, "x")).into());
        episode.sequences = vec![(0..10).collect()];
        episode
    }

    fn with_tokens(span: TokenSpan, n_logprobs: usize) -> Step {
        let tokens = ActionTokens { sequence: 0, span, logprobs: vec![None; n_logprobs], top: vec![] };
        Step { message_idx: 1, next_state: 2..3, tokens: Some(tokens) }
    }

    #[test]
    fn steps_pair_each_action_with_its_next_state() {
        let steps = steps_of(&episode().messages);
        let shape: Vec<_> = steps.iter().map(|step| (step.message_idx, step.next_state.clone())).collect();
        assert_eq!(shape, [(1, 2..3), (3, 4..4)]);
        assert_eq!(episode().set_steps(steps), Ok(()));
    }

    #[test]
    fn steps_that_do_not_fit_are_refused() {
        let refuse = |step: Step| episode().set_steps(vec![step]).unwrap_err().to_string();
        let wrong_role = Step { message_idx: 2, next_state: 3..4, tokens: None };
        assert_eq!(refuse(wrong_role), "step 0 is message 2, which is no assistant message");
        assert_eq!(refuse(Step { message_idx: 1, next_state: 3..4, tokens: None }), "step 0 is out of order");
        let outside = with_tokens(TokenSpan::at(8, 3), 0);
        assert_eq!(refuse(outside), "the action of step 0 lies outside the recorded tokens");
        let short = with_tokens(TokenSpan::at(4, 3), 2);
        assert_eq!(refuse(short), "the action of step 0 has 3 tokens but 2 logprobs");
    }

    fn texts(conversation: &Conversation) -> Vec<String> {
        let text = |message: &Message| message.content.as_ref().unwrap().text();
        conversation.messages.iter().map(text).collect()
    }

    #[test]
    fn a_compaction_begins_another_conversation() {
        let roles = [Role::System, Role::User, Role::Assistant, Role::Tool, Role::Assistant];
        let message = |(idx, role): (usize, Role)| Message::text(role, idx.to_string());
        let mut episode = episode();
        episode.messages = roles.into_iter().enumerate().map(message).collect();
        episode.set_steps(steps_of(&episode.messages)).unwrap();
        let compaction = Compaction { at: 4, summary: Message::text(Role::User, "sum"), kept_from: 3 };
        episode.set_compactions(vec![compaction.clone()]).unwrap();
        let seen = episode.conversations();
        assert_eq!(texts(&seen[0]), ["0", "1", "2", "3"]);
        assert_eq!(texts(&seen[1]), ["0", "sum", "3", "4"]);
        assert_eq!((&seen[0].steps[..], &seen[1].steps[..]), (&[(0, 2)][..], &[(1, 3)][..]));
        let wrong = episode.set_compactions(vec![compaction.clone(), Compaction { at: 2, ..compaction }]);
        assert_eq!(wrong.unwrap_err().to_string(), "compaction 1 is out of order");
    }

    #[test]
    fn a_conversation_is_framed_once() {
        let mut episode = episode();
        episode.set_steps(steps_of(&episode.messages)).unwrap();
        let framed = episode.conversations().remove(0).with_system("be brief");
        assert_eq!((texts(&framed)[0].as_str(), &framed.steps[..]), ("be brief", &[(0, 2), (1, 4)][..]));
        assert_eq!(framed.clone().with_system("again"), framed);
    }

    #[test]
    fn results_are_cut_by_characters() {
        assert_eq!(cut_text("éé", 2), "éé");
        assert_eq!(cut_text("ééx", 2), "éé\n... [truncated, 3 chars total]");
        let mut episode = episode();
        episode.messages[2] = Message::text(Role::Tool, "long");
        episode.set_steps(steps_of(&episode.messages)).unwrap();
        let cut = episode.conversations().remove(0).with_results_cut(1);
        assert_eq!(texts(&cut), ["x", "x", "l\n... [truncated, 4 chars total]", "x"]);
    }

    #[test]
    fn what_was_sampled_is_trained() {
        let mut episode = episode();
        let half = Logprob::new(-0.5).ok();
        let mut step = with_tokens(TokenSpan::at(2, 2), 0);
        step.tokens.as_mut().unwrap().logprobs = vec![half, None];
        let last = ActionTokens { sequence: 0, span: TokenSpan::at(7, 1), logprobs: vec![], top: vec![] };
        let last = Step { message_idx: 3, next_state: 4..4, tokens: Some(last) };
        episode.set_steps(vec![step, last]).unwrap();
        let rows = episode.trained_sequences();
        let trained: Vec<usize> = (0..10).filter(|&it| rows[0].trained[it]).collect();
        let known: Vec<usize> = (0..10).filter(|&it| rows[0].logprobs[it].is_some()).collect();
        assert_eq!((trained, known, rows[0].logprobs[2]), (vec![2, 3, 7], vec![2], half));
    }

    #[test]
    fn reasons_to_stop_are_read_by_name() {
        for stop in Stop::ALL {
            assert_eq!(Stop::from_name(stop.name()), Some(*stop));
        }
        assert_eq!(Stop::from_name("bored"), None);
    }

    #[test]
    fn roles_are_read_by_name() {
        for role in Role::ALL {
            assert_eq!(Role::from_name(role.name()), Some(*role));
        }
        assert_eq!(Role::from_name("robot"), None);
    }
}
