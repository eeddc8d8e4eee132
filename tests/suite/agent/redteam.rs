//! Attempts to break out, each contained. Where it is safe, the same attempt is made without a
//! sandbox first and must succeed there: an attempt that cannot succeed shows nothing.

use std::io::Write;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::PathBuf;
use std::time::Duration;

use backsight::sandbox::{Command, Exit, Limits, SandboxConfig, SandboxKind, Sandboxes};

use super::{python, shell, start, start_kind};

const MIB: u64 = 1 << 20;

/// Runs an attempt without and with the sandbox; what it said.
async fn both(line: &str) -> [(Exit, String); 2] {
    let outside = start_kind(SandboxKind::None, Limits::default()).await;
    let inside = start(Limits::default()).await;
    [shell(&outside, line).await, shell(&inside, line).await]
}

/// Makes system calls that must not exist: prints each call's name and what came of it.
const CALLS: &str = r#"
import ctypes, errno, platform
libc = ctypes.CDLL(None, use_errno=True)
numbers = dict(ptrace=101, process_vm_readv=310, mount=165, umount2=166, pivot_root=155, chroot=161, unshare=272,
    setns=308, clone3=435, keyctl=250, add_key=248, bpf=321, perf_event_open=298, userfaultfd=323,
    io_uring_setup=425, kexec_load=246, reboot=169, init_module=175, finit_module=313, open_by_handle_at=304,
    pidfd_getfd=438, kcmp=312, swapon=167, acct=163, syslog=103, settimeofday=164, sethostname=170,
    fanotify_init=300, quotactl=179, open_tree=428, fsopen=430, move_mount=429)
arm = dict(ptrace=117, process_vm_readv=270, mount=40, umount2=39, pivot_root=41, chroot=51, unshare=97,
    setns=268, clone3=435, keyctl=219, add_key=217, bpf=280, perf_event_open=241, userfaultfd=282,
    io_uring_setup=425, kexec_load=104, reboot=142, init_module=105, finit_module=273, open_by_handle_at=265,
    pidfd_getfd=438, kcmp=272, swapon=224, acct=89, syslog=116, settimeofday=170, sethostname=161,
    fanotify_init=262, quotactl=60, open_tree=428, fsopen=430, move_mount=429)
for name, number in (numbers if platform.machine() == "x86_64" else arm).items():
    ctypes.set_errno(0)
    result = libc.syscall(number, 0, 0, 0, 0, 0, 0)
    print(name, "worked" if result >= 0 else errno.errorcode[ctypes.get_errno()])
"#;

/// Traces and reads a child of its own in three ways; prints those that worked.
const TRACES: &str = r#"
import ctypes, os, time
libc = ctypes.CDLL(None, use_errno=True)
class Part(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]
def in_child(work):
    pid = os.fork()
    if pid == 0:
        os._exit(work())
    return pid
secret = ctypes.create_string_buffer(b"of the child")
TRACEME, SEIZE = 0, 0x4206
tracer = in_child(lambda: 0 if libc.ptrace(TRACEME, 0, None, None) == 0 else 1)
if os.waitpid(tracer, 0)[1] == 0:
    print("traceme")
child = in_child(lambda: time.sleep(100))
if libc.ptrace(SEIZE, child, None, None) == 0:
    print("seize")
copy = ctypes.create_string_buffer(len(secret))
into = Part(ctypes.addressof(copy), len(copy))
out_of = Part(ctypes.addressof(secret), len(secret))
if libc.process_vm_readv(child, ctypes.byref(into), 1, ctypes.byref(out_of), 1, 0) == len(copy):
    print("read" if copy.value == secret.value else "garbage")
os.kill(child, 9)
print("end")
"#;

/// Forks until that fails, and prints how often it worked.
pub const FORKS: &str = "
import os, signal
children = []
try:
    while True:
        pid = os.fork()
        if pid == 0:
            signal.pause()
        children.append(pid)
except BlockingIOError:
    pass
print(len(children))
for child in children:
    os.kill(child, 9)
    os.waitpid(child, 0)
";

#[tokio::test]
async fn the_hosts_home_cannot_be_read() {
    let home = std::env::var("HOME").unwrap();
    let mut canary = tempfile::NamedTempFile::new_in(&home).unwrap();
    canary.write_all(b"canary-of-the-home").unwrap();
    let path = canary.path().display().to_string();
    let [outside, inside] =
        both(&format!("cat {path} /proc/1/root{path} /proc/self/root{path} /workspace/../{path}")).await;
    assert!(outside.1.contains("canary-of-the-home"), "the control did not work: {outside:?}");
    assert!(!inside.1.contains("canary-of-the-home"), "{inside:?}");
    let sandbox = start(Limits::default()).await;
    let (_, found) = shell(&sandbox, "grep -rls canary-of-the-home / --exclude-dir=proc --exclude-dir=usr 2>/dev/null; ls -a /home /root/.ssh /root/.cargo /var/lib /srv 2>/dev/null").await;
    assert_eq!(found, "");
}

#[tokio::test]
async fn environment_secrets_cannot_be_read() {
    // Set by the test's runner, so it is in our environment and in no file.
    let secret = std::env::var("CARGO_PKG_DESCRIPTION").unwrap();
    let look = "env; cat /proc/[0-9]*/environ | tr '\\0' '\\n'";
    let [outside, inside] = both(look).await;
    assert!(outside.1.contains(&secret), "the control did not work");
    assert!(!inside.1.contains(&secret) && !inside.1.contains("CARGO"), "{}", inside.1);
}

#[tokio::test]
async fn nothing_outside_can_be_written() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    let target = dir.path().join("target").display().to_string();
    let line = format!("echo broken > {target} || echo broken > /proc/1/root{target}");
    let [outside, inside] = both(&line).await;
    assert_eq!(outside.0, Exit::Code(0), "the control did not work");
    assert_ne!(inside.0, Exit::Code(0));
    std::fs::remove_file(&target).unwrap();
    let sandbox = start(Limits::default()).await;
    let places = "/x /usr/x /bin/x /lib/x /etc/x /etc/passwd /dev/x /proc/x /proc/sys/kernel/hostname /proc/sysrq-trigger /opt/x /run/x /root/x /var/x";
    let (_, said) = shell(&sandbox, &format!("for place in {places}; do echo x 2>/dev/null > $place && echo $place; done; mount -o remount,rw / ; mount -t tmpfs x /usr")).await;
    let written: Vec<&str> = said.lines().filter(|it| it.starts_with('/')).collect();
    assert_eq!(written, Vec::<&str>::new());
    assert!(!std::path::Path::new(&target).exists());
}

#[tokio::test]
async fn a_fork_bomb_is_bounded_and_does_not_reach_others() {
    let n_forks = async |processes| {
        let sandbox = start(Limits { processes, ..Limits::default() }).await;
        python(&sandbox, FORKS).await.parse::<u64>().unwrap()
    };
    let (few, more) = (n_forks(20).await, n_forks(60).await);
    assert!((10..20).contains(&few), "{few}");
    assert!((50..60).contains(&more), "{more}");
    let (bombed, neighbour) =
        (start(Limits { processes: 40, ..Limits::default() }).await, start(Limits::default()).await);
    let mut bomb = Command::shell("bomb() { bomb | bomb & }; bomb; sleep 1");
    bomb.timeout = Duration::from_secs(2);
    bombed.run(bomb).await.unwrap();
    assert_eq!(shell(&neighbour, "echo fine").await.1, "fine");
    bombed.stop().await;
}

#[tokio::test]
async fn the_disk_cannot_be_filled() {
    let limits = Limits { workspace: 8 * MIB, scratch: 4 * MIB, file_size: 64 * MIB, ..Limits::default() };
    let sandbox = start(limits).await;
    let fill = "for dir in /workspace /tmp /dev/shm; do dd if=/dev/zero of=$dir/x bs=1M count=60 2>/dev/null; stat -c %s $dir/x; done";
    let (_, sizes) = shell(&sandbox, fill).await;
    let sizes: Vec<u64> = sizes.lines().map(|it| it.parse().unwrap()).collect();
    assert_eq!(sizes, [8 * MIB, 4 * MIB, 4 * MIB]);
    let many = "import os\nn = 0\ntry:\n  while True:\n    open(f'/tmp/f{n}', 'w').close(); n += 1\nexcept OSError: print(n)";
    let n_files: u64 = python(&sandbox, many).await.parse().unwrap();
    assert!(n_files < 5000, "{n_files} empty files");
    let tool = sandbox.workspace().write("y", &[0; 9 << 20]).unwrap_err();
    assert_eq!(tool.to_string(), "no space left in the workspace for y");
}

#[tokio::test]
async fn one_file_cannot_outgrow_its_limit() {
    let sandbox = start(Limits { file_size: MIB, ..Limits::default() }).await;
    let (_, size) = shell(
        &sandbox,
        "dd if=/dev/zero of=x bs=64k count=64 2>/dev/null; truncate -s 1G y 2>/dev/null; stat -c %s x",
    )
    .await;
    assert_eq!(size.lines().last(), Some(MIB.to_string().as_str()));
}

/// Touches `size` MiB in each of `count` processes, which keep it until the last of them has it or is dead.
fn hog(count: u32, size: u32) -> String {
    format!(
        "
import os
touched, end = os.pipe(), os.pipe()
for _ in range({count}):
    if os.fork() == 0:
        os.close(end[1])
        block = bytearray({size} << 20)
        for at in range(0, len(block), 4096):
            block[at] = 1
        os.close(touched[1])
        os.read(end[0], 1)
        os._exit(0)
os.close(touched[1])
os.read(touched[0], 1)
os.close(end[1])
lost = sum(os.waitpid(-1, 0)[1] != 0 for _ in range({count}))
print('lost', lost)
"
    )
}

#[tokio::test]
async fn memory_is_bounded_for_the_episode_as_a_whole() {
    let sandbox = start(Limits { memory: 256 * MIB, ..Limits::default() }).await;
    let fits = python(&sandbox, &hog(4, 20)).await;
    assert!(fits.ends_with("lost 0"), "the control did not fit: {fits}");
    let one = python(&sandbox, &hog(1, 400)).await;
    assert!(one.ends_with("lost 1"), "one process got too much: {one}");
    let many = python(&sandbox, &hog(8, 60)).await;
    let n_lost: u32 = many.rsplit(' ').next().unwrap().parse().unwrap();
    assert!(n_lost >= 3, "together they got too much: {many}");
    assert_eq!(shell(&sandbox, "echo fine").await.1, "fine");
}

#[tokio::test]
async fn hidden_memory_counts_too() {
    let sandbox = start(Limits { memory: 128 * MIB, workspace: 512 * MIB, ..Limits::default() }).await;
    let program = "
import os
fd = os.memfd_create('x')
for _ in range(400):
    os.write(fd, bytes(1 << 20))
print('got it all')
";
    let output = sandbox.run(Command::argv(["python3", "-c", program])).await.unwrap();
    assert!(!output.capture.text().contains("got it all"), "{:?}", output.exit);
}

#[tokio::test]
async fn processor_time_is_bounded() {
    let sandbox = start(Limits { cpu_seconds: 1, ..Limits::default() }).await;
    let (exit, _) = shell(&sandbox, "exec python3 -c 'while True: pass'").await;
    assert!(matches!(exit, Exit::Signal(9 | 24)), "{exit:?}");
}

#[tokio::test]
async fn no_socket_reaches_out() {
    let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = server.local_addr().unwrap().port();
    let connect = format!(
        "python3 -c \"import socket; socket.create_connection(('127.0.0.1', {port}), 3); print('through')\""
    );
    let [outside, inside] = both(&connect).await;
    assert_eq!(outside.1, "through", "the control did not work");
    assert!(!inside.1.contains("through"), "{}", inside.1);

    let config = SandboxConfig { network: true, init: super::init(), ..SandboxConfig::default() };
    let asked_for = Sandboxes::new(config).start().await.unwrap();
    assert_eq!(shell(&asked_for, &connect).await.1, "through", "a network that was asked for");

    let name = format!("backsight-test-{}", std::process::id());
    let _abstract = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
    let connect = format!(
        "python3 -c \"import socket; socket.socket(socket.AF_UNIX).connect('\\0{name}'); print('through')\""
    );
    let [outside, inside] = both(&connect).await;
    assert_eq!(outside.1, "through", "the control did not work");
    assert!(!inside.1.contains("through"), "{}", inside.1);
}

#[tokio::test]
async fn only_harmless_kinds_of_sockets_exist() {
    let sandbox = start(Limits::default()).await;
    let program = "
import socket
for name, family, kind in [('netlink', 16, 3), ('packet', 17, 3), ('alg', 38, 5), ('vsock', 40, 1), ('raw', 2, 3), ('bluetooth', 31, 3)]:
    try:
        socket.socket(family, kind)
        print(name)
    except OSError:
        pass
try:
    socket.create_connection(('192.0.2.1', 80), 2)
    print('route')
except OSError:
    pass
print('end')
";
    assert_eq!(python(&sandbox, program).await, "end");
}

#[tokio::test]
async fn dangerous_calls_do_not_exist() {
    let sandbox = start(Limits::default()).await;
    let said = python(&sandbox, CALLS).await;
    let wrong: Vec<&str> = said.lines().filter(|line| !line.ends_with(" ENOSYS")).collect();
    assert_eq!((wrong, said.lines().count()), (vec![], 32));
    // Outside, most of them at least exist.
    let outside = start_kind(SandboxKind::None, Limits::default()).await;
    let probe =
        CALLS.replace("io_uring_setup=425, kexec_load=246, reboot=169, ", "").replace("acct=163, ", "");
    let probe = probe.replace("unshare=272,", "").replace("setns=308, ", "");
    let said = python(&outside, &probe).await;
    let existing = said.lines().filter(|line| !line.ends_with(" ENOSYS")).count();
    assert!(existing > 10, "the control did not work: {said}");
}

#[tokio::test]
async fn no_process_can_be_traced_or_read() {
    let sandbox = start(Limits::default()).await;
    let (_, said) = shell(&sandbox, "for it in mem environ maps; do head -c 1 /proc/1/$it >/dev/null 2>&1 && echo $it; done; ls /proc/1/root /proc/1/fd /proc/1/cwd 2>/dev/null").await;
    assert_eq!(said, "");
    assert_eq!(python(&sandbox, TRACES).await, "end");
    let outside = start_kind(SandboxKind::None, Limits::default()).await;
    let worked = python(&outside, TRACES).await;
    assert_eq!(worked, "traceme\nseize\nread\nend", "the control did not work");
}

#[tokio::test]
async fn the_parent_cannot_be_killed() {
    let sandbox = start(Limits::default()).await;
    let program = "
import os, signal
for pid in [1, os.getppid()]:
    for number in [signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP, signal.SIGSEGV, signal.SIGCHLD]:
        try:
            os.kill(pid, number)
        except OSError as error:
            pass
print('tried')
";
    assert_eq!(python(&sandbox, program).await, "tried");
    shell(&sandbox, "kill -9 -1").await;
    assert_eq!(shell(&sandbox, "echo alive").await.1, "alive");
    let own = std::process::id();
    let (_, said) = shell(&sandbox, &format!("kill -9 {own} && echo killed")).await;
    assert!(!said.contains("killed"), "{said}");
}

#[tokio::test]
async fn new_namespaces_and_privileges_cannot_be_had() {
    let sandbox = start(Limits::default()).await;
    let attempts = "unshare -U true; unshare -r id; su -c id; sudo -n id; mknod d b 8 0; mount --bind / /tmp; chroot / true; nsenter -t 1 -m true; setpriv --reuid 0 true; python3 -c 'import os; os.setuid(0)'";
    for attempt in attempts.split("; ") {
        let (exit, said) = shell(&sandbox, &format!("{attempt} 2>/dev/null")).await;
        assert_ne!(exit, Exit::Code(0), "{attempt}: {said}");
    }
    let (_, status) = shell(
        &sandbox,
        "grep -E '^(Cap|NoNewPrivs|Seccomp:|Uid|Gid|Groups)' /proc/self/status | tr '\\t' ' '",
    )
    .await;
    let expected = "Uid: 1000 1000 1000 1000\nGid: 1000 1000 1000 1000\nGroups: \nCapInh: 0000000000000000\nCapPrm: 0000000000000000\nCapEff: 0000000000000000\nCapBnd: 0000000000000000\nCapAmb: 0000000000000000\nNoNewPrivs: 1\nSeccomp: 2";
    assert_eq!(
        status.lines().map(str::trim_end).collect::<Vec<_>>(),
        expected.lines().map(str::trim_end).collect::<Vec<_>>()
    );
}

#[tokio::test]
async fn programs_get_three_descriptors_and_no_terminal() {
    let sandbox = start(Limits::default()).await;
    let program = "import os; print(sorted(int(it) for it in os.listdir('/proc/self/fd'))); print(os.path.exists('/dev/tty'))";
    // The fourth is the directory being listed.
    assert_eq!(python(&sandbox, program).await, "[0, 1, 2, 3]\nFalse");
}

#[tokio::test]
async fn only_the_sandboxs_own_processes_are_seen() {
    let sandbox = start(Limits::default()).await;
    let (_, said) = shell(&sandbox, "cat /proc/[0-9]*/comm | sort -u | tr '\\n' ' '; hostname; cat /proc/self/cgroup | cut -d: -f3 | sort -u").await;
    let mut lines = said.lines();
    let names: Vec<&str> = lines.next().unwrap().split_whitespace().collect();
    assert!(
        names
            .iter()
            .all(|it| ["backsight", "bash", "sh", "cat", "sort", "tr", "exe", "sandbox"].contains(it)),
        "{names:?}"
    );
    let own = std::fs::read_to_string("/proc/self/cgroup").unwrap();
    for path in own.lines().filter_map(|line| line.splitn(3, ':').nth(2)).filter(|path| *path != "/") {
        assert!(!said.contains(path), "our control group shows: {said}");
    }
}

#[tokio::test]
async fn a_gigabyte_of_output_is_neither_kept_nor_waited_for() {
    let sandbox = start(Limits::default()).await;
    let mut command =
        Command::shell("echo first; head -c 1000000000 /dev/zero | tr '\\0' x; echo; echo last");
    command.timeout = Duration::from_secs(300);
    let before = resident();
    let output = sandbox.run(command).await.unwrap();
    let grown = resident().saturating_sub(before);
    assert_eq!((output.exit, output.timed_out), (Exit::Code(0), false));
    assert_eq!(output.capture.n_bytes(), 1_000_000_000 + 6 + 1 + 5);
    let text = output.capture.text();
    assert!(text.starts_with("first\n") && text.ends_with("\nlast\n") && text.len() < 2 << 20);
    // Other tests grow beside this one.
    assert!(grown < 700 * MIB, "grew by {grown} bytes");
}

fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

#[tokio::test]
async fn daemons_die_with_their_sandbox() {
    let sandbox = start(Limits::default()).await;
    let marker = format!("987{}", std::process::id());
    // The number is a word by itself only where the shell has become the daemon.
    let daemon =
        format!("setsid setsid nohup sh -c 'exec sleep {marker}' >/dev/null 2>&1 </dev/null & echo left");
    assert_eq!(shell(&sandbox, &daemon).await.1, "left");
    while processes_with(&marker).len() != 1 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    sandbox.stop().await;
    assert_eq!(processes_with(&marker), Vec::<PathBuf>::new());
}

fn processes_with(word: &str) -> Vec<PathBuf> {
    let processes = std::fs::read_dir("/proc").unwrap().flatten().map(|it| it.path());
    let has_word = |path: &PathBuf| {
        let command = std::fs::read(path.join("cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&command).split('\0').any(|it| it == word)
    };
    processes.filter(has_word).collect()
}
