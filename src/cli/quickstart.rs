//! `quickstart`: the main job end to end on the embedded model, for somebody who has nothing yet.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use serde_json::Map;

use super::call::Call;
use super::credit::args::CreditArgs;
use super::credit::scored;
use super::failure::Failure;
use super::output::{self, clipped, number};
use super::{live, model, program, stdout, taught, voice};
use crate::model::{Opened, embedded};
use crate::pipeline::Texts;
use crate::pipeline::report::{Fate, Report};
use crate::quickstart::{EPISODE, Step, bundled, conversation, longest, steps};
use crate::store::hindsight::{Hindsight, PUBLISHED_LENS, read, scores_file, tokens_file};
use backsight_chat::tokenizer::Tokenizer;
use backsight_core::episode::Episode;
use backsight_core::tokens::Logprob;

/// How many of the most changed steps are named.
const N_CHANGED: usize = 5;
/// How many tokens of one step are shown.
const N_TOKENS: usize = 24;
/// How much of an action's text fits into the table.
const TITLE_WIDTH: usize = 48;

/// The recorded episode, in the directory of results.
const EPISODE_FILE: &str = "episode.jsonl";
/// The same for `chat render`.
const CONVERSATION_FILE: &str = "conversation.json";

pub(super) fn run(call: &Call) -> Result<(), Failure> {
    let (out, model): (PathBuf, Option<String>) = (call.get("out")?, call.get("model")?);
    let began = Instant::now();
    let (name, path) = model::find_or_pull(model.as_deref())?;
    output::talk(&format!("loading {name}"));
    // One that cannot be used is refused before anything is made.
    let opened = embedded::load(&name, &path, None)?;
    let live_dir = out.join("live");
    let live = match live::run(&path, &live_dir) {
        Err(failure) if failure.is_signal() => return Err(failure),
        live => live,
    };
    if let Ok(live) = &live {
        stdout::data(format!("{}\n", live::text(live)).as_bytes())?;
    }
    // The directory is free again once nobody reads what was made there.
    let live = live.map(drop);
    let taught = live.as_ref().ok().map(|()| taught::run(&path, &live_dir)).transpose()?;
    taught.into_iter().try_for_each(|text| stdout::data(format!("{text}\n").as_bytes()))?;
    let shown = credit(&out, &name, &path, &opened, began)?;
    stdout::data(shown.as_bytes())?;
    let again = live::command(&live_dir);
    // What the machine does not allow is said last, so that it is not overlooked.
    live.and_then(|()| stdout::data(format!("  {again}\n").as_bytes()))
}

/// The recorded part: an episode's steps are re-read knowing its outcome, and get their credit. It is `credit` with a
/// configuration of its own.
fn credit(out: &Path, name: &str, path: &Path, opened: &Opened, began: Instant) -> Result<String, Failure> {
    let episode = bundled()?;
    check_fits(&episode, opened)?;
    write(out, &episode)?;
    let (file, dir) = (out.join(EPISODE_FILE).display().to_string(), out.display().to_string());
    let typed = [
        ("episodes", file.as_str()),
        ("run", &dir),
        ("kind", "embedded"),
        ("model", name),
        ("tool_text", "auto"),
        ("overwrite", "true"),
    ];
    let report = scored_with(typed)?;
    let hindsight = made(&report)?;
    let steps = steps(&episode, &hindsight, &Tokenizer::open(path)?)?;
    let tool_text = hindsight.scores.provenance.iter().find_map(|it| it.other.get("tool_text")?.as_str());
    let most_changed = most_changed(&steps);
    let page = [
        head(name, &episode, tool_text.unwrap_or("the template's own way"), &steps),
        table(&steps),
        changed(&steps, &most_changed),
        most_changed.first().map(|&idx| tokens(idx, &steps[idx])).unwrap_or_default(),
        format!("Made in {:.1} s:\n{}", began.elapsed().as_secs_f64(), files(out, &report)),
        next(out, name, path),
    ];
    Ok(page.join("\n"))
}

/// What became of the one episode that `credit` with these keys scores.
fn scored_with<const N: usize>(typed: [(&'static str, &str); N]) -> Result<Report, Failure> {
    let typed = typed.map(|(key, word)| (key, vec![word.to_owned()])).into();
    let call = Call::of("credit", "", &typed)?;
    let mut args = CreditArgs::read(&call, |_| None)?;
    args.with_plain = true;
    let (_, done) = scored(&args)?;
    match (done.stopped, done.reports.into_iter().next()) {
        (Some(stopped), _) => Err(voice::failure(&stopped)),
        (None, None) => Err(Failure::stopped("the episode was not scored", "try again")),
        (None, Some(report)) => Ok(report),
    }
}

/// Refuses an episode that the model cannot read whole, before the first token of it is computed.
fn check_fits(episode: &Episode, opened: &Opened) -> Result<(), Failure> {
    let Some((path, tokenizer)) = opened.tokenizer.clone() else {
        let help = "use a model directory with tokenizer.json";
        return Err(Failure::input(format!("{} has no tokenizer", opened.info.model), help));
    };
    let longest = longest(episode, &Texts::open(&path, tokenizer, None, &Map::new())?)?;
    match opened.model.limits().context_length.filter(|&limit| longest >= limit) {
        None => Ok(()),
        Some(limit) => Err(Failure::input(
            format!("the episode's {longest} tokens do not fit into the model's context of {limit}"),
            "choose a model with a longer context with --model",
        )),
    }
}

/// The episode as `credit` and as `chat render` read it.
fn write(out: &Path, episode: &Episode) -> Result<(), Failure> {
    let talk = format!("{}\n", conversation(episode));
    let failed = |path: &Path, error| {
        let help = "free some space, or name another directory with --out";
        Failure::stopped(format!("{}: {error}", path.display()), help)
    };
    fs::create_dir_all(out).map_err(|error| failed(out, error))?;
    for (name, text) in [(EPISODE_FILE, EPISODE), (CONVERSATION_FILE, &talk)] {
        let path = out.join(name);
        fs::write(&path, text).map_err(|error| failed(&path, error))?;
    }
    Ok(())
}

/// What was written, if every step has credit.
fn made(report: &Report) -> Result<Hindsight, Failure> {
    let help = "try another model with --model";
    if let Fate::Lost(loss) = &report.fate {
        return Err(Failure::input(loss, help));
    }
    if let Some(loss) = report.lost_steps.first() {
        let n = report.lost_steps.len();
        return Err(Failure::losses(format!("{n} steps have no credit: {loss}"), help));
    }
    let directory = report.directory.clone().unwrap_or_default();
    let found = read(&directory, PUBLISHED_LENS).map_err(|error| Failure::stopped(error, help))?;
    found.ok_or_else(|| Failure::stopped(format!("{}: nothing was written", directory.display()), help))
}

/// What was made, and where.
fn files(out: &Path, report: &Report) -> String {
    let scores = report.directory.clone().unwrap_or_default();
    let tokens = "every action's tokens with their logprobs under both lenses";
    let files = [
        (scores.join(scores_file(PUBLISHED_LENS)), "every step's credit"),
        (scores.join(tokens_file(PUBLISHED_LENS)), tokens),
        (out.join(EPISODE_FILE), "the recorded episode"),
        (out.join(CONVERSATION_FILE), "the same for `chat render`"),
    ];
    files.iter().map(|(path, about)| format!("  {:<36} {about}\n", path.display().to_string())).collect()
}

fn head(name: &str, episode: &Episode, tool_text: &str, steps: &[Step]) -> String {
    let n_tokens: usize = steps.iter().map(|step| step.texts.len()).sum();
    let reward = episode.outcome.as_ref().map_or(0.0, |outcome| outcome.reward);
    format!(
        "Episode {}: {} steps, {n_tokens} action tokens, reward {reward:.3}.\n\
         Scored by {name} in this process; tools written in {tool_text}.\n\
         plain: mean logprob of the action as the student saw it. outcome: the same, with the reward told in the first\n\
         user message. change > 0: knowing the outcome makes the action likelier. rho and Q_H: its credit (HCAPO).\n",
        episode.id,
        steps.len(),
    )
}

fn next(out: &Path, model: &str, path: &Path) -> String {
    let text = |path: &Path| path.display().to_string();
    let (path, dir) = (text(path), text(out));
    let (episode, talk) = (text(&out.join(EPISODE_FILE)), text(&out.join(CONVERSATION_FILE)));
    let recompute = ["--recompute", "--gamma", "0.9", "--smoothing", "paper"];
    let embedded = ["--kind", "embedded", "--model", model];
    let hermes = ["--tool-text", "hermes"];
    let commands = [
        [&["credit", "--episodes", &episode, "--run", &dir], &recompute[..]].concat(),
        [&["credit", "--episodes", &episode], &embedded[..], &hermes, &["--placement", "last"]].concat(),
        [&["chat", "render", "--tokenizer", &path, "--messages", &talk], &hermes[..]].concat(),
        [&["probe"], &embedded[..]].concat(),
        vec!["model", "serve", "--model", model],
    ];
    let line = |words: &Vec<&str>| format!("  {}\n", program::command(words.iter().copied()));
    format!("What to try next:\n{}", commands.iter().map(line).collect::<String>())
}

fn table(steps: &[Step]) -> String {
    let mut text = format!(
        "{:>4}  {:<TITLE_WIDTH$} {:>6} {:>8} {:>8} {:>8} {:>6} {:>6}\n",
        "step", "action", "tokens", "plain", "outcome", "change", "rho", "Q_H"
    );
    for (idx, step) in steps.iter().enumerate() {
        let title = clipped(&step.title, TITLE_WIDTH);
        let (plain, outcome) = (number(step.scored.plain_mean_logprob), number(step.scored.mean_logprob));
        let (n, change) = (step.texts.len(), signed(step.change()));
        let (rho, q_h) = (number(step.scored.rho), number(step.scored.q_h_smoothed));
        text.push_str(&format!(
            "{idx:>4}  {title:<TITLE_WIDTH$} {n:>6} {plain:>8} {outcome:>8} {change:>8} {rho:>6} {q_h:>6}\n"
        ));
    }
    text
}

fn changed(steps: &[Step], most_changed: &[usize]) -> String {
    let line = |idx: &usize| {
        let (change, title) = (signed(steps[*idx].change()), clipped(&steps[*idx].title, 70));
        format!("  step {idx:<3} {change:>8}  {title}\n")
    };
    let lines: String = most_changed.iter().take(N_CHANGED).map(line).collect();
    format!("The outcome changed these steps most (mean logprob per token):\n{lines}")
}

/// The steps, the most changed first.
fn most_changed(steps: &[Step]) -> Vec<usize> {
    let size = |idx: &usize| steps[*idx].change().map_or(0.0, f64::abs);
    let mut order: Vec<usize> = (0..steps.len()).filter(|&idx| steps[idx].change().is_some()).collect();
    order.sort_by(|a, b| size(b).total_cmp(&size(a)));
    order
}

/// The first tokens of a step with their logprobs.
fn tokens(idx: usize, step: &Step) -> String {
    let n = step.texts.len();
    let mut text = format!("Step {idx}, its first {} of {n} tokens:\n", n.min(N_TOKENS));
    text.push_str(&format!("  {:<20} {:>8} {:>8} {:>8}\n", "token", "plain", "outcome", "change"));
    let values = step.texts.iter().zip(&step.plain).zip(&step.outcome);
    for ((token, plain), outcome) in values.take(N_TOKENS) {
        let (plain, outcome) = (plain.map(Logprob::get), outcome.map(Logprob::get));
        let change = signed(plain.zip(outcome).map(|(plain, outcome)| outcome - plain));
        let token = clipped(&format!("{token:?}"), 20);
        text.push_str(&format!("  {token:<20} {:>8} {:>8} {change:>8}\n", number(plain), number(outcome)));
    }
    text
}

fn signed(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), |it| format!("{it:+.3}"))
}
