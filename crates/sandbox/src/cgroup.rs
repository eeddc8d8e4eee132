//! Limits on a whole episode: control groups, version 1 or 2, where we may make them.
//!
//! Owns finding our own place in the hierarchies, making one group per episode below it (or beside
//! us, where version 2 allows no processes next to groups), and removing it. A machine that does
//! not let us is no error: `Cgroup` says what it holds, and the limits per process remain.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::Pid;

use super::config::Containment;
use super::config::Limits;

const PREFIX: &str = "backsight-";

/// Where groups for one resource can be made.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Place {
    /// Version 1: our own group in this controller's hierarchy.
    V1(PathBuf),
    /// Version 2: our own group.
    V2(PathBuf),
}

/// The group of one episode.
#[derive(Debug, Default)]
pub struct Cgroup {
    directories: Vec<PathBuf>,
    containment: Containment,
}

impl Cgroup {
    /// Makes a group with as many of the limits as the machine lets us set.
    pub fn create(limits: &Limits) -> Self {
        let (cgroup, mountinfo) = (read("/proc/self/cgroup"), read("/proc/self/mountinfo"));
        let mut group = Self::default();
        let name = name(std::process::id(), start_time(std::process::id()).unwrap_or(0));
        let memory = place("memory", &cgroup, &mountinfo);
        group.containment.memory_per_episode =
            memory.is_some_and(|place| group.limit(&place, &name, &memory_limit(&place, limits.memory)));
        let pids = place("pids", &cgroup, &mountinfo);
        let n_processes = [("pids.max", limits.processes.to_string())];
        group.containment.processes_by_cgroup =
            pids.is_some_and(|place| group.limit(&place, &name, &n_processes));
        group
    }

    /// What holds for the whole episode.
    pub fn containment(&self) -> Containment {
        self.containment
    }

    /// Puts a process, and so all its children, into the group.
    pub fn admit(&self, pid: Pid) -> io::Result<()> {
        let pid = pid.as_raw_nonzero().to_string();
        self.directories.iter().try_for_each(|dir| fs::write(dir.join("cgroup.procs"), &pid))
    }

    /// Removes the group, once its processes are dead.
    pub fn remove(&self) {
        self.directories.iter().for_each(|dir| remove_patiently(dir));
    }

    /// Sets limits in a group at `place`; whether the first, which is the one that matters, holds.
    fn limit(&mut self, place: &Place, name: &str, limits: &[(&str, String)]) -> bool {
        let candidates = match place {
            Place::V1(own) => vec![own.join(name)],
            // Version 2 has no groups with limits below a group with processes, so ours may have to
            // be a sibling.
            Place::V2(own) => {
                [Some(own.as_path()), own.parent()].into_iter().flatten().map(|it| it.join(name)).collect()
            }
        };
        candidates.into_iter().any(|dir| self.limit_at(dir, limits))
    }

    fn limit_at(&mut self, dir: PathBuf, limits: &[(&str, String)]) -> bool {
        let known = self.directories.contains(&dir);
        if !known && fs::create_dir(&dir).is_err() {
            return false;
        }
        let mut results = limits.iter().map(|(file, value)| write_existing(&dir.join(file), value));
        let holds = results.next().is_some_and(|it| it.is_ok());
        // The others (swap) do not exist on every machine.
        results.for_each(drop);
        match (holds, known) {
            (true, false) => self.directories.push(dir),
            (false, false) => remove_patiently(&dir),
            (_, true) => {}
        }
        holds
    }
}

fn memory_limit(place: &Place, bytes: u64) -> Vec<(&'static str, String)> {
    match place {
        Place::V1(_) => {
            let bytes = bytes.to_string();
            vec![("memory.limit_in_bytes", bytes.clone()), ("memory.memsw.limit_in_bytes", bytes)]
        }
        Place::V2(_) => vec![("memory.max", bytes.to_string()), ("memory.swap.max", "0".to_owned())],
    }
}

/// Removes groups whose supervisor is gone, left behind when everything was killed at once.
pub fn sweep() {
    let (cgroup, mountinfo) = (read("/proc/self/cgroup"), read("/proc/self/mountinfo"));
    for controller in ["memory", "pids"] {
        match place(controller, &cgroup, &mountinfo) {
            Some(Place::V1(own)) => sweep_below(&own),
            Some(Place::V2(own)) => {
                [Some(own.as_path()), own.parent()].into_iter().flatten().for_each(sweep_below)
            }
            None => {}
        }
    }
}

fn sweep_below(dir: &Path) {
    let Ok(entries) = fs::read_dir(dir) else { return };
    for entry in entries.flatten() {
        let stale = entry.file_name().to_str().and_then(supervisor_of).is_some_and(|it| !is_alive(it));
        if stale {
            // A group that still has processes stays; removing it is only tidying.
            let _ = fs::remove_dir(entry.path());
        }
    }
}

fn name(pid: u32, start: u64) -> String {
    format!("{PREFIX}{pid}-{start}")
}

/// The supervisor's process id and start time, from a group's name.
fn supervisor_of(name: &str) -> Option<(u32, u64)> {
    let (pid, start) = name.strip_prefix(PREFIX)?.split_once('-')?;
    Some((pid.parse().ok()?, start.parse().ok()?))
}

fn is_alive((pid, start): (u32, u64)) -> bool {
    start_time(pid) == Some(start)
}

/// When a living process began, in the kernel's ticks: together with its id it names the process for good.
fn start_time(pid: u32) -> Option<u64> {
    read_start_time(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// From `/proc/PID/stat`; one that is dead but not collected yet does not count.
fn read_start_time(stat: &str) -> Option<u64> {
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let is_dead = ["Z", "X", "x"].contains(&fields.next()?);
    if is_dead { None } else { fields.nth(18)?.parse().ok() }
}

fn remove_patiently(dir: &Path) {
    for _ in 0..50 {
        match fs::remove_dir(dir) {
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                std::thread::sleep(Duration::from_millis(10));
            }
            _ => return,
        }
    }
}

/// Writes to a control file, which the kernel makes together with its directory.
fn write_existing(path: &Path, value: &str) -> io::Result<()> {
    let mut file = fs::OpenOptions::new().write(true).truncate(true).open(path)?;
    io::Write::write_all(&mut file, value.as_bytes())
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// Our own group for a controller: in its version 1 hierarchy if it has one, else in version 2.
fn place(controller: &str, cgroup: &str, mountinfo: &str) -> Option<Place> {
    let v1 = || {
        let own = own_path(cgroup, |controllers| controllers.split(',').any(|it| it == controller))?;
        mounted(mountinfo, own, |kind, options| {
            kind == "cgroup" && options.split(',').any(|it| it == controller)
        })
    };
    let v2 = || mounted(mountinfo, own_path(cgroup, str::is_empty)?, |kind, _| kind == "cgroup2");
    v1().map(Place::V1).or_else(|| v2().map(Place::V2))
}

/// Our path in the hierarchy whose controllers match, from `/proc/self/cgroup`.
fn own_path(cgroup: &str, matches: impl Fn(&str) -> bool) -> Option<&str> {
    cgroup.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next()?, fields.next()?);
        matches(controllers).then_some(path)
    })
}

/// Where a path of a hierarchy is found in the file system, from `/proc/self/mountinfo`.
fn mounted(mountinfo: &str, own: &str, matches: impl Fn(&str, &str) -> bool) -> Option<PathBuf> {
    mountinfo.lines().find_map(|line| {
        let (place, filesystem) = line.split_once(" - ")?;
        let mut place = place.split(' ').skip(3);
        let (root, mount_point) = (place.next()?, place.next()?);
        let mut filesystem = filesystem.split(' ');
        let (kind, options) = (filesystem.next()?, filesystem.nth(1)?);
        if !matches(kind, options) {
            return None;
        }
        let below = Path::new(own).strip_prefix(root).ok()?;
        Some(Path::new(mount_point).join(below))
    })
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;

    const HYBRID: &str = "\
        30 20 0:26 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n\
        31 20 0:27 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct\n\
        32 20 0:28 / /sys/fs/cgroup/unified rw,relatime shared:9 - cgroup2 cgroup2 rw\n";
    const UNIFIED: &str = "30 20 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
    const CONTAINER: &str = "30 20 0:26 /docker/abc /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";

    fn check(controller: &str, cgroup: &str, mountinfo: &str, expected: Option<Place>) {
        assert_eq!(place(controller, cgroup, mountinfo), expected, "{controller} in {cgroup:?}");
    }

    #[test]
    fn our_group_is_found_in_either_version() {
        let hybrid = "4:memory:/user\n3:cpu,cpuacct:/\n0::/app\n";
        check("memory", hybrid, HYBRID, Some(Place::V1("/sys/fs/cgroup/memory/user".into())));
        check("cpuacct", hybrid, HYBRID, Some(Place::V1("/sys/fs/cgroup/cpu,cpuacct".into())));
        check("pids", hybrid, HYBRID, Some(Place::V2("/sys/fs/cgroup/unified/app".into())));
        let unified = "0::/user.slice/run.scope\n";
        check("memory", unified, UNIFIED, Some(Place::V2("/sys/fs/cgroup/user.slice/run.scope".into())));
        check(
            "memory",
            "4:memory:/docker/abc/x\n",
            CONTAINER,
            Some(Place::V1("/sys/fs/cgroup/memory/x".into())),
        );
        check("memory", "4:memory:/elsewhere\n", CONTAINER, None);
        check("memory", "", "", None);
    }

    #[test]
    fn a_group_is_named_after_its_supervisor() {
        assert_eq!(supervisor_of(&name(12, 345)), Some((12, 345)));
        assert_eq!(supervisor_of("user.slice"), None);
        let own = std::process::id();
        let start = start_time(own).unwrap();
        assert!(is_alive((own, start)) && !is_alive((own, start + 1)));
        let stat = |state| format!("7 (a) b) {state} {} 4711 99", "1 ".repeat(18));
        assert_eq!((read_start_time(&stat("S")), read_start_time(&stat("Z"))), (Some(4711), None));
    }

    /// Version 2 as the kernel presents it: control files appear with the directory. A plain
    /// directory has none, so nothing can be limited in it and it is given up again.
    #[test]
    fn a_group_without_the_controller_is_given_up() {
        let dir = tempfile::tempdir().unwrap();
        let mut group = Cgroup::default();
        let place = Place::V2(dir.path().join("own"));
        fs::create_dir(dir.path().join("own")).unwrap();
        assert!(!group.limit(&place, "backsight-1-1", &memory_limit(&place, 5)));
        assert!(group.directories.is_empty());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn limits_are_written_where_the_files_are() {
        let dir = tempfile::tempdir().unwrap();
        let child = dir.path().join("backsight-1-1");
        fs::create_dir(&child).unwrap();
        fs::write(child.join("memory.max"), "max").unwrap();
        let mut group = Cgroup { directories: vec![child.clone()], ..Cgroup::default() };
        let place = Place::V2(dir.path().to_owned());
        assert!(group.limit(&place, "backsight-1-1", &memory_limit(&place, 5)));
        assert_eq!(fs::read_to_string(child.join("memory.max")).unwrap(), "5");
    }
}
