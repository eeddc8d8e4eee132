//! Python's `str()` and `repr()` of values.
//!
//! Owns what a template prints and what `~`, `join` and `string` make of things that are no strings.

use std::fmt::Write;

use minijinja::{Error, Value};

use super::value::{Py, Seq, SeqKind, fail, py};
use backsight_core::python::float_repr;

/// Python's `str()`.
pub(super) fn to_str(value: &Value) -> Result<String, Error> {
    match py(value) {
        Py::Undefined => Ok(String::new()),
        Py::Str(text) => Ok(text.to_owned()),
        _ => repr(value),
    }
}

/// Python's `repr()`.
pub(super) fn repr(value: &Value) -> Result<String, Error> {
    Ok(match py(value) {
        Py::Undefined => "Undefined".to_owned(),
        Py::None => "None".to_owned(),
        Py::Bool(true) => "True".to_owned(),
        Py::Bool(false) => "False".to_owned(),
        Py::Int(int) => int.to_string(),
        Py::Float(float) => float_repr(float),
        Py::Str(text) if value.is_safe() => format!("Markup({})", quoted(text)),
        Py::Str(text) => quoted(text),
        Py::Seq(seq) => repr_of_seq(seq)?,
        Py::Dict(dict) => {
            let entry = |(key, value): &(Value, Value)| Ok(format!("{}: {}", repr(key)?, repr(value)?));
            let entries: Vec<String> = dict.entries.values().map(entry).collect::<Result<_, Error>>()?;
            format!("{{{}}}", entries.join(", "))
        }
        // Python prints the address of such things, which no prompt can depend on.
        Py::Generator(_) => return fail("a generator cannot be printed; `|list` makes it a list"),
        Py::Other => value.to_string(),
    })
}

fn repr_of_seq(seq: &Seq) -> Result<String, Error> {
    let (open, close) = match seq.kind {
        SeqKind::List => ("[", "]"),
        SeqKind::Tuple if seq.items.len() == 1 => ("(", ",)"),
        SeqKind::Tuple => ("(", ")"),
        // Python prints what they are called there, which no prompt can mean.
        SeqKind::Range | SeqKind::View => {
            return fail("a range or a view of a dict cannot be printed; `|list` makes it a list");
        }
    };
    let items: Vec<String> = seq.items.iter().map(repr).collect::<Result<_, _>>()?;
    Ok(format!("{open}{}{close}", items.join(", ")))
}

/// A string as Python's `repr` quotes it: double quotes only around text with single quotes alone.
fn quoted(text: &str) -> String {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    let mut out = String::from(quote);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            _ if c == quote => out.extend(['\\', c]),
            _ if is_printable(c) => out.push(c),
            _ => write_code(&mut out, c),
        }
    }
    out + quote.encode_utf8(&mut [0; 4])
}

fn write_code(out: &mut String, c: char) {
    // Writing to a string cannot fail.
    let _ = match c as u32 {
        code @ 0..=0xff => write!(out, "\\x{code:02x}"),
        code @ 0x100..=0xffff => write!(out, "\\u{code:04x}"),
        code => write!(out, "\\U{code:08x}"),
    };
}

/// Whether Python prints a character as it is.
pub(super) fn is_printable(c: char) -> bool {
    if c.is_ascii() {
        return (' '..='~').contains(&c);
    }
    // Rust's own notion of printable, asked for a character that is not the first of its string
    // because a combining mark at the start would be escaped.
    let pair: String = ['a', c].into_iter().collect();
    !pair.escape_debug().skip(1).any(|escaped| escaped == '\\')
}

/// HTML's five special characters, escaped as MarkupSafe does.
pub(super) fn escape_html(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '\'' => out.push_str("&#39;"),
            '"' => out.push_str("&#34;"),
            _ => out.push(c),
        }
    }
    out
}
