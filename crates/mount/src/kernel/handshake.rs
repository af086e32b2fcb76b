//! How a mount begins: the kernel says what it knows, and is told what it may do.

use std::io;
use std::sync::Arc;

use rustix::io::Errno;
use varve_device::AlignedBuf;

use super::WRITE_BYTES_MAX;
use super::abi::{self, InHeader, InitIn, InitOut, init, opcode};
use super::device::Device;
use super::reply::Reply;
use super::request::{self, HEAD_BYTES};

/// Read-ahead and other background requests that may be under way.
const BACKGROUND_MAX: u16 = 64;
/// The kernel holds whoever causes more back from this many on.
const CONGESTION: u16 = BACKGROUND_MAX / 4 * 3;

/// What is asked of the kernel, where it knows it. Not in the list, and why: WRITEBACK_CACHE (the kernel would accept
/// writes that have no space); POSIX_LOCKS and FLOCK_LOCKS (the kernel keeps locks of one machine by itself);
/// AUTO_INVAL_DATA (nobody else changes the data); ATOMIC_O_TRUNC (the kernel would have the file cut before it looks
/// whether it is being executed, and refuse the open afterwards).
const CAPABILITIES: [(u64, &str); 16] = [
    (init::ASYNC_READ, "ASYNC_READ"),
    // Handles of files stay good when the kernel has forgotten the node, and after the next mount.
    (init::EXPORT_SUPPORT, "EXPORT_SUPPORT"),
    (init::BIG_WRITES, "BIG_WRITES"),
    (init::MAX_PAGES, "MAX_PAGES"),
    (init::INIT_EXT, "INIT_EXT"),
    (init::ASYNC_DIO, "ASYNC_DIO"),
    (init::CACHE_SYMLINKS, "CACHE_SYMLINKS"),
    // Whether the umask applies depends on the directory's default access control list.
    (init::DONT_MASK, "DONT_MASK"),
    (init::DO_READDIRPLUS, "DO_READDIRPLUS"),
    (init::READDIRPLUS_AUTO, "READDIRPLUS_AUTO"),
    (init::HANDLE_KILLPRIV_V2, "HANDLE_KILLPRIV_V2"),
    (init::NO_OPENDIR_SUPPORT, "NO_OPENDIR_SUPPORT"),
    (init::PARALLEL_DIROPS, "PARALLEL_DIROPS"),
    (init::POSIX_ACL, "POSIX_ACL"),
    // The kernel says whether an access control list ends the set-group-id bit.
    (init::SETXATTR_EXT, "SETXATTR_EXT"),
    // With the mount option direct_io, too: SQLite's WAL and gdbm need it.
    (init::DIRECT_IO_ALLOW_MMAP, "DIRECT_IO_ALLOW_MMAP"),
];

/// What has been agreed on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Agreed {
    flags: u64,
    /// The minor version up to which the kernel is trusted.
    minor: u32,
}

impl Agreed {
    /// The kernel takes ENOSYS to opendir as "never ask again".
    pub fn opendir_without_message(self) -> bool {
        self.flags & init::NO_OPENDIR_SUPPORT != 0
    }

    /// Requests say whether set-id bits are to go.
    pub fn says_kill(self) -> bool {
        self.flags & init::HANDLE_KILLPRIV_V2 != 0
    }

    /// The kernel has looked whether a caller may set flags (chattr) before it asks: Linux does so since 5.13.
    pub fn judges_flags(self) -> bool {
        self.minor >= abi::MINOR_JUDGES_FLAGS
    }

    /// The kernel has taken set-group-id from what is made in a directory with that bit by whoever is not in its group and lacks
    /// CAP_FSETID: Linux does so since 6.0, whatever the filesystem.
    pub fn judges_set_gid(self) -> bool {
        self.minor >= abi::MINOR_JUDGES_SET_GID
    }

    /// Requests come through rings, once there is a seat at each queue.
    pub fn over_rings(self) -> bool {
        self.flags & init::OVER_IO_URING != 0
    }

    /// [`opcode::SETXATTR`] has its longer form.
    pub fn setxattr_ext(self) -> bool {
        self.flags & init::SETXATTR_EXT != 0
    }
}

/// Answers the first request of a mount, which says what the kernel knows. Rings are agreed on where it has them and `rings`
/// allows it.
pub fn shake_hands(device: &Arc<Device>, rings: bool) -> io::Result<Agreed> {
    // As much room as the kernel wants for any request.
    let (mut head, mut payload) = ([0; HEAD_BYTES], AlignedBuf::new(8192));
    loop {
        let gone = || io::Error::new(io::ErrorKind::NotConnected, "the mount was gone before it began");
        let received = device.receive(&mut head, &mut payload)?.ok_or_else(gone)?;
        let odd = || io::Error::new(io::ErrorKind::InvalidData, "the kernel's first request is none");
        let header = request::header(&head, received).ok_or_else(odd)?;
        let reply = Reply::new(device.clone(), header.unique);
        let rest = &head[size_of::<InHeader>()..received.min(HEAD_BYTES)];
        match answer(header.opcode, rest, rings) {
            Ok(Answer::Agreed(agreed, out)) => {
                reply.body(&out);
                return Ok(agreed);
            }
            Ok(Answer::OurVersion(out)) => reply.body(&out),
            Err(error) => {
                reply.error(Errno::PROTO);
                return Err(error);
            }
        }
    }
}

enum Answer {
    Agreed(Agreed, InitOut),
    /// The kernel asks again, in this version.
    OurVersion(InitOut),
}

fn answer(asked: u32, rest: &[u8], rings: bool) -> io::Result<Answer> {
    let refused = |text: String| Err(io::Error::new(io::ErrorKind::Unsupported, text));
    if asked != opcode::INIT {
        return refused(format!("the kernel begins with request {asked}"));
    }
    let Ok((known, rest)) = request::fixed::<InitIn>(rest) else {
        return refused("the kernel's first request is cut short".into());
    };
    let out = InitOut { major: abi::MAJOR, minor: abi::MINOR, ..InitOut::default() };
    if known.major > abi::MAJOR {
        return Ok(Answer::OurVersion(out));
    }
    if known.major < abi::MAJOR || known.minor < abi::MINOR_LEAST {
        return refused(format!(
            "the kernel speaks version {}.{} of FUSE; {}.{} is the oldest that will do (Linux 5.4)",
            known.major,
            known.minor,
            abi::MAJOR,
            abi::MINOR_LEAST
        ));
    }
    let mut offered = u64::from(known.flags);
    if offered & init::INIT_EXT != 0
        && let Ok((upper, _)) = request::fixed::<u32>(rest)
    {
        offered |= u64::from(upper) << 32;
    }
    let mut flags = 0;
    for (flag, name) in CAPABILITIES {
        if offered & flag == flag {
            flags |= flag;
        } else {
            tracing::debug!("the kernel does not know {name}");
        }
    }
    if rings {
        flags |= offered & init::OVER_IO_URING;
    }
    let out = InitOut {
        max_readahead: known.max_readahead,
        flags: flags as u32,
        flags2: (flags >> 32) as u32,
        max_background: BACKGROUND_MAX,
        congestion_threshold: CONGESTION,
        max_write: WRITE_BYTES_MAX as u32,
        time_gran: 1,
        max_pages: (WRITE_BYTES_MAX / rustix::param::page_size()) as u16,
        ..out
    };
    Ok(Answer::Agreed(Agreed { flags, minor: trusted(known.minor) }, out))
}

/// What the running kernel is trusted with, by the minor version that it speaks.
fn trusted(minor: u32) -> u32 {
    trusted_by(minor, &rustix::system::uname().release().to_string_lossy())
}

/// As [`trusted`], of a kernel with this `release`. What the kernel judges itself is not part of the protocol: distributors bring newer
/// versions of it to older kernels, which are taken for what they are by name.
fn trusted_by(minor: u32, release: &str) -> u32 {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|number| number.parse().unwrap_or(0));
    let linux: (u32, u32) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    let most = match linux {
        (..5, _) | (5, ..14) => abi::MINOR_JUDGES_FLAGS - 1,
        (5, _) | (6, 0) => abi::MINOR_JUDGES_SET_GID - 1,
        _ => abi::MINOR,
    };
    minor.min(most)
}

#[cfg(test)]
mod tests {
    use zerocopy::IntoBytes;

    use super::*;

    fn asked(known: InitIn, upper: u32) -> io::Result<Answer> {
        let mut bytes = known.as_bytes().to_vec();
        bytes.extend_from_slice(&upper.to_ne_bytes());
        answer(opcode::INIT, &bytes, false)
    }

    // Goal: nothing is agreed on with the kernel that our promises cannot stand. Method: a kernel that offers everything.
    #[test]
    fn dangerous_capabilities_are_not_asked_for() {
        let all = InitIn { major: 7, minor: 45, max_readahead: 131_072, flags: u32::MAX };
        let Ok(Answer::Agreed(agreed, out)) = asked(all, u32::MAX) else { panic!("not agreed") };
        assert_eq!(
            agreed.flags & init::WRITEBACK_CACHE,
            0,
            "the kernel would accept writes that have no space"
        );
        assert_eq!(u64::from(out.flags2) << 32, init::DIRECT_IO_ALLOW_MMAP);
        assert_eq!((out.major, out.max_write, out.max_pages, out.max_readahead), (7, 1 << 20, 256, 131_072));
        assert_ne!(
            out.flags & init::EXPORT_SUPPORT as u32,
            0,
            "handles would not outlive the kernel's caches"
        );
        assert!(agreed.opendir_without_message() && agreed.says_kill() && agreed.setxattr_ext());
    }

    // Goal: a kernel is asked for what it has offered only. Method: one that offers nothing.
    #[test]
    fn only_what_is_offered_is_agreed_on() {
        let none = InitIn { major: 7, minor: 31, max_readahead: 4096, flags: 0 };
        let Ok(Answer::Agreed(agreed, out)) = asked(none, u32::MAX) else { panic!("not agreed") };
        assert_eq!((agreed, out.flags, out.flags2), (Agreed { flags: 0, minor: 31 }, 0, 0));
    }

    // Goal: a kernel is trusted with what it judges itself, and no older one, also one with a newer protocol. Method: the versions on both
    // sides of the step, under several names.
    #[test]
    fn newer_kernels_are_trusted() {
        let judges = |release| {
            [31, 33, 34, 36, 37, 45].map(|minor| {
                let agreed = Agreed { flags: 0, minor: trusted_by(minor, release) };
                (agreed.judges_flags(), agreed.judges_set_gid())
            })
        };
        let (none, flags, both) = ((false, false), (true, false), (true, true));
        for newer in ["6.18.44-fc", "6.1.0-37-amd64", "10.0.0"] {
            assert_eq!(judges(newer), [none, none, flags, flags, both, both], "{newer}");
        }
        for between in ["5.14.0-503.el9.x86_64", "6.0.19"] {
            assert_eq!(judges(between), [none, none, flags, flags, flags, flags], "{between}");
        }
        for older in ["5.13.19", "4.18.0-553.el8_10.x86_64", "unknown", ""] {
            assert_eq!(judges(older), [none; 6], "{older}");
        }
    }

    // Goal: a kernel that is too old is refused, a newer one is told our version, and neither do bytes that are none of
    // this panic. Method: each.
    #[test]
    fn other_versions() {
        let version = |major, minor| InitIn { major, minor, ..InitIn::default() };
        assert!(matches!(asked(version(8, 0), 0), Ok(Answer::OurVersion(out)) if out.major == 7));
        assert!(asked(version(7, 30), 0).is_err());
        assert!(asked(version(6, 99), 0).is_err());
        assert!(answer(opcode::LOOKUP, &[0; 64], false).is_err());
        for len in 0..size_of::<InitIn>() {
            assert!(answer(opcode::INIT, &vec![0; len], false).is_err());
        }
    }
}
