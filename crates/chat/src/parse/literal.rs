//! Python literals, for formats that carry values as bare text.
//!
//! Reads what `ast.literal_eval` reads as far as JSON can say it: `None`, `True`, numbers, strings,
//! lists, tuples, dictionaries. Sets, bytes and complex numbers are not read, nor is a literal with
//! a comment, a line continuation or a character by name: the text then stays text, which loses
//! nothing.

use super::json::{Json, MAX_DEPTH, json_float, loads};
use super::scan::{Reader, looked_at};
use backsight_core::python::unescape_one;

/// The value a bare text means when it is JSON or a Python literal; otherwise it means itself.
pub(super) fn value_of(text: &str) -> Option<Json> {
    loads(text).ok().or_else(|| read(text))
}

/// The value of a text that is one Python literal.
fn read(text: &str) -> Option<Json> {
    looked_at(text.len());
    // Python refuses NUL in a source and rewrites carriage returns.
    if text.trim().is_empty() || text.contains(['\0', '\r']) {
        return None;
    }
    tuple(&mut Reader::new(text, 0), "")
}

/// Passes space; line breaks are space inside brackets.
fn skip_space(reader: &mut Reader<'_>) {
    let breaks_lines = !reader.open.is_empty();
    reader.take_while(|c| matches!(c, ' ' | '\t' | '\u{c}') || (breaks_lines && c == '\n'));
}

fn value(reader: &mut Reader<'_>) -> Option<Json> {
    skip_space(reader);
    match reader.peek()? {
        '(' | '[' | '{' => bracketed(reader),
        '+' | '-' => signed(reader),
        '.' | '0'..='9' => number(reader),
        '\'' | '"' => strings(reader),
        _ => word(reader),
    }
}

/// Reads what is in brackets; the opening one is still ahead.
fn bracketed(reader: &mut Reader<'_>) -> Option<Json> {
    if reader.open.len() == MAX_DEPTH {
        return None;
    }
    reader.open.push(reader.at);
    let value = match reader.next()? {
        '(' => tuple(reader, ")"),
        '[' => items(reader, "]", value).map(|(items, _)| Json::List(items)),
        _ => items(reader, "}", field).map(|(fields, _)| Json::Object(fields.into_iter().collect())),
    };
    reader.open.pop();
    value
}

/// What stands between commas up to `close`, the text's end if that is empty, and whether there was any comma.
fn items<T>(
    reader: &mut Reader<'_>,
    close: &str,
    item: fn(&mut Reader<'_>) -> Option<T>,
) -> Option<(Vec<T>, bool)> {
    let (mut items, mut has_comma) = (Vec::new(), false);
    while !ends(reader, close) {
        items.push(item(reader)?);
        skip_space(reader);
        if !reader.take(",") {
            return ends(reader, close).then_some((items, has_comma));
        }
        has_comma = true;
    }
    Some((items, has_comma))
}

/// Passes space, and `close` if it stands behind that.
fn ends(reader: &mut Reader<'_>, close: &str) -> bool {
    skip_space(reader);
    if close.is_empty() { reader.rest().is_empty() } else { reader.take(close) }
}

/// One value without a comma is that value.
fn tuple(reader: &mut Reader<'_>, close: &str) -> Option<Json> {
    let (mut items, has_comma) = items(reader, close, value)?;
    if has_comma || items.is_empty() { Some(Json::List(items)) } else { items.pop() }
}

fn field(reader: &mut Reader<'_>) -> Option<(String, Json)> {
    let key = key_text(value(reader)?)?;
    skip_space(reader);
    reader.take(":").then_some(())?;
    Some((key, value(reader)?))
}

fn signed(reader: &mut Reader<'_>) -> Option<Json> {
    let is_negative = reader.next()? == '-';
    skip_space(reader);
    match number(reader)? {
        Json::Int(digits) if is_negative => Some(Json::int(&format!("-{digits}"))),
        Json::Float(number) if is_negative => Some(Json::Float(-number)),
        number => Some(number),
    }
}

fn number(reader: &mut Reader<'_>) -> Option<Json> {
    let start = reader.at;
    reader.take_while(|c| c == '.' || c == '_' || c.is_ascii_alphanumeric());
    // A sign belongs to the number only in a decimal exponent.
    let so_far = reader.since(start);
    if so_far.ends_with(['e', 'E']) && !is_based(so_far) && (reader.take("-") || reader.take("+")) {
        reader.take_while(|c| c == '_' || c.is_ascii_alphanumeric());
    }
    number_of(reader.since(start))
}

fn word(reader: &mut Reader<'_>) -> Option<Json> {
    match reader.take_while(|c| c == '_' || c.is_alphanumeric()) {
        "None" => Some(Json::Null),
        "True" => Some(Json::Bool(true)),
        "False" => Some(Json::Bool(false)),
        "r" | "R" | "u" | "U" if reader.rest().starts_with(['\'', '"']) => {
            reader.at -= 1;
            strings(reader)
        }
        _ => None,
    }
}

/// One string or several side by side, which are one.
fn strings(reader: &mut Reader<'_>) -> Option<Json> {
    let mut out = String::new();
    loop {
        let is_raw = match reader.take_while(|c| c.is_ascii_alphabetic()) {
            "" | "u" | "U" => false,
            "r" | "R" => true,
            _ => return None,
        };
        string(reader, is_raw, &mut out)?;
        skip_space(reader);
        if !reader.peek().is_some_and(|c| matches!(c, '\'' | '"') || c.is_ascii_alphabetic()) {
            return Some(Json::Text(out));
        }
    }
}

fn string(reader: &mut Reader<'_>, is_raw: bool, out: &mut String) -> Option<()> {
    let quote = ["'''", "\"\"\"", "'", "\""].into_iter().find(|quote| reader.take(quote))?;
    let spans_lines = quote.len() == 3;
    while !reader.take(quote) {
        match reader.next()? {
            '\n' if !spans_lines => return None,
            '\\' if is_raw => out.extend(['\\', reader.next()?]),
            '\\' => {
                let rest = unescape_one(reader.rest(), out)?;
                reader.advance(reader.rest().len() - rest.len());
            }
            c => out.push(c),
        }
    }
    Some(())
}

/// A dictionary's key as `json.dumps` writes it.
fn key_text(key: Json) -> Option<String> {
    match key {
        Json::Text(text) | Json::Int(text) => Some(text),
        Json::Float(number) => Some(json_float(number)),
        Json::Null | Json::Bool(_) => Some(key.dumps()),
        Json::List(_) | Json::Object(_) => None,
    }
}

/// Whether a number says its base: hexadecimal digits contain an `e`.
fn is_based(text: &str) -> bool {
    matches!(text.as_bytes(), [b'0', b'x' | b'X' | b'o' | b'O' | b'b' | b'B', ..])
}

/// The value of a number without a sign.
fn number_of(text: &str) -> Option<Json> {
    if is_based(text) {
        return based(text);
    }
    let is_float = text.contains(['.', 'e', 'E']);
    let digits = without_underscores(text, 10)?;
    if is_float {
        // Rust reads the words `inf` and `nan` too, but a number opens with a digit or a point.
        return digits.parse().ok().map(Json::Float);
    }
    digits.bytes().all(|byte| byte.is_ascii_digit()).then_some(())?;
    match digits.trim_start_matches('0') {
        "" => Some(Json::int("0")),
        trimmed if trimmed.len() == digits.len() => Some(Json::int(trimmed)),
        _ => None,
    }
}

fn based(text: &str) -> Option<Json> {
    let radix = match text.as_bytes()[1] {
        b'x' | b'X' => 16,
        b'o' | b'O' => 8,
        _ => 2,
    };
    // One underscore may also stand after the base.
    let digits = without_underscores(text[2..].strip_prefix('_').unwrap_or(&text[2..]), radix)?;
    u128::from_str_radix(&digits, radix).ok().map(|number| Json::Int(number.to_string()))
}

/// The digits without the underscores between them; none may stand elsewhere.
fn without_underscores(text: &str, radix: u32) -> Option<String> {
    let is_digit = |c: char| c.is_digit(radix);
    let parts: Vec<&str> = text.split('_').collect();
    let is_between = |pair: &[&str]| pair[0].ends_with(is_digit) && pair[1].starts_with(is_digit);
    (!text.is_empty() && parts.windows(2).all(is_between)).then(|| parts.concat())
}
