//! `python` against tables that CPython wrote, and against the CPython at hand where there is one.
#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::process::Command;

use backsight_core::python::{JsonStyle, float_repr, json_dumps};
use serde_json::Value;

const FLOATS: &str = include_str!("../../../../tests/fixtures/python/floats.json");
const JSON_DUMPS: &str = include_str!("../../../../tests/fixtures/python/json_dumps.json");
/// Every table; the last two are about `chat::parse`, whose own tests go through them.
const TABLES: [(&str, &str); 4] = [
    ("floats", FLOATS),
    ("json_dumps", JSON_DUMPS),
    ("json_loads", include_str!("../../../../tests/fixtures/python/json_loads.json")),
    ("literals", include_str!("../../../../tests/fixtures/python/literals.json")),
];

fn rows(table: &str) -> Vec<Vec<Value>> {
    let rows: Vec<Vec<Value>> = serde_json::from_str(table).unwrap();
    assert!(rows.len() > 100, "only {} rows", rows.len());
    rows
}

/// The style that `json.dumps(value, **kwargs)` means.
fn style(kwargs: &Value) -> JsonStyle {
    let mut style = JsonStyle::default();
    match &kwargs["indent"] {
        Value::Null => {}
        Value::String(indent) => style = style.indented(indent.as_str()),
        n_spaces => style = style.indented(" ".repeat(n_spaces.as_u64().unwrap() as usize)),
    }
    if let Some(separators) = kwargs["separators"].as_array() {
        style.item_separator = separators[0].as_str().unwrap().to_owned();
        style.key_separator = separators[1].as_str().unwrap().to_owned();
    }
    style.ensure_ascii = kwargs["ensure_ascii"].as_bool().unwrap_or(true);
    style.sort_keys = kwargs["sort_keys"].as_bool().unwrap_or(false);
    style
}

#[test]
fn floats_are_written_as_python_writes_them() {
    for row in rows(FLOATS) {
        let number = f64::from_bits(row[0].as_u64().unwrap());
        assert_eq!(float_repr(number), row[1].as_str().unwrap());
    }
    let odd = [f64::NAN, -f64::NAN, f64::INFINITY, f64::NEG_INFINITY];
    assert_eq!(odd.map(float_repr), ["nan", "nan", "inf", "-inf"]);
    // Halfway between two that are as short: the even one.
    #[allow(clippy::excessive_precision, reason = "halfway between two as short is the case")]
    let halfway = [2_080_459_203_944_951.25, -170_867_904_745_364.125, 2.0f64.powi(-25)];
    let even = ["2080459203944951.2", "-170867904745364.12", "2.9802322387695312e-08"];
    assert_eq!(halfway.map(float_repr), even);
}

#[test]
fn values_are_dumped_as_python_dumps_them() {
    for row in rows(JSON_DUMPS) {
        let value: Value = serde_json::from_str(row[0].as_str().unwrap()).unwrap();
        assert_eq!(json_dumps(&value, &style(&row[1])), row[2].as_str().unwrap(), "{row:?}");
    }
}

#[test]
fn transformers_style_keeps_non_ascii() {
    let value = serde_json::json!({"a": "ü\u{2028}😀\u{7f}"});
    assert_eq!(json_dumps(&value, &JsonStyle::transformers()), "{\"a\": \"ü\u{2028}😀\u{7f}\"}");
    assert_eq!(json_dumps(&value, &JsonStyle::default()), r#"{"a": "\u00fc\u2028\ud83d\ude00\u007f"}"#);
}

/// The committed tables are the proof; this shows that they are what the Python at hand writes too.
#[test]
fn the_tables_are_what_python_writes() {
    for (name, table) in TABLES {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/python/generate.py");
        let Ok(output) = Command::new("python3").args([script, name]).output() else { return };
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(String::from_utf8(output.stdout).unwrap(), table, "{name}");
    }
}
