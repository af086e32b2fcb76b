//! Which accesses the filesystem is told to note.
//!
//! The kernel leaves access times of FUSE filesystems to us, and serves most reads from its cache without a word. So an
//! access is what reaches us: reading, listing, following a link, and opening a file for reading, because what is read
//! then may come from the cache. The kernel forgets a cached access time when it asks for data, not when it opens: after
//! a read from its cache stat may show the time before for as long as it believes the other attributes.

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
/// Added to the others.
const NOT_DIRECTORIES: u8 = 4;

/// What is noted on a mount, as its flags have it; they may change while it is served.
#[derive(Debug)]
pub struct AccessPolicy(AtomicU8);

impl AccessPolicy {
    /// As `flags` say.
    pub fn new(flags: Flags) -> AccessPolicy {
        AccessPolicy(AtomicU8::new(encode(flags)))
    }

    /// From now on as `flags` say.
    pub fn set(&self, flags: Flags) {
        self.0.store(encode(flags), Ordering::Release);
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
        rule(self.0.load(Ordering::Acquire) & !NOT_DIRECTORIES)
    }

    /// How listing a directory is noted.
    pub(crate) fn of_directory(&self) -> Option<AccessRule> {
        rule(self.0.load(Ordering::Acquire))
    }
}

fn encode(flags: Flags) -> u8 {
    let rule = match flags.access_times {
        _ if flags.read_only => NEVER,
        AccessTimes::Never => NEVER,
        AccessTimes::Relative => RELATIVE,
        AccessTimes::Always => ALWAYS,
    };
    rule + if flags.no_directory_access_times { NOT_DIRECTORIES } else { 0 }
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
            let policy = AccessPolicy::new(flags);
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
}
