//! `read_file`, `write_file` and `search_files`.

use regex::Regex;
use serde_json::{Map, Value, json};

use backsight_sandbox::{Allowance, FileError, Stopped, Workspace};

use super::cut::cut_line;
use super::glob::Glob;
use super::saved::DIRECTORY;
use super::schema::Arguments;
use super::search::{self, Hit};
use super::{TOOL_WORK, ToolError, ToolLimits, ToolResult};

/// The largest file that is read.
pub(super) const MAX_FILE: u64 = 16 << 20;
/// How much of a file is searched.
const MAX_SEARCHED: u64 = 1 << 20;
const DEFAULT_LINES: u64 = 500;
const MAX_LINES: u64 = 2000;
const MAX_LINE_CHARS: usize = 2000;
/// Of lines that were found so many characters are shown.
const MAX_HIT_CHARS: usize = 500;
const DEFAULT_RESULTS: u64 = 50;

/// What a call of a file tool works on.
pub(super) struct Files<'a> {
    pub workspace: &'a Workspace,
    pub allowance: &'a Allowance,
    pub limits: &'a ToolLimits,
}

impl Files<'_> {
    /// How many characters an answer may have, so that what JSON makes longer fits too.
    fn max_chars(&self) -> usize {
        self.limits.result_chars / 2
    }

    /// A text file's whole content.
    pub fn read(&self, path: &str) -> Result<String, FileError> {
        let file = self.workspace.read_within(path, MAX_FILE + 1, self.allowance)?;
        if file.n_bytes > MAX_FILE || file.bytes.len() as u64 > MAX_FILE {
            let reason = format!("it has {} bytes; read parts of it with the terminal", file.n_bytes);
            return Err(FileError::Other(path.to_owned(), reason));
        }
        if search::is_binary(&file.bytes) {
            return Err(FileError::Other(path.to_owned(), "it is no text file".to_owned()));
        }
        // What is text already is not copied.
        let text = String::from_utf8(file.bytes);
        Ok(text.unwrap_or_else(|it| String::from_utf8_lossy(it.as_bytes()).into_owned()))
    }
}

pub(super) fn read_file(files: &Files<'_>, arguments: Arguments<'_>) -> Result<Value, ToolError> {
    let path = arguments.text("path")?;
    let offset = arguments.number("offset")?.unwrap_or(1).max(1) as usize;
    let limit = arguments.number("limit")?.unwrap_or(DEFAULT_LINES).clamp(1, MAX_LINES) as usize;
    Ok(numbered(&files.read(path)?, offset, limit, files.max_chars()))
}

fn numbered(text: &str, offset: usize, limit: usize, max_chars: usize) -> Value {
    let n_lines = text.lines().count();
    let (mut content, mut n_shown, mut room) = (String::new(), 0, max_chars);
    for (idx, line) in text.lines().enumerate().skip(offset - 1).take(limit) {
        let line = format!("{}|{}", idx + 1, cut_line(line, MAX_LINE_CHARS, "... [line cut]"));
        let Some(left) = room.checked_sub(line.chars().count() + 1).or((n_shown == 0).then_some(0)) else {
            break;
        };
        content.push_str(if n_shown == 0 { "" } else { "\n" });
        content.push_str(&line);
        (n_shown, room) = (n_shown + 1, left);
    }
    let end = offset - 1 + n_shown;
    let mut json = json!({ "content": content, "total_lines": n_lines, "truncated": end < n_lines });
    if end < n_lines {
        json["hint"] = Value::String(format!("continue with offset {}", end + 1));
    } else if offset > n_lines.max(1) {
        json["hint"] = Value::String(format!("the file has only {n_lines} lines"));
    }
    json
}

pub(super) fn write_file(files: &Files<'_>, arguments: Arguments<'_>) -> Result<Value, ToolError> {
    let (path, content) = (arguments.text("path")?, arguments.text("content")?);
    files.workspace.write(path, content.as_bytes())?;
    Ok(json!({ "path": path, "bytes_written": content.len() }))
}

/// What is told of lines that match.
#[derive(Clone, Copy, PartialEq, Eq)]
enum OutputMode {
    Content,
    FilesOnly,
    Count,
}

/// Searches names or contents.
pub(super) fn search_files(files: &Files<'_>, arguments: Arguments<'_>) -> Result<ToolResult, ToolError> {
    let pattern = arguments.text("pattern")?;
    let unusable = |error: String| format!("pattern cannot be used: {error}");
    let search = Search::read(files, &arguments)?;
    match arguments.optional_text("target")?.unwrap_or("content") {
        "content" => Ok(search.lines(&search::pattern(pattern).map_err(unusable)?)?),
        "files" => Ok(search.names(&Glob::new(pattern).map_err(unusable)?)?.into()),
        other => Err(format!("target must be content or files, not {other:?}").into()),
    }
}

/// A search that goes on.
struct Search<'a> {
    files: &'a Files<'a>,
    path: String,
    glob: Option<Glob>,
    limit: usize,
    offset: usize,
    n_context: usize,
    output: OutputMode,
    matches: Matches,
}

/// What a search of lines found so far.
#[derive(Default)]
struct Matches {
    n_lines: usize,
    shown: String,
    is_full: bool,
    /// How many lines match, by file.
    counts: Vec<(String, usize)>,
    /// Files of which only the beginning was searched.
    n_partly: usize,
}

impl<'a> Search<'a> {
    fn read(files: &'a Files<'a>, arguments: &Arguments<'_>) -> Result<Self, String> {
        let output = match arguments.optional_text("output_mode")?.unwrap_or("content") {
            "content" => OutputMode::Content,
            "files_only" => OutputMode::FilesOnly,
            "count" => OutputMode::Count,
            other => return Err(format!("output_mode must be content, files_only or count, not {other:?}")),
        };
        let glob = |text: &str| Glob::new(text).map_err(|error| format!("file_glob is no pattern: {error}"));
        Ok(Self {
            files,
            path: arguments.optional_text("path")?.unwrap_or(".").to_owned(),
            glob: arguments.optional_text("file_glob")?.map(glob).transpose()?,
            limit: arguments.number("limit")?.unwrap_or(DEFAULT_RESULTS).clamp(1, 1000) as usize,
            offset: arguments.number("offset")?.unwrap_or(0).min(u32::MAX.into()) as usize,
            n_context: arguments.number("context")?.unwrap_or(0).min(20) as usize,
            output,
            matches: Matches::default(),
        })
    }

    fn names(&self, name: &Glob) -> Result<Value, FileError> {
        let mut paths = self.paths()?;
        paths.retain(|path| name.matches(path));
        let n_found = paths.len();
        Ok(self.page_of(paths.into_iter(), n_found))
    }

    fn lines(mut self, pattern: &Regex) -> Result<ToolResult, FileError> {
        let paths = self.paths()?;
        for (idx, path) in paths.iter().enumerate() {
            match self.look_into(path, pattern) {
                Err(FileError::Stopped(stopped @ Stopped::TooMuch(_))) => {
                    let mut answer = self.answer();
                    answer["truncated"] = Value::Bool(true);
                    let n_files = paths.len();
                    answer["note"] = json!(format!("only {idx} of {n_files} files were searched: {stopped}"));
                    return Ok(ToolResult { reached: vec![TOOL_WORK], ..answer.into() });
                }
                Err(FileError::Stopped(Stopped::Unwanted)) => return Err(Stopped::Unwanted.into()),
                // Files that vanish or cannot be read have nothing to show.
                Err(_) | Ok(()) => {}
            }
        }
        Ok(self.answer().into())
    }

    /// The files to search, in order of their paths. A path that is a file is searched alone; what we saved ourselves
    /// is searched only where it is asked for.
    fn paths(&self) -> Result<Vec<String>, FileError> {
        let Files { workspace, allowance, .. } = self.files;
        let paths = match workspace.walk(&self.path, allowance) {
            Err(FileError::Missing(_)) if workspace.read(&self.path, 0).is_ok() => vec![self.path.clone()],
            walked => walked?.into_iter().filter(|entry| !entry.is_dir).map(|entry| entry.path).collect(),
        };
        let is_asked_for = workspace.place(&self.path)?.starts_with(DIRECTORY);
        let is_wanted = |path: &String| {
            let is_ours = path.strip_prefix(DIRECTORY).is_some_and(|below| below.starts_with('/'));
            (is_asked_for || !is_ours) && self.glob.as_ref().is_none_or(|glob| glob.matches(path))
        };
        Ok(paths.into_iter().filter(is_wanted).collect())
    }

    fn look_into(&mut self, path: &str, pattern: &Regex) -> Result<(), FileError> {
        let Files { workspace, allowance, .. } = self.files;
        let file = workspace.read_within(path, MAX_SEARCHED, allowance)?;
        if search::is_binary(&file.bytes) {
            return Ok(());
        }
        self.matches.n_partly += usize::from(file.n_bytes > file.bytes.len() as u64);
        let text = String::from_utf8_lossy(&file.bytes);
        let n_before = self.matches.n_lines;
        for hit in search::hits(&text, pattern, self.n_context, allowance)? {
            self.take(path, hit);
        }
        if self.matches.n_lines > n_before {
            self.matches.counts.push((path.to_owned(), self.matches.n_lines - n_before));
        }
        Ok(())
    }

    fn take(&mut self, path: &str, hit: Hit<'_>) {
        let matches = &mut self.matches;
        matches.n_lines += usize::from(hit.is_match);
        let page = self.offset + 1..=self.offset + self.limit;
        // A line that is only near a match may be before it.
        let is_shown =
            page.contains(&matches.n_lines) || !hit.is_match && page.contains(&(matches.n_lines + 1));
        if self.output != OutputMode::Content || matches.is_full || !is_shown {
            return;
        }
        let sign = if hit.is_match { ':' } else { '-' };
        let end = if matches.shown.is_empty() { "" } else { "\n" };
        let text = cut_line(hit.text, MAX_HIT_CHARS, "...");
        matches.shown.push_str(&format!("{end}{path}{sign}{}{sign}{text}", hit.line));
        matches.is_full = matches.shown.len() > self.files.max_chars();
    }

    fn page_of(&self, files: impl Iterator<Item = String>, n_found: usize) -> Value {
        let page: Vec<String> = files.skip(self.offset).take(self.limit).collect();
        let truncated = self.offset + page.len() < n_found;
        json!({ "files": page, "total_count": n_found, "truncated": truncated })
    }

    fn answer(&mut self) -> Value {
        let Matches { n_lines, shown, is_full, counts, n_partly } = std::mem::take(&mut self.matches);
        let page_end = self.offset + self.limit;
        let n_files = counts.len();
        let mut json = match self.output {
            OutputMode::Content => {
                let truncated = is_full || n_lines > page_end;
                json!({ "matches": shown, "total_count": n_lines, "truncated": truncated })
            }
            OutputMode::FilesOnly => self.page_of(counts.into_iter().map(|it| it.0), n_files),
            OutputMode::Count => {
                let counts = counts.into_iter().skip(self.offset).take(self.limit);
                let counts: Map<String, Value> = counts.map(|(path, count)| (path, json!(count))).collect();
                json!({ "counts": counts, "total_count": n_lines, "truncated": n_files > page_end })
            }
        };
        if n_partly > 0 {
            let n_mib = MAX_SEARCHED >> 20;
            let note = format!("of {n_partly} long files only the first {n_mib} MiB was searched");
            json["note"] = Value::String(note);
        }
        json
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_numbered_from_one() {
        let all = numbered("a\nb\nc\n", 1, 500, 999);
        assert_eq!(all, json!({ "content": "1|a\n2|b\n3|c", "total_lines": 3, "truncated": false }));
        let part = numbered("a\nb\nc\n", 2, 1, 999);
        assert_eq!(part["content"], "2|b");
        assert_eq!(part["hint"], "continue with offset 3");
        assert_eq!(numbered("a\n", 9, 5, 999)["hint"], "the file has only 1 lines");
        assert_eq!(numbered("", 1, 5, 999), json!({ "content": "", "total_lines": 0, "truncated": false }));
    }

    #[test]
    fn as_many_lines_are_read_as_may_be_shown() {
        let text = "é".repeat(30) + "\n" + &"x\n".repeat(10);
        let read = |offset, max| numbered(&text, offset, 500, max);
        assert_eq!(read(1, 5)["content"], format!("1|{}", "é".repeat(30)));
        assert_eq!(read(1, 5)["hint"], "continue with offset 2");
        assert_eq!((&read(2, 8)["content"], &read(2, 8)["truncated"]), (&json!("2|x\n3|x"), &json!(true)));
    }
}
