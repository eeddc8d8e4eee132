//! The processes that descend from this one, and what each of them has used.
//!
//! Complete in a process that no descendant can leave: the first of its namespace, or one that has made
//! itself the one who adopts orphans.

use std::collections::HashMap;
use std::fs;

use rustix::process::{Pid, getpid};

/// What `/proc/PID/stat` says of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    pub pid: Pid,
    parent: Option<Pid>,
    /// The processor time it and its collected children have used, in the kernel's ticks.
    pub ticks: u64,
}

/// This process itself first, then all its descendants.
pub fn members() -> Vec<Member> {
    from(getpid(), &everybody())
}

fn everybody() -> Vec<Member> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let of = |entry: fs::DirEntry| {
        let pid = entry.file_name().to_str()?.parse().ok().and_then(Pid::from_raw)?;
        read(pid, &fs::read_to_string(entry.path().join("stat")).ok()?)
    };
    entries.filter_map(of).collect()
}

/// Reads `/proc/PID/stat`. The name in parentheses may hold anything.
fn read(pid: Pid, stat: &str) -> Option<Member> {
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let parent = fields.get(1)?.parse().ok().and_then(Pid::from_raw);
    // In user and kernel mode: its own, then those of its collected children.
    let times = fields.get(11..15)?.iter().map(|it| it.parse::<u64>().unwrap_or(0));
    Some(Member { pid, parent, ticks: times.sum() })
}

fn from(first: Pid, everybody: &[Member]) -> Vec<Member> {
    let mut children: HashMap<Option<Pid>, Vec<Member>> = HashMap::new();
    everybody.iter().for_each(|it| children.entry(it.parent).or_default().push(*it));
    let mut found: Vec<Member> = everybody.iter().copied().filter(|it| it.pid == first).collect();
    let mut at = 0;
    while let Some(member) = found.get(at) {
        found.extend(children.remove(&Some(member.pid)).unwrap_or_default());
        at += 1;
    }
    found
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;

    fn pid(it: i32) -> Pid {
        Pid::from_raw(it).unwrap()
    }

    #[test]
    fn the_whole_tree_is_found_and_nothing_beside_it() {
        let members = [(2, 1), (3, 2), (4, 3), (5, 1), (6, 2)];
        let members =
            members.map(|(it, parent)| Member { pid: pid(it), parent: Some(pid(parent)), ticks: 0 });
        let mut found: Vec<i32> =
            from(pid(2), &members).iter().map(|it| it.pid.as_raw_nonzero().get()).collect();
        found.sort_unstable();
        assert_eq!(found, [2, 3, 4, 6]);
    }

    #[test]
    fn a_process_is_read_whatever_its_name() {
        let read = |name: &str, parent: u32| {
            let stat =
                format!("7 ({name}) S {parent} 7 7 0 -1 4194560 9 9 9 9 20 300 4000 50000 20 0 1 0 99");
            read(pid(7), &stat)
        };
        let expected = |parent| Some(Member { pid: pid(7), parent, ticks: 54320 });
        assert_eq!(read("a) b", 4), expected(Some(pid(4))));
        assert_eq!(read("init", 0), expected(None));
        assert_eq!(super::read(pid(7), "7 (cut) S 4"), None);
    }
}
