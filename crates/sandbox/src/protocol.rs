//! What we, the launcher and the sandbox's init say to each other: packets of length-prefixed fields.
//!
//! Pure. One packet is one datagram of a sequenced socket; descriptors that belong to it travel
//! beside it (see `channel`). Both ends are the same build, so there is no version.

use std::time::Duration;

use super::config::{Containment, Limits, Priority};

/// One thing in the sandbox's private root, made in the order of the plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RootEntry {
    /// A directory everybody may read.
    Dir(String),
    /// A symbolic link.
    Symlink {
        /// Where it is.
        path: String,
        /// What it says.
        target: String,
    },
    /// A small file.
    File {
        /// Where it is.
        path: String,
        /// What it holds.
        text: String,
    },
    /// Something of the machine, read-only.
    Bind {
        /// Its place on the machine.
        source: String,
        /// Its place in the sandbox.
        path: String,
        /// Whether device nodes work there.
        devices: bool,
    },
    /// A private, writable place of limited size.
    Tmpfs {
        /// Where it is.
        path: String,
        /// How many bytes it may hold.
        size: u64,
    },
    /// The process table of the sandbox.
    Proc(String),
    /// A file in something shown that nobody may read.
    Mask(String),
}

/// All that the launcher must know to make a sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spec {
    /// The private root.
    pub root: Vec<RootEntry>,
    /// The directory whose descriptor is handed back.
    pub workspace: String,
    /// The limits.
    pub limits: Limits,
    /// Whose programs it is for.
    pub priority: Priority,
    /// Whether the machine's network is shared.
    pub network: bool,
    /// Whether there is to be no sandbox at all, only somebody who kills what programs leave behind.
    pub unprotected: bool,
}

/// What we ask of a running sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Start a program. Its standard input, output and error travel beside the packet.
    Run {
        /// Our name for it.
        job: u64,
        /// Where it starts.
        cwd: String,
        /// The program and its arguments.
        argv: Vec<String>,
        /// Its whole environment.
        env: Vec<(String, String)>,
    },
    /// Kill a program's session.
    Kill {
        /// Which one.
        job: u64,
    },
    /// Tell how much processor time was used.
    Measure,
}

/// How a program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// By itself.
    Code(i32),
    /// By a signal.
    Signal(i32),
    /// With its sandbox, so that nothing more is known.
    Lost,
}

/// Why a sandbox is no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Its owner wanted that.
    Stopped,
    /// Its time was over.
    WallClock,
    /// Its first process was killed because the episode's memory was used up.
    Memory,
    /// Its first process was killed by a signal of somebody else's.
    Signal(i32),
    /// Nobody was left to tell.
    Unknown,
}

/// What the sandbox tells us.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// It cannot be made.
    Failed {
        /// What was being done.
        step: String,
        /// The kernel's error number.
        errno: i32,
    },
    /// Which limits hold for the whole episode; comes before `Ready`.
    Contained(Containment),
    /// It runs; the workspace's descriptor travels beside the packet.
    Ready,
    /// A program could not be started.
    NotStarted {
        /// Which one.
        job: u64,
        /// The kernel's error number.
        errno: i32,
    },
    /// A program ended.
    Exited {
        /// Which one.
        job: u64,
        /// How.
        exit: Exit,
    },
    /// The processor time used so far.
    Measured(Duration),
    /// It is over; nothing comes after this.
    Over(End),
}

/// A packet that is not one of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the sandbox sent a packet that cannot be read")]
pub struct BadPacket;

/// Writes fields into a packet.
struct Writer(Vec<u8>);

impl Writer {
    fn new(kind: &str) -> Self {
        Self(Vec::new()).text(kind)
    }

    fn text(mut self, text: &str) -> Self {
        self.0.extend((text.len() as u32).to_le_bytes());
        self.0.extend(text.as_bytes());
        self
    }

    fn number(self, number: impl Into<i128>) -> Self {
        let number: i128 = number.into();
        self.text(&number.to_string())
    }

    fn texts<'a>(self, texts: impl IntoIterator<Item = &'a str>) -> Self {
        texts.into_iter().fold(self, Self::text)
    }
}

/// Takes fields out of a packet.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn text(&mut self) -> Result<&'a str, BadPacket> {
        let (len, rest) = self.0.split_first_chunk::<4>().ok_or(BadPacket)?;
        let len = u32::from_le_bytes(*len) as usize;
        let (text, rest) = rest.split_at_checked(len).ok_or(BadPacket)?;
        self.0 = rest;
        str::from_utf8(text).map_err(|_| BadPacket)
    }

    fn owned(&mut self) -> Result<String, BadPacket> {
        self.text().map(str::to_owned)
    }

    fn number<T: std::str::FromStr>(&mut self) -> Result<T, BadPacket> {
        self.text()?.parse().map_err(|_| BadPacket)
    }

    fn flag(&mut self) -> Result<bool, BadPacket> {
        Ok(self.number::<u8>()? != 0)
    }

    fn list<T>(&mut self, item: impl Fn(&mut Self) -> Result<T, BadPacket>) -> Result<Vec<T>, BadPacket> {
        let n_items: usize = self.number()?;
        (0..n_items).map(|_| item(self)).collect()
    }

    fn end<T>(&self, value: T) -> Result<T, BadPacket> {
        if self.0.is_empty() { Ok(value) } else { Err(BadPacket) }
    }
}

impl RootEntry {
    fn write(&self, to: Writer) -> Writer {
        match self {
            Self::Dir(path) => to.texts(["dir", path]),
            Self::Symlink { path, target } => to.texts(["symlink", path, target]),
            Self::File { path, text } => to.texts(["file", path, text]),
            Self::Bind { source, path, devices } => to.texts(["bind", source, path]).number(*devices as u8),
            Self::Tmpfs { path, size } => to.texts(["tmpfs", path]).number(*size),
            Self::Proc(path) => to.texts(["proc", path]),
            Self::Mask(path) => to.texts(["mask", path]),
        }
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, BadPacket> {
        Ok(match from.text()? {
            "dir" => Self::Dir(from.owned()?),
            "symlink" => Self::Symlink { path: from.owned()?, target: from.owned()? },
            "file" => Self::File { path: from.owned()?, text: from.owned()? },
            "bind" => Self::Bind { source: from.owned()?, path: from.owned()?, devices: from.flag()? },
            "tmpfs" => Self::Tmpfs { path: from.owned()?, size: from.number()? },
            "proc" => Self::Proc(from.owned()?),
            "mask" => Self::Mask(from.owned()?),
            _ => return Err(BadPacket),
        })
    }
}

impl Spec {
    /// The packet.
    pub fn encode(&self) -> Vec<u8> {
        let head = Writer::new("spec").text(&self.workspace).number(self.network as u8);
        let head = self.priority.write(head).number(self.unprotected as u8);
        let limits = write_limits(&self.limits, head).number(self.root.len() as u64);
        self.root.iter().fold(limits, |to, entry| entry.write(to)).0
    }

    /// Reads the packet.
    pub fn decode(packet: &[u8]) -> Result<Self, BadPacket> {
        let mut from = Reader(packet);
        if from.text()? != "spec" {
            return Err(BadPacket);
        }
        let (workspace, network) = (from.owned()?, from.flag()?);
        let (priority, unprotected) = (Priority::read(&mut from)?, from.flag()?);
        let limits = read_limits(&mut from)?;
        let root = from.list(RootEntry::read)?;
        from.end(Self { root, workspace, limits, priority, network, unprotected })
    }
}

impl Priority {
    fn write(self, to: Writer) -> Writer {
        to.text(match self {
            Self::Episode => "episode",
            Self::Verifier => "verifier",
        })
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, BadPacket> {
        match from.text()? {
            "episode" => Ok(Self::Episode),
            "verifier" => Ok(Self::Verifier),
            _ => Err(BadPacket),
        }
    }
}

fn write_limits(limits: &Limits, to: Writer) -> Writer {
    let Limits { memory, processes, file_size, cpu_seconds, open_files, workspace, scratch, wall_seconds } =
        limits;
    let all = [memory, processes, file_size, cpu_seconds, open_files, workspace, scratch, wall_seconds];
    all.into_iter().fold(to, |to, limit| to.number(*limit))
}

fn read_limits(from: &mut Reader<'_>) -> Result<Limits, BadPacket> {
    Ok(Limits {
        memory: from.number()?,
        processes: from.number()?,
        file_size: from.number()?,
        cpu_seconds: from.number()?,
        open_files: from.number()?,
        workspace: from.number()?,
        scratch: from.number()?,
        wall_seconds: from.number()?,
    })
}

impl Request {
    /// The packet.
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::Run { job, cwd, argv, env } => {
                let head = Writer::new("run").number(*job).text(cwd).number(argv.len() as u64);
                let head = head.texts(argv.iter().map(String::as_str)).number(env.len() as u64);
                env.iter().fold(head, |to, (name, value)| to.text(name).text(value)).0
            }
            Self::Kill { job } => Writer::new("kill").number(*job).0,
            Self::Measure => Writer::new("measure").0,
        }
    }

    /// Reads the packet.
    pub fn decode(packet: &[u8]) -> Result<Self, BadPacket> {
        let mut from = Reader(packet);
        let request = match from.text()? {
            "run" => Self::Run {
                job: from.number()?,
                cwd: from.owned()?,
                argv: from.list(Reader::owned)?,
                env: from.list(|from| Ok((from.owned()?, from.owned()?)))?,
            },
            "kill" => Self::Kill { job: from.number()? },
            "measure" => Self::Measure,
            _ => return Err(BadPacket),
        };
        from.end(request)
    }
}

impl Exit {
    fn write(self, to: Writer) -> Writer {
        match self {
            Self::Code(code) => to.text("code").number(code),
            Self::Signal(signal) => to.text("signal").number(signal),
            Self::Lost => to.text("lost"),
        }
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, BadPacket> {
        Ok(match from.text()? {
            "code" => Self::Code(from.number()?),
            "signal" => Self::Signal(from.number()?),
            "lost" => Self::Lost,
            _ => return Err(BadPacket),
        })
    }

    /// What a shell would put into `$?`; absent when it is not known.
    pub fn code(self) -> Option<i32> {
        match self {
            Self::Code(code) => Some(code),
            Self::Signal(signal) => Some(128 + signal),
            Self::Lost => None,
        }
    }
}

impl End {
    fn write(self, to: Writer) -> Writer {
        match self {
            Self::Stopped => to.text("stopped"),
            Self::WallClock => to.text("wall clock"),
            Self::Memory => to.text("memory"),
            Self::Signal(signal) => to.text("signal").number(signal),
            Self::Unknown => to.text("unknown"),
        }
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, BadPacket> {
        Ok(match from.text()? {
            "stopped" => Self::Stopped,
            "wall clock" => Self::WallClock,
            "memory" => Self::Memory,
            "signal" => Self::Signal(from.number()?),
            "unknown" => Self::Unknown,
            _ => return Err(BadPacket),
        })
    }
}

impl Reply {
    /// The packet.
    pub fn encode(&self) -> Vec<u8> {
        let packet = match self {
            Self::Failed { step, errno } => Writer::new("failed").text(step).number(*errno),
            Self::Contained(it) => Writer::new("contained")
                .number(it.memory_per_episode as u8)
                .number(it.processes_by_cgroup as u8)
                .number(it.processors_per_episode as u8)
                .number(it.niceness_counts as u8),
            Self::Ready => Writer::new("ready"),
            Self::NotStarted { job, errno } => Writer::new("not started").number(*job).number(*errno),
            Self::Exited { job, exit } => exit.write(Writer::new("exited").number(*job)),
            Self::Measured(used) => Writer::new("measured").number(used.as_nanos() as u64),
            Self::Over(end) => end.write(Writer::new("over")),
        };
        packet.0
    }

    /// Reads the packet.
    pub fn decode(packet: &[u8]) -> Result<Self, BadPacket> {
        let mut from = Reader(packet);
        let reply = match from.text()? {
            "failed" => Self::Failed { step: from.owned()?, errno: from.number()? },
            "contained" => Self::Contained(Containment {
                memory_per_episode: from.flag()?,
                processes_by_cgroup: from.flag()?,
                processors_per_episode: from.flag()?,
                niceness_counts: from.flag()?,
            }),
            "ready" => Self::Ready,
            "not started" => Self::NotStarted { job: from.number()?, errno: from.number()? },
            "exited" => Self::Exited { job: from.number()?, exit: Exit::read(&mut from)? },
            "measured" => Self::Measured(Duration::from_nanos(from.number()?)),
            "over" => Self::Over(End::read(&mut from)?),
            _ => return Err(BadPacket),
        };
        from.end(reply)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn texts() -> impl Strategy<Value = Vec<String>> {
        prop::collection::vec(".*", 0..6)
    }

    proptest! {
        #[test]
        fn requests_survive_the_wire(job: u64, cwd in ".*", argv in texts(), names in texts()) {
            let env = names.iter().map(|name| (name.clone(), format!("{name}\0\n"))).collect();
            let run = Request::Run { job, cwd, argv, env };
            prop_assert_eq!(Request::decode(&run.encode()), Ok(run));
            for request in [Request::Kill { job }, Request::Measure] {
                prop_assert_eq!(Request::decode(&request.encode()), Ok(request));
            }
        }

        #[test]
        fn replies_survive_the_wire(job: u64, step in ".*", errno: i32, flag: bool) {
            let contained = Containment {
                memory_per_episode: flag,
                processes_by_cgroup: !flag,
                processors_per_episode: flag,
                niceness_counts: !flag,
            };
            let ends = [End::Stopped, End::WallClock, End::Memory, End::Signal(errno), End::Unknown];
            let replies = [
                Reply::Failed { step, errno },
                Reply::Contained(contained),
                Reply::Ready,
                Reply::NotStarted { job, errno },
                Reply::Exited { job, exit: Exit::Code(errno) },
                Reply::Exited { job, exit: Exit::Signal(errno) },
                Reply::Exited { job, exit: Exit::Lost },
                Reply::Measured(Duration::from_nanos(job)),
            ];
            for reply in replies.into_iter().chain(ends.map(Reply::Over)) {
                prop_assert_eq!(Reply::decode(&reply.encode()), Ok(reply));
            }
        }

        #[test]
        fn specs_survive_the_wire(path in ".*", other in ".*", size: u64, flag: bool) {
            let (source, target, text) = (other.clone(), other.clone(), other);
            let root = vec![
                RootEntry::Dir(path.clone()),
                RootEntry::Symlink { path: path.clone(), target },
                RootEntry::File { path: path.clone(), text },
                RootEntry::Bind { source, path: path.clone(), devices: flag },
                RootEntry::Tmpfs { path: path.clone(), size },
                RootEntry::Proc(path.clone()),
                RootEntry::Mask(path.clone()),
            ];
            let limits = Limits { memory: size, ..Limits::default() };
            let priority = if flag { Priority::Episode } else { Priority::Verifier };
            let spec = Spec { root, workspace: path, limits, priority, network: flag, unprotected: !flag };
            prop_assert_eq!(Spec::decode(&spec.encode()), Ok(spec));
        }

        #[test]
        fn no_packet_panics(packet: Vec<u8>) {
            let _ = (Spec::decode(&packet), Request::decode(&packet), Reply::decode(&packet));
        }
    }

    #[test]
    fn cut_and_padded_packets_are_refused() {
        let mut packet = Request::Kill { job: 7 }.encode();
        assert_eq!(Request::decode(&packet[..packet.len() - 1]), Err(BadPacket));
        packet.push(0);
        assert_eq!(Request::decode(&packet), Err(BadPacket));
    }

    #[test]
    fn exits_have_the_code_a_shell_would_show() {
        let codes = [Exit::Code(3), Exit::Signal(9), Exit::Lost].map(Exit::code);
        assert_eq!(codes, [Some(3), Some(137), None]);
    }
}
