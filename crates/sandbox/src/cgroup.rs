//! What holds for a whole episode: control groups, version 1 or 2, where we may make them.
//!
//! Owns finding our own place in the hierarchies, making one group per episode below it (or beside
//! us, where version 2 allows no processes next to groups), and removing it. It limits memory and processes,
//! gives all episodes the same share of the processors, and tells what was used. A machine that does
//! not let us is no error: `Cgroup` says what it holds, and the limits per process remain.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::Pid;

use super::config::{Containment, Limits, Priority};

const PREFIX: &str = "backsight-";
/// The controllers in whose hierarchies groups may be.
const CONTROLLERS: [&str; 4] = ["memory", "pids", "cpu", "cpuacct"];

/// Whether the kernel itself makes a group of each session, where there is no other.
const AUTOGROUP: &str = "/proc/sys/kernel/sched_autogroup_enabled";

/// Our own group in the hierarchy that limits one resource.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Hierarchy {
    /// Of version 1, where each controller has its own.
    V1(PathBuf),
    /// Of version 2, where all share one.
    V2(PathBuf),
}

impl Hierarchy {
    /// Where groups can be made. Version 2 has no groups with limits below a group with processes, so there ours may
    /// have to be a sibling.
    fn parents(&self) -> Vec<&Path> {
        match self {
            Self::V1(own) => vec![own],
            Self::V2(own) => [own].into_iter().map(PathBuf::as_path).chain(own.parent()).collect(),
        }
    }
}

/// The group of one episode.
#[derive(Debug, Default)]
pub struct Cgroup {
    directories: Vec<PathBuf>,
    /// That of version 2, where a process is in one group for all controllers.
    unified: Option<PathBuf>,
    /// Settings that no program runs without, but that building the sandbox need not wait for.
    late: Vec<(PathBuf, String)>,
    /// What counts the processes that were killed for memory.
    kills: Option<PathBuf>,
    /// What counts the processor time used.
    usage: Option<PathBuf>,
    containment: Containment,
}

impl Cgroup {
    /// Makes a group with as many of the limits as the machine lets us set.
    pub fn create(limits: &Limits, priority: Priority) -> Self {
        let (cgroup, mountinfo) = (read("/proc/self/cgroup"), read("/proc/self/mountinfo"));
        let [memory, pids, cpu, cpuacct] = CONTROLLERS.map(|it| hierarchy(it, &cgroup, &mountinfo));
        let name = name(std::process::id(), start_time(std::process::id()).unwrap_or(0));
        let mut group = Self::default();
        let memory_per_episode = memory.is_some_and(|it| group.limit_memory(&it, &name, limits.memory));
        // Where this does not hold, the kernel's own count of the user's processes does.
        pids.and_then(|it| group.set(&it, &name, "pids.max", &limits.processes.to_string()));
        let processors_per_episode = cpu.is_some_and(|it| group.share_processors(&it, &name, priority));
        group.usage = cpuacct.and_then(|it| group.find_usage(&it, &name));
        group.containment = Containment {
            memory_per_episode,
            processors_per_episode,
            niceness_counts: read(AUTOGROUP).trim() != "1",
        };
        group
    }

    /// What holds for the whole episode.
    pub fn containment(&self) -> Containment {
        self.containment
    }

    /// What tells the processor time used by the group.
    pub fn usage(&self) -> Option<File> {
        File::open(self.usage.as_ref()?).ok()
    }

    /// How many of its processes the kernel killed for memory.
    pub fn n_killed_for_memory(&self) -> u64 {
        let text = self.kills.as_ref().and_then(|file| fs::read_to_string(file).ok()).unwrap_or_default();
        let count = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
        count.and_then(|it| it.trim().parse().ok()).unwrap_or(0)
    }

    /// Puts a process, and so all its children, into the group.
    pub fn admit(&self, pid: Pid) -> io::Result<()> {
        for (file, value) in &self.late {
            // They do not exist on every machine.
            let _ = write_existing(file, value);
        }
        let pid = pid.as_raw_nonzero().to_string();
        self.directories.iter().try_for_each(|dir| fs::write(dir.join("cgroup.procs"), &pid))
    }

    /// Removes the group, once its processes are dead.
    pub fn remove(&self) {
        self.directories.iter().for_each(|dir| remove_patiently(dir));
    }

    /// Whether memory is limited: also what is swapped out, and what sockets hold.
    fn limit_memory(&mut self, at: &Hierarchy, name: &str, bytes: u64) -> bool {
        let (bytes, none) = (bytes.to_string(), "0".to_owned());
        let (file, late, kills) = match at {
            Hierarchy::V1(_) => {
                let late = ["memory.memsw.limit_in_bytes", "memory.kmem.tcp.limit_in_bytes"];
                let late = late.map(|file| (file, bytes.clone())).to_vec();
                ("memory.limit_in_bytes", late, "memory.oom_control")
            }
            Hierarchy::V2(_) => ("memory.max", vec![("memory.swap.max", none)], "memory.events"),
        };
        let Some(dir) = self.set(at, name, file, &bytes) else { return false };
        self.late.extend(late.into_iter().map(|(file, value)| (dir.join(file), value)));
        self.kills = Some(dir.join(kills));
        true
    }

    /// Whether the episode has its own share of the processors, however many processes it has.
    fn share_processors(&mut self, at: &Hierarchy, name: &str, priority: Priority) -> bool {
        let (file, ordinary) = match at {
            Hierarchy::V1(_) => ("cpu.shares", 1024),
            Hierarchy::V2(_) => ("cpu.weight", 100),
        };
        self.set(at, name, file, &priority.share_of(ordinary).to_string()).is_some()
    }

    fn find_usage(&mut self, at: &Hierarchy, name: &str) -> Option<PathBuf> {
        match at {
            // Setting it to zero is all that can be set.
            Hierarchy::V1(_) => self.set(at, name, "cpuacct.usage", "0").map(|dir| dir.join("cpuacct.usage")),
            Hierarchy::V2(_) => self.unified.as_ref().map(|dir| dir.join("cpu.stat")),
        }
    }

    /// Sets a limit in a group of a hierarchy; the group's directory if the limit holds.
    fn set(&mut self, at: &Hierarchy, name: &str, file: &str, value: &str) -> Option<PathBuf> {
        let candidates = match (at, &self.unified) {
            (Hierarchy::V2(_), Some(unified)) => vec![unified.clone()],
            _ => at.parents().iter().map(|it| it.join(name)).collect(),
        };
        let dir = candidates.into_iter().find(|dir| self.set_at(dir, file, value))?;
        if matches!(at, Hierarchy::V2(_)) {
            self.unified = Some(dir.clone());
        }
        Some(dir)
    }

    /// Sets a limit in a group, which is made if it is not there and given up if the limit does not hold.
    fn set_at(&mut self, dir: &Path, file: &str, value: &str) -> bool {
        let is_known = self.directories.iter().any(|it| it == dir);
        if !is_known && fs::create_dir(dir).is_err() {
            return false;
        }
        let holds = write_existing(&dir.join(file), value).is_ok();
        match (holds, is_known) {
            (true, false) => self.directories.push(dir.to_owned()),
            (false, false) => remove_patiently(dir),
            (_, true) => {}
        }
        holds
    }
}

/// Removes groups whose supervisor is gone, left behind when everything was killed at once.
pub fn sweep() {
    let (cgroup, mountinfo) = (read("/proc/self/cgroup"), read("/proc/self/mountinfo"));
    for hierarchy in CONTROLLERS.iter().filter_map(|it| hierarchy(it, &cgroup, &mountinfo)) {
        hierarchy.parents().into_iter().for_each(sweep_below);
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

/// Removes a group. What died in it may take its time to leave: on a busy machine it has to wait for a processor first.
fn remove_patiently(dir: &Path) {
    for _ in 0..3000 {
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
fn hierarchy(controller: &str, cgroup: &str, mountinfo: &str) -> Option<Hierarchy> {
    let v1 = || {
        let own = own_path(cgroup, |controllers| controllers.split(',').any(|it| it == controller))?;
        mounted(mountinfo, own, |kind, options| {
            kind == "cgroup" && options.split(',').any(|it| it == controller)
        })
    };
    let v2 = || mounted(mountinfo, own_path(cgroup, str::is_empty)?, |kind, _| kind == "cgroup2");
    v1().map(Hierarchy::V1).or_else(|| v2().map(Hierarchy::V2))
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
        let (mount, filesystem) = line.split_once(" - ")?;
        let mut mount = mount.split(' ').skip(3);
        let (root, mount_point) = (mount.next()?, mount.next()?);
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

    fn check(controller: &str, cgroup: &str, mountinfo: &str, expected: Option<Hierarchy>) {
        assert_eq!(hierarchy(controller, cgroup, mountinfo), expected, "{controller} in {cgroup:?}");
    }

    #[test]
    fn our_group_is_found_in_either_version() {
        let hybrid = "4:memory:/user\n3:cpu,cpuacct:/\n0::/app\n";
        check("memory", hybrid, HYBRID, Some(Hierarchy::V1("/sys/fs/cgroup/memory/user".into())));
        check("cpuacct", hybrid, HYBRID, Some(Hierarchy::V1("/sys/fs/cgroup/cpu,cpuacct".into())));
        check("pids", hybrid, HYBRID, Some(Hierarchy::V2("/sys/fs/cgroup/unified/app".into())));
        let unified = "0::/user.slice/run.scope\n";
        check("memory", unified, UNIFIED, Some(Hierarchy::V2("/sys/fs/cgroup/user.slice/run.scope".into())));
        check(
            "memory",
            "4:memory:/docker/abc/x\n",
            CONTAINER,
            Some(Hierarchy::V1("/sys/fs/cgroup/memory/x".into())),
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
        let at = Hierarchy::V2(dir.path().join("own"));
        fs::create_dir(dir.path().join("own")).unwrap();
        assert!(!group.limit_memory(&at, "backsight-1-1", 5));
        assert!(group.directories.is_empty() && group.unified.is_none());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    /// A group whose directory is there already, with these control files.
    fn group_with(dir: &Path, files: &[&str]) -> Cgroup {
        let child = dir.join("backsight-1-1");
        fs::create_dir_all(&child).unwrap();
        files.iter().for_each(|file| fs::write(child.join(file), "max").unwrap());
        Cgroup { directories: vec![child.clone()], unified: Some(child), ..Cgroup::default() }
    }

    #[test]
    fn limits_are_written_where_the_files_are() {
        let dir = tempfile::tempdir().unwrap();
        let mut group = group_with(dir.path(), &["memory.max", "cpu.weight"]);
        let at = Hierarchy::V2(dir.path().to_owned());
        assert!(group.limit_memory(&at, "backsight-1-1", 5));
        assert!(group.share_processors(&at, "backsight-1-1", Priority::Episode));
        let said = |file| fs::read_to_string(dir.path().join("backsight-1-1").join(file)).unwrap();
        assert_eq!((said("memory.max").as_str(), said("cpu.weight").as_str()), ("5", "100"));
        assert_eq!(group.find_usage(&at, "x"), Some(dir.path().join("backsight-1-1/cpu.stat")));
    }

    /// A process is in one group of version 2: a second one would take it out of the first.
    #[test]
    fn version_2_has_one_group_for_all_limits() {
        let dir = tempfile::tempdir().unwrap();
        let mut group = group_with(&dir.path().join("own"), &["memory.max"]);
        let at = Hierarchy::V2(dir.path().join("own"));
        assert!(group.limit_memory(&at, "backsight-1-1", 5));
        assert!(!group.share_processors(&at, "backsight-1-1", Priority::Verifier));
        assert_eq!((group.directories.len(), fs::read_dir(dir.path()).unwrap().count()), (1, 1));
    }

    #[test]
    fn kills_for_memory_are_counted_in_either_version() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        let counted = |text: &str| {
            fs::write(&file, text).unwrap();
            Cgroup { kills: Some(file.clone()), ..Cgroup::default() }.n_killed_for_memory()
        };
        assert_eq!(counted("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n"), 3);
        assert_eq!(counted("low 0\nmax 9\noom 2\noom_kill 1\noom_group_kill 0\n"), 1);
        assert_eq!((counted(""), Cgroup::default().n_killed_for_memory()), (0, 0));
    }
}
