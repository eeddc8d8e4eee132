//! What a sandbox is asked to be: its kind, its limits, what it may see.
//!
//! Plain data. What the machine can really enforce of it is told by `Containment`, after the start.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// The episode's own directory.
pub const WORKSPACE: &str = "/workspace";

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
            "--sandbox none: model-written code runs UNPROTECTED, as you, with your files, your network and your \
             secrets; no limit holds, and it can read hidden tests and forge any reward\n\
             help: use this only inside a machine you can throw away, and do not trust the rewards",
        )
    }
}

/// How much an episode may use. Bytes and seconds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
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

/// Whose programs come first where processors are short.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Priority {
    /// An episode's: all episodes alike.
    #[default]
    Episode,
    /// Those that judge an episode: ten times as much.
    Verifier,
}

impl Priority {
    /// The share of the processors that a control group has, where `ordinary` is that of any other.
    pub(super) fn share_of(self, ordinary: u64) -> u64 {
        match self {
            Self::Episode => ordinary,
            Self::Verifier => 10 * ordinary,
        }
    }

    /// Where there is no group: how much nicer than ours each of its processes is, which gives it a tenth.
    pub(super) fn niceness(self) -> i32 {
        match self {
            Self::Episode => 10,
            Self::Verifier => 0,
        }
    }
}

/// What only containers need to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DockerConfig {
    /// The client program.
    pub program: PathBuf,
    /// The image, which must hold a shell and Python.
    pub image: String,
    /// The engine's runtime, such as gVisor's `runsc`; the engine's own when absent.
    pub runtime: Option<String>,
}

impl Default for DockerConfig {
    fn default() -> Self {
        Self { program: PathBuf::from("docker"), image: "python:3.12-slim".to_owned(), runtime: None }
    }
}

/// Where the limits on an episode's memory and processors are enforced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Containment {
    /// Memory is bounded for the whole episode by a cgroup, not only per process.
    pub memory_per_episode: bool,
    /// Processors are shared among episodes by a cgroup, not only among processes by their niceness.
    pub processors_per_episode: bool,
    /// Niceness counts among all processes, not only among those of one session.
    pub niceness_counts: bool,
}

impl Containment {
    /// Everything is limited for the episode as a whole.
    pub(super) const WHOLE: Self =
        Self { memory_per_episode: true, processors_per_episode: true, niceness_counts: true };
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

impl SandboxConfig {
    /// Whether the episode's programs reach a network.
    pub fn has_network(&self) -> bool {
        self.network || self.kind == SandboxKind::None
    }

    /// What a user may take for a limit on an episode, and is none here. That nothing at all holds without a
    /// sandbox is said by its warning.
    pub fn caveats(&self, containment: Containment) -> Vec<String> {
        match self.kind {
            SandboxKind::Namespaces => {
                let memory = (!containment.memory_per_episode).then(|| self.memory_per_process());
                let processors =
                    (!containment.processors_per_episode).then(|| no_share(containment.niceness_counts));
                memory.into_iter().chain(processors).collect()
            }
            SandboxKind::Docker => vec![self.workspace_of_the_machine(), TESTS_BY_THE_CLOCK.to_owned()],
            SandboxKind::None => Vec::new(),
        }
    }

    fn memory_per_process(&self) -> String {
        format!(
            "the limit of {} MiB of memory holds for each process of an episode, not for all of them together, and \
             does not count what sockets and pipes hold: no memory control group can be made here (root can, or a \
             user with a delegated one)",
            self.limits.memory / MIB
        )
    }

    fn workspace_of_the_machine(&self) -> String {
        format!(
            "the limit of {} MiB does not hold for the workspace, which is a directory of this machine",
            self.limits.workspace / MIB
        )
    }
}

/// What is said where no control group gives an episode its share of the processors.
fn no_share(niceness_counts: bool) -> String {
    let instead = match niceness_counts {
        true => {
            "by process, not by episode: one with many busy processes slows the commands of others down, and only \
             their niceness keeps them behind the hidden tests"
        }
        false => {
            "by session, not by episode: one with many busy sessions slows others down, and the hidden tests too, \
             which then may run out of time; niceness would keep them behind, but counts for nothing among sessions \
             (sysctl kernel.sched_autogroup_enabled=0 makes it count)"
        }
    };
    format!(
        "processors are shared {instead}: no cpu control group can be made here (root can, or a user with a \
         delegated one)"
    )
}

const TESTS_BY_THE_CLOCK: &str = "hidden tests are timed by the clock, not by the processor time they use: on a busy \
                                  machine a slow solution may run out of time";

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

    #[test]
    fn limits_that_do_not_hold_for_an_episode_are_said() {
        let said = |kind, memory_per_episode, processors_per_episode| {
            let config = SandboxConfig { kind, ..SandboxConfig::default() };
            let held = Containment { memory_per_episode, processors_per_episode, niceness_counts: true };
            config.caveats(held)
        };
        let namespaces = SandboxKind::Namespaces;
        assert_eq!(said(namespaces.clone(), true, true), Vec::<String>::new());
        let [memory, processors] = &said(namespaces.clone(), false, false)[..] else { unreachable!() };
        assert!(memory.starts_with("the limit of 2048 MiB of memory holds for each process"), "{memory}");
        assert!(memory.contains("sockets") && processors.contains("niceness"), "{processors}");
        assert_eq!(said(namespaces, true, false), std::slice::from_ref(processors));
        assert!(
            no_share(true).contains("by process") && no_share(false).contains("sched_autogroup_enabled=0")
        );
        let docker = said(SandboxKind::Docker, true, true).concat();
        assert!(docker.contains("256 MiB") && docker.contains("the clock"), "{docker}");
    }
}
