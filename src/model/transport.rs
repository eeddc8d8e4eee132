//! Requests to servers that are slow, overloaded, restarting or broken, as if they were not.
//!
//! Owns [`Transport`]: time-outs, retries, failover, bounds on what is in flight and on what is read,
//! and that no API key reaches a message. What a request says and what its answer means is the
//! business of the clients, who give a route, a body and a decoder.
//!
//! One call: take a [`Lease`], send under an id of its own, read, give the lease back, decode. When
//! that fails and the failure may pass: another endpoint at once if one is up, else wait (holding
//! nothing) and begin the next round.

use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, SystemTime};

use base64::Engine as _;
pub use reqwest::Method;
use reqwest::header::{
    AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, LOCATION, RETRY_AFTER,
};

use super::body;
use super::echo::{Attempt, Ids};
use super::endpoint::{Endpoint, Lease, Pool, PoolRules};
pub use super::retry::Notice;
use super::retry::{self, Jitter, Miss, Policy, Symptom};
use super::secret::Secret;
use super::{Error, resting, route};

/// Writes the body of one attempt, given its id.
pub type Write<'a> = dyn Fn(&str) -> Result<Vec<u8>, Error> + Send + Sync + 'a;

/// One request, described apart from where it is sent.
#[derive(Clone)]
pub struct Outgoing<'a> {
    /// `POST`, mostly.
    pub method: Method,
    /// The route, `/v1/completions`.
    pub path: &'a str,
    /// Writes what is sent, which is JSON; none sends nothing.
    pub body: Option<&'a Write<'a>>,
    /// What it costs the server while in flight.
    pub tokens: u64,
    /// A hash of the prompt's beginning: the same value goes to the same endpoint, whose cache knows it.
    pub sticky: u64,
    /// An answer of more bytes is an error, and is not read further.
    pub max_answer: usize,
    /// How long one attempt may take; `None` takes the transport's own.
    pub timeout: Option<Duration>,
}

impl<'a> Outgoing<'a> {
    /// A question about the server.
    pub fn get(path: &'a str) -> Self {
        let (method, body) = (Method::GET, None);
        Self { method, path, body, tokens: 0, sticky: 0, max_answer: 16 << 20, timeout: None }
    }

    /// Something to be computed.
    pub fn post(path: &'a str, write: &'a Write<'a>) -> Self {
        Self { method: Method::POST, body: Some(write), ..Self::get(path) }
    }
}

/// An answer with a status of 2xx, to be decoded.
#[derive(Clone, Copy, Debug)]
pub struct Answer<'a> {
    /// The whole body.
    pub body: &'a [u8],
    /// The attempt it answers.
    pub attempt: Attempt<'a>,
}

/// Reads an answer. Its `Err` says why a body is none to this call.
pub type Decode<'a, T> = dyn Fn(&Answer<'_>) -> Result<T, String> + Send + Sync + 'a;

/// How an API key is presented: `HEADER: PREFIX KEY`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Auth {
    /// The header's name in small letters.
    pub header: &'static str,
    /// What stands before the key.
    pub prefix: &'static str,
    /// The key.
    pub key: Secret,
}

/// Who is told of notices.
pub type Watch = Arc<dyn Fn(Notice) + Send + Sync>;

/// How a transport behaves.
#[derive(Clone)]
pub struct Settings {
    /// The API key, if the server wants one.
    pub auth: Option<Auth>,
    /// Further headers, such as a protocol version; none of them secret, their names in small letters.
    pub headers: Vec<(&'static str, &'static str)>,
    /// How long one attempt may take, from sending to the last byte.
    pub timeout: Duration,
    /// How long a connection may take.
    pub connect_timeout: Duration,
    /// How often to try.
    pub policy: Policy,
    /// What may be in flight, and when an endpoint is left alone.
    pub pool: PoolRules,
    /// Makes the waits repeatable.
    pub jitter_seed: Option<u64>,
    /// Is told of retries and of endpoints that go and come.
    pub watch: Option<Watch>,
}

impl Settings {
    /// The same for questions a person waits for, which are given up quickly.
    pub fn briefly(self) -> Self {
        Self { policy: Policy::brief(), timeout: self.timeout.min(BRIEF), ..self }
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            auth: None,
            headers: Vec::new(),
            timeout: Duration::from_secs(600),
            connect_timeout: Duration::from_secs(10),
            policy: Policy::default(),
            pool: PoolRules::default(),
            jitter_seed: None,
            watch: None,
        }
    }
}

/// A way to one model, over one or several endpoints. Clones share everything but their patience.
#[derive(Clone)]
pub struct Transport {
    policy: Policy,
    /// No attempt takes longer.
    longest: Duration,
    shared: Arc<Shared>,
}

struct Shared {
    http: reqwest::Client,
    pool: Arc<Pool>,
    /// Failures after which a server may be another process.
    disruptions: AtomicU64,
    /// Answers by endpoint.
    answers: Vec<AtomicU64>,
    headers: Vec<HeaderMap>,
    secrets: Vec<Secret>,
    settings: Settings,
    jitter: Jitter,
    ids: Ids,
}

/// How long a person waits for something that is computed.
const BRIEF: Duration = Duration::from_secs(30);
/// How long a person waits for something that the server only has to look up.
pub const LOOK_UP: Duration = Duration::from_secs(10);
/// Servers such as uvicorn close idle connections after five seconds; leaving first avoids sending into a closing one.
const IDLE: Duration = Duration::from_secs(4);

impl Transport {
    /// A transport to the servers at `urls`. Nothing is sent yet.
    pub fn open<S: AsRef<str>>(urls: &[S], settings: Settings) -> Result<Self, Error> {
        let endpoints: Vec<Endpoint> =
            urls.iter().map(|url| Endpoint::parse(url.as_ref())).collect::<Result<_, _>>()?;
        Self::to(endpoints, settings)
    }

    fn to(endpoints: Vec<Endpoint>, settings: Settings) -> Result<Self, Error> {
        if endpoints.is_empty() {
            return Err(super::endpoint::no_endpoint());
        }
        let headers = endpoints.iter().map(|it| headers_for(it, &settings)).collect::<Result<_, _>>()?;
        let shared = Shared {
            http: http_client(&settings)?,
            headers,
            secrets: secrets_of(&endpoints, &settings),
            disruptions: AtomicU64::new(0),
            answers: endpoints.iter().map(|_| AtomicU64::new(0)).collect(),
            pool: Pool::new(endpoints, settings.pool.clone()),
            jitter: Jitter::new(
                settings.jitter_seed.unwrap_or_else(|| RandomState::new().build_hasher().finish()),
            ),
            settings,
            ids: Ids::new(),
        };
        let (policy, longest) = (shared.settings.policy.clone(), Duration::MAX);
        Ok(Self { policy, longest, shared: Arc::new(shared) })
    }

    /// The same transport, giving up quickly: for questions a person waits for.
    pub fn briefly(&self) -> Self {
        Self { policy: Policy::brief(), longest: BRIEF, shared: Arc::clone(&self.shared) }
    }

    /// The same transport, which tries again only where the server says that it is busy: for requests that can be
    /// cut into smaller ones.
    pub fn only_when_busy(&self) -> Self {
        let policy = Policy { only_when_busy: true, ..self.policy.clone() };
        Self { policy, ..self.clone() }
    }

    /// Which endpoint requests with this sticky value go to while it is up, unless the call has a home.
    pub fn home(&self, sticky: u64) -> usize {
        self.shared.pool.home(route::sticky(sticky))
    }

    /// One transport per endpoint, so that each server can be asked what it is.
    pub fn each(&self) -> Result<Vec<Self>, Error> {
        (0..self.shared.pool.endpoints.len()).map(|place| self.only(&[place])).collect()
    }

    /// How often a call failed in a way after which the server may be another process.
    pub fn disruptions(&self) -> u64 {
        self.shared.disruptions.load(Relaxed)
    }

    /// How many answers each endpoint has given.
    pub fn answers(&self) -> Vec<u64> {
        self.shared.answers.iter().map(|it| it.load(Relaxed)).collect()
    }

    /// A transport to some of the endpoints, by their places.
    pub fn only(&self, places: &[usize]) -> Result<Self, Error> {
        let endpoints = &self.shared.pool.endpoints;
        let kept = places.iter().filter_map(|&place| endpoints.get(place).cloned()).collect();
        Self::to(kept, self.shared.settings.clone())
    }

    /// The addresses, for messages; never with credentials.
    pub fn server(&self) -> String {
        let names: Vec<&str> = self.shared.pool.endpoints.iter().map(Endpoint::name).collect();
        names.join(", ")
    }

    /// Whether every endpoint repeats the ids of requests, as far as there were answers to tell by.
    pub fn ids_echoed(&self) -> Option<bool> {
        let heard: Vec<_> = self.shared.pool.endpoints.iter().map(|it| it.echo.is_heard()).collect();
        if heard.contains(&Some(false)) { Some(false) } else { heard.into_iter().min().flatten() }
    }

    /// Sends `call` until it is answered, refused, or given up.
    ///
    /// `decode` is given a body with a status of 2xx. Its `Err` says why the body is no answer to this
    /// call; the call is then tried again like one whose answer was cut.
    pub async fn call<T>(&self, call: &Outgoing<'_>, decode: &Decode<'_, T>) -> Result<T, Error> {
        let mut tries = Tries::default();
        loop {
            let sticky = route::sticky(call.sticky);
            let lease = self.shared.pool.lease(sticky, call.tokens, &tries.tried).await?;
            tries.attempts += 1;
            tries.tried.push(lease.idx);
            let limit = call.timeout.unwrap_or(self.shared.settings.timeout).min(self.longest);
            let miss = match self.shared.attempt(lease, call, limit, decode).await {
                Ok(answer) => return Ok(answer),
                Err(miss) => miss,
            };
            let Some(wait) = tries.wait(&miss, &self.policy, &self.shared) else { return Err(miss.error) };
            let (attempts, error) = (tries.attempts, miss.error);
            self.shared.tell(|| Notice::Retry { attempts, wait, error });
            if !wait.is_zero() {
                let _rest = resting::rest();
                tokio::time::sleep(wait).await;
            }
        }
    }
}

impl fmt::Debug for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Transport").field(&self.server()).finish()
    }
}

/// How far one call has come.
#[derive(Default)]
struct Tries {
    attempts: u32,
    rounds: u32,
    garbled: u32,
    tried: Vec<usize>,
}

impl Tries {
    /// The wait before the next attempt: none if another endpoint is up, `None` when it is time to give up.
    fn wait(&mut self, miss: &Miss, policy: &Policy, shared: &Shared) -> Option<Duration> {
        self.garbled += u32::from(miss.symptom == Symptom::Garbled);
        if !policy.tries_again(miss, self.garbled) {
            return None;
        }
        if shared.pool.has_other(&self.tried) {
            return Some(Duration::ZERO);
        }
        self.tried.clear();
        self.rounds += 1;
        policy.wait(self.rounds, miss.retry_after, &shared.jitter)
    }
}

impl Shared {
    /// Sends once and decodes; the endpoint's health learns of it either way.
    async fn attempt<T>(
        &self,
        mut lease: Lease,
        call: &Outgoing<'_>,
        limit: Duration,
        decode: &Decode<'_, T>,
    ) -> Result<T, Miss> {
        let (endpoint, id) = (&self.pool.endpoints[lease.idx], self.ids.next());
        let server = endpoint.name().to_owned();
        let received = tokio::time::timeout(limit, self.exchange(&lease, call, &id)).await;
        let outcome = match received.unwrap_or_else(|_| Err(timed_out(&server, limit))) {
            Ok(body) => {
                lease.answered();
                let attempt = Attempt { id: &id, echo: &endpoint.echo };
                self.decode(&server, &Answer { body: &body, attempt }, decode)
            }
            Err(miss) => Err(miss),
        };
        self.count(lease.idx, outcome.as_ref().err());
        // A refusal is an answer.
        let miss = outcome.as_ref().err().filter(|it| it.symptom != Symptom::Refused);
        if let Some(turn) = lease.report(miss, self.settings.policy.longest_retry_after) {
            self.tell(|| turn);
        }
        outcome
    }

    /// Counts answers and disruptions: a busy server says so itself, and a refusal is an answer.
    fn count(&self, idx: usize, miss: Option<&Miss>) {
        let Some(miss) = miss else {
            self.answers[idx].fetch_add(1, Relaxed);
            route::answered(idx);
            return;
        };
        let is_busy = matches!(miss.error, Error::Unavailable { status: 408 | 425 | 429 | 529, .. });
        if miss.symptom != Symptom::Refused && !is_busy {
            self.disruptions.fetch_add(1, Relaxed);
        }
    }

    /// Sends the request and reads the answer; anything but a whole body with a status of 2xx is a failure.
    async fn exchange(&self, lease: &Lease, call: &Outgoing<'_>, id: &str) -> Result<Vec<u8>, Miss> {
        let endpoint = &self.pool.endpoints[lease.idx];
        let mut request = self.http.request(call.method.clone(), endpoint.url(call.path));
        request = request.headers(self.headers[lease.idx].clone());
        if let Some(write) = call.body {
            let body = write(id).map_err(|error| Miss::new(Symptom::Refused, error))?;
            request = request.header(CONTENT_TYPE, "application/json").body(body);
        }
        let response = request.send().await.map_err(|why| self.not_sent(endpoint, why))?;
        if let Some(kind) = retry::judge_status(response.status().as_u16()) {
            return Err(self.bad_status(endpoint, kind, response).await);
        }
        let body = body::read(response, call.max_answer).await;
        body.map_err(|why| garbled(endpoint.name(), self.scrub(&why)))
    }

    fn decode<T>(&self, server: &str, answer: &Answer<'_>, decode: &Decode<'_, T>) -> Result<T, Miss> {
        // No JSON text contains a NUL byte, however lenient its reader.
        let decoded = if answer.body.contains(&0) { Err("not JSON".to_owned()) } else { decode(answer) };
        decoded
            .map_err(|reason| garbled(server, body::describe(&reason, answer.body, &|text| self.scrub(text))))
    }

    fn not_sent(&self, endpoint: &Endpoint, why: reqwest::Error) -> Miss {
        let why = self.scrub(&crate::http::reason(why));
        Miss::new(Symptom::Broken, Error::Unreachable { server: endpoint.name().to_owned(), why })
    }

    async fn bad_status(&self, endpoint: &Endpoint, symptom: Symptom, response: reqwest::Response) -> Miss {
        let (server, status) = (endpoint.name().to_owned(), response.status().as_u16());
        let header = |name| response.headers().get(name).and_then(|value| value.to_str().ok());
        let retry_after = header(RETRY_AFTER).and_then(|value| retry::retry_after(value, SystemTime::now()));
        let target = header(LOCATION).filter(|_| (300..400).contains(&status)).map(|it| self.scrub(it));
        let body = body::read_beginning(response, body::ERROR_BODY).await;
        let message = match (status, target) {
            (_, Some(target)) => format!("it redirects to {}", body::shorten(&target)),
            (204, _) => "it answered without a body".to_owned(),
            (401 | 403, _) => {
                format!("{}; {}", body::message(&body, &|text| self.scrub(text)), self.shown_key(endpoint))
            }
            _ => body::message(&body, &|text| self.scrub(text)),
        };
        let error = match symptom {
            Symptom::Refused => Error::Refused { server, status, message },
            _ => Error::Unavailable { server, status, message },
        };
        Miss { symptom, error, retry_after }
    }

    /// Which key was sent, for whoever has to look after it.
    fn shown_key(&self, endpoint: &Endpoint) -> String {
        let origin = self.settings.auth.as_ref().map(|auth| auth.key.origin());
        match (origin, &endpoint.login) {
            (Some(Some(origin)), _) => format!("the API key of {origin} was sent"),
            (Some(None), _) => "an API key was sent".to_owned(),
            (None, Some(_)) => "the user and password of the address were sent".to_owned(),
            (None, None) => "no API key was sent".to_owned(),
        }
    }

    /// `text` without any key this transport knows.
    fn scrub(&self, text: &str) -> String {
        self.secrets.iter().fold(text.to_owned(), |text, secret| secret.scrub(&text))
    }

    fn tell(&self, notice: impl FnOnce() -> Notice) {
        if let Some(watch) = &self.settings.watch {
            watch(notice());
        }
    }
}

fn timed_out(server: &str, limit: Duration) -> Miss {
    let why = format!("no answer within {} s", limit.as_secs_f64());
    Miss::new(Symptom::Pressed, Error::Unreachable { server: server.to_owned(), why })
}

fn garbled(server: &str, why: String) -> Miss {
    Miss::new(Symptom::Garbled, Error::garbled(server, why))
}

fn http_client(settings: &Settings) -> Result<reqwest::Client, Error> {
    let client = crate::http::client()
        .user_agent(concat!("backsight/", env!("CARGO_PKG_VERSION")))
        // A redirected POST becomes a GET, and a key must not travel to a host the user did not name.
        .redirect(reqwest::redirect::Policy::none())
        .connect_timeout(settings.connect_timeout)
        .pool_idle_timeout(IDLE)
        .pool_max_idle_per_host(settings.pool.concurrency)
        .build();
    let what = |why| format!("no HTTP client can be made: {}", crate::http::reason(why));
    client.map_err(|why| Error::invalid(what(why), "see that the system's certificates are readable"))
}

/// The headers every request to `endpoint` carries.
fn headers_for(endpoint: &Endpoint, settings: &Settings) -> Result<HeaderMap, Error> {
    let plain = settings.headers.iter();
    let plain = plain.map(|&(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)));
    let mut headers: HeaderMap = plain.collect();
    let login = endpoint.login.as_ref().map(|(user, password)| (AUTHORIZATION, basic(user, password)));
    let key = settings.auth.as_ref().map(|Auth { header, prefix, key }| {
        (HeaderName::from_static(header), format!("{prefix}{}", key.expose()))
    });
    for (name, text) in login.into_iter().chain(key) {
        let what = "the API key contains characters that no HTTP header may have";
        let invalid = |_| Error::invalid(what, "see that it is one line of ASCII");
        let mut value = HeaderValue::from_str(&text).map_err(invalid)?;
        value.set_sensitive(true);
        headers.insert(name, value);
    }
    Ok(headers)
}

fn basic(user: &str, password: &Secret) -> String {
    let plain = format!("{user}:{}", password.expose());
    format!("Basic {}", base64::engine::general_purpose::STANDARD.encode(plain))
}

/// Everything that must not appear in a message, in each form in which it is sent.
fn secrets_of(endpoints: &[Endpoint], settings: &Settings) -> Vec<Secret> {
    let key = settings.auth.iter().map(|auth| auth.key.clone());
    let logins = endpoints.iter().filter_map(|it| it.login.as_ref());
    let logins = logins.flat_map(|(user, password)| {
        let encoded = basic(user, password);
        [password.clone(), Secret::new(encoded.trim_start_matches("Basic "))]
    });
    key.chain(logins).collect()
}
