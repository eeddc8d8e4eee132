//! Which system calls programs in the sandbox may make.
//!
//! An allow-list: what is not named answers "not implemented", so that libraries fall back, and
//! calls of another architecture kill the process. Left out on purpose are tracing and other
//! processes' memory, mounts and namespaces (also as flags of `clone`; `clone3` hides its flags and
//! is left out whole), keyrings, bpf, perf, userfaultfd, io_uring, modules, kexec, handles, clocks,
//! swap, quotas, and sockets other than Unix and internet ones (vsock reaches out of a virtual
//! machine whatever the network namespace is).

use std::collections::BTreeMap;

use libc::*;
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule,
};

/// Calls that every architecture has and that are harmless in the sandbox with any argument.
#[rustfmt::skip]
const COMMON: &[c_long] = &[
    // Files and descriptors.
    SYS_read, SYS_write, SYS_readv, SYS_writev, SYS_pread64, SYS_pwrite64, SYS_preadv, SYS_pwritev, SYS_preadv2,
    SYS_pwritev2, SYS_close, SYS_close_range, SYS_openat, SYS_openat2, SYS_fstat, SYS_newfstatat, SYS_statx,
    SYS_statfs, SYS_fstatfs, SYS_lseek, SYS_dup, SYS_dup3, SYS_fcntl, SYS_flock, SYS_fsync, SYS_fdatasync,
    SYS_sync, SYS_syncfs, SYS_sync_file_range, SYS_truncate, SYS_ftruncate, SYS_fallocate, SYS_fadvise64,
    SYS_readahead, SYS_getdents64, SYS_getcwd, SYS_chdir, SYS_fchdir, SYS_mkdirat, SYS_mknodat, SYS_unlinkat,
    SYS_symlinkat, SYS_linkat, SYS_renameat, SYS_renameat2, SYS_readlinkat, SYS_faccessat, SYS_faccessat2,
    SYS_fchmod, SYS_fchmodat, SYS_fchown, SYS_fchownat, SYS_utimensat, SYS_umask, SYS_pipe2, SYS_tee, SYS_splice,
    SYS_sendfile, SYS_copy_file_range, SYS_getxattr, SYS_lgetxattr, SYS_fgetxattr, SYS_listxattr, SYS_llistxattr,
    SYS_flistxattr, SYS_setxattr, SYS_lsetxattr, SYS_fsetxattr, SYS_removexattr, SYS_lremovexattr,
    SYS_fremovexattr, SYS_inotify_init1, SYS_inotify_add_watch, SYS_inotify_rm_watch, SYS_io_setup,
    SYS_io_destroy, SYS_io_submit, SYS_io_cancel, SYS_io_getevents,
    // Waiting.
    SYS_ppoll, SYS_pselect6, SYS_epoll_create1, SYS_epoll_ctl, SYS_epoll_pwait, SYS_epoll_pwait2, SYS_eventfd2,
    SYS_signalfd4, SYS_timerfd_create, SYS_timerfd_settime, SYS_timerfd_gettime, SYS_nanosleep,
    SYS_clock_nanosleep, SYS_restart_syscall,
    // Memory.
    SYS_brk, SYS_mmap, SYS_munmap, SYS_mremap, SYS_mprotect, SYS_madvise, SYS_mincore, SYS_msync, SYS_mlock,
    SYS_mlock2, SYS_munlock, SYS_mlockall, SYS_munlockall, SYS_membarrier, SYS_get_mempolicy, SYS_pkey_alloc,
    SYS_pkey_free, SYS_pkey_mprotect,
    // Processes and threads.
    SYS_execve, SYS_execveat, SYS_exit, SYS_exit_group, SYS_wait4, SYS_waitid, SYS_kill, SYS_tkill, SYS_tgkill,
    SYS_pidfd_open, SYS_pidfd_send_signal, SYS_getpid, SYS_getppid, SYS_gettid, SYS_getpgid, SYS_setpgid,
    SYS_getsid, SYS_setsid, SYS_set_tid_address, SYS_set_robust_list, SYS_get_robust_list, SYS_rseq, SYS_futex,
    SYS_prctl, SYS_seccomp, SYS_landlock_create_ruleset, SYS_landlock_add_rule, SYS_landlock_restrict_self,
    SYS_sched_yield, SYS_sched_getaffinity, SYS_sched_setaffinity, SYS_sched_getparam, SYS_sched_setparam,
    SYS_sched_getscheduler, SYS_sched_setscheduler, SYS_sched_getattr, SYS_sched_setattr,
    SYS_sched_get_priority_max, SYS_sched_get_priority_min, SYS_sched_rr_get_interval, SYS_getpriority,
    SYS_setpriority, SYS_ioprio_get, SYS_ioprio_set, SYS_getrlimit, SYS_setrlimit, SYS_prlimit64, SYS_getrusage,
    SYS_times, SYS_getcpu,
    // Signals.
    SYS_rt_sigaction, SYS_rt_sigprocmask, SYS_rt_sigreturn, SYS_rt_sigsuspend, SYS_rt_sigpending,
    SYS_rt_sigtimedwait, SYS_rt_sigqueueinfo, SYS_rt_tgsigqueueinfo, SYS_sigaltstack,
    // Identity: without capabilities these change nothing that matters.
    SYS_getuid, SYS_geteuid, SYS_getgid, SYS_getegid, SYS_getresuid, SYS_getresgid, SYS_getgroups, SYS_setuid,
    SYS_setgid, SYS_setreuid, SYS_setregid, SYS_setresuid, SYS_setresgid, SYS_setgroups, SYS_setfsuid,
    SYS_setfsgid, SYS_capget, SYS_capset,
    // Time and the system.
    SYS_clock_gettime, SYS_clock_getres, SYS_gettimeofday, SYS_getitimer, SYS_setitimer, SYS_timer_create,
    SYS_timer_settime, SYS_timer_gettime, SYS_timer_getoverrun, SYS_timer_delete, SYS_uname, SYS_sysinfo,
    SYS_getrandom,
    // Sockets that exist already; making one is restricted below.
    SYS_bind, SYS_listen, SYS_accept, SYS_accept4, SYS_connect, SYS_getsockname, SYS_getpeername, SYS_sendto,
    SYS_recvfrom, SYS_sendmsg, SYS_recvmsg, SYS_sendmmsg, SYS_recvmmsg, SYS_shutdown, SYS_setsockopt,
    SYS_getsockopt,
    // System V semaphores and messages, private to the sandbox.
    SYS_semget, SYS_semop, SYS_semtimedop, SYS_semctl, SYS_msgget, SYS_msgsnd, SYS_msgrcv, SYS_msgctl,
];

/// Old forms of the same calls.
#[rustfmt::skip]
#[cfg(target_arch = "x86_64")]
const ARCH: &[c_long] = &[
    SYS_open, SYS_creat, SYS_stat, SYS_lstat, SYS_access, SYS_dup2, SYS_pipe, SYS_mkdir, SYS_rmdir, SYS_mknod,
    SYS_unlink, SYS_symlink, SYS_link, SYS_rename, SYS_readlink, SYS_chmod, SYS_chown, SYS_lchown, SYS_utime,
    SYS_utimes, SYS_futimesat, SYS_getdents, SYS_poll, SYS_select, SYS_epoll_create, SYS_epoll_wait, SYS_eventfd,
    SYS_signalfd, SYS_inotify_init, SYS_fork, SYS_vfork, SYS_getpgrp, SYS_alarm, SYS_pause, SYS_time,
    SYS_arch_prctl,
];
#[cfg(not(target_arch = "x86_64"))]
const ARCH: &[c_long] = &[];

/// Memory that no address-space limit counts: allowed only where a cgroup counts it.
const UNCOUNTED_MEMORY: &[c_long] = &[SYS_memfd_create, SYS_shmget, SYS_shmat, SYS_shmdt, SYS_shmctl];

/// Flags of `clone` that make namespaces.
const NAMESPACES: u64 = (CLONE_NEWUSER
    | CLONE_NEWNS
    | CLONE_NEWPID
    | CLONE_NEWNET
    | CLONE_NEWIPC
    | CLONE_NEWUTS
    | CLONE_NEWCGROUP) as u64;

/// Whether shared memory outside any process's address space is allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SharedMemory {
    /// A cgroup counts it.
    Counted,
    /// Nothing does.
    Uncounted,
}

/// The compiled filter for this machine.
pub fn filter(memory: SharedMemory) -> Result<BpfProgram, BackendError> {
    let arch = std::env::consts::ARCH.try_into()?;
    let not_implemented = SeccompAction::Errno(ENOSYS as u32);
    SeccompFilter::new(rules(memory)?, not_implemented, SeccompAction::Allow, arch)?.try_into()
}

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

fn rules(memory: SharedMemory) -> Result<Rules, BackendError> {
    let shared: &[c_long] = if memory == SharedMemory::Counted { UNCOUNTED_MEMORY } else { &[] };
    let always = [COMMON, ARCH, shared].concat();
    let mut rules: Rules = always.into_iter().map(|call| (call, Vec::new())).collect();
    rules.extend(restricted()?);
    Ok(rules)
}

/// Calls that depend on an argument.
fn restricted() -> Result<Rules, BackendError> {
    let no_namespaces = vec![rule(0, SeccompCmpOp::MaskedEq(NAMESPACES), 0)?];
    let own_unix = vec![rule(0, SeccompCmpOp::Eq, AF_UNIX as u64)?];
    let families = [AF_UNIX, AF_INET, AF_INET6];
    let sockets = families.map(|family| rule(0, SeccompCmpOp::Eq, family as u64));
    let plain = vec![rule(0, SeccompCmpOp::Eq, 0)?, rule(0, SeccompCmpOp::Eq, 0xffff_ffff)?];
    Ok(BTreeMap::from([
        (SYS_clone, no_namespaces),
        (SYS_socketpair, own_unix),
        (SYS_socket, sockets.into_iter().collect::<Result<_, _>>()?),
        (SYS_personality, plain),
        (SYS_ioctl, vec![no_terminal_injection()?]),
    ]))
}

/// Typing into a terminal on behalf of its user is the one dangerous request without privileges.
fn no_terminal_injection() -> Result<SeccompRule, BackendError> {
    let not = |request: u64| SeccompCondition::new(1, SeccompCmpArgLen::Dword, SeccompCmpOp::Ne, request);
    SeccompRule::new(vec![not(TIOCSTI)?, not(TIOCLINUX)?])
}

fn rule(argument: u8, operator: SeccompCmpOp, value: u64) -> Result<SeccompRule, BackendError> {
    SeccompRule::new(vec![SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operator, value)?])
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;

    /// What must never be callable, whatever its arguments.
    const FORBIDDEN: &[c_long] = &[
        SYS_ptrace,
        SYS_process_vm_readv,
        SYS_process_vm_writev,
        SYS_mount,
        SYS_umount2,
        SYS_pivot_root,
        SYS_chroot,
        SYS_open_tree,
        SYS_move_mount,
        SYS_fsopen,
        SYS_fsmount,
        SYS_mount_setattr,
        SYS_unshare,
        SYS_setns,
        SYS_clone3,
        SYS_keyctl,
        SYS_add_key,
        SYS_request_key,
        SYS_bpf,
        SYS_perf_event_open,
        SYS_userfaultfd,
        SYS_io_uring_setup,
        SYS_kexec_load,
        SYS_kexec_file_load,
        SYS_reboot,
        SYS_init_module,
        SYS_finit_module,
        SYS_delete_module,
        SYS_open_by_handle_at,
        SYS_name_to_handle_at,
        SYS_pidfd_getfd,
        SYS_kcmp,
        SYS_quotactl,
        SYS_swapon,
        SYS_acct,
        SYS_syslog,
        SYS_settimeofday,
        SYS_clock_settime,
        SYS_adjtimex,
        SYS_fanotify_init,
        SYS_sethostname,
        SYS_memfd_secret,
        SYS_vmsplice,
    ];

    #[test]
    fn dangerous_calls_are_not_on_the_list() {
        let rules = rules(SharedMemory::Counted).unwrap();
        let found: Vec<_> = FORBIDDEN.iter().filter(|call| rules.contains_key(call)).collect();
        assert_eq!(found, Vec::<&c_long>::new());
    }

    #[test]
    fn shared_memory_needs_somebody_who_counts_it() {
        let rules = rules(SharedMemory::Uncounted).unwrap();
        assert!(UNCOUNTED_MEMORY.iter().all(|call| !rules.contains_key(call)));
    }

    #[test]
    fn the_filter_compiles_and_fits_the_kernels_limit() {
        let program = filter(SharedMemory::Counted).unwrap();
        assert!(program.len() < 4096, "{} instructions", program.len());
    }
}
