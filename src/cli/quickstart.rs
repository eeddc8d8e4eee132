//! `quickstart`: the main job end to end on the embedded model, for somebody who has nothing yet.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Map, json};
use toml::Table;

use super::call::Call;
use super::chat::source_failure;
use super::credit::{as_json, metrics, summarise};
use super::episodes::run_failure;
use super::failure::Failure;
use super::output::{self, one_line};
use super::pulse::with_pulse;
use super::server::model_failure;
use super::{block_on, live, model, program, stdout};
use crate::config::FOUND;
use crate::model::budget::{Allowance, Meter, ModelRole};
use crate::model::embedded;
use crate::model::notice::Notices;
use crate::model::opened::Opened;
use crate::pipeline::Texts;
use crate::pipeline::credit::{Event, Fate, Options, Report as Ended, Stop, Teacher, run as score};
use crate::pipeline::paid::Paid;
use crate::quickstart::{EPISODE, Step, bundled, conversation, longest, options, steps};
use crate::store::episodes::find;
use crate::store::hindsight::{Hindsight, PUBLISHED_LENS, read, scores_file, tokens_file};
use crate::store::run::RunDir;
use crate::store::{Ledger, RunPlace, WeightRules};
use backsight_core::episode::{Episode, ToolText};
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
    let opened = embedded::load(&name, &path, None).map_err(model_failure)?;
    let live_dir = out.join("live");
    let live = match live::run(&path, &live_dir) {
        Err(failure) if failure.is_signal() => return Err(failure),
        live => live,
    };
    if let Ok(live) = &live {
        stdout::data(format!("{}\n", live::text(live)).as_bytes())?;
    }
    credit(&out, &name, &path, &opened, began)?;
    let again = live::command(&live_dir);
    // What the machine does not allow is said last, so that it is not overlooked.
    live.and_then(|_| stdout::data(format!("  {again}\n").as_bytes()))
}

/// The recorded part: an episode's steps are re-read knowing its outcome, and get their credit.
fn credit(out: &Path, name: &str, path: &Path, opened: &Opened, began: Instant) -> Result<(), Failure> {
    let episode = bundled().map_err(model_failure)?;
    let texts = texts(opened)?;
    let options = options(&episode, opened, &texts, out).map_err(model_failure)?;
    check_fits(longest(&episode, &texts, &options), opened)?;
    let tool_text = options.framing.tool_text.map_or("the template's own way", ToolText::name);
    let run = RunDir::open(out, "credit").map_err(run_failure)?;
    write(out, &episode)?;
    let tokenizer = Arc::clone(&texts.tokenizer);
    let config = json!({FOUND: {"model": name, "lens": PUBLISHED_LENS}});
    run.note_config(Table::try_from(config).unwrap_or_default()).map_err(run_failure)?;
    let ended = scored(&run, opened, texts, options)?;
    run.add_event(&output::event_of("episode", as_json(&ended)))
        .and_then(|()| run.add_metrics(&metrics(&ended)))
        .and_then(|()| run.keep_summary(&summarise(std::slice::from_ref(&ended), &Notices::default())))
        .map_err(run_failure)?;
    let hindsight = made(&ended)?;
    let steps = steps(&episode, &hindsight, &tokenizer).map_err(model_failure)?;
    let report = Report {
        name,
        path,
        episode: &episode,
        tool_text,
        steps: &steps,
        files: files(out, &ended),
        seconds: began.elapsed().as_secs_f64(),
    };
    stdout::data(report.text(out).as_bytes())
}

/// The model's tokenizer and template; without them there is nothing to show.
fn texts(opened: &Opened) -> Result<Texts, Failure> {
    let Some((path, tokenizer)) = opened.tokenizer.clone() else {
        let help = "use a model directory with tokenizer.json";
        return Err(Failure::input(format!("{} has no tokenizer", opened.info.model), help));
    };
    Texts::open(&path, tokenizer, None, &Map::new()).map_err(source_failure)
}

/// Refuses an episode that the model cannot read, before the first token of it is computed.
fn check_fits(longest: usize, opened: &Opened) -> Result<(), Failure> {
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
    for (name, text) in [(EPISODE_FILE, EPISODE), (CONVERSATION_FILE, &talk)] {
        let path = out.join(name);
        fs::write(&path, text).map_err(|error| {
            let help = "free some space, or name another directory with --out";
            Failure::stopped(format!("{}: {error}", path.display()), help)
        })?;
    }
    Ok(())
}

/// Scores the episode through the same pipeline as every other.
fn scored(run: &RunDir, opened: &Opened, texts: Texts, options: Options) -> Result<Ended, Failure> {
    let help = "free some space, or name another directory with --out";
    let sources = find(&run.dir().join(EPISODE_FILE)).map_err(|error| Failure::stopped(error, help))?;
    let meter = Meter::new(ModelRole::Teacher, Allowance::default());
    let bar = ProgressBar::new(0).with_style(style());
    let (shown, (told, ended)) = (bar.clone(), std::sync::mpsc::channel());
    let watch = move |event: Event| match event {
        Event::Reading { .. } => {}
        Event::Begun { tokens, .. } => shown.set_length(tokens),
        Event::Settled { tokens, .. } => shown.inc(tokens),
        // Nobody listens any more when the command has failed otherwise.
        Event::Finished(report) => drop(told.send(*report)),
    };
    let work = async {
        let (ledger, place) = (Ledger::open(run.lock())?, RunPlace { stage: "credit", seed: 0 });
        let paid = Paid::open(opened, &ledger, meter, place, WeightRules::default()).await?;
        let teacher = Teacher { model: paid.model, texts };
        Ok(score(sources, teacher, options, Arc::new(watch)).await)
    };
    let say = || output::talk(&format!("{} of {} tokens so far", bar.position(), bar.length().unwrap_or(0)));
    let stop = block_on(with_pulse(work, say))?;
    bar.finish_and_clear();
    match stop.map_err(model_failure)? {
        Some(Stop::Model(error)) => Err(model_failure(error)),
        Some(Stop::Disk(why)) => Err(Failure::stopped(why, help)),
        None => ended.try_recv().map_err(|_| Failure::stopped("the episode was not scored", "try again")),
    }
}

/// What was written, if every step has credit.
fn made(ended: &Ended) -> Result<Hindsight, Failure> {
    let help = "try another model with --model";
    if let Fate::Lost(loss) = &ended.fate {
        return Err(Failure::input(loss, help));
    }
    if let Some(loss) = ended.lost_steps.first() {
        return Err(Failure::losses(
            format!("{} steps have no credit: {loss}", ended.lost_steps.len()),
            help,
        ));
    }
    let directory = ended.directory.clone().unwrap_or_default();
    let found = read(&directory, PUBLISHED_LENS).map_err(|error| Failure::stopped(error, help))?;
    found.ok_or_else(|| Failure::stopped(format!("{}: nothing was written", directory.display()), help))
}

fn files(out: &Path, ended: &Ended) -> Vec<(PathBuf, &'static str)> {
    let scores = ended.directory.clone().unwrap_or_default();
    vec![
        (scores.join(scores_file(PUBLISHED_LENS)), "every step's credit"),
        (
            scores.join(tokens_file(PUBLISHED_LENS)),
            "every action's tokens with their logprobs under both lenses",
        ),
        (out.join(EPISODE_FILE), "the recorded episode"),
        (out.join(CONVERSATION_FILE), "the same for `chat render`"),
    ]
}

/// What a newcomer is shown.
struct Report<'a> {
    name: &'a str,
    path: &'a Path,
    episode: &'a Episode,
    tool_text: &'static str,
    steps: &'a [Step],
    files: Vec<(PathBuf, &'static str)>,
    seconds: f64,
}

impl Report<'_> {
    fn text(&self, out: &Path) -> String {
        let line =
            |(path, about): &(PathBuf, &str)| format!("  {:<36} {about}\n", path.display().to_string());
        let made: String = self.files.iter().map(line).collect();
        [
            self.head(),
            table(self.steps),
            changed(self.steps),
            most_changed(self.steps).first().map(|&idx| tokens(idx, &self.steps[idx])).unwrap_or_default(),
            format!("Made in {:.1} s:\n{made}", self.seconds),
            self.next(out),
        ]
        .join("\n")
    }

    fn head(&self) -> String {
        let n_tokens: usize = self.steps.iter().map(|step| step.texts.len()).sum();
        let reward = self.episode.outcome.as_ref().map_or(0.0, |outcome| outcome.reward);
        format!(
            "Episode {}: {} steps, {n_tokens} action tokens, reward {reward:.3}.\n\
             Scored by {} in this process; tools written in {}.\n\
             plain: mean logprob of the action as the student saw it. outcome: the same, with the reward told in the first\n\
             user message. change > 0: knowing the outcome makes the action likelier. rho and Q_H: its credit (HCAPO).\n",
            self.episode.id,
            self.steps.len(),
            self.name,
            self.tool_text,
        )
    }

    fn next(&self, out: &Path) -> String {
        let text = |path: &Path| path.display().to_string();
        let (model, path, dir) = (self.name, text(self.path), text(out));
        let (episode, talk) = (text(&out.join(EPISODE_FILE)), text(&out.join(CONVERSATION_FILE)));
        let commands: [&[&str]; 5] = [
            &[
                "credit",
                "--episodes",
                &episode,
                "--run",
                &dir,
                "--recompute",
                "--gamma",
                "0.9",
                "--smoothing",
                "paper",
            ],
            &[
                "credit",
                "--episodes",
                &episode,
                "--kind",
                "embedded",
                "--model",
                model,
                "--tool-text",
                "hermes",
                "--placement",
                "last",
            ],
            &["chat", "render", "--tokenizer", &path, "--messages", &talk, "--tool-text", "hermes"],
            &["probe", "--kind", "embedded", "--model", model],
            &["model", "serve", "--model", model],
        ];
        let line = |words: &&[&str]| format!("  {}\n", program::command(words.iter().copied()));
        format!("What to try next:\n{}", commands.iter().map(line).collect::<String>())
    }
}

fn table(steps: &[Step]) -> String {
    let mut text = format!(
        "{:>4}  {:<TITLE_WIDTH$} {:>6} {:>8} {:>8} {:>8} {:>6} {:>6}\n",
        "step", "action", "tokens", "plain", "outcome", "change", "rho", "Q_H"
    );
    for (idx, step) in steps.iter().enumerate() {
        let title = clipped(&step.title, TITLE_WIDTH);
        let (plain, outcome) = (shown(step.scored.plain_mean_logprob), shown(step.scored.mean_logprob));
        let (n, change) = (step.texts.len(), signed(step.change()));
        let (rho, q_h) = (shown(step.scored.rho), shown(step.scored.q_h_smoothed));
        text.push_str(&format!(
            "{idx:>4}  {title:<TITLE_WIDTH$} {n:>6} {plain:>8} {outcome:>8} {change:>8} {rho:>6} {q_h:>6}\n"
        ));
    }
    text
}

fn changed(steps: &[Step]) -> String {
    let mut text = "The outcome changed these steps most (mean logprob per token):\n".to_owned();
    for &idx in most_changed(steps).iter().take(N_CHANGED) {
        let step = &steps[idx];
        text.push_str(&format!(
            "  step {idx:<3} {:>8}  {}\n",
            signed(step.change()),
            clipped(&step.title, 70)
        ));
    }
    text
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
        text.push_str(&format!("  {token:<20} {:>8} {:>8} {change:>8}\n", shown(plain), shown(outcome)));
    }
    text
}

/// A number, or a dash where there is none.
fn shown(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), |it| format!("{it:.3}"))
}

fn signed(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), |it| format!("{it:+.3}"))
}

fn clipped(text: &str, width: usize) -> String {
    let line = one_line(text);
    match line.char_indices().nth(width) {
        Some(_) => line.chars().take(width - 1).chain(['…']).collect(),
        None => line,
    }
}

fn style() -> ProgressStyle {
    let style = ProgressStyle::with_template("{bar:30} {pos} of {len} tokens  {eta} left");
    style.unwrap_or_else(|_| ProgressStyle::default_bar())
}
