//! An episode outlined: where its steps stand, what the lens says about each, and the conversations they were taken in.
//!
//! Owns everything about an episode that needs no tokens, and the number of requests that follows from it.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::{Loss, Reason};
use backsight_chat::template::Now;
use backsight_core::credit::subtasks::{Place, Places, places};
use backsight_core::episode::{Conversation, Episode, Role, ToolText};
use backsight_core::lens::{self, OutcomeFacts, Placement, Template};
use backsight_core::plan::{Backend, plan};
use backsight_core::score::ScoreJob;
use backsight_core::tokens::{TokenId, TokenSpan};

/// What recorded conversations lack or have too much of.
#[derive(Clone, Debug, Default)]
pub struct Framing {
    /// The system prompt, for conversations without one.
    pub system: Option<String>,
    /// The tools' schemas, for episodes without any.
    pub tools: Vec<Value>,
    /// What the chat template is given beside the conversation.
    pub vars: Map<String, Value>,
    /// How tools are written, if not by the template.
    pub tool_text: Option<ToolText>,
    /// Tools' results are cut to so many characters.
    pub tool_result_chars: Option<usize>,
    /// When an episode began that does not say so, for templates that print the date.
    pub now: Option<Now>,
}

impl Framing {
    /// What of it an episode is read with: recorded ids take nothing up, and what an episode has of its own stays.
    pub fn used_for(&self, episode: &Episode) -> Used {
        let is_rendered = !episode.is_exact();
        let frames = |role| matches!(role, Role::System | Role::Developer);
        let has_system = episode.messages.first().is_some_and(|it| frames(it.role));
        Used {
            system: is_rendered && self.system.is_some() && !has_system,
            tools: is_rendered && !self.tools.is_empty() && episode.tools.is_empty(),
            others: is_rendered,
        }
    }

    /// The flags that change nothing for an episode because its tokens are recorded.
    pub fn idle_for(&self, episode: &Episode) -> Vec<&'static str> {
        let given = [
            ("--system", self.system.is_some()),
            ("--tools", !self.tools.is_empty()),
            ("--var", !self.vars.is_empty()),
            ("--tool-result-chars", self.tool_result_chars.is_some()),
        ];
        let given = given.into_iter().filter(|(_, is_given)| *is_given && episode.is_exact());
        given.map(|(flag, _)| flag).collect()
    }
}

/// Which supplied things an episode is read with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Used {
    /// The system prompt.
    pub system: bool,
    /// The tools' schemas.
    pub tools: bool,
    /// Template variables and the cutting of results.
    pub others: bool,
}

/// The outcome lens: what it says, and where.
#[derive(Clone, Debug)]
pub struct OutcomeLens {
    /// What it says.
    pub template: Template,
    /// Where it is written.
    pub placement: Placement,
}

/// An episode without tokens.
#[derive(Clone, Debug)]
pub struct Outline {
    /// Where each step stands.
    pub places: Vec<Place>,
    /// What the lens says about each step.
    pub texts: Vec<String>,
    /// The conversations as they are rendered.
    pub conversations: Vec<Conversation>,
}

/// Outlines an episode.
pub fn outline(episode: &Episode, framing: &Framing, lens: &OutcomeLens) -> Result<Outline, Loss> {
    let outcome = episode.outcome.as_ref().map_err(|why| Loss::new(Reason::NoReward, why))?;
    let Places { steps: by_message, completed } =
        places(&episode.messages, &episode.failed_results, &episode.progress);
    let actions = episode.messages.iter().enumerate().filter(|(_, it)| it.role == Role::Assistant);
    let mut by_message: HashMap<usize, Place> = actions.map(|(idx, _)| idx).zip(by_message).collect();
    let places: Option<Vec<Place>> =
        episode.steps().iter().map(|step| by_message.remove(&step.message_idx)).collect();
    let places = places.ok_or_else(|| Loss::new(Reason::Unreadable, "a step is no assistant message"))?;
    let text = |place| {
        let facts = OutcomeFacts::new(outcome.reward, &episode.progress, completed, place);
        lens.template.render(&facts).map_err(|error| Loss::new(Reason::Lens, error))
    };
    let texts = places.iter().map(text).collect::<Result<_, _>>()?;
    let conversations = episode.conversations().into_iter().map(|it| framed(it, framing)).collect();
    Ok(Outline { places, texts, conversations })
}

fn framed(mut conversation: Conversation, framing: &Framing) -> Conversation {
    if let Some(system) = &framing.system {
        conversation = conversation.with_system(system);
    }
    match framing.tool_result_chars {
        Some(max_chars) => conversation.with_results_cut(max_chars),
        None => conversation,
    }
}

impl Outline {
    /// How many requests there are for the scores that `wanted` names by step, under the lens and without, and
    /// for how many scores: as if every message were a token, so exact while history only grows and everything fits.
    pub fn n_requests(&self, placement: Placement, wanted: &dyn Fn(usize) -> [bool; 2]) -> (usize, usize) {
        let mut texts = HashMap::new();
        let mut jobs = Vec::new();
        for (nth, conversation) in self.conversations.iter().enumerate() {
            for &(step, action) in &conversation.steps {
                let n_texts = texts.len();
                let text = *texts.entry(self.texts[step].as_str()).or_insert(n_texts);
                let [lens, plain] = wanted(step);
                let target = lens::target(&conversation.messages[..action], placement).filter(|_| lens);
                jobs.extend(target.and_then(|target| message_job(nth, action, Some((target, text)))));
                jobs.extend(plain.then(|| message_job(nth, action, None)).flatten());
            }
        }
        (plan(&jobs, &Backend::SGLANG).requests.len(), jobs.len())
    }
}

/// A job in which the conversation's number, every message and the lens behind its target are a token each.
fn message_job(conversation: usize, action: usize, lens: Option<(usize, usize)>) -> Option<ScoreJob> {
    let id = |kind: usize, number: usize| TokenId::try_from(3 * number + kind).ok();
    let mut tokens = vec![id(0, conversation)?];
    for message in 0..=action {
        tokens.push(id(1, message)?);
        if let Some((_, text)) = lens.filter(|(target, _)| *target == message) {
            tokens.push(id(2, text)?);
        }
    }
    let span = TokenSpan::at(tokens.len() - 1, 1);
    ScoreJob::new(Arc::from(tokens), vec![span], 0).ok()
}
