//! What scoring a long episode costs, planned and in the published way, counted under SGLang's cache rule.
//!
//! The token figures are those of a real tokenizer: `BACKSIGHT_TOKENIZERS` names a directory with `qwen3/`, which
//! `tests/get-tokenizers` fetches, and `BACKSIGHT_REQUIRE_REAL=1` makes its absence a failure.
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "tests fail by panicking, and this one shows its figures"
)]

#[path = "../../benches/support/synthetic.rs"]
mod synthetic;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use backsight::chat::incremental::Incremental;
use backsight::chat::messages::{arguments_text, list_from_json};
use backsight::chat::tokenizer::Tokenizer;
use backsight::episode::{Episode, Message, Role};
use backsight::lens::{OUTCOME_TEMPLATE, OutcomeFacts, Placement, Wording, target, write};
use backsight::model::Limits;
use backsight::plan::{Figures, plan};
use backsight::score::ScoreJob;
use backsight::store::episodes::load_directory;
use backsight::subtasks::{PlanPlaces, places};
use backsight::tokens::{TokenId, TokenSpan};
use backsight::wire::published;
use serde_json::Value;

/// A message in ChatML, with calls and results as Qwen models write them.
fn chatml(message: &Message) -> String {
    let text = message.content.as_ref().map(|content| content.text()).unwrap_or_default();
    let body = match message.role {
        Role::Tool => format!("<tool_response>\n{text}\n</tool_response>"),
        _ => text,
    };
    let role = if message.role == Role::Tool { "user" } else { message.role.name() };
    format!("<|im_start|>{role}\n{}{body}{}<|im_end|>\n", thinking(message), calls(message))
}

fn thinking(message: &Message) -> String {
    message.reasoning.as_ref().map(|it| format!("<think>\n{it}\n</think>\n\n")).unwrap_or_default()
}

fn calls(message: &Message) -> String {
    let call = |call: &backsight::episode::ToolCall| {
        let (name, arguments) = (&call.name, arguments_text(&call.arguments));
        format!("\n<tool_call>\n{{\"name\": \"{name}\", \"arguments\": {arguments}}}\n</tool_call>")
    };
    message.tool_calls.iter().map(call).collect()
}

const HEADER: &str = "<|im_start|>assistant\n";

/// The job of one step: its context with the lens in it, and its action.
fn job(
    encoder: &mut Incremental<'_>,
    before: &[Message],
    action: &Message,
    lens: &str,
    placement: Placement,
) -> ScoreJob {
    let mut seen = before.to_vec();
    let target = target(before, placement).unwrap();
    write(&mut seen[target], lens);
    let context: String = seen.iter().map(chatml).collect();
    let start = encoder.encode(&(context.clone() + HEADER)).unwrap().len();
    let full = context + &chatml(action);
    let ids = encoder.encode(full.trim_end()).unwrap();
    let span = TokenSpan::new(start, ids.len()).unwrap();
    ScoreJob::new(Arc::from(ids), vec![span], 0).unwrap()
}

fn jobs(episode: &Episode, tokenizer: &Tokenizer, placement: Placement) -> Vec<ScoreJob> {
    let PlanPlaces { steps, completed } =
        places(&episode.messages, &episode.failed_results, &episode.progress);
    let template = Wording::parse(OUTCOME_TEMPLATE).unwrap();
    let reward = episode.outcome.as_ref().unwrap().reward;
    let mut encoder = Incremental::new(tokenizer);
    let lens =
        |place| template.render(&OutcomeFacts::new(reward, &episode.progress, completed, place)).unwrap();
    let all = episode.steps().iter().zip(&steps).map(|(step, place)| {
        let (before, action) = episode.messages.split_at(step.message_idx);
        job(&mut encoder, before, &action[0], &lens(place), placement)
    });
    all.collect()
}

/// Everything ever computed, found up to the token before the first scored one.
#[derive(Default)]
struct RadixCache {
    known: Vec<Vec<TokenId>>,
    sent: u64,
    computed: u64,
}

impl RadixCache {
    fn send(&mut self, ids: &[TokenId], start: usize) {
        let common = |known: &Vec<TokenId>| known.iter().zip(ids).take_while(|(a, b)| a == b).count();
        let found = self.known.iter().map(common).max().unwrap_or(0);
        self.sent += ids.len() as u64;
        self.computed += (ids.len() - found.min(start).min(ids.len() - 1)) as u64;
        self.known.push(ids.to_vec());
    }
}

/// The published way at its defaults: a request a step, the outcome in the first message, 32,768 tokens of
/// context of which the tail slides, 2,048 tokens of an action scored.
fn published_cost(directory: &Path, episode: &Episode, tokenizer: &Tokenizer) -> RadixCache {
    let session = std::fs::read_to_string(directory.join("pi_session.jsonl")).unwrap();
    let messages = published::messages_by_line(&session, published::MAX_TOOL_RESULT_CHARS).unwrap();
    let messages = messages.into_iter().map(|(_, message)| message).collect();
    let messages = list_from_json(&Value::Array(messages)).unwrap();
    let template = Wording::parse(include_str!("../fixtures/hcapo/hindsight_template.txt")).unwrap();
    let PlanPlaces { steps, completed } = places(&messages, &[], &episode.progress);
    let reward = episode.outcome.as_ref().unwrap().reward;
    let marker = "\n\n[... earlier trajectory context truncated; hindsight outcome preserved above ...]\n\n";
    let marker = tokenizer.encode(marker).unwrap().ids;
    let mut encoder = Incremental::new(tokenizer);
    let mut cache = RadixCache::default();
    let actions = messages.iter().enumerate().filter(|(_, message)| message.role == Role::Assistant);
    for ((idx, action), place) in actions.zip(&steps) {
        let lens = template.render(&OutcomeFacts::new(reward, &episode.progress, completed, place)).unwrap();
        let mut seen = messages[..idx].to_vec();
        write(&mut seen[0], &lens);
        let anchor = tokenizer.encode(&chatml(&seen[0])).unwrap().ids;
        let context: String = seen.iter().map(chatml).collect();
        let prefix = encoder.encode(&(context.clone() + HEADER)).unwrap().to_vec();
        let full = encoder.encode(&(context + &chatml(action))).unwrap();
        let action = &full[prefix.len()..];
        let room = 32_768 - action.len();
        let prefix = match full.len() > 32_768 {
            true => {
                [&anchor, &marker, &prefix[prefix.len() - (room - anchor.len() - marker.len())..]].concat()
            }
            false => prefix,
        };
        let start = prefix.len() + action.len().saturating_sub(2048);
        cache.send(&[&prefix, action].concat(), start);
    }
    cache
}

/// Sends a plan's requests in order and checks that the cache does what the plan expects.
fn planned_cost(jobs: &[ScoreJob]) -> Figures {
    let plan = plan(jobs, &Limits::CACHING);
    let mut cache = RadixCache::default();
    for ask in (0..plan.requests.len()).filter_map(|request| plan.ask(request)) {
        cache.send(ask.tokens(), ask.first_needed().unwrap() - 1);
    }
    assert_eq!((cache.sent, cache.computed), (plan.figures.sent_tokens, plan.figures.computed_tokens()));
    plan.figures
}

fn real_tokenizer(name: &str) -> Option<PathBuf> {
    let found = std::env::var_os("BACKSIGHT_TOKENIZERS").map(|root| PathBuf::from(root).join(name));
    let found = found.filter(|path| path.join("tokenizer.json").exists());
    let required = std::env::var_os("BACKSIGHT_REQUIRE_REAL").is_some();
    assert!(
        found.is_some() || !required,
        "BACKSIGHT_REQUIRE_REAL is set, but BACKSIGHT_TOKENIZERS has no {name}"
    );
    found
}

fn synthetic_episode(root: &Path, shape: &synthetic::Shape) -> (PathBuf, Episode) {
    let directory = root.join("episode_001");
    synthetic::write(&directory, shape).unwrap();
    let episode = load_directory(&directory).unwrap().episode;
    (directory, episode)
}

#[test]
fn the_synthetic_episode_has_its_shape_and_is_the_same_every_time() {
    let root = tempfile::tempdir().unwrap();
    let (directory, episode) = synthetic_episode(root.path(), &synthetic::Shape::default());
    let PlanPlaces { steps, completed } = places(&episode.messages, &[], &episode.progress);
    let groups: BTreeSet<_> = steps.iter().map(|place| place.subtask.clone()).collect();
    assert_eq!((steps.len(), groups.len(), completed), (101, 6, 5));
    let session = std::fs::read_to_string(directory.join("pi_session.jsonl")).unwrap();
    assert_eq!(session, synthetic::episode(&synthetic::Shape::default()).session);
    let other = synthetic::Shape { seed: 2, ..synthetic::Shape::default() };
    assert_ne!(session, synthetic::episode(&other).session);
}

#[test]
fn the_small_episode_fits_a_small_context() {
    let Some(path) = real_tokenizer("smollm2") else { return };
    let tokenizer = Tokenizer::open(&path).unwrap();
    let root = tempfile::tempdir().unwrap();
    let (_, episode) = synthetic_episode(root.path(), &synthetic::Shape::SMALL);
    let PlanPlaces { steps, .. } = places(&episode.messages, &[], &episode.progress);
    let groups: BTreeSet<_> = steps.iter().map(|place| place.subtask.clone()).collect();
    assert_eq!((steps.len(), groups.len()), (30, 4));
    for placement in [Placement::First, Placement::Last] {
        let jobs = jobs(&episode, &tokenizer, placement);
        let longest = jobs.iter().map(|job| job.tokens().len()).max().unwrap();
        let n_action_tokens: usize = jobs.iter().map(|job| job.spans()[0].len()).sum();
        println!("{placement:?}: longest {longest}, mean action {}", n_action_tokens / 30);
        // Other renderings write calls in more words.
        assert!((3_000..3_900).contains(&longest), "{longest}");
    }
}

#[test]
fn a_long_episode_costs_a_fraction() {
    let Some(path) = real_tokenizer("qwen3") else { return };
    let tokenizer = Tokenizer::open(&path).unwrap();
    let root = tempfile::tempdir().unwrap();
    let (directory, episode) = synthetic_episode(root.path(), &synthetic::Shape::default());
    let published = published_cost(&directory, &episode, &tokenizer);
    let last_jobs = jobs(&episode, &tokenizer, Placement::Last);
    let (first, last) =
        (planned_cost(&jobs(&episode, &tokenizer, Placement::First)), planned_cost(&last_jobs));
    let n_action_tokens: usize = last_jobs.iter().map(|job| job.spans()[0].len()).sum();
    println!(
        "tokens of the last step {}, of a mean action {}",
        last_jobs[100].tokens().len(),
        n_action_tokens / 101
    );
    println!("published: sent {} computed {}", published.sent, published.computed);
    println!("first: {first:?} computed {}", first.computed_tokens());
    println!("last: {last:?} computed {}", last.computed_tokens());
    assert!(first.requests <= 10);
    assert!(published.computed as f64 / first.computed_tokens() as f64 >= 7.0);
    assert!(published.computed as f64 / last.computed_tokens() as f64 >= 16.0);
}
