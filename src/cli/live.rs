//! The live part of `quickstart`: the model itself works on tasks, in sandboxes, and is checked by hidden tests.
//!
//! It is `collect` with a configuration made for a very small model: few turns, and calls that are
//! well formed because nothing else can be sampled. What happened is then told step by step.

use std::path::Path;
use std::sync::Arc;

use super::episodes::{self, Ask, Finished, part};
use super::failure::Failure;
use super::keys::config_failure;
use super::output::one_line;
use super::talk::{Loudness, Talk};
use super::{block_on, collect};
use crate::config::parts::CollectPart;
use crate::config::{Config, Typed};
use crate::store::RunLock;
use crate::store::ledger::LEDGER_FILE;
use crate::store::lock::LOCK_FILE;
use crate::store::run::CONFIG_FILE;
use backsight_chat::messages;
use backsight_core::episode::{Content, Episode, Message};

/// What a very small model can do in a minute or two.
const KEYS: [(&str, &[&str]); 9] = [
    ("kind", &["embedded"]),
    ("tasks", &["fizzbuzz", "palindrome"]),
    ("group_size", &["2"]),
    ("max_agent_turns", &["4"]),
    ("max_turn_tokens", &["160"]),
    ("forced_calls", &["4"]),
    ("forced_text", &["120"]),
    ("terminal_timeout", &["10"]),
    ("verifier_seconds", &["20"]),
];
/// How much of a call and of its answer is shown.
const CALL_WIDTH: usize = 92;

/// Runs the episodes into `dir`, as if for the first time.
pub(super) fn run(model: &Path, dir: &Path) -> Result<Finished, Failure> {
    forget(dir)?;
    let mut typed: Typed =
        KEYS.iter().map(|(key, words)| (*key, words.iter().map(|it| (*it).to_owned()).collect())).collect();
    typed.insert("model", vec![model.display().to_string()]);
    let config = Config::resolve("collect", None, &typed).map_err(config_failure)?;
    let chosen: CollectPart = part(&config)?;
    let talk = Arc::new(Talk::new(false, Loudness::Usual));
    let ask = Ask { command: "collect", config, dir, talk, temperature: chosen.agent_temperature };
    let mut finished = block_on(episodes::run(ask, &collect::choosing(&chosen)))??;
    collect::keep(&mut finished)?;
    match episodes::verdict(&finished) {
        // Lost episodes are shown with the others.
        Err(failure) if finished.stopped.is_some() => Err(failure),
        _ => Ok(finished),
    }
}

/// Takes away what an earlier quickstart left, and nothing else.
fn forget(dir: &Path) -> Result<(), Failure> {
    let is_ours = [CONFIG_FILE, LOCK_FILE, LEDGER_FILE].iter().all(|name| dir.join(name).is_file());
    if !is_ours {
        return Ok(());
    }
    let _lock = RunLock::acquire(dir).map_err(|error| Failure::stopped(&error, error.help()))?;
    std::fs::remove_dir_all(dir).map_err(|error| {
        Failure::stopped(format!("{}: {error}", dir.display()), "name another directory with --out")
    })
}

/// The command that does the same.
pub(super) fn command(model: &str, dir: &Path) -> String {
    let flags = KEYS.iter().map(|(key, words)| format!("--{} {}", key.replace('_', "-"), words.join(" ")));
    let flags: Vec<String> = flags.collect();
    format!("backsight collect --model {model} {} --run {}", flags.join(" "), dir.display())
}

/// What happened, step by step.
pub(super) fn text(finished: &Finished) -> String {
    let mut text = "Live: the model works on two tasks, twice each, in a sandbox. It is so small that its tool calls are\n\
                    forced into form; what is in them is its own. Hidden tests decide.\n"
        .to_owned();
    for slot in &finished.slots {
        match finished.run.episode(&slot.id()) {
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
    let mut text = format!("\n{}  {ended}, {n_steps} steps, {n_tokens} sampled tokens\n", episode.id);
    for step in episode.steps() {
        let action = &episode.messages[step.message_idx];
        text.push_str(&format!("  {}\n", clipped(&said(action))));
        for answer in &episode.messages[step.next_state.clone()] {
            text.push_str(&format!("    -> {}\n", clipped(&content(answer))));
        }
    }
    text
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

fn said(action: &Message) -> String {
    match action.tool_calls.first() {
        Some(call) => format!("{} {}", call.name, messages::arguments_text(&call.arguments)),
        None => content(action),
    }
}

fn content(message: &Message) -> String {
    message.content.as_ref().map(Content::text).unwrap_or_default()
}

fn clipped(text: &str) -> String {
    let line = one_line(text.trim());
    match line.char_indices().nth(CALL_WIDTH) {
        Some(_) => line.chars().take(CALL_WIDTH - 1).chain(['…']).collect(),
        None => line,
    }
}
