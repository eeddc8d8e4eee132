//! `credit --recompute`: credit again from what was measured, with other hyper-parameters and without a model.

use std::collections::HashSet;
use std::path::Path;
use std::time::Instant;

use serde_json::json;

use super::args::CreditArgs;
use super::table::clipped;
use super::{weigh, weighing};
use crate::cli::failure::Failure;
use crate::cli::sources::sources;
use crate::cli::{output, stdout, voice};
use crate::event::Event;
use crate::store::RunReader;
use crate::store::hindsight::{self, Hindsight, Settings, find, recompute, scores_file};
use crate::wire::hindsight::HindsightScores;

pub(super) fn run(args: &CreditArgs<'_>) -> Result<(), Failure> {
    let began = Instant::now();
    let help = "name the directory of the scored episodes with --input-dir";
    let (mut directories, lens) = (Vec::new(), args.call.result()?);
    for input in &args.inputs {
        let found = find(input, &args.run_dir, &lens);
        directories.extend(found.map_err(|error| Failure::input(error.to_string(), help))?);
    }
    // Several files share one run directory.
    let mut seen = HashSet::new();
    directories.retain(|directory| seen.insert(directory.clone()));
    if directories.is_empty() {
        let input = &args.inputs[0];
        return Err(Failure::input(format!("{}: no {} here", input.display(), scores_file(&lens)), help));
    }
    let (mut n_made, mut losses) = (0_u64, Vec::new());
    for directory in &directories {
        match renew(directory, &lens, args) {
            Ok(scores) => {
                n_made += 1;
                show(args, directory, &scores)?;
            }
            Err(why) => losses.push(format!("{}: {why}", directory.display())),
        }
    }
    renew_weights(args, lens)?;
    let (talk, n_lost, all) = (args.call.talk("file"), losses.len() as u64, directories.len());
    losses.into_iter().for_each(|why| talk.tell(&Event::Lost(why)));
    let seconds = began.elapsed().as_secs_f64();
    talk.tell(&Event::Ended { made: n_made, lost: n_lost, left: 0, seconds });
    if !args.call.is_json() {
        output::talk(&format!("computed again: {n_made} of {all} files; nothing was asked"));
    }
    let what = format!("{n_lost} files could not be computed again");
    voice::verdict(None, n_lost, what, "see the reasons above")
}

/// Weighs the steps with their new credit. Scores whose episodes are gone have no groups within which to be compared.
fn renew_weights(args: &CreditArgs<'_>, lens: String) -> Result<(), Failure> {
    let Ok(sources) = sources(&args.inputs) else {
        let what = "the steps are not weighed again: their episodes are not here any more";
        args.call.talk("file").tell(&Event::Note(what.to_owned()));
        return Ok(());
    };
    std::fs::create_dir_all(&args.run_dir).map_err(|error| {
        Failure::stopped(format!("{}: {error}", args.run_dir.display()), "name another --run")
    })?;
    weigh(sources, &args.run_dir, &weighing(args.call, lens, &RunReader::new(&args.run_dir))?)
}

/// Reads a directory's files, and rewrites its scores in place.
fn renew(directory: &Path, lens: &str, args: &CreditArgs<'_>) -> Result<HindsightScores, String> {
    let old = hindsight::read(directory, lens).map_err(|error| error.to_string())?;
    let old = old.ok_or("the file is gone")?;
    let settings = args.over(&Settings::recorded(&old.scores.hyperparams))?;
    let scores = recompute(&old, &settings)?;
    hindsight::write(directory, lens, &Hindsight { scores: scores.clone(), tokens: None })
        .map_err(|error| error.to_string())?;
    Ok(scores)
}

fn show(args: &CreditArgs<'_>, directory: &Path, scores: &HindsightScores) -> Result<(), Failure> {
    let n_credited = scores.steps.iter().filter(|step| step.credit(true).is_some()).count();
    let n_steps = scores.steps.len();
    let name = directory
        .file_name()
        .map_or_else(|| directory.display().to_string(), |it| it.to_string_lossy().into_owned());
    let line = match args.call.is_json() {
        true => json!({"episode": name, "steps": n_steps, "credited": n_credited}).to_string(),
        false => format!("{}: {n_credited} of {n_steps} steps", clipped(&name)),
    };
    stdout::data(format!("{line}\n").as_bytes())
}
