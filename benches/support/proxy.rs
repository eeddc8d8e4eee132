//! A counter between a client and a real server: hands every request on and reads what the answers say they cost.
//!
//! It is used in a round of its own, so that what is timed has nothing in between.

use std::sync::{Arc, Mutex};

use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

/// What a server was asked and what that cost it, in its own words.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counted {
    /// Requests that had prompt tokens.
    pub requests: u64,
    /// Prompt tokens.
    pub sent: u64,
    /// Of those, found in its cache.
    pub cached: u64,
}

/// A running counter.
pub struct Proxy {
    pub url: String,
    counted: Arc<Mutex<Counted>>,
}

impl Proxy {
    pub async fn start(upstream: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let counted = Arc::new(Mutex::new(Counted::default()));
        let (upstream, shared) = (upstream.trim_end_matches('/').to_owned(), Arc::clone(&counted));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, upstream.clone(), Arc::clone(&shared)));
            }
        });
        Self { url, counted }
    }

    /// What was counted since the last time.
    pub fn take(&self) -> Counted {
        std::mem::take(&mut *self.counted.lock().unwrap())
    }
}

async fn serve(stream: TcpStream, upstream: String, counted: Arc<Mutex<Counted>>) {
    let client = {
        let _ = rustls::crypto::ring::default_provider().install_default();
        reqwest::Client::builder().no_proxy().build().unwrap()
    };
    let mut stream = BufReader::new(stream);
    while let Some((method, path, body)) = read_request(&mut stream).await {
        let request = client.request(method.parse().unwrap(), format!("{upstream}{path}"));
        let request = request.header("content-type", "application/json").body(body);
        let answer = request.send().await.unwrap();
        let status = answer.status().as_u16();
        let body = answer.bytes().await.unwrap();
        count(&body, &mut counted.lock().unwrap());
        let head = format!(
            "HTTP/1.1 {status} Whatever\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        let sent = stream.get_mut().write_all(&[head.as_bytes(), &body].concat()).await;
        if sent.is_err() {
            return;
        }
    }
}

async fn read_request(stream: &mut BufReader<TcpStream>) -> Option<(String, String, Vec<u8>)> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if stream.read_line(&mut head).await.ok()? == 0 {
            return None;
        }
    }
    let mut words = head.split(' ').map(str::to_owned);
    let (method, path) = (words.next()?, words.next()?);
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse().ok())?
    });
    let mut body = vec![0; length.unwrap_or(0)];
    stream.read_exact(&mut body).await.ok()?;
    Some((method, path, body))
}

/// Reads the usage of SGLang's native answers, and of vLLM's.
fn count(body: &[u8], counted: &mut Counted) {
    let json: Value = serde_json::from_slice(body).unwrap_or(Value::Null);
    let answers = if json.is_array() { json.as_array().cloned().unwrap_or_default() } else { vec![json] };
    for answer in answers {
        let (meta, usage) = (&answer["meta_info"], &answer["usage"]);
        let sent = meta["prompt_tokens"].as_u64().or(usage["prompt_tokens"].as_u64());
        let cached = meta["cached_tokens"].as_u64();
        let cached = cached.or(usage["prompt_tokens_details"]["cached_tokens"].as_u64());
        if let Some(sent) = sent {
            counted.requests += 1;
            counted.sent += sent;
            counted.cached += cached.unwrap_or(0);
        }
    }
}
