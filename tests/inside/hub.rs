//! Datasets from a stand-in of the hub: found, fetched, kept, and refused with the reason.
#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::path::Path;
use std::sync::{Arc, Mutex};

use backsight::tasks::dataset::DatasetOptions;
use backsight::tasks::hub::{Hub, HubName, HubSettings};
use backsight::tasks::parquet::read_parquet;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

/// What was asked: path, authorization and tag.
type Log = Arc<Mutex<Vec<(String, Option<String>, Option<String>)>>>;

/// A hub with one public dataset of two files, one that needs a token, and one that stumbles twice.
async fn hub() -> (String, Log) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let log = Log::default();
    let seen = Arc::clone(&log);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(answer(stream, Arc::clone(&seen)));
        }
    });
    (address, log)
}

async fn answer(stream: TcpStream, log: Log) {
    let mut stream = BufReader::new(stream);
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).await.unwrap();
        if line.trim().is_empty() {
            break;
        }
        lines.push(line.trim().to_owned());
    }
    let Some(path) = lines.first().and_then(|it| it.split(' ').nth(1)).map(str::to_owned) else { return };
    let header = |name: &str| {
        let found =
            lines.iter().find_map(|it| it.split_once(": ").filter(|(key, _)| key.eq_ignore_ascii_case(name)));
        found.map(|(_, value)| value.to_owned())
    };
    let (token, tag) = (header("authorization"), header("if-none-match"));
    let n_before = log.lock().unwrap().iter().filter(|it| it.0 == path).count();
    log.lock().unwrap().push((path.clone(), token.clone(), tag.clone()));
    let (status, headers, body) = respond(&path, token.as_deref(), tag.as_deref(), n_before);
    let head =
        format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n{headers}\r\n", body.len());
    stream.write_all(&[head.as_bytes(), &body].concat()).await.unwrap();
}

fn respond(
    path: &str,
    token: Option<&str>,
    tag: Option<&str>,
    n_before: usize,
) -> (&'static str, String, Vec<u8>) {
    let index = br#"{"default": {"train": ["http://elsewhere/0.parquet", "http://elsewhere/1.parquet"], "test": []}}"#;
    let file = |name: &str| {
        std::fs::read(format!("{}/tests/fixtures/datasets/{name}", env!("CARGO_MANIFEST_DIR"))).unwrap()
    };
    let none = String::new;
    match path.strip_prefix("/api/datasets/").unwrap_or(path) {
        "org/tasks/parquet" | "org/flaky/parquet" if path.contains("flaky") && n_before < 2 => {
            ("503 Busy", none(), vec![])
        }
        "org/tasks/parquet" | "org/flaky/parquet" => ("200 OK", none(), index.to_vec()),
        "org/secret/parquet" if token == Some("Bearer good") => ("200 OK", none(), index.to_vec()),
        "org/secret/parquet" => ("401 Unauthorized", none(), vec![]),
        "org/broken/parquet" => ("200 OK", none(), b"<html>".to_vec()),
        it if it.ends_with("/train/0.parquet") => ("302 Found", "location: /cdn/0\r\n".into(), vec![]),
        "/cdn/0" if tag == Some("\"v1\"") => ("304 Not Modified", none(), vec![]),
        "/cdn/0" => ("200 OK", "etag: \"v1\"\r\n".into(), file("tasks.snappy.parquet")),
        it if it.ends_with("/train/1.parquet") => ("200 OK", none(), file("tasks.zstd.parquet")),
        _ => ("404 Not Found", none(), vec![]),
    }
}

fn settings(endpoint: &str, cache: &Path) -> HubSettings {
    HubSettings { endpoint: endpoint.to_owned(), token: None, cache: cache.to_owned(), is_offline: false }
}

async fn fetch(settings: HubSettings, name: &str, split: &str) -> Result<usize, String> {
    let files = Hub::new(settings).parquet_files(&HubName::parse(name).unwrap(), split).await;
    let files = files.map_err(|error| error.to_string())?;
    Ok(read_parquet(&files, name, &DatasetOptions::default()).map_err(|error| error.to_string())?.tasks.len())
}

#[tokio::test]
async fn a_dataset_is_fetched_once_and_kept() {
    let ((url, log), cache) = (hub().await, tempfile::tempdir().unwrap());
    assert_eq!(fetch(settings(&url, cache.path()), "org/tasks", "train").await, Ok(4));
    assert_eq!(fetch(settings(&url, cache.path()), "org/tasks", "train").await, Ok(4));
    let tags: Vec<_> =
        log.lock().unwrap().iter().filter(|it| it.0 == "/cdn/0").map(|it| it.2.clone()).collect();
    assert_eq!(tags, [None, Some("\"v1\"".to_owned())], "what did not change is not sent again");
    let offline = HubSettings { is_offline: true, ..settings("http://127.0.0.1:1", cache.path()) };
    assert_eq!(fetch(offline, "org/tasks", "train").await, Ok(4), "copies need no hub");
    let left: Vec<_> = walk(cache.path()).into_iter().filter(|it| it.contains("partial")).collect();
    assert_eq!(left, Vec::<String>::new());
}

fn walk(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).unwrap().map(|it| it.unwrap().path());
    entries.flat_map(|it| if it.is_dir() { walk(&it) } else { vec![it.display().to_string()] }).collect()
}

#[tokio::test]
async fn a_token_opens_what_is_closed() {
    let ((url, log), cache) = (hub().await, tempfile::tempdir().unwrap());
    let refused = fetch(settings(&url, cache.path()), "org/secret", "train").await.unwrap_err();
    assert!(refused.contains("org/secret") && refused.contains("HF_TOKEN"), "{refused}");
    let with_token = HubSettings { token: Some("good".into()), ..settings(&url, cache.path()) };
    assert_eq!(fetch(with_token, "org/secret", "train").await, Ok(4));
    assert!(log.lock().unwrap().iter().any(|it| it.1.as_deref() == Some("Bearer good")));
}

#[tokio::test]
async fn a_hub_that_stumbles_is_asked_again() {
    let ((url, log), cache) = (hub().await, tempfile::tempdir().unwrap());
    assert_eq!(fetch(settings(&url, cache.path()), "org/flaky", "train").await, Ok(4));
    let asked = log.lock().unwrap().iter().filter(|it| it.0 == "/api/datasets/org/flaky/parquet").count();
    assert_eq!(asked, 3);
}

#[tokio::test]
async fn what_cannot_be_had_is_said() {
    let ((url, _log), cache) = (hub().await, tempfile::tempdir().unwrap());
    let say =
        async |name: &str, split: &str| fetch(settings(&url, cache.path()), name, split).await.unwrap_err();
    let missing = say("org/nothing", "train").await;
    assert!(missing.starts_with("the hub has no Parquet files for dataset org/nothing\nhelp: "), "{missing}");
    let split = say("org/tasks", "validation").await;
    assert!(
        split.starts_with(
            "dataset org/tasks has no split \"validation\"; it has default/train, default/test\nhelp: "
        ),
        "{split}"
    );
    assert!(say("org/tasks", "test").await.contains("holds no usable task"));
    assert!(say("org/broken", "train").await.contains("does not answer"));
    let offline = HubSettings { is_offline: true, ..settings(&url, cache.path()) };
    let offline = fetch(offline, "org/other", "train").await.unwrap_err();
    assert!(offline.contains("HF_HUB_OFFLINE is set"), "{offline}");
    let gone = fetch(settings("http://127.0.0.1:1", cache.path()), "org/x", "train").await.unwrap_err();
    assert!(gone.contains("does not answer") && gone.contains("HF_ENDPOINT"), "{gone}");
}
