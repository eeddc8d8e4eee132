//! Session files of the pi coding agent, `pi_session.jsonl`, versions 1 to 3.
//!
//! One JSON object a line. Owns finding what the student saw and did in it. The surprises: from
//! version 2 on the lines form a tree, in which abandoned branches stay (the last line is the leaf);
//! a compaction replaces everything before `firstKeptEntryId` by a summary; turns that were aborted
//! or failed stay in the file but were never shown to the model again; calls without a result were
//! shown to it with a made-up one; thinking stands under `thinking`, in some files under `text`.
//! Version 1 has no ids, version 3 calls `hookMessage` `custom`. There is neither system prompt nor
//! tool schema in the file. Deliberately absent: cutting or stripping any text.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value, json};

use super::fault::{Fault, object_on_line, required, text, wrong};
use backsight_chat::messages::arguments;
use backsight_core::episode::{Compaction, Content, Message, Role, ToolCall};

/// The newest version this reads.
const NEWEST: u64 = 3;
/// What pi shows the model in place of a result that never came.
const NO_RESULT: &str = "No result provided";

/// What a session file says.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Session {
    /// The messages on the way from the first entry to the leaf.
    pub messages: Vec<Message>,
    /// The line each of them stands on; for a result that was made up, that of what followed it.
    pub lines: Vec<usize>,
    /// Which of them are results that report a failure.
    pub failed_results: Vec<usize>,
    /// Where history was replaced by a summary.
    pub compactions: Vec<Compaction>,
    /// Seconds since 1970 of the first message.
    pub started_at: Option<i64>,
    /// What was left out of the messages, and why.
    pub left_out: Vec<Fault>,
}

/// Reads a whole session file.
pub fn parse(text: &str) -> Result<Session, Fault> {
    let entries = entries(text)?;
    let path = path(&entries)?;
    let mut talk = Talk::default();
    for entry in path {
        talk.read(entry, &entries).map_err(|fault| fault.on(entry.line))?;
        talk.session.lines.resize(talk.session.messages.len(), entry.line);
    }
    Ok(talk.session)
}

pub(super) struct SessionLine {
    pub(super) line: usize,
    pub(super) json: Map<String, Value>,
}

impl SessionLine {
    fn key(&self, key: &str) -> Option<&str> {
        self.json.get(key).and_then(Value::as_str)
    }

    /// What kind of entry it is.
    pub(super) fn kind(&self) -> &str {
        self.key("type").unwrap_or("")
    }
}

/// Every line that is not blank.
pub(super) fn entries(text: &str) -> Result<Vec<SessionLine>, Fault> {
    let lines = text.split('\n').enumerate().map(|(idx, line)| (idx + 1, line.trim()));
    let entry = |(line, text)| object_on_line(line, text).map(|json| SessionLine { line, json });
    lines.filter(|(_, text)| !text.is_empty()).map(entry).collect()
}

/// The entries from the first to the leaf: all of them in version 1, the leaf's ancestors from version 2 on.
fn path(entries: &[SessionLine]) -> Result<Vec<&SessionLine>, Fault> {
    let is_tree = match entries.first().filter(|entry| entry.kind() == "session") {
        Some(header) => version(header)? > 1,
        None => entries.iter().any(|entry| entry.json.contains_key("parentId")),
    };
    let body = entries.iter().filter(|entry| entry.kind() != "session");
    if is_tree { ancestors(&body.collect::<Vec<_>>()) } else { Ok(body.collect()) }
}

fn version(header: &SessionLine) -> Result<u64, Fault> {
    match header.json.get("version").map(|version| (version, version.as_u64())) {
        None => Ok(1),
        Some((_, Some(version))) if version <= NEWEST => Ok(version),
        Some((version, _)) => {
            let why = format!("session version {version} is not known; versions 1 to {NEWEST} are");
            Err(Fault::at(header.line, why))
        }
    }
}

/// The entries on the way to the last one, each with its parent before it.
///
/// An entry that names no parent continues the line before it. One without an id can be nobody's parent, so
/// it belongs to the entry it continues: a compaction written like that counts for everything that follows.
fn ancestors<'e>(body: &[&'e SessionLine]) -> Result<Vec<&'e SessionLine>, Fault> {
    let by_id: HashMap<&str, usize> =
        body.iter().enumerate().filter_map(|(idx, entry)| Some((entry.key("id")?, idx))).collect();
    let mut path: Vec<usize> = Vec::new();
    let mut next = body.len().checked_sub(1);
    while let Some(idx) = next {
        if path.len() == body.len() {
            return Err(Fault::at(body[idx].line, "the entry is its own ancestor"));
        }
        path.push(idx);
        next = parent(body, idx, &by_id)?;
    }
    path.reverse();
    let mut all: Vec<&SessionLine> = Vec::new();
    for (nth, idx) in path.iter().enumerate() {
        all.push(body[*idx]);
        let continues = |at: &usize| is_bare(body[*at]) && path.get(nth + 1) != Some(at);
        all.extend((idx + 1..body.len()).take_while(continues).map(|at| body[at]));
    }
    Ok(all)
}

/// Whether an entry stands outside of the tree.
fn is_bare(entry: &SessionLine) -> bool {
    entry.key("id").is_none() && !entry.json.contains_key("parentId")
}

/// The entry an entry continues; none for a root.
fn parent(body: &[&SessionLine], idx: usize, by_id: &HashMap<&str, usize>) -> Result<Option<usize>, Fault> {
    let entry = body[idx];
    match entry.json.get("parentId") {
        Some(Value::Null) => Ok(None),
        None => Ok(idx.checked_sub(1)),
        Some(Value::String(id)) => {
            let missing = || Fault::at(entry.line, format_args!("its parent `{id}` is not in the file"));
            by_id.get(id.as_str()).copied().map(Some).ok_or_else(missing)
        }
        Some(other) => Err(wrong("parentId", "a string or null", other).on(entry.line)),
    }
}

/// The conversation while it is being read.
#[derive(Default)]
struct Talk {
    session: Session,
    /// At which message each entry begins, by its line.
    place_of_line: HashMap<usize, usize>,
    /// Calls that have no result yet.
    open: Vec<ToolCall>,
    /// Calls of turns that were left out.
    dropped_calls: HashSet<String>,
}

impl Talk {
    fn read(&mut self, entry: &SessionLine, entries: &[SessionLine]) -> Result<(), Fault> {
        self.place_of_line.insert(entry.line, self.session.messages.len());
        match entry.kind() {
            "message" => self.message(entry),
            "custom_message" => self.user(content(&entry.json)?),
            "branch_summary" => match entry.key("summary").filter(|summary| !summary.is_empty()) {
                Some(summary) => self.user(Content::Text(branch_summary(summary))),
                None => Ok(()),
            },
            "compaction" => self.compaction(entry, entries),
            _ => Ok(()),
        }
    }

    fn message(&mut self, entry: &SessionLine) -> Result<(), Fault> {
        let json = required(&entry.json, "message", "an object", Value::as_object)?;
        if self.session.messages.is_empty() {
            self.session.started_at =
                json.get("timestamp").and_then(Value::as_i64).map(|ms| ms.div_euclid(1000));
        }
        match text(json, "role")?.as_deref() {
            Some("user" | "custom" | "hookMessage") => self.user(content(json)?),
            Some("assistant") => self.assistant(json, entry.line),
            Some("toolResult") => self.tool_result(json, entry.line),
            Some("bashExecution") => self.bash_execution(json),
            Some(other) => {
                self.leave_out(
                    entry.line,
                    format!("a message with the role `{other}` is never shown to the model"),
                );
                Ok(())
            }
            None => Err(Fault::new("the message has no role")),
        }
    }

    fn leave_out(&mut self, line: usize, why: String) {
        self.session.left_out.push(Fault::at(line, why));
    }

    fn user(&mut self, content: Content) -> Result<(), Fault> {
        if !content.text().trim().is_empty() {
            self.answer_open_calls();
            self.session.messages.push(Message { content: Some(content), ..Message::text(Role::User, "") });
        }
        Ok(())
    }

    /// A command the person ran, shown to the model as text unless it was marked as private.
    fn bash_execution(&mut self, json: &Map<String, Value>) -> Result<(), Fault> {
        if json.get("excludeFromContext").and_then(Value::as_bool) == Some(true) {
            return Ok(());
        }
        let shown = bash_execution(json)?;
        self.user(Content::Text(shown))
    }

    fn assistant(&mut self, json: &Map<String, Value>, line: usize) -> Result<(), Fault> {
        self.answer_open_calls();
        let message = assistant(json)?;
        if let Some(reason @ ("aborted" | "error")) = json.get("stopReason").and_then(Value::as_str) {
            self.dropped_calls.extend(message.tool_calls.into_iter().filter_map(|call| call.id));
            self.leave_out(
                line,
                format!("the turn ended with `{reason}` and was never shown to the model again"),
            );
        } else if message.content.is_none() && message.tool_calls.is_empty() {
            let what = if message.reasoning.is_some() { "a turn of thinking alone" } else { "an empty turn" };
            self.leave_out(line, format!("{what} is never shown to the model again"));
        } else {
            self.open = message.tool_calls.clone();
            self.session.messages.push(message);
        }
        Ok(())
    }

    /// A tool's result. Images in it cannot be re-read by a text model and are left out.
    fn tool_result(&mut self, json: &Map<String, Value>, line: usize) -> Result<(), Fault> {
        let id = text(json, "toolCallId")?;
        if id.as_ref().is_some_and(|id| self.dropped_calls.contains(id)) {
            return Ok(());
        }
        if let Some(answered) = self.open.iter().position(|call| call.id == id) {
            self.open.remove(answered);
        }
        let failed = json.get("isError").and_then(Value::as_bool) == Some(true);
        let (texts, n_images) = result_text(json)?;
        if n_images > 0 {
            let images = if n_images == 1 { "an image".to_owned() } else { format!("{n_images} images") };
            self.leave_out(line, format!("{images} in the result cannot be re-read by a text model"));
        }
        self.push_result(texts.join("\n"), id, text(json, "toolName")?, failed);
        Ok(())
    }

    fn push_result(&mut self, text: String, id: Option<String>, name: Option<String>, failed: bool) {
        if failed {
            self.session.failed_results.push(self.session.messages.len());
        }
        self.session.messages.push(Message { tool_call_id: id, name, ..Message::text(Role::Tool, text) });
    }

    fn answer_open_calls(&mut self) {
        for call in std::mem::take(&mut self.open) {
            self.push_result(NO_RESULT.to_owned(), call.id, Some(call.name), true);
        }
    }

    fn compaction(&mut self, entry: &SessionLine, entries: &[SessionLine]) -> Result<(), Fault> {
        let summary = entry.key("summary").ok_or_else(|| Fault::new("the compaction has no summary"))?;
        let first_kept = match (entry.key("firstKeptEntryId"), entry.json.get("firstKeptEntryIndex")) {
            (Some(id), _) => entries.iter().find(|it| it.key("id") == Some(id)),
            (None, Some(index)) => index.as_u64().and_then(|index| entries.get(index as usize)),
            (None, None) => None,
        };
        let at = self.session.messages.len();
        let kept_from = first_kept.and_then(|kept| self.place_of_line.get(&kept.line)).copied().unwrap_or(at);
        let summary = Message::text(Role::User, compaction_summary(summary));
        self.session.compactions.push(Compaction { at, summary, kept_from });
        Ok(())
    }
}

/// The words with which pi hands the model a summary.
fn compaction_summary(summary: &str) -> String {
    let head = "The conversation history before this point was compacted into the following summary:";
    format!("{head}\n\n<summary>\n{summary}\n</summary>")
}

fn branch_summary(summary: &str) -> String {
    let head = "The following is a summary of a branch that this conversation came back from:";
    format!("{head}\n\n<summary>\n{summary}</summary>")
}

/// A command and its output as pi shows them to the model.
fn bash_execution(json: &Map<String, Value>) -> Result<String, Fault> {
    let flag = |key| json.get(key).and_then(Value::as_bool) == Some(true);
    let mut shown = format!("Ran `{}`\n", text(json, "command")?.unwrap_or_default());
    match text(json, "output")?.filter(|output| !output.is_empty()) {
        Some(output) => shown += &format!("```\n{output}\n```"),
        None => shown += "(no output)",
    }
    if flag("cancelled") {
        shown += "\n\n(command cancelled)";
    } else if let Some(code) = json.get("exitCode").and_then(Value::as_i64).filter(|code| *code != 0) {
        shown += &format!("\n\nCommand exited with code {code}");
    }
    if let Some(path) = text(json, "fullOutputPath")?.filter(|_| flag("truncated")) {
        shown += &format!("\n\n[Output truncated. Full output: {path}]");
    }
    Ok(shown)
}

/// A user's content: a string, or text blocks. What a person showed in an image cannot be re-read by a text model, so
/// that fails the episode.
fn content(json: &Map<String, Value>) -> Result<Content, Fault> {
    let mut texts = blocks(json)?.iter().map(text_block).collect::<Result<Vec<_>, _>>()?;
    Ok(if texts.len() == 1 { Content::Text(texts.remove(0)) } else { Content::Parts(texts) })
}

/// The blocks of a content; a bare string is one of text.
fn blocks(json: &Map<String, Value>) -> Result<Cow<'_, [Value]>, Fault> {
    match json.get("content") {
        Some(Value::String(text)) => Ok(vec![json!({"type": "text", "text": text})].into()),
        Some(Value::Array(blocks)) => Ok(blocks.into()),
        other => Err(wrong("content", "a string or a list of blocks", other.unwrap_or(&Value::Null))),
    }
}

/// The text of each block of a tool's result, and how many images stand between them.
fn result_text(json: &Map<String, Value>) -> Result<(Vec<String>, usize), Fault> {
    let blocks = blocks(json)?;
    let (images, texts): (Vec<&Value>, Vec<&Value>) =
        blocks.iter().partition(|block| block.get("type").and_then(Value::as_str) == Some("image"));
    Ok((texts.into_iter().map(text_block).collect::<Result<_, _>>()?, images.len()))
}

fn text_block(block: &Value) -> Result<String, Fault> {
    match (block.get("type").and_then(Value::as_str), block.get("text").and_then(Value::as_str)) {
        (Some("text"), Some(text)) => Ok(text.to_owned()),
        (Some("text"), None) => Err(Fault::new("a text block has no text")),
        (kind, _) => {
            let kind = kind.unwrap_or("unknown type");
            Err(Fault::new(format_args!("a block of {kind} cannot be used, only text can")))
        }
    }
}

/// An assistant's turn. Text blocks are one text, thinking blocks are lines, as pi sends them.
fn assistant(json: &Map<String, Value>) -> Result<Message, Fault> {
    let (mut texts, mut thoughts, mut tool_calls) = (Vec::new(), Vec::new(), Vec::new());
    for block in blocks(json)?.iter() {
        match block.get("type").and_then(Value::as_str) {
            Some("thinking") => {
                let found = ["thinking", "text"].iter().find_map(|key| block.get(key)?.as_str());
                thoughts.extend(found.map(str::to_owned));
            }
            Some("toolCall") => tool_calls.push(tool_call(block)?),
            _ => texts.push(text_block(block)?),
        }
    }
    texts.retain(|text| !text.trim().is_empty());
    thoughts.retain(|text| !text.trim().is_empty());
    Ok(Message {
        content: (!texts.is_empty()).then(|| Content::Text(texts.concat())),
        reasoning: (!thoughts.is_empty()).then(|| thoughts.join("\n")),
        tool_calls,
        ..Message::text(Role::Assistant, "")
    })
}

fn tool_call(block: &Value) -> Result<ToolCall, Fault> {
    let name =
        block.get("name").and_then(Value::as_str).ok_or_else(|| Fault::new("a tool call has no name"))?;
    let id = block.get("id").and_then(Value::as_str).filter(|id| !id.is_empty()).map(str::to_owned);
    let arguments = arguments(block.get("arguments").or_else(|| block.get("input")));
    Ok(ToolCall { id, name: name.to_owned(), arguments })
}
