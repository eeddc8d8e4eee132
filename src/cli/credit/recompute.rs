//! `credit --recompute`: credit again from what was measured, with other hyper-parameters and without a model.

use std::collections::HashSet;
use std::path::Path;

use serde_json::json;

use super::args::CreditArgs;
use super::table::clipped;
use crate::cli::failure::{Failure, one_line};
use crate::cli::output;
use crate::store::hindsight::{self, Hindsight, HindsightError, Settings, find, recompute};
use crate::wire::hindsight::HindsightScores;

pub(super) fn run(args: &CreditArgs) -> Result<(), Failure> {
    let help = "name the directory of the scored episodes with --input-dir";
    let mut directories = Vec::new();
    for input in args.inputs() {
        let found = find(&input, &args.run_dir());
        directories
            .extend(found.map_err(|error| Failure::input(format!("{}: {error}", input.display()), help))?);
    }
    // Several files share one run directory.
    let mut seen = HashSet::new();
    directories.retain(|directory| seen.insert(directory.clone()));
    if directories.is_empty() {
        let input = args.inputs().swap_remove(0);
        return Err(Failure::input(format!("{}: no hindsight_scores.json here", input.display()), help));
    }
    let (mut n_made, mut losses) = (0_u64, Vec::new());
    for directory in &directories {
        match renew(directory, args) {
            Ok(scores) => {
                n_made += 1;
                tell(args, directory, &scores)?;
            }
            Err(error) => losses.push(format!("{}: {error}", directory.display())),
        }
    }
    losses.iter().for_each(|why| output::talk(&format!("lost: {}", one_line(why))));
    output::talk(&format!("computed again: {n_made} of {} files; nothing was asked", directories.len()));
    match losses.len() {
        0 => Ok(()),
        n => Err(Failure::losses(format!("{n} files could not be computed again"), "see the reasons above")),
    }
}

/// Reads a directory's files, and rewrites its scores in place.
fn renew(directory: &Path, args: &CreditArgs) -> Result<HindsightScores, HindsightError> {
    let Some(old) = hindsight::read(directory)? else {
        let source = std::io::Error::from(std::io::ErrorKind::NotFound);
        return Err(HindsightError::Io { path: directory.to_owned(), source });
    };
    let settings = args.method.settings(&Settings::recorded(&old.scores.hyperparams));
    let scores = recompute(&old, &settings)?;
    hindsight::write(directory, &Hindsight { scores: scores.clone(), tokens: None })?;
    Ok(scores)
}

fn tell(args: &CreditArgs, directory: &Path, scores: &HindsightScores) -> Result<(), Failure> {
    let n_credited = scores.steps.iter().filter(|step| step.credit(true).is_some()).count();
    let name = directory
        .file_name()
        .map_or_else(|| super::shown_path(directory), |it| it.to_string_lossy().into_owned());
    let line = match args.json {
        true => json!({"episode": name, "steps": scores.num_steps, "credited": n_credited}).to_string(),
        false => format!("{}: {n_credited} of {} steps", clipped(&name), scores.num_steps),
    };
    output::data(format!("{line}\n").as_bytes())
}
