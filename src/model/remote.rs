//! What the clients of all servers share: which of a server's models is asked, what may be sent, what an answer means.
//!
//! Deliberately absent: any server's routes and formats.

use serde::Serialize;

use super::endpoint::hashed;
use super::transport::{Answer, LOOK_UP, Outgoing, Transport, Write};
use super::{Error, Place, Scored, Usage};
use crate::wire::openai::{self, Listed};
use backsight_core::needed::{Needed, absent};
use backsight_core::score::{Absence, ScoreJob};
use backsight_core::tokens::TokenId;

/// What an answer may have beside its candidates, and for each of them: a number, a rank and a text.
const MAX_ANSWER: (usize, usize) = (4 << 20, 256);
/// How much of a prompt decides which endpoint it goes to.
const STICKY_TOKENS: usize = 512;

/// Asks a question about the server.
pub async fn ask<T>(
    transport: &Transport,
    path: &str,
    decode: fn(&[u8]) -> Result<T, String>,
) -> Result<T, Error> {
    let call = Outgoing { timeout: Some(LOOK_UP), ..Outgoing::get(path) };
    transport.call(&call, &|answer: &Answer<'_>| decode(answer.body)).await
}

/// Asks a question that not every server knows.
pub async fn ask_if_known<T>(
    transport: &Transport,
    path: &str,
    decode: fn(&[u8]) -> Result<T, String>,
) -> Result<Option<T>, Error> {
    match ask(transport, path, decode).await {
        Ok(answer) => Ok(Some(answer)),
        Err(Error::Refused { status: 404 | 405, .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The models the server lists; none when it has no such list.
pub async fn listed(transport: &Transport) -> Result<Vec<Listed>, Error> {
    Ok(ask_if_known(transport, "/v1/models", openai::models).await?.unwrap_or_default())
}

/// The model that is meant: the one that was named, or the only one there is.
pub fn choose(server: &str, listed: &[Listed], wanted: Option<&str>) -> Result<Listed, Error> {
    let names: Vec<&str> = listed.iter().map(|it| it.id.as_str()).collect();
    let found = match wanted {
        Some(name) if listed.is_empty() => return Ok(Listed { id: name.to_owned(), ..Listed::default() }),
        Some(name) => listed.iter().find(|it| it.id == name),
        None => listed.first().filter(|_| listed.len() == 1),
    };
    let what = match (found, wanted) {
        (Some(found), _) => return Ok(found.clone()),
        (None, Some(name)) => return Err(no_such_model(server, names, name)),
        (None, None) if names.is_empty() => format!("{server} lists no models"),
        (None, None) => format!("{server} has {} models: {}", names.len(), quoted(&names)),
    };
    Err(Error::invalid(what, NAME_ONE))
}

const NAME_ONE: &str = "name one with --model";

/// The error of a model that is not among those a server lists.
pub fn no_such_model(server: &str, names: Vec<&str>, wanted: &str) -> Error {
    let listed = quoted(&nearest_first(wanted, names));
    Error::invalid(format!("{server} has no model `{wanted}`; it lists {listed}"), NAME_ONE)
}

/// The names most like `wanted` first, the others in their order.
fn nearest_first<'a>(wanted: &str, mut names: Vec<&'a str>) -> Vec<&'a str> {
    let letters = |name: &str| name.to_lowercase().replace(|it: char| !it.is_alphanumeric(), "");
    names.sort_by_cached_key(|name| strsim::osa_distance(&letters(wanted), &letters(name)));
    names
}

fn quoted(names: &[&str]) -> String {
    const SHOWN: usize = 20;
    let shown: Vec<_> = names.iter().take(SHOWN).map(|name| format!("`{name}`")).collect();
    let more = if names.len() > SHOWN { ", …" } else { "" };
    format!("{}{more}", shown.join(", "))
}

/// A request's body.
pub fn body(request: &impl Serialize) -> Result<Vec<u8>, Error> {
    let unwritable = |why| format!("the request cannot be written: {why}");
    serde_json::to_vec(request).map_err(|why| Error::invalid(unwritable(why), "numbers must be finite"))
}

/// A seed as servers take it, which read signed numbers.
pub fn signed(seed: u64) -> i64 {
    (seed >> 1).cast_signed()
}

/// The endpoint key of a prompt: prompts that begin alike go to one endpoint, whose cache knows the beginning.
pub fn sticky_prompt(prompt: &[TokenId]) -> u64 {
    hashed(&prompt[..prompt.len().min(STICKY_TOKENS)])
}

/// The endpoint key of an episode's draws: an episode grows on one endpoint.
pub fn sticky_episode(place: &Place) -> u64 {
    hashed(&(&place.task, place.episode))
}

/// The endpoint key of a judge's votes: all votes on one step go to one endpoint.
pub fn sticky_step(place: &Place) -> u64 {
    hashed(&(&place.task, place.episode, place.step))
}

/// How big a request and its answer are, and where it goes.
#[derive(Clone, Copy)]
pub struct Size {
    /// Tokens sent and sampled.
    pub tokens: usize,
    /// How many candidates for each of them.
    pub top_k: usize,
    /// The same value goes to the same endpoint.
    pub sticky: u64,
}

impl Size {
    /// A call of this size.
    pub fn call<'a>(self, path: &'a str, write: &'a Write<'a>) -> Outgoing<'a> {
        let max_answer = max_answer(self.tokens, self.top_k);
        Outgoing {
            tokens: self.tokens as u64,
            sticky: self.sticky,
            max_answer,
            ..Outgoing::post(path, write)
        }
    }
}

/// How long an answer with so many candidates for each of so many tokens may be.
pub fn max_answer(n_tokens: usize, top_k: usize) -> usize {
    MAX_ANSWER.0.saturating_add(MAX_ANSWER.1.saturating_mul(top_k + 2).saturating_mul(n_tokens))
}

/// The scores of a job none of whose positions has a context: nothing needs to be asked.
pub fn nothing_to_score(job: &ScoreJob) -> Result<Scored, Error> {
    let needed = Needed::new(job);
    let scores = needed.positions().map(|_| absent(Absence::NoContext)).collect();
    let spans = needed.into_spans(job, scores).map_err(|what| Error::invalid(what, "check the spans"))?;
    Ok(Scored { spans, version: None, usage: Usage::default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(names: &[&str], wanted: Option<&str>, expected: Result<&str, &str>) {
        let listed: Vec<_> =
            names.iter().map(|&id| Listed { id: id.to_owned(), ..Listed::default() }).collect();
        let found = choose("http://s", &listed, wanted).map(|it| it.id).map_err(|why| why.to_string());
        assert_eq!(found.as_deref().map_err(String::as_str), expected);
    }

    #[test]
    fn the_model_is_the_named_one_or_the_only_one() {
        check(&["a", "b"], Some("b"), Ok("b"));
        check(&["a"], None, Ok("a"));
        check(&[], Some("x"), Ok("x"));
        check(&["a", "b"], Some("x"), Err("http://s has no model `x`; it lists `a`, `b`"));
        let names = ["zephyr", "qwen/Qwen3-8B", "Qwen/Qwen3-4B"];
        let listed = "`Qwen/Qwen3-4B`, `qwen/Qwen3-8B`, `zephyr`";
        check(&names, Some("qwen3-4b"), Err(&format!("http://s has no model `qwen3-4b`; it lists {listed}")));
        check(&["a", "b"], None, Err("http://s has 2 models: `a`, `b`"));
        check(&[], None, Err("http://s lists no models"));
    }

    #[test]
    fn places_and_prompts_stick() {
        let place = |episode, step, vote| Place { task: "t".into(), episode, step, vote };
        assert_eq!(sticky_episode(&place(1, 2, 0)), sticky_episode(&place(1, 3, 1)));
        assert_ne!(sticky_episode(&place(1, 2, 0)), sticky_episode(&place(2, 2, 0)));
        assert_eq!(sticky_step(&place(1, 2, 0)), sticky_step(&place(1, 2, 1)));
        let long: Vec<TokenId> = (0..2000).collect();
        assert_eq!(sticky_prompt(&long), sticky_prompt(&long[..600]));
        assert!(signed(u64::MAX) > 0);
    }
}
