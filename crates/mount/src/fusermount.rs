//! Mounting without root's rights: `fusermount3`, which has them, makes the mount and hands the device over a socket.
//!
//! The end of a session unmounts nothing: if another filesystem has been mounted there meanwhile (after `fusermount3 -u
//! -z`, with files still open in the first), it would disappear.

use std::ffi::{OsStr, OsString};
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::io::{Errno, FdFlags};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType,
};

use crate::{AccessTimes, MountOptions};

const PROGRAM: &str = "fusermount3";
/// Where the program looks for its end of the socket.
const SOCKET_VARIABLE: &str = "_FUSE_COMMFD";

/// Mounts at `mountpoint` and gives the device that the session is served through.
pub fn mount(mountpoint: &Path, options: &MountOptions) -> io::Result<OwnedFd> {
    // Without CLOEXEC: the program is to inherit its end.
    let (ours, theirs) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::empty(), None)?;
    rustix::io::fcntl_setfd(&ours, FdFlags::CLOEXEC)?;
    let child = Command::new(PROGRAM)
        .arg("-o")
        .arg(words(options))
        .arg("--")
        .arg(mountpoint)
        .env(SOCKET_VARIABLE, theirs.as_raw_fd().to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(missing)?;
    drop(theirs);
    let device = receive(&ours);
    let output = child.wait_with_output()?;
    match device? {
        Some(device) if output.status.success() => Ok(device),
        _ => Err(io::Error::other(String::from_utf8_lossy(&output.stderr).trim().to_owned())),
    }
}

/// Ends the mount at `mountpoint`.
pub fn unmount(mountpoint: &Path, detach: bool) -> io::Result<()> {
    let mut command = Command::new(PROGRAM);
    command.arg("-u");
    if detach {
        command.arg("-z");
    }
    let output = command.arg("--").arg(mountpoint).stdin(Stdio::null()).output().map_err(missing)?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    if text.contains("busy") {
        return Err(Errno::BUSY.into());
    }
    Err(io::Error::other(text))
}

fn missing(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::NotFound => io::Error::other(
            "only root can do it without fusermount3, which is not installed (on Debian: apt install fuse3)",
        ),
        _ => error,
    }
}

/// `None`: the program has closed its end without sending anything.
fn receive(socket: &OwnedFd) -> io::Result<Option<OwnedFd>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0; 1];
    loop {
        let mut data = [IoSliceMut::new(&mut byte)];
        match rustix::net::recvmsg(socket, &mut data, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
            Ok(_) => break,
        }
    }
    let device = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    Ok(device)
}

/// The options as the program wants them. It knows nothing of `dev` and `suid` for ordinary users and forces the
/// opposites, and shows `relatime` unless told otherwise. It refuses `nodiratime`, which is ours to heed anyway: who serves
/// the mount notes the access times.
fn words(options: &MountOptions) -> OsString {
    let mut words = OsString::from("fsname=");
    words.push(escape(&options.source));
    words.push(",subtype=varve,default_permissions");
    let flags = options.flags;
    for (wanted, word) in [
        (flags.read_only, ",ro"),
        (flags.no_exec, ",noexec"),
        (flags.no_symlinks, ",nosymfollow"),
        (flags.access_times == AccessTimes::Never, ",noatime"),
        (flags.durable, ",sync"),
        (flags.durable_names, ",dirsync"),
        (options.allow_other, ",allow_other"),
    ] {
        if wanted {
            words.push(word);
        }
    }
    words
}

/// `fusermount3` splits its options at commas unless a backslash stands before them.
fn escape(text: &OsStr) -> OsString {
    let mut escaped = Vec::with_capacity(text.len());
    for byte in text.as_bytes() {
        if matches!(byte, b',' | b'\\') {
            escaped.push(b'\\');
        }
        escaped.push(*byte);
    }
    OsString::from_vec(escaped)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Flags;

    // Goal: a pool's name cannot smuggle in mount options. Method: a name with a comma and a backslash.
    #[test]
    fn sources_are_escaped() {
        assert_eq!(escape(OsStr::new("/a,allow_other\\b")), "/a\\,allow_other\\\\b");
        assert_eq!(escape(OsStr::new("/plain")), "/plain");
        let options = MountOptions {
            source: "a,b".into(),
            flags: Flags { read_only: true, durable: true, durable_names: true, ..Flags::default() },
            allow_other: false,
            threads: 1,
            direct_io: false,
            rings: crate::Rings::Offered,
        };
        assert_eq!(words(&options), "fsname=a\\,b,subtype=varve,default_permissions,ro,sync,dirsync");
    }
}
