//! `terminal` and `process`: commands in the sandbox, in front and in the background.

use std::time::Duration;

use serde_json::{Value, json};

use backsight_sandbox::{BackgroundStatus, Command, Exit, Sandbox, Streams, WORKSPACE};

use super::cut::{cut_middle, is_longer, strip_ansi};
use super::schema::Arguments;
use super::{TOOL_MEMORY, ToolError, ToolLimits, ToolResult, Toolbox};

/// What a shell answers for a command that ran out of time.
const TIMED_OUT: i32 = 124;
/// How many background processes are remembered.
const MAX_BACKGROUND: usize = 48;
/// How much of its output a look at one of them shows, in characters, and how many lines of its log.
const PREVIEW: usize = 1000;
const DEFAULT_LINES: u64 = 200;
const MAX_LINES: u64 = 2000;
/// How much of a command line a list shows.
const MAX_COMMAND: usize = 200;

pub(super) async fn terminal(tools: &Toolbox<'_>, arguments: Arguments<'_>) -> Result<ToolResult, ToolError> {
    let line = arguments.text("command")?;
    if line.trim().is_empty() {
        return Err("command is empty".to_owned().into());
    }
    let timeout = timeout(&tools.limits, &arguments)?;
    let mut command = Command::shell(line);
    command.cwd = arguments.optional_text("workdir")?.map(|dir| directory(tools.sandbox, dir));
    command.timeout = timeout;
    if arguments.flag("background")? {
        return start(tools, command).await;
    }
    command.output_cap = tools.limits.memory / 8;
    let output = tools.sandbox.run(command).await?;
    let error = match (output.timed_out, output.exit) {
        (true, _) => Some(format!("Command timed out after {} seconds and was killed", timeout.as_secs())),
        (false, Exit::Lost) => Some("The sandbox ended while the command ran".to_owned()),
        (false, Exit::Signal(signal)) => Some(format!("Command was killed by signal {signal}")),
        (false, Exit::Code(_)) => None,
    };
    let exit_code = if output.timed_out { Some(TIMED_OUT) } else { output.exit.code() };
    let json = json!({ "output": null, "exit_code": exit_code, "error": error });
    Ok(with_output(tools, json, strip_ansi(&output.capture.text())).await)
}

/// The time a command may take, or be waited for.
fn timeout(limits: &ToolLimits, arguments: &Arguments<'_>) -> Result<Duration, ToolError> {
    let asked = arguments.number("timeout")?.map_or(limits.terminal_timeout, Duration::from_secs);
    Ok(asked.clamp(Duration::from_secs(1), limits.max_timeout))
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

/// An answer with an output in it; one that is too long is saved, and cut.
async fn with_output(tools: &Toolbox<'_>, mut json: Value, output: String) -> ToolResult {
    let max = tools.limits.output_chars;
    if !is_longer(&output, max) {
        json["output"] = Value::String(output);
        return json.into();
    }
    let mut reached = Vec::new();
    let note = tools.save(&output, &mut reached).await;
    json["output"] = cut_middle(&output, max, &note).into();
    ToolResult { full: Some(output), note: Some(note), reached, ..json.into() }
}

/// Starts a command in the background. Those that ended first are forgotten first.
async fn start(tools: &Toolbox<'_>, mut command: Command) -> Result<ToolResult, ToolError> {
    let sandbox = tools.sandbox;
    let known = sandbox.background();
    if known.len() >= MAX_BACKGROUND {
        let has_ended = |id: &u64| sandbox.poll_background(*id).is_none_or(|it| it.exit.is_some());
        let ended = known.into_iter().find(has_ended).ok_or_else(|| {
            let reason = format!("{MAX_BACKGROUND} background processes are running; kill one first");
            ToolError::limit(TOOL_MEMORY, reason)
        })?;
        sandbox.forget_background(ended);
    }
    command.streams = Streams::Fed;
    // With all of them it is three quarters of the memory.
    command.output_cap = tools.limits.memory / 64;
    let id = sandbox.start_background(command).await?;
    Ok(json!({ "session_id": id.to_string(), "status": "running", "exit_code": null, "error": null }).into())
}

/// Looks after commands in the background.
pub(super) async fn process(tools: &Toolbox<'_>, arguments: Arguments<'_>) -> Result<ToolResult, ToolError> {
    let sandbox = tools.sandbox;
    let action = arguments.text("action")?;
    if action == "list" {
        let all = sandbox.background().into_iter().filter_map(|id| sandbox.poll_background(id));
        return Ok(json!({ "processes": all.map(|it| summary(&it)).collect::<Vec<_>>() }).into());
    }
    let known = ["poll", "log", "wait", "kill", "write", "submit", "close"];
    if !known.contains(&action) {
        return Err(format!("action must be list, {} or close, not {action:?}", known[..6].join(", ")).into());
    }
    // A number counts, because models write those.
    let id = arguments.number("session_id")?.ok_or_else(|| "session_id is missing".to_owned())?;
    let status = match action {
        "wait" => sandbox.wait_background(id, timeout(&tools.limits, &arguments)?).await,
        "kill" => sandbox.kill_background(id).await,
        _ => sandbox.poll_background(id),
    };
    let status = status.ok_or_else(|| format!("no background process has the session_id {id}; list them"))?;
    match action {
        "poll" | "kill" => Ok(with_preview(&status).into()),
        "log" => log(tools, &arguments, &status).await,
        "wait" => {
            let mut json = with_preview(&status);
            if status.exit.is_none() {
                json["status"] = json!("timeout");
                json["note"] = json!("it is still running; wait again, or look at its log");
            }
            Ok(json.into())
        }
        "close" => {
            sandbox.close_background(id);
            Ok(json!({ "session_id": id.to_string(), "status": "ok" }).into())
        }
        _ => send(sandbox, id, arguments.text("data")?, action == "submit"),
    }
}

fn summary(status: &BackgroundStatus) -> Value {
    json!({
        "session_id": status.id.to_string(),
        "command": status.command.chars().take(MAX_COMMAND).collect::<String>(),
        "status": if status.exit.is_some() { "exited" } else { "running" },
        "exit_code": status.exit.and_then(Exit::code),
        "uptime_seconds": status.duration.as_secs(),
    })
}

/// A process with the end of its output.
fn with_preview(status: &BackgroundStatus) -> Value {
    let output = strip_ansi(&status.capture.text());
    let skipped = output.chars().count().saturating_sub(PREVIEW);
    let mut json = summary(status);
    json["output_preview"] = Value::String(output.chars().skip(skipped).collect());
    json
}

/// Lines of a process's output: the last ones, or those from an offset on.
async fn log(
    tools: &Toolbox<'_>,
    arguments: &Arguments<'_>,
    status: &BackgroundStatus,
) -> Result<ToolResult, ToolError> {
    let limit = arguments.number("limit")?.unwrap_or(DEFAULT_LINES).clamp(1, MAX_LINES) as usize;
    let text = strip_ansi(&status.capture.text());
    let n_lines = text.lines().count();
    let first = match arguments.number("offset")?.unwrap_or(0) as usize {
        0 => n_lines.saturating_sub(limit),
        offset => offset.min(n_lines),
    };
    let shown: Vec<&str> = text.lines().skip(first).take(limit).collect();
    let mut json = summary(status);
    json["total_lines"] = json!(n_lines);
    json["showing"] = json!(format!("{} lines", shown.len()));
    Ok(with_output(tools, json, shown.join("\n")).await)
}

/// Writes to a process's standard input, without waiting for it to read.
fn send(sandbox: &Sandbox, id: u64, data: &str, is_line: bool) -> Result<ToolResult, ToolError> {
    let bytes = [data.as_bytes(), if is_line { b"\n" } else { b"" }].concat();
    let closed = |_| "its standard input is closed, or it has ended".to_owned();
    let n_written = sandbox.write_background(id, &bytes).transpose().map_err(closed)?.unwrap_or_default();
    let mut json = json!({ "session_id": id.to_string(), "status": "ok", "bytes_written": n_written });
    if n_written < bytes.len() {
        let n_left = bytes.len() - n_written;
        json["status"] = json!("partial");
        json["note"] =
            json!(format!("it does not read: the last {n_left} bytes were not sent, send them later"));
    }
    Ok(json.into())
}
