//! Python's `str()` and `repr()` of values.
//!
//! Owns what a template prints and what `~`, `join` and `string` make of things that are no strings.

use std::fmt::Write;

use minijinja::{Error, Value};

use super::value::{Dict, Py, Seq, SeqKind, fail, py};
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
    let mut out = String::new();
    write_repr(&mut out, value)?;
    Ok(out)
}

fn write_repr(out: &mut String, value: &Value) -> Result<(), Error> {
    match py(value) {
        Py::Undefined => out.push_str("Undefined"),
        Py::None => out.push_str("None"),
        Py::Bool(true) => out.push_str("True"),
        Py::Bool(false) => out.push_str("False"),
        Py::Int(int) => out.push_str(&int.to_string()),
        Py::Float(float) => out.push_str(&float_repr(float)),
        Py::Str(text) if value.is_safe() => {
            out.push_str("Markup(");
            write_quoted(out, text);
            out.push(')');
        }
        Py::Str(text) => write_quoted(out, text),
        Py::Seq(seq) => write_seq(out, seq)?,
        Py::Dict(dict) => write_dict(out, dict)?,
        // Python prints the address of such things, which no prompt can depend on.
        Py::Generator(_) => return fail("a generator cannot be printed; `|list` makes it a list"),
        Py::Other => out.push_str(&value.to_string()),
    }
    Ok(())
}

fn write_seq(out: &mut String, seq: &Seq) -> Result<(), Error> {
    let (open, close) = match seq.kind {
        SeqKind::List => ("[", "]"),
        SeqKind::Tuple if seq.items.len() == 1 => ("(", ",)"),
        SeqKind::Tuple => ("(", ")"),
        // Python prints what they are called there, which no prompt can mean.
        SeqKind::Range | SeqKind::View => {
            return fail("a range or a view of a dict cannot be printed; `|list` makes it a list");
        }
    };
    write_joined(out, [open, close], &seq.items, write_repr)
}

fn write_dict(out: &mut String, dict: &Dict) -> Result<(), Error> {
    write_joined(out, ["{", "}"], dict.entries.values(), |out, (key, value)| {
        write_repr(out, key)?;
        out.push_str(": ");
        write_repr(out, value)
    })
}

fn write_joined<T>(
    out: &mut String,
    [open, close]: [&str; 2],
    items: impl IntoIterator<Item = T>,
    write: impl Fn(&mut String, T) -> Result<(), Error>,
) -> Result<(), Error> {
    out.push_str(open);
    for (idx, item) in items.into_iter().enumerate() {
        out.push_str(if idx > 0 { ", " } else { "" });
        write(out, item)?;
    }
    out.push_str(close);
    Ok(())
}

/// A string as Python's `repr` quotes it: double quotes only around text with single quotes alone.
fn write_quoted(out: &mut String, text: &str) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            _ if c == quote => out.extend(['\\', c]),
            _ if is_printable(c) => out.push(c),
            _ => write_code(out, c),
        }
    }
    out.push(quote);
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
