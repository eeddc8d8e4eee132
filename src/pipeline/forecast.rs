//! What scoring episodes would ask and cost, without asking anybody.
//!
//! Owns [`Forecast`]. With a tokenizer an episode is read and planned as [`super::credit`] does it; without one every
//! message counts as one token, which tells the requests alone.

use super::credit::{Options, notes, planned};
use super::outline::{Outline, about_tokens, outline};
use super::read::{ReadEpisode, ReadStep};
use super::resume::{Asked, is_complete, recorded};
use super::{Loss, Reader, Texts};
use crate::store::episodes::{BadFile, Loaded};
use crate::store::hindsight::{Hindsight, directory_of, read};
use backsight_core::model::Limits;
use backsight_core::plan::Figures;

/// What would be done for an episode.
pub struct Forecast {
    /// Its id.
    pub id: String,
    /// Its reward.
    pub reward: f64,
    /// The scores of its subtasks.
    pub scores: Vec<(String, f64)>,
    /// Its steps.
    pub n_steps: usize,
    /// Steps by subtask or phase, in the order they come up.
    pub groups: Vec<(String, usize)>,
    /// What it would take, in tokens too where there is a tokenizer; nothing where it would be left alone.
    pub figures: Figures,
    /// Why some steps would have no score.
    pub lost: Vec<String>,
    /// What is there already.
    pub prospect: Prospect,
    /// What else should be known.
    pub notes: Vec<String>,
}

/// What is there of an episode, and so what would be done.
pub enum Prospect {
    /// Nothing is there.
    New,
    /// Some of it is.
    Partial(Box<Hindsight>),
    /// All of it is.
    Complete,
    /// Its reward is too small.
    Skipped,
    /// What is there cannot be read.
    Unreadable(String),
}

impl Prospect {
    /// In words.
    pub fn text(&self) -> String {
        match self {
            Self::New => "to be scored".to_owned(),
            Self::Partial(_) => "partial, would be completed".to_owned(),
            Self::Complete => "complete, would be left alone".to_owned(),
            Self::Skipped => "would be skipped: its reward is too small".to_owned(),
            Self::Unreadable(why) => format!("would be lost: its old scores cannot be read: {why}"),
        }
    }

    /// Whether anybody would be asked.
    pub fn is_to_do(&self) -> bool {
        matches!(self, Self::New | Self::Partial(_))
    }
}

/// Everything that is the same for all episodes.
pub struct Forecaster {
    /// What is asked for.
    pub options: Options,
    /// The tokenizer and template, where they are known.
    pub texts: Option<Texts>,
    /// What the server does with requests.
    pub limits: Limits,
}

impl Forecaster {
    /// What would be done for one.
    pub fn forecast(&self, loaded: Result<Loaded, BadFile>) -> Result<Forecast, String> {
        let loaded = loaded.map_err(|error| error.to_string())?;
        let framing = &self.options.framing;
        let named = |why: &dyn std::fmt::Display| format!("{}: {why}", loaded.episode.id);
        let n_tokens =
            |text: &str| self.texts.as_ref().map_or_else(|| about_tokens(text), |it| it.n_tokens(text));
        let outline = outline(&loaded.episode, framing, &self.options.lenses, &n_tokens)
            .map_err(|loss| named(&loss))?;
        let reward = loaded.episode.outcome.as_ref().map_err(|why| named(why))?.reward;
        let asked = self.options.asked.for_episode(&loaded.episode, framing);
        let prospect = self.prospect(&loaded, reward, &asked);
        let texts = self.texts.as_ref().filter(|_| prospect.is_to_do());
        let reader = |texts| Reader { texts, framing, limit: self.options.limit };
        let mut read = texts.map(|texts| reader(texts).read(&loaded.episode, &outline));
        let (figures, more_passes) = self.figures(asked, &outline, read.as_mut(), &prospect);
        let lost = read.iter().flat_map(|read| &read.steps).filter_map(lost_by);
        Ok(Forecast {
            id: loaded.episode.id.clone(),
            reward,
            scores: loaded.episode.progress.subtask_scores.clone(),
            n_steps: outline.places.len(),
            groups: groups(&outline),
            figures,
            lost: lost.map(ToString::to_string).collect(),
            notes: notes(&loaded, framing).into_iter().chain(more_passes).collect(),
            prospect,
        })
    }

    fn prospect(&self, loaded: &Loaded, reward: f64, asked: &Asked) -> Prospect {
        let Options { min_reward, overwrite, lenses, run_dir, .. } = &self.options;
        if reward < *min_reward {
            return Prospect::Skipped;
        }
        if *overwrite {
            return Prospect::New;
        }
        match read(&directory_of(loaded, run_dir), &lenses.result()) {
            Ok(None) => Prospect::New,
            Ok(Some(old)) if is_complete(&old, &asked.assuming(&old.scores), lenses) => Prospect::Complete,
            Ok(Some(old)) => Prospect::Partial(Box::new(old)),
            Err(error) => Prospect::Unreadable(error.to_string()),
        }
    }

    /// From tokens where there are some, else as if every message were one. A file that is completed is taken to be
    /// from the model that will be asked.
    fn figures(
        &self,
        asked: Asked,
        outline: &Outline,
        read: Option<&mut ReadEpisode>,
        prospect: &Prospect,
    ) -> (Figures, Option<String>) {
        let old = match prospect {
            Prospect::New => None,
            Prospect::Partial(old) => Some(old.as_ref()),
            _ => return Default::default(),
        };
        let asked = match old {
            Some(old) => asked.assuming(&old.scores),
            None => asked,
        };
        if let Some(read) = read {
            return planned(read, outline, old, &asked, &self.options.lenses, &self.limits);
        }
        let keys = self.options.lenses.keys();
        let wanted = |step, lens: usize| !old.is_some_and(|old| recorded(old, &asked, step, &keys[lens]));
        let (requests, naive_requests) = outline.n_requests(&wanted);
        let (requests, naive_requests) = (requests as u64, naive_requests as u64);
        (Figures { requests, naive_requests, ..Figures::default() }, None)
    }
}

fn groups(outline: &Outline) -> Vec<(String, usize)> {
    let mut groups: Vec<(String, usize)> = Vec::new();
    for place in &outline.places {
        let name = place.subtask.clone().unwrap_or_else(|| place.phase.name().to_owned());
        match groups.iter_mut().find(|(known, _)| *known == name) {
            Some((_, n)) => *n += 1,
            None => groups.push((name, 1)),
        }
    }
    groups
}

/// Why a step would be lost: it cannot be read, or not through a lens that is needed.
fn lost_by(step: &Result<ReadStep, Loss>) -> Option<&Loss> {
    step.as_ref().map_or_else(Some, |step| step.views.iter().find_map(|view| view.seen.as_ref().err()))
}
