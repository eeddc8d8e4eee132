//! What processes there are on this machine, and which control groups.

use std::collections::BTreeMap;
use std::path::PathBuf;

/// The processes below one, by id.
pub fn descendants(of: u32) -> Vec<u32> {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let parents: BTreeMap<u32, u32> = processes
        .filter_map(|entry| {
            let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
            Some((pid, stat(pid, 1)?.parse().ok()?))
        })
        .collect();
    let is_below = |mut pid: u32| {
        while let Some(parent) = parents.get(&pid) {
            if *parent == of {
                return true;
            }
            pid = *parent;
        }
        false
    };
    parents.keys().copied().filter(|pid| is_below(*pid)).collect()
}

/// A field of `/proc/PID/stat`, counted from the state behind the name.
fn stat(pid: u32, field: usize) -> Option<String> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(field).map(str::to_owned)
}

/// Zombies whose new parent has not looked yet are dead all the same.
pub fn is_alive(pid: u32) -> bool {
    stat(pid, 0).is_some_and(|state| state != "Z")
}

/// The processor time of a process so far, all its threads together, in hundredths of a second.
pub fn processor_ticks(pid: u32) -> u64 {
    [11, 12].iter().map(|field| stat(pid, *field).unwrap().parse::<u64>().unwrap()).sum()
}

/// How many bytes a process has read so far, from files, pipes and sockets.
pub fn bytes_read(pid: u32) -> u64 {
    let io = std::fs::read_to_string(format!("/proc/{pid}/io")).unwrap();
    io.lines().find_map(|line| line.strip_prefix("rchar: ")).unwrap().parse().unwrap()
}

/// The ids of the supervisors that control groups of sandboxes are named after, one for each group.
pub fn supervisors() -> Vec<u32> {
    let entries = places().into_iter().flat_map(|dir| std::fs::read_dir(dir).into_iter().flatten().flatten());
    let names = entries.map(|it| it.file_name().to_string_lossy().into_owned());
    names.filter_map(|name| name.strip_prefix("backsight-")?.split('-').next()?.parse().ok()).collect()
}

/// Where control groups of ours could be.
fn places() -> Vec<PathBuf> {
    let own = std::fs::read_to_string("/proc/self/cgroup").unwrap();
    let places = own.lines().filter_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next()?, fields.next()?);
        let mount = if controllers.is_empty() { String::new() } else { format!("/{controllers}") };
        Some(PathBuf::from(format!("/sys/fs/cgroup{mount}{path}")))
    });
    places.filter(|it| it.exists()).collect()
}
