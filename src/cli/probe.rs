//! `probe`: a server looked at before anything is paid for.

use serde_json::Value;

use super::args::ProbeArgs;
use super::failure::Failure;
use super::{block_on, output};
use crate::model::notice::Notices;
use crate::model::probe::{Report, probe};

pub(super) fn run(args: &ProbeArgs) -> Result<(), Failure> {
    args.server.check(args.url.as_slice())?;
    let report = block_on(async {
        let Some(url) = &args.url else {
            return Ok(probe(&args.server.open_embedded()?, None).await);
        };
        let transport = args.server.transport(std::slice::from_ref(url))?.briefly();
        let opened = args.server.open(transport.clone(), &Notices::default()).await?;
        Ok(probe(&opened, Some(&transport)).await)
    })??;
    let text = if args.json { format!("{}\n", report.to_json()) } else { table(&report) };
    output::data(text.as_bytes())
}

/// One line per finding, unknown ones said to be so.
fn table(report: &Report) -> String {
    let json = report.to_json();
    let mut text = String::new();
    for (key, value) in json.as_object().into_iter().flatten() {
        let shown = match (key.as_str(), value) {
            ("notes", _) => continue,
            ("self_test", value) => self_test(value),
            ("max_top_k", Value::Null) => "no limit".to_owned(),
            (_, value) => plain(value),
        };
        text.push_str(&format!("{:<28}{shown}\n", key.replace('_', " ")));
    }
    for note in &report.notes {
        text.push_str(&format!("{:<28}{note}\n", "note"));
    }
    text
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
