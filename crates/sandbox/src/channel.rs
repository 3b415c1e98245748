//! A socket between the executor and a stage: whole messages, some with descriptors.

use std::io::{self, IoSlice, IoSliceMut, Read, Seek, SeekFrom, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags,
    SocketType, recv, recvmsg, sendmsg, socketpair,
};

/// The most that is sent as it is; what is longer goes through a file in memory.
const INLINE: usize = 60 << 10;
const MAX_DESCRIPTORS: usize = 8;
const WHOLE: u8 = 0;
const IN_FILE: u8 = 1;

/// One end.
#[derive(Debug)]
pub struct Channel(OwnedFd);

#[derive(Debug)]
pub struct ChannelMessage {
    pub bytes: Vec<u8>,
    pub descriptors: Vec<OwnedFd>,
}

/// Two connected ends; the first one never waits.
pub(crate) fn pair() -> io::Result<(Channel, Channel)> {
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    rustix::io::ioctl_fionbio(&ours, true)?;
    Ok((Channel(ours), Channel(theirs)))
}

impl Channel {
    pub fn from_descriptor(descriptor: OwnedFd) -> Self {
        Self(descriptor)
    }

    pub fn into_descriptor(self) -> OwnedFd {
        self.0
    }

    pub fn send(&self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        send(self.0.as_fd(), bytes, descriptors)
    }

    /// The next message, or nothing at the end.
    pub fn receive(&self) -> io::Result<Option<ChannelMessage>> {
        receive(self.0.as_fd())
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

pub(crate) fn send(socket: BorrowedFd<'_>, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    if bytes.len() <= INLINE {
        return send_packet(socket, WHOLE, bytes, descriptors);
    }
    let mut file = std::fs::File::from(memfd_create("launch", MemfdFlags::CLOEXEC)?);
    file.write_all(bytes)?;
    let mut all = vec![file.as_fd()];
    all.extend_from_slice(descriptors);
    send_packet(socket, IN_FILE, &[], &all)
}

fn send_packet(socket: BorrowedFd<'_>, kind: u8, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(Errno::TOOBIG.into());
    }
    let parts = [IoSlice::new(std::slice::from_ref(&kind)), IoSlice::new(bytes)];
    loop {
        match sendmsg(socket, &parts, &mut control, SendFlags::NOSIGNAL) {
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// How long the next message is; nothing at the end. Most are small, and room for the longest one would cost more than to look.
fn next_length(socket: BorrowedFd<'_>) -> io::Result<Option<usize>> {
    loop {
        match recv(socket, &mut [0_u8], RecvFlags::PEEK | RecvFlags::TRUNC) {
            Ok((_, 0)) | Err(Errno::CONNRESET) => return Ok(None),
            Ok((_, length)) => return Ok(Some(length)),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

pub(crate) fn receive(socket: BorrowedFd<'_>) -> io::Result<Option<ChannelMessage>> {
    let Some(length) = next_length(socket)? else { return Ok(None) };
    let (mut kind, mut bytes) = (WHOLE, vec![0; length - 1]);
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let length = loop {
        let mut parts = [IoSliceMut::new(std::slice::from_mut(&mut kind)), IoSliceMut::new(&mut bytes)];
        match recvmsg(socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Ok(received) => break received.bytes,
            Err(Errno::INTR) => {}
            // A stage that was killed with something unread says so instead of a plain end.
            Err(Errno::CONNRESET) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
    };
    if length == 0 {
        return Ok(None);
    }
    bytes.truncate(length - 1);
    let mut descriptors: Vec<OwnedFd> = control
        .drain()
        .filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
            _ => None,
        })
        .flatten()
        .collect();
    if kind == IN_FILE && !descriptors.is_empty() {
        let mut file = std::fs::File::from(descriptors.remove(0));
        file.seek(SeekFrom::Start(0))?;
        bytes.clear();
        file.read_to_end(&mut bytes)?;
    }
    Ok(Some(ChannelMessage { bytes, descriptors }))
}
