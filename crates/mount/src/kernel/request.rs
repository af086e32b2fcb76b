//! A request's bytes, taken apart. Whatever they are, this neither panics nor looks beyond their end; what it cannot make
//! sense of is refused with the errno that the kernel is to hear.

use rustix::io::Errno;
use varve_fs::NAME_BYTES_MAX;
use zerocopy::{FromBytes, Immutable, KnownLayout};

use super::abi::{self, InHeader, opcode};

/// Bytes in front of what a WRITE carries: with the payload received apart from them it begins where its buffer does.
pub const HEAD_BYTES: usize = size_of::<InHeader>() + size_of::<abi::WriteIn>();

/// What is asked for. Names are bytes without the NUL.
#[derive(Clone, Copy, Debug)]
pub enum Body<'a> {
    Lookup {
        name: &'a [u8],
    },
    /// No answer is expected.
    Forget {
        /// So many answers that gave the inode.
        answers: u64,
    },
    /// No answer is expected. Inodes and counts, each 16 bytes.
    BatchForget {
        list: &'a [u8],
    },
    Getattr,
    Statx,
    Setattr(abi::SetattrIn),
    Readlink,
    Symlink {
        name: &'a [u8],
        target: &'a [u8],
    },
    Mknod {
        mode: u32,
        umask: u32,
        rdev: u32,
        name: &'a [u8],
    },
    Mkdir {
        mode: u32,
        umask: u32,
        name: &'a [u8],
    },
    Unlink {
        name: &'a [u8],
    },
    Rmdir {
        name: &'a [u8],
    },
    Rename {
        name: &'a [u8],
        new_parent: u64,
        new_name: &'a [u8],
        flags: u32,
    },
    /// The request's inode is the directory.
    Link {
        ino: u64,
        name: &'a [u8],
    },
    Open {
        flags: i32,
    },
    Create {
        mode: u32,
        umask: u32,
        name: &'a [u8],
    },
    /// A file without a name. The kernel sees to it that only one that may have a name gets one.
    Tmpfile {
        mode: u32,
        umask: u32,
    },
    Read {
        offset: u64,
        size: u32,
        read_flags: u32,
        /// Of the open file.
        flags: i32,
    },
    /// The payload lies apart from the request, and is as long as this says.
    Write {
        offset: u64,
        size: u32,
        write_flags: u32,
        /// Of the open file, and what one write asks for beside them.
        flags: i32,
    },
    Statfs,
    Release,
    Fsync,
    Fsyncdir,
    /// `acl_flags`: if the longer form was agreed on.
    Setxattr {
        name: &'a [u8],
        value: &'a [u8],
        flags: i32,
        acl_flags: Option<u32>,
    },
    Getxattr {
        name: &'a [u8],
        size: u32,
    },
    Listxattr {
        size: u32,
    },
    Removexattr {
        name: &'a [u8],
    },
    Opendir,
    Readdir {
        cookie: u64,
        size: u32,
    },
    Readdirplus {
        cookie: u64,
        size: u32,
    },
    Releasedir,
    Fallocate(abi::FallocateIn),
    Lseek {
        offset: i64,
        whence: i32,
    },
    Copy(abi::CopyIn),
    /// `out_bytes`: the longest answer that is taken.
    Ioctl {
        command: u32,
        data: &'a [u8],
        out_bytes: u32,
    },
    /// Whoever waits for that request wants no more than a quick answer.
    Interrupt {
        unique: u64,
    },
    Destroy,
    /// What this filesystem does without: the kernel falls back when it hears ENOSYS, and does not ask again.
    Other,
}

impl Body<'_> {
    /// What messages call it.
    pub fn verb(&self) -> &'static str {
        match self {
            Body::Lookup { .. } => "lookup",
            Body::Forget { .. } | Body::BatchForget { .. } => "forget",
            Body::Getattr => "getattr",
            Body::Statx => "statx",
            Body::Setattr(_) => "setattr",
            Body::Readlink => "readlink",
            Body::Symlink { .. } => "symlink",
            Body::Mknod { .. } => "mknod",
            Body::Mkdir { .. } => "mkdir",
            Body::Unlink { .. } => "unlink",
            Body::Rmdir { .. } => "rmdir",
            Body::Rename { .. } => "rename",
            Body::Link { .. } => "link",
            Body::Open { .. } => "open",
            Body::Create { .. } => "create",
            Body::Tmpfile { .. } => "tmpfile",
            Body::Read { .. } => "read",
            Body::Write { .. } => "write",
            Body::Statfs => "statfs",
            Body::Release => "release",
            Body::Fsync => "fsync",
            Body::Fsyncdir => "fsyncdir",
            Body::Setxattr { .. } => "setxattr",
            Body::Getxattr { .. } => "getxattr",
            Body::Listxattr { .. } => "listxattr",
            Body::Removexattr { .. } => "removexattr",
            Body::Opendir => "opendir",
            Body::Readdir { .. } => "readdir",
            Body::Readdirplus { .. } => "readdirplus",
            Body::Releasedir => "releasedir",
            Body::Fallocate(_) => "fallocate",
            Body::Lseek { .. } => "lseek",
            Body::Copy(_) => "copy_file_range",
            Body::Ioctl { .. } => "ioctl",
            Body::Interrupt { .. } => "interrupt",
            Body::Destroy => "destroy",
            Body::Other => "a request of another kind",
        }
    }

    /// Whether it changes something: such requests are refused after a panic, and when the mount ends. What is not among them and
    /// accepts something could be lost then.
    pub fn changes(&self) -> bool {
        matches!(
            self,
            Body::Setattr(_)
                | Body::Symlink { .. }
                | Body::Mknod { .. }
                | Body::Mkdir { .. }
                | Body::Unlink { .. }
                | Body::Rmdir { .. }
                | Body::Rename { .. }
                | Body::Link { .. }
                | Body::Create { .. }
                | Body::Tmpfile { .. }
                | Body::Write { .. }
                | Body::Release
                | Body::Fsync
                | Body::Fsyncdir
                | Body::Setxattr { .. }
                | Body::Removexattr { .. }
                | Body::Fallocate(_)
                | Body::Copy(_)
                | Body::Ioctl {
                    command: abi::ioctl::SET_FLAGS | abi::ioctl::SET_FSXATTR | abi::ioctl::TRIM,
                    ..
                }
        )
    }

    /// Whether it may come in the name of others than the one who may use the mount: of nobody, or of who has a file from him that is
    /// open already. The kernel keeps others from all paths.
    pub fn of_others(&self) -> bool {
        matches!(
            self,
            Body::Forget { .. }
                | Body::BatchForget { .. }
                | Body::Getattr
                | Body::Statx
                | Body::Lseek { .. }
                | Body::Fallocate(_)
                | Body::Copy(_)
                | Body::Other
                | Body::Read { .. }
                | Body::Write { .. }
                | Body::Fsync
                | Body::Fsyncdir
                | Body::Release
                | Body::Releasedir
                | Body::Readdir { .. }
                | Body::Readdirplus { .. }
                | Body::Interrupt { .. }
                | Body::Destroy
        )
    }
}

/// What is in front of a request of `received` bytes. `None`: this is none.
pub fn header(bytes: &[u8], received: usize) -> Option<InHeader> {
    let (header, _) = InHeader::read_from_prefix(&bytes[..received.min(bytes.len())]).ok()?;
    (header.len as usize == received).then_some(header)
}

/// Takes apart what follows the header. Of a WRITE `rest` is [`abi::WriteIn`] alone, and `payload_bytes` of payload have
/// been received.
pub fn body<'a>(
    header: &InHeader,
    rest: &'a [u8],
    payload_bytes: usize,
    setxattr_ext: bool,
) -> Result<Body<'a>, Errno> {
    Ok(match header.opcode {
        opcode::LOOKUP => Body::Lookup { name: last_name(rest)? },
        opcode::FORGET => Body::Forget { answers: fixed::<abi::ForgetIn>(rest)?.0.lookups },
        opcode::BATCH_FORGET => {
            let (head, list) = fixed::<abi::BatchForgetIn>(rest)?;
            let bytes = (head.count as usize).saturating_mul(size_of::<abi::ForgetOne>());
            Body::BatchForget { list: list.get(..bytes).ok_or(Errno::IO)? }
        }
        opcode::GETATTR => Body::Getattr,
        opcode::STATX => {
            // All there is to say is said, whatever is asked for.
            fixed::<abi::StatxIn>(rest)?;
            Body::Statx
        }
        opcode::SETATTR => Body::Setattr(fixed(rest)?.0),
        opcode::READLINK => Body::Readlink,
        opcode::SYMLINK => {
            let (name, rest) = name(rest)?;
            Body::Symlink { name, target: text(rest)?.0 }
        }
        opcode::MKNOD => {
            let (head, rest) = fixed::<abi::MknodIn>(rest)?;
            Body::Mknod { mode: head.mode, umask: head.umask, rdev: head.rdev, name: last_name(rest)? }
        }
        opcode::MKDIR => {
            let (head, rest) = fixed::<abi::MkdirIn>(rest)?;
            Body::Mkdir { mode: head.mode, umask: head.umask, name: last_name(rest)? }
        }
        opcode::UNLINK => Body::Unlink { name: last_name(rest)? },
        opcode::RMDIR => Body::Rmdir { name: last_name(rest)? },
        opcode::RENAME => {
            let (head, rest) = fixed::<abi::RenameIn>(rest)?;
            let (name, rest) = name(rest)?;
            Body::Rename { name, new_parent: head.new_parent, new_name: last_name(rest)?, flags: 0 }
        }
        opcode::RENAME2 => {
            let (head, rest) = fixed::<abi::Rename2In>(rest)?;
            let (name, rest) = name(rest)?;
            Body::Rename { name, new_parent: head.new_parent, new_name: last_name(rest)?, flags: head.flags }
        }
        opcode::LINK => {
            let (head, rest) = fixed::<abi::LinkIn>(rest)?;
            Body::Link { ino: head.nodeid, name: last_name(rest)? }
        }
        opcode::OPEN => Body::Open { flags: fixed::<abi::OpenIn>(rest)?.0.flags },
        opcode::CREATE => {
            let (head, rest) = fixed::<abi::CreateIn>(rest)?;
            Body::Create { mode: head.mode, umask: head.umask, name: last_name(rest)? }
        }
        opcode::TMPFILE => {
            // What follows is no name that anybody gave.
            let head = fixed::<abi::CreateIn>(rest)?.0;
            Body::Tmpfile { mode: head.mode, umask: head.umask }
        }
        opcode::READ => {
            let head = fixed::<abi::ReadIn>(rest)?.0;
            let (offset, read_flags) = (offset(head.offset)?, head.read_flags);
            Body::Read { offset, size: head.size, read_flags, flags: head.flags }
        }
        opcode::WRITE => {
            let head = fixed::<abi::WriteIn>(rest)?.0;
            if head.size as usize > payload_bytes {
                return Err(Errno::IO);
            }
            let (offset, size) = (offset(head.offset)?, head.size);
            Body::Write { offset, size, write_flags: head.write_flags, flags: head.flags }
        }
        opcode::STATFS => Body::Statfs,
        opcode::RELEASE => Body::Release,
        opcode::FSYNC => Body::Fsync,
        opcode::FSYNCDIR => Body::Fsyncdir,
        opcode::SETXATTR => {
            let (head, rest) = fixed::<abi::SetxattrIn>(rest)?;
            let (acl_flags, rest) = if setxattr_ext {
                let (more, rest) = fixed::<abi::SetxattrExt>(rest)?;
                (Some(more.setxattr_flags), rest)
            } else {
                (None, rest)
            };
            let (name, rest) = name(rest)?;
            let value = rest.get(..head.size as usize).ok_or(Errno::IO)?;
            Body::Setxattr { name, value, flags: head.flags, acl_flags }
        }
        opcode::GETXATTR => {
            let (head, rest) = fixed::<abi::GetxattrIn>(rest)?;
            Body::Getxattr { name: last_name(rest)?, size: head.size }
        }
        opcode::LISTXATTR => Body::Listxattr { size: fixed::<abi::GetxattrIn>(rest)?.0.size },
        opcode::REMOVEXATTR => Body::Removexattr { name: last_name(rest)? },
        opcode::OPENDIR => Body::Opendir,
        opcode::READDIR => {
            let head = fixed::<abi::ReadIn>(rest)?.0;
            Body::Readdir { cookie: head.offset, size: head.size }
        }
        opcode::READDIRPLUS => {
            let head = fixed::<abi::ReadIn>(rest)?.0;
            Body::Readdirplus { cookie: head.offset, size: head.size }
        }
        opcode::RELEASEDIR => Body::Releasedir,
        opcode::FALLOCATE => Body::Fallocate(fixed(rest)?.0),
        opcode::LSEEK => {
            let head = fixed::<abi::LseekIn>(rest)?.0;
            Body::Lseek { offset: head.offset, whence: head.whence }
        }
        opcode::COPY_FILE_RANGE => {
            let head = fixed::<abi::CopyIn>(rest)?.0;
            offset(head.offset_from)?;
            offset(head.offset_to)?;
            Body::Copy(head)
        }
        opcode::IOCTL => {
            let (head, rest) = fixed::<abi::IoctlIn>(rest)?;
            let data = rest.get(..head.in_size as usize).ok_or(Errno::IO)?;
            Body::Ioctl { command: head.cmd, data, out_bytes: head.out_size }
        }
        opcode::INTERRUPT => Body::Interrupt { unique: fixed::<abi::InterruptIn>(rest)?.0.unique },
        opcode::DESTROY => Body::Destroy,
        _ => Body::Other,
    })
}

/// How long the structure is that a request of this kind begins with; 0: there is none, or nobody looks at it.
pub fn op_bytes(asked: u32, setxattr_ext: bool) -> usize {
    match asked {
        opcode::STATX => size_of::<abi::StatxIn>(),
        opcode::SETATTR => size_of::<abi::SetattrIn>(),
        opcode::MKNOD => size_of::<abi::MknodIn>(),
        opcode::MKDIR => size_of::<abi::MkdirIn>(),
        opcode::RENAME => size_of::<abi::RenameIn>(),
        opcode::RENAME2 => size_of::<abi::Rename2In>(),
        opcode::LINK => size_of::<abi::LinkIn>(),
        opcode::OPEN => size_of::<abi::OpenIn>(),
        opcode::CREATE | opcode::TMPFILE => size_of::<abi::CreateIn>(),
        opcode::READ | opcode::READDIR | opcode::READDIRPLUS => size_of::<abi::ReadIn>(),
        opcode::WRITE => size_of::<abi::WriteIn>(),
        opcode::SETXATTR if setxattr_ext => size_of::<abi::SetxattrIn>() + size_of::<abi::SetxattrExt>(),
        opcode::SETXATTR => size_of::<abi::SetxattrIn>(),
        opcode::GETXATTR | opcode::LISTXATTR => size_of::<abi::GetxattrIn>(),
        opcode::FALLOCATE => size_of::<abi::FallocateIn>(),
        opcode::LSEEK => size_of::<abi::LseekIn>(),
        opcode::COPY_FILE_RANGE => size_of::<abi::CopyIn>(),
        opcode::IOCTL => size_of::<abi::IoctlIn>(),
        opcode::BATCH_FORGET => size_of::<abi::BatchForgetIn>(),
        opcode::INTERRUPT => size_of::<abi::InterruptIn>(),
        _ => 0,
    }
}

/// The inodes of a [`Body::BatchForget`], and how many answers of each are forgotten.
pub fn forgotten(list: &[u8]) -> impl Iterator<Item = (u64, u64)> {
    let one = |bytes: &[u8]| abi::ForgetOne::read_from_bytes(bytes).ok().map(|one| (one.nodeid, one.lookups));
    list.chunks_exact(size_of::<abi::ForgetOne>()).filter_map(one)
}

/// A structure, and what follows it.
pub fn fixed<T: FromBytes + Immutable + KnownLayout>(bytes: &[u8]) -> Result<(T, &[u8]), Errno> {
    T::read_from_prefix(bytes).map_err(|_| Errno::IO)
}

/// Places in files are signed in the kernel.
fn offset(offset: u64) -> Result<u64, Errno> {
    if offset > i64::MAX as u64 { Err(Errno::INVAL) } else { Ok(offset) }
}

/// What ends with a NUL, and what follows it.
fn text(bytes: &[u8]) -> Result<(&[u8], &[u8]), Errno> {
    let end = bytes.iter().position(|byte| *byte == 0).ok_or(Errno::IO)?;
    Ok((&bytes[..end], &bytes[end + 1..]))
}

fn name(bytes: &[u8]) -> Result<(&[u8], &[u8]), Errno> {
    let (name, rest) = text(bytes)?;
    match name.len() {
        0 => Err(Errno::INVAL),
        len if len > NAME_BYTES_MAX => Err(Errno::NAMETOOLONG),
        _ => Ok((name, rest)),
    }
}

fn last_name(bytes: &[u8]) -> Result<&[u8], Errno> {
    Ok(name(bytes)?.0)
}

#[cfg(test)]
#[path = "request_tests.rs"]
mod tests;
