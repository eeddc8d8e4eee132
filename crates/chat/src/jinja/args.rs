//! Arguments of filters, tests and methods, bound to parameters as Python binds them.

use minijinja::value::Kwargs;
use minijinja::{Error, Value};

use super::value::{Py, fail, py, type_name};

/// What a call was given besides the value it is applied to.
#[derive(Clone, Debug)]
pub(super) struct Args {
    pub(super) positional: Vec<Value>,
    pub(super) keywords: Vec<(String, Value)>,
}

impl Args {
    /// Separates keyword arguments, which minijinja passes as a last value of a kind of their own.
    pub(super) fn new(values: &[Value]) -> Result<Self, Error> {
        let Some((last, positional)) = values.split_last().filter(|(last, _)| last.is_kwargs()) else {
            return Ok(Self { positional: values.to_vec(), keywords: Vec::new() });
        };
        let kwargs = Kwargs::try_from(last.clone())?;
        let keyword = |name: &str| Ok((name.to_owned(), kwargs.get::<Value>(name)?));
        let keywords = kwargs.args().map(keyword).collect::<Result<_, Error>>()?;
        Ok(Self { positional: positional.to_vec(), keywords })
    }

    pub(super) fn keyword(&self, name: &str) -> Option<Value> {
        self.keywords.iter().find(|(it, _)| it == name).map(|(_, value)| value.clone())
    }

    /// The rest after the first `n` positional arguments.
    pub(super) fn skip(&self, n: usize) -> Self {
        let positional = self.positional.iter().skip(n).cloned().collect();
        Self { positional, keywords: self.keywords.clone() }
    }

    /// These arguments with `first` before them, as minijinja passes them.
    pub(super) fn with_first(&self, first: &Value) -> Vec<Value> {
        let mut values = vec![first.clone()];
        values.extend(self.positional.iter().cloned());
        if !self.keywords.is_empty() {
            let keywords = self.keywords.iter().map(|(name, value)| (name.as_str(), value.clone()));
            values.push(Value::from(keywords.collect::<Kwargs>()));
        }
        values
    }

    /// Binds the arguments to parameters by position and name.
    pub(super) fn bind<const N: usize>(&self, names: [&str; N]) -> Result<Bound<N>, Error> {
        let mut values = [const { None }; N];
        if self.positional.len() > N {
            return fail(format!("takes at most {N} arguments, got {}", self.positional.len()));
        }
        for (slot, value) in values.iter_mut().zip(&self.positional) {
            *slot = Some(value.clone());
        }
        for (name, value) in &self.keywords {
            match names.iter().position(|it| it == name).and_then(|at| values.get_mut(at)) {
                Some(slot @ None) => *slot = Some(value.clone()),
                Some(Some(_)) => return fail(format!("got multiple values for argument '{name}'")),
                None => return fail(format!("got an unexpected keyword argument '{name}'")),
            }
        }
        Ok(Bound(values))
    }
}

/// Arguments by parameter.
pub(super) struct Bound<const N: usize>([Option<Value>; N]);

impl<const N: usize> Bound<N> {
    /// The argument, unless it was left out.
    pub(super) fn get(&self, at: usize) -> Option<&Value> {
        self.0.get(at).and_then(Option::as_ref)
    }

    /// The argument, unless it was left out or is `None`.
    pub(super) fn some(&self, at: usize) -> Option<&Value> {
        self.get(at).filter(|value| !value.is_none())
    }

    /// An argument that must be given.
    pub(super) fn required(&self, at: usize) -> Result<&Value, Error> {
        self.get(at).map_or_else(|| fail("missing a required argument"), Ok)
    }

    /// Whether the argument is given and true.
    pub(super) fn flag(&self, at: usize) -> bool {
        self.get(at).is_some_and(Value::is_true)
    }

    /// An integer, or `default` when left out.
    pub(super) fn int(&self, at: usize, default: i128) -> Result<i128, Error> {
        self.get(at).map_or(Ok(default), as_int)
    }

    /// A string that must be given.
    pub(super) fn str(&self, at: usize) -> Result<&str, Error> {
        as_str(self.required(at)?)
    }
}

/// The integer a value is.
pub(super) fn as_int(value: &Value) -> Result<i128, Error> {
    match py(value) {
        Py::Int(int) => Ok(int),
        Py::Bool(bool) => Ok(i128::from(bool)),
        _ => fail(format!("'{}' object cannot be interpreted as an integer", type_name(value))),
    }
}

/// The string a value is.
pub(super) fn as_str(value: &Value) -> Result<&str, Error> {
    match py(value) {
        Py::Str(text) => Ok(text),
        _ => fail(format!("must be str, not {}", type_name(value))),
    }
}
