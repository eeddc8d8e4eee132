//! A server that answers like vLLM or SGLang, and misbehaves on demand, down to the byte.
//!
//! Owns the HTTP, written by hand so that it can be wrong, the two dialects, the accounting of what
//! was asked, and the faults. The numbers come from `toy`.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;

use super::toy::{Context, PrefixCache, Toy, VOCAB, Work, mix};

/// Whose ways it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// Scores the whole prompt every time; takes K up to 20.
    Vllm,
    /// Scores from `logprob_start_len` on and reuses what lies before.
    Sglang,
}

/// One way to misbehave.
#[derive(Clone, Debug, PartialEq)]
pub enum Fault {
    /// Answers well, after this long.
    Slow(Duration),
    /// Never answers.
    Hang,
    /// Breaks the connection instead of answering.
    Reset,
    /// Breaks the connection in the middle of the body.
    ResetMidway,
    /// Another status, with these further header lines and this body.
    Status(u16, String, String),
    /// A login page with status 200.
    Html,
    /// Half the body, and a length that admits it.
    CutHonestly,
    /// Half the body, under the whole one's length, and then the end.
    CutSilently,
    /// The whole body, under half its length.
    UnderstatedLength,
    /// The logprobs of the last position are missing.
    OneTooShort,
    /// There are logprobs for a position too many.
    OneTooLong,
    /// One logprob is `NaN`.
    NotANumber,
    /// One logprob is `null`.
    Null,
    /// The logprobs are those of other ids, as from another tokenizer.
    OtherIds,
    /// A NUL byte in the middle.
    Nul,
    /// So many bytes of nothing, with or without telling the length.
    Huge(usize, bool),
    /// Status 200 and no body.
    Empty,
    /// Status 200 and an error in the body.
    ErrorIn200,
    /// The answer to another request with this fault, which gets the answer to this one.
    Swapped,
    /// The answers to a batch, last first.
    Reversed,
    /// The answer to a prompt with one token more before it.
    Longer,
    /// The answer under an id of the server's own.
    OtherId,
}

/// A request, as far as a fault may depend on it.
#[derive(Clone, Debug)]
pub struct Asked {
    pub route: String,
    /// The prompt; of a batch the first one, or the one whose fault is being chosen.
    pub ids: Vec<u32>,
    /// All prompts of a batch.
    pub prompts: Vec<Vec<u32>>,
    /// How often this very body, but for its id, was asked before.
    pub times_before: usize,
    /// The raw request head, for tests that look at headers.
    pub head: String,
    pub body: Vec<u8>,
}

type Choose = dyn Fn(&Asked) -> Option<Fault> + Send + Sync;
/// Turns text into ids, as a server's own tokenizer does.
pub type Encode = dyn Fn(&str) -> Vec<u32> + Send + Sync;
type Say = dyn Fn(&[u32], u64) -> Option<Vec<u32>> + Send + Sync;
type Talk = dyn Fn(&Value) -> Option<Value> + Send + Sync;

/// How a stand-in is set up.
pub struct Setup {
    pub dialect: Dialect,
    pub toy: Toy,
    pub max_logprobs: usize,
    pub context_length: usize,
    pub faults: Box<Choose>,
    /// What `/tokenize` answers; without it there is no such route.
    pub tokenizes: Option<Vec<u32>>,
    /// Whether the ids of requests are repeated.
    pub echoes: bool,
    /// Whether prompts are scored; otherwise the wish is ignored, as by servers that do not know it.
    pub scores: bool,
    /// Keeps every request for inspection; off for benchmarks.
    pub keeps_requests: bool,
    /// Ids from here on are unknown.
    pub vocab_size: u64,
    /// For prompts that come as text; without it there are none.
    pub encode: Option<Box<Encode>>,
    /// What it samples after a prompt with a seed, where it is not left to the toy.
    pub says: Box<Say>,
    /// What it adds to the logprobs of what it samples.
    pub sampled_shift: f64,
    /// The message it answers to a chat request, where it is not left to the toy.
    pub talks: Box<Talk>,
    /// After so many prompts each it has these weights, and goes on as if nothing had happened.
    pub new_weights: Vec<(u64, u64)>,
    /// By how much all of its logprobs differ from the toy's, as after a small step of an optimiser.
    pub nudge: f64,
    /// Whether an SGLang server names its weights.
    pub names_weights: bool,
    /// By how much, at most, its logprobs differ from one request to the next.
    pub noise: f64,
}

impl Setup {
    pub fn new(dialect: Dialect) -> Self {
        let toy = Toy { weights: 1 };
        let (max_logprobs, context_length) = (20, 131_072);
        Self {
            dialect,
            toy,
            max_logprobs,
            context_length,
            faults: Box::new(|_| None),
            tokenizes: None,
            echoes: true,
            scores: true,
            keeps_requests: true,
            vocab_size: VOCAB,
            encode: None,
            says: Box::new(|_, _| None),
            sampled_shift: 0.0,
            talks: Box::new(|_| None),
            new_weights: Vec::new(),
            nudge: 0.0,
            names_weights: true,
            noise: 0.0,
        }
    }

    pub fn says(mut self, say: impl Fn(&[u32], u64) -> Option<Vec<u32>> + Send + Sync + 'static) -> Self {
        self.says = Box::new(say);
        self
    }

    pub fn talks(mut self, talk: impl Fn(&Value) -> Option<Value> + Send + Sync + 'static) -> Self {
        self.talks = Box::new(talk);
        self
    }

    pub fn faults(mut self, choose: impl Fn(&Asked) -> Option<Fault> + Send + Sync + 'static) -> Self {
        self.faults = Box::new(choose);
        self
    }
}

/// A running stand-in; it stops when dropped.
pub struct StandIn {
    pub address: SocketAddr,
    state: Arc<State>,
    accepting: tokio::task::JoinHandle<()>,
}

struct State {
    setup: Setup,
    cache: Mutex<PrefixCache>,
    work: Mutex<Work>,
    seen: Mutex<HashMap<u64, usize>>,
    asked: Mutex<Vec<Asked>>,
    bytes_written: Mutex<u64>,
    routes: Mutex<HashMap<String, u64>>,
    /// An answer that waits for another to change places with.
    swapping: Mutex<Option<(Reply, oneshot::Sender<Reply>)>>,
    dead: AtomicBool,
    /// Prompts it was sent so far.
    n_prompts: AtomicU64,
}

/// A status and a body.
type Reply = (u16, String);

impl StandIn {
    pub async fn start(setup: Setup) -> Self {
        Self::start_at("127.0.0.1:0", setup).await
    }

    pub async fn start_at(address: &str, setup: Setup) -> Self {
        // The address may still be held by a stand-in that is being dropped.
        let listener = loop {
            match TcpListener::bind(address).await {
                Err(why) if why.kind() == ErrorKind::AddrInUse => {
                    tokio::time::sleep(Duration::from_millis(1)).await
                }
                bound => break bound.unwrap(),
            }
        };
        let address = listener.local_addr().unwrap();
        let state = Arc::new(State {
            setup,
            cache: Mutex::default(),
            work: Mutex::default(),
            seen: Mutex::default(),
            asked: Mutex::default(),
            bytes_written: Mutex::default(),
            routes: Mutex::default(),
            swapping: Mutex::default(),
            dead: AtomicBool::new(false),
            n_prompts: AtomicU64::new(0),
        });
        let accepting = tokio::spawn(accept(listener, Arc::clone(&state)));
        Self { address, state, accepting }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn work(&self) -> Work {
        *self.state.work.lock().unwrap()
    }

    /// How many requests came in on a route.
    pub fn requests_on(&self, route: &str) -> u64 {
        self.state.routes.lock().unwrap().get(route).copied().unwrap_or(0)
    }

    /// Every request so far, in the order of arrival.
    pub fn asked(&self) -> Vec<Asked> {
        self.state.asked.lock().unwrap().clone()
    }

    /// Forgets requests and cached prefixes.
    pub fn forget(&self) {
        *self.state.work.lock().unwrap() = Work::default();
        *self.state.cache.lock().unwrap() = PrefixCache::default();
        self.state.routes.lock().unwrap().clear();
        self.state.asked.lock().unwrap().clear();
    }

    pub fn bytes_written(&self) -> u64 {
        *self.state.bytes_written.lock().unwrap()
    }
}

impl Drop for StandIn {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn accept(listener: TcpListener, state: Arc<State>) {
    // Connections end with the server: the set aborts its tasks when this one is aborted.
    let mut connections = tokio::task::JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let _ = stream.set_nodelay(true);
        connections.spawn(serve(stream, Arc::clone(&state)));
        while connections.try_join_next().is_some() {}
    }
}

async fn serve(stream: TcpStream, state: Arc<State>) {
    let mut stream = BufReader::new(stream);
    while let Some((head, body)) = read_request(&mut stream).await {
        let asked = state.record(head, body);
        let faults = state.faults(&asked);
        let fault = faults.iter().flatten().next().cloned();
        let mut answer = state.answer(&asked, fault.as_ref(), &faults);
        if fault == Some(Fault::Swapped) {
            answer = state.swapped(answer).await;
        }
        if state.dead.load(Ordering::Relaxed) {
            return;
        }
        let goes_on = send(stream.get_mut(), fault, answer, &state).await;
        if goes_on != Some(true) {
            return;
        }
    }
}

async fn read_request(stream: &mut BufReader<TcpStream>) -> Option<(String, Vec<u8>)> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if stream.read_line(&mut head).await.ok()? == 0 {
            return None;
        }
    }
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse().ok())?
    });
    let mut body = vec![0; length.unwrap_or(0)];
    stream.read_exact(&mut body).await.ok()?;
    Some((head, body))
}

/// Sends an answer as the fault wants it; says whether the connection goes on.
async fn send(
    stream: &mut TcpStream,
    fault: Option<Fault>,
    (status, body): Reply,
    state: &State,
) -> Option<bool> {
    let half = body.len() / 2;
    match fault {
        None
        | Some(
            Fault::OneTooShort
            | Fault::OneTooLong
            | Fault::NotANumber
            | Fault::Null
            | Fault::OtherIds
            | Fault::ErrorIn200,
        )
        | Some(Fault::Swapped | Fault::Reversed | Fault::Longer | Fault::OtherId) => {
            respond(stream, status, "", body.len(), body.as_bytes()).await?;
        }
        Some(Fault::Slow(wait)) => {
            tokio::time::sleep(wait).await;
            respond(stream, status, "", body.len(), body.as_bytes()).await?;
        }
        Some(Fault::Hang) => std::future::pending().await,
        Some(Fault::Reset) => {
            let _ = stream.set_zero_linger();
            return None;
        }
        Some(Fault::ResetMidway) => {
            respond(stream, status, "", body.len(), &body.as_bytes()[..half]).await?;
            tokio::time::sleep(Duration::from_millis(20)).await;
            let _ = stream.set_zero_linger();
            return None;
        }
        Some(Fault::Status(status, headers, body)) => {
            respond(stream, status, &headers, body.len(), body.as_bytes()).await?;
        }
        Some(Fault::Html) => {
            let page = "<!DOCTYPE html>\n<html><body>please log in</body></html>";
            respond(stream, 200, "content-type: text/html\r\n", page.len(), page.as_bytes()).await?;
        }
        Some(Fault::CutHonestly) => respond(stream, status, "", half, &body.as_bytes()[..half]).await?,
        Some(Fault::CutSilently) => {
            respond(stream, status, "", body.len(), &body.as_bytes()[..half]).await?;
            return None;
        }
        Some(Fault::UnderstatedLength) => respond(stream, status, "", half, body.as_bytes()).await?,
        Some(Fault::Nul) => {
            let mut bytes = body.into_bytes();
            bytes[half] = 0;
            respond(stream, status, "", bytes.len(), &bytes).await?;
        }
        Some(Fault::Huge(length, told)) => return huge(stream, length, told, state).await,
        Some(Fault::Empty) => respond(stream, 200, "", 0, b"").await?,
    }
    Some(true)
}

async fn respond(
    stream: &mut TcpStream,
    status: u16,
    headers: &str,
    length: usize,
    body: &[u8],
) -> Option<()> {
    let mut text = format!("HTTP/1.1 {status} Whatever\r\ncontent-length: {length}\r\n{headers}");
    if !headers.contains("content-type") {
        text.push_str("content-type: application/json\r\n");
    }
    text.push_str("\r\n");
    let mut bytes = text.into_bytes();
    bytes.extend_from_slice(body);
    stream.write_all(&bytes).await.ok()
}

/// Writes for as long as the other side reads.
async fn huge(stream: &mut TcpStream, length: usize, told: bool, state: &State) -> Option<bool> {
    let told = if told { format!("content-length: {length}\r\n") } else { String::new() };
    let head =
        format!("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n{told}connection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).await.ok()?;
    let piece = vec![b'['; 65_536];
    let mut written = 0;
    while written < length {
        stream.write_all(&piece).await.ok()?;
        written += piece.len();
        *state.bytes_written.lock().unwrap() += piece.len() as u64;
    }
    None
}

impl State {
    fn record(&self, head: String, body: Vec<u8>) -> Asked {
        let route = head.split(' ').nth(1).unwrap_or_default().to_owned();
        let nameless = nameless(&body);
        let hash = nameless.iter().fold(mix(route.len() as u64), |hash, &byte| mix(hash ^ u64::from(byte)));
        let mut seen = self.seen.lock().unwrap();
        let times = seen.entry(hash).or_default();
        *times += 1;
        let prompts = all_prompts(&body);
        self.n_prompts.fetch_add(prompts.len() as u64, Ordering::Relaxed);
        let ids = prompts.first().cloned().unwrap_or_default();
        let asked = Asked { route, ids, prompts, times_before: *times - 1, head, body };
        self.work.lock().unwrap().requests += 1;
        *self.routes.lock().unwrap().entry(asked.route.clone()).or_default() += 1;
        if self.setup.keeps_requests {
            self.asked.lock().unwrap().push(asked.clone());
        }
        asked
    }

    /// The fault of each prompt.
    fn faults(&self, asked: &Asked) -> Vec<Option<Fault>> {
        let of = |ids: &Vec<u32>| (self.setup.faults)(&Asked { ids: ids.clone(), ..asked.clone() });
        match asked.prompts.len() {
            0 | 1 => vec![(self.setup.faults)(asked)],
            _ => asked.prompts.iter().map(of).collect(),
        }
    }

    fn answer(&self, asked: &Asked, fault: Option<&Fault>, faults: &[Option<Fault>]) -> (u16, String) {
        if fault == Some(&Fault::ErrorIn200) {
            return (200, json!({"error": {"message": "the engine is dead", "code": 500}}).to_string());
        }
        let mut body: Value = serde_json::from_slice(&asked.body).unwrap_or(Value::Null);
        if fault == Some(&Fault::Longer) {
            lengthen(&mut body);
        }
        match (self.setup.dialect, asked.route.as_str()) {
            (_, "/health") => (200, String::new()),
            (_, "/v1/models") => (200, self.models()),
            (Dialect::Vllm, "/version") => (200, json!({"version": "0.32.0"}).to_string()),
            (Dialect::Vllm, "/v1/completions") => self.completions(&body, fault),
            (Dialect::Sglang, "/get_model_info" | "/model_info") => (200, self.model_info()),
            (Dialect::Sglang, "/get_server_info" | "/server_info") => {
                (200, json!({"version": "0.5.23", "context_length": self.setup.context_length}).to_string())
            }
            (Dialect::Sglang, "/generate") => self.generate(&body, faults),
            (_, "/tokenize") if self.setup.tokenizes.is_some() => {
                (200, json!({"tokens": self.setup.tokenizes}).to_string())
            }
            (_, "/v1/chat/completions") => self.chat(&body),
            _ => (404, json!({"detail": "Not Found"}).to_string()),
        }
    }

    /// The model as it is now.
    fn toy(&self) -> Toy {
        let n_prompts = self.n_prompts.load(Ordering::Relaxed);
        let new = self.setup.new_weights.iter().rfind(|(after, _)| n_prompts > *after);
        new.map_or(self.setup.toy, |&(_, weights)| Toy { weights })
    }

    /// What this answer's logprobs are off by.
    fn shift(&self) -> f64 {
        let n_prompts = self.n_prompts.load(Ordering::Relaxed);
        -self.setup.noise * (mix(n_prompts) % 1000) as f64 / 1000.0 - self.setup.nudge
    }

    /// The answer of another request, which waits for this one or is waited for.
    async fn swapped(&self, answer: Reply) -> Reply {
        let other = {
            let mut swapping = self.swapping.lock().unwrap();
            match swapping.take() {
                Some((theirs, ours)) => {
                    // Whoever waited may have left meanwhile.
                    let _ = ours.send(answer);
                    return theirs;
                }
                None => {
                    let (ours, theirs) = oneshot::channel();
                    *swapping = Some((answer, ours));
                    theirs
                }
            }
        };
        other.await.unwrap()
    }

    /// The id under which a request is answered.
    fn id(&self, asked: &Value, fault: Option<&Fault>) -> String {
        let echoed = asked.as_str().filter(|_| self.setup.echoes && fault != Some(&Fault::OtherId));
        echoed.unwrap_or("0123456789abcdef").to_owned()
    }

    fn models(&self) -> String {
        let model = json!({"id": "toy", "object": "model", "max_model_len": self.setup.context_length});
        json!({"object": "list", "data": [model]}).to_string()
    }

    fn model_info(&self) -> String {
        json!({"model_path": "toy", "served_model_name": "toy", "weight_version": self.weights_name()})
            .to_string()
    }

    fn weights_name(&self) -> Option<String> {
        self.setup.names_weights.then(|| format!("w{}", self.toy().weights))
    }

    fn completions(&self, body: &Value, fault: Option<&Fault>) -> (u16, String) {
        // -1 wants the whole vocabulary.
        let k = body["prompt_logprobs"].as_i64().filter(|_| self.setup.scores);
        let k = k.map(|k| usize::try_from(k).unwrap_or(VOCAB as usize));
        if k.is_some_and(|k| k > self.setup.max_logprobs) {
            let k = k.unwrap_or_default();
            let message = format!(
                "Requested prompt logprobs of {k}, which is greater than max allowed: {}",
                self.setup.max_logprobs
            );
            return vllm_error(&message);
        }
        let prompts = prompts(&body["prompt"]);
        if let Some(why) = self.unfit(&prompts) {
            return vllm_error(&why);
        }
        let mut choices = Vec::new();
        let (mut n_prompt, mut n_cached, mut n_sampled) = (0, 0, 0);
        for (index, ids) in prompts.iter().enumerate() {
            let contexts = self.toy().contexts(ids);
            // Scoring never reads the cache; other requests do, in blocks of 16.
            let most = if k.is_some() { 0 } else { (ids.len().max(1) - 1) / 16 * 16 };
            let cached = self.reuse(&contexts, ids.len(), most) / 16 * 16;
            let sampled = self.sampled(ids, body, "max_tokens", 16);
            let rows = k.map(|k| vllm_rows(ids, &contexts, k, fault, self.shift()));
            let finish = finish(&sampled, body, "max_tokens", 16);
            choices.push(self.vllm_choice(index, ids, &sampled, finish, rows, body));
            (n_prompt, n_cached, n_sampled) =
                (n_prompt + ids.len(), n_cached + cached, n_sampled + sampled.len());
        }
        let usage = json!({
            "prompt_tokens": n_prompt,
            "total_tokens": n_prompt + n_sampled,
            "completion_tokens": n_sampled,
            "prompt_tokens_details": {"cached_tokens": n_cached},
        });
        let (choices, id) = (choices.join(","), self.id(&body["request_id"], fault));
        (
            200,
            format!(
                "{{\"id\":\"cmpl-{id}\",\"object\":\"text_completion\",\"model\":\"toy\",\"choices\":[{choices}],\"usage\":{usage}}}"
            ),
        )
    }

    fn vllm_choice(
        &self,
        index: usize,
        ids: &[u32],
        sampled: &[u32],
        finish: &str,
        rows: Option<Vec<String>>,
        body: &Value,
    ) -> String {
        let rows = rows.map_or("null".to_owned(), |rows| format!("[{}]", rows.join(",")));
        let wanted = body["return_token_ids"] == true;
        let list = |ids: &[u32]| if wanted { json!(ids) } else { Value::Null };
        let logprobs =
            body["logprobs"].as_u64().map_or(Value::Null, |k| self.vllm_sampled(ids, sampled, k as usize));
        format!(
            "{{\"index\":{index},\"text\":\"\",\"logprobs\":{logprobs},\"finish_reason\":\"{finish}\",\"stop_reason\":null,\
             \"token_ids\":{},\"prompt_logprobs\":{rows},\"prompt_token_ids\":{}}}",
            list(sampled),
            list(ids),
        )
    }

    fn vllm_sampled(&self, ids: &[u32], sampled: &[u32], k: usize) -> Value {
        let all: Vec<u32> = ids.iter().chain(sampled).copied().collect();
        let contexts = &self.toy().contexts(&all)[ids.len()..];
        let name = |id: u32| format!("token_id:{id}");
        let own: Vec<f64> = sampled.iter().zip(contexts).map(|(&id, context)| context.logprob(id)).collect();
        let top = |(&id, context): (&u32, &Context)| {
            let row = context.top(k).into_iter().chain([(id, context.logprob(id))]);
            Value::Object(row.map(|(id, logprob)| (name(id), json!(logprob))).collect())
        };
        let tops: Vec<Value> = sampled.iter().zip(contexts).map(top).collect();
        let names: Vec<String> = sampled.iter().map(|&id| name(id)).collect();
        json!({"text_offset": vec![0; sampled.len()], "token_logprobs": own, "tokens": names, "top_logprobs": tops})
    }

    fn generate(&self, body: &Value, faults: &[Option<Fault>]) -> (u16, String) {
        let text = body["text"].as_str().filter(|_| body["input_ids"].is_null());
        let prompts = match (text, &self.setup.encode) {
            (Some(text), Some(encode)) => vec![encode(text)],
            _ => prompts(&body["input_ids"]),
        };
        // An unknown id takes the real server down for good.
        if prompts.iter().flatten().any(|&id| u64::from(id) >= self.setup.vocab_size) {
            self.dead.store(true, Ordering::Relaxed);
        }
        if let Some(why) = self.unfit(&prompts) {
            return sglang_error(&why);
        }
        let rids: Vec<&Value> = body["rid"].as_array().into_iter().flatten().collect();
        if rids.iter().enumerate().any(|(at, rid)| rids[..at].contains(rid)) {
            return sglang_error("Duplicate request IDs detected within the request");
        }
        let is_batch = body["input_ids"][0].is_array();
        let mut answers = Vec::new();
        for (index, ids) in prompts.iter().enumerate() {
            match self.sglang_answer(ids, index, body, faults[index].as_ref()) {
                Ok(answer) => answers.push(answer),
                Err(why) => return sglang_error(&why),
            }
        }
        if faults.contains(&Some(Fault::Reversed)) {
            answers.reverse();
        }
        let answers = answers.join(",");
        (200, if is_batch { format!("[{answers}]") } else { answers })
    }

    fn sglang_answer(
        &self,
        ids: &[u32],
        index: usize,
        body: &Value,
        fault: Option<&Fault>,
    ) -> Result<String, String> {
        // A batch has one value for all, or one for each.
        let of_prompt = |key: &str| body[key].get(index).unwrap_or(&body[key]).clone();
        let k = of_prompt("top_logprobs_num").as_u64().unwrap_or(0) as usize;
        let scores = body["return_logprob"] == true;
        let start = of_prompt("logprob_start_len").as_i64().filter(|&start| scores && start >= 0);
        let start = start.map_or(ids.len(), |start| start as usize);
        if start > ids.len() {
            return Err(format!("req.logprob_start_len={start} is higher than the number of input tokens"));
        }
        let contexts = self.toy().contexts(ids);
        // What is before the first wanted logprob may come from the cache; one id is always computed.
        let cached = self.reuse(&contexts, ids.len(), start.min(ids.len() - 1));
        let sampled = self.sampled(ids, &body["sampling_params"], "max_new_tokens", 128);
        let finish = finish(&sampled, &body["sampling_params"], "max_new_tokens", 128);
        let (own, top) = sglang_rows(ids, &contexts, start, k, fault, self.shift());
        let chosen = body["token_ids_logprob"].clone();
        let chosen = if chosen[0].is_array() { chosen[index].clone() } else { chosen };
        let chosen = chosen_rows(ids.len(), &contexts, start, &chosen, self.shift());
        let all: Vec<u32> = ids.iter().chain(&sampled).copied().collect();
        let contexts = &self.toy().contexts(&all)[ids.len()..];
        let shift = self.setup.sampled_shift;
        let drawn: Vec<Value> =
            sampled.iter().zip(contexts).map(|(&id, it)| json!([it.logprob(id) + shift, id, null])).collect();
        let row = |(_, it): (&u32, &Context)| -> Value {
            it.top(k).into_iter().map(|(id, logprob)| json!([logprob + shift, id, null])).collect()
        };
        let drawn_top: Vec<Value> = sampled.iter().zip(contexts).map(row).collect();
        Ok(format!(
            "{{\"text\":\"\",\"output_ids\":{},\"meta_info\":{{\"id\":\"{}\",\"finish_reason\":{{\"type\":\"{finish}\",\"length\":{}}},\
             \"prompt_tokens\":{},\"weight_version\":{},\"weight_versions\":{},\"input_token_logprobs\":[{}],{}{}\
             \"output_token_logprobs\":{},\"output_top_logprobs\":{},\"completion_tokens\":{},\"cached_tokens\":{cached}}}}}",
            json!(sampled),
            self.id(&of_prompt("rid"), fault),
            sampled.len(),
            ids.len(),
            json!(self.weights_name()),
            json!(
                self.weights_name().map(|name| json!([{"version": name, "start": 0, "end": sampled.len()}]))
            ),
            own.join(","),
            // Without candidates to tell there is no such key.
            if k > 0 { format!("\"input_top_logprobs\":[{}],", top.join(",")) } else { String::new() },
            if chosen.is_empty() {
                String::new()
            } else {
                format!("\"input_token_ids_logprobs\":{},", Value::Array(chosen))
            },
            Value::Array(drawn),
            Value::Array(drawn_top),
            sampled.len(),
        ))
    }

    fn chat(&self, body: &Value) -> (u16, String) {
        let text = body["messages"].to_string();
        let seed = body["seed"].as_u64().unwrap_or(0);
        let hash = text.bytes().fold(mix(seed), |hash, byte| mix(hash ^ u64::from(byte)));
        let (n_prompt, n_sampled) = (text.len() / 4, 8);
        self.pay(n_prompt, 0, n_sampled);
        let toy = json!({"role": "assistant", "content": format!("answer {hash:016x}"), "tool_calls": null});
        let message = (self.setup.talks)(body).unwrap_or(toy);
        let choice = |index| json!({"index": index, "message": message, "finish_reason": "stop"});
        let choices: Vec<Value> = (0..body["n"].as_u64().unwrap_or(1)).map(choice).collect();
        let usage = json!({"prompt_tokens": n_prompt, "completion_tokens": n_sampled, "total_tokens": n_prompt + n_sampled});
        (200, json!({"id": "chatcmpl-1", "object": "chat.completion", "model": "toy", "choices": choices, "usage": usage}).to_string())
    }

    /// Why the prompts cannot be read, in the servers' words.
    fn unfit(&self, prompts: &[Vec<u32>]) -> Option<String> {
        let longest = prompts.iter().map(Vec::len).max()?;
        if prompts.iter().any(Vec::is_empty) {
            return Some("the prompt is empty".to_owned());
        }
        if longest > self.setup.context_length {
            return Some(format!(
                "This model's maximum context length is {} tokens",
                self.setup.context_length
            ));
        }
        let stranger = prompts.iter().flatten().find(|&&id| u64::from(id) >= self.setup.vocab_size)?;
        Some(format!("Token id {stranger} is out of vocabulary"))
    }

    fn sampled(&self, ids: &[u32], sampling: &Value, limit: &str, default: u64) -> Vec<u32> {
        let n = sampling[limit].as_u64().unwrap_or(default) as usize;
        let seed = sampling["seed"].as_u64().or(sampling["sampling_seed"].as_u64()).unwrap_or(0);
        let said = (self.setup.says)(ids, seed);
        let sampled =
            said.map_or_else(|| self.toy().sample(ids, seed, n), |ids| ids.into_iter().take(n).collect());
        self.work.lock().unwrap().sampled += sampled.len() as u64;
        sampled
    }

    fn reuse(&self, contexts: &[Context], n_tokens: usize, most: usize) -> usize {
        let cached = self.cache.lock().unwrap().reuse(contexts, most);
        self.pay(n_tokens, cached, 0);
        cached
    }

    fn pay(&self, sent: usize, cached: usize, sampled: usize) {
        let mut work = self.work.lock().unwrap();
        work.sent += sent as u64;
        work.cached += cached as u64;
        work.computed += (sent - cached) as u64;
        work.sampled += sampled as u64;
    }
}

/// Why sampling ended: a script ends by itself, the toy only at its limit.
fn finish(sampled: &[u32], sampling: &Value, limit: &str, default: u64) -> &'static str {
    let most = sampling[limit].as_u64().unwrap_or(default) as usize;
    if sampled.len() < most { "stop" } else { "length" }
}

/// A body without the id, which is new each time.
fn nameless(body: &[u8]) -> Vec<u8> {
    let Ok(Value::Object(mut json)) = serde_json::from_slice(body) else { return body.to_vec() };
    for key in ["rid", "request_id"] {
        json.shift_remove(key);
    }
    Value::Object(json).to_string().into_bytes()
}

/// Puts one token more before the prompt; the logprobs that are asked for stay those of the same tokens.
fn lengthen(body: &mut Value) {
    for key in ["prompt", "input_ids"] {
        if let Some(ids) = body.get_mut(key).and_then(Value::as_array_mut) {
            ids.insert(0, json!(7));
        }
    }
    if let Some(start) = body.get_mut("logprob_start_len").filter(|it| it.as_i64() >= Some(0)) {
        *start = json!(start.as_i64().map(|start| start + 1));
    }
}

fn all_prompts(body: &[u8]) -> Vec<Vec<u32>> {
    let body: Value = serde_json::from_slice(body).unwrap_or(Value::Null);
    let field = if body["prompt"].is_array() { &body["prompt"] } else { &body["input_ids"] };
    if field.is_array() { prompts(field) } else { Vec::new() }
}

/// One prompt or several.
fn prompts(field: &Value) -> Vec<Vec<u32>> {
    let ids = |list: &Value| -> Vec<u32> {
        let items = list.as_array().map(Vec::as_slice).unwrap_or_default();
        items.iter().map(|id| id.as_u64().unwrap_or(u64::from(u32::MAX)) as u32).collect()
    };
    match field[0].is_array() {
        true => field.as_array().map(|lists| lists.iter().map(ids).collect()).unwrap_or_default(),
        false => vec![ids(field)],
    }
}

/// The ids a server names in its answer: those it was sent, unless it is mistaken.
fn named(id: u32, fault: Option<&Fault>) -> u32 {
    if fault == Some(&Fault::OtherIds) { (id + 1) % VOCAB as u32 } else { id }
}

fn vllm_rows(ids: &[u32], contexts: &[Context], k: usize, fault: Option<&Fault>, shift: f64) -> Vec<String> {
    let row = |at: usize| {
        let (context, id) = (contexts[at], named(ids[at], fault));
        let own = std::iter::once((id, context.logprob(id)));
        let others = context.top(k).into_iter().filter(|&(other, _)| other != id);
        let mut row = String::from("{");
        for (nth, (id, logprob)) in own.chain(others).enumerate() {
            let comma = if nth > 0 { "," } else { "" };
            let (rank, logprob) = (context.rank(id), logprob + shift);
            let _ = write!(
                row,
                "{comma}\"{id}\":{{\"logprob\":{logprob},\"rank\":{rank},\"decoded_token\":\"t{id}\"}}"
            );
        }
        row + "}"
    };
    let mut rows: Vec<String> =
        (0..ids.len()).map(|at| if at == 0 { "null".to_owned() } else { row(at) }).collect();
    spoil(&mut rows, fault, "\"logprob\":");
    rows
}

/// The rows of logprobs and of candidates from `start` on; the first of them is null.
fn sglang_rows(
    ids: &[u32],
    contexts: &[Context],
    start: usize,
    k: usize,
    fault: Option<&Fault>,
    shift: f64,
) -> (Vec<String>, Vec<String>) {
    let own = |at: usize| {
        let id = named(ids[at], fault);
        if at == start {
            format!("[null,{id},null]")
        } else {
            format!("[{},{id},null]", contexts[at].logprob(id) + shift)
        }
    };
    let top = |at: usize| {
        let entry = |(id, logprob): (u32, f64)| format!("[{},{id},null]", logprob + shift);
        let entries = contexts[at].top(k).into_iter().map(entry);
        if at == start { "null".to_owned() } else { format!("[{}]", entries.collect::<Vec<_>>().join(",")) }
    };
    let mut owns: Vec<String> = (start..ids.len()).map(own).collect();
    let tops = if k == 0 { 0..0 } else { start..ids.len() };
    let mut tops: Vec<String> = tops.map(top).collect();
    spoil(&mut owns, fault, "[");
    spoil(&mut tops, fault.filter(|it| !matches!(it, Fault::NotANumber | Fault::Null)), "[");
    (owns, tops)
}

/// The rows of chosen candidates from `start` on, the first of them null; none where none were chosen.
fn chosen_rows(n: usize, contexts: &[Context], start: usize, chosen: &Value, shift: f64) -> Vec<Value> {
    let Some(chosen) = chosen.as_array() else { return Vec::new() };
    let row = |at: usize| {
        let entry = |id: &Value| json!([contexts[at].logprob(id.as_u64().unwrap() as u32) + shift, id, null]);
        if at == start { Value::Null } else { chosen.iter().map(entry).collect() }
    };
    (start..n).map(row).collect()
}

/// Makes the last row wrong; `before` is what stands before a logprob.
fn spoil(rows: &mut Vec<String>, fault: Option<&Fault>, before: &str) {
    match fault {
        Some(Fault::OneTooShort) => drop(rows.pop()),
        Some(Fault::OneTooLong) => rows.extend(rows.last().cloned()),
        Some(spoilt @ (Fault::NotANumber | Fault::Null)) => {
            let Some(last) = rows.last_mut() else { return };
            let Some(at) = last.find(before).map(|at| at + before.len()) else { return };
            let end = last[at..].find(',').map_or(last.len(), |length| at + length);
            last.replace_range(at..end, if *spoilt == Fault::Null { "null" } else { "NaN" });
        }
        _ => {}
    }
}

fn vllm_error(message: &str) -> (u16, String) {
    (
        400,
        json!({"error": {"message": message, "type": "BadRequestError", "param": null, "code": 400}})
            .to_string(),
    )
}

fn sglang_error(message: &str) -> (u16, String) {
    (400, json!({"error": {"message": message}}).to_string())
}
