//! The live part of `quickstart`: the model itself works on tasks, in sandboxes, and is checked by hidden tests.
//!
//! It is `collect` with a configuration made for a very small model: few turns, and calls that are
//! well formed and in a sensible order because nothing else can be sampled. What happened is then told step by step.

use std::path::Path;

use serde_json::Value;

use super::episodes::{self, Ask, Finished};
use super::failure::Failure;
use super::output::{clipped, one_line};
use super::talk::{Loudness, Talk};
use super::{collect, program};
use crate::config::{Config, Typed};
use crate::store::RunLock;
use crate::store::layout::{CONFIG_FILE, is_run};
use backsight_chat::messages;
use backsight_core::episode::{Content, Episode, Message};

/// One of the two functions, as a file, with an expression that it returns. Words of the expression stand a space
/// apart, no number begins one but behind an operator, and no operator ends it.
const FUNCTION: &str = concat!(
    r#""path": "solution\.py", "content": "def (fizzbuzz\(n: int\) -> list\[str\]|is_palindrome\(s: str\) -> bool):"#,
    r"\\n    return (([a-zA-Z_(\['=+*/<>%-][a-zA-Z0-9_.,:=+*/()<>'%\[\]-]{0,20}|([a-zA-Z_(\['=+*/<>%-][a-zA-Z0-9_.,:=+*/()<>'%\[\]-]{0,20})?[,=+*/<>%-] [0-9][a-zA-Z0-9_.,:=+*/()<>'%\[\]-]{0,8}) ){0,10}",
    r"(([a-zA-Z_(\['=+*/<>%-][a-zA-Z0-9_.,:=+*/()<>'%\[\]-]{0,20}|([a-zA-Z_(\['=+*/<>%-][a-zA-Z0-9_.,:=+*/()<>'%\[\]-]{0,20})?[,=+*/<>%-] [0-9][a-zA-Z0-9_.,:=+*/()<>'%\[\]-]{0,6})[a-zA-Z0-9_)\]']|[a-z])",
    r#"(\\n)?""#,
);
/// The command that runs it.
const RUN: &str = r#""command": "python3 solution\.py""#;
/// What a very small model can do in a minute or two.
const KEYS: [(&str, &[&str]); 11] = [
    ("kind", &["embedded"]),
    ("tasks", &["fizzbuzz", "palindrome"]),
    ("group_size", &["3"]),
    ("max_agent_turns", &["2"]),
    ("max_turn_tokens", &["200"]),
    ("agent_temperature", &["0.3"]),
    ("forced_calls", &["2"]),
    ("forced_tools", &["write_file", "terminal"]),
    ("forced_arguments", &[FUNCTION, RUN]),
    ("terminal_timeout", &["10"]),
    ("verifier_seconds", &["20"]),
];
/// How much of a line is shown, how many lines of a file, and of a command's output.
const CALL_WIDTH: usize = 100;
const N_LINES: usize = 12;
const N_OUTPUT: usize = 3;
/// What must be known to read it.
const HEAD: &str = "\
Live: the model works on two tasks, three times each, in a sandbox; hidden tests decide. It is so small that its calls
are forced into form: first it can only write one of the two functions to solution.py, then only run that file. What
the function returns is its own.
reward: 0.7 x correctness (1 all hidden tests pass, 0.2 one fails, 0.1 the solution cannot be run)
        + 0.15 x efficiency (1 up to three steps) + 0.15 x use of tools (1 for writing and running)
";

/// Runs the episodes into `dir`, or those of them that an earlier quickstart did not come to.
pub(super) fn run(model: &Path, dir: &Path) -> Result<Finished, Failure> {
    let finished = match begin(model, dir) {
        // What was made otherwise, with another model or by another version, cannot be gone on with.
        Err(failure) if failure.is_usage() && is_run(dir) => {
            forget(dir)?;
            begin(model, dir)?
        }
        begun => begun?,
    };
    match episodes::verdict(&finished) {
        // Lost episodes are shown with the others.
        Err(failure) if finished.done.stopped.is_some() => Err(failure),
        _ => Ok(finished),
    }
}

fn begin(model: &Path, dir: &Path) -> Result<Finished, Failure> {
    let mut typed: Typed =
        KEYS.iter().map(|(key, words)| (*key, words.iter().map(|it| (*it).to_owned()).collect())).collect();
    typed.insert("model", vec![model.display().to_string()]);
    let config = Config::resolve("collect", None, &typed)?;
    let talk = Talk::new(false, Loudness::Usual, "episode");
    collect::made(Ask { stage: "collect", config, dir, talk, early: None })
}

/// Takes away what an earlier quickstart left.
fn forget(dir: &Path) -> Result<(), Failure> {
    let _lock = RunLock::acquire(dir).map_err(|error| Failure::stopped(&error, error.help()))?;
    std::fs::remove_dir_all(dir).map_err(|error| {
        Failure::stopped(format!("{}: {error}", dir.display()), "name another directory with --out")
    })
}

/// The command that makes further episodes of the same kind, beside those in `dir`.
pub(super) fn command(dir: &Path) -> String {
    let (config, more) = (dir.join(CONFIG_FILE), dir.with_file_name("more"));
    let (config, more) = (config.display().to_string(), more.display().to_string());
    program::command(["collect", "--config", &config, "--seed", "1", "--run", &more])
}

/// What happened, step by step.
pub(super) fn text(finished: &Finished) -> String {
    let mut text = HEAD.to_owned();
    for slot in &finished.done.slots {
        match finished.run.reader().episode(&slot.id()) {
            Some(episode) => text.push_str(&told(&episode)),
            None => text.push_str(&format!("\n{}  not run\n", slot.id())),
        }
    }
    text
}

fn told(episode: &Episode) -> String {
    let ended = match &episode.outcome {
        Ok(outcome) => format!("reward {:.3}, {}", outcome.reward, tests(episode)),
        Err(why) => format!("lost: {}", one_line(why)),
    };
    let n_tokens: usize =
        episode.steps().iter().filter_map(|it| it.tokens.as_ref()).map(|it| it.span.len()).sum();
    let n_steps = episode.steps().len();
    let mut lines = vec![format!("\n{}  {ended}, {n_steps} steps, {n_tokens} sampled tokens", episode.id)];
    let mut tell = |mark: &str, texts: Vec<String>| {
        lines.extend(texts.iter().map(|it| format!("{mark}{}", clipped(it.trim_end(), CALL_WIDTH))));
    };
    for step in episode.steps() {
        tell("  ", acted(&episode.messages[step.message_idx]));
        for answer in &episode.messages[step.next_state.clone()] {
            tell("    -> ", answered(&content(answer)));
        }
    }
    lines.join("\n") + "\n"
}

/// What the hidden tests found.
fn tests(episode: &Episode) -> String {
    match &episode.verification {
        Some(found) if found.error.is_none() => {
            format!("hidden tests: {} passed, {} failed", found.n_passed, found.n_failed)
        }
        Some(found) => format!("hidden tests: {}", one_line(found.error.as_deref().unwrap_or_default())),
        None => "hidden tests did not run".to_owned(),
    }
}

/// An action as people read it: a file with its lines, a command as it is typed, anything else as it is.
fn acted(action: &Message) -> Vec<String> {
    let Some(call) = action.tool_calls.first() else { return vec![content(action)] };
    let text = messages::arguments_text(&call.arguments);
    let arguments: Value = serde_json::from_str(&text).unwrap_or_default();
    let argument = |name: &str| arguments[name].as_str();
    match (call.name.as_str(), argument("path"), argument("content"), argument("command")) {
        ("write_file", Some(path), Some(content), _) => {
            let lines = content.lines().take(N_LINES).map(|line| format!("  | {line}"));
            std::iter::once(format!("write_file {path}")).chain(lines).collect()
        }
        ("terminal", _, _, Some(command)) => vec![format!("terminal $ {command}")],
        (name, ..) => vec![format!("{name} {text}")],
    }
}

/// What a tool answered: of a command its exit code and the end of its output, where an error says what it is.
fn answered(text: &str) -> Vec<String> {
    let answer: Value = serde_json::from_str(text).unwrap_or_default();
    let Some(output) = answer["output"].as_str() else { return vec![text.to_owned()] };
    let lines: Vec<&str> = output.lines().filter(|line| !line.trim().is_empty()).collect();
    let end = lines[lines.len().saturating_sub(N_OUTPUT)..].iter().map(|line| (*line).to_owned());
    let code = format!("exit code {}", answer["exit_code"]);
    let error = answer["error"].as_str().map(str::to_owned);
    std::iter::once(code).chain(error).chain(end).collect()
}

fn content(message: &Message) -> String {
    message.content.as_ref().map(Content::text).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use backsight_core::episode::{Arguments, Role, ToolCall};

    fn called(name: &str, arguments: &str) -> Vec<String> {
        let call =
            ToolCall { id: None, name: name.to_owned(), arguments: Arguments::Text(arguments.to_owned()) };
        acted(&Message { tool_calls: vec![call], ..Message::text(Role::Assistant, "") })
    }

    #[test]
    fn actions_and_answers_are_shown_as_people_read_them() {
        let file = r#"{"path": "a.py", "content": "def f():\n    return 1\n"}"#;
        assert_eq!(called("write_file", file), ["write_file a.py", "  | def f():", "  |     return 1"]);
        assert_eq!(called("terminal", r#"{"command": "ls -l"}"#), ["terminal $ ls -l"]);
        assert_eq!(called("process", r#"{"action": "list"}"#), [r#"process {"action": "list"}"#]);
        assert_eq!(called("terminal", "nothing"), ["terminal nothing"]);
        let ran = r#"{"output": "Traceback\n  x\n  y\n\nNameError: z\n", "exit_code": 1, "error": null}"#;
        assert_eq!(answered(ran), ["exit code 1", "  x", "  y", "NameError: z"]);
        assert_eq!(answered(r#"{"path": "a.py"}"#), [r#"{"path": "a.py"}"#]);
    }
}
