//! The supervisor: one process outside each sandbox that admits its init and cleans up after it.
//!
//! Owns the episode's control group and the wall clock. It is forked before it is needed and waits to
//! be told what to make, so that nobody has to wait for the fork. When its owner's end of
//! the control socket closes, for whatever reason, it kills the init, with which the kernel kills
//! every process of the sandbox, waits until they are dead, says why it ended and removes the group.

use std::io;
use std::io::{PipeWriter, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions, WaitStatus, kill_process, pidfd_open, waitpid};

use super::cgroup::Cgroup;
use super::channel;
use super::config::Containment;
use super::ids::Ids;
use super::init;
use super::protocol::{End, Refusal, Reply, RootEntry, Spec};
use super::refusal::Doing;
use super::root::{self, Tree};
use super::strays;
use super::sys::Forked;

/// Makes the sandbox that the first message describes and stays until it is gone; the process's exit status.
pub fn main(control: OwnedFd) -> i32 {
    // The launcher's socket must not stay open here: its owner would never see the launcher die.
    if let Err(refusal) = rustix::stdio::dup2_stdin(&control).doing("take the control socket") {
        return refusal.tell(control);
    }
    drop(control);
    let made = match channel::receive(io::stdin()).doing("read the sandbox's description") {
        Ok(Some((spec, _))) => make(spec),
        // No sandbox was needed after all.
        Ok(None) => Ok(()),
        Err(refusal) => Err(refusal),
    };
    made.map_or_else(|refusal| refusal.tell(io::stdin()), |()| 0)
}

fn make(spec: Spec) -> Result<(), Refusal> {
    if spec.unprotected {
        return adopt(&spec);
    }
    let cgroup = Cgroup::create(&spec.limits, spec.priority);
    let contained = contain(spec, &cgroup);
    cgroup.remove();
    contained
}

/// Starts programs without a sandbox, and in the end kills whatever descends from them.
fn adopt(spec: &Spec) -> Result<(), Refusal> {
    rustix::process::set_child_subreaper(Some(rustix::process::getpid())).doing("adopt stray processes")?;
    let workspace = init::open_directory(&spec.workspace).doing("open the workspace")?;
    let ready = Reply::Ready(Containment::default());
    channel::send(io::stdin(), &ready, &[workspace.as_fd()]).doing("report the workspace")?;
    let served = init::serve(init::Jobs::unprotected()).doing("start programs");
    strays::kill_all();
    served
}

fn contain(spec: Spec, cgroup: &Cgroup) -> Result<(), Refusal> {
    let wall = Duration::from_secs(spec.limits.wall_seconds);
    let ids = Ids::for_sandbox()?;
    let trees = outer_trees(&spec.root)?;
    let (go_reader, go_writer) = io::pipe().doing("make a pipe")?;
    match ids.fork(namespaces(spec.network))? {
        Forked::Child => {
            drop(go_writer);
            std::process::exit(init::main(&spec, &ids, cgroup, trees, go_reader));
        }
        Forked::Parent(pid) => {
            drop((trees, go_reader));
            watch(pid, cgroup, wall, go_writer)
        }
    }
}

/// The machine's trees as only root can open them: the real root may read an interpreter below its home, so it
/// opens them out here. An ordinary user can do so only inside, and reaches there what it reaches here; so does
/// a root who may not mount.
fn outer_trees(plan: &[RootEntry]) -> Result<Option<Vec<Tree>>, Refusal> {
    if !rustix::process::geteuid().is_root() {
        return Ok(None);
    }
    match root::open_trees(plan) {
        Err(Refusal { errno: libc::EPERM, .. }) => Ok(None),
        trees => trees.map(Some),
    }
}

fn namespaces(network: bool) -> i32 {
    let always = libc::CLONE_NEWUSER
        | libc::CLONE_NEWNS
        | libc::CLONE_NEWPID
        | libc::CLONE_NEWIPC
        | libc::CLONE_NEWUTS
        | libc::CLONE_NEWCGROUP;
    if network { always } else { always | libc::CLONE_NEWNET }
}

/// Puts the init under the limits, waits for the end, leaves nothing alive and tells why it ended.
fn watch(pid: Pid, cgroup: &Cgroup, wall: Duration, mut go: PipeWriter) -> Result<(), Refusal> {
    // The kernel may take long over this, so the init builds meanwhile and only waits for it
    // before it starts the first program.
    let admitted = cgroup.admit(pid).doing("put the sandbox under its control group");
    let admitted = admitted.and_then(|()| go.write_all(b"1").doing("let programs run"));
    let outcome = admitted.and_then(|()| wait_for_end(pid, wall).doing("watch the sandbox"));
    // Killing is harmless when it is dead already: nobody has collected it, so the id is still its own.
    let _ = kill_process(pid, Signal::KILL);
    let status = waitpid(Some(pid), WaitOptions::empty()).ok().flatten().map(|(_, status)| status);
    let end = outcome?.unwrap_or_else(|| cause(status, cgroup));
    // An owner who is gone needs no answer.
    let _ = channel::send(io::stdin(), &Reply::Over(end), &[]);
    Ok(())
}

/// Why an init ended that nobody of ours ended.
fn cause(status: Option<WaitStatus>, cgroup: &Cgroup) -> End {
    match status.and_then(|it| it.terminating_signal()) {
        Some(libc::SIGKILL) if cgroup.n_killed_for_memory() > 0 => End::Memory,
        Some(signal) => End::Signal(signal),
        None => End::Unknown,
    }
}

/// Waits until the owner goes away, the time is over, or the init ends, for whatever reason.
fn wait_for_end(pid: Pid, wall: Duration) -> io::Result<Option<End>> {
    let (control, init) = (io::stdin(), pidfd_open(pid, PidfdFlags::empty())?);
    let deadline = Instant::now() + wall;
    loop {
        let rest = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec { tv_sec: rest.as_secs() as i64, tv_nsec: rest.subsec_nanos().into() };
        let mut ends = [PollFd::new(&control, PollFlags::RDHUP), PollFd::new(&init, PollFlags::IN)];
        match poll(&mut ends, Some(&timeout)) {
            Ok(0) => return Ok(Some(End::WallClock)),
            Ok(_) if !ends[0].revents().is_empty() => return Ok(Some(End::Stopped)),
            Ok(_) => return Ok(None),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}
