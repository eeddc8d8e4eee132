//! The tools a student calls: what they take, what they do in its sandbox, what they answer.
//!
//! `Toolbox::call` is the border: it never fails, because every failure is an answer the student
//! can act on. The parts that only compute (cutting, patterns, replacing, diffs, searching) are
//! pure and in files of their own; files are reached only through the sandbox's `Workspace`.

pub mod cut;
pub mod diff;
mod files;
pub mod glob;
mod patch;
pub mod replace;
pub mod schema;
pub mod search;
mod terminal;

use std::time::Duration;

use serde_json::{Map, Value, json};

use backsight_core::episode;
use backsight_sandbox::{FileError, Sandbox, SandboxError};

use schema::Arguments;

/// How much tools may take and say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolLimits {
    /// How long a command runs when the student does not say.
    pub terminal_timeout: Duration,
    /// How long it may run at most.
    pub max_timeout: Duration,
    /// How many characters of a command's output a student sees.
    pub output_chars: usize,
    /// How many characters any other answer may have.
    pub result_chars: usize,
}

impl Default for ToolLimits {
    fn default() -> Self {
        Self {
            terminal_timeout: Duration::from_secs(120),
            max_timeout: Duration::from_secs(600),
            output_chars: 50_000,
            result_chars: 100_000,
        }
    }
}

/// What a tool answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolResult {
    /// What the student reads.
    pub content: String,
    /// The whole text, where `content` is cut.
    pub full: Option<String>,
    /// Whether the call failed, as opposed to having told of a failure.
    pub is_error: bool,
    /// Why no further call can succeed, if the sandbox is gone.
    pub broken: Option<String>,
}

impl ToolResult {
    /// An answer that says why a call failed.
    pub fn error(reason: &str) -> Self {
        let content = json!({ "error": reason }).to_string();
        Self { content, full: None, is_error: true, broken: None }
    }

    /// Keeps at most `max` characters, from the beginning and the end; the whole text stays beside them.
    pub fn shorten(&mut self, max: usize) {
        if let Some(cut) = cut::cut_middle(&self.content, max) {
            let whole = std::mem::replace(&mut self.content, cut);
            self.full.get_or_insert(whole);
        }
    }
}

/// Why a call failed; said to the student.
#[derive(Debug)]
pub enum ToolError {
    /// The call is wrong.
    Call(String),
    /// The sandbox does not work.
    Sandbox(SandboxError),
}

impl From<String> for ToolError {
    fn from(reason: String) -> Self {
        Self::Call(reason)
    }
}

impl From<FileError> for ToolError {
    fn from(error: FileError) -> Self {
        Self::Call(error.to_string())
    }
}

impl From<SandboxError> for ToolError {
    fn from(error: SandboxError) -> Self {
        match error {
            SandboxError::NoDirectory { .. } => Self::Call(error.to_string()),
            error => Self::Sandbox(error),
        }
    }
}

/// An answer as JSON, and the whole text where a part of it was cut.
struct Answer {
    json: Value,
    full: Option<String>,
}

impl From<Value> for Answer {
    fn from(json: Value) -> Self {
        Self { json, full: None }
    }
}

/// The names of all tools, in the order of their schemas.
pub const NAMES: [&str; 6] = ["terminal", "process", "read_file", "write_file", "patch", "search_files"];

/// The tools of one episode.
#[derive(Debug)]
pub struct Toolbox<'a> {
    sandbox: &'a Sandbox,
    limits: ToolLimits,
}

impl<'a> Toolbox<'a> {
    /// Tools that work in `sandbox`.
    pub fn new(sandbox: &'a Sandbox, limits: ToolLimits) -> Self {
        Self { sandbox, limits }
    }

    /// Calls a tool. Whatever goes wrong is an answer.
    pub async fn call(&self, name: &str, arguments: &episode::Arguments) -> ToolResult {
        let arguments = match read_arguments(name, arguments) {
            Ok(arguments) => arguments,
            Err(reason) => return ToolResult::error(&reason),
        };
        match self.dispatch(name, Arguments(&arguments)).await {
            Ok(answer) => self.finish(answer),
            Err(ToolError::Call(reason)) => ToolResult::error(&reason),
            Err(ToolError::Sandbox(error)) => sandbox_error(&error),
        }
    }

    async fn dispatch(&self, name: &str, arguments: Arguments<'_>) -> Result<Answer, ToolError> {
        match name {
            "terminal" => terminal::terminal(self.sandbox, &self.limits, arguments).await,
            "process" => terminal::process(self.sandbox, &self.limits, arguments).await,
            "read_file" => files::read_file(self.sandbox.workspace(), arguments).await,
            "write_file" => files::write_file(self.sandbox.workspace(), arguments).await,
            "patch" => patch::patch(self.sandbox.workspace(), arguments).await,
            _ => files::search_files(self.sandbox.workspace(), arguments).await,
        }
    }

    fn finish(&self, answer: Answer) -> ToolResult {
        let Answer { json, full } = answer;
        let mut result = ToolResult { content: json.to_string(), full, is_error: false, broken: None };
        result.shorten(self.limits.result_chars);
        result
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

fn sandbox_error(error: &SandboxError) -> ToolResult {
    let broken = matches!(error, SandboxError::Ended(_) | SandboxError::Io(_)).then(|| error.to_string());
    ToolResult { broken, ..ToolResult::error(&format!("Tool execution failed: {error}")) }
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
