//! Finds the machine's Python, so that `python` and `python3` work inside wherever it lives.
//!
//! Owns asking an interpreter where its parts are and deciding which directories must be shown:
//! the interpreter's own prefixes, never a home as a whole.

use std::io;
use std::path::{Path, PathBuf};

use serde_json::Value;

/// Prints, as JSON, where an interpreter and its libraries live.
const QUESTION: &str = "import json, sys; print(json.dumps([sys.executable, sys.prefix, sys.base_prefix, \
                        sys.exec_prefix, sys.base_exec_prefix]))";

/// An interpreter of the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Python {
    /// The program.
    pub executable: PathBuf,
    /// Directories it needs besides the system's own, without repetition.
    pub prefixes: Vec<PathBuf>,
    /// Links that lead from the program to its real file, where no shown directory has them.
    pub links: Vec<(PathBuf, PathBuf)>,
}

/// Why an interpreter cannot be shown.
#[derive(Debug, thiserror::Error)]
pub enum PythonError {
    /// It does not run.
    #[error(
        "python cannot be asked where it lives: {program} did not answer ({reason})\nhelp: install python3, or name one with --python"
    )]
    Silent {
        /// What was run.
        program: PathBuf,
        /// What happened.
        reason: String,
    },
    /// Showing it would show a home.
    #[error(
        "python's prefix {prefix} holds a home directory and must not be shown to the sandbox\nhelp: name another interpreter with --python"
    )]
    HoldsHome {
        /// The directory.
        prefix: PathBuf,
    },
}

/// Asks `program`, or the first of the usual names that answers.
pub async fn find(program: Option<&Path>) -> Result<Python, PythonError> {
    let usual = ["python3", "python", "/usr/bin/python3"].map(PathBuf::from).to_vec();
    let candidates = program.map_or(usual, |it| vec![it.to_owned()]);
    let mut answer = Err(PythonError::Silent { program: "python3".into(), reason: "not found".to_owned() });
    for candidate in candidates {
        answer = match ask(&candidate).await {
            Ok(paths) => understand(&paths, &homes()),
            Err(error) => Err(PythonError::Silent { program: candidate, reason: error.to_string() }),
        };
        if answer.is_ok() {
            break;
        }
    }
    answer
}

async fn ask(program: &Path) -> io::Result<Vec<PathBuf>> {
    let output = tokio::process::Command::new(program).args(["-I", "-c", QUESTION]).output().await?;
    let answer: Value = serde_json::from_slice(&output.stdout)
        .map_err(|_| io::Error::other(format!("exit status {}", output.status)))?;
    let paths = answer.as_array().into_iter().flatten().filter_map(Value::as_str).map(PathBuf::from);
    Ok(paths.collect())
}

/// Directories that must not be shown, nor anything that holds them.
fn homes() -> Vec<PathBuf> {
    let own = std::env::var_os("HOME").map(PathBuf::from);
    own.into_iter().chain(["/root", "/home"].map(PathBuf::from)).collect()
}

fn understand(paths: &[PathBuf], homes: &[PathBuf]) -> Result<Python, PythonError> {
    let Some((executable, prefixes)) = paths.split_first() else {
        return Err(PythonError::Silent { program: "python3".into(), reason: "empty answer".to_owned() });
    };
    let mut shown: Vec<PathBuf> = Vec::new();
    for prefix in
        prefixes.iter().flat_map(|prefix| [Some(prefix.clone()), prefix.canonicalize().ok()]).flatten()
    {
        if homes.iter().any(|home| home.starts_with(&prefix)) {
            return Err(PythonError::HoldsHome { prefix });
        }
        if !is_covered(&prefix, &shown) {
            shown.push(prefix);
        }
    }
    let links = links_from(executable, &shown);
    Ok(Python { executable: executable.clone(), prefixes: shown, links })
}

/// Whether a path lies in the system's directories or in one of those shown.
fn is_covered(path: &Path, shown: &[PathBuf]) -> bool {
    path.starts_with("/usr") || shown.iter().any(|it| path.starts_with(it))
}

/// Follows a program's links as far as they lie outside what is shown.
fn links_from(program: &Path, shown: &[PathBuf]) -> Vec<(PathBuf, PathBuf)> {
    let mut links = Vec::new();
    let mut place = program.to_owned();
    while let Ok(target) = std::fs::read_link(&place)
        && links.len() < 16
    {
        let next = place.parent().unwrap_or(Path::new("/")).join(&target);
        if !is_covered(&place, shown) {
            links.push((place, target));
        }
        place = next;
    }
    links
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;

    fn shown(paths: &[&str]) -> Result<Vec<String>, String> {
        let paths: Vec<PathBuf> = paths.iter().map(PathBuf::from).collect();
        let homes = ["/home/ann", "/root", "/home"].map(PathBuf::from);
        let python = understand(&paths, &homes).map_err(|error| error.to_string())?;
        Ok(python.prefixes.iter().map(|it| it.display().to_string()).collect())
    }

    #[test]
    fn only_the_interpreter_is_shown() {
        assert_eq!(shown(&["/usr/bin/python3", "/usr", "/usr"]), Ok(vec![]));
        let pyenv = "/home/ann/.pyenv/versions/3.11.7";
        assert_eq!(
            shown(&["/home/ann/.pyenv/versions/3.11.7/bin/python", pyenv, pyenv]),
            Ok(vec![pyenv.into()])
        );
        let venv = ["/home/ann/x/.venv/bin/python", "/home/ann/x/.venv", "/opt/py"];
        assert_eq!(shown(&venv), Ok(vec!["/home/ann/x/.venv".into(), "/opt/py".into()]));
    }

    #[test]
    fn a_home_is_never_shown() {
        for prefix in ["/home/ann", "/home", "/", "/root"] {
            let error = shown(&["/x/bin/python", prefix]).unwrap_err();
            assert!(error.contains("holds a home"), "{error}");
        }
    }

    #[test]
    fn links_outside_what_is_shown_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        let (bin, real) = (dir.path().join("bin"), dir.path().join("real"));
        std::fs::create_dir_all(&bin).unwrap();
        std::fs::create_dir_all(&real).unwrap();
        std::fs::write(real.join("python3.11"), "").unwrap();
        std::os::unix::fs::symlink("../real/python3.11", bin.join("python")).unwrap();
        let links = links_from(&bin.join("python"), std::slice::from_ref(&real));
        assert_eq!(links, vec![(bin.join("python"), PathBuf::from("../real/python3.11"))]);
        assert_eq!(links_from(&bin.join("python"), &[dir.path().to_owned()]), vec![]);
    }
}
