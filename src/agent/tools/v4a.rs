//! Patches between `*** Begin Patch` and `*** End Patch`, as the published tool takes them.
//!
//! Pure. Their hunks have no line numbers: `@@` may name a line that stands before one. Markers stand at the beginning
//! of a line, so that text which quotes them is text.

use super::diff::{Change, EMPTY, FileDiff, Hunk, Line, Where, marked_line, stray};

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

/// Reads a patch; what is wrong with it is worded for the student.
pub fn parse(patch: &str) -> Result<Vec<FileDiff>, String> {
    let mut files: Vec<FileDiff> = Vec::new();
    let body = patch.lines().enumerate().take_while(|(_, line)| line.trim_end() != END);
    for (idx, line) in body {
        if let Some(file) = section(line) {
            files.push(file);
        } else if let Some(file) = files.last_mut() {
            take(file, line).ok_or_else(|| stray(idx, line))?;
        }
        // Anything before the first file says nothing.
    }
    files.iter_mut().for_each(|file| file.hunks.retain(|hunk| !hunk.lines.is_empty()));
    let is_empty =
        |file: &FileDiff| file.change == Change::Update && file.hunks.is_empty() && file.to.is_none();
    if files.is_empty() || files.iter().any(is_empty) { Err(EMPTY.to_owned()) } else { Ok(files) }
}

/// The file whose section a line begins.
fn section(line: &str) -> Option<FileDiff> {
    if let Some((from, to)) = line.strip_prefix(MOVE).and_then(|paths| paths.split_once("->")) {
        return Some(FileDiff { to: Some(to.trim().to_owned()), ..FileDiff::new(from, Change::Update) });
    }
    let sections = [(UPDATE, Change::Update), (ADD, Change::Add), (DELETE, Change::Delete)];
    sections.into_iter().find_map(|(mark, change)| Some(FileDiff::new(line.strip_prefix(mark)?, change)))
}

/// Takes a line of a file's section; none if it does not belong there.
fn take(file: &mut FileDiff, line: &str) -> Option<()> {
    if let Some(path) = line.strip_prefix(MOVE_TO).filter(|_| file.change == Change::Update) {
        file.to = Some(path.trim().to_owned());
    } else if let Some(hint) = line.strip_prefix("@@") {
        begin_hunk(file, hint.trim_end_matches('@').trim());
    } else if line.trim_end() != END_OF_FILE && !line.starts_with('\\') {
        take_text(file, line)?;
    }
    Some(())
}

/// A hint below a hint narrows it down.
fn begin_hunk(file: &mut FileDiff, hint: &str) {
    let is_open = file.hunks.last().is_some_and(|hunk| hunk.lines.is_empty());
    if !is_open {
        file.hunks.push(Hunk { at: Where::Behind(Vec::new()), lines: Vec::new() });
    }
    if let Some(Hunk { at: Where::Behind(hints), .. }) = file.hunks.last_mut() {
        hints.extend((!hint.is_empty()).then(|| hint.to_owned()));
    }
}

fn take_text(file: &mut FileDiff, line: &str) -> Option<()> {
    // A line without a mark is one that both have; other markers are none.
    let unmarked = || Some(Line::Both(line.to_owned())).filter(|_| !line.starts_with("***"));
    let taken = marked_line(line).or_else(unmarked)?;
    match (file.change, &taken) {
        // Blank lines between sections.
        (_, Line::Both(text)) if text.is_empty() && file.hunks.is_empty() => return Some(()),
        (Change::Delete, _) => return None,
        _ if file.hunks.is_empty() => begin_hunk(file, ""),
        _ => {}
    }
    file.hunks.last_mut()?.lines.push(taken);
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hunk(hints: &[&str], lines: &[Line]) -> Hunk {
        Hunk { at: Where::Behind(hints.iter().map(ToString::to_string).collect()), lines: lines.to_vec() }
    }

    fn update(path: &str, hunks: Vec<Hunk>, to: Option<&str>) -> FileDiff {
        FileDiff { hunks, to: to.map(str::to_owned), ..FileDiff::new(path, Change::Update) }
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
        let added = [Line::New(text("x")), Line::New(text(""))];
        let expected = [
            update("a.py", vec![hunk(&["class A", "def f(self):"], &lines)], None),
            FileDiff { hunks: vec![hunk(&[], &added)], ..FileDiff::new("b.py", Change::Add) },
            FileDiff::new("c.py", Change::Delete),
            update("d.py", vec![hunk(&[], &[Line::Old(text("old"))])], Some("e.py")),
            update("g.py", Vec::new(), Some("h.py")),
        ];
        assert!(is_v4a(patch) && !is_v4a("+*** Begin Patch"));
        assert_eq!(parse(patch).as_deref(), Ok(&expected[..]));
    }

    #[test]
    fn what_is_no_patch_is_said() {
        assert_eq!(parse("*** Begin Patch\n*** End Patch\n"), Err(EMPTY.to_owned()));
        assert_eq!(parse("*** Update File: x\n"), Err(EMPTY.to_owned()));
        assert_eq!(parse("*** Update File: x\n*** What: y\n"), Err(stray(1, "*** What: y")));
        assert_eq!(parse("*** Delete File: x\n-a\n"), Err(stray(1, "-a")));
    }
}
