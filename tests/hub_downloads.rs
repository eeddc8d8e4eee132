//! Pulling from the Hugging Face hub, against a local stand-in: redirects, ranges, 401, 404, broken transfers, offline.
#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};

use backsight::hf::{Hub, HubError, RepoFile, RepoKind, sha256};

/// What the stand-in does to one file.
#[derive(Clone)]
struct Served {
    body: Vec<u8>,
    /// Kept in another place, to which the hub redirects and where the token must not go.
    in_storage: bool,
    /// Only with this token.
    token: Option<&'static str>,
    /// The hash told in the headers, when not the true one.
    etag: Option<String>,
    /// The first so many answers break off half-way.
    breaks: usize,
}

fn plain(body: &[u8]) -> Served {
    Served { body: body.to_vec(), in_storage: false, token: None, etag: None, breaks: 0 }
}

struct StandIn {
    url: String,
    seen: Arc<Mutex<Vec<String>>>,
}

/// Serves `files` by path; requests are remembered as `METHOD path range token`.
fn stand_in(files: &[(&str, Served)]) -> StandIn {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let storage = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let storage_url = format!("http://{}", storage.local_addr().unwrap());
    let seen = Arc::new(Mutex::new(Vec::new()));
    let files: HashMap<String, Served> =
        files.iter().map(|(path, it)| ((*path).to_owned(), it.clone())).collect();
    let files = Arc::new(Mutex::new(files));
    for (listener, is_storage) in [(listener, false), (storage, true)] {
        let (files, seen, storage_url) = (files.clone(), seen.clone(), storage_url.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                answer(&mut stream.unwrap(), &files, &seen, &storage_url, is_storage);
            }
        });
    }
    StandIn { url, seen }
}

fn answer(
    stream: &mut TcpStream,
    files: &Mutex<HashMap<String, Served>>,
    seen: &Mutex<Vec<String>>,
    storage_url: &str,
    is_storage: bool,
) {
    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines().map(|line| line.unwrap_or_default());
    let first = lines.next().unwrap_or_default();
    let headers: Vec<String> =
        lines.take_while(|line| !line.is_empty()).map(|line| line.to_lowercase()).collect();
    let header = |name: &str| headers.iter().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let (range, token) = (header("range:"), header("authorization:"));
    let path = first.split(' ').nth(1).unwrap_or_default().to_owned();
    let place = if is_storage { "storage" } else { "hub" };
    seen.lock().unwrap().push(format!("{place} {first} {} {}", range.unwrap_or("-"), token.unwrap_or("-")));
    let mut files = files.lock().unwrap();
    let head = first.starts_with("HEAD");
    let Some(file) = files.get_mut(&path) else { return respond(stream, "404 Not Found", &[], b"", 0) };
    if file.token.is_some_and(|wanted| token != Some(&format!("bearer {wanted}"))) && !is_storage {
        return respond(stream, "401 Unauthorized", &[], b"", 0);
    }
    let hash = file.etag.clone().unwrap_or_else(|| sha256(&mut &file.body[..]).unwrap());
    let size = file.body.len();
    let told = vec![
        ("X-Repo-Commit", "c0ffee".to_owned()),
        ("X-Linked-Etag", format!("\"{hash}\"")),
        ("X-Linked-Size", size.to_string()),
    ];
    if file.in_storage && !is_storage {
        let to = [told, vec![("Location", format!("{storage_url}{path}"))]].concat();
        return respond(stream, "302 Found", &to, b"", 0);
    }
    let from = range.and_then(|it| it.strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok()).unwrap_or(0);
    let body = if head { &[][..] } else { &file.body[from..] };
    let broken = !head && file.breaks > 0;
    file.breaks -= usize::from(broken);
    let sent = if broken { &body[..body.len() / 2] } else { body };
    let length = if head { size } else { body.len() };
    respond(stream, if from > 0 { "206 Partial Content" } else { "200 OK" }, &told, sent, length);
}

fn respond(stream: &mut TcpStream, status: &str, headers: &[(&str, String)], body: &[u8], length: usize) {
    let headers: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let head = format!("HTTP/1.1 {status}\r\n{headers}Content-Length: {length}\r\nConnection: close\r\n\r\n");
    let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body));
}

fn hub(url: &str, home: &Path, more: &[(&str, &str)]) -> Hub {
    let env = |name: &str| {
        let home = home.to_str().unwrap();
        let own = [("HF_ENDPOINT", url), ("HF_HOME", home), ("HOME", home)];
        own.iter().chain(more).find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
    };
    Hub::from_env(env).unwrap()
}

fn file(path: &str) -> RepoFile {
    RepoFile { kind: RepoKind::Model, repo: "o/m".into(), revision: "main".into(), path: path.into() }
}

async fn fetch(hub: &Hub, path: &str) -> Result<Vec<u8>, HubError> {
    Ok(std::fs::read(hub.fetch(&file(path), &|_, _| ()).await?).unwrap())
}

#[tokio::test]
async fn a_file_arrives_once_and_is_found_again_offline() {
    let server = stand_in(&[("/o/m/resolve/main/a/config.json", plain(b"{}"))]);
    let home = tempfile::tempdir().unwrap();
    let online = hub(&server.url, home.path(), &[]);
    assert_eq!(fetch(&online, "a/config.json").await.unwrap(), b"{}");
    assert_eq!(fetch(&online, "a/config.json").await.unwrap(), b"{}");
    assert_eq!(server.seen.lock().unwrap().len(), 2, "one HEAD and one GET");
    let offline = hub("http://127.0.0.1:9", home.path(), &[("HF_HUB_OFFLINE", "1")]);
    assert_eq!(fetch(&offline, "a/config.json").await.unwrap(), b"{}");
    let error = fetch(&offline, "b").await.unwrap_err();
    assert_eq!(error.to_string(), "b of o/m@main is not in the cache, and HF_HUB_OFFLINE is set");
    assert!(error.is_unreachable());
}

#[tokio::test]
async fn a_redirect_to_the_storage_takes_no_token_along() {
    let served = Served { in_storage: true, token: Some("sesame"), ..plain(b"weights") };
    let server = stand_in(&[("/o/m/resolve/main/w", served)]);
    let home = tempfile::tempdir().unwrap();
    let hub = hub(&server.url, home.path(), &[("HF_TOKEN", "sesame")]);
    assert_eq!(fetch(&hub, "w").await.unwrap(), b"weights");
    let seen = server.seen.lock().unwrap();
    let storage: Vec<_> = seen.iter().filter(|line| line.starts_with("storage")).collect();
    assert_eq!(storage, ["storage GET /o/m/resolve/main/w HTTP/1.1 - -"]);
}

#[tokio::test]
async fn a_broken_transfer_goes_on_where_it_stopped() {
    let body: Vec<u8> = (0..100_000u32).flat_map(u32::to_le_bytes).collect();
    let server = stand_in(&[("/o/m/resolve/main/w", Served { breaks: 2, ..plain(&body) })]);
    let home = tempfile::tempdir().unwrap();
    assert_eq!(fetch(&hub(&server.url, home.path(), &[]), "w").await.unwrap(), body);
    let seen = server.seen.lock().unwrap();
    assert!(seen.iter().any(|line| line.contains("bytes=200000-")), "{seen:?}");
    assert!(seen.iter().any(|line| line.contains("bytes=300000-")), "{seen:?}");
}

#[tokio::test]
async fn damaged_files_are_thrown_away() {
    let served = Served { etag: Some("0".repeat(64)), ..plain(b"weights") };
    let server = stand_in(&[("/o/m/resolve/main/w", served)]);
    let home = tempfile::tempdir().unwrap();
    let hub = hub(&server.url, home.path(), &[]);
    let error = fetch(&hub, "w").await.unwrap_err();
    assert!(error.to_string().starts_with("w of o/m@main arrived damaged: SHA-256 is"), "{error}");
    assert!(hub.cached(&file("w")).is_none());
}

#[tokio::test]
async fn refusals_say_what_is_missing() {
    let served = Served { token: Some("sesame"), ..plain(b"secret") };
    let server = stand_in(&[("/o/m/resolve/main/w", served)]);
    let home = tempfile::tempdir().unwrap();
    let denied = fetch(&hub(&server.url, home.path(), &[]), "w").await.unwrap_err();
    let expected = format!("{} refuses w of o/m@main: HTTP 401, without a token", server.url);
    assert_eq!(denied.to_string(), expected);
    let wrong = fetch(&hub(&server.url, home.path(), &[("HF_TOKEN", "guess")]), "w").await.unwrap_err();
    assert!(wrong.to_string().ends_with("with the token given") && !wrong.to_string().contains("guess"));
    let missing = fetch(&hub(&server.url, home.path(), &[]), "nothing").await.unwrap_err();
    assert_eq!(missing.to_string(), format!("{} has no nothing of o/m@main", server.url));
    let escape = fetch(&hub(&server.url, home.path(), &[]), "../../x").await.unwrap_err();
    assert!(escape.to_string().contains("leaves the repository"));
    let gone = fetch(&hub("http://127.0.0.1:9", home.path(), &[]), "w").await.unwrap_err();
    assert!(gone.is_unreachable(), "{gone}");
}
