//! A cursor over JSON bytes that reads what is wanted and steps over the rest without allocating.
//!
//! Model servers answer a scoring request with megabytes of which a few hundred positions matter.
//! What is stepped over is still checked to be balanced and free of bytes that JSON cannot contain,
//! so a body that was cut or mixed with something else is noticed. Python's `NaN`, `Infinity` and
//! `-Infinity` are read as the non-finite numbers they stand for, because servers written in Python
//! emit them; deciding what they mean is left to the reader. Deliberately absent: building a tree.

use std::borrow::Cow;
use std::collections::HashSet;

use super::skim::{CUT, nested_len};

/// Why bytes are no JSON, or not the JSON that was expected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{why} at byte {at}")]
pub struct Broken {
    /// Where, counted in bytes from the start.
    pub at: usize,
    /// What is wrong there.
    pub why: &'static str,
}

impl From<Broken> for String {
    fn from(broken: Broken) -> Self {
        broken.to_string()
    }
}

/// Whether a byte inside a string is neither its end, an escape nor a control character.
const INSIDE: [bool; 256] = inside();

const fn inside() -> [bool; 256] {
    let mut table = [true; 256];
    let mut i = 0;
    while i < 0x20 {
        table[i] = false;
        i += 1;
    }
    table[b'"' as usize] = false;
    table[b'\\' as usize] = false;
    table
}

/// A place in JSON bytes.
#[derive(Clone, Debug)]
pub struct Scanner<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Scanner<'a> {
    /// At the start of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// The first byte of the next value.
    pub fn peek(&mut self) -> Result<u8, Broken> {
        while let Some(b' ' | b'\t' | b'\r' | b'\n') = self.bytes.get(self.at) {
            self.at += 1;
        }
        self.bytes.get(self.at).copied().ok_or_else(|| self.broken(CUT))
    }

    /// Checks that nothing but whitespace is left.
    pub fn end(&mut self) -> Result<(), Broken> {
        match self.peek() {
            Ok(_) => Err(self.broken("something follows the JSON")),
            Err(_) => Ok(()),
        }
    }

    /// Reads an object; `entry` is called with each key as it is written and must take the value. A key that is there
    /// twice is refused, because nobody can tell which of its values is meant.
    pub fn object(
        &mut self,
        mut entry: impl FnMut(&mut Self, &'a [u8]) -> Result<(), String>,
    ) -> Result<(), String> {
        let mut seen = HashSet::new();
        self.entries(|scanner, key| {
            let name = unescaped(key)?;
            if !seen.insert(name.clone()) {
                return Err(format!("the key `{}` is there twice", String::from_utf8_lossy(&name)));
            }
            entry(scanner, key)
        })
    }

    /// Like [`Scanner::object`], for callers who look themselves after keys that are there twice.
    pub fn entries(
        &mut self,
        mut entry: impl FnMut(&mut Self, &'a [u8]) -> Result<(), String>,
    ) -> Result<(), String> {
        self.expect(b'{', "expected an object")?;
        if self.found(b'}')? {
            return Ok(());
        }
        loop {
            let key = self.string()?;
            self.expect(b':', "expected a colon after a key")?;
            entry(self, key)?;
            if self.found(b'}')? {
                return Ok(());
            }
            self.expect(b',', "expected a comma or the end of an object")?;
        }
    }

    /// Reads a list; `item` is called with each index and must take the value. Gives the length.
    pub fn list(
        &mut self,
        mut item: impl FnMut(&mut Self, usize) -> Result<(), String>,
    ) -> Result<usize, String> {
        self.expect(b'[', "expected a list")?;
        if self.found(b']')? {
            return Ok(0);
        }
        let mut length = 0;
        loop {
            item(self, length)?;
            length += 1;
            if self.found(b']')? {
                return Ok(length);
            }
            self.expect(b',', "expected a comma or the end of a list")?;
        }
    }

    /// What `item` makes of each value of a list.
    pub fn items<T>(
        &mut self,
        mut item: impl FnMut(&mut Self) -> Result<T, String>,
    ) -> Result<Vec<T>, String> {
        let mut items = Vec::new();
        self.list(|scanner, _| {
            items.push(item(scanner)?);
            Ok(())
        })?;
        Ok(items)
    }

    /// The bytes between the quotes of a string, escapes as they are written.
    pub fn string(&mut self) -> Result<&'a [u8], Broken> {
        self.expect(b'"', "expected a string")?;
        let start = self.at;
        self.close_string()?;
        Ok(&self.bytes[start..self.at - 1])
    }

    /// Whether the value is null, and takes it if so.
    pub fn null(&mut self) -> Result<bool, Broken> {
        if self.peek()? != b'n' {
            return Ok(false);
        }
        let word = self.word()?;
        if word == b"null" { Ok(true) } else { Err(self.broken("expected a value")) }
    }

    /// A number, finite or not, or null.
    pub fn number(&mut self) -> Result<Option<f64>, Broken> {
        match self.word()? {
            b"null" => Ok(None),
            b"NaN" => Ok(Some(f64::NAN)),
            b"Infinity" => Ok(Some(f64::INFINITY)),
            b"-Infinity" => Ok(Some(f64::NEG_INFINITY)),
            word => finite(word).map(Some).ok_or_else(|| match self.at == self.bytes.len() {
                true => self.cut(),
                false => self.broken("expected a number"),
            }),
        }
    }

    /// A whole number that is not negative.
    pub fn count(&mut self) -> Result<u64, Broken> {
        let word = self.word()?;
        whole(word).ok_or_else(|| self.broken("expected a whole number"))
    }

    /// The bytes of the next value, whatever it is.
    pub fn raw(&mut self) -> Result<&'a [u8], Broken> {
        self.peek()?;
        let start = self.at;
        self.skip()?;
        Ok(&self.bytes[start..self.at])
    }

    /// Steps over the next value.
    pub fn skip(&mut self) -> Result<(), Broken> {
        match self.peek()? {
            b'{' | b'[' => {
                let stopped = |(at, why)| Broken { at: self.at + at, why };
                self.at += nested_len(&self.bytes[self.at..]).map_err(stopped)?;
                Ok(())
            }
            b'"' => self.string().map(drop),
            _ => {
                let word = self.word()?;
                let known =
                    matches!(word, b"null" | b"true" | b"false" | b"NaN" | b"Infinity" | b"-Infinity");
                if known || finite(word).is_some() { Ok(()) } else { Err(self.broken("expected a value")) }
            }
        }
    }

    /// Moves behind the closing quote of the string the cursor is in.
    fn close_string(&mut self) -> Result<(), Broken> {
        loop {
            let rest = &self.bytes[self.at..];
            let plain = rest.iter().position(|&byte| !INSIDE[byte as usize]);
            self.at += plain.ok_or_else(|| self.cut())?;
            match self.bytes[self.at] {
                b'"' => {
                    self.at += 1;
                    return Ok(());
                }
                b'\\' if self.at + 1 < self.bytes.len() => self.at += 2,
                b'\\' => return Err(self.cut()),
                _ => return Err(self.broken("a control character in a string")),
            }
        }
    }

    /// The letters, digits and signs of a number or a literal.
    fn word(&mut self) -> Result<&'a [u8], Broken> {
        self.peek()?;
        let rest = &self.bytes[self.at..];
        let is_word = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.');
        let len = rest.iter().position(|byte| !is_word(byte)).unwrap_or(rest.len());
        self.at += len;
        Ok(&rest[..len])
    }

    fn expect(&mut self, byte: u8, why: &'static str) -> Result<(), Broken> {
        if self.found(byte)? { Ok(()) } else { Err(self.broken(why)) }
    }

    fn found(&mut self, byte: u8) -> Result<bool, Broken> {
        let found = self.peek()? == byte;
        self.at += usize::from(found);
        Ok(found)
    }

    fn broken(&self, why: &'static str) -> Broken {
        Broken { at: self.at, why }
    }

    fn cut(&self) -> Broken {
        Broken { at: self.bytes.len(), why: CUT }
    }
}

/// A key as it is meant, whatever way it is written.
fn unescaped(key: &[u8]) -> Result<Cow<'_, [u8]>, String> {
    if !key.contains(&b'\\') {
        return Ok(Cow::Borrowed(key));
    }
    let quoted = [&b"\""[..], key, b"\""].concat();
    let text: String = serde_json::from_slice(&quoted).map_err(|why| format!("a key: {why}"))?;
    Ok(Cow::Owned(text.into_bytes()))
}

/// A finite number as JSON writes it: Rust also reads `inf`, `nan`, `+1` and `.5`, which are none.
fn finite(word: &[u8]) -> Option<f64> {
    let digits = word.strip_prefix(b"-").unwrap_or(word);
    let plausible = digits.first().is_some_and(u8::is_ascii_digit)
        && word.iter().all(|byte| byte.is_ascii_digit() || matches!(byte, b'-' | b'+' | b'.' | b'e' | b'E'));
    let value: f64 = std::str::from_utf8(word).ok().filter(|_| plausible)?.parse().ok()?;
    value.is_finite().then_some(value)
}

/// A whole number that is not negative, as JSON writes it.
pub(crate) fn whole(word: &[u8]) -> Option<u64> {
    let digits = word.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(word).ok().filter(|_| digits)?.parse().ok()
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::Value;

    /// Steps over `input` and says where the cursor stands or what is wrong.
    fn check(input: &str, expected: Result<usize, &str>) {
        let mut scanner = Scanner::new(input.as_bytes());
        let found = scanner.skip().map(|()| scanner.at).map_err(|broken| broken.to_string());
        assert_eq!(found, expected.map_err(str::to_owned), "{input}");
    }

    #[test]
    fn values_are_stepped_over() {
        check(r#"{"a": [1, {"b": "x\"}]"}], "c": null} tail"#, Ok(37));
        check("  [] ", Ok(4));
        check(r#""a\\" "#, Ok(5));
        check("-1.5e+3,", Ok(7));
        check("-Infinity]", Ok(9));
        check("true", Ok(4));
    }

    #[test]
    fn broken_values_are_refused_with_the_place() {
        check(r#"{"a": [1, 2"#, Err("the JSON ends in the middle at byte 11"));
        check(r#""abc"#, Err("the JSON ends in the middle at byte 4"));
        check(r#""abc\"#, Err("the JSON ends in the middle at byte 5"));
        check("", Err("the JSON ends in the middle at byte 0"));
        check("[1, 2}", Err("a closing bracket that closes nothing at byte 5"));
        check("{\"a\": \0}", Err("a byte that JSON cannot contain at byte 6"));
        check("\"a\0b\"", Err("a control character in a string at byte 2"));
        check("<html>", Err("expected a value at byte 0"));
        check("nope", Err("expected a value at byte 4"));
        check("[é]", Err("a byte that JSON cannot contain at byte 1"));
        let deep = "[".repeat(200);
        check(&deep, Err("nested too deeply at byte 128"));
    }

    #[test]
    fn numbers_are_those_of_json_and_of_python() {
        let number = |text: &str| Scanner::new(text.as_bytes()).number();
        assert_eq!(number("-0.25e1").unwrap(), Some(-2.5));
        assert_eq!(number("null").unwrap(), None);
        assert!(number("NaN").unwrap().unwrap().is_nan());
        assert_eq!(number("-Infinity").unwrap(), Some(f64::NEG_INFINITY));
        assert_eq!(number("-").unwrap_err().to_string(), "the JSON ends in the middle at byte 1");
        for wrong in ["inf", "nan", "+1", ".5", "1e999", "\"1\"", "", "0x1", "1-", "infinity"] {
            assert!(number(wrong).is_err(), "{wrong}");
        }
        let count = |text: &str| Scanner::new(text.as_bytes()).count().ok();
        assert_eq!([count("17"), count("-1"), count("1.0"), count("")], [Some(17), None, None, None]);
    }

    #[test]
    fn objects_and_lists_are_walked() {
        let mut seen = Vec::new();
        let mut scanner = Scanner::new(br#" {"a":[1,2 , 3],"b\n":{}, "c" :"x"} "#);
        let walked = scanner.object(|scanner, key| {
            let length = if key == b"a" { scanner.list(|it, _| Ok(it.skip()?))? } else { 0 };
            if key != b"a" {
                scanner.skip()?;
            }
            seen.push((String::from_utf8_lossy(key).into_owned(), length));
            Ok(())
        });
        assert_eq!(walked, Ok(()));
        assert_eq!(seen, [("a".to_owned(), 3), ("b\\n".to_owned(), 0), ("c".to_owned(), 0)]);
        assert_eq!(scanner.end(), Ok(()));
        let twice = Scanner::new(br#"{"a": 1, "b": {"a": 2}, "a": 1}"#).object(|it, _| Ok(it.skip()?));
        assert_eq!(twice.unwrap_err(), "the key `a` is there twice");
        let missing = Scanner::new(b"[1 2]").list(|it, _| Ok(it.skip()?));
        assert_eq!(missing.unwrap_err(), "expected a comma or the end of a list at byte 3");
        let twice = Scanner::new(b"{} {}");
        let mut twice = twice;
        twice.skip().unwrap();
        assert_eq!(twice.end().unwrap_err().to_string(), "something follows the JSON at byte 3");
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            any::<String>().prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 40, 5, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
                proptest::collection::btree_map(any::<String>(), inner, 0..5)
                    .prop_map(|it| it.into_iter().collect()),
            ]
        })
    }

    proptest! {
        #[test]
        fn what_serde_writes_is_stepped_over_whole(value in any_json()) {
            let text = value.to_string();
            let mut scanner = Scanner::new(text.as_bytes());
            prop_assert_eq!(scanner.skip(), Ok(()));
            prop_assert_eq!(scanner.at, text.len());
            let nested = matches!(value, Value::Array(_) | Value::Object(_) | Value::String(_));
            for cut in 0..text.len() {
                if nested && text.is_char_boundary(cut) {
                    prop_assert!(Scanner::new(&text.as_bytes()[..cut]).skip().is_err());
                }
            }
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
            let _ = Scanner::new(&bytes).skip();
            let _ = Scanner::new(&bytes).object(|it, _| Ok(it.skip()?));
            let _ = Scanner::new(&bytes).list(|it, _| Ok(it.skip()?));
        }
    }
}
