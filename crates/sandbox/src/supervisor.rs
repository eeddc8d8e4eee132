//! The supervisor: one process outside each sandbox that admits its init and cleans up after it.
//!
//! Owns the episode's control group and the wall clock. It is forked before it is needed and waits to
//! be told what to make, so that nobody has to wait for the fork. When its owner's end of
//! the control socket closes, for whatever reason, it kills the init, with which the kernel kills
//! every process of the sandbox, waits until they are dead, says why it ended and removes the group.

use std::io;
use std::io::{PipeWriter, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions, WaitStatus, kill_process, pidfd_open, waitpid};

use super::cgroup::Cgroup;
use super::channel::{self, Received};
use super::ids::Ids;
use super::init;
use super::meter::Meter;
use super::protocol::{End, Reply, RootEntry, Spec};
use super::root::{self, Tree};
use super::step::{FailedStep, Step};
use super::strays;
use super::sys::Forked;

/// Makes the sandbox that the first packet describes and stays until it is gone; the process's exit status.
pub fn main(control: OwnedFd) -> i32 {
    // The launcher's socket must not stay open here: its owner would never see the launcher die.
    if let Err(error) = rustix::stdio::dup2_stdin(&control) {
        refuse(control.as_fd(), "take the control socket", &error.into());
        return 1;
    }
    drop(control);
    let packet = match channel::receive(io::stdin()) {
        // No sandbox was needed after all.
        Ok(Received { packet, .. }) if packet.is_empty() => return 0,
        Ok(Received { packet, .. }) => packet,
        Err(_) => return 1,
    };
    let Ok(spec) = Spec::decode(&packet) else {
        refuse(io::stdin().as_fd(), "read the sandbox's description", &io::ErrorKind::InvalidData.into());
        return 1;
    };
    if spec.unprotected {
        return adopt(&spec).map_or_else(refused, |()| 0);
    }
    let cgroup = Cgroup::create(&spec.limits, spec.priority);
    let result = contain(spec, &cgroup);
    cgroup.remove();
    result.map_or_else(refused, |()| 0)
}

fn refused(failed: FailedStep) -> i32 {
    report(io::stdin().as_fd(), failed);
    1
}

/// Starts programs without a sandbox, and in the end kills whatever descends from them.
fn adopt(spec: &Spec) -> Result<(), FailedStep> {
    rustix::process::set_child_subreaper(Some(rustix::process::getpid())).step("adopt stray processes")?;
    let workspace = init::open_directory(&spec.workspace).step("open the workspace")?;
    let ready = channel::send(io::stdin(), &Reply::Ready.encode(), &[workspace.as_fd()]);
    ready.step("report the workspace")?;
    let served = init::serve(init::Jobs::unprotected()).step("start programs");
    strays::kill_all();
    served
}

/// Tells the owner why there is no sandbox.
pub fn refuse(control: BorrowedFd<'_>, step: &str, error: &io::Error) {
    let errno = error.raw_os_error().unwrap_or(libc::EIO);
    report(control, FailedStep { step: step.to_owned(), errno });
}

fn report(control: BorrowedFd<'_>, failed: FailedStep) {
    let reply = Reply::Failed { step: failed.step, errno: failed.errno };
    // An owner who is gone needs no answer.
    let _ = channel::send(control, &reply.encode(), &[]);
}

fn contain(spec: Spec, cgroup: &Cgroup) -> Result<(), FailedStep> {
    let wall = spec.limits.wall();
    let reply = Reply::Contained(cgroup.containment());
    channel::send(io::stdin(), &reply.encode(), &[]).step("report the limits")?;
    let ids = Ids::for_sandbox()?;
    let trees = outer_trees(&spec.root)?;
    let (go_reader, go_writer) = io::pipe().step("make a pipe")?;
    match ids.fork(namespaces(spec.network))? {
        Forked::Child => {
            drop(go_writer);
            let meter = cgroup.usage().map_or(Meter::Family, Meter::Group);
            std::process::exit(init::main(&spec, &ids, cgroup.containment(), trees, meter, go_reader));
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
fn outer_trees(plan: &[RootEntry]) -> Result<Option<Vec<Tree>>, FailedStep> {
    if !rustix::process::geteuid().is_root() {
        return Ok(None);
    }
    match root::open_trees(plan) {
        Err(FailedStep { errno: libc::EPERM, .. }) => Ok(None),
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
fn watch(pid: Pid, cgroup: &Cgroup, wall: Duration, mut go: PipeWriter) -> Result<(), FailedStep> {
    // The kernel may take long over this, so the init builds meanwhile and only waits for it
    // before it starts the first program.
    let admitted = cgroup.admit(pid).step("put the sandbox under its control group");
    let admitted = admitted.and_then(|()| go.write_all(b"1").step("let programs run"));
    let outcome = admitted.and_then(|()| wait_for_end(pid, wall).step("watch the sandbox"));
    // Killing is harmless when it is dead already: nobody has collected it, so the id is still its own.
    let _ = kill_process(pid, Signal::KILL);
    let status = waitpid(Some(pid), WaitOptions::empty()).ok().flatten().map(|(_, status)| status);
    let end = outcome?.unwrap_or_else(|| cause(status, cgroup));
    // An owner who is gone needs no answer.
    let _ = channel::send(io::stdin(), &Reply::Over(end).encode(), &[]);
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
