//! The tools a student calls: what they take, what they do in its sandbox, what they answer.
//!
//! `Toolbox::call` is the border: it never fails, because every failure is an answer the student
//! can act on. The parts that only compute (cutting, patterns, lines, replacing, patches, searching)
//! are pure and in files of their own; files are reached only through the sandbox's `Workspace`.
//!
//! Files are read and changed by us, not by programs in the sandbox: the kernel keeps every path below
//! the workspace, no program of ours has to be shown in there, and what comes back is data that no
//! process of the student could have touched. What that costs us is bounded: a call may go through so
//! many bytes (`Allowance`), on a thread of its own that ends when nobody waits for it.

pub mod cut;
pub mod diff;
mod files;
pub mod glob;
pub mod hunks;
pub mod lines;
mod patch;
pub mod replace;
mod saved;
pub mod schema;
pub mod search;
mod syntax;
mod terminal;
pub mod v4a;

use std::time::Duration;

use serde_json::{Map, Value, json};

use backsight_core::episode;
use backsight_sandbox::{Allowance, FileError, Sandbox, SandboxError, Stopped, Workspace};

use files::Files;
use saved::Saved;
use schema::Arguments;

/// The keys of limits that an episode can reach, as its record names them.
const TOOL_WORK: &str = "tool_work_mb";
const TOOL_MEMORY: &str = "tool_memory_mb";
const SAVED_RESULTS: &str = "saved_results_mb";
const FILE_TOOL_TIME: &str = "terminal_timeout";
/// So much of a whole result is kept; a student can print without end.
const STORED_CHARS: usize = 1_000_000;

/// How much tools may take and say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolLimits {
    /// How long a command runs when the student does not say, and a file tool at most.
    pub terminal_timeout: Duration,
    /// How long it may run at most.
    pub max_timeout: Duration,
    /// How many characters of a command's output a student sees.
    pub output_chars: usize,
    /// How many characters any other answer may have.
    pub result_chars: usize,
    /// How many bytes of text one call of a file tool may go through.
    pub work_bytes: u64,
    /// How many bytes of commands' output are held for one episode.
    pub memory: usize,
    /// How many bytes of results are saved in the workspace for one episode.
    pub saved_bytes: u64,
}

impl Default for ToolLimits {
    fn default() -> Self {
        Self {
            terminal_timeout: Duration::from_secs(120),
            max_timeout: Duration::from_secs(600),
            output_chars: 50_000,
            result_chars: 100_000,
            work_bytes: 256 << 20,
            memory: 32 << 20,
            saved_bytes: 32 << 20,
        }
    }
}

/// What a tool answered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ToolResult {
    /// What the student reads.
    pub content: String,
    /// The whole text, where `content` is cut.
    pub full: Option<String>,
    /// Whether the call failed, as opposed to having told of a failure.
    pub is_error: bool,
    /// The limits it reached, by their keys.
    pub reached: Vec<&'static str>,
    /// What the student is told about where the whole text is.
    note: Option<String>,
    /// Why no further call can succeed, if the sandbox is gone.
    pub broken: Option<String>,
}

impl From<Value> for ToolResult {
    fn from(json: Value) -> Self {
        Self { content: json.to_string(), ..Self::default() }
    }
}

impl ToolResult {
    /// An answer that says why a call failed.
    pub fn error(reason: &str) -> Self {
        Self { is_error: true, ..json!({ "error": reason }).into() }
    }
}

/// Why a call failed; said to the student.
#[derive(Debug, Default, thiserror::Error)]
#[error("{reason}")]
pub struct ToolError {
    reason: String,
    /// The limit that was reached, if it was one, by its key.
    reached: Option<&'static str>,
    /// Why no further call can succeed, if the sandbox is gone.
    broken: Option<String>,
}

impl ToolError {
    fn limit(key: &'static str, reason: String) -> Self {
        Self { reached: Some(key), ..reason.into() }
    }
}

impl From<String> for ToolError {
    fn from(reason: String) -> Self {
        Self { reason, ..Self::default() }
    }
}

impl From<FileError> for ToolError {
    fn from(error: FileError) -> Self {
        match error {
            FileError::Stopped(stopped) => stopped.into(),
            error => error.to_string().into(),
        }
    }
}

impl From<Stopped> for ToolError {
    fn from(stopped: Stopped) -> Self {
        Self::limit(TOOL_WORK, stopped.to_string())
    }
}

impl From<SandboxError> for ToolError {
    fn from(error: SandboxError) -> Self {
        let why = error.to_string();
        match error {
            SandboxError::NoDirectory { .. } => why.into(),
            SandboxError::Ended(_) | SandboxError::Io(_) => {
                Self { broken: Some(why.clone()), ..format!("Tool execution failed: {why}").into() }
            }
            _ => format!("Tool execution failed: {why}").into(),
        }
    }
}

impl From<ToolError> for ToolResult {
    fn from(ToolError { reason, reached, broken }: ToolError) -> Self {
        Self { reached: reached.into_iter().collect(), broken, ..Self::error(&reason) }
    }
}

/// The names of all tools, in the order of their schemas.
pub const NAMES: [&str; 6] = ["terminal", "process", "read_file", "write_file", "patch", "search_files"];

/// The tools of one episode.
#[derive(Debug)]
pub struct Toolbox<'a> {
    sandbox: &'a Sandbox,
    limits: ToolLimits,
    saved: Saved,
}

impl<'a> Toolbox<'a> {
    /// Tools that work in `sandbox`.
    pub fn new(sandbox: &'a Sandbox, limits: ToolLimits) -> Self {
        Self { sandbox, limits, saved: Saved::default() }
    }

    /// Calls a tool. Whatever goes wrong is an answer.
    pub async fn call(&self, name: &str, arguments: &episode::Arguments) -> ToolResult {
        match self.dispatch(name, arguments).await {
            Ok(mut result) => {
                result.full = result.full.map(|it| cut::cut_middle(&it, STORED_CHARS, "").unwrap_or(it));
                self.shorten(&mut result, self.limits.result_chars).await;
                result
            }
            Err(error) => error.into(),
        }
    }

    async fn dispatch(&self, name: &str, arguments: &episode::Arguments) -> Result<ToolResult, ToolError> {
        let arguments = read_arguments(name, arguments)?;
        match name {
            "terminal" => terminal::terminal(self, Arguments(&arguments)).await,
            "process" => terminal::process(self, Arguments(&arguments)).await,
            "read_file" => Ok(self.with_files(files::read_file, arguments).await?.into()),
            "write_file" => Ok(self.with_files(files::write_file, arguments).await?.into()),
            "patch" => {
                let mut json = self.with_files(patch::patch, arguments).await?;
                syntax::tell(self.sandbox, &mut json).await;
                Ok(json.into())
            }
            _ => self.with_files(files::search_files, arguments).await,
        }
    }

    /// Calls a file tool and waits no longer than it may take; one that is not waited for ends.
    async fn with_files<T: Send + 'static>(
        &self,
        tool: fn(&Files<'_>, Arguments<'_>) -> Result<T, ToolError>,
        arguments: Map<String, Value>,
    ) -> Result<T, ToolError> {
        let limits = self.limits.clone();
        let work = move |workspace: &Workspace, allowance: &Allowance| {
            tool(&Files { workspace, allowance, limits: &limits }, Arguments(&arguments))
        };
        let late = |_| {
            let reason = format!("this took longer than {} seconds", self.limits.terminal_timeout.as_secs());
            Err(ToolError::limit(FILE_TOOL_TIME, reason))
        };
        let answer = self.sandbox.workspace().within(self.limits.work_bytes, work);
        tokio::time::timeout(self.limits.terminal_timeout, answer).await.unwrap_or_else(late)
    }

    /// Keeps at most `max` characters of a result, from the beginning and the end. The whole text stays beside them,
    /// and is saved where it was not yet.
    pub async fn shorten(&self, result: &mut ToolResult, max: usize) {
        if !cut::is_longer(&result.content, max) {
            return;
        }
        let note = match result.note.take() {
            Some(note) => note,
            None => self.save(&result.content, &mut result.reached).await,
        };
        if let Some(cut) = cut::cut_middle(&result.content, max, &note) {
            let whole = std::mem::replace(&mut result.content, cut);
            result.full.get_or_insert(whole);
        }
        result.note = Some(note);
    }

    /// Saves a text that cannot be shown whole; what the student is told about where it is.
    async fn save(&self, text: &str, reached: &mut Vec<&'static str>) -> String {
        let saved = self.saved.save(self.sandbox.workspace(), text, self.limits.saved_bytes).await;
        reached.extend(saved.is_none().then_some(SAVED_RESULTS));
        saved.unwrap_or_else(|| {
            let n_mib = self.limits.saved_bytes >> 20;
            format!("; it is not saved: this task has saved its {n_mib} MiB of results")
        })
    }
}

/// The arguments of a call to a tool that exists.
fn read_arguments(name: &str, arguments: &episode::Arguments) -> Result<Map<String, Value>, String> {
    if !NAMES.contains(&name) {
        return Err(format!("Unknown tool '{name}'. Available tools: {}", json!(NAMES)));
    }
    match arguments {
        episode::Arguments::Object(object) => Ok(object.clone()),
        episode::Arguments::Text(text) => match serde_json::from_str::<Value>(text) {
            Ok(Value::Object(object)) => Ok(object),
            Ok(_) => Err(invalid("the arguments are no JSON object")),
            Err(error) => Err(invalid(&error.to_string())),
        },
    }
}

fn invalid(reason: &str) -> String {
    format!("Invalid JSON in tool arguments: {reason}. Please retry with valid JSON.")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(name: &str, text: &str, expected: Result<&str, &str>) {
        let read = read_arguments(name, &episode::Arguments::Text(text.to_owned()));
        let read = read.map(|it| Value::Object(it).to_string());
        assert_eq!(read.as_deref().map_err(String::as_str), expected);
    }

    #[test]
    fn calls_that_make_no_sense_are_answered() {
        check("terminal", r#"{"command": "ls"}"#, Ok(r#"{"command":"ls"}"#));
        let unknown = r#"Unknown tool 'web'. Available tools: ["terminal","process","read_file","write_file","patch","search_files"]"#;
        check("web", "{}", Err(unknown));
        check(
            "terminal",
            "[1]",
            Err(
                "Invalid JSON in tool arguments: the arguments are no JSON object. Please retry with valid JSON.",
            ),
        );
        let cut = "Invalid JSON in tool arguments: EOF while parsing a string at line 1 column 8. Please retry with valid JSON.";
        check("terminal", r#"{"comman"#, Err(cut));
    }

    #[test]
    fn every_schema_has_a_tool() {
        let names: Vec<String> = schema::schemas()
            .iter()
            .filter_map(|it| it["function"]["name"].as_str().map(str::to_owned))
            .collect();
        assert_eq!(names, NAMES);
    }
}
