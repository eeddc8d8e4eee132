//! Tool-call parsers against recorded results of the published parsers, and by properties.
#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use backsight::chat::parse::{Parsed, ParsedCall, Parser};
use serde_json::{Map, Value};

const VECTORS: &str = include_str!("fixtures/opd/tool_call_parsers.json");

fn check(parser: &str, vector: &Value) {
    let input = vector["in"].as_str().unwrap();
    let Parsed { content, calls, .. } = Parser::from_name(parser).unwrap().parse(input);
    assert_eq!(content.as_deref(), vector["content"].as_str(), "{parser}: content of {input:?}");
    let wanted = vector["tool_calls"].as_array().cloned().unwrap_or_default();
    let pair = |call: &Value| {
        (call["name"].as_str().unwrap().to_owned(), call["arguments"].as_str().unwrap().to_owned())
    };
    let wanted: Vec<_> = wanted.iter().map(pair).collect();
    let found: Vec<_> = calls.into_iter().map(|call| (call.name, call.arguments)).collect();
    assert_eq!(found, wanted, "{parser}: calls of {input:?}");
}

#[test]
fn published_vectors() {
    let vectors: Map<String, Value> = serde_json::from_str(VECTORS).unwrap();
    let mut n_checked = 0;
    for (parser, vectors) in &vectors {
        for vector in vectors.as_array().unwrap() {
            check(parser, vector);
            n_checked += 1;
        }
    }
    assert_eq!(n_checked, 36);
}
