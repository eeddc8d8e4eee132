//! One voice for every stage: what happens is told to people or machines, and to the run directory.

use std::sync::Arc;

use super::talk::Talk;
use crate::event::Event;
use crate::model::notice::Notices;
use crate::pipeline::batch::now;
use crate::pipeline::census::Census;
use crate::store::run::RunDir;
use crate::store::summary::Summary;

/// Tells people and the run directory alike.
pub(super) struct Voice {
    pub(super) run: Arc<RunDir>,
    pub(super) talk: Arc<Talk>,
    pub(super) notices: Notices,
}

impl Voice {
    /// Tells of an event.
    pub(super) fn say(&self, event: &Event) {
        // What is made is what matters; a journal that cannot be written harms none of it.
        let _ = self.run.add_event(&event.to_json(now()));
        self.talk.tell(event);
    }

    /// Tells what must be known, and keeps it with the notices.
    pub(super) fn warn(&self, warning: &str) {
        self.news();
        self.notices.add(format!("warning: {}", warning.replace('\n', "; ")));
        // It is told once, as a warning.
        self.notices.take();
        self.say(&Event::Warning(warning.to_owned()));
    }

    /// Tells which tasks can be used, where there is anything to tell.
    pub(super) fn count(&self, census: &Census) {
        let event = census.event();
        if census.has_refused() {
            self.news();
            self.notices.add(event.line().replace("\n ", ";"));
            // It is told once, as a table.
            self.notices.take();
        }
        if census.is_telling() {
            self.say(&event);
        }
    }

    /// Tells what came up since the last time.
    pub(super) fn news(&self) {
        self.notices.take().into_iter().for_each(|notice| self.say(&Event::Note(notice)));
    }

    /// Tells how the work ended.
    pub(super) fn ended(&self, summary: &Summary) {
        self.news();
        if let Some(why) = &summary.stopped_by {
            self.say(&Event::Stopped(why.clone()));
        }
        let (made, lost) = self.talk.made_and_lost(summary);
        self.say(&Event::Ended { made, lost, left: summary.left, seconds: summary.seconds });
    }
}
