//! `backsight score` as a user runs it, against stand-ins: order, plan, budget, resumption, refusals, losses.
#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::support::schema;
use crate::support::stand_in::{Asked, Dialect, Fault, Setup, StandIn};
use crate::support::toy::{Toy, mix};
use serde_json::{Value, json};
use tempfile::TempDir;

pub const DIALECTS: [Dialect; 2] = [Dialect::Vllm, Dialect::Sglang];
/// The probe text has other ids than these.
pub const FIRST_ID: u32 = 600;

/// What came of running the program.
pub struct Ran {
    pub code: i32,
    stdout: String,
    pub stderr: String,
}

impl Ran {
    fn of(output: std::process::Output) -> Self {
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        Self { code: output.status.code().unwrap(), stdout: text(output.stdout), stderr: text(output.stderr) }
    }

    pub fn summary(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap()
    }
}

/// A directory with jobs, and the program run in it.
pub struct Place(TempDir);

impl Place {
    pub fn new(jobs: &[Value]) -> Self {
        let place = Self(TempDir::new().unwrap());
        let lines: String = jobs.iter().map(|job| format!("{job}\n")).collect();
        place.write("jobs.jsonl", lines.as_bytes());
        place
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, bytes: &[u8]) {
        fs::write(self.path(name), bytes).unwrap();
    }

    fn command(&self, urls: &[String], more: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_backsight"));
        command.current_dir(self.0.path()).args(["score", "--jobs", "jobs.jsonl", "--out", "out.jsonl"]);
        command.args(urls.iter().flat_map(|url| ["--url", url]));
        command.args(more).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    async fn score(&self, urls: &[String], more: &[&str]) -> Ran {
        let mut command = self.command(urls, more);
        Ran::of(tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap())
    }

    /// Against one stand-in; an SGLang server also needs a tokenizer to be named.
    pub async fn score_at(&self, server: &StandIn, more: &[&str]) -> Ran {
        let tokenizer = tokenizer();
        let named = ["--tokenizer", tokenizer.to_str().unwrap()];
        self.score(&[server.url()], &[&named[..], more].concat()).await
    }

    pub fn rows(&self) -> Vec<Value> {
        let text = fs::read_to_string(self.path("out.jsonl")).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// The rows without the name of the weights, which every row with numbers has.
    fn bare_rows(&self) -> Vec<Value> {
        let bare = |mut row: Value| {
            let has_name = row["version"].as_str().is_some_and(|name| name.len() == 8);
            let numbers =
                row["spans"].as_array().unwrap().iter().flat_map(|it| it["logprobs"].as_array().unwrap());
            assert_eq!(has_name, numbers.clone().any(Value::is_number), "{row}");
            row.as_object_mut().unwrap().remove("version");
            row
        };
        self.rows().into_iter().map(bare).collect()
    }
}

/// Every line is an event with its time.
fn assert_events(talk: &str) {
    assert!(!talk.is_empty());
    for line in talk.lines() {
        let event: Value = serde_json::from_str(line).unwrap_or_default();
        assert!(event["time"].is_number() && event["event"].is_string(), "{line}");
    }
}

/// 707 tokens, all of which the stand-ins know.
fn tokenizer() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tokenizers/chatml")
}

pub fn tokens(salt: u32, n: u32) -> Vec<u32> {
    (0..n).map(|at| FIRST_ID + (at * at + salt * 7) % 100).collect()
}

pub fn job(id: u32, tokens: &[u32], spans: &[[usize; 2]]) -> Value {
    json!({"id": id, "tokens": tokens, "spans": spans})
}

/// The answer that arithmetic gives.
fn expected(job: &Value) -> Value {
    expected_of(job, Toy { weights: 1 })
}

/// The same under other weights.
pub fn expected_of(job: &Value, toy: Toy) -> Value {
    let tokens: Vec<u32> =
        job["tokens"].as_array().unwrap().iter().map(|it| it.as_u64().unwrap() as u32).collect();
    let top_k = job["top_k"].as_u64().unwrap_or(0) as usize;
    let (logprobs, contexts) = (toy.logprobs(&tokens), toy.contexts(&tokens));
    let mut absent = Vec::new();
    let span = |span: &Value| {
        let (start, end) = (span[0].as_u64().unwrap() as usize, span[1].as_u64().unwrap() as usize);
        let mut json = json!({"start": start, "end": end, "logprobs": logprobs[start..end]});
        if start == 0 && end > 0 {
            absent.push(json!([0, "the first token has no context"]));
        }
        if top_k > 0 {
            let row = |at: usize| {
                let mut row = contexts[at].top(top_k);
                if row.iter().all(|it| it.0 != tokens[at]) {
                    row.push((tokens[at], contexts[at].logprob(tokens[at])));
                }
                if at == 0 { json!([]) } else { json!(row) }
            };
            json["top"] = (start..end).map(row).collect();
        }
        json
    };
    let spans: Vec<Value> = job["spans"].as_array().unwrap().iter().map(span).collect();
    let mut answer = json!({"id": job["id"], "spans": spans});
    if !absent.is_empty() {
        answer["absent"] = absent.into();
    }
    answer
}

/// A trunk with prefixes, branches and repetitions, then jobs that share nothing; what is no job in between.
fn mixed_jobs() -> Vec<Value> {
    let trunk = tokens(1, 600);
    let branch = |at: usize, salt: u32| [&trunk[..at], &tokens(salt, 9)].concat();
    let mut jobs = vec![
        job(0, &trunk[..200], &[[190, 200]]),
        job(1, &trunk, &[[595, 600], [0, 2]]),
        job(2, &trunk[..400], &[[390, 400], [395, 396], [7, 7]]),
        job(3, &branch(400, 5), &[[400, 409]]),
        job(4, &branch(300, 6), &[[300, 309]]),
        job(5, &trunk[..200], &[[190, 200]]),
        job(6, &tokens(9, 4), &[[0, 1]]),
    ];
    jobs[1]["top_k"] = json!(3);
    jobs[3]["top_k"] = json!(1);
    jobs.extend((7..20).map(|n| job(n, &tokens(100 + n, 12), &[[3, 12]])));
    jobs
}

/// The scoring requests a stand-in got, batches counted once, the probe and questions about the server left out.
fn n_requests(server: &StandIn) -> usize {
    let is_ours = |ids: &Vec<u32>| ids.first().is_some_and(|&id| id >= FIRST_ID);
    server.asked().iter().filter(|asked| asked.prompts.iter().any(is_ours)).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_are_right_and_in_order_and_cost_less_than_job_by_job() {
    for dialect in DIALECTS {
        let server = StandIn::start(Setup::new(dialect)).await;
        let mut jobs = mixed_jobs();
        let place = Place::new(&jobs);
        let ran = place.score_at(&server, &["--json"]).await;
        assert_eq!(ran.code, 0, "{}", ran.stderr);
        assert_eq!(place.bare_rows(), jobs.iter().map(expected).collect::<Vec<_>>());
        let summary = ran.summary();
        assert_eq!(
            (&summary["jobs"], &summary["scored"], &summary["failed"]),
            (&json!(20), &json!(20), &json!(0))
        );
        // Two prefixes and a repetition ride along, a job without a context needs nothing.
        assert_eq!(summary["requests"], 16, "{summary}");
        let naive: usize =
            jobs.iter().filter(|it| it["id"] != 6).map(|it| it["tokens"].as_array().unwrap().len()).sum();
        assert_eq!(summary["tokens"]["naive"], naive);
        assert!(summary["tokens"]["sent"].as_u64().unwrap() < naive as u64);
        let n_sent = n_requests(&server);
        match dialect {
            Dialect::Vllm => assert_eq!(n_sent, 16),
            // Branches wait for their trunk; all else goes together.
            Dialect::Sglang => {
                assert!(n_sent <= 3, "{n_sent} requests");
                assert_eq!(summary["tokens"]["cached"], 400 - 1 + 300 - 1);
            }
        }
        // A job more: only what is new is asked for.
        jobs.push(job(20, &tokens(500, 5), &[[2, 5]]));
        let lines: String = jobs.iter().map(|job| format!("{job}\n")).collect();
        place.write("jobs.jsonl", lines.as_bytes());
        let again = place.score_at(&server, &["--json"]).await;
        assert_eq!((again.code, n_requests(&server)), (0, n_sent + 1), "{}", again.stderr);
        assert_eq!(place.bare_rows(), jobs.iter().map(expected).collect::<Vec<_>>());
        let summary = again.summary();
        assert_eq!((&summary["requests"], &summary["tokens"]["sent"]), (&json!(1), &json!(5)), "{summary}");
        assert_eq!(
            (&summary["found_in_ledger"], &summary["paid"]["teacher"]["requests"]),
            (&json!(16), &json!(17))
        );
        assert_eq!(schema::check(include_str!("../../docs/summary.schema.json"), &summary), None);
        let kept = fs::read_to_string(place.path("out.jsonl.backsight/summary.json")).unwrap();
        assert_eq!(serde_json::from_str::<Value>(&kept).unwrap()["score"], summary);
        assert_events(&again.stderr);
        assert_events(&fs::read_to_string(place.path("out.jsonl.backsight/events.jsonl")).unwrap());
        // What was asked for can be given back.
        let config = place.path("out.jsonl.backsight/config.toml");
        let once_more = place.score_at(&server, &["--config", config.to_str().unwrap()]).await;
        let words = "as planned: 0 requests, 0 tokens; 17 answers found in the ledger\npaid by the teacher: 0 requests";
        assert!(once_more.stderr.contains(words), "{}", once_more.stderr);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_job_harms_no_other() {
    for dialect in DIALECTS {
        let server = StandIn::start(Setup::new(dialect)).await;
        let trunk = tokens(1, 30);
        let poisoned = [&trunk[..], &[900_000, 601]].concat();
        let place = Place::new(&[]);
        let lines: [Vec<u8>; 8] = [
            job(0, &trunk, &[[20, 30]]).to_string().into(),
            job(1, &poisoned, &[[20, 32]]).to_string().into(),
            b"{\"id\": 2, \"tokens\": [1".to_vec(),
            b"\xff\xfe".to_vec(),
            job(4, &trunk, &[[20, 31]]).to_string().into(),
            job(5, &vec![601; 200_000], &[[5, 200_000]]).to_string().into(),
            job(6, &tokens(3, 8), &[[2, 8]]).to_string().into(),
            b"[\"x\"]".to_vec(),
        ];
        place.write("jobs.jsonl", &lines.join(&b'\n'));
        let ran = place.score_at(&server, &[]).await;
        assert_eq!(ran.code, 1, "{}", ran.stderr);
        assert!(
            ran.stderr.contains("error: 6 of 8 jobs failed; their rows say why\nhelp: "),
            "{}",
            ran.stderr
        );
        let rows = place.bare_rows();
        assert_eq!(rows[0], expected(&job(0, &trunk, &[[20, 30]])), "it rides along with a poisoned one");
        assert_eq!(rows[6], expected(&job(6, &tokens(3, 8), &[[2, 8]])));
        let errors = [
            (1, "token 900000 at position 30 is outside the vocabulary of"),
            (2, "jobs.jsonl line 3: not JSON: EOF"),
            (3, "jobs.jsonl line 4: not JSON: "),
            (4, "jobs.jsonl line 5: span [20, 31) reaches beyond the 30 tokens of the job"),
            (5, "200000 tokens do not fit a context of 131072"),
            (7, "jobs.jsonl line 8: not an object; a job is {\"id\": …, \"tokens\": "),
        ];
        for (row, words) in errors {
            assert!(rows[row]["error"].as_str().unwrap().contains(words), "{}", rows[row]);
            assert_eq!(rows[row]["spans"], json!([]));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_stop_cleanly_and_the_same_command_continues() {
    for dialect in DIALECTS {
        for limit in [["--max-requests", "5"], ["--max-tokens", "65"]] {
            let server = StandIn::start(Setup::new(dialect)).await;
            let jobs: Vec<Value> = (0..12).map(|n| job(n, &tokens(100 + n, 12), &[[3, 12]])).collect();
            let place = Place::new(&jobs);
            let mut codes = Vec::new();
            for _ in 0..3 {
                let ran = place.score_at(&server, &limit).await;
                codes.push(ran.code);
                let rows = place.bare_rows();
                let n_scored = rows.iter().filter(|row| row.get("error").is_none()).count();
                if ran.code == 3 {
                    assert_eq!(n_scored, 5 * codes.len(), "{}", ran.stderr);
                    let unit = limit[0].trim_start_matches("--max-");
                    let error = format!(
                        "error: the limit of {} {unit} for the teacher is reached\nhelp: raise",
                        limit[1]
                    );
                    assert!(ran.stderr.contains(&error), "{}", ran.stderr);
                    let errors = rows.iter().filter_map(|row| row["error"].as_str());
                    assert!(errors.into_iter().all(|it| it.starts_with("the limit of ")), "{rows:?}");
                }
            }
            assert_eq!(codes, [3, 3, 0], "{dialect:?} {limit:?}");
            assert_eq!(place.bare_rows(), jobs.iter().map(expected).collect::<Vec<_>>());
            assert_eq!(server.work().requests, server.asked().len() as u64);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_larger_k_than_the_server_gives_is_capped_and_told() {
    let server = StandIn::start(Setup { max_logprobs: 4, ..Setup::new(Dialect::Vllm) }).await;
    let mut jobs = vec![job(0, &tokens(1, 9), &[[2, 9]])];
    let place = Place::new(&jobs);
    let ran = place.score(&[server.url()], &["--top-k", "50"]).await;
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let words = "note: the model gives at most 4 candidates per position, 50 were asked for; start the server with --max-logprobs 50";
    assert!(ran.stderr.contains(words), "{}", ran.stderr);
    jobs[0]["top_k"] = json!(4);
    assert_eq!(place.bare_rows(), [expected(&jobs[0])]);
}

#[tokio::test(flavor = "multi_thread")]
async fn several_servers_give_what_all_of_them_give() {
    let roomy = Setup { max_logprobs: 50, ..Setup::new(Dialect::Vllm) };
    let narrow = Setup { max_logprobs: 20, context_length: 100, ..Setup::new(Dialect::Vllm) };
    let (roomy, narrow) = (StandIn::start(roomy).await, StandIn::start(narrow).await);
    let mut jobs: Vec<Value> = (0..80).map(|n| job(n, &tokens(100 + n, 12), &[[3, 12]])).collect();
    jobs.push(job(80, &tokens(7, 150), &[[3, 12], [140, 150]]));
    for urls in [[roomy.url(), narrow.url()], [narrow.url(), roomy.url()]] {
        let place = Place::new(&jobs);
        let ran = place.score(&urls, &["--top-k", "40"]).await;
        assert_eq!(ran.code, 1, "{}", ran.stderr);
        assert!(ran.stderr.contains("at most 20 candidates per position"), "{}", ran.stderr);
        let rows = place.bare_rows();
        jobs[..80].iter_mut().for_each(|job| job["top_k"] = json!(20));
        assert_eq!(rows[..80], jobs[..80].iter().map(expected).collect::<Vec<_>>());
        let words = "150 tokens do not fit a context of 100";
        assert!(rows[80]["error"].as_str().unwrap().contains(words), "{}", rows[80]);
        jobs[..80].iter_mut().for_each(|job| drop(job.as_object_mut().unwrap().remove("top_k")));
    }
}

/// Exit code, what was said, and that no job was sent.
async fn check_refused(server: &StandIn, more: &[&str], code: i32, words: &str) {
    let place = Place::new(&[job(0, &tokens(1, 9), &[[2, 9]])]);
    let ran = place.score(&[server.url()], more).await;
    assert_eq!(ran.code, code, "{}", ran.stderr);
    assert!(ran.stderr.contains(words) && ran.stderr.contains("\nhelp: "), "{words:?} in {}", ran.stderr);
    assert!(!place.path("out.jsonl").exists());
    assert_eq!(n_requests(server), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_server_cannot_do_is_found_out_before_anything_is_paid() {
    let (tokenizer, named) = (tokenizer(), "--tokenizer");
    let tokenizer = tokenizer.to_str().unwrap();
    let vllm = StandIn::start(Setup { scores: false, ..Setup::new(Dialect::Vllm) }).await;
    let url = vllm.url();
    check_refused(&vllm, &[], 3, &format!("error: {url} cannot score a prompt: ")).await;
    check_refused(&vllm, &["--kind", "openai"], 3, &format!("error: {url} cannot score a prompt\n")).await;
    check_refused(&vllm, &["--model", "other"], 2, "has no model `other`; it lists `toy`").await;
    let sglang = StandIn::start(Setup::new(Dialect::Sglang)).await;
    check_refused(&sglang, &[], 3, "the size of its vocabulary is unknown").await;
    check_refused(&sglang, &[named, "/nowhere"], 2, "/nowhere").await;
    check_refused(
        &sglang,
        &["--model", "other", named, tokenizer],
        2,
        "has no model `other`; it lists `toy`",
    )
    .await;
    let other = StandIn::start(Setup { tokenizes: Some(vec![1, 2, 3]), ..Setup::new(Dialect::Sglang) }).await;
    let words = format!("the tokenizer at {tokenizer} gives other ids than that of {}", other.url());
    check_refused(&other, &[named, tokenizer], 2, &words).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_read_or_written_is_refused_first() {
    let server = StandIn::start(Setup::new(Dialect::Vllm)).await;
    let place = Place::new(&[job(0, &tokens(1, 9), &[[2, 9]])]);
    fs::create_dir(place.path("dir")).unwrap();
    place.write("empty.jsonl", b"");
    place.write("blank.jsonl", "\u{feff}\n \n".as_bytes());
    let cases = [
        (["--jobs", "nothing.jsonl", "--out", "out.jsonl"], "nothing.jsonl: No such file"),
        (["--jobs", "jobs.jsonl", "--out", "jobs.jsonl"], "jobs.jsonl is the file of the jobs"),
        (["--jobs", "jobs.jsonl", "--out", "./dir/../jobs.jsonl"], "is the file of the jobs"),
        (["--jobs", "jobs.jsonl", "--out", "dir"], "dir is a directory"),
        (["--jobs", "dir", "--out", "out.jsonl"], "dir: Is a directory"),
        (["--jobs", "jobs.jsonl", "--out", "/dev/stderr"], "/dev/stderr is no file"),
        (["--jobs", "empty.jsonl", "--out", "out.jsonl"], "empty.jsonl: there is no job in the file"),
        (["--jobs", "blank.jsonl", "--out", "out.jsonl"], "blank.jsonl: there is no job in the file"),
    ];
    for (arguments, words) in cases {
        let mut command = Command::new(env!("CARGO_BIN_EXE_backsight"));
        command.current_dir(place.0.path()).args(["score", "--url", &server.url()]).args(arguments);
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(words) && said.contains("help: "), "{words:?} in {said}");
    }
    assert_eq!(server.asked().len(), 0);
    let jobs = fs::read_to_string(place.path("jobs.jsonl")).unwrap();
    assert!(jobs.starts_with("{\"id\":0"), "the jobs are still there");
}

#[tokio::test(flavor = "multi_thread")]
async fn several_servers_must_be_one_model() {
    let jobs: Vec<Value> = (0..40).map(|n| job(n, &tokens(100 + n, 12), &[[3, 12]])).collect();
    let place = Place::new(&jobs);
    let a = StandIn::start(Setup::new(Dialect::Vllm)).await;
    let b = StandIn::start(Setup::new(Dialect::Vllm)).await;
    let other = StandIn::start(Setup { toy: Toy { weights: 2 }, ..Setup::new(Dialect::Vllm) }).await;
    let sglang = StandIn::start(Setup::new(Dialect::Sglang)).await;
    let ran = place.score(&[a.url(), other.url()], &[]).await;
    assert_eq!(ran.code, 2, "{}", ran.stderr);
    let words = format!(
        "{} has other weights than {}: the logprobs of a probe text differ by ",
        other.url(),
        a.url()
    );
    assert!(ran.stderr.contains(&words), "{}", ran.stderr);
    // As after one small step of an optimiser.
    let near = StandIn::start(Setup { nudge: 1e-4, ..Setup::new(Dialect::Vllm) }).await;
    let ran = place.score(&[a.url(), near.url()], &[]).await;
    assert_eq!(ran.code, 2, "{}", ran.stderr);
    assert!(
        ran.stderr.contains(&format!("{} has other weights than {}", near.url(), a.url())),
        "{}",
        ran.stderr
    );
    assert_eq!(n_requests(&near), 0);
    let ran = place.score(&[a.url(), sglang.url()], &["--tokenizer", tokenizer().to_str().unwrap()]).await;
    assert_eq!(ran.code, 2, "{}", ran.stderr);
    assert!(
        ran.stderr.contains("serves `toy` (vllm), ") && ran.stderr.contains("`toy` (sglang)"),
        "{}",
        ran.stderr
    );
    assert_eq!(n_requests(&a) + n_requests(&other) + n_requests(&sglang), 0);
    let gone = StandIn::start(Setup::new(Dialect::Vllm)).await.url();
    let ran = place.score(&[a.url(), gone.clone(), b.url()], &[]).await;
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert!(ran.stderr.contains(&format!("note: {gone} cannot be reached")), "{}", ran.stderr);
    assert!(ran.stderr.contains("going on without it"), "{}", ran.stderr);
    assert_eq!(place.bare_rows(), jobs.iter().map(expected).collect::<Vec<_>>());
    assert!(n_requests(&a) > 5 && n_requests(&b) > 5, "both work");
}

#[tokio::test(flavor = "multi_thread")]
async fn of_several_servers_one_that_garbles_is_left_out() {
    let jobs = [job(0, &tokens(1, 9), &[[2, 9]])];
    let well = StandIn::start(Setup::new(Dialect::Vllm)).await;
    let html = StandIn::start(Setup::new(Dialect::Vllm).faults(|_| Some(Fault::Html))).await;
    let scores = |asked: &Asked| (asked.route == "/v1/completions").then_some(Fault::Html);
    let scores = StandIn::start(Setup::new(Dialect::Vllm).faults(scores)).await;
    for bad in [&html, &scores] {
        let place = Place::new(&jobs);
        let ran = place.score(&[bad.url(), well.url()], &[]).await;
        assert_eq!(ran.code, 0, "{}", ran.stderr);
        let words = format!("note: {} answered with something unusable: ", bad.url());
        assert!(
            ran.stderr.contains(&words) && ran.stderr.contains("; going on without it"),
            "{}",
            ran.stderr
        );
        assert_eq!(place.bare_rows(), [expected(&jobs[0])]);
    }
    let place = Place::new(&jobs);
    let ran = place.score(&[html.url(), html.url()], &[]).await;
    assert_eq!(ran.code, 3, "{}", ran.stderr);
}

#[tokio::test(flavor = "multi_thread")]
async fn other_weights_behind_the_same_address_are_noticed() {
    let jobs = [job(0, &tokens(1, 9), &[[2, 9]])];
    let place = Place::new(&jobs);
    let first = StandIn::start(Setup::new(Dialect::Vllm)).await;
    let (address, url) = (first.address.to_string(), first.url());
    assert_eq!(place.score(std::slice::from_ref(&url), &[]).await.code, 0);
    let before = place.bare_rows();
    drop(first);
    let second =
        StandIn::start_at(&address, Setup { toy: Toy { weights: 2 }, ..Setup::new(Dialect::Vllm) }).await;
    let ran = place.score(&[url], &[]).await;
    assert_eq!((ran.code, n_requests(&second)), (0, 1), "{}", ran.stderr);
    assert!(
        ran.stderr
            .contains("note: the model is another than last time (the logprobs of a probe text differ by "),
        "{}",
        ran.stderr
    );
    assert_ne!(place.bare_rows(), before);
}

/// Of one or two servers the first is replaced by one with these weights while a run goes on.
async fn replaced(
    dialect: Dialect,
    n_servers: usize,
    weights: u64,
) -> (Place, Vec<Value>, Vec<StandIn>, Ran) {
    let setup = |weights| {
        let slow = |_: &_| Some(Fault::Slow(Duration::from_millis(40)));
        Setup { toy: Toy { weights }, ..Setup::new(dialect).faults(slow) }
    };
    // A hundred beginnings of `tokens` are distinct; the first id makes it four hundred.
    let ids = |n: u32| [&[FIRST_ID + n / 100][..], &tokens(n, 12)].concat();
    let jobs: Vec<Value> = (0..400).map(|n| job(n, &ids(n), &[[4, 13]])).collect();
    let place = Place::new(&jobs);
    let mut servers = Vec::new();
    for _ in 0..n_servers {
        servers.push(StandIn::start(setup(1)).await);
    }
    let (address, tokenizer) = (servers[0].address.to_string(), tokenizer());
    let urls: Vec<String> = servers.iter().map(StandIn::url).collect();
    let more = ["--tokenizer", tokenizer.to_str().unwrap(), "--concurrency", "4", "--json"];
    let mut command = place.command(&urls, &more);
    let running = tokio::task::spawn_blocking(move || command.output().unwrap());
    // Four are in flight at a time, so that some of these have been answered.
    while servers.iter().any(|it| n_requests(it) < 8 / n_servers) {
        assert!(!running.is_finished(), "nobody was asked");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    drop(servers.remove(0));
    tokio::time::sleep(Duration::from_millis(100)).await;
    servers.insert(0, StandIn::start_at(&address, setup(weights)).await);
    let ran = Ran::of(running.await.unwrap());
    (place, jobs, servers, ran)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_comes_back_with_other_weights_ends_the_run() {
    for (dialect, n_servers) in [(Dialect::Vllm, 1), (Dialect::Sglang, 1), (Dialect::Vllm, 2)] {
        let (place, jobs, servers, ran) = replaced(dialect, n_servers, 2).await;
        assert_eq!(ran.code, 3, "{dialect:?} {n_servers}: {}", ran.stderr);
        let why = match dialect {
            Dialect::Vllm => "the logprobs of a probe text differ by ",
            Dialect::Sglang => "it calls its weights `w2`, not `w1`",
        };
        let words = format!("{} is another model than before: {why}", servers[0].url());
        assert!(ran.stderr.contains(&words), "{}", ran.stderr);
        // What nobody has vouched for since is given up; what is there is right.
        for (row, job) in place.bare_rows().iter().zip(&jobs).filter(|(row, _)| row.get("error").is_none()) {
            assert_eq!(row, &expected(job), "an answer of other weights");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_comes_back_as_it_was_is_taken_again() {
    for dialect in DIALECTS {
        let (place, jobs, servers, ran) = replaced(dialect, 1, 1).await;
        assert_eq!(ran.code, 0, "{}", ran.stderr);
        assert_eq!(place.bare_rows(), jobs.iter().map(expected).collect::<Vec<_>>());
        assert!(n_requests(&servers[0]) > 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_ends_it_with_a_word_and_the_same_command_continues() {
    let jobs: Vec<Value> = (0..200).map(|n| job(n, &tokens(100 + n, 12), &[[3, 12]])).collect();
    let slow = |_: &_| Some(Fault::Slow(Duration::from_millis(20)));
    let server = StandIn::start(Setup::new(Dialect::Vllm).faults(slow)).await;
    for (name, code) in [("-INT", 130), ("-TERM", 143)] {
        let place = Place::new(&jobs);
        let n_before = n_requests(&server);
        let child = place.command(&[server.url()], &["--concurrency", "2"]).spawn().unwrap();
        while n_requests(&server) < n_before + 10 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert!(Command::new("kill").args([name, &child.id().to_string()]).status().unwrap().success());
        let ran =
            Ran::of(tokio::task::spawn_blocking(move || child.wait_with_output().unwrap()).await.unwrap());
        assert_eq!(ran.code, code, "{}", ran.stderr);
        assert!(
            ran.stderr
                .contains("error: interrupted\nhelp: what was finished is kept; the same command continues"),
            "{}",
            ran.stderr
        );
        let n_asked = n_requests(&server);
        assert_eq!(place.score(&[server.url()], &[]).await.code, 0);
        assert!(n_requests(&server) < n_asked + 195, "what was kept is not paid again");
        assert_eq!(place.bare_rows(), jobs.iter().map(expected).collect::<Vec<_>>());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_key_is_named() {
    let denies = |asked: &Asked| {
        let denied = Fault::Status(401, String::new(), r#"{"error": "Unauthorized"}"#.to_owned());
        asked.route.starts_with("/v1/").then_some(denied)
    };
    let server = StandIn::start(Setup::new(Dialect::Vllm).faults(denies)).await;
    let other = StandIn::start(
        Setup::new(Dialect::Sglang)
            .faults(|_| Some(Fault::Status(403, String::new(), r#"{"error": "Forbidden"}"#.to_owned()))),
    );
    let other = other.await;
    let place = Place::new(&[job(0, &tokens(1, 9), &[[2, 9]])]);
    place.write("key", b"sk-0123456789");
    let with_key = ["--api-key-env", "KEY_OF_THIS_TEST"];
    for (url, more, words) in [
        (server.url(), &with_key[..], "Unauthorized; the API key of KEY_OF_THIS_TEST was sent"),
        (server.url(), &["--api-key-file", "key"], "HTTP 401: Unauthorized; the API key of key was sent"),
        (server.url(), &[], "HTTP 401: Unauthorized; no API key was sent"),
        (other.url(), &[], "HTTP 403: Forbidden; no API key was sent"),
    ] {
        let mut command = place.command(&[url], more);
        command.env("KEY_OF_THIS_TEST", "sk-0123456789");
        let ran = Ran::of(tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap());
        assert_eq!(ran.code, 2, "{}", ran.stderr);
        let help = "\nhelp: check the API key: --api-key-env names the variable that holds it";
        assert!(ran.stderr.contains(words) && ran.stderr.contains(help), "{words:?} in {}", ran.stderr);
        assert!(!ran.stderr.contains("sk-"), "{}", ran.stderr);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_with_a_key_is_refused_without_showing_it() {
    let place = Place::new(&[job(0, &tokens(1, 9), &[[2, 9]])]);
    for url in ["http://h:8000/v1?api_key=sk-1", "http://me:sk-1@h:99999", "ftp://sk-1@h", "http://h#sk-1"] {
        for more in [&[][..], &["--kind", "embedded"]] {
            let ran = place.score(&[url.to_owned()], more).await;
            assert_eq!(ran.code, 2, "{}", ran.stderr);
            assert!(ran.stderr.contains("***") && !ran.stderr.contains("sk-1"), "{}", ran.stderr);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ids_of_any_size_and_a_byte_order_mark_are_taken() {
    let server = StandIn::start(Setup::new(Dialect::Vllm)).await;
    let place = Place::new(&[]);
    let ids = ["123456789012345678901234567890", "-9223372036854775809", "\"a\""];
    let lines = ids.map(|id| format!("{{\"id\": {id}, \"tokens\": [600, 601], \"spans\": [[1, 2]]}}"));
    place.write("jobs.jsonl", format!("\u{feff}{}", lines.join("\n")).as_bytes());
    let ran = place.score_at(&server, &[]).await;
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let rows = fs::read_to_string(place.path("out.jsonl")).unwrap();
    for (row, id) in rows.lines().zip(ids) {
        assert!(row.starts_with(&format!("{{\"id\":{id},\"spans\":[{{")), "{row}");
    }
    assert_eq!(rows.lines().count(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_through_a_link_are_in_its_target() {
    let server = StandIn::start(Setup::new(Dialect::Vllm)).await;
    let jobs = [job(0, &tokens(1, 9), &[[2, 9]])];
    let place = Place::new(&jobs);
    fs::create_dir(place.path("far")).unwrap();
    std::os::unix::fs::symlink("far/rows.jsonl", place.path("out.jsonl")).unwrap();
    for _ in 0..2 {
        let ran = place.score_at(&server, &[]).await;
        assert_eq!(ran.code, 0, "{}", ran.stderr);
        assert!(place.path("out.jsonl").is_symlink() && !place.path("far/rows.jsonl").is_symlink());
        assert_eq!(place.bare_rows(), [expected(&jobs[0])]);
        assert_eq!(fs::read_dir(place.path("far")).unwrap().count(), 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_only_garbles_ends_the_run() {
    for dialect in DIALECTS {
        let garbles = |asked: &Asked| {
            let is_job = asked.ids.first().is_some_and(|&id| id >= FIRST_ID);
            is_job.then_some(Fault::Html)
        };
        let server = StandIn::start(Setup::new(dialect).faults(garbles)).await;
        let jobs: Vec<Value> = (0..9).map(|n| job(n, &tokens(100 + n, 12), &[[3, 12]])).collect();
        let place = Place::new(&jobs);
        let ran = place.score_at(&server, &["--concurrency", "3", "--patience", "1"]).await;
        assert_eq!(ran.code, 3, "{}", ran.stderr);
        let words = format!("error: {} answered with something unusable: ", server.url());
        assert!(ran.stderr.contains(&words), "{}", ran.stderr);
        assert_eq!(place.rows().len(), 9, "every job has its row");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_stammers_is_told_of_once() {
    let busy = |asked: &Asked| {
        let hit = asked.times_before == 0 && asked.ids.first().is_some_and(|&id| id >= FIRST_ID);
        hit.then(|| Fault::Status(429, String::new(), "busy".to_owned()))
    };
    let server = StandIn::start(Setup::new(Dialect::Vllm).faults(busy)).await;
    let jobs: Vec<Value> = (0..40).map(|n| job(n, &tokens(100 + n, 12), &[[3, 12]])).collect();
    let place = Place::new(&jobs);
    let ran = place.score(&[server.url()], &["--concurrency", "2"]).await;
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let told = ran.stderr.lines().filter(|it| it.contains("HTTP 429")).count();
    assert_eq!(told, 2, "the first and the tenth: {}", ran.stderr);
    assert!(ran.stderr.contains("10 times by now, trying again"), "{}", ran.stderr);
}

/// Six prompts that end alike, as one action under six lenses does, and a server that mixes their answers up.
#[tokio::test(flavor = "multi_thread")]
async fn answers_in_another_order_change_no_number() {
    let reversed = |asked: &Asked| (asked.prompts.len() > 1).then_some(Fault::Reversed);
    let server = StandIn::start(Setup::new(Dialect::Sglang).faults(reversed)).await;
    let ending = tokens(3, 11);
    let jobs: Vec<Value> =
        (0..6).map(|n| job(n, &[&[FIRST_ID + n], &ending[..]].concat(), &[[4, 12]])).collect();
    let place = Place::new(&jobs);
    let ran = place.score_at(&server, &[]).await;
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert_eq!(place.bare_rows(), jobs.iter().map(expected).collect::<Vec<_>>());
    assert!(server.asked().iter().any(|asked| asked.prompts.len() == 6), "they were asked for together");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_process_says_so_and_stops() {
    let slow = |_: &_| Some(Fault::Slow(Duration::from_millis(300)));
    let server = StandIn::start(Setup::new(Dialect::Vllm).faults(slow)).await;
    let place = Place::new(&[job(0, &tokens(1, 9), &[[2, 9]])]);
    let mut first = place.command(&[server.url()], &[]).spawn().unwrap();
    while !place.path("out.jsonl.backsight/run.lock").exists() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    tokio::time::sleep(Duration::from_millis(50)).await;
    let second = place.score(&[server.url()], &[]).await;
    assert_eq!(second.code, 3, "{}", second.stderr);
    let words =
        format!("is in use by process {}\nhelp: wait for it or stop it, or choose another --out", first.id());
    assert!(second.stderr.contains(&words), "{}", second.stderr);
    let ended = tokio::task::spawn_blocking(move || first.wait().unwrap()).await.unwrap();
    assert!(ended.success());
    assert_eq!(place.bare_rows(), [expected(&job(0, &tokens(1, 9), &[[2, 9]]))]);
}

/// Killed at random moments; in the end the file is that of an undisturbed run, and little was asked twice.
#[tokio::test(flavor = "multi_thread")]
async fn killed_again_and_again_it_ends_with_the_same_file() {
    for dialect in DIALECTS {
        let slow = |_: &_| Some(Fault::Slow(Duration::from_millis(15)));
        let server = StandIn::start(Setup::new(dialect).faults(slow)).await;
        let jobs: Vec<Value> = (0..400).map(|n| job(n, &tokens(100 + n, 12), &[[3, 12]])).collect();
        let place = Place::new(&jobs);
        let tokenizer = tokenizer();
        let more = ["--tokenizer", tokenizer.to_str().unwrap(), "--concurrency", "4"];
        let is_job = |ids: &&Vec<u32>| ids.first().is_some_and(|&id| id >= FIRST_ID);
        let n_asked = || server.asked().iter().flat_map(|it| &it.prompts).filter(is_job).count();
        let mut n_kills = 0;
        loop {
            let mut child = place.command(&[server.url()], &more).stderr(Stdio::null()).spawn().unwrap();
            let enough = n_asked() + 1 + 40 * (mix(n_kills) % 4) as usize;
            let ended = loop {
                let ended = child.try_wait().unwrap();
                if ended.is_some() || n_asked() >= enough {
                    break ended;
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            };
            tokio::time::sleep(Duration::from_millis(mix(n_kills + 99) % 30 + 5 * n_kills)).await;
            let killed = tokio::task::spawn_blocking(move || (child.kill(), child.wait()));
            killed.await.unwrap().1.unwrap();
            match ended {
                Some(status) => {
                    assert!(status.success());
                    break;
                }
                None => n_kills += 1,
            }
        }
        assert_eq!(place.bare_rows(), jobs.iter().map(expected).collect::<Vec<_>>());
        assert!(n_kills >= 2, "only {n_kills} kills: the test is too easy");
        let n_asked = n_asked();
        // Four requests are in the air at a time, of up to 32 jobs where jobs go together.
        let most = if dialect == Dialect::Vllm { 4 } else { 4 * 32 };
        assert!(n_asked <= 400 + most * n_kills as usize, "{n_asked} for 400 over {n_kills} kills");
        let left: Vec<_> = fs::read_dir(place.path("out.jsonl.backsight")).unwrap().collect();
        assert!(
            left.iter().all(|it| !it.as_ref().unwrap().file_name().to_string_lossy().starts_with("rows"))
        );
    }
}
