//! Unified diffs: reading them, applying them to a text, and making one that shows a change.
//!
//! Pure. Line numbers of a hunk are a hint only, because students miscount: a hunk goes where its
//! lines are, nearest to where it says, exactly or at least but for trailing white space.

/// What a diff does to one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileDiff {
    /// The file.
    pub path: String,
    /// Whether it is made by the diff.
    pub is_new: bool,
    /// The changes in order.
    pub hunks: Vec<Hunk>,
}

/// One run of changed lines with those around them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hunk {
    /// The line of the old file it says it begins at, from 1.
    pub start: usize,
    /// Its lines.
    pub lines: Vec<Line>,
}

/// One line of a hunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Line {
    /// In both files.
    Both(String),
    /// Only in the old one.
    Old(String),
    /// Only in the new one.
    New(String),
}

/// Why a diff cannot be used. Worded for the student, who can act on it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DiffError {
    /// There is no diff.
    #[error("patch holds no unified diff; it needs `--- a/file`, `+++ b/file` and `@@ -1,2 +1,2 @@` lines")]
    Empty,
    /// A line that belongs nowhere.
    #[error("line {line} of the patch is not part of a unified diff: {text:?}")]
    Stray {
        /// Which line, from 1.
        line: usize,
        /// What it says.
        text: String,
    },
    /// The diff deletes a file.
    #[error("the patch deletes {0}; delete files with the terminal")]
    Deletes(String),
    /// A hunk's lines are not in the file.
    #[error(
        "hunk {hunk} does not fit {path}: its old lines were not found; read the file again and quote it exactly"
    )]
    DoesNotFit {
        /// Which hunk, from 1.
        hunk: usize,
        /// The file.
        path: String,
    },
}

/// Reads a unified diff of one or more files.
pub fn parse(patch: &str) -> Result<Vec<FileDiff>, DiffError> {
    let mut files: Vec<FileDiff> = Vec::new();
    let mut old_path = String::new();
    for (idx, line) in patch.lines().enumerate() {
        if let Some(path) = line.strip_prefix("--- ") {
            old_path = path_of(path);
        } else if let Some(path) = line.strip_prefix("+++ ") {
            files.push(file_diff(&old_path, &path_of(path))?);
        } else if line.starts_with("@@") {
            let start = start_of(line);
            let file = files.last_mut().ok_or(DiffError::Empty)?;
            file.hunks.push(Hunk { start, lines: Vec::new() });
        } else if let Some(hunk) = files.last_mut().and_then(|file| file.hunks.last_mut()) {
            hunk.lines.extend(hunk_line(line, idx + 1)?);
        }
        // Anything before the first file (`diff --git`, `index`, prose) says nothing.
    }
    let is_empty = files.iter().all(|file| file.hunks.is_empty());
    if is_empty { Err(DiffError::Empty) } else { Ok(files) }
}

fn path_of(text: &str) -> String {
    let path = text.split('\t').next().unwrap_or(text).trim();
    let path = path.strip_prefix("a/").or_else(|| path.strip_prefix("b/")).unwrap_or(path);
    path.to_owned()
}

fn file_diff(old: &str, new: &str) -> Result<FileDiff, DiffError> {
    if new == "/dev/null" {
        return Err(DiffError::Deletes(old.to_owned()));
    }
    Ok(FileDiff { path: new.to_owned(), is_new: old == "/dev/null", hunks: Vec::new() })
}

/// The old file's line in `@@ -12,3 +12,4 @@`.
fn start_of(line: &str) -> usize {
    let digits = line.trim_start_matches(['@', ' ', '-']).split([',', ' ']).next();
    digits.and_then(|digits| digits.parse().ok()).unwrap_or(1)
}

fn hunk_line(line: &str, number: usize) -> Result<Option<Line>, DiffError> {
    let rest = line.get(1..).map(str::to_owned);
    match (line.chars().next(), rest) {
        // Editors strip the space of an empty line.
        (None, _) => Ok(Some(Line::Both(String::new()))),
        (Some(' '), Some(text)) => Ok(Some(Line::Both(text))),
        (Some('-'), Some(text)) => Ok(Some(Line::Old(text))),
        (Some('+'), Some(text)) => Ok(Some(Line::New(text))),
        // "No newline at end of file", and the headers of the next file.
        (Some('\\'), _) => Ok(None),
        _ if line.starts_with("diff ") || line.starts_with("index ") => Ok(None),
        _ => Err(DiffError::Stray { line: number, text: line.to_owned() }),
    }
}

/// Applies the changes for one file to its text.
pub fn apply(text: &str, file: &FileDiff) -> Result<String, DiffError> {
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    let ends_with_newline = text.is_empty() || text.ends_with('\n');
    let mut shift = 0isize;
    let mut floor = 0;
    for (idx, hunk) in file.hunks.iter().enumerate() {
        let old = without_blank_end(hunk, &lines);
        let said = (hunk.start.saturating_sub(1) as isize + shift).max(0) as usize;
        let at = find(&lines, &old, said, floor)
            .ok_or_else(|| DiffError::DoesNotFit { hunk: idx + 1, path: file.path.clone() })?;
        let new = new_lines(hunk, &lines[at..at + old.len()]);
        shift = at as isize - hunk.start.saturating_sub(1) as isize + new.len() as isize - old.len() as isize;
        floor = at + new.len();
        lines.splice(at..at + old.len(), new);
    }
    let end = if ends_with_newline && !lines.is_empty() { "\n" } else { "" };
    Ok(lines.join("\n") + end)
}

/// The old lines of a hunk. A blank line at its very end is often only the end of the student's
/// message, so it counts only where the file has one.
fn without_blank_end(hunk: &Hunk, lines: &[String]) -> Vec<String> {
    let mut old: Vec<String> = hunk
        .lines
        .iter()
        .filter_map(|line| match line {
            Line::Both(text) | Line::Old(text) => Some(text.clone()),
            Line::New(_) => None,
        })
        .collect();
    let said = hunk.start.saturating_sub(1);
    while hunk.lines.last() == Some(&Line::Both(String::new()))
        && old.last().is_some_and(String::is_empty)
        && find(lines, &old, said, 0).is_none()
    {
        old.pop();
    }
    old
}

/// Where `old` is in `lines`, not before `floor`, nearest to `said`: exactly, else but for trailing white space.
fn find(lines: &[String], old: &[String], said: usize, floor: usize) -> Option<usize> {
    let last = lines.len().checked_sub(old.len())?;
    let fits = |at: usize, same: fn(&str, &str) -> bool| {
        lines[at..at + old.len()].iter().zip(old).all(|(a, b)| same(a, b))
    };
    let mut places: Vec<usize> = (floor..=last).collect();
    places.sort_by_key(|at| at.abs_diff(said));
    let exact = places.iter().copied().find(|&at| fits(at, |a, b| a == b));
    exact.or_else(|| places.iter().copied().find(|&at| fits(at, |a, b| a.trim_end() == b.trim_end())))
}

/// The lines that replace `there`; those that both files have stay as they are.
fn new_lines(hunk: &Hunk, there: &[String]) -> Vec<String> {
    let mut there = there.iter();
    let mut new = Vec::new();
    for line in &hunk.lines {
        match line {
            Line::Both(_) => new.extend(there.next().cloned()),
            Line::Old(_) => drop(there.next()),
            Line::New(text) => new.push(text.clone()),
        }
    }
    new
}

const N_CONTEXT: usize = 3;

/// A unified diff with one hunk that shows how a file changed; empty when it did not.
pub fn show(path: &str, old: &str, new: &str) -> String {
    if old == new {
        return String::new();
    }
    let (a, b): (Vec<&str>, Vec<&str>) = (old.lines().collect(), new.lines().collect());
    let n_same = a.iter().zip(&b).take_while(|(a, b)| a == b).count();
    let rest = a.len().min(b.len()) - n_same;
    let n_end = a.iter().rev().zip(b.iter().rev()).take(rest).take_while(|(a, b)| a == b).count();
    let start = n_same.saturating_sub(N_CONTEXT);
    let (a_end, b_end) = (a.len() - n_end, b.len() - n_end);
    let n_after = n_end.min(N_CONTEXT);
    let mut diff = format!("--- a/{path}\n+++ b/{path}\n");
    let (n_a, n_b) = (a_end + n_after - start, b_end + n_after - start);
    diff.push_str(&format!("@@ -{},{n_a} +{},{n_b} @@\n", start + 1, start + 1));
    let marked =
        |mark: char, lines: &[&str]| lines.iter().map(|line| format!("{mark}{line}\n")).collect::<String>();
    diff.push_str(&marked(' ', &a[start..n_same]));
    diff.push_str(&marked('-', &a[n_same..a_end]));
    diff.push_str(&marked('+', &b[n_same..b_end]));
    diff.push_str(&marked(' ', &a[a_end..a_end + n_after]));
    diff
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use expect_test::expect;
    use proptest::prelude::*;

    use super::*;

    const FILE: &str = "one\ntwo\nthree\nfour\nfive\nsix\n";

    fn check(text: &str, patch: &str, expected: Result<&str, &str>) {
        let result = parse(patch).and_then(|files| apply(text, &files[0]));
        assert_eq!(
            result.as_deref().map_err(|it| it.to_string()),
            expected.map_err(str::to_owned),
            "{patch}"
        );
    }

    #[test]
    fn hunks_go_where_their_lines_are() {
        let right = "--- a/f\n+++ b/f\n@@ -2,3 +2,3 @@\n two\n-three\n+3\n four\n";
        check(FILE, right, Ok("one\ntwo\n3\nfour\nfive\nsix\n"));
        let miscounted = right.replace("-2,3 +2,3", "-5,9 +1,1");
        check(FILE, &miscounted, Ok("one\ntwo\n3\nfour\nfive\nsix\n"));
        let two =
            "--- a/f\n+++ b/f\n@@ -1,2 +1,3 @@\n one\n+one and a half\n two\n@@ -5,2 +6,1 @@\n-five\n six\n";
        check(FILE, two, Ok("one\none and a half\ntwo\nthree\nfour\nsix\n"));
        check("a  \nb\n", "--- f\n+++ f\n@@ -1,2 +1,2 @@\n a\n-b\n+c\n", Ok("a  \nc\n"));
        check(
            "a\nb",
            "--- f\n+++ f\n@@ -1,2 +1,2 @@\n a\n-b\n+c\n\\ No newline at end of file\n",
            Ok("a\nc"),
        );
    }

    #[test]
    fn a_blank_end_is_forgiven() {
        check("a\nb\n", "--- f\n+++ f\n@@ -1,2 +1,2 @@\n a\n-b\n+c\n\n", Ok("a\nc\n"));
    }

    #[test]
    fn new_files_are_made() {
        let files =
            parse("diff --git a/n b/n\n--- /dev/null\n+++ b/n.txt\n@@ -0,0 +1,2 @@\n+a\n+b\n").unwrap();
        assert_eq!((files[0].path.as_str(), files[0].is_new), ("n.txt", true));
        assert_eq!(apply("", &files[0]), Ok("a\nb\n".to_owned()));
    }

    #[test]
    fn what_cannot_be_done_is_said() {
        let missing = "--- a/f\n+++ b/f\n@@ -1,2 +1,2 @@\n zero\n-one\n+1\n";
        check(
            FILE,
            missing,
            Err(
                "hunk 1 does not fit f: its old lines were not found; read the file again and quote it exactly",
            ),
        );
        check(
            FILE,
            "hello",
            Err(
                "patch holds no unified diff; it needs `--- a/file`, `+++ b/file` and `@@ -1,2 +1,2 @@` lines",
            ),
        );
        check(
            FILE,
            "--- a/f\n+++ /dev/null\n@@ -1 +0,0 @@\n-one\n",
            Err("the patch deletes f; delete files with the terminal"),
        );
        check(
            FILE,
            "--- a/f\n+++ b/f\n@@ -1 +1 @@\n*** what\n",
            Err("line 4 of the patch is not part of a unified diff: \"*** what\""),
        );
    }

    #[test]
    fn several_files_are_read() {
        let files = parse("--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\ndiff --git a/y b/y\nindex 1..2\n--- a/y\n+++ b/y\n@@ -1 +1 @@\n-c\n+d\n").unwrap();
        let paths: Vec<_> =
            files.iter().map(|file| (file.path.as_str(), file.hunks[0].lines.len())).collect();
        assert_eq!(paths, [("x", 2), ("y", 2)]);
    }

    #[test]
    fn a_change_is_shown_with_what_is_around_it() {
        let new = FILE.replace("five", "5");
        expect![[r#"
            --- a/f
            +++ b/f
            @@ -2,5 +2,5 @@
             two
             three
             four
            -five
            +5
             six
        "#]]
        .assert_eq(&show("f", FILE, &new));
        assert_eq!(show("f", FILE, FILE), "");
    }

    proptest! {
        #[test]
        fn a_shown_change_applies(old in "([abc]\n){0,8}", new in "([abc]\n){0,8}") {
            let diff = show("f", &old, &new);
            if !diff.is_empty() {
                prop_assert_eq!(apply(&old, &parse(&diff).unwrap()[0]), Ok(new));
            }
        }

        #[test]
        fn no_patch_panics(patch in "([-+ @].{0,4}\n|--- a\n|[+]{3} b\n|@@ -1,2 @@\n|é\n){0,8}", text in "([ab]\n){0,5}") {
            let _ = parse(&patch).map(|files| files.iter().map(|file| apply(&text, file)).collect::<Vec<_>>());
        }
    }
}
