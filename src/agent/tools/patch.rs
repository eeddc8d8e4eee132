//! `patch`: replaces text in a file, or applies a patch to several.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde_json::{Value, json};

use backsight_sandbox::FileError;

use super::diff::{self, Change, FileDiff};
use super::files::{Files, MAX_FILE};
use super::lines::Way;
use super::replace::{Replacement, replace};
use super::schema::Arguments;
use super::{ToolError, hunks, v4a};

/// No further file's change is shown behind so many bytes.
const MAX_DIFF: usize = 50_000;

pub(super) fn patch(files: &Files<'_>, arguments: Arguments<'_>) -> Result<Value, ToolError> {
    let default = if arguments.0.contains_key("patch") { "patch" } else { "replace" };
    match arguments.optional_text("mode")?.unwrap_or(default) {
        "replace" => replace_in_file(files, arguments),
        "patch" => apply(files, arguments.text("patch")?),
        other => Err(format!("mode must be replace or patch, not {other:?}").into()),
    }
}

fn replace_in_file(files: &Files<'_>, arguments: Arguments<'_>) -> Result<Value, ToolError> {
    let (path, old) = (arguments.text("path")?, arguments.text("old_string")?);
    let (new, all) = (arguments.text("new_string")?, arguments.flag("replace_all")?);
    let text = files.read(path)?;
    let replaced =
        replace(&text, Replacement { old, new, all, max_len: MAX_FILE as usize }, files.allowance)?;
    let shown = diff::show(path, &text, &replaced.text);
    files.workspace.write(path, replaced.text.as_bytes())?;
    let mut json =
        json!({ "success": true, "diff": shown, "files_modified": [path], "places": replaced.n_places });
    if replaced.by != Way::Exact {
        json["note"] = json!("old_string was not there exactly; lines alike were replaced, check the diff");
    }
    Ok(json)
}

/// Applies a patch of either kind. Nothing is written before everything fits.
fn apply(files: &Files<'_>, patch: &str) -> Result<Value, ToolError> {
    let parse = if v4a::is_v4a(patch) { v4a::parse } else { diff::parse };
    let diffs = parse(patch)?;
    let room = MAX_FILE as usize;
    let mut changes = Changes { files, texts: BTreeMap::new(), room, told: Told::default() };
    diffs.into_iter().try_for_each(|diff| changes.change(diff))?;
    let Told { diff, created, modified, deleted } = std::mem::take(&mut changes.told);
    changes.write()?;
    Ok(json!({
        "success": true,
        "diff": diff,
        "files_created": created,
        "files_modified": modified,
        "files_deleted": deleted,
    }))
}

/// What the student is told about a patch.
#[derive(Default)]
struct Told {
    diff: String,
    created: Vec<String>,
    modified: Vec<String>,
    deleted: Vec<String>,
}

/// The files of a patch as it leaves them, before anything is written; nothing where one is removed.
struct Changes<'a> {
    files: &'a Files<'a>,
    texts: BTreeMap<PathBuf, (String, Option<String>)>,
    /// How many bytes of text may still be held.
    room: usize,
    told: Told,
}

impl Changes<'_> {
    fn change(&mut self, file: FileDiff) -> Result<(), ToolError> {
        let FileDiff { path, change, hunks, to } = file;
        let old = if change == Change::Add { String::new() } else { self.take(&path)? };
        let new = match change {
            Change::Add => diff::added(&hunks),
            Change::Update => hunks::apply(&path, &old, &hunks, self.files.allowance)?,
            Change::Delete => String::new(),
        };
        if self.told.diff.len() < MAX_DIFF {
            self.told.diff.push_str(&diff::show(&path, &old, &new));
        }
        match (change, to) {
            (Change::Delete, _) => self.told.deleted.push(path),
            (Change::Add, _) => {
                self.add(&path, new)?;
                self.told.created.push(path);
            }
            (Change::Update, Some(to)) => {
                self.add(&to, new)?;
                self.told.modified.push(format!("{path} -> {to}"));
            }
            (Change::Update, None) => {
                self.put(&path, Some(new))?;
                self.told.modified.push(path);
            }
        }
        Ok(())
    }

    /// A file's text as the patch has left it so far; the file is gone until it is put again.
    fn take(&mut self, path: &str) -> Result<String, ToolError> {
        let text = match self.texts.get_mut(&self.files.workspace.place(path)?) {
            Some((_, text)) => text.take().ok_or_else(|| FileError::Missing(path.to_owned()))?,
            None => self.files.read(path)?,
        };
        self.put(path, None)?;
        Ok(text)
    }

    fn put(&mut self, path: &str, text: Option<String>) -> Result<(), ToolError> {
        let too_much = || format!("the files of this patch have more than {} MiB together", MAX_FILE >> 20);
        let n_bytes = text.as_ref().map_or(0, String::len);
        self.room = self.room.checked_sub(n_bytes).ok_or_else(too_much)?;
        self.texts.insert(self.files.workspace.place(path)?, (path.to_owned(), text));
        Ok(())
    }

    /// Puts a file where none may be.
    fn add(&mut self, path: &str, text: String) -> Result<(), ToolError> {
        let is_free = match self.texts.get(&self.files.workspace.place(path)?) {
            Some((_, text)) => text.is_none(),
            None => match self.files.workspace.read_within(path, 0, self.files.allowance) {
                Err(FileError::Missing(_)) => true,
                Err(error) => return Err(error.into()),
                Ok(_) => false,
            },
        };
        match is_free {
            true => self.put(path, Some(text)),
            false => Err(format!("{path} exists already").into()),
        }
    }

    /// Writes what there is to write, then removes what is gone.
    fn write(self) -> Result<(), FileError> {
        let (written, removed): (Vec<_>, Vec<_>) =
            self.texts.into_values().partition(|(_, text)| text.is_some());
        for (path, text) in written {
            self.files.workspace.write(&path, text.unwrap_or_default().as_bytes())?;
        }
        removed.into_iter().try_for_each(|(path, _)| self.files.workspace.remove(&path))
    }
}
