//! Recorded ids reach the model as they were sampled, whatever a tokenizer would make of their text.

use std::sync::Arc;

use backsight::chat::tokenizer::Tokenizer;
use backsight::episode::{ActionTokens, Episode, Message, Outcome, Role, Task, TokenSource, steps_of};
use backsight::lens::{Lenses, OutcomeLens, Placement, PlainLens, Wording};
use backsight::pipeline::{Framing, outline};
use backsight::pipeline::{ReadStep, Reader, Texts};
use backsight::store::episode_to_json;
use backsight::tokens::{TokenId, TokenSpan};
use backsight::tree::TokenTree;
use proptest::prelude::*;
use serde_json::Map;

use crate::credit::place::{KEEPS, Place, sglang, vllm};

const LENS: &str = "[it went well]";

/// The ids of a text cut into pieces of so many characters and encoded apart, as sampling might have it.
fn sampled(tokenizer: &Tokenizer, text: &str, width: usize) -> Vec<TokenId> {
    let letters: Vec<char> = text.chars().collect();
    let pieces = letters.chunks(width.max(1)).map(|piece| piece.iter().collect::<String>());
    pieces.flat_map(|piece| tokenizer.encode(&piece).unwrap().ids).collect()
}

/// An episode that alternates user and assistant, with its exact ids; `framed` has a system prompt in the ids only.
fn episode(tokenizer: &Tokenizer, turns: &[(String, String, usize)], framed: bool) -> Episode {
    let encode = |text: &str| tokenizer.encode(text).unwrap().ids;
    let mut ids = if framed { encode("<|im_start|>system\nhidden<|im_end|>\n") } else { Vec::new() };
    let (mut messages, mut spans) = (Vec::new(), Vec::new());
    for (asked, answered, width) in turns {
        ids.extend(encode(&format!("<|im_start|>user\n{asked}<|im_end|>\n<|im_start|>assistant\n")));
        let action = [sampled(tokenizer, answered, *width), encode("<|im_end|>")].concat();
        spans.push(TokenSpan::at(ids.len(), action.len()));
        ids.extend(action);
        ids.extend(encode("\n"));
        messages.push(Message::text(Role::User, asked.as_str()));
        messages.push(Message::text(Role::Assistant, answered.as_str()));
    }
    let task = Task { id: "t".into(), prompt: String::new(), difficulty: None };
    let mut episode = Episode::new("exact", task, messages);
    episode.outcome = Ok(Outcome { reward: 1.0, components: Vec::new() });
    (episode.sequences, episode.token_source) = (vec![ids], TokenSource::Exact);
    let mut steps = steps_of(&episode.messages);
    for (step, span) in steps.iter_mut().zip(spans) {
        step.tokens = Some(ActionTokens { sequence: 0, span, logprobs: vec![], top: vec![] });
    }
    episode.set_steps(steps).unwrap();
    episode
}

fn texts(place: &Place) -> Texts {
    Texts::open(&place.path("model"), Arc::new(place.tokenizer()), None, &Map::new()).unwrap()
}

/// Whether `part` stands in `whole` at or behind `from`; gives where it ends.
fn find(whole: &[TokenId], part: &[TokenId], from: usize) -> Option<usize> {
    whole[from..].windows(part.len()).position(|it| it == part).map(|at| from + at + part.len())
}

fn check_step(
    episode: &Episode,
    nth: usize,
    (step, tree): (&ReadStep, &TokenTree),
    tokenizer: &Tokenizer,
    limit: usize,
) {
    let action =
        |nth: usize| &episode.sequences[0][episode.steps()[nth].tokens.as_ref().unwrap().span.range()];
    let own = episode.steps()[nth].tokens.as_ref().unwrap().span;
    let views: Vec<_> = step.views.iter().map(|view| view.seen.as_ref().unwrap()).collect();
    for seen in &views {
        let sent = tree.tokens(seen.tip, seen.n_context..seen.tip.len());
        assert_eq!(sent, action(nth), "the action is sent as it was sampled");
        assert!(seen.tip.len() <= limit);
    }
    let [lens, plain] = [0, 1].map(|it| tree.tokens(views[it].tip, 0..views[it].n_context));
    let (seen, was) = (tokenizer.decode(&lens).unwrap(), tokenizer.decode(&plain).unwrap());
    assert_eq!(seen.replacen(&format!("\n\n{LENS}"), "", 1), was, "the lens is all that is added");
    let dropped = &step.window.dropped;
    if dropped.is_empty() {
        assert_eq!(plain, episode.sequences[0][..own.start()]);
    }
    let mut from = 0;
    for before in (0..nth).filter(|it| !dropped.contains(&(2 * it + 1))) {
        // Earlier actions stay as they were sampled.
        from = find(&lens, action(before), from).unwrap();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn the_ids_sent_contain_the_action_unchanged(
        turns in prop::collection::vec(("[a-z ]{1,20}", "[a-z\\n .]{1,20}", 1_usize..6), 1..6),
        framed in any::<bool>(), last in any::<bool>(), limit in prop::option::of(40_usize..200),
    ) {
        let place = Place::empty(KEEPS);
        let (texts, tokenizer, framing) = (texts(&place), place.tokenizer(), Framing::default());
        let episode = episode(&tokenizer, &turns, framed);
        let placement = if last { Placement::Last } else { Placement::First };
        let lens = OutcomeLens { template: Wording::parse(LENS).unwrap(), placement };
        let lenses = Lenses::default().and(Arc::new(lens), 0).and(Arc::new(PlainLens), 0);
        let reader = Reader { texts: &texts, framing: &framing, limit };
        let outline = outline(&episode, &framing, &lenses, &|text| texts.n_tokens(text)).unwrap();
        let read = reader.read(&episode, &outline);
        let sequences: Vec<_> = read.sequences.iter().map(|tip| read.tree.all(*tip)).collect();
        prop_assert_eq!((read.source, &sequences), (TokenSource::Exact, &episode.sequences));
        for (nth, step) in read.steps.iter().enumerate() {
            match step {
                Ok(step) if step.views.iter().all(|view| view.seen.is_ok()) => {
                    check_step(&episode, nth, (step, &read.tree), &tokenizer, limit.unwrap_or(usize::MAX));
                }
                Ok(_) => prop_assert!(limit.is_some() || framed),
                // Without the system prompt in its messages, a first message that occurs twice is not certain.
                Err(loss) => prop_assert!(limit.is_some() || framed, "{}", loss),
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_with_exact_ids_is_scored_on_them() {
    let place = Place::empty(KEEPS);
    let turns = [("count to two", "one two", 1), ("and further", "three\nfour", 2)];
    let turns = turns.map(|(asked, answered, width)| (asked.to_owned(), answered.to_owned(), width));
    let episode = episode(&place.tokenizer(), &turns, false);
    place.write("episodes/exact.json", &episode_to_json(&episode).unwrap().to_string());
    for (server, placement) in [(sglang().await, "first"), (vllm().await, "last")] {
        place.credit(&server, &["--overwrite", "--placement", placement]).await.expect(0);
        let of = if placement == "first" { "" } else { ".outcome-last" };
        let tokens = place.json(&format!("episodes/.backsight/episodes/exact/hindsight_tokens{of}.json"));
        assert_eq!(
            (&tokens["tokens"], &tokens["sequences"]),
            (&"exact".into(), &serde_json::json!(episode.sequences))
        );
        for step in episode.steps() {
            let action = &episode.sequences[0][step.tokens.as_ref().unwrap().span.range()];
            assert!(place.asked(&server).iter().any(|it| find(&it.ids, action, 0).is_some()));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_changes_nothing_is_not_written_down() {
    let (place, server) = (Place::empty(KEEPS), sglang().await);
    let turns = [("count to two".to_owned(), "one two".to_owned(), 1)];
    let episode = episode(&place.tokenizer(), &turns, false);
    place.write("episodes/exact.json", &episode_to_json(&episode).unwrap().to_string());
    place.credit(&server, &[]).await.expect(0);
    let (made, n_asked) = (place.made(), server.asked().len());
    place.write("system.txt", "You are careful.");
    place.write("tools.json", "[{\"type\": \"function\", \"function\": {\"name\": \"hammer\"}}]");
    let framed = [
        "--system-prompt",
        "system.txt",
        "--tools",
        "tools.json",
        "--var",
        "a=b",
        "--reread-result-chars",
        "9",
    ];
    let kept = place.credit(&server, &framed).await.expect(0);
    assert!(!kept.stderr.contains("other settings"), "{}", kept.stderr);
    let ran = place.credit(&server, &[&framed[..], &["--overwrite"]].concat()).await.expect(0);
    let note =
        "--system-prompt, --tools, --var, --reread-result-chars change nothing: its tokens are recorded";
    assert!(ran.stderr.contains(note), "{}", ran.stderr);
    assert_eq!(place.made(), made);
    assert!(place.asked(&server).len() <= n_asked, "nothing else was sent");
    let talk = serde_json::json!({
        "id": "own", "reward": 1, "tools": [{"type": "function", "function": {"name": "saw"}}],
        "messages": [{"role": "system", "content": "Be quick."}, {"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}],
    });
    place.write("talks.jsonl", &talk.to_string());
    let (url, own) = (server.url(), ["--episodes", "talks.jsonl", "--tokenizer", "model"]);
    place.run(&[&own[..], &["--url", &url], &framed[..]].concat()).await.expect(0);
    let provenance = &place.json(".backsight/episodes/own/hindsight_scores.json")["provenance"];
    let written = ["system_sha256", "tools_sha256", "vars_sha256", "tool_result_chars"]
        .map(|key| !provenance[key].is_null());
    assert_eq!(
        written,
        [false, false, true, true],
        "it has a system prompt and tools of its own: {provenance}"
    );
}
