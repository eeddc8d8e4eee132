//! What a sandbox sees: which parts of the machine, where, and what is private to it.
//!
//! `Machine` is what we looked up; `plan` is pure and turns it into the list that `root` builds.

use std::fs;
use std::path::{Path, PathBuf};

use super::config::{Limits, WORKSPACE};
use super::protocol::RootEntry;
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

/// What a path of the machine is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// A file or directory, to be shown as it is.
    Thing,
    /// A link with this text.
    Link(String),
}

/// What was looked up on the machine, once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Machine {
    /// The system's paths that exist.
    pub paths: Vec<(String, Found)>,
    /// Those that only the network needs.
    pub network_paths: Vec<(String, Found)>,
    /// The interpreter, if there is one.
    pub python: Option<Python>,
    /// The shell that runs commands.
    pub shell: String,
    /// Names of the interpreter under which its own directory has none or another one.
    pub missing_names: Vec<&'static str>,
    /// Programs of ours: they hold the built-in tasks with their hidden tests.
    pub own_programs: Vec<PathBuf>,
}

impl Machine {
    /// Looks at the machine; `own_programs` hold what nobody inside may read.
    pub fn look(python: Option<Python>, own_programs: Vec<PathBuf>) -> Self {
        let bash = ["/bin/bash", "/usr/bin/bash"].into_iter().find(|it| Path::new(it).exists());
        let missing_names = python.as_ref().map_or(Vec::new(), missing_names);
        Self {
            paths: [SYSTEM, ETC, DEVICES].concat().into_iter().filter_map(find).collect(),
            network_paths: ETC_NETWORK.iter().copied().filter_map(find).collect(),
            python,
            shell: bash.unwrap_or("/bin/sh").to_owned(),
            missing_names,
            own_programs: own_programs.iter().filter_map(|it| it.canonicalize().ok()).collect(),
        }
    }

    /// The search path for programs: our names for the interpreter, then its directory, then the usual ones.
    pub fn search_path(&self) -> String {
        let python = self.python_directory();
        let usual = ["/usr/local/bin", "/usr/bin", "/bin", "/usr/local/sbin", "/usr/sbin", "/sbin"];
        let usual = usual.into_iter().map(str::to_owned).filter(|it| Some(it) != python.as_ref());
        let first = [ALIASES.to_owned()].into_iter().chain(python.clone());
        first.chain(usual).collect::<Vec<_>>().join(":")
    }

    /// Where the interpreter is.
    pub fn python_directory(&self) -> Option<String> {
        self.python.as_ref().and_then(|it| it.executable.parent()).map(text)
    }

    /// Whether a path of the machine can be seen inside.
    fn is_shown(&self, path: &Path) -> bool {
        let system =
            self.paths.iter().filter(|(_, found)| *found == Found::Thing).map(|(it, _)| Path::new(it));
        let python = self.python.iter().flat_map(|it| &it.prefixes).map(PathBuf::as_path);
        system.chain(python).any(|shown| path.starts_with(shown))
    }
}

fn find(path: &str) -> Option<(String, Found)> {
    let metadata = fs::symlink_metadata(path).ok()?;
    if !metadata.is_symlink() {
        return Some((path.to_owned(), Found::Thing));
    }
    let target = text(&fs::read_link(path).ok()?);
    // A link that leads out of what is shown (as /etc/resolv.conf to /run) is shown as its target.
    let kept = Path::new("/").join(&target).starts_with("/usr") || !target.starts_with(['/', '.']);
    Some((path.to_owned(), if kept { Found::Link(target) } else { Found::Thing }))
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
    let mut plan: Vec<RootEntry> = machine.paths.iter().map(shown).collect();
    plan.extend(etc(network));
    if network {
        plan.extend(machine.network_paths.iter().map(shown));
    }
    plan.extend(links_of_dev());
    plan.push(RootEntry::Proc("/proc".to_owned()));
    plan.push(RootEntry::Dir("/run".to_owned()));
    plan.push(RootEntry::Symlink { path: "/var/tmp".to_owned(), target: "/tmp".to_owned() });
    let writable = [(WORKSPACE, limits.workspace), ("/tmp", limits.scratch), ("/dev/shm", limits.scratch)];
    plan.extend(writable.map(|(path, size)| RootEntry::Tmpfs { path: path.to_owned(), size }));
    // An interpreter may lie below /tmp, so it comes after that.
    plan.extend(machine.python.iter().flat_map(|python| show_python(python, &machine.missing_names)));
    let own = machine.own_programs.iter().filter(|it| machine.is_shown(it));
    plan.extend(own.map(|path| RootEntry::Mask(text(path))));
    plan
}

fn shown((path, found): &(String, Found)) -> RootEntry {
    match found {
        Found::Thing => bind(path),
        Found::Link(target) => RootEntry::Symlink { path: path.clone(), target: target.clone() },
    }
}

fn bind(path: &str) -> RootEntry {
    RootEntry::Bind { source: path.to_owned(), path: path.to_owned(), devices: path.starts_with("/dev/") }
}

fn etc(network: bool) -> impl Iterator<Item = RootEntry> {
    let hosts = if network { None } else { Some(("/etc/hosts", HOSTS)) };
    let files = [("/etc/passwd", PASSWD), ("/etc/group", GROUP), ("/etc/nsswitch.conf", NSSWITCH)];
    let file = |(path, text): (&str, &str)| RootEntry::File { path: path.to_owned(), text: text.to_owned() };
    files.into_iter().chain(hosts).map(file)
}

fn links_of_dev() -> impl Iterator<Item = RootEntry> {
    let links = [("fd", ""), ("stdin", "/0"), ("stdout", "/1"), ("stderr", "/2")];
    links.into_iter().map(|(name, number)| RootEntry::Symlink {
        path: format!("/dev/{name}"),
        target: format!("/proc/self/fd{number}"),
    })
}

fn show_python(python: &Python, missing_names: &[&str]) -> Vec<RootEntry> {
    let mut entries: Vec<RootEntry> = python.prefixes.iter().map(|prefix| bind(&text(prefix))).collect();
    let links = python.links.iter().map(|(path, target)| (text(path), text(target)));
    let aliases = missing_names.iter().map(|name| (format!("{ALIASES}/{name}"), text(&python.executable)));
    entries.extend(links.chain(aliases).map(|(path, target)| RootEntry::Symlink { path, target }));
    entries
}

/// A path of the machine that must never be visible, for the tests that look for it.
#[cfg(test)]
fn shows(plan: &[RootEntry], path: &str) -> bool {
    plan.iter().any(
        |entry| matches!(entry, RootEntry::Bind { path: shown, .. } if Path::new(path).starts_with(shown)),
    )
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
        let link = |path: &str| (path.to_owned(), Found::Link(format!("usr{path}")));
        let paths =
            vec![("/usr".to_owned(), Found::Thing), link("/bin"), ("/dev/null".to_owned(), Found::Thing)];
        let network_paths = vec![("/etc/resolv.conf".to_owned(), Found::Thing)];
        Machine {
            paths,
            network_paths,
            python: Some(python),
            shell: "/bin/sh".into(),
            missing_names: vec!["python"],
            own_programs: vec!["/usr/bin/backsight".into(), "/home/ann/bin/backsight".into()],
        }
    }

    #[test]
    fn our_own_programs_are_masked_where_they_would_be_shown() {
        let plan = plan(&machine(), &Limits::default(), false);
        let is_mask = |entry: &&RootEntry| matches!(entry, RootEntry::Mask(_));
        let masks: Vec<_> = plan.iter().filter(is_mask).collect();
        assert_eq!(masks, [&RootEntry::Mask("/usr/bin/backsight".to_owned())]);
    }

    #[test]
    fn an_interpreter_below_tmp_is_put_into_the_private_one() {
        let mut machine = machine();
        if let Some(python) = &mut machine.python {
            python.prefixes = vec!["/tmp/venv".into()];
        }
        let plan = plan(&machine, &Limits::default(), false);
        let place = |wanted: &str| {
            plan.iter().position(|entry| match entry {
                RootEntry::Tmpfs { path, .. } | RootEntry::Bind { path, .. } => path == wanted,
                _ => false,
            })
        };
        assert!(place("/tmp").is_some() && place("/tmp") < place("/tmp/venv"));
    }

    #[test]
    fn an_interpreter_under_a_home_is_shown_alone() {
        let plan = plan(&machine(), &Limits::default(), false);
        assert!(shows(&plan, "/root/.pyenv/versions/3.11.7/lib"));
        assert!(!shows(&plan, "/root/.ssh/id_rsa"));
        assert!(!shows(&plan, "/root/.pyenv/versions/3.12.1"));
        let alias = RootEntry::Symlink {
            path: "/opt/bin/python".into(),
            target: "/root/.pyenv/versions/3.11.7/bin/python3".into(),
        };
        assert!(plan.contains(&alias));
    }

    #[test]
    fn only_the_network_needs_name_servers() {
        let has = |network| shows(&plan(&machine(), &Limits::default(), network), "/etc/resolv.conf");
        assert_eq!([has(false), has(true)], [false, true]);
    }

    #[test]
    fn devices_work_and_nothing_else_holds_any() {
        let plan = plan(&machine(), &Limits::default(), false);
        let devices: Vec<_> = plan
            .iter()
            .filter_map(|entry| match entry {
                RootEntry::Bind { path, devices: true, .. } => Some(path.as_str()),
                _ => None,
            })
            .collect();
        assert_eq!(devices, ["/dev/null"]);
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
