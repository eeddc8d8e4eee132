//! Telling what goes on while a run goes on: a bar on a terminal, lines in a log, events for machines.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use super::output::{self, one_line};
use crate::event::Event;
use crate::pipeline::batch::now;
use crate::store::summary::Summary;

/// How much is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Loudness {
    /// Only what goes wrong, and what must be known before trusting what is made.
    Quiet,
    /// Progress too.
    Usual,
    /// Each turn too.
    Verbose,
}

/// Whom to tell, and how.
pub(super) struct Talk {
    form: Form,
    loudness: Loudness,
    /// What is counted, in the singular.
    unit: &'static str,
    bar: ProgressBar,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    /// A bar, and lines for what is more than progress.
    Bar,
    /// A line for each event.
    Lines,
    /// An object for each event.
    Json,
}

impl Talk {
    /// Machines are told in JSON, people on a terminal by a bar.
    pub(super) fn new(json: bool, loudness: Loudness, unit: &'static str) -> Self {
        let has_bar = loudness > Loudness::Quiet && std::io::stderr().is_terminal();
        let form = match json {
            true => Form::Json,
            false if has_bar => Form::Bar,
            false => Form::Lines,
        };
        let bar = if form == Form::Bar {
            ProgressBar::no_length().with_style(style(unit, "{elapsed}  {eta} left"))
        } else {
            ProgressBar::hidden()
        };
        Self { form, loudness, unit, bar }
    }

    /// Since it began to talk, which is before anything is loaded.
    pub(super) fn elapsed(&self) -> Duration {
        self.bar.elapsed()
    }

    /// Whether each turn is to be told of.
    pub(super) fn is_verbose(&self) -> bool {
        self.loudness == Loudness::Verbose
    }

    /// Tells of an event, if it is loud enough.
    pub(super) fn tell(&self, event: &Event) {
        self.count(event);
        if self.loudness < least_loudness(event) {
            return;
        }
        match (self.form, event) {
            (Form::Json, event) => output::talk(&event.to_json(now()).to_string()),
            // The table at the end says the same, better.
            (_, Event::Ended { .. } | Event::Stopped(_)) => self.bar.finish_and_clear(),
            (Form::Bar, Event::Episode { reward: Ok(_), .. }) if !self.is_verbose() => {}
            // The bar and the words beside it say so.
            (_, Event::Reading { .. } | Event::Begun { .. }) => {}
            (Form::Bar | Form::Lines, event) => self.line(event),
        }
    }

    /// Keeps count of the episodes, also where no bar shows it.
    fn count(&self, event: &Event) {
        match event {
            Event::Began { asked, found, .. } => {
                self.bar.set_length(*asked as u64);
                self.bar.set_position(*found as u64);
            }
            Event::Episode { .. } | Event::Scored { .. } => self.bar.inc(1),
            _ => {}
        }
    }

    /// So many more have ended, of which no event tells.
    pub(super) fn advance(&self, n: u64) {
        self.bar.inc(n);
    }

    /// How many there are, and how many were lost.
    pub(super) fn made_and_lost(&self, summary: &Summary) -> (u64, u64) {
        let units = format!("{}s", self.unit);
        (summary.made(&units), summary.lost(&units))
    }

    /// How far it is, with what is shown beside.
    pub(super) fn progress(&self) -> Event {
        let (done, of) = (self.bar.position(), self.bar.length().unwrap_or(0));
        Event::Progress { unit: self.unit, done, of, text: self.bar.message() }
    }

    /// Shows something beside the bar, instead of when it will be over.
    pub(super) fn show(&self, message: String) {
        self.bar.set_style(style(self.unit, "{msg}"));
        self.bar.set_message(message);
    }

    /// Tells of something that is no failure.
    pub(super) fn note(&self, text: impl Into<String>) {
        self.tell(&Event::Note(text.into()));
    }

    fn line(&self, event: &Event) {
        let text = event.line();
        let lines = match event {
            // Its help stands on a line of its own, as that of an error does; a table has several.
            Event::Warning(_) | Event::Tasks { .. } => text.split('\n').map(one_line).collect(),
            _ => vec![one_line(&text)],
        };
        self.bar.suspend(|| lines.iter().for_each(|line| output::talk(line)));
    }
}

fn least_loudness(event: &Event) -> Loudness {
    match event {
        Event::Warning(_) | Event::Stopped(_) | Event::Lost(_) | Event::Episode { reward: Err(_), .. } => {
            Loudness::Quiet
        }
        Event::Turn { .. } | Event::Step { .. } | Event::Settled { .. } => Loudness::Verbose,
        _ => Loudness::Usual,
    }
}

fn style(unit: &str, more: &str) -> ProgressStyle {
    bar_style(&format!("{{pos}} of {{len}} {unit}s  {more}"))
}

/// A bar with something behind it.
pub(super) fn bar_style(behind: &str) -> ProgressStyle {
    let style = ProgressStyle::with_template(&format!("{{bar:30}} {behind}"));
    style.unwrap_or_else(|_| ProgressStyle::default_bar())
}
