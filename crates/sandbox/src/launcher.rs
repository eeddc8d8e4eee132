//! The launcher: a small process of one thread that forks a supervisor for every sandbox.
//!
//! Starting a program as big as ours costs more than the sandbox itself, and a process with many
//! threads must not fork, so one launcher is started once and forks from then on. It is ourselves
//! again, called with a hidden argument and an empty environment. It ends when our end of its socket
//! closes; the supervisors have sockets of their own, over which they are told what to make, and end
//! with those.

use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

use super::channel;
use super::protocol::Fork;
use super::refusal::Doing;
use super::supervisor;
use super::sys::{self, Forked};

/// The first argument that makes a program of ours the launcher.
pub const HIDDEN_ARGUMENT: &str = "__sandbox-init";

static ANSWERS: AtomicBool = AtomicBool::new(false);

/// To be called first in `main`: becomes the launcher when the hidden argument asks for it, and
/// notes that this program can be one.
pub fn become_launcher_if_asked() -> Option<ExitCode> {
    ANSWERS.store(true, Ordering::Relaxed);
    let asked = std::env::args_os().nth(1).is_some_and(|it| it == OsStr::new(HIDDEN_ARGUMENT));
    asked.then(|| if serve().is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Whether this program's `main` answers to the hidden argument.
pub fn this_program_answers() -> bool {
    ANSWERS.load(Ordering::Relaxed)
}

/// Forks supervisors until the socket on standard input closes.
fn serve() -> io::Result<()> {
    sys::close_inherited()?;
    // Signals typed at a terminal are for our owner, who then closes the socket.
    let _ = rustix::process::setsid();
    // Nobody asks how a supervisor ended.
    sys::forget_children(true);
    while let Some((Fork::Supervisor, mut descriptors)) = channel::receive(io::stdin())? {
        descriptors.pop().into_iter().for_each(launch);
    }
    Ok(())
}

/// Forks one supervisor. A fork that fails is told to whoever waits for the sandbox.
fn launch(control: OwnedFd) {
    match sys::fork_into(0).doing("fork a supervisor") {
        Ok(Forked::Child) => {
            sys::forget_children(false);
            std::process::exit(supervisor::main(control));
        }
        Ok(Forked::Parent(_)) => {}
        Err(refusal) => drop(refusal.tell(control)),
    }
}
