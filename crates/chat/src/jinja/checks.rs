//! Jinja2's tests: what may stand after `is`.

use minijinja::{Error, Value};

use super::Check;
use super::args::Args;
use super::ops::{self, contains, equal};
use super::value::{Py, Seq, SeqKind, py};

/// The tests by name.
pub(super) const CHECKS: &[(&str, Check)] = &[
    ("boolean", |value, args| alone(args, matches!(py(value), Py::Bool(_)))),
    ("defined", |value, args| alone(args, !value.is_undefined())),
    ("divisibleby", |value, args| leaves(value, args.bind(["num"])?.required(0)?, 0)),
    ("even", |value, args| args.bind([]).and_then(|_| leaves(value, &Value::from(2), 0))),
    ("false", |value, args| alone(args, matches!(py(value), Py::Bool(false)))),
    ("float", |value, args| alone(args, matches!(py(value), Py::Float(_)))),
    ("in", |value, args| contains(args.bind(["seq"])?.required(0)?, value)),
    ("integer", |value, args| alone(args, matches!(py(value), Py::Int(_)))),
    ("iterable", |value, args| alone(args, is_iterable(value))),
    ("mapping", |value, args| alone(args, matches!(py(value), Py::Dict(_)))),
    ("none", |value, args| alone(args, value.is_none())),
    ("number", |value, args| alone(args, matches!(py(value), Py::Bool(_) | Py::Int(_) | Py::Float(_)))),
    ("odd", |value, args| args.bind([]).and_then(|_| leaves(value, &Value::from(2), 1))),
    ("sameas", |value, args| Ok(is_same(value, args.bind(["other"])?.required(0)?))),
    ("sequence", |value, args| alone(args, is_sequence(value))),
    ("string", |value, args| alone(args, matches!(py(value), Py::Str(_)))),
    ("true", |value, args| alone(args, matches!(py(value), Py::Bool(true)))),
    ("undefined", |value, args| alone(args, value.is_undefined())),
];

/// The answer of a test that takes no arguments.
fn alone(args: &Args, answer: bool) -> Result<bool, Error> {
    args.bind([])?;
    Ok(answer)
}

fn leaves(value: &Value, divisor: &Value, rest: i64) -> Result<bool, Error> {
    Ok(equal(&ops::modulo(value, divisor)?, &Value::from(rest)))
}

/// Has a length and items by key, as Jinja2 asks it: also true of dicts, strings and undefined values.
fn is_sequence(value: &Value) -> bool {
    match py(value) {
        Py::Seq(Seq { kind, .. }) => *kind != SeqKind::View,
        other => matches!(other, Py::Undefined | Py::Str(_) | Py::Dict(_)),
    }
}

fn is_iterable(value: &Value) -> bool {
    matches!(py(value), Py::Undefined | Py::Str(_) | Py::Seq(_) | Py::Dict(_) | Py::Generator(_))
}

/// Python's `is`, as far as values have an identity here: containers are the same only if they are
/// one object.
fn is_same(a: &Value, b: &Value) -> bool {
    match (py(a), py(b)) {
        (Py::Seq(a), Py::Seq(b)) => std::ptr::eq(a, b),
        (Py::Dict(a), Py::Dict(b)) => std::ptr::eq(a, b),
        (a_kind, b_kind) => std::mem::discriminant(&a_kind) == std::mem::discriminant(&b_kind) && equal(a, b),
    }
}
