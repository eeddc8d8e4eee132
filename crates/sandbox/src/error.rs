//! Why a sandbox cannot be made or used; each error names the reason and the next action.

use std::io;
use std::path::PathBuf;

use super::protocol::{End, Refusal};
use super::refusal::{facility, help};

/// Why a sandbox cannot be made or used.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// The kernel forbids what the sandbox needs. It is never made weaker than asked for.
    #[error("the sandbox cannot be made, because the kernel refuses {}: cannot {}: {}\nhelp: {}", facility(&.0.doing).0, .0.doing, io::Error::from_raw_os_error(.0.errno), help(&.0.doing, .0.errno))]
    Refused(Refusal),
    /// The launcher does not start.
    #[error(
        "the sandbox's launcher {program} cannot be started: {error}\nhelp: the program must call `sandbox::become_launcher_if_asked` first in `main`, or `SandboxConfig::init` must name one that does"
    )]
    Launcher {
        /// What was run.
        program: PathBuf,
        /// Why not.
        error: io::Error,
    },
    /// Python cannot be shown, or does not run inside.
    #[error("{what}\nhelp: {help}")]
    Python {
        /// What is wrong.
        what: String,
        /// The next action.
        help: &'static str,
    },
    /// A program could not be started inside.
    #[error("{program} cannot be started in the sandbox: {error}")]
    NotStarted {
        /// Which.
        program: String,
        /// Why not.
        error: io::Error,
    },
    /// The directory a program was to start in cannot be entered.
    #[error("the directory {directory} cannot be entered: {error}")]
    NoDirectory {
        /// Which.
        directory: String,
        /// Why not.
        error: io::Error,
    },
    /// A command no kernel would take.
    #[error("the command cannot be run: {0}")]
    BadCommand(&'static str),
    /// It ended.
    #[error("the sandbox has ended: {}\nhelp: {}", why(*.0).0, why(*.0).1)]
    Ended(End),
    /// The container engine does not do what we ask.
    #[error("docker: {0}\nhelp: check that `docker run` works, or leave out --sandbox docker")]
    Docker(String),
    /// Our own side failed.
    #[error("the sandbox cannot be used: {0}")]
    Io(#[from] io::Error),
}

/// Why a sandbox is no more, and the next action.
fn why(end: End) -> (String, &'static str) {
    match end {
        End::Stopped => ("it was stopped".to_owned(), "nothing can be run in it any more"),
        End::WallClock => {
            ("its time was over".to_owned(), "raise --sandbox-wall-seconds if episodes need longer")
        }
        End::Memory => (
            "the kernel killed its first process because the episode's memory was used up".to_owned(),
            "raise --sandbox-memory-mb if episodes need more",
        ),
        End::Signal(signal) => (
            format!("its first process was killed by signal {signal} from outside"),
            "signal 9 comes from a machine without memory too (see its kernel log): lower --concurrency then",
        ),
        End::Unknown => (
            "its supervisor was killed".to_owned(),
            "a machine without memory does that too (see its kernel log): lower --concurrency then",
        ),
    }
}
