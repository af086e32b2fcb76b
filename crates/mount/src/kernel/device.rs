//! `/dev/fuse`, open: one request a read, one reply a write. Each thread has an open file of its own, all of the same
//! mount: the kernel keeps what has been read and not answered with the file it was read from, and so they get into
//! each other's way less. A reply goes where its request came from.

use std::fs::OpenOptions;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use rustix::io::Errno;
use rustix::ioctl::{Setter, ioctl, opcode};
use zerocopy::IntoBytes;

use super::abi::{self, NotifyInvalEntry, NotifyInvalInode, OutHeader};

/// Where the kernel is spoken to.
pub const PATH: &str = "/dev/fuse";

/// Joins another mount: argument is the number of a file that is open to it.
const CLONE: rustix::ioctl::Opcode = opcode::read::<u32>(229, 0);

impl AsRawFd for Device {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// An open file of a mount.
#[derive(Debug)]
pub struct Device(OwnedFd);

impl Device {
    /// The one that was given to mount(2).
    pub fn new(file: OwnedFd) -> Device {
        Device(file)
    }

    /// Another one of the same mount.
    #[expect(unsafe_code, reason = "an ioctl that rustix does not know")]
    pub fn another(&self) -> io::Result<Device> {
        let file = OpenOptions::new().read(true).write(true).open(PATH)?;
        // Not negative: it is open.
        let ours = self.0.as_raw_fd() as u32;
        // SAFETY: the opcode is the kernel's for this device, and its argument is a pointer to 32 bits that it reads.
        unsafe { ioctl(&file, Setter::<CLONE, u32>::new(ours))? };
        Ok(Device(file.into()))
    }

    /// Waits for a request: what fits into `head`, the rest into `payload`. Gives its bytes; `None`: the mount is gone.
    pub fn receive(&self, head: &mut [u8], payload: &mut [u8]) -> io::Result<Option<usize>> {
        loop {
            let mut parts = [IoSliceMut::new(&mut *head), IoSliceMut::new(&mut *payload)];
            match rustix::io::readv(&self.0, &mut parts) {
                Ok(received) => return Ok(Some(received)),
                // CONNABORTED: somebody has ended it by force.
                Err(Errno::NODEV | Errno::CONNABORTED) => return Ok(None),
                // NOENT: whoever asked has been interrupted before this was read.
                Err(Errno::INTR | Errno::AGAIN | Errno::NOENT) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Answers a request, with an error (0: none) or with what `parts` hold together. At most two parts.
    pub fn send(&self, unique: u64, error: i32, parts: [&[u8]; 2]) -> Result<(), Errno> {
        let len = size_of::<OutHeader>() + parts[0].len() + parts[1].len();
        let header = OutHeader { len: u32::try_from(len).map_err(|_| Errno::INVAL)?, error, unique };
        let all = [IoSlice::new(header.as_bytes()), IoSlice::new(parts[0]), IoSlice::new(parts[1])];
        let used = 1 + parts.iter().rposition(|part| !part.is_empty()).map_or(0, |last| last + 1);
        // The kernel takes all of it or nothing.
        rustix::io::writev(&self.0, &all[..used]).map(drop)
    }

    /// The kernel forgets the attributes and data of an inode. False: it knew of none.
    pub fn forget_inode(&self, ino: u64) -> io::Result<bool> {
        let body = NotifyInvalInode { ino, offset: 0, len: 0 };
        self.notify(abi::notify::INVAL_INODE, body.as_bytes(), &[])
    }

    /// The kernel forgets the attributes of an inode, and its data from an offset on for so many bytes. What of that is dirty it writes
    /// back first. False: it knew of none.
    pub fn forget_range(&self, ino: u64, (offset, len): (u64, u64)) -> io::Result<bool> {
        // Files end before what does not fit. No bytes would be all that follow.
        let [offset, len] = [offset, len.max(1)].map(|bytes| i64::try_from(bytes).unwrap_or(i64::MAX));
        let body = NotifyInvalInode { ino, offset, len: len.min(i64::MAX - offset) };
        self.notify(abi::notify::INVAL_INODE, body.as_bytes(), &[])
    }

    /// The kernel forgets the attributes of an inode alone: whoever waits for an answer may hold its lock. False: it knew of none.
    pub fn forget_attributes(&self, ino: u64) -> io::Result<bool> {
        let body = NotifyInvalInode { ino, offset: -1, len: 0 };
        self.notify(abi::notify::INVAL_INODE, body.as_bytes(), &[])
    }

    /// The kernel forgets what it knows of a name. False: that was nothing.
    pub fn forget_entry(&self, parent: u64, name: &[u8]) -> io::Result<bool> {
        let namelen = u32::try_from(name.len()).map_err(|_| io::Error::from(Errno::NAMETOOLONG))?;
        let body = NotifyInvalEntry { parent, namelen, flags: 0 };
        let mut name = name.to_vec();
        name.push(0);
        self.notify(abi::notify::INVAL_ENTRY, body.as_bytes(), &name)
    }

    fn notify(&self, what: i32, body: &[u8], more: &[u8]) -> io::Result<bool> {
        match self.send(0, what, [body, more]) {
            Ok(()) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}
