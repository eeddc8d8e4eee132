//! What is wrong with a piece of foreign data, and on which line.

use std::fmt;

use serde_json::{Map, Value};

use backsight_chat::messages::kind;
use backsight_core::episode::Subtask;
use backsight_core::subtasks::read_plan;

/// A reason, and the line it was found on where lines mean something.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}{why}", line.map(|line| format!("line {line}: ")).unwrap_or_default())]
pub struct Fault {
    /// From 1.
    pub line: Option<usize>,
    /// What is wrong.
    pub why: String,
}

impl Fault {
    /// A fault of the whole.
    pub fn new(why: impl fmt::Display) -> Self {
        Self { line: None, why: why.to_string() }
    }

    /// A fault on a line, counted from 1.
    pub fn at(line: usize, why: impl fmt::Display) -> Self {
        Self { line: Some(line), why: why.to_string() }
    }

    /// A fault in a text of several lines that is no JSON, or not the JSON it should be.
    pub fn json(error: &serde_json::Error) -> Self {
        Self::at(error.line().max(1), reason(error))
    }

    /// The same fault, found on `line` unless it knows better.
    #[must_use]
    pub fn on(self, line: usize) -> Self {
        Self { line: self.line.or(Some(line)), ..self }
    }
}

/// What serde_json says, without the line it says it about.
fn reason(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let text = text.split(" at line ").next().unwrap_or(&text);
    if error.is_data() { text.to_owned() } else { format!("not JSON: {text}") }
}

/// Reads one line of JSON Lines, which must be an object.
pub fn object_on_line(line: usize, text: &str) -> Result<Map<String, Value>, Fault> {
    match serde_json::from_str(text) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(other) => Err(Fault::at(line, format_args!("must be an object, not {}", kind(&other)))),
        Err(error) => Err(Fault::at(line, reason(&error))),
    }
}

/// The number under a key. It may be left out but not be null.
pub fn number(json: &Map<String, Value>, key: &str) -> Result<Option<f64>, Fault> {
    json.contains_key(key).then(|| required(json, key, "a number", Value::as_f64)).transpose()
}

/// The string under a key; null counts as left out.
pub fn text(json: &Map<String, Value>, key: &str) -> Result<Option<String>, Fault> {
    optional(json, key, "a string", |it| it.as_str().map(str::to_owned))
}

/// Names with numbers under a key, in their order; none where the key is left out.
pub fn numbers(json: &Map<String, Value>, key: &str) -> Result<Vec<(String, f64)>, Fault> {
    if !json.contains_key(key) {
        return Ok(Vec::new());
    }
    let score = |(name, value): (&String, &Value)| match value.as_f64() {
        Some(number) => Ok((name.clone(), number)),
        None => Err(wrong(&format!("{key}.{name}"), "a number", value)),
    };
    required(json, key, "an object of numbers", Value::as_object)?.iter().map(score).collect()
}

/// The plan under `plan`. An empty one says no more than none.
pub fn plan(json: &Map<String, Value>) -> Result<Option<Vec<Subtask>>, Fault> {
    let list = optional(json, "plan", "a list of subtasks", Value::as_array)?;
    let Some(list) = list.filter(|list| !list.is_empty()) else { return Ok(None) };
    let plan = read_plan(list);
    plan.map(Some).ok_or_else(|| Fault::new("`plan` must be a list of names or of objects with an `id`"))
}

/// What `read` makes of the value under a key, which must be `expected`.
pub fn required<'j, T>(
    json: &'j Map<String, Value>,
    key: &str,
    expected: &str,
    read: impl Fn(&'j Value) -> Option<T>,
) -> Result<T, Fault> {
    let value = json.get(key).unwrap_or(&Value::Null);
    read(value).ok_or_else(|| wrong(key, expected, value))
}

/// The same where the value may be left out or null.
pub fn optional<'j, T>(
    json: &'j Map<String, Value>,
    key: &str,
    expected: &str,
    read: impl Fn(&'j Value) -> Option<T>,
) -> Result<Option<T>, Fault> {
    let is_given = json.get(key).is_some_and(|value| !value.is_null());
    is_given.then(|| required(json, key, expected, read)).transpose()
}

/// "`key` must be this, not that".
pub fn wrong(key: &str, expected: &str, found: &Value) -> Fault {
    Fault::new(format_args!("`{key}` must be {expected}, not {}", kind(found)))
}
