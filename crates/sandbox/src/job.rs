//! One program in a sandbox, seen from our side: its output so far and its end.
//!
//! Owns the pipes and the task that empties them, so that a program can print without end and
//! nobody but itself is slowed down. How programs are started and killed is left to the backends.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe::Receiver;
use tokio::sync::{oneshot, watch};

use super::capture::Capture;
use super::protocol::{Ended, Exit};
use super::sys::lock;

/// After a program ended, this much of what its children still print is read.
const MAX_AFTER_EXIT: usize = 1 << 20;
const CHUNK: usize = 64 << 10;

/// The standard input of a program, as far as we can still write to it.
#[derive(Clone, Debug, Default)]
pub struct Input(Arc<Mutex<Option<OwnedFd>>>);

impl Input {
    /// An input that is written to while its program runs.
    pub fn open(writer: OwnedFd) -> io::Result<Self> {
        // A program that does not read must not make us wait.
        rustix::io::ioctl_fionbio(&writer, true)?;
        Ok(Self(Arc::new(Mutex::new(Some(writer)))))
    }

    /// Writes as many of `bytes` as the program has room for; how many. A closed input is a broken pipe.
    pub fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        let held = lock(&self.0);
        let writer = held.as_ref().ok_or(io::ErrorKind::BrokenPipe)?;
        let mut n_written = 0;
        while n_written < bytes.len() {
            match rustix::io::retry_on_intr(|| rustix::io::write(writer, &bytes[n_written..])) {
                Ok(n_bytes) => n_written += n_bytes,
                Err(rustix::io::Errno::AGAIN) => break,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(n_written)
    }

    /// Ends it: the program reads the end when it has read the rest.
    pub fn close(&self) {
        lock(&self.0).take();
    }
}

#[derive(Clone, Debug)]
pub struct Job {
    /// What it was called with, for people.
    pub command: String,
    /// When it was started.
    pub started: Instant,
    pub input: Input,
    output: Arc<Mutex<Capture>>,
    end: watch::Receiver<Option<(Ended, Duration)>>,
}

impl Job {
    /// Watches a program that was started with the other end of `output` as its standard error or output.
    pub fn watch(
        command: String,
        input: Input,
        output: OwnedFd,
        cap: usize,
        ended: oneshot::Receiver<Ended>,
    ) -> io::Result<Self> {
        let receiver = Receiver::from_owned_fd(output)?;
        let capture = Arc::new(Mutex::new(Capture::new(cap)));
        let (sender, end) = watch::channel(None);
        let started = Instant::now();
        tokio::spawn(pump(receiver, Arc::clone(&capture), ended, sender, started));
        Ok(Self { command, started, input, output: capture, end })
    }

    /// Waits for the end.
    pub async fn wait(&self) -> (Ended, Duration) {
        let mut end = self.end.clone();
        let end = end.wait_for(Option::is_some).await.ok().and_then(|it| *it);
        end.unwrap_or_else(|| (Ok(Exit::Lost), self.started.elapsed()))
    }

    /// How it ended, if it did.
    pub fn ended(&self) -> Option<(Ended, Duration)> {
        *self.end.borrow()
    }

    /// What it printed so far.
    pub fn output(&self) -> Capture {
        lock(&self.output).clone()
    }
}

/// Empties the pipe until the program ends, then takes what is left in it.
async fn pump(
    mut receiver: Receiver,
    capture: Arc<Mutex<Capture>>,
    mut ended: oneshot::Receiver<Ended>,
    sender: watch::Sender<Option<(Ended, Duration)>>,
    started: Instant,
) {
    let mut buffer = vec![0; CHUNK];
    let mut is_open = true;
    let end = loop {
        tokio::select! {
            end = &mut ended => break end.unwrap_or(Ok(Exit::Lost)),
            read = receiver.read(&mut buffer), if is_open => match read {
                Ok(n_bytes @ 1..) => lock(&capture).push(&buffer[..n_bytes]),
                _ => is_open = false,
            },
        }
    };
    take_rest(&receiver, &capture, &mut buffer);
    // Nobody may be waiting any more.
    let _ = sender.send(Some((end, started.elapsed())));
}

/// Takes what a program that has ended left in its pipe. The kernel is asked itself: the runtime may not
/// have heard yet that there is something to read, and would say that there is nothing.
fn take_rest(receiver: &Receiver, capture: &Mutex<Capture>, buffer: &mut [u8]) {
    let mut n_taken = 0;
    while n_taken < MAX_AFTER_EXIT
        && let Ok(n_bytes @ 1..) = rustix::io::retry_on_intr(|| rustix::io::read(receiver, &mut *buffer))
    {
        lock(capture).push(&buffer[..n_bytes]);
        n_taken += n_bytes;
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use std::io::Write as _;

    use super::*;

    /// A program may have ended before its pipe is known to the runtime.
    #[tokio::test]
    async fn what_was_printed_before_anybody_watched_is_taken() {
        for n_bytes in [1, 60_000] {
            let (reader, mut writer) = io::pipe().unwrap();
            let (sender, ended) = oneshot::channel();
            writer.write_all(&vec![b'x'; n_bytes]).unwrap();
            drop(writer);
            sender.send(Ok(Exit::Code(0))).unwrap();
            let job = Job::watch("x".to_owned(), Input::default(), reader.into(), 1 << 20, ended).unwrap();
            assert_eq!(job.wait().await.0, Ok(Exit::Code(0)));
            assert_eq!(job.output().text().len(), n_bytes);
        }
    }
}
