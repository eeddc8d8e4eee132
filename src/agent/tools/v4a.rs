//! Patches between `*** Begin Patch` and `*** End Patch`, as the published tool takes them.
//!
//! Pure. Their hunks have no line numbers: `@@` may name a line that stands before one. Markers stand at the beginning
//! of a line, so that text which quotes them is text.

use super::diff::{Change, DiffError, FileDiff, Hunk, Line, Where, added, marked_line};

const BEGIN: &str = "*** Begin Patch";
const END: &str = "*** End Patch";
const UPDATE: &str = "*** Update File:";
const ADD: &str = "*** Add File:";
const DELETE: &str = "*** Delete File:";
const MOVE: &str = "*** Move File:";
const MOVE_TO: &str = "*** Move to:";
const END_OF_FILE: &str = "*** End of File";

/// Whether a patch is of this kind.
pub fn is_v4a(patch: &str) -> bool {
    patch.lines().any(|line| [BEGIN, UPDATE, ADD, DELETE, MOVE].iter().any(|mark| line.starts_with(mark)))
}

/// Reads a patch.
pub fn parse(patch: &str) -> Result<Vec<FileDiff>, DiffError> {
    let mut files: Vec<Section> = Vec::new();
    let body = patch.lines().enumerate().take_while(|(_, line)| line.trim_end() != END);
    for (idx, line) in body {
        let stray = || DiffError::Stray { line: idx + 1, text: line.to_owned() };
        if let Some(section) = section(line) {
            files.push(section);
        } else if let Some(file) = files.last_mut() {
            file.take(line).ok_or_else(stray)?;
        }
        // Anything before the first file says nothing.
    }
    let files: Vec<FileDiff> = files.into_iter().map(Section::diff).collect();
    let is_empty =
        |file: &FileDiff| matches!(&file.change, Change::Update { hunks, to: None } if hunks.is_empty());
    if files.is_empty() || files.iter().any(is_empty) { Err(DiffError::Empty) } else { Ok(files) }
}

/// What stands below one marker.
struct Section {
    kind: Kind,
    path: String,
    to: Option<String>,
    hunks: Vec<Hunk>,
}

#[derive(PartialEq, Eq)]
enum Kind {
    Add,
    Update,
    Delete,
}

/// The section that a line begins.
fn section(line: &str) -> Option<Section> {
    let path = |mark: &str| line.strip_prefix(mark).map(|path| path.trim().to_owned());
    let of = |kind, path| Section { kind, path, to: None, hunks: Vec::new() };
    let moved = |paths: String| {
        let (from, to) = paths.split_once("->")?;
        Some(Section { to: Some(to.trim().to_owned()), ..of(Kind::Update, from.trim().to_owned()) })
    };
    let updated = path(UPDATE).map(|path| of(Kind::Update, path));
    let added = || path(ADD).map(|path| of(Kind::Add, path));
    let deleted = || path(DELETE).map(|path| of(Kind::Delete, path));
    updated.or_else(added).or_else(deleted).or_else(|| path(MOVE).and_then(moved))
}

impl Section {
    /// Takes a line below the marker; none if it does not belong there.
    fn take(&mut self, line: &str) -> Option<()> {
        if let Some(path) = line.strip_prefix(MOVE_TO).filter(|_| self.kind == Kind::Update) {
            self.to = Some(path.trim().to_owned());
        } else if let Some(hint) = line.strip_prefix("@@") {
            self.begin_hunk(hint.trim_end_matches('@').trim());
        } else if line.trim_end() != END_OF_FILE && !line.starts_with('\\') {
            self.take_text(line)?;
        }
        Some(())
    }

    /// A hint below a hint narrows it down.
    fn begin_hunk(&mut self, hint: &str) {
        let is_open = self.hunks.last().is_some_and(|hunk| hunk.lines.is_empty());
        if !is_open {
            self.hunks.push(Hunk { at: Where::Behind(Vec::new()), lines: Vec::new() });
        }
        if let Some(Hunk { at: Where::Behind(hints), .. }) = self.hunks.last_mut() {
            hints.extend((!hint.is_empty()).then(|| hint.to_owned()));
        }
    }

    fn take_text(&mut self, line: &str) -> Option<()> {
        // A line without a mark is one that both have; other markers are none.
        let unmarked = || Some(Line::Both(line.to_owned())).filter(|_| !line.starts_with("***"));
        let taken = marked_line(line).or_else(unmarked)?;
        match (&self.kind, &taken) {
            // Blank lines between sections.
            (_, Line::Both(text)) if text.is_empty() && self.hunks.is_empty() => return Some(()),
            (Kind::Delete, _) => return None,
            _ if self.hunks.is_empty() => self.begin_hunk(""),
            _ => {}
        }
        self.hunks.last_mut()?.lines.push(taken);
        Some(())
    }

    fn diff(self) -> FileDiff {
        let change = match self.kind {
            Kind::Add => Change::Add(added(&self.hunks)),
            Kind::Delete => Change::Delete,
            Kind::Update => {
                let hunks = self.hunks.into_iter().filter(|hunk| !hunk.lines.is_empty()).collect();
                Change::Update { hunks, to: self.to }
            }
        };
        FileDiff { path: self.path, change }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hunk(hints: &[&str], lines: &[Line]) -> Hunk {
        Hunk { at: Where::Behind(hints.iter().map(ToString::to_string).collect()), lines: lines.to_vec() }
    }

    fn update(path: &str, hunks: Vec<Hunk>, to: Option<&str>) -> FileDiff {
        FileDiff { path: path.to_owned(), change: Change::Update { hunks, to: to.map(str::to_owned) } }
    }

    #[test]
    fn every_kind_of_section_is_read() {
        let patch = "\
Here it is:
*** Begin Patch
*** Update File: a.py
@@ class A @@
@@ def f(self):
 one
-two
+*** End Patch
unmarked
*** End of File
*** Add File: b.py
+x
+
*** Delete File: c.py

*** Update File: d.py
*** Move to: e.py
@@
-old
*** Move File: g.py -> h.py
*** End Patch
nonsense";
        let text = |text: &str| text.to_owned();
        let lines = [
            Line::Both(text("one")),
            Line::Old(text("two")),
            Line::New(text("*** End Patch")),
            Line::Both(text("unmarked")),
        ];
        let expected = [
            update("a.py", vec![hunk(&["class A", "def f(self):"], &lines)], None),
            FileDiff { path: text("b.py"), change: Change::Add(text("x\n\n")) },
            FileDiff { path: text("c.py"), change: Change::Delete },
            update("d.py", vec![hunk(&[], &[Line::Old(text("old"))])], Some("e.py")),
            update("g.py", Vec::new(), Some("h.py")),
        ];
        assert!(is_v4a(patch) && !is_v4a("+*** Begin Patch"));
        assert_eq!(parse(patch).as_deref(), Ok(&expected[..]));
    }

    #[test]
    fn what_is_no_patch_is_said() {
        assert_eq!(parse("*** Begin Patch\n*** End Patch\n"), Err(DiffError::Empty));
        assert_eq!(parse("*** Update File: x\n"), Err(DiffError::Empty));
        let stray = |line, text: &str| Err(DiffError::Stray { line, text: text.to_owned() });
        assert_eq!(parse("*** Update File: x\n*** What: y\n"), stray(2, "*** What: y"));
        assert_eq!(parse("*** Delete File: x\n-a\n"), stray(2, "-a"));
    }
}
