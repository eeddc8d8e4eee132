//! vLLM's completions route: token ids in, token ids and logprobs out, and the logprobs of a prompt.
//!
//! Produced by vLLM; recorded from 0.32.0 (`tests/fixtures/wire/vllm-0.32.0`), the shapes are those
//! of any 0.1x and later. Owns the request and the two answers we read from it. The surprises:
//! `prompt_logprobs` covers the whole prompt, one object per position keyed by token id, K entries
//! or K + 1 when the given token is outside the top K, in no order to rely on; its first entry is
//! null; minus infinity is written as -9999.0; `top_logprobs` are keyed by text unless
//! `return_tokens_as_token_ids` is set; values under `structured_outputs` are those of the
//! constrained distribution. Deliberately absent: the chat route, which is OpenAI's.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::error::server_message;
use super::openai::Usage;
use super::scan::{Scanner, whole};
use super::versions::{Name, Run, Versions};
use super::{Counts, Drawn};
use backsight_core::needed::{self, Candidate, Needed};
use backsight_core::score::{Absence, ScoreJob, SpanScore, TokenScore};
use backsight_core::tokens::{TokenId, TopK};

/// What vLLM writes for minus infinity, since JSON has none.
pub const FLOOR: f64 = -9999.0;

/// The body of `POST /v1/completions`. Every sampling parameter is sent, because a model's
/// `generation_config.json` decides those that are left out.
#[derive(Clone, Debug, Serialize)]
pub struct CompletionRequest<'a> {
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
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<i64>,
    /// Ids after which to stop.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    pub stop_token_ids: &'a [TokenId],
    /// How many alternatives at each sampled token; 0 gives the sampled one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logprobs: Option<usize>,
    /// How many candidates at each prompt position; 0 gives the given token, -1 all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_logprobs: Option<i64>,
    /// Whether ids come back beside the text.
    pub return_token_ids: bool,
    /// Whether alternatives are named `token_id:N` rather than by their text.
    pub return_tokens_as_token_ids: bool,
    /// Whether special tokens are left out of the text.
    pub skip_special_tokens: bool,
    /// A shape for the text: `{"json": …}` or `{"regex": …}`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub structured_outputs: Option<Value>,
}

impl<'a> CompletionRequest<'a> {
    /// A request for the logprobs of a prompt; the one token that must be sampled is thrown away.
    pub fn score(model: &'a str, prompt: &'a [TokenId], top_k: i64) -> Self {
        Self {
            model,
            prompt,
            max_tokens: 1,
            temperature: 0.0,
            top_p: 1.0,
            top_k: 0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            seed: None,
            stop_token_ids: &[],
            logprobs: None,
            prompt_logprobs: Some(top_k),
            return_token_ids: false,
            return_tokens_as_token_ids: false,
            skip_special_tokens: false,
            structured_outputs: None,
        }
    }
}

/// The scores of a job, and what they cost.
#[derive(Clone, Debug, PartialEq)]
pub struct Scores {
    /// One per span.
    pub spans: Vec<SpanScore>,
    /// The weights that read the prompt, where the server tells.
    pub version: Option<String>,
    /// What the server counted.
    pub counts: Counts,
}

/// Reads the scores of `job` from an answer to `CompletionRequest::score` that was sent the first
/// `n_sent` tokens and asked for `top_k` candidates.
pub fn scores(body: &[u8], job: &ScoreJob, n_sent: usize, top_k: usize) -> Result<Scores, String> {
    let needed = Needed::new(job);
    let prompt = &job.tokens()[..n_sent];
    let versions = Versions::default();
    let mut reader = PromptReader { prompt, needed: &needed, top_k, rows: Vec::new(), versions };
    let counts = reader.answer(body)?;
    let (rows, version) = (reader.rows, reader.versions.of_prompt()?);
    Ok(Scores { spans: needed.into_spans(job, rows)?, version, counts })
}

/// Walks an answer and keeps the rows of the needed positions.
struct PromptReader<'a> {
    prompt: &'a [TokenId],
    needed: &'a Needed,
    top_k: usize,
    rows: Vec<TokenScore>,
    versions: Versions,
}

impl PromptReader<'_> {
    fn answer(&mut self, body: &[u8]) -> Result<Counts, String> {
        let mut counts = None;
        let mut n_choices = 0;
        let mut scanner = Scanner::new(body);
        scanner.object(|scanner, key| match key {
            b"choices" => {
                n_choices = scanner.list(|scanner, _| self.choice(scanner))?;
                Ok(())
            }
            b"usage" => {
                counts = Some(Usage::read(scanner.raw()?)?);
                Ok(())
            }
            _ if self.versions.field(key, scanner)? => Ok(()),
            _ => Ok(scanner.skip()?),
        })?;
        scanner.end()?;
        match n_choices {
            1 => Ok(counts.unwrap_or_default()),
            0 => Err(format!("no choices in the answer: {}", server_message(body))),
            n => Err(format!("{n} choices for one prompt")),
        }
    }

    fn choice(&mut self, scanner: &mut Scanner<'_>) -> Result<(), String> {
        let mut found = false;
        scanner.object(|scanner, key| match key {
            b"prompt_logprobs" if !scanner.null()? => {
                found = true;
                self.positions(scanner)
            }
            b"prompt_logprobs" => Ok(()),
            _ if self.versions.field(key, scanner)? => Ok(()),
            _ => Ok(scanner.skip()?),
        })?;
        if found { Ok(()) } else { Err("the answer has no prompt_logprobs".to_owned()) }
    }

    fn positions(&mut self, scanner: &mut Scanner<'_>) -> Result<(), String> {
        let n_sent = self.prompt.len();
        self.rows = Vec::with_capacity(self.needed.len());
        let mut needed = self.needed.positions().peekable();
        let mut candidates = Vec::with_capacity(self.top_k + 1);
        let n_found = scanner.list(|scanner, position| {
            if needed.next_if_eq(&position).is_none() || position >= n_sent {
                return Ok(scanner.skip()?);
            }
            let row = self.row(scanner, position, &mut candidates)?;
            self.rows.push(row);
            Ok(())
        })?;
        if n_found == n_sent {
            return Ok(());
        }
        Err(format!("prompt_logprobs has {n_found} positions, {n_sent} tokens were sent"))
    }

    fn row(
        &self,
        scanner: &mut Scanner<'_>,
        position: usize,
        candidates: &mut Vec<Candidate>,
    ) -> Result<TokenScore, String> {
        if position == 0 {
            scanner.skip()?;
            return Ok(needed::absent(Absence::NoContext));
        }
        if scanner.null()? {
            return Ok(needed::absent(Absence::NotReturned));
        }
        candidates.clear();
        scanner.object(|scanner, key| {
            let id = whole(key).and_then(|id| TokenId::try_from(id).ok());
            let id =
                id.ok_or_else(|| format!("position {position} lists `{}`, which is no token id", show(key)))?;
            candidates.push((id, candidate_logprob(scanner)?));
            Ok(())
        })?;
        self.check_row(position, candidates)
    }

    /// A row must have K entries, or one more for the given token, each id once.
    fn check_row(&self, position: usize, candidates: &[Candidate]) -> Result<TokenScore, String> {
        let (given, n, k) = (self.prompt[position], candidates.len(), self.top_k);
        let mut own = candidates.iter().filter(|candidate| candidate.0 == given);
        let Some(&(_, value)) = own.next() else {
            return Err(format!(
                "position {position} has no logprob for token {given}, which was sent there"
            ));
        };
        if n < k || n > k + 1 {
            return Err(format!("position {position} has {n} candidates, {k} were asked for"));
        }
        let score = needed::token_score(given, value, candidates, k, Some(FLOOR));
        let distinct = score.top.entries().len() == n || has_distinct_ids(candidates);
        if own.next().is_some() || !distinct {
            return Err(format!("position {position} lists a token twice"));
        }
        Ok(score)
    }
}

/// The `logprob` of one candidate's `{"logprob", "rank", "decoded_token"}`.
fn candidate_logprob(scanner: &mut Scanner<'_>) -> Result<Option<f64>, String> {
    let mut logprob = None;
    scanner.object(|scanner, key| {
        if key == b"logprob" {
            logprob = scanner.number()?;
            return Ok(());
        }
        Ok(scanner.skip()?)
    })?;
    Ok(logprob)
}

fn has_distinct_ids(candidates: &[Candidate]) -> bool {
    let mut ids: Vec<_> = candidates.iter().map(|candidate| candidate.0).collect();
    ids.sort_unstable();
    ids.windows(2).all(|pair| pair[0] != pair[1])
}

fn show(key: &[u8]) -> String {
    String::from_utf8_lossy(key).chars().take(40).collect()
}

#[derive(Deserialize)]
struct Completion {
    #[serde(default)]
    choices: Vec<CompletionChoice>,
    #[serde(default)]
    usage: Option<Usage>,
    #[serde(default)]
    weight_version: Option<Name>,
    #[serde(default)]
    weight_versions: Option<Vec<Run>>,
}

#[derive(Deserialize)]
struct CompletionChoice {
    #[serde(default)]
    token_ids: Option<Vec<TokenId>>,
    #[serde(default)]
    prompt_token_ids: Option<Vec<TokenId>>,
    #[serde(default)]
    logprobs: Option<CompletionLogprobs>,
    #[serde(default)]
    finish_reason: Option<String>,
    #[serde(default)]
    weight_version: Option<Name>,
    #[serde(default)]
    weight_versions: Option<Vec<Run>>,
}

#[derive(Deserialize)]
struct CompletionLogprobs {
    token_logprobs: Vec<Option<f64>>,
    #[serde(default)]
    tokens: Vec<String>,
    #[serde(default)]
    top_logprobs: Option<Vec<Option<Alternatives>>>,
}

/// The alternatives to one sampled token, keyed `token_id:N`.
type Alternatives = HashMap<String, Option<f64>>;

/// Reads a sampled continuation of `prompt`.
pub fn drawn(body: &[u8], prompt: &[TokenId], top_k: usize) -> Result<Drawn, String> {
    let answer: Completion = serde_json::from_slice(body).map_err(|why| why.to_string())?;
    let [choice] = answer.choices.as_slice() else {
        let n = answer.choices.len();
        return Err(format!("{n} choices for one prompt: {}", server_message(body)));
    };
    let ids = choice.token_ids.clone().ok_or("the answer has no token_ids")?;
    if choice.prompt_token_ids.as_ref().is_some_and(|ids| ids != prompt) {
        return Err("the server read another prompt than the one that was sent".to_owned());
    }
    let (logprobs, top) = match &choice.logprobs {
        Some(logprobs) => logprobs.read(&ids, top_k)?,
        None => (vec![None; ids.len()], vec![TopK::default(); ids.len()]),
    };
    let versions = Versions { one: choice.weight_version.clone(), runs: choice.weight_versions.clone() };
    let versions = versions.or(Versions { one: answer.weight_version, runs: answer.weight_versions });
    let versions = versions.of_sampled(ids.len())?;
    let counts = answer.usage.map(Counts::from).unwrap_or_default();
    Ok(Drawn { ids, logprobs, top, finish: choice.finish_reason.clone(), versions, counts })
}

impl CompletionLogprobs {
    fn read(&self, ids: &[TokenId], top_k: usize) -> Result<super::Values, String> {
        let n = ids.len();
        if self.token_logprobs.len() != n {
            return Err(format!("{n} sampled tokens have {} logprobs", self.token_logprobs.len()));
        }
        let named = self.tokens.iter().map(|token| named_id(token)).collect::<Option<Vec<_>>>();
        if !self.tokens.is_empty() && named.is_some_and(|named| named != ids) {
            return Err("the logprobs are those of other tokens than the sampled ones".to_owned());
        }
        let tops = self.top_logprobs.as_deref().unwrap_or_default();
        if top_k > 0 && tops.len() != n {
            return Err(format!("{n} sampled tokens have {} rows of alternatives", tops.len()));
        }
        let mut values = (Vec::with_capacity(n), Vec::with_capacity(n));
        for (index, (&id, &value)) in ids.iter().zip(&self.token_logprobs).enumerate() {
            let row = tops.get(index).and_then(Option::as_ref);
            let row = row.map(|row| alternatives(index, row)).transpose()?.unwrap_or_default();
            let score = needed::token_score(id, value, &row, top_k, Some(FLOOR));
            values.0.push(score.logprob.ok());
            values.1.push(score.top);
        }
        Ok(values)
    }
}

fn alternatives(index: usize, row: &Alternatives) -> Result<Vec<Candidate>, String> {
    let read = |(token, &value): (&String, &Option<f64>)| match named_id(token) {
        Some(id) => Ok((id, value)),
        None => Err(format!(
            "sampled token {index} has the alternative `{}`, which is no id",
            show(token.as_bytes())
        )),
    };
    row.iter().map(read).collect()
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

#[derive(Deserialize)]
struct Version {
    version: String,
}

/// Reads `GET /version`.
pub fn version(body: &[u8]) -> Result<String, String> {
    serde_json::from_slice(body).map(|it: Version| it.version).map_err(|why| why.to_string())
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
                for score in scores.spans[0].scores() {
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
    }

    #[test]
    fn what_is_no_logprob_is_absent() {
        let with = |value: &str| {
            let row = format!(r#"{{"11":{{"logprob":{value},"rank":1,"decoded_token":"x"}}}}"#);
            answer(&format!("[null,{row},{ROW_2},{ROW_3}]"))
        };
        let check_first = |value: &str, expected: &str| {
            let scores = scores(with(value).as_bytes(), &job(1, 2), 4, 1).unwrap();
            let why = scores.spans[0].scores()[0].logprob.clone().unwrap_err();
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
                    format!("{:?}", drawn.logprobs.iter().map(|it| it.map(|it| it.get())).collect::<Vec<_>>())
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
