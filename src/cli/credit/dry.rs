//! `credit --dry-run`: what would be asked and what it would cost, without asking anybody.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::{Value, json};

use super::args::CreditArgs;
use super::setup::{Shown, absences, named_texts};
use super::table::{clipped, gain};
use crate::cli::failure::Failure;
use crate::cli::output::{self, one_line};
use crate::cli::stdout;
use crate::model::planned::backend;
use crate::pipeline::Loss;
use crate::pipeline::credit::{lenses, notes, planned};
use crate::pipeline::outline::{Outline, about_tokens, outline};
use crate::pipeline::read::ReadStep;
use crate::pipeline::resume::{Asked, is_complete, recorded};
use crate::pipeline::{ReadEpisode, Reader, Texts};
use crate::store::episodes::{LoadError, Loaded, Source, load};
use crate::store::hindsight::{Hindsight, Settings, directory_of, read};
use crate::wire::hindsight::Provenance;
use backsight_core::lens::{Lens, Lenses};
use backsight_core::plan::{Backend, Figures};

/// What would be done for an episode.
struct Forecast {
    id: String,
    reward: f64,
    scores: Vec<(String, f64)>,
    n_steps: usize,
    /// Steps by subtask or phase, in the order they come up.
    groups: Vec<(String, usize)>,
    cost: Cost,
    /// Why some steps would have no score.
    lost: Vec<String>,
    /// What is there already.
    state: State,
    notes: Vec<String>,
}

/// What it would take; nothing for an episode that would be left alone.
#[derive(Clone, Copy, Default)]
struct Cost {
    requests: u64,
    /// Requests if each score were asked for alone.
    naive_requests: u64,
    figures: Option<Figures>,
}

/// What is there of an episode, and so what would be done.
enum State {
    New,
    Partial(Box<Hindsight>),
    Complete,
    Skipped,
    Unreadable(String),
}

impl State {
    fn text(&self) -> String {
        match self {
            Self::New => "to be scored".to_owned(),
            Self::Partial(_) => "partial, would be completed".to_owned(),
            Self::Complete => "complete, would be left alone".to_owned(),
            Self::Skipped => "would be skipped: its reward is too small".to_owned(),
            Self::Unreadable(why) => format!("would be lost: its old scores cannot be read: {why}"),
        }
    }

    fn is_to_do(&self) -> bool {
        matches!(self, Self::New | Self::Partial(_))
    }
}

/// Everything that is the same for all episodes.
struct Setting<'a> {
    args: &'a CreditArgs<'a>,
    shown: &'a Shown,
    texts: Option<Texts>,
    asked: Asked,
    lenses: Lenses,
    limit: Option<usize>,
}

pub(super) fn run(
    args: &CreditArgs<'_>,
    mut shown: Shown,
    sources: Vec<Source>,
    settings: Settings,
) -> Result<(), Failure> {
    let texts = named_texts(args, &shown)?;
    texts.iter().for_each(|(texts, _)| shown.settle(args, texts));
    let setting = Setting::new(args, &shown, texts, settings)?;
    absences(args, &sources).into_iter().for_each(|text| output::tell(args.json, "note", &text));
    let (mut forecasts, mut losses) = (Vec::new(), Vec::new());
    for loaded in load(sources) {
        match setting.forecast(loaded) {
            Ok(forecast) => forecasts.push(forecast),
            Err(why) => losses.push(why),
        }
    }
    if args.json {
        let all: Vec<Value> = forecasts.iter().map(as_json).collect();
        stdout::data(format!("{}\n", json!({"episodes": all, "lost": losses})).as_bytes())?;
    } else {
        stdout::data(table(&forecasts, shown.lens.as_ref()).as_bytes())?;
    }
    losses.iter().for_each(|why| output::tell(args.json, "lost", why));
    if losses.is_empty() {
        return Ok(());
    }
    Err(Failure::losses(format!("{} episodes cannot be scored", losses.len()), "mend their files"))
}

impl<'a> Setting<'a> {
    fn new(
        args: &'a CreditArgs<'a>,
        shown: &'a Shown,
        texts: Option<(Texts, String)>,
        settings: Settings,
    ) -> Result<Self, Failure> {
        let (texts, tokenizer_sha256) = texts.unzip();
        let provenance = Provenance {
            tokenizer_sha256,
            template_sha256: texts.as_ref().map(Texts::template_sha256),
            ..shown.provenance.clone()
        };
        let lenses = lenses(Arc::clone(&shown.lens), settings.params.ratio);
        let limit = args.limit(None)?;
        Ok(Self { args, shown, texts, asked: Asked { settings, provenance }, lenses, limit })
    }

    fn forecast(&self, loaded: Result<Loaded, LoadError>) -> Result<Forecast, String> {
        let loaded = loaded.map_err(|error| error.to_string())?;
        let framing = &self.shown.framing;
        let named = |why: &dyn std::fmt::Display| format!("{}: {why}", loaded.episode.id);
        let n_tokens =
            |text: &str| self.texts.as_ref().map_or_else(|| about_tokens(text), |it| it.n_tokens(text));
        let outline =
            outline(&loaded.episode, framing, &self.lenses, &n_tokens).map_err(|loss| named(&loss))?;
        let reward = loaded.episode.outcome.as_ref().map_err(|why| named(why))?.reward;
        let state = self.state(&loaded, reward);
        let texts = self.texts.as_ref().filter(|_| state.is_to_do());
        let mut read = texts.map(|texts| self.reread(texts, &loaded, &outline));
        let (cost, more_passes) = self.cost(&loaded, &outline, read.as_mut(), &state);
        let lost = read.iter().flat_map(|read| &read.steps).filter_map(lost_by);
        Ok(Forecast {
            id: loaded.episode.id.clone(),
            reward,
            scores: loaded.episode.progress.subtask_scores.clone(),
            n_steps: outline.places.len(),
            groups: groups(&outline),
            cost,
            lost: lost.map(ToString::to_string).collect(),
            notes: notes(&loaded, framing).into_iter().chain(more_passes).collect(),
            state,
        })
    }

    fn state(&self, loaded: &Loaded, reward: f64) -> State {
        if reward < self.args.min_reward {
            return State::Skipped;
        }
        if self.args.overwrite {
            return State::New;
        }
        match read(&directory_of(loaded, &self.args.run_dir), &self.lenses.result()) {
            Ok(None) => State::New,
            Ok(Some(old)) if self.is_complete(loaded, &old) => State::Complete,
            Ok(Some(old)) => State::Partial(Box::new(old)),
            Err(error) => State::Unreadable(error.to_string()),
        }
    }

    fn is_complete(&self, loaded: &Loaded, old: &Hindsight) -> bool {
        let asked = self.asked.for_episode(&loaded.episode, &self.shown.framing).assuming(&old.scores);
        is_complete(old, &asked, &self.lenses)
    }

    /// From tokens where there are some, else as if every message were one. A file that is completed is taken to be
    /// from the model that will be asked.
    fn cost(
        &self,
        loaded: &Loaded,
        outline: &Outline,
        read: Option<&mut ReadEpisode>,
        state: &State,
    ) -> (Cost, Option<String>) {
        let old = match state {
            State::New => None,
            State::Partial(old) => Some(old.as_ref()),
            _ => {
                let figures = self.texts.as_ref().map(|_| Figures::default());
                return (Cost { figures, ..Cost::default() }, None);
            }
        };
        let asked = self.asked.for_episode(&loaded.episode, &self.shown.framing);
        let asked = old.map_or(asked.clone(), |old| asked.assuming(&old.scores));
        if let Some(read) = read {
            let (figures, more_passes) =
                planned(read, outline, old, &asked, &self.lenses, &backend_of(self.args));
            let Figures { requests, naive_requests, .. } = figures;
            return (Cost { requests, naive_requests, figures: Some(figures) }, more_passes);
        }
        let keys = self.lenses.keys();
        let wanted = |step, lens: usize| !old.is_some_and(|old| recorded(old, &asked, step, &keys[lens]));
        let (requests, naive_requests) = outline.n_requests(&wanted);
        let (requests, naive_requests) = (requests as u64, naive_requests as u64);
        (Cost { requests, naive_requests, figures: None }, None)
    }

    fn reread(&self, texts: &Texts, loaded: &Loaded, outline: &Outline) -> ReadEpisode {
        let reader = Reader { texts, framing: &self.shown.framing, limit: self.limit };
        reader.read(&loaded.episode, outline)
    }
}

/// What the server that was named does with requests; the best that any does where none was.
fn backend_of(args: &CreditArgs<'_>) -> Backend {
    args.server
        .kind()
        .filter(|kind| kind.limits.scores)
        .map_or(Backend::CACHING, |kind| backend(&kind.limits))
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

fn table(forecasts: &[Forecast], lens: &dyn Lens) -> String {
    let mut total = Cost::default();
    for Cost { requests, naive_requests, figures } in forecasts.iter().map(|it| it.cost) {
        total.requests += requests;
        total.naive_requests += naive_requests;
        if let Some(figures) = figures {
            *total.figures.get_or_insert_default() += figures;
        }
    }
    let n_to_do = forecasts.iter().filter(|it| it.state.is_to_do()).count();
    let placement = lens.placement().map(|it| format!(", placement {}", it.name())).unwrap_or_default();
    let n = forecasts.len();
    let (lines, all): (String, _) = (forecasts.iter().map(lines).collect(), cost(&total));
    format!("{lines}dry run{placement}: {n_to_do} of {n} episodes to be scored, {all}; nothing was asked\n")
}

/// An episode, what it would cost, and what would be lost.
fn lines(forecast: &Forecast) -> String {
    let scores = forecast.scores.iter().map(|(id, score)| format!("{id}={score:.3}"));
    let scores = scores.collect::<Vec<_>>().join(", ");
    let groups = forecast.groups.iter().map(|(name, n)| format!("{name} {n}"));
    let mut text = format!(
        "{}: reward {:.4}, {} steps ({}), subtask scores {}; {}\n",
        clipped(&forecast.id),
        forecast.reward,
        forecast.n_steps,
        one_line(&groups.collect::<Vec<_>>().join(", ")),
        if scores.is_empty() { "none".to_owned() } else { one_line(&scores) },
        one_line(&forecast.state.text()),
    );
    if forecast.state.is_to_do() {
        text.push_str(&format!("    {}\n", cost(&forecast.cost)));
    }
    let distinct: BTreeSet<&String> = forecast.lost.iter().collect();
    for why in distinct {
        let n = forecast.lost.iter().filter(|it| *it == why).count();
        text.push_str(&format!("    {n} steps would be lost: {}\n", one_line(why)));
    }
    for note in &forecast.notes {
        text.push_str(&format!("    note: {}\n", one_line(note)));
    }
    text
}

/// Requests and tokens, ours and one step at a time.
fn cost(Cost { requests, naive_requests, figures }: &Cost) -> String {
    match figures {
        None => {
            format!(
                "at least {requests} requests (each step alone: {naive_requests}); name a --tokenizer for the exact \
                 number and to count tokens"
            )
        }
        Some(figures) => format!(
            "{requests} requests, {} tokens sent, {} computed (each step alone: {naive_requests} requests, {} tokens{})",
            figures.sent_tokens,
            figures.computed_tokens(),
            figures.naive_tokens,
            gain(figures.naive_tokens, figures.computed_tokens())
        ),
    }
}

fn as_json(forecast: &Forecast) -> Value {
    let groups: BTreeMap<&String, usize> = forecast.groups.iter().map(|(name, n)| (name, *n)).collect();
    let scores: BTreeMap<&String, f64> = forecast.scores.iter().map(|(name, score)| (name, *score)).collect();
    let Cost { requests, naive_requests, figures } = forecast.cost;
    let mut json = json!({
        "episode": forecast.id, "reward": forecast.reward, "frozen_scores": scores, "steps": forecast.n_steps,
        "subtask_steps": groups, "state": forecast.state.text(), "lost": forecast.lost, "notes": forecast.notes,
        "requests": requests, "naive_requests": naive_requests,
    });
    if let Some(figures) = figures {
        json["tokens"] = json!({
            "naive": figures.naive_tokens, "sent": figures.sent_tokens, "cached": figures.cached_tokens,
            "computed": figures.computed_tokens(),
        });
    }
    json
}
