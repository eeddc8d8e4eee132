//! An episode outlined: where its steps stand, what each is seen through, and the conversations they were taken in.
//!
//! Owns everything about an episode that needs no tokens, and the number of requests that follows from it.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::{Loss, Reason};
use backsight_chat::template::Now;
use backsight_core::episode::{Conversation, Episode, Role, ToolText};
use backsight_core::lens::{Edit, Lenses, NoAddition, Told, View};
use backsight_core::model::Limits;
use backsight_core::plan::{TipJob, plan_tree};
use backsight_core::subtasks::{PlanPlace, PlanPlaces, places};
use backsight_core::tokens::{TokenId, TokenSpan};
use backsight_core::tree::{Replacement, Replacements, Tip, TokenTree};

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
    /// The flags that change nothing for an episode because its tokens are recorded.
    pub fn idle_for(&self, episode: &Episode) -> Vec<&'static str> {
        let given = [
            ("--system-prompt", self.system.is_some()),
            ("--tools", !self.tools.is_empty()),
            ("--var", !self.vars.is_empty()),
            ("--reread-result-chars", self.tool_result_chars.is_some()),
        ];
        let given = given.into_iter().filter(|(_, is_given)| *is_given && episode.is_exact());
        given.map(|(flag, _)| flag).collect()
    }
}

/// An episode without tokens.
#[derive(Clone, Debug)]
pub struct Outline {
    /// Where each step stands.
    pub places: Vec<PlanPlace>,
    /// What each step is seen through.
    pub views: Vec<Vec<View>>,
    /// The conversations as they are rendered.
    pub conversations: Vec<Conversation>,
}

/// Outlines an episode; `n_tokens` says how many tokens a text has, or about.
pub fn outline(
    episode: &Episode,
    framing: &Framing,
    lenses: &Lenses,
    n_tokens: &dyn Fn(&str) -> usize,
) -> Result<Outline, Loss> {
    let PlanPlaces { steps: by_message, completed } =
        places(&episode.messages, &episode.failed_results, &episode.progress);
    let actions = episode.messages.iter().enumerate().filter(|(_, it)| it.role == Role::Assistant);
    let mut by_message: HashMap<usize, PlanPlace> = actions.map(|(idx, _)| idx).zip(by_message).collect();
    let places: Option<Vec<PlanPlace>> =
        episode.steps().iter().map(|step| by_message.remove(&step.message_idx)).collect();
    let places = places.ok_or_else(|| Loss::new(Reason::Unreadable, "a step is no assistant message"))?;
    let views = lenses.views(&Told { episode, places: &places, completed, n_tokens }).map_err(no_view)?;
    let conversations = episode.conversations().into_iter().map(|it| framed(it, framing)).collect();
    Ok(Outline { places, views, conversations })
}

fn no_view(why: NoAddition) -> Loss {
    let reason = match &why {
        NoAddition::NoReward(_) => Reason::NoReward,
        NoAddition::Template(_) => Reason::Lens,
    };
    Loss::new(reason, why)
}

/// About as many tokens as a text has, for those who have no tokenizer.
pub fn about_tokens(text: &str) -> usize {
    text.len().div_ceil(4)
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
    /// How many requests there are for the scores that `wanted` names by step and lens, and for how many scores: as
    /// if every message were a token, so exact while history only grows and everything fits.
    pub fn n_requests(&self, wanted: &dyn Fn(usize, usize) -> bool) -> (usize, usize) {
        let (mut tree, mut replacements) = (TokenTree::default(), Replacements::default());
        let (mut texts, mut jobs) = (HashMap::new(), Vec::new());
        for (nth, conversation) in self.conversations.iter().enumerate() {
            let messages = (0..conversation.messages.len()).map(|message| id(1, message));
            let tokens: Vec<TokenId> = std::iter::once(id(0, nth)).chain(messages).collect();
            let whole = tree.grow(Tip::EMPTY, &tokens);
            for &(step, action) in &conversation.steps {
                let plain = tree.cut(whole, action + 1);
                for View { addition, .. } in self.views[step].iter().filter(|it| wanted(step, it.lens)) {
                    let Some(edit) = addition.edit(&conversation.messages[..action]) else { continue };
                    let seen = match added(&edit, &mut texts) {
                        None => plain,
                        Some(replacement) => replacements.grow(&mut tree, plain, replacement),
                    };
                    let tip = tree.grow(seen, &tokens[action + 1..action + 2]);
                    let spans = vec![TokenSpan::at(seen.len(), 1)];
                    jobs.push(TipJob { tip, spans, top_k: 0, chosen: None });
                }
            }
        }
        let n_jobs = jobs.len();
        (plan_tree(Arc::new(tree), jobs, &Limits::CACHING).requests.len(), n_jobs)
    }
}

/// The token that stands for a conversation, a message or an added text.
fn id(kind: usize, number: usize) -> TokenId {
    TokenId::try_from(3 * number + kind).unwrap_or(TokenId::MAX)
}

/// What an edit does to a conversation's number and messages, a token each; every added text is one too.
fn added(edit: &Edit<'_>, texts: &mut HashMap<String, usize>) -> Option<Replacement> {
    let (at, text) = match edit {
        Edit::Nothing => return None,
        Edit::Behind { target, text } => (target + 2, (*text).to_owned()),
        Edit::Before { target, messages } => (target + 1, format!("{messages:?}")),
    };
    let n_texts = texts.len();
    let text = *texts.entry(text).or_insert(n_texts);
    Some(Replacement { positions: at..at, with: vec![id(2, text)] })
}
