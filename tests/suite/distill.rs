//! Distilling a run: hints from next states, a teacher's candidates on the student's own tokens, and what all of it costs.
#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::collections::BTreeMap;
use std::ops::Range;
use std::process::Child;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use crate::collect::place::{Place, Ran, Server, scripted};
use crate::student::tokenizer;
use crate::support::stand_in::{Asked, Dialect, Fault, Setup};
use crate::support::toy::{Toy, VOCAB};

const OLD: Toy = Toy { weights: 1 };
const NEW: Toy = Toy { weights: 2 };
const HINT: &str = "Run the file once before you say that it is done.";

/// What a judge says of what it is shown; here of every action that ran something.
fn vote(shown: &str) -> String {
    match shown.contains("[tool terminal]") {
        true => format!("It could have looked.\n\\boxed{{1}}\n[HINT_START]{HINT}[HINT_END]"),
        false => "\\boxed{-1}".to_owned(),
    }
}

fn shown(body: &Value) -> String {
    body["messages"][1]["content"].as_str().unwrap_or_default().to_owned()
}

pub fn judging(dialect: Dialect) -> Setup {
    scripted(dialect).talks(|body| Some(json!({"role": "assistant", "content": vote(&shown(body))})))
}

/// A judge that shows each of its hints at work, where it is asked for that.
fn showing(dialect: Dialect) -> Setup {
    let exchange =
        "[USER_START]How do I count lines?[USER_END][AGENT_START]I look at the file first.[AGENT_END]";
    let says = |asks: &str| if asks.contains("## Hint") { exchange.to_owned() } else { vote(asks) };
    scripted(dialect).talks(move |body| Some(json!({"role": "assistant", "content": says(&shown(body))})))
}

fn kind(dialect: Dialect) -> &'static str {
    match dialect {
        Dialect::Vllm => "vllm",
        Dialect::Sglang => "sglang",
    }
}

/// Episodes of a server, in groups of two.
pub fn collected(dialect: Dialect, setup: Setup) -> (Place, Server) {
    collected_at(Place::new(), dialect, setup)
}

/// With a tokenizer that has every id the toy may name.
fn collected_with_all_ids(dialect: Dialect) -> (Place, Server) {
    let place = Place::new();
    let path = place.path("model/tokenizer.json");
    let mut tokenizer: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    // A token that is not in the vocabulary would get the first id behind it.
    for token in tokenizer["added_tokens"].as_array().unwrap().clone() {
        tokenizer["model"]["vocab"][token["content"].as_str().unwrap()] = token["id"].clone();
    }
    let first = tokenizer["model"]["vocab"].as_object().unwrap().len() as u64;
    for id in first..VOCAB {
        tokenizer["model"]["vocab"][format!("unused {id}")] = json!(id);
    }
    std::fs::write(path, tokenizer.to_string()).unwrap();
    collected_at(place, dialect, judging(dialect))
}

fn collected_at(place: Place, dialect: Dialect, setup: Setup) -> (Place, Server) {
    let server = Server::start(setup);
    let url = server.url();
    let arguments =
        Place::arguments(&url, &["--group-size", "2", "--run", "runs/all", "--show-tests", "false"]);
    let arguments: Vec<&str> =
        arguments.into_iter().map(|it| if it == "vllm" { kind(dialect) } else { it }).collect();
    place.run(&arguments).expect(0);
    server.stand_in.forget();
    (place, server)
}

pub fn distill(place: &Place, server: &Server, dialect: Dialect, more: &[&str]) -> Ran {
    let url = server.url();
    let usual =
        ["distill", "--run", "runs/all", "--url", &url, "--kind", kind(dialect), "--tokenizer", "model"];
    let k: &[&str] = if more.contains(&"--distill-topk") { &[] } else { &["--distill-topk", "5"] };
    place.run(&[&usual[..], &["--json"], k, more].concat())
}

/// What was asked of the judge.
pub fn votes(server: &Server) -> Vec<Asked> {
    server.stand_in.asked().into_iter().filter(|it| it.route == "/v1/chat/completions").collect()
}

/// Prompts that were scored, but for those that find out what the server is.
pub fn scored(server: &Server) -> usize {
    let probe = tokenizer().encode(backsight::model::PROBE_TEXT).unwrap().ids;
    let asked = server.stand_in.asked().into_iter();
    asked.flat_map(|it| it.prompts).filter(|ids| ids.len() > 1 && *ids != probe).count()
}

/// The stretches of trained tokens, which are the actions.
pub fn actions(masks: &Value) -> Vec<Range<usize>> {
    let trained: Vec<bool> = masks.as_array().unwrap().iter().map(|it| it != &json!(-100)).collect();
    let starts = (0..trained.len()).filter(|at| trained[*at] && (*at == 0 || !trained[*at - 1]));
    starts.map(|start| start..start + trained[start..].iter().take_while(|it| **it).count()).collect()
}

fn ids(list: &Value) -> Vec<u32> {
    list.as_array().unwrap().iter().map(|it| it.as_u64().unwrap() as u32).collect()
}

/// A context as the teacher reads it, made here from its text.
fn hinted(context: &[u32]) -> Vec<u32> {
    let text = tokenizer().decode(context).unwrap();
    // Results of tools stand in messages of their own; the last message of the user is the task.
    let user = text.find("<|im_start|>user\n").unwrap();
    let end = user + text[user..].find("<|im_end|>").unwrap();
    let addition = format!("\n\n[user's hint / instruction]\n{HINT}");
    tokenizer().encode(&format!("{}{addition}{}", &text[..end], &text[end..])).unwrap().ids
}

#[test]
fn hints_become_targets_on_the_students_own_tokens() {
    for dialect in [Dialect::Vllm, Dialect::Sglang] {
        let (place, server) = collected(dialect, judging(dialect));
        let summary = distill(&place, &server, dialect, &[]).expect(0).json();
        let made = |what: &str| summary["made"][what].as_u64().unwrap();
        assert_eq!((made("episodes"), made("groups"), made("shipped_episodes"), made("hints")), (6, 3, 6, 6));
        assert_eq!(
            (&summary["pairs"], &summary["votes"]["asked"], votes(&server).len()),
            (&json!(18), &json!(54), 18),
            "the tests answer the last action, and a pair's votes are one request"
        );
        let n_rows: u64 = right(&place, &[OLD]).values().sum();
        assert_eq!(n_rows, made("shipped_tokens"));
        assert!(n_rows > 6 * 20, "calls and their ends are read too");
        assert_eq!(place.lines("runs/all/verdicts.jsonl").len(), 18);
    }
}

/// How many rows of a run are right under these weights, by weights: a sequence has all of its rows from one of them.
fn right(place: &Place, allowed: &[Toy]) -> BTreeMap<u64, u64> {
    let mut all = BTreeMap::new();
    for group in place.lines("runs/all/groups.jsonl") {
        if group["distill_token_ids"].is_null() {
            continue;
        }
        for sequence in sequences(&group) {
            let n_rows = allowed.iter().find_map(|toy| Some((toy.weights, right_under(*toy, sequence)?)));
            assert!(n_rows.is_some(), "numbers of nobody, or of several");
            let (weights, n) = n_rows.unwrap();
            *all.entry(weights).or_default() += n;
        }
    }
    all
}

/// How many rows a sequence has, if all of them are what these weights say of the second action under the hint.
fn right_under(toy: Toy, (tokens, (masks, (rows, logprobs))): Sequence<'_>) -> Option<u64> {
    let tokens = ids(tokens);
    let actions = actions(masks);
    assert_eq!(actions.len(), 3);
    let context = hinted(&tokens[..actions[1].start]);
    let read = [&context[..], &tokens[actions[1].clone()]].concat();
    let contexts = toy.contexts(&read);
    let mut n = 0;
    for (position, row) in rows.as_array().unwrap().iter().enumerate() {
        if !actions[1].contains(&position) {
            assert_eq!(row, &json!([]), "only the hinted action is read");
            continue;
        }
        if row == &json!([]) {
            continue;
        }
        let at = context.len() + position - actions[1].start;
        let mut expected = contexts[at].top(5);
        if !expected.iter().any(|it| it.0 == tokens[position]) {
            expected[4] = (tokens[position], contexts[at].logprob(tokens[position]));
        }
        let told: Vec<f64> =
            logprobs[position].as_array().unwrap().iter().map(|it| it.as_f64().unwrap()).collect();
        if ids(row) != expected.iter().map(|it| it.0).collect::<Vec<_>>() {
            return None;
        }
        assert!(told.iter().zip(&expected).all(|(told, (_, expected))| (told - expected).abs() < 1e-6));
        n += 1;
    }
    Some(n)
}

type Sequence<'a> = (&'a Value, (&'a Value, (&'a Value, &'a Value)));

fn sequences(group: &Value) -> Vec<Sequence<'_>> {
    let list = |key: &str| group[key].as_array().unwrap().iter();
    let rows = list("distill_token_ids").zip(list("distill_logprobs"));
    list("tokens").zip(list("masks").zip(rows)).collect()
}

#[test]
fn nothing_is_paid_twice_and_only_what_is_new_is_asked() {
    let (place, server) = collected(Dialect::Vllm, judging(Dialect::Vllm));
    let asked = |more: &[&str]| {
        server.stand_in.forget();
        distill(&place, &server, Dialect::Vllm, more).expect(0);
        (votes(&server).len(), scored(&server))
    };
    let (n_votes, n_scored) = asked(&[]);
    // An audited action of each episode, and each hinted one.
    assert_eq!((n_votes, n_scored), (18, 12));
    let groups = place.read("runs/all/groups.jsonl");
    assert_eq!(asked(&[]), (0, 0));
    // So does what it was asked for, given back as a file; what to try next names that once.
    let again = place.run(&["distill", "--config", "runs/all/config.toml", "--run", "runs/all"]).expect(0);
    assert!(again.stdout.contains("0 distilled, 6 kept"), "{}", again.stdout);
    assert_eq!(again.stderr.matches("--config").count(), 1, "{}", again.stderr);
    assert_eq!(asked(&["--overwrite"]), (0, 0));
    assert_eq!(place.read("runs/all/groups.jsonl"), groups);
    assert_eq!(asked(&["--prm-votes", "5"]), (18, 0), "two votes more on each pair");
    assert_eq!(asked(&["--prm-votes", "5", "--verdict", "any", "--hint-choice", "shortest"]), (0, 0));
    assert_eq!(
        asked(&["--prm-votes", "5", "--placebo", "true"]),
        (0, 6),
        "irrelevant words beside each hint"
    );
    assert_eq!(asked(&["--hint-placement", "last"]), (0, 6), "the same hints elsewhere");
    assert_eq!(asked(&["--distill-topk", "7"]).0, 0, "more candidates are other scores");
    assert_eq!(asked(&["--lens", "plain", "--audit", "off"]).0, 0, "without a judge");
    assert_eq!(asked(&["--opd-enabled", "false", "--audit", "off"]), (0, 0));
    let plain = place.lines("runs/all/groups.jsonl");
    assert_eq!((plain.len(), &plain[0]["distill_token_ids"]), (3, &Value::Null));
}

/// What the judge or the teacher may come to, what is made all the same, and what is said of the rest.
#[test]
fn what_goes_wrong_is_counted_and_never_a_number() {
    let check = |setup: Setup, more: &[&str], code: i32, look: &dyn Fn(&Value, &Place)| {
        let (place, server) = collected(Dialect::Vllm, setup);
        let ran = distill(&place, &server, Dialect::Vllm, more).expect(code);
        look(&ran.json(), &place);
    };
    let says = |answer: &'static str| {
        scripted(Dialect::Vllm).talks(move |_| Some(json!({"role": "assistant", "content": answer})))
    };
    let no_targets = |place: &Place| {
        let groups = place.lines("runs/all/groups.jsonl");
        assert!(groups.iter().all(|it| it["distill_token_ids"].is_null()) && groups.len() == 3);
    };
    check(says("As a language model I like it."), &[], 0, &|summary, place| {
        assert_eq!(summary["votes"]["unreadable"], json!(54));
        no_targets(place);
    });
    check(says("\\boxed{1} [HINT_START] [HINT_END]"), &[], 0, &|summary, place| {
        assert_eq!((&summary["hintable"], &summary["made"]["hints"]), (&json!(18), &json!(0)));
        no_targets(place);
    });
    let no_chat = |it: &Asked| {
        let gone = || Fault::Status(404, String::new(), "{\"detail\":\"Not Found\"}".to_owned());
        (it.route == "/v1/chat/completions").then(gone)
    };
    check(scripted(Dialect::Vllm).faults(no_chat), &[], 1, &|summary, place| {
        assert_eq!(summary["lost"]["votes"], json!({"vote failed": 54}));
        no_targets(place);
    });
    let leaking = "\\boxed{1}[HINT_START]Just write assert add(1, 2) == 3 and assert twice(4) == 8 and \
                   assert less_one(4) == 3 before anything else.[HINT_END]";
    check(says(leaking), &["--hint-leak-words", "0"], 0, &|summary, place| {
        assert_eq!(summary["leaks"], json!({"next_state": 0, "tests": 18}), "{summary}");
        no_targets(place);
    });
    check(judging(Dialect::Vllm), &["--distill-topk", "50"], 0, &|summary, place| {
        let group = &place.lines("runs/all/groups.jsonl")[0];
        assert_eq!(group["group_overrides"], json!({"teacher_top_k": 20}));
        let notices = summary["notices"].as_array().unwrap();
        assert!(
            notices.iter().any(|it| it.as_str().unwrap().contains("at most 20 candidates")),
            "{notices:?}"
        );
    });
}

/// Asked about the student's own candidates, a teacher that can tells of all of them; one that cannot is asked for its
/// likeliest, and what those do not hold is counted and not made up.
#[test]
fn a_teacher_is_asked_about_the_students_own_candidates() {
    let (place, server) = collected_with_all_ids(Dialect::Sglang);
    let more = ["--at-student-topk", "true"];
    let dry = distill(&place, &server, Dialect::Sglang, &[&more[..], &["--dry-run"]].concat()).expect(0);
    assert_eq!(dry.json()["episodes"][0]["student"]["requests"], json!(1), "the student's are recorded");
    let summary = distill(&place, &server, Dialect::Sglang, &more).expect(0).json();
    let n = summary["made"]["shipped_tokens"].as_u64().unwrap();
    let mut n_right = 0;
    for group in place.lines("runs/all/groups.jsonl") {
        assert_eq!(group["group_overrides"], json!({"teacher_top_k": 5, "teacher_candidates": "student"}));
        n_right += sequences(&group).into_iter().map(at_the_students).sum::<u64>();
    }
    assert_eq!(n_right, n, "{summary}");
    assert!(n > 6 * 20 && summary["lost"]["tokens"] == Value::Null, "{summary}");
    server.stand_in.forget();
    distill(&place, &server, Dialect::Sglang, &[&more[..], &["--overwrite"]].concat()).expect(0);
    assert_eq!((votes(&server).len(), scored(&server)), (0, 0), "nothing is paid twice");

    let (place, server) = collected_with_all_ids(Dialect::Vllm);
    let summary = distill(&place, &server, Dialect::Vllm, &more).expect(0).json();
    let lost = summary["lost"]["tokens"].as_object().unwrap();
    let shipped = summary["made"]["shipped_tokens"].as_u64().unwrap();
    let why = "the teacher's candidates lack some of the student's";
    assert_eq!((lost[why].as_u64(), shipped < n), (Some(n - shipped), true), "{summary}");
    let none = distill(&place, &server, Dialect::Vllm, &["--at-student-topk", "true", "--student-topk", "0"]);
    assert!(none.expect(2).stderr.contains("no candidates that a teacher could be asked about"));
}

/// How many rows a sequence has, all of them about what the student holds likely without the hint.
fn at_the_students((tokens, (masks, (rows, logprobs))): Sequence<'_>) -> u64 {
    let tokens = ids(tokens);
    let action = actions(masks)[1].clone();
    let context = hinted(&tokens[..action.start]);
    let (own, taught) =
        (OLD.contexts(&tokens), OLD.contexts(&[&context[..], &tokens[action.clone()]].concat()));
    for position in action.clone() {
        let at = &taught[context.len() + position - action.start];
        let mut expected: Vec<u32> = own[position].top(5).into_iter().map(|it| it.0).collect();
        let is_among = expected.contains(&tokens[position]);
        expected.extend((!is_among).then_some(tokens[position]));
        expected.sort_by(|a, b| at.logprob(*b).total_cmp(&at.logprob(*a)));
        expected.truncate(5);
        if !expected.contains(&tokens[position]) {
            expected[4] = tokens[position];
        }
        assert_eq!(ids(&rows[position]), expected);
        let told = logprobs[position].as_array().unwrap().iter().map(|it| it.as_f64().unwrap());
        assert!(told.zip(&expected).all(|(told, id)| (told - at.logprob(*id)).abs() < 1e-6));
    }
    action.len() as u64
}

/// A judge that is asked for exchanges shows each hint at work; what it writes is read before the task.
#[test]
fn a_judge_writes_the_exchange_that_shows_a_hint() {
    const SHOWN: [&str; 2] = ["How do I count lines?", "I look at the file with wc before I say a number."];
    let says = |asks: &str| match asks.contains("## Hint") {
        true if asks.contains("twice") => "I cannot think of any.".to_owned(),
        true => format!("[USER_START]{}[USER_END]\n[AGENT_START]{}[AGENT_END]", SHOWN[0], SHOWN[1]),
        false => vote(asks),
    };
    let setup = scripted(Dialect::Vllm);
    let setup = setup.talks(move |body| Some(json!({"role": "assistant", "content": says(&shown(body))})));
    let (place, server) = collected(Dialect::Vllm, setup);
    let more = ["--hint-placement", "turns"];
    let dry = distill(&place, &server, Dialect::Vllm, &[&more[..], &["--dry-run"]].concat()).expect(0).json();
    assert_eq!(dry["episodes"][0]["votes"], json!(3 * (3 + 1)));
    let summary = distill(&place, &server, Dialect::Vllm, &more).expect(0).json();
    assert_eq!((&summary["made"]["scored_steps"], &summary["exchanges_unreadable"]), (&json!(4), &json!(2)));
    assert_eq!(votes(&server).len(), 18 + 6, "one exchange for each hint");
    let prompt =
        |it: &Asked| it.prompts.iter().map(|ids| tokenizer().decode(ids).unwrap()).collect::<String>();
    let exchange = format!(
        "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n{}<|im_end|>\n<|im_start|>user\n",
        SHOWN[0], SHOWN[1]
    );
    let n_shown = server.stand_in.asked().iter().filter(|it| prompt(it).contains(&exchange)).count();
    assert_eq!(n_shown, 4);
    let lines = place.lines("runs/all/verdicts.jsonl");
    let told: Vec<&Value> = lines.iter().map(|it| &it["exchange"]).filter(|it| !it.is_null()).collect();
    assert_eq!(told.len(), 4);
    assert_eq!(told[0][1], json!({"role": "assistant", "content": SHOWN[1]}));
    server.stand_in.forget();
    distill(&place, &server, Dialect::Vllm, &[&more[..], &["--overwrite"]].concat()).expect(0);
    assert_eq!((votes(&server).len(), scored(&server)), (0, 0), "nothing is paid twice");
    let file = ["--hint-exchange-file", "x.json"];
    place.write("x.json", r#"[{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]"#);
    let refused = distill(&place, &server, Dialect::Vllm, &file).expect(2);
    assert!(refused.stderr.contains("name --hint-placement turns"), "{}", refused.stderr);
}

#[test]
fn a_dry_run_says_what_it_would_cost_and_asks_nobody() {
    let (place, server) = collected(Dialect::Vllm, judging(Dialect::Vllm));
    let dry = |more: &[&str]| {
        let all = distill(&place, &server, Dialect::Vllm, &[&["--dry-run"], more].concat()).expect(0).json();
        let all = all["episodes"].as_array().unwrap().clone();
        assert_eq!(all.len(), 6);
        all
    };
    let total = |all: &[Value], at: &str| -> u64 {
        all.iter().map(|it| it.pointer(at).unwrap().as_u64().unwrap()).sum()
    };
    let first = dry(&[]);
    assert_eq!((total(&first, "/votes"), total(&first, "/teacher/naive_requests")), (54, 18));
    assert_eq!((total(&first, "/student/requests"), server.stand_in.asked().len()), (6, 0));
    let effective = dry(&["--hint-choice", "effective"]);
    assert_eq!(
        total(&effective, "/teacher/naive_requests"),
        18 * 2 * 3,
        "each vote's hint, and irrelevant words"
    );
    assert_eq!(total(&dry(&["--lens", "plain"]), "/votes"), 0);
    distill(&place, &server, Dialect::Vllm, &[]).expect(0);
    let n_asked = server.stand_in.asked().len();
    assert!(dry(&[]).iter().all(|it| it["made"] == json!(true)));
    assert!(dry(&["--distill-topk", "9"]).iter().all(|it| it["fewer_candidates"] == json!(5)));
    assert_eq!(server.stand_in.asked().len(), n_asked);
}

#[test]
fn a_teacher_that_scores_nothing_is_refused_before_anything_is_paid() {
    let (place, server) = collected(Dialect::Vllm, judging(Dialect::Vllm));
    let silent = Server::start(Setup { scores: false, ..judging(Dialect::Vllm) });
    let teacher = silent.url();
    let more = ["--teacher-url", &teacher, "--teacher-kind", "vllm", "--teacher-tokenizer", "model"];
    let refused = distill(&place, &server, Dialect::Vllm, &more).expect(3);
    assert!(refused.stderr.contains("cannot score a prompt"), "{}", refused.stderr);
    assert_eq!((votes(&server).len(), scored(&server)), (0, 0));
}

#[test]
fn numbers_of_other_weights_are_quarantined() {
    let mut setup = judging(Dialect::Sglang);
    // What it samples and what it reads are told apart by this.
    setup.sampled_shift = -0.3;
    let (place, server) = collected(Dialect::Sglang, setup);
    let summary = distill(&place, &server, Dialect::Sglang, &[]).expect(0).json();
    assert_eq!((&summary["quarantined"], &summary["made"]["shipped_tokens"]), (&json!(6), &json!(0)));
    let group = &place.lines("runs/all/groups.jsonl")[0];
    assert!(group["distill_token_ids"].is_null() && !actions(&group["masks"][0]).is_empty());
    let summary = distill(&place, &server, Dialect::Sglang, &["--audit", "off"]).expect(0).json();
    assert_eq!(summary["quarantined"], json!(0));
}

#[test]
fn run_does_the_whole_job_and_distils_while_it_goes_on() {
    let (place, server) = (Place::new(), Server::start(judging(Dialect::Vllm)));
    let url = server.url();
    let arguments =
        Place::arguments(&url, &["--group-size", "2", "--run", "runs/all", "--distill-topk", "5"]);
    let run = |server: &Server| {
        let arguments = arguments.iter().map(|it| if *it == "collect" { "run" } else { it });
        let arguments: Vec<&str> = arguments.chain(["--json"]).collect();
        server.stand_in.forget();
        place.run(&arguments).expect(0).json()
    };
    let told = run(&server);
    assert_eq!(
        (&told["collect"]["made"]["episodes"], &told["distill"]["made"]["hints"]),
        (&json!(6), &json!(6))
    );
    let asked = server.stand_in.asked();
    // Votes, hinted actions and one action of each episode for the audit, while episodes went on.
    assert_eq!(told["distill"]["found_in_ledger"], json!(6 * 3 * 3 + 6 + 6));
    assert_eq!(votes(&server).len(), 18, "and none twice");
    assert!(asked.iter().all(|it| it.times_before == 0 || it.ids.len() < 80), "nothing is paid twice");
    assert_eq!(place.lines("runs/all/groups.jsonl").len(), 3);
    run(&server);
    assert_eq!((votes(&server).len(), scored(&server)), (0, 0));
}

/// A group that may not pass is judged when all of it is there.
#[test]
fn a_group_that_is_filtered_is_waited_for() {
    let (place, server) = (Place::new(), Server::start(judging(Dialect::Vllm)));
    let url = server.url();
    let more = ["--group-size", "2", "--run", "runs/all", "--ensure-scores-are-not-same", "true", "--json"];
    let arguments = Place::arguments(&url, &more);
    let arguments: Vec<&str> =
        arguments.into_iter().map(|it| if it == "collect" { "run" } else { it }).collect();
    let told = place.run(&arguments).expect(0).json();
    assert_eq!(told["distill"]["found_in_ledger"], json!(0));
    let distil_only = told["distill"]["distil_only_groups"].as_u64().unwrap();
    let groups = place.lines("runs/all/groups.jsonl");
    let is_same = |group: &Value| group["scores"][0] == group["scores"][1];
    assert_eq!(groups.iter().filter(|it| is_same(it)).count() as u64, distil_only);
    for group in groups.iter().filter(|it| is_same(it)) {
        assert_eq!(group["overrides"][0]["set_advantage_to_zero"], json!(true));
    }
    assert!(distil_only > 0);
}

#[test]
fn a_server_that_breaks_off_in_the_middle_costs_time_and_no_number() {
    let breaks = |it: &Asked| {
        let is_first = it.times_before == 0 && (it.route.starts_with("/v1/chat") || it.ids.len() > 80);
        is_first.then_some(Fault::ResetMidway)
    };
    let (place, _) = collected(Dialect::Vllm, judging(Dialect::Vllm));
    let server = Server::start(judging(Dialect::Vllm).faults(breaks));
    let summary = distill(&place, &server, Dialect::Vllm, &[]).expect(0).json();
    assert_eq!((&summary["lost"], &summary["made"]["hints"]), (&json!({}), &json!(6)));
    assert_eq!(
        right(&place, &[OLD]).values().sum::<u64>(),
        summary["made"]["shipped_tokens"].as_u64().unwrap()
    );
}

#[test]
fn numbers_of_two_weights_are_never_mixed() {
    for after in [20, 26, 32] {
        let (place, _) = collected(Dialect::Vllm, judging(Dialect::Vllm));
        let swapping = || Setup { new_weights: vec![(after, NEW.weights)], ..judging(Dialect::Vllm) };
        let server = Server::start(swapping());
        let often = ["--weights-check-answers", "3"];
        let stopped = distill(&place, &server, Dialect::Vllm, &often);
        assert!(matches!(stopped.code, Some(0 | 3)), "{after}: {}", stopped.stderr);
        right(&place, &[OLD]);
        // What it goes on with is new, and says so.
        distill(&place, &server, Dialect::Vllm, &[&often[..], &["--overwrite"]].concat()).expect(0);
        let found = right(&place, &[OLD, NEW]);
        assert!(found.values().sum::<u64>() > 100 && found.len() == 1, "{after}: {found:?}");
    }
}

/// An action that takes several requests has all its numbers from one version too.
#[test]
fn numbers_of_two_weights_are_never_mixed_in_an_action() {
    let of = |toy: Toy, (tokens, (_, (rows, logprobs))): Sequence<'_>| {
        let contexts = toy.contexts(&ids(tokens));
        let row = |at: usize| ids(&rows[at]).into_iter().zip(logprobs[at].as_array().unwrap());
        let is_of = |at: usize| {
            row(at).all(|(id, told)| (contexts[at].logprob(id) - told.as_f64().unwrap()).abs() < 1e-6)
        };
        (0..contexts.len() - 1).all(is_of)
    };
    let mut n_new = 0;
    for after in [30, 42, 47, 49, 51] {
        let (place, _) = collected_with_all_ids(Dialect::Sglang);
        let setup = Setup { new_weights: vec![(after, NEW.weights)], ..judging(Dialect::Sglang) };
        let server = Server::start(setup);
        let often = ["--weights-check-answers", "3", "--new-weights", "continue", "--audit", "off"];
        let plain = ["--lens", "plain", "--at-student-topk", "true", "--concurrency", "1"];
        let summary =
            distill(&place, &server, Dialect::Sglang, &[&often[..], &plain].concat()).expect(0).json();
        assert_eq!(summary["made"]["shipped_tokens"], summary["made"]["trained_tokens"]);
        let groups = place.lines("runs/all/groups.jsonl");
        let all: Vec<Sequence<'_>> = groups.iter().flat_map(sequences).collect();
        assert_eq!(all.len(), 6);
        let n_of = |toy: Toy| all.iter().filter(|it| of(toy, **it)).count();
        assert_eq!(n_of(OLD) + n_of(NEW), 6, "after {after} answers: {} and {}", n_of(OLD), n_of(NEW));
        n_new += n_of(NEW);
    }
    assert!(n_new > 0, "the weights changed too late");
}

/// What was under way at a kill is asked for again; what is in the ledger never is, so the ledger has paid for each answer
/// once.
#[test]
fn killed_again_and_again_it_pays_for_nothing_twice() {
    killed_again_and_again(Dialect::Vllm, &["--placebo", "true"], 12);
}

/// The same with what takes several requests an action, and a judge that is asked twice.
#[test]
fn killed_between_requests_of_one_action_it_pays_for_nothing_twice() {
    killed_again_and_again(Dialect::Sglang, &["--at-student-topk", "true", "--hint-placement", "turns"], 8);
    // The first action of each episode is longer than what is asked for at once.
    killed_again_and_again(Dialect::Sglang, &["--at-student-topk", "true", "--lens", "plain"], 8);
}

fn killed_again_and_again(dialect: Dialect, more: &[&str], n_kills: usize) {
    let (place, _) = collected_with_all_ids(dialect);
    let calm = Server::start(showing(dialect));
    let one = [&["--concurrency", "1"], more].concat();
    let paid = distill(&place, &calm, dialect, &one).expect(0).json()["paid"].clone();
    let expected = place.read("runs/all/groups.jsonl");
    let is_work = |it: &Asked| it.route == "/v1/chat/completions" || it.ids.len() > 80;

    let (place, _) = collected_with_all_ids(dialect);
    let victim: Arc<Mutex<(Option<Child>, usize)>> = Arc::default();
    let executioner = Arc::clone(&victim);
    let kills = move |it: &Asked| {
        let mut victim = executioner.lock().unwrap();
        if is_work(it) && victim.0.is_some() {
            victim.1 -= 1;
            if victim.1 == 0 {
                let mut child = victim.0.take().unwrap();
                child.kill().unwrap();
                child.wait().unwrap();
            }
        }
        None
    };
    let server = Server::start(showing(dialect).faults(kills));
    let url = server.url();
    let usual =
        ["distill", "--run", "runs/all", "--url", &url, "--kind", kind(dialect), "--tokenizer", "model"];
    let arguments = [&usual[..], &["--distill-topk", "5"], &one].concat();
    for nth in 0..n_kills {
        // Until it is known who is to be killed, nobody is asked anything.
        let mut held = victim.lock().unwrap();
        *held = (Some(place.start(&arguments)), 1 + nth % 5);
        drop(held);
        while victim.lock().unwrap().0.is_some() {
            std::thread::yield_now();
        }
    }
    let summary = place.run(&[&arguments[..], &["--json"]].concat()).expect(0).json();
    assert!(summary["made"]["shipped_tokens"].as_u64() >= Some(100), "{summary}");
    assert_eq!(place.read("runs/all/groups.jsonl"), expected, "to the last byte");
    for role in ["student", "teacher", "judge"] {
        assert_eq!(summary["paid"][role]["requests"], paid[role]["requests"], "{role}: {summary}");
    }
}

#[test]
fn what_was_distilled_otherwise_does_not_ship_and_comes_back_for_nothing() {
    let (place, server) = collected(Dialect::Vllm, judging(Dialect::Vllm));
    distill(&place, &server, Dialect::Vllm, &[]).expect(0);
    let groups = place.read("runs/all/groups.jsonl");
    // A server that is gone in the middle: what was made before was made otherwise.
    let gone = |it: &Asked| (it.ids.len() > 80).then_some(Fault::Reset);
    let broken = Server::start(judging(Dialect::Vllm).faults(gone));
    let other = ["--hint-placement", "last", "--patience", "0"];
    let stopped = distill(&place, &broken, Dialect::Vllm, &other);
    assert_ne!(stopped.code, Some(0), "{}", stopped.stderr);
    let summary = place.json("runs/all/summary.json")["distill"].clone();
    let left_out = &summary["lost"]["shipped"];
    assert_eq!(left_out.as_object().map(serde_json::Map::len), Some(1), "{summary}");
    // What could not be asked has no targets; what was made before has others than were asked for.
    assert!(place.lines("runs/all/groups.jsonl").iter().all(|it| it["distill_token_ids"].is_null()));
    server.stand_in.forget();
    distill(&place, &server, Dialect::Vllm, &[]).expect(0);
    assert_eq!((place.read("runs/all/groups.jsonl"), scored(&server)), (groups, 0));
}

/// Its own reading fails once: the episode is made, says so, and the same command completes it.
#[test]
fn a_student_that_cannot_be_asked_leaves_its_episode_open() {
    let (place, server) = collected(Dialect::Vllm, judging(Dialect::Vllm));
    let refuses = |it: &Asked| {
        let is_own = it.ids.len() > 80 && !tokenizer().decode(&it.ids).unwrap().contains("[user's hint");
        is_own.then(|| Fault::Status(400, String::new(), "{\"error\": {\"message\": \"no\"}}".to_owned()))
    };
    let deaf = Server::start(judging(Dialect::Vllm).faults(refuses));
    let summary = distill(&place, &deaf, Dialect::Vllm, &[]).expect(1).json();
    assert_eq!(summary["lost"]["readings"], json!({"the student's own reading failed": 6}));
    server.stand_in.forget();
    let summary = distill(&place, &server, Dialect::Vllm, &[]).expect(0).json();
    assert_eq!((&summary["lost"], &summary["made"]["episodes"]), (&json!({}), &json!(6)));
    assert_eq!((votes(&server).len(), scored(&server)), (0, 6), "only what is missing is asked for");
    // Without its candidates there is nothing to ask the teacher about: its own are no substitute.
    let more = ["--at-student-topk", "true", "--student-topk", "6"];
    let summary = distill(&place, &deaf, Dialect::Vllm, &more).expect(1).json();
    let lost = json!({"the student's own reading failed": 18, "no logprob": 6});
    assert_eq!((&summary["lost"]["readings"], &summary["made"]["scored_tokens"]), (&lost, &json!(0)));
    let dry = distill(&place, &server, Dialect::Vllm, &[&more[..], &["--dry-run"]].concat()).expect(0).json();
    assert_eq!(
        dry["episodes"][0]["student"]["naive_requests"],
        json!(3),
        "fewer were kept than are asked for"
    );
}

/// A student that gives fewer candidates than are asked for is told of, and one that gives none is refused.
#[test]
fn a_students_cap_is_told() {
    let (place, _) = collected_with_all_ids(Dialect::Vllm);
    let capped = |most| Server::start(Setup { max_logprobs: most, ..judging(Dialect::Vllm) });
    let more = ["--at-student-topk", "true", "--student-topk", "9"];
    let summary = distill(&place, &capped(7), Dialect::Vllm, &more).expect(0).json();
    let notices = summary["notices"].to_string();
    assert!(notices.contains("the student gives at most 7 candidates for a token, not 9"), "{notices}");
    let server = capped(20);
    let refused = distill(&place, &server, Dialect::Vllm, &more);
    let made_again = refused.expect(0).json();
    assert_eq!(made_again["made"]["kept_episodes"], json!(0), "with another width it is made again");
}

/// An exchange that repeats the hidden tests, or that the judge does not give, teaches nothing and is told.
#[test]
fn exchanges_that_give_away_or_fail_are_counted() {
    let leaking = "[USER_START]Do it.[USER_END][AGENT_START]assert add(1, 2) == 3 and assert twice(4) == 8 and assert \
                   less_one(4) == 3[AGENT_END]";
    let says = move |asks: &str| if asks.contains("## Hint") { leaking.to_owned() } else { vote(asks) };
    let setup = scripted(Dialect::Vllm)
        .talks(move |body| Some(json!({"role": "assistant", "content": says(&shown(body))})));
    let (place, server) = collected(Dialect::Vllm, setup);
    let more = ["--hint-placement", "turns", "--hint-leak-words", "0"];
    let summary = distill(&place, &server, Dialect::Vllm, &more).expect(0).json();
    assert_eq!(summary["leaks"], json!({"next_state": 0, "tests": 6}), "{summary}");
    assert_eq!(summary["made"]["scored_steps"], json!(0));
    let fails = |it: &Asked| {
        let is_exchange = String::from_utf8_lossy(&it.body).contains("## Hint");
        is_exchange
            .then(|| Fault::Status(400, String::new(), "{\"error\": {\"message\": \"no\"}}".to_owned()))
    };
    let failing = Server::start(judging(Dialect::Vllm).faults(fails));
    let more = [&more[..], &["--overwrite", "--seed", "1"]].concat();
    let summary = distill(&place, &failing, Dialect::Vllm, &more).expect(1).json();
    assert_eq!(summary["lost"]["votes"], json!({"exchange failed": 6}), "{summary}");
}

/// Three votes with a hint each: which one is taken is told, and the rows are those under it.
#[test]
fn the_hint_that_is_taken_is_told() {
    let votes = Arc::new(AtomicUsize::new(0));
    let talk = move |_: &Value| {
        let nth = votes.fetch_add(1, Ordering::Relaxed) % 3;
        let hint = ["look at it once", "look at all of it once more", "look again, please"][nth];
        Some(json!({"role": "assistant", "content": format!("\\boxed{{1}}[HINT_START]{hint}[HINT_END]")}))
    };
    let (place, _) = collected(Dialect::Vllm, judging(Dialect::Vllm));
    // Each vote is asked for alone, so that they differ.
    let several = |it: &Asked| {
        let body: Value = serde_json::from_slice(&it.body).unwrap_or_default();
        let refusal = || Fault::Status(400, String::new(), "{\"error\": {\"message\": \"n\"}}".to_owned());
        body["n"].is_u64().then(refusal)
    };
    let server = Server::start(scripted(Dialect::Vllm).talks(talk).faults(several));
    let mut rows = Vec::new();
    for (choice, is_right) in [
        (
            "longest",
            (|hint: &str, all: &[&str]| all.iter().all(|it| it.len() <= hint.len()))
                as fn(&str, &[&str]) -> bool,
        ),
        ("shortest", |hint, all| all.iter().all(|it| it.len() >= hint.len())),
        ("effective", |hint, all| all.contains(&hint)),
    ] {
        distill(&place, &server, Dialect::Vllm, &["--hint-choice", choice]).expect(0);
        let verdicts = place.lines("runs/all/verdicts.jsonl");
        let last = &verdicts[verdicts.len() - 18..];
        for verdict in last {
            let all: Vec<&str> =
                verdict["hints"].as_array().unwrap().iter().map(|it| it.as_str().unwrap()).collect();
            assert!(is_right(verdict["hint"].as_str().unwrap(), &all), "{choice}: {verdict}");
        }
        rows.push(place.read("runs/all/groups.jsonl"));
    }
    assert_ne!(rows[0], rows[1]);
}
