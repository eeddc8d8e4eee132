//! API keys are sent where they belong and shown nowhere: not on either stream, not in any file, whatever the server says.
#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use crate::support::stand_in::{Dialect, Fault, Setup, StandIn};

/// As sent; servers echo it, and half of it is still a secret.
const KEY: &str = "sk-live-0123456789-marker";
const SHORTEST_LEAK: &str = "0123456789";
const PASSWORD: &str = "hunter2-0123456789";

/// Every command that takes a password in an address.
fn with_login(url: &str) -> Vec<Vec<String>> {
    let url = url.replace("http://", &format!("http://me:{PASSWORD}@"));
    let score =
        ["score", "--url", &url, "--kind", "vllm", "--jobs", "jobs.jsonl", "--out", "out.jsonl", "--json"];
    let mut all: Vec<_> =
        [&["probe", &url][..], &["probe", &url, "--json", "--kind", "vllm"], &score].map(strings).into();
    all.extend(runs(&url, &[]));
    all
}

/// The commands with a run directory.
fn runs(url: &str, more: &[&str]) -> Vec<Vec<String>> {
    let model = ["--url", url, "--kind", "vllm", "--tokenizer", "model"];
    let tasks = ["--tasks", "tasks.jsonl", "--eval-size", "0", "--eval-split-ratio", "0"];
    let few = ["--max-agent-turns", "2", "--max-turn-tokens", "24"];
    vec![
        strings(
            &[&["collect", "--run", "runs/c"], &model[..], &tasks, &few, &["--group-size", "1"], more]
                .concat(),
        ),
        strings(
            &[
                &["evaluate", "--run", "runs/e", "--json"],
                &model[..],
                &tasks[..2],
                &["--eval-tasks", "all"],
                &few,
                more,
            ]
            .concat(),
        ),
        strings(&[&["credit", "--input-dir", "episodes"], &model[..], more].concat()),
        strings(
            &[&["credit", "--input-dir", "episodes", "--json", "--overwrite"], &model[..], more].concat(),
        ),
    ]
}

/// A model's text files, a task and a recorded episode.
fn write_inputs(dir: &Path) {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    fs::create_dir_all(dir.join("model")).unwrap();
    for file in ["tokenizer.json", "tokenizer_config.json"] {
        fs::copy(fixtures.join("tokenizers/chatml").join(file), dir.join("model").join(file)).unwrap();
    }
    fs::write(dir.join("model/chat_template.jinja"), crate::student::TOOLS).unwrap();
    let task = r#"{"id": "add", "task": "Write add(a, b).", "tests": "from solution import add\nassert add(1, 2) == 3"}"#;
    fs::write(dir.join("tasks.jsonl"), format!("{task}\n")).unwrap();
    let episode = dir.join("episodes/episode_001");
    fs::create_dir_all(&episode).unwrap();
    for file in fs::read_dir(fixtures.join("hcapo/episodes/episode_001")).unwrap().flatten() {
        fs::copy(file.path(), episode.join(file.file_name())).unwrap();
    }
}

fn strings(arguments: &[&str]) -> Vec<String> {
    arguments.iter().map(|it| (*it).to_owned()).collect()
}

/// Every command that takes a key, with each way to give one.
fn with_key(url: &str) -> Vec<Vec<String>> {
    let tokenizer = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tokenizers/chatml");
    let tokenizer = tokenizer.to_str().unwrap();
    let ways = [vec!["--api-key-env", "MY_KEY"], vec!["--api-key-file", "key.txt"]];
    let mut all = Vec::new();
    for kind in ["auto", "vllm", "sglang", "openai", "anthropic"] {
        for way in &ways {
            let probe = ["probe", url, "--kind", kind, "--model", "toy", "--tokenizer", tokenizer];
            let score = ["score", "--url", url, "--kind", kind, "--tokenizer", tokenizer];
            let files = ["--jobs", "jobs.jsonl", "--out", "out.jsonl", "--json"];
            all.push(strings(&[&probe[..], way].concat()));
            all.push(strings(&[&probe[..], way, &["--json"]].concat()));
            all.push(strings(&[&score[..], &files, way].concat()));
        }
    }
    all.extend(runs(url, &ways[0]));
    all
}

async fn run(dir: &Path, arguments: Vec<String>, more: &[(&str, String)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_backsight"));
    command.current_dir(dir).args(arguments).env("MY_KEY", KEY);
    command.envs(more.iter().map(|(name, value)| (name, value)));
    tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap()
}

fn assert_silent(what: &str, bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let leaks = [SHORTEST_LEAK, "bWU6aHVudGVy"].into_iter().find(|it| text.contains(it));
    assert_eq!(leaks, None, "{what} shows a secret: {text}");
}

/// Neither what was printed nor any file but the one that holds the key contains it.
fn assert_no_leak(dir: &Path, what: &str, output: &Output) {
    assert_silent(&format!("stdout of {what}"), &output.stdout);
    assert_silent(&format!("stderr of {what}"), &output.stderr);
    for path in files(dir) {
        if !path.ends_with("key.txt") {
            assert_silent(&format!("{} after {what}", path.display()), &fs::read(&path).unwrap());
        }
    }
}

fn files(dir: &Path) -> Vec<std::path::PathBuf> {
    let entries = fs::read_dir(dir).unwrap().map(|it| it.unwrap().path());
    entries.flat_map(|it| if it.is_dir() { files(&it) } else { vec![it] }).collect()
}

/// How servers give a secret back: in an error, on a page, in a redirect, in an answer that is none.
fn echoes(secret: &str) -> Vec<Option<Fault>> {
    let said = format!("{{\"error\": {{\"message\": \"{}the key {secret} is unknown\"}}}}", "x".repeat(270));
    let page = format!("<html>{}Bearer {secret}</html>", "y".repeat(288));
    vec![
        None,
        Some(Fault::Status(401, String::new(), said.clone())),
        Some(Fault::Status(200, String::new(), said)),
        Some(Fault::Status(403, String::new(), page)),
        Some(Fault::Status(307, format!("location: http://x/?key={secret}\r\n"), String::new())),
    ]
}

/// Runs the commands against a server that gives `secret` back in every way; gives all heads it was sent.
async fn check(dialect: Dialect, secret: &str, commands: fn(&str) -> Vec<Vec<String>>) -> String {
    let mut sent = String::new();
    for echo in echoes(secret) {
        // Questions about the server are answered, so that commands come as far as asking for scores.
        let fault = echo.clone();
        let setup = Setup::new(dialect).faults(move |asked| {
            let is_question = asked.body.is_empty() && !matches!(fault, Some(Fault::Status(401, ..)));
            fault.clone().filter(|_| !is_question)
        });
        let server = StandIn::start(setup).await;
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("key.txt"), format!("{KEY}\n")).unwrap();
        let job = r#"{"id": 1, "tokens": [600, 601, 602, 603], "spans": [[1, 4]]}"#;
        fs::write(dir.path().join("jobs.jsonl"), job).unwrap();
        write_inputs(dir.path());
        for arguments in commands(&server.url()) {
            let what = format!("{dialect:?} {echo:?} {arguments:?}");
            let is_run = matches!(arguments[0].as_str(), "collect" | "evaluate" | "credit");
            // They speak one dialect whatever the other commands try.
            if is_run && dialect != Dialect::Vllm {
                continue;
            }
            let output = run(dir.path(), arguments, &[]).await;
            assert_no_leak(dir.path(), &what, &output);
            if is_run && echo.is_none() {
                let said = String::from_utf8_lossy(&output.stderr).into_owned();
                assert!(
                    matches!(output.status.code(), Some(0 | 1)),
                    "{what} did not come to its end: {said}"
                );
            }
        }
        sent.extend(server.asked().iter().map(|asked| asked.head.clone()));
    }
    sent
}

#[tokio::test(flavor = "multi_thread")]
async fn no_command_shows_a_key() {
    for dialect in [Dialect::Vllm, Dialect::Sglang] {
        let sent = check(dialect, KEY, with_key).await;
        assert!(sent.contains(&format!("authorization: Bearer {KEY}")), "it was sent");
        assert!(sent.contains(&format!("x-api-key: {KEY}")), "as Anthropic wants it too");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_command_shows_a_password() {
    let encoded = "bWU6aHVudGVyMi0wMTIzNDU2Nzg5";
    for secret in [PASSWORD, encoded] {
        let sent = check(Dialect::Vllm, secret, with_login).await;
        assert!(sent.contains(&format!("authorization: Basic {encoded}")), "it was sent");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_key_is_told_by_the_name_of_its_place() {
    let dir = tempfile::tempdir().unwrap();
    let cases = [
        (["--api-key-env", "NO_SUCH_KEY"], "the environment variable NO_SUCH_KEY holds no API key"),
        (["--api-key-file", "nothing"], "the API key cannot be read from nothing: No such file"),
    ];
    for (way, words) in cases {
        let arguments =
            ["probe", "http://127.0.0.1:9"].iter().chain(&way).map(|it| (*it).to_owned()).collect();
        let output = run(dir.path(), arguments, &[]).await;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(words) && said.contains("help: "), "{said}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_hubs_token_is_not_shown_either() {
    let file = "/api/models/HuggingFaceTB/SmolLM2-135M-Instruct/revision/main";
    let closed = crate::support::hub_stand_in::Served {
        token: Some("another"),
        ..crate::support::hub_stand_in::plain(b"{}")
    };
    let hub = crate::support::hub_stand_in::stand_in(&[(file, closed)]);
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().to_str().unwrap().to_owned();
    let more = [
        ("HF_ENDPOINT", hub.url.clone()),
        ("HF_TOKEN", KEY.to_owned()),
        ("HF_HOME", home.clone()),
        ("XDG_CACHE_HOME", home),
    ];
    let arguments = ["model", "pull", "smollm2-135m-instruct"].map(str::to_owned).to_vec();
    let output = run(dir.path(), arguments, &more).await;
    assert_eq!(output.status.code(), Some(3));
    assert!(String::from_utf8_lossy(&output.stderr).contains("HTTP 401, with the token given"));
    assert_no_leak(dir.path(), "model pull", &output);
    assert!(hub.seen.lock().unwrap().iter().any(|it| it.contains(&format!("bearer {KEY}"))));
}
