//! SGLang's own `/generate` route: token ids in, token ids and logprobs out, scoring from a start index.
//!
//! Produced by SGLang; recorded from 0.5.23 (`tests/fixtures/wire/sglang-0.5.23`). Owns that
//! request, its answers and the two information routes. The surprises: the list that starts at
//! `logprob_start_len` has a null for its first token, so one asks one token earlier and drops it;
//! tokens before it are not repeated, so only the request's id (`rid`, which comes back as
//! `meta_info.id`) and the count tell whose answer it is; a batch with an id twice is refused;
//! a top-K row leaves the given token out when it is not among the best; top-K rows come nested,
//! as flat lists or as base64 of little-endian float32 and int32, and a server may fall back from
//! one to another; minus infinity is the lowest float32; the logprobs of sampled tokens are those
//! after temperature unless the server was told otherwise; and an id outside the vocabulary kills
//! the server, which is why nothing here may be sent unchecked. Deliberately absent: the OpenAI routes, which are in `openai`.

use std::borrow::Cow;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_with::skip_serializing_none;

use super::aside::Aside;
use super::error::server_message;
use super::scan::Scanner;
use super::{OneOrMany, Signed, finish, paid, rows, sampled, strict};
use backsight_core::model::{Generated, Scored};
use backsight_core::needed::{self, Candidate, Needed};
use backsight_core::score::{Absence, ScoreJob, TokenScore};
use backsight_core::tokens::{TokenId, TopK};

/// What SGLang writes for minus infinity: the lowest single-precision number.
pub const FLOOR: f64 = f32::MIN as f64;

/// The body of `POST /generate`, as we write it and as our own server reads it.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GenerateRequest<'a> {
    /// A name for each prompt, which comes back with its answer.
    pub rid: Option<OneOrMany<String>>,
    /// The context as ids, or several.
    pub input_ids: Option<OneOrMany<Cow<'a, [TokenId]>>>,
    /// A context as text.
    pub text: Option<String>,
    /// How to draw.
    #[serde(default)]
    pub sampling_params: SamplingParams,
    /// Whether logprobs are wanted at all.
    #[serde(default)]
    pub return_logprob: bool,
    /// The token before the first whose logprob is wanted; -1 wants none of the prompt's.
    pub logprob_start_len: Option<OneOrMany<i64>>,
    /// How many candidates per position.
    pub top_logprobs_num: Option<OneOrMany<usize>>,
    /// Candidates whose logprobs are wanted at every position, however likely they are.
    pub token_ids_logprob: Option<OneOrMany<Cow<'a, [TokenId]>>>,
    /// Always false: texts are of no use and cost most of the answer.
    #[serde(default)]
    pub return_text_in_logprobs: bool,
    /// Asks for the prompt's rows as flat arrays; servers that do not know it answer nested.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub return_flat_raw_top_logprobs: bool,
    /// Asks for those arrays as base64.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub return_flat_raw_top_logprobs_b64: bool,
}

/// `sampling_params` of a [`GenerateRequest`], with SGLang's defaults. All are sent, because a model's own defaults
/// decide those left out.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SamplingParams {
    /// At most this many tokens; 0 only scores.
    pub max_new_tokens: usize,
    /// 0 takes the likeliest token.
    pub temperature: f64,
    /// Keep the smallest set of tokens with this much probability.
    pub top_p: f64,
    /// -1 keeps all.
    pub top_k: i64,
    /// Always 0: nothing is cut off.
    pub min_p: Option<f64>,
    /// Always 1: nothing is penalised.
    pub repetition_penalty: Option<f64>,
    /// Makes a draw repeatable on servers started with deterministic inference.
    pub sampling_seed: Option<i64>,
    /// Ids after which to stop.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub stop_token_ids: Vec<TokenId>,
    /// Whether special tokens are left out of the text.
    pub skip_special_tokens: bool,
    /// A JSON schema, as a string.
    pub json_schema: Option<String>,
    /// A regular expression for the whole text.
    pub regex: Option<String>,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            max_new_tokens: 128,
            temperature: 1.0,
            top_p: 1.0,
            top_k: -1,
            min_p: Some(0.0),
            repetition_penalty: Some(1.0),
            sampling_seed: None,
            stop_token_ids: Vec::new(),
            skip_special_tokens: true,
            json_schema: None,
            regex: None,
        }
    }
}

impl SamplingParams {
    /// Draws nothing.
    pub fn none() -> Self {
        Self { max_new_tokens: 0, temperature: 0.0, skip_special_tokens: false, ..Self::default() }
    }
}

/// The part of a job that is sent: tokens up to `end`, logprobs wanted from `first` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// The first position whose logprob is wanted, at least 1.
    pub first: usize,
    /// How many tokens are sent.
    pub end: usize,
}

impl Window {
    /// What must be sent for `job`; nothing if no position of it can have a logprob.
    pub fn of(job: &ScoreJob) -> Option<Self> {
        job.first_needed().map(|first| Self { first, end: job.end_needed() })
    }

    /// The `logprob_start_len` whose list begins, behind its null, with the first wanted position.
    pub fn start_len(self) -> usize {
        self.first - 1
    }

    fn len(self) -> usize {
        self.end - self.start_len()
    }
}

/// The request that scores one job.
pub fn score_request(job: &ScoreJob, window: Window) -> GenerateRequest<'_> {
    GenerateRequest {
        logprob_start_len: Some(OneOrMany::One(window.start_len() as i64)),
        token_ids_logprob: Some(job.all_chosen())
            .filter(|it| !it.is_empty())
            .map(|it| OneOrMany::One(it.into())),
        ..GenerateRequest::new(&job.tokens()[..window.end], SamplingParams::none(), job.top_k())
    }
    .with_flat_rows(job.top_k() > 0)
}

/// The request that scores several jobs at once; each needs a window, and either all or none choose candidates.
pub fn batch_request<'a>(jobs: &[(&'a ScoreJob, Window)]) -> GenerateRequest<'a> {
    let chosen = jobs.iter().map(|&(job, _)| Cow::from(job.all_chosen()));
    let chooses = jobs.iter().any(|(job, _)| !job.all_chosen().is_empty());
    let ids = |&(job, window): &(&'a ScoreJob, Window)| job.tokens()[..window.end].into();
    let starts = jobs.iter().map(|(_, window)| window.start_len() as i64);
    GenerateRequest {
        input_ids: Some(OneOrMany::Many(jobs.iter().map(ids).collect())),
        logprob_start_len: Some(OneOrMany::Many(starts.collect())),
        token_ids_logprob: chooses.then(|| OneOrMany::Many(chosen.collect())),
        top_logprobs_num: Some(OneOrMany::Many(jobs.iter().map(|(job, _)| job.top_k()).collect())),
        ..GenerateRequest::new(&[], SamplingParams::none(), 0)
    }
    .with_flat_rows(jobs.iter().any(|(job, _)| job.top_k() > 0))
}

impl<'a> GenerateRequest<'a> {
    /// A request for one prompt that asks for none of its logprobs.
    pub fn new(input_ids: &'a [TokenId], sampling_params: SamplingParams, top_k: usize) -> Self {
        Self {
            rid: None,
            input_ids: Some(OneOrMany::One(input_ids.into())),
            text: None,
            sampling_params,
            return_logprob: true,
            logprob_start_len: Some(OneOrMany::One(-1)),
            top_logprobs_num: Some(OneOrMany::One(top_k)),
            token_ids_logprob: None,
            return_text_in_logprobs: false,
            return_flat_raw_top_logprobs: false,
            return_flat_raw_top_logprobs_b64: false,
        }
    }

    fn with_flat_rows(self, wanted: bool) -> Self {
        Self { return_flat_raw_top_logprobs: wanted, return_flat_raw_top_logprobs_b64: wanted, ..self }
    }
}

/// Reads the answer to [`score_request`].
pub fn scores(body: &[u8], job: &ScoreJob, window: Window) -> Result<Signed<Scored>, String> {
    let mut scanner = Scanner::new(body);
    let reader = PromptReader::read(&mut scanner, job, window).map_err(|why| with_message(why, body))?;
    scanner.end()?;
    reader.scores()
}

/// Reads the answer to [`batch_request`]: one result per job, and one job's fault is not another's.
pub fn batch_scores(
    body: &[u8],
    jobs: &[(&ScoreJob, Window)],
) -> Result<Vec<Result<Signed<Scored>, String>>, String> {
    let mut scanner = Scanner::new(body);
    let mut all = Vec::with_capacity(jobs.len());
    let n_found = scanner.list(|scanner, index| {
        let Some(&(job, window)) = jobs.get(index) else { return Ok(scanner.skip()?) };
        let answer = scanner.raw()?;
        all.push(PromptReader::read(&mut Scanner::new(answer), job, window).and_then(PromptReader::scores));
        Ok(())
    })?;
    scanner.end()?;
    if n_found == jobs.len() { Ok(all) } else { Err(format!("{n_found} answers for {} jobs", jobs.len())) }
}

fn with_message(why: String, body: &[u8]) -> String {
    if why == NO_META { format!("{why}: {}", server_message(body)) } else { why }
}

const NO_META: &str = "the answer has no meta_info";

/// Walks an answer: `beside` must take what stands beside `meta_info`, `field` what stands in it.
fn walk_meta<'a>(
    scanner: &mut Scanner<'a>,
    mut beside: impl FnMut(&mut Scanner<'a>, &'a [u8]) -> Result<(), String>,
    mut field: impl FnMut(&mut Scanner<'a>, &'a [u8]) -> Result<(), String>,
) -> Result<(), String> {
    let mut found = false;
    scanner.object(|scanner, key| {
        if key != b"meta_info" {
            return beside(scanner, key);
        }
        found = true;
        scanner.object(&mut field)
    })?;
    if found { Ok(()) } else { Err(NO_META.to_owned()) }
}

/// What is kept of one prompt's answer while walking it.
struct PromptReader<'job> {
    job: &'job ScoreJob,
    window: Window,
    needed: Needed,
    /// The candidates that are chosen anywhere: the answer has all of them at every position.
    chosen: Vec<TokenId>,
    /// The logprobs of the given tokens at the needed positions behind 0.
    own: Option<Vec<Option<f64>>>,
    nested: Option<Vec<Vec<Candidate>>>,
    chosen_rows: Option<Vec<Vec<Candidate>>>,
    flat: Flat,
    finish: Option<Value>,
    told: Aside,
}

impl<'job> PromptReader<'job> {
    fn read(scanner: &mut Scanner<'_>, job: &'job ScoreJob, window: Window) -> Result<Self, String> {
        let mut reader = Self {
            job,
            window,
            needed: Needed::new(job),
            chosen: job.all_chosen(),
            own: None,
            nested: None,
            chosen_rows: None,
            flat: Flat::default(),
            finish: None,
            told: Aside::default(),
        };
        walk_meta(scanner, |scanner, _| Ok(scanner.skip()?), |scanner, key| reader.field(scanner, key))?;
        Ok(reader)
    }

    fn field(&mut self, scanner: &mut Scanner<'_>, key: &[u8]) -> Result<(), String> {
        match key {
            b"input_token_logprobs" => self.own = Some(self.own_list(scanner)?),
            // Whatever stands there when no rows were asked for, nobody needs it.
            b"input_top_logprobs" if self.job.top_k() == 0 => scanner.skip()?,
            b"input_top_logprobs" => self.nested = Some(self.rows(scanner, "input_top_logprobs")?),
            b"input_token_ids_logprobs" if self.chosen.is_empty() => scanner.skip()?,
            b"input_token_ids_logprobs" => {
                self.chosen_rows = Some(self.rows(scanner, "input_token_ids_logprobs")?);
            }
            b"finish_reason" => self.finish = strict::read(scanner.raw()?)?,
            _ if key.starts_with(FLAT_PREFIX) => self.flat.field(&key[FLAT_PREFIX.len()..], scanner)?,
            _ => self.told.field(key, scanner)?,
        }
        Ok(())
    }

    /// Walks a list that has an entry for each position from the window's start on. `entry` is told which one it is, and
    /// whether it is needed; the first never is.
    fn walk<'a>(
        &self,
        scanner: &mut Scanner<'a>,
        what: &str,
        mut entry: impl FnMut(&mut Scanner<'a>, usize, bool) -> Result<(), String>,
    ) -> Result<(), String> {
        let (start, expected) = (self.window.start_len(), self.window.len());
        let mut needed = self.needed.positions().skip_while(|&position| position == 0).peekable();
        let n_found = scanner.list(|scanner, index| {
            let is_needed = index > 0 && needed.next_if_eq(&(start + index)).is_some();
            entry(scanner, start + index, is_needed)
        })?;
        if n_found == expected {
            return Ok(());
        }
        Err(format!("{what} has {n_found} positions, {expected} were asked for"))
    }

    /// `[[logprob, id, text], …]`: every id must be the one that was sent.
    fn own_list(&self, scanner: &mut Scanner<'_>) -> Result<Vec<Option<f64>>, String> {
        let (sent, mut values) =
            (&self.job.tokens()[..self.window.end], Vec::with_capacity(self.needed.len()));
        self.walk(scanner, "input_token_logprobs", |scanner, position, is_needed| {
            let (id, value) = triple(scanner)?;
            values.extend(is_needed.then_some(value));
            match sent.get(position) {
                Some(&sent) if sent != id => {
                    Err(format!("position {position} is token {id} in the answer, {sent} was sent"))
                }
                _ => Ok(()),
            }
        })?;
        Ok(values)
    }

    /// `[null, [[logprob, id, text], …], …]`
    fn rows(&self, scanner: &mut Scanner<'_>, what: &str) -> Result<Vec<Vec<Candidate>>, String> {
        let mut rows = Vec::with_capacity(self.needed.len());
        self.walk(scanner, what, |scanner, _, is_needed| {
            if !is_needed {
                return Ok(scanner.skip()?);
            }
            rows.push(row(scanner)?);
            Ok(())
        })?;
        Ok(rows)
    }

    fn scores(self) -> Result<Signed<Scored>, String> {
        check_finished(self.finish.as_ref())?;
        let usage = paid(self.told.counted, self.window.end)?;
        let own = self.own.as_ref().ok_or("the answer has no input_token_logprobs")?;
        let (tops, chosen) = (self.tops(own.len())?, self.chosen_rows()?);
        let (mut values, mut rows, mut chosen) = (own.iter().copied(), tops.into_iter(), chosen.iter());
        let scores = self.needed.positions().map(|position| match position {
            0 => Ok(needed::absent(Absence::NoContext)),
            _ => {
                let (row, chosen) = (rows.next().unwrap_or_default(), chosen.next());
                self.score(position, values.next().flatten(), &row, chosen.map_or(&[], Vec::as_slice))
            }
        });
        let scores = scores.collect::<Result<_, String>>()?;
        let (spans, version) = (self.needed.into_spans(self.job, scores)?, self.told.versions.of_prompt()?);
        Ok((self.told.id, Scored { spans, version, usage }))
    }

    /// The rows of the needed positions behind 0, from whichever form the server used.
    fn tops(&self, n_rows: usize) -> Result<Vec<Vec<Candidate>>, String> {
        if self.job.top_k() == 0 {
            return Ok(Vec::new());
        }
        let positions = self.needed.positions().filter(|&position| position > 0);
        let indices = positions.map(|position| position - self.window.start_len());
        match (self.flat.rows(indices, self.window.len())?, &self.nested) {
            (Some(rows), _) => Ok(rows),
            (None, Some(rows)) if rows.len() == n_rows => Ok(rows.clone()),
            (None, _) => Err("the answer has no input_top_logprobs".to_owned()),
        }
    }

    /// The chosen candidates of the needed positions behind 0; none where none were asked for.
    fn chosen_rows(&self) -> Result<&[Vec<Candidate>], String> {
        match &self.chosen_rows {
            None if self.chosen.is_empty() => Ok(&[]),
            None => Err("the answer has no input_token_ids_logprobs".to_owned()),
            Some(rows) => Ok(rows),
        }
    }

    fn score(
        &self,
        position: usize,
        value: Option<f64>,
        row: &[Candidate],
        chosen: &[Candidate],
    ) -> Result<TokenScore, String> {
        let (given, k) = (self.job.tokens()[position], self.job.top_k());
        let at = |why: &str| format!("position {position} {why}");
        if value.is_some() && row.len() != k {
            return Err(at(&format!("has {} candidates, {k} were asked for", row.len())));
        }
        if value.is_some() && !chosen.iter().map(|it| it.0).eq(self.chosen.iter().copied()) {
            return Err(at("has other candidates than the chosen ones"));
        }
        let score = needed::token_score(given, value, row, k, Some(FLOOR));
        if score.logprob.is_ok() && k > 0 {
            check_row(given, value, row, &score.top).map_err(at)?;
        }
        if chosen.is_empty() {
            return Ok(score);
        }
        let all = with_chosen((given, value), row, chosen, self.job.chosen_at(position)).map_err(at)?;
        Ok(needed::token_score(given, value, &all, all.len(), Some(FLOOR)))
    }
}

/// Refuses a row that contradicts itself, or the logprob of the given token.
fn check_row(given: TokenId, own: Option<f64>, row: &[Candidate], top: &TopK) -> Result<(), &'static str> {
    let finite = row.iter().filter(|candidate| candidate.1.is_some_and(|value| value > FLOOR)).count();
    let is_listed = row.iter().any(|candidate| candidate.0 == given);
    if top.entries().len() != finite + usize::from(!is_listed) {
        return Err("lists a token twice");
    }
    rows::check_order(row)?;
    if is_listed { Ok(()) } else { rows::check_outsider(own, row) }
}

/// The best candidates and those chosen for a position beside them; what is told twice must be told alike.
fn with_chosen(
    given: Candidate,
    row: &[Candidate],
    chosen: &[Candidate],
    wanted: &[TokenId],
) -> Result<Vec<Candidate>, &'static str> {
    let told = |id: TokenId| row.iter().chain([&given]).find(|it| it.0 == id);
    let is_same = |it: &Candidate| told(it.0).is_none_or(|other| other.1 == it.1);
    if !chosen.iter().all(is_same) {
        return Err("tells a candidate in two ways");
    }
    let others =
        chosen.iter().filter(|it| wanted.contains(&it.0) && !row.iter().any(|other| other.0 == it.0));
    Ok(row.iter().chain(others).copied().collect())
}

/// `[logprob, id, text]`
fn triple(scanner: &mut Scanner<'_>) -> Result<Candidate, String> {
    let (mut id, mut value) = (None, None);
    let length = scanner.list(|scanner, index| {
        match index {
            0 => value = scanner.number()?,
            1 => id = TokenId::try_from(scanner.count()?).ok(),
            _ => scanner.skip()?,
        }
        Ok(())
    })?;
    match id {
        Some(id) if length == 3 => Ok((id, value)),
        _ => Err("an entry is not [logprob, id, text]".to_owned()),
    }
}

/// The candidates of a position, which may be null.
fn row(scanner: &mut Scanner<'_>) -> Result<Vec<Candidate>, String> {
    if scanner.null()? { Ok(Vec::new()) } else { scanner.items(triple) }
}

/// The word for why it ended: `{"type": "stop", …}`, or the bare word of older servers.
fn word(finish: Option<&Value>) -> Option<&str> {
    finish?.get("type").and_then(Value::as_str).or(finish?.as_str())
}

/// Refuses the answer to a request that the server gave up.
fn check_finished(finish: Option<&Value>) -> Result<(), String> {
    if word(finish) != Some("abort") {
        return Ok(());
    }
    let message = finish.and_then(|it| it.get("message")?.as_str()).unwrap_or("no reason given");
    Err(format!("the server gave up: {message}"))
}

const FLAT_PREFIX: &[u8] = b"input_top_logprobs_";

/// The rows in a flat form: the fields, as they are found.
#[derive(Default)]
struct Flat {
    values: Option<Vec<f64>>,
    ids: Option<Vec<TokenId>>,
    shape: Option<(usize, usize)>,
    null_prefix: usize,
}

impl Flat {
    fn field(&mut self, key: &[u8], scanner: &mut Scanner<'_>) -> Result<(), String> {
        // A form the server did not use may be there as null.
        if scanner.null()? {
            return Ok(());
        }
        match key {
            b"val_flat_b64" => self.values = Some(floats(scanner.string()?)?),
            b"idx_flat_b64" => self.ids = Some(ints(scanner.string()?)?),
            b"val_flat" => self.values = Some(scanner.items(|it| Ok(it.number()?.unwrap_or(f64::NAN)))?),
            b"idx_flat" => self.ids = Some(scanner.items(id)?),
            b"val_flat_b64_dtype" => expect_type(scanner.string()?, "float32")?,
            b"idx_flat_b64_dtype" => expect_type(scanner.string()?, "int32")?,
            b"shape" => self.shape = Some(shape(scanner)?),
            b"null_prefix" => self.null_prefix = scanner.count()? as usize,
            _ => scanner.skip()?,
        }
        Ok(())
    }

    /// The rows of the list entries `indices`, if the answer has them in this form; the whole list has `length` entries.
    fn rows(
        &self,
        indices: impl Iterator<Item = usize>,
        length: usize,
    ) -> Result<Option<Vec<Vec<Candidate>>>, String> {
        let (values, ids) = match (&self.values, &self.ids) {
            (Some(values), Some(ids)) => (values, ids),
            (None, None) => return Ok(None),
            _ => return Err("the flat top logprobs have values or ids but not both".to_owned()),
        };
        let (n_rows, k) = self.shape.ok_or("the flat top logprobs have no shape")?;
        let (n_values, n_ids) = (values.len(), ids.len());
        if n_rows.checked_mul(k).is_none_or(|n| n_values != n || n_ids != n) {
            return Err(format!(
                "the flat top logprobs are {n_values} values and {n_ids} ids, not {n_rows} x {k}"
            ));
        }
        if self.null_prefix.checked_add(n_rows) != Some(length) {
            let n_found = self.null_prefix.saturating_add(n_rows);
            return Err(format!("the flat top logprobs have {n_found} positions, {length} were asked for"));
        }
        let row = |index: usize| match index.checked_sub(self.null_prefix) {
            None => Vec::new(),
            Some(row) => {
                let range = row * k..(row + 1) * k;
                ids[range.clone()].iter().copied().zip(values[range].iter().copied().map(Some)).collect()
            }
        };
        Ok(Some(indices.map(row).collect()))
    }
}

fn expect_type(found: &[u8], expected: &str) -> Result<(), String> {
    if found == expected.as_bytes() {
        return Ok(());
    }
    Err(format!("flat top logprobs of type {}, not {expected}", String::from_utf8_lossy(found)))
}

fn shape(scanner: &mut Scanner<'_>) -> Result<(usize, usize), String> {
    match scanner.items(|scanner| Ok(scanner.count()? as usize))?[..] {
        [n_rows, k] => Ok((n_rows, k)),
        _ => Err("the shape of the flat top logprobs is not [rows, k]".to_owned()),
    }
}

fn id(scanner: &mut Scanner<'_>) -> Result<TokenId, String> {
    TokenId::try_from(scanner.count()?).map_err(|why| why.to_string())
}

fn floats(text: &[u8]) -> Result<Vec<f64>, String> {
    Ok(words(text)?.into_iter().map(|word| f64::from(f32::from_le_bytes(word))).collect())
}

fn ints(text: &[u8]) -> Result<Vec<TokenId>, String> {
    let id = |word| TokenId::try_from(i32::from_le_bytes(word)).map_err(|_| "a negative token id".to_owned());
    words(text)?.into_iter().map(id).collect()
}

/// The four-byte words of a base64 text.
fn words(text: &[u8]) -> Result<Vec<[u8; 4]>, String> {
    let bytes = STANDARD.decode(text).map_err(|why| format!("flat top logprobs: {why}"))?;
    let (words, rest) = bytes.as_chunks::<4>();
    if rest.is_empty() { Ok(words.to_vec()) } else { Err("flat top logprobs end within a number".to_owned()) }
}

/// Reads a sampled continuation of `n_sent` tokens.
pub fn drawn(body: &[u8], n_sent: usize, top_k: usize) -> Result<Signed<Generated>, String> {
    let (mut ids, mut own, mut tops) = (None::<Vec<TokenId>>, None, Vec::new());
    let (mut ended, mut told) = (None, Aside::default());
    let beside = |scanner: &mut Scanner<'_>, key: &[u8]| {
        match key {
            b"output_ids" => ids = strict::read(scanner.raw()?)?,
            _ => scanner.skip()?,
        }
        Ok(())
    };
    let field = |scanner: &mut Scanner<'_>, key: &[u8]| {
        match key {
            b"output_token_logprobs" | b"output_top_logprobs" if scanner.null()? => {}
            b"output_token_logprobs" => own = Some(scanner.items(triple)?),
            b"output_top_logprobs" => tops = scanner.items(row)?,
            b"finish_reason" => ended = strict::read(scanner.raw()?)?,
            _ => told.field(key, scanner)?,
        }
        Ok(())
    };
    let mut scanner = Scanner::new(body);
    walk_meta(&mut scanner, beside, field).map_err(|why| with_message(why, body))?;
    scanner.end()?;
    check_finished(ended.as_ref())?;
    let own = own.ok_or("the answer has no output_token_logprobs")?;
    let n = own.len();
    if ids.is_some_and(|ids| !ids.iter().eq(own.iter().map(|candidate| &candidate.0))) {
        return Err("the logprobs are those of other tokens than the sampled ones".to_owned());
    }
    let check = |(id, value), row: &[Candidate], top: &TopK| {
        if top_k > 0 { check_row(id, value, row, top) } else { Ok(()) }
    };
    let tokens = sampled(&own, &tops, (top_k, FLOOR), check)?;
    let (usage, versions) = (paid(told.counted, n_sent)?, told.versions.of_sampled(n)?);
    Ok((told.id, Generated { tokens, finish: finish(word(ended.as_ref())), versions, usage }))
}

/// What `/get_model_info` and `/get_server_info` tell that we use.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct Info {
    /// Where the weights came from.
    pub model_path: Option<String>,
    /// Where the tokenizer came from.
    pub tokenizer_path: Option<String>,
    /// Which weights, as a trainer that updates them counts.
    pub weight_version: Option<String>,
    /// Tokens a sequence may have, where it was set.
    pub context_length: Option<usize>,
    /// SGLang's own version.
    pub version: Option<String>,
    /// Whether the prefix cache is switched off.
    pub disable_radix_cache: Option<bool>,
}

impl Info {
    /// What is told here, and where it is not, what `other` tells.
    pub fn or(self, other: Self) -> Self {
        Self {
            model_path: self.model_path.or(other.model_path),
            tokenizer_path: self.tokenizer_path.or(other.tokenizer_path),
            weight_version: self.weight_version.or(other.weight_version),
            context_length: self.context_length.or(other.context_length),
            version: self.version.or(other.version),
            disable_radix_cache: self.disable_radix_cache.or(other.disable_radix_cache),
        }
    }
}

/// Reads either information route.
pub fn info(body: &[u8]) -> Result<Info, String> {
    strict::read(body)
}

/// Reads the route that tells of the model, as only SGLang does: it names where the weights came from.
pub fn model_info(body: &[u8]) -> Result<Info, String> {
    let info = info(body)?;
    if info.model_path.is_none() { Err("it names no model_path".to_owned()) } else { Ok(info) }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;
    use backsight_core::score::SpanScore;
    use backsight_core::tokens::TokenSpan;
    use expect_test::{Expect, expect};
    use serde_json::json;
    use std::sync::Arc;

    const TOKENS: [TokenId; 5] = [10, 11, 12, 13, 14];

    fn job(spans: &[(usize, usize)], top_k: usize) -> ScoreJob {
        let spans = spans.iter().map(|&(start, end)| TokenSpan::new(start, end).unwrap()).collect();
        ScoreJob::new(Arc::from(TOKENS), spans, top_k).unwrap()
    }

    fn show(spans: &[SpanScore]) -> String {
        let one = |score: &TokenScore| {
            let row: Vec<_> = score.top.entries().iter().map(|it| (it.0, it.1.get())).collect();
            match &score.logprob {
                Ok(logprob) => format!("{logprob} {row:?}"),
                Err(why) => why.to_string(),
            }
        };
        let span = |span: &SpanScore| span.scores().iter().map(one).collect::<Vec<_>>().join("; ");
        spans.iter().map(span).collect::<Vec<_>>().join(" | ")
    }

    /// Scores positions 2 and 3 with K = 1: the server is asked for tokens 0 to 3 from token 1 on.
    fn check(meta: Value, expected: Expect) {
        let job = job(&[(2, 4)], 1);
        let window = Window::of(&job).unwrap();
        assert_eq!((window.start_len(), window.end), (1, 4));
        let body = json!({"text": "", "meta_info": meta}).to_string();
        let found = scores(body.as_bytes(), &job, window);
        expected.assert_eq(&found.map_or_else(|why| format!("error: {why}"), |it| show(&it.1.spans)));
    }

    /// The fields of an answer, with some of them replaced; null takes one away.
    fn meta(changes: Value) -> Value {
        let mut meta = json!({
            "prompt_tokens": 4, "completion_tokens": 0, "cached_tokens": 1,
            "finish_reason": {"type": "length", "length": 0},
            "input_token_logprobs": [[null, 11, null], [-2.5, 12, null], [-0.5, 13, null]],
            "input_top_logprobs": [null, [[-0.25, 5, null]], [[-0.5, 13, null]]],
        });
        for (key, value) in changes.as_object().unwrap() {
            match value {
                Value::Null => drop(meta.as_object_mut().unwrap().remove(key)),
                value => meta[key] = value.clone(),
            }
        }
        meta
    }

    #[test]
    fn the_token_before_the_span_is_asked_for_and_dropped() {
        check(meta(json!({})), expect!["-2.5 [(5, -0.25), (12, -2.5)]; -0.5 [(13, -0.5)]"]);
        check(
            meta(json!({"input_token_logprobs": null})),
            expect!["error: the answer has no input_token_logprobs"],
        );
        let rows = json!([[[-9.0, 1, null]], [[-0.25, 5, null]], [[-0.5, 13, null]]]);
        let own = json!([[-9.0, 11, null], [-2.5, 12, null], [-0.5, 13, null]]);
        check(
            meta(json!({"input_token_logprobs": own, "input_top_logprobs": rows})),
            expect!["-2.5 [(5, -0.25), (12, -2.5)]; -0.5 [(13, -0.5)]"],
        );
    }

    #[test]
    fn candidates_nobody_asked_for_are_passed_over() {
        let job = job(&[(2, 4)], 0);
        let window = Window::of(&job).unwrap();
        for rows in [json!([]), json!([null, [], []]), json!([null, [[-0.25, 5, null]]]), Value::Null] {
            let body =
                json!({"text": "", "meta_info": meta(json!({"input_top_logprobs": rows}))}).to_string();
            let found = scores(body.as_bytes(), &job, window).unwrap();
            assert_eq!(show(&found.1.spans), "-2.5 []; -0.5 []");
        }
    }

    #[test]
    fn every_form_of_rows_is_read() {
        let b64 = |bytes: Vec<u8>| STANDARD.encode(bytes);
        let values = b64([-0.25_f32, -0.5].iter().flat_map(|it| it.to_le_bytes()).collect());
        let ids = b64([5_i32, 13].iter().flat_map(|it| it.to_le_bytes()).collect());
        let expected = || expect!["-2.5 [(5, -0.25), (12, -2.5)]; -0.5 [(13, -0.5)]"];
        let shape = json!({
            "input_top_logprobs": null, "input_top_logprobs_shape": [2, 1], "input_top_logprobs_null_prefix": 1,
        });
        let with = |changes: Value| {
            let mut all = shape.clone();
            all.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
            meta(all)
        };
        check(
            with(json!({
                "input_top_logprobs_val_flat_b64": values, "input_top_logprobs_idx_flat_b64": ids,
                "input_top_logprobs_val_flat_b64_dtype": "float32", "input_top_logprobs_idx_flat_b64_dtype": "int32",
            })),
            expected(),
        );
        check(
            with(
                json!({"input_top_logprobs_val_flat": [-0.25, -0.5], "input_top_logprobs_idx_flat": [5, 13]}),
            ),
            expected(),
        );
        check(
            with(json!({"input_top_logprobs_val_flat_b64": values})),
            expect!["error: the flat top logprobs have values or ids but not both"],
        );
        check(
            with(json!({
                "input_top_logprobs_val_flat_b64": "AAA=", "input_top_logprobs_idx_flat_b64": ids,
            })),
            expect!["error: flat top logprobs end within a number"],
        );
        check(
            with(json!({"input_top_logprobs_val_flat_b64_dtype": "float16"})),
            expect!["error: flat top logprobs of type float16, not float32"],
        );
        check(
            with(json!({"input_top_logprobs_val_flat": [-0.25], "input_top_logprobs_idx_flat": [5]})),
            expect!["error: the flat top logprobs are 1 values and 1 ids, not 2 x 1"],
        );
        check(
            with(json!({
                "input_top_logprobs_val_flat": [-0.25, -0.5], "input_top_logprobs_idx_flat": [5, 13],
                "input_top_logprobs_null_prefix": 2,
            })),
            expect!["error: the flat top logprobs have 4 positions, 3 were asked for"],
        );
        check(with(json!({})), expect!["error: the answer has no input_top_logprobs"]);
    }

    #[test]
    fn what_is_no_logprob_is_absent() {
        let own = |value: f64| json!([[null, 11, null], [value, 12, null], [-0.5, 13, null]]);
        check(
            meta(json!({"input_token_logprobs": own(FLOOR)})),
            expect![
                "the server returned no logprob: -340282346638528860000000000000000000000 stands for minus infinity; -0.5 [(13, -0.5)]"
            ],
        );
        let job = job(&[(2, 4)], 0);
        let body = r#"{"meta_info":{"input_token_logprobs":[[null,11,null],[NaN,12,null],[null,13,null]]}}"#;
        let found = scores(body.as_bytes(), &job, Window::of(&job).unwrap()).unwrap();
        assert_eq!(
            show(&found.1.spans),
            "the server returned no logprob: NaN is not a finite number; the server returned no value"
        );
    }

    #[test]
    fn forms_that_are_null_are_absent() {
        let mut with_nulls = meta(json!({}));
        for form in ["val_flat_b64", "idx_flat_b64", "val_flat_b64_dtype", "idx_flat_b64_dtype", "shape"] {
            with_nulls[format!("input_top_logprobs_{form}")] = Value::Null;
        }
        let job = job(&[(2, 4)], 1);
        let found = |meta: Value| {
            let body = json!({"meta_info": meta}).to_string();
            show(&scores(body.as_bytes(), &job, Window::of(&job).unwrap()).unwrap().1.spans)
        };
        assert_eq!(found(with_nulls), found(meta(json!({}))));
    }

    #[test]
    fn wrong_answers_are_refused_with_the_place() {
        let own = |list: Value| meta(json!({"input_token_logprobs": list}));
        check(
            own(json!([[null, 11, null], [-2.5, 12, null]])),
            expect!["error: input_token_logprobs has 2 positions, 3 were asked for"],
        );
        check(
            own(json!([[null, 11, null], [-2.5, 12, null], [-0.5, 13, null], [-0.5, 14, null]])),
            expect!["error: input_token_logprobs has 4 positions, 3 were asked for"],
        );
        check(
            own(json!([[null, 11, null], [-2.5, 99, null], [-0.5, 13, null]])),
            expect!["error: position 2 is token 99 in the answer, 12 was sent"],
        );
        check(
            own(json!([[null, 11], [-2.5, 12], [-0.5, 13]])),
            expect!["error: an entry is not [logprob, id, text]"],
        );
        check(
            meta(json!({"input_top_logprobs": [null, [[-0.25, 5, null]]]})),
            expect!["error: input_top_logprobs has 2 positions, 3 were asked for"],
        );
        check(
            meta(
                json!({"input_top_logprobs": [null, [[-0.25, 5, null], [-1, 6, null]], [[-0.5, 13, null]]]}),
            ),
            expect!["error: position 2 has 2 candidates, 1 were asked for"],
        );
        check(
            meta(json!({"finish_reason": {"type": "abort", "message": "out of memory"}})),
            expect!["error: the server gave up: out of memory"],
        );
        let job = job(&[(2, 4)], 1);
        let why = scores(br#"{"error":{"message":"busy"}}"#, &job, Window::of(&job).unwrap()).unwrap_err();
        assert_eq!(why, "the answer has no meta_info: busy");
    }

    #[test]
    fn rows_that_contradict_themselves_are_refused() {
        let scored = |own: f64, row: Value| {
            let job = job(&[(2, 4)], 2);
            let own = json!([[null, 11, null], [own, 12, null], [-0.5, 13, null]]);
            let rows = json!([null, row, [[-0.5, 13, null], [-0.75, 5, null]]]);
            let meta = meta(json!({"input_token_logprobs": own, "input_top_logprobs": rows}));
            let body = json!({"meta_info": meta}).to_string();
            let found = scores(body.as_bytes(), &job, Window::of(&job).unwrap());
            found.map_or_else(|why| why, |it| show(&it.1.spans))
        };
        let row = |best: f64, second: f64| json!([[best, 5, null], [second, 6, null]]);
        assert_eq!(
            scored(-2.5, row(-1.0, -0.25)),
            "position 2 lists a likelier candidate behind a less likely one"
        );
        assert_eq!(
            scored(-0.5, row(-0.25, -1.0)),
            "position 2 leaves the given token out of the best, though it is likelier than one"
        );
        let rest = "; -0.5 [(13, -0.5), (5, -0.75)]";
        assert_eq!(scored(-1.0, row(-1.0, -1.0)), format!("-1 [(5, -1.0), (6, -1.0), (12, -1.0)]{rest}"));
        let floor = json!([[-1.0, 12, null], [FLOOR, 6, null]]);
        assert_eq!(scored(-1.0, floor), format!("-1 [(12, -1.0)]{rest}"));
    }

    #[test]
    fn answers_to_another_prompt_are_refused() {
        check(meta(json!({"prompt_tokens": 5})), expect!["error: the server read 5 tokens, 4 were sent"]);
        let drawn = |n_sent: usize| {
            let body = json!({"output_ids": [7], "meta_info": {
                "id": "mine", "prompt_tokens": 4, "output_token_logprobs": [[-1.0, 7, null]],
                "cached_tokens": null, "weight_versions": [{"version": "a", "start": 0, "end": 1}],
            }});
            drawn(body.to_string().as_bytes(), n_sent, 0)
        };
        assert_eq!(drawn(5).unwrap_err(), "the server read 4 tokens, 5 were sent");
        let (id, own) = drawn(4).unwrap();
        assert_eq!((id.as_deref(), own.versions[0].version.as_str()), (Some("mine"), "a"));
    }

    #[test]
    fn what_is_there_twice_is_refused() {
        let job = job(&[(2, 4)], 1);
        let refused = |body: String| scores(body.as_bytes(), &job, Window::of(&job).unwrap()).unwrap_err();
        let body = json!({"text": "", "meta_info": meta(json!({}))}).to_string();
        let doubled = |key: &str, value: &str| body.replacen(key, &format!("{key}:{value},{key}"), 1);
        for (key, value) in
            [("meta_info", "{}"), ("prompt_tokens", "4"), ("finish_reason", "null"), ("type", "1")]
        {
            let quoted = format!("\"{key}\"");
            assert_eq!(refused(doubled(&quoted, value)), format!("the key `{key}` is there twice"));
        }
        let sampled =
            r#"{"meta_info":{"output_token_logprobs":[],"finish_reason":{"type":"stop","type":"abort"}}}"#;
        assert!(drawn(sampled.as_bytes(), 1, 0).unwrap_err().starts_with("the key `type` is there twice"));
    }

    #[test]
    fn a_bad_answer_in_a_batch_is_that_jobs_alone() {
        let job = job(&[(0, 1), (2, 4)], 1);
        let window = Window::of(&job).unwrap();
        let bad = meta(json!({"input_token_logprobs": [[null, 11, null]]}));
        let body = json!([{"meta_info": meta(json!({}))}, {"meta_info": bad}]).to_string();
        let all = batch_scores(body.as_bytes(), &[(&job, window), (&job, window)]).unwrap();
        assert_eq!(
            show(&all[0].as_ref().unwrap().1.spans),
            "the first token has no context | -2.5 [(5, -0.25), (12, -2.5)]; -0.5 [(13, -0.5)]"
        );
        assert_eq!(all[1].as_ref().unwrap_err(), "input_token_logprobs has 1 positions, 3 were asked for");
    }

    #[test]
    fn a_job_without_context_needs_no_request() {
        assert_eq!(Window::of(&job(&[(0, 1), (3, 3)], 0)), None);
        let window = Window::of(&job(&[(0, 2)], 0)).unwrap();
        assert_eq!((window.start_len(), window.end), (0, 2));
    }

    #[test]
    fn requests_say_what_they_must() {
        let job = job(&[(2, 4)], 3);
        let request = score_request(&job, Window::of(&job).unwrap());
        let json = json!(request);
        assert_eq!(json["input_ids"], json!([10, 11, 12, 13]));
        assert_eq!(json["logprob_start_len"], 1);
        assert_eq!(json["sampling_params"]["max_new_tokens"], 0);
        assert_eq!(json["return_flat_raw_top_logprobs_b64"], true);
        let plain = json!(score_request(&job_without_rows(), Window { first: 1, end: 2 }));
        assert_eq!(plain.get("return_flat_raw_top_logprobs"), None);
    }

    fn job_without_rows() -> ScoreJob {
        job(&[(1, 2)], 0)
    }
}
