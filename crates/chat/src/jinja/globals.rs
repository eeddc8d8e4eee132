//! The functions a template can call, and what one rendering carries along for them.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use minijinja::value::{Object, ObjectRepr, ValueOrKwargs};
use minijinja::{Environment, Error, ErrorKind, State, Value};

use super::Values;
use super::args::{Args, as_int};
use super::ops::int;
use super::strftime::Now;
use super::text::to_str;
use super::value::{SeqKind, check_storable, fail, seq};

/// The name under which a rendering finds its [`Carried`]; no template can write it.
pub(super) const RUN: &str = " run";
/// The longest `range`, as in Jinja2's sandbox.
const MAX_RANGE: usize = 100_000;

/// What one rendering carries along.
#[derive(Debug)]
pub(super) struct Carried {
    now: Option<Now>,
    /// Characters written so far.
    written: AtomicUsize,
    /// Where `{% generation %}` blocks are, in characters.
    spans: Mutex<Vec<Range<usize>>>,
}

impl Carried {
    pub(super) fn new(now: Option<Now>) -> Self {
        Self { now, written: AtomicUsize::new(0), spans: Mutex::default() }
    }

    /// Notes that bytes were written; only those that start a character count.
    pub(super) fn note_written(&self, bytes: &[u8]) {
        let n_chars = bytes.iter().filter(|byte| !matches!(byte, 0x80..0xc0)).count();
        self.written.fetch_add(n_chars, Ordering::Relaxed);
    }

    /// The spans in bytes of the whole text.
    pub(super) fn spans(&self, text: &str) -> Vec<Range<usize>> {
        let spans = self.spans.lock().unwrap_or_else(PoisonError::into_inner);
        if spans.is_empty() {
            return Vec::new();
        }
        let starts: Vec<usize> = text.char_indices().map(|(at, _)| at).collect();
        let byte = |at: usize| starts.get(at).copied().unwrap_or(text.len());
        spans.iter().map(|span| byte(span.start)..byte(span.end)).collect()
    }

    fn of(state: &State<'_, '_>) -> Result<Arc<Self>, Error> {
        let run = state.lookup(RUN).and_then(|it| it.downcast_object());
        run.map_or_else(|| fail("this rendering has lost its state"), Ok)
    }
}

impl Object for Carried {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }
}

/// A template called `raise_exception`.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Raised(pub(crate) String);

/// A template asked for the time and none was given.
#[derive(Debug, thiserror::Error)]
#[error("the template asks for the current time, and none was given")]
pub(crate) struct NeedsTime;

/// Adds the functions.
pub(super) fn add(env: &mut Environment<'static>) {
    env.add_function("raise_exception", |message: Value| -> Result<Value, Error> {
        let message = to_str(&message)?;
        let error = Error::new(ErrorKind::InvalidOperation, message.clone());
        Err(error.with_source(Raised(message)))
    });
    env.add_function("strftime_now", |state: &mut State, format: String| -> Result<Value, Error> {
        match Carried::of(state)?.now {
            Some(now) => now.strftime(&format).map_or_else(fail, |text| Ok(Value::from(text))),
            None => {
                Err(Error::new(ErrorKind::InvalidOperation, NeedsTime.to_string()).with_source(NeedsTime))
            }
        }
    });
    env.add_function("__generation", generation);
    env.add_function("range", |args: Values| range(&args.into_values()));
    env.add_function("namespace", |args: Values| namespace(&args.into_values()));
}

/// Runs the body of a `{% generation %}` block and remembers where its text goes.
///
/// The position is that of the text written so far, as in transformers: a block inside a macro is
/// placed where the macro's own text starts.
fn generation(state: &mut State, args: Values) -> Result<Value, Error> {
    let Some(caller) = Args::new(&args.into_values())?.keyword("caller") else {
        return fail("nothing to generate");
    };
    let text = caller.call(state, &[])?;
    let run = Carried::of(state)?;
    let start = run.written.load(Ordering::Relaxed);
    let end = start + text.as_str().map_or(0, |text| text.chars().count());
    run.spans.lock().unwrap_or_else(PoisonError::into_inner).push(start..end);
    Ok(text)
}

fn range(args: &[Value]) -> Result<Value, Error> {
    let bounds: Vec<i128> = args.iter().map(as_int).collect::<Result<_, _>>()?;
    let (start, stop, step) = match *bounds.as_slice() {
        [stop] => (0, stop, 1),
        [start, stop] => (start, stop, 1),
        [start, stop, step] => (start, stop, step),
        _ => return fail("range expected 1 to 3 arguments"),
    };
    if step == 0 {
        return fail("range() arg 3 must not be zero");
    }
    let is_inside = |at: &i128| if step > 0 { *at < stop } else { *at > stop };
    let steps = std::iter::successors(Some(start), |at| at.checked_add(step)).take_while(is_inside);
    let items: Vec<Value> = steps.take(MAX_RANGE + 1).map(int).collect();
    if items.len() > MAX_RANGE {
        return fail(format!("range too big: the sandbox blocks ranges larger than {MAX_RANGE}"));
    }
    seq(SeqKind::Range, items)
}

fn namespace(args: &[Value]) -> Result<Value, Error> {
    let args = Args::new(args)?;
    if !args.positional.is_empty() {
        return fail("`namespace` of anything but keywords is not supported");
    }
    for (name, value) in &args.keywords {
        if name.starts_with('_') {
            return fail(format!("a namespace cannot hold `{name}`"));
        }
        check_storable(value)?;
    }
    let pairs = args.keywords.iter().map(|(name, value)| (Value::from(name.as_str()), value.clone()));
    minijinja::functions::namespace(Some(ValueOrKwargs::from(Value::from_pairs(pairs))))
}
