//! What was being done when the kernel refused to make a sandbox, and what a user can do about it.

use std::io;
use std::os::fd::AsFd;

use super::channel;
use super::protocol::{Refusal, Reply};

/// Says what was being done when an error happened.
pub trait Doing<T> {
    /// Turns an error into a refusal of that.
    fn doing(self, doing: &str) -> Result<T, Refusal>;
}

impl<T, E: Into<io::Error>> Doing<T> for Result<T, E> {
    fn doing(self, doing: &str) -> Result<T, Refusal> {
        self.map_err(|error| Refusal {
            doing: doing.to_owned(),
            errno: error.into().raw_os_error().unwrap_or(libc::EIO),
        })
    }
}

impl Refusal {
    /// Tells it to whoever waits for the sandbox; the status to exit with.
    pub fn tell(self, control: impl AsFd) -> i32 {
        // An owner who is gone needs no answer, and one who waits sees the socket close in any case.
        let _ = channel::send(control, &Reply::Refused(self), &[]);
        1
    }
}

/// Making namespaces: what machines forbid most.
pub const NAMESPACES: &str = "create user, mount, pid, network, ipc and uts namespaces";
pub const MOUNT_PROC: &str = "mount a private /proc";
pub const UNPRIVILEGED_ID: &str = "find a user id beside root's in /proc/self/uid_map";

const ELSEWHERE: &str = "run where this is permitted, or choose --sandbox docker";
const MODULE: &str = "a security module or container forbids it: allow it (Ubuntu: sysctl \
                      kernel.apparmor_restrict_unprivileged_userns=0; SELinux: its user_namespace policy; in a container: a \
                      seccomp profile that permits open_tree, fsopen, move_mount and pivot_root), or choose --sandbox docker";
const SECCOMP: &str =
    "allow the seccomp system call (a kernel with CONFIG_SECCOMP_FILTER, no outer filter that forbids it)";
const GROUPS: &str = "give this user's control group write access for itself (systemd: Delegate=yes), or take the right \
                      to make groups away altogether: limits then hold for each process";

/// The kernel's facilities as people look for them, the words with which what needs them begins, and the next action
/// where they are forbidden.
#[rustfmt::skip]
const FACILITIES: &[(&str, &[&str], &str)] = &[
    ("user namespaces", &[NAMESPACES, UNPRIVILEGED_ID, "map ", "give up supplementary", "drop the ", "reach the "], MODULE),
    ("mounting proc in a user namespace", &[MOUNT_PROC], ELSEWHERE),
    ("mounting in a user namespace", &["show ", "hide ", "make ", "link ", "write /", "detach ", "enter ", "leave "], MODULE),
    ("seccomp filters", &["install the system-call filter"], SECCOMP),
    ("control groups", &["put the sandbox under"], GROUPS),
    ("network namespaces", &["bring up "], ELSEWHERE),
    ("processes", &["fork ", "adopt "], ELSEWHERE),
    ("process limits and privileges", &[""], ELSEWHERE),
];

/// The kernel's facility that this needs, and the next action where it is forbidden.
pub fn facility(doing: &str) -> (&'static str, &'static str) {
    let needs = |words: &[&str]| words.iter().any(|it| doing.starts_with(it));
    let found = FACILITIES.iter().find(|(_, words, _)| needs(words));
    found.map_or(("", ELSEWHERE), |(name, _, help)| (name, help))
}

/// The next action after a refusal.
pub fn help(doing: &str, errno: i32) -> &'static str {
    match (doing, errno) {
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
        (UNPRIVILEGED_ID, _) => {
            "only root is mapped into this user namespace, as after `unshare -r`, and programs never run as root: \
             run as an ordinary user, or map more ids (unshare --map-auto, podman --userns=auto)"
        }
        (_, libc::ENOSYS) => "Linux 5.12 or newer is needed; choose --sandbox docker",
        (_, libc::EMFILE | libc::ENFILE) => {
            "raise the limit on open files (ulimit -n), or lower --concurrency"
        }
        (_, libc::EAGAIN) => "raise the limit on processes (ulimit -u), or lower --concurrency",
        (_, libc::ENOMEM) => "the machine is out of memory; lower --concurrency",
        (_, libc::EPERM | libc::EACCES) => facility(doing).1,
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
        assert!(help(UNPRIVILEGED_ID, libc::EPERM).contains("unshare -r"));
        assert!(help("show /usr read-only", libc::EPERM).contains("open_tree"));
    }

    #[test]
    fn everything_names_its_facility() {
        let mounts = "mounting in a user namespace";
        let cases = [
            (NAMESPACES, "user namespaces"),
            (UNPRIVILEGED_ID, "user namespaces"),
            ("map the sandbox's user", "user namespaces"),
            ("show /usr read-only", mounts),
            ("hide /usr/bin/backsight", mounts),
            ("make a private /tmp", mounts),
            (MOUNT_PROC, "mounting proc in a user namespace"),
            ("install the system-call filter", "seccomp filters"),
            ("put the sandbox under its control group", "control groups"),
            ("set resource limits", "process limits and privileges"),
        ];
        for (doing, expected) in cases {
            assert_eq!(facility(doing).0, expected, "{doing}");
        }
    }
}
