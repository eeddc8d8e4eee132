//! Which rows can be used as tasks, which are refused, and why.

use super::references::Tried;
use crate::event::{Event, Refused};
use crate::tasks::source::Loaded;

/// The rows of all sources, counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Census {
    n_rows: usize,
    n_tried: usize,
    refused: Vec<Refused>,
}

impl Census {
    /// The rows that were read, and those that are no tasks.
    pub fn of(loaded: &Loaded) -> Self {
        let mut census = Self { n_rows: loaded.tasks.len() + loaded.skipped.len(), ..Self::default() };
        for (source, row) in &loaded.skipped {
            census.refuse(&row.reason, &format!("{source} row {}", row.line));
        }
        census
    }

    /// Adds what the tasks' own solutions came to.
    pub fn add(&mut self, tried: &Tried, n_tried: usize) {
        self.n_tried += n_tried;
        for (task, why) in &tried.refused {
            self.refuse(why, task);
        }
    }

    /// What is said behind the colon may differ from row to row, so it is told of the first.
    fn refuse(&mut self, reason: &str, place: &str) {
        let (why, detail) = reason.split_once(": ").unwrap_or((reason, ""));
        if let Some(known) = self.refused.iter_mut().find(|it| it.why == why) {
            known.n += 1;
            return;
        }
        let first = if detail.is_empty() { place.to_owned() } else { format!("{place}: {detail}") };
        self.refused.push(Refused { why: why.to_owned(), n: 1, first });
    }

    /// Whether there is any row that cannot be used.
    pub fn has_refused(&self) -> bool {
        !self.refused.is_empty()
    }

    /// Whether it says more than that there are tasks.
    pub fn is_telling(&self) -> bool {
        self.has_refused() || self.n_tried > 0
    }

    /// As it is told.
    pub fn event(&self) -> Event {
        let n_refused: usize = self.refused.iter().map(|it| it.n).sum();
        let usable = self.n_rows.saturating_sub(n_refused);
        Event::Tasks { rows: self.n_rows, usable, tried: self.n_tried, refused: self.refused.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tasks::dataset::Skipped;
    use crate::tasks::source::TaskSource;

    #[test]
    fn rows_are_counted_by_reason_with_the_first_of_each() {
        let skipped = |line, reason: &str| {
            (TaskSource::File("a.jsonl".into()), Skipped { line, reason: reason.to_owned() })
        };
        let rows = [
            skipped(4, "it has no tests: looked for x"),
            skipped(6, "it is no JSON: at 3"),
            skipped(7, "it is no JSON: at 5"),
        ];
        let mut census = Census::of(&Loaded { tasks: Vec::new(), skipped: rows.into() });
        let refused =
            vec![("t9".to_owned(), "its own solution fails its tests: f(1) == 2 (1 != 2)".to_owned())];
        census.add(&Tried { usable: Vec::new(), refused }, 3);
        let line = census.event().line();
        let expected = "tasks: 0 of 3 usable, 4 refused; 3 tasks tried with their own solutions\n  \
                        1 refused: it has no tests (first: a.jsonl row 4: looked for x)\n  \
                        2 refused: it is no JSON (first: a.jsonl row 6: at 3)\n  \
                        1 refused: its own solution fails its tests (first: t9: f(1) == 2 (1 != 2))";
        assert_eq!(line, expected);
        assert_eq!(
            census.event().to_json(1.0)["refused"][1],
            serde_json::json!({"why": "it is no JSON", "n": 2, "first": "a.jsonl row 6: at 3"})
        );
    }
}
