//! Tables for people: what became of each episode, and what it all cost.

use crate::cli::output::{one_line, weights};
use crate::event::if_any;
use crate::pipeline::report::{Fate, Report};
use crate::store::summary::{Summary, computed};
use backsight_core::plan::Figures;

/// The widest name that is shown whole.
const WIDTH: usize = 40;

/// A line for each episode: the requests that were sent, and the tokens of the plan and of each step alone.
pub(super) fn episodes(reports: &[Report]) -> String {
    let names: Vec<String> = reports.iter().map(|report| clipped(&report.id)).collect();
    let width = names.iter().map(|name| name.chars().count()).max().unwrap_or(0).max("episode".len());
    let mut text = format!(
        "{:<width$} {:>8} {:>9} {:>9} {:>12} {:>12}  {}\n",
        "episode", "reward", "credit", "requests", "planned", "naive", "result"
    );
    for (report, name) in reports.iter().zip(names) {
        let reward = report.reward.map_or_else(|| "-".to_owned(), |reward| format!("{reward:.4}"));
        let credit = format!("{}/{}", report.n_credited, report.n_steps);
        let (requests, Figures { naive_tokens, .. }) = (report.n_sent, report.figures);
        let computed = report.figures.computed_tokens();
        text.push_str(&format!(
            "{name:<width$} {reward:>8} {credit:>9} {requests:>9} {computed:>12} {naive_tokens:>12}  {}\n",
            result(report)
        ));
    }
    text
}

fn result(report: &Report) -> String {
    match &report.fate {
        Fate::Spared(n_before) => format!("spared: {n_before} before"),
        Fate::Lost(loss) => format!("lost: {}", loss.reason.name()),
        Fate::Unfinished => "not finished".to_owned(),
        other => other.name().to_owned(),
    }
}

/// What was made and what it cost.
pub(in crate::cli) fn totals(summary: &Summary) -> String {
    let (spent, naive) = (&summary.spent, summary.naive());
    let mut text = format!(
        "\nmade {} episodes, {} steps; {} partial, {} kept, {} skipped, {} lost",
        summary.made("episodes"),
        summary.made("steps"),
        summary.made("partial_episodes"),
        summary.made("kept_episodes"),
        summary.made("skipped_episodes"),
        summary.lost("episodes")
    );
    let rest = [
        (summary.made("recomputed_episodes"), "recomputed"),
        (summary.made("spared_episodes"), "spared"),
        (summary.left, "not finished"),
    ];
    text.extend(rest.map(|(n, what)| if_any(n, |n| format!(", {n} {what}"))));
    text.push_str(&format!(
        "\n{} requests in {:.1} s: {} tokens sent, {} of them cached, {} computed",
        spent.requests,
        summary.seconds,
        spent.prompt_tokens,
        spent.cached_tokens,
        computed(spent)
    ));
    let found = summary.number("found_in_ledger");
    text.push_str(&if_any(found, |found| format!("; {found} answers were in the ledger")));
    let planned = summary.number("planned_tokens");
    let (n, tokens) = (naive.requests, naive.tokens);
    // What was sent depends on failures and on the ledger; the plan does not.
    match planned {
        0 => text.push('\n'),
        _ => text.push_str(&format!(
            "\nplanned: {planned} tokens to compute; each step alone: {n} requests, {tokens} tokens{}\n",
            gain(tokens, planned)
        )),
    }
    text.extend(weights(summary).map(|line| format!("{line}\n")));
    for (what, lost) in &summary.lost {
        for (reason, n) in lost {
            text.push_str(&format!("lost {n} {what}: {reason}\n"));
        }
    }
    text
}

/// How many times less was computed.
pub(super) fn gain(naive: u64, computed: u64) -> String {
    if_any(computed, |computed| format!(", {:.1} times as many", naive as f64 / computed as f64))
}

/// A name on one line, not too long.
pub(super) fn clipped(name: &str) -> String {
    let name = one_line(name);
    match name.chars().count().saturating_sub(WIDTH) {
        0 => name,
        n_over => std::iter::once('…').chain(name.chars().skip(n_over + 1)).collect(),
    }
}
