//! Jinja2's filters on sequences and mappings.
//!
//! Filters that Python writes as generators give generators here too, so that what cannot be done
//! with one (a length, JSON) is refused alike.

use std::cmp::Ordering;

use minijinja::{Error, State, Value};

use super::args::{Args, as_str};
use super::ops::{compare, item};
use super::text::to_str;
use super::value::{
    Dict, Py, check_hashable, fail, generator, hashed, iterate, like, list, pair, py, type_name, undefined,
};
use super::{Filter, room};

/// The filters of this module by name.
pub(super) const FILTERS: &[(&str, Filter)] = &[
    ("count", |_, value, args| length(value, args)),
    ("dictsort", |_, value, args| dictsort(value, args)),
    ("first", |_, value, args| first(value, args)),
    ("items", |_, value, args| items(value, args)),
    ("join", |_, value, args| join(value, args)),
    ("last", |_, value, args| last(value, args)),
    ("length", |_, value, args| length(value, args)),
    ("list", |_, value, args| {
        args.bind([])?;
        list(iterate(value)?)
    }),
    ("map", |state, value, args| generator(map(state, value, args))),
    ("max", |_, value, args| extreme(value, args, Ordering::Greater)),
    ("min", |_, value, args| extreme(value, args, Ordering::Less)),
    ("reject", |state, value, args| generator(select(state, value, args, false, false))),
    ("rejectattr", |state, value, args| generator(select(state, value, args, true, false))),
    ("reverse", |_, value, args| reverse(value, args)),
    ("select", |state, value, args| generator(select(state, value, args, false, true))),
    ("selectattr", |state, value, args| generator(select(state, value, args, true, true))),
    ("sort", |_, value, args| sort(value, args)),
    ("unique", |_, value, args| generator(unique(value, args))),
];

/// Where an `attribute=` argument leads: dots go deeper, digits are indexes.
struct Path {
    parts: Vec<Value>,
    ignore_case: bool,
}

impl Path {
    fn new(attribute: Option<&Value>, ignore_case: bool) -> Self {
        let parts = match attribute.map(|it| (it, py(it))) {
            None | Some((_, Py::None)) => Vec::new(),
            Some((_, Py::Str(text))) => text.split('.').map(path_part).collect(),
            Some((value, _)) => vec![value.clone()],
        };
        Self { parts, ignore_case }
    }

    fn get(&self, value: &Value) -> Result<Value, Error> {
        let mut value = value.clone();
        for part in &self.parts {
            value = item(&value, part)?;
        }
        match py(&value) {
            Py::Str(text) if self.ignore_case => Ok(Value::from(text.to_lowercase())),
            _ => Ok(value),
        }
    }
}

fn path_part(part: &str) -> Value {
    let is_index = !part.is_empty() && part.chars().all(|c| c.is_ascii_digit());
    part.parse::<i64>().ok().filter(|_| is_index).map_or_else(|| Value::from(part), Value::from)
}

/// Sorts by keys that must be comparable; the sort is stable, also in reverse.
fn sort_by_key<T>(
    items: Vec<T>,
    reverse: bool,
    key: impl Fn(&T) -> Result<Value, Error>,
) -> Result<Vec<T>, Error> {
    let mut keyed: Vec<(Value, T)> = Vec::with_capacity(items.len());
    for item in items {
        keyed.push((key(&item)?, item));
    }
    let mut failure = None;
    keyed.sort_by(|(a, _), (b, _)| {
        let order = compare("<", a, b).unwrap_or_else(|error| {
            failure.get_or_insert(error);
            None
        });
        let order = order.unwrap_or(Ordering::Equal);
        if reverse { order.reverse() } else { order }
    });
    failure.map_or_else(|| Ok(keyed.into_iter().map(|(_, item)| item).collect()), Err)
}

/// Python's `len()`.
fn length(value: &Value, args: &Args) -> Result<Value, Error> {
    args.bind([])?;
    Ok(Value::from(match py(value) {
        Py::Undefined => 0,
        Py::Str(text) => text.chars().count(),
        Py::Seq(seq) => seq.items.len(),
        Py::Dict(dict) => dict.entries.len(),
        _ => return fail(format!("object of type '{}' has no len()", type_name(value))),
    }))
}

/// The mapping a filter needs.
fn mapping(value: &Value) -> Result<&Dict, Error> {
    match py(value) {
        Py::Dict(dict) => Ok(dict),
        Py::Undefined => undefined("the items of"),
        _ => fail("can only get item pairs from a mapping"),
    }
}

fn items(value: &Value, args: &Args) -> Result<Value, Error> {
    args.bind([])?;
    if value.is_undefined() {
        return generator(Ok(Vec::new()));
    }
    generator(mapping(value).and_then(Dict::pairs))
}

fn dictsort(value: &Value, args: &Args) -> Result<Value, Error> {
    if !args.positional.is_empty() || !args.keywords.is_empty() {
        return fail("the filter `dictsort` with arguments is not supported");
    }
    let path = Path::new(None, true);
    let entries = mapping(value)?.entries.values().cloned().collect();
    let sorted = sort_by_key(entries, false, |(key, _): &(Value, Value)| path.get(key))?;
    list(sorted.into_iter().map(|(key, value)| pair(key, value)).collect::<Result<_, _>>()?)
}

fn first(value: &Value, args: &Args) -> Result<Value, Error> {
    args.bind([])?;
    Ok(iterate(value)?.into_iter().next().unwrap_or(Value::UNDEFINED))
}

fn last(value: &Value, args: &Args) -> Result<Value, Error> {
    args.bind([])?;
    if matches!(py(value), Py::Generator(_)) {
        return fail("'generator' object is not reversible");
    }
    Ok(iterate(value)?.pop().unwrap_or(Value::UNDEFINED))
}

fn join(value: &Value, args: &Args) -> Result<Value, Error> {
    let args = args.bind(["d", "attribute"])?;
    let separator = args.get(0).map_or(Ok(String::new()), to_str)?;
    let path = Path::new(args.some(1), false);
    let items = iterate(value)?;
    room(items.len().saturating_mul(separator.len()))?;
    let parts = items.iter().map(|item| to_str(&path.get(item)?));
    Ok(Value::from(parts.collect::<Result<Vec<_>, _>>()?.join(&separator)))
}

/// Python's generator functions do nothing at all with a false value, iterable or not.
fn map(state: &mut State<'_, '_>, value: &Value, args: &Args) -> Result<Vec<Value>, Error> {
    if !value.is_true() {
        return Ok(Vec::new());
    }
    let items = iterate(value)?;
    if let ([], Some(attribute)) = (&args.positional[..], args.keyword("attribute")) {
        if let Some((name, _)) = args.keywords.iter().find(|(name, _)| name != "attribute") {
            return fail(format!("the filter `map` with `{name}=` is not supported"));
        }
        let path = Path::new(Some(&attribute), false);
        return items.iter().map(|item| path.get(item)).collect();
    }
    let Some(name) = args.positional.first() else { return fail("map requires a filter argument") };
    let name = public(as_str(name)?)?;
    let rest = args.skip(1);
    items.iter().map(|item| state.apply_filter(name, &rest.with_first(item))).collect()
}

/// A name that is not one of our own filters.
fn public(name: &str) -> Result<&str, Error> {
    if name.starts_with("__") { fail(format!("no filter or test named '{name}'")) } else { Ok(name) }
}

fn select(
    state: &mut State<'_, '_>,
    value: &Value,
    args: &Args,
    by_attribute: bool,
    keeps: bool,
) -> Result<Vec<Value>, Error> {
    if !value.is_true() {
        return Ok(Vec::new());
    }
    let path = match args.positional.first() {
        Some(attribute) if by_attribute => Path::new(Some(attribute), false),
        None if by_attribute => return fail("missing parameter for attribute name"),
        _ => Path::new(None, false),
    };
    let args = args.skip(usize::from(by_attribute));
    let test = args.positional.first().map(as_str).transpose()?.map(public).transpose()?;
    let rest = args.skip(1);
    let mut kept = Vec::new();
    for item in iterate(value)? {
        let tested = path.get(&item)?;
        let passes = match test {
            Some(test) => state.perform_test(test, &rest.with_first(&tested))?,
            None => tested.is_true(),
        };
        if passes == keeps {
            kept.push(item);
        }
    }
    Ok(kept)
}

fn extreme(value: &Value, args: &Args, wanted: Ordering) -> Result<Value, Error> {
    let args = args.bind(["case_sensitive", "attribute"])?;
    let path = Path::new(args.some(1), !args.flag(0));
    let mut best: Option<(Value, Value)> = None;
    for item in iterate(value)? {
        let key = path.get(&item)?;
        let wins = match &best {
            Some((best_key, _)) => compare("<", &key, best_key)? == Some(wanted),
            None => true,
        };
        if wins {
            best = Some((key, item));
        }
    }
    Ok(best.map_or(Value::UNDEFINED, |(_, item)| item))
}

fn reverse(value: &Value, args: &Args) -> Result<Value, Error> {
    args.bind([])?;
    if let Py::Str(text) = py(value) {
        return Ok(like(value, text.chars().rev().collect()));
    }
    let is_reversible = !matches!(py(value), Py::Generator(_));
    let mut items = iterate(value)?;
    items.reverse();
    if is_reversible { generator(Ok(items)) } else { list(items) }
}

fn sort(value: &Value, args: &Args) -> Result<Value, Error> {
    let args = args.bind(["reverse", "case_sensitive", "attribute"])?;
    let ignore_case = !args.flag(1);
    let paths: Vec<Path> = match args.some(2).map(|it| (it, py(it))) {
        Some((_, Py::Str(names))) => {
            names.split(',').map(|name| Path::new(Some(&Value::from(name)), ignore_case)).collect()
        }
        other => vec![Path::new(other.map(|(value, _)| value), ignore_case)],
    };
    // The key is a list, so that values are compared only where they differ.
    let key = |item: &Value| list(paths.iter().map(|path| path.get(item)).collect::<Result<_, _>>()?);
    list(sort_by_key(iterate(value)?, args.flag(0), key)?)
}

fn unique(value: &Value, args: &Args) -> Result<Vec<Value>, Error> {
    let args = args.bind(["case_sensitive", "attribute"])?;
    let path = Path::new(args.some(1), !args.flag(0));
    let mut seen = std::collections::HashSet::new();
    let mut kept = Vec::new();
    for item in iterate(value)? {
        let key = path.get(&item)?;
        check_hashable(&key)?;
        if seen.insert(hashed(&key).into_owned()) {
            kept.push(item);
        }
    }
    Ok(kept)
}
