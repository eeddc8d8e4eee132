//! What a patch does, as data, and unified diffs: reading them, and making one that shows a change.
//!
//! Pure. Line numbers of a hunk are a hint only, because students miscount; where its lines go is up to `hunks`.

/// What a patch does to one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileDiff {
    /// The file.
    pub path: String,
    /// What becomes of it.
    pub change: Change,
}

/// What becomes of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// It is made, with this text.
    Add(String),
    /// It is changed in these places, in order, and moved if it gets another path.
    Update {
        /// The places.
        hunks: Vec<Hunk>,
        /// The new path.
        to: Option<String>,
    },
    /// It is removed.
    Delete,
}

/// One run of changed lines with those around them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hunk {
    /// Where it goes.
    pub at: Where,
    /// Its lines.
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

/// Why a patch cannot be read. Worded for the student, who can act on it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DiffError {
    /// There is no patch.
    #[error(
        "patch holds no change; it needs `*** Begin Patch`, `*** Update File: path`, `@@` and lines with ` `, `-` or \
         `+` before them, or a unified diff with `--- a/file`, `+++ b/file` and `@@ -1,2 +1,2 @@`"
    )]
    Empty,
    /// A line that belongs nowhere.
    #[error("line {line} of the patch is not part of it: {text:?}")]
    Stray {
        /// Which line, from 1.
        line: usize,
        /// What it says.
        text: String,
    },
}

/// Reads a unified diff of one or more files.
pub fn parse(patch: &str) -> Result<Vec<FileDiff>, DiffError> {
    let mut files: Vec<Unified> = Vec::new();
    let mut old = String::new();
    for (idx, line) in patch.lines().enumerate() {
        if let Some(path) = line.strip_prefix("--- ") {
            old = path_of(path);
        } else if let Some(path) = line.strip_prefix("+++ ") {
            files.push(Unified { old: old.clone(), new: path_of(path), hunks: Vec::new() });
        } else if line.starts_with("@@") {
            let file = files.last_mut().ok_or(DiffError::Empty)?;
            file.hunks.push(Hunk { at: Where::Line(start_of(line)), lines: Vec::new() });
        } else if let Some(hunk) = files.last_mut().and_then(|file| file.hunks.last_mut()) {
            hunk.lines.extend(hunk_line(line, idx + 1)?);
        }
        // Anything before the first file (`diff --git`, `index`, prose) says nothing.
    }
    let is_empty = files.iter().all(|file| file.hunks.is_empty());
    if is_empty { Err(DiffError::Empty) } else { Ok(files.into_iter().map(Unified::diff).collect()) }
}

/// One file of a unified diff.
struct Unified {
    old: String,
    new: String,
    hunks: Vec<Hunk>,
}

impl Unified {
    fn diff(self) -> FileDiff {
        let Self { old, new, hunks } = self;
        match (old.as_str(), new.as_str()) {
            (_, "/dev/null") => FileDiff { path: old, change: Change::Delete },
            ("/dev/null", _) => FileDiff { path: new, change: Change::Add(added(&hunks)) },
            _ => FileDiff { path: new, change: Change::Update { hunks, to: None } },
        }
    }
}

/// The text of a new file.
pub(super) fn added(hunks: &[Hunk]) -> String {
    let lines = hunks.iter().flat_map(|hunk| &hunk.lines);
    let new = lines.filter_map(|line| match line {
        Line::New(text) => Some(format!("{text}\n")),
        Line::Both(_) | Line::Old(_) => None,
    });
    new.collect()
}

fn path_of(text: &str) -> String {
    let path = text.split('\t').next().unwrap_or(text).trim();
    let path = path.strip_prefix("a/").or_else(|| path.strip_prefix("b/")).unwrap_or(path);
    path.to_owned()
}

/// The old file's line in `@@ -12,3 +12,4 @@`.
fn start_of(line: &str) -> usize {
    let digits = line.trim_start_matches(['@', ' ', '-']).split([',', ' ']).next();
    digits.and_then(|digits| digits.parse().ok()).unwrap_or(1)
}

fn hunk_line(line: &str, number: usize) -> Result<Option<Line>, DiffError> {
    if let Some(line) = marked_line(line) {
        return Ok(Some(line));
    }
    // "No newline at end of file", and the headers of the next file.
    match ["\\", "diff ", "index "].iter().any(|start| line.starts_with(start)) {
        true => Ok(None),
        false => Err(DiffError::Stray { line: number, text: line.to_owned() }),
    }
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
    let start = line_start(old, n_same(old.bytes(), new.bytes()));
    let n_end = same_end(&old[start..], &new[start..]);
    let (old_end, new_end) = (old.len() - n_end, new.len() - n_end);
    let context = lines_before(old, start, N_CONTEXT);
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

fn n_same(a: impl Iterator<Item = u8>, b: impl Iterator<Item = u8>) -> usize {
    a.zip(b).take_while(|(a, b)| a == b).count()
}

/// How many bytes of whole lines both texts end with.
fn same_end(a: &str, b: &str) -> usize {
    let n_bytes = n_same(a.bytes().rev(), b.bytes().rev());
    let begins_line =
        |text: &str| matches!(text.as_bytes()[..text.len() - n_bytes].last(), None | Some(b'\n'));
    if begins_line(a) && begins_line(b) {
        return n_bytes;
    }
    let end = &a.as_bytes()[a.len() - n_bytes..];
    end.iter().position(|&byte| byte == b'\n').map_or(0, |at| n_bytes - at - 1)
}

/// Where the line begins that holds a byte.
fn line_start(text: &str, byte: usize) -> usize {
    text.as_bytes()[..byte].iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1)
}

/// Where the `n_lines` lines before the line that begins at `start` begin.
fn lines_before(text: &str, start: usize, n_lines: usize) -> usize {
    (0..n_lines).fold(start, |at, _| line_start(text, at.saturating_sub(1)))
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    const FILE: &str = "one\ntwo\nthree\nfour\nfive\nsix\n";

    fn check(patch: &str, expected: Result<&[(&str, &str)], &str>) {
        let kind = |change: &Change| match change {
            Change::Add(text) => format!("add {text:?}"),
            Change::Update { hunks, to } => {
                let n_lines: Vec<usize> = hunks.iter().map(|hunk| hunk.lines.len()).collect();
                format!("update {n_lines:?} {to:?}")
            }
            Change::Delete => "delete".to_owned(),
        };
        let found: Result<Vec<(String, String)>, String> = parse(patch)
            .map(|files| files.iter().map(|file| (file.path.clone(), kind(&file.change))).collect())
            .map_err(|error| error.to_string());
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
        check("hello", Err(&DiffError::Empty.to_string()));
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
