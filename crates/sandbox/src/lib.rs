//! The sandbox: one per episode, made for hostile code.
//!
//! `Sandboxes` knows the machine and starts sandboxes; a `Sandbox` runs programs and gives access
//! to the episode's files. By default it is made of namespaces, a private read-only root, a
//! system-call filter and limits, by a launcher, a supervisor and an init of ours:
//!
//! ```text
//! we ─ launcher (one, forks) ─ supervisor (one per sandbox, outside) ─ init (process 1, inside) ─ programs
//! ```
//!
//! Each of them ends when the socket to the one who owns it closes, so nothing outlives us. What
//! tools and verifiers do with a sandbox is left to them.
//!
//! Sandboxes that run at the same time are not proof against programs that want to talk to each other: locks
//! (`flock`, and asking for `fcntl` locks) and watches (`inotify`, `F_NOTIFY`) on the system files they all see
//! read-only, and the machine's load, carry bits from one to another. A container runtime with a kernel of its
//! own (`DockerConfig::runtime`, `runsc`) closes these.

mod allowance;
mod backend;
mod budget;
mod capture;
mod cgroup;
mod channel;
mod config;
mod docker;
mod error;
mod family;
mod ids;
mod init;
mod job;
mod launcher;
mod layout;
mod meter;
mod namespaces;
mod oom;
mod protocol;
mod python;
mod refusal;
mod root;
mod sandbox;
mod seccomp;
mod start;
mod strays;
mod supervisor;
mod sys;
mod workspace;

pub use allowance::{Allowance, Stopped};
pub use capture::Capture;
pub use config::{Containment, DockerConfig, Limits, Priority, SandboxConfig, SandboxKind, WORKSPACE};
pub use error::SandboxError;
pub use launcher::{HIDDEN_ARGUMENT, become_launcher_if_asked};
pub use protocol::{End, Exit, Refusal};
pub use sandbox::{BackgroundStatus, Command, Output, Program, Sandbox, Streams};
pub use start::Sandboxes;
pub use workspace::{FileEntry, FileError, FileRead, Selection, Workspace};
