//! `model pull`, `model list` and `model path`.

use std::path::PathBuf;

use indicatif::ProgressBar;

use super::block_on;
use super::call::Call;
use super::failure::Failure;
use super::interrupt::unless_interrupted;
use super::output;
use super::pulse::with_pulse;
use super::stdout;
use super::talk::bar_style;
use crate::hf::HubError;
use crate::model::embedded;
use crate::model::weights::{KNOWN, Weights, WeightsError};

pub(super) fn pull(call: &Call) -> Result<(), Failure> {
    let (name, path) = bring(&open()?, call.get::<Option<String>>("model")?.as_deref())?;
    output::talk(&format!("{name} is at"));
    stdout::data(format!("{}\n", path.display()).as_bytes())
}

fn bring(weights: &Weights, name: Option<&str>) -> Result<(String, PathBuf), Failure> {
    let style = bar_style("{bytes} of {total_bytes}  {bytes_per_sec}  {eta} left");
    let bar = ProgressBar::no_length().with_style(style);
    let progress = |done: u64, total: Option<u64>| {
        bar.set_length(total.unwrap_or(done));
        bar.set_position(done);
    };
    let tell = |note: &str| bar.suspend(|| output::talk(&format!("note: {note}")));
    let say = || output::talk(&format!("{} MB so far", bar.position() / 1_000_000));
    let pulled = block_on(unless_interrupted(with_pulse(weights.pull(name, &progress, &tell), say)))?;
    bar.finish_and_clear();
    pulled?.map_err(failed)
}

pub(super) fn list(_: &Call) -> Result<(), Failure> {
    let weights = open()?;
    let entry = |name: &str, about: &str, place: &str| format!("{name:<28}  {about}\n{:<28}  {place}\n", "");
    let place = |path: Option<PathBuf>| path.map_or("not here yet".to_owned(), |it| it.display().to_string());
    let known = KNOWN.iter().map(|known| entry(known.name, known.about, &place(weights.pulled(known))));
    let others = weights.others().into_iter();
    let others = others.map(|(name, path)| entry(&name, "from the Hugging Face hub", &place(Some(path))));
    stdout::data(known.chain(others).collect::<String>().as_bytes())
}

pub(super) fn path(call: &Call) -> Result<(), Failure> {
    let (_, path) = find(call.get::<Option<String>>("model")?.as_deref())?;
    stdout::data(format!("{}\n", path.display()).as_bytes())
}

/// The name and place of a model: by name, by path, or the default that is here.
pub(super) fn find(name: Option<&str>) -> Result<(String, PathBuf), Failure> {
    embedded::find(&open()?, name).map_err(failed)
}

/// As [`find`], but what has a name and is not here yet is pulled.
pub(super) fn find_or_pull(name: Option<&str>) -> Result<(String, PathBuf), Failure> {
    let weights = open()?;
    let is_missing = match name {
        Some(name) => matches!(weights.path(name), Err(WeightsError::NotPulled { .. })),
        None => weights.default_path().is_none(),
    };
    if is_missing {
        output::talk("pulling the model, once");
        bring(&weights, name)?;
    }
    find(name)
}

fn open() -> Result<Weights, Failure> {
    Weights::from_env(|name| std::env::var(name).ok()).map_err(failed)
}

/// A mistyped or unpulled name is the user's to mend; a hub that is gone stops the work.
fn failed(error: WeightsError) -> Failure {
    let help = error.help();
    match error {
        WeightsError::Unknown { .. }
        | WeightsError::NotPulled { .. }
        | WeightsError::NoForm(_)
        | WeightsError::Unrunnable { .. }
        | WeightsError::Hub(HubError::NotFound { .. }) => Failure::input(error, help),
        _ => Failure::stopped(error, help),
    }
}
