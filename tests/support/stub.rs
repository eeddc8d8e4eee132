//! A server for tests that answers what it is told and remembers what it was asked.

use std::sync::{Arc, Mutex};

use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

/// One request as it arrived.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    pub line: String,
    pub body: Value,
}

type Handler = Arc<dyn Fn(&Request) -> (u16, Value) + Send + Sync>;

/// A running server; it ends with the test's runtime.
pub struct Stub {
    pub url: String,
    seen: Arc<Mutex<Vec<Request>>>,
}

impl Stub {
    /// Starts a server that answers by `handler`.
    pub async fn start(handler: impl Fn(&Request) -> (u16, Value) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (handler, all): (Handler, _) = (Arc::new(handler), Arc::clone(&seen));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, Arc::clone(&handler), Arc::clone(&all)));
            }
        });
        Self { url, seen }
    }

    /// What was asked since the last time.
    pub fn take(&self) -> Vec<Request> {
        std::mem::take(&mut self.seen.lock().unwrap())
    }
}

async fn serve(stream: TcpStream, handler: Handler, seen: Arc<Mutex<Vec<Request>>>) -> Option<()> {
    let mut stream = BufReader::new(stream);
    loop {
        let request = read(&mut stream).await?;
        let (status, body) = handler(&request);
        seen.lock().unwrap().push(request);
        let body = body.to_string();
        let head = format!("HTTP/1.1 {status} x\r\ncontent-length: {}\r\n\r\n", body.len());
        stream.write_all((head + &body).as_bytes()).await.ok()?;
    }
}

async fn read(stream: &mut BufReader<TcpStream>) -> Option<Request> {
    let mut line = String::new();
    stream.read_line(&mut line).await.ok().filter(|&n| n > 0)?;
    let mut length = 0;
    loop {
        let mut header = String::new();
        stream.read_line(&mut header).await.ok()?;
        if header.trim().is_empty() {
            break;
        }
        if let Some(value) = header.to_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await.ok()?;
    let line = line.trim_end_matches(" HTTP/1.1\r\n").to_owned();
    Some(Request { line, body: serde_json::from_slice(&body).unwrap_or(Value::Null) })
}
