//! JSON as Python's `json.loads` reads it and `json.dumps(ensure_ascii=False)` writes it back.
//!
//! `serde_json` differs where it matters here: integers keep all their digits, `NaN` and
//! `Infinity` are read, a number too large for a float is infinite, and a value can be read from
//! the middle of a text. Half a surrogate pair is refused: no text can hold it.

use std::collections::HashSet;

use indexmap::IndexMap;

use super::scan::{excerpt, find, looked_at, strip_start};
use backsight_core::python::{float_repr, write_json_string};

/// How deep a value may be nested to be read: a little less than `serde_json` allows, so that
/// arguments made of such values can be read there.
pub const MAX_DEPTH: usize = 120;

/// A JSON value.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Json {
    Null,
    Bool(bool),
    /// Decimal digits of any number, with a sign if negative.
    Int(String),
    Float(f64),
    Text(String),
    List(Vec<Json>),
    Object(Fields),
}

/// The fields of an object. A key that comes again replaces the value and keeps the place.
pub(super) type Fields = IndexMap<String, Json>;

impl Json {
    /// What `json.dumps(value, ensure_ascii=False)` gives.
    pub(super) fn dumps(&self) -> String {
        let mut out = String::new();
        self.write(&mut out);
        out
    }

    fn write(&self, out: &mut String) {
        match self {
            Self::Null => out.push_str("null"),
            Self::Bool(true) => out.push_str("true"),
            Self::Bool(false) => out.push_str("false"),
            Self::Int(digits) => out.push_str(digits),
            Self::Float(number) => out.push_str(&json_float(*number)),
            Self::Text(text) => write_json_string(out, text, false),
            Self::List(items) => write_items(out, ['[', ']'], items, |out, item| item.write(out)),
            Self::Object(fields) => write_items(out, ['{', '}'], fields, |out, (key, value)| {
                write_json_string(out, key, false);
                out.push_str(": ");
                value.write(out);
            }),
        }
    }

    /// An integer from decimal digits; zero has no sign.
    pub(super) fn int(digits: &str) -> Self {
        Self::Int(if digits == "-0" { "0" } else { digits }.to_owned())
    }
}

fn write_items<T>(
    out: &mut String,
    [open, close]: [char; 2],
    items: impl IntoIterator<Item = T>,
    write: impl Fn(&mut String, T),
) {
    out.push(open);
    for (idx, item) in items.into_iter().enumerate() {
        out.push_str(if idx > 0 { ", " } else { "" });
        write(out, item);
    }
    out.push(close);
}

/// A float in JSON; Python has words for the ones JSON lacks.
pub(super) fn json_float(number: f64) -> String {
    match number {
        _ if number.is_nan() => "NaN".to_owned(),
        f64::INFINITY => "Infinity".to_owned(),
        f64::NEG_INFINITY => "-Infinity".to_owned(),
        _ => float_repr(number),
    }
}

/// Why a text is no JSON, and where in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BadJson {
    pub(super) at: usize,
    pub(super) why: &'static str,
}

const TOO_DEEP: &str = "nested too deep";

impl BadJson {
    /// What is wrong with `text`, the place counted in characters from one.
    pub(super) fn describe(&self, text: &str) -> String {
        looked_at(self.at);
        let place = text[..self.at].chars().count() + 1;
        format!("{} is no JSON: {} at character {place}", excerpt(text), self.why)
    }
}

/// Reads a text that is one JSON value and whitespace.
pub(super) fn loads(text: &str) -> Result<Json, BadJson> {
    let mut reader = JsonReader::new(text, 0);
    reader.skip_space();
    let value = reader.value(0)?;
    reader.skip_space();
    if reader.at < text.len() { reader.fail("text after the value") } else { Ok(value) }
}

/// Where `marker` is at or after `at`, but not in a string of the value that stands there.
///
/// Asking this of every marker stays linear: markers are no JSON, so of the readings that are under way at one only
/// those inside a string survive it, and the one that begins behind it is not. Those two never fall into step, as
/// [`Containers`] says.
pub(super) fn find_outside(text: &str, marker: &str, at: usize) -> Option<usize> {
    let first = find(text, marker, at)?;
    let end = behind_value(text, at);
    if end > first { find(text, marker, end) } else { Some(first) }
}

/// Behind the value that stands at `at`; `at` where none can be read.
pub(super) fn behind_value(text: &str, at: usize) -> usize {
    let mut reader = JsonReader::new(text, text.len() - strip_start(&text[at..]).len());
    if reader.value(0).is_ok() { reader.at } else { at }
}

/// What stands at an opening bracket.
pub(super) struct Found {
    /// Where the bracket is.
    pub(super) start: usize,
    /// The value that opens there, or why none does.
    pub(super) value: Result<Json, BadJson>,
    /// The brackets that were open when reading failed, the innermost first.
    open: Vec<usize>,
}

impl Found {
    /// What is wrong with a broken object of `text` that was meant as a call. Braces are common in
    /// prose; what was meant as a call opens with a name.
    pub(super) fn complaint(&self, text: &str) -> Option<String> {
        let bad = self.value.as_ref().err()?;
        let is_meant = |&&open: &&usize| strip_start(&text[open + 1..]).starts_with("\"name\"");
        let outermost = *self.open.iter().rev().find(is_meant)?;
        Some(BadJson { at: bad.at - outermost, why: bad.why }.describe(&text[outermost..]))
    }
}

/// Reads the lists and objects that stand anywhere in a text, left to right; those inside a value
/// that could be read are part of it.
///
/// The work is linear. A bracket that a failed reading had open fails for the same reason, so it
/// is not tried again, and a value that is too deep is left behind as far as it was read. What
/// remains to be tried inside a failed reading was either closed, and is then read once more and
/// passed, or stands in one of its strings; and two readings between which a byte changes from
/// string to structure never fall into step, since a backslash or a quote ends one of them.
pub(super) struct Containers<'a> {
    text: &'a str,
    openings: &'static [char],
    at: usize,
    doomed: HashSet<usize>,
}

impl<'a> Containers<'a> {
    /// The containers of `text` that open with one of `openings`.
    pub(super) fn new(text: &'a str, openings: &'static [char]) -> Self {
        Self { text, openings, at: 0, doomed: HashSet::new() }
    }

    /// The next bracket that is not known to fail.
    fn next_opening(&mut self) -> Option<usize> {
        loop {
            let offset = self.text[self.at..].find(self.openings);
            looked_at(offset.map_or(self.text.len() - self.at, |offset| offset + 1));
            let start = self.at + offset?;
            if !self.doomed.remove(&start) {
                return Some(start);
            }
            self.at = start + 1;
        }
    }
}

impl Iterator for Containers<'_> {
    type Item = Found;

    fn next(&mut self) -> Option<Found> {
        let start = self.next_opening()?;
        let mut reader = JsonReader::new(self.text, start);
        let value = reader.value(0);
        self.at = match &value {
            Ok(_) => reader.at,
            Err(bad) if bad.why == TOO_DEEP => bad.at,
            Err(_) => start + 1,
        };
        self.doomed.extend(reader.open.iter().filter(|&&open| open >= self.at));
        Some(Found { start, value, open: reader.open })
    }
}

/// Reads values from the middle of a text.
struct JsonReader<'a> {
    text: &'a str,
    at: usize,
    /// The brackets that were open when reading failed.
    open: Vec<usize>,
}

impl<'a> JsonReader<'a> {
    fn new(text: &'a str, at: usize) -> Self {
        Self { text, at, open: Vec::new() }
    }

    fn fail<T>(&self, why: &'static str) -> Result<T, BadJson> {
        let why = if self.at >= self.text.len() { "the text ends too early" } else { why };
        Err(BadJson { at: self.at, why })
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn advance(&mut self, n_bytes: usize) {
        looked_at(n_bytes);
        self.at += n_bytes;
    }

    /// Passes `token` if it stands here.
    fn take(&mut self, token: &str) -> bool {
        looked_at(1);
        let is_here = self.text[self.at..].starts_with(token);
        self.advance(if is_here { token.len() } else { 0 });
        is_here
    }

    /// Passes the bytes that are as asked and returns them.
    fn take_while(&mut self, wanted: impl Fn(u8) -> bool) -> &'a str {
        let start = self.at;
        let rest = &self.text.as_bytes()[start..];
        self.advance(rest.iter().position(|&byte| !wanted(byte)).unwrap_or(rest.len()));
        &self.text[start..self.at]
    }

    fn skip_space(&mut self) {
        self.take_while(|byte| matches!(byte, b' ' | b'\t' | b'\n' | b'\r'));
    }

    fn value(&mut self, depth: usize) -> Result<Json, BadJson> {
        match self.peek() {
            Some(b'{' | b'[') => self.container(depth),
            Some(b'"') => self.string().map(Json::Text),
            Some(b'-' | b'0'..=b'9') => self.number(),
            _ => self.word(),
        }
    }

    fn container(&mut self, depth: usize) -> Result<Json, BadJson> {
        if depth == MAX_DEPTH {
            return self.fail(TOO_DEEP);
        }
        let start = self.at;
        let is_object = self.take("{");
        let value = if is_object { self.object(depth) } else { self.list(depth) };
        if value.is_err() {
            self.open.push(start);
        }
        value
    }

    fn object(&mut self, depth: usize) -> Result<Json, BadJson> {
        let mut fields = Fields::default();
        self.skip_space();
        if self.take("}") {
            return Ok(Json::Object(fields));
        }
        loop {
            let key = self.key()?;
            let value = self.value(depth + 1)?;
            fields.insert(key, value);
            if !self.goes_on("}", "expected `,` or `}`")? {
                return Ok(Json::Object(fields));
            }
        }
    }

    /// A key, its colon and the space around it.
    fn key(&mut self) -> Result<String, BadJson> {
        if self.peek() != Some(b'"') {
            return self.fail("expected a key in double quotes");
        }
        let key = self.string()?;
        self.skip_space();
        if !self.take(":") {
            return self.fail("expected `:`");
        }
        self.skip_space();
        Ok(key)
    }

    fn list(&mut self, depth: usize) -> Result<Json, BadJson> {
        self.take("[");
        let mut items = Vec::new();
        self.skip_space();
        if self.take("]") {
            return Ok(Json::List(items));
        }
        loop {
            items.push(self.value(depth + 1)?);
            if !self.goes_on("]", "expected `,` or `]`")? {
                return Ok(Json::List(items));
            }
        }
    }

    /// After an item: whether another follows, or else the container is closed.
    fn goes_on(&mut self, close: &str, why: &'static str) -> Result<bool, BadJson> {
        self.skip_space();
        if self.take(close) {
            return Ok(false);
        }
        if !self.take(",") {
            return self.fail(why);
        }
        self.skip_space();
        Ok(true)
    }

    fn word(&mut self) -> Result<Json, BadJson> {
        let words = [("null", Json::Null), ("true", Json::Bool(true)), ("false", Json::Bool(false))];
        let numbers = [("NaN", f64::NAN), ("Infinity", f64::INFINITY)];
        let numbers = numbers.map(|(word, number)| (word, Json::Float(number)));
        let found = words.into_iter().chain(numbers).find(|(word, _)| self.take(word));
        found.map_or_else(|| self.fail("expected a value"), |(_, value)| Ok(value))
    }

    fn number(&mut self) -> Result<Json, BadJson> {
        if self.take("-Infinity") {
            return Ok(Json::Float(f64::NEG_INFINITY));
        }
        let start = self.at;
        self.take("-");
        // No other digit can follow a leading zero.
        if !self.take("0") && self.digits().is_empty() {
            return self.fail("expected a digit");
        }
        let n_whole = self.at;
        self.fraction();
        self.exponent();
        let text = &self.text[start..self.at];
        match text.parse() {
            Ok(number) if self.at > n_whole => Ok(Json::Float(number)),
            _ => Ok(Json::int(text)),
        }
    }

    fn digits(&mut self) -> &'a str {
        self.take_while(|byte| byte.is_ascii_digit())
    }

    /// A point with digits; without digits the point is not part of the number.
    fn fraction(&mut self) {
        let start = self.at;
        if self.take(".") && self.digits().is_empty() {
            self.at = start;
        }
    }

    /// An `e` with digits; without digits it is not part of the number.
    fn exponent(&mut self) {
        let start = self.at;
        if !self.take("e") && !self.take("E") {
            return;
        }
        let _signed = self.take("-") || self.take("+");
        if self.digits().is_empty() {
            self.at = start;
        }
    }

    fn string(&mut self) -> Result<String, BadJson> {
        let start = self.at;
        self.take("\"");
        loop {
            self.take_while(|byte| byte >= b' ' && byte != b'"' && byte != b'\\');
            match self.peek() {
                Some(b'"') => break,
                Some(b'\\') => self.escape(),
                _ => return self.fail("unescaped control character"),
            }
        }
        self.take("\"");
        serde_json::from_str(&self.text[start..self.at]).map_err(|error| {
            // There is no line break in it, so the column is the place.
            BadJson { at: start + error.column() - 1, why: "a broken escape" }
        })
    }

    /// Passes a backslash and the character behind it.
    fn escape(&mut self) {
        let escaped = self.text[self.at + 1..].chars().next();
        self.advance(1 + escaped.map_or(0, char::len_utf8));
    }
}
