//! Telling what goes on while a run goes on: a bar on a terminal, lines in a log, events for machines.

use std::io::IsTerminal;

use indicatif::{ProgressBar, ProgressStyle};

use super::failure::one_line;
use super::output;
use crate::event::Event;
use crate::pipeline::batch::now;

/// Whom to tell, and how.
pub(super) struct Talk {
    form: Form,
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
    /// Only what went wrong.
    Quiet,
}

impl Talk {
    /// Machines are told in JSON, people on a terminal by a bar.
    pub(super) fn new(json: bool, quiet: bool) -> Self {
        let form = match (json, quiet) {
            (true, _) => Form::Json,
            (false, true) => Form::Quiet,
            (false, false) if std::io::stderr().is_terminal() => Form::Bar,
            (false, false) => Form::Lines,
        };
        let bar = if form == Form::Bar {
            ProgressBar::no_length().with_style(style())
        } else {
            ProgressBar::hidden()
        };
        Self { form, bar }
    }

    /// Tells of an event.
    pub(super) fn tell(&self, event: &Event) {
        match (self.form, event) {
            (Form::Json, event) => output::talk(&event.to_json(now()).to_string()),
            // The table at the end says the same, better.
            (_, Event::Ended { .. } | Event::Stopped(_)) => self.bar.finish_and_clear(),
            (Form::Bar, Event::Began { asked, found, .. }) => {
                self.line(event);
                self.bar.set_length(*asked as u64);
                self.bar.set_position(*found as u64);
            }
            (Form::Bar, Event::Episode { reward, .. }) => {
                if reward.is_err() {
                    self.line(event);
                }
                self.bar.inc(1);
            }
            (Form::Quiet, Event::Began { .. } | Event::Note(_) | Event::Episode { reward: Ok(_), .. }) => {}
            (Form::Bar | Form::Lines | Form::Quiet, event) => self.line(event),
        }
    }

    /// Tells of something that is no failure.
    pub(super) fn note(&self, text: impl Into<String>) {
        self.tell(&Event::Note(text.into()));
    }

    fn line(&self, event: &Event) {
        self.bar.suspend(|| output::talk(&one_line(&event.line())));
    }
}

fn style() -> ProgressStyle {
    let style = ProgressStyle::with_template("{bar:30} {pos} of {len} episodes  {elapsed}  {eta} left");
    style.unwrap_or_else(|_| ProgressStyle::default_bar())
}
