//! `read_file`, `write_file` and `search_files`.

use serde_json::{Value, json};

use backsight_sandbox::{FileError, Workspace};

use super::glob::Glob;
use super::schema::Arguments;
use super::search::{self, Hit};
use super::{Answer, ToolError};

/// The largest file that is read.
pub(super) const MAX_FILE: u64 = 16 << 20;
/// The largest file that is searched.
const MAX_SEARCHED: u64 = 1 << 20;
const DEFAULT_LINES: u64 = 500;
const MAX_LINES: u64 = 2000;
const MAX_LINE_CHARS: usize = 2000;
const DEFAULT_RESULTS: u64 = 50;

/// Reads numbered lines.
pub(super) async fn read_file(workspace: &Workspace, arguments: Arguments<'_>) -> Result<Answer, ToolError> {
    let path = arguments.text("path")?.to_owned();
    let offset = arguments.number("offset")?.unwrap_or(1).max(1) as usize;
    let limit = arguments.number("limit")?.unwrap_or(DEFAULT_LINES).clamp(1, MAX_LINES) as usize;
    let text = workspace.blocking(move |workspace| read_text(workspace, &path)).await?;
    Ok(numbered(&text, offset, limit).into())
}

/// A text file's whole content.
pub(super) fn read_text(workspace: &Workspace, path: &str) -> Result<String, FileError> {
    let file = workspace.read(path, MAX_FILE + 1)?;
    if file.n_bytes > MAX_FILE || file.bytes.len() as u64 > MAX_FILE {
        let reason = format!("it has {} bytes; read parts of it with the terminal", file.n_bytes);
        return Err(FileError::Other(path.to_owned(), reason));
    }
    if search::is_binary(&file.bytes) {
        return Err(FileError::Other(path.to_owned(), "it is no text file".to_owned()));
    }
    Ok(String::from_utf8_lossy(&file.bytes).into_owned())
}

fn numbered(text: &str, offset: usize, limit: usize) -> Value {
    let n_lines = text.lines().count();
    let lines = text.lines().enumerate().skip(offset - 1).take(limit);
    let content: Vec<String> = lines.map(|(idx, line)| format!("{}|{}", idx + 1, short(line))).collect();
    let end = offset - 1 + content.len();
    let mut json =
        json!({ "content": content.join("\n"), "total_lines": n_lines, "truncated": end < n_lines });
    if end < n_lines {
        json["hint"] = Value::String(format!("continue with offset {}", end + 1));
    } else if offset > n_lines.max(1) {
        json["hint"] = Value::String(format!("the file has only {n_lines} lines"));
    }
    json
}

fn short(line: &str) -> String {
    let cut: String = line.chars().take(MAX_LINE_CHARS).collect();
    if cut.len() < line.len() { cut + "... [line cut]" } else { cut }
}

/// Writes a whole file.
pub(super) async fn write_file(workspace: &Workspace, arguments: Arguments<'_>) -> Result<Answer, ToolError> {
    let path = arguments.text("path")?.to_owned();
    let content = arguments.text("content")?.to_owned();
    let answer = json!({ "path": path, "bytes_written": content.len() });
    workspace.blocking(move |workspace| workspace.write(&path, content.as_bytes())).await?;
    Ok(answer.into())
}

/// What to search for.
struct Query {
    path: String,
    glob: Option<Glob>,
    limit: usize,
    offset: usize,
    n_context: usize,
}

/// Searches names or contents.
pub(super) async fn search_files(
    workspace: &Workspace,
    arguments: Arguments<'_>,
) -> Result<Answer, ToolError> {
    let pattern = arguments.text("pattern")?.to_owned();
    let read_glob = |text: &str| Glob::new(text).map_err(|error| format!("file_glob is no pattern: {error}"));
    let query = Query {
        path: arguments.optional_text("path")?.unwrap_or(".").to_owned(),
        glob: arguments.optional_text("file_glob")?.map(read_glob).transpose()?,
        limit: arguments.number("limit")?.unwrap_or(DEFAULT_RESULTS).clamp(1, 1000) as usize,
        offset: arguments.number("offset")?.unwrap_or(0) as usize,
        n_context: arguments.number("context")?.unwrap_or(0).min(20) as usize,
    };
    match arguments.optional_text("target")?.unwrap_or("content") {
        "content" => {
            let pattern =
                search::pattern(&pattern).map_err(|error| format!("pattern cannot be used: {error}"))?;
            Ok(workspace.blocking(move |workspace| search_content(workspace, &pattern, &query)).await?.into())
        }
        "files" => {
            let name = Glob::new(&pattern).map_err(|error| format!("pattern cannot be used: {error}"))?;
            Ok(workspace.blocking(move |workspace| search_names(workspace, &name, &query)).await?.into())
        }
        other => Err(ToolError::Call(format!("target must be content or files, not {other:?}"))),
    }
}

/// The files to search, in order of their paths. A path that is a file is searched alone.
fn files(workspace: &Workspace, query: &Query) -> Result<Vec<String>, FileError> {
    let paths = match workspace.walk(&query.path) {
        Err(FileError::Missing(_)) if workspace.read(&query.path, 0).is_ok() => vec![query.path.clone()],
        walked => walked?.into_iter().filter(|entry| !entry.is_dir).map(|entry| entry.path).collect(),
    };
    let is_wanted = |path: &String| query.glob.as_ref().is_none_or(|glob| glob.matches(path));
    Ok(paths.into_iter().filter(is_wanted).collect())
}

fn search_names(workspace: &Workspace, name: &Glob, query: &Query) -> Result<Value, FileError> {
    let found: Vec<String> = files(workspace, query)?.into_iter().filter(|path| name.matches(path)).collect();
    let n_found = found.len();
    let page: Vec<String> = found.into_iter().skip(query.offset).take(query.limit).collect();
    let truncated = query.offset + page.len() < n_found;
    Ok(json!({ "files": page, "total_count": n_found, "truncated": truncated }))
}

fn search_content(workspace: &Workspace, pattern: &regex::Regex, query: &Query) -> Result<Value, FileError> {
    let mut n_matches = 0;
    let mut lines = Vec::new();
    for path in files(workspace, query)? {
        // Files that vanish or cannot be read have nothing to show.
        let Ok(file) = workspace.read(&path, MAX_SEARCHED) else { continue };
        if search::is_binary(&file.bytes) {
            continue;
        }
        for hit in search::hits(&String::from_utf8_lossy(&file.bytes), pattern, query.n_context) {
            n_matches += usize::from(hit.is_match);
            let page = query.offset + 1..=query.offset + query.limit;
            if page.contains(&n_matches) {
                lines.push(shown(&path, hit));
            }
        }
    }
    let truncated = n_matches > query.offset + query.limit;
    Ok(json!({ "matches": lines.join("\n"), "total_count": n_matches, "truncated": truncated }))
}

fn shown(path: &str, hit: Hit) -> String {
    let sign = if hit.is_match { ':' } else { '-' };
    format!("{path}{sign}{}{sign}{}", hit.line, hit.text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_numbered_from_one() {
        let all = numbered("a\nb\nc\n", 1, 500);
        assert_eq!(all, json!({ "content": "1|a\n2|b\n3|c", "total_lines": 3, "truncated": false }));
        let part = numbered("a\nb\nc\n", 2, 1);
        assert_eq!(part["content"], "2|b");
        assert_eq!(part["hint"], "continue with offset 3");
        assert_eq!(numbered("a\n", 9, 5)["hint"], "the file has only 1 lines");
        assert_eq!(numbered("", 1, 5), json!({ "content": "", "total_lines": 0, "truncated": false }));
    }
}
