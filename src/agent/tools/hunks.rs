//! Putting the hunks of a patch into a text.
//!
//! Pure. A hunk goes where its old lines are: exactly, else as much alike as `lines` forgives. Among several places the
//! one nearest to the line it names is taken, or the first behind the lines that it says stand before it. Hunks come
//! in the order of the text, so each is looked for behind the one before.

use backsight_sandbox::{Allowance, Stopped};

use super::ToolError;
use super::diff::{Hunk, Line, Where, added};
use super::lines::{Position, Run, Runs, WAYS, Way, content, indentation, reindent};

/// Puts hunks into the text of the file `path`.
pub fn apply(path: &str, text: &str, hunks: &[Hunk], allowance: &Allowance) -> Result<String, ToolError> {
    let (new, done) = (String::new(), Position::default());
    let mut draft = Draft { path, nth: 0, text, allowance, new, done, shift: 0 };
    hunks.iter().try_for_each(|hunk| draft.put(hunk))?;
    draft.new.push_str(&text[draft.done.byte..]);
    Ok(draft.new)
}

/// A text that is being changed from its beginning on.
struct Draft<'a> {
    path: &'a str,
    /// Which hunk this is, from 1.
    nth: usize,
    text: &'a str,
    allowance: &'a Allowance,
    new: String,
    /// What is behind it is still to be changed.
    done: Position,
    /// How far the last hunk was from where it said.
    shift: isize,
}

impl Draft<'_> {
    fn put(&mut self, hunk: &Hunk) -> Result<(), ToolError> {
        self.nth += 1;
        let old = old_lines(hunk);
        // A blank line at the very end is often only the end of the student's message.
        let n_blank = match hunk.lines.last() {
            Some(Line::Both(text)) if text.is_empty() => {
                old.iter().rev().take_while(|it| it.is_empty()).count()
            }
            _ => 0,
        };
        let certain = &old[..old.len() - n_blank];
        if self.replace(hunk, &old)? {
            return Ok(());
        }
        if certain.is_empty() {
            return self.insert(hunk);
        }
        if n_blank > 0 && self.replace(hunk, certain)? {
            return Ok(());
        }
        Err(self.misfit("its old lines were not found; read the file again and quote it exactly"))
    }

    fn misfit(&self, why: &str) -> ToolError {
        format!("hunk {} does not fit {}: {why}", self.nth, self.path).into()
    }

    /// Whether the old lines were found, and the new ones put in their place.
    fn replace(&mut self, hunk: &Hunk, old: &[&str]) -> Result<bool, ToolError> {
        for way in WAYS {
            if let Some(run) = self.find(hunk, old, way)? {
                self.write(hunk, old, &run, way);
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn find(&mut self, hunk: &Hunk, old: &[&str], way: Way) -> Result<Option<Run>, ToolError> {
        let mut runs = Runs::new(self.text, self.done, old, way, self.allowance);
        match &hunk.at {
            Where::Line(line) => {
                let said = line.saturating_sub(1).saturating_add_signed(self.shift);
                let found = nearest(runs, said)?;
                if let Some(run) = &found {
                    self.shift += run.line as isize - said as isize;
                }
                Ok(found)
            }
            Where::Behind(hints) => match (runs.next().transpose()?, runs.next().transpose()?) {
                (Some(_), Some(_)) if hints.is_empty() => Err(format!(
                    "hunk {} fits {} in several places; add lines around it, or name the line above it behind `@@`",
                    self.nth, self.path
                ).into()),
                (Some(_), Some(_)) => {
                    let from = self.behind(hints)?.0;
                    Ok(Runs::new(self.text, from, old, way, self.allowance).next().transpose()?)
                }
                (only, _) => Ok(only),
            },
        }
    }

    /// Writes what stands before a run, and the new lines in its place.
    fn write(&mut self, hunk: &Hunk, old: &[&str], run: &Run, way: Way) {
        self.new.push_str(&self.text[self.done.byte..run.bytes.start]);
        let there = &self.text[run.bytes.clone()];
        let indents = way
            .forgives_indentation()
            .then(|| (indentation(old.iter().copied()), indentation(there.lines())));
        let new = new_lines(hunk, there, indents);
        self.new.push_str(&new.join("\n"));
        let end = self.text[run.bytes.end..].split_inclusive('\n').next().unwrap_or("");
        // With its last line a run's last end goes too.
        self.new.push_str(if new.is_empty() { "" } else { end });
        self.done = Position { line: run.line + old.len(), byte: run.bytes.end + end.len() };
    }

    /// Puts lines that have no old ones around them.
    fn insert(&mut self, hunk: &Hunk) -> Result<(), ToolError> {
        let at = match &hunk.at {
            Where::Line(line) => {
                let line = line.saturating_add_signed(self.shift);
                self.skip(self.done, |place, _| place.line >= line)?.0
            }
            Where::Behind(hints) if hints.is_empty() => self.skip(self.done, |_, _| false)?.0,
            Where::Behind(hints) => self.behind(hints)?.1,
        };
        self.new.push_str(&self.text[self.done.byte..at.byte]);
        if !self.new.is_empty() && !self.new.ends_with('\n') {
            self.new.push('\n');
        }
        self.new.push_str(&added(std::slice::from_ref(hunk)));
        self.done = at;
        Ok(())
    }

    /// Where the last of the hints stands, each looked for behind the one before, and what is behind it.
    fn behind(&self, hints: &[String]) -> Result<(Position, Position), ToolError> {
        let mut found = (self.done, self.done);
        for hint in hints {
            let is_it = |_: Position, line: &str| line.contains(hint.as_str());
            let (at, line) = self.skip(found.1, is_it)?;
            if line.is_empty() {
                let why = format!("{hint:?} was not found; name a line of the file behind `@@`");
                return Err(self.misfit(&why));
            }
            found = (at, Position { line: at.line + 1, byte: at.byte + line.len() });
        }
        Ok(found)
    }

    /// The first place from one on of which `is_it` says that it is the one, and its line; the end where there is none.
    fn skip(
        &self,
        mut place: Position,
        is_it: impl Fn(Position, &str) -> bool,
    ) -> Result<(Position, &str), Stopped> {
        for line in self.text[place.byte..].split_inclusive('\n') {
            if is_it(place, line) {
                return Ok((place, line));
            }
            self.allowance.spend(line.len())?;
            place = Position { line: place.line + 1, byte: place.byte + line.len() };
        }
        Ok((place, ""))
    }
}

/// The run nearest to a line. Runs come in order, so the first one at or behind it ends the search.
fn nearest(runs: Runs<'_>, said: usize) -> Result<Option<Run>, Stopped> {
    let mut before: Option<Run> = None;
    for run in runs {
        let run = run?;
        if run.line < said {
            before = Some(run);
            continue;
        }
        let is_nearer = before.as_ref().is_none_or(|before| run.line - said < said - before.line);
        return Ok(if is_nearer { Some(run) } else { before });
    }
    Ok(before)
}

fn old_lines(hunk: &Hunk) -> Vec<&str> {
    let old = |line| match line {
        &Line::Both(ref text) | &Line::Old(ref text) => Some(text.as_str()),
        Line::New(_) => None,
    };
    hunk.lines.iter().filter_map(old).collect()
}

/// The lines that replace those `there`: what both files have stays as it is, what is new is indented alike.
fn new_lines(hunk: &Hunk, there: &str, indents: Option<(&str, &str)>) -> Vec<String> {
    let mut there = there.split('\n');
    let mut new = Vec::new();
    for line in &hunk.lines {
        match (line, indents) {
            (Line::Both(_), _) => new.extend(there.next().map(str::to_owned)),
            (Line::Old(_), _) => drop(there.next()),
            (Line::New(text), Some((given, there))) => new.push(reindent(text, given, there)),
            (Line::New(text), None) => new.push(content(text).to_owned()),
        }
    }
    new
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use proptest::prelude::*;

    use super::super::diff::{self, FileDiff};
    use super::super::v4a;
    use super::*;

    const FILE: &str = "one\ntwo\nthree\nfour\nfive\nsix\n";

    fn put(text: &str, files: &[FileDiff]) -> Result<String, String> {
        apply("f", text, &files[0].hunks, &Allowance::new(1 << 20)).map_err(|error| error.to_string())
    }

    fn check(text: &str, patch: &str, expected: Result<&str, &str>) {
        let diff = format!("--- a/f\n+++ b/f\n{patch}");
        let result = put(text, &diff::parse(&diff).unwrap());
        assert_eq!(result.as_deref(), expected.map_err(str::to_owned).as_ref().map(|it| *it), "{patch}");
    }

    fn check_v4a(text: &str, patch: &str, expected: Result<&str, &str>) {
        let result = put(text, &v4a::parse(&format!("*** Update File: f\n{patch}")).unwrap());
        assert_eq!(result.as_deref(), expected.map_err(str::to_owned).as_ref().map(|it| *it), "{patch}");
    }

    #[test]
    fn hunks_go_where_their_lines_are() {
        let right = "@@ -2,3 +2,3 @@\n two\n-three\n+3\n four\n";
        check(FILE, right, Ok("one\ntwo\n3\nfour\nfive\nsix\n"));
        let miscounted = right.replace("-2,3 +2,3", "-5,9 +1,1");
        check(FILE, &miscounted, Ok("one\ntwo\n3\nfour\nfive\nsix\n"));
        let two = "@@ -1,2 +1,3 @@\n one\n+one and a half\n two\n@@ -5,2 +6,1 @@\n-five\n six\n";
        check(FILE, two, Ok("one\none and a half\ntwo\nthree\nfour\nsix\n"));
        check("a  \nb\n", "@@ -1,2 +1,2 @@\n a\n-b\n+c\n", Ok("a  \nc\n"));
        let no_end = "@@ -1,2 +1,2 @@\n a\n-b\n+c\n\\ No newline at end of file\n";
        check("a\nb", no_end, Ok("a\nc"));
        check("a\r\nb\r\nc\r\n", "@@ -1,3 +1,3 @@\n a\n-b\n+B\n c\n", Ok("a\r\nB\nc\r\n"));
        check(
            "    if x:\n        y()\n",
            "@@ -1 +1 @@\n if x:\n-    y()\n+    z()\n",
            Ok("    if x:\n        z()\n"),
        );
        check("a\nb\n", "@@ -1,0 +2 @@\n+new\n", Ok("a\nnew\nb\n"));
        check("a\nb\n", "@@ -1,2 +0,0 @@\n-a\n-b\n", Ok(""));
    }

    #[test]
    fn the_nearest_of_several_places_is_taken() {
        let text = "x\n1\nx\n2\nx\n3\n";
        check(text, "@@ -3 +3 @@\n-x\n+y\n", Ok("x\n1\ny\n2\nx\n3\n"));
        check(text, "@@ -9 +9 @@\n-x\n+y\n", Ok("x\n1\nx\n2\ny\n3\n"));
        let both = "@@ -1 +1 @@\n-x\n+y\n@@ -5 +5 @@\n-x\n+z\n";
        check(text, both, Ok("y\n1\nx\n2\nz\n3\n"));
    }

    #[test]
    fn a_blank_end_is_forgiven() {
        check("a\nb\n", "@@ -1,2 +1,2 @@\n a\n-b\n+c\n\n\n", Ok("a\nc\n"));
        check("a\n\n", "@@ -1,2 +1,2 @@\n-a\n+c\n\n", Ok("c\n\n"));
    }

    #[test]
    fn what_cannot_be_put_is_said() {
        let missing =
            "hunk 1 does not fit f: its old lines were not found; read the file again and quote it exactly";
        check(FILE, "@@ -1,2 +1,2 @@\n zero\n-one\n+1\n", Err(missing));
        let twice = "@@ -1 +1 @@\n-one\n+1\n@@ -1 +1 @@\n-one\n+1\n";
        check(FILE, twice, Err(&missing.replace("hunk 1", "hunk 2")));
    }

    #[test]
    fn without_line_numbers_the_lines_before_a_hunk_choose_its_place() {
        let text = "class A:\n  def f():\n    pass\nclass B:\n  def f():\n    pass\n";
        check_v4a(text, "@@\n-class B:\n+class C:\n", Ok(&text.replace("class B", "class C")));
        let second = "class A:\n  def f():\n    pass\nclass B:\n  def f():\n    return\n";
        check_v4a(text, "@@ class B:\n   def f():\n-    pass\n+    return\n", Ok(second));
        check_v4a(text, "@@ class B\n@@ def f():\n-    pass\n+    return\n", Ok(second));
        let several =
            "hunk 1 fits f in several places; add lines around it, or name the line above it behind `@@`";
        check_v4a(text, "@@\n-    pass\n+    return\n", Err(several));
        let nowhere = "hunk 1 does not fit f: \"class D\" was not found; name a line of the file behind `@@`";
        check_v4a(text, "@@ class D\n-    pass\n+    return\n", Err(nowhere));
    }

    #[test]
    fn lines_are_put_behind_a_named_line_or_at_the_end() {
        check_v4a("a\nb\n", "@@ a\n+x\n", Ok("a\nx\nb\n"));
        check_v4a("a\nb", "@@\n+x\n", Ok("a\nb\nx\n"));
        check_v4a("", "+x\n", Ok("x\n"));
    }

    /// Hunks in their places cost one pass; hunks that are nowhere are given up.
    #[test]
    fn work_is_bounded() {
        let text: String = (0..5000).map(|line| format!("{line}\n")).collect();
        let right: String =
            (0..1000).map(|hunk| format!("@@ -{0} +{0} @@\n-{1}\n+x\n", 5 * hunk + 1, 5 * hunk)).collect();
        let files = diff::parse(&format!("--- f\n+++ f\n{right}")).unwrap();
        let allowance = Allowance::new(text.len() as u64);
        assert!(apply("f", &text, &files[0].hunks, &allowance).is_ok());
        let wrong: String = "@@ -1 +1 @@\n-4999\n+4999\n-x\n".repeat(100);
        let files = diff::parse(&format!("--- f\n+++ f\n{wrong}")).unwrap();
        let stopped = apply("f", &text, &files[0].hunks, &allowance);
        assert!(stopped.as_ref().is_err_and(|it| it.reached.is_some()), "{stopped:?}");
    }

    proptest! {
        #[test]
        fn a_shown_change_applies(old in "([abc]\n){0,8}", new in "([abc]\n){0,8}") {
            let diff = diff::show("f", &old, &new);
            if !diff.is_empty() {
                prop_assert_eq!(put(&old, &diff::parse(&diff).unwrap()), Ok(new));
            }
        }

        #[test]
        fn no_patch_panics(patch in "([-+ @].{0,4}\n|--- a\n|[+]{3} b\n|@@ -1,2 @@\n|@@ a\n|é\n|[*]{3} Update File: a\n|[*]{3} .*\n){0,8}", text in "([ab]\n){0,5}") {
            for files in [diff::parse(&patch), v4a::parse(&patch)].into_iter().flatten() {
                let _ = files.is_empty() || put(&text, &files).is_ok();
            }
        }
    }
}
