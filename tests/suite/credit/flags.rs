//! Flags, the environment, what is refused before anything is paid, and what is never written down.

use backsight::lens::{OUTCOME_TEMPLATE, Placement};
use serde_json::{Value, json};

use crate::credit::numbers::{alone, asked_texts};
use crate::credit::place::{KEEPS, Place, collect, finish, sglang, vllm};
use crate::support::schema;
use crate::support::stand_in::{Dialect, Setup, StandIn};

#[tokio::test(flavor = "multi_thread")]
async fn a_dry_run_asks_nobody_and_needs_no_tokenizer() {
    let place = Place::recorded(KEEPS);
    let bare = place.run(&["--input-dir", "episodes", "--dry-run"]).await.expect(0);
    let expected = "episode_001: reward 0.5391, 9 steps (planning 2, S1 5, S2 2), subtask scores S1=0.450, S2=0.200; to be scored\n    \
                    at least 3 requests (each step alone: 9); name a --tokenizer for the exact number and to count tokens\n";
    assert!(bare.stdout.starts_with(expected), "{}", bare.stdout);
    let arguments = ["--input-dir", "episodes", "--dry-run", "--tokenizer", "model", "--json"];
    let counted = place.run(&arguments).await.expect(0).json();
    let naive: usize = alone(&place, "episode_001", Some(Placement::First), OUTCOME_TEMPLATE)
        .iter()
        .map(|step| step.tokens().len())
        .sum();
    let episode = &counted["episodes"][0];
    assert_eq!((&episode["requests"], &episode["tokens"]["naive"]), (&json!(3), &json!(naive)));
    assert!(!place.path("episodes/.backsight").exists(), "nothing is written");
    let server = sglang().await;
    place.credit(&server, &[]).await.expect(0);
    let plan = &place.scores("episode_001")["provenance"]["plan"];
    for key in ["naive", "sent", "cached", "computed"] {
        assert_eq!(plan[format!("{key}_tokens")], episode["tokens"][key], "{key}");
    }
    let last = ["--placement", "last", "--ratio", "lift", "--overwrite"];
    let last = place.run(&[&arguments[..], &last].concat()).await.expect(0).json();
    assert_eq!(last["episodes"][0]["requests"], 10, "a branch for each step, and the plain trunk");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_tokenizer_the_number_of_requests_is_the_same() {
    let place = Place::recorded(KEEPS);
    for more in
        [&["--placement", "first"][..], &["--placement", "last"], &["--placement", "last", "--ratio", "lift"]]
    {
        let arguments = [&["--input-dir", "episodes", "--dry-run", "--json"], more].concat();
        let bare = place.run(&arguments).await.expect(0).json();
        let counted = place.run(&[&arguments[..], &["--tokenizer", "model"]].concat()).await.expect(0).json();
        for (bare, counted) in
            bare["episodes"].as_array().unwrap().iter().zip(counted["episodes"].as_array().unwrap())
        {
            assert_eq!(bare["requests"], counted["requests"], "{more:?}");
        }
    }
}

/// Exit code, and words that must be among what is said.
async fn refused(place: &Place, arguments: &[&str], code: i32, expected: &str) {
    let ran = place.run(arguments).await.expect(code);
    assert!(ran.stderr.contains(expected) && ran.stderr.contains("help: "), "{arguments:?}: {}", ran.stderr);
    assert!(place.made().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_work_is_refused_before_anything_is_paid() {
    let (place, server) = (Place::recorded(KEEPS), sglang().await);
    let url = server.url();
    let here = ["--input-dir", "episodes"];
    let asks = [&here[..], &["--url", &url, "--tokenizer", "model"]].concat();
    refused(&place, &here, 2, "no server was named").await;
    refused(&place, &["--input-dir", "nowhere", "--url", &url], 2, "nowhere").await;
    refused(&place, &[&here[..], &["--url", &url]].concat(), 3, "cannot be asked for scores").await;
    place.write("bad.jinja", "{{ rewrad }}");
    refused(&place, &[&asks[..], &["--hindsight-template", "bad.jinja"]].concat(), 2, "bad.jinja").await;
    refused(&place, &[&asks[..], &["--system-prompt", "nowhere.txt"]].concat(), 2, "nowhere.txt").await;
    place.write("tools.json", "{}");
    refused(&place, &[&asks[..], &["--tools", "tools.json"]].concat(), 2, "not a list").await;
    refused(&place, &[&asks[..], &["--model", "other"]].concat(), 2, "has no model `other`").await;
    let kind =
        [&here[..], &["--url", &url, "--kind", "openai", "--model", "toy", "--tokenizer", "model"]].concat();
    refused(&place, &kind, 3, "cannot score a prompt").await;
    assert!(place.asked(&server).is_empty());
    for bad in [["--t-temp", "nan"], ["--gamma", "x"], ["--concurrency", "0"], ["--batch-size", "-1"]] {
        assert_eq!(place.run(&[&asks[..], &bad].concat()).await.code, Some(2), "{bad:?}");
    }
    let gone =
        place.run(&[&here[..], &["--url", "http://127.0.0.1:9", "--tokenizer", "model"]].concat()).await;
    gone.expect(3);
    place.write("model/chat_template.jinja", "{% if %}");
    refused(&place, &asks, 2, "chat_template.jinja").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_published_variables_and_names_serve() {
    let (place, server) = (Place::recorded(KEEPS), sglang().await);
    let mut command = place.command(&["--input-dir", "episodes", "--tokenizer", "model"]);
    command.env("FSWE_AGENT_API_URL", format!("{}/v1/", server.url())).env("FSWE_AGENT_MODEL", "toy");
    command.env("FSWE_AGENT_API_KEY", "k-from-the-environment");
    finish(command).await.expect(0);
    let keys = |server: &StandIn| {
        server.asked().iter().all(|it| it.head.to_lowercase().contains("authorization: bearer k-"))
    };
    assert!(keys(&server));
    let (place, server) = (Place::recorded(KEEPS), vllm().await);
    let base = format!("{}/v1", server.url());
    let published = [
        "--input-dir",
        "episodes",
        "--api-base",
        &base,
        "--model",
        "toy",
        "--api-key",
        "unused",
        "--tokenizer",
        "model",
        "--min-reward",
        "0.5",
        "--concurrency",
        "2",
        "--batch-size",
        "4",
        "--max-context",
        "32768",
        "--max-logprob-tokens",
        "2048",
        "--t-temp",
        "4.0",
        "--gamma",
        "0.9",
        "--c-min",
        "0.7",
        "--c-max",
        "1.3",
        "--alpha",
        "0.25",
        "--no-smooth",
        "--no-dense-rewards",
        "--overwrite",
    ];
    let ran = place.run(&published).await.expect(0);
    assert!(ran.stdout.contains("made 2 episodes, 19 steps; 0 partial, 0 kept, 1 skipped"), "{}", ran.stdout);
    assert!(server.asked().iter().all(|it| !it.head.to_lowercase().contains("authorization")));
    let scores = place.scores("episode_001");
    let expected = json!({
        "t_temp": 4.0, "gamma": 0.9, "c_min": 0.7, "c_max": 1.3, "alpha": 0.25, "smooth": false, "dense_rewards": false,
        "max_logprob_tokens": 2048, "smoothing": "none", "smooth_within_subtasks": false, "ratio": "mean",
    });
    assert_eq!((&scores["hyperparams"], &scores["dense_rewards_used"]), (&expected, &json!(false)));
    assert!(!place.path("episodes/episode_002/hindsight_scores.json").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn no_tokens_or_fewer_are_all_of_them() {
    let (place, server) = (Place::recorded(KEEPS), sglang().await);
    place.credit(&server, &[]).await.expect(0);
    let made = place.made();
    place.credit(&server, &["--overwrite", "--max-logprob-tokens", "-1"]).await.expect(0);
    assert_eq!(place.made(), made);
    place.run(&["--input-dir", "episodes", "--recompute", "--max-logprob-tokens=-7"]).await.expect(0);
    assert_eq!(place.made(), made);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_is_sent_and_never_kept() {
    const KEY: &str = "sk-do-not-keep-me-4711";
    let (place, server) = (Place::recorded(KEEPS), sglang().await);
    let ran = place.credit(&server, &["--api-key", KEY, "--json"]).await.expect(0);
    assert!(server.asked().iter().any(|it| it.head.contains(KEY)));
    assert!(!ran.stdout.contains(KEY) && !ran.stderr.contains(KEY));
    let mut n_files = 0;
    collect(&place.path("episodes"), &mut |path| {
        n_files += 1;
        let bytes = std::fs::read(path).unwrap();
        assert!(!bytes.windows(KEY.len()).any(|it| it == KEY.as_bytes()), "{}", path.display());
    });
    assert!(n_files > 10);
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_episodes_fail_alone_with_their_reasons() {
    let (place, server) = (Place::recorded(KEEPS), sglang().await);
    let session = place.text("episodes/episode_002/pi_session.jsonl");
    place.write("episodes/episode_002/pi_session.jsonl", &format!("{session}not json\n"));
    let result = place
        .text("episodes/episode_003/result.json")
        .replace("\"plan_score\": 0.", "\"plan_score\": null, \"x\": 0.");
    place.write("episodes/episode_003/result.json", &result);
    place.write("episodes/episode_004/result.json", "{\"episode_reward\": 1}");
    place.write_talk("episode_010", 2);
    let ran = place.credit(&server, &["--json"]).await.expect(1);
    let summary = ran.json();
    assert_eq!(summary["lost"]["episodes"], json!({"unreadable": 3}), "{}", ran.stderr);
    assert_eq!((&summary["made"]["episodes"], &summary["made"]["steps"]), (&json!(2), &json!(11)));
    for words in ["pi_session.jsonl line 21: not JSON", "plan_score", "pi_session.jsonl: the file is missing"]
    {
        assert!(ran.stderr.contains(words), "{words}: {}", ran.stderr);
    }
    let events: Vec<Value> = ran.stderr.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let fates: Vec<&Value> =
        events.iter().filter(|it| it["event"] == "episode").map(|it| &it["fate"]).collect();
    assert_eq!(fates.len(), 5);
    assert!(events.iter().all(|it| it["time"].is_number()));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_summary_is_as_its_schema_says() {
    let (place, server) = (Place::recorded(KEEPS), sglang().await);
    place.write("episodes/episode_009/result.json", "{}");
    let ran = place.credit(&server, &["--json", "--min-reward", "0.4"]).await.expect(1);
    let text = include_str!("../../../docs/summary.schema.json");
    for summary in [ran.json(), place.summary()] {
        assert_eq!(schema::check(text, &summary), None);
        assert_eq!(
            summary["tokens"]["sent"],
            json!(
                summary["tokens"]["cached"].as_u64().unwrap()
                    + summary["tokens"]["computed"].as_u64().unwrap()
            )
        );
        assert_eq!(
            summary["made"],
            json!({"episodes": 2, "steps": 19, "partial_episodes": 0, "kept_episodes": 0, "skipped_episodes": 1})
        );
    }
    assert!(schema::check(text, &json!({"format": "backsight.summary"})).is_some());
    let config = place.text("episodes/.backsight/config.toml");
    assert!(config.contains("gamma = 0.95") && config.contains("placement = \"first\""), "{config}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_sessions_lack_can_be_supplied_and_is_missed() {
    let (place, server) = (Place::recorded(KEEPS), sglang().await);
    let ran = place.credit(&server, &[]).await.expect(0);
    assert!(
        ran.stderr.contains("session files hold neither system prompt nor tool schemas"),
        "{}",
        ran.stderr
    );
    let template =
        format!("{}{KEEPS}", "{{ flavour }}{% for t in tools or [] %}{{ t.function.name }}{% endfor %}");
    let place = Place::recorded(&template);
    place.write("system.txt", "You are careful.");
    place.write("tools.json", &json!([{"type": "function", "function": {"name": "hammer"}}]).to_string());
    let server = sglang().await;
    let framed = ["--system-prompt", "system.txt", "--tools", "tools.json", "--var", "flavour=vanilla"];
    let ran = place.credit(&server, &framed).await.expect(0);
    assert!(!ran.stderr.contains("session files hold neither"), "{}", ran.stderr);
    for text in asked_texts(&place, &server) {
        assert!(text.starts_with("vanillahammer<|im_start|>system\nYou are careful.<|im_end|>\n"), "{text}");
    }
    let provenance = &place.scores("episode_001")["provenance"];
    for key in
        ["system_sha256", "tools_sha256", "lens_sha256", "template_sha256", "tokenizer_sha256", "vars_sha256"]
    {
        assert_eq!(provenance[key].as_str().map(str::len), Some(64), "{key}: {provenance}");
    }
    assert_eq!((&provenance["model"], &provenance["server"]), (&json!("toy"), &json!("sglang 0.5.23")));
}

#[tokio::test(flavor = "multi_thread")]
async fn long_results_can_be_cut() {
    let (place, server) = (Place::recorded(KEEPS), sglang().await);
    place.credit(&server, &["--reread-result-chars", "10"]).await.expect(0);
    assert!(asked_texts(&place, &server).iter().all(|text| text.contains("\n... [truncated, ")));
    assert_eq!(place.scores("episode_001")["provenance"]["tool_result_chars"], 10);
}

/// A server with room for only some messages of each episode.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_too_long_is_shortened_by_whole_messages() {
    for placement in ["first", "last"] {
        let place = Place::recorded(KEEPS);
        let setup = Setup { context_length: 1200, ..Setup::new(Dialect::Sglang) };
        let server = StandIn::start(setup).await;
        let ran = place.credit(&server, &["--placement", placement]).await;
        let asked = place.asked(&server);
        assert!(asked.iter().all(|it| it.ids.len() < 1200));
        let texts = asked_texts(&place, &server);
        for text in &texts {
            assert_eq!(text.matches("[Hindsight, unseen by whoever acted]").count(), 1, "the lens is whole");
            assert!(
                text.starts_with("<|im_start|>user\n# PostgreSQL") && text.ends_with("<|im_end|>"),
                "{text}"
            );
            assert_eq!(text.matches("<|im_start|>").count(), text.matches("<|im_end|>").count());
        }
        let scores = place.scores("episode_001");
        let shortened: Vec<&Value> = scores["steps"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|it| it.get("dropped_messages").is_some())
            .collect();
        assert!(
            !shortened.is_empty() && ran.stderr.contains("read without some of their context"),
            "{}",
            ran.stderr
        );
        for step in shortened {
            let [first, end] = [0, 1].map(|idx| step["dropped_messages"][idx].as_u64().unwrap());
            assert!(first == 1 && end > 1 && end <= step["message_index"].as_u64().unwrap(), "{step}");
            assert!(step["dropped_tokens"].as_u64().unwrap() > 0);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn recomputing_needs_nothing_but_the_files() {
    let (place, server) = (Place::recorded(KEEPS), sglang().await);
    place.credit(&server, &["--ratio", "lift"]).await.expect(0);
    let (made, n_asked) = (place.made(), server.asked().len());
    for name in ["episode_001", "episode_002", "episode_003"] {
        for file in ["result.json", "pi_session.jsonl"] {
            std::fs::remove_file(place.path(&format!("episodes/{name}/{file}"))).unwrap();
        }
    }
    drop(server);
    let again = ["--input-dir", "episodes", "--recompute"];
    place
        .run(
            &[
                &again[..],
                &[
                    "--t-temp",
                    "1",
                    "--ratio",
                    "mean",
                    "--smoothing",
                    "paper",
                    "--max-logprob-tokens",
                    "3",
                    "--no-dense-rewards",
                ],
            ]
            .concat(),
        )
        .await
        .expect(0);
    let scores = place.scores("episode_001");
    assert_eq!(scores["hyperparams"]["t_temp"], 1.0);
    assert_eq!(
        (&scores["steps"][0]["action_token_count"], &scores["dense_rewards_used"]),
        (&json!(3), &json!(false))
    );
    let back = [
        "--t-temp",
        "5",
        "--ratio",
        "lift",
        "--smoothing",
        "recursive",
        "--max-logprob-tokens",
        "0",
        "--dense-rewards=true",
    ];
    let ran = place.run(&[&again[..], &back].concat()).await.expect(0);
    assert_eq!(place.made(), made, "forth and back");
    assert!(ran.stderr.contains("computed again: 3 of 3 files; nothing was asked"));
    assert!(n_asked > 0);
    let none = place.run(&["--input-dir", "model", "--recompute"]).await.expect(2);
    assert!(none.stderr.contains("no hindsight_scores.json here"));
}

#[tokio::test(flavor = "multi_thread")]
async fn published_files_are_recomputed_from_their_means() {
    let place = Place::empty(KEEPS);
    for name in ["episode_001", "episode_002", "episode_003"] {
        let from = crate::support::tiny::fixture("hcapo/dataset/plan_fixed")
            .join(name)
            .join("hindsight_scores.json");
        place.write(
            &format!("episodes/{name}/hindsight_scores.json"),
            &std::fs::read_to_string(from).unwrap(),
        );
    }
    let published: Vec<Value> = (1..4).map(|n| place.scores(&format!("episode_00{n}"))).collect();
    place.run(&["--input-dir", "episodes", "--recompute"]).await.expect(0);
    for (n, old) in published.iter().enumerate() {
        let new = place.scores(&format!("episode_00{}", n + 1));
        assert_eq!(
            (&new["steps"], &new["pi_hind_mean"]),
            (&old["steps"], &old["pi_hind_mean"]),
            "to the last bit"
        );
    }
    let lift = place.run(&["--input-dir", "episodes", "--recompute", "--ratio", "lift"]).await.expect(1);
    assert!(lift.stderr.contains("no step has a score under the plain lens"), "{}", lift.stderr);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_follows_from_the_measured_values_may_be_missing() {
    let (place, server) = (Place::recorded(KEEPS), sglang().await);
    place.credit(&server, &[]).await.expect(0);
    let made = place.made();
    let path = "episodes/episode_001/hindsight_scores.json";
    let mut bare = place.json(path);
    for key in ["dense_rewards_used", "num_steps", "num_subtasks_covered", "subtask_reward_range"] {
        bare.as_object_mut().unwrap().remove(key).unwrap();
    }
    for key in ["pi_hind_mean", "hyperparams"] {
        bare.as_object_mut().unwrap().remove(key).unwrap();
    }
    for step in bare["steps"].as_array_mut().unwrap() {
        for key in ["mean_logprob", "pi_hind", "rho", "q_h", "q_h_smoothed"] {
            step.as_object_mut().unwrap().remove(key).unwrap();
        }
    }
    place.write(path, &bare.to_string());
    let again = ["--input-dir", "episodes", "--recompute"];
    place.run(&again).await.expect(0);
    let (whole, written) = (&made[0].1, place.text(path));
    assert_eq!(
        serde_json::from_str::<Value>(whole).unwrap(),
        serde_json::from_str::<Value>(&written).unwrap()
    );
    // Without the tokens the means are what was measured.
    std::fs::remove_file(place.path("episodes/episode_001/hindsight_tokens.json")).unwrap();
    place.write(path, &bare.to_string());
    let ran = place.run(&again).await.expect(1);
    assert!(ran.stderr.contains("step 0 has no `mean_logprob` and no `error`"), "{}", ran.stderr);
    bare.as_object_mut().unwrap().remove("reward").unwrap();
    place.write(path, &bare.to_string());
    let ran = place.run(&again).await.expect(1);
    assert!(ran.stderr.contains("hindsight_scores.json line 1: missing field `reward`"), "{}", ran.stderr);
}

#[tokio::test(flavor = "multi_thread")]
async fn episodes_in_files_have_their_scores_in_the_run_directory() {
    let (place, server) = (Place::empty(KEEPS), vllm().await);
    let talk = |id: &str| {
        let messages =
            json!([{"role": "user", "content": "count"}, {"role": "assistant", "content": "1 2 3"}]);
        json!({"id": id, "messages": messages, "reward": 1}).to_string()
    };
    place.write("talks.jsonl", &[talk("a/b: c"), "nothing".to_owned(), talk("second")].join("\n"));
    let url = server.url();
    let arguments = ["--episodes", "talks.jsonl", "--url", &url, "--tokenizer", "model"];
    let ran = place.run(&arguments).await.expect(1);
    assert!(ran.stderr.contains("talks.jsonl line 2: not JSON"), "{}", ran.stderr);
    for name in ["a%2Fb%3A%20c", "second"] {
        assert_eq!(place.json(&format!(".backsight/episodes/{name}/hindsight_scores.json"))["num_steps"], 1);
    }
    let again = place.run(&[&arguments[..], &["--json"]].concat()).await.expect(1).json();
    assert_eq!((&again["made"]["kept_episodes"], &again["requests"]), (&json!(2), &json!(0)));
    let recomputed =
        place.run(&["--episodes", "talks.jsonl", "--recompute", "--gamma", "0.1"]).await.expect(0);
    assert!(recomputed.stdout.contains("second: 1 of 1 steps"), "{recomputed:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn text_in_parts_is_read_like_text_in_one_piece() {
    let talk = |content: &dyn Fn(&str) -> Value| {
        let said = [("user", "count"), ("assistant", "1 2 3"), ("user", "go on"), ("assistant", "4")];
        let messages = said.map(|(role, text)| json!({"role": role, "content": content(text)}));
        json!({"id": "talk", "messages": messages, "reward": 1}).to_string()
    };
    let mut asked = Vec::new();
    for talk in [talk(&|text| text.into()), talk(&|text| json!([{"type": "text", "text": text}]))] {
        let (place, server) = (Place::empty(KEEPS), sglang().await);
        place.write("episodes/talk.jsonl", &talk);
        place.credit(&server, &[]).await.expect(0);
        asked.push(place.asked(&server).into_iter().map(|it| it.ids).collect::<Vec<_>>());
    }
    assert!(!asked[0].is_empty());
    assert_eq!(asked[0], asked[1]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_directory_has_one_master() {
    let (place, server) = (Place::recorded(KEEPS), sglang().await);
    let _lock = backsight::store::RunLock::acquire(&place.path("episodes/.backsight")).unwrap();
    let ran = place.credit(&server, &[]).await.expect(3);
    assert!(ran.stderr.contains("is in use by process"), "{}", ran.stderr);
    place.credit(&server, &["--run", "elsewhere"]).await.expect(0);
    assert!(place.path("elsewhere/ledger.sqlite").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn tools_a_template_drops_need_a_choice() {
    let plain = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
    let (place, server) = (Place::recorded(plain), sglang().await);
    let ran = place.credit(&server, &[]).await.expect(1);
    assert!(ran.stderr.contains("leaves out") && ran.stderr.contains("--tool-text hermes"), "{}", ran.stderr);
    assert!(place.asked(&server).is_empty(), "nothing is paid for what cannot be shown");
    for choice in ["hermes", "flatten"] {
        for placement in ["first", "last"] {
            let more = ["--overwrite", "--tool-text", choice, "--placement", placement];
            place.credit(&server, &more).await.expect(0);
            let of = if placement == "first" { "" } else { ".outcome-last" };
            let scores = place.json(&format!("episodes/episode_001/hindsight_scores{of}.json"));
            assert_eq!(scores["provenance"]["tool_text"], choice);
        }
    }
    let texts = asked_texts(&place, &server);
    assert!(
        texts.iter().any(|text| text.contains("<tool_call>"))
            && texts.iter().any(|text| text.contains("[Tool Call: bash]"))
    );
    assert!(texts.iter().all(|text| text.contains("[Hindsight, unseen by whoever acted]")));
}
