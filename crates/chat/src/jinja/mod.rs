//! A Jinja2 that behaves as transformers' does, on top of minijinja.
//!
//! minijinja supplies statements, scopes, loops and macros; what Python defines is ours. A template
//! is read with Jinja2's grammar (`lex`, `expr`), written again with every operation that Python
//! defines as a call of a filter of ours (`lower`), and run with Python's values (`value`, `text`),
//! operators (`ops`), methods (`methods`, `strings`), filters (`filters`, `sequences`) and
//! tests (`checks`). Names of our own filters start with two underscores, which no template may use.
//!
//! A template is a stranger's program: the number of instructions, the bytes it produces and the
//! depth of what it builds are limited.

mod args;
mod checks;
mod expr;
mod filters;
mod globals;
mod lex;
mod lower;
mod methods;
mod ops;
mod sequences;
mod strftime;
mod strings;
mod text;
mod value;

use std::io;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use minijinja::value::{Rest, ValueOrKwargs};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, Output, State, Value};

use self::args::Args;
use self::globals::Carried;
pub(super) use self::globals::{NeedsTime, Raised};
pub use self::strftime::Now;
use self::value::{Py, fail, py};
pub(super) use self::value::{from_json, list};

/// Instructions one rendering may take.
const FUEL: u64 = 50_000_000;
/// Bytes one rendering may produce, counting every string and list on the way.
const MAX_WORK: usize = 512 << 20;
/// Bytes a single operation may produce.
const MAX_VALUE: usize = 64 << 20;
/// The longest template that is read.
const MAX_SOURCE: usize = 4 << 20;
/// The name of the only template in an environment.
const NAME: &str = "chat_template";

/// Arguments as minijinja passes them.
type Values = Rest<ValueOrKwargs>;
/// A filter: the value it is applied to and its arguments.
type Filter = fn(&mut State<'_, '_>, &Value, &Args) -> Result<Value, Error>;
/// A test: the value and the arguments.
type Check = fn(&Value, &Args) -> Result<bool, Error>;

/// The filters a template may name, and those that its syntax is lowered to.
const FILTER_TABLES: [&[(&str, Filter)]; 3] = [filters::FILTERS, sequences::FILTERS, OPERATORS];

/// A template that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SyntaxError {
    pub(super) message: String,
    pub(super) line: usize,
}

impl SyntaxError {
    fn new(message: impl Into<String>, line: usize) -> Self {
        Self { message: message.into(), line }
    }
}

/// A template ready to be rendered: the only one of its environment.
pub(super) type Compiled = Environment<'static>;

/// Reads a template.
pub(super) fn compile(source: &str) -> Result<Compiled, SyntaxError> {
    if source.len() > MAX_SOURCE {
        return Err(SyntaxError::new(format!("longer than {MAX_SOURCE} bytes"), 1));
    }
    let lowered = lower::lower(source)?;
    let mut env = environment();
    guarded(|| env.add_template_owned(NAME, lowered))
        .map_err(|error| SyntaxError::new(message(&error), error.line().unwrap_or(1)))?;
    Ok(env)
}

/// The text and, in bytes, where `{% generation %}` blocks are in it.
pub(super) fn render(
    compiled: &Compiled,
    variables: impl Iterator<Item = (String, Value)>,
    now: Option<Now>,
) -> Result<(String, Vec<Range<usize>>), Error> {
    let run = Arc::new(Carried::new(now));
    let own = (Value::from(globals::RUN), Value::from_dyn_object(run.clone()));
    let context = variables.map(|(name, value)| (Value::from(name), value)).chain([own]);
    let mut writer = Writer { out: Vec::new(), run: run.clone() };
    let template = compiled.get_template(NAME)?;
    guarded(|| template.render_captured_to(Value::from_pairs(context), &mut writer).map(drop))?;
    let text = String::from_utf8(writer.out)
        .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned());
    let spans = run.spans(&text);
    Ok((text, spans))
}

/// What the engine says is wrong.
pub(super) fn message(error: &Error) -> String {
    error.detail().map_or_else(|| error.kind().to_string(), str::to_owned)
}

/// Python's `str()` of a JSON value.
pub(super) fn python_str(json: &serde_json::Value) -> String {
    from_json(json).and_then(|value| text::to_str(&value)).unwrap_or_default()
}

/// Turns a panic of the engine into an error: a template must not be able to take the process down.
fn guarded<T>(work: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| fail("the template engine failed"))
}

/// Collects the output and knows how long it is, so that `{% generation %}` can ask.
struct Writer {
    out: Vec<u8>,
    run: Arc<Carried>,
}

impl io::Write for Writer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.out.extend_from_slice(bytes);
        self.run.note_written(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn environment() -> Environment<'static> {
    let mut env = Environment::empty();
    env.set_fuel(Some(FUEL));
    env.set_auto_escape_callback(|_| AutoEscape::None);
    env.set_formatter(print);
    let mut syntax = minijinja::syntax::SyntaxConfig::builder();
    if let Ok(syntax) = syntax.keep_trailing_newline(true).build() {
        env.set_syntax(syntax);
    }
    for (name, filter) in FILTER_TABLES.into_iter().flatten().copied() {
        add_filter(&mut env, name, move |state, value, args| filter(state, value, &Args::new(args)?));
    }
    for (name, check) in checks::CHECKS.iter().copied() {
        add_test(&mut env, name, check);
    }
    add_operators(&mut env);
    globals::add(&mut env);
    env
}

fn add_filter(
    env: &mut Environment<'static>,
    name: &'static str,
    filter: impl Fn(&mut State<'_, '_>, &Value, &[Value]) -> Result<Value, Error> + Send + Sync + 'static,
) {
    env.add_filter(name, move |state: &mut State, args: Values| -> Result<Value, Error> {
        let args = args.into_values();
        let (value, args) = receiver(&args)?;
        let result = filter(state, value, args)?;
        charge(state, size(&result))?;
        Ok(result)
    });
}

fn add_test(
    env: &mut Environment<'static>,
    name: &'static str,
    check: impl Fn(&Value, &Args) -> Result<bool, Error> + Send + Sync + 'static,
) {
    env.add_test(name, move |args: Values| -> Result<bool, Error> {
        let args = args.into_values();
        let (value, args) = receiver(&args)?;
        check(value, &Args::new(args)?)
    });
}

/// The value a filter or test is applied to, and the arguments after it.
fn receiver(args: &[Value]) -> Result<(&Value, &[Value]), Error> {
    args.split_first().map_or_else(|| fail("nothing to apply this to"), Ok)
}

/// What a template's syntax is lowered to, besides operators with two sides.
const OPERATORS: &[(&str, Filter)] = &[
    ("__neg", |_, value, _| ops::signed(value, -1)),
    ("__pos", |_, value, _| ops::signed(value, 1)),
    ("__concat", |_, value, args| ops::tilde(value, &args.positional)),
    ("__slice", |_, value, args| ops::slice(value, &args.positional)),
    ("__attr", |_, value, args| ops::attribute(value, args.bind(["name"])?.str(0)?)),
    ("__iter", |_, value, args| for_loop(value, !args.positional.is_empty())),
    ("__list", |_, _, args| list(args.positional.to_vec())),
    ("__tuple", |_, _, args| value::seq(value::SeqKind::Tuple, args.positional.to_vec())),
    ("__dict", |_, _, args| {
        let pairs = args.positional.chunks_exact(2);
        value::dict(pairs.map(|pair| (pair[0].clone(), pair[1].clone())))
    }),
    // What a `filter` block ends up with goes into the text as it is, so it must be text.
    ("__printed", |_, value, _| args::as_str(value).map(|_| value.clone())),
    ("__store", |_, value, _| value::check_storable(value).map(|()| value.clone())),
];

/// What the operators of a template are lowered to.
fn add_operators(env: &mut Environment<'static>) {
    for (_, tests, compare) in ops::COMPARISONS.iter().copied() {
        for name in tests {
            let check = move |value: &Value, args: &Args| {
                Ok(compare(value, args.bind(["other"])?.required(0)?)?.is_true())
            };
            add_test(env, name, check);
        }
    }
    let comparisons = ops::COMPARISONS.iter().map(|(name, _, operator)| (*name, *operator));
    for (name, operator) in ops::BINARY.iter().copied().chain(comparisons) {
        env.add_filter(name, move |state: &mut State, a: Value, b: Value| -> Result<Value, Error> {
            let result = operator(&a, &b)?;
            charge(state, size(&result))?;
            Ok(result)
        });
    }
    add_filter(env, "__call", |state, value, args| {
        let (name, args) = receiver(args)?;
        methods::call(state, value, name.as_str().unwrap_or_default(), args)
    });
}

/// What a `for` loop goes through; strings among the items are taken apart if they are to be unpacked.
fn for_loop(value: &Value, unpacks: bool) -> Result<Value, Error> {
    if let (Py::Seq(_), false) = (py(value), unpacks) {
        return Ok(value.clone());
    }
    let mut items = value::iterate(value)?;
    for item in items.iter_mut().filter(|item| unpacks && matches!(py(item), Py::Str(_))) {
        *item = list(value::iterate(item)?)?;
    }
    list(items)
}

fn print(out: &mut Output<'_>, state: &mut State<'_, '_>, value: &Value) -> Result<(), Error> {
    let written;
    let text = match py(value) {
        Py::Str(text) => text,
        _ => {
            written = text::to_str(value)?;
            &written
        }
    };
    charge(state, text.len())?;
    Ok(out.write_str(text)?)
}

/// How many bytes a value was to produce.
fn size(value: &Value) -> usize {
    match py(value) {
        Py::Str(text) => text.len(),
        Py::Seq(seq) => seq.items.len() * size_of::<Value>(),
        Py::Dict(dict) => dict.entries.len() * size_of::<(Value, Value)>(),
        _ => 0,
    }
}

/// Bytes produced so far in one rendering.
#[derive(Debug, Default)]
struct Meter(usize);

/// Counts bytes that were produced, up to the limit.
fn charge(state: &mut State<'_, '_>, n_bytes: usize) -> Result<(), Error> {
    let meter = state.get_or_insert_extension_with(Meter::default);
    meter.0 = meter.0.saturating_add(n_bytes);
    if meter.0 > MAX_WORK {
        return Err(Error::new(ErrorKind::OutOfFuel, format!("more than {MAX_WORK} bytes of work")));
    }
    room(n_bytes)
}

/// Refuses to produce something too large, before it is done.
fn room(n_bytes: usize) -> Result<(), Error> {
    if n_bytes > MAX_VALUE {
        return Err(Error::new(ErrorKind::OutOfFuel, format!("a value of more than {MAX_VALUE} bytes")));
    }
    Ok(())
}
