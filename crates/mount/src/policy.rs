//! What of a mount's flags is left to us: which accesses the filesystem is told to note, and which changes are durable before
//! they are answered.
//!
//! The kernel leaves access times of FUSE filesystems to us, and serves most reads from its cache without a word. So an
//! access is what reaches us: reading, listing, following a link, and opening a file for reading, because what is read
//! then may come from the cache. The kernel forgets a cached access time when it asks for data, not when it opens: after
//! a read from its cache stat may show the time before for as long as it believes the other attributes.
//!
//! With `sync` the kernel asks for an fsync after each write(2) by itself, and for nothing after changes of names and attributes;
//! of `dirsync` it only shows the word.

use std::sync::atomic::{AtomicU8, Ordering};

use varve_fs::AccessRule;

use crate::{AccessTimes, Flags};

// Linux numbers, part of the kernel's ABI.
const O_ACCMODE: i32 = 0o3;
const O_WRONLY: i32 = 0o1;
const O_NOATIME: i32 = 0o1000000;

const NEVER: u8 = 0;
const RELATIVE: u8 = 1;
const ALWAYS: u8 = 2;
const RULE: u8 = 3;
/// Added to the others.
const NOT_DIRECTORIES: u8 = 4;
const DURABLE_NAMES: u8 = 8;
const DURABLE: u8 = 16;

/// What is noted and what is durable at once on a mount, as its flags have it; they may change while it is served.
#[derive(Debug)]
pub struct Policy(AtomicU8);

/// What a request changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Change {
    /// Names in a directory.
    Names,
    /// A file's contents, or what else there is to know of an inode.
    Inode,
}

impl Policy {
    /// As `flags` say.
    pub fn new(flags: Flags) -> Policy {
        Policy(AtomicU8::new(encode(flags)))
    }

    /// From now on as `flags` say.
    pub fn set(&self, flags: Flags) {
        self.0.store(encode(flags), Ordering::Release);
    }

    /// Whether every change is durable when it is done.
    pub fn durable(&self) -> bool {
        self.0.load(Ordering::Acquire) & DURABLE != 0
    }

    /// Whether every change of names is, by a flag of its own.
    pub fn durable_names(&self) -> bool {
        self.0.load(Ordering::Acquire) & DURABLE_NAMES != 0
    }

    /// How an access to a file through a handle with these open flags is noted.
    pub(crate) fn of_file(&self, open_flags: i32) -> Option<AccessRule> {
        if open_flags & O_NOATIME != 0 || open_flags & O_ACCMODE == O_WRONLY {
            return None;
        }
        self.of_link()
    }

    /// How following a symbolic link is noted.
    pub(crate) fn of_link(&self) -> Option<AccessRule> {
        rule(self.0.load(Ordering::Acquire) & RULE)
    }

    /// How listing a directory is noted.
    pub(crate) fn of_directory(&self) -> Option<AccessRule> {
        rule(self.0.load(Ordering::Acquire) & (RULE | NOT_DIRECTORIES))
    }

    /// Whether a change is durable before it is answered.
    pub(crate) fn durable_at_once(&self, change: Change) -> bool {
        self.durable() || change == Change::Names && self.durable_names()
    }
}

fn encode(flags: Flags) -> u8 {
    let rule = match flags.access_times {
        _ if flags.read_only => NEVER,
        AccessTimes::Never => NEVER,
        AccessTimes::Relative => RELATIVE,
        AccessTimes::Always => ALWAYS,
    };
    let mut code = rule;
    for (wanted, bit) in [
        (flags.no_directory_access_times, NOT_DIRECTORIES),
        (flags.durable_names, DURABLE_NAMES),
        (flags.durable, DURABLE),
    ] {
        code |= if wanted { bit } else { 0 };
    }
    code
}

fn rule(code: u8) -> Option<AccessRule> {
    match code {
        RELATIVE => Some(AccessRule::Relative),
        ALWAYS => Some(AccessRule::Always),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Goal: each flag silences what it names. Method: the accesses that are noted under each.
    #[test]
    fn flags_decide() {
        let noted = |flags| {
            let policy = Policy::new(flags);
            [policy.of_file(0), policy.of_file(O_NOATIME), policy.of_file(O_WRONLY), policy.of_directory()]
        };
        let (relative, always) = (Some(AccessRule::Relative), Some(AccessRule::Always));
        let with = |access_times| Flags { access_times, ..Flags::default() };
        assert_eq!(noted(Flags::default()), [relative, None, None, relative]);
        assert_eq!(noted(with(AccessTimes::Always)), [always, None, None, always]);
        assert_eq!(noted(with(AccessTimes::Never)), [None; 4]);
        assert_eq!(noted(Flags { read_only: true, ..Flags::default() }), [None; 4]);
        let not_directories = Flags { no_directory_access_times: true, ..Flags::default() };
        assert_eq!(noted(not_directories), [relative, None, None, None]);
    }

    // Goal: what is durable at once is what the words of mount(8) mean, whatever is noted of accesses. Method: each flag.
    #[test]
    fn flags_decide_what_is_durable() {
        let durable = |flags| {
            let policy = Policy::new(flags);
            let relative = Some(AccessRule::Relative);
            assert_eq!((policy.of_file(0), policy.of_directory()), (relative, relative));
            [Change::Names, Change::Inode].map(|change| policy.durable_at_once(change))
        };
        assert_eq!(durable(Flags::default()), [false, false]);
        assert_eq!(durable(Flags { durable_names: true, ..Flags::default() }), [true, false]);
        assert_eq!(durable(Flags { durable: true, ..Flags::default() }), [true, true]);
    }
}
