//! Jinja2's filters on single values: text, numbers, JSON, defaults.
//!
//! Filters on sequences are left to `sequences`.

use minijinja::{Error, State, Value};

use super::args::{Args, as_int, as_str};
use super::ops::int;
use super::text::{escape_html, to_str};
use super::value::{Dict, Py, fail, like, py, to_json, undefined};
use super::{Filter, room, strings};
use backsight_core::python::{JsonStyle, dumps, is_space, json_dumps};

/// The filters of this module by name.
pub(super) const FILTERS: &[(&str, Filter)] = &[
    ("capitalize", |_, value, args| text_method("capitalize", value, args)),
    ("d", default),
    ("default", default),
    ("e", escape),
    ("escape", escape),
    ("indent", |_, value, args| indent(value, args)),
    ("int", |_, value, args| to_int(value, args)),
    ("lower", |_, value, args| text_method("lower", value, args)),
    ("replace", |_, value, args| replace(value, args)),
    ("safe", |_, value, _| Ok(Value::from_safe_string(to_str(value)?))),
    ("string", |_, value, _| soft_str(value)),
    ("title", |_, value, args| title(value, args)),
    ("tojson", |_, value, args| to_json_text(value, args)),
    ("trim", |_, value, args| text_method("strip", value, args)),
    ("upper", |_, value, args| text_method("upper", value, args)),
];

/// `str()` of anything but a string, which stays as it is.
fn soft_str(value: &Value) -> Result<Value, Error> {
    if matches!(py(value), Py::Str(_)) { Ok(value.clone()) } else { Ok(Value::from(to_str(value)?)) }
}

/// A string method applied to the `str()` of a value.
fn text_method(method: &str, value: &Value, args: &Args) -> Result<Value, Error> {
    let text = soft_str(value)?;
    strings::call(&text, text.as_str().unwrap_or_default(), method, args)
}

fn default(_: &mut State<'_, '_>, value: &Value, args: &Args) -> Result<Value, Error> {
    let args = args.bind(["default_value", "boolean"])?;
    if value.is_undefined() || args.flag(1) && !value.is_true() {
        return Ok(args.get(0).cloned().unwrap_or_else(|| Value::from("")));
    }
    Ok(value.clone())
}

fn escape(_: &mut State<'_, '_>, value: &Value, args: &Args) -> Result<Value, Error> {
    args.bind([])?;
    if value.is_safe() {
        return Ok(value.clone());
    }
    Ok(Value::from_safe_string(escape_html(&to_str(value)?)))
}

/// The integer that Python reads from a text, by way of a float if need be: white space around it, underscores
/// between digits.
fn read_int(text: &str) -> Option<Value> {
    let text = strings::strip(text, "strip", None);
    let is_number = text.chars().all(|c| c.is_ascii_digit() || "+-._eE".contains(c));
    if !is_number || text.starts_with('_') || text.ends_with('_') || text.contains("__") {
        return None;
    }
    let text = text.replace('_', "");
    text.parse().map(int).ok().or_else(|| whole(text.parse().ok()?))
}

/// `int()`, then `int(float())`, then the default.
fn to_int(value: &Value, args: &Args) -> Result<Value, Error> {
    let args = args.bind(["default", "base"])?;
    if args.get(1).is_some() {
        return fail("the filter `int` with a base is not supported");
    }
    let default = || args.get(0).cloned().unwrap_or_else(|| Value::from(0));
    match py(value) {
        Py::Undefined => undefined("the integer of"),
        Py::Bool(bool) => Ok(Value::from(i64::from(bool))),
        Py::Int(_) => Ok(value.clone()),
        Py::Float(number) if number.is_infinite() => fail("cannot convert float infinity to integer"),
        Py::Float(number) => Ok(whole(number).unwrap_or_else(default)),
        Py::Str(text) => Ok(read_int(text).unwrap_or_else(default)),
        _ => Ok(default()),
    }
}

fn whole(number: f64) -> Option<Value> {
    (number.is_finite() && number.abs() < 1e38).then(|| int(number.trunc() as i128))
}

fn indent(value: &Value, args: &Args) -> Result<Value, Error> {
    let args = args.bind(["width", "first", "blank"])?;
    let text = match py(value) {
        Py::Undefined => return undefined("`indent` of"),
        _ => as_str(value)?,
    };
    let indent = indentation(args.get(0).unwrap_or(&Value::from(4)))?;
    let text = format!("{text}\n");
    let lines = strings::split_lines(&text, false);
    room(lines.len().saturating_mul(indent.len()))?;
    let lines = lines.into_iter().enumerate().map(|(idx, line)| {
        let is_indented = if idx == 0 { args.flag(1) } else { args.flag(2) || !line.is_empty() };
        if is_indented { format!("{indent}{line}") } else { line.to_owned() }
    });
    Ok(like(value, lines.collect::<Vec<_>>().join("\n")))
}

/// A string, or that many spaces.
fn indentation(value: &Value) -> Result<String, Error> {
    if let Py::Str(text) = py(value) {
        return Ok(text.to_owned());
    }
    let width = usize::try_from(as_int(value)?.max(0)).unwrap_or(usize::MAX);
    room(width)?;
    Ok(" ".repeat(width))
}

fn replace(value: &Value, args: &Args) -> Result<Value, Error> {
    let args = args.bind(["old", "new", "count"])?;
    let limit = args.some(2).map_or(Ok(-1), as_int)?;
    let [old, new] = [to_str(args.required(0)?)?, to_str(args.required(1)?)?];
    Ok(Value::from(strings::replace(&to_str(value)?, &old, &new, limit)?))
}

/// Words start after white space, hyphens and opening brackets.
fn title(value: &Value, args: &Args) -> Result<Value, Error> {
    args.bind([])?;
    let ends_word = |c| is_space(c) || "-({[<".contains(c);
    Ok(Value::from(strings::title(&to_str(value)?, ends_word)))
}

fn to_json_text(value: &Value, args: &Args) -> Result<Value, Error> {
    if args.positional.is_empty()
        && args.keywords.is_empty()
        && let Some(dict) = value.downcast_object_ref::<Dict>()
    {
        return dict_json(value, dict);
    }
    let args = args.bind(["ensure_ascii", "indent", "separators", "sort_keys"])?;
    let mut style = JsonStyle { ensure_ascii: args.flag(0), ..JsonStyle::default() };
    if let Some(indent) = args.some(1) {
        let indent = indentation(indent)?;
        room(indent.len().saturating_mul(1000))?;
        style = style.indented(indent);
    }
    if let Some(separators) = args.some(2) {
        let [item, key] =
            super::value::iterate(separators)?.try_into().or_else(|_| fail("separators must be a pair"))?;
        style.item_separator = as_str(&item)?.to_owned();
        style.key_separator = as_str(&key)?.to_owned();
    }
    style.sort_keys = args.flag(3);
    Ok(Value::from(json_dumps(&to_json(value)?, &style)))
}

/// A dict in the style of `tojson` without arguments, made once.
fn dict_json(value: &Value, dict: &Dict) -> Result<Value, Error> {
    if dict.json.get().is_none() {
        let text = dumps(&to_json(value)?);
        // Whoever was first made the same text.
        let _ = dict.json.set(text);
    }
    Ok(Value::from(dict.json.get().map(String::as_str).unwrap_or_default()))
}
