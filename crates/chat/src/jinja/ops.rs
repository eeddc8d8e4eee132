//! Python's operators, comparisons and subscripts.
//!
//! Every function here is what one operator of a template is lowered to. Methods are left to
//! `methods` and `strings`.

use std::cmp::Ordering;

use minijinja::{Error, Value};

use super::text::{escape_html, to_str};
use super::value::{Py, Seq, SeqKind, bound_method, fail, iterate, like, py, seq, type_name, undefined};
use super::{methods, room};

/// A binary operator.
pub(super) type Binary = fn(&Value, &Value) -> Result<Value, Error>;

/// The binary operators by the name their filter has.
pub(super) const BINARY: &[(&str, Binary)] = &[
    ("__add", add),
    ("__sub", |a, b| arithmetic("-", a, b, i128::checked_sub, |a, b| a - b)),
    ("__mul", mul),
    ("__div", div),
    ("__floordiv", floor_div),
    ("__mod", modulo),
    ("__in", |item, container| Ok(Value::from(contains(container, item)?))),
    ("__item", item),
];

/// The comparisons by the name of their filter and of the tests that mean the same.
pub(super) const COMPARISONS: &[(&str, &[&str], Binary)] = &[
    ("__eq", &["eq", "equalto", "=="], |a, b| Ok(Value::from(equal(a, b)))),
    ("__ne", &["ne", "!="], |a, b| Ok(Value::from(!equal(a, b)))),
    ("__lt", &["lt", "lessthan", "<"], |a, b| ordered("<", a, b, Ordering::is_lt)),
    ("__le", &["le", "<="], |a, b| ordered("<=", a, b, Ordering::is_le)),
    ("__gt", &["gt", "greaterthan", ">"], |a, b| ordered(">", a, b, Ordering::is_gt)),
    ("__ge", &["ge", ">="], |a, b| ordered(">=", a, b, Ordering::is_ge)),
];

fn ordered(op: &str, a: &Value, b: &Value, wanted: fn(Ordering) -> bool) -> Result<Value, Error> {
    Ok(Value::from(compare(op, a, b)?.is_some_and(wanted)))
}

/// A number as Python's arithmetic sees it; booleans are integers.
#[derive(Clone, Copy)]
enum Num {
    Int(i128),
    Float(f64),
}

impl Num {
    fn of(value: &Value) -> Option<Self> {
        match py(value) {
            Py::Bool(bool) => Some(Self::Int(i128::from(bool))),
            Py::Int(int) => Some(Self::Int(int)),
            Py::Float(float) => Some(Self::Float(float)),
            _ => None,
        }
    }

    fn float(self) -> f64 {
        match self {
            Self::Int(int) => int as f64,
            Self::Float(float) => float,
        }
    }
}

/// An integer as the smallest of minijinja's integers, which compare and hash alike.
pub(super) fn int(value: i128) -> Value {
    i64::try_from(value).map_or_else(|_| Value::from(value), Value::from)
}

fn unsupported<T>(op: &str, a: &Value, b: &Value) -> Result<T, Error> {
    if a.is_undefined() || b.is_undefined() {
        return undefined(&format!("`{op}` with"));
    }
    fail(format!("unsupported operand types for {op}: '{}' and '{}'", type_name(a), type_name(b)))
}

fn overflow<T>() -> Result<T, Error> {
    fail("an integer is too large")
}

fn arithmetic(
    op: &str,
    a: &Value,
    b: &Value,
    ints: fn(i128, i128) -> Option<i128>,
    floats: fn(f64, f64) -> f64,
) -> Result<Value, Error> {
    match (Num::of(a), Num::of(b)) {
        (Some(Num::Int(a)), Some(Num::Int(b))) => ints(a, b).map_or_else(overflow, |it| Ok(int(it))),
        (Some(a), Some(b)) => Ok(Value::from(floats(a.float(), b.float()))),
        _ => unsupported(op, a, b),
    }
}

pub(super) fn add(a: &Value, b: &Value) -> Result<Value, Error> {
    match (py(a), py(b)) {
        (Py::Str(left), Py::Str(right)) => Ok(add_strings(a, left, b, right)),
        (Py::Seq(left), Py::Seq(right)) if left.kind == right.kind && is_stored(left) => {
            seq(left.kind, left.items.iter().chain(&right.items).cloned().collect())
        }
        (Py::Str(_), Py::Undefined) | (Py::Undefined, _) => unsupported("+", a, b),
        (Py::Str(_), _) => fail(format!("can only concatenate str (not \"{}\") to str", type_name(b))),
        _ => arithmetic("+", a, b, i128::checked_add, |a, b| a + b),
    }
}

/// Text marked as safe stays safe, and what it is joined with is escaped.
fn add_strings(a: &Value, left: &str, b: &Value, right: &str) -> Value {
    match (a.is_safe(), b.is_safe()) {
        (false, false) => Value::from([left, right].concat()),
        (true, true) => Value::from_safe_string([left, right].concat()),
        (true, false) => Value::from_safe_string(format!("{left}{}", escape_html(right))),
        (false, true) => Value::from_safe_string(format!("{}{right}", escape_html(left))),
    }
}

/// Lists and tuples can be joined and repeated; ranges and views cannot.
fn is_stored(seq: &Seq) -> bool {
    matches!(seq.kind, SeqKind::List | SeqKind::Tuple)
}

fn mul(a: &Value, b: &Value) -> Result<Value, Error> {
    let (repeated, times) = if Num::of(a).is_some() { (b, a) } else { (a, b) };
    let times = match Num::of(times) {
        Some(Num::Int(times)) => Some(usize::try_from(times.max(0)).unwrap_or(usize::MAX)),
        _ => None,
    };
    match (py(repeated), times) {
        (Py::Str(text), Some(times)) => {
            room(text.len().saturating_mul(times))?;
            Ok(like(repeated, text.repeat(times)))
        }
        (Py::Seq(items), Some(times)) if is_stored(items) => {
            room(items.items.len().saturating_mul(times).saturating_mul(size_of::<Value>()))?;
            let repeated = std::iter::repeat_n(&items.items, times).flatten();
            seq(items.kind, repeated.cloned().collect())
        }
        _ => arithmetic("*", a, b, i128::checked_mul, |a, b| a * b),
    }
}

fn div(a: &Value, b: &Value) -> Result<Value, Error> {
    match (Num::of(a), Num::of(b)) {
        (Some(_), Some(b)) if b.float() == 0.0 => fail("division by zero"),
        (Some(a), Some(b)) => Ok(Value::from(a.float() / b.float())),
        _ => unsupported("/", a, b),
    }
}

fn floor_div(a: &Value, b: &Value) -> Result<Value, Error> {
    match (Num::of(a), Num::of(b)) {
        (Some(_), Some(divisor)) if divisor.float() == 0.0 => fail("integer division or modulo by zero"),
        _ => arithmetic("//", a, b, floor_div_ints, |a, b| ((a - floor_mod(a, b)) / b).round()),
    }
}

fn floor_div_ints(a: i128, b: i128) -> Option<i128> {
    let quotient = a.checked_div(b)?;
    let rounded_up = a.checked_rem(b)? != 0 && (a < 0) != (b < 0);
    Some(if rounded_up { quotient - 1 } else { quotient })
}

pub(super) fn modulo(a: &Value, b: &Value) -> Result<Value, Error> {
    match (py(a), Num::of(a), Num::of(b)) {
        (Py::Str(_), ..) => fail("`%` on a string is not supported"),
        (_, Some(_), Some(divisor)) if divisor.float() == 0.0 => fail("modulo by zero"),
        // The result takes the sign of the divisor.
        _ => arithmetic(
            "%",
            a,
            b,
            |a, b| floor_div_ints(a, b)?.checked_mul(b).and_then(|it| a.checked_sub(it)),
            floor_mod,
        ),
    }
}

fn floor_mod(a: f64, b: f64) -> f64 {
    let rest = a % b;
    if rest == 0.0 {
        0.0f64.copysign(b)
    } else if (rest < 0.0) != (b < 0.0) {
        rest + b
    } else {
        rest
    }
}

/// `-value`, or `+value` with `sign` 1.
pub(super) fn signed(value: &Value, sign: i128) -> Result<Value, Error> {
    match Num::of(value) {
        Some(Num::Int(number)) => number.checked_mul(sign).map_or_else(overflow, |it| Ok(int(it))),
        Some(Num::Float(number)) => Ok(Value::from(if sign < 0 { -number } else { number })),
        None if value.is_undefined() => undefined("the sign of"),
        None => fail(format!("bad operand type for unary operator: '{}'", type_name(value))),
    }
}

/// `a ~ b`: the `str()` of both, joined.
pub(super) fn tilde(a: &Value, b: &[Value]) -> Result<Value, Error> {
    let texts = std::iter::once(a).chain(b).map(to_str);
    Ok(Value::from(texts.collect::<Result<String, Error>>()?))
}

/// Python's `==`.
pub(super) fn equal(a: &Value, b: &Value) -> bool {
    match (py(a), py(b)) {
        (Py::Undefined, Py::Undefined) | (Py::None, Py::None) => true,
        (Py::Str(a), Py::Str(b)) => a == b,
        (Py::Seq(a), Py::Seq(b)) => a.kind == b.kind && equal_items(&a.items, &b.items),
        (Py::Dict(a), Py::Dict(b)) => {
            let same = |(key, value): &(Value, Value)| b.get(key).is_some_and(|it| equal(value, it));
            a.entries.len() == b.entries.len() && a.entries.values().all(same)
        }
        (Py::Generator(a), Py::Generator(b)) => std::ptr::eq(a, b),
        (Py::Other, Py::Other) => a == b,
        _ => match (Num::of(a), Num::of(b)) {
            (Some(a), Some(b)) => compare_numbers(a, b) == Some(Ordering::Equal),
            _ => false,
        },
    }
}

fn equal_items(a: &[Value], b: &[Value]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| equal(a, b))
}

/// Python's order: numbers, strings, lists or tuples among themselves; `None` for NaN.
pub(super) fn compare(op: &str, a: &Value, b: &Value) -> Result<Option<Ordering>, Error> {
    match (py(a), py(b)) {
        (Py::Str(a), Py::Str(b)) => Ok(Some(a.cmp(b))),
        (Py::Seq(left), Py::Seq(right)) if left.kind == right.kind && is_stored(left) => {
            compare_items(op, &left.items, &right.items)
        }
        _ => match (Num::of(a), Num::of(b)) {
            (Some(a), Some(b)) => Ok(compare_numbers(a, b)),
            _ => unsupported(op, a, b),
        },
    }
}

fn compare_items(op: &str, a: &[Value], b: &[Value]) -> Result<Option<Ordering>, Error> {
    match a.iter().zip(b).find(|(a, b)| !equal(a, b)) {
        Some((a, b)) => compare(op, a, b),
        None => Ok(Some(a.len().cmp(&b.len()))),
    }
}

fn compare_numbers(a: Num, b: Num) -> Option<Ordering> {
    match (a, b) {
        (Num::Int(a), Num::Int(b)) => Some(a.cmp(&b)),
        (a, b) => a.float().partial_cmp(&b.float()),
    }
}

/// Python's `in`.
pub(super) fn contains(container: &Value, item: &Value) -> Result<bool, Error> {
    match (py(container), py(item)) {
        (Py::Str(text), Py::Str(part)) => Ok(text.contains(part)),
        (Py::Str(_), _) => {
            fail(format!("'in <string>' requires string as left operand, not {}", type_name(item)))
        }
        (Py::Dict(dict), _) => {
            super::value::check_hashable(item)?;
            Ok(dict.get(item).is_some())
        }
        (Py::Other, Py::Str(name)) if container.kind() == minijinja::value::ValueKind::Map => {
            Ok(container.get_attr(name).is_ok_and(|it| !it.is_undefined()))
        }
        (Py::None | Py::Bool(_) | Py::Int(_) | Py::Float(_) | Py::Other, _) => {
            fail(format!("argument of type '{}' is not iterable", type_name(container)))
        }
        _ => Ok(iterate(container)?.iter().any(|it| equal(it, item))),
    }
}

/// `value.name`, where Python may find a method of that name.
pub(super) fn attribute(value: &Value, name: &str) -> Result<Value, Error> {
    if value.is_undefined() {
        return undefined(&format!("`.{name}` of"));
    }
    if methods::has(value, name) {
        return Ok(bound_method(value, name));
    }
    if methods::is_hidden(value, name) {
        return Ok(Value::UNDEFINED);
    }
    value.get_attr(name)
}

/// `value[key]`; a missing one is undefined, and a string key may also name a method.
pub(super) fn item(value: &Value, key: &Value) -> Result<Value, Error> {
    let found = match (py(value), py(key)) {
        (Py::Undefined, _) => return undefined("an item of"),
        (Py::Dict(dict), _) => dict.get(key).cloned(),
        (Py::Seq(seq), Py::Int(_) | Py::Bool(_)) if seq.kind != SeqKind::View => {
            index(key, seq.items.len()).and_then(|at| seq.items.get(at).cloned())
        }
        (Py::Str(text), Py::Int(_) | Py::Bool(_)) => {
            let at = index(key, text.chars().count());
            at.and_then(|at| text.chars().nth(at)).map(|c| like(value, c.to_string()))
        }
        (Py::Other, _) => value.get_item(key).ok().filter(|it| !it.is_undefined()),
        _ => None,
    };
    match (found, py(key)) {
        (Some(found), _) => Ok(found),
        (None, Py::Str(name)) if methods::has(value, name) => Ok(bound_method(value, name)),
        _ => Ok(Value::UNDEFINED),
    }
}

/// The position an index means; a negative one counts from the end.
fn index(key: &Value, len: usize) -> Option<usize> {
    let Some(Num::Int(index)) = Num::of(key) else { return None };
    let from_start = if index < 0 { index + len as i128 } else { index };
    usize::try_from(from_start).ok().filter(|at| *at < len)
}

/// `value[start:stop:step]`. Unlike a single item, a slice of what has none is an error.
pub(super) fn slice(value: &Value, bounds: &[Value]) -> Result<Value, Error> {
    let [start, stop, step] = [0, 1, 2].map(|at| bounds.get(at).cloned().unwrap_or_else(|| Value::from(())));
    match py(value) {
        Py::Undefined => undefined("a slice of"),
        Py::Str(text) => {
            let chars: Vec<char> = text.chars().collect();
            let picked = slice_indices(chars.len(), &start, &stop, &step)?;
            Ok(like(value, picked.into_iter().filter_map(|at| chars.get(at)).collect()))
        }
        Py::Seq(items) if items.kind != SeqKind::View => {
            let picked = slice_indices(items.items.len(), &start, &stop, &step)?;
            seq(items.kind, picked.into_iter().filter_map(|at| items.items.get(at).cloned()).collect())
        }
        _ => fail(format!("'{}' object cannot be sliced", type_name(value))),
    }
}

fn slice_indices(len: usize, start: &Value, stop: &Value, step: &Value) -> Result<Vec<usize>, Error> {
    let len = len as i128;
    let step = bound(step)?.unwrap_or(1);
    if step == 0 {
        return fail("slice step cannot be zero");
    }
    // Where a bound may lie: from the first item to behind the last, or before the first when going back.
    let (low, high) = if step > 0 { (0, len) } else { (-1, len - 1) };
    let place = |bound: i128| (if bound < 0 { bound.saturating_add(len) } else { bound }).clamp(low, high);
    let (first, last) = if step > 0 { (low, high) } else { (high, low) };
    let start = bound(start)?.map_or(first, place);
    let stop = bound(stop)?.map_or(last, place);
    let is_before_stop = |at: &i128| if step > 0 { *at < stop } else { *at > stop };
    let indices = std::iter::successors(Some(start), |at| at.checked_add(step)).take_while(is_before_stop);
    Ok(indices.filter_map(|at| usize::try_from(at).ok()).collect())
}

fn bound(value: &Value) -> Result<Option<i128>, Error> {
    match (py(value), Num::of(value)) {
        (Py::None, _) => Ok(None),
        (_, Some(Num::Int(bound))) => Ok(Some(bound)),
        _ => fail("slice indices must be integers or None"),
    }
}
