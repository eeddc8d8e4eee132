//! JSON whose numbers are passed on: read so that none of them is changed without a word.
//!
//! Produced by people and models, who write integers of any size, as Python does. The surprise: `serde_json`
//! reads an integer beyond 64 bits as a rounded float, and `-0` as the float `-0.0`, which Python takes for the
//! integer 0. Here the first is refused and the second read as Python reads it. A byte-order mark, which some
//! editors write, is passed over.

use std::borrow::Cow;
use std::collections::HashSet;
use std::ops::Range;

use serde_json::Value;

/// Why a text cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum BadJson {
    /// It is no JSON.
    #[error("not JSON: {0}")]
    Syntax(#[from] serde_json::Error),
    /// It is, but a number in it would be changed.
    #[error("the integer {number} is too large to be passed on exactly")]
    Inexact {
        /// The number as it is written.
        number: String,
    },
}

/// Reads a JSON text, every number of which is kept.
pub fn read(text: &str) -> Result<Value, BadJson> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let value = serde_json::from_str(&with_plain_zeros(text))?;
    let fits = |integer: &str| integer.parse::<i64>().is_ok() || integer.parse::<u64>().is_ok();
    let integers = numbers(text).map(|place| &text[place]).filter(|it| !it.contains(['.', 'e', 'E']));
    match integers.into_iter().find(|integer| !fits(integer)) {
        Some(number) => Err(BadJson::Inexact { number: number.to_owned() }),
        None => Ok(value),
    }
}

/// The text with every `-0` written as `0`.
fn with_plain_zeros(text: &str) -> Cow<'_, str> {
    let zeros = numbers(text).filter(|place| &text[place.clone()] == "-0");
    let signs: HashSet<usize> = zeros.map(|place| place.start).collect();
    if signs.is_empty() {
        return Cow::Borrowed(text);
    }
    text.char_indices().filter(|(at, _)| !signs.contains(at)).map(|(_, c)| c).collect()
}

/// Where the numbers of a JSON text are: runs of their letters outside strings.
fn numbers(text: &str) -> impl Iterator<Item = Range<usize>> {
    let bytes = text.as_bytes();
    let mut at = 0;
    std::iter::from_fn(move || {
        while let Some(byte) = bytes.get(at) {
            match byte {
                b'"' => at = string_end(bytes, at),
                b'-' | b'0'..=b'9' => {
                    let start = at;
                    let is_part = |byte: &&u8| matches!(byte, b'0'..=b'9' | b'.' | b'e' | b'E' | b'+' | b'-');
                    at += bytes[at..].iter().take_while(is_part).count();
                    return Some(start..at);
                }
                _ => at += 1,
            }
        }
        None
    })
}

/// Behind the string that begins at `start`.
fn string_end(bytes: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'"' => return at + 1,
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn check(text: &str, expected: &str) {
        let shown = match read(text) {
            Ok(value) => value.to_string(),
            Err(error) => error.to_string(),
        };
        assert_eq!(shown, expected, "{text}");
    }

    #[test]
    fn numbers_are_kept_or_refused() {
        check("[18446744073709551615, -9223372036854775808]", "[18446744073709551615,-9223372036854775808]");
        check("[-0, -0.0, -0e1, 10, \"-0\"]", "[0,-0.0,-0.0,10,\"-0\"]");
        let large = "123456789012345678901234567890";
        let refused = format!("the integer {large} is too large to be passed on exactly");
        check(&format!("{{\"a\": [{large}]}}"), &refused);
        check(&format!("{{\"a\\\"\": \"\\\\\", \"b\": {large}}}"), &refused);
        check(&format!("[\"{large}\", \"\\\"{large}\"]"), &format!("[\"{large}\",\"\\\"{large}\"]"));
        check("[1e30, 123456789012345678901234567890.0]", "[1e+30,1.2345678901234568e+29]");
    }

    #[test]
    fn a_byte_order_mark_is_passed_over() {
        check("\u{feff}[1]", "[1]");
        check("", "not JSON: EOF while parsing a value at line 1 column 0");
    }

    proptest! {
        #[test]
        fn nothing_else_is_read_otherwise(text in "[\\[\\]{}\",:0-9eE.+\\\\ -]{0,40}") {
            let (ours, theirs) = (read(&text), serde_json::from_str::<Value>(&text));
            match (ours, theirs) {
                (Ok(ours), Ok(theirs)) => prop_assert_eq!(
                    ours.to_string().replace("-0.0", "0").replace("0.0", "0"),
                    theirs.to_string().replace("-0.0", "0").replace("0.0", "0")
                ),
                (Err(BadJson::Inexact { .. }), Ok(_)) | (Err(_), Err(_)) => {}
                (ours, theirs) => prop_assert!(false, "{:?} {:?}", ours, theirs),
            }
        }
    }
}
