//! Jinja2's lexer: template source to tokens, white space already removed as the tags ask for.
//!
//! Follows transformers' settings (`trim_blocks`, `lstrip_blocks`, one trailing newline dropped)
//! and Python's reading of numbers and string escapes. What the tokens mean is left to `lower`.

use super::SyntaxError;
use backsight_core::python::{is_space, unescape_one};

/// One token and the line of the source it starts on.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Token {
    pub(super) tok: Tok,
    pub(super) line: usize,
}

/// What a token is.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Tok {
    /// Text outside tags.
    Data(String),
    /// An identifier or keyword.
    Name(String),
    /// A string literal, escapes decoded.
    Str(String),
    /// An integer literal.
    Int(String),
    /// A float literal.
    Float(String),
    /// An operator, a bracket, or what opens or closes a tag.
    Op(&'static str),
}

/// Operators, longest first so that `//` is not read as two `/`.
const OPERATORS: &[&str] = &[
    "**", "//", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[", "]", "(", ")", "{", "}", ">", "<",
    "=", ".", ":", "|", ",", ";",
];

/// Reads a whole template.
pub(super) fn lex(source: &str) -> Result<Vec<Token>, SyntaxError> {
    let source = normalize_newlines(source);
    let mut lexer = Lexer { source: &source, pos: 0, line: 1, line_starting: true, tokens: Vec::new() };
    while lexer.pos < source.len() {
        lexer.step()?;
    }
    Ok(lexer.tokens)
}

/// Jinja2 knows only `\n`, and drops one newline at the end of a template.
fn normalize_newlines(source: &str) -> String {
    let mut source = source.replace("\r\n", "\n").replace('\r', "\n");
    if source.ends_with('\n') {
        source.pop();
    }
    source
}

#[derive(Clone, Copy, PartialEq)]
enum TagKind {
    Print,
    Block,
    Comment,
}

impl TagKind {
    fn delimiters(self) -> (&'static str, &'static str) {
        match self {
            Self::Print => ("{{", "}}"),
            Self::Block => ("{%", "%}"),
            Self::Comment => ("{#", "#}"),
        }
    }
}

struct Lexer<'a> {
    source: &'a str,
    pos: usize,
    line: usize,
    /// Whether the text at `pos` starts a line, as far as `lstrip_blocks` is concerned.
    line_starting: bool,
    tokens: Vec<Token>,
}

impl<'a> Lexer<'a> {
    fn rest(&self) -> &'a str {
        &self.source[self.pos..]
    }

    fn fail<T>(&self, message: impl Into<String>) -> Result<T, SyntaxError> {
        Err(SyntaxError::new(message, self.line))
    }

    fn push(&mut self, tok: Tok) {
        self.tokens.push(Token { tok, line: self.line });
    }

    fn advance(&mut self, n_bytes: usize) -> &'a str {
        let text = &self.rest()[..n_bytes];
        self.line += text.matches('\n').count();
        self.pos += n_bytes;
        text
    }

    /// Reads the text up to the next tag, and that tag.
    fn step(&mut self) -> Result<(), SyntaxError> {
        let Some((at, kind)) = find_tag(self.rest()) else {
            self.data(self.rest().len(), None, false);
            return Ok(());
        };
        // The white-space sign right after the opening delimiter.
        let sign = self.rest()[at + 2..].chars().next().filter(|c| matches!(c, '-' | '+'));
        self.data(at, sign, kind != TagKind::Print);
        self.advance(2 + sign.map_or(0, char::len_utf8));
        match kind {
            TagKind::Comment => self.comment(),
            TagKind::Block if is_raw(self.rest()) => self.fail("the tag `raw` is not supported"),
            TagKind::Block | TagKind::Print => self.tag(kind),
        }
    }

    /// Emits the `n_bytes` of text before a tag or the end, without the white space that the tag removes.
    fn data(&mut self, n_bytes: usize, sign: Option<char>, lstrip: bool) {
        let line = self.line;
        let line_starting = self.line_starting;
        let text = self.advance(n_bytes);
        let text = match sign {
            Some('-') => text.trim_end_matches(is_space),
            None if lstrip => strip_indent(text, line_starting),
            _ => text,
        };
        if !text.is_empty() {
            self.tokens.push(Token { tok: Tok::Data(text.to_owned()), line });
        }
    }

    fn comment(&mut self) -> Result<(), SyntaxError> {
        let Some(end) = self.rest().find("#}") else {
            return self.fail("a comment is not closed: `#}` is missing");
        };
        let keeps_newline = self.rest()[..end].ends_with('+');
        let strips = self.rest()[..end].ends_with('-');
        self.advance(end);
        self.close(2, strips, !keeps_newline);
        Ok(())
    }

    /// Passes over a closing delimiter and the white space it takes with it.
    fn close(&mut self, n_bytes: usize, strips: bool, trims_newline: bool) {
        let after = &self.rest()[n_bytes..];
        let n_space = if strips {
            after.len() - after.trim_start_matches(is_space).len()
        } else {
            usize::from(trims_newline && after.starts_with('\n'))
        };
        self.line_starting = self.advance(n_bytes + n_space).ends_with('\n');
    }

    /// Reads the inside of `{{ … }}` or `{% … %}`.
    fn tag(&mut self, kind: TagKind) -> Result<(), SyntaxError> {
        self.push(Tok::Op(kind.delimiters().0));
        let mut brackets = Vec::new();
        while !(brackets.is_empty() && self.tag_end(kind)) {
            self.token(kind, &mut brackets)?;
        }
        Ok(())
    }

    /// Closes the tag if it ends here.
    fn tag_end(&mut self, kind: TagKind) -> bool {
        let (is_block, end) = (kind == TagKind::Block, kind.delimiters().1);
        let rest = self.rest();
        let (n_bytes, strips, trims) = match rest.chars().next() {
            Some('-') if rest[1..].starts_with(end) => (3, true, false),
            Some('+') if is_block && rest[1..].starts_with(end) => (3, false, false),
            _ if rest.starts_with(end) => (2, false, is_block),
            _ => return false,
        };
        self.push(Tok::Op(end));
        self.close(n_bytes, strips, trims);
        true
    }

    fn token(&mut self, kind: TagKind, brackets: &mut Vec<&'static str>) -> Result<(), SyntaxError> {
        let rest = self.rest();
        let Some(first) = rest.chars().next() else {
            return self.fail(format!("a tag is not closed: `{}` is missing", kind.delimiters().1));
        };
        if is_space(first) {
            self.advance(first.len_utf8());
            return Ok(());
        }
        let after_dot = self.source[..self.pos].ends_with('.');
        let (n_bytes, tok) = match first {
            '0'..='9' => self.number(after_dot),
            '\'' | '"' => self.string(first)?,
            _ if first.is_alphanumeric() || first == '_' => self.name()?,
            _ => self.operator(brackets)?,
        };
        self.push(tok);
        self.advance(n_bytes);
        Ok(())
    }

    fn number(&self, after_dot: bool) -> (usize, Tok) {
        let rest = self.rest();
        if let Some(n_bytes) = float_len(rest).filter(|_| !after_dot) {
            return (n_bytes, Tok::Float(rest[..n_bytes].to_owned()));
        }
        // A leading zero is a number of its own: `012` reads as `0` and `12`.
        let n_zeros = rest.len() - rest.trim_start_matches('0').len();
        let n_bytes = if n_zeros > 0 { n_zeros } else { digits_len(rest) };
        (n_bytes, Tok::Int(rest[..n_bytes].to_owned()))
    }

    fn string(&self, quote: char) -> Result<(usize, Tok), SyntaxError> {
        let mut escaped = false;
        for (at, c) in self.rest().char_indices().skip(1) {
            match c {
                _ if escaped => escaped = false,
                '\\' => escaped = true,
                _ if c == quote => {
                    let written = &self.rest()[..=at];
                    return match unescape(&written[1..at]) {
                        Some(text) => Ok((at + 1, Tok::Str(text))),
                        None => self.fail(format!("an escape in {written} is broken or not supported")),
                    };
                }
                _ => {}
            }
        }
        self.fail("a string is not closed")
    }

    fn name(&self) -> Result<(usize, Tok), SyntaxError> {
        let rest = self.rest();
        let n_bytes = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
        let name = &rest[..n_bytes];
        if name.is_ascii() {
            Ok((n_bytes, Tok::Name(name.to_owned())))
        } else {
            self.fail(format!("the name `{name}` is not ASCII, which is not supported"))
        }
    }

    fn operator(&self, brackets: &mut Vec<&'static str>) -> Result<(usize, Tok), SyntaxError> {
        let Some(op) = OPERATORS.iter().find(|op| self.rest().starts_with(**op)) else {
            let found = self.rest().chars().next().unwrap_or_default();
            return self.fail(format!("unexpected character {found:?}"));
        };
        match *op {
            "(" => brackets.push(")"),
            "[" => brackets.push("]"),
            "{" => brackets.push("}"),
            ")" | "]" | "}" if brackets.pop() != Some(op) => {
                return self.fail(format!("unexpected `{op}`"));
            }
            _ => {}
        }
        Ok((op.len(), Tok::Op(op)))
    }
}

/// The next `{{`, `{%` or `{#`.
fn find_tag(text: &str) -> Option<(usize, TagKind)> {
    text.match_indices('{').find_map(|(at, _)| match text.as_bytes().get(at + 1)? {
        b'{' => Some((at, TagKind::Print)),
        b'%' => Some((at, TagKind::Block)),
        b'#' => Some((at, TagKind::Comment)),
        _ => None,
    })
}

/// Drops what stands between the last newline and a tag, if that is white space only.
fn strip_indent(text: &str, line_starting: bool) -> &str {
    let line_start = text.rfind('\n').map_or(0, |at| at + 1);
    let starts_line = line_start > 0 || line_starting;
    if starts_line && text[line_start..].chars().all(is_space) { &text[..line_start] } else { text }
}

/// Whether a tag opens a raw block, whose text would have to be left unread.
fn is_raw(text: &str) -> bool {
    text.trim_start_matches(is_space).split(|c: char| !c.is_alphanumeric()).next() == Some("raw")
}

fn digits_len(text: &str) -> usize {
    text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len()
}

/// The length of a float literal: digits with a fraction, an exponent or both.
fn float_len(text: &str) -> Option<usize> {
    let mut len = digits_len(text);
    let whole = len;
    if let Some(fraction) = text[len..].strip_prefix('.') {
        let n_digits = digits_len(fraction);
        len += if n_digits > 0 { 1 + n_digits } else { 0 };
    }
    if let Some(exponent) = text[len..].strip_prefix(['e', 'E']) {
        let n_sign = usize::from(exponent.starts_with(['+', '-']));
        let n_digits = digits_len(&exponent[n_sign..]);
        len += if n_digits > 0 { 1 + n_sign + n_digits } else { 0 };
    }
    (whole > 0 && len > whole).then_some(len)
}

/// Decodes Python's string escapes. One before a character beyond ASCII is refused: Python makes something else of it.
fn unescape(text: &str) -> Option<String> {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('\\') {
        out.push_str(before);
        rest = unescape_one(after, &mut out).filter(|_| after.starts_with(|c: char| c.is_ascii()))?;
    }
    out.push_str(rest);
    Some(out)
}
