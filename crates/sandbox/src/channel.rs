//! Messages and descriptors over a sequenced Unix socket.
//!
//! Owns sending and receiving one message, as one packet with the descriptors that travel beside it, blocking for
//! the launcher's side and asynchronous for ours. What messages there are is left to `protocol`.

use std::io;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::protocol::{decode, encode};
use super::sys;

/// The largest packet; what a Unix socket takes by default is a little more.
pub const MAX_PACKET: usize = 200 << 10;
/// The most descriptors beside one packet.
pub const MAX_DESCRIPTORS: usize = 4;

/// A message and the descriptors beside it, which are closed on exec.
pub type Received<M> = (M, Vec<OwnedFd>);

/// Two connected ends, closed on exec.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = SocketFlags::CLOEXEC;
    Ok(socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

pub fn send(
    socket: impl AsFd,
    message: &(impl Serialize + ?Sized),
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let packet = encode(message)?;
    if packet.len() > MAX_PACKET {
        return Err(io::ErrorKind::ArgumentListTooLong.into());
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    sendmsg(socket, &[IoSlice::new(&packet)], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Receives one message; none when the other end is closed.
pub fn receive<M: DeserializeOwned>(socket: impl AsFd) -> io::Result<Option<Received<M>>> {
    let mut packet = vec![0; MAX_PACKET];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut slices = [IoSliceMut::new(&mut packet)];
    let n_bytes = recvmsg(socket, &mut slices, &mut control, RecvFlags::CMSG_CLOEXEC)?.bytes;
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            descriptors.extend(received);
        }
    }
    if n_bytes == 0 {
        return Ok(None);
    }
    Ok(Some((decode(&packet[..n_bytes])?, descriptors)))
}

/// Our end, for use by the async runtime.
#[derive(Debug)]
pub struct Channel(AsyncFd<OwnedFd>);

impl Channel {
    /// Takes one end of a pair.
    pub fn new(socket: OwnedFd) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&socket, true)?;
        Ok(Self(sys::register(socket)?))
    }

    /// Sends one message, waiting for room.
    pub async fn send(
        &self,
        message: &(impl Serialize + ?Sized),
        descriptors: &[BorrowedFd<'_>],
    ) -> io::Result<()> {
        self.0.async_io(Interest::WRITABLE, |socket| send(socket, message, descriptors)).await
    }

    /// Receives one message, waiting for it; none when the other end is closed.
    pub async fn receive<M: DeserializeOwned>(&self) -> io::Result<Option<Received<M>>> {
        self.0.async_io(Interest::READABLE, |socket| receive(socket)).await
    }

    /// Tells the other end that nothing more comes, while its last packets can still be read.
    pub fn close(&self) {
        // A socket whose other end is gone cannot be shut down, and need not be.
        let _ = rustix::net::shutdown(self.0.get_ref(), rustix::net::Shutdown::Write);
    }
}
