//! What the tools' schemas say about arguments that are written as bare text.
//!
//! Where a schema admits a string, the text is the value whatever it looks like: a file may well
//! contain nothing but `1.10`. Everywhere else the text is read, and stays text if that fails.

use serde_json::Value;

use super::json::Json;
use super::scan::strip;

/// The schemas of one tool's arguments, if they are known.
pub(super) struct Parameters<'a>(Option<&'a Value>);

impl<'a> Parameters<'a> {
    /// Those of the tool with that name.
    pub(super) fn of(tools: &'a [Value], name: &str) -> Self {
        let mut functions = tools.iter().map(|tool| tool.get("function").unwrap_or(tool));
        let function = functions.find(|it| it.get("name").is_some_and(|it| it == name));
        Self(function.and_then(|it| it.pointer("/parameters/properties")))
    }

    /// The value that is written as `text`, which `read` may understand without the white space around it.
    pub(super) fn value(&self, key: &str, text: &str, read: fn(&str) -> Option<Json>) -> Json {
        let admits = |kind| self.0.and_then(|it| it.get(key)).is_some_and(|schema| admits(schema, kind));
        let is_meant = |value: &Json| !admits("string") || (*value == Json::Null && admits("null"));
        read(strip(text)).filter(is_meant).unwrap_or_else(|| Json::Text(text.to_owned()))
    }
}

/// Whether a schema says that a value may be a string, or null.
fn admits(schema: &Value, kind: &str) -> bool {
    let is_kind = |value: &Value| match kind {
        "string" => value.is_string(),
        _ => value.is_null(),
    };
    let listed = |key: &str| schema.get(key).and_then(Value::as_array).into_iter().flatten();
    schema.get("type").is_some_and(|it| it == kind)
        || listed("type").any(|it| it == kind)
        || listed("enum").any(is_kind)
        || ["anyOf", "oneOf", "allOf"].into_iter().flat_map(listed).any(|it| admits(it, kind))
}
