//! The flags of chattr(1), as ioctl(2) carries them.
//!
//! Since Linux 5.13 the kernel asks for the flags there are before it sets others, sees to it that only the owner or who has CAP_FOWNER
//! sets any, and that only who has CAP_LINUX_IMMUTABLE changes two of them, and looks at no flag itself: what they refuse, we refuse.
//! Before that it hands a program's request on as it is, and who may is judged by the user alone, of whose capabilities nothing is
//! known here. Nor does it write back what was stored through mmap.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};

use rustix::io::Errno;
use varve_fs::{Attr, Caller, FileFlags, FileKind, FsError, InodeId, shown_number};

use crate::dispatch::{Adapter, errno, when_durable};
use crate::kernel::abi::{Fsxattr, IoctlOut, ioctl, ioctl_flags, ioctl_fsxattr};
use crate::kernel::device::Device;
use crate::kernel::reply::Reply;
use crate::policy::Change;
use crate::{Health, Policy, Verbs};

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

/// Whether flags keep bytes from being written that could be before.
fn protects_more(before: FileFlags, after: FileFlags) -> bool {
    [FileFlags::IMMUTABLE, FileFlags::APPEND_ONLY]
        .into_iter()
        .any(|flag| after.intersects(flag) && !before.intersects(flag))
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
        let attr = self.verbs.getattr(ino);
        let is_file = matches!(attr, Ok(Attr { kind: FileKind::File, .. }));
        let flags = match (command, attr) {
            (ioctl::GET_FLAGS | ioctl::GET_FSXATTR | ioctl::SET_FLAGS | ioctl::SET_FSXATTR, Err(error)) => {
                return reply.error(self.errno("ioctl", number, &error));
            }
            (ioctl::GET_FLAGS, Ok(attr)) => return reply.ioctl(&to_bits(&FLAGS, attr.flags), out_bytes),
            (ioctl::GET_FSXATTR, Ok(attr)) => {
                let out = Fsxattr { xflags: to_bits(&XFLAGS, attr.flags), ..Fsxattr::default() };
                return reply.ioctl(&out, out_bytes);
            }
            (ioctl::SET_FLAGS, Ok(attr)) => {
                let Some(bits) = ioctl_flags(data) else { return reply.error(Errno::INVAL) };
                from_bits(&FLAGS, bits).map(|flags| (attr.flags, flags))
            }
            (ioctl::SET_FSXATTR, Ok(attr)) => {
                let Some(asked) = ioctl_fsxattr(data) else { return reply.error(Errno::INVAL) };
                let rest = Fsxattr { xflags: 0, extents: 0, padding: [0; 8], ..asked };
                let names = attr.flags & FileFlags::DURABLE_NAMES;
                from_bits(&XFLAGS, asked.xflags)
                    .filter(|_| rest == Fsxattr::default())
                    .map(|flags| (attr.flags, flags | names))
            }
            _ => return reply.error(Errno::NOTTY),
        };
        let Some((before, flags)) = flags else {
            return reply.error(self.errno("ioctl", number, &FsError::NotSupported));
        };
        let setting = Setting {
            verbs: self.verbs.clone(),
            health: self.health.clone(),
            policy: self.policy.clone(),
            device: self.device.clone(),
            who: if self.agreed.judges_flags() { Caller::ROOT } else { who },
            ino,
            flags,
        };
        if is_file && protects_more(before, flags) {
            // There may be room now for what could not be stored. Where there is none, the kernel keeps what it shows of it.
            self.store_unstored(number);
            return match self.health.unstored.error(number) {
                Some(errno) => reply.error(errno),
                None => self.store_then(setting, reply),
            };
        }
        setting.set(reply);
    }

    /// Sets flags when all is in the file that programs have stored through mmap: later that would be refused, and be lost. The kernel has the
    /// inode's lock meanwhile, which it does not need for this.
    fn store_then(&self, setting: Setting<V>, reply: Reply) {
        let (device, number) = (self.device.clone(), setting.ino.0);
        let store = move || {
            let Some(device) = device.upgrade() else { return false };
            match device.forget_range(number, (0, u64::MAX)) {
                Ok(_) => true,
                Err(error) => {
                    tracing::debug!("the kernel cannot be told to write a file back: {error}");
                    false
                }
            }
        };
        self.waiters.run_whole(store, move |is_stored| {
            if !is_stored {
                let number = shown_number(InodeId(number));
                tracing::warn!(
                    "inode {number} gets no flag: what programs have stored in it is not written back in time"
                );
                return reply.error(Errno::BUSY);
            }
            let health = setting.health.clone();
            if health.panicked() {
                return reply.error(Errno::IO);
            }
            let Some(_changing) = health.begin_change() else { return reply.error(Errno::NOTCONN) };
            let set = || match health.unstored.error(number) {
                Some(errno) => reply.error(errno),
                None => setting.set(reply),
            };
            if catch_unwind(AssertUnwindSafe(set)).is_err() {
                health.note_panic("ioctl");
            }
        });
    }
}

/// Flags that are to be set, on whatever thread.
struct Setting<V> {
    verbs: Arc<V>,
    health: Arc<Health>,
    policy: Arc<Policy>,
    device: Weak<Device>,
    who: Caller,
    ino: InodeId,
    flags: FileFlags,
}

impl<V: Verbs> Setting<V> {
    fn set(self, reply: Reply) {
        let (ino, number) = (self.ino, self.ino.0);
        if let Err(error) = self.verbs.set_flags(self.who, ino, self.flags) {
            return reply.error(errno(&self.health, "ioctl", number, &error));
        }
        // The time of the change is new, and the kernel does not ask for it by itself.
        if let Some(device) = self.device.upgrade()
            && let Err(error) = device.forget_attributes(number)
        {
            tracing::debug!("the kernel cannot be told to forget attributes: {error}");
        }
        let answer = |reply: Reply| reply.body(&IoctlOut::default());
        if self.policy.durable_at_once(Change::Inode) || self.verbs.wants_durable(ino, false) {
            return when_durable(&*self.verbs, &self.health, ("ioctl", number), reply, answer);
        }
        answer(reply);
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
