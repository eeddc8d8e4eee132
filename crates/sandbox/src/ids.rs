//! Which user of the machine an episode's processes are.
//!
//! Root is never the answer: limits on processes bind nobody who is root, and a mistake elsewhere
//! would cost more. Owns choosing the id, forking with it, and mapping it inside.

use std::fs;
use std::io;

use rustix::process::{DumpableBehavior, getegid, geteuid, set_dumpable_behavior};
use rustix::thread::{Gid, Uid, set_thread_groups, set_thread_res_gid, set_thread_res_uid};

use super::protocol::Refusal;
use super::refusal::{Doing, NAMESPACES, UNPRIVILEGED_ID};
use super::sys::{self, Forked};

/// Where private ids begin: beyond those of people, services and container managers.
const PRIVATE_BASE: u32 = 1_900_000_000;
/// The traditional user without rights.
const NOBODY: u32 = 65534;

/// The user inside the sandbox.
const INSIDE: u32 = 1000;

/// The user and group of the machine that an episode's processes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ids {
    uid: u32,
    gid: u32,
}

impl Ids {
    /// Those for a sandbox whose supervisor we are.
    pub fn for_sandbox() -> Result<Self, Refusal> {
        let (uid, pid) = (geteuid().as_raw(), std::process::id());
        let gid = if uid == 0 { 0 } else { getegid().as_raw() };
        let choose = |own, map: &str| {
            let map = fs::read_to_string(map).doing(UNPRIVILEGED_ID)?;
            let none = || io::Error::from_raw_os_error(libc::EPERM);
            host_id(own, pid, &map).ok_or_else(none).doing(UNPRIVILEGED_ID)
        };
        Ok(Self { uid: choose(uid, "/proc/self/uid_map")?, gid: choose(gid, "/proc/self/gid_map")? })
    }

    /// Forks into new namespaces that belong to this user, so that the child can map it itself.
    pub fn fork(&self, namespaces: i32) -> Result<Forked, Refusal> {
        let root = (Uid::ROOT, Gid::ROOT);
        let is_root = geteuid().is_root();
        if is_root {
            set_thread_groups(&[]).doing("drop groups")?;
            set_thread_res_gid(root.1, Gid::from_raw(self.gid), root.1)
                .doing("take on the sandbox's group")?;
            set_thread_res_uid(root.0, Uid::from_raw(self.uid), root.0)
                .doing("take on the sandbox's user")?;
        }
        let forked = sys::fork_into(namespaces).doing(NAMESPACES);
        if is_root && forked != Ok(Forked::Child) {
            set_thread_res_uid(root.0, root.0, root.0).doing("become root again")?;
            set_thread_res_gid(root.1, root.1, root.1).doing("become root again")?;
        }
        forked
    }

    /// In the child: makes this the only user there is, and becomes it with all that is ours.
    pub fn become_inside(&self) -> Result<(), Refusal> {
        // Changing user made our own entries in /proc unreachable.
        set_dumpable_behavior(DumpableBehavior::Dumpable).doing("reach the init's own settings")?;
        let maps = [("gid_map", self.gid), ("uid_map", self.uid)];
        fs::write("/proc/self/setgroups", "deny").doing("give up supplementary groups")?;
        for (file, id) in maps {
            let map = format!("{INSIDE} {id} 1");
            fs::write(format!("/proc/self/{file}"), map).doing("map the sandbox's user")?;
        }
        let (uid, gid) = (Uid::from_raw(INSIDE), Gid::from_raw(INSIDE));
        set_thread_res_gid(gid, gid, gid).doing("drop the group")?;
        set_thread_res_uid(uid, uid, uid).doing("drop the user")?;
        set_dumpable_behavior(DumpableBehavior::Dumpable).doing("reach the init's own settings")
    }
}

/// The machine's id for an episode: our own unless we are root; for root an id that belongs to
/// nobody else while the supervisor with process id `pid` lives.
///
/// `map` is `/proc/self/uid_map` (or `gid_map`): inside a container only some ids exist. None when
/// root has no other id to give.
fn host_id(own: u32, pid: u32, map: &str) -> Option<u32> {
    if own != 0 {
        return Some(own);
    }
    [PRIVATE_BASE + pid, NOBODY].into_iter().find(|&id| exists(id, map))
}

/// Whether an id is among the ranges `inside outside length`.
fn exists(id: u32, map: &str) -> bool {
    map.lines().any(|line| {
        let numbers: Vec<u64> = line.split_whitespace().filter_map(|it| it.parse().ok()).collect();
        matches!(numbers[..], [first, _, length] if (first..first + length).contains(&id.into()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_is_never_the_answer() {
        let whole = "         0          0 4294967295\n";
        assert_eq!(host_id(1000, 77, whole), Some(1000));
        assert_eq!(host_id(0, 77, whole), Some(1_900_000_077));
        assert_eq!(host_id(0, 77, "0 100000 65536\n"), Some(NOBODY));
        assert_eq!(host_id(0, 77, "0 1000 1\n"), None);
        assert_eq!(host_id(0, 77, "what\n0 1\n"), None);
    }
}
