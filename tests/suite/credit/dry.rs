//! What a dry run counts: what would really be asked for, and nothing else.

use std::sync::atomic::Ordering;

use serde_json::{Value, json};

use crate::credit::place::{KEEPS, LAST_ONLY, Place, sglang};
use crate::credit::resume::sick_server;

async fn forecast(place: &Place, more: &[&str]) -> Value {
    let arguments = ["--input-dir", "episodes", "--dry-run", "--json"];
    place.run(&[&arguments[..], more].concat()).await.expect(0).json()
}

fn all<'j>(forecast: &'j Value, key: &str) -> Vec<&'j Value> {
    forecast["episodes"].as_array().unwrap().iter().map(|it| &it[key]).collect()
}

fn sum(forecast: &Value, key: &str) -> u64 {
    all(forecast, key).into_iter().map(|it| it.as_u64().unwrap()).sum()
}

/// Requests and scores with a tokenizer and without, which must agree.
async fn check(place: &Place, more: &[&str], expected: (u64, u64), why: &str) {
    for tokenizer in [&[][..], &["--tokenizer", "model"]] {
        let found = forecast(place, &[more, tokenizer].concat()).await;
        assert_eq!((sum(&found, "requests"), sum(&found, "naive_requests")), expected, "{why}: {found}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn only_what_would_be_asked_for_counts() {
    let place = Place::recorded(KEEPS);
    check(&place, &[], (9, 27), "everything").await;
    check(&place, &["--ratio", "lift"], (12, 54), "with a plain score for each step").await;
    check(&place, &["--min-reward", "0.5"], (6, 19), "one episode would be skipped").await;
    let (server, sick) = sick_server(&place).await;
    place.credit(&server, &[]).await.expect(1);
    check(&place, &[], (3, 6), "the second subtask of each").await;
    check(&place, &["--ratio", "lift"], (6, 33), "and all without the lens").await;
    check(&place, &["--placement", "last"], (27, 27), "measured otherwise").await;
    let lines = place.run(&["--input-dir", "episodes", "--dry-run"]).await.expect(0).stdout;
    assert!(
        lines.contains("; partial, would be completed\n    at least 1 requests (each step alone: 2)"),
        "{lines}"
    );
    sick.store(false, Ordering::Relaxed);
    place.credit(&server, &[]).await.expect(0);
    check(&place, &[], (0, 0), "complete").await;
    let done = forecast(&place, &["--tokenizer", "model"]).await;
    let nothing = json!({"naive": 0, "sent": 0, "cached": 0, "computed": 0});
    assert!(all(&done, "tokens").into_iter().all(|it| *it == nothing), "{done}");
    let lines =
        place.run(&["--input-dir", "episodes", "--dry-run", "--tokenizer", "model"]).await.expect(0).stdout;
    let last = "dry run, placement first: 0 of 3 episodes to be scored, 0 requests, 0 tokens sent, 0 computed (each step alone: 0 requests, 0 tokens); nothing was asked\n";
    assert!(lines.ends_with(last) && !lines.contains("    "), "{lines}");
    check(&place, &["--overwrite"], (9, 27), "made again").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_forecast_of_a_partial_episode_is_what_is_sent() {
    let place = Place::recorded(KEEPS);
    let (server, sick) = sick_server(&place).await;
    place.credit(&server, &[]).await.expect(1);
    let found = forecast(&place, &["--tokenizer", "model", "--ratio", "lift"]).await;
    sick.store(false, Ordering::Relaxed);
    server.forget();
    place.credit(&server, &["--ratio", "lift"]).await.expect(0);
    assert_eq!(place.asked(&server).len() as u64, sum(&found, "requests"));
    let sent: usize = place.asked(&server).iter().map(|it| it.ids.len()).sum();
    let planned: u64 = all(&found, "tokens").into_iter().map(|it| it["sent"].as_u64().unwrap()).sum();
    assert_eq!(sent as u64, planned);
    assert_eq!(place.summary()["naive_requests"], sum(&found, "naive_requests"));
}

#[tokio::test(flavor = "multi_thread")]
async fn it_tells_what_a_real_run_would_tell() {
    let place = Place::recorded(KEEPS);
    let session = place.text("episodes/episode_001/pi_session.jsonl");
    let last: Value = serde_json::from_str(session.lines().last().unwrap()).unwrap();
    let aborted = json!({
        "type": "message", "id": "zz", "parentId": last["id"],
        "message": {"role": "assistant", "content": [{"type": "text", "text": "I"}], "stopReason": "aborted"},
    });
    place.write("episodes/episode_001/pi_session.jsonl", &format!("{session}{aborted}\n"));
    let ran = place.run(&["--input-dir", "episodes", "--dry-run"]).await.expect(0);
    let absent = "note: session files hold neither system prompt nor tool schemas, and neither was given (--system-prompt, --tools): actions are re-read without\n";
    assert_eq!(ran.stderr, absent);
    assert!(
        ran.stdout.contains("    note: pi_session.jsonl line ") && ran.stdout.contains("`aborted`"),
        "{}",
        ran.stdout
    );
    let json = forecast(&place, &[]).await;
    assert_eq!(json["episodes"][0]["notes"].as_array().unwrap().len(), 1);
    place.write("system.txt", "Be good.");
    let ran =
        place.run(&["--input-dir", "episodes", "--dry-run", "--system-prompt", "system.txt"]).await.expect(0);
    assert!(
        ran.stderr.ends_with("and no tool schemas were given (--tools): actions are re-read without\n"),
        "{}",
        ran.stderr
    );
    let server = sglang().await;
    place.credit(&server, &[]).await.expect(0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_template_that_makes_steps_need_passes_of_their_own_is_named() {
    let place = Place::empty(LAST_ONLY);
    place.write_talk("episode_001", 30);
    let why = "29 passes more than the 1 its texts need: the template writes a turn otherwise";
    let counted = forecast(&place, &["--tokenizer", "model"]).await;
    let episode = &counted["episodes"][0];
    assert_eq!(episode["requests"], 30, "{counted}");
    assert!(episode["notes"][0].as_str().unwrap().starts_with(why), "{counted}");
    let tokens = |key: &str| episode["tokens"][key].as_u64().unwrap();
    assert!(tokens("computed") * 4 < tokens("sent"), "branches begin in the cached trunk: {counted}");
    let lines = place.run(&["--input-dir", "episodes", "--dry-run"]).await.expect(0).stdout;
    assert!(lines.contains("at least 1 requests"), "{lines}");
    let server = sglang().await;
    let ran = place.credit(&server, &[]).await.expect(0);
    assert!(ran.stderr.contains(why) || ran.stdout.contains(why), "{ran:?}");
    let steady = Place::empty(KEEPS);
    steady.write_talk("episode_001", 30);
    assert_eq!(forecast(&steady, &["--tokenizer", "model"]).await["episodes"][0]["notes"], json!([]));
}
