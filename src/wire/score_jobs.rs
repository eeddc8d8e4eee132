//! The lines of `backsight score`: jobs in, answers out.
//!
//! Written by whoever needs logprobs, read by us, and the other way round; the format is ours and
//! documented in docs/formats.md. The surprises: an absent logprob is `null`, and `absent` says why; an id may be a
//! number that no machine number holds, so it is never read as one.

use std::fmt;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Value, json};

use super::scan::Scanner;
use backsight_core::score::{ScoreJob, SpanScore};
use backsight_core::tokens::{TokenId, TokenSpan};

/// One line of the jobs file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    id: Value,
    tokens: Vec<TokenId>,
    spans: Vec<(usize, usize)>,
    top_k: Option<usize>,
}

/// A job's id: JSON as it was written, so that it comes back unchanged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Id(String);

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Id {
    /// The id in a line that holds `value`.
    fn find(line: &[u8], value: &Value) -> Self {
        let mut written = None;
        let whole = Scanner::new(line).object(|scanner, key| {
            let value = scanner.raw()?;
            if key == b"id" {
                written = std::str::from_utf8(value).ok();
            }
            Ok(())
        });
        let written = whole.ok().and(written).map(str::to_owned);
        Self(written.unwrap_or_else(|| value.get("id").unwrap_or(&Value::Null).to_string()))
    }
}

/// Reads one line; a failure says why, with the job's id where it has one.
pub fn read(line: &[u8], default_top_k: usize) -> (Id, Result<ScoreJob, String>) {
    let value: Value = match serde_json::from_slice(line) {
        Ok(value) => value,
        Err(error) => return (Id("null".to_owned()), Err(format!("not JSON: {error}"))),
    };
    (Id::find(line, &value), job(value, default_top_k))
}

fn job(value: Value, default_top_k: usize) -> Result<ScoreJob, String> {
    const SHAPE: &str = r#"a job is {"id": …, "tokens": [id, …], "spans": [[start, end], …], "top_k"?: K}"#;
    if !value.is_object() {
        return Err(format!("not an object; {SHAPE}"));
    }
    let line: Line = serde_json::from_value(value).map_err(|error| format!("{error}; {SHAPE}"))?;
    if !(line.id.is_string() || line.id.is_number()) {
        return Err("`id` must be a string or a number".to_owned());
    }
    let span = |&(start, end): &(usize, usize)| TokenSpan::new(start, end);
    let spans = line.spans.iter().map(span).collect::<Result<_, _>>()?;
    let top_k = line.top_k.unwrap_or(default_top_k);
    ScoreJob::new(Arc::from(line.tokens), spans, top_k)
}

/// The answer to a job that was scored, by weights that have this name.
pub fn answer(id: &Id, job: &ScoreJob, spans: &[SpanScore], version: Option<&str>) -> String {
    let absent = spans.iter().flat_map(SpanScore::absent);
    let absent: Vec<Value> = absent.map(|(position, why)| json!([position, why.to_string()])).collect();
    let spans: Vec<Value> = spans.iter().map(|span| span_json(span, job.top_k() > 0)).collect();
    let mut answer = json!({"spans": spans});
    if let Some(version) = version {
        answer["version"] = version.into();
    }
    if !absent.is_empty() {
        answer["absent"] = absent.into();
    }
    row(id, &answer)
}

/// An object on a line, its id first.
fn row(id: &Id, rest: &Value) -> String {
    let rest = rest.to_string();
    format!("{{\"id\":{id},{}", rest.trim_start_matches('{'))
}

fn span_json(score: &SpanScore, with_top: bool) -> Value {
    let logprobs: Vec<Option<f64>> = score.logprobs().map(|it| it.map(|logprob| logprob.get())).collect();
    let mut json = json!({"start": score.span().start(), "end": score.span().end(), "logprobs": logprobs});
    if with_top {
        let row = |entries: &[(TokenId, backsight_core::tokens::Logprob)]| -> Value {
            entries.iter().map(|(id, logprob)| json!([id, logprob.get()])).collect()
        };
        json["top"] = score.scores().iter().map(|score| row(score.top.entries())).collect();
    }
    json
}

/// The answer to a job that was not.
pub fn failure(id: &Id, why: &str) -> String {
    row(id, &json!({"spans": [], "error": why}))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;
    use backsight_core::score::{Absence, TokenScore};
    use backsight_core::tokens::{Logprob, TopK};

    #[test]
    fn jobs_are_read_or_refused_with_the_reason() {
        let (id, job) = read(br#"{"id": "a", "tokens": [1, 2, 3], "spans": [[1, 3]]}"#, 5);
        assert_eq!((id.to_string().as_str(), job.unwrap().top_k()), ("\"a\"", 5));
        let refuse = |line: &str| read(line.as_bytes(), 0).1.unwrap_err();
        assert!(read(b"\xff\xfe", 0).1.unwrap_err().starts_with("not JSON"));
        assert!(refuse("{").starts_with("not JSON"));
        assert_eq!(
            refuse(r#"{"id": 1, "tokens": [1], "spans": [[1, 0]]}"#),
            "span [1, 0) ends before it starts"
        );
        assert!(refuse(r#"{"id": 1, "tokens": [1], "spans": [[0, 2]]}"#).contains("beyond the 1 tokens"));
        assert!(refuse(r#"{"id": 1, "tokens": [-1], "spans": []}"#).contains("invalid value"));
        assert!(
            refuse(r#"{"id": 1, "tokens": [1], "spans": [], "topk": 1}"#).contains("unknown field `topk`")
        );
        assert!(refuse(r#"{"id": null, "tokens": [1], "spans": []}"#).contains("`id` must be"));
    }

    #[test]
    fn ids_come_back_as_they_were_written() {
        let ids = [
            "123456789012345678901234567890",
            "-9223372036854775809",
            "1.10",
            "-0",
            r#""\u00e9 \" }""#,
            r#""é""#,
        ];
        for id in ids {
            let line = format!(r#"{{"tokens": [1, 2], "id" : {id} , "spans": [[1, 2]]}}"#);
            let (read, job) = read(line.as_bytes(), 0);
            assert!(job.is_ok(), "{line}");
            assert_eq!(failure(&read, "no"), format!(r#"{{"id":{id},"spans":[],"error":"no"}}"#));
        }
        let (id, _) = read(br#"{"\u0069d": 7, "tokens": [1], "spans": []}"#, 0);
        assert_eq!(id.to_string(), "7");
        assert_eq!(read(b"{\"id\": 7", 0).0.to_string(), "null");
    }

    #[test]
    fn answers_show_what_is_absent_and_why() {
        let job = ScoreJob::new([7, 8].into(), vec![TokenSpan::at(0, 2)], 1).unwrap();
        let logprob = Logprob::new(-0.5).unwrap();
        let scores = vec![
            TokenScore { logprob: Err(Absence::NoContext), top: TopK::default() },
            TokenScore { logprob: Ok(logprob), top: TopK::new(vec![(8, logprob)]) },
        ];
        let spans = [SpanScore::new(TokenSpan::at(0, 2), scores).unwrap()];
        let expected = json!({
            "id": 3,
            "spans": [{"start": 0, "end": 2, "logprobs": [null, -0.5], "top": [[], [[8, -0.5]]]}],
            "version": "12ab34cd",
            "absent": [[0, "the first token has no context"]],
        });
        let answer = answer(&Id("3".to_owned()), &job, &spans, Some("12ab34cd"));
        assert_eq!(answer, expected.to_string());
    }
}
