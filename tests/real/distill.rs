//! Alignment on real servers: every target is what the server itself says of that very token, asked directly.
//!
//! Episodes are collected from the server, a scripted judge gives each pair a hint of its own, and the server teaches.
//! What it should have been asked is put together here from the recorded ids and the hint alone.
#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use backsight::chat::tokenizer::Tokenizer;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::agent::url;
use crate::compared;
use crate::support::http::client;
use crate::support::stand_in::{Dialect, Setup, StandIn};

const TASKS: &str = "\
{\"id\": \"add\", \"task\": \"Write add(a, b) to solution.py.\", \"tests\": \"from solution import add\\nassert add(1, 2) == 3\"}
";
/// The same sentence in every turn: each has to get its own rows.
const REPEATED: &str = r#"{"id": "same", "reward": 1.0, "messages": [
    {"role": "user", "content": "Count the files."},
    {"role": "assistant", "content": "I look at the directory."}, {"role": "user", "content": "And?"},
    {"role": "assistant", "content": "I look at the directory."}, {"role": "user", "content": "Still?"},
    {"role": "assistant", "content": "I look at the directory."}, {"role": "user", "content": "Well."}]}"#;

/// A server to be asked directly.
struct Server {
    url: String,
    kind: &'static str,
    model: String,
    tokenizer: Tokenizer,
}

impl Server {
    async fn open(url: &str, kind: &'static str) -> Self {
        let listed: Value =
            client().get(format!("{url}/v1/models")).send().await.unwrap().json().await.unwrap();
        let model = &listed["data"][0];
        let name = model["id"].as_str().unwrap().to_owned();
        let path = match kind {
            "vllm" => model["root"].as_str().unwrap().to_owned(),
            _ => {
                let about = client().get(format!("{url}/get_model_info")).send().await.unwrap();
                about.json::<Value>().await.unwrap()["model_path"].as_str().unwrap().to_owned()
            }
        };
        let tokenizer = Tokenizer::open(Path::new(&path)).unwrap();
        Self { url: url.to_owned(), kind, model: name, tokenizer }
    }

    /// The logprobs of ids as a prompt, the first of which has none.
    async fn logprobs(&self, ids: &[u32]) -> Vec<Option<f64>> {
        let (route, body) = match self.kind {
            "vllm" => (
                "/v1/completions",
                json!({"model": self.model, "prompt": ids, "max_tokens": 1, "prompt_logprobs": 1, "temperature": 0}),
            ),
            _ => (
                "/generate",
                json!({"input_ids": ids, "sampling_params": {"max_new_tokens": 1, "temperature": 0},
                       "return_logprob": true, "logprob_start_len": 0}),
            ),
        };
        let answer = client().post(format!("{}{route}", self.url)).json(&body).send().await.unwrap();
        let answer: Value = answer.json().await.unwrap();
        let of_vllm = |(row, id): (&Value, &u32)| row[id.to_string()]["logprob"].as_f64();
        match self.kind {
            "vllm" => {
                let rows = answer["choices"][0]["prompt_logprobs"].as_array().unwrap();
                rows.iter().zip(ids).map(of_vllm).collect()
            }
            _ => {
                let rows = answer["meta_info"]["input_token_logprobs"].as_array().unwrap();
                rows.iter().map(|row| row[0].as_f64()).collect()
            }
        }
    }

    /// What SGLang says of these candidates at the end of a context.
    async fn of_candidates(&self, context: &[u32], candidates: &[u32]) -> Vec<f64> {
        // Any token will do behind it: the row before it is the context's.
        let ids = [context, &context[..1]].concat();
        let body = json!({"input_ids": ids, "sampling_params": {"max_new_tokens": 0, "temperature": 0},
                          "return_logprob": true, "logprob_start_len": context.len() - 1, "token_ids_logprob": candidates});
        let answer = client().post(format!("{}/generate", self.url)).json(&body).send().await.unwrap();
        let answer: Value = answer.json().await.unwrap();
        let row = &answer["meta_info"]["input_token_ids_logprobs"][1];
        row.as_array().unwrap().iter().map(|it| it[0].as_f64().unwrap()).collect()
    }

    /// A context with the hint behind the message of the user that is the `nth` from the end, everything else as it was.
    fn hinted(&self, context: &[u32], hint: &str, is_last: bool) -> Vec<u32> {
        let id = |text: &str| self.tokenizer.id_of(text).unwrap();
        let (start, end) = (id("<|im_start|>"), id("<|im_end|>"));
        let text = |ids: &[u32]| self.tokenizer.decode(ids).unwrap();
        let is_user = |at: &usize| context[*at] == start && text(&context[*at + 1..]).starts_with("user\n");
        let mut all = (0..context.len()).filter(is_user);
        let at = if is_last { all.next_back() } else { all.next() }.unwrap();
        let close = at + context[at..].iter().position(|id| *id == end).unwrap();
        let said = format!("{}\n\n[user's hint / instruction]\n{hint}", text(&context[at + 1..close]));
        [&context[..=at], &self.tokenizer.encode(&said).unwrap().ids, &context[close..]].concat()
    }
}

/// A directory in which the program is run.
struct Place(TempDir);

impl Place {
    fn run(&self, arguments: &[&str]) -> Value {
        let mut command = Command::new(env!("CARGO_BIN_EXE_backsight"));
        command.current_dir(self.0.path()).args(arguments).arg("--json").stdin(Stdio::null());
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {said}");
        serde_json::from_slice(&output.stdout).unwrap()
    }

    fn lines(&self, name: &str) -> Vec<Value> {
        let text = fs::read_to_string(self.0.path().join(name)).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

/// A judge that gives every pair a hint of its own.
async fn judge() -> StandIn {
    let say = |body: &Value| {
        let shown = body["messages"][1]["content"].as_str().unwrap_or_default();
        let number =
            shown.bytes().fold(7u64, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into())) % 1000;
        let vote = format!("\\boxed{{1}}[HINT_START]Check file number {number} first.[HINT_END]");
        Some(json!({"role": "assistant", "content": vote}))
    };
    StandIn::start(Setup::new(Dialect::Vllm).talks(say)).await
}

fn ids(list: &Value) -> Vec<u32> {
    list.as_array().unwrap().iter().map(|it| it.as_u64().unwrap() as u32).collect()
}

/// The stretches of trained tokens, which are the actions.
fn actions(masks: &Value) -> Vec<(usize, usize)> {
    let trained: Vec<bool> = masks.as_array().unwrap().iter().map(|it| it != &json!(-100)).collect();
    let starts = (0..trained.len()).filter(|at| trained[*at] && (*at == 0 || !trained[*at - 1]));
    starts.map(|start| (start, start + trained[start..].iter().take_while(|it| **it).count())).collect()
}

/// The episodes of a run's sequences, in order.
fn names(place: &Place, run: &str) -> Vec<String> {
    let compact = fs::read(place.0.path().join(format!("{run}/groups.safetensors"))).unwrap();
    let size = u64::from_le_bytes(compact[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&compact[8..8 + size]).unwrap();
    let about: Value = serde_json::from_str(header["__metadata__"]["about"].as_str().unwrap()).unwrap();
    let name = |it: &Value| it["episode"].as_str().unwrap().to_owned();
    about["episodes"].as_array().unwrap().iter().map(name).collect()
}

/// Compares every row of the groups with what the server says when it is asked directly; gives how many.
async fn check(place: &Place, server: &Server, run: &str, is_last: bool) -> usize {
    let mut hints: HashMap<(String, usize), String> = HashMap::new();
    for row in place.lines(&format!("{run}/verdicts.jsonl")) {
        let (episode, step) =
            (row["episode"].as_str().unwrap().to_owned(), row["step"].as_u64().unwrap() as usize);
        hints.insert((episode, step), row["hint"].as_str().unwrap().to_owned());
    }
    let (mut names, mut n) = (names(place, run).into_iter(), 0);
    for group in place.lines(&format!("{run}/groups.jsonl")) {
        for sequence in 0..group["tokens"].as_array().unwrap().len() {
            let name = names.next().unwrap();
            let tokens = ids(&group["tokens"][sequence]);
            let (rows, values) =
                (&group["distill_token_ids"][sequence], &group["distill_logprobs"][sequence]);
            for (step, (start, end)) in actions(&group["masks"][sequence]).into_iter().enumerate() {
                let Some(hint) = hints.get(&(name.clone(), step)) else { continue };
                let context = server.hinted(&tokens[..start], hint, is_last);
                let read = [&context[..], &tokens[start..end]].concat();
                let direct = server.logprobs(&read).await;
                for position in start..end {
                    let row = ids(&rows[position]);
                    let at = row.iter().position(|id| *id == tokens[position]).unwrap();
                    let told = values[position][at].as_f64().unwrap();
                    let expected = direct[context.len() + position - start].unwrap();
                    assert!(
                        (told - expected).abs() < 1e-3,
                        "{name} step {step} token {position}: {told} {expected}"
                    );
                    n += 1;
                }
            }
        }
    }
    n
}

/// Compares rows about the student's own candidates with what SGLang says of them when it is asked directly; gives how
/// many candidates.
async fn check_candidates(place: &Place, server: &Server) -> usize {
    let name = names(place, "r").remove(0);
    let hint = place.lines("r/verdicts.jsonl").into_iter().find(|it| it["episode"] == name.as_str()).unwrap();
    let group = &place.lines("r/groups.jsonl")[0];
    assert_eq!(group["group_overrides"]["teacher_candidates"], "student");
    let tokens = ids(&group["tokens"][0]);
    let step = hint["step"].as_u64().unwrap() as usize;
    let (start, end) = actions(&group["masks"][0])[step];
    let context = server.hinted(&tokens[..start], hint["hint"].as_str().unwrap(), false);
    let (rows, values) = (&group["distill_token_ids"][0], &group["distill_logprobs"][0]);
    let mut n = 0;
    for position in (start..end).step_by(5) {
        let row = ids(&rows[position]);
        let before = [&context[..], &tokens[start..position]].concat();
        let direct = server.of_candidates(&before, &row).await;
        let told = values[position].as_array().unwrap().iter().map(|it| it.as_f64().unwrap());
        for (told, direct) in told.zip(direct) {
            assert!((told - direct).abs() < 1e-3, "step {step} token {position}: {told} {direct}");
            n += 1;
        }
    }
    n
}

async fn aligned(variable: &str, kind: &'static str) {
    let Some(url) = url(variable) else { return };
    let (server, judge) = (Server::open(&url, kind).await, judge().await);
    let place = Place(TempDir::new().unwrap());
    fs::write(place.0.path().join("tasks.jsonl"), TASKS).unwrap();
    fs::write(place.0.path().join("same.jsonl"), REPEATED.replace('\n', " ") + "\n").unwrap();
    let model = ["--url", &url, "--kind", kind];
    let collect = [
        "collect",
        "--tasks",
        "tasks.jsonl",
        "--eval-size",
        "0",
        "--eval-split-ratio",
        "0",
        "--group-size",
        "2",
    ];
    let small = ["--forced-calls", "2", "--max-agent-turns", "3", "--max-turn-tokens", "48", "--run", "r"];
    place.run(&[&collect[..], &small, &model].concat());
    let judged = judge.url();
    let roles = ["--judge-url", &judged, "--judge-kind", "vllm", "--distill-topk", "20"];
    let summary = place.run(&[&["distill", "--run", "r"][..], &model, &roles].concat());
    let n_hinted = check(&place, &server, "r", false).await;
    assert_eq!(json!(n_hinted), summary["made"]["shipped_tokens"]);
    assert!(summary["made"]["scored_steps"].as_u64() >= Some(4), "calls of tools are read too: {summary}");
    let students = ["distill", "--run", "r", "--at-student-topk", "true"];
    let summary = place.run(&[&students[..], &model, &roles].concat());
    let lacking = summary["lost"]["tokens"].as_object().and_then(|it| it.values().next()?.as_u64());
    let shipped = summary["made"]["shipped_tokens"].as_u64().unwrap();
    assert_eq!(shipped + lacking.unwrap_or(0), n_hinted as u64, "{summary}");
    let n_candidates = if kind == "sglang" { check_candidates(&place, &server).await } else { 0 };
    assert!(kind == "vllm" || lacking.is_none() && n_candidates >= 20, "{n_candidates} {summary}");
    // The same teacher without a hint says what the student said.
    let plain =
        place.run(&[&["distill", "--run", "r", "--lens", "plain", "--audit", "all"][..], &model].concat());
    let gap = &plain["gap"]["plain"];
    assert!(gap["mean_size"].as_f64().unwrap() < 0.02 && gap["tokens"].as_u64() > Some(100), "{gap}");
    assert_eq!(plain["quarantined"], json!(0));
    let same = ["distill", "--episodes", "same.jsonl", "--run", "same", "--allow-rendered", "true"];
    place.run(&[&same[..], &model, &roles].concat());
    let n_same = check(&place, &server, "same", true).await;
    assert!(n_same >= 3 * 5, "{n_same}");
    compared(n_hinted + n_same + n_candidates, "targets of distillation");
}

#[tokio::test(flavor = "multi_thread")]
async fn targets_are_what_vllm_says_of_the_very_token() {
    aligned("BACKSIGHT_VLLM_URL", "vllm").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn targets_are_what_sglang_says_of_the_very_token() {
    aligned("BACKSIGHT_SGLANG_URL", "sglang").await;
}
