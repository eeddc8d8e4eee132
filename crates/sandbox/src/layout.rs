//! What a sandbox sees: which parts of the machine, where, and what is private to it.
//!
//! `Machine` is what we looked up; `plan` is pure and turns it into the list that `root` builds.

use std::fs;
use std::path::{Path, PathBuf};

use super::config::{Limits, WORKSPACE};
use super::protocol::{RootEntry, Thing};
use super::python::Python;

/// Names of programs that the machine lacks under these names.
const ALIASES: &str = "/opt/bin";

/// Top-level directories of the system; on most machines all but the first are links into it.
const SYSTEM: &[&str] = &["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store"];
/// Parts of `/etc` that programs need and that hold no secrets.
const ETC: &[&str] = &[
    "/etc/alternatives",
    "/etc/ld.so.cache",
    "/etc/localtime",
    "/etc/mime.types",
    "/etc/protocols",
    "/etc/services",
];
/// Parts that only programs with a network need.
const ETC_NETWORK: &[&str] =
    &["/etc/hosts", "/etc/resolv.conf", "/etc/ssl/certs", "/etc/ca-certificates", "/etc/pki"];
/// Devices that give or take bytes and reach nothing.
const DEVICES: &[&str] = &["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"];

const PASSWD: &str = "root:x:0:0:root:/:/bin/sh\nagent:x:1000:1000:agent:/tmp:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n";
const GROUP: &str = "root:x:0:\nagent:x:1000:\nnogroup:x:65534:\n";
const HOSTS: &str = "127.0.0.1 localhost sandbox\n::1 localhost\n";
const NSSWITCH: &str = "passwd: files\ngroup: files\nhosts: files dns\n";

/// What was looked up on the machine, once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    /// The system's paths that exist.
    pub paths: Vec<RootEntry>,
    /// Those that only the network needs.
    pub network_paths: Vec<RootEntry>,
    /// The interpreter.
    pub python: Python,
    /// The shell that runs commands.
    pub shell: String,
    /// Names of the interpreter under which its own directory has none or another one.
    pub missing_names: Vec<&'static str>,
    /// Programs of ours: they hold the built-in tasks with their hidden tests.
    pub own_programs: Vec<PathBuf>,
}

impl Machine {
    /// Looks at the machine; `own_programs` hold what nobody inside may read.
    pub fn look(python: Python, own_programs: Vec<PathBuf>) -> Self {
        let bash = ["/bin/bash", "/usr/bin/bash"].into_iter().find(|it| Path::new(it).exists());
        Self {
            paths: [SYSTEM, ETC, DEVICES].concat().into_iter().filter_map(find).collect(),
            network_paths: ETC_NETWORK.iter().copied().filter_map(find).collect(),
            missing_names: missing_names(&python),
            python,
            shell: bash.unwrap_or("/bin/sh").to_owned(),
            own_programs: own_programs.iter().filter_map(|it| it.canonicalize().ok()).collect(),
        }
    }

    /// The search path for programs: our names for the interpreter, then its directory, then the usual ones.
    pub fn search_path(&self) -> String {
        let python = self.python_directory();
        let usual = ["/usr/local/bin", "/usr/bin", "/bin", "/usr/local/sbin", "/usr/sbin", "/sbin"];
        let usual = usual.into_iter().filter(|it| *it != python);
        [ALIASES, &python].into_iter().chain(usual).collect::<Vec<_>>().join(":")
    }

    /// Where the interpreter is.
    pub fn python_directory(&self) -> String {
        text(self.python.executable.parent().unwrap_or(Path::new("/")))
    }

    /// Whether a path of the machine can be seen inside.
    fn is_shown(&self, path: &Path) -> bool {
        let system = self.paths.iter().filter(|it| it.thing == Thing::Shown).map(|it| Path::new(&it.path));
        let python = self.python.prefixes.iter().map(PathBuf::as_path);
        system.chain(python).any(|shown| path.starts_with(shown))
    }
}

/// How a path of the machine is shown, if it exists.
fn find(path: &str) -> Option<RootEntry> {
    if !fs::symlink_metadata(path).ok()?.is_symlink() {
        return Some(entry(path, Thing::Shown));
    }
    let target = text(&fs::read_link(path).ok()?);
    // A link that leads out of what is shown (as /etc/resolv.conf to /run) is shown as its target.
    let kept = Path::new("/").join(&target).starts_with("/usr") || !target.starts_with(['/', '.']);
    Some(entry(path, if kept { Thing::Symlink(target) } else { Thing::Shown }))
}

fn entry(path: impl Into<String>, thing: Thing) -> RootEntry {
    RootEntry { path: path.into(), thing }
}

fn missing_names(python: &Python) -> Vec<&'static str> {
    let dir = python.executable.parent().unwrap_or(Path::new("/"));
    let real = python.executable.canonicalize().ok();
    let is_it = |name: &&str| real.is_some() && dir.join(name).canonicalize().ok() == real;
    ["python", "python3"].into_iter().filter(|name| !is_it(name)).collect()
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

/// The private root for an episode.
pub fn plan(machine: &Machine, limits: &Limits, network: bool) -> Vec<RootEntry> {
    let mut plan = machine.paths.clone();
    let files = [("/etc/passwd", PASSWD), ("/etc/group", GROUP), ("/etc/nsswitch.conf", NSSWITCH)];
    plan.extend(files.map(|(path, text)| entry(path, Thing::File(text.to_owned()))));
    match network {
        true => plan.extend(machine.network_paths.iter().cloned()),
        false => plan.push(entry("/etc/hosts", Thing::File(HOSTS.to_owned()))),
    }
    let links = [("/dev/fd", ""), ("/dev/stdin", "/0"), ("/dev/stdout", "/1"), ("/dev/stderr", "/2")];
    plan.extend(links.map(|(path, number)| entry(path, Thing::Symlink(format!("/proc/self/fd{number}")))));
    plan.push(entry("/proc", Thing::Proc));
    plan.push(entry("/run", Thing::Dir));
    plan.push(entry("/var/tmp", Thing::Symlink("/tmp".to_owned())));
    let writable = [(WORKSPACE, limits.workspace), ("/tmp", limits.scratch), ("/dev/shm", limits.scratch)];
    plan.extend(writable.map(|(path, size)| entry(path, Thing::Tmpfs(size))));
    // An interpreter may lie below /tmp, so it comes after that.
    plan.extend(show_python(&machine.python, &machine.missing_names));
    let own = machine.own_programs.iter().filter(|it| machine.is_shown(it));
    plan.extend(own.map(|path| entry(text(path), Thing::Mask)));
    plan
}

fn show_python(python: &Python, missing_names: &[&str]) -> Vec<RootEntry> {
    let prefixes = python.prefixes.iter().map(|prefix| entry(text(prefix), Thing::Shown));
    let links = python.links.iter().map(|(path, target)| (text(path), text(target)));
    let aliases = missing_names.iter().map(|name| (format!("{ALIASES}/{name}"), text(&python.executable)));
    let links = links.chain(aliases).map(|(path, target)| entry(path, Thing::Symlink(target)));
    prefixes.chain(links).collect()
}

/// A path of the machine that must never be visible, for the tests that look for it.
#[cfg(test)]
fn shows(plan: &[RootEntry], path: &str) -> bool {
    plan.iter().any(|entry| entry.thing == Thing::Shown && Path::new(path).starts_with(&entry.path))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;

    fn machine() -> Machine {
        let python = Python {
            executable: "/root/.pyenv/versions/3.11.7/bin/python3".into(),
            prefixes: vec!["/root/.pyenv/versions/3.11.7".into()],
            links: vec![],
            identity: Default::default(),
        };
        let link = entry("/bin", Thing::Symlink("usr/bin".to_owned()));
        let paths = vec![entry("/usr", Thing::Shown), link, entry("/dev/null", Thing::Shown)];
        let network_paths = vec![entry("/etc/resolv.conf", Thing::Shown)];
        Machine {
            paths,
            network_paths,
            python,
            shell: "/bin/sh".into(),
            missing_names: vec!["python"],
            own_programs: vec!["/usr/bin/backsight".into(), "/home/ann/bin/backsight".into()],
        }
    }

    #[test]
    fn our_own_programs_are_masked_where_they_would_be_shown() {
        let plan = plan(&machine(), &Limits::default(), false);
        let masks: Vec<_> = plan.iter().filter(|entry| entry.thing == Thing::Mask).collect();
        assert_eq!(masks, [&entry("/usr/bin/backsight", Thing::Mask)]);
    }

    #[test]
    fn an_interpreter_below_tmp_is_put_into_the_private_one() {
        let mut machine = machine();
        machine.python.prefixes = vec!["/tmp/venv".into()];
        let plan = plan(&machine, &Limits::default(), false);
        let place = |wanted: &str| plan.iter().position(|entry| entry.path == wanted);
        assert!(place("/tmp").is_some() && place("/tmp") < place("/tmp/venv"));
    }

    #[test]
    fn an_interpreter_under_a_home_is_shown_alone() {
        let plan = plan(&machine(), &Limits::default(), false);
        assert!(shows(&plan, "/root/.pyenv/versions/3.11.7/lib"));
        assert!(!shows(&plan, "/root/.ssh/id_rsa"));
        assert!(!shows(&plan, "/root/.pyenv/versions/3.12.1"));
        let target = "/root/.pyenv/versions/3.11.7/bin/python3".to_owned();
        assert!(plan.contains(&entry("/opt/bin/python", Thing::Symlink(target))));
    }

    #[test]
    fn only_the_network_needs_name_servers() {
        let has = |network| shows(&plan(&machine(), &Limits::default(), network), "/etc/resolv.conf");
        assert_eq!([has(false), has(true)], [false, true]);
    }

    /// Whatever is shown below `/dev` is a device that reaches nothing.
    #[test]
    fn only_harmless_devices_are_shown() {
        let plan = plan(&machine(), &Limits::default(), false);
        let shown = plan.iter().filter(|entry| entry.thing == Thing::Shown);
        let devices: Vec<_> = shown.filter(|entry| entry.path.starts_with("/dev")).collect();
        assert_eq!(devices, [&entry("/dev/null", Thing::Shown)]);
        assert!(DEVICES.iter().all(|it| it.starts_with("/dev/")));
        assert!([SYSTEM, ETC, ETC_NETWORK].concat().iter().all(|it| !it.starts_with("/dev")));
    }

    #[test]
    fn programs_are_looked_for_under_our_names_and_beside_the_interpreter_first() {
        let path = machine().search_path();
        assert!(path.starts_with("/opt/bin:/root/.pyenv/versions/3.11.7/bin:/usr/local/bin:"), "{path}");
    }

    #[test]
    fn a_name_that_means_another_interpreter_is_ours_to_give() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str| {
            fs::write(dir.path().join(name), name).unwrap();
            dir.path().join(name)
        };
        let (_, newer) = (file("python3"), file("python3.12"));
        let named = |executable: PathBuf| {
            missing_names(&Python {
                executable,
                prefixes: vec![],
                links: vec![],
                identity: Default::default(),
            })
        };
        assert_eq!(named(newer.clone()), ["python", "python3"]);
        std::os::unix::fs::symlink("python3.12", dir.path().join("python")).unwrap();
        assert_eq!(named(newer), ["python3"]);
        assert_eq!(named(dir.path().join("python3")), ["python"]);
    }
}
