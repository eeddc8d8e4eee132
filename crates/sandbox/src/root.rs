//! The private root of a sandbox: builds what the plan lists and makes it the only file system.
//!
//! Runs in the new mount namespace. Trees of the machine are detached copies, read-only before
//! they are put in place, so there is no moment at which they could be written to. What belongs
//! into the root is decided by `layout`.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::symlink;
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, OFlags, fstat, open};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags,
    UnmountFlags, fsconfig_create, fsconfig_set_string, fsmount, fsopen, mount_change, move_mount, open_tree,
    unmount,
};
use rustix::process::{chdir, pivot_root};

use super::protocol::{Refusal, RootEntry, Thing};
use super::refusal::Doing;
use super::sys::{Reach, restrict_mount};

/// A detached, read-only copy of a directory or file of the machine.
pub type Tree = OwnedFd;

/// What is put over a file that nobody may read.
const NOTHING: &str = "/dev/null";
/// Any directory that exists serves to put the new root on; the trees are open already.
const STAGE: &str = "/usr";
/// The root itself holds only directories, links and a few small files.
const ROOT_SIZE: u64 = 4 << 20;
const INNOCENT: MountAttrFlags = MountAttrFlags::MOUNT_ATTR_NOSUID.union(MountAttrFlags::MOUNT_ATTR_NODEV);

/// Opens the machine's trees that the plan needs, in its order.
pub fn open_trees(plan: &[RootEntry]) -> Result<Vec<Tree>, Refusal> {
    let sources = plan.iter().filter_map(|entry| match entry.thing {
        Thing::Shown => Some((entry.path.as_str(), entry.path.starts_with("/dev/"))),
        // A device where devices do not work cannot even be opened.
        Thing::Mask => Some((NOTHING, false)),
        _ => None,
    });
    let open = |(source, devices)| open_one(source, devices).doing(&format!("show {source} read-only"));
    sources.map(open).collect()
}

fn open_one(source: &str, devices: bool) -> io::Result<Tree> {
    let flags =
        OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_RECURSIVE;
    let tree = open_tree(CWD, source, flags)?;
    let innocent = if devices { MountAttrFlags::MOUNT_ATTR_NOSUID } else { INNOCENT };
    restrict_mount(&tree, innocent | MountAttrFlags::MOUNT_ATTR_RDONLY, Reach::Tree)?;
    Ok(tree)
}

/// Builds the plan and makes it the root. `trees` are those of `open_trees`.
pub fn build(plan: &[RootEntry], trees: Vec<Tree>) -> Result<(), Refusal> {
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    mount_change("/", private).doing("detach from the machine's mounts")?;
    let new_root = tmpfs(ROOT_SIZE, "0755").doing("make a private root")?;
    place(&new_root, STAGE).doing("make a private root")?;
    chdir(STAGE).doing("enter the private root")?;
    let mut trees = trees.into_iter();
    plan.iter().try_for_each(|entry| make(entry, &mut trees))?;
    enter().doing("leave the machine's root")?;
    restrict_mount(&new_root, MountAttrFlags::MOUNT_ATTR_RDONLY, Reach::Mount)
        .doing("make the root read-only")
}

/// Swaps the roots and drops the old one.
fn enter() -> io::Result<()> {
    pivot_root(".", ".")?;
    unmount(".", UnmountFlags::DETACH)?;
    chdir("/")?;
    Ok(())
}

fn make(entry: &RootEntry, trees: &mut impl Iterator<Item = Tree>) -> Result<(), Refusal> {
    let (doing, made) = match &entry.thing {
        Thing::Dir => ("make", fs::create_dir_all(inside(entry))),
        Thing::Symlink(target) => ("link", with_parent(entry).and_then(|at| symlink(target, at))),
        Thing::File(text) => ("write", with_parent(entry).and_then(|at| fs::write(at, text))),
        Thing::Shown => ("show", next(trees).and_then(|tree| bind(&tree, with_parent(entry)?))),
        Thing::Mask => ("hide", next(trees).and_then(|tree| place(&tree, inside(entry)))),
        Thing::Tmpfs(size) => ("make a private", tmpfs(*size, "0777").and_then(|it| make_at(&it, entry))),
        Thing::Proc => ("mount a private", proc().and_then(|mount| make_at(&mount, entry))),
    };
    made.doing(&format!("{doing} {}", entry.path))
}

fn next(trees: &mut impl Iterator<Item = Tree>) -> io::Result<Tree> {
    trees.next().ok_or_else(|| io::Error::from_raw_os_error(libc::ENOENT))
}

/// A path of the sandbox, seen from the directory that becomes its root.
fn inside(entry: &RootEntry) -> &Path {
    Path::new(entry.path.trim_start_matches('/'))
}

fn with_parent(entry: &RootEntry) -> io::Result<&Path> {
    let path = inside(entry);
    path.parent().map_or(Ok(()), fs::create_dir_all)?;
    Ok(path)
}

fn make_at(mount: &OwnedFd, entry: &RootEntry) -> io::Result<()> {
    fs::create_dir_all(inside(entry))?;
    place(mount, inside(entry))
}

fn bind(tree: &Tree, target: &Path) -> io::Result<()> {
    if FileType::from_raw_mode(fstat(tree)?.st_mode) == FileType::Directory {
        fs::create_dir_all(target)?;
    } else {
        open(target, OFlags::CREATE | OFlags::CLOEXEC | OFlags::WRONLY, Mode::from_raw_mode(0o644))?;
    }
    place(tree, target)
}

fn tmpfs(size: u64, mode: &str) -> io::Result<OwnedFd> {
    let filesystem = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(filesystem.as_fd(), "size", size.to_string())?;
    fsconfig_set_string(filesystem.as_fd(), "nr_inodes", n_inodes(size).to_string())?;
    fsconfig_set_string(filesystem.as_fd(), "mode", mode)?;
    fsconfig_create(filesystem.as_fd())?;
    Ok(fsmount(filesystem.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, INNOCENT)?)
}

/// A file takes kernel memory even when it is empty, so their number is limited with their size.
fn n_inodes(size: u64) -> u64 {
    (size / 4096).clamp(1024, 65536)
}

/// The process table. Nothing can be written in it: what programs could set of themselves there (which of them
/// is killed for memory) is not theirs to decide.
fn proc() -> io::Result<OwnedFd> {
    let filesystem = fsopen("proc", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(filesystem.as_fd())?;
    let attributes = INNOCENT | MountAttrFlags::MOUNT_ATTR_NOEXEC | MountAttrFlags::MOUNT_ATTR_RDONLY;
    Ok(fsmount(filesystem.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)?)
}

fn place(mount: &OwnedFd, path: impl AsRef<Path>) -> io::Result<()> {
    Ok(move_mount(mount, "", CWD, path.as_ref(), MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?)
}
