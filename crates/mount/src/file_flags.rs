//! The flags of chattr(1), as ioctl(2) carries them.
//!
//! Since Linux 5.13 the kernel asks for the flags there are before it sets others, sees to it that only who has
//! CAP_LINUX_IMMUTABLE changes two of them, and looks at no flag itself: what they refuse, we refuse. Before that it hands a
//! program's request on as it is.

use rustix::io::Errno;
use varve_fs::{Caller, FileFlags, FsError, InodeId};

use crate::Verbs;
use crate::dispatch::Adapter;
use crate::kernel::abi::{Fsxattr, IoctlOut, ioctl, ioctl_flags, ioctl_fsxattr};
use crate::kernel::reply::Reply;
use crate::policy::Change;

const FLAGS: [(u32, FileFlags); 6] = [
    (ioctl::SYNC, FileFlags::DURABLE),
    (ioctl::IMMUTABLE, FileFlags::IMMUTABLE),
    (ioctl::APPEND, FileFlags::APPEND_ONLY),
    (ioctl::NODUMP, FileFlags::NO_DUMP),
    (ioctl::NOATIME, FileFlags::NO_ACCESS_TIME),
    (ioctl::DIRSYNC, FileFlags::DURABLE_NAMES),
];

const XFLAGS: [(u32, FileFlags); 5] = [
    (ioctl::x::SYNC, FileFlags::DURABLE),
    (ioctl::x::IMMUTABLE, FileFlags::IMMUTABLE),
    (ioctl::x::APPEND, FileFlags::APPEND_ONLY),
    (ioctl::x::NODUMP, FileFlags::NO_DUMP),
    (ioctl::x::NOATIME, FileFlags::NO_ACCESS_TIME),
];

fn to_bits(table: &[(u32, FileFlags)], flags: FileFlags) -> u32 {
    table.iter().filter(|(_, flag)| flags.intersects(*flag)).fold(0, |bits, (bit, _)| bits | bit)
}

/// `None`: there is one among them that nobody knows.
fn from_bits(table: &[(u32, FileFlags)], bits: u32) -> Option<FileFlags> {
    let known = table.iter().fold(0, |known, (bit, _)| known | bit);
    let asked = table.iter().filter(|(bit, _)| bits & bit != 0);
    (bits & !known == 0).then(|| asked.fold(FileFlags::NONE, |flags, (_, flag)| flags | *flag))
}

impl<V: Verbs> Adapter<V> {
    pub(crate) fn ioctl(
        &self,
        who: Caller,
        number: u64,
        command: u32,
        data: &[u8],
        out_bytes: u32,
        reply: Reply,
    ) {
        let ino = InodeId(number);
        let flags = match (command, self.verbs.getattr(ino)) {
            (ioctl::GET_FLAGS | ioctl::GET_FSXATTR | ioctl::SET_FLAGS | ioctl::SET_FSXATTR, Err(error)) => {
                return reply.error(self.errno("ioctl", number, &error));
            }
            (ioctl::GET_FLAGS, Ok(attr)) => return reply.ioctl(&to_bits(&FLAGS, attr.flags), out_bytes),
            (ioctl::GET_FSXATTR, Ok(attr)) => {
                let out = Fsxattr { xflags: to_bits(&XFLAGS, attr.flags), ..Fsxattr::default() };
                return reply.ioctl(&out, out_bytes);
            }
            (ioctl::SET_FLAGS, Ok(_)) => {
                let Some(bits) = ioctl_flags(data) else { return reply.error(Errno::INVAL) };
                from_bits(&FLAGS, bits)
            }
            (ioctl::SET_FSXATTR, Ok(attr)) => {
                let Some(asked) = ioctl_fsxattr(data) else { return reply.error(Errno::INVAL) };
                let rest = Fsxattr { xflags: 0, extents: 0, padding: [0; 8], ..asked };
                let names = attr.flags & FileFlags::DURABLE_NAMES;
                from_bits(&XFLAGS, asked.xflags)
                    .filter(|_| rest == Fsxattr::default())
                    .map(|flags| flags | names)
            }
            _ => return reply.error(Errno::NOTTY),
        };
        let result = match flags {
            Some(flags) => self.verbs.set_flags(who, ino, flags),
            None => Err(FsError::NotSupported),
        };
        // The time of the change is new, and the kernel does not ask for it by itself.
        if result.is_ok()
            && let Some(device) = self.device.upgrade()
            && let Err(error) = device.forget_attributes(number)
        {
            tracing::debug!("the kernel cannot be told to forget attributes: {error}");
        }
        let answer = |(), reply: Reply| reply.body(&IoctlOut::default());
        self.reply_change(Change::Inode, "ioctl", number, result, reply, answer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Goal: each flag has its bit in both forms, and what nobody knows is refused. Method: there and back, and one more.
    #[test]
    fn bits_and_flags() {
        for table in [&FLAGS[..], &XFLAGS] {
            let mut all = FileFlags::NONE;
            for (bit, flag) in table {
                assert_eq!((to_bits(table, *flag), from_bits(table, *bit)), (*bit, Some(*flag)));
                all = all | *flag;
            }
            assert_eq!(from_bits(table, to_bits(table, all)), Some(all));
            assert_eq!(from_bits(table, to_bits(table, all) | 1 << 20), None);
        }
        assert_eq!(to_bits(&XFLAGS, FileFlags::DURABLE_NAMES), 0);
    }
}
