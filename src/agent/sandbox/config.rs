//! What a sandbox is asked to be: its kind, its limits, what it may see.
//!
//! Plain data. What the machine can really enforce of it is told by `Containment`, after the start.

use std::path::PathBuf;
use std::time::Duration;

const MIB: u64 = 1 << 20;

/// Which mechanism keeps an episode apart from the machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum SandboxKind {
    /// Linux namespaces, seccomp and limits, made by ourselves; needs no daemon.
    #[default]
    Namespaces,
    /// A container of the local Docker engine.
    Docker,
    /// Nothing: commands run as the user who runs us.
    None,
}

impl SandboxKind {
    /// The kind of that name, as typed on the command line.
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "namespaces" | "default" => Some(Self::Namespaces),
            "docker" => Some(Self::Docker),
            "none" => Some(Self::None),
            _ => None,
        }
    }

    /// What the user must be told before anything runs, where the kind does not protect.
    pub fn warning(&self) -> Option<&'static str> {
        (*self == Self::None).then_some(
            "WARNING: --sandbox none: model-written code runs UNPROTECTED, as you, with your files, your network \
             and your secrets\nhelp: use this only inside a machine you can throw away",
        )
    }
}

/// How much an episode may use. Bytes and seconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Memory: per episode where a cgroup can be made, else address space per process.
    pub memory: u64,
    /// Processes and threads alive at once.
    pub processes: u64,
    /// One file.
    pub file_size: u64,
    /// Processor time of one process, in seconds.
    pub cpu_seconds: u64,
    /// Descriptors of one process.
    pub open_files: u64,
    /// All files of the workspace together.
    pub workspace: u64,
    /// All files of `/tmp`, and again of `/dev/shm`.
    pub scratch: u64,
    /// The life of the sandbox, in seconds.
    pub wall_seconds: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            memory: 2048 * MIB,
            processes: 128,
            file_size: 256 * MIB,
            cpu_seconds: 600,
            open_files: 1024,
            workspace: 256 * MIB,
            scratch: 64 * MIB,
            wall_seconds: 3600,
        }
    }
}

impl Limits {
    /// The life of the sandbox.
    pub fn wall(&self) -> Duration {
        Duration::from_secs(self.wall_seconds)
    }
}

/// What only containers need to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DockerConfig {
    /// The client program.
    pub program: PathBuf,
    /// The image, which must hold a shell and Python.
    pub image: String,
}

impl Default for DockerConfig {
    fn default() -> Self {
        Self { program: PathBuf::from("docker"), image: "python:3.12-slim".to_owned() }
    }
}

/// Everything a sandbox is made from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SandboxConfig {
    /// The mechanism.
    pub kind: SandboxKind,
    /// The limits.
    pub limits: Limits,
    /// Whether the machine's network is shared with the episode.
    pub network: bool,
    /// The Python interpreter to show inside; `python3` of the search path when absent.
    pub python: Option<PathBuf>,
    /// The program that answers to the hidden argument; ourselves when absent.
    pub init: Option<PathBuf>,
    /// For containers.
    pub docker: DockerConfig,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_unprotected_kind_warns() {
        let warns = |name| SandboxKind::from_name(name).map(|kind| kind.warning().is_some());
        assert_eq!(warns("namespaces"), Some(false));
        assert_eq!(warns("docker"), Some(false));
        assert_eq!(warns("none"), Some(true));
        assert_eq!(warns("chroot"), None);
    }
}
