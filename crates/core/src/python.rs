//! How CPython writes floats and JSON, and reads escapes in strings.
//!
//! Chat templates and tool-call formats grew up beside `json.dumps` and `repr`, so prompts contain
//! their exact bytes. Owns these; reading JSON is left to `serde_json` and `chat::parse`.
//!
//! One thing cannot be told apart here: `serde_json` reads an integer beyond 64 bits, and `-0`, as
//! a float, so such a `Value` is written as a float.

use std::fmt::Write;

use serde_json::Value;

/// What Python's `repr` gives for a float: the shortest digits that read back as the same number,
/// in exponent form below 1e-4 and from 1e16 on.
pub fn float_repr(number: f64) -> String {
    if number.is_nan() {
        return "nan".to_owned();
    }
    let shortest = format!("{number:?}");
    let mantissa = shortest.split('e').next().unwrap_or_default();
    let n = mantissa.split_once('.').map_or(0, |(_, decimals)| decimals.len());
    // Of two numbers as short and as near, Python takes the even one.
    let even = if shortest.contains('e') { format!("{number:.n$e}") } else { format!("{number:.n$}") };
    let text = if even.parse() == Ok(number) { even } else { shortest };
    let Some((digits, exponent)) = text.split_once('e') else { return text };
    let (sign, exponent) = exponent.strip_prefix('-').map_or(('+', exponent), |it| ('-', it));
    format!("{digits}e{sign}{exponent:0>2}")
}

/// The arguments of `json.dumps` that change what is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JsonStyle {
    /// Write everything beyond printable ASCII as `\uXXXX`.
    pub ensure_ascii: bool,
    /// What one level of nesting is indented by; without it everything is on one line.
    pub indent: Option<String>,
    /// Between two items of a list or an object.
    pub item_separator: String,
    /// Between a key and its value.
    pub key_separator: String,
    /// Write keys in the order of their code points instead of the order they were given in.
    pub sort_keys: bool,
}

impl Default for JsonStyle {
    /// `json.dumps(value)`.
    fn default() -> Self {
        Self {
            ensure_ascii: true,
            indent: None,
            item_separator: ", ".to_owned(),
            key_separator: ": ".to_owned(),
            sort_keys: false,
        }
    }
}

impl JsonStyle {
    /// `json.dumps(value, ensure_ascii=False)`: the `tojson` of transformers' chat templates.
    pub fn transformers() -> Self {
        Self { ensure_ascii: false, ..Self::default() }
    }

    /// The style with `indent=` given and `separators=` not: items then end in a bare comma.
    /// Python's integer indents are that many spaces.
    pub fn indented(self, indent: impl Into<String>) -> Self {
        Self { indent: Some(indent.into()), item_separator: ",".to_owned(), ..self }
    }
}

/// `json.dumps(value, ensure_ascii=False)`.
pub fn dumps(value: &Value) -> String {
    json_dumps(value, &JsonStyle::transformers())
}

/// What Python's `json.dumps` gives for a value.
pub fn json_dumps(value: &Value, style: &JsonStyle) -> String {
    nested(value, style, 0)
}

/// The same inside so many lists and objects.
fn nested(value: &Value, style: &JsonStyle, depth: usize) -> String {
    let inside = |value: &Value| nested(value, style, depth + 1);
    match value {
        Value::Null | Value::Bool(_) => value.to_string(),
        Value::Number(number) => {
            let float = number.as_f64().filter(|_| number.is_f64());
            float.map_or_else(|| number.to_string(), float_repr)
        }
        Value::String(text) => json_string(text, style.ensure_ascii),
        Value::Array(items) => container(['[', ']'], items.iter().map(inside), style, depth),
        Value::Object(fields) => {
            let mut fields: Vec<_> = fields.iter().collect();
            if style.sort_keys {
                fields.sort_by_key(|&(key, _)| key);
            }
            let field = |(key, value): (&String, _)| {
                json_string(key, style.ensure_ascii) + &style.key_separator + &inside(value)
            };
            container(['{', '}'], fields.into_iter().map(field), style, depth)
        }
    }
}

fn container(
    [open, close]: [char; 2],
    items: impl Iterator<Item = String>,
    style: &JsonStyle,
    depth: usize,
) -> String {
    let line = |depth| style.indent.as_ref().map_or_else(String::new, |it| format!("\n{}", it.repeat(depth)));
    let items: Vec<String> = items.collect();
    if items.is_empty() {
        return format!("{open}{close}");
    }
    let separator = style.item_separator.clone() + &line(depth + 1);
    format!("{open}{}{}{}{close}", line(depth + 1), items.join(&separator), line(depth))
}

/// Whether a character is whitespace to Python: four separators more than Unicode's property has.
pub fn is_space(c: char) -> bool {
    c.is_whitespace() || matches!(c, '\u{1c}'..='\u{1f}')
}

/// A text as Python's JSON string, quotes included.
pub fn json_string(text: &str, ensure_ascii: bool) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\0'..' ' => push_utf16(&mut out, c),
            '\u{7f}'.. if ensure_ascii => push_utf16(&mut out, c),
            _ => out.push(c),
        }
    }
    out.push('"');
    out
}

/// Appends a character as `\uXXXX`, as a surrogate pair where one unit is not enough.
fn push_utf16(out: &mut String, c: char) {
    for unit in c.encode_utf16(&mut [0; 2]) {
        // Writing to a string cannot fail.
        let _ = write!(out, "\\u{unit:04x}");
    }
}

/// Appends the character of the escape whose backslash has just been passed and returns what follows it; `None` for
/// one that is broken, or names a character. An unknown escape stands for itself.
pub fn unescape_one<'a>(after: &'a str, out: &mut String) -> Option<&'a str> {
    let mut chars = after.chars();
    let c = chars.next()?;
    match c {
        '\n' => {}
        '\\' | '\'' | '"' => out.push(c),
        'a' => out.push('\u{7}'),
        'b' => out.push('\u{8}'),
        'f' => out.push('\u{c}'),
        'n' => out.push('\n'),
        'r' => out.push('\r'),
        't' => out.push('\t'),
        'v' => out.push('\u{b}'),
        'x' => return hex_escape(chars.as_str(), 2, out),
        'u' => return hex_escape(chars.as_str(), 4, out),
        'U' => return hex_escape(chars.as_str(), 8, out),
        '0'..='7' => {
            let n_digits = after.chars().take(3).take_while(|c| c.is_digit(8)).count();
            out.push(char::from_u32(u32::from_str_radix(&after[..n_digits], 8).ok()?)?);
            return Some(&after[n_digits..]);
        }
        'N' => return None,
        _ => out.extend(['\\', c]),
    }
    Some(chars.as_str())
}

fn hex_escape<'a>(text: &'a str, n_digits: usize, out: &mut String) -> Option<&'a str> {
    let digits = text.get(..n_digits).filter(|it| it.chars().all(|c| c.is_ascii_hexdigit()))?;
    out.push(char::from_u32(u32::from_str_radix(digits, 16).ok()?)?);
    Some(&text[n_digits..])
}
