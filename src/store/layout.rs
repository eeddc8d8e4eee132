//! What stands where in a run directory, and how one is known.

use std::path::Path;

use super::lock::LOCK_FILE;

/// What each stage was asked for, a table each.
pub const CONFIG_FILE: &str = "config.toml";
/// Where episodes are.
pub const EPISODES: &str = "episodes";
/// What happened, of all stages.
pub const EVENTS: &str = "events.jsonl";
/// Rows of metrics, of all stages.
pub const METRICS: &str = "metrics.jsonl";
/// The votes on every pair, and what they decided.
pub const VERDICTS: &str = "verdicts.jsonl";
/// What became of each stage.
pub const SUMMARY: &str = "summary.json";

/// Whether a run keeps its files here.
pub fn is_run(dir: &Path) -> bool {
    [CONFIG_FILE, LOCK_FILE].iter().all(|name| dir.join(name).is_file())
}
