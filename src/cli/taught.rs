//! The distilled part of `quickstart`: two live episodes are judged by the model that ran them, and re-read by it under
//! its own hints.
//!
//! It is `distill` with a configuration made for a very small model, whose votes are forced into form.

use std::path::Path;

use serde_json::Value;

use super::call::Call;
use super::distill::{self, Asked};
use super::failure::Failure;
use super::output::{clipped, number};
use crate::config::Typed;
use crate::pipeline::distill::{STUDENT, file_of};
use crate::ship::compact::{ActionRows, read};
use crate::store::RunReader;
use crate::store::layout::EPISODES;
use backsight_chat::tokenizer::Tokenizer;
use backsight_core::credit::distill::Row;
use backsight_core::tokens::{Logprob, TopK};

/// The episodes, one of each task.
const JUDGED: [&str; 2] = ["fizzbuzz-0", "palindrome-0"];
/// What a very small model can do in a few seconds.
const KEYS: [(&str, &str); 6] = [
    ("kind", "embedded"),
    ("prm_votes", "1"),
    ("judge_structured", "true"),
    ("judge_answer_tokens", "160"),
    ("distill_topk", "20"),
    ("allow_rendered", "false"),
];
/// How many of the most changed tokens are shown, and how many candidates of each side.
const N_TOKENS: usize = 5;
const N_CANDIDATES: usize = 3;
/// How much of a hint is shown.
const HINT_WIDTH: usize = 100;
/// What must be known to read it.
const HEAD: &str = "\
Distilled: the same model judges two of these episodes, its answers forced into form, and then reads its own tokens again
as if it had known the hint. A model this small says nothing useful; what is shown is how it works.
gap: the logprob of the student's own token under the hint, minus the one without it
";

/// Distils two of the live episodes, and tells what came of it.
pub(super) fn run(model: &Path, dir: &Path) -> Result<String, Failure> {
    let mut typed: Typed = KEYS.iter().map(|(key, word)| (*key, vec![(*word).to_owned()])).collect();
    let file = |id: &&str| dir.join(EPISODES).join(format!("{id}.json")).display().to_string();
    typed.insert("episodes", JUDGED.iter().map(file).collect());
    typed.insert("run", vec![dir.display().to_string()]);
    typed.insert("model", vec![model.display().to_string()]);
    let call = Call::of("distill", "", &typed)?;
    let (summary, done) = distill::distilled(&call, Asked::read(&call)?)?;
    if done.stopped.is_some() {
        return distill::verdict(&summary, &done).map(|()| String::new());
    }
    let tokenizer = Tokenizer::open(model)?;
    let mut text = HEAD.to_owned();
    for id in JUDGED {
        text.push_str(&told(dir, id, &tokenizer));
    }
    let files = ["groups.jsonl", "groups.safetensors", "verdicts.jsonl"]
        .map(|name| dir.join(name).display().to_string());
    text.push_str(&format!("\n{}\n{}\n", distill::table::table(&summary), files.join("\n")));
    Ok(text)
}

/// The hints of an episode, and the tokens they change most.
fn told(dir: &Path, id: &str, tokenizer: &Tokenizer) -> String {
    let Ok(distilled) = read(&file_of(dir, id)) else { return format!("\n{id}  not distilled\n") };
    let (verdicts, episode) = (RunReader::new(dir).verdicts(), RunReader::new(dir).episode(id));
    let mut text = format!("\n{id}\n");
    for (lens, actions) in distilled.rows.iter().filter(|(lens, _)| *lens != STUDENT) {
        for action in actions {
            let verdict = verdicts.iter().rfind(|it| it["episode"] == id && it["step"] == action.step);
            let hint = verdict.and_then(|it| it["hint"].as_str()).unwrap_or_default();
            text.push_str(&format!("  step {}, {lens}: {}\n", action.step, clipped(hint, HINT_WIDTH)));
            // What it said while it sampled, or when it read the action again.
            let again = distilled.rows.get(STUDENT).into_iter().flatten().find(|it| it.step == action.step);
            let sampled = episode.as_ref().and_then(|it| it.steps().get(action.step)?.tokens.as_ref());
            let own = |at: usize| match again.and_then(|it| it.rows.get(at)?.as_ref()) {
                Some(row) => Some(&row.top),
                None => sampled?.top.get(at),
            };
            text.push_str(&changed(action, &own, tokenizer));
        }
    }
    match distilled.about["counts"]["hints"].as_u64() {
        Some(0) | None => format!("{text}  no hint that counts\n"),
        Some(_) => text,
    }
}

/// The tokens that change most, with both sides' candidates.
fn changed<'a>(
    action: &'a ActionRows,
    own: &dyn Fn(usize) -> Option<&'a TopK>,
    tokenizer: &Tokenizer,
) -> String {
    let rows = action.rows.iter().enumerate().filter_map(|(at, row)| Some((at, row.as_ref()?)));
    let mut rows: Vec<(usize, &Row)> = rows.collect();
    let size = |row: &Row| row.gap.unwrap_or(0.0).abs();
    rows.sort_by(|a, b| size(b.1).total_cmp(&size(a.1)));
    rows.truncate(N_TOKENS);
    rows.sort_by_key(|(at, _)| *at);
    let side = |top: Option<&TopK>| {
        let entries = top.into_iter().flat_map(|it| it.entries().iter().take(N_CANDIDATES));
        let entry =
            |(id, logprob): &(u32, Logprob)| format!("{} {:.2}", quoted(*id, tokenizer), logprob.get().exp());
        entries.map(entry).collect::<Vec<_>>().join("  ")
    };
    let line = |(at, row): &(usize, &Row)| {
        let gap = number(row.gap);
        let (token, own, taught) = (quoted(row.id, tokenizer), side(own(*at)), side(Some(&row.top)));
        format!("    {token:<14} gap {gap:>7}   student: {own}   teacher: {taught}\n")
    };
    rows.iter().map(line).collect()
}

fn quoted(id: u32, tokenizer: &Tokenizer) -> String {
    let text = tokenizer.decode(&[id]).unwrap_or_default();
    clipped(&Value::String(text).to_string(), 14)
}
