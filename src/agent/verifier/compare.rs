//! Whether what a program printed is what it should have printed, as the published suites decide it.
//!
//! Pure. White space around lines does not count, nor do empty lines at both ends. Lines that differ are compared
//! word by word: a word that should be a decimal fraction may differ from it by one millionth, absolutely or
//! relatively; a whole number must have its value; anything else must be the same. `nan` and `inf` are words.

/// Relative or absolute difference that is none.
const TOLERANCE: f64 = 1e-6;
/// Above it not every whole number is a float.
const MAX_EXACT: f64 = 9_007_199_254_740_992.0;

/// Where two outputs part: the first line that is wrong, from 1, as it was printed and as it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference<'a> {
    /// Which line.
    pub line: usize,
    /// As it was printed; absent where it is missing.
    pub printed: Option<&'a str>,
    /// As it should be; absent where it is too much.
    pub expected: Option<&'a str>,
}

/// The first difference that counts.
pub fn difference<'a>(printed: &'a str, expected: &'a str) -> Option<Difference<'a>> {
    let (mut printed, mut expected) = (printed.trim().lines(), expected.trim().lines());
    for line in 1.. {
        match (printed.next().map(str::trim), expected.next().map(str::trim)) {
            (None, None) => break,
            (Some(a), Some(b)) if is_same_line(a, b) => {}
            (printed, expected) => return Some(Difference { line, printed, expected }),
        }
    }
    None
}

fn is_same_line(printed: &str, expected: &str) -> bool {
    let (a, b) = (printed.split_whitespace(), expected.split_whitespace());
    printed == expected
        || (a.clone().count() == b.clone().count() && a.zip(b).all(|(a, b)| is_same_word(a, b)))
}

fn is_same_word(printed: &str, expected: &str) -> bool {
    printed == expected
        || number(printed).zip(number(expected)).is_some_and(|(a, b)| is_same_number(a, b, expected))
}

fn is_same_number(printed: f64, wanted: f64, expected: &str) -> bool {
    match expected.contains(['.', 'e', 'E']) {
        true => (printed - wanted).abs() <= TOLERANCE * wanted.abs().max(1.0),
        false => printed == wanted && wanted.abs() < MAX_EXACT,
    }
}

/// A finite number in digits.
fn number(word: &str) -> Option<f64> {
    let is_written_so = word.bytes().all(|byte| byte.is_ascii_digit() || b"+-.eE".contains(&byte));
    word.parse().ok().filter(|number: &f64| is_written_so && number.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn is_right(printed: &str, expected: &str) -> bool {
        difference(printed, expected).is_none()
    }

    #[test]
    fn white_space_at_the_ends_does_not_count() {
        for printed in ["1 2\n3\n", "1 2\n3", "1 2  \r\n3\r\n\n\n", "\n 1 2\n3 "] {
            assert!(is_right(printed, "1 2\n3\n"), "{printed:?}");
        }
        for printed in ["1 2 3", "1\n2\n3", "1 2\n\n3", "", "1 2\n3\n4", "12\n3"] {
            assert!(!is_right(printed, "1 2\n3\n"), "{printed:?}");
        }
        assert!(is_right("a  b", "a b") && is_right("", "\n"));
    }

    #[test]
    fn fractions_may_differ_by_a_millionth() {
        for (printed, expected) in [
            ("0.3333333", "0.333333333"),
            ("2", "2.0"),
            ("1e3", "1000.0"),
            ("1000000.5", "1000000.0"),
            ("-0.0", "0.0"),
        ] {
            assert!(is_right(printed, expected), "{printed} for {expected}");
        }
        for (printed, expected) in [
            ("0.33333", "0.333333333"),
            ("nan", "1.0"),
            ("inf", "1e300"),
            ("1e999", "1.0"),
            ("0x1", "1.0"),
            ("", "0.0"),
        ] {
            assert!(!is_right(printed, expected), "{printed} for {expected}");
        }
    }

    #[test]
    fn whole_numbers_and_words_are_exact() {
        for (printed, expected) in [("3.0", "3"), ("+3", "3"), ("nan", "nan"), ("inf", "inf"), ("YES", "YES")]
        {
            assert!(is_right(printed, expected), "{printed} for {expected}");
        }
        for (printed, expected) in [
            ("3.0000001", "3"),
            ("NaN", "nan"),
            ("yes", "YES"),
            ("inf", "Infinity"),
            ("50000000000000001", "50000000000000000"),
            ("1000001", "1000000"),
        ] {
            assert!(!is_right(printed, expected), "{printed} for {expected}");
        }
    }

    #[test]
    fn the_first_wrong_line_is_told() {
        let found = Difference { line: 2, printed: Some("x"), expected: Some("2") };
        assert_eq!(difference("1\nx\n", "1\n2\n3"), Some(found));
        assert_eq!(difference("1", "1\n2"), Some(Difference { line: 2, printed: None, expected: Some("2") }));
    }

    proptest! {
        #[test]
        fn everything_is_itself(text: String) {
            prop_assert!(is_right(&text, &text));
        }

        #[test]
        fn no_other_integer_will_do(a: i64, b: i64) {
            prop_assert_eq!(is_right(&a.to_string(), &b.to_string()), a == b);
        }
    }
}
