//! Other lenses than the outcome, and more than one: what is asked for, what it costs, and where it is seen.

use serde_json::{Value, json};

use crate::credit::place::{KEEPS, Place, Ran, sglang};
use crate::support::stand_in::StandIn;

/// What was asked for, as text.
fn texts(place: &Place, server: &StandIn) -> Vec<String> {
    let tokenizer = place.tokenizer();
    place.asked(server).iter().map(|asked| tokenizer.decode(&asked.ids).unwrap()).collect()
}

fn hints(place: &Place, rows: &[Value]) {
    let lines: Vec<String> = rows.iter().map(Value::to_string).collect();
    place.write("hints.jsonl", &lines.join("\n"));
}

async fn refused(place: &Place, server: &StandIn, more: &[&str]) -> Ran {
    place.credit(server, more).await.expect(2)
}

#[tokio::test(flavor = "multi_thread")]
async fn another_ratio_on_scored_episodes_asks_only_for_what_it_lacks() {
    let (place, server) = (Place::recorded(KEEPS), sglang().await);
    place.credit(&server, &[]).await.expect(0);
    server.forget();
    place.credit(&server, &["--ratio", "lift"]).await.expect(0);
    let asked = texts(&place, &server);
    assert_eq!(asked.len(), 3, "a plain pass for each episode");
    assert!(asked.iter().all(|text| !text.contains("[Hindsight")), "{asked:?}");
    let afresh = Place::recorded(KEEPS);
    afresh.credit(&server, &["--ratio", "lift"]).await.expect(0);
    assert_eq!(place.made(), afresh.made(), "as if it had been asked for at once");
    server.forget();
    place.credit(&server, &["--ratio", "lift"]).await.expect(0);
    assert_eq!(place.asked(&server).len(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hint_is_seen_at_its_own_step_alone() {
    let (place, server) = (Place::recorded(KEEPS), sglang().await);
    let id = place.json("episodes/episode_001/result.json")["episode_id"].clone();
    let id = id.as_str().map_or_else(|| "episode_001".to_owned(), str::to_owned);
    let exchange =
        json!([{"role": "user", "content": "what first?"}, {"role": "assistant", "content": "read it"}]);
    hints(
        &place,
        &[
            json!({"episode_id": id, "step_idx": 1, "hint": "look before you leap"}),
            json!({"episode_id": id, "step_idx": 2, "messages": exchange}),
        ],
    );
    let more = ["--lens", "hint", "--hints", "hints.jsonl"];
    let ran = place.credit(&server, &more).await.expect(1);
    assert!(ran.stderr.contains("the lens has nothing to say about this step"), "{}", ran.stderr);
    let asked = texts(&place, &server);
    let said = |words: &str| asked.iter().filter(|text| text.contains(words)).count();
    assert_eq!(said("\n\n[user's hint / instruction]\nlook before you leap<|im_end|>"), 1, "{asked:?}");
    assert_eq!(said("what first?<|im_end|>\n<|im_start|>assistant\nread it<|im_end|>\n<|im_start|>user"), 1);
    let tokens = place.json("episodes/episode_001/hindsight_tokens.hint-last_user.json");
    assert_eq!(tokens["lenses"], json!(["hint-last_user"]));
    let scored = |step: usize| !tokens["steps"][step]["logprobs"][0].is_null();
    assert_eq!([0, 1, 2, 3].map(scored), [false, true, true, false]);
    assert_eq!(place.scores("episode_001")["provenance"]["lens"], "hint");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_placebo_stands_where_the_outcome_would_and_is_as_long() {
    let (place, server) = (Place::recorded(KEEPS), sglang().await);
    place.credit(&server, &["--overwrite"]).await.expect(0);
    let outcome = texts(&place, &server);
    server.forget();
    place.credit(&server, &["--lens", "placebo", "--overwrite"]).await.expect(0);
    let placebo = texts(&place, &server);
    assert!(
        !placebo.is_empty() && placebo.len() <= outcome.len(),
        "steps that share an outcome share its placebo"
    );
    assert!(placebo.iter().all(|text| !text.contains("reward")), "{placebo:?}");
    let tokenizer = place.tokenizer();
    let longest =
        |texts: &[String]| texts.iter().map(|text| tokenizer.encode(text).unwrap().ids.len()).max().unwrap();
    let (with, without) = (longest(&outcome), longest(&placebo));
    assert!(with.abs_diff(without) * 20 < with, "{with} tokens with the outcome, {without} with the placebo");
    let first = place.made();
    place.credit(&server, &["--lens", "placebo", "--overwrite"]).await.expect(0);
    assert_eq!(place.made(), first, "the same seed says the same");
    place.credit(&server, &["--lens", "placebo", "--seed", "1", "--overwrite"]).await.expect(0);
    assert_ne!(place.made(), first);
}

#[tokio::test(flavor = "multi_thread")]
async fn lenses_that_lack_something_are_refused_before_anything_is_asked() {
    let (place, server) = (Place::recorded(KEEPS), sglang().await);
    let ran = refused(&place, &server, &["--lens", "hint"]).await;
    assert!(ran.stderr.contains("--hints FILE"), "{}", ran.stderr);
    let ran = refused(&place, &server, &["--placement", "turns"]).await;
    assert!(ran.stderr.contains("the lens outcome cannot be written"), "{}", ran.stderr);
    hints(&place, &[json!({"episode_id": "a", "step_idx": 3, "hint": "look"})]);
    let turns = ["--lens", "hint", "--hints", "hints.jsonl", "--placement", "turns"];
    let ran = refused(&place, &server, &turns).await;
    assert!(ran.stderr.contains("the hint for step 3 of a is in words"), "{}", ran.stderr);
    place.write("hints.jsonl", "{\"episode_id\": \"a\"}\n");
    let ran = refused(&place, &server, &["--lens", "hint", "--hints", "hints.jsonl"]).await;
    assert!(ran.stderr.contains("hints.jsonl line 1: missing field `step_idx`"), "{}", ran.stderr);
    assert_eq!(place.asked(&server).len(), 0);
}
