//! Python's values as minijinja carries them.
//!
//! Strings, numbers, booleans and `None` are minijinja's own; lists, tuples, ranges, dicts and
//! generators are objects of ours, because Python tells them apart and minijinja does not. Each knows
//! how deeply it is nested, so that no template can build something too deep to be dropped. Owns
//! construction, classification, iteration and JSON; text is left to `text`, operators to `ops`.

use std::borrow::Cow;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use indexmap::IndexMap;
use minijinja::value::{Enumerator, Object, ObjectRepr, ValueKind};
use minijinja::{Error, ErrorKind, State, Value};
use serde_json::{Map, Number};

use super::{methods, ops, text};

/// Values nested deeper are refused.
const MAX_NESTING: usize = 200;
/// How deep an object of minijinja's own (a namespace, a macro) counts, since it cannot be asked.
const OPAQUE_NESTING: usize = 100;

/// What Python calls a thing.
#[derive(Clone, Copy, Debug)]
pub(super) enum Py<'a> {
    Undefined,
    None,
    Bool(bool),
    Int(i128),
    Float(f64),
    Str(&'a str),
    Seq(&'a Seq),
    Dict(&'a Dict),
    Generator(&'a Generator),
    /// Namespaces, loops, macros, functions, bound methods.
    Other,
}

/// Classifies a value.
pub(super) fn py(value: &Value) -> Py<'_> {
    match value.kind() {
        ValueKind::Undefined => Py::Undefined,
        ValueKind::None => Py::None,
        ValueKind::Bool => Py::Bool(value.is_true()),
        ValueKind::Number => number(value),
        ValueKind::String => Py::Str(value.as_str().unwrap_or_default()),
        _ => object(value),
    }
}

fn number(value: &Value) -> Py<'static> {
    let int = if value.is_integer() { i128::try_from(value.clone()).ok() } else { None };
    int.map_or_else(|| Py::Float(f64::try_from(value.clone()).unwrap_or(f64::NAN)), Py::Int)
}

fn object(value: &Value) -> Py<'_> {
    let seq = || value.downcast_object_ref().map(Py::Seq);
    let generator = || value.downcast_object_ref().map(Py::Generator);
    value.downcast_object_ref().map(Py::Dict).or_else(seq).or_else(generator).unwrap_or(Py::Other)
}

/// The name of a value's type, as Python's error messages have it.
pub(super) fn type_name(value: &Value) -> &'static str {
    match py(value) {
        Py::Undefined => "Undefined",
        Py::None => "NoneType",
        Py::Bool(_) => "bool",
        Py::Int(_) => "int",
        Py::Float(_) => "float",
        Py::Str(_) if value.is_safe() => "Markup",
        Py::Str(_) => "str",
        Py::Seq(Seq { kind: SeqKind::List, .. }) => "list",
        Py::Seq(Seq { kind: SeqKind::Tuple, .. }) => "tuple",
        Py::Seq(Seq { kind: SeqKind::Range, .. }) => "range",
        Py::Seq(Seq { kind: SeqKind::View, .. }) => "dict view",
        Py::Dict(_) => "dict",
        Py::Generator(_) => "generator",
        Py::Other => "object",
    }
}

/// A `TypeError`, or whatever else Python raises where a template cannot catch it.
pub(super) fn fail<T>(message: impl Into<String>) -> Result<T, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message.into()))
}

/// Jinja2's error for doing with an undefined value what cannot be done with one.
pub(super) fn undefined<T>(what: &str) -> Result<T, Error> {
    Err(Error::new(ErrorKind::UndefinedError, format!("{what} an undefined value")))
}

/// What a sequence is to Python.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SeqKind {
    List,
    Tuple,
    Range,
    /// What `dict.keys()` and its like give: neither indexed nor written as JSON.
    View,
}

/// Items in order.
#[derive(Debug)]
pub(super) struct Seq {
    pub(super) kind: SeqKind,
    pub(super) items: Vec<Value>,
    nesting: usize,
}

impl Object for Seq {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.items.get(key.as_usize()?).cloned()
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Seq(self.items.len())
    }
}

/// Keys and values in the order they were first written.
#[derive(Debug)]
pub(super) struct Dict {
    /// Keys and values by what a key is found by.
    pub(super) entries: IndexMap<Value, (Value, Value)>,
    nesting: usize,
    /// As JSON in Python's own style, once somebody asked: a conversation is rendered again for every step,
    /// and nothing in a dict ever changes.
    pub(super) json: OnceLock<String>,
}

impl Dict {
    pub(super) fn get(&self, key: &Value) -> Option<&Value> {
        self.entries.get(hashed(key).as_ref()).map(|(_, value)| value)
    }

    /// The entries as Python's tuples.
    pub(super) fn pairs(&self) -> Result<Vec<Value>, Error> {
        self.entries.values().map(|(key, value)| pair(key.clone(), value.clone())).collect()
    }
}

impl Object for Dict {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Map
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.get(key).cloned()
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Values(self.entries.values().map(|(key, _)| key.clone()).collect())
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        Some(self.entries.len())
    }
}

/// Items that can be gone through once. They are computed at once, but an error among them is
/// raised when they are asked for, as a Python generator would.
#[derive(Debug)]
pub(super) struct Generator {
    items: Mutex<Option<Result<Vec<Value>, Error>>>,
    nesting: usize,
}

impl Generator {
    fn take(&self) -> Result<Vec<Value>, Error> {
        let mut items = self.items.lock().unwrap_or_else(PoisonError::into_inner);
        items.take().unwrap_or_else(|| Ok(Vec::new()))
    }
}

impl Object for Generator {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }
}

/// A method that was named but not called (`message.items`).
#[derive(Debug)]
struct Method {
    receiver: Value,
    name: String,
}

impl Object for Method {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn call(self: &Arc<Self>, state: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
        methods::call(state, &self.receiver, &self.name, args)
    }
}

/// A method of Python's, as a value.
pub(super) fn bound_method(receiver: &Value, name: &str) -> Value {
    Value::from_object(Method { receiver: receiver.clone(), name: name.to_owned() })
}

fn nesting(value: &Value) -> usize {
    match py(value) {
        Py::Seq(seq) => seq.nesting,
        Py::Dict(dict) => dict.nesting,
        Py::Generator(generator) => generator.nesting,
        Py::Other => match value.downcast_object_ref::<Method>() {
            Some(method) => nesting(&method.receiver) + 1,
            None => OPAQUE_NESTING,
        },
        _ => 0,
    }
}

/// One level more than the deepest of these, unless that is too much.
fn nest<'a>(values: impl Iterator<Item = &'a Value>) -> Result<usize, Error> {
    let deepest = values.map(nesting).max().unwrap_or(0);
    if deepest >= MAX_NESTING {
        return fail(format!("a value is nested more than {MAX_NESTING} levels deep"));
    }
    Ok(deepest + 1)
}

/// Refuses what a namespace must not hold: another namespace, or something almost as deep as allowed.
pub(super) fn check_storable(value: &Value) -> Result<(), Error> {
    if nesting(value) >= OPAQUE_NESTING {
        return fail("a namespace cannot hold a namespace, a macro or something nested that deeply");
    }
    Ok(())
}

/// A sequence of that kind.
pub(super) fn seq(kind: SeqKind, items: Vec<Value>) -> Result<Value, Error> {
    let nesting = nest(items.iter())?;
    Ok(Value::from_object(Seq { kind, items, nesting }))
}

/// A list.
pub(crate) fn list(items: Vec<Value>) -> Result<Value, Error> {
    seq(SeqKind::List, items)
}

/// A tuple of two.
pub(super) fn pair(first: Value, second: Value) -> Result<Value, Error> {
    seq(SeqKind::Tuple, vec![first, second])
}

/// What a Python generator function returns.
pub(super) fn generator(items: Result<Vec<Value>, Error>) -> Result<Value, Error> {
    let nesting = items.as_ref().map_or(Ok(0), |items| nest(items.iter()))?;
    Ok(Value::from_object(Generator { items: Mutex::new(Some(items)), nesting }))
}

/// A dict; a later value of the same key replaces an earlier one in its place.
pub(super) fn dict(pairs: impl IntoIterator<Item = (Value, Value)>) -> Result<Value, Error> {
    let mut entries: IndexMap<Value, (Value, Value)> = IndexMap::new();
    for (key, value) in pairs {
        check_hashable(&key)?;
        let found_by = hashed(&key).into_owned();
        entries.entry(found_by).or_insert_with(|| (key, Value::UNDEFINED)).1 = value;
    }
    let nesting = nest(entries.values().map(|(_, value)| value))?;
    Ok(Value::from_object(Dict { entries, nesting, json: OnceLock::new() }))
}

/// The value by which a key is found: `True`, `1` and `1.0` are one key to Python.
pub(super) fn hashed(key: &Value) -> Cow<'_, Value> {
    match py(key) {
        Py::Bool(bool) => Cow::Owned(Value::from(i64::from(bool))),
        Py::Float(float) if float.fract() == 0.0 && float.abs() < 1e15 => {
            Cow::Owned(Value::from(float as i64))
        }
        _ => Cow::Borrowed(key),
    }
}

/// Python refuses lists and dicts as keys and in sets.
pub(super) fn check_hashable(value: &Value) -> Result<(), Error> {
    match py(value) {
        Py::Seq(Seq { kind: SeqKind::List | SeqKind::View, .. }) | Py::Dict(_) => {
            fail(format!("unhashable type: '{}'", type_name(value)))
        }
        Py::Seq(seq) => seq.items.iter().try_for_each(check_hashable),
        _ => Ok(()),
    }
}

/// The items Python's `iter()` gives: nothing for an undefined value, an error for what has none.
pub(super) fn iterate(value: &Value) -> Result<Vec<Value>, Error> {
    match py(value) {
        Py::Undefined => Ok(Vec::new()),
        Py::Str(text) => Ok(text.chars().map(|c| Value::from(c.to_string())).collect()),
        Py::Seq(seq) => Ok(seq.items.clone()),
        Py::Dict(dict) => Ok(dict.entries.values().map(|(key, _)| key.clone()).collect()),
        Py::Generator(generator) => generator.take(),
        _ => fail(format!("'{}' object is not iterable", type_name(value))),
    }
}

/// A string that is marked as safe if the one it was made of is.
pub(super) fn like(origin: &Value, text: String) -> Value {
    if origin.is_safe() { Value::from_safe_string(text) } else { Value::from(text) }
}

/// A value from JSON.
pub(crate) fn from_json(json: &serde_json::Value) -> Result<Value, Error> {
    match json {
        serde_json::Value::Null => Ok(Value::from(())),
        serde_json::Value::Bool(bool) => Ok(Value::from(*bool)),
        serde_json::Value::Number(number) => Ok(match number.as_i128() {
            Some(int) => ops::int(int),
            None => Value::from(number.as_f64().unwrap_or(f64::NAN)),
        }),
        serde_json::Value::String(text) => Ok(Value::from(text.as_str())),
        serde_json::Value::Array(items) => list(items.iter().map(from_json).collect::<Result<_, _>>()?),
        serde_json::Value::Object(fields) => {
            let entry = |(key, value): (&String, _)| Ok((Value::from(key.as_str()), from_json(value)?));
            dict(fields.iter().map(entry).collect::<Result<Vec<_>, Error>>()?)
        }
    }
}

/// What `json.dumps` makes of a value, before it is written.
pub(super) fn to_json(value: &Value) -> Result<serde_json::Value, Error> {
    match py(value) {
        Py::None => Ok(serde_json::Value::Null),
        Py::Bool(bool) => Ok(serde_json::Value::Bool(bool)),
        Py::Int(int) => match Number::from_i128(int) {
            Some(number) => Ok(serde_json::Value::Number(number)),
            None => fail("an integer beyond 64 bits cannot be written as JSON here"),
        },
        Py::Float(float) => match Number::from_f64(float) {
            Some(number) => Ok(serde_json::Value::Number(number)),
            None => fail("a float that is not finite cannot be written as JSON"),
        },
        Py::Str(text) => Ok(serde_json::Value::String(text.to_owned())),
        Py::Seq(Seq { kind: SeqKind::List | SeqKind::Tuple, items, .. }) => {
            Ok(serde_json::Value::Array(items.iter().map(to_json).collect::<Result<_, _>>()?))
        }
        Py::Dict(dict) => dict_to_json(dict),
        _ => fail(format!("Object of type {} is not JSON serializable", type_name(value))),
    }
}

fn dict_to_json(dict: &Dict) -> Result<serde_json::Value, Error> {
    let mut fields = Map::with_capacity(dict.entries.len());
    for (key, value) in dict.entries.values() {
        let name = match py(key) {
            Py::Str(text) => text.to_owned(),
            Py::None => "null".to_owned(),
            Py::Bool(bool) => bool.to_string(),
            Py::Int(_) | Py::Float(_) => text::to_str(key)?,
            _ => return fail("keys must be str, int, float, bool or None"),
        };
        fields.insert(name, to_json(value)?);
    }
    Ok(serde_json::Value::Object(fields))
}
