//! How fast episodes are scored, what is being worked on, and how long it will take.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use crate::cli::output::one_line;
use crate::event::Event;
use crate::model::budget::Meter;

/// How far the scoring of episodes is.
pub(super) struct Pace {
    n_episodes: u64,
    meter: Arc<Meter>,
    began: Instant,
    /// The episode that is read, and its steps.
    reading: Option<(String, usize)>,
    /// Scores still to come, by episode.
    open: BTreeMap<String, u64>,
    n_begun: u64,
    n_ended: u64,
    tokens_begun: u64,
    tokens_done: u64,
}

impl Pace {
    /// Of so many episodes, paid for through `meter`.
    pub(super) fn new(n_episodes: usize, meter: Arc<Meter>) -> Self {
        let (reading, open) = (None, BTreeMap::new());
        let (n_episodes, began) = (n_episodes as u64, Instant::now());
        let (n_begun, n_ended, tokens_begun, tokens_done) = (0, 0, 0, 0);
        Self { n_episodes, meter, began, reading, open, n_begun, n_ended, tokens_begun, tokens_done }
    }

    /// Takes note of what happened.
    pub(super) fn heed(&mut self, event: &Event) {
        match event {
            Event::Reading { id, steps } => self.reading = Some((id.clone(), *steps)),
            Event::Begun { id, scores, tokens } => {
                self.n_begun += 1;
                self.reading.take_if(|(reading, _)| reading == id);
                self.tokens_begun += tokens;
                self.open.insert(id.clone(), *scores);
            }
            Event::Settled { id, tokens } => {
                self.tokens_done += tokens;
                self.open.entry(id.clone()).and_modify(|open| *open = open.saturating_sub(1));
            }
            Event::Scored { id, .. } => {
                self.n_ended += 1;
                self.open.remove(id);
                self.reading.take_if(|(reading, _)| reading == id);
            }
            _ => {}
        }
    }

    /// Speed, cache, time left, and what is being worked on.
    pub(super) fn message(&self) -> String {
        let (spent, seconds) = (self.meter.spent(), self.began.elapsed().as_secs_f64().max(1e-3));
        let speed = spent.prompt_tokens as f64 / seconds;
        let hits = 100.0 * spent.cached_tokens as f64 / (spent.prompt_tokens.max(1)) as f64;
        let left = self.seconds_left().map(|it| format!(", {} left", duration(it))).unwrap_or_default();
        let open = self.open.iter().next().map(|(id, n)| format!(", {} ({n} scores to come)", one_line(id)));
        let reading = self.reading.as_ref().map(|(id, n)| format!(", reading {} ({n} steps)", one_line(id)));
        let (open, reading) = (open.unwrap_or_default(), reading.unwrap_or_default());
        format!("{speed:.0} tokens/s, {hits:.0}% cached{left}{open}{reading}")
    }

    /// From the tokens of the episodes seen so far; the others are taken to be like them.
    fn seconds_left(&self) -> Option<f64> {
        let idle = (self.n_ended + self.open.len() as u64).saturating_sub(self.n_begun);
        let unseen = self.n_episodes.saturating_sub(self.n_begun + idle);
        let per_episode = self.tokens_begun as f64 / (self.n_begun.max(1)) as f64;
        let to_do = self.tokens_begun.saturating_sub(self.tokens_done) as f64 + unseen as f64 * per_episode;
        let speed = self.tokens_done as f64 / self.began.elapsed().as_secs_f64().max(1e-3);
        (speed > 0.0).then(|| to_do / speed)
    }
}

fn duration(seconds: f64) -> String {
    let seconds = seconds.round().min(1e9) as u64;
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, s) => format!("{s}s"),
        (0, m, s) => format!("{m}m{s:02}s"),
        (h, m, _) => format!("{h}h{m:02}m"),
    }
}
