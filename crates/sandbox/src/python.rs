//! Finds the machine's Python, so that `python` and `python3` work inside wherever it lives.
//!
//! Owns asking an interpreter where its parts are and deciding which directories must be shown:
//! the interpreter's own prefixes, never a home as a whole.

use std::fmt::Display;
use std::path::{Path, PathBuf};

use super::config::WORKSPACE;
use super::error::SandboxError;

/// Prints, as JSON, which interpreter this is, and where it and its libraries live.
pub const QUESTION: &str = "import json, sys; print(json.dumps([sys.version, sys.executable, sys.prefix, \
                            sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix]))";

/// The names under which interpreters are looked for.
const USUAL: [&str; 3] = ["python3", "python", "/usr/bin/python3"];

const ANOTHER: &str = "name another interpreter with --sandbox-python";
const ANOTHER_OR_IMAGE: &str = "name another interpreter with --sandbox-python (for sandbox docker, an image that holds \
                                one with --docker-image)";

/// An interpreter of the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Python {
    /// The program.
    pub executable: PathBuf,
    /// Directories it needs besides the system's own, without repetition.
    pub prefixes: Vec<PathBuf>,
    /// Links that lead from the program to its real file, where no shown directory has them.
    pub links: Vec<(PathBuf, PathBuf)>,
    /// Which one it is: the directory of its libraries, and its version in its own words.
    pub identity: Identity,
}

/// What tells interpreters apart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// Where its libraries are.
    pub prefix: PathBuf,
    /// What it calls itself.
    pub version: String,
}

impl Display for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let version = self.version.split_whitespace().next().unwrap_or("?");
        write!(f, "{version} in {}", self.prefix.display())
    }
}

fn unfit(what: String, help: &'static str) -> SandboxError {
    SandboxError::Python { what, help }
}

/// An interpreter that does not run on the machine.
fn silent(program: &Path, reason: impl Display) -> SandboxError {
    let what =
        format!("python cannot be asked where it lives: {} did not answer ({reason})", program.display());
    unfit(what, "install python3, or name one with --sandbox-python")
}

/// Checks what an interpreter inside a sandbox answered to `QUESTION`; any will do where none was chosen.
pub fn check_answer(answer: &str, wanted: Option<&Identity>) -> Result<(), SandboxError> {
    let dead = || {
        let said: String = answer.trim().chars().take(300).collect();
        unfit(format!("python3 does not run inside the sandbox: {said}"), ANOTHER_OR_IMAGE)
    };
    let (version, paths) = read_answer(answer.trim().as_bytes()).ok_or_else(dead)?;
    let found = Identity { prefix: paths.get(1).cloned().unwrap_or_default(), version };
    match wanted.filter(|it| **it != found) {
        Some(wanted) => {
            Err(unfit(format!("python3 inside the sandbox is {found}, and should be {wanted}"), ANOTHER))
        }
        None => Ok(()),
    }
}

/// Asks `program`, or the first of the usual names that answers.
pub async fn find(program: Option<&Path>) -> Result<Python, SandboxError> {
    let mut found = Err(silent(Path::new(USUAL[0]), "not found"));
    for name in program.map_or(USUAL.map(Path::new).to_vec(), |it| vec![it]) {
        found = ask(name).await;
        if found.is_ok() {
            break;
        }
    }
    found
}

async fn ask(program: &Path) -> Result<Python, SandboxError> {
    let asked = tokio::process::Command::new(program).args(["-I", "-c", QUESTION]).output().await;
    let output = asked.map_err(|error| silent(program, error))?;
    let (version, paths) = read_answer(&output.stdout).ok_or_else(|| silent(program, output.status))?;
    understand(version, &paths, &homes())
}

/// The version and the paths in an answer to `QUESTION`.
fn read_answer(answer: &[u8]) -> Option<(String, Vec<PathBuf>)> {
    let mut texts = serde_json::from_slice::<Vec<String>>(answer).ok()?.into_iter();
    Some((texts.next()?, texts.map(PathBuf::from).collect()))
}

/// Directories that must not be shown, nor anything that holds them.
fn homes() -> Vec<PathBuf> {
    let own = std::env::var_os("HOME").map(PathBuf::from);
    own.into_iter().chain(["/root", "/home"].map(PathBuf::from)).collect()
}

fn understand(version: String, paths: &[PathBuf], homes: &[PathBuf]) -> Result<Python, SandboxError> {
    let (executable, prefixes) =
        paths.split_first().ok_or_else(|| silent(Path::new(USUAL[0]), "empty answer"))?;
    let wrong = |prefix: &Path, why: &str, help| {
        Err(unfit(format!("python's prefix {} {why}", prefix.display()), help))
    };
    let mut shown: Vec<PathBuf> = Vec::new();
    for prefix in
        prefixes.iter().flat_map(|prefix| [Some(prefix.clone()), prefix.canonicalize().ok()]).flatten()
    {
        if homes.iter().any(|home| home.starts_with(&prefix)) {
            return wrong(&prefix, "holds a home directory and must not be shown to the sandbox", ANOTHER);
        }
        if prefix.starts_with(WORKSPACE) {
            let why = format!("lies in {WORKSPACE}, which is the episode's own directory inside the sandbox");
            return wrong(&prefix, &why, "name an interpreter elsewhere with --sandbox-python");
        }
        if !is_covered(&prefix, &shown) {
            shown.push(prefix);
        }
    }
    let links = links_from(executable, &shown);
    let identity = Identity { prefix: prefixes.first().cloned().unwrap_or_default(), version };
    Ok(Python { executable: executable.clone(), prefixes: shown, links, identity })
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
        let python =
            understand("3.11.7 (main)".to_owned(), &paths, &homes).map_err(|error| error.to_string())?;
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
    fn the_episodes_own_directory_is_no_place_for_an_interpreter() {
        let error = shown(&["/workspace/.venv/bin/python", "/workspace/.venv", "/usr"]).unwrap_err();
        assert!(error.contains("lies in /workspace") && error.contains("--sandbox-python"), "{error}");
    }

    #[test]
    fn another_interpreter_than_the_wanted_one_is_found_out() {
        let wanted = Identity { prefix: "/opt/py".into(), version: "3.12.1 (main)".to_owned() };
        let check = |answer: &str| check_answer(answer, Some(&wanted)).map_err(|error| error.to_string());
        assert_eq!(check("[\"3.12.1 (main)\", \"/opt/py/bin/python3\", \"/opt/py\"]\n"), Ok(()));
        let another = check("[\"3.11.2 (main)\", \"/usr/bin/python3\", \"/usr\"]").unwrap_err();
        let expected =
            "python3 inside the sandbox is 3.11.2 in /usr, and should be 3.12.1 in /opt/py\nhelp: ";
        assert!(another.starts_with(expected), "{another}");
        assert!(check("sh: python3: not found").unwrap_err().contains("not found"));
        assert!(check_answer("[\"3\", \"/usr/bin/python3\", \"/usr\"]", None).is_ok());
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
