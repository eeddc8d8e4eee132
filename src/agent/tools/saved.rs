//! Results that are too long to show, saved in the workspace for the student to read.
//!
//! Nothing depends on it: where a result cannot be saved, it is only cut, and the student is told.

use std::sync::{Mutex, PoisonError};

use backsight_sandbox::Workspace;

/// Where they are, from the workspace.
pub(super) const DIRECTORY: &str = ".tool-results";

/// What was saved of one episode so far.
#[derive(Debug, Default)]
pub(super) struct Saved(Mutex<(u64, u64)>);

impl Saved {
    /// Saves a text; what a student is told about it, behind how much is missing. Nothing where all of them would have
    /// more than `max` bytes.
    pub async fn save(&self, workspace: &Workspace, text: &str, max: u64) -> Option<String> {
        let nth = self.count(text.len() as u64, max)?;
        let path = format!("{DIRECTORY}/{nth}.txt");
        let note = format!("; all of it is in {path}: read it with read_file, offset and limit");
        let bytes = text.as_bytes().to_vec();
        let work = move |workspace: &Workspace| {
            // What was begun and has no room must not take the rest of it.
            workspace.write(&path, &bytes).inspect_err(|_| drop(workspace.remove(&path)))
        };
        let written = workspace.blocking(work).await;
        Some(written.map_or("; it could not be saved in the workspace".to_owned(), |()| note))
    }

    /// The number of the next file, if there is room for it.
    fn count(&self, n_bytes: u64, max: u64) -> Option<u64> {
        let mut count = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (nth, all) = (count.0 + 1, count.1 + n_bytes);
        *count = (all <= max).then_some((nth, all))?;
        Some(nth)
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;

    #[tokio::test]
    async fn results_are_saved_while_there_is_room() {
        let dir = tempfile::tempdir().unwrap();
        let opened = std::fs::File::open(dir.path()).unwrap();
        let (workspace, saved) = (Workspace::new(opened.into(), None, "/workspace"), Saved::default());
        let in_file = |nth| {
            Some(format!(
                "; all of it is in .tool-results/{nth}.txt: read it with read_file, offset and limit"
            ))
        };
        assert_eq!(saved.save(&workspace, "abc", 5).await, in_file(1));
        assert_eq!(saved.save(&workspace, "def", 5).await, None);
        assert_eq!(saved.save(&workspace, "de", 5).await, in_file(2));
        assert_eq!(std::fs::read_to_string(dir.path().join(".tool-results/2.txt")).unwrap(), "de");
        std::fs::remove_dir_all(dir.path().join(".tool-results")).unwrap();
        std::os::unix::fs::symlink("/etc", dir.path().join(".tool-results")).unwrap();
        let nowhere = "; it could not be saved in the workspace";
        assert_eq!(saved.save(&workspace, "", 5).await.as_deref(), Some(nowhere));
    }
}
