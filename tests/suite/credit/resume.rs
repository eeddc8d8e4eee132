//! What an earlier run left is used and never paid again; what failed is asked for again, and nothing else.

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value, json};

use crate::credit::place::{KEEPS, Place, sglang};
use crate::support::stand_in::{Asked, Dialect, Fault, Setup, StandIn};

/// A server that refuses, while it is sick, everything that tells of the second subtask.
pub async fn sick_server(place: &Place) -> (StandIn, Arc<AtomicBool>) {
    let (tokenizer, sick) = (place.tokenizer(), Arc::new(AtomicBool::new(true)));
    let is_sick = Arc::clone(&sick);
    let setup = Setup::new(Dialect::Sglang).faults(move |asked: &Asked| {
        let tells = !asked.ids.is_empty() && tokenizer.decode(&asked.ids).unwrap().contains("belongs to S2");
        let refusal =
            || Fault::Status(400, String::new(), json!({"error": {"message": "not today"}}).to_string());
        (tells && is_sick.load(Ordering::Relaxed)).then(refusal)
    });
    (StandIn::start(setup).await, sick)
}

async fn undisturbed(more: &[&str]) -> Vec<(std::path::PathBuf, String)> {
    let (place, server) = (Place::recorded(KEEPS), sglang().await);
    place.credit(&server, more).await.expect(0);
    place.made()
}

/// The line that tells what the plan saves.
fn gain(ran: &crate::credit::place::Ran) -> String {
    ran.stdout.lines().find(|line| line.contains("times as many")).unwrap().to_owned()
}

fn keys(step: &Value) -> Vec<&str> {
    let measured = ["mean_logprob", "pi_hind", "rho", "q_h", "q_h_smoothed"];
    measured.into_iter().filter(|key| step.get(key).is_some()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_partial_file_is_completed_and_only_what_is_missing_is_asked_for() {
    let place = Place::recorded(KEEPS);
    let (server, sick) = sick_server(&place).await;
    let ran = place.credit(&server, &[]).await.expect(1);
    assert!(ran.stderr.contains("not today") && ran.stderr.contains("6 steps of others"), "{}", ran.stderr);
    assert_eq!(place.summary()["lost"]["steps"], json!({"not answered": 6}));
    let scores = place.scores("episode_001");
    assert_eq!(scores["partial"], true);
    for step in scores["steps"].as_array().unwrap() {
        let is_lost = step["subtask_id"] == "S2";
        assert_eq!((step.get("error").is_some(), keys(step).is_empty()), (is_lost, is_lost), "{step}");
    }
    sick.store(false, Ordering::Relaxed);
    server.forget();
    place.credit(&server, &[]).await.expect(0);
    assert_eq!(place.asked(&server).len(), 3, "one request for each episode's second subtask");
    assert_eq!(place.made(), undisturbed(&[]).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_partial_file_measured_otherwise_is_not_mixed_in() {
    let place = Place::recorded(KEEPS);
    let (server, sick) = sick_server(&place).await;
    place.credit(&server, &[]).await.expect(1);
    sick.store(false, Ordering::Relaxed);
    let ran = place.credit(&server, &["--reread-result-chars", "200"]).await.expect(0);
    assert!(ran.stderr.contains("its partial scores were measured otherwise"), "{}", ran.stderr);
    assert_eq!(place.made(), undisturbed(&["--reread-result-chars", "200"]).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn episodes_of_one_result_are_told_the_same() {
    let (place, server) = (Place::recorded(KEEPS), sglang().await);
    place.credit(&server, &[]).await.expect(0);
    let (made, n_asked) = (place.made(), place.asked(&server).len());
    place.write("words.jinja", "It came to {{ reward }}.");
    let otherwise = ["--hindsight-template", "words.jinja"];
    let refused = place.credit(&server, &otherwise).await.expect(2);
    assert!(
        refused.stderr.contains("was made with another configuration: lens_sha256 (was"),
        "{}",
        refused.stderr
    );
    assert!(refused.stderr.contains("help: give the same, make all again with --overwrite"));
    assert_eq!((place.made(), place.asked(&server).len()), (made.clone(), n_asked));
    place.credit(&server, &[&otherwise[..], &["--overwrite"]].concat()).await.expect(0);
    assert_ne!(place.made(), made);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_partial_file_may_lack_the_plain_lens_only() {
    let place = Place::recorded(KEEPS);
    let (server, sick) = sick_server(&place).await;
    place.credit(&server, &[]).await.expect(1);
    sick.store(false, Ordering::Relaxed);
    server.forget();
    place.credit(&server, &["--ratio", "lift", "--gamma", "0.5"]).await.expect(0);
    assert_eq!(place.asked(&server).len(), 6, "the second subtask, and a plain pass, for each episode");
    assert_eq!(place.made(), undisturbed(&["--ratio", "lift", "--gamma", "0.5"]).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn lens_scores_are_kept_although_no_plain_one_came() {
    let place = Place::recorded(KEEPS);
    let (tokenizer, sick) = (place.tokenizer(), Arc::new(AtomicBool::new(true)));
    let is_sick = Arc::clone(&sick);
    let setup = Setup::new(Dialect::Sglang).faults(move |asked: &Asked| {
        let text = tokenizer.decode(&asked.ids).unwrap();
        let is_plain = text.starts_with("<|im_start|>") && !text.contains("[Hindsight");
        let refusal =
            || Fault::Status(400, String::new(), json!({"error": {"message": "not today"}}).to_string());
        (is_plain && is_sick.load(Ordering::Relaxed)).then(refusal)
    });
    let server = StandIn::start(setup).await;
    let ran = place.credit(&server, &["--ratio", "lift"]).await.expect(1);
    assert!(!ran.stderr.contains("help: score again with --ratio lift"), "{}", ran.stderr);
    assert_eq!(place.summary()["lost"], json!({"steps": {"not answered": 27}}));
    for step in place.scores("episode_001")["steps"].as_array().unwrap() {
        let error = step["error"].as_str().unwrap();
        assert!(
            error.starts_with("the action has no score under the plain lens: ")
                && error.contains("not today"),
            "{step}"
        );
        assert_eq!(keys(step), ["mean_logprob"]);
    }
    sick.store(false, Ordering::Relaxed);
    server.forget();
    place.credit(&server, &["--ratio", "lift"]).await.expect(0);
    assert_eq!(place.asked(&server).len(), 3, "a plain pass for each episode");
    assert_eq!(place.made(), undisturbed(&["--ratio", "lift"]).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_ends_it_with_a_summary_and_the_same_command_continues() {
    let place = Place::recorded(KEEPS);
    let slow = |_: &_| Some(Fault::Slow(Duration::from_millis(50)));
    let server = StandIn::start(Setup::new(Dialect::Sglang).faults(slow)).await;
    let url = server.url();
    let arguments = ["--input-dir", "episodes", "--url", &url, "--tokenizer", "model", "--concurrency", "1"];
    let child = place.command(&arguments).spawn().unwrap();
    while place.asked(&server).len() < 4 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    let ended = tokio::task::spawn_blocking(move || child.wait_with_output().unwrap()).await.unwrap();
    assert_eq!(ended.status.code(), Some(130), "{}", String::from_utf8_lossy(&ended.stderr));
    let summary = place.summary();
    assert_eq!(summary["stopped_by"], "signal 2");
    let n_made = summary["made"]["episodes"].as_u64().unwrap();
    assert_eq!(n_made + summary["left"].as_u64().unwrap(), 3, "{summary}");
    assert!(n_made < 3 && place.text("episodes/.backsight/events.jsonl").contains("\"event\":\"stopped\""));
    place.credit(&server, &[]).await.expect(0);
    assert_eq!(place.made(), undisturbed(&[]).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn complete_files_are_left_alone_and_differences_are_told() {
    let (place, server) = (Place::recorded(KEEPS), sglang().await);
    let first = place.credit(&server, &[]).await.expect(0);
    let (made, n_asked) = (place.made(), place.asked(&server).len());
    let notice = |ran: &crate::credit::place::Ran| {
        let notes: Vec<&str> = ran.stderr.lines().filter(|it| it.contains("other settings")).collect();
        notes.join("\n")
    };
    let same = place.credit(&server, &[]).await.expect(0);
    assert!(notice(&same).is_empty() && same.stdout.contains("3 kept"), "{same:?}");
    assert!(same.stdout.contains("episode_001   0.5391       9/9         0"), "{}", same.stdout);
    assert!(same.stderr.contains("episode_001: 9 of 9 steps already, left alone"), "{}", same.stderr);
    assert!(!same.stdout.contains("times as many"), "nothing was planned: {}", same.stdout);
    let computed = place.credit(&server, &["--gamma", "0.5", "--no-smooth"]).await.expect(0);
    assert!(notice(&computed).is_empty() && computed.stdout.contains("3 recomputed"), "{computed:?}");
    assert_eq!(place.scores("episode_001")["hyperparams"]["gamma"], 0.5);
    place.credit(&server, &[]).await.expect(0);
    let measured = place.credit(&server, &["--reread-result-chars", "200", "--gamma", "0.5"]).await.expect(0);
    assert!(
        notice(&measured).contains("(gamma, tool_result_chars) and are left alone; help: --overwrite"),
        "{}",
        measured.stderr
    );
    assert_eq!((place.made(), place.asked(&server).len()), (made.clone(), n_asked));
    let again = place.credit(&server, &["--overwrite"]).await.expect(0);
    assert_eq!((place.made(), place.asked(&server).len()), (made, n_asked), "the ledger has every answer");
    assert_eq!(place.summary()["found_in_ledger"], 9);
    assert!(
        again.stderr.contains("episode_001: 9 of 9 steps, 0 requests (3 answered by the ledger)"),
        "{}",
        again.stderr
    );
    assert_eq!(gain(&again), gain(&first), "what was not sent again is no gain");
    place.credit(&server, &["--overwrite", "--reread-result-chars", "200"]).await.expect(0);
    assert_eq!(place.made(), undisturbed(&["--reread-result-chars", "200"]).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_there_stays_until_something_as_complete_is_made() {
    let place = Place::recorded(KEEPS);
    let (server, sick) = sick_server(&place).await;
    sick.store(false, Ordering::Relaxed);
    place.credit(&server, &[]).await.expect(0);
    let made = place.made();
    sick.store(true, Ordering::Relaxed);
    let anew = ["--overwrite", "--reread-result-chars", "200"];
    let ran = place.credit(&server, &anew).await.expect(1);
    assert_eq!(place.made(), made, "a file with losses is no better than a complete one");
    for words in [
        "episode_001: 7 of 9 steps, ",
        "; what is there has 9 and stays",
        "note: the files of 3 episodes stay as they were",
        "6 steps of others have no credit; each says why; 3 keep the more complete files they had",
    ] {
        assert!(ran.stderr.contains(words), "{words}: {}", ran.stderr);
    }
    assert!(ran.stdout.contains(", 3 spared\n"), "{}", ran.stdout);
    let summary = place.summary();
    assert_eq!((&summary["made"]["spared_episodes"], &summary["made"]["steps"]), (&json!(3), &json!(0)));
    assert_eq!(summary["lost"]["steps"], json!({"not answered": 6}));
    sick.store(false, Ordering::Relaxed);
    place.credit(&server, &anew).await.expect(0);
    assert_eq!(place.made(), undisturbed(&["--reread-result-chars", "200"]).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_partial_file_gives_way_to_one_that_is_as_complete() {
    let place = Place::recorded(KEEPS);
    let (server, _sick) = sick_server(&place).await;
    place.credit(&server, &[]).await.expect(1);
    place.credit(&server, &["--overwrite", "--reread-result-chars", "200"]).await.expect(1);
    let scores = place.scores("episode_001");
    assert_eq!((&scores["provenance"]["tool_result_chars"], &scores["partial"]), (&json!(200), &json!(true)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_published_partial_file_is_scored_anew() {
    let (place, server) = (Place::recorded(KEEPS), sglang().await);
    let published = crate::support::tiny::fixture("hcapo/dataset/compat/episode_001/hindsight_scores.json");
    let mut json: Value = serde_json::from_str(&std::fs::read_to_string(published).unwrap()).unwrap();
    json["steps"][3]["error"] = json!("");
    place.write("episodes/episode_001/hindsight_scores.json", &json.to_string());
    let ran = place.credit(&server, &[]).await.expect(0);
    assert!(
        ran.stderr
            .contains("episode_001: 9 of 9 steps, 3 requests; its partial scores were measured otherwise")
    );
    assert_eq!(place.made(), undisturbed(&[]).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_stops_the_run_and_the_same_command_continues() {
    let (place, server) = (Place::recorded(KEEPS), sglang().await);
    let ran = place.credit(&server, &["--max-requests", "4", "--json"]).await.expect(3);
    assert!(ran.stderr.contains("the limit of 4 requests for the teacher is reached"), "{}", ran.stderr);
    assert_eq!((place.asked(&server).len(), &ran.json()["requests"]), (4, &json!(4)));
    place.credit(&server, &[]).await.expect(0);
    let asked = place.asked(&server);
    assert_eq!(asked.len(), 9, "four were paid before");
    assert!(asked.iter().all(|it| it.times_before == 0));
    assert_eq!(place.summary()["paid"]["teacher"]["requests"], 9);
    assert_eq!(place.made(), undisturbed(&[]).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_without_a_logprob_takes_its_step_and_no_other() {
    let place = Place::recorded(KEEPS);
    let (tokenizer, is_sick) = (place.tokenizer(), Arc::new(AtomicBool::new(true)));
    let sick = Arc::clone(&is_sick);
    let setup = Setup::new(Dialect::Sglang).faults(move |asked: &Asked| {
        let tells = !asked.ids.is_empty() && tokenizer.decode(&asked.ids).unwrap().contains("belongs to S1");
        (tells && sick.load(Ordering::Relaxed)).then_some(Fault::NotANumber)
    });
    let server = StandIn::start(setup).await;
    place.credit(&server, &[]).await.expect(1);
    assert_eq!(place.summary()["lost"]["steps"], json!({"no logprob": 3}));
    let scores = place.scores("episode_003");
    let lost: Vec<&Value> =
        scores["steps"].as_array().unwrap().iter().filter(|it| it.get("error").is_some()).collect();
    assert_eq!((lost.len(), &lost[0]["error"]), (1, &json!("a token of the action has no logprob")));
    assert_eq!((&lost[0]["step_index"], keys(lost[0]).len()), (&json!(7), 0), "the last step of S1");
    // A mended server is asked for what lacked, and what it gave then stays, whatever is asked of whom later.
    is_sick.store(false, Ordering::Relaxed);
    place.credit(&server, &[]).await.expect(0);
    let made = place.made();
    for (sick, code) in [(true, 1), (false, 0)] {
        is_sick.store(sick, Ordering::Relaxed);
        place.credit(&server, &["--overwrite"]).await.expect(code);
        assert_eq!(place.made(), made);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_only_garbles_ends_the_run_and_nothing_is_written() {
    let place = Place::recorded(KEEPS);
    // The probe text is shorter than any conversation.
    let garbles = |asked: &Asked| (asked.ids.len() > 150).then_some(Fault::Html);
    let server = StandIn::start(Setup::new(Dialect::Sglang).faults(garbles)).await;
    let more = ["--concurrency", "3", "--patience", "1", "--placement", "last"];
    let ran = place.credit(&server, &more).await.expect(3);
    let words = format!("error: {} answered with something unusable: ", server.url());
    assert!(ran.stderr.contains(&words), "{}", ran.stderr);
    assert!(place.made().is_empty(), "nothing is written that a stop cut short");
    place.credit(&sglang().await, &["--reread-result-chars", "200"]).await.expect(0);
}
