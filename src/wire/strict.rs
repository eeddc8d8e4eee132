//! JSON as answers are read that serde takes apart: each key once, names as text or number.
//!
//! Owns [`read`] and [`field`]. The surprise: where a key is there twice, serde refuses it in a struct and silently keeps the second
//! value in a map; in an answer that is numbers by token either may be the wrong one, so both are refused. Deliberately
//! absent: answers too large to be taken apart, which are walked with a [`Scanner`] that refuses the same.

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Number, Value};

use super::scan::Scanner;

/// Deeper nesting than any server writes.
const MAX_DEPTH: usize = 128;

/// Reads a JSON text none of whose objects has a key twice.
pub(super) fn read<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    let value = serde_json::from_slice(bytes).map_err(|why| why.to_string())?;
    check(&mut Scanner::new(bytes), 0)?;
    Ok(value)
}

/// Reads what stands under a key of a JSON object that may say more.
pub(super) fn field<T: DeserializeOwned>(bytes: &[u8], key: &str) -> Result<T, String> {
    let mut object: Map<String, Value> = read(bytes)?;
    let value = object.shift_remove(key).ok_or_else(|| format!("missing field `{key}`"))?;
    serde_json::from_value(value).map_err(|why| why.to_string())
}

/// Steps over a value, looking at every object in it.
fn check(scanner: &mut Scanner<'_>, depth: usize) -> Result<(), String> {
    match scanner.peek()? {
        b'{' | b'[' if depth == MAX_DEPTH => Err("nested too deeply".to_owned()),
        b'{' => scanner.object(|scanner, _| check(scanner, depth + 1)),
        b'[' => scanner.list(|scanner, _| check(scanner, depth + 1)).map(drop),
        _ => Ok(scanner.skip()?),
    }
}

/// A name that some write as a number.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged, expecting = "expected a text or a number")]
pub(super) enum Name {
    /// As most write it.
    Text(String),
    /// As those do who count.
    Number(Number),
}

impl Name {
    /// Reads a name, which may be null.
    pub(super) fn read(scanner: &mut Scanner<'_>) -> Result<Option<String>, String> {
        let name: Option<Self> = read(scanner.raw()?)?;
        Ok(name.map(String::from))
    }
}

impl From<Name> for String {
    fn from(name: Name) -> Self {
        match name {
            Name::Text(text) => text,
            Name::Number(number) => number.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: &str) {
        let found = read::<Value>(text.as_bytes()).map_or_else(|why| why, |_| "read".to_owned());
        assert_eq!(found, expected, "{text}");
    }

    #[test]
    fn a_key_is_there_once() {
        check(r#"{"a": {"b": 1}, "b": [{"a": 1}, {"a": 2}]}"#, "read");
        check(r#"{"a": 1, "a": 1}"#, "the key `a` is there twice");
        check(r#"[[{"x": {"logprob": 1, "rank": 1, "logprob": 2}}]]"#, "the key `logprob` is there twice");
        check(r#"{"a": 1, "\u0061": 2}"#, "the key `a` is there twice");
        check(r#"{"a": 1, "A": 2, "": 3, "a ": 4}"#, "read");
        check("{", "EOF while parsing an object at line 1 column 1");
    }

    #[test]
    fn what_nobody_reads_may_not_be_too_deep_either() {
        #[derive(Deserialize)]
        struct Nothing {}
        let deep = format!("{{\"x\": {}1{}}}", "[".repeat(100_000), "]".repeat(100_000));
        assert_eq!(read::<Nothing>(deep.as_bytes()).map(|_| ()), Err("nested too deeply".to_owned()));
    }

    #[test]
    fn names_may_be_numbers() {
        let name = |text: &str| Name::read(&mut Scanner::new(text.as_bytes()));
        assert_eq!(name("\"cmpl-1\""), Ok(Some("cmpl-1".to_owned())));
        assert_eq!((name("17"), name("null")), (Ok(Some("17".to_owned())), Ok(None)));
        assert!(name("[1]").is_err());
    }
}
