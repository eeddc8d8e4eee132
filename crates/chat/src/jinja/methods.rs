//! Methods of Python's dicts, lists and tuples, and who has which method.
//!
//! Methods that change what they are called on are refused, as transformers' sandbox does. String
//! methods are left to `strings`.

use minijinja::value::ValueKind;
use minijinja::{Error, State, Value};

use super::args::Args;
use super::ops::{equal, int};
use super::value::{Dict, Py, Seq, SeqKind, dict, fail, list, pair, py, seq, type_name, undefined};
use super::{strings, value};

const DICT: &[&str] = &["copy", "fromkeys", "get", "items", "keys", "values"];
const DICT_HIDDEN: &[&str] = &["clear", "pop", "popitem", "setdefault", "update"];
const LIST: &[&str] = &["copy", "count", "index"];
const LIST_HIDDEN: &[&str] = &["append", "clear", "extend", "insert", "pop", "remove", "reverse", "sort"];
const TUPLE: &[&str] = &["count", "index"];

/// Every name that is a method of some type.
pub(super) const ALL: &[&str] = &[
    "append",
    "capitalize",
    "casefold",
    "center",
    "clear",
    "copy",
    "count",
    "encode",
    "endswith",
    "expandtabs",
    "extend",
    "find",
    "format",
    "format_map",
    "fromkeys",
    "get",
    "index",
    "insert",
    "isalnum",
    "isalpha",
    "isascii",
    "isdecimal",
    "isdigit",
    "isidentifier",
    "islower",
    "isnumeric",
    "isprintable",
    "isspace",
    "istitle",
    "isupper",
    "items",
    "join",
    "keys",
    "ljust",
    "lower",
    "lstrip",
    "maketrans",
    "partition",
    "pop",
    "popitem",
    "remove",
    "removeprefix",
    "removesuffix",
    "replace",
    "reverse",
    "rfind",
    "rindex",
    "rjust",
    "rpartition",
    "rsplit",
    "rstrip",
    "setdefault",
    "sort",
    "split",
    "splitlines",
    "startswith",
    "strip",
    "swapcase",
    "title",
    "translate",
    "update",
    "upper",
    "values",
    "zfill",
];

/// Whether a value has a method of that name that a template may use.
pub(super) fn has(value: &Value, name: &str) -> bool {
    match py(value) {
        Py::Str(_) => strings::NAMES.contains(&name),
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
        Py::Seq(seq) if has(receiver, name) => seq_method(seq, name, &Args::new(args)?),
        Py::Other => object_method(state, receiver, name, args),
        _ => missing(receiver, name),
    }
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
    let entries = dict.entries.iter().cloned();
    match name {
        "get" => {
            let args = args.bind(["key", "default"])?;
            let found = dict.get(args.required(0)?).or(args.get(1));
            Ok(found.cloned().unwrap_or_else(|| Value::from(())))
        }
        "keys" => seq(SeqKind::View, entries.map(|(key, _)| key).collect()),
        "values" => seq(SeqKind::View, entries.map(|(_, value)| value).collect()),
        "items" => items(dict),
        "copy" => Ok(receiver.clone()),
        _ => {
            let args = args.bind(["iterable", "value"])?;
            let default = args.get(1).cloned().unwrap_or_else(|| Value::from(()));
            let keys = value::iterate(args.required(0)?)?;
            value::dict(keys.into_iter().map(|key| (key, default.clone())))
        }
    }
}

/// What `dict.items()` gives: a view of pairs.
fn items(dict: &Dict) -> Result<Value, Error> {
    let pairs = dict.entries.iter().map(|(key, value)| pair(key.clone(), value.clone()));
    seq(SeqKind::View, pairs.collect::<Result<_, _>>()?)
}

fn seq_method(seq: &Seq, name: &str, args: &Args) -> Result<Value, Error> {
    if name == "copy" {
        return list(seq.items.clone());
    }
    if name == "count" {
        let args = args.bind(["value"])?;
        let wanted = args.required(0)?;
        return Ok(Value::from(seq.items.iter().filter(|it| equal(it, wanted)).count()));
    }
    let args = args.bind(["value", "start", "stop"])?;
    let wanted = args.required(0)?;
    let range = strings::bounds(seq.items.len(), args.get(1), args.get(2))?;
    let found = range.into_iter().find(|at| seq.items.get(*at).is_some_and(|it| equal(it, wanted)));
    found.map_or_else(|| fail("the value is not in the list"), |at| Ok(int(at as i128)))
}

/// `dict(pairs_or_mapping, **keywords)`.
pub(super) fn make_dict(args: &Args) -> Result<Value, Error> {
    let mut pairs = Vec::new();
    match args.positional() {
        [] => {}
        [source] => match py(source) {
            Py::Dict(dict) => pairs.extend(dict.entries.iter().cloned()),
            _ => {
                for item in value::iterate(source)? {
                    match value::iterate(&item)?.as_slice() {
                        [key, value] => pairs.push((key.clone(), value.clone())),
                        _ => return fail("dict() needs pairs"),
                    }
                }
            }
        },
        _ => return fail("dict() takes one argument"),
    }
    pairs.extend(args.keywords().iter().map(|(name, value)| (Value::from(name.as_str()), value.clone())));
    dict(pairs)
}
