//! What a patch does, as data, and unified diffs: reading them, and making one that shows a change.
//!
//! Pure. Line numbers of a hunk are a hint only, because students miscount; where its lines go is up to `hunks`.

/// What a patch does to one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileDiff {
    pub path: String,
    pub change: Change,
    /// Where it changes, in order; of a new file, its lines.
    pub hunks: Vec<Hunk>,
    /// Its new path, if it is moved.
    pub to: Option<String>,
}

impl FileDiff {
    pub(super) fn new(path: &str, change: Change) -> Self {
        Self { path: path.trim().to_owned(), change, hunks: Vec::new(), to: None }
    }
}

/// What becomes of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    Add,
    /// It is changed, moved, or both.
    Update,
    Delete,
}

/// One run of changed lines with those around them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hunk {
    /// Where it goes.
    pub at: Where,
    pub lines: Vec<Line>,
}

/// What a hunk says about its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Where {
    /// The line of the old file it begins at, from 1; where it has no old lines, the one it comes behind.
    Line(usize),
    /// Lines that stand before it, one behind the other.
    Behind(Vec<String>),
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

/// What a student is told whose patch holds none.
pub(super) const EMPTY: &str = "patch holds no change; it needs `*** Begin Patch`, `*** Update File: path`, `@@` and \
                                lines with ` `, `-` or `+` before them, or a unified diff with `--- a/file`, \
                                `+++ b/file` and `@@ -1,2 +1,2 @@`";

/// What a student is told about a line that belongs nowhere.
pub(super) fn stray(idx: usize, line: &str) -> String {
    format!("line {} of the patch is not part of it: {line:?}", idx + 1)
}

/// Reads a unified diff of one or more files; what is wrong with it is worded for the student.
pub fn parse(patch: &str) -> Result<Vec<FileDiff>, String> {
    let mut files: Vec<FileDiff> = Vec::new();
    let mut old = "";
    for (idx, line) in patch.lines().enumerate() {
        if let Some(path) = line.strip_prefix("--- ") {
            old = path_of(path);
        } else if let Some(path) = line.strip_prefix("+++ ") {
            files.push(match (old, path_of(path)) {
                (old, "/dev/null") => FileDiff::new(old, Change::Delete),
                ("/dev/null", new) => FileDiff::new(new, Change::Add),
                (_, new) => FileDiff::new(new, Change::Update),
            });
        } else if line.starts_with("@@") {
            let hunks = &mut files.last_mut().ok_or(EMPTY)?.hunks;
            hunks.push(Hunk { at: Where::Line(start_of(line)), lines: Vec::new() });
        } else if let Some(hunk) = files.last_mut().and_then(|file| file.hunks.last_mut()) {
            // "No newline at end of file", and the headers of the next file.
            let is_other = ["\\", "diff ", "index "].iter().any(|start| line.starts_with(start));
            match marked_line(line) {
                None if !is_other => return Err(stray(idx, line)),
                marked => hunk.lines.extend(marked),
            }
        }
        // Anything before the first file (`diff --git`, `index`, prose) says nothing.
    }
    let is_empty = files.iter().all(|file| file.hunks.is_empty());
    if is_empty { Err(EMPTY.to_owned()) } else { Ok(files) }
}

/// The text that hunks put in.
pub(super) fn added(hunks: &[Hunk]) -> String {
    let lines = hunks.iter().flat_map(|hunk| &hunk.lines);
    let new = lines.filter_map(|line| match line {
        Line::New(text) => Some(format!("{text}\n")),
        Line::Both(_) | Line::Old(_) => None,
    });
    new.collect()
}

fn path_of(text: &str) -> &str {
    let path = text.split('\t').next().unwrap_or(text).trim();
    path.strip_prefix("a/").or_else(|| path.strip_prefix("b/")).unwrap_or(path)
}

/// The old file's line in `@@ -12,3 +12,4 @@`.
fn start_of(line: &str) -> usize {
    let digits = line.trim_start_matches(['@', ' ', '-']).split([',', ' ']).next();
    digits.and_then(|digits| digits.parse().ok()).unwrap_or(1)
}

/// A line of a hunk by the mark before it; none if it has no mark.
pub(super) fn marked_line(line: &str) -> Option<Line> {
    let rest = || line[1..].to_owned();
    match line.chars().next() {
        // Editors strip the space of an empty line.
        None => Some(Line::Both(String::new())),
        Some(' ') => Some(Line::Both(rest())),
        Some('-') => Some(Line::Old(rest())),
        Some('+') => Some(Line::New(rest())),
        Some(_) => None,
    }
}

const N_CONTEXT: usize = 3;
/// So many lines of one kind, and characters of one line, are shown.
const MAX_SHOWN: usize = 200;
const MAX_LINE: usize = 500;

/// A unified diff with one hunk that shows how a file changed; empty when it did not, cut where it is long.
pub fn show(path: &str, old: &str, new: &str) -> String {
    if old == new {
        return String::new();
    }
    let start = n_same(old.split_inclusive('\n'), new.split_inclusive('\n'));
    let n_end = n_same(old[start..].split_inclusive('\n').rev(), new[start..].split_inclusive('\n').rev());
    let (old_end, new_end) = (old.len() - n_end, new.len() - n_end);
    let n_context: usize = old[..start].split_inclusive('\n').rev().take(N_CONTEXT).map(str::len).sum();
    let context = start - n_context;
    let after: Vec<&str> = old[old_end..].lines().take(N_CONTEXT).collect();
    let (before, gone, come) = (&old[context..start], &old[start..old_end], &new[start..new_end]);
    let line = old[..context].lines().count();
    let n_around = before.lines().count() + after.len();
    let (n_old, n_new) = (n_around + gone.lines().count(), n_around + come.lines().count());
    // Where there are no lines, the number is that of the line before.
    let number = |n_lines: usize| line + usize::from(n_lines > 0);
    let mut diff = format!("--- a/{path}\n+++ b/{path}\n");
    diff.push_str(&format!("@@ -{},{n_old} +{},{n_new} @@\n", number(n_old), number(n_new)));
    for (mark, text) in [(' ', before), ('-', gone), ('+', come)] {
        marked(mark, text.lines(), &mut diff);
    }
    marked(' ', after.into_iter(), &mut diff);
    diff
}

fn marked<'a>(mark: char, mut lines: impl Iterator<Item = &'a str>, to: &mut String) {
    for line in lines.by_ref().take(MAX_SHOWN) {
        to.push(mark);
        to.extend(line.chars().take(MAX_LINE));
        to.push('\n');
    }
    let n_more = lines.count();
    if n_more > 0 {
        to.push_str(&format!("... [{n_more} more such lines]\n"));
    }
}

/// How many bytes the lines have with which both begin.
fn n_same<'a>(a: impl Iterator<Item = &'a str>, b: impl Iterator<Item = &'a str>) -> usize {
    a.zip(b).take_while(|(a, b)| a == b).map(|(line, _)| line.len()).sum()
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    const FILE: &str = "one\ntwo\nthree\nfour\nfive\nsix\n";

    fn check(patch: &str, expected: Result<&[(&str, &str)], &str>) {
        let kind = |file: &FileDiff| match file.change {
            Change::Add => format!("add {:?}", added(&file.hunks)),
            Change::Update => {
                let n_lines: Vec<usize> = file.hunks.iter().map(|hunk| hunk.lines.len()).collect();
                format!("update {n_lines:?} {:?}", file.to)
            }
            Change::Delete => "delete".to_owned(),
        };
        let found: Result<Vec<(String, String)>, String> =
            parse(patch).map(|files| files.iter().map(|file| (file.path.clone(), kind(file))).collect());
        let expected = expected
            .map(|files| files.iter().map(|(path, kind)| ((*path).to_owned(), (*kind).to_owned())).collect());
        assert_eq!(found, expected.map_err(str::to_owned), "{patch}");
    }

    #[test]
    fn several_files_are_read() {
        check(
            "--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\ndiff --git a/y b/y\nindex 1..2\n--- a/y\n+++ b/y\n@@ -1 +1 @@\n-c\n+d\n",
            Ok(&[("x", "update [2] None"), ("y", "update [2] None")]),
        );
        check(
            "diff --git a/n b/n\n--- /dev/null\n+++ b/n.txt\n@@ -0,0 +1,2 @@\n+a\n+b\n",
            Ok(&[("n.txt", "add \"a\\nb\\n\"")]),
        );
        check("--- a/f\n+++ /dev/null\n@@ -1 +0,0 @@\n-one\n", Ok(&[("f", "delete")]));
    }

    #[test]
    fn what_is_no_patch_is_said() {
        check("hello", Err(EMPTY));
        let stray = "line 4 of the patch is not part of it: \"*** what\"";
        check("--- a/f\n+++ b/f\n@@ -1 +1 @@\n*** what\n", Err(stray));
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
        assert_eq!(show("f", "", "a\n"), "--- a/f\n+++ b/f\n@@ -0,0 +1,1 @@\n+a\n");
        assert_eq!(show("f", "é\n", "è\n"), "--- a/f\n+++ b/f\n@@ -1,1 +1,1 @@\n-é\n+è\n");
        assert_eq!(show("f", "a\nb", "a\nb\n"), "--- a/f\n+++ b/f\n@@ -1,2 +1,2 @@\n a\n-b\n+b\n");
    }

    #[test]
    fn a_long_change_is_shown_in_part() {
        let shown = show("f", &"x\n".repeat(100_000), &"é\n".repeat(100_000));
        assert!(shown.len() < 5000 && shown.contains("\n... [99800 more such lines]\n+é\n"), "{shown}");
        let line = show("f", "", &"é".repeat(1 << 20));
        assert!(line.len() < 5000, "{}", line.len());
    }
}
