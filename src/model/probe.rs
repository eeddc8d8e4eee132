//! Finding out what a server is and can do, by asking it rather than by believing its name.
//!
//! Owns [`probe`] and its [`Report`]. Every line is measured with a few short requests, or absent when
//! it could not be. Showing the report is the business of the command line.

use serde_json::{Value, json};

use super::open::Opened;
use super::remote::{Kind, ServerInfo};
use super::transport::{Call, Method, Transport};
use super::{ChatRequest, Error, GenerateRequest, Generated, Limits, Model, Place, Sampling, Scored};
use crate::chat::drops::drops;
use crate::chat::source::ChatTemplates;
use crate::chat::template::Now;
use crate::episode::{Message, Role};
use crate::score::ScoreJob;
use crate::tokens::{TokenId, TokenSpan};

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
pub struct Report {
    /// What the server says about itself.
    pub info: ServerInfo,
    /// Its limits.
    pub limits: Limits,
    /// Whether it takes token ids.
    pub ids_in: bool,
    /// Whether it returns the sampled ids.
    pub ids_out: bool,
    /// Whether it scores prompts.
    pub prompt_logprobs: bool,
    /// Whether scoring again finds the prefix in the cache.
    pub prefix_cache_with_logprobs: Option<bool>,
    /// Whether its tokenizer gives the ids ours gives.
    pub tokenizer_agrees: Option<bool>,
    /// What its chat template ignores.
    pub template_drops: Option<Vec<&'static str>>,
    /// Whether the same request gives the same numbers.
    pub deterministic: Option<bool>,
    /// The largest difference between the logprobs of the same tokens as prompt and as sample.
    pub self_test: Option<f64>,
    /// What kept a line from being measured.
    pub notes: Vec<String>,
}

impl Report {
    /// Whether the numbers can be trusted, where that could be tested.
    pub fn self_test_ok(&self) -> Option<bool> {
        self.self_test.map(|difference| difference < SELF_TEST_TOLERANCE)
    }

    /// The report as JSON.
    pub fn to_json(&self) -> Value {
        json!({
            "kind": self.info.kind.name(),
            "version": self.info.version,
            "model": self.info.model,
            "models": self.info.models,
            "context_length": self.limits.context_length,
            "ids_in": self.ids_in,
            "ids_out": self.ids_out,
            "prompt_logprobs": self.prompt_logprobs,
            "max_top_k": self.limits.max_top_k,
            "start_index": self.limits.start_index,
            "prefix_cache_with_logprobs": self.prefix_cache_with_logprobs,
            "tokenizer_agrees": self.tokenizer_agrees,
            "template_drops": self.template_drops,
            "deterministic": self.deterministic,
            "self_test": {"max_abs_diff": self.self_test, "ok": self.self_test_ok()},
            "notes": self.notes,
        })
    }
}

/// Asks the model everything; one in this process has no transport.
pub async fn probe(opened: &Opened, transport: Option<&Transport>) -> Report {
    let mut report = Report {
        info: opened.info.clone(),
        limits: opened.model.limits().clone(),
        ids_in: false,
        ids_out: false,
        prompt_logprobs: false,
        prefix_cache_with_logprobs: None,
        tokenizer_agrees: None,
        template_drops: template_drops(opened),
        deterministic: None,
        self_test: None,
        notes: Vec::new(),
    };
    if let Some(transport) = transport {
        report.tokenizer_agrees = tokenizer_agrees(opened, transport, &mut report.notes).await;
    }
    if report.limits.token_ids {
        measure_ids(opened, &mut report).await;
    } else {
        report.deterministic = same_chat(&*opened.model, &mut report.notes).await;
    }
    report
}

/// The probe text as this server's ids.
pub fn probe_ids(opened: &Opened) -> Vec<TokenId> {
    let encoded = opened.tokenizer.as_ref().and_then(|(_, tokenizer)| tokenizer.encode(PROBE_TEXT).ok());
    encoded.map_or_else(|| PROBE_IDS.collect(), |encoded| encoded.ids)
}

async fn measure_ids(opened: &Opened, report: &mut Report) {
    let (model, ids) = (&*opened.model, probe_ids(opened));
    let sampled = kept(sample(model, &ids).await, &mut report.notes);
    report.ids_in = sampled.is_some();
    report.ids_out = sampled.as_ref().is_some_and(|sampled| !sampled.tokens.is_empty());
    if !report.limits.scores {
        return;
    }
    let first = kept(score(model, &ids, 1).await, &mut report.notes);
    report.prompt_logprobs = first.as_ref().is_some_and(|scored| scored.spans[0].absent().next().is_none());
    let second = kept(score(model, &ids, 1).await, &mut report.notes);
    report.deterministic = first.zip(second).map(|(first, second)| first.spans == second.spans);
    let late = kept(score(model, &ids, ids.len() - 4).await, &mut report.notes);
    let cached = late.and_then(|scored| scored.usage.cached_tokens);
    report.prefix_cache_with_logprobs = cached.map(|cached| cached > 0);
    if let Some(sampled) = sampled {
        report.self_test = kept(self_test(model, &ids, &sampled).await, &mut report.notes).flatten();
    }
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
    let job = job.map_err(|error| Error::Invalid { what: error.to_string(), help: String::new() })?;
    model.score(&job).await
}

async fn sample(model: &dyn Model, ids: &[TokenId]) -> Result<Generated, Error> {
    let request = GenerateRequest {
        prompt: ids.to_vec(),
        sampling: greedy(),
        stop_ids: Vec::new(),
        top_k: 1,
        place: Place::default(),
    };
    model.generate(&request).await
}

async fn same_chat(model: &dyn Model, notes: &mut Vec<String>) -> Option<bool> {
    let messages = vec![Message::text(Role::User, "Say the word: backsight.")];
    let request = ChatRequest { messages, tools: Vec::new(), sampling: greedy(), place: Place::default() };
    let first = kept(model.chat(&request).await, notes)?;
    let second = kept(model.chat(&request).await, notes)?;
    Some(first.message == second.message)
}

fn greedy() -> Sampling {
    Sampling {
        temperature: 0.0,
        top_p: 1.0,
        top_k: None,
        seed: Some(0),
        max_tokens: N_SAMPLED,
        constraint: None,
    }
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

/// Whether the server's tokenizer gives the probe text the ids ours gives; `None` where it cannot be asked.
pub async fn tokenizer_agrees(
    opened: &Opened,
    transport: &Transport,
    notes: &mut Vec<String>,
) -> Option<bool> {
    if !matches!(opened.info.kind, Kind::Vllm | Kind::Sglang) {
        return None;
    }
    let (_, tokenizer) = opened.tokenizer.as_ref()?;
    let ours = tokenizer.encode(PROBE_TEXT).ok()?.ids;
    let body = json!({"model": opened.info.model, "prompt": PROBE_TEXT, "add_special_tokens": false});
    let call = Call {
        method: Method::POST,
        path: "/tokenize",
        body: Some(body.to_string().into_bytes()),
        tokens: 0,
        sticky: 0,
        max_answer: 1 << 20,
        timeout: None,
    };
    let decode = |answer: &super::transport::Answer<'_>| {
        let json: Value = serde_json::from_slice(answer.body).map_err(|error| error.to_string())?;
        let tokens = json.get("tokens").and_then(Value::as_array).ok_or("no tokens")?;
        let id = |token: &Value| token.as_u64().and_then(|id| TokenId::try_from(id).ok());
        tokens
            .iter()
            .map(id)
            .collect::<Option<Vec<TokenId>>>()
            .ok_or_else(|| "a token that is no id".to_owned())
    };
    match transport.call(&call, &decode).await {
        Ok(theirs) => Some(theirs == ours),
        // SGLang behind a proxy and older servers have no such route.
        Err(Error::Refused { status: 404 | 405, .. }) => None,
        Err(error) => kept(Err(error), notes),
    }
}
