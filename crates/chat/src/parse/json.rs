//! JSON as Python's `json.loads` reads it and `json.dumps(ensure_ascii=False)` writes it back.
//!
//! `serde_json` differs where it matters here: integers keep all their digits, `NaN` and
//! `Infinity` are read, a number too large for a float is infinite, and a value can be read from
//! the middle of a text. Half a surrogate pair is refused: no text can hold it.

use std::collections::HashSet;

use indexmap::IndexMap;

use super::scan::{Reader, excerpt, find, looked_at, strip_start};
use backsight_core::python::{float_repr, json_string};

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
        match self {
            Self::Null => "null".to_owned(),
            Self::Bool(bool) => bool.to_string(),
            Self::Int(digits) => digits.clone(),
            Self::Float(number) => json_float(*number),
            Self::Text(text) => json_string(text, false),
            Self::List(items) => {
                format!("[{}]", items.iter().map(Self::dumps).collect::<Vec<_>>().join(", "))
            }
            Self::Object(fields) => {
                let fields = fields.iter().map(|(key, it)| json_string(key, false) + ": " + &it.dumps());
                format!("{{{}}}", fields.collect::<Vec<_>>().join(", "))
            }
        }
    }

    /// An integer from decimal digits; zero has no sign.
    pub(super) fn int(digits: &str) -> Self {
        Self::Int(if digits == "-0" { "0" } else { digits }.to_owned())
    }
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
    let mut reader = Reader::new(text, 0);
    skip_space(&mut reader);
    let value = value(&mut reader)?;
    skip_space(&mut reader);
    if reader.peek().is_some() { fail(&reader, "text after the value") } else { Ok(value) }
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
    let mut reader = Reader::new(text, text.len() - strip_start(&text[at..]).len());
    if value(&mut reader).is_ok() { reader.at } else { at }
}

/// What stands at an opening bracket.
pub(super) struct Bracket {
    /// Where the bracket is.
    pub(super) start: usize,
    /// The value that opens there, or why none does.
    pub(super) value: Result<Json, BadJson>,
    /// The brackets that were open when reading failed, the outermost first.
    open: Vec<usize>,
}

impl Bracket {
    /// What is wrong with a broken object of `text` that was meant as a call. Braces are common in
    /// prose; what was meant as a call opens with a name.
    pub(super) fn complaint(&self, text: &str) -> Option<String> {
        let bad = self.value.as_ref().err()?;
        let is_meant = |&&open: &&usize| strip_start(&text[open + 1..]).starts_with("\"name\"");
        let outermost = *self.open.iter().find(is_meant)?;
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
    type Item = Bracket;

    fn next(&mut self) -> Option<Bracket> {
        let start = self.next_opening()?;
        let mut reader = Reader::new(self.text, start);
        let value = value(&mut reader);
        self.at = match &value {
            Ok(_) => reader.at,
            Err(bad) if bad.why == TOO_DEEP => bad.at,
            Err(_) => start + 1,
        };
        self.doomed.extend(reader.open.iter().filter(|&&open| open >= self.at));
        Some(Bracket { start, value, open: reader.open })
    }
}

fn fail<T>(reader: &Reader<'_>, why: &'static str) -> Result<T, BadJson> {
    let why = if reader.peek().is_none() { "the text ends too early" } else { why };
    Err(BadJson { at: reader.at, why })
}

fn skip_space(reader: &mut Reader<'_>) {
    reader.take_while(|c| matches!(c, ' ' | '\t' | '\n' | '\r'));
}

fn value(reader: &mut Reader<'_>) -> Result<Json, BadJson> {
    match reader.peek() {
        Some('{' | '[') => container(reader),
        Some('"') => string(reader).map(Json::Text),
        Some('-' | '0'..='9') => number(reader),
        _ => word(reader),
    }
}

fn container(reader: &mut Reader<'_>) -> Result<Json, BadJson> {
    if reader.open.len() == MAX_DEPTH {
        return fail(reader, TOO_DEEP);
    }
    reader.open.push(reader.at);
    let value = match reader.next() {
        Some('{') => items(reader, field, "}", "expected `,` or `}`").map(Json::Object)?,
        _ => items(reader, value, "]", "expected `,` or `]`").map(Json::List)?,
    };
    reader.open.pop();
    Ok(value)
}

/// What stands between commas up to `close`; `why` is said of anything else that stands there.
fn items<T, Items: Default + Extend<T>>(
    reader: &mut Reader<'_>,
    item: fn(&mut Reader<'_>) -> Result<T, BadJson>,
    close: &str,
    why: &'static str,
) -> Result<Items, BadJson> {
    let mut items = Items::default();
    skip_space(reader);
    if reader.take(close) {
        return Ok(items);
    }
    loop {
        items.extend([item(reader)?]);
        skip_space(reader);
        if reader.take(close) {
            return Ok(items);
        }
        if !reader.take(",") {
            return fail(reader, why);
        }
        skip_space(reader);
    }
}

/// A key and its value.
fn field(reader: &mut Reader<'_>) -> Result<(String, Json), BadJson> {
    if reader.peek() != Some('"') {
        return fail(reader, "expected a key in double quotes");
    }
    let key = string(reader)?;
    skip_space(reader);
    if !reader.take(":") {
        return fail(reader, "expected `:`");
    }
    skip_space(reader);
    Ok((key, value(reader)?))
}

fn word(reader: &mut Reader<'_>) -> Result<Json, BadJson> {
    let words = [("null", Json::Null), ("true", Json::Bool(true)), ("false", Json::Bool(false))];
    let numbers = [("NaN", f64::NAN), ("Infinity", f64::INFINITY)];
    let numbers = numbers.map(|(word, number)| (word, Json::Float(number)));
    let found = words.into_iter().chain(numbers).find(|(word, _)| reader.take(word));
    found.map_or_else(|| fail(reader, "expected a value"), |(_, value)| Ok(value))
}

fn number(reader: &mut Reader<'_>) -> Result<Json, BadJson> {
    if reader.take("-Infinity") {
        return Ok(Json::Float(f64::NEG_INFINITY));
    }
    let start = reader.at;
    reader.take("-");
    // No other digit can follow a leading zero.
    if !reader.take("0") && digits(reader).is_empty() {
        return fail(reader, "expected a digit");
    }
    let n_whole = reader.at;
    with_digits(reader, |reader| reader.take("."));
    with_digits(reader, |reader| {
        let is_exponent = reader.take("e") || reader.take("E");
        let _signed = is_exponent && (reader.take("-") || reader.take("+"));
        is_exponent
    });
    let text = reader.since(start);
    match text.parse() {
        Ok(number) if reader.at > n_whole => Ok(Json::Float(number)),
        _ => Ok(Json::int(text)),
    }
}

fn digits<'a>(reader: &mut Reader<'a>) -> &'a str {
    reader.take_while(|c| c.is_ascii_digit())
}

/// Passes a fraction or an exponent; without digits it is not part of the number.
fn with_digits(reader: &mut Reader<'_>, take: impl Fn(&mut Reader<'_>) -> bool) {
    let start = reader.at;
    if take(reader) && digits(reader).is_empty() {
        reader.at = start;
    }
}

fn string(reader: &mut Reader<'_>) -> Result<String, BadJson> {
    let start = reader.at;
    reader.take("\"");
    loop {
        reader.take_while(|c| c >= ' ' && c != '"' && c != '\\');
        match reader.peek() {
            Some('"') => break,
            // Whatever it is that the backslash escapes.
            Some('\\') => reader.next().and_then(|_| reader.next()),
            _ => return fail(reader, "unescaped control character"),
        };
    }
    reader.take("\"");
    serde_json::from_str(reader.since(start)).map_err(|error| {
        // There is no line break in it, so the column is the place.
        BadJson { at: start + error.column() - 1, why: "a broken escape" }
    })
}
