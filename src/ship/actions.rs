//! Which message of a dataset row each scored step is.
//!
//! Owns the way from a scores file, which counts messages as the loader it was made with does, to the
//! messages of a row, which may come from the other loader: the published one keeps aborted turns and
//! abandoned branches, ours does not. Both read the same session file, so a message is known by its line.
//! Every assistant message of a row gets an entry, scored or not, because trainers count them.

use std::collections::HashMap;
use std::path::Path;

use serde_json::Value;

pub use crate::config::parts::MessageForm;
use crate::store::episodes::{BadFile, Loaded, SESSION};
use crate::wire::hindsight::ScoredStep;
use crate::wire::{pi_session, published};
use backsight_chat::messages::to_json;
use backsight_core::episode::Role;

/// An assistant message of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Action {
    /// Its place among the row's messages.
    pub message: usize,
    /// Its place among the scored steps; none when it was never scored.
    pub step: Option<usize>,
}

/// A row's messages and where the scored steps are among them.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Located {
    pub(super) messages: Vec<Value>,
    pub(super) actions: Vec<Action>,
    /// What the person should know.
    pub(super) notes: Vec<String>,
}

/// Finds the messages of a row and the scored steps among them.
pub(super) fn locate(loaded: &Loaded, steps: &[ScoredStep], form: MessageForm) -> Result<Located, BadFile> {
    let full = Conversation::full(loaded);
    let session = loaded.path.join(SESSION);
    let published = if session.is_file() { Some(read_session(&session, &full)?) } else { None };
    let (full, published) = match published {
        Some((lines, published)) => (Conversation { lines, ..full }, Some(published)),
        None => (full, None),
    };
    let counted = counted_in(steps, &full, published.as_ref()).ok_or_else(|| misfit(loaded, steps, &full))?;
    let mut notes = Vec::new();
    let row = match (form, &published) {
        (MessageForm::Published, Some(published)) => published,
        (MessageForm::Published, None) => {
            notes.push(format!(
                "{}: without a session file its messages are written in full",
                loaded.episode.id
            ));
            &full
        }
        (MessageForm::Full, _) => &full,
    };
    let actions = row.actions_of(steps, counted);
    notes.extend(differences(loaded, steps, &actions));
    Ok(Located { messages: row.messages.clone(), actions, notes })
}

fn misfit(loaded: &Loaded, steps: &[ScoredStep], full: &Conversation) -> BadFile {
    let (n_steps, n_actions) = (steps.len(), full.assistants().count());
    let why = format!(
        "the {n_steps} scored steps are not the {n_actions} assistant messages of the episode; help: score it again with backsight credit --overwrite"
    );
    BadFile { path: loaded.path.clone(), line: loaded.line, why }
}

fn differences(loaded: &Loaded, steps: &[ScoredStep], actions: &[Action]) -> Vec<String> {
    let id = &loaded.episode.id;
    let n_found = actions.iter().filter(|action| action.step.is_some()).count();
    let mut notes = Vec::new();
    if n_found < steps.len() {
        let n = steps.len() - n_found;
        notes.push(format!("{id}: {n} scored steps are turns that the row does not have"));
    }
    if n_found < actions.len() {
        let n = actions.len() - n_found;
        notes.push(format!("{id}: {n} assistant messages were never scored and weigh nothing"));
    }
    notes
}

/// An episode's messages as one of the loaders has them.
struct Conversation {
    messages: Vec<Value>,
    /// The line of each in the session file; empty where there is none.
    lines: Vec<usize>,
}

impl Conversation {
    fn full(loaded: &Loaded) -> Self {
        Self { messages: loaded.episode.messages.iter().map(to_json).collect(), lines: Vec::new() }
    }

    fn assistants(&self) -> impl Iterator<Item = usize> {
        let is_action = |(_, message): &(usize, &Value)| message["role"] == Role::Assistant.name();
        self.messages.iter().enumerate().filter(is_action).map(|(idx, _)| idx)
    }

    /// The actions of this conversation; the steps are counted in another, or in this one.
    fn actions_of(&self, steps: &[ScoredStep], counted: &Self) -> Vec<Action> {
        let by_message: HashMap<usize, usize> = if std::ptr::eq(self, counted) {
            steps.iter().enumerate().map(|(idx, step)| (step.message_index, idx)).collect()
        } else {
            let own: HashMap<usize, usize> = self.assistants().map(|it| (self.lines[it], it)).collect();
            let place = |step: &ScoredStep| own.get(counted.lines.get(step.message_index)?).copied();
            steps.iter().enumerate().filter_map(|(idx, step)| Some((place(step)?, idx))).collect()
        };
        self.assistants().map(|message| Action { message, step: by_message.get(&message).copied() }).collect()
    }
}

/// The lines of the full conversation's messages, and the published conversation.
fn read_session(path: &Path, full: &Conversation) -> Result<(Vec<usize>, Conversation), BadFile> {
    let failed = |line, why| BadFile { path: path.to_owned(), line, why };
    let text = std::fs::read_to_string(path).map_err(|error| failed(None, error.to_string()))?;
    let session = pi_session::parse(&text).map_err(|fault| failed(fault.line, fault.why))?;
    if session.lines.len() != full.messages.len() {
        return Err(failed(None, "the file was changed while it was read".to_owned()));
    }
    let messages = published::messages_by_line(&text, published::MAX_TOOL_RESULT_CHARS);
    let messages = messages.map_err(|fault| failed(fault.line, fault.why))?;
    let (lines, messages) = messages.into_iter().unzip();
    Ok((session.lines, Conversation { messages, lines }))
}

/// The conversation the steps' messages are counted in: the one whose assistant messages they are, or at least among.
fn counted_in<'c>(
    steps: &[ScoredStep],
    full: &'c Conversation,
    published: Option<&'c Conversation>,
) -> Option<&'c Conversation> {
    let scored: Vec<usize> = steps.iter().map(|step| step.message_index).collect();
    let in_order = scored.windows(2).all(|pair| pair[0] < pair[1]);
    let all = || [Some(full), published].into_iter().flatten().filter(|_| in_order);
    let same = all().find(|it| it.assistants().eq(scored.iter().copied()));
    let holds = |it: &Conversation| {
        let actions: Vec<usize> = it.assistants().collect();
        scored.iter().all(|message| actions.binary_search(message).is_ok())
    };
    same.or_else(|| all().find(|it| holds(it)))
}
