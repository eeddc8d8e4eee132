//! Methods of Python's `str`.
//!
//! Positions count characters, as in Python. A string marked as safe gives safe strings, and what is
//! put into it is escaped, as MarkupSafe does. `encode`, `translate` and their like are refused:
//! templates have no use for them.

use std::ops::Range;

use minijinja::{Error, Value};

use super::args::{Args, as_int, as_str};
use super::ops::int;
use super::text::{escape_html, is_printable};
use super::value::{Py, SeqKind, fail, iterate, like, list, py, seq, type_name};
use super::{format, is_space, room};

/// The methods a string has.
pub(super) const NAMES: &[&str] = &[
    "capitalize",
    "casefold",
    "center",
    "count",
    "encode",
    "endswith",
    "expandtabs",
    "find",
    "format",
    "format_map",
    "index",
    "isalnum",
    "isalpha",
    "isascii",
    "isdecimal",
    "isdigit",
    "isidentifier",
    "islower",
    "isnumeric",
    "isprintable",
    "isspace",
    "istitle",
    "isupper",
    "join",
    "ljust",
    "lower",
    "lstrip",
    "maketrans",
    "partition",
    "removeprefix",
    "removesuffix",
    "replace",
    "rfind",
    "rindex",
    "rjust",
    "rpartition",
    "rsplit",
    "rstrip",
    "split",
    "splitlines",
    "startswith",
    "strip",
    "swapcase",
    "title",
    "translate",
    "upper",
    "zfill",
];

/// `text.name(args)`; `this` is the value the text comes from.
pub(super) fn call(this: &Value, text: &str, name: &str, args: &Args) -> Result<Value, Error> {
    if let Some(result) = query(text, name) {
        args.bind([])?;
        return Ok(Value::from(result));
    }
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
        "partition" | "rpartition" => partition(this, text, name, args),
        "startswith" | "endswith" => affix(text, name, args),
        "find" | "rfind" | "index" | "rindex" | "count" => search(text, name, args),
        "replace" => replace_method(this, text, args),
        "join" => join_method(this, text, args),
        "removeprefix" | "removesuffix" => remove_affix(this, text, name, args),
        "ljust" | "rjust" | "center" | "zfill" => justify(this, text, name, args),
        "expandtabs" => expand_tabs(this, text, args),
        "format" => format::braces(this, text, args),
        _ => fail(format!("the string method '{name}' is not supported, or there is none")),
    }
}

/// Questions about a whole string.
fn query(text: &str, name: &str) -> Option<bool> {
    let all = |test: fn(char) -> bool| !text.is_empty() && text.chars().all(test);
    Some(match name {
        "isalnum" => all(char::is_alphanumeric),
        "isalpha" => all(char::is_alphabetic),
        "isascii" => text.is_ascii(),
        "isdecimal" | "isdigit" | "isnumeric" => all(char::is_numeric),
        "isidentifier" => {
            all(|c| c.is_alphanumeric() || c == '_') && !text.starts_with(|c: char| c.is_numeric())
        }
        "islower" => is_cased(text, char::is_lowercase, char::is_uppercase),
        "isupper" => is_cased(text, char::is_uppercase, char::is_lowercase),
        "isprintable" => text.chars().all(is_printable),
        "isspace" => all(is_space),
        "istitle" => text.chars().any(is_letter) && title(text) == text,
        _ => return None,
    })
}

/// Whether there are letters of the wanted case and none of the other.
pub(super) fn is_cased(text: &str, wanted: fn(char) -> bool, other: fn(char) -> bool) -> bool {
    text.chars().any(wanted) && !text.chars().any(other)
}

fn is_letter(c: char) -> bool {
    c.is_lowercase() || c.is_uppercase()
}

fn transform(text: &str, name: &str) -> Option<String> {
    Some(match name {
        "lower" => text.to_lowercase(),
        "casefold" => text.to_lowercase().replace('ß', "ss"),
        "upper" => text.to_uppercase(),
        "title" => title(text),
        "capitalize" => capitalize(text),
        "swapcase" => text.chars().flat_map(swap_case).collect(),
        _ => return None,
    })
}

fn swap_case(c: char) -> Vec<char> {
    if c.is_uppercase() { c.to_lowercase().collect() } else { c.to_uppercase().collect() }
}

/// The first character in upper case, the rest in lower case.
pub(super) fn capitalize(text: &str) -> String {
    let mut chars = text.chars();
    let first = chars.next().into_iter().flat_map(char::to_uppercase);
    first.chain(chars.as_str().to_lowercase().chars()).collect()
}

/// Letters after anything that is no letter in upper case, the others in lower case.
fn title(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut in_word = false;
    for c in text.chars() {
        if in_word {
            out.extend(c.to_lowercase())
        } else {
            out.extend(c.to_uppercase())
        }
        in_word = is_letter(c);
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

fn partition(this: &Value, text: &str, name: &str, args: &Args) -> Result<Value, Error> {
    let args = args.bind(["sep"])?;
    let separator = args.str(0)?;
    if separator.is_empty() {
        return fail("empty separator");
    }
    let cut = if name == "partition" { text.split_once(separator) } else { text.rsplit_once(separator) };
    let parts = match cut {
        Some((before, after)) => [before, separator, after],
        None if name == "partition" => [text, "", ""],
        None => ["", "", text],
    };
    seq(SeqKind::Tuple, parts.into_iter().map(|part| like(this, part.to_owned())).collect())
}

/// The positions from `start` to `stop`, bounds as Python's slices have them.
pub(super) fn bounds(len: usize, start: Option<&Value>, stop: Option<&Value>) -> Result<Range<usize>, Error> {
    let place = |value: Option<&Value>, default: usize| -> Result<usize, Error> {
        let Some(value) = value.filter(|it| !it.is_none()) else { return Ok(default) };
        let at = as_int(value)?;
        let from_start = if at < 0 { at.saturating_add(len as i128) } else { at };
        Ok(usize::try_from(from_start.max(0)).unwrap_or(usize::MAX))
    };
    Ok(place(start, 0)?..place(stop, len)?.min(len))
}

/// The part of `text` between two character positions; nothing where they are out of order.
fn part<'a>(text: &'a str, start: Option<&Value>, stop: Option<&Value>) -> Result<Option<&'a str>, Error> {
    if start.is_none() && stop.is_none() {
        return Ok(Some(text));
    }
    let len = text.chars().count();
    let range = bounds(len, start, stop)?;
    if range.start > len || range.start > range.end {
        return Ok(None);
    }
    let byte = |at: usize| text.char_indices().nth(at).map_or(text.len(), |(byte, _)| byte);
    Ok(text.get(byte(range.start)..byte(range.end)))
}

fn affix(text: &str, name: &str, args: &Args) -> Result<Value, Error> {
    let args = args.bind(["affix", "start", "end"])?;
    let wanted = args.required(0)?;
    let Some(text) = part(text, args.get(1), args.get(2))? else { return Ok(Value::from(false)) };
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
    let args = args.bind(["sub", "start", "end"])?;
    let wanted = args.str(0)?;
    let within = part(text, args.get(1), args.get(2))?;
    if name == "count" {
        return Ok(Value::from(within.map_or(0, |it| count(it, wanted))));
    }
    let found = within.and_then(|it| if name.starts_with('r') { it.rfind(wanted) } else { it.find(wanted) });
    match (found, within) {
        (Some(at), Some(within)) => {
            let n_before = bounds(text.chars().count(), args.get(1), args.get(2))?.start;
            Ok(int((n_before + within[..at].chars().count()) as i128))
        }
        _ if name.ends_with("index") => fail("substring not found"),
        _ => Ok(int(-1)),
    }
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
    let text = as_str(value)?;
    Ok(if this.is_safe() && !value.is_safe() { escape_html(text) } else { text.to_owned() })
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

fn justify(this: &Value, text: &str, name: &str, args: &Args) -> Result<Value, Error> {
    let args = args.bind(["width", "fillchar"])?;
    let width = usize::try_from(as_int(args.required(0)?)?.max(0)).unwrap_or(usize::MAX);
    room(width)?;
    let n_missing = width.saturating_sub(text.chars().count());
    let fill = args.get(1).map_or(Ok(if name == "zfill" { "0" } else { " " }), as_str)?;
    if fill.chars().count() != 1 {
        return fail("the fill character must be exactly one character long");
    }
    let text = match name {
        "ljust" => format!("{text}{}", fill.repeat(n_missing)),
        "rjust" => format!("{}{text}", fill.repeat(n_missing)),
        "center" => center(text, n_missing, width, fill),
        _ => {
            let n_sign = usize::from(text.starts_with(['+', '-']));
            format!("{}{}{}", &text[..n_sign], fill.repeat(n_missing), &text[n_sign..])
        }
    };
    Ok(like(this, text))
}

/// CPython puts the odd space to the left when the width is odd too.
fn center(text: &str, n_missing: usize, width: usize, fill: &str) -> String {
    let n_left = n_missing / 2 + (n_missing & width & 1);
    format!("{}{text}{}", fill.repeat(n_left), fill.repeat(n_missing - n_left))
}

fn expand_tabs(this: &Value, text: &str, args: &Args) -> Result<Value, Error> {
    let size = usize::try_from(args.bind(["tabsize"])?.int(0, 8)?.max(0)).unwrap_or(usize::MAX);
    room(size.saturating_mul(text.matches('\t').count()))?;
    let mut out = String::new();
    let mut column = 0;
    for c in text.chars() {
        match c {
            '\t' if size == 0 => {}
            '\t' => {
                let n_spaces = size - column % size;
                out.extend(std::iter::repeat_n(' ', n_spaces));
                column += n_spaces;
            }
            _ => {
                out.push(c);
                column = if matches!(c, '\n' | '\r') { 0 } else { column + 1 };
            }
        }
    }
    Ok(like(this, out))
}
