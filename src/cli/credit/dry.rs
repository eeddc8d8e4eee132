//! `credit --dry-run`: what would be asked and what it would cost, without asking anybody.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::args::CreditArgs;
use super::setup::{Shown, absences, named_texts};
use super::table::{clipped, gain};
use crate::cli::failure::Failure;
use crate::cli::output::one_line;
use crate::cli::{stdout, voice};
use crate::event::Event;
use crate::pipeline::Texts;
use crate::pipeline::forecast::{Forecast, Forecaster};
use crate::store::episodes::{Source, load};
use crate::store::hindsight::Settings;
use crate::wire::hindsight::Provenance;
use backsight_core::model::Limits;
use backsight_core::plan::Figures;

pub(super) fn run(
    args: &CreditArgs<'_>,
    mut shown: Shown,
    sources: Vec<Source>,
    settings: Settings,
) -> Result<(), Failure> {
    let texts = named_texts(args, &shown)?;
    texts.iter().for_each(|(texts, _)| shown.settle(args, texts));
    let placement = shown.lens.placement().map(|it| format!(", placement {}", it.name())).unwrap_or_default();
    let forecaster = forecaster(args, shown, texts, settings)?;
    let (has_tokens, talk) = (forecaster.texts.is_some(), args.call.talk("episode"));
    absences(args, &sources).into_iter().for_each(|text| talk.note(text));
    let (mut forecasts, mut losses) = (Vec::new(), Vec::new());
    for loaded in load(sources) {
        match forecaster.forecast(loaded) {
            Ok(forecast) => forecasts.push(forecast),
            Err(why) => losses.push(why),
        }
    }
    if args.call.is_json() {
        let all: Vec<Value> = forecasts.iter().map(|it| as_json(it, has_tokens)).collect();
        stdout::json(&json!({"episodes": all, "lost": losses}))?;
    } else {
        stdout::data(table(&forecasts, &placement, has_tokens).as_bytes())?;
    }
    let n_lost = losses.len() as u64;
    losses.into_iter().for_each(|why| talk.tell(&Event::Lost(why)));
    voice::verdict(None, n_lost, format!("{n_lost} episodes cannot be scored"), "mend their files")
}

/// The server that was named decides what a plan costs; the best that any does where none was.
fn forecaster(
    args: &CreditArgs<'_>,
    shown: Shown,
    texts: Option<(Texts, String)>,
    settings: Settings,
) -> Result<Forecaster, Failure> {
    let (texts, tokenizer_sha256) = texts.unzip();
    let template_sha256 = texts.as_ref().map(Texts::template_sha256);
    let provenance = Provenance { tokenizer_sha256, template_sha256, ..shown.provenance.clone() };
    let kind = args.server.kind().filter(|kind| kind.limits.scores);
    let limits = kind.map_or(Limits::CACHING, |kind| kind.limits.clone());
    Ok(Forecaster { options: super::options(args, settings, shown, provenance, None)?, texts, limits })
}

fn table(forecasts: &[Forecast], placement: &str, has_tokens: bool) -> String {
    let mut total = Figures::default();
    forecasts.iter().for_each(|it| total += it.figures);
    let (n_to_do, n) = (forecasts.iter().filter(|it| it.is_to_do).count(), forecasts.len());
    let lines: String = forecasts.iter().map(|it| lines(it, has_tokens)).collect();
    let all = cost(&total, has_tokens);
    format!("{lines}dry run{placement}: {n_to_do} of {n} episodes to be scored, {all}; nothing was asked\n")
}

/// An episode, what it would cost, and what would be lost.
fn lines(forecast: &Forecast, has_tokens: bool) -> String {
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
        one_line(&forecast.state),
    );
    if forecast.is_to_do {
        text.push_str(&format!("    {}\n", cost(&forecast.figures, has_tokens)));
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
fn cost(figures: &Figures, has_tokens: bool) -> String {
    let Figures { requests, naive_requests, sent_tokens, naive_tokens, .. } = figures;
    let computed = figures.computed_tokens();
    match has_tokens {
        false => format!(
            "at least {requests} requests (each step alone: {naive_requests}); name a --tokenizer for the exact \
             number and to count tokens"
        ),
        true => format!(
            "{requests} requests, {sent_tokens} tokens sent, {computed} computed (each step alone: {naive_requests} \
             requests, {naive_tokens} tokens{})",
            gain(*naive_tokens, computed)
        ),
    }
}

fn as_json(forecast: &Forecast, has_tokens: bool) -> Value {
    let groups: BTreeMap<&String, usize> = forecast.groups.iter().map(|(name, n)| (name, *n)).collect();
    let scores: BTreeMap<&String, f64> = forecast.scores.iter().map(|(name, score)| (name, *score)).collect();
    let figures = &forecast.figures;
    let mut json = json!({
        "episode": forecast.id, "reward": forecast.reward, "frozen_scores": scores, "steps": forecast.n_steps,
        "subtask_steps": groups, "state": forecast.state, "lost": forecast.lost, "notes": forecast.notes,
        "requests": figures.requests, "naive_requests": figures.naive_requests,
    });
    if has_tokens {
        json["tokens"] = json!({
            "naive": figures.naive_tokens, "sent": figures.sent_tokens, "cached": figures.cached_tokens,
            "computed": figures.computed_tokens(),
        });
    }
    json
}
