//! Statements: a template written again for minijinja, tag by tag.
//!
//! Knows which tags transformers' environment has, that they nest properly, and what minijinja calls
//! them. Expressions are left to `expr`. Tags keep their line, so that minijinja's errors name the
//! line of the original.

use std::collections::BTreeSet;

use super::SyntaxError;
use super::expr::{Cursor, quote};
use super::lex::{Tok, lex};

/// More `elif`s on one `if` are refused, because minijinja nests them.
const MAX_ELIFS: usize = 300;

/// A block that is open.
#[derive(Clone, Debug, PartialEq)]
enum Open {
    If { n_elifs: usize, has_else: bool },
    For { in_else: bool },
    Set,
    Filter,
    Macro,
    Generation,
}

/// Where the body of a block starts, in the output and in the names that were read.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Body {
    out: usize,
    names: usize,
}

impl Open {
    /// The tag that closes the block.
    fn end(&self) -> &'static str {
        match self {
            Self::If { .. } => "endif",
            Self::For { .. } => "endfor",
            Self::Set => "endset",
            Self::Filter => "endfilter",
            Self::Macro => "endmacro",
            Self::Generation => "endgeneration",
        }
    }
}

/// Writes a chat template again so that minijinja renders what Jinja2 renders.
pub(super) fn lower(source: &str) -> Result<String, SyntaxError> {
    let mut lowering =
        Lowering { parser: Cursor::new(lex(source)?), out: String::new(), out_line: 1, open: Vec::new() };
    while lowering.parser.peek().is_some() {
        lowering.step()?;
    }
    match lowering.open.last() {
        None => Ok(lowering.out),
        Some((open, _)) => lowering.parser.fail(format!("`{}` is missing", open.end())),
    }
}

struct Lowering {
    parser: Cursor,
    out: String,
    out_line: usize,
    open: Vec<(Open, Body)>,
}

impl Lowering {
    fn step(&mut self) -> Result<(), SyntaxError> {
        self.parser.n_operations = 0;
        let line = self.parser.line();
        match self.parser.next() {
            // Text, as a printed literal: it cannot be taken for a tag, and what is printed is counted.
            Some(Tok::Data(text)) => self.out.push_str(&format!("{{{{ {} }}}}", quote(&text))),
            Some(Tok::Op("{{")) => {
                let (value, gap) = (self.parser.tuple(true)?.text, self.catch_up(line));
                self.out.push_str(&format!("{{{{{gap} {value} }}}}"));
                return self.parser.expect_op("}}");
            }
            Some(Tok::Op("{%")) => {
                self.statement(line)?;
                return self.parser.expect_op("%}");
            }
            _ => return self.parser.unexpected("text or a tag"),
        }
        Ok(())
    }

    /// Newlines that bring the output to the line of the source; removed text left it behind.
    fn catch_up(&mut self, line: usize) -> String {
        let n_missing = line.saturating_sub(self.out_line);
        self.out_line += n_missing;
        "\n".repeat(n_missing)
    }

    fn statement(&mut self, line: usize) -> Result<(), SyntaxError> {
        let name = self.parser.expect_name()?;
        let (text, opened) = match name.as_str() {
            "for" => (self.for_loop()?, Some(Open::For { in_else: false })),
            "if" => {
                let condition = self.parser.tuple(false)?.text;
                (format!("if {condition}"), Some(Open::If { n_elifs: 0, has_else: false }))
            }
            "elif" => (self.elif()?, None),
            "else" => (self.otherwise()?, None),
            "set" => self.set()?,
            "macro" => (self.macro_definition()?, Some(Open::Macro)),
            "filter" => (format!("filter {}|__printed()", self.filters()?), Some(Open::Filter)),
            "generation" => ("call __generation()".to_owned(), Some(Open::Generation)),
            "break" | "continue" => (self.loop_control(name)?, None),
            _ => (self.end(&name)?, None),
        };
        let gap = self.catch_up(line);
        self.out.push_str(&format!("{{%{gap} {text} %}}"));
        let body = Body { out: self.out.len(), names: self.parser.names.len() };
        self.open.extend(opened.map(|open| (open, body)));
        Ok(())
    }

    /// Names every variable of a macro's body at its start, in a branch that is never taken.
    ///
    /// A macro keeps what it reads of its surroundings, but minijinja overlooks variables that the
    /// body also sets (`set x = x + 1`) and those in a namespace's or filter's place.
    fn name_variables(&mut self, body: Body) {
        let names: BTreeSet<&String> = self.parser.names.iter().skip(body.names).collect();
        let reads: String = names.into_iter().map(|name| format!("{{{{ {name} }}}}")).collect();
        self.out.insert_str(body.out, &format!("{{% if false %}}{reads}{{% endif %}}"));
    }

    fn end(&mut self, name: &str) -> Result<String, SyntaxError> {
        match self.open.last() {
            Some((open, _)) if open.end() == name => {
                if let Some((Open::Macro | Open::Generation, body)) = self.open.pop() {
                    self.name_variables(body);
                }
                // minijinja knows no generation; its text is given to a call.
                Ok(if name == "endgeneration" { "endcall" } else { name }.to_owned())
            }
            Some((open, _)) if name.starts_with("end") => {
                self.parser.fail(format!("expected `{}`, found `{name}`", open.end()))
            }
            _ => self.parser.fail(format!("the tag `{name}` is not supported, or there is none")),
        }
    }

    fn for_loop(&mut self) -> Result<String, SyntaxError> {
        let (target, n_names) = self.targets()?;
        if !self.parser.skip_name("in") {
            return self.parser.unexpected("`in`");
        }
        let items = self.parser.tuple(false)?;
        let unpacks = if n_names > 1 { "true" } else { "" };
        let mut text = format!("for {target} in {}", items.filter("__iter", unpacks).text);
        if self.parser.skip_name("if") {
            text = format!("{text} if {}", self.parser.expression()?.text);
        }
        Ok(text)
    }

    /// Names to assign to, with commas between them, and how many there are.
    fn targets(&mut self) -> Result<(String, usize), SyntaxError> {
        let mut names = Vec::new();
        loop {
            let is_bracketed = self.parser.skip_op("(");
            names.push(if is_bracketed { self.inner_targets()? } else { self.parser.assignable()? });
            if !self.parser.skip_op(",") || self.parser.is_name("in") || self.parser.is_op("=") {
                break;
            }
        }
        Ok((names.join(", "), names.len()))
    }

    /// The names of `(b, c)` in `a, (b, c)`; its opening bracket has been passed.
    fn inner_targets(&mut self) -> Result<String, SyntaxError> {
        Ok(format!("({})", self.parser.separated(")", Cursor::assignable)?.join(", ")))
    }

    fn elif(&mut self) -> Result<String, SyntaxError> {
        let condition = self.parser.tuple(false)?.text;
        match self.open.last_mut() {
            Some((Open::If { n_elifs, has_else: false }, _)) if *n_elifs < MAX_ELIFS => *n_elifs += 1,
            Some((Open::If { has_else: false, .. }, _)) => return self.parser.fail("too many `elif`s"),
            _ => return self.parser.fail("unexpected `elif`"),
        }
        Ok(format!("elif {condition}"))
    }

    fn otherwise(&mut self) -> Result<String, SyntaxError> {
        match self.open.last_mut() {
            Some((Open::If { has_else: had, .. } | Open::For { in_else: had }, _)) if !*had => *had = true,
            _ => return self.parser.fail("unexpected `else`"),
        }
        Ok("else".to_owned())
    }

    fn set(&mut self) -> Result<(String, Option<Open>), SyntaxError> {
        let mut target = self.targets()?.0;
        if self.parser.skip_op(".") {
            let attribute = self.parser.expect_name()?;
            if attribute.starts_with('_') {
                return self.parser.fail(format!("a namespace cannot hold `{attribute}`"));
            }
            self.parser.note_name(&target);
            target = format!("{target}.{attribute}");
        }
        // What a namespace holds outlives a loop, so how deep it is must be watched.
        let store = if target.contains('.') { "|__store()" } else { "" };
        if self.parser.skip_op("=") {
            let value = self.parser.tuple(true)?.text;
            return Ok((format!("set {target} = ({value}){store}"), None));
        }
        if self.parser.skip_op("|") {
            target = format!("{target}|{}", self.filters()?);
        }
        Ok((format!("set {target}"), Some(Open::Set)))
    }

    /// A name, and parameters in brackets with their defaults.
    fn macro_definition(&mut self) -> Result<String, SyntaxError> {
        let name = self.parser.assignable()?;
        self.parser.expect_op("(")?;
        let params = self.parser.separated(")", |parser| {
            let name = parser.assignable()?;
            Ok(if parser.skip_op("=") { format!("{name}={}", parser.expression()?.text) } else { name })
        })?;
        Ok(format!("macro {name}({})", params.join(", ")))
    }

    /// Filters with `|` between them.
    fn filters(&mut self) -> Result<String, SyntaxError> {
        let mut chain = Vec::new();
        loop {
            let (name, args) = self.parser.filter_call()?;
            chain.push(format!("{name}({args})"));
            if !self.parser.skip_op("|") {
                return Ok(chain.join("|"));
            }
        }
    }

    /// `break` and `continue`, which minijinja mishandles anywhere but directly in a loop.
    fn loop_control(&mut self, name: String) -> Result<String, SyntaxError> {
        let mut around = self.open.iter().rev().map(|(open, _)| open);
        match around.find(|open| !matches!(open, Open::If { .. })) {
            Some(Open::For { in_else: false }) => Ok(name),
            Some(Open::Set | Open::Filter | Open::For { .. }) => {
                self.parser.fail(format!("`{name}` is supported directly in a loop only"))
            }
            _ => self.parser.fail(format!("`{name}` outside a loop")),
        }
    }
}
