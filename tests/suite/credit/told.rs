//! What is told, to people and to machines, and what is refused with which words.

use serde_json::{Value, json};

use crate::credit::place::{KEEPS, Place, Ran, finish, sglang, vllm};
use crate::support::hub_stand_in::{plain, stand_in};

/// Every line of talk as an event.
fn events(ran: &Ran) -> Vec<Value> {
    let event = |line: &str| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
    let events: Vec<Value> = ran.stderr.lines().map(event).collect();
    assert!(events.iter().all(|it| it["time"].is_number() && it["event"].is_string()), "{events:?}");
    events
}

fn names(events: &[Value]) -> Vec<&str> {
    events.iter().map(|it| it["event"].as_str().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn with_json_all_talk_is_events() {
    let (place, server) = (Place::recorded(KEEPS), sglang().await);
    place.write("episodes/episode_004/result.json", "{}");
    let here = ["--input-dir", "episodes", "--json"];
    let dry = place.run(&[&here[..], &["--dry-run"]].concat()).await.expect(1);
    assert_eq!(names(&events(&dry)), ["note", "lost", "error"]);
    let ran = place.credit(&server, &["--json"]).await.expect(1);
    let told = events(&ran);
    let told = names(&told);
    let first = |name: &str| told.iter().position(|it| *it == name).unwrap();
    assert!(
        first("note") < first("begun") && first("reading") < first("begun") && told.last() == Some(&"error"),
        "{told:?}"
    );
    std::fs::remove_file(place.path("episodes/episode_003/hindsight_tokens.json")).unwrap();
    let again = ["--recompute", "--max-logprob-tokens", "3"];
    let ran = place.run(&[&here[..], &again].concat()).await.expect(1);
    assert_eq!(names(&events(&ran)), ["lost", "ended", "error"]);
    assert_eq!(ran.stdout.lines().count(), 2);
    let refused = place.run(&here).await.expect(2);
    let told = events(&refused);
    assert_eq!((names(&told), &told[0]["code"]), (vec!["error"], &json!(2)));
    assert!(told[0]["help"].as_str().unwrap().contains("--url"), "{told:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn lines_that_cannot_be_read_have_names() {
    let (place, server) = (Place::empty(KEEPS), vllm().await);
    let talk = json!({"messages": [{"role": "user", "content": "count"}, {"role": "assistant", "content": "1"}], "reward": 1});
    place.write("talks.jsonl", &format!("{talk}\nnothing\n"));
    place.write("episodes/episode_7/result.json", "{}");
    let url = server.url();
    let ran =
        place.run(&["--episodes", "talks.jsonl", "--url", &url, "--tokenizer", "model"]).await.expect(1);
    let row = |name: &str| {
        ran.stdout.lines().any(|line| line.starts_with(name) && line.ends_with("lost: unreadable"))
    };
    assert!(row("talks.jsonl:2 "), "{}", ran.stdout);
    let ran = place.credit(&server, &[]).await.expect(1);
    assert!(ran.stdout.lines().any(|line| line.starts_with("episode_7 ")), "{}", ran.stdout);
}

/// Refused with these words, and with one piece of advice.
async fn refused(place: &Place, arguments: &[&str], expected: &str) {
    let ran = place.run(arguments).await.expect(2);
    assert!(ran.stderr.contains(expected), "{arguments:?}: {}", ran.stderr);
    assert!(ran.stderr.matches("help: ").count() <= 1, "{arguments:?}: {}", ran.stderr);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_makes_no_sense_is_refused_with_its_reason() {
    let place = Place::recorded(KEEPS);
    let here = ["--input-dir", "episodes", "--dry-run"];
    for (flag, value, why) in [
        ("--t-temp", "0", "which is not a number above 0"),
        ("--t-temp", "-1", "which is not a number above 0"),
        ("--gamma", "1.5", "which is not a number from 0 to 1"),
        ("--alpha", "2", "which is not a number from 0 to 1"),
        ("--c-min", "1.3", "the least ratio --c-min 1.3 is above the largest --c-max 1.2"),
        ("--c-max", "0.5", "the least ratio --c-min 0.8 is above the largest --c-max 0.5"),
    ] {
        refused(&place, &[&here[..], &[&format!("{flag}={value}")]].concat(), why).await;
    }
    place.write("empty.txt", "\n");
    place.write("wrong.jinja", "told\n{{ rewrad }}");
    let with = |file: &'static str| [&here[..], &["--hindsight-template", file]].concat();
    refused(&place, &with("empty.txt"), "empty.txt: the template is empty\n").await;
    refused(&place, &with("wrong.jinja"), "wrong.jinja: unknown name `rewrad`; the names are reward, ").await;
    place.write("empty.jsonl", "");
    place.write("blank.json", "\u{feff}\n\n");
    for name in ["empty.jsonl", "blank.json"] {
        let words = format!("{name}: there is no episode in the file\n");
        refused(&place, &["--episodes", name, "--dry-run"], &words).await;
    }
    let words = "empty.jsonl: there is no system prompt in the file\n";
    refused(&place, &[&here[..], &["--system-prompt", "empty.jsonl"]].concat(), words).await;
    std::fs::create_dir(place.path("nothing")).unwrap();
    refused(&place, &["--input-dir", "nothing", "--dry-run"], "nothing: no episodes here\n").await;
    refused(
        &place,
        &["--input-dir", "episodes"],
        "help: give its address with --url http://HOST:PORT or in FSWE_AGENT_API_URL",
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn computing_again_refuses_what_it_could_not_heed() {
    let (place, server) = (Place::recorded(KEEPS), sglang().await);
    place.credit(&server, &[]).await.expect(0);
    let made = place.made();
    for more in [
        ["--system-prompt", "x"],
        ["--tools", "x"],
        ["--var", "a=b"],
        ["--hindsight-template", "x"],
        ["--min-reward", "0.1"],
        ["--max-context", "10"],
        ["--reread-result-chars", "3"],
        ["--url", "http://x"],
        ["--tokenizer", "model"],
        ["--max-requests", "1"],
    ] {
        let arguments = [&["--input-dir", "episodes", "--recompute"][..], &more].concat();
        refused(&place, &arguments, "cannot be used with").await;
    }
    let arguments = ["--input-dir", "episodes", "--recompute", "--c-min", "2"];
    let ran = place.run(&arguments).await.expect(1);
    assert!(ran.stderr.contains("--c-min 2 is above the largest --c-max 1.2"), "{}", ran.stderr);
    assert_eq!(place.made(), made);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_episode_without_a_step_has_no_exact_tokens() {
    let (place, server) = (Place::empty(KEEPS), sglang().await);
    let talk = json!({"id": "mute", "messages": [{"role": "user", "content": "count"}], "reward": 1, "subtasks": null});
    place.write("talks.jsonl", &talk.to_string());
    let url = server.url();
    place.run(&["--episodes", "talks.jsonl", "--url", &url, "--tokenizer", "model"]).await.expect(0);
    let scores = place.json(".backsight/episodes/mute/hindsight_scores.json");
    assert_eq!((&scores["provenance"]["tokens"], &scores["num_steps"]), (&json!("rendered"), &json!(0)));
    assert_eq!(place.json(".backsight/episodes/mute/hindsight_tokens.json")["tokens"], "rendered");
}

/// A tokenizer by its name, from the hub and then from its cache.
#[tokio::test(flavor = "multi_thread")]
async fn a_tokenizer_may_be_named_as_on_the_hub() {
    let (place, server) = (Place::recorded(KEEPS), sglang().await);
    let file = |name: &str| plain(place.text(&format!("model/{name}")).as_bytes());
    let hub = stand_in(&[
        ("/toys/chatml/resolve/main/tokenizer.json", file("tokenizer.json")),
        ("/toys/chatml/resolve/main/chat_template.jinja", file("chat_template.jinja")),
    ]);
    let url = server.url();
    let run = async |name: &str, more: &[(&str, &str)], arguments: &[&str]| {
        let own = ["--input-dir", "episodes", "--tokenizer", name];
        let mut command = place.command(&[&own[..], arguments].concat());
        command.env("HF_HOME", place.path("hf")).env("HF_ENDPOINT", &hub.url).env_remove("HF_HUB_OFFLINE");
        command.envs(more.iter().copied());
        finish(command).await
    };
    let offline = [("HF_HUB_OFFLINE", "1")];
    let ran = run("toys/chatml", &offline, &["--dry-run"]).await.expect(3);
    let why = "`toys/chatml` is no directory here, and its tokenizer cannot be had: tokenizer.json of toys/chatml@main is not in the cache, and HF_HUB_OFFLINE is set";
    assert!(ran.stderr.contains(why), "{}", ran.stderr);
    let ran = run("toys/nothing", &[], &["--dry-run"]).await.expect(2);
    assert!(
        ran.stderr.contains("has no tokenizer.json of toys/nothing@main")
            && ran.stderr.contains("help: name a directory"),
        "{}",
        ran.stderr
    );
    run("toys/chatml", &[], &["--url", &url]).await.expect(0);
    let (made, n_seen) = (place.made(), hub.seen.lock().unwrap().len());
    run("toys/chatml", &[], &["--url", &url, "--overwrite"]).await.expect(0);
    run("toys/chatml", &offline, &["--dry-run", "--overwrite"]).await.expect(0);
    assert_eq!(hub.seen.lock().unwrap().len(), n_seen, "what is in the cache is not asked for again");
    assert_eq!(place.made(), made);
}
