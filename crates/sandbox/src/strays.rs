//! Killing every process that descends from us, whatever sessions and groups it made for itself.
//!
//! Works in a process that has made itself the one who adopts orphans: then no descendant can leave the
//! tree, and it is enough to walk it until it is empty.

use std::collections::HashMap;
use std::fs;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, wait};

/// A process the kernel cannot kill at once, or that is not ours to kill, is waited for so long.
const PATIENCE: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(2);

/// Kills all descendants and returns when they are dead.
pub fn kill_all() {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let tree = descendants(getpid(), &parents());
        if tree.is_empty() || Instant::now() > deadline {
            return;
        }
        // Stopped first, so that none of them can fork while the others are killed.
        for signal in [Signal::STOP, Signal::KILL] {
            for pid in &tree {
                // It may have ended a moment ago.
                let _ = kill_process(*pid, signal);
            }
        }
        while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {}
        std::thread::sleep(PAUSE);
    }
}

/// Each process of the machine with its parent.
fn parents() -> Vec<(Pid, Pid)> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let of = |entry: fs::DirEntry| {
        let pid = entry.file_name().to_str()?.parse().ok().and_then(Pid::from_raw)?;
        let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
        Some((pid, parent_in(&stat)?))
    };
    entries.filter_map(of).collect()
}

/// The parent in `/proc/PID/stat`: the second field behind the name, which may hold anything.
fn parent_in(stat: &str) -> Option<Pid> {
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok().and_then(Pid::from_raw)
}

fn descendants(of: Pid, parents: &[(Pid, Pid)]) -> Vec<Pid> {
    let mut children: HashMap<Pid, Vec<Pid>> = HashMap::new();
    for (pid, parent) in parents {
        children.entry(*parent).or_default().push(*pid);
    }
    let (mut found, mut next) = (Vec::new(), vec![of]);
    while let Some(pid) = next.pop() {
        let below = children.remove(&pid).unwrap_or_default();
        next.extend(&below);
        found.extend(below);
    }
    found
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;

    #[test]
    fn the_whole_tree_is_found_and_nothing_beside_it() {
        let pid = |it: i32| Pid::from_raw(it).unwrap();
        let parents = [(2, 1), (3, 2), (4, 3), (5, 1), (6, 2)].map(|(it, parent)| (pid(it), pid(parent)));
        let mut found = descendants(pid(2), &parents);
        found.sort_by_key(|it| it.as_raw_nonzero());
        assert_eq!(found, [3, 4, 6].map(pid));
        assert_eq!(parent_in("7 (a) b) S 4 7 7 0"), Some(pid(4)));
        assert_eq!(parent_in("1 (init) S 0 1"), None);
    }
}
