//! Looking for a run of lines in a text, exactly or with less and less care.
//!
//! Pure. Every line of the text is looked at once for each way of comparing, whatever text and wanted lines are: a
//! line becomes a number, the run is found among numbers (Knuth, Morris, Pratt). Nothing is kept of the text.

use std::borrow::Cow;
use std::collections::{HashMap, VecDeque};
use std::ops::Range;

use backsight_sandbox::{Allowance, Stopped};

/// How lines are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// As they are.
    Exact,
    /// Without white space at their ends.
    LineEnds,
    /// Without indentation.
    Indentation,
    /// With white space collapsed.
    WhiteSpace,
    /// With quotes, dashes and spaces made plain.
    Typography,
}

/// All ways, the most careful first.
pub const WAYS: [Way; 5] = [Way::Exact, Way::LineEnds, Way::Indentation, Way::WhiteSpace, Way::Typography];

impl Way {
    /// A line in the form in which it is compared.
    fn normalised(self, line: &str) -> Cow<'_, str> {
        match self {
            Self::Exact => line.into(),
            Self::LineEnds => line.trim_end().into(),
            Self::Indentation => line.trim().into(),
            Self::WhiteSpace => collapsed(line).into(),
            Self::Typography => collapsed(line).chars().map(plain).collect(),
        }
    }

    /// Whether what is put in the place must be indented as the place is.
    pub fn forgives_indentation(self) -> bool {
        !matches!(self, Self::Exact | Self::LineEnds)
    }
}

fn collapsed(line: &str) -> String {
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn plain(c: char) -> char {
    match c {
        '\u{2018}' | '\u{2019}' | '\u{201b}' => '\'',
        '\u{201c}' | '\u{201d}' | '\u{201f}' => '"',
        '\u{2010}'..='\u{2015}' | '\u{2212}' => '-',
        c => c,
    }
}

/// A place between two lines of a text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Position {
    /// How many lines stand before it.
    pub line: usize,
    /// How many bytes.
    pub byte: usize,
}

/// Lines of a text that were looked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// The first one, from 0.
    pub line: usize,
    /// Where they are, without the end of the last one.
    pub bytes: Range<usize>,
}

/// The runs of lines of a text, from a place on, that equal the wanted ones; they may overlap.
pub struct Runs<'a> {
    text: &'a str,
    next: Position,
    way: Way,
    numbers: HashMap<String, usize>,
    wanted: Vec<usize>,
    /// For every count of lines that fit: how many of the last of them fit again at the beginning.
    shorter: Vec<usize>,
    n_fit: usize,
    starts: VecDeque<usize>,
    allowance: &'a Allowance,
}

impl<'a> Runs<'a> {
    /// Looks for `wanted`, of which there must be some, in `text` from a place on.
    pub fn new(text: &'a str, from: Position, wanted: &[&str], way: Way, allowance: &'a Allowance) -> Self {
        let mut numbers = HashMap::new();
        let mut number = |line: &&str| {
            let next = numbers.len();
            *numbers.entry(way.normalised(content(line)).into_owned()).or_insert(next)
        };
        let wanted: Vec<usize> = wanted.iter().map(&mut number).collect();
        let shorter = shorter(&wanted);
        let starts = VecDeque::new();
        Self { text, next: from, way, numbers, wanted, shorter, n_fit: 0, starts, allowance }
    }

    /// Takes one line; the run that ends with it, if one does.
    fn take(&mut self, line: &str) -> Option<Run> {
        let start = self.next.byte;
        let end = start + content(line).len();
        let number = self.numbers.get(&*self.way.normalised(content(line))).copied();
        let fits = |n_fit: usize| number.is_some() && self.wanted.get(n_fit).copied() == number;
        let mut n_fit = self.n_fit;
        while n_fit > 0 && !fits(n_fit) {
            n_fit = self.shorter[n_fit];
        }
        self.n_fit = n_fit + usize::from(fits(n_fit));
        self.starts.push_back(start);
        if self.starts.len() > self.wanted.len() {
            self.starts.pop_front();
        }
        self.next = Position { line: self.next.line + 1, byte: start + line.len() };
        let first = self.starts.front().copied().filter(|_| self.n_fit == self.wanted.len())?;
        Some(Run { line: self.next.line - self.wanted.len(), bytes: first..end })
    }
}

impl Iterator for Runs<'_> {
    type Item = Result<Run, Stopped>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.wanted.is_empty() {
            return None;
        }
        loop {
            let text = self.text;
            let line = text[self.next.byte..].split_inclusive('\n').next()?;
            if let Err(stopped) = self.allowance.spend(line.len()) {
                return Some(Err(stopped));
            }
            if let Some(run) = self.take(line) {
                return Some(Ok(run));
            }
        }
    }
}

fn shorter(wanted: &[usize]) -> Vec<usize> {
    let mut shorter = vec![0; wanted.len() + 1];
    let mut n_fit = 0;
    for at in 1..wanted.len() {
        while n_fit > 0 && wanted[n_fit] != wanted[at] {
            n_fit = shorter[n_fit];
        }
        n_fit += usize::from(wanted[n_fit] == wanted[at]);
        shorter[at + 1] = n_fit;
    }
    shorter
}

/// A line without its end.
pub fn content(line: &str) -> &str {
    let line = line.strip_suffix('\n').unwrap_or(line);
    line.strip_suffix('\r').unwrap_or(line)
}

/// The white space before the first line that is not blank.
pub fn indentation<'a>(mut lines: impl Iterator<Item = &'a str>) -> &'a str {
    let line = lines.find(|line| !line.trim().is_empty()).unwrap_or("");
    &line[..line.len() - line.trim_start().len()]
}

/// A line that was written with the indentation `given`, indented as it is `there`.
pub fn reindent(line: &str, given: &str, there: &str) -> String {
    match line.strip_prefix(given) {
        _ if line.trim().is_empty() => line.trim_end().to_owned(),
        Some(rest) => format!("{there}{rest}"),
        None => line.to_owned(),
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn runs(text: &str, wanted: &[&str], way: Way) -> Vec<Run> {
        let allowance = Allowance::new(u64::MAX);
        Runs::new(text, Position::default(), wanted, way, &allowance).collect::<Result<_, _>>().unwrap()
    }

    #[test]
    fn runs_are_found_where_they_are() {
        let found = runs("a\nb\r\na\nb", &["a", "b"], Way::Exact);
        assert_eq!(found, [Run { line: 0, bytes: 0..3 }, Run { line: 2, bytes: 5..8 }]);
        assert_eq!(runs("", &["a"], Way::Exact), []);
        assert_eq!(runs("a\n", &[], Way::Exact), []);
        assert_eq!(runs("x  y\n", &["x y "], Way::WhiteSpace).len(), 1);
    }

    /// The worst text for comparing at every line: each is gone through once, whatever is wanted.
    #[test]
    fn every_line_is_gone_through_once() {
        let text = "x\n".repeat(10_000);
        let wanted: Vec<&str> = ["x"; 3000].into_iter().chain(["y"]).collect();
        for way in WAYS {
            let allowance = Allowance::new(text.len() as u64);
            assert_eq!(Runs::new(&text, Position::default(), &wanted, way, &allowance).count(), 0);
            assert_eq!(allowance.spent(), text.len() as u64);
        }
    }

    #[test]
    fn too_long_a_text_is_given_up() {
        let allowance = Allowance::new(3);
        let found: Vec<_> =
            Runs::new("a\na\n", Position::default(), &["a"], Way::Exact, &allowance).take(2).collect();
        assert_eq!(found, [Ok(Run { line: 0, bytes: 0..1 }), Err(Stopped::TooMuch(3))]);
    }

    proptest! {
        #[test]
        fn all_runs_are_found(text in "([ab]\n){0,20}", wanted in prop::collection::vec("[ab]", 1..5)) {
            let lines: Vec<&str> = text.lines().collect();
            let wanted: Vec<&str> = wanted.iter().map(String::as_str).collect();
            let expected: Vec<usize> = (0..lines.len()).filter(|&at| lines[at..].starts_with(&wanted)).collect();
            let found: Vec<usize> = runs(&text, &wanted, Way::Exact).iter().map(|run| run.line).collect();
            prop_assert_eq!(found, expected);
        }
    }
}
