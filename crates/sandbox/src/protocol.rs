//! What we, the launcher, the supervisors and the sandbox's init say to each other.
//!
//! Pure. Each message is one packet (see `channel`), beside which descriptors may travel. Both ends are the same
//! build, so there is no version.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::config::{Containment, Limits, Priority};

/// One thing in the sandbox's private root, made in the order of the plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RootEntry {
    pub path: String,
    pub thing: Thing,
}

/// What can be in a private root.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Thing {
    /// A directory everybody may read.
    Dir,
    /// A symbolic link that says this.
    Symlink(String),
    /// A small file that holds this.
    File(String),
    /// What the machine has in the same place, read-only; device nodes work only below `/dev`.
    Shown,
    /// A private, writable place for so many bytes.
    Tmpfs(u64),
    /// The process table of the sandbox.
    Proc,
    /// Nothing that anybody could read, over a file that is shown.
    Mask,
}

/// What asks the launcher for a supervisor; the socket beside it is what counts.
#[derive(Debug, Serialize, Deserialize)]
pub enum Fork {
    /// Said in so many words, because an empty message would mean that the socket is closed.
    Supervisor,
}

/// All that a supervisor must know to make a sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spec {
    pub root: Vec<RootEntry>,
    /// The directory whose descriptor is handed back.
    pub workspace: String,
    pub limits: Limits,
    /// Whose programs it is for.
    pub priority: Priority,
    /// Whether the machine's network is shared.
    pub network: bool,
    /// Whether there is to be no sandbox at all, only somebody who kills what programs leave behind.
    pub unprotected: bool,
}

/// A program to start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    /// Our name for it.
    pub job: u64,
    /// The program and its arguments.
    pub argv: Vec<String>,
    /// Where it starts, as the episode sees it.
    pub cwd: String,
    /// Its whole environment.
    pub env: Vec<(String, String)>,
}

/// What we ask of a running sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// Start a program. Its standard input, output and error travel beside the packet.
    Run(Run),
    /// Kill the session of the program of that name.
    Kill(u64),
    /// Tell how much processor time was used.
    Measure,
}

/// How a program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Exit {
    /// By itself.
    Code(i32),
    /// By a signal.
    Signal(i32),
    /// With its sandbox, so that nothing more is known.
    Lost,
}

impl From<ExitStatus> for Exit {
    fn from(status: ExitStatus) -> Self {
        let signal = || status.signal().map_or(Self::Lost, Self::Signal);
        status.code().map_or_else(signal, Self::Code)
    }
}

impl Exit {
    /// What a shell would put into `$?`; absent when it is not known.
    pub fn code(self) -> Option<i32> {
        match self {
            Self::Code(code) => Some(code),
            Self::Signal(signal) => Some(128 + signal),
            Self::Lost => None,
        }
    }
}

/// How a program ended, or the kernel's error number with which it could not be started.
pub type Ended = Result<Exit, i32>;

/// Why a sandbox is no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
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

/// What the kernel refused while a sandbox was being made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// What was being done.
    pub doing: String,
    /// The kernel's error number.
    pub errno: i32,
}

/// What the sandbox tells us.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// It cannot be made.
    Refused(Refusal),
    /// It runs, and these limits hold for the whole episode; the workspace's descriptor travels beside the packet.
    Ready(Containment),
    /// A program ended, or never began.
    Ended {
        /// Which one.
        job: u64,
        /// How.
        ended: Ended,
    },
    /// The processor time used so far.
    Measured(Duration),
    /// It is over; nothing comes after this.
    Over(End),
}

/// A message as bytes.
pub fn encode(message: &(impl Serialize + ?Sized)) -> io::Result<Vec<u8>> {
    postcard::to_allocvec(message).map_err(|_| io::ErrorKind::InvalidInput.into())
}

/// The message that bytes are, all of them. At most a mebibyte is set aside for what they only claim to hold.
pub fn decode<M: DeserializeOwned>(packet: &[u8]) -> io::Result<M> {
    match postcard::take_from_bytes(packet) {
        Ok((message, [])) => Ok(message),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Debug;

    use proptest::prelude::*;

    use super::*;

    fn texts() -> impl Strategy<Value = Vec<String>> {
        prop::collection::vec(".*", 0..6)
    }

    fn check<M: Serialize + DeserializeOwned + PartialEq + Debug>(message: M) -> Result<(), TestCaseError> {
        let decoded = encode(&message).and_then(|packet| decode(&packet)).ok();
        prop_assert_eq!(decoded, Some(message));
        Ok(())
    }

    proptest! {
        #[test]
        fn requests_survive_the_wire(job: u64, cwd in ".*", argv in texts(), names in texts()) {
            let env = names.iter().map(|name| (name.clone(), format!("{name}\0\n"))).collect();
            check(Request::Run(Run { job, argv, cwd, env }))?;
            check(Request::Kill(job))?;
            check(Request::Measure)?;
        }

        #[test]
        fn replies_survive_the_wire(job: u64, doing in ".*", errno: i32, flag: bool) {
            let contained = Containment {
                memory_per_episode: flag,
                processors_per_episode: flag,
                niceness_counts: !flag,
            };
            check(Reply::Refused(Refusal { doing, errno }))?;
            check(Reply::Ready(contained))?;
            for ended in [Err(errno), Ok(Exit::Code(errno)), Ok(Exit::Signal(errno)), Ok(Exit::Lost)] {
                check(Reply::Ended { job, ended })?;
            }
            check(Reply::Measured(Duration::from_nanos(job)))?;
            for end in [End::Stopped, End::WallClock, End::Memory, End::Signal(errno), End::Unknown] {
                check(Reply::Over(end))?;
            }
        }

        #[test]
        fn specs_survive_the_wire(path in ".*", text in ".*", size: u64, flag: bool) {
            let things = [
                Thing::Dir,
                Thing::Symlink(text.clone()),
                Thing::File(text),
                Thing::Shown,
                Thing::Tmpfs(size),
                Thing::Proc,
                Thing::Mask,
            ];
            let root = things.map(|thing| RootEntry { path: path.clone(), thing }).to_vec();
            let limits = Limits { memory: size, ..Limits::default() };
            let priority = if flag { Priority::Episode } else { Priority::Verifier };
            check(Spec { root, workspace: path, limits, priority, network: flag, unprotected: !flag })?;
        }

        #[test]
        fn no_packet_panics(packet: Vec<u8>) {
            let _ = (decode::<Spec>(&packet), decode::<Request>(&packet), decode::<Reply>(&packet));
        }
    }

    #[test]
    fn cut_and_padded_packets_are_refused() {
        let mut packet = encode(&Request::Kill(700)).unwrap_or_default();
        assert!(decode::<Request>(&packet).is_ok());
        assert!(decode::<Request>(&packet[..packet.len() - 1]).is_err());
        packet.push(0);
        assert!(decode::<Request>(&packet).is_err());
    }

    /// A packet may say that it holds more than there is.
    #[test]
    fn a_length_without_its_content_is_refused() {
        let run =
            encode(&Request::Run(Run { job: 1, argv: Vec::new(), cwd: String::new(), env: Vec::new() }));
        let mut packet = run.unwrap_or_default();
        let n_arguments = packet.len() - 3;
        packet.splice(n_arguments.., [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f]);
        assert!(decode::<Request>(&packet).is_err());
    }

    #[test]
    fn exits_have_the_code_a_shell_would_show() {
        let codes = [Exit::Code(3), Exit::Signal(9), Exit::Lost].map(Exit::code);
        assert_eq!(codes, [Some(3), Some(137), None]);
    }
}
