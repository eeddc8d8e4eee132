//! What is told while episodes are scored: a line for each, a bar for all, or JSON for machines.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::{Value, json};

use crate::cli::output::{self, one_line};
use crate::event::counted;
use crate::model::budget::Meter;
use crate::model::notice::Notices;
use crate::pipeline::batch::now;
use crate::pipeline::credit::{Event, Fate, Report};
use crate::pipeline::resume::Differences;
use crate::store::episodes::Source;
use crate::store::run::RunDir;
use crate::store::summary::Summary;

/// Tells people or machines how far it is.
pub(super) struct Progress {
    bar: ProgressBar,
    as_json: bool,
    n_episodes: u64,
    meter: Arc<Meter>,
    notices: Notices,
    run: Arc<RunDir>,
    began: Instant,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    reports: Vec<Report>,
    /// The episode that is read, and its steps.
    reading: Option<(String, usize)>,
    /// Scores still to come, by episode.
    open: BTreeMap<String, u64>,
    n_begun: u64,
    tokens_begun: u64,
    tokens_done: u64,
}

impl Progress {
    pub(super) fn new(
        sources: &[Source],
        as_json: bool,
        meter: Arc<Meter>,
        notices: Notices,
        run: Arc<RunDir>,
    ) -> Self {
        let n_episodes = sources.iter().map(count).sum();
        let target = if as_json { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
        let bar = ProgressBar::with_draw_target(Some(n_episodes), target).with_style(style());
        Self { bar, as_json, n_episodes, meter, notices, run, began: Instant::now(), state: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One line of talk, or the same as JSON; the run directory hears of it too.
    fn say(&self, name: &str, fields: Value, text: Option<&str>) {
        let event = output::event_of(name, fields);
        // What is made is what matters; a journal that cannot be written harms none of it.
        let _ = self.run.add_event(&event);
        match text {
            _ if self.as_json => output::talk(&event.to_string()),
            Some(text) => self.bar.suspend(|| output::talk(&one_line(text))),
            None => {}
        }
    }

    /// A process began to work on the stage.
    pub(super) fn began(&self, model: &str) {
        self.say("began", json!({"stage": "credit", "model": model, "asked": self.n_episodes}), None);
    }

    /// It ended its work.
    pub(super) fn ended(&self, summary: &Summary) {
        if let Some(why) = &summary.stopped_by {
            self.say("stopped", json!({"why": why}), None);
        }
        let (made, lost) = (summary.made("episodes"), summary.lost("episodes"));
        let ended = json!({"made": made, "lost": lost, "left": summary.left, "seconds": summary.seconds});
        self.say("ended", ended, None);
    }

    /// Episodes that nothing was heard of.
    pub(super) fn n_unheard(&self, reports: &[Report]) -> u64 {
        self.n_episodes.saturating_sub(reports.len() as u64)
    }

    /// Something a person should know.
    pub(super) fn note(&self, text: &str) {
        self.notices.add(text);
        self.tell_notices();
    }

    fn tell_notices(&self) {
        for notice in self.notices.take() {
            self.say("note", json!({"text": notice}), Some(&format!("note: {notice}")));
        }
    }

    /// Takes note of what happened.
    pub(super) fn tell(&self, event: Event) {
        match event {
            Event::Reading { id, steps } => {
                self.lock().reading = Some((id.clone(), steps));
                if self.as_json {
                    self.say("reading", json!({"episode": id, "steps": steps}), None);
                }
            }
            Event::Begun { id, scores, tokens } => {
                let mut state = self.lock();
                state.n_begun += 1;
                state.reading.take_if(|(reading, _)| *reading == id);
                state.tokens_begun += tokens;
                state.open.insert(id.clone(), scores);
                drop(state);
                self.say("begun", json!({"episode": id, "scores": scores, "tokens": tokens}), None);
            }
            Event::Settled { id, tokens } => {
                let mut state = self.lock();
                state.tokens_done += tokens;
                state.open.entry(id).and_modify(|open| *open = open.saturating_sub(1));
            }
            Event::Finished(report) => self.finished(*report),
        }
        self.tell_notices();
        self.bar.set_message(self.message(&self.lock()));
    }

    fn finished(&self, report: Report) {
        let mut state = self.lock();
        state.open.remove(&report.id);
        state.reading.take_if(|(reading, _)| *reading == report.id);
        state.reports.push(report.clone());
        drop(state);
        self.bar.inc(1);
        self.say("episode", as_json(&report), Some(&line(&report)));
        let _ = self.run.add_metrics(&metrics(&report));
    }

    /// Says how far all of it is.
    pub(super) fn pulse(&self) {
        let state = self.lock();
        let (done, message) = (state.reports.len(), self.message(&state));
        drop(state);
        let line = format!("{done} of {} episodes, {message}", self.n_episodes);
        self.say("progress", json!({"done": done, "of": self.n_episodes, "text": message}), Some(&line));
    }

    /// Speed, cache, time left, and what is being worked on.
    fn message(&self, state: &State) -> String {
        let (spent, seconds) = (self.meter.spent(), self.began.elapsed().as_secs_f64().max(1e-3));
        let speed = spent.prompt_tokens as f64 / seconds;
        let hits = 100.0 * spent.cached_tokens as f64 / (spent.prompt_tokens.max(1)) as f64;
        let left = self.seconds_left(state).map(|it| format!(", {} left", duration(it))).unwrap_or_default();
        let open = state.open.iter().next().map(|(id, n)| format!(", {} ({n} scores to come)", one_line(id)));
        let reading = state.reading.as_ref().map(|(id, n)| format!(", reading {} ({n} steps)", one_line(id)));
        let (open, reading) = (open.unwrap_or_default(), reading.unwrap_or_default());
        format!("{speed:.0} tokens/s, {hits:.0}% cached{left}{open}{reading}")
    }

    /// From the tokens of the episodes seen so far; the others are taken to be like them.
    fn seconds_left(&self, state: &State) -> Option<f64> {
        let idle = (state.reports.len() as u64 + state.open.len() as u64).saturating_sub(state.n_begun);
        let unseen = self.n_episodes.saturating_sub(state.n_begun + idle);
        let per_episode = state.tokens_begun as f64 / (state.n_begun.max(1)) as f64;
        let to_do = state.tokens_begun.saturating_sub(state.tokens_done) as f64 + unseen as f64 * per_episode;
        let speed = state.tokens_done as f64 / self.began.elapsed().as_secs_f64().max(1e-3);
        (speed > 0.0).then(|| to_do / speed)
    }

    /// Ends the bar; gives the reports in the order of their names.
    pub(super) fn finish(&self) -> Vec<Report> {
        let mut reports = std::mem::take(&mut self.lock().reports);
        self.bar.finish_and_clear();
        for notice in kept_notices(&reports).into_iter().chain(spared_notice(&reports)) {
            self.note(&notice);
        }
        self.tell_notices();
        reports.sort_by(|a, b| crate::store::episodes::natural(&a.id, &b.id));
        reports
    }
}

/// How many episodes a source probably has.
fn count(source: &Source) -> u64 {
    let Source::Lines(path) = source else { return 1 };
    let lines = File::open(path).map(|file| BufReader::new(file).split(b'\n').map_while(Result::ok).count());
    lines.unwrap_or(1) as u64
}

/// What to say about episodes that were left alone although they were scored otherwise.
fn kept_notices(reports: &[Report]) -> Vec<String> {
    let mut by_keys: BTreeMap<&Differences, u64> = BTreeMap::new();
    for report in reports {
        if let Fate::Kept(differences) = &report.fate {
            *by_keys.entry(differences).or_default() += 1;
        }
    }
    let differing = by_keys.into_iter().filter(|(differences, _)| !differences.is_empty());
    let notice = |(differences, n): (&Differences, u64)| {
        let how = if differences.are_computed() { "--recompute" } else { "--overwrite" };
        format!(
            "{n} complete episodes were scored with other settings ({}) and are left alone; help: {how} makes them anew",
            differences.names()
        )
    };
    differing.map(notice).collect()
}

/// What to say about files that were not replaced.
fn spared_notice(reports: &[Report]) -> Option<String> {
    let n = reports.iter().filter(|report| matches!(report.fate, Fate::Spared(_))).count();
    let whose = counted(n as u64, "episode");
    (n > 0).then(|| {
        format!("the files of {whose} stay as they were: more steps are scored there than could be this time")
    })
}

fn style() -> ProgressStyle {
    let style = ProgressStyle::with_template("{bar:30} {pos} of {len} episodes  {msg}");
    style.unwrap_or_else(|_| ProgressStyle::default_bar())
}

fn duration(seconds: f64) -> String {
    let seconds = seconds.round().min(1e9) as u64;
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, s) => format!("{s}s"),
        (0, m, s) => format!("{m}m{s:02}s"),
        (h, m, _) => format!("{h}h{m:02}m"),
    }
}

/// An episode's end in a line.
fn line(report: &Report) -> String {
    let Report { id, n_steps, n_credited, n_sent, .. } = report;
    let asked =
        || format!("{n_credited} of {n_steps} steps, {n_sent} requests{}{}", found(report), whys(report));
    let ended = match &report.fate {
        Fate::Made | Fate::Partial => asked(),
        Fate::Spared(n_before) => format!("{}; what is there has {n_before} and stays", asked()),
        Fate::Kept(_) => format!("{n_credited} of {n_steps} steps already, left alone"),
        Fate::Recomputed => format!("{n_credited} of {n_steps} steps, computed again from their scores"),
        Fate::Skipped => "skipped: its reward is too small".to_owned(),
        Fate::Lost(loss) => format!("lost: {loss}"),
        Fate::Unfinished => "not finished".to_owned(),
    };
    let shortened = match report.n_shortened {
        0 => String::new(),
        n => format!("; {n} steps read without some of their context, which is too long"),
    };
    let notes: String = report.notes.iter().map(|note| format!("; {note}")).collect();
    format!("{id}: {ended}{shortened}{notes}")
}

/// What did not have to be sent.
fn found(report: &Report) -> String {
    match report.n_found {
        0 => String::new(),
        n => format!(" ({n} answered by the ledger)"),
    }
}

/// The distinct reasons for lost steps.
fn whys(report: &Report) -> String {
    let whys: BTreeSet<&str> = report.lost_steps.iter().map(|loss| loss.why.as_str()).collect();
    let all: Vec<&str> = whys.into_iter().take(3).collect();
    if all.is_empty() { String::new() } else { format!("; lost: {}", all.join("; ")) }
}

pub(in crate::cli) fn as_json(report: &Report) -> Value {
    let (fate, why) = match &report.fate {
        Fate::Made => ("made", None),
        Fate::Partial => ("partial", None),
        Fate::Spared(n_before) => ("spared", Some(format!("{n_before} steps are scored in what is there"))),
        Fate::Kept(_) => ("kept", None),
        Fate::Recomputed => ("recomputed", None),
        Fate::Skipped => ("skipped", None),
        Fate::Lost(loss) => ("lost", Some(loss.to_string())),
        Fate::Unfinished => ("unfinished", None),
    };
    let lost: Vec<&str> = report.lost_steps.iter().map(|loss| loss.why.as_str()).collect();
    json!({
        "episode": report.id, "fate": fate, "why": why, "reward": report.reward, "steps": report.n_steps,
        "credited": report.n_credited, "lost": lost, "shortened": report.n_shortened, "notes": report.notes,
        "requests": report.n_sent, "found_in_ledger": report.n_found,
        "planned_tokens": report.figures.computed_tokens(), "naive_tokens": report.figures.naive_tokens,
    })
}

/// An episode in numbers.
pub(in crate::cli) fn metrics(report: &Report) -> Value {
    json!({
        "time": now(), "episode": report.id, "credit/reward": report.reward, "credit/steps": report.n_steps,
        "credit/credited_steps": report.n_credited, "credit/lost_steps": report.lost_steps.len(),
        "credit/requests": report.n_sent, "credit/found_in_ledger": report.n_found,
    })
}

/// The run in numbers, as far as its reports tell.
pub(in crate::cli) fn summarise(reports: &[Report], notices: &Notices) -> Summary {
    let made =
        ["episodes", "steps", "partial_episodes", "kept_episodes", "skipped_episodes"].map(|it| (it, 0));
    let mut summary =
        Summary { stage: "credit", made: made.into(), notices: notices.all(), ..Summary::default() };
    for report in reports {
        let mut count = |what, n: usize| *summary.made.entry(what).or_default() += n as u64;
        match &report.fate {
            Fate::Made => count("episodes", 1),
            Fate::Partial => count("partial_episodes", 1),
            Fate::Spared(_) => count("spared_episodes", 1),
            Fate::Kept(_) => count("kept_episodes", 1),
            Fate::Recomputed => count("recomputed_episodes", 1),
            Fate::Skipped => count("skipped_episodes", 1),
            Fate::Unfinished => summary.left += 1,
            Fate::Lost(loss) => summary.lose("episodes", loss.reason.name()),
        }
        if matches!(report.fate, Fate::Made | Fate::Partial) {
            *summary.made.entry("steps").or_default() += report.n_credited as u64;
        }
        report.lost_steps.iter().for_each(|loss| summary.lose("steps", loss.reason.name()));
    }
    summary
}
