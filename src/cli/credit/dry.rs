//! `credit --dry-run`: what would be asked and what it would cost, without asking anybody.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::args::CreditArgs;
use super::setup::{Shown, absences, named_texts};
use super::table::{clipped, gain};
use crate::cli::failure::Failure;
use crate::cli::output::one_line;
use crate::cli::stdout;
use crate::event::Event;
use crate::pipeline::Texts;
use crate::pipeline::forecast::{Cost, Forecast, Forecaster};
use crate::store::episodes::{Source, load};
use crate::store::hindsight::Settings;
use crate::wire::hindsight::Provenance;
use backsight_core::model::Limits;

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
    let talk = args.call.talk("episode");
    absences(args, &sources).into_iter().for_each(|text| talk.note(text));
    let (mut forecasts, mut losses) = (Vec::new(), Vec::new());
    for loaded in load(sources) {
        match forecaster.forecast(loaded) {
            Ok(forecast) => forecasts.push(forecast),
            Err(why) => losses.push(why),
        }
    }
    if args.call.is_json() {
        let all: Vec<Value> = forecasts.iter().map(as_json).collect();
        stdout::data(format!("{}\n", json!({"episodes": all, "lost": losses})).as_bytes())?;
    } else {
        stdout::data(table(&forecasts, &placement).as_bytes())?;
    }
    let n_lost = losses.len();
    losses.into_iter().for_each(|why| talk.tell(&Event::Lost(why)));
    match n_lost {
        0 => Ok(()),
        n => Err(Failure::losses(format!("{n} episodes cannot be scored"), "mend their files")),
    }
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

fn table(forecasts: &[Forecast], placement: &str) -> String {
    let mut total = Cost::default();
    for Cost { requests, naive_requests, figures } in forecasts.iter().map(|it| it.cost) {
        total.requests += requests;
        total.naive_requests += naive_requests;
        if let Some(figures) = figures {
            *total.figures.get_or_insert_default() += figures;
        }
    }
    let n_to_do = forecasts.iter().filter(|it| it.prospect.is_to_do()).count();
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
        one_line(&forecast.prospect.text()),
    );
    if forecast.prospect.is_to_do() {
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
        "subtask_steps": groups, "state": forecast.prospect.text(), "lost": forecast.lost, "notes": forecast.notes,
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
