//! `quickstart`: the main job end to end on the embedded model, for somebody who has nothing yet.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};

use super::args::QuickstartArgs;
use super::failure::{Failure, one_line};
use super::server::model_failure;
use super::{block_on, live, model, output};
use crate::model::embedded::model::Embedded;
use crate::quickstart::{
    Recorded, Step, Tokenised, bundled, check_same_actions, mean, score, steps, tool_text_name,
};

/// How many of the most changed steps are named.
const N_CHANGED: usize = 5;
/// How many tokens of one step are shown.
const N_TOKENS: usize = 24;
/// How much of an action's text fits into the table.
const TITLE_WIDTH: usize = 56;

/// An episode under both lenses, as tokens.
struct Lenses {
    plain: Tokenised,
    outcome: Tokenised,
}

pub(super) fn run(args: &QuickstartArgs) -> Result<(), Failure> {
    let began = Instant::now();
    let episode = bundled().map_err(model_failure)?;
    let (name, path) = model::find_or_pull(args.model.as_deref())?;
    output::talk(&format!("loading {name}"));
    let live_dir = args.out.join("live");
    let live = live::run(&path, &live_dir);
    let embedded = Embedded::load(&path, None).map_err(model_failure)?;
    let lenses = render(&episode, &embedded)?;
    let steps = score_both(&episode, &lenses, &embedded)?;
    let files = write(&args.out, &episode, &lenses, &steps)?;
    let seconds = began.elapsed().as_secs_f64();
    let report = Report { name: &name, path: &path, episode: &episode, lenses: &lenses, steps: &steps };
    if let Ok(live) = &live {
        output::data(format!("{}\n", live::text(live)).as_bytes())?;
    }
    output::data(report.text(&args.out, &files, seconds).as_bytes())?;
    let again = live::command(&path.display().to_string(), &live_dir);
    // What the machine does not allow is said last, so that it is not overlooked.
    live.map(|_| output::data(format!("  {again}\n").as_bytes()))?
}

fn render(episode: &Recorded, embedded: &Embedded) -> Result<Lenses, Failure> {
    let templates = embedded.templates().map_err(model_failure)?;
    let tokenizer = embedded.tokenizer().map_err(model_failure)?;
    let plain = Tokenised::new(episode, templates, tokenizer).map_err(model_failure)?;
    let outcome = Tokenised::new(&episode.with_outcome(), templates, tokenizer).map_err(model_failure)?;
    check_same_actions(&plain, &outcome).map_err(model_failure)?;
    Ok(Lenses { plain, outcome })
}

fn score_both(episode: &Recorded, lenses: &Lenses, embedded: &Embedded) -> Result<Vec<Step>, Failure> {
    let n_tokens = |tokens: &Tokenised| tokens.sequences.iter().map(Vec::len).sum::<usize>();
    let n_plain = n_tokens(&lenses.plain);
    let bar = ProgressBar::new((n_plain + n_tokens(&lenses.outcome)) as u64).with_style(style());
    let scored = block_on(async {
        bar.set_message("plain lens");
        let plain = score(embedded, &lenses.plain, &|read| bar.set_position(read as u64)).await?;
        bar.set_message("outcome lens");
        let read = |read: usize| bar.set_position((n_plain + read) as u64);
        Ok((plain, score(embedded, &lenses.outcome, &read).await?))
    })?;
    bar.finish_and_clear();
    let (plain, outcome) = scored.map_err(model_failure)?;
    let tokenizer = embedded.tokenizer().map_err(model_failure)?;
    steps(episode, &lenses.plain, tokenizer, &plain, &outcome).map_err(model_failure)
}

/// Writes the scores, and what the suggested commands need: the jobs and the conversation.
fn write(
    dir: &Path,
    episode: &Recorded,
    lenses: &Lenses,
    steps: &[Step],
) -> Result<Vec<(PathBuf, &'static str)>, Failure> {
    let rows = steps.iter().enumerate().map(|(idx, step)| step.to_json(&episode.id, idx));
    let jobs = job_rows(lenses).map_err(model_failure)?;
    let files = [
        ("scores.jsonl", "every action's tokens with their logprobs under both lenses", lines(rows)),
        ("jobs.jsonl", "what the model was asked, as `backsight score` reads it", lines(jobs.into_iter())),
        ("conversation.json", "the recorded episode", format!("{}\n", episode.conversation())),
    ];
    fs::create_dir_all(dir).map_err(|error| unwritable(dir, &error))?;
    let mut written = Vec::new();
    for (name, about, text) in files {
        let path = dir.join(name);
        fs::write(&path, text).map_err(|error| unwritable(&path, &error))?;
        written.push((path, about));
    }
    Ok(written)
}

fn job_rows(lenses: &Lenses) -> Result<Vec<Value>, crate::model::Error> {
    let mut rows = Vec::new();
    for (lens, tokens) in [("plain", &lenses.plain), ("outcome", &lenses.outcome)] {
        for (n, (job, _)) in tokens.jobs()?.iter().enumerate() {
            let spans: Vec<_> = job.spans().iter().map(|span| [span.start(), span.end()]).collect();
            rows.push(json!({"id": format!("{lens}-{n}"), "tokens": **job.tokens(), "spans": spans}));
        }
    }
    Ok(rows)
}

fn lines(rows: impl Iterator<Item = Value>) -> String {
    rows.map(|row| format!("{row}\n")).collect()
}

fn unwritable(path: &Path, error: &std::io::Error) -> Failure {
    let help = "free some space, or name another directory with --out";
    Failure::stopped(format!("{}: {error}", path.display()), help)
}

/// What a newcomer is shown.
struct Report<'a> {
    name: &'a str,
    path: &'a Path,
    episode: &'a Recorded,
    lenses: &'a Lenses,
    steps: &'a [Step],
}

impl Report<'_> {
    fn text(&self, out: &Path, files: &[(PathBuf, &'static str)], seconds: f64) -> String {
        let made: String = files
            .iter()
            .map(|(path, about)| format!("  {:<36} {about}\n", path.display().to_string()))
            .collect();
        [
            self.head(),
            table(self.steps),
            changed(self.steps),
            most_changed(self.steps).first().map(|&idx| tokens(idx, &self.steps[idx])).unwrap_or_default(),
            format!("Made in {seconds:.1} s:\n{made}"),
            self.next(out),
        ]
        .join("\n")
    }

    fn head(&self) -> String {
        let n_tokens: usize = self.steps.iter().map(|step| step.tokens.len()).sum();
        let read: usize = self.lenses.plain.sequences.iter().map(Vec::len).sum();
        format!(
            "Episode {}: {} steps, {n_tokens} action tokens in a conversation of {read}, reward {:.3}.\n\
             Scored by {} in this process; tools written in {}.\n\
             plain: as the student saw it. outcome: the same, with the reward told in the first user message.\n\
             change > 0: knowing the outcome makes the action likelier.\n",
            self.episode.id,
            self.steps.len(),
            self.episode.reward,
            self.name,
            tool_text_name(self.lenses.plain.tool_text),
        )
    }

    fn next(&self, out: &Path) -> String {
        let (model, path, out) = (self.name, self.path.display(), out.display());
        format!(
            "What to try next:\n\
             \x20 backsight score --kind embedded --model {model} --jobs {out}/jobs.jsonl --out {out}/again.jsonl --top-k 5\n\
             \x20 backsight chat render --tokenizer {path} --messages {out}/conversation.json --tool-text hermes\n\
             \x20 backsight probe --kind embedded --model {model}\n\
             \x20 backsight model serve --model {model}\n"
        )
    }
}

fn table(steps: &[Step]) -> String {
    let mut text = format!(
        "{:>4}  {:<TITLE_WIDTH$} {:>6} {:>8} {:>8} {:>8}\n",
        "step", "action", "tokens", "plain", "outcome", "change"
    );
    for (idx, step) in steps.iter().enumerate() {
        let title = clipped(&step.title, TITLE_WIDTH);
        let (plain, outcome) = (shown(mean(&step.plain)), shown(mean(&step.outcome)));
        let (n, change) = (step.tokens.len(), signed(step.change()));
        text.push_str(&format!(
            "{idx:>4}  {title:<TITLE_WIDTH$} {n:>6} {plain:>8} {outcome:>8} {change:>8}\n"
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
    let n = step.tokens.len();
    let mut text = format!("Step {idx}, its first {} of {n} tokens:\n", n.min(N_TOKENS));
    text.push_str(&format!("  {:<20} {:>8} {:>8} {:>8}\n", "token", "plain", "outcome", "change"));
    let values = step.texts.iter().zip(&step.plain).zip(&step.outcome);
    for ((token, plain), outcome) in values.take(N_TOKENS) {
        let (plain, outcome) = (plain.map(|it| it.get()), outcome.map(|it| it.get()));
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
    let style = ProgressStyle::with_template("{bar:30} {pos} of {len} tokens  {msg}  {eta} left");
    style.unwrap_or_else(|_| ProgressStyle::default_bar())
}
