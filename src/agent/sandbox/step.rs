//! Which step of making a sandbox failed, and what a user can do about it.

use std::io;

/// A step that failed, with the kernel's reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedStep {
    /// What was being done.
    pub step: String,
    /// The kernel's error number.
    pub errno: i32,
}

/// Names the step an error happened in.
pub trait Step<T> {
    /// Turns an error into a failed step.
    fn step(self, step: &str) -> Result<T, FailedStep>;
}

impl<T> Step<T> for io::Result<T> {
    fn step(self, step: &str) -> Result<T, FailedStep> {
        self.map_err(|error| FailedStep {
            step: step.to_owned(),
            errno: error.raw_os_error().unwrap_or(libc::EIO),
        })
    }
}

impl<T> Step<T> for rustix::io::Result<T> {
    fn step(self, step: &str) -> Result<T, FailedStep> {
        self.map_err(|error| FailedStep { step: step.to_owned(), errno: error.raw_os_error() })
    }
}

/// The step at which namespaces are made; the one machines forbid most.
pub const NAMESPACES: &str = "create user, mount, pid, network, ipc and uts namespaces";
/// The step at which the private process table is mounted.
pub const MOUNT_PROC: &str = "mount a private /proc";
/// The step at which root looks for an unprivileged id.
pub const UNPRIVILEGED_ID: &str = "find an unprivileged user id";

/// The next action for a step that failed.
pub fn help(step: &str, errno: i32) -> &'static str {
    match (step, errno) {
        (NAMESPACES, libc::EPERM | libc::EACCES) => {
            "allow unprivileged user namespaces (sysctl kernel.unprivileged_userns_clone=1, \
             kernel.apparmor_restrict_unprivileged_userns=0; in a container: a seccomp profile that permits \
             unshare), or choose --sandbox docker"
        }
        (NAMESPACES, libc::ENOSPC | libc::EUSERS) => {
            "raise the number of namespaces (sysctl user.max_user_namespaces), or lower --concurrency"
        }
        (NAMESPACES, libc::EINVAL) => {
            "this kernel was built without some namespaces; choose --sandbox docker"
        }
        (MOUNT_PROC, libc::EPERM) => {
            "the machine's own /proc is partly masked, as in a container; run it with an unmasked /proc \
             (docker run --security-opt systempaths=unconfined), or choose --sandbox docker"
        }
        (UNPRIVILEGED_ID, _) => "run as an ordinary user, or map more user ids into this container",
        (_, libc::ENOSYS) => "Linux 5.12 or newer is needed; choose --sandbox docker",
        (_, libc::EMFILE | libc::ENFILE) => {
            "raise the limit on open files (ulimit -n), or lower --concurrency"
        }
        (_, libc::EAGAIN) => "raise the limit on processes (ulimit -u), or lower --concurrency",
        (_, libc::ENOMEM) => "the machine is out of memory; lower --concurrency",
        _ => "choose --sandbox docker, or report this with the kernel's version (uname -a)",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forbidden_namespaces_say_which_switch_to_turn() {
        assert!(help(NAMESPACES, libc::EPERM).contains("unprivileged_userns_clone"));
        assert!(help(NAMESPACES, libc::ENOSPC).contains("max_user_namespaces"));
        assert!(help(MOUNT_PROC, libc::EPERM).contains("/proc"));
        assert!(help("mount /usr", libc::ENOSYS).contains("5.12"));
    }
}
