//! An episode's files as we reach them from outside: contained whatever the episode left there.
//!
//! Every path is resolved by the kernel below the workspace's directory (`openat2` with
//! `RESOLVE_BENEATH`), so neither `..` nor a link nor a race leads out of it. Files are opened and
//! made with the identity of the episode's user, never with ours. Functions block; callers use
//! `Workspace::blocking` from async code.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{
    AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, fstat, mkdirat, openat2, readlinkat, statat,
    symlinkat, unlinkat,
};
use rustix::io::Errno;

use super::allowance::{Allowance, Stopped};
use super::config::WORKSPACE;
use super::sys::FileIdentity;

/// A walk through a workspace stops here; a hostile one could go on for ever.
const MAX_ENTRIES: usize = 20_000;
/// A selection lists so many entries, and no more.
const MAX_SEEN: usize = 250_000;
/// A selection has so many files at most: each costs us an opening on both sides, however small it is.
const MAX_SELECTED: usize = 5_000;
/// What looking at a name counts for, in bytes gone through; so does each part of a path that is opened.
const ENTRY_COST: usize = 256;
const CHUNK: u64 = 256 << 10;

/// Why a file of the workspace cannot be had. Worded for the student, who can act on it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FileError {
    /// The path leads out.
    #[error("path is outside the workspace: {0}")]
    Outside(String),
    /// There is nothing.
    #[error("no such file: {0}")]
    Missing(String),
    /// It is no regular file.
    #[error("not a regular file: {0}")]
    NotAFile(String),
    /// It may not be touched.
    #[error("permission denied: {0}")]
    Denied(String),
    /// The workspace or the file is as large as it may be.
    #[error("no space left in the workspace for {0}")]
    Full(String),
    /// It would be too much work, or nobody waits for it.
    #[error(transparent)]
    Stopped(#[from] Stopped),
    /// Anything else.
    #[error("cannot access {0}: {1}")]
    Other(String, String),
}

/// What was read of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileRead {
    /// Its beginning, as far as asked for.
    pub bytes: Vec<u8>,
    /// Its whole length.
    pub n_bytes: u64,
}

/// A file or directory found below the workspace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileEntry {
    /// Its path from the workspace.
    pub path: String,
    /// Whether it is a directory.
    pub is_dir: bool,
    /// Whether it is a link.
    pub is_link: bool,
    /// Its length.
    pub n_bytes: u64,
}

/// Files and links of a workspace that are to be copied, and what is not among them for lack of room.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    /// The files and links.
    pub entries: Vec<FileEntry>,
    /// How many were wanted and left out.
    pub n_left: usize,
    /// Whether there was more in the workspace than is looked through.
    pub is_cut: bool,
}

/// The files of one episode; they can be read as long as this lives, also after its sandbox ended.
#[derive(Clone, Debug)]
pub struct Workspace {
    directory: Arc<OwnedFd>,
    owner: Option<(u32, u32)>,
    inside: String,
}

impl Workspace {
    /// A workspace in an open directory. `inside` is its path as the episode sees it; `owner` the
    /// user and group its files belong to, when they are not our own.
    pub fn new(directory: OwnedFd, owner: Option<(u32, u32)>, inside: impl Into<String>) -> Self {
        Self { directory: Arc::new(directory), owner, inside: inside.into() }
    }

    /// Its path as the episode sees it.
    pub fn inside(&self) -> &str {
        &self.inside
    }

    /// Runs `work` on a thread that may block.
    pub async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Self) -> Result<T, FileError> + Send + 'static,
    ) -> Result<T, FileError> {
        self.within(u64::MAX, move |workspace, _| work(workspace)).await
    }

    /// Runs `work` on a thread that may block, for as long as somebody waits for the returned future and until it has
    /// gone through `max` bytes. The runtime and other episodes go on meanwhile.
    pub async fn within<T: Send + 'static, E: From<FileError> + Send + 'static>(
        &self,
        max: u64,
        work: impl FnOnce(&Self, &Allowance) -> Result<T, E> + Send + 'static,
    ) -> Result<T, E> {
        let (workspace, (allowance, _wanted)) = (self.clone(), Allowance::while_wanted(max));
        let joined = tokio::task::spawn_blocking(move || work(&workspace, &allowance)).await;
        joined.unwrap_or_else(|error| {
            Err(FileError::Other("the workspace".to_owned(), error.to_string()).into())
        })
    }

    /// A path as the student writes it, from the workspace; two that are equal are the same file.
    pub fn place(&self, path: &str) -> Result<PathBuf, FileError> {
        relative(path, &self.inside)
    }

    /// Reads up to `max` bytes of a regular file.
    pub fn read(&self, path: &str, max: u64) -> Result<FileRead, FileError> {
        self.read_within(path, max, &Allowance::new(u64::MAX))
    }

    /// Reads up to `max` bytes of a regular file, within an allowance. It may change meanwhile.
    pub fn read_within(&self, path: &str, max: u64, allowance: &Allowance) -> Result<FileRead, FileError> {
        allowance.spend(ENTRY_COST)?;
        let place = relative(path, &self.inside)?;
        let _identity = self.identity()?;
        let file = self.open(&place, OFlags::RDONLY).map_err(|error| explain(path, error))?;
        let n_bytes = regular_len(&file).ok_or_else(|| FileError::NotAFile(path.to_owned()))?;
        let (mut file, mut bytes) = (File::from(file), Vec::new());
        while (bytes.len() as u64) < max {
            let chunk = CHUNK.min(max - bytes.len() as u64);
            let n_read =
                (&mut file).take(chunk).read_to_end(&mut bytes).map_err(|error| explain(path, error))?;
            if n_read == 0 {
                break;
            }
            allowance.spend(n_read)?;
        }
        Ok(FileRead { bytes, n_bytes })
    }

    /// Writes a whole file, making the directories it lies in.
    pub fn write(&self, path: &str, bytes: &[u8]) -> Result<(), FileError> {
        let place = relative(path, &self.inside)?;
        let _identity = self.identity()?;
        let file = self.make(&place).map_err(|error| explain(path, error))?;
        regular_len(&file).ok_or_else(|| FileError::NotAFile(path.to_owned()))?;
        let mut file = File::from(file);
        let written = file.set_len(0).and_then(|()| file.write_all(bytes));
        written.map_err(|error| explain(path, error))
    }

    /// Removes a file, or a link itself; a directory stays.
    pub fn remove(&self, path: &str) -> Result<(), FileError> {
        let place = relative(path, &self.inside)?;
        let _identity = self.identity()?;
        place.file_name().ok_or_else(|| FileError::NotAFile(path.to_owned()))?;
        let removed = self.above(&place).and_then(|(above, name)| unlinkat(above, name, AtFlags::empty()));
        removed.map_err(|error| explain(path, error))
    }

    /// Everything below `path`, directories before what they hold, in order of names; links are not followed.
    pub fn walk(&self, path: &str, allowance: &Allowance) -> Result<Vec<FileEntry>, FileError> {
        let top = relative(path, &self.inside)?;
        let _identity = self.identity()?;
        let mut found = Vec::new();
        let mut open = vec![top];
        while let Some(directory) = open.pop() {
            let mut entries = match self.list(&directory, MAX_ENTRIES + 1 - found.len()) {
                // Only the place that was asked for must exist; the rest may change under our eyes.
                Err(error) if found.is_empty() && open.is_empty() => return Err(explain(path, error)),
                listed => listed.unwrap_or_default(),
            };
            allowance.spend(ENTRY_COST * entries.len())?;
            entries.sort_by(|a, b| a.path.cmp(&b.path));
            open.extend(entries.iter().rev().filter(|it| it.is_dir).map(|it| PathBuf::from(&it.path)));
            found.extend(entries);
            if found.len() > MAX_ENTRIES {
                return Err(FileError::Other(path.to_owned(), format!("more than {MAX_ENTRIES} files")));
            }
        }
        Ok(found)
    }

    /// Chooses the regular files and links that `keep` accepts, as long as they have at most `max` bytes together
    /// and are not too many: those that `first` accepts before all others, those near the top before deeper ones,
    /// small ones before large ones. What the allowance does not suffice to look at is left out.
    pub fn select(
        &self,
        max: u64,
        keep: impl Fn(&str) -> bool,
        first: impl Fn(&str) -> bool,
        allowance: &Allowance,
    ) -> Result<Selection, FileError> {
        let (mut files, is_cut) = self.wanted(keep, allowance)?;
        files.sort_by_key(|it| (!first(&it.path), n_parts(Path::new(&it.path)), it.n_bytes));
        let (n_wanted, mut room, mut entries) = (files.len(), max, Vec::new());
        for file in files {
            // Holes cost their maker nothing, but us their whole length.
            if file.n_bytes <= room && entries.len() < MAX_SELECTED {
                room -= file.n_bytes;
                entries.push(file);
            }
        }
        let n_left = n_wanted - entries.len();
        Ok(Selection { entries, n_left, is_cut })
    }

    /// Copies a selection into another workspace; what came of it there. A link is copied as a link, so that it leads
    /// where it led, or nowhere.
    pub fn copy_into(
        &self,
        to: &Self,
        selection: &Selection,
        allowance: &Allowance,
    ) -> Result<Selection, FileError> {
        let mut copied = Selection { entries: Vec::new(), ..*selection };
        for file in &selection.entries {
            match self.copy_one(to, file, allowance) {
                Ok(()) => copied.entries.push(file.clone()),
                Err(FileError::Full(_)) => copied.n_left += 1,
                Err(error @ (FileError::Stopped(_) | FileError::Other(..))) => return Err(error),
                // What the episode made unreadable, or is no file at all, nobody can run either.
                Err(_) => {}
            }
        }
        Ok(copied)
    }

    /// The files and links that `keep` accepts, and whether there was more than may be looked at. Directories that
    /// hold nothing to keep are not entered.
    fn wanted(
        &self,
        keep: impl Fn(&str) -> bool,
        allowance: &Allowance,
    ) -> Result<(Vec<FileEntry>, bool), FileError> {
        let _identity = self.identity()?;
        let (mut found, mut n_seen) = (Vec::new(), 0);
        let mut open = VecDeque::from([PathBuf::new()]);
        while let Some(directory) = open.pop_front() {
            let entries = self.list(&directory, MAX_SEEN - n_seen).unwrap_or_default();
            n_seen += entries.len();
            let is_too_much = match allowance.spend(ENTRY_COST * (n_parts(&directory) + entries.len())) {
                Err(Stopped::Unwanted) => return Err(Stopped::Unwanted.into()),
                spent => spent.is_err() || n_seen >= MAX_SEEN,
            };
            for entry in entries {
                match entry.is_dir {
                    true if keep(&format!("{}/x", entry.path)) => open.push_back(PathBuf::from(entry.path)),
                    false if keep(&entry.path) => found.push(entry),
                    _ => {}
                }
            }
            if is_too_much {
                return Ok((found, true));
            }
        }
        Ok((found, false))
    }

    fn copy_one(&self, to: &Self, file: &FileEntry, allowance: &Allowance) -> Result<(), FileError> {
        if !file.is_link {
            return to.write(&file.path, &self.read_within(&file.path, file.n_bytes, allowance)?.bytes);
        }
        let target = self.link_target(Path::new(&file.path)).map_err(|error| explain(&file.path, error))?;
        // Without a root of its own a workspace has its own place.
        let target = match target.strip_prefix(&self.inside) {
            Ok(below) => Path::new(&to.inside).join(below),
            Err(_) => target,
        };
        let _identity = to.identity()?;
        to.make_link(Path::new(&file.path), &target).map_err(|error| explain(&file.path, error))
    }

    fn link_target(&self, place: &Path) -> rustix::io::Result<PathBuf> {
        let (above, name) = self.above(place)?;
        let target = readlinkat(above, name, Vec::new())?;
        Ok(PathBuf::from(OsString::from_vec(target.into_bytes())))
    }

    fn make_link(&self, place: &Path, target: &Path) -> rustix::io::Result<()> {
        self.make_parents(place)?;
        let (above, name) = self.above(place)?;
        symlinkat(target, above, name)
    }

    /// The directory that a path lies in, and its name there.
    fn above<'a>(&self, place: &'a Path) -> rustix::io::Result<(OwnedFd, &'a OsStr)> {
        let above = self.resolve(place.parent().unwrap_or(Path::new("")), OFlags::PATH | OFlags::CLOEXEC)?;
        Ok((above, place.file_name().unwrap_or_default()))
    }

    fn identity(&self) -> Result<Option<FileIdentity>, FileError> {
        let assume = |(uid, gid)| FileIdentity::assume(uid, gid);
        self.owner.map(assume).transpose().map_err(|error| explain("the workspace", error))
    }

    fn open(&self, place: &Path, flags: OFlags) -> rustix::io::Result<OwnedFd> {
        // A pipe that nobody writes to must not make us wait.
        let flags = flags | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        self.resolve(place, flags)
    }

    fn resolve(&self, place: &Path, flags: OFlags) -> rustix::io::Result<OwnedFd> {
        let mode = if flags.contains(OFlags::CREATE) { Mode::from_raw_mode(0o644) } else { Mode::empty() };
        let contained = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        let place = if place.as_os_str().is_empty() { Path::new(".") } else { place };
        // The kernel asks to try again when a directory was moved while it looked.
        for _ in 0..32 {
            match openat2(&*self.directory, place, flags, mode, contained) {
                Err(Errno::AGAIN) => {}
                result => return result,
            }
        }
        Err(Errno::AGAIN)
    }

    fn make(&self, place: &Path) -> rustix::io::Result<OwnedFd> {
        let flags = OFlags::WRONLY | OFlags::CREATE;
        match self.open(place, flags) {
            Err(Errno::NOENT) => {
                self.make_parents(place)?;
                self.open(place, flags)
            }
            result => result,
        }
    }

    fn make_parents(&self, place: &Path) -> rustix::io::Result<()> {
        let parents: Vec<&Path> = place.ancestors().skip(1).filter(|it| !it.as_os_str().is_empty()).collect();
        let is_there = |it: &&Path| self.resolve(it, OFlags::PATH | OFlags::CLOEXEC).is_ok();
        let n_missing = parents.iter().position(is_there).unwrap_or(parents.len());
        for directory in parents[..n_missing].iter().rev() {
            let (above, name) = self.above(directory)?;
            match mkdirat(above, name, Mode::from_raw_mode(0o755)) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// What a directory holds, `max` entries at most.
    fn list(&self, directory: &Path, max: usize) -> rustix::io::Result<Vec<FileEntry>> {
        let opened = self.open(directory, OFlags::RDONLY | OFlags::DIRECTORY)?;
        let mut entries = Vec::new();
        for entry in Dir::read_from(&opened)? {
            if entries.len() >= max {
                break;
            }
            let name = entry?.file_name().to_owned();
            // Names that are no text cannot be said in a tool call either.
            let Ok(name) = name.to_str() else { continue };
            if name != "." && name != ".." {
                entries.extend(self.describe(&opened, directory, name));
            }
        }
        Ok(entries)
    }

    fn describe(&self, opened: &OwnedFd, directory: &Path, name: &str) -> Option<FileEntry> {
        let stat = statat(opened, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
        let path = directory.join(name).to_str()?.to_owned();
        let kind = FileType::from_raw_mode(stat.st_mode);
        let (is_dir, is_link) = (kind == FileType::Directory, kind == FileType::Symlink);
        Some(FileEntry { path, is_dir, is_link, n_bytes: u64::try_from(stat.st_size).unwrap_or(0) })
    }
}

/// How many names a path consists of.
fn n_parts(place: &Path) -> usize {
    place.components().count()
}

fn regular_len(file: &OwnedFd) -> Option<u64> {
    let stat = fstat(file).ok()?;
    let is_regular = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    is_regular.then(|| u64::try_from(stat.st_size).unwrap_or(0))
}

fn explain(path: &str, error: impl Into<io::Error>) -> FileError {
    let (path, error) = (path.to_owned(), error.into());
    match Errno::from_io_error(&error) {
        Some(Errno::XDEV | Errno::LOOP) => FileError::Outside(path),
        Some(Errno::NOENT | Errno::NOTDIR) => FileError::Missing(path),
        Some(Errno::ISDIR | Errno::NXIO | Errno::OPNOTSUPP) => FileError::NotAFile(path),
        Some(Errno::ACCESS | Errno::PERM) => FileError::Denied(path),
        Some(Errno::NOSPC | Errno::DQUOT | Errno::FBIG) => FileError::Full(path),
        _ => FileError::Other(path, error.to_string()),
    }
}

/// A path as the student writes it, from the workspace: relative, or absolute below it.
///
/// `..` is taken away by the text alone; a path that climbs out is refused here, one that would
/// climb out through a link later, by the kernel.
pub fn relative(path: &str, inside: &str) -> Result<PathBuf, FileError> {
    let outside = || FileError::Outside(path.to_owned());
    let given = Path::new(path);
    // Without our own root the workspace is elsewhere, but students are told of this one.
    let places = [inside, WORKSPACE];
    let below = match given.is_absolute() {
        true => places.iter().find_map(|place| given.strip_prefix(place).ok()).ok_or_else(outside)?,
        false => given,
    };
    let mut place = PathBuf::new();
    for component in below.components() {
        match component {
            Component::Normal(name) => place.push(name),
            Component::CurDir => {}
            Component::ParentDir if place.pop() => {}
            _ => return Err(outside()),
        }
    }
    Ok(place)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn workspace() -> (tempfile::TempDir, Workspace) {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("work")).unwrap();
        std::fs::write(dir.path().join("secret"), "outside").unwrap();
        let opened = File::open(dir.path().join("work")).unwrap();
        (dir, Workspace::new(opened.into(), None, "/workspace"))
    }

    fn free() -> Allowance {
        Allowance::new(u64::MAX)
    }

    fn check_path(path: &str, expected: Option<&str>) {
        assert_eq!(relative(path, "/workspace").ok().as_deref(), expected.map(Path::new), "{path}");
    }

    #[test]
    fn paths_are_relative_or_below_the_workspace() {
        check_path("a/b.py", Some("a/b.py"));
        check_path("./a/../b", Some("b"));
        check_path("/workspace/a", Some("a"));
        check_path("/workspace", Some(""));
        check_path("", Some(""));
        check_path("/etc/passwd", None);
        check_path("/workspace/../etc/passwd", None);
        check_path("/workspacex/a", None);
        check_path("../a", None);
        check_path("a/../../b", None);
    }

    #[test]
    fn what_is_written_is_read() {
        let (_dir, workspace) = workspace();
        workspace.write("a/b/c.txt", b"hello").unwrap();
        workspace.write("/workspace/a/b/c.txt", b"bye").unwrap();
        let read = workspace.read("a/b/c.txt", 2).unwrap();
        assert_eq!(read, FileRead { bytes: b"by".to_vec(), n_bytes: 3 });
        let paths: Vec<_> = workspace.walk("", &free()).unwrap().into_iter().map(|it| it.path).collect();
        assert_eq!(paths, ["a", "a/b", "a/b/c.txt"]);
    }

    #[test]
    fn files_and_links_are_removed_and_nothing_else() {
        let (dir, workspace) = workspace();
        let work = dir.path().join("work");
        workspace.write("a/b", b"x").unwrap();
        symlink("../secret", work.join("link")).unwrap();
        symlink("..", work.join("up")).unwrap();
        assert_eq!(workspace.remove("a/b"), Ok(()));
        assert_eq!(workspace.remove("link"), Ok(()));
        assert_eq!(workspace.remove("a"), Err(FileError::NotAFile("a".to_owned())));
        assert_eq!(workspace.remove("a/b"), Err(FileError::Missing("a/b".to_owned())));
        assert_eq!(workspace.remove("up/secret"), Err(FileError::Outside("up/secret".to_owned())));
        assert_eq!(workspace.remove("."), Err(FileError::NotAFile(".".to_owned())));
        assert_eq!(std::fs::read_to_string(dir.path().join("secret")).unwrap(), "outside");
    }

    #[test]
    fn reading_and_walking_count() {
        let (_dir, workspace) = workspace();
        workspace.write("a", &[b'x'; 600 << 10]).unwrap();
        let allowance = Allowance::new(1 << 20);
        assert_eq!(workspace.read_within("a", 1 << 30, &allowance).unwrap().bytes.len(), 600 << 10);
        assert_eq!(allowance.spent(), (600 << 10) + ENTRY_COST as u64);
        let stopped = FileError::Stopped(Stopped::TooMuch(1 << 20));
        assert_eq!(workspace.read_within("a", 1 << 30, &allowance), Err(stopped));
        let little = Allowance::new(ENTRY_COST as u64 - 1);
        assert!(matches!(workspace.walk("", &little), Err(FileError::Stopped(_))));
    }

    /// The thread that works ends when nobody waits: what it holds is dropped then.
    #[tokio::test]
    async fn work_that_nobody_waits_for_ends() {
        let (_dir, workspace) = workspace();
        let (begun, has_begun) = tokio::sync::oneshot::channel();
        let (held_by_work, ended) = tokio::sync::oneshot::channel::<()>();
        let work = workspace.within(u64::MAX, move |_, allowance| {
            let _held = held_by_work;
            begun.send(()).unwrap();
            loop {
                allowance.spend(0).map_err(FileError::from)?;
            }
        });
        let work: std::pin::Pin<Box<dyn Future<Output = Result<(), FileError>>>> = Box::pin(work);
        tokio::select! {
            _ = work => panic!("it never ends by itself"),
            begun = has_begun => begun.unwrap(),
        }
        assert!(ended.await.is_err());
    }

    #[test]
    fn links_do_not_lead_out() {
        let (dir, workspace) = workspace();
        let work = dir.path().join("work");
        symlink("../secret", work.join("up")).unwrap();
        symlink(dir.path().join("secret"), work.join("absolute")).unwrap();
        symlink(dir.path(), work.join("dir")).unwrap();
        symlink("/proc/self/root", work.join("magic")).unwrap();
        for path in ["up", "absolute", "dir/secret", "magic/etc/passwd"] {
            assert_eq!(workspace.read(path, 9), Err(FileError::Outside(path.to_owned())));
            assert_eq!(workspace.write(path, b"x"), Err(FileError::Outside(path.to_owned())), "{path}");
        }
        assert_eq!(workspace.write("dir/new/file", b"x"), Err(FileError::Outside("dir/new/file".to_owned())));
        assert_eq!(std::fs::read_to_string(dir.path().join("secret")).unwrap(), "outside");
        assert!(workspace.walk("dir", &free()).is_err());
    }

    #[test]
    fn links_that_stay_inside_work() {
        let (dir, workspace) = workspace();
        workspace.write("real.txt", b"hello").unwrap();
        symlink("real.txt", dir.path().join("work/link.txt")).unwrap();
        assert_eq!(workspace.read("link.txt", 9).unwrap().bytes, b"hello");
    }

    #[test]
    fn pipes_and_directories_are_no_files() {
        let (dir, workspace) = workspace();
        let pipe = dir.path().join("work/pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        assert_eq!(workspace.read("pipe", 9), Err(FileError::NotAFile("pipe".to_owned())));
        assert_eq!(workspace.write("pipe", b"x"), Err(FileError::NotAFile("pipe".to_owned())));
        assert_eq!(workspace.read("", 9), Err(FileError::NotAFile(String::new())));
        assert_eq!(workspace.read("nothing", 9), Err(FileError::Missing("nothing".to_owned())));
    }

    fn select(from: &Workspace, max: u64, allowance: &Allowance) -> Selection {
        let is_wanted = |path: &str| !path.contains("test");
        from.select(max, is_wanted, |path| path.ends_with(".py"), allowance).unwrap()
    }

    fn copied(from: &Workspace, to: &Workspace, max: u64) -> (Vec<String>, usize) {
        let copied = from.copy_into(to, &select(from, max, &free()), &free()).unwrap();
        (copied.entries.into_iter().map(|it| it.path).collect(), copied.n_left)
    }

    #[test]
    fn a_copy_leaves_out_what_is_not_wanted() {
        let ((_from_dir, from), (_to_dir, to)) = (workspace(), workspace());
        from.write("solution.py", b"x").unwrap();
        from.write("tests/test_it.py", b"x").unwrap();
        assert_eq!(copied(&from, &to, 99), (vec!["solution.py".to_owned()], 0));
        let paths: Vec<_> = to.walk("", &free()).unwrap().into_iter().map(|it| it.path).collect();
        assert_eq!(paths, ["solution.py"]);
    }

    #[test]
    fn a_copy_takes_what_comes_first_while_there_is_room() {
        let ((_from_dir, from), (_to_dir, to)) = (workspace(), workspace());
        for (path, n_bytes) in [("a/big.bin", 50), ("small.txt", 5), ("z.py", 30), ("y.py", 20)] {
            from.write(path, &vec![b'x'; n_bytes]).unwrap();
        }
        assert_eq!(copied(&from, &to, 56).0, ["y.py", "z.py", "small.txt"]);
        assert_eq!(copied(&from, &to, 29), (vec!["y.py".to_owned(), "small.txt".to_owned()], 2));
    }

    #[test]
    fn what_is_near_the_top_is_taken_before_what_is_deep() {
        let (_dir, workspace) = workspace();
        for idx in 0..MAX_SELECTED {
            workspace.write(&format!("many/{idx}.py"), b"").unwrap();
        }
        workspace.write("solution.py", b"longer").unwrap();
        let selected = select(&workspace, 99, &free());
        assert_eq!(selected.entries[0].path, "solution.py");
        assert_eq!((selected.entries.len(), selected.n_left, selected.is_cut), (MAX_SELECTED, 1, false));
    }

    /// Opening a deep directory costs as many steps as it has directories above it.
    #[test]
    fn a_selection_looks_at_no_more_than_it_may() {
        let (_dir, workspace) = workspace();
        workspace.write("solution.py", b"x").unwrap();
        let deep = vec!["d"; 500].join("/");
        workspace.write(&format!("{deep}/end.py"), b"x").unwrap();
        let all = select(&workspace, 99, &free());
        assert_eq!((all.entries.len(), all.is_cut), (2, false));
        let allowance = Allowance::new(1000 * ENTRY_COST as u64);
        let some = select(&workspace, 99, &allowance);
        assert_eq!((some.entries.len(), some.n_left, some.is_cut), (1, 0, true));
        assert_eq!(some.entries[0].path, "solution.py");
        let (unwanted, wanted) = Allowance::while_wanted(u64::MAX);
        drop(wanted);
        let stopped = workspace.select(99, |_| true, |_| true, &unwanted);
        assert_eq!(stopped, Err(FileError::Stopped(Stopped::Unwanted)));
        assert_eq!(
            workspace.copy_into(&workspace, &all, &unwanted),
            Err(FileError::Stopped(Stopped::Unwanted))
        );
    }

    #[test]
    fn a_copy_has_links_that_lead_where_they_led_or_nowhere() {
        let ((from_dir, from), (to_dir, to)) = (workspace(), workspace());
        let (at, work) = (from_dir.path().join("work"), to_dir.path().join("work"));
        from.write("real/s.py", b"x").unwrap();
        symlink("/workspace/real/s.py", at.join("solution.py")).unwrap();
        symlink("real", at.join("pkg")).unwrap();
        symlink("../secret", at.join("leak")).unwrap();
        copied(&from, &to, 99);
        let targets = ["solution.py", "pkg", "leak"].map(|link| std::fs::read_link(work.join(link)).unwrap());
        assert_eq!(
            targets.map(|it| it.to_str().unwrap().to_owned()),
            ["/workspace/real/s.py", "real", "../secret"]
        );
        assert_eq!(to.read("pkg/s.py", 9).unwrap().bytes, b"x");
        assert_eq!(to.read("leak", 9), Err(FileError::Outside("leak".to_owned())));
    }
}
