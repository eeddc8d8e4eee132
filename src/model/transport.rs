//! Requests over HTTP to one server, without retries.
//!
//! Owns [`Transport`] and the description of a call. What a request says and what its answer means
//! is the business of the clients, who give a route, a body and a decoder.

use std::time::Duration;

pub use reqwest::Method;

use super::Error;
use crate::wire::error::server_message;

/// One request, described apart from where it is sent.
#[derive(Clone, Debug)]
pub struct Call<'a> {
    /// `POST`, mostly.
    pub method: Method,
    /// The route, `/v1/completions`.
    pub path: &'a str,
    /// A JSON body.
    pub body: Option<Vec<u8>>,
    /// What it costs the server while in flight.
    pub tokens: u64,
    /// A hash of the prompt's beginning: the same value goes to the same endpoint, whose cache knows it.
    pub sticky: u64,
    /// An answer of more bytes is an error.
    pub max_answer: usize,
    /// How long one attempt may take.
    pub timeout: Option<Duration>,
}

/// An answer with a status of 2xx, to be decoded.
#[derive(Clone, Copy, Debug)]
pub struct Answer<'a> {
    /// The HTTP status.
    pub status: u16,
    /// The whole body.
    pub body: &'a [u8],
}

/// How a transport behaves.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// Further headers, such as a protocol version.
    pub headers: Vec<(&'static str, String)>,
}

/// A way to one model.
#[derive(Clone, Debug)]
pub struct Transport {
    http: reqwest::Client,
    base: String,
    settings: Settings,
}

impl Transport {
    /// A transport to the first of `urls`.
    pub fn open<S: AsRef<str>>(urls: &[S], settings: Settings) -> Result<Self, Error> {
        let url = urls.first().map(AsRef::as_ref).unwrap_or_default();
        let base = url.trim_end_matches('/').trim_end_matches("/v1").to_owned();
        Ok(Self { http: reqwest::Client::new(), base, settings })
    }

    /// The address, for messages.
    pub fn server(&self) -> String {
        self.base.clone()
    }

    /// Sends a request and decodes the answer.
    pub async fn call<T>(
        &self,
        call: &Call<'_>,
        decode: &(dyn Fn(&Answer<'_>) -> Result<T, String> + Send + Sync),
    ) -> Result<T, Error> {
        let unreachable =
            |why: reqwest::Error| Error::Unreachable { server: self.server(), why: why.to_string() };
        let mut request = self.http.request(call.method.clone(), format!("{}{}", self.base, call.path));
        for (name, value) in &self.settings.headers {
            request = request.header(*name, value);
        }
        if let Some(body) = &call.body {
            request = request.header("content-type", "application/json").body(body.clone());
        }
        let response = request.send().await.map_err(unreachable)?;
        let status = response.status().as_u16();
        let body = response.bytes().await.map_err(unreachable)?;
        self.check(status, &body, call.max_answer)?;
        let garbled = |why| Error::Garbled { server: self.server(), why };
        decode(&Answer { status, body: &body }).map_err(garbled)
    }

    fn check(&self, status: u16, body: &[u8], max_answer: usize) -> Result<(), Error> {
        let (server, message) = (self.server(), server_message(body));
        match status {
            200..=299 if body.len() <= max_answer => Ok(()),
            200..=299 => Err(Error::Garbled { server, why: "the answer is too long".to_owned() }),
            408 | 425 | 429 | 500.. => Err(Error::Unavailable { server, status, message }),
            _ => Err(Error::Refused { server, status, message }),
        }
    }
}
