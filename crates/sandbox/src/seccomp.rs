//! Which system calls programs in the sandbox may make.
//!
//! An allow-list: what is not named answers "not implemented", so that libraries fall back, and
//! calls of another architecture kill the process. Left out on purpose are tracing and other
//! processes' memory, mounts and namespaces (also as flags of `clone`; `clone3` hides its flags and
//! is left out whole), keyrings, bpf, perf, userfaultfd, io_uring, modules, kexec, handles, clocks,
//! swap, quotas, what the whole machine shares (asynchronous I/O contexts, `sync`), and sockets other than Unix and internet ones (vsock reaches out of a virtual
//! machine whatever the network namespace is).

use std::collections::BTreeMap;
use std::io;

use libc::*;
use seccompiler::SeccompCmpArgLen::Dword;
use seccompiler::SeccompCmpOp::{self, Eq, MaskedEq, Ne};
use seccompiler::{BackendError, BpfProgram, SeccompAction, SeccompCondition, SeccompFilter, SeccompRule};

/// Calls that every architecture has and that are harmless in the sandbox with any argument.
#[rustfmt::skip]
const COMMON: &[c_long] = &[
    // Files and descriptors.
    SYS_read, SYS_write, SYS_readv, SYS_writev, SYS_pread64, SYS_pwrite64, SYS_preadv, SYS_pwritev, SYS_preadv2,
    SYS_pwritev2, SYS_close, SYS_close_range, SYS_openat, SYS_openat2, SYS_fstat, SYS_newfstatat, SYS_statx,
    SYS_statfs, SYS_fstatfs, SYS_lseek, SYS_dup, SYS_dup3, SYS_fcntl, SYS_flock, SYS_fsync, SYS_fdatasync,
    SYS_sync_file_range, SYS_truncate, SYS_ftruncate, SYS_fallocate, SYS_fadvise64,
    SYS_readahead, SYS_getdents64, SYS_getcwd, SYS_chdir, SYS_fchdir, SYS_mkdirat, SYS_mknodat, SYS_unlinkat,
    SYS_symlinkat, SYS_linkat, SYS_renameat, SYS_renameat2, SYS_readlinkat, SYS_faccessat, SYS_faccessat2,
    SYS_fchmod, SYS_fchmodat, SYS_fchown, SYS_fchownat, SYS_utimensat, SYS_umask, SYS_pipe2, SYS_tee, SYS_splice,
    SYS_sendfile, SYS_copy_file_range, SYS_getxattr, SYS_lgetxattr, SYS_fgetxattr, SYS_listxattr, SYS_llistxattr,
    SYS_flistxattr, SYS_setxattr, SYS_lsetxattr, SYS_fsetxattr, SYS_removexattr, SYS_lremovexattr,
    SYS_fremovexattr, SYS_inotify_init1, SYS_inotify_add_watch, SYS_inotify_rm_watch, 
    
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
    SYS_prctl, 
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
const NAMESPACES: c_int =
    CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWCGROUP;

/// Conditions on the lower half of an argument.
type Conditions = &'static [(SeccompCmpOp, u32)];

/// Calls that depend on one argument: the call, which argument, and conditions of which all in one row must hold.
const RESTRICTED: &[(c_long, u8, &[Conditions])] = &[
    (SYS_clone, 0, &[&[(MaskedEq(NAMESPACES as u64), 0)]]),
    (SYS_socket, 0, &[&[(Eq, AF_UNIX as u32)], &[(Eq, AF_INET as u32)], &[(Eq, AF_INET6 as u32)]]),
    (SYS_socketpair, 0, &[&[(Eq, AF_UNIX as u32)]]),
    (SYS_personality, 0, &[&[(Eq, 0)], &[(Eq, u32::MAX)]]),
    // Typing into a terminal on behalf of its user is the one dangerous request without privileges.
    (SYS_ioctl, 1, &[&[(Ne, TIOCSTI as u32), (Ne, TIOCLINUX as u32)]]),
];

/// Installs the filter for this thread and all it starts, for good. Shared memory outside any process's address space
/// is allowed only where it `is_counted` by a cgroup.
pub fn install(is_counted: bool) -> io::Result<()> {
    let program = filter(is_counted).map_err(io::Error::other)?;
    seccompiler::apply_filter(&program).map_err(|error| match error {
        seccompiler::Error::Prctl(error) | seccompiler::Error::Seccomp(error) => error,
        error => io::Error::other(error),
    })
}

fn filter(is_counted: bool) -> Result<BpfProgram, BackendError> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> =
        allowed(is_counted).into_iter().map(|call| (call, Vec::new())).collect();
    for (call, argument, alternatives) in RESTRICTED {
        let condition = |(op, value): &(SeccompCmpOp, u32)| {
            SeccompCondition::new(*argument, Dword, op.clone(), (*value).into())
        };
        let rule = |row: &Conditions| SeccompRule::new(row.iter().map(condition).collect::<Result<_, _>>()?);
        rules.insert(*call, alternatives.iter().map(rule).collect::<Result<_, _>>()?);
    }
    let refused = SeccompAction::Errno(ENOSYS as u32);
    SeccompFilter::new(rules, refused, SeccompAction::Allow, std::env::consts::ARCH.try_into()?)?.try_into()
}

fn allowed(is_counted: bool) -> Vec<c_long> {
    let shared: &[c_long] = if is_counted { UNCOUNTED_MEMORY } else { &[] };
    [COMMON, ARCH, shared].concat()
}

#[cfg(test)]
mod tests {
    use seccompiler::sock_filter;

    use super::*;

    const NOT_IMPLEMENTED: u32 = SECCOMP_RET_ERRNO | ENOSYS as u32;
    #[cfg(target_arch = "x86_64")]
    const ARCHITECTURE: u32 = 0xc000_003e;
    #[cfg(target_arch = "aarch64")]
    const ARCHITECTURE: u32 = 0xc000_00b7;
    #[cfg(target_arch = "riscv64")]
    const ARCHITECTURE: u32 = 0xc000_00f3;

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
        SYS_io_setup,
        SYS_sync,
        SYS_seccomp,
    ];

    /// Runs a filter as the kernel does.
    fn verdict(program: &[sock_filter], architecture: u32, call: u32, arguments: [u32; 2]) -> u32 {
        let mut data = [0u32; 16];
        (data[0], data[1], data[4], data[6]) = (call, architecture, arguments[0], arguments[1]);
        let (mut at, mut value) = (0, 0);
        loop {
            let &sock_filter { code, jt, jf, k } = &program[at];
            at += 1;
            let holds = match u32::from(code) {
                it if it == BPF_RET | BPF_K => return k,
                it if it == BPF_LD | BPF_W | BPF_ABS => {
                    value = data[k as usize / 4];
                    continue;
                }
                it if it == BPF_ALU | BPF_AND | BPF_K => {
                    value &= k;
                    continue;
                }
                it if it == BPF_JMP | BPF_JA => {
                    at += k as usize;
                    continue;
                }
                it if it == BPF_JMP | BPF_JEQ | BPF_K => value == k,
                it if it == BPF_JMP | BPF_JGE | BPF_K => value >= k,
                it => unreachable!("{it:x}"),
            };
            at += usize::from(if holds { jt } else { jf });
        }
    }

    fn is_allowed(is_counted: bool, call: c_long, arguments: [u32; 2]) -> bool {
        match verdict(&filter(is_counted).unwrap_or_default(), ARCHITECTURE, call as u32, arguments) {
            SECCOMP_RET_ALLOW => true,
            NOT_IMPLEMENTED => false,
            other => unreachable!("{other:x}"),
        }
    }

    #[test]
    fn dangerous_calls_are_not_on_the_list() {
        let is_allowed = |call| is_allowed(true, call, [0, 0]);
        let found: Vec<_> = FORBIDDEN.iter().filter(|call| is_allowed(**call)).collect();
        assert_eq!(found, Vec::<&c_long>::new());
    }

    #[test]
    fn exactly_the_listed_calls_pass() {
        let listed = allowed(true);
        let program = filter(true).unwrap_or_default();
        let restricted: Vec<u32> = RESTRICTED.iter().map(|(call, ..)| *call as u32).collect();
        for call in (0..600).filter(|call| !restricted.contains(call)) {
            let expected =
                if listed.contains(&c_long::from(call)) { SECCOMP_RET_ALLOW } else { NOT_IMPLEMENTED };
            assert_eq!(verdict(&program, ARCHITECTURE, call, [0, 0]), expected, "call {call}");
        }
        // The calls of x32 say that they are of this architecture, and differ by a bit.
        for call in 0..600 {
            assert_eq!(verdict(&program, ARCHITECTURE, 0x4000_0000 | call, [0, 0]), NOT_IMPLEMENTED);
        }
        assert_eq!(verdict(&program, 0x4000_0003, 0, [0, 0]), SECCOMP_RET_KILL_PROCESS);
    }

    #[test]
    fn arguments_decide_where_they_must() {
        let cases = [
            (SYS_clone, [SIGCHLD as u32, 0], true),
            (SYS_clone, [CLONE_NEWUSER as u32, 0], false),
            (SYS_clone, [(CLONE_NEWNET | SIGCHLD) as u32, 0], false),
            (SYS_socket, [AF_UNIX as u32, 0], true),
            (SYS_socket, [AF_INET6 as u32, 0], true),
            (SYS_socket, [AF_NETLINK as u32, 0], false),
            (SYS_socket, [AF_VSOCK as u32, 0], false),
            (SYS_socket, [AF_ALG as u32, 0], false),
            (SYS_socketpair, [AF_INET as u32, 0], false),
            (SYS_personality, [0, 0], true),
            (SYS_personality, [ADDR_NO_RANDOMIZE as u32, 0], false),
            (SYS_ioctl, [0, TIOCGWINSZ as u32], true),
            (SYS_ioctl, [0, TIOCSTI as u32], false),
        ];
        for (call, arguments, expected) in cases {
            assert_eq!(is_allowed(true, call, arguments), expected, "{call} {arguments:?}");
        }
    }

    #[test]
    fn shared_memory_needs_somebody_who_counts_it() {
        for call in UNCOUNTED_MEMORY {
            assert!(is_allowed(true, *call, [0, 0]));
            assert!(!is_allowed(false, *call, [0, 0]));
        }
    }

    /// The kernel runs it once for every call there is when it is installed, and takes 4,096 instructions at most.
    #[test]
    fn the_filter_is_small() {
        let n_instructions = filter(true).unwrap_or_default().len();
        assert!((1..2000).contains(&n_instructions), "{n_instructions} instructions");
    }
}
