//! Python's two ways to format: `"%s" % value` and `"{}".format(value)`.
//!
//! Owns both template languages and the writing of numbers with width, sign and precision. Of
//! `str.format`, conversions (`!r`, `!s`), nested fields and indexes into arguments are supported.

use minijinja::{Error, Value};

use super::args::Args;
use super::text::{escape_html, repr, to_str};
use super::value::{Py, Seq, SeqKind, fail, like, py, type_name};
use super::{ops, room};

/// How one value is to be written.
#[derive(Clone, Debug, Default)]
struct Spec {
    fill: Option<char>,
    align: Option<char>,
    sign: Option<char>,
    alternate: bool,
    zero: bool,
    width: usize,
    comma: bool,
    precision: Option<usize>,
    kind: Option<char>,
}

/// `template % values`, marked as safe like the template, values then escaped.
pub(super) fn percent(origin: &Value, template: &str, values: &Value) -> Result<Value, Error> {
    let mut supply = Supply::new(values);
    let mut out = String::new();
    let mut rest = template;
    while let Some((before, after)) = rest.split_once('%') {
        out.push_str(before);
        let (directive, after) = parse_percent(after)?;
        rest = after;
        if directive.spec.kind == Some('%') {
            out.push('%');
            continue;
        }
        let value = supply.take(&directive)?;
        push_value(&mut out, origin, &value, percent_one(&directive.spec, &value)?)?;
    }
    out.push_str(rest);
    supply.check_used_up()?;
    Ok(like(origin, out))
}

/// Adds a formatted value, escaped if only what it is put into is safe.
fn push_value(out: &mut String, origin: &Value, value: &Value, text: String) -> Result<(), Error> {
    out.push_str(&if origin.is_safe() && !value.is_safe() { escape_html(&text) } else { text });
    room(out.len())
}

/// The values that `%` has to place: those of a tuple one by one, or a single one.
struct Supply<'a> {
    values: &'a Value,
    left: Vec<Value>,
    used_keys: bool,
}

impl<'a> Supply<'a> {
    fn new(values: &'a Value) -> Self {
        let mut left = match py(values) {
            Py::Seq(Seq { kind: SeqKind::Tuple, items, .. }) => items.clone(),
            _ => vec![values.clone()],
        };
        left.reverse();
        Self { values, left, used_keys: false }
    }

    fn take(&mut self, directive: &Directive) -> Result<Value, Error> {
        if let Some(key) = &directive.key {
            self.used_keys = true;
            return ops::item(self.values, &Value::from(key.as_str()));
        }
        self.left.pop().map_or_else(|| fail("not enough arguments for format string"), Ok)
    }

    fn check_used_up(&self) -> Result<(), Error> {
        // Whatever has items by key counts as a mapping, and of a mapping nothing need be used.
        let is_mapping = match py(self.values) {
            Py::Seq(seq) => seq.kind != SeqKind::Tuple,
            other => matches!(other, Py::Dict(_) | Py::Undefined),
        };
        if self.left.is_empty() || self.used_keys || is_mapping {
            return Ok(());
        }
        fail("not all arguments converted during string formatting")
    }
}

struct Directive {
    key: Option<String>,
    spec: Spec,
}

/// Reads `(key)flags width .precision kind` after a `%`.
fn parse_percent(text: &str) -> Result<(Directive, &str), Error> {
    let (key, mut rest) = match text.strip_prefix('(').and_then(|it| it.split_once(')')) {
        Some((key, rest)) => (Some(key.to_owned()), rest),
        None => (None, text),
    };
    let mut spec = Spec::default();
    while let Some(flag) = rest.chars().next().filter(|c| "-+ #0".contains(*c)) {
        match flag {
            '-' => spec.align = Some('<'),
            '#' => spec.alternate = true,
            '0' => spec.zero = true,
            _ if spec.sign != Some('+') => spec.sign = Some(flag),
            _ => {}
        }
        rest = &rest[1..];
    }
    spec.width = take_number(&mut rest)?.unwrap_or(0);
    if let Some(after) = rest.strip_prefix('.') {
        rest = after;
        spec.precision = Some(take_number(&mut rest)?.unwrap_or(0));
    }
    rest = rest.strip_prefix(['h', 'l', 'L']).unwrap_or(rest);
    let Some(kind) = rest.chars().next() else { return fail("incomplete format") };
    spec.kind = Some(kind);
    Ok((Directive { key, spec }, &rest[kind.len_utf8()..]))
}

/// Takes the digits at the start of `text`.
fn take_number(text: &mut &str) -> Result<Option<usize>, Error> {
    let n_digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (digits, rest) = text.split_at(n_digits);
    *text = rest;
    if digits.is_empty() {
        return Ok(None);
    }
    match digits.parse() {
        Ok(number) => {
            room(number)?;
            Ok(Some(number))
        }
        Err(_) => fail("a width or precision is too large"),
    }
}

fn percent_one(spec: &Spec, value: &Value) -> Result<String, Error> {
    let default_align = spec.align.or(Some('>'));
    let spec = &Spec { align: default_align, ..spec.clone() };
    match spec.kind {
        Some('s') => Ok(pad(spec, cut(spec, to_str(value)?))),
        Some('r' | 'a') => Ok(pad(spec, cut(spec, repr(value)?))),
        Some('d' | 'i' | 'u') => {
            let whole = match py(value) {
                Py::Float(float) => truncated(float)?,
                _ => integer(value)?,
            };
            write_int(&Spec { kind: Some('d'), ..spec.clone() }, whole)
        }
        Some('x' | 'X' | 'o') => write_int(spec, integer(value)?),
        Some('e' | 'E' | 'f' | 'F' | 'g' | 'G') => write_float(spec, float(value)?),
        Some('c') => match py(value) {
            Py::Str(text) if text.chars().count() == 1 => Ok(pad(spec, text.to_owned())),
            _ => Ok(pad(spec, character(value)?.to_string())),
        },
        kind => fail(format!("unsupported format character {kind:?}")),
    }
}

fn truncated(float: f64) -> Result<i128, Error> {
    if float.is_finite() && float.abs() < 1e38 {
        return Ok(float.trunc() as i128);
    }
    fail("a float is too large to be written as an integer")
}

fn integer(value: &Value) -> Result<i128, Error> {
    match py(value) {
        Py::Int(int) => Ok(int),
        Py::Bool(bool) => Ok(i128::from(bool)),
        _ => fail(format!("an integer is required, not {}", type_name(value))),
    }
}

fn float(value: &Value) -> Result<f64, Error> {
    match py(value) {
        Py::Float(float) => Ok(float),
        Py::Int(int) => Ok(int as f64),
        Py::Bool(bool) => Ok(f64::from(u8::from(bool))),
        _ => fail(format!("must be real number, not {}", type_name(value))),
    }
}

fn character(value: &Value) -> Result<char, Error> {
    let code = integer(value)?;
    match u32::try_from(code).ok().and_then(char::from_u32) {
        Some(c) => Ok(c),
        None => fail(format!("{code} is no character")),
    }
}

/// The first `precision` characters.
fn cut(spec: &Spec, text: String) -> String {
    match spec.precision {
        Some(precision) => text.chars().take(precision).collect(),
        None => text,
    }
}

fn pad(spec: &Spec, text: String) -> String {
    let n_missing = spec.width.saturating_sub(text.chars().count());
    let n_left = match spec.align {
        Some('>') => n_missing,
        Some('^') => n_missing / 2,
        _ => 0,
    };
    let fill = |n: usize| std::iter::repeat_n(spec.fill.unwrap_or(' '), n).collect::<String>();
    format!("{}{text}{}", fill(n_left), fill(n_missing - n_left))
}

/// Puts a number together from its sign and digits; zeros go between the two.
fn signed(spec: &Spec, is_negative: bool, prefix: &str, digits: &str) -> String {
    let sign = match spec.sign {
        _ if is_negative => "-",
        Some('+') => "+",
        Some(' ') => " ",
        _ => "",
    };
    let fills_zeros = spec.zero && !matches!(spec.align, Some('<' | '^')) || spec.align == Some('=');
    let n_given = sign.len() + prefix.len() + digits.chars().count();
    let n_zeros = if fills_zeros { spec.width.saturating_sub(n_given) } else { 0 };
    let fill = if spec.align == Some('=') { spec.fill.unwrap_or('0') } else { '0' };
    let zeros: String = std::iter::repeat_n(fill, n_zeros).collect();
    pad(spec, format!("{sign}{prefix}{zeros}{digits}"))
}

fn write_int(spec: &Spec, value: i128) -> Result<String, Error> {
    let size = value.unsigned_abs();
    let (prefix, digits) = match spec.kind {
        Some('x') => ("0x", format!("{size:x}")),
        Some('X') => ("0X", format!("{size:X}")),
        Some('o') => ("0o", format!("{size:o}")),
        Some('b') => ("0b", format!("{size:b}")),
        _ => ("", size.to_string()),
    };
    let n_digits = spec.precision.unwrap_or(0);
    let digits = if spec.comma { thousands(&digits) } else { format!("{digits:0>n_digits$}") };
    Ok(signed(spec, value < 0, if spec.alternate { prefix } else { "" }, &digits))
}

fn thousands(digits: &str) -> String {
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let mut out = String::new();
    for (idx, c) in whole.chars().enumerate() {
        if idx > 0 && (whole.len() - idx).is_multiple_of(3) {
            out.push(',');
        }
        out.push(c);
    }
    if fraction.is_empty() { out } else { format!("{out}.{fraction}") }
}

fn write_float(spec: &Spec, value: f64) -> Result<String, Error> {
    let size = value.abs();
    let precision = spec.precision.unwrap_or(6);
    let digits = match spec.kind {
        _ if value.is_nan() => "nan".to_owned(),
        _ if value.is_infinite() => "inf".to_owned(),
        Some('e' | 'E') => exponent_form(size, precision),
        Some('f' | 'F') => format!("{size:.precision$}"),
        Some('%') => format!("{:.precision$}%", size * 100.0),
        _ => general_form(size, precision.max(1), spec.alternate),
    };
    let digits = if matches!(spec.kind, Some('E' | 'F' | 'G')) { digits.to_uppercase() } else { digits };
    let digits = if spec.comma { thousands(&digits) } else { digits };
    Ok(signed(spec, value.is_sign_negative() && !value.is_nan(), "", &digits))
}

/// `1.5e+03`.
fn exponent_form(size: f64, precision: usize) -> String {
    let text = format!("{size:.precision$e}");
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{mantissa}e{sign}{:02}", exponent.unsigned_abs())
}

/// The shorter of the two other forms, without trailing zeros.
fn general_form(size: f64, precision: usize, keeps_zeros: bool) -> String {
    let scientific = exponent_form(size, precision - 1);
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let strip = |text: &str| match text.contains('.') && !keeps_zeros {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text.to_owned(),
    };
    if (-4..precision as i32).contains(&exponent) {
        let n_after = (precision as i32 - 1 - exponent).max(0) as usize;
        return strip(&format!("{size:.n_after$}"));
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{}e{sign}{:02}", strip(mantissa), exponent.unsigned_abs())
}

/// `template.format(*args, **kwargs)`.
pub(super) fn braces(origin: &Value, template: &str, args: &Args) -> Result<Value, Error> {
    let mut out = String::new();
    let mut rest = template;
    let mut next_arg = 0;
    while let Some(at) = rest.find(['{', '}']) {
        out.push_str(&rest[..at]);
        let brace = &rest[at..=at];
        let after = &rest[at + 1..];
        if let Some(after) = after.strip_prefix(brace) {
            out.push_str(brace);
            rest = after;
            continue;
        }
        let Some((field, after)) = after.split_once('}').filter(|_| brace == "{") else {
            return fail("a single brace in a format string");
        };
        rest = after;
        let (value, text) = format_field(field, args, &mut next_arg)?;
        push_value(&mut out, origin, &value, text)?;
    }
    out.push_str(rest);
    Ok(like(origin, out))
}

/// The value a replacement field means, and its text.
fn format_field(field: &str, args: &Args, next_arg: &mut usize) -> Result<(Value, String), Error> {
    let (path, spec) = field.split_once(':').unwrap_or((field, ""));
    let (path, conversion) = path.split_once('!').unwrap_or((path, ""));
    let value = lookup_field(path, args, next_arg)?;
    let value = match conversion {
        "" => value,
        "s" => Value::from(to_str(&value)?),
        "r" | "a" => Value::from(repr(&value)?),
        _ => return fail(format!("unknown conversion {conversion:?}")),
    };
    let text = format_one(&parse_spec(spec)?, &value)?;
    Ok((value, text))
}

fn lookup_field(path: &str, args: &Args, next_arg: &mut usize) -> Result<Value, Error> {
    let n_head = path.find(['.', '[']).unwrap_or(path.len());
    let (head, mut rest) = path.split_at(n_head);
    let mut value = match head.parse::<usize>() {
        Ok(at) => args.positional().get(at).cloned(),
        Err(_) if head.is_empty() => {
            *next_arg += 1;
            args.positional().get(*next_arg - 1).cloned()
        }
        Err(_) => args.keyword(head),
    };
    while let (Some(current), false) = (&value, rest.is_empty()) {
        let (key, after) = match rest.strip_prefix('[').and_then(|it| it.split_once(']')) {
            Some((key, after)) => (key, after),
            None => {
                let name = rest.strip_prefix('.').unwrap_or(rest);
                name.split_at(name.find(['.', '[']).unwrap_or(name.len()))
            }
        };
        let key = key.parse::<i64>().map_or_else(|_| Value::from(key), Value::from);
        value = Some(ops::item(current, &key)?);
        rest = after;
    }
    match value {
        Some(value) => Ok(value),
        None => fail(format!("the format string asks for {head:?}, which was not given")),
    }
}

/// Reads `[[fill]align][sign][#][0][width][,][.precision][kind]`.
fn parse_spec(text: &str) -> Result<Spec, Error> {
    let (mut spec, mut rest) = parse_alignment(text);
    if let Some(sign) = rest.chars().next().filter(|c| "+- ".contains(*c)) {
        spec.sign = Some(sign);
        rest = &rest[1..];
    }
    spec.alternate = take(&mut rest, '#');
    spec.zero = take(&mut rest, '0');
    spec.width = take_number(&mut rest)?.unwrap_or(0);
    spec.comma = take(&mut rest, ',');
    if take(&mut rest, '.') {
        spec.precision = take_number(&mut rest)?;
    }
    let mut kind = rest.chars();
    spec.kind = kind.next();
    if kind.next().is_some() {
        return fail(format!("invalid format specifier {text:?}"));
    }
    Ok(spec)
}

/// Reads `[[fill]align]` and gives what follows.
fn parse_alignment(text: &str) -> (Spec, &str) {
    let is_align = |c: &char| "<>^=".contains(*c);
    let mut chars = text.chars();
    match (chars.next(), chars.next()) {
        (Some(fill), Some(align)) if is_align(&align) => {
            (Spec { fill: Some(fill), align: Some(align), ..Spec::default() }, chars.as_str())
        }
        (Some(align), _) if is_align(&align) => (Spec { align: Some(align), ..Spec::default() }, &text[1..]),
        _ => (Spec::default(), text),
    }
}

fn take(text: &mut &str, c: char) -> bool {
    let after = text.strip_prefix(c);
    *text = after.unwrap_or(text);
    after.is_some()
}

fn format_one(spec: &Spec, value: &Value) -> Result<String, Error> {
    let as_number = Spec { align: spec.align.or(Some('>')), ..spec.clone() };
    match (py(value), spec.kind) {
        (Py::Str(text), None | Some('s')) => Ok(pad(spec, cut(spec, text.to_owned()))),
        (Py::Int(_) | Py::Bool(_), Some('d' | 'x' | 'X' | 'o' | 'b')) => {
            write_int(&as_number, integer(value)?)
        }
        (Py::Int(int), None) => write_int(&as_number, int),
        (Py::Int(_), Some('c')) => Ok(pad(spec, character(value)?.to_string())),
        (Py::Float(_), None) if spec.precision.is_none() => {
            let text = to_str(value)?;
            let digits = text.strip_prefix('-').unwrap_or(&text);
            Ok(signed(&as_number, text.starts_with('-'), "", digits))
        }
        (Py::Float(_) | Py::Int(_) | Py::Bool(_), Some('e' | 'E' | 'f' | 'F' | 'g' | 'G' | '%'))
        | (Py::Float(_), None) => write_float(&as_number, float(value)?),
        (_, None) if spec.width == 0 && spec.precision.is_none() => to_str(value),
        (Py::Bool(_), None) => Ok(pad(&as_number, to_str(value)?)),
        _ => fail(format!("unsupported format for '{}'", type_name(value))),
    }
}
