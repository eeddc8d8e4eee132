//! What became of each episode that was to be scored, and what all of it came to.
//!
//! Owns [`Report`] and its forms: an event, a row of metrics, its part of the stage's summary.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use serde_json::{Value, json};

use super::batch::now;
use super::resume::Differences;
use super::{Loss, Stopped};
use crate::event::{Event, counted, if_any};
use crate::store::summary::{Naive, Summary};
use backsight_core::plan::Figures;

/// What became of an episode.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Fate {
    /// Every step has credit.
    Made,
    /// Some steps have none.
    Partial,
    /// Some steps have none, and the files that are there have scores for so many, which are more: they stay.
    Spared(usize),
    /// It was complete already.
    Kept(Differences),
    /// It was complete already, and its credit was computed again with other hyper-parameters.
    Recomputed,
    /// Its reward is below what was asked for.
    Skipped,
    /// It could not be done.
    Lost(Loss),
    /// The run was stopped before it was done.
    #[default]
    Unfinished,
}

impl Fate {
    /// In a word.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Made => "made",
            Self::Partial => "partial",
            Self::Spared(_) => "spared",
            Self::Kept(_) => "kept",
            Self::Recomputed => "recomputed",
            Self::Skipped => "skipped",
            Self::Lost(_) => "lost",
            Self::Unfinished => "unfinished",
        }
    }
}

/// An episode's end.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// The episode.
    pub id: String,
    /// Its reward.
    pub reward: Option<f64>,
    /// What became of it.
    pub fate: Fate,
    /// Its steps.
    pub n_steps: usize,
    /// Those with credit.
    pub n_credited: usize,
    /// Why the others have none, one for each.
    pub lost_steps: Vec<Loss>,
    /// What the plan of what was asked for costs.
    pub figures: Figures,
    /// Requests that were really sent.
    pub n_sent: u64,
    /// Requests whose answers were in the ledger.
    pub n_found: u64,
    /// Steps of which some context was left out.
    pub n_shortened: usize,
    /// What else should be known.
    pub notes: Vec<String>,
    /// Where its files are.
    pub directory: Option<PathBuf>,
}

impl Report {
    /// Of an episode for which nothing was done yet.
    pub(super) fn new(id: &str, reward: Option<f64>, fate: Fate) -> Self {
        Self { id: id.to_owned(), reward, fate, ..Self::default() }
    }

    /// As it is told.
    pub(super) fn event(&self) -> Event {
        Event::Scored { id: self.id.clone(), text: self.text(), keys: self.to_json() }
    }

    fn text(&self) -> String {
        let Self { n_steps, n_credited, n_sent, .. } = self;
        // What did not have to be sent.
        let found = if_any(self.n_found, |n| format!(" ({n} answered by the ledger)"));
        let asked = || format!("{n_credited} of {n_steps} steps, {n_sent} requests{found}{}", self.whys());
        let ended = match &self.fate {
            Fate::Made | Fate::Partial => asked(),
            Fate::Spared(n_before) => format!("{}; what is there has {n_before} and stays", asked()),
            Fate::Kept(_) => format!("{n_credited} of {n_steps} steps already, left alone"),
            Fate::Recomputed => format!("{n_credited} of {n_steps} steps, computed again from their scores"),
            Fate::Skipped => "skipped: its reward is too small".to_owned(),
            Fate::Lost(loss) => format!("lost: {loss}"),
            Fate::Unfinished => "not finished".to_owned(),
        };
        let shortened = if_any(self.n_shortened as u64, |n| {
            format!("; {n} steps read without some of their context, which is too long")
        });
        let notes: String = self.notes.iter().map(|note| format!("; {note}")).collect();
        format!("{ended}{shortened}{notes}")
    }

    /// The distinct reasons for lost steps.
    fn whys(&self) -> String {
        let whys: BTreeSet<&str> = self.lost_steps.iter().map(|loss| loss.why.as_str()).collect();
        let all: Vec<&str> = whys.into_iter().take(3).collect();
        if_any(all.len() as u64, |_| format!("; lost: {}", all.join("; ")))
    }

    fn to_json(&self) -> Value {
        let why = match &self.fate {
            Fate::Spared(n_before) => Some(format!("{n_before} steps are scored in what is there")),
            Fate::Lost(loss) => Some(loss.to_string()),
            _ => None,
        };
        let lost: Vec<&str> = self.lost_steps.iter().map(|loss| loss.why.as_str()).collect();
        json!({
            "episode": self.id, "fate": self.fate.name(), "why": why, "reward": self.reward, "steps": self.n_steps,
            "credited": self.n_credited, "lost": lost, "shortened": self.n_shortened, "notes": self.notes,
            "requests": self.n_sent, "found_in_ledger": self.n_found,
            "planned_tokens": self.figures.computed_tokens(), "naive_tokens": self.figures.naive_tokens,
        })
    }

    /// In numbers.
    pub(super) fn metrics(&self) -> Value {
        json!({
            "time": now(), "episode": self.id, "credit/reward": self.reward, "credit/steps": self.n_steps,
            "credit/credited_steps": self.n_credited, "credit/lost_steps": self.lost_steps.len(),
            "credit/requests": self.n_sent, "credit/found_in_ledger": self.n_found,
        })
    }

    /// Counts it.
    fn count(&self, summary: &mut Summary) {
        let mut count = |what, n: usize| *summary.made.entry(what).or_default() += n as u64;
        if matches!(self.fate, Fate::Made | Fate::Partial) {
            count("steps", self.n_credited);
        }
        match &self.fate {
            Fate::Made => count("episodes", 1),
            Fate::Partial => count("partial_episodes", 1),
            Fate::Spared(_) => count("spared_episodes", 1),
            Fate::Kept(_) => count("kept_episodes", 1),
            Fate::Recomputed => count("recomputed_episodes", 1),
            Fate::Skipped => count("skipped_episodes", 1),
            Fate::Unfinished => summary.left += 1,
            Fate::Lost(loss) => summary.lose("episodes", loss.reason.name()),
        }
        self.lost_steps.iter().for_each(|loss| summary.lose("steps", loss.reason.name()));
    }
}

/// What became of all episodes.
#[derive(Debug)]
pub struct Done {
    /// Those of which something was heard, by name.
    pub reports: Vec<Report>,
    /// What stopped the work before its end.
    pub stopped: Option<Stopped>,
}

impl Done {
    /// What was made and what was lost of so many episodes.
    pub fn summary(&self, n_asked: usize) -> Summary {
        let made =
            ["episodes", "steps", "partial_episodes", "kept_episodes", "skipped_episodes"].map(|it| (it, 0));
        let stopped_by = self.stopped.as_ref().map(Stopped::to_string);
        let mut summary = Summary { stage: "credit", made: made.into(), stopped_by, ..Summary::default() };
        let mut planned = Figures::default();
        for report in &self.reports {
            report.count(&mut summary);
            planned += report.figures;
        }
        if let Some(Stopped::Signal(_)) = self.stopped {
            summary.left += n_asked.saturating_sub(self.reports.len()) as u64;
        }
        summary.naive = Some(Naive { tokens: planned.naive_tokens, requests: planned.naive_requests });
        summary.more.insert("planned_tokens".to_owned(), planned.computed_tokens().into());
        summary
    }

    /// What to say about episodes that were left alone although they were scored otherwise, and about files that were
    /// not replaced.
    pub fn notices(&self) -> Vec<String> {
        let mut by_keys: BTreeMap<&Differences, u64> = BTreeMap::new();
        for report in &self.reports {
            if let Fate::Kept(differences) = &report.fate {
                *by_keys.entry(differences).or_default() += 1;
            }
        }
        let differing = by_keys.into_iter().filter(|(differences, _)| !differences.is_empty());
        let kept = differing.map(|(differences, n)| {
            let how = if differences.are_computed() { "--recompute" } else { "--overwrite" };
            format!(
                "{n} complete episodes were scored with other settings ({}) and are left alone; help: {how} makes them anew",
                differences.names()
            )
        });
        let n = self.reports.iter().filter(|report| matches!(report.fate, Fate::Spared(_))).count();
        let whose = counted(n as u64, "episode");
        let spared = (n > 0).then(|| {
            format!(
                "the files of {whose} stay as they were: more steps are scored there than could be this time"
            )
        });
        kept.chain(spared).collect()
    }
}
