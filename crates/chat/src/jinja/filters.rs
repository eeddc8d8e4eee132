//! Jinja2's filters on single values: text, numbers, JSON, defaults.
//!
//! Filters on sequences are left to `sequences`.

use minijinja::{Error, State, Value};

use super::args::{Args, as_int, as_str};
use super::ops::{self, int};
use super::sequences::length_of;
use super::text::{escape_html, to_str};
use super::value::{Dict, Py, fail, like, py, to_json, type_name, undefined};
use super::{Filter, format, room, strings};
use backsight_core::python::{JsonStyle, json_dumps};

/// The filters of this module by name.
pub(super) const FILTERS: &[(&str, Filter)] = &[
    ("abs", abs),
    ("attr", attr),
    ("capitalize", |_, value, args| text_method("capitalize", value, args)),
    ("center", |_, value, args| center(value, args)),
    ("d", default),
    ("default", default),
    ("e", escape),
    ("escape", escape),
    ("float", |_, value, args| float(value, args)),
    ("forceescape", |_, value, _| Ok(Value::from_safe_string(escape_html(&to_str(value)?)))),
    ("format", |_, value, args| printf(value, args)),
    ("indent", |_, value, args| indent(value, args)),
    ("int", |_, value, args| to_int(value, args)),
    ("lower", |_, value, args| text_method("lower", value, args)),
    ("replace", |_, value, args| replace(value, args)),
    ("round", |_, value, args| round(value, args)),
    ("safe", |_, value, _| Ok(Value::from_safe_string(to_str(value)?))),
    ("string", |_, value, _| soft_str(value)),
    ("title", |_, value, args| title(value, args)),
    ("tojson", |_, value, args| to_json_text(value, args)),
    ("trim", |_, value, args| text_method("strip", value, args)),
    ("truncate", |_, value, args| truncate(value, args)),
    ("upper", |_, value, args| text_method("upper", value, args)),
    ("wordcount", |_, value, _| word_count(value)),
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

fn abs(_: &mut State<'_, '_>, value: &Value, args: &Args) -> Result<Value, Error> {
    args.bind([])?;
    match py(value) {
        Py::Int(number) if number < 0 => ops::signed(value, -1),
        Py::Int(_) => Ok(value.clone()),
        Py::Bool(bool) => Ok(Value::from(i64::from(bool))),
        Py::Float(number) => Ok(Value::from(number.abs())),
        _ => fail(format!("bad operand type for abs(): '{}'", type_name(value))),
    }
}

/// Like `value.name`, but never an item of that name.
fn attr(_: &mut State<'_, '_>, value: &Value, args: &Args) -> Result<Value, Error> {
    let args = args.bind(["name"])?;
    match py(value) {
        Py::Dict(_) if !super::methods::has(value, args.str(0)?) => Ok(Value::UNDEFINED),
        _ => ops::attribute(value, args.str(0)?),
    }
}

fn center(value: &Value, args: &Args) -> Result<Value, Error> {
    let width = args.bind(["width"])?.int(0, 80)?;
    text_method("center", value, &Args::new(&[int(width)])?)
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

/// `float()`, or the default where that is not possible.
fn float(value: &Value, args: &Args) -> Result<Value, Error> {
    let args = args.bind(["default"])?;
    let default = || args.get(0).cloned().unwrap_or_else(|| Value::from(0.0));
    match py(value) {
        Py::Undefined => undefined("the float of"),
        Py::Bool(bool) => Ok(Value::from(f64::from(u8::from(bool)))),
        Py::Int(number) => Ok(Value::from(number as f64)),
        Py::Float(_) => Ok(value.clone()),
        Py::Str(text) => Ok(parse_float(text).map_or_else(default, Value::from)),
        _ => Ok(default()),
    }
}

/// Reads a float as Python does: white space around it, underscores between digits.
fn parse_float(text: &str) -> Option<f64> {
    let text = strings::strip(text, "strip", None);
    let has_digits_only = text.chars().all(|c| c.is_ascii_digit() || "+-._eE".contains(c));
    let is_word =
        ["inf", "infinity", "nan"].contains(&text.trim_start_matches(['+', '-']).to_lowercase().as_str());
    if !(has_digits_only || is_word) || text.starts_with('_') || text.ends_with('_') || text.contains("__") {
        return None;
    }
    text.replace('_', "").parse().ok()
}

/// `int()`, then `int(float())`, then the default.
fn to_int(value: &Value, args: &Args) -> Result<Value, Error> {
    let args = args.bind(["default", "base"])?;
    let default = || args.get(0).cloned().unwrap_or_else(|| Value::from(0));
    match py(value) {
        Py::Undefined => undefined("the integer of"),
        Py::Bool(bool) => Ok(Value::from(i64::from(bool))),
        Py::Int(_) => Ok(value.clone()),
        Py::Float(number) if number.is_infinite() => fail("cannot convert float infinity to integer"),
        Py::Float(number) => Ok(whole(number).unwrap_or_else(default)),
        Py::Str(text) => {
            let base = args.int(1, 10)?;
            let parsed = parse_int(text, base).map(int);
            Ok(parsed.or_else(|| whole(parse_float(text)?)).unwrap_or_else(default))
        }
        _ => Ok(default()),
    }
}

fn whole(number: f64) -> Option<Value> {
    (number.is_finite() && number.abs() < 1e38).then(|| int(number.trunc() as i128))
}

fn parse_int(text: &str, base: i128) -> Option<i128> {
    let text = strings::strip(text, "strip", None).to_lowercase();
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => (-1, digits),
        None => (1, text.strip_prefix('+').unwrap_or(&text)),
    };
    let radix = u32::try_from(base).ok().filter(|it| (2..=36).contains(it))?;
    let prefix = match radix {
        2 => "0b",
        8 => "0o",
        16 => "0x",
        _ => "",
    };
    let digits = digits.strip_prefix(prefix).unwrap_or(digits);
    if digits.starts_with(['_', '+', '-']) || digits.ends_with('_') || digits.contains("__") {
        return None;
    }
    i128::from_str_radix(&digits.replace('_', ""), radix).ok()?.checked_mul(sign)
}

fn printf(value: &Value, args: &Args) -> Result<Value, Error> {
    let text = soft_str(value)?;
    let values = match (args.positional(), args.keywords()) {
        (positional, []) => super::value::seq(super::value::SeqKind::Tuple, positional.to_vec())?,
        ([], keywords) => {
            let named = keywords.iter().map(|(name, value)| (Value::from(name.as_str()), value.clone()));
            super::value::dict(named)?
        }
        _ => return fail("can't handle positional and keyword arguments at the same time"),
    };
    format::percent(&text, text.as_str().unwrap_or_default(), &values)
}

fn indent(value: &Value, args: &Args) -> Result<Value, Error> {
    let args = args.bind(["width", "first", "blank"])?;
    let text = match py(value) {
        Py::Undefined => return undefined("`indent` of"),
        _ => as_str(value)?,
    };
    let indent = match args.get(0).map(|it| (it, py(it))) {
        Some((_, Py::Str(indent))) => indent.to_owned(),
        Some((width, _)) => spaces(as_int(width)?)?,
        None => spaces(4)?,
    };
    let text = format!("{text}\n");
    let lines = strings::split_lines(&text, false);
    room(lines.len().saturating_mul(indent.len()))?;
    let lines = lines.into_iter().enumerate().map(|(idx, line)| {
        let is_indented = if idx == 0 { args.flag(1) } else { args.flag(2) || !line.is_empty() };
        if is_indented { format!("{indent}{line}") } else { line.to_owned() }
    });
    Ok(like(value, lines.collect::<Vec<_>>().join("\n")))
}

fn spaces(width: i128) -> Result<String, Error> {
    let width = usize::try_from(width.max(0)).unwrap_or(usize::MAX);
    room(width)?;
    Ok(" ".repeat(width))
}

fn replace(value: &Value, args: &Args) -> Result<Value, Error> {
    let args = args.bind(["old", "new", "count"])?;
    let limit = args.some(2).map_or(Ok(-1), as_int)?;
    let [old, new] = [to_str(args.required(0)?)?, to_str(args.required(1)?)?];
    Ok(Value::from(strings::replace(&to_str(value)?, &old, &new, limit)?))
}

fn round(value: &Value, args: &Args) -> Result<Value, Error> {
    let args = args.bind(["precision", "method"])?;
    let precision = args.int(0, 0)?;
    let method = args.get(1).map_or(Ok("common"), as_str)?;
    let number = match py(value) {
        Py::Float(number) => number,
        Py::Int(_) | Py::Bool(_) if method == "common" => {
            return round_int(as_int(value)?, precision).map(int);
        }
        Py::Int(number) => number as f64,
        Py::Bool(bool) => f64::from(u8::from(bool)),
        Py::Undefined => return undefined("`round` of"),
        _ => return fail(format!("type {} doesn't define __round__ method", type_name(value))),
    };
    let scale = 10f64.powi(precision.clamp(-400, 400) as i32);
    match method {
        "common" => Ok(Value::from(round_half_even(number, precision.clamp(-400, 400) as i32))),
        "ceil" => Ok(Value::from((number * scale).ceil() / scale)),
        "floor" => Ok(Value::from((number * scale).floor() / scale)),
        _ => fail("method must be common, ceil or floor"),
    }
}

/// Rounds to a multiple of a power of ten, halves to the even one.
fn round_int(number: i128, precision: i128) -> Result<i128, Error> {
    let scale = u32::try_from(-precision.min(0)).ok().and_then(|it| 10i128.checked_pow(it));
    let Some(scale) = scale else { return Ok(0) };
    let (below, rest) = (number.div_euclid(scale), number.rem_euclid(scale));
    let rounds_up = rest * 2 > scale || rest * 2 == scale && below % 2 != 0;
    match (below + i128::from(rounds_up)).checked_mul(scale) {
        Some(rounded) => Ok(rounded),
        None => fail("an integer is too large"),
    }
}

/// Rounds the exact decimal value of a float, as Python does.
fn round_half_even(number: f64, precision: i32) -> f64 {
    match usize::try_from(precision) {
        Ok(0) => number.round_ties_even(),
        Ok(n_digits) => format!("{number:.n_digits$}").parse().unwrap_or(number),
        Err(_) => {
            let scale = 10f64.powi(-precision);
            (number / scale).round_ties_even() * scale
        }
    }
}

/// Words start after white space, hyphens and opening brackets.
fn title(value: &Value, args: &Args) -> Result<Value, Error> {
    args.bind([])?;
    let text = to_str(value)?;
    let mut out = String::with_capacity(text.len());
    let mut at_start = true;
    for c in text.chars() {
        if at_start {
            out.extend(c.to_uppercase())
        } else {
            out.extend(c.to_lowercase())
        }
        at_start = super::is_space(c) || "-({[<".contains(c);
    }
    Ok(Value::from(out))
}

fn to_json_text(value: &Value, args: &Args) -> Result<Value, Error> {
    if args.positional().is_empty()
        && args.keywords().is_empty()
        && let Some(dict) = value.downcast_object_ref::<Dict>()
    {
        return dict_json(value, dict);
    }
    let args = args.bind(["ensure_ascii", "indent", "separators", "sort_keys"])?;
    let mut style = JsonStyle { ensure_ascii: args.flag(0), ..JsonStyle::default() };
    if let Some(indent) = args.some(1) {
        let indent =
            if let Py::Str(indent) = py(indent) { indent.to_owned() } else { spaces(as_int(indent)?)? };
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
        let text = json_dumps(&to_json(value)?, &JsonStyle::transformers());
        // Whoever was first made the same text.
        let _ = dict.json.set(text);
    }
    Ok(Value::from(dict.json.get().map(String::as_str).unwrap_or_default()))
}

fn truncate(value: &Value, args: &Args) -> Result<Value, Error> {
    let args = args.bind(["length", "killwords", "end", "leeway"])?;
    let end = args.get(2).map_or(Ok("..."), as_str)?;
    let leeway = args.some(3).map_or(Ok(5), as_int)?;
    let length = args.int(0, 255)?;
    let n_end = end.chars().count() as i128;
    if length < n_end || leeway < 0 {
        return fail("truncate needs a length of at least its end and no negative leeway");
    }
    if length_of(value)? as i128 <= length + leeway {
        return Ok(value.clone());
    }
    let text = as_str(value)?;
    let cut: String = text.chars().take((length - n_end) as usize).collect();
    let kept = if args.flag(1) { &cut } else { cut.rsplit_once(' ').map_or(cut.as_str(), |(kept, _)| kept) };
    Ok(like(value, format!("{kept}{end}")))
}

fn word_count(value: &Value) -> Result<Value, Error> {
    let text = to_str(value)?;
    let words = text.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty());
    Ok(Value::from(words.count()))
}
