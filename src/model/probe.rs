//! Finding out what a server is and can do, by asking it rather than by believing its name.
//!
//! Owns [`probe`] and its [`Findings`], and [`require_scores`], with which a command makes sure of what it needs
//! before anything is paid for. Every line is measured with a few short requests, or absent when it could not
//! be. Showing the findings is the business of the command line.

use std::sync::Arc;

use serde_json::{Value, json};

use super::kind::ServerInfo;
use super::kinds::names_of;
use super::noise::{Noisy, mean_difference, noise_of, tolerance};
use super::opened::Opened;
use super::transport::{Answer, Outgoing, Transport};
use super::{ChatRequest, Error, GenerateRequest, Generated, Limits, Model, Place, Sampling, Scored};
use crate::wire::openai;
use backsight_chat::drops::drops;
use backsight_chat::source::ChatTemplates;
use backsight_chat::template::Now;
use backsight_core::episode::{Message, Role};
use backsight_core::score::{ScoreJob, SpanScore};
use backsight_core::tokens::{Logprob, TokenId, TokenSpan};

/// Letters, digits, accents and another script, so that tokenizers that differ show it.
pub const PROBE_TEXT: &str =
    "I have 12345 apples, naïve café 東京. The quick brown fox jumps over the lazy dog.";
/// Ids every vocabulary has, for servers whose tokenizer is unknown.
const PROBE_IDS: std::ops::Range<TokenId> = 40..64;
/// Logprobs of the same tokens as prompt and as sample may differ by this much before the server is distrusted.
const SELF_TEST_TOLERANCE: f64 = 0.05;
const N_SAMPLED: usize = 12;

/// What was found out; `None` where it could not be.
#[derive(Clone, Debug, PartialEq)]
pub struct Findings {
    /// What the server says about itself.
    pub info: ServerInfo,
    /// Its limits.
    pub limits: Limits,
    /// Whether it takes token ids.
    pub ids_in: Option<bool>,
    /// Whether it returns the sampled ids.
    pub ids_out: Option<bool>,
    /// Whether it repeats the ids of requests, so that an answer is known to belong to its prompt.
    pub ids_echoed: Option<bool>,
    /// Whether it scores prompts.
    pub prompt_logprobs: Option<bool>,
    /// Whether scoring again finds the prefix in the cache.
    pub prefix_cache_with_logprobs: Option<bool>,
    /// Whether its tokenizer gives the ids ours gives.
    pub tokenizer_agrees: Option<bool>,
    /// What its chat template ignores.
    pub template_drops: Option<Vec<&'static str>>,
    /// Whether the same request gives the same numbers.
    pub deterministic: Option<bool>,
    /// The mean difference of logprobs from which on it shows that the weights have changed.
    pub smallest_change: Option<f64>,
    /// The largest difference between the logprobs of the same tokens as prompt and as sample.
    pub self_test: Option<f64>,
    /// What kept a line from being measured.
    pub notes: Vec<String>,
}

impl Findings {
    /// Whether the numbers can be trusted, where that could be tested.
    pub fn self_test_ok(&self) -> Option<bool> {
        self.self_test.map(|difference| difference < SELF_TEST_TOLERANCE)
    }

    /// The findings as JSON; what could not be measured is null, and [`Findings::notes`] say why.
    pub fn to_json(&self) -> Value {
        json!({
            "kind": self.info.kind.name,
            "version": self.info.version,
            "model": self.info.model,
            "models": self.info.models,
            "context_length": self.limits.context_length,
            "ids_in": self.ids_in,
            "ids_out": self.ids_out,
            "ids_echoed": self.ids_echoed,
            "prompt_logprobs": self.prompt_logprobs,
            "max_top_k": self.limits.max_top_k,
            "start_index": self.limits.start_index,
            "prefix_cache_with_logprobs": self.prefix_cache_with_logprobs,
            "tokenizer_agrees": self.tokenizer_agrees,
            "template_drops": self.template_drops,
            "deterministic": self.deterministic,
            "smallest_change": self.smallest_change,
            "self_test": {"max_abs_diff": self.self_test, "ok": self.self_test_ok()},
        })
    }
}

/// Refuses a model that cannot score, or that is asked in the ids of another tokenizer.
pub async fn require_scores(opened: &Opened) -> Result<(), Error> {
    let server = opened.server();
    if !opened.model.limits().scores {
        return Err(cannot_score(opened, &server));
    }
    if tokenizer_agrees(opened, &mut Vec::new()).await == Some(false) {
        let path = opened.tokenizer.as_ref().map(|(path, _)| path.display().to_string()).unwrap_or_default();
        let what = format!("the tokenizer at {path} gives other ids than that of {server} for the same text");
        return Err(Error::invalid(what, "name the tokenizer of the served model with --tokenizer"));
    }
    let unsupported = |why| Err(Error::unsupported(&server, format!("score a prompt: {why}"), scorers()));
    match probe_logprobs(opened).await {
        Err(Error::Garbled { why, .. }) => unsupported(why),
        Err(error) if error.is_denied() => Err(error),
        Err(Error::Refused { status, message, .. }) => unsupported(format!("HTTP {status}: {message}")),
        Ok(logprobs) if logprobs.iter().all(Option::is_none) => unsupported("no logprob came back".into()),
        Ok(_) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Those who score, for whoever asked another.
fn scorers() -> String {
    format!("use --kind {}", names_of(|kind| kind.limits.scores))
}

fn cannot_score(opened: &Opened, server: &str) -> Error {
    if !lacks_vocab(opened) {
        return Error::unsupported(server, "score a prompt", scorers());
    }
    let what = "be asked for scores while the size of its vocabulary is unknown: one id too large ends it";
    Error::unsupported(server, what, "name the model's tokenizer with --tokenizer")
}

/// Whether it is sent no ids only because nobody knows how many it has.
pub fn lacks_vocab(opened: &Opened) -> bool {
    opened.info.kind.needs_vocab && opened.model.limits().vocab_size.is_none()
}

/// The logprobs of the probe text but for its first token; none from a model that cannot score.
pub async fn probe_logprobs(opened: &Opened) -> Result<Vec<Option<Logprob>>, Error> {
    if !opened.model.limits().scores {
        return Ok(Vec::new());
    }
    let scored = score(&*opened.model, &probe_ids(opened), 1).await?;
    Ok(scored.spans.iter().flat_map(SpanScore::logprobs).collect())
}

fn difference(a: &Scored, b: &Scored) -> Option<f64> {
    let logprobs = |it: &Scored| it.spans.iter().flat_map(SpanScore::logprobs).collect::<Vec<_>>();
    mean_difference(&logprobs(a), &logprobs(b))
}

/// Asks the model everything.
pub async fn probe(opened: &Opened) -> Findings {
    let mut notes = Vec::new();
    let tokenizer_agrees = tokenizer_agrees(opened, &mut notes).await;
    let taking_ids = taking_ids(opened, &mut notes);
    // The protocols of the others have no place for ids.
    let no = taking_ids.is_none().then_some(false);
    let mut findings = Findings {
        info: opened.info.clone(),
        limits: opened.model.limits().clone(),
        ids_in: no,
        ids_out: no,
        ids_echoed: no,
        prompt_logprobs: no,
        prefix_cache_with_logprobs: None,
        tokenizer_agrees,
        template_drops: template_drops(opened),
        deterministic: None,
        smallest_change: None,
        self_test: None,
        notes,
    };
    if let Some(model) = taking_ids {
        measure_ids(&*model, &probe_ids(opened), &mut findings).await;
        findings.ids_echoed = opened.transport.as_ref().and_then(Transport::ids_echoed);
    } else {
        findings.deterministic = same_chat(&*opened.model, &mut findings.notes).await;
    }
    findings
}

/// The model, if it takes token ids. One that is sent none because nobody knows how many it has is asked in ids that
/// every vocabulary has, and in those it sampled itself.
fn taking_ids(opened: &Opened, notes: &mut Vec<String>) -> Option<Arc<dyn Model>> {
    match &opened.transport {
        _ if opened.model.limits().token_ids => Some(Arc::clone(&opened.model)),
        Some(transport) if lacks_vocab(opened) => {
            notes.push(format!(
                "the tokenizer of {} is not on this machine; commands that send token ids need it: name it with --tokenizer",
                opened.info.model
            ));
            let vocab_size = Some(usize::MAX);
            let limits =
                Limits { vocab_size, token_ids: true, scores: true, ..opened.model.limits().clone() };
            Some(opened.within(transport.clone(), limits))
        }
        _ => None,
    }
}

/// The probe text as this server's ids.
pub fn probe_ids(opened: &Opened) -> Vec<TokenId> {
    let encoded = opened.tokenizer.as_ref().and_then(|(_, tokenizer)| tokenizer.encode(PROBE_TEXT).ok());
    encoded.map_or_else(|| PROBE_IDS.collect(), |encoded| encoded.ids)
}

async fn measure_ids(model: &dyn Model, ids: &[TokenId], findings: &mut Findings) {
    let sampled = sample(model, ids).await;
    findings.ids_in = whether(&sampled, |_| true);
    findings.ids_out = whether(&sampled, |sampled| !sampled.tokens.is_empty());
    let is_gone = sampled.as_ref().is_err_and(Error::may_pass);
    let sampled = kept(sampled, &mut findings.notes);
    // Who waits for an answer to each question of a server that gives none waits for nothing.
    if is_gone || !model.limits().scores {
        return;
    }
    let measured = noise_of(|| score(model, ids, 1), difference).await;
    findings.prompt_logprobs = whether(&measured, |it| it.first.spans[0].absent().next().is_none());
    let Some(Noisy { noise, .. }) = kept(measured, &mut findings.notes) else { return };
    (findings.deterministic, findings.smallest_change) = (Some(noise == 0.0), Some(tolerance(noise)));
    let late = kept(score(model, ids, ids.len() - 4).await, &mut findings.notes);
    findings.prefix_cache_with_logprobs = late.and_then(|scored| uses_cache(&scored, model.limits()));
    if let Some(sampled) = sampled {
        findings.self_test = kept(self_test(model, ids, &sampled).await, &mut findings.notes).flatten();
    }
}

/// What an answer shows, or a refusal; nothing where another time may show something else.
fn whether<T>(answer: &Result<T, Error>, shows: impl Fn(&T) -> bool) -> Option<bool> {
    match answer {
        Ok(answer) => Some(shows(answer)),
        Err(error) if error.may_pass() && !matches!(error, Error::Garbled { .. }) => None,
        Err(_) => Some(false),
    }
}

/// Whether a second scoring found something in the cache. Who computes the whole prompt for its logprobs does not,
/// whether or not it counts what is cached.
fn uses_cache(scored: &Scored, limits: &Limits) -> Option<bool> {
    let told = scored.usage.cached_tokens.map(|cached| cached > 0);
    told.or((!limits.cached_scores).then_some(false))
}

/// Scores what was sampled, as a prompt, and compares.
async fn self_test(model: &dyn Model, ids: &[TokenId], sampled: &Generated) -> Result<Option<f64>, Error> {
    let all: Vec<TokenId> = ids.iter().copied().chain(sampled.tokens.iter().map(|token| token.id)).collect();
    let scored = score(model, &all, ids.len()).await?;
    let pairs = sampled.tokens.iter().zip(scored.spans[0].logprobs());
    let differences = pairs.map(|(token, again)| Some((token.logprob?.get() - again?.get()).abs()));
    let differences: Option<Vec<f64>> = differences.collect();
    Ok(differences.and_then(|all| all.into_iter().reduce(f64::max)))
}

async fn score(model: &dyn Model, ids: &[TokenId], from: usize) -> Result<Scored, Error> {
    let span = TokenSpan::at(from, ids.len().saturating_sub(from));
    let job = ScoreJob::new(ids.into(), vec![span], 0);
    model.score(&job.map_err(|error| Error::invalid(error, ""))?).await
}

async fn sample(model: &dyn Model, ids: &[TokenId]) -> Result<Generated, Error> {
    let request = GenerateRequest {
        prompt: ids.to_vec(),
        sampling: Sampling::greedy(N_SAMPLED),
        stop_ids: Vec::new(),
        top_k: 1,
        place: Place::default(),
    };
    model.generate(&request).await
}

async fn same_chat(model: &dyn Model, notes: &mut Vec<String>) -> Option<bool> {
    let messages = vec![Message::text(Role::User, "Say the word: backsight.")];
    let request = ChatRequest {
        messages,
        tools: Vec::new(),
        sampling: Sampling::greedy(N_SAMPLED),
        place: Place::default(),
    };
    let first = kept(model.chat(&request).await, notes)?;
    let second = kept(model.chat(&request).await, notes)?;
    Some(first.message == second.message)
}

/// What went wrong is noted, and the line stays unmeasured.
fn kept<T>(result: Result<T, Error>, notes: &mut Vec<String>) -> Option<T> {
    result.map_err(|error| notes.push(error.to_string())).ok()
}

fn template_drops(opened: &Opened) -> Option<Vec<&'static str>> {
    let (path, _) = opened.tokenizer.as_ref()?;
    let templates = ChatTemplates::open(path).ok()?;
    let template = templates.select(false).ok()?;
    Some(drops(&template, templates.special_tokens(), Some(Now::utc(0))).names())
}

/// Whether the server's tokenizer gives the probe text the ids ours gives; `None` where it cannot be asked, as for a
/// model in this process, which has no other tokenizer than ours.
pub async fn tokenizer_agrees(opened: &Opened, notes: &mut Vec<String>) -> Option<bool> {
    let transport = opened.transport.as_ref()?.briefly();
    if !opened.info.kind.tokenizes {
        return None;
    }
    let (_, tokenizer) = opened.tokenizer.as_ref()?;
    // A server may add what its tokenizer adds to plain text, whatever it is asked.
    let ours = [tokenizer.encode(PROBE_TEXT).ok()?.ids, tokenizer.encode_plain(PROBE_TEXT).ok()?.ids];
    let body = json!({"model": opened.info.model, "prompt": PROBE_TEXT, "add_special_tokens": false});
    let write = |_: &str| Ok(body.to_string().into_bytes());
    let call = Outgoing::post("/tokenize", &write);
    match transport.call(&call, &|answer: &Answer<'_>| openai::tokenized(answer.body)).await {
        Ok(theirs) => Some(ours.contains(&theirs)),
        // SGLang behind a proxy and older servers have no such route.
        Err(Error::Refused { status: 404 | 405, .. }) => None,
        Err(error) => kept(Err(error), notes),
    }
}
