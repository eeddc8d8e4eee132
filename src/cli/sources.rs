//! Finding the episodes that were named, for every command that takes recorded ones.

use std::path::PathBuf;

use super::failure::Failure;
use crate::store::episodes::{Source, find};

/// The episodes in these directories and files.
pub(super) fn sources(inputs: &[PathBuf]) -> Result<Vec<Source>, Failure> {
    let mut all = Vec::new();
    for input in inputs {
        all.extend(find(input).map_err(|error| {
            let help = "name the directory of the episodes with --input-dir, or files with --episodes";
            // Errors of the library may carry their own advice.
            let message = error.to_string();
            let (what, help) = message.split_once("; help: ").unwrap_or((&message, help));
            Failure::input(what, help)
        })?);
    }
    Ok(all)
}
