//! `terminal` and `process`: commands in the sandbox, in front and in the background.

use std::time::Duration;

use serde_json::{Value, json};

use backsight_sandbox::{BackgroundStatus, Capture, Command, Exit, Sandbox, WORKSPACE};

use super::cut::{cut_middle, strip_ansi};
use super::schema::Arguments;
use super::{Answer, ToolError, ToolLimits};

/// Bytes of output kept while a command runs; more than a student ever sees.
const CAPTURE_BYTES: usize = 8 << 20;
/// What a shell answers for a command that ran out of time.
const TIMED_OUT: i32 = 124;

/// Runs a command.
pub(super) async fn terminal(
    sandbox: &Sandbox,
    limits: &ToolLimits,
    arguments: Arguments<'_>,
) -> Result<Answer, ToolError> {
    let line = arguments.text("command")?;
    if line.trim().is_empty() {
        return Err(ToolError::Call("command is empty".to_owned()));
    }
    let timeout = arguments.number("timeout")?.map_or(limits.terminal_timeout, Duration::from_secs);
    let timeout = timeout.clamp(Duration::from_secs(1), limits.max_timeout);
    let mut command = Command::shell(line);
    command.cwd = arguments.optional_text("workdir")?.map(|dir| directory(sandbox, dir));
    command.output_cap = CAPTURE_BYTES;
    command.timeout = timeout;
    if arguments.flag("background")? {
        let id = sandbox.start_background(command).await?;
        return Ok(json!({ "id": id, "status": "running" }).into());
    }
    let output = sandbox.run(command).await?;
    let error = match (output.timed_out, output.exit) {
        (true, _) => Some(format!("Command timed out after {} seconds and was killed", timeout.as_secs())),
        (false, Exit::Lost) => Some("The sandbox ended while the command ran".to_owned()),
        (false, Exit::Signal(signal)) => Some(format!("Command was killed by signal {signal}")),
        (false, Exit::Code(_)) => None,
    };
    let exit_code = if output.timed_out { Some(TIMED_OUT) } else { output.exit.code() };
    let (text, full) = shorten(&output.capture, limits.output_chars);
    Ok(Answer { json: json!({ "output": text, "exit_code": exit_code, "error": error }), full })
}

/// A directory as the student names it: relative to the workspace unless it is absolute.
fn directory(sandbox: &Sandbox, dir: &str) -> String {
    let inside = sandbox.workspace().inside();
    // Outside our own sandbox the workspace may be elsewhere; what students are told stays true.
    match dir.strip_prefix(WORKSPACE) {
        Some(below) if below.is_empty() || below.starts_with('/') => format!("{inside}{below}"),
        _ if dir.starts_with('/') => dir.to_owned(),
        _ => format!("{inside}/{dir}"),
    }
}

/// Lists, polls or kills background commands.
pub(super) async fn process(
    sandbox: &Sandbox,
    limits: &ToolLimits,
    arguments: Arguments<'_>,
) -> Result<Answer, ToolError> {
    let status = match arguments.text("action")? {
        "list" => {
            let all: Vec<Value> = sandbox.list_background().iter().map(summary).collect();
            return Ok(json!({ "processes": all }).into());
        }
        "poll" => sandbox.poll_background(id(&arguments)?),
        "kill" => sandbox.kill_background(id(&arguments)?).await,
        other => return Err(ToolError::Call(format!("action must be list, poll or kill, not {other:?}"))),
    };
    let status =
        status.ok_or_else(|| ToolError::Call("no background command has that id; list them".to_owned()))?;
    let (text, full) = shorten(&status.capture, limits.output_chars);
    let mut json = summary(&status);
    json["output"] = Value::String(text);
    Ok(Answer { json, full })
}

fn id(arguments: &Arguments<'_>) -> Result<u64, ToolError> {
    arguments.number("id")?.ok_or_else(|| ToolError::Call("id is missing".to_owned()))
}

fn summary(status: &BackgroundStatus) -> Value {
    json!({
        "id": status.id,
        "command": status.command,
        "status": if status.exit.is_some() { "exited" } else { "running" },
        "exit_code": status.exit.and_then(Exit::code),
        "seconds": status.duration.as_secs(),
    })
}

/// What a student sees of an output, and the whole of it where that is less.
fn shorten(capture: &Capture, max: usize) -> (String, Option<String>) {
    let text = strip_ansi(&capture.text());
    match cut_middle(&text, max) {
        Some(cut) => (cut, Some(text)),
        None => (text, None),
    }
}
