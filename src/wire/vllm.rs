//! vLLM's completions route: token ids in, token ids and logprobs out, and the logprobs of a prompt.
//!
//! Produced by vLLM; recorded from 0.32.0 (`tests/fixtures/wire/vllm-0.32.0`), the shapes are those
//! of any 0.1x and later. Owns the request and the two answers we read from it. The surprises:
//! `prompt_logprobs` covers the whole prompt, one object per position keyed by token id, K entries
//! or K + 1 when the given token is outside the top K, in no order to rely on; its first entry is
//! null; a rank is the place among the likeliest, but for the given token how many are at least as
//! likely; minus infinity is written as -9999.0; the id of a request comes back behind `cmpl-`; `top_logprobs` are keyed by text unless
//! `return_tokens_as_token_ids` is set; values under `structured_outputs` are those of the
//! constrained distribution. Deliberately absent: the chat route, which is OpenAI's.

use std::collections::{HashMap, HashSet};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_with::skip_serializing_none;

use super::aside::{Aside, Versions};
use super::error::server_message;
use super::openai::Counted;
use super::rows::{self, Ranked};
use super::scan::{Scanner, whole};
use super::strict::{self, Name};
use super::{Signed, finish, paid, sampled};
use backsight_core::model::{Generated, SampledToken, Scored, Usage};
use backsight_core::needed::{self, Candidate, Needed};
use backsight_core::score::{Absence, ScoreJob, TokenScore};
use backsight_core::tokens::{TokenId, TopK};

/// What vLLM writes for minus infinity, since JSON has none.
pub const FLOOR: f64 = -9999.0;

/// The body of `POST /v1/completions`. Every sampling parameter is sent, because a model's
/// `generation_config.json` decides those that are left out.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, Serialize)]
pub struct CompletionRequest<'a> {
    /// Our own name for the request, which comes back with the answer.
    pub request_id: Option<&'a str>,
    /// The served name.
    pub model: &'a str,
    /// The context, as ids.
    pub prompt: &'a [TokenId],
    /// At most this many tokens; at least one.
    pub max_tokens: usize,
    /// 0 takes the likeliest token.
    pub temperature: f64,
    /// Keep the smallest set of tokens with this much probability.
    pub top_p: f64,
    /// 0 keeps all.
    pub top_k: usize,
    /// Always 0: nothing is cut off.
    pub min_p: f64,
    /// Always 1: nothing is penalised.
    pub repetition_penalty: f64,
    /// Makes a draw repeatable; a signed number to vLLM.
    pub seed: Option<i64>,
    /// Ids after which to stop.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    pub stop_token_ids: &'a [TokenId],
    /// How many alternatives at each sampled token; 0 gives the sampled one.
    pub logprobs: Option<usize>,
    /// How many candidates at each prompt position; 0 gives the given token, -1 all.
    pub prompt_logprobs: Option<i64>,
    /// Whether ids come back beside the text.
    pub return_token_ids: bool,
    /// Whether alternatives are named `token_id:N` rather than by their text.
    pub return_tokens_as_token_ids: bool,
    /// Whether special tokens are left out of the text.
    pub skip_special_tokens: bool,
    /// A shape for the text: `{"json": …}` or `{"regex": …}`.
    pub structured_outputs: Option<Value>,
}

impl<'a> CompletionRequest<'a> {
    /// A request for the logprobs of a prompt; the one token that must be sampled is thrown away.
    pub fn score(model: &'a str, prompt: &'a [TokenId], top_k: i64) -> Self {
        Self {
            model,
            prompt,
            max_tokens: 1,
            top_p: 1.0,
            repetition_penalty: 1.0,
            prompt_logprobs: Some(top_k),
            return_token_ids: true,
            ..Self::default()
        }
    }
}

/// Reads the scores of `job` from an answer to `CompletionRequest::score` that was sent the first
/// `n_sent` tokens and asked for `top_k` candidates.
pub fn scores(body: &[u8], job: &ScoreJob, n_sent: usize, top_k: usize) -> Result<Signed<Scored>, String> {
    let needed = Needed::new(job);
    let prompt = &job.tokens()[..n_sent];
    let mut reader =
        PromptReader { prompt, needed: &needed, top_k, rows: Vec::new(), told: Aside::default() };
    reader.answer(body)?;
    let (rows, told) = (reader.rows, reader.told);
    let usage = paid(told.counted, n_sent)?;
    let (spans, version) = (needed.into_spans(job, rows)?, told.versions.of_prompt()?);
    Ok((told.id, Scored { spans, version, usage }))
}

/// Walks an answer and keeps the rows of the needed positions.
struct PromptReader<'a> {
    prompt: &'a [TokenId],
    needed: &'a Needed,
    top_k: usize,
    rows: Vec<TokenScore>,
    told: Aside,
}

impl PromptReader<'_> {
    fn answer(&mut self, body: &[u8]) -> Result<(), String> {
        let mut n_choices = 0;
        let mut scanner = Scanner::new(body);
        scanner.object(|scanner, key| {
            match key {
                b"choices" => n_choices = scanner.list(|scanner, _| self.choice(scanner))?,
                _ => self.told.field(key, scanner)?,
            }
            Ok(())
        })?;
        scanner.end()?;
        match n_choices {
            1 => Ok(()),
            0 => Err(format!("no choices in the answer: {}", server_message(body))),
            n => Err(format!("{n} choices for one prompt")),
        }
    }

    fn choice(&mut self, scanner: &mut Scanner<'_>) -> Result<(), String> {
        let (mut rows, mut tells_ids) = (None, false);
        scanner.object(|scanner, key| {
            match key {
                b"prompt_logprobs" | b"prompt_token_ids" if scanner.null()? => {}
                b"prompt_logprobs" => {
                    rows = Some(scanner.clone());
                    self.positions(scanner)?;
                }
                b"prompt_token_ids" => {
                    tells_ids = true;
                    self.check_prompt(scanner)?;
                }
                _ => self.told.version(key, scanner)?,
            }
            Ok(())
        })?;
        let mut rows = rows.ok_or("the answer has no prompt_logprobs")?;
        if tells_ids { Ok(()) } else { self.check_rows(&mut rows) }
    }

    /// The ids that the server read must be those that were sent.
    fn check_prompt(&self, scanner: &mut Scanner<'_>) -> Result<(), String> {
        let mut is_same = true;
        let n_found = scanner.list(|scanner, position| {
            let read = scanner.count()?;
            is_same &= self.prompt.get(position).is_some_and(|&sent| u64::from(sent) == read);
            Ok(())
        })?;
        if is_same && n_found == self.prompt.len() { Ok(()) } else { Err(OTHER_PROMPT.to_owned()) }
    }

    /// Where the ids are not told, every row must list the token that was sent there, also one that nobody needs.
    fn check_rows(&self, scanner: &mut Scanner<'_>) -> Result<(), String> {
        let check = |scanner: &mut Scanner<'_>, position: usize| {
            if position == 0 || scanner.peek()? == b'n' {
                return Ok(scanner.skip()?);
            }
            let (sent, mut is_listed) = (self.prompt[position], false);
            scanner.entries(|scanner, key| {
                is_listed |= whole(key) == Some(u64::from(sent));
                Ok(scanner.skip()?)
            })?;
            if is_listed { Ok(()) } else { Err(not_listed(position, sent)) }
        };
        scanner.list(check).map(drop)
    }

    fn positions(&mut self, scanner: &mut Scanner<'_>) -> Result<(), String> {
        let n_sent = self.prompt.len();
        self.rows = Vec::with_capacity(self.needed.len());
        let mut needed = self.needed.positions().peekable();
        let mut row = Row::default();
        let n_found = scanner.list(|scanner, position| {
            if needed.next_if_eq(&position).is_none() || position >= n_sent {
                return Ok(scanner.skip()?);
            }
            let score = if position == 0 {
                scanner.skip()?;
                needed::absent(Absence::NoContext)
            } else if scanner.null()? {
                needed::absent(Absence::NotReturned)
            } else {
                row.read(scanner, position)?;
                self.score(position, &mut row)?
            };
            self.rows.push(score);
            Ok(())
        })?;
        if n_found == n_sent {
            return Ok(());
        }
        Err(format!("prompt_logprobs has {n_found} positions, {n_sent} tokens were sent"))
    }

    /// A row must have K entries, or one more for the given token, each id once.
    fn score(&self, position: usize, row: &mut Row) -> Result<TokenScore, String> {
        let (given, n, k) = (self.prompt[position], row.candidates.len(), self.top_k);
        let own = row.candidates.iter().position(|candidate| candidate.0 == given);
        let own = own.ok_or_else(|| not_listed(position, given))?;
        if n < k || n > k + 1 {
            return Err(format!("position {position} has {n} candidates, {k} were asked for"));
        }
        let score = needed::token_score(given, row.candidates[own].1, &row.candidates, k, Some(FLOOR));
        let mut seen = HashSet::new();
        if score.top.entries().len() != n && !row.candidates.iter().all(|it| seen.insert(it.0)) {
            return Err(format!("position {position} lists a token twice"));
        }
        if score.logprob.is_ok() && k > 0 {
            row.check(own, k).map_err(|why| format!("position {position} {why}"))?;
        }
        Ok(score)
    }
}

const OTHER_PROMPT: &str = "the server read another prompt than the one that was sent";

fn not_listed(position: usize, sent: TokenId) -> String {
    format!("position {position} has no logprob for token {sent}, which was sent there")
}

/// The candidates of one position. One is used for all of them, so that memory is set aside once.
#[derive(Default)]
struct Row {
    candidates: Vec<Candidate>,
    /// Of each candidate, where it is told.
    ranks: Vec<Option<u64>>,
    told_ranks: Vec<Ranked>,
}

impl Row {
    fn read(&mut self, scanner: &mut Scanner<'_>, position: usize) -> Result<(), String> {
        self.candidates.clear();
        self.ranks.clear();
        scanner.entries(|scanner, key| {
            let id = whole(key).and_then(|id| TokenId::try_from(id).ok());
            let id =
                id.ok_or_else(|| format!("position {position} lists `{}`, which is no token id", show(key)))?;
            let (logprob, rank) = candidate(scanner)?;
            self.candidates.push((id, logprob));
            self.ranks.push(rank);
            Ok(())
        })
    }

    /// Refuses a row of the best `k` that contradicts itself; `own` is where the given token stands.
    fn check(&mut self, own: usize, k: usize) -> Result<(), String> {
        let ranked = self.ranks.iter().zip(&self.candidates);
        self.told_ranks.clear();
        self.told_ranks.extend(ranked.filter_map(|(rank, candidate)| Some(((*rank)?, candidate.1?))));
        rows::check_ranks(&mut self.told_ranks)?;
        if self.candidates.len() == k {
            return Ok(());
        }
        if let Some(rank) = self.ranks[own].filter(|&rank| rank <= k as u64) {
            return Err(format!("ranks the given token {rank}, though it is not among the best {k}"));
        }
        Ok(rows::check_outsider(self.candidates[own].1, &self.candidates)?)
    }
}

/// The `logprob` and the `rank` of one candidate's `{"logprob", "rank", "decoded_token"}`.
fn candidate(scanner: &mut Scanner<'_>) -> Result<(Option<f64>, Option<u64>), String> {
    let (mut logprob, mut rank) = (None, None);
    scanner.entries(|scanner, key| {
        let is_second = match key {
            b"logprob" => logprob.replace(scanner.number()?).is_some(),
            b"rank" if scanner.null()? => rank.replace(None).is_some(),
            b"rank" => rank.replace(Some(scanner.count()?)).is_some(),
            _ => return Ok(scanner.skip()?),
        };
        if is_second { Err(format!("the key `{}` is there twice", show(key))) } else { Ok(()) }
    })?;
    Ok((logprob.flatten(), rank.flatten()))
}

fn show(key: &[u8]) -> String {
    String::from_utf8_lossy(key).chars().take(40).collect()
}

#[derive(Deserialize)]
struct Completion {
    id: Option<Name>,
    #[serde(default)]
    choices: Vec<CompletionChoice>,
    usage: Option<Counted>,
    #[serde(flatten)]
    versions: Versions,
}

#[derive(Deserialize)]
struct CompletionChoice {
    token_ids: Option<Vec<TokenId>>,
    prompt_token_ids: Option<Vec<TokenId>>,
    logprobs: Option<CompletionLogprobs>,
    finish_reason: Option<String>,
    #[serde(flatten)]
    versions: Versions,
}

#[derive(Deserialize)]
struct CompletionLogprobs {
    token_logprobs: Vec<Option<f64>>,
    #[serde(default)]
    tokens: Vec<String>,
    top_logprobs: Option<Vec<Option<Alternatives>>>,
}

/// The alternatives to one sampled token, keyed `token_id:N`.
type Alternatives = HashMap<String, Option<f64>>;

/// Reads a sampled continuation of `prompt`.
pub fn drawn(body: &[u8], prompt: &[TokenId], top_k: usize) -> Result<Signed<Generated>, String> {
    let answer: Completion = strict::read(body)?;
    let [choice] = <[CompletionChoice; 1]>::try_from(answer.choices)
        .map_err(|all| format!("{} choices for one prompt: {}", all.len(), server_message(body)))?;
    let ids = choice.token_ids.ok_or("the answer has no token_ids")?;
    if choice.prompt_token_ids.is_some_and(|ids| ids != prompt) {
        return Err(OTHER_PROMPT.to_owned());
    }
    let tokens = match &choice.logprobs {
        Some(logprobs) => logprobs.read(&ids, top_k)?,
        None => ids.iter().map(|&id| SampledToken { id, logprob: None, top: TopK::default() }).collect(),
    };
    let versions = choice.versions.or(answer.versions).of_sampled(ids.len())?;
    let usage = paid(answer.usage.map(Usage::from).unwrap_or_default(), prompt.len())?;
    let finish = finish(choice.finish_reason.as_deref());
    Ok((answer.id.map(String::from), Generated { tokens, finish, versions, usage }))
}

impl CompletionLogprobs {
    fn read(&self, ids: &[TokenId], top_k: usize) -> Result<Vec<SampledToken>, String> {
        let n = ids.len();
        if self.token_logprobs.len() != n {
            return Err(format!("{n} sampled tokens have {} logprobs", self.token_logprobs.len()));
        }
        let named = self.tokens.iter().map(|token| named_id(token)).collect::<Option<Vec<_>>>();
        if !self.tokens.is_empty() && named.is_some_and(|named| named != ids) {
            return Err("the logprobs are those of other tokens than the sampled ones".to_owned());
        }
        let rows = self.top_logprobs.iter().flatten().enumerate();
        let rows = rows.map(|(index, row)| alternatives(index, row)).collect::<Result<Vec<_>, _>>()?;
        let own: Vec<Candidate> = ids.iter().copied().zip(self.token_logprobs.iter().copied()).collect();
        // With one more than K the sampled token is the one from outside the best.
        let check = |own: Candidate, row: &[Candidate], _: &_| {
            if row.len() > top_k { rows::check_outsider(own.1, row) } else { Ok(()) }
        };
        sampled(&own, &rows, (top_k, FLOOR), check)
    }
}

fn alternatives(index: usize, row: &Option<Alternatives>) -> Result<Vec<Candidate>, String> {
    let read = |(token, &value): (&String, &Option<f64>)| match named_id(token) {
        Some(id) => Ok((id, value)),
        None => Err(format!(
            "sampled token {index} has the alternative `{}`, which is no id",
            show(token.as_bytes())
        )),
    };
    row.iter().flatten().map(read).collect()
}

/// The id in `token_id:N`.
fn named_id(token: &str) -> Option<TokenId> {
    token.strip_prefix("token_id:")?.parse().ok()
}

/// What a refusal of too many logprobs tells: the K that was understood and the largest allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogprobLimit {
    /// The K the server understood; for -1 that is the size of its vocabulary.
    pub asked: usize,
    /// The largest K it accepts.
    pub allowed: usize,
}

/// Reads "Requested … logprobs of N, which is greater than max allowed: M".
pub fn logprob_limit(message: &str) -> Option<LogprobLimit> {
    let asked = number_after(message, "logprobs of ")?;
    let allowed = number_after(message, "max allowed: ")?;
    Some(LogprobLimit { asked, allowed })
}

fn number_after(message: &str, words: &str) -> Option<usize> {
    let (_, rest) = message.split_once(words)?;
    let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    rest[..digits].parse().ok()
}

/// Reads `GET /version`.
pub fn version(body: &[u8]) -> Result<String, String> {
    strict::field(body, "version")
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;
    use backsight_core::tokens::TokenSpan;
    use expect_test::{Expect, expect};
    use proptest::prelude::*;
    use std::fmt::Write as _;
    use std::sync::Arc;

    const TOKENS: [TokenId; 4] = [10, 11, 12, 13];

    fn job(start: usize, end: usize) -> ScoreJob {
        ScoreJob::new(Arc::from(TOKENS), vec![TokenSpan::new(start, end).unwrap()], 1).unwrap()
    }

    /// An answer whose `prompt_logprobs` is `list`.
    fn answer(list: &str) -> String {
        let usage = r#""usage":{"prompt_tokens":4,"completion_tokens":1}"#;
        format!(r#"{{"id":"x","choices":[{{"index":0,"text":"\"]}}","prompt_logprobs":{list}}}],{usage}}}"#)
    }

    /// Scores positions 1 and 2 of an answer with K = 1 and shows what came out.
    fn check(body: &str, expected: Expect) {
        let mut found = String::new();
        match scores(body.as_bytes(), &job(1, 3), 4, 1) {
            Err(why) => found = format!("error: {why}"),
            Ok(scores) => {
                for score in scores.1.spans[0].scores() {
                    let row: Vec<_> = score.top.entries().iter().map(|it| (it.0, it.1.get())).collect();
                    match &score.logprob {
                        Ok(logprob) => write!(found, "{logprob} {row:?}; ").unwrap(),
                        Err(why) => write!(found, "{why}; ").unwrap(),
                    }
                }
            }
        }
        expected.assert_eq(found.trim_end_matches("; "));
    }

    const ROW_1: &str =
        r#"{"11":{"logprob":-2.5,"rank":7,"decoded_token":"\\\" }"},"5":{"logprob":-0.25,"rank":1}}"#;
    const ROW_2: &str = r#"{"12":{"rank":1,"decoded_token":"é","logprob":-0.5}}"#;
    const ROW_3: &str = r#"{"13":{"logprob":-1,"rank":1,"decoded_token":"["}}"#;

    #[test]
    fn spans_are_read_and_the_rest_is_stepped_over() {
        check(
            &answer(&format!("[null,{ROW_1},{ROW_2},{ROW_3}]")),
            expect!["-2.5 [(5, -0.25), (11, -2.5)]; -0.5 [(12, -0.5)]"],
        );
        check(
            &answer(&format!("[null, null, {ROW_2} , {ROW_3} ]")),
            expect!["the server returned no value; -0.5 [(12, -0.5)]"],
        );
        check(
            &answer(&format!("[{ROW_1},{ROW_1},{ROW_2},null]")),
            expect!["-2.5 [(5, -0.25), (11, -2.5)]; -0.5 [(12, -0.5)]"],
        );
    }

    #[test]
    fn a_choice_tells_neither_whose_the_answer_is_nor_what_it_cost() {
        let rows = format!("[null,{ROW_1},{ROW_2},{ROW_3}]");
        let own = r#""id":"another's","usage":{"prompt_tokens":9},"cached_tokens":7,"prompt_logprobs""#;
        let body = answer(&rows).replace(r#""prompt_logprobs""#, own);
        let (id, scored) = scores(body.as_bytes(), &job(1, 3), 4, 1).unwrap();
        assert_eq!(
            (id.as_deref(), scored.usage.prompt_tokens, scored.usage.cached_tokens),
            (Some("x"), 4, None)
        );
    }

    #[test]
    fn what_is_no_logprob_is_absent() {
        let with = |value: &str| {
            let row = format!(r#"{{"11":{{"logprob":{value},"rank":1,"decoded_token":"x"}}}}"#);
            answer(&format!("[null,{row},{ROW_2},{ROW_3}]"))
        };
        let check_first = |value: &str, expected: &str| {
            let scores = scores(with(value).as_bytes(), &job(1, 2), 4, 1).unwrap();
            let why = scores.1.spans[0].scores()[0].logprob.clone().unwrap_err();
            assert_eq!(why.to_string(), expected);
        };
        check_first("NaN", "the server returned no logprob: NaN is not a finite number");
        check_first("-Infinity", "the server returned no logprob: -inf stands for minus infinity");
        check_first("-9999.0", "the server returned no logprob: -9999 stands for minus infinity");
        check_first(
            "0.5",
            "the server returned no logprob: 0.5 is positive, so it is not the logarithm of a probability",
        );
        check_first("null", "the server returned no value");
    }

    #[test]
    fn wrong_answers_are_refused_with_the_place() {
        let list = |rows: &[&str]| answer(&format!("[{}]", rows.join(",")));
        check(
            &list(&["null", ROW_1, ROW_2]),
            expect!["error: prompt_logprobs has 3 positions, 4 tokens were sent"],
        );
        check(
            &list(&["null", ROW_1, ROW_2, ROW_3, ROW_3]),
            expect!["error: prompt_logprobs has 5 positions, 4 tokens were sent"],
        );
        check(
            &list(&["null", ROW_2, ROW_1, ROW_3]),
            expect!["error: position 1 has no logprob for token 11, which was sent there"],
        );
        let three = r#"{"11":{"logprob":-1},"2":{"logprob":-2},"3":{"logprob":-3}}"#;
        check(
            &list(&["null", three, ROW_2, ROW_3]),
            expect!["error: position 1 has 3 candidates, 1 were asked for"],
        );
        let twice = r#"{"11":{"logprob":-1},"11":{"logprob":-2}}"#;
        check(&list(&["null", twice, ROW_2, ROW_3]), expect!["error: position 1 lists a token twice"]);
        let text = r#"{"eleven":{"logprob":-1}}"#;
        check(
            &list(&["null", text, ROW_2, ROW_3]),
            expect!["error: position 1 lists `eleven`, which is no token id"],
        );
        check(&list(&["null", "[1]", ROW_2, ROW_3]), expect!["error: expected an object at byte 70"]);
        check(&answer("null"), expect!["error: the answer has no prompt_logprobs"]);
    }

    #[test]
    fn rows_that_contradict_themselves_are_refused() {
        let with = |row: &str| answer(&format!("[null,{row},{ROW_2},{ROW_3}]"));
        check(
            &with(r#"{"11":{"logprob":-2.5,"rank":7},"5":{"logprob":-0.25,"rank":2}}"#),
            expect!["error: position 1 has no candidate of rank 1"],
        );
        check(
            &with(r#"{"11":{"logprob":-0.25,"rank":7},"5":{"logprob":-2.5,"rank":1}}"#),
            expect!["error: position 1 ranks a likelier candidate behind a less likely one"],
        );
        check(
            &with(r#"{"11":{"logprob":-0.25,"rank":1},"5":{"logprob":-0.25,"rank":1}}"#),
            expect!["error: position 1 ranks the given token 1, though it is not among the best 1"],
        );
        check(
            &with(r#"{"11":{"logprob":-0.25},"5":{"logprob":-2.5}}"#),
            expect![
                "error: position 1 leaves the given token out of the best, though it is likelier than one"
            ],
        );
        let tie = r#"{"11":{"logprob":-0.25,"rank":2},"5":{"logprob":-0.25,"rank":1}}"#;
        check(&with(tie), expect!["-0.25 [(5, -0.25), (11, -0.25)]; -0.5 [(12, -0.5)]"]);
        let floor = r#"{"11":{"logprob":-0.25,"rank":null},"5":{"logprob":-0.125,"rank":1}}"#;
        check(&with(floor), expect!["-0.25 [(5, -0.125), (11, -0.25)]; -0.5 [(12, -0.5)]"]);
    }

    #[test]
    fn what_is_there_twice_is_refused() {
        let body = answer(&format!("[null,{ROW_1},{ROW_2},{ROW_3}]"));
        let doubled = |key: &str, value: &str| body.replacen(key, &format!("{key}:{value},{key}"), 1);
        let keys = [
            ("id", "1"),
            ("choices", "[]"),
            ("usage", "null"),
            ("index", "0"),
            ("prompt_logprobs", "null"),
            ("logprob", "-1"),
            ("rank", "1"),
        ];
        for (key, value) in keys {
            let body = doubled(&format!("\"{key}\""), value);
            let why = scores(body.as_bytes(), &job(1, 3), 4, 1).unwrap_err();
            assert_eq!(why, format!("the key `{key}` is there twice"));
        }
        let body = doubled("\"prompt_tokens\"", "4");
        let why = scores(body.as_bytes(), &job(1, 3), 4, 1).unwrap_err();
        assert!(why.starts_with("usage: duplicate field `prompt_tokens`"), "{why}");
    }

    #[test]
    fn answers_to_another_prompt_are_refused() {
        let other = ROW_3.replace("13", "14");
        check(
            &answer(&format!("[null,{ROW_1},{ROW_2},{other}]")),
            expect!["error: position 3 has no logprob for token 13, which was sent there"],
        );
        let with_ids = |ids: &str| {
            let list = format!("[null,{ROW_1},{ROW_2},{ROW_3}],\"prompt_token_ids\":{ids}");
            answer(&list)
        };
        let right = || expect!["-2.5 [(5, -0.25), (11, -2.5)]; -0.5 [(12, -0.5)]"];
        check(&with_ids("[10,11,12,13]"), right());
        check(&with_ids("null"), right());
        let wrong = || expect!["error: the server read another prompt than the one that was sent"];
        check(&with_ids("[9,11,12,13]"), wrong());
        check(&with_ids("[10,11,12]"), wrong());
        check(&with_ids("[10,11,12,13,14]"), wrong());
        let longer = with_ids("null").replace("\"prompt_tokens\":4", "\"prompt_tokens\":5");
        check(&longer, expect!["error: the server read 5 tokens, 4 were sent"]);
    }

    #[test]
    fn what_is_told_beside_the_numbers_is_read() {
        let body = answer(&format!("[null,{ROW_1},{ROW_2},{ROW_3}]"));
        let found = |body: &str| {
            let scores = scores(body.as_bytes(), &job(1, 3), 4, 1).unwrap();
            (scores.0, scores.1.version)
        };
        let told = |text: &str| Some(text.to_owned());
        assert_eq!(found(&body), (told("x"), None));
        assert_eq!(found(&body.replace("\"id\":\"x\"", "\"weight_version\":\"7\"")), (None, told("7")));
        let runs = "\"weight_versions\":[{\"version\":\"a\",\"start\":0,\"end\":1}],\"index\"";
        assert_eq!(found(&body.replace("\"index\"", runs)).1, told("a"));
    }

    #[test]
    fn bodies_that_are_no_answer_are_refused() {
        check("<html>busy</html>", expect!["error: expected an object at byte 0"]);
        check("", expect!["error: the JSON ends in the middle at byte 0"]);
        check(r#"{"error":{"message":"busy"}}"#, expect!["error: no choices in the answer: busy"]);
        check(r#"{"choices":[]}"#, expect![[r#"error: no choices in the answer: "{"choices":[]}""#]]);
        let body = answer(&format!("[null,{ROW_1},{ROW_2},{ROW_3}]"));
        check(
            &body.replace("decoded", "deco\0ed"),
            expect!["error: a control character in a string at byte 106"],
        );
        check(&format!("{body}{body}"), expect!["error: something follows the JSON at byte 317"]);
        for cut in 0..body.len() {
            if body.is_char_boundary(cut) {
                assert!(scores(&body.as_bytes()[..cut], &job(1, 3), 4, 1).is_err(), "{}", &body[..cut]);
            }
        }
    }

    #[test]
    fn samples_that_do_not_fit_are_refused() {
        let check = |logprobs: &str, expected: &str| {
            let body = format!(
                r#"{{"choices":[{{"token_ids":[7,8],"prompt_token_ids":[1],"finish_reason":"stop","logprobs":{logprobs}}}]}}"#
            );
            let found = match drawn(body.as_bytes(), &[1], 1) {
                Ok(drawn) => {
                    let logprobs = drawn.1.tokens.iter().map(|it| it.logprob.map(|it| it.get()));
                    format!("{:?}", logprobs.collect::<Vec<_>>())
                }
                Err(why) => why,
            };
            assert_eq!(found, expected);
        };
        let tops = r#"[{"token_id:7":-1},{"token_id:8":-2}]"#;
        check(
            &format!(
                r#"{{"token_logprobs":[-1,-9999.0],"tokens":["token_id:7","token_id:8"],"top_logprobs":{tops}}}"#
            ),
            "[Some(-1.0), None]",
        );
        check("null", "[None, None]");
        check(
            &format!(r#"{{"token_logprobs":[-1],"top_logprobs":{tops}}}"#),
            "2 sampled tokens have 1 logprobs",
        );
        check(
            &format!(
                r#"{{"token_logprobs":[-1,-2],"tokens":["token_id:7","token_id:9"],"top_logprobs":{tops}}}"#
            ),
            "the logprobs are those of other tokens than the sampled ones",
        );
        check(
            r#"{"token_logprobs":[-1,-2],"top_logprobs":[{}]}"#,
            "2 sampled tokens have 1 rows of alternatives",
        );
        check(
            r#"{"token_logprobs":[-1,-2],"top_logprobs":[{"the":-1},{}]}"#,
            "sampled token 0 has the alternative `the`, which is no id",
        );
        check(
            r#"{"token_logprobs":[-1,-2],"top_logprobs":[{"token_id:7":-1},{"token_id:8":-2,"token_id:8":-3}]}"#,
            "the key `token_id:8` is there twice",
        );
        check(
            r#"{"token_logprobs":[-1,-2],"top_logprobs":[{"token_id:7":-1,"token_id:9":-3},{"token_id:8":-2}]}"#,
            "sampled token 0 leaves the given token out of the best, though it is likelier than one",
        );
    }

    #[test]
    fn samples_of_another_prompt_are_refused() {
        let check = |answer: &str, expected: &str| {
            let body = format!(r#"{{"id":"cmpl-9",{answer}}}"#);
            let found = drawn(body.as_bytes(), &[1, 2], 0);
            let shown = found.map_or_else(|why| why, |(id, it)| format!("{id:?} {:?}", it.versions.len()));
            assert_eq!(shown, expected);
        };
        let choice = |more: &str| format!(r#""choices":[{{"token_ids":[7,8]{more}}}]"#);
        check(&choice(""), "Some(\"cmpl-9\") 0");
        check(&choice(r#","weight_version":"a""#), "Some(\"cmpl-9\") 1");
        check(&format!(r#"{},"weight_version":"a""#, choice("")), "Some(\"cmpl-9\") 1");
        check(&choice(r#","prompt_token_ids":[1,3]"#), OTHER_PROMPT);
        let counted = format!(r#"{},"usage":{{"prompt_tokens":3}}"#, choice(""));
        check(&counted, "the server read 3 tokens, 2 were sent");
    }

    #[test]
    fn limits_are_read_from_refusals() {
        let limit = |message: &str| logprob_limit(message).map(|it| (it.asked, it.allowed));
        let message = "Requested prompt logprobs of 51, which is greater than max allowed: 50 (parameter=…)";
        assert_eq!(limit(message), Some((51, 50)));
        assert_eq!(
            limit("Requested sample logprobs of 25, which is greater than max allowed: 20"),
            Some((25, 20))
        );
        assert_eq!(limit("This model's maximum context length is 4096 tokens."), None);
    }

    proptest! {
        #[test]
        fn no_change_of_a_byte_makes_it_panic(at in any::<proptest::sample::Index>(), byte in any::<u8>()) {
            let mut body = answer(&format!("[null,{ROW_1},{ROW_2},{ROW_3}]")).into_bytes();
            let at = at.index(body.len());
            body[at] = byte;
            let _ = scores(&body, &job(1, 3), 4, 1);
        }
    }
}
