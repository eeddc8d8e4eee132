//! A hub that answers as the Hugging Face hub does: redirects to its storage, ranges, tokens, broken transfers.
#![allow(dead_code, reason = "not every test uses all of it")]

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use sha2::{Digest, Sha256};

/// What the stand-in does to one file.
#[derive(Clone)]
pub struct Served {
    pub body: Vec<u8>,
    /// Kept in another place, to which the hub redirects and where the token must not go.
    pub in_storage: bool,
    /// Only with this token.
    pub token: Option<&'static str>,
    /// The hash told in the headers, when not the true one.
    pub etag: Option<String>,
    /// The first so many answers break off half-way.
    pub breaks: usize,
    /// The first so many requests are answered with 503.
    pub busy: usize,
}

pub fn plain(body: &[u8]) -> Served {
    Served { body: body.to_vec(), in_storage: false, token: None, etag: None, breaks: 0, busy: 0 }
}

pub struct StandIn {
    pub url: String,
    pub seen: Arc<Mutex<Vec<String>>>,
}

/// Serves `files` by path; requests are remembered as `METHOD path range token`.
pub fn stand_in(files: &[(&str, Served)]) -> StandIn {
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
    if file.busy > 0 {
        file.busy -= 1;
        return respond(stream, "503 Busy", &[], b"", 0);
    }
    let hash = file.etag.clone().unwrap_or_else(|| sha256(&file.body[..]));
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

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}
