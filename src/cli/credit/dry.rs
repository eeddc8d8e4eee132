//! `credit --dry-run`: what would be asked and what it would cost, without asking anybody.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::args::CreditArgs;
use super::setup::{Shown, named_texts};
use super::table::{clipped, gain};
use crate::cli::failure::{Failure, one_line};
use crate::cli::output;
use crate::cli::server::KindName;
use crate::credit::hcapo::Ratio;
use crate::pipeline::EMBEDDED;
use crate::pipeline::credit::planned;
use crate::pipeline::outline::{Outline, outline};
use crate::pipeline::read::{ReadEpisode, Reader, Texts};
use crate::plan::{Backend, Figures};
use crate::store::episodes::{LoadError, Loaded, Source, load};
use crate::store::hindsight::{directory_of, read};

/// What would be done for an episode.
struct Forecast {
    id: String,
    reward: f64,
    scores: Vec<(String, f64)>,
    n_steps: usize,
    /// Steps by subtask or phase, in the order they come up.
    groups: Vec<(String, usize)>,
    n_requests: u64,
    figures: Option<Figures>,
    /// Why some steps would have no score.
    lost: Vec<String>,
    /// What is there already, or why nothing will be done.
    state: String,
}

pub(super) fn run(args: &CreditArgs, shown: &Shown, sources: Vec<Source>) -> Result<(), Failure> {
    let texts = named_texts(args, shown)?;
    let (mut forecasts, mut losses) = (Vec::new(), Vec::new());
    for loaded in load(sources) {
        match forecast(args, shown, texts.as_ref(), loaded) {
            Ok(forecast) => forecasts.push(forecast),
            Err(why) => losses.push(why),
        }
    }
    if args.json {
        let all: Vec<Value> = forecasts.iter().map(as_json).collect();
        output::data(format!("{}\n", json!({"episodes": all, "lost": losses})).as_bytes())?;
    } else {
        output::data(table(&forecasts, args, texts.is_some()).as_bytes())?;
    }
    losses.iter().for_each(|why| output::talk(&format!("lost: {}", one_line(why))));
    if losses.is_empty() {
        return Ok(());
    }
    Err(Failure::losses(format!("{} episodes cannot be scored", losses.len()), "mend their files"))
}

fn forecast(
    args: &CreditArgs,
    shown: &Shown,
    texts: Option<&Texts>,
    loaded: Result<Loaded, LoadError>,
) -> Result<Forecast, String> {
    let loaded = loaded.map_err(|error| error.to_string())?;
    let named = |why: &dyn std::fmt::Display| format!("{}: {why}", loaded.episode.id);
    let outline = outline(&loaded.episode, &shown.framing, &shown.lens).map_err(|loss| named(&loss))?;
    let reward = loaded.episode.outcome.as_ref().map_err(|why| named(why))?.reward;
    let with_plain = args.settings().params.ratio == Ratio::Lift;
    let read = texts.map(|texts| reread(args, shown, texts, &loaded, &outline));
    let n_tokens = args.settings().max_logprob_tokens;
    let figures = read.as_ref().map(|read| planned(read, n_tokens, &backend(args)));
    let lost = read.iter().flat_map(|read| &read.steps).filter_map(|step| step.as_ref().err());
    let n_requests = outline.n_requests(shown.lens.placement, with_plain) as u64;
    Ok(Forecast {
        id: loaded.episode.id.clone(),
        reward,
        scores: loaded.episode.progress.subtask_scores.clone(),
        n_steps: outline.places.len(),
        groups: groups(&outline),
        n_requests: figures.map_or(n_requests, |figures| figures.requests),
        figures,
        lost: lost.map(ToString::to_string).collect(),
        state: state(args, &loaded, reward),
    })
}

fn reread(
    args: &CreditArgs,
    shown: &Shown,
    texts: &Texts,
    loaded: &Loaded,
    outline: &Outline,
) -> ReadEpisode {
    let reader = Reader {
        texts,
        framing: &shown.framing,
        lens: &shown.lens,
        limit: args.limit(None),
        with_plain: args.settings().params.ratio == Ratio::Lift,
    };
    reader.read(&loaded.episode, outline)
}

/// The backend that was named; SGLang's rules where none was.
fn backend(args: &CreditArgs) -> Backend {
    match args.server.kind {
        KindName::Vllm => Backend::VLLM,
        KindName::Embedded => EMBEDDED,
        _ => Backend::SGLANG,
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

fn state(args: &CreditArgs, loaded: &Loaded, reward: f64) -> String {
    if reward < args.min_reward {
        return "would be skipped: its reward is too small".to_owned();
    }
    if args.overwrite {
        return "to be scored".to_owned();
    }
    match read(&directory_of(loaded, &args.run_dir())) {
        Ok(None) => "to be scored".to_owned(),
        Ok(Some(old)) if old.scores.is_complete() => "complete, would be left alone".to_owned(),
        Ok(Some(_)) => "partial, would be completed".to_owned(),
        Err(error) => format!("old scores cannot be read: {error}"),
    }
}

fn table(forecasts: &[Forecast], args: &CreditArgs, has_tokens: bool) -> String {
    let mut total = Figures::default();
    forecasts.iter().filter_map(|it| it.figures).for_each(|figures| total += figures);
    let n_requests = forecasts.iter().map(|it| it.n_requests).sum();
    let n_steps = forecasts.iter().map(|it| it.n_steps as u64).sum();
    let all = cost(n_requests, n_steps, has_tokens.then_some(total));
    let (placement, n) = (args.lens.placement().name(), forecasts.len());
    let lines: String = forecasts.iter().map(lines).collect();
    format!("{lines}dry run, placement {placement}: {n} episodes, {all}; nothing was asked\n")
}

/// An episode, what it would cost, and what would be lost.
fn lines(forecast: &Forecast) -> String {
    let scores = forecast.scores.iter().map(|(id, score)| format!("{id}={score:.3}"));
    let scores = scores.collect::<Vec<_>>().join(", ");
    let groups = forecast.groups.iter().map(|(name, n)| format!("{name} {n}"));
    let mut text = format!(
        "{}: reward {:.4}, {} steps ({}), subtask scores {}; {}\n    {}\n",
        clipped(&forecast.id),
        forecast.reward,
        forecast.n_steps,
        one_line(&groups.collect::<Vec<_>>().join(", ")),
        if scores.is_empty() { "none".to_owned() } else { one_line(&scores) },
        one_line(&forecast.state),
        cost(forecast.n_requests, forecast.n_steps as u64, forecast.figures),
    );
    let distinct: BTreeSet<&String> = forecast.lost.iter().collect();
    for why in distinct {
        let n = forecast.lost.iter().filter(|it| *it == why).count();
        text.push_str(&format!("    {n} steps would be lost: {}\n", one_line(why)));
    }
    text
}

/// Requests and tokens, ours and one step at a time.
fn cost(n_requests: u64, n_steps: u64, figures: Option<Figures>) -> String {
    match figures {
        None => {
            format!("{n_requests} requests (each step alone: {n_steps}); name a --tokenizer to count tokens")
        }
        Some(figures) => format!(
            "{n_requests} requests, {} tokens sent, {} computed (each step alone: {} requests, {} tokens{})",
            figures.sent_tokens,
            figures.computed_tokens(),
            figures.naive_requests,
            figures.naive_tokens,
            gain(figures.naive_tokens, figures.computed_tokens())
        ),
    }
}

fn as_json(forecast: &Forecast) -> Value {
    let groups: BTreeMap<&String, usize> = forecast.groups.iter().map(|(name, n)| (name, *n)).collect();
    let scores: BTreeMap<&String, f64> = forecast.scores.iter().map(|(name, score)| (name, *score)).collect();
    let mut json = json!({
        "episode": forecast.id, "reward": forecast.reward, "frozen_scores": scores, "steps": forecast.n_steps,
        "subtask_steps": groups, "state": forecast.state, "lost": forecast.lost, "requests": forecast.n_requests,
        "naive_requests": forecast.n_steps,
    });
    if let Some(figures) = forecast.figures {
        json["tokens"] = json!({
            "naive": figures.naive_tokens, "sent": figures.sent_tokens, "cached": figures.cached_tokens,
            "computed": figures.computed_tokens(),
        });
    }
    json
}
