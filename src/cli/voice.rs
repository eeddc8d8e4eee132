//! One voice for every stage: what happens is told to people or machines, and to the run directory.
//!
//! Owns the frame of a stage's work around that: where it is kept, who is told, and how it ended.

use std::sync::Arc;

use super::failure::Failure;
use super::talk::Talk;
use crate::event::{Event, Tell, rounded};
use crate::model::notice::Notices;
use crate::pipeline::Stopped;
use crate::pipeline::batch::now;
use crate::pipeline::census::Census;
use crate::pipeline::paid::Paid;
use crate::store::run::RunDir;
use crate::store::summary::Summary;

/// Tells people and the run directory alike.
pub(super) struct Voice {
    pub(super) run: Arc<RunDir>,
    pub(super) talk: Arc<Talk>,
    pub(super) notices: Notices,
}

impl Voice {
    /// Of a stage that begins to work.
    pub(super) fn new(run: RunDir, talk: Talk) -> Arc<Self> {
        Arc::new(Self { run: Arc::new(run), talk: Arc::new(talk), notices: Notices::default() })
    }

    /// Tells of an event.
    pub(super) fn say(&self, event: &Event) {
        // What is made is what matters; a journal that cannot be written harms none of it.
        let _ = self.run.add_event(&event.to_json(now()));
        self.talk.tell(event);
    }

    /// Tells of something that is no failure.
    pub(super) fn teller(self: &Arc<Self>) -> Tell {
        let voice = Arc::clone(self);
        Arc::new(move |event| voice.say(event))
    }

    /// Tells what must be known, and keeps it with the notices.
    pub(super) fn warn(&self, warning: &str) {
        self.keep(format!("warning: {}", warning.replace('\n', "; ")));
        self.say(&Event::Warning(warning.to_owned()));
    }

    /// Tells which tasks can be used, where there is anything to tell.
    pub(super) fn count(&self, census: &Census) {
        let event = census.event();
        if census.has_refused() {
            self.keep(event.line().replace("\n ", ";"));
        }
        if census.is_telling() {
            self.say(&event);
        }
    }

    /// Keeps a notice of what is told otherwise.
    fn keep(&self, notice: String) {
        self.news();
        self.notices.add(notice);
        self.notices.take();
    }

    /// Tells what came up since the last time.
    pub(super) fn news(&self) {
        self.notices.take().into_iter().for_each(|notice| self.say(&Event::Note(notice)));
    }

    /// Says how far the work is.
    pub(super) fn pulse(&self) {
        self.say(&self.talk.progress());
    }

    /// Completes the summary, and tells how the work ended.
    pub(super) async fn end(&self, summary: &mut Summary, paid: &[&Paid]) -> Result<(), Failure> {
        for paid in paid {
            paid.settle(summary, &self.notices).await?;
        }
        summary.notices = self.notices.all();
        summary.seconds = rounded(self.talk.elapsed().as_secs_f64());
        self.news();
        if let Some(why) = &summary.stopped_by {
            self.say(&Event::Stopped(why.clone()));
        }
        let (made, lost) = self.talk.made_and_lost(summary);
        self.say(&Event::Ended { made, lost, left: summary.left, seconds: summary.seconds });
        Ok(())
    }
}

/// What a stage that was stopped ends with.
pub(super) fn failure(stopped: &Stopped) -> Failure {
    let continues = "the same command continues";
    match stopped {
        Stopped::Signal(number) => Failure::signal(*number),
        Stopped::Disk(why) => {
            Failure::stopped(why, format!("free some space or mend the directory; {continues}"))
        }
        Stopped::Model(error) => Failure::stopped(error, error.help().unwrap_or(continues)),
    }
}

/// How a command ends that lost so much, as `what` says, or that something stopped.
pub(super) fn verdict(
    stopped: Option<&Stopped>,
    n_lost: u64,
    what: String,
    help: &str,
) -> Result<(), Failure> {
    match (stopped, n_lost) {
        (Some(stopped), _) => Err(failure(stopped)),
        (None, 0) => Ok(()),
        (None, _) => Err(Failure::losses(what, help)),
    }
}
