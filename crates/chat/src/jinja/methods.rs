//! Methods of Python's dicts, lists and tuples, and who has which method.
//!
//! Methods that change what they are called on are refused, as transformers' sandbox does. String
//! methods are left to `strings`.

use minijinja::value::ValueKind;
use minijinja::{Error, State, Value};

use super::args::Args;

use super::strings;
use super::value::{Dict, Py, Seq, SeqKind, fail, py, seq, type_name, undefined};

/// Every method of a string. Those that `strings` does not support are there all the same: a template may ask.
const STR: &str = "capitalize casefold center count encode endswith expandtabs find format format_map index isalnum \
    isalpha isascii isdecimal isdigit isidentifier islower isnumeric isprintable isspace istitle isupper join ljust \
    lower lstrip maketrans partition removeprefix removesuffix replace rfind rindex rjust rpartition rsplit rstrip \
    split splitlines startswith strip swapcase title translate upper zfill";
const DICT: &[&str] = &["copy", "fromkeys", "get", "items", "keys", "values"];
const DICT_HIDDEN: &[&str] = &["clear", "pop", "popitem", "setdefault", "update"];
const LIST: &[&str] = &["copy", "count", "index"];
const LIST_HIDDEN: &[&str] = &["append", "clear", "extend", "insert", "pop", "remove", "reverse", "sort"];
const TUPLE: &[&str] = &["count", "index"];

fn has_str(name: &str) -> bool {
    STR.split(' ').any(|it| it == name)
}

/// Whether a value of some type has an attribute of that name, so that it must be looked up as Python does.
pub(super) fn is_python_attribute(name: &str) -> bool {
    let others = [DICT, DICT_HIDDEN, LIST, LIST_HIDDEN];
    name.starts_with("__") || has_str(name) || others.iter().any(|it| it.contains(&name))
}

/// Whether a value has a method of that name that a template may use.
pub(super) fn has(value: &Value, name: &str) -> bool {
    match py(value) {
        Py::Str(_) => has_str(name),
        Py::Dict(_) => DICT.contains(&name),
        Py::Seq(Seq { kind: SeqKind::List, .. }) => LIST.contains(&name),
        Py::Seq(_) => TUPLE.contains(&name),
        _ => false,
    }
}

/// Whether Python has an attribute of that name and the sandbox hides it.
pub(super) fn is_hidden(value: &Value, name: &str) -> bool {
    match py(value) {
        Py::Dict(_) if DICT_HIDDEN.contains(&name) => true,
        Py::Seq(Seq { kind: SeqKind::List, .. }) if LIST_HIDDEN.contains(&name) => true,
        Py::Dict(dict) => name.starts_with("__") && dict.get(&Value::from(name)).is_none(),
        _ => name.starts_with("__"),
    }
}

/// `receiver.name(args)`.
pub(super) fn call(
    state: &mut State<'_, '_>,
    receiver: &Value,
    name: &str,
    args: &[Value],
) -> Result<Value, Error> {
    if is_hidden(receiver, name) {
        return fail(format!(
            "access to attribute '{name}' of '{}' object is unsafe: a template must not change its input",
            type_name(receiver)
        ));
    }
    match py(receiver) {
        Py::Undefined => undefined(&format!("`.{name}()` of")),
        Py::Str(text) => strings::call(receiver, text, name, &Args::new(args)?),
        Py::Dict(dict) if DICT.contains(&name) => dict_method(receiver, dict, name, &Args::new(args)?),
        Py::Dict(dict) => match dict.get(&Value::from(name)) {
            Some(callee) => callee.call(state, args),
            None => missing(receiver, name),
        },
        Py::Seq(_) if has(receiver, name) => unsupported(receiver, name),
        Py::Other => object_method(state, receiver, name, args),
        _ => missing(receiver, name),
    }
}

/// For methods that Python has and no known template calls.
fn unsupported<T>(receiver: &Value, name: &str) -> Result<T, Error> {
    fail(format!("the method `{name}` of a {} is not supported", type_name(receiver)))
}

fn missing<T>(receiver: &Value, name: &str) -> Result<T, Error> {
    let type_name = if receiver.is_none() { "None" } else { type_name(receiver) };
    fail(format!("'{type_name}' has no method '{name}'"))
}

/// Methods of minijinja's own objects: loops, namespaces holding functions, cyclers.
fn object_method(
    state: &mut State<'_, '_>,
    receiver: &Value,
    name: &str,
    args: &[Value],
) -> Result<Value, Error> {
    if name == "cycle" && args.is_empty() {
        return fail("no items for cycling given");
    }
    if receiver.kind() == ValueKind::Map && !["cycle", "changed"].contains(&name) {
        let callee = receiver.get_attr(name)?;
        return if callee.is_undefined() { missing(receiver, name) } else { callee.call(state, args) };
    }
    receiver.call_method(state, name, args)
}

fn dict_method(receiver: &Value, dict: &Dict, name: &str, args: &Args) -> Result<Value, Error> {
    let entries = dict.entries.values().cloned();
    match name {
        "get" => {
            let args = args.bind(["key", "default"])?;
            let found = dict.get(args.required(0)?).or(args.get(1));
            Ok(found.cloned().unwrap_or_else(|| Value::from(())))
        }
        "keys" => seq(SeqKind::View, entries.map(|(key, _)| key).collect()),
        "values" => seq(SeqKind::View, entries.map(|(_, value)| value).collect()),
        "items" => seq(SeqKind::View, dict.pairs()?),
        "copy" => Ok(receiver.clone()),
        _ => unsupported(receiver, name),
    }
}
