//! The few system calls of the sandbox that have no safe wrapper, and the one way to take a lock.
//!
//! Everything here is a thin, total function: no policy, no state. The callers (`launcher`, `init`,
//! `workspace`) decide what is done with them.
#![allow(
    unsafe_code,
    reason = "clone, signal, signalfd, setfsuid, mount_setattr, requests to sockets, pre-exec hooks and the runtime's registration have no safe wrapper in std or rustix; \
              each block states why it is sound"
)]

use std::ffi::c_long;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::mount::MountAttrFlags;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use rustix::process::Pid;
use tokio::io::unix::AsyncFd;

/// Takes a lock; what it guards is whole also where somebody panicked.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Nothing, or the error that the call left behind which returned this.
fn done(result: impl Into<i64>) -> io::Result<()> {
    if result.into() == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Which side of a fork one is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forked {
    /// The old process, with the new one's id.
    Parent(Pid),
    Child,
}

/// Forks into new namespaces (`CLONE_NEW…` flags; zero is a plain fork).
///
/// Refuses in a process with several threads, where the child could find locks held for ever.
pub fn fork_into(namespaces: i32) -> io::Result<Forked> {
    if std::fs::read_dir("/proc/self/task")?.count() != 1 {
        return Err(io::ErrorKind::ResourceBusy.into());
    }
    let flags = c_long::from(namespaces | libc::SIGCHLD);
    // SAFETY: without CLONE_VM and with a null stack this is fork(2): the child runs on a copy of
    // our memory. The process has one thread, so no lock of another thread is copied held.
    let result = unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) };
    match i32::try_from(result).ok().filter(|&pid| pid >= 0) {
        None => Err(io::Error::last_os_error()),
        Some(pid) => Ok(Pid::from_raw(pid).map_or(Forked::Child, Forked::Parent)),
    }
}

/// Closes everything but the three standard streams. To be called first in a fresh program, which
/// owns nothing else: descriptors that an ancestor forgot to close must not reach the sandbox.
pub fn close_inherited() -> io::Result<()> {
    // SAFETY: takes three numbers; in a program that has opened nothing yet, nobody owns these
    // descriptors.
    done(unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0) })
}

/// Has the kernel collect children as they end, or leave them to us, as is usual.
pub fn forget_children(forget: bool) {
    let action = if forget { libc::SIG_IGN } else { libc::SIG_DFL };
    // SAFETY: neither action runs code of ours.
    unsafe { libc::signal(libc::SIGCHLD, action) };
}

/// Brings up the loopback of a fresh network namespace, so that programs can talk to themselves.
pub fn bring_up_loopback() -> io::Result<()> {
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    // SAFETY: zeros are a valid `ifreq`, which consists of numbers and null pointers.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    request.ifr_name[..2].copy_from_slice(&[b'l', b'o'].map(|it| it as libc::c_char));
    request.ifr_ifru.ifru_flags = libc::IFF_UP as libc::c_short;
    // SAFETY: the kernel reads one `ifreq` for this request, and keeps nothing of it.
    done(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw const request) })
}

/// A descriptor that becomes readable when a child ends. The signal is blocked from here on;
/// `unblock_on_exec` gives programs their usual mask back.
pub fn child_signal() -> io::Result<OwnedFd> {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: `sigemptyset` initialises the set before anything reads it, and the pointers live
    // through the calls. `signalfd` returns a fresh descriptor or -1, which is checked first.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), libc::SIGCHLD);
        done(libc::sigprocmask(libc::SIG_BLOCK, set.as_ptr(), std::ptr::null_mut()))?;
        match libc::signalfd(-1, set.as_ptr(), libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) {
            -1 => Err(io::Error::last_os_error()),
            descriptor => Ok(OwnedFd::from_raw_fd(descriptor)),
        }
    }
}

/// Starts a program in its own session, so that all of it can be killed, and with no signal blocked.
pub fn in_own_session(command: &mut Command) {
    // SAFETY: the hook runs between fork and exec, makes system calls only and allocates nothing.
    unsafe {
        command.pre_exec(|| {
            rustix::process::setsid()?;
            unblock_signals()
        });
    }
}

/// Has a program's process write to a file of ours before it becomes the program.
pub fn write_before_exec(command: &mut Command, file: OwnedFd, text: String) {
    // SAFETY: as above; the file and the text are moved in and neither grown nor dropped there.
    unsafe {
        command.pre_exec(move || Ok(rustix::io::pwrite(&file, text.as_bytes(), 0).map(drop)?));
    }
}

fn unblock_signals() -> io::Result<()> {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the set is initialised by `sigemptyset` before it is read.
    done(unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigprocmask(libc::SIG_SETMASK, set.as_ptr(), std::ptr::null_mut())
    })
}

/// Registers a descriptor with the async runtime.
pub fn register(descriptor: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an `OwnedFd` is open for as long as it lives and always names the same file.
    unsafe { AsyncFd::register(descriptor) }.map_err(io::Error::from)
}

/// How far a change of mount attributes reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// This mount alone.
    Mount,
    /// This mount and all below it.
    Tree,
}

/// Gives a mount more attributes (`MOUNT_ATTR_…`).
pub fn restrict_mount(mount: impl AsFd, attributes: MountAttrFlags, reach: Reach) -> io::Result<()> {
    // The kernel's `struct mount_attr`: set, clear, propagation, user namespace.
    let attr: [u64; 4] = [attributes.bits().into(), 0, 0, 0];
    let recursive = if reach == Reach::Tree { libc::AT_RECURSIVE } else { 0 };
    let flags = libc::AT_EMPTY_PATH | recursive;
    // SAFETY: the path is a static C string, and `attr` is read for exactly its own size.
    done(unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_fd().as_raw_fd(),
            c"".as_ptr(),
            flags,
            &raw const attr,
            size_of_val(&attr),
        )
    })
}

/// While it lives, this thread opens and creates files as another user.
#[derive(Debug)]
pub struct FileIdentity {
    before: (u32, u32),
    /// The identity belongs to one thread.
    _not_send: std::marker::PhantomData<*const ()>,
}

impl FileIdentity {
    /// Takes on `uid` and `gid` for file access; the kernel drops the power to ignore permissions with it.
    pub fn assume(uid: u32, gid: u32) -> io::Result<Self> {
        let before = (set_file_uid(u32::MAX), set_file_gid(u32::MAX));
        set_file_gid(gid);
        set_file_uid(uid);
        let identity = Self { before, _not_send: std::marker::PhantomData };
        let now = (set_file_uid(u32::MAX), set_file_gid(u32::MAX));
        if now == (uid, gid) { Ok(identity) } else { Err(io::ErrorKind::PermissionDenied.into()) }
    }
}

impl Drop for FileIdentity {
    fn drop(&mut self) {
        set_file_uid(self.before.0);
        set_file_gid(self.before.1);
    }
}

/// Sets this thread's user for file access and returns the one before; an impossible id only asks.
fn set_file_uid(uid: u32) -> u32 {
    // SAFETY: takes and returns a number, affects this thread alone and cannot fail.
    unsafe { libc::setfsuid(uid) as u32 }
}

fn set_file_gid(gid: u32) -> u32 {
    // SAFETY: as for `set_file_uid`.
    unsafe { libc::setfsgid(gid) as u32 }
}
