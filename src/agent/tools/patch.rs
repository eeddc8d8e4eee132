//! `patch`: replaces text in a file, or applies a unified diff to several.

use serde_json::json;

use backsight_sandbox::{FileError, Workspace};

use super::diff::{self, FileDiff};
use super::files::read_text;
use super::replace::{Match, replace};
use super::schema::Arguments;
use super::{Answer, ToolError};

/// Changes files.
pub(super) async fn patch(workspace: &Workspace, arguments: Arguments<'_>) -> Result<Answer, ToolError> {
    let default = if arguments.0.contains_key("patch") { "patch" } else { "replace" };
    match arguments.optional_text("mode")?.unwrap_or(default) {
        "replace" => replace_in_file(workspace, arguments).await,
        "patch" => apply_diff(workspace, arguments).await,
        other => Err(ToolError::Call(format!("mode must be replace or patch, not {other:?}"))),
    }
}

async fn replace_in_file(workspace: &Workspace, arguments: Arguments<'_>) -> Result<Answer, ToolError> {
    let path = arguments.text("path")?.to_owned();
    let (old, new) = (arguments.text("old_string")?, arguments.text("new_string")?);
    let all = arguments.flag("replace_all")?;
    let file = path.clone();
    let text = workspace.blocking(move |workspace| read_text(workspace, &file)).await?;
    let replaced = replace(&text, old, new, all).map_err(|error| error.to_string())?;
    let shown = diff::show(&path, &text, &replaced.text);
    let mut json =
        json!({ "success": true, "diff": shown, "files_modified": [path], "places": replaced.n_places });
    if replaced.by != Match::Exact {
        json["note"] = json!("old_string was not there exactly; lines alike were replaced, check the diff");
    }
    workspace.blocking(move |workspace| workspace.write(&path, replaced.text.as_bytes())).await?;
    Ok(json.into())
}

async fn apply_diff(workspace: &Workspace, arguments: Arguments<'_>) -> Result<Answer, ToolError> {
    let files = diff::parse(arguments.text("patch")?).map_err(|error| error.to_string())?;
    let mut changes = Vec::new();
    for file in files {
        changes.push(change(workspace, file).await?);
    }
    // Nothing is written before everything fits.
    let shown: String = changes.iter().map(|(path, old, new)| diff::show(path, old, new)).collect();
    let paths: Vec<String> = changes.iter().map(|(path, ..)| path.clone()).collect();
    for (path, _, new) in changes {
        workspace.blocking(move |workspace| workspace.write(&path, new.as_bytes())).await?;
    }
    Ok(json!({ "success": true, "diff": shown, "files_modified": paths }).into())
}

/// A file's path, old and new text.
async fn change(workspace: &Workspace, file: FileDiff) -> Result<(String, String, String), ToolError> {
    let path = file.path.clone();
    let read = workspace.blocking(move |workspace| read_text(workspace, &path)).await;
    let old = match (read, file.is_new) {
        (Err(FileError::Missing(_)), true) => String::new(),
        (Ok(_), true) => return Err(ToolError::Call(format!("{} exists already", file.path))),
        (read, _) => read?,
    };
    let new = diff::apply(&old, &file).map_err(|error| error.to_string())?;
    Ok((file.path, old, new))
}
