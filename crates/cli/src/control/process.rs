//! Who is at the other end of a connection. Either end may be in a PID namespace of its own, as in a container, where processes have other
//! numbers: the kernel says the number that the other has here, or 0 if it has none, and a descriptor of a process is the same everywhere.

use std::fs;
use std::io::{self, IoSlice, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::unix::net::UnixStream;

use nix::sys::socket::{UnixCredentials, getsockopt, sockopt::PeerCredentials};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use rustix::process::{PidfdFlags, getpid, pidfd_open};
use serde_json::{Value, json};

/// Not by rustix, whose type has no process 0.
pub fn credentials(stream: &UnixStream) -> io::Result<UnixCredentials> {
    Ok(getsockopt(stream, PeerCredentials)?)
}

/// A name for this process that no other has while it lives: its number, and where it has that.
pub fn name() -> Value {
    let namespace = fs::read_link("/proc/self/ns/pid").ok();
    json!({ "pid": std::process::id(), "pid_namespace": namespace.map(|is| is.to_string_lossy().into_owned()) })
}

/// Sends a line, and with it a descriptor of this process, if there can be one.
pub fn send_with_process(mut stream: &UnixStream, line: &[u8]) -> io::Result<()> {
    let process = pidfd_open(getpid(), PidfdFlags::empty());
    let process = process.as_ref().map(|process| [process.as_fd()]);
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if let Ok(process) = &process {
        // There is room for one.
        control.push(SendAncillaryMessage::ScmRights(process));
    }
    let sent = loop {
        match sendmsg(stream, &[IoSlice::new(line)], &mut control, SendFlags::NOSIGNAL) {
            Err(Errno::INTR) => {}
            sent => break sent?,
        }
    };
    stream.write_all(&line[sent..])
}

/// The process whose descriptor comes with the next line, which can be read afterwards: ready to be read when it has ended. `None`: none comes,
/// since an earlier version answers, or nobody.
pub fn peek_process(stream: &UnixStream) -> Option<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::PEEK | RecvFlags::CMSG_CLOEXEC;
    while let Err(error) = recvmsg(stream, &mut [IoSliceMut::new(&mut [0; 1])], &mut control, flags) {
        if error != Errno::INTR {
            return None;
        }
    }
    control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut processes) => processes.next(),
        _ => None,
    })
}
