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
use crate::store::hindsight::{Hindsight, directory_of};
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
    /// What is there already and so what would be done, in words.
    pub state: String,
    /// Whether anybody would be asked.
    pub is_to_do: bool,
    /// What else should be known.
    pub notes: Vec<String>,
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
        let left = self.options.left(&directory_of(&loaded, &self.options.run_dir));
        // A file that is completed is taken to be from the model that will be asked.
        let asked = match &left {
            Ok(Some(old)) => asked.assuming(&old.scores),
            _ => asked,
        };
        let (is_to_do, state) = self.state(left.as_ref().map(Option::as_ref), reward, &asked);
        let texts = self.texts.as_ref().filter(|_| is_to_do);
        let reader = |texts| Reader { texts, framing, limit: self.options.limit };
        let mut read = texts.map(|texts| reader(texts).read(&loaded.episode, &outline));
        let (figures, more_passes) = match left.ok().filter(|_| is_to_do) {
            Some(old) => self.figures(&asked, &outline, read.as_mut(), old.as_ref()),
            None => Default::default(),
        };
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
            state,
            is_to_do,
        })
    }

    /// Whether anybody would be asked about an episode of which this is left, and what would be done in words.
    fn state(
        &self,
        left: Result<Option<&Hindsight>, &BadFile>,
        reward: f64,
        asked: &Asked,
    ) -> (bool, String) {
        let (is_to_do, state) = match left {
            _ if reward < self.options.min_reward => (false, "would be skipped: its reward is too small"),
            Ok(None) => (true, "to be scored"),
            Ok(Some(old)) if is_complete(old, asked, &self.options.lenses) => {
                (false, "complete, would be left alone")
            }
            Ok(Some(_)) => (true, "partial, would be completed"),
            Err(error) => {
                return (false, format!("would be lost: its old scores cannot be read: {error}"));
            }
        };
        (is_to_do, state.to_owned())
    }

    /// From tokens where there are some, else as if every message were one.
    fn figures(
        &self,
        asked: &Asked,
        outline: &Outline,
        read: Option<&mut ReadEpisode>,
        old: Option<&Hindsight>,
    ) -> (Figures, Option<String>) {
        if let Some(read) = read {
            let (.., asking, more_passes) =
                planned(read, outline, old, asked, &self.options.lenses, &self.limits);
            return (asking.figures(), more_passes);
        }
        let keys = self.options.lenses.keys();
        let wanted = |step, lens: usize| !old.is_some_and(|old| recorded(old, asked, step, &keys[lens]));
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
