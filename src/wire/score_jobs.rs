//! The lines of `backsight score`: jobs in, answers out.
//!
//! Written by whoever needs logprobs, read by us, and the other way round; the format is ours and
//! documented in docs/formats.md. The surprise: an absent logprob is `null`, and `absent` says why.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Value, json};

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

/// Reads one line; a failure says why, with the job's id where it has one.
pub fn read(line: &[u8], default_top_k: usize) -> (Value, Result<ScoreJob, String>) {
    let value: Value = match serde_json::from_slice(line) {
        Ok(value) => value,
        Err(error) => return (Value::Null, Err(format!("not JSON: {error}"))),
    };
    let id = value.get("id").cloned().unwrap_or_default();
    (id, job(value, default_top_k))
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
    let span = |&(start, end): &(usize, usize)| TokenSpan::new(start, end).map_err(|error| error.to_string());
    let spans = line.spans.iter().map(span).collect::<Result<_, _>>()?;
    let top_k = line.top_k.unwrap_or(default_top_k);
    ScoreJob::new(Arc::from(line.tokens), spans, top_k).map_err(|error| error.to_string())
}

/// The answer to a job that was scored, by weights that have this name.
pub fn answer(id: &Value, job: &ScoreJob, spans: &[SpanScore], version: Option<&str>) -> Value {
    let absent = spans.iter().flat_map(SpanScore::absent);
    let absent: Vec<Value> = absent.map(|(position, why)| json!([position, why.to_string()])).collect();
    let spans: Vec<Value> = spans.iter().map(|span| span_json(span, job.top_k() > 0)).collect();
    let mut answer = json!({"id": id, "spans": spans});
    if let Some(version) = version {
        answer["version"] = version.into();
    }
    if !absent.is_empty() {
        answer["absent"] = absent.into();
    }
    answer
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
pub fn failure(id: &Value, why: &str) -> Value {
    json!({"id": id, "spans": [], "error": why})
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
        assert_eq!((id, job.unwrap().top_k()), (json!("a"), 5));
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
        assert_eq!(answer(&json!(3), &job, &spans, Some("12ab34cd")), expected);
    }
}
