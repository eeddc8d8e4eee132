//! Python literals, for formats that carry values as bare text.
//!
//! Reads what `ast.literal_eval` reads as far as JSON can say it: `None`, `True`, numbers, strings,
//! lists, tuples, dictionaries. Sets, bytes and complex numbers are not read, nor is a literal with
//! a comment, a line continuation or a character by name: the text then stays text, which loses
//! nothing.

use super::json::{Fields, Json, MAX_DEPTH, json_float, loads};
use super::scan::looked_at;
use backsight_core::python::unescape_one;

/// The value a bare text means when it is JSON or a Python literal; otherwise it means itself.
pub(super) fn value_of(text: &str) -> Option<Json> {
    loads(text).ok().or_else(|| read(text))
}

/// The value of a text that is one Python literal.
fn read(text: &str) -> Option<Json> {
    looked_at(text.len());
    // Python refuses NUL in a source and rewrites carriage returns.
    if text.contains(['\0', '\r']) {
        return None;
    }
    let mut reader = LiteralReader { text, at: 0, depth: 0 };
    let (mut items, is_tuple) = reader.items("")?;
    match reader.rest() {
        "" if is_tuple => Some(Json::List(items)),
        "" => items.pop(),
        _ => None,
    }
}

struct LiteralReader<'a> {
    text: &'a str,
    at: usize,
    /// How many brackets are open; line breaks are space inside them.
    depth: usize,
}

impl<'a> LiteralReader<'a> {
    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn next(&mut self) -> Option<char> {
        let c = self.peek()?;
        looked_at(c.len_utf8());
        self.at += c.len_utf8();
        Some(c)
    }

    fn take(&mut self, token: &str) -> bool {
        looked_at(1);
        let is_here = self.rest().starts_with(token);
        self.at += if is_here { token.len() } else { 0 };
        is_here
    }

    fn take_while(&mut self, wanted: impl Fn(char) -> bool) -> &'a str {
        let rest = self.rest();
        let end = rest.find(|c| !wanted(c)).unwrap_or(rest.len());
        looked_at(end);
        self.at += end;
        &rest[..end]
    }

    fn skip_space(&mut self) {
        let breaks_lines = self.depth > 0;
        self.take_while(|c| matches!(c, ' ' | '\t' | '\u{c}') || (breaks_lines && c == '\n'));
    }

    fn value(&mut self) -> Option<Json> {
        self.skip_space();
        match self.peek()? {
            '(' => self.bracketed(Self::tuple),
            '[' => self.bracketed(Self::list),
            '{' => self.bracketed(Self::dictionary),
            '+' | '-' => self.signed(),
            '.' | '0'..='9' => self.number(),
            '\'' | '"' => self.strings(),
            _ => self.word(),
        }
    }

    /// Reads inside a bracket; the opening one is still ahead.
    fn bracketed(&mut self, read: fn(&mut Self) -> Option<Json>) -> Option<Json> {
        self.next()?;
        self.depth += 1;
        let value = if self.depth <= MAX_DEPTH { read(self) } else { None };
        self.depth -= 1;
        value
    }

    /// Values with commas between them up to `close`, and whether there was any comma.
    fn items(&mut self, close: &str) -> Option<(Vec<Json>, bool)> {
        let mut items = Vec::new();
        let mut has_comma = false;
        loop {
            items.push(self.value()?);
            self.skip_space();
            let goes_on = self.take(",");
            has_comma |= goes_on;
            self.skip_space();
            if !goes_on || self.is_closing(close) {
                return Some((items, has_comma));
            }
        }
    }

    fn is_closing(&self, close: &str) -> bool {
        if close.is_empty() { self.rest().is_empty() } else { self.rest().starts_with(close) }
    }

    fn list(&mut self) -> Option<Json> {
        self.sequence("]").map(|(items, _)| Json::List(items))
    }

    /// One value in parentheses is that value.
    fn tuple(&mut self) -> Option<Json> {
        let (mut items, has_comma) = self.sequence(")")?;
        if has_comma || items.is_empty() { Some(Json::List(items)) } else { items.pop() }
    }

    fn sequence(&mut self, close: &str) -> Option<(Vec<Json>, bool)> {
        self.skip_space();
        if self.take(close) {
            return Some((Vec::new(), false));
        }
        let items = self.items(close)?;
        self.take(close).then_some(items)
    }

    fn dictionary(&mut self) -> Option<Json> {
        let mut fields = Fields::default();
        loop {
            self.skip_space();
            if self.take("}") {
                return Some(Json::Object(fields));
            }
            let key = key_text(self.value()?)?;
            self.skip_space();
            self.take(":").then_some(())?;
            fields.insert(key, self.value()?);
            self.skip_space();
            if !self.take(",") {
                return self.take("}").then_some(Json::Object(fields));
            }
        }
    }

    fn signed(&mut self) -> Option<Json> {
        let is_negative = self.next()? == '-';
        self.skip_space();
        match self.number()? {
            Json::Int(digits) if is_negative => Some(Json::int(&format!("-{digits}"))),
            Json::Float(number) if is_negative => Some(Json::Float(-number)),
            number => Some(number),
        }
    }

    fn number(&mut self) -> Option<Json> {
        let start = self.at;
        self.take_while(|c| c == '.' || c == '_' || c.is_ascii_alphanumeric());
        // A sign belongs to the number only in a decimal exponent.
        let so_far = &self.text[start..self.at];
        if so_far.ends_with(['e', 'E'])
            && !is_based(so_far)
            && self.peek().is_some_and(|c| c == '-' || c == '+')
        {
            self.next();
            self.take_while(|c| c == '_' || c.is_ascii_alphanumeric());
        }
        number_of(&self.text[start..self.at])
    }

    fn word(&mut self) -> Option<Json> {
        match self.take_while(|c| c == '_' || c.is_alphanumeric()) {
            "None" => Some(Json::Null),
            "True" => Some(Json::Bool(true)),
            "False" => Some(Json::Bool(false)),
            "r" | "R" | "u" | "U" if self.is_at_quote() => {
                self.at -= 1;
                self.strings()
            }
            _ => None,
        }
    }

    fn is_at_quote(&self) -> bool {
        self.rest().starts_with(['\'', '"'])
    }

    /// One string or several side by side, which are one.
    fn strings(&mut self) -> Option<Json> {
        let mut out = String::new();
        loop {
            let prefix = self.take_while(|c| c.is_ascii_alphabetic());
            let is_raw = match prefix {
                "" | "u" | "U" => false,
                "r" | "R" => true,
                _ => return None,
            };
            self.string(is_raw, &mut out)?;
            self.skip_space();
            if !self.peek().is_some_and(|c| matches!(c, '\'' | '"') || c.is_ascii_alphabetic()) {
                return Some(Json::Text(out));
            }
        }
    }

    fn string(&mut self, is_raw: bool, out: &mut String) -> Option<()> {
        let quote = ["'''", "\"\"\"", "'", "\""].into_iter().find(|quote| self.take(quote))?;
        let spans_lines = quote.len() == 3;
        while !self.take(quote) {
            match self.next()? {
                '\n' if !spans_lines => return None,
                '\\' if is_raw => out.extend(['\\', self.next()?]),
                '\\' => self.escape(out)?,
                c => out.push(c),
            }
        }
        Some(())
    }

    /// What follows a backslash.
    fn escape(&mut self, out: &mut String) -> Option<()> {
        let rest = unescape_one(self.rest(), out)?;
        let end = self.text.len() - rest.len();
        looked_at(end - self.at);
        self.at = end;
        Some(())
    }
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
    let is_digit = |c: Option<&char>| c.is_some_and(|c| c.is_digit(radix));
    let mut before = None;
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        if c == '_' && !(is_digit(before.as_ref()) && is_digit(rest.peek())) {
            return None;
        }
        before = Some(c);
    }
    (!text.is_empty()).then(|| text.replace('_', ""))
}
