//! Brings up the loopback of a fresh network namespace, so that programs can talk to themselves.
//!
//! One route-netlink message, written out byte by byte: `RTM_NEWLINK` for interface 1 with the flag
//! `IFF_UP`, asking for an acknowledgement.

use std::io;

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with};

const RTM_NEWLINK: u16 = 16;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;
const IFF_UP: u32 = 1;
const LOOPBACK: u32 = 1;

pub fn up() -> io::Result<()> {
    let kind = (SocketType::RAW, SocketFlags::CLOEXEC);
    // Protocol zero is the routing family.
    let socket = socket_with(AddressFamily::NETLINK, kind.0, kind.1, None)?;
    send(&socket, &message(), SendFlags::empty())?;
    let mut answer = [0u8; 512];
    let (n_bytes, _) = recv(&socket, &mut answer, RecvFlags::empty())?;
    acknowledged(&answer[..n_bytes])
}

/// Header (length, type, flags, sequence, port), then `struct ifinfomsg`.
fn message() -> Vec<u8> {
    let mut body = Vec::new();
    body.extend([libc::AF_UNSPEC as u8, 0]);
    body.extend(0u16.to_ne_bytes());
    body.extend(LOOPBACK.to_ne_bytes());
    body.extend(IFF_UP.to_ne_bytes());
    body.extend(IFF_UP.to_ne_bytes());
    let mut message = Vec::new();
    message.extend((16 + body.len() as u32).to_ne_bytes());
    message.extend(RTM_NEWLINK.to_ne_bytes());
    message.extend((NLM_F_REQUEST | NLM_F_ACK).to_ne_bytes());
    message.extend([0; 8]);
    message.extend(body);
    message
}

/// An acknowledgement is an error message with the number zero after its header.
fn acknowledged(answer: &[u8]) -> io::Result<()> {
    let number = answer.get(16..20).and_then(|it| it.first_chunk::<4>()).map(|it| i32::from_ne_bytes(*it));
    match number {
        Some(0) => Ok(()),
        Some(errno) => Err(io::Error::from_raw_os_error(-errno)),
        None => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_says_its_own_length() {
        let message = message();
        assert_eq!(message.len(), 32);
        assert_eq!(message.first_chunk::<4>().map(|it| u32::from_ne_bytes(*it)), Some(32));
    }

    #[test]
    fn a_refusal_is_an_error() {
        let refusal = [vec![0; 16], (-libc::EPERM).to_ne_bytes().to_vec()].concat();
        assert_eq!(acknowledged(&refusal).map_err(|it| it.raw_os_error()), Err(Some(libc::EPERM)));
        assert!(acknowledged(&[0; 20]).is_ok());
        assert!(acknowledged(&[]).is_err());
    }
}
