//! One row of a dataset, and reading its columns.

use serde_json::{Map, Value};

/// A row: its columns by name.
pub type Row = Map<String, Value>;

/// The first of the columns that holds text: a string, or lines as a list.
pub fn text(row: &Row, columns: &[&str]) -> Option<String> {
    columns.iter().filter_map(|column| text_of(row.get(*column)?)).find(|text| !text.trim().is_empty())
}

/// A value as text.
pub fn text_of(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Array(lines) => {
            let lines: Option<Vec<&str>> = lines.iter().map(Value::as_str).collect();
            Some(lines?.join("\n"))
        }
        _ => None,
    }
}

/// The first of the columns that holds a short value.
pub fn word(row: &Row, columns: &[&str]) -> Option<String> {
    columns.iter().find_map(|column| match row.get(*column)? {
        Value::String(text) if !text.is_empty() => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    })
}

/// What a column says in JSON, whether it holds the value itself or its text; none where it holds nothing.
pub fn json(row: &Row, column: &str) -> Result<Option<Value>, String> {
    match row.get(column) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) if text.trim().is_empty() => Ok(None),
        Some(Value::String(text)) => serde_json::from_str(text)
            .map(Some)
            .map_err(|error| format!("its `{column}` is no JSON: {error}")),
        Some(value) => Ok(Some(value.clone())),
    }
}

/// A column's JSON as its author wrote it: numbers of any size stay what they are.
pub fn json_text(row: &Row, column: &str) -> Option<String> {
    match row.get(column)? {
        Value::String(text) => Some(text.clone()),
        value => Some(value.to_string()),
    }
}
