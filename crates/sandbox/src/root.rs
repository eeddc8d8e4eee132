//! The private root of a sandbox: builds what the plan lists and makes it the only file system.
//!
//! Runs in the new mount namespace. Trees of the machine are detached copies, read-only before
//! they are put in place, so there is no moment at which they could be written to. What belongs
//! into the root is decided by `layout`.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, OFlags, fstat, open};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags,
    UnmountFlags, fsconfig_create, fsconfig_set_string, fsmount, fsopen, mount_change, move_mount, open_tree,
    unmount,
};
use rustix::process::{chdir, pivot_root};

use super::protocol::RootEntry;
use super::step::{FailedStep, MOUNT_PROC, Step};
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

/// Opens the machine's trees that the plan shows inside, in its order.
pub fn open_trees(plan: &[RootEntry]) -> Result<Vec<Tree>, FailedStep> {
    let sources = plan.iter().filter_map(|entry| match entry {
        RootEntry::Bind { source, devices, .. } => Some((source.as_str(), *devices)),
        // A device where devices do not work cannot even be opened.
        RootEntry::Mask(_) => Some((NOTHING, false)),
        _ => None,
    });
    sources
        .map(|(source, devices)| open_one(source, devices).step(&format!("show {source} read-only")))
        .collect()
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
pub fn build(plan: &[RootEntry], trees: Vec<Tree>) -> Result<(), FailedStep> {
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    mount_change("/", private).step("detach from the machine's mounts")?;
    let new_root = tmpfs(ROOT_SIZE, "0755").step("make a private root")?;
    place(&new_root, STAGE).step("make a private root")?;
    chdir(STAGE).step("enter the private root")?;
    let mut trees = trees.into_iter();
    plan.iter().try_for_each(|entry| make(entry, &mut trees))?;
    enter().step("leave the machine's root")?;
    restrict_mount(&new_root, MountAttrFlags::MOUNT_ATTR_RDONLY, Reach::Mount).step("make the root read-only")
}

/// Swaps the roots and drops the old one.
fn enter() -> io::Result<()> {
    pivot_root(".", ".")?;
    unmount(".", UnmountFlags::DETACH)?;
    chdir("/")?;
    Ok(())
}

fn make(entry: &RootEntry, trees: &mut impl Iterator<Item = Tree>) -> Result<(), FailedStep> {
    match entry {
        RootEntry::Dir(path) => fs::create_dir_all(inside(path)).step(&format!("make {path}")),
        RootEntry::Symlink { path, target } => symlink(path, target).step(&format!("link {path}")),
        RootEntry::File { path, text } => file(path, text).step(&format!("write {path}")),
        RootEntry::Bind { path, .. } => {
            let missing = || io::Error::from_raw_os_error(libc::ENOENT);
            let tree = trees.next().ok_or_else(missing).step(&format!("show {path}"))?;
            bind(&tree, path).step(&format!("show {path}"))
        }
        RootEntry::Mask(path) => {
            let missing = || io::Error::from_raw_os_error(libc::ENOENT);
            let tree = trees.next().ok_or_else(missing).step(&format!("hide {path}"))?;
            place(&tree, inside(path)).step(&format!("hide {path}"))
        }
        RootEntry::Tmpfs { path, size } => {
            fs::create_dir_all(inside(path)).step(&format!("make {path}"))?;
            let mount = tmpfs(*size, "0777").step(&format!("make a private {path}"))?;
            place(&mount, inside(path)).step(&format!("make a private {path}"))
        }
        RootEntry::Proc(path) => proc(path).step(MOUNT_PROC),
    }
}

/// A path of the sandbox, seen from the directory that becomes its root.
fn inside(path: &str) -> &str {
    path.trim_start_matches('/')
}

fn with_parent(path: &str) -> io::Result<&Path> {
    let path = Path::new(inside(path));
    path.parent().map_or(Ok(()), fs::create_dir_all)?;
    Ok(path)
}

fn symlink(path: &str, target: &str) -> io::Result<()> {
    std::os::unix::fs::symlink(target, with_parent(path)?)
}

fn file(path: &str, text: &str) -> io::Result<()> {
    fs::write(with_parent(path)?, text)
}

fn bind(tree: &Tree, path: &str) -> io::Result<()> {
    let target = with_parent(path)?;
    if FileType::from_raw_mode(fstat(tree)?.st_mode) == FileType::Directory {
        fs::create_dir_all(target)?;
    } else {
        open(target, OFlags::CREATE | OFlags::CLOEXEC | OFlags::WRONLY, Mode::from_raw_mode(0o644))?;
    }
    Ok(place(tree, target)?)
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
fn proc(path: &str) -> io::Result<()> {
    fs::create_dir_all(inside(path))?;
    let filesystem = fsopen("proc", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(filesystem.as_fd())?;
    let attributes = INNOCENT | MountAttrFlags::MOUNT_ATTR_NOEXEC | MountAttrFlags::MOUNT_ATTR_RDONLY;
    let mount = fsmount(filesystem.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)?;
    Ok(place(&mount, inside(path))?)
}

fn place(mount: &OwnedFd, path: impl rustix::path::Arg) -> rustix::io::Result<()> {
    move_mount(mount, "", CWD, path, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
}
