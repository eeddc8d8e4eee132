//! `probe`: a server looked at before anything is paid for.

use std::sync::Arc;

use serde_json::Value;

use super::block_on;
use super::call::Call;
use super::failure::Failure;
use super::server::ServerArgs;
use super::stdout;
use crate::model::notice::Notices;
use crate::model::open;
use crate::model::probe::{Findings, probe};

pub(super) fn run(call: &Call) -> Result<(), Failure> {
    let server = ServerArgs::read(&call.config)?;
    let (notices, talk) = (Notices::default(), Arc::new(call.talk("server")));
    let told = Arc::clone(&talk);
    let findings = block_on(async {
        let mut wanted = server.wanted(&notices, Arc::new(move |event| told.tell(event)))?;
        wanted.settings = wanted.settings.briefly();
        let opened = open(&wanted).await?;
        Ok::<_, Failure>(probe(&opened).await)
    })??;
    notices.take().iter().chain(&findings.notes).for_each(|note| talk.note(note));
    let text = if call.is_json() { format!("{}\n", findings.to_json()) } else { table(&findings) };
    stdout::data(text.as_bytes())?;
    match findings.self_test_ok() {
        Some(false) => Err(Failure::losses(
            "the self-test failed: the server gives other logprobs for a token as sample than as prompt",
            "do not score with it; see whether its logprobs are scaled by temperature or its weights are quantised on the fly",
        )),
        _ => Ok(()),
    }
}

/// One line per finding, unknown ones said to be so.
fn table(findings: &Findings) -> String {
    let json = findings.to_json();
    let line = |(key, value): (&String, &Value)| {
        let shown = match (key.as_str(), value) {
            ("self_test", value) => self_test(value),
            ("smallest_change", Value::Number(by)) => {
                format!("{:.1e} nats on average, in the weights", by.as_f64().unwrap_or_default())
            }
            ("max_top_k", Value::Null) if findings.prompt_logprobs == Some(true) => "no limit".to_owned(),
            ("max_top_k", Value::Null) => "none".to_owned(),
            (_, value) => plain(value),
        };
        format!("{:<28}{shown}\n", key.replace('_', " "))
    };
    json.as_object().into_iter().flatten().map(line).collect()
}

fn self_test(value: &Value) -> String {
    match (value["ok"].as_bool(), value["max_abs_diff"].as_f64()) {
        (Some(true), Some(difference)) => format!("ok, prompt and sample differ by at most {difference:.1e}"),
        (Some(false), Some(difference)) => format!("FAILED, prompt and sample differ by {difference:.1e}"),
        _ => "not possible".to_owned(),
    }
}

fn plain(value: &Value) -> String {
    match value {
        Value::Null => "unknown".to_owned(),
        Value::Bool(true) => "yes".to_owned(),
        Value::Bool(false) => "no".to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(items) if items.is_empty() => "nothing".to_owned(),
        Value::Array(items) => items.iter().map(plain).collect::<Vec<_>>().join(", "),
        other => other.to_string(),
    }
}
