//! What distilling came to, for people.

use serde_json::Value;

use crate::cli::output::one_line;
use crate::store::summary::Summary;

/// What there is now, in a few lines.
pub(in crate::cli) fn table(summary: &Summary) -> String {
    let made = |what| summary.made(what);
    let mut text = format!(
        "episodes   {} distilled, {} kept, {} lost, {} left\n",
        made("episodes"),
        made("kept_episodes"),
        summary.lost("episodes"),
        summary.left
    );
    let number = |value: &Value| value.as_f64().map_or_else(|| "-".to_owned(), |it| format!("{it:.3}"));
    let more = |key: &str| summary.more.get(key).unwrap_or(&Value::Null);
    let votes = more("votes");
    text.push_str(&format!(
        "votes      {} asked: {} for a hint, {} against, {} unreadable, {} failed; agreement {}\n",
        votes["asked"],
        votes["for"],
        votes["against"],
        votes["unreadable"],
        votes["failed"],
        number(&votes["agreement"])
    ));
    let leaks = more("leaks");
    text.push_str(&format!(
        "hints      {} of {} pairs; {} dropped that repeat the next state, {} hidden tests\n",
        made("hints"),
        more("pairs"),
        leaks["next_state"],
        leaks["tests"]
    ));
    if let Some(n) = more("exchanges_unreadable").as_u64().filter(|n| *n > 0) {
        text.push_str(&format!(
            "exchanges  {n} of the judge's cannot be read, so their hints are shown to nobody\n"
        ));
    }
    for (lens, gap) in more("gap").as_object().into_iter().flatten() {
        text.push_str(&format!(
            "gap        {lens}: {} tokens, mean {} ± {}, {} of them beyond 1 nat, {} on the first two tokens\n",
            gap["tokens"], number(&gap["mean"]), number(&gap["spread"]), number(&gap["share_above_1"]),
            number(&gap["share_opening"])
        ));
    }
    text.push_str(&format!(
        "groups     {} with {} episodes, {} trained tokens, {} with targets\n",
        made("groups"),
        made("shipped_episodes"),
        made("trained_tokens"),
        made("shipped_tokens")
    ));
    for (what, reasons) in &summary.lost {
        for (why, n) in reasons {
            text.push_str(&format!("lost       {n} {what}: {}\n", one_line(why)));
        }
    }
    for (role, paid) in &summary.paid {
        text.push_str(&format!(
            "paid       {}: {} requests, {} tokens sent ({} of them cached), {} sampled\n",
            role.name(),
            paid.requests,
            paid.prompt_tokens,
            paid.cached_tokens,
            paid.completion_tokens
        ));
    }
    text.push_str(&format!("seconds    {:.1}\n", summary.seconds));
    text
}
