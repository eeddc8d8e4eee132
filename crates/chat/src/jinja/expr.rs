//! Expressions: read with Jinja2's grammar, written again for minijinja.
//!
//! An operation that means the same in both engines is written as it was; one that Python defines
//! differently becomes a call of one of our filters (`a + b` is written `a|__add(b)`). Owns the
//! tokens' cursor too. Statements are left to `lower`, the filters themselves to `ops`.

use super::SyntaxError;
use super::lex::{Tok, Token};
use super::methods::is_python_attribute;
use super::ops::COMPARISONS;
use backsight_core::python::json_string;

/// Deeper nesting is refused, because both parsers recurse.
const MAX_DEPTH: usize = 50;
/// More operations in one tag are refused, because minijinja's code generator recurses over chains.
const MAX_OPERATIONS: usize = 1_500;

/// Words that cannot be names, because they would be read as something else when written again.
const KEYWORDS: &[&str] = &["and", "else", "if", "in", "is", "not", "or"];

/// The operators between two operands that bind to the left, the loosest first, and our filters for them.
const BINARY: [&[(&str, &str)]; 3] = [
    &[("+", "__add"), ("-", "__sub")],
    &[("~", "__concat")],
    &[("*", "__mul"), ("/", "__div"), ("//", "__floordiv"), ("%", "__mod")],
];

/// An expression written for minijinja; a filter may follow it.
#[derive(Clone, Debug)]
pub(super) struct Code {
    pub(super) text: String,
    /// Whether `.name` or `(…)` may follow too: names, strings, calls, anything in brackets.
    is_primary: bool,
}

impl Code {
    fn primary(text: impl Into<String>) -> Self {
        Self { text: text.into(), is_primary: true }
    }

    fn bracketed(text: &str) -> Self {
        Self::primary(format!("({text})"))
    }

    /// The text, in brackets unless it is primary.
    fn tight(self) -> String {
        if self.is_primary { self.text } else { format!("({})", self.text) }
    }

    /// `self|name(args)`.
    pub(super) fn filter(self, name: &str, args: &str) -> Self {
        Self { text: format!("{}|{name}({args})", self.text), is_primary: false }
    }
}

/// A cursor over a template's tokens.
pub(super) struct Cursor {
    tokens: Vec<Token>,
    pos: usize,
    depth: usize,
    /// Those of the tag that is being read.
    pub(super) n_operations: usize,
    /// Every variable that was read so far, in order.
    pub(super) names: Vec<String>,
}

impl Cursor {
    pub(super) fn new(tokens: Vec<Token>) -> Self {
        Self { tokens, pos: 0, depth: 0, n_operations: 0, names: Vec::new() }
    }

    pub(super) fn peek(&self) -> Option<&Tok> {
        self.look(0)
    }

    fn look(&self, ahead: usize) -> Option<&Tok> {
        self.tokens.get(self.pos + ahead).map(|token| &token.tok)
    }

    /// The line of the next token, or of the last one at the end.
    pub(super) fn line(&self) -> usize {
        self.tokens.get(self.pos).or(self.tokens.last()).map_or(1, |token| token.line)
    }

    pub(super) fn next(&mut self) -> Option<Tok> {
        let tok = self.peek().cloned();
        self.pos += 1;
        tok
    }

    /// Notes that a variable is read.
    pub(super) fn note_name(&mut self, name: &str) {
        self.names.push(name.to_owned());
    }

    pub(super) fn fail<T>(&self, message: impl Into<String>) -> Result<T, SyntaxError> {
        Err(SyntaxError::new(message, self.line()))
    }

    pub(super) fn is_op(&self, op: &str) -> bool {
        matches!(self.peek(), Some(Tok::Op(it)) if *it == op)
    }

    pub(super) fn is_name(&self, name: &str) -> bool {
        matches!(self.peek(), Some(Tok::Name(it)) if it == name)
    }

    /// Passes over an operator if it is next.
    pub(super) fn skip_op(&mut self, op: &str) -> bool {
        let found = self.is_op(op);
        self.pos += usize::from(found);
        found
    }

    /// Passes over a name if it is next.
    pub(super) fn skip_name(&mut self, name: &str) -> bool {
        let found = self.is_name(name);
        self.pos += usize::from(found);
        found
    }

    pub(super) fn expect_op(&mut self, op: &str) -> Result<(), SyntaxError> {
        if self.skip_op(op) { Ok(()) } else { self.unexpected(&format!("`{op}`")) }
    }

    pub(super) fn expect_name(&mut self) -> Result<String, SyntaxError> {
        let Some(Tok::Name(name)) = self.peek() else { return self.unexpected("a name") };
        let name = name.clone();
        self.pos += 1;
        Ok(name)
    }

    /// A name that something is assigned to.
    pub(super) fn assignable(&mut self) -> Result<String, SyntaxError> {
        let name = self.expect_name()?;
        if ["true", "false", "none", "True", "False", "None"].contains(&name.as_str()) {
            return self.fail(format!("cannot assign to `{name}`"));
        }
        Ok(name)
    }

    pub(super) fn unexpected<T>(&self, expected: &str) -> Result<T, SyntaxError> {
        let found = match self.peek() {
            None => "the end of the template".to_owned(),
            Some(Tok::Data(_)) => "text".to_owned(),
            Some(Tok::Name(name)) => format!("`{name}`"),
            Some(Tok::Str(_)) => "a string".to_owned(),
            Some(Tok::Int(_) | Tok::Float(_)) => "a number".to_owned(),
            Some(Tok::Op(op)) => format!("`{op}`"),
        };
        self.fail(format!("expected {expected}, found {found}"))
    }

    fn count(&mut self) -> Result<(), SyntaxError> {
        self.n_operations += 1;
        if self.n_operations > MAX_OPERATIONS {
            return self.fail(format!("more than {MAX_OPERATIONS} operations in one tag"));
        }
        Ok(())
    }

    /// Refuses to go deeper than both parsers can.
    fn nested<T>(
        &mut self,
        parse: impl FnOnce(&mut Self) -> Result<T, SyntaxError>,
    ) -> Result<T, SyntaxError> {
        if self.depth >= MAX_DEPTH {
            return self.fail("an expression is nested too deeply");
        }
        self.depth += 1;
        let parsed = parse(self);
        self.depth -= 1;
        parsed
    }

    /// One expression, or several with commas between them: a tuple.
    pub(super) fn tuple(&mut self, with_ternary: bool) -> Result<Code, SyntaxError> {
        let mut items = Vec::new();
        let mut is_tuple = false;
        while !matches!(self.peek(), None | Some(Tok::Op("}}" | "%}" | ")" | "]"))) {
            items.push(if with_ternary { self.expression()? } else { self.nested(Self::or)? });
            if !self.skip_op(",") {
                break;
            }
            is_tuple = true;
        }
        match items.pop() {
            Some(only) if !is_tuple => Ok(only),
            Some(last) => {
                items.push(last);
                Ok(container("__tuple", items))
            }
            None => self.unexpected("an expression"),
        }
    }

    pub(super) fn expression(&mut self) -> Result<Code, SyntaxError> {
        self.nested(Self::ternary)
    }

    fn ternary(&mut self) -> Result<Code, SyntaxError> {
        let mut value = self.or()?;
        while self.skip_name("if") {
            self.count()?;
            let mut text = format!("{} if {}", value.text, self.or()?.text);
            if self.skip_name("else") {
                text = format!("{text} else {}", self.nested(Self::ternary)?.text);
            }
            value = Code::bracketed(&text);
        }
        Ok(value)
    }

    fn or(&mut self) -> Result<Code, SyntaxError> {
        self.joined("or", |parser| parser.joined("and", Self::not))
    }

    /// Operands of `and` or `or`: both engines give the deciding operand itself, not a boolean.
    fn joined(
        &mut self,
        word: &str,
        operand: impl Fn(&mut Self) -> Result<Code, SyntaxError>,
    ) -> Result<Code, SyntaxError> {
        let first = operand(self)?;
        if !self.is_name(word) {
            return Ok(first);
        }
        let mut text = first.text;
        while self.skip_name(word) {
            self.count()?;
            text = format!("{text} {word} {}", operand(self)?.text);
        }
        Ok(Code::bracketed(&text))
    }

    fn not(&mut self) -> Result<Code, SyntaxError> {
        if !self.skip_name("not") {
            return self.compare();
        }
        let operand = self.nested(Self::not)?.text;
        Ok(Code::bracketed(&format!("not {operand}")))
    }

    fn compare(&mut self) -> Result<Code, SyntaxError> {
        let mut left = self.binary(0)?;
        let mut parts = Vec::new();
        while let Some((filter, negated)) = self.comparison() {
            self.count()?;
            let right = self.binary(0)?;
            let test = left.filter(filter, &right.text);
            parts.push(if negated { Code::bracketed(&format!("not {}", test.text)) } else { test });
            left = right;
        }
        if parts.len() < 2 {
            return Ok(parts.pop().unwrap_or(left));
        }
        let parts: Vec<_> = parts.into_iter().map(|part| part.text).collect();
        Ok(Code::bracketed(&parts.join(" and ")))
    }

    /// Our filter for the comparison that is next, and whether its answer is to be turned round.
    fn comparison(&mut self) -> Option<(&'static str, bool)> {
        let found = match (self.peek()?, self.look(1)) {
            (Tok::Op(op), _) => (COMPARISONS.iter().find(|(_, tests, _)| tests.contains(op))?.0, false),
            (Tok::Name(word), _) if word == "in" => ("__in", false),
            (Tok::Name(word), Some(Tok::Name(next))) if word == "not" && next == "in" => ("__in", true),
            _ => return None,
        };
        self.pos += 1 + usize::from(found.1);
        Some(found)
    }

    /// A chain of operators that bind as tightly as those at `level`.
    fn binary(&mut self, level: usize) -> Result<Code, SyntaxError> {
        let Some(ops) = BINARY.get(level) else { return self.unary(true) };
        let mut left = self.binary(level + 1)?;
        while let Some((_, filter)) = ops.iter().find(|(op, _)| self.is_op(op)) {
            self.pos += 1;
            self.count()?;
            left = left.filter(filter, &self.binary(level + 1)?.text);
        }
        Ok(left)
    }

    fn unary(&mut self, with_filter: bool) -> Result<Code, SyntaxError> {
        let value = if self.skip_op("-") {
            self.nested(|parser| parser.unary(false))?.filter("__neg", "")
        } else if self.skip_op("+") {
            self.nested(|parser| parser.unary(false))?.filter("__pos", "")
        } else {
            self.primary()?
        };
        let value = self.postfix(value)?;
        if with_filter { self.filters(value) } else { Ok(value) }
    }

    fn primary(&mut self) -> Result<Code, SyntaxError> {
        match self.peek() {
            Some(Tok::Name(name)) if KEYWORDS.contains(&name.as_str()) => self.unexpected("an expression"),
            Some(Tok::Name(_)) => self.name(),
            Some(Tok::Str(_)) => Ok(self.string()),
            Some(Tok::Int(number) | Tok::Float(number)) => {
                let text = number.clone();
                self.pos += 1;
                Ok(Code { text, is_primary: false })
            }
            Some(Tok::Op("(")) => self.parentheses(),
            Some(Tok::Op("[")) => self.list(),
            Some(Tok::Op("{")) => self.dict(),
            _ => self.unexpected("an expression"),
        }
    }

    fn name(&mut self) -> Result<Code, SyntaxError> {
        let name = self.expect_name()?;
        let text = match name.as_str() {
            "true" | "True" => "true",
            "false" | "False" => "false",
            "none" | "None" => "none",
            _ => {
                self.note_name(&name);
                &name
            }
        };
        Ok(Code::primary(text))
    }

    /// String literals that follow each other are one string.
    fn string(&mut self) -> Code {
        let mut text = String::new();
        while let Some(Tok::Str(part)) = self.peek() {
            text.push_str(part);
            self.pos += 1;
        }
        Code::primary(quote(&text))
    }

    fn parentheses(&mut self) -> Result<Code, SyntaxError> {
        self.expect_op("(")?;
        if self.skip_op(")") {
            return Ok(container("__tuple", Vec::new()));
        }
        let inner = self.tuple(true)?;
        self.expect_op(")")?;
        Ok(Code::bracketed(&inner.text))
    }

    fn list(&mut self) -> Result<Code, SyntaxError> {
        self.expect_op("[")?;
        Ok(container("__list", self.separated("]", Self::expression)?))
    }

    fn dict(&mut self) -> Result<Code, SyntaxError> {
        self.expect_op("{")?;
        let entries = self.separated("}", |parser| {
            let key = parser.expression()?;
            parser.expect_op(":")?;
            Ok([key, parser.expression()?])
        });
        Ok(container("__dict", entries?.into_iter().flatten().collect()))
    }

    /// What stands between commas up to `close`; the opening bracket has been passed.
    pub(super) fn separated<T>(
        &mut self,
        close: &str,
        item: impl Fn(&mut Self) -> Result<T, SyntaxError>,
    ) -> Result<Vec<T>, SyntaxError> {
        let mut items = Vec::new();
        while !self.is_op(close) {
            items.push(item(self)?);
            if !self.skip_op(",") {
                break;
            }
        }
        self.expect_op(close)?;
        Ok(items)
    }

    fn postfix(&mut self, mut value: Code) -> Result<Code, SyntaxError> {
        loop {
            value = match self.peek() {
                Some(Tok::Op(".")) => self.attribute(value)?,
                Some(Tok::Op("[")) => self.subscript(value)?,
                Some(Tok::Op("(")) => self.call(value)?,
                _ => return Ok(value),
            };
            self.count()?;
        }
    }

    fn attribute(&mut self, value: Code) -> Result<Code, SyntaxError> {
        self.expect_op(".")?;
        match self.next() {
            Some(Tok::Int(index)) => Ok(value.filter("__item", &index)),
            Some(Tok::Name(name)) if self.is_op("(") => {
                let args = self.call_args()?;
                let separator = if args.is_empty() { "" } else { ", " };
                Ok(value.filter("__call", &format!("{}{separator}{args}", quote(&name))))
            }
            Some(Tok::Name(name)) if is_python_attribute(&name) => Ok(value.filter("__attr", &quote(&name))),
            Some(Tok::Name(name)) => Ok(Code::primary(format!("{}.{name}", value.tight()))),
            _ => self.fail("expected a name or a number after `.`"),
        }
    }

    fn subscript(&mut self, value: Code) -> Result<Code, SyntaxError> {
        self.expect_op("[")?;
        if let (Some(Tok::Str(key)), Some(Tok::Op("]"))) = (self.peek(), self.look(1))
            && !is_python_attribute(key)
        {
            let key = quote(key);
            self.pos += 2;
            return Ok(Code::primary(format!("{}[{key}]", value.tight())));
        }
        let (filter, args) = self.subscript_args()?;
        self.expect_op("]")?;
        Ok(value.filter(filter, &args))
    }

    fn subscript_args(&mut self) -> Result<(&'static str, String), SyntaxError> {
        let first = if self.is_op(":") { None } else { Some(self.tuple(true)?.text) };
        match first {
            Some(key) if !self.is_op(":") => Ok(("__item", key)),
            start => Ok(("__slice", self.slice_args(start)?)),
        }
    }

    /// The bounds and the step of `[start:stop:step]`, `none` for those left out.
    fn slice_args(&mut self, start: Option<String>) -> Result<String, SyntaxError> {
        let mut parts = vec![start];
        while parts.len() < 3 && self.skip_op(":") {
            let is_empty = self.is_op(":") || self.is_op("]");
            parts.push(if is_empty { None } else { Some(self.expression()?.text) });
        }
        let parts: Vec<_> = parts.iter().map(|part| part.as_deref().unwrap_or("none")).collect();
        Ok(parts.join(", "))
    }

    fn call(&mut self, callee: Code) -> Result<Code, SyntaxError> {
        let args = self.call_args()?;
        Ok(Code::primary(format!("{}({args})", callee.tight())))
    }

    /// The arguments of a call, brackets taken off.
    pub(super) fn call_args(&mut self) -> Result<String, SyntaxError> {
        self.expect_op("(")?;
        Ok(self.separated(")", Self::call_arg)?.join(", "))
    }

    fn call_arg(&mut self) -> Result<String, SyntaxError> {
        self.count()?;
        if self.skip_op("**") {
            return Ok(format!("**{}", self.expression()?.text));
        }
        if self.skip_op("*") {
            let splat = self.expression()?.filter("__iter", "").text;
            return Ok(format!("*{splat}"));
        }
        if let (Some(Tok::Name(name)), Some(Tok::Op("="))) = (self.peek(), self.look(1)) {
            let name = name.clone();
            self.pos += 2;
            return Ok(format!("{name}={}", self.expression()?.text));
        }
        Ok(self.expression()?.text)
    }

    fn filters(&mut self, mut value: Code) -> Result<Code, SyntaxError> {
        loop {
            value = match self.peek() {
                Some(Tok::Op("|")) => {
                    self.pos += 1;
                    let (name, args) = self.filter_call()?;
                    value.filter(&name, &args)
                }
                Some(Tok::Name(word)) if word == "is" => self.test(value)?,
                Some(Tok::Op("(")) => self.call(value)?,
                _ => return Ok(value),
            };
            self.count()?;
        }
    }

    /// A filter's name and its arguments.
    pub(super) fn filter_call(&mut self) -> Result<(String, String), SyntaxError> {
        let name = self.public_name("filter")?;
        let args = if self.is_op("(") { self.call_args()? } else { String::new() };
        Ok((name, args))
    }

    /// A name that cannot be mistaken for one of our own filters.
    fn public_name(&mut self, what: &str) -> Result<String, SyntaxError> {
        let name = self.expect_name()?;
        if name.starts_with("__") || self.is_op(".") {
            return self.fail(format!("there is no {what} named `{name}`"));
        }
        Ok(name)
    }

    fn test(&mut self, value: Code) -> Result<Code, SyntaxError> {
        self.pos += 1;
        let negated = self.skip_name("not");
        let name = self.public_name("test")?;
        let args = self.test_args()?;
        let not = if negated { "not " } else { "" };
        Ok(Code::bracketed(&format!("{} is {not}{name}({args})", value.text)))
    }

    /// A test takes its arguments in brackets, or one operand without them.
    fn test_args(&mut self) -> Result<String, SyntaxError> {
        match self.peek() {
            Some(Tok::Op("(")) => self.call_args(),
            Some(Tok::Name(word)) if ["else", "or", "and"].contains(&word.as_str()) => Ok(String::new()),
            Some(Tok::Name(word)) if word == "is" => self.fail("tests cannot be chained with `is`"),
            Some(Tok::Name(_) | Tok::Str(_) | Tok::Int(_) | Tok::Float(_) | Tok::Op("[" | "{")) => {
                let operand = self.nested(Self::primary)?;
                Ok(self.postfix(operand)?.text)
            }
            _ => Ok(String::new()),
        }
    }
}

fn container(filter: &str, items: Vec<Code>) -> Code {
    let items: Vec<_> = items.into_iter().map(|item| item.text).collect();
    Code::primary("none").filter(filter, &items.join(", "))
}

/// A string literal that minijinja reads back as `text`: it takes JSON's escapes.
pub(super) fn quote(text: &str) -> String {
    json_string(text, false)
}
