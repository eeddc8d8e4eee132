//! Methods of Python's `str`.
//!
//! Positions count characters, as in Python. A string marked as safe gives safe strings, and what is
//! put into it is escaped, as MarkupSafe does. Methods that no known template calls are refused.

use minijinja::{Error, Value};

use super::args::{Args, Bound, as_str};
use super::ops::int;
use super::room;
use super::text::{escape_html, to_str};
use super::value::{Py, SeqKind, fail, iterate, like, list, py, type_name};
use backsight_core::python::is_space;

/// `text.name(args)`; `this` is the value the text comes from.
pub(super) fn call(this: &Value, text: &str, name: &str, args: &Args) -> Result<Value, Error> {
    if let Some(result) = transform(text, name) {
        args.bind([])?;
        return Ok(like(this, result));
    }
    match name {
        "strip" | "lstrip" | "rstrip" => strip_method(this, text, name, args),
        "split" | "rsplit" => split_method(this, text, name, args),
        "splitlines" => {
            let keep = args.bind(["keepends"])?.flag(0);
            list(split_lines(text, keep).into_iter().map(|line| like(this, line.to_owned())).collect())
        }
        "startswith" | "endswith" => affix(text, name, args),
        "find" | "rfind" | "count" => search(text, name, args),
        "replace" => replace_method(this, text, args),
        "join" => join_method(this, text, args),
        "removeprefix" | "removesuffix" => remove_affix(this, text, name, args),
        "format" => format(this, text, args),
        _ => fail(format!("the string method `{name}` is not supported, or there is none")),
    }
}

fn transform(text: &str, name: &str) -> Option<String> {
    Some(match name {
        "lower" => text.to_lowercase(),
        "upper" => text.to_uppercase(),
        "title" => title(text, |c| !(c.is_lowercase() || c.is_uppercase())),
        "capitalize" => capitalize(text),
        _ => return None,
    })
}

/// The first character in upper case, the rest in lower case.
fn capitalize(text: &str) -> String {
    let mut chars = text.chars();
    let first = chars.next().into_iter().flat_map(char::to_uppercase);
    first.chain(chars.as_str().to_lowercase().chars()).collect()
}

/// The characters after those that end a word in upper case, the others in lower case.
pub(super) fn title(text: &str, ends_word: impl Fn(char) -> bool) -> String {
    let mut out = String::with_capacity(text.len());
    let mut at_start = true;
    for c in text.chars() {
        if at_start {
            out.extend(c.to_uppercase())
        } else {
            out.extend(c.to_lowercase())
        }
        at_start = ends_word(c);
    }
    out
}

/// Strips the given characters, or white space, from the sides named by the method.
pub(super) fn strip<'a>(text: &'a str, method: &str, chars: Option<&str>) -> &'a str {
    let goes = |c: char| chars.map_or_else(|| is_space(c), |chars| chars.contains(c));
    let text = if method == "rstrip" { text } else { text.trim_start_matches(goes) };
    if method == "lstrip" { text } else { text.trim_end_matches(goes) }
}

fn strip_method(this: &Value, text: &str, name: &str, args: &Args) -> Result<Value, Error> {
    let args = args.bind(["chars"])?;
    let chars = args.some(0).map(as_str).transpose()?;
    Ok(like(this, strip(text, name, chars).to_owned()))
}

fn split_method(this: &Value, text: &str, name: &str, args: &Args) -> Result<Value, Error> {
    let args = args.bind(["sep", "maxsplit"])?;
    let limit = usize::try_from(args.int(1, -1)?).unwrap_or(usize::MAX);
    let from_right = name == "rsplit";
    let parts = match args.some(0).map(as_str).transpose()? {
        Some("") => return fail("empty separator"),
        Some(separator) => split_at(text, separator, limit, from_right),
        None => split_space(text, limit, from_right),
    };
    list(parts.into_iter().map(|part| like(this, part.to_owned())).collect())
}

fn split_at<'a>(text: &'a str, separator: &str, limit: usize, from_right: bool) -> Vec<&'a str> {
    let n_parts = limit.saturating_add(1);
    if from_right {
        let mut parts: Vec<_> = text.rsplitn(n_parts, separator).collect();
        parts.reverse();
        return parts;
    }
    text.splitn(n_parts, separator).collect()
}

/// Splits at runs of white space; what is left after `limit` cuts keeps its other end as it is.
fn split_space(text: &str, limit: usize, from_right: bool) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = trim_side(text, from_right);
    while !rest.is_empty() && parts.len() < limit {
        let (others, part) = if from_right {
            let cut = rest.trim_end_matches(|c| !is_space(c)).len();
            (&rest[..cut], &rest[cut..])
        } else {
            let cut = rest.find(is_space).unwrap_or(rest.len());
            (&rest[cut..], &rest[..cut])
        };
        parts.push(part);
        rest = trim_side(others, from_right);
    }
    parts.extend((!rest.is_empty()).then_some(rest));
    if from_right {
        parts.reverse();
    }
    parts
}

fn trim_side(text: &str, right: bool) -> &str {
    if right { text.trim_end_matches(is_space) } else { text.trim_start_matches(is_space) }
}

/// Python's line boundaries; `\r\n` is one.
pub(super) fn split_lines(text: &str, keep_ends: bool) -> Vec<&str> {
    let is_end = |c: char| {
        matches!(
            c,
            '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}'
        )
    };
    let mut lines = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find(is_end) {
        let n_end = if rest[at..].starts_with("\r\n") {
            2
        } else {
            rest[at..].chars().next().map_or(0, char::len_utf8)
        };
        lines.push(&rest[..if keep_ends { at + n_end } else { at }]);
        rest = &rest[at + n_end..];
    }
    lines.extend((!rest.is_empty()).then_some(rest));
    lines
}

/// What is looked for, in the whole string: bounds behind it are not supported.
fn wanted(name: &str, args: &Args) -> Result<Bound<3>, Error> {
    let args = args.bind(["wanted", "start", "end"])?;
    if args.get(1).or(args.get(2)).is_some() {
        return fail(format!("the string method `{name}` with bounds is not supported"));
    }
    Ok(args)
}

fn affix(text: &str, name: &str, args: &Args) -> Result<Value, Error> {
    let args = wanted(name, args)?;
    let wanted = args.required(0)?;
    let has =
        |affix: &str| if name == "startswith" { text.starts_with(affix) } else { text.ends_with(affix) };
    match py(wanted) {
        Py::Str(affix) => Ok(Value::from(has(affix))),
        Py::Seq(affixes) if affixes.kind == SeqKind::Tuple => {
            let affixes: Vec<_> = affixes.items.iter().map(as_str).collect::<Result<_, _>>()?;
            Ok(Value::from(affixes.into_iter().any(has)))
        }
        _ => fail(format!("{name} first arg must be str or a tuple of str, not {}", type_name(wanted))),
    }
}

fn search(text: &str, name: &str, args: &Args) -> Result<Value, Error> {
    let args = wanted(name, args)?;
    let wanted = args.str(0)?;
    let found = match name {
        "count" => return Ok(Value::from(count(text, wanted))),
        "find" => text.find(wanted),
        _ => text.rfind(wanted),
    };
    Ok(int(found.map_or(-1, |at| text[..at].chars().count() as i128)))
}

fn count(text: &str, wanted: &str) -> usize {
    if wanted.is_empty() { text.chars().count() + 1 } else { text.matches(wanted).count() }
}

/// `text.replace(old, new, limit)`.
pub(super) fn replace(text: &str, old: &str, new: &str, limit: i128) -> Result<String, Error> {
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let n_found = count(text, old).min(limit);
    room(text.len().saturating_add(n_found.saturating_mul(new.len())))?;
    Ok(text.replacen(old, new, limit))
}

fn replace_method(this: &Value, text: &str, args: &Args) -> Result<Value, Error> {
    let args = args.bind(["old", "new", "count"])?;
    let new = put_into(this, args.required(1)?)?;
    let old = put_into(this, args.required(0)?)?;
    Ok(like(this, replace(text, &old, &new, args.int(2, -1)?)?))
}

/// A string as it is put into another one: escaped if only that one is safe.
fn put_into(this: &Value, value: &Value) -> Result<String, Error> {
    as_str(value).map(|text| escaped_in(this, value, text.to_owned()))
}

/// The text of `value`, escaped if only what it is put into is safe.
fn escaped_in(this: &Value, value: &Value, text: String) -> String {
    if this.is_safe() && !value.is_safe() { escape_html(&text) } else { text }
}

fn join_method(this: &Value, text: &str, args: &Args) -> Result<Value, Error> {
    let args = args.bind(["iterable"])?;
    let items = iterate(args.required(0)?)?;
    let parts: Vec<_> = items.iter().map(|item| put_into(this, item)).collect::<Result<_, _>>()?;
    room(parts.len().saturating_mul(text.len()))?;
    Ok(like(this, parts.join(text)))
}

fn remove_affix(this: &Value, text: &str, name: &str, args: &Args) -> Result<Value, Error> {
    let args = args.bind(["affix"])?;
    let affix = args.str(0)?;
    let rest = if name == "removeprefix" { text.strip_prefix(affix) } else { text.strip_suffix(affix) };
    Ok(like(this, rest.unwrap_or(text).to_owned()))
}

/// `text.format(*args, **kwargs)`, where fields name an argument and nothing more.
fn format(this: &Value, text: &str, args: &Args) -> Result<Value, Error> {
    let mut out = String::new();
    let mut rest = text;
    let mut n_unnamed = 0;
    while let Some(at) = rest.find(['{', '}']) {
        out.push_str(&rest[..at]);
        let (brace, after) = rest[at..].split_at(1);
        if let Some(after) = after.strip_prefix(brace) {
            out.push_str(brace);
            rest = after;
            continue;
        }
        let Some((field, after)) = after.split_once('}').filter(|_| brace == "{") else {
            return fail("a single brace in a format string");
        };
        rest = after;
        let value = field_value(field, args, &mut n_unnamed)?;
        out.push_str(&escaped_in(this, &value, to_str(&value)?));
        room(out.len())?;
    }
    out.push_str(rest);
    Ok(like(this, out))
}

fn field_value(field: &str, args: &Args, n_unnamed: &mut usize) -> Result<Value, Error> {
    if field.contains(['!', ':', '.', '[']) {
        return fail(format!("the field `{{{field}}}` in a format string is not supported"));
    }
    let found = match field.parse::<usize>() {
        Ok(at) => args.positional.get(at).cloned(),
        Err(_) if field.is_empty() => {
            *n_unnamed += 1;
            args.positional.get(*n_unnamed - 1).cloned()
        }
        Err(_) => args.keyword(field),
    };
    found.map_or_else(|| fail(format!("the format string asks for {field:?}, which was not given")), Ok)
}
