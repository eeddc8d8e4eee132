//! Process 1 of a sandbox: builds it from inside, locks itself in, then starts programs and reaps.
//!
//! When the control socket closes it exits, and the kernel kills everything else. It keeps no
//! right it does not need: what it gives up before the first program runs, no program can have.

use std::collections::HashMap;
use std::io;
use std::io::{PipeReader, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus, Stdio};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{
    DumpableBehavior, Pid, Resource, Rlimit, Signal, WaitOptions, kill_process_group, set_dumpable_behavior,
    set_parent_process_death_signal, setrlimit, wait,
};
use rustix::thread::{CapabilitySet, CapabilitySets};

use super::cgroup::Cgroup;
use super::channel;
use super::config::{Containment, Limits};
use super::ids::Ids;
use super::meter::Meter;
use super::oom::Preference;
use super::protocol::{Refusal, Reply, Request, Run, Spec};
use super::refusal::Doing;
use super::root::{self, Tree};
use super::seccomp;
use super::sys;

/// Where the control socket is.
fn control() -> io::Stdin {
    io::stdin()
}

/// Becomes the sandbox's init; the exit status. `trees` are open already where only root could.
pub fn main(spec: &Spec, ids: &Ids, cgroup: &Cgroup, trees: Option<Vec<Tree>>, go: PipeReader) -> i32 {
    let meter = cgroup.usage().map_or(Meter::Family, Meter::Group);
    match set_up(spec, ids, cgroup.containment(), trees, &go) {
        Ok((workspace, preference)) => {
            let ready = channel::send(control(), &Reply::Ready(cgroup.containment()), &[workspace.as_fd()]);
            drop(workspace);
            let jobs = Jobs { running: HashMap::new(), go: Some(go), meter, preference: Some(preference) };
            i32::from(ready.and_then(|()| serve(jobs)).is_err())
        }
        Err(refusal) => refusal.tell(control()),
    }
}

/// Makes the sandbox and gives up every right; the workspace's directory, and how programs are to be killed.
fn set_up(
    spec: &Spec,
    ids: &Ids,
    containment: Containment,
    trees: Option<Vec<Tree>>,
    go: &PipeReader,
) -> Result<(OwnedFd, Preference), Refusal> {
    ids.become_inside()?;
    let preference = Preference::open().doing("choose what is killed for memory")?;
    let workspace = build(spec, trees)?;
    lock_in(spec, containment, go)?;
    Ok((workspace, preference))
}

/// Makes everything that programs will see; the workspace's directory.
fn build(spec: &Spec, trees: Option<Vec<Tree>>) -> Result<OwnedFd, Refusal> {
    let trees = trees.map_or_else(|| root::open_trees(&spec.root), Ok)?;
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    root::build(&spec.root, trees)?;
    if !spec.network {
        sys::bring_up_loopback().doing("bring up the private loopback")?;
    }
    rustix::system::sethostname(b"sandbox").doing("name the sandbox")?;
    open_directory(&spec.workspace).doing("open the workspace")
}

pub(super) fn open_directory(path: &str) -> io::Result<OwnedFd> {
    let flags = rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, rustix::fs::Mode::empty())?)
}

/// Gives up every right, for good.
fn lock_in(spec: &Spec, containment: Containment, go: &PipeReader) -> Result<(), Refusal> {
    if !containment.processors_per_episode {
        rustix::process::nice(spec.priority.niceness()).doing("let others go first")?;
    }
    limit_resources(&spec.limits, containment).doing("set resource limits")?;
    drop_capabilities().doing("drop capabilities")?;
    rustix::thread::set_no_new_privs(true).doing("forbid new privileges")?;
    set_dumpable_behavior(DumpableBehavior::NotDumpable).doing("hide the init's memory")?;
    die_with_supervisor(go).doing("tie the sandbox to its supervisor")?;
    seccomp::install(containment.memory_per_episode).doing("install the system-call filter")
}

fn limit_resources(limits: &Limits, containment: Containment) -> io::Result<()> {
    let mut all = vec![
        (Resource::Nproc, limits.processes),
        (Resource::Fsize, limits.file_size),
        (Resource::Cpu, limits.cpu_seconds),
        (Resource::Nofile, limits.open_files),
        (Resource::Core, 0),
        (Resource::Msgqueue, 0),
        (Resource::Memlock, 1 << 20),
        // Nobody gets before others again.
        (Resource::Nice, 0),
        (Resource::Rtprio, 0),
    ];
    // Address space is a poor measure of memory (runtimes reserve far more than they use), so it
    // is limited only where nothing better is.
    if !containment.memory_per_episode {
        all.push((Resource::As, limits.memory));
    }
    for (resource, limit) in all {
        setrlimit(resource, Rlimit { current: Some(limit), maximum: Some(limit) })?;
    }
    Ok(())
}

fn drop_capabilities() -> io::Result<()> {
    for capability in CapabilitySet::all().iter() {
        match rustix::thread::remove_capability_from_bounding_set(capability) {
            // Newer than this kernel.
            Err(rustix::io::Errno::INVAL) | Ok(()) => {}
            Err(error) => return Err(error.into()),
        }
    }
    rustix::thread::clear_ambient_capability_set()?;
    let none = CapabilitySet::empty();
    let sets = CapabilitySets { effective: none, permitted: none, inheritable: none };
    Ok(rustix::thread::set_capabilities(None, sets)?)
}

/// Asks the kernel to kill us with the supervisor, and makes sure that it did not die before.
fn die_with_supervisor(go: &PipeReader) -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let mut supervisor = [PollFd::new(go, PollFlags::empty())];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    match poll(&mut supervisor, Some(&at_once))? {
        0 => Ok(()),
        _ => Err(io::ErrorKind::BrokenPipe.into()),
    }
}

/// The programs that run, by the kernel's name for them and our owner's.
pub(super) struct Jobs {
    running: HashMap<Pid, u64>,
    /// What the supervisor says once the limits hold; nothing is started before.
    go: Option<PipeReader>,
    meter: Meter,
    /// Absent without a sandbox, where programs are as we are.
    preference: Option<Preference>,
}

/// Starts, kills, reaps and measures until the control socket closes.
pub(super) fn serve(mut jobs: Jobs) -> io::Result<()> {
    let children = sys::child_signal()?;
    loop {
        let control = control();
        let mut sources = [PollFd::new(&control, PollFlags::IN), PollFd::new(&children, PollFlags::IN)];
        match poll(&mut sources, None) {
            Err(rustix::io::Errno::INTR) => continue,
            result => result?,
        };
        let [has_request, has_ended] = sources.map(|source| !source.revents().is_empty());
        if has_ended {
            // The count of signals says nothing about the count of children.
            let _ = rustix::io::read(&children, &mut [0u8; 128]);
            jobs.reap()?;
        }
        if has_request && !jobs.answer()? {
            return Ok(());
        }
    }
}

impl Jobs {
    /// Programs without a sandbox.
    pub(super) fn unprotected() -> Self {
        Self { running: HashMap::new(), go: None, meter: Meter::Family, preference: None }
    }

    /// Does what one request asks; false when there are no more.
    fn answer(&mut self) -> io::Result<bool> {
        let Some((request, descriptors)) = channel::receive(control())? else { return Ok(false) };
        match request {
            Request::Run(run) => {
                let job = run.job;
                if let Err(error) = self.run(run, descriptors) {
                    let ended = Err(error.raw_os_error().unwrap_or(libc::EINVAL));
                    channel::send(control(), &Reply::Ended { job, ended }, &[])?;
                }
            }
            Request::Kill(job) => self.kill(job),
            Request::Measure => channel::send(control(), &Reply::Measured(self.meter.read()), &[])?,
        }
        Ok(true)
    }

    fn run(&mut self, run: Run, descriptors: Vec<OwnedFd>) -> io::Result<()> {
        if let Some(mut go) = self.go.take() {
            go.read_exact(&mut [0])?;
        }
        let streams: [OwnedFd; 3] = descriptors.try_into().map_err(|_| io::ErrorKind::InvalidInput)?;
        let [stdin, stdout, stderr] = streams.map(Stdio::from);
        let (program, arguments) = run.argv.split_first().ok_or(io::ErrorKind::InvalidInput)?;
        let mut command = Command::new(program);
        command.args(arguments).current_dir(run.cwd).env_clear().envs(run.env);
        command.stdin(stdin).stdout(stdout).stderr(stderr);
        sys::in_own_session(&mut command);
        let child = match &self.preference {
            Some(preference) => preference.start(&mut command)?,
            None => command.spawn()?,
        };
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        self.running.extend(pid.map(|pid| (pid, run.job)));
        Ok(())
    }

    fn kill(&self, job: u64) {
        for (pid, _) in self.running.iter().filter(|(_, it)| **it == job) {
            // It may have ended a moment ago.
            let _ = kill_process_group(*pid, Signal::KILL);
        }
    }

    /// Collects every dead child, ours and those that lost their parents.
    fn reap(&mut self) -> io::Result<()> {
        while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
            if let Some(job) = self.running.remove(&pid) {
                let ended = Ok(ExitStatus::from_raw(status.as_raw()).into());
                channel::send(control(), &Reply::Ended { job, ended }, &[])?;
            }
        }
        Ok(())
    }
}
