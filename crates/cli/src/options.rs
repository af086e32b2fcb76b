//! Mount options: what `-o` may say, and what each means.
//!
//! Unknown ones are refused, so that nobody believes that an option does something. Words of fstab that are meant for
//! other programs (`noauto`, `nofail`, `x-...`) are accepted and ignored.

use std::path::PathBuf;

use varve_mount::{AccessTimes, Flags, Rings};

use crate::Usage;
use crate::size::parse_size;

/// Memory for metadata unless said otherwise.
const CACHE_BYTES_DEFAULT: u64 = 256 << 20;
const CACHE_BYTES_MIN: u64 = 4 << 20;
/// Dirty file data in memory before writers wait, unless said otherwise.
const DIRTY_BYTES_DEFAULT: u64 = 128 << 20;
const DIRTY_BYTES_MIN: u64 = 1 << 20;
/// Threads that serve requests, at most.
const THREADS_MAX: usize = 64;

/// The size of a cache that was asked for, or as much as is usual.
pub fn cache_bytes(asked: Option<u64>) -> std::result::Result<u64, Usage> {
    match asked.unwrap_or(CACHE_BYTES_DEFAULT) {
        bytes if bytes >= CACHE_BYTES_MIN => Ok(bytes),
        _ => Err(Usage("a cache below 4M is too small to work with; give a cache size of 4M or more".into())),
    }
}

/// What an unknown option is answered with.
const KNOWN: &str = "there are: ro, rw, noatime, relatime, strictatime, nodiratime, nodev, nosuid, noexec, \
    nosymfollow, sync, dirsync and their opposites; lazytime, discard, nodiscard; remount; allow_other, default_permissions, direct_io; cache_size=SIZE, dirty_bytes=SIZE, threads=N, rings, norings, \
    fsname=NAME, log=FILE; and what fstab has for other programs: auto, noauto, nofail, _netdev, user, x-...";

/// Everything about a mount that can be chosen.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Options {
    /// What the kernel enforces. A pool that is mounted read-only is not written to.
    pub flags: Flags,
    /// Change a mount that is there.
    pub remount: bool,
    /// With `remount`: change the flags of this place only, not those of the filesystem.
    pub bind: bool,
    /// Let other users in (they always are when root mounts).
    pub allow_other: bool,
    /// Memory for metadata, in bytes.
    pub cache_bytes: u64,
    /// Dirty file data in memory before writers wait, in bytes.
    pub dirty_bytes_max: u64,
    /// Threads that serve requests.
    pub threads: usize,
    /// Whether requests come through rings.
    pub rings: Rings,
    /// Reads and writes go past the kernel's cache.
    pub direct_io: bool,
    /// Blocks are to be discarded as they become free, which nobody does: a warning says so.
    pub discard: bool,
    /// Shown as the source by mount(8) instead of the pool's path.
    pub source: Option<String>,
    /// Where the background process appends its messages, instead of the system's log.
    pub log: Option<PathBuf>,
}

impl Options {
    /// What holds without any option, for root or for another user.
    fn default_for(root: bool) -> Self {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        Options {
            // As with other filesystems that root mounts; the kernel forces both on everybody else.
            flags: Flags { no_dev: !root, no_suid: !root, ..Flags::default() },
            remount: false,
            bind: false,
            allow_other: root,
            cache_bytes: CACHE_BYTES_DEFAULT,
            dirty_bytes_max: DIRTY_BYTES_DEFAULT,
            threads: (2 * cpus).clamp(4, 16),
            rings: Rings::Offered,
            direct_io: false,
            discard: false,
            source: None,
            log: None,
        }
    }

    /// Reads the lists of `-o` in order; the last of two opposites counts.
    pub fn parse(lists: &[String], root: bool) -> Result<Options, Usage> {
        Options::default_for(root).changed_by(lists, true)
    }

    /// As [`Options::parse`], for a mount that is there and has `flags`.
    pub fn parse_remount(lists: &[String], flags: Flags) -> Result<Options, Usage> {
        Options { flags, ..Options::default_for(true) }.changed_by(lists, true)
    }

    /// As [`Options::parse`], passing over what is not known (the sloppy mode of mount(8)).
    pub fn parse_sloppily(lists: &[String], root: bool) -> Result<Options, Usage> {
        Options::default_for(root).changed_by(lists, false)
    }

    fn changed_by(mut self, lists: &[String], strict: bool) -> Result<Options, Usage> {
        self.remount = asks_remount(lists);
        for word in words(lists) {
            let (name, value) = match word.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (word, None),
            };
            if !self.apply(word, name, value)? && strict {
                return Err(Usage(format!("there is no mount option {word}; {KNOWN}")));
            }
        }
        cache_bytes(Some(self.cache_bytes))?;
        if self.dirty_bytes_max < DIRTY_BYTES_MIN {
            return Err(Usage("dirty_bytes below 1M is too small to work with; give 1M or more".into()));
        }
        Ok(self)
    }

    /// False: there is no such option.
    fn apply(&mut self, word: &str, name: &str, value: Option<&str>) -> Result<bool, Usage> {
        let size =
            |value: &str| parse_size(value).map_err(|why| Usage(format!("mount option {word}: {why}")));
        let flags = &mut self.flags;
        match (name, value) {
            ("ro", None) => flags.read_only = true,
            ("rw", None) => flags.read_only = false,
            ("dev", None) => flags.no_dev = false,
            ("nodev", None) => flags.no_dev = true,
            ("suid", None) => flags.no_suid = false,
            ("nosuid", None) => flags.no_suid = true,
            ("exec", None) => flags.no_exec = false,
            ("noexec", None) => flags.no_exec = true,
            ("symfollow", None) => flags.no_symlinks = false,
            ("nosymfollow", None) => flags.no_symlinks = true,
            ("sync", None) => flags.durable = true,
            ("async", None) => flags.durable = false,
            ("dirsync", None) => flags.durable_names = true,
            ("nodirsync", None) => flags.durable_names = false,
            ("discard", None) => self.discard = true,
            ("nodiscard", None) => self.discard = false,
            ("atime" | "relatime" | "norelatime" | "nostrictatime", None) => {
                flags.access_times = AccessTimes::Relative
            }
            ("noatime", None) => flags.access_times = AccessTimes::Never,
            ("strictatime", None) => flags.access_times = AccessTimes::Always,
            ("diratime", None) => flags.no_directory_access_times = false,
            ("nodiratime", None) => flags.no_directory_access_times = true,
            ("allow_other", None) => self.allow_other = true,
            ("rings", None) => self.rings = Rings::Wanted,
            ("norings", None) => self.rings = Rings::Never,
            ("direct_io", None) => self.direct_io = true,
            ("cache_size", Some(value)) => self.cache_bytes = size(value)?,
            ("dirty_bytes", Some(value)) => self.dirty_bytes_max = size(value)?,
            ("threads", Some(value)) => {
                self.threads =
                    value.parse().ok().filter(|threads| (1..=THREADS_MAX).contains(threads)).ok_or_else(
                        || Usage(format!("mount option {word}: give a number from 1 to {THREADS_MAX}")),
                    )?;
            }
            ("fsname", Some(value)) if !value.is_empty() => self.source = Some(value.to_owned()),
            ("log", Some(value)) if value.starts_with('/') => self.log = Some(value.into()),
            ("log", _) => {
                return Err(Usage(format!("mount option {word}: give a file with its whole path, log=/...")));
            }
            ("remount", None) => {}
            // What `utab` notes comes back with a remount.
            ("uhelper", Some(_)) => {}
            ("bind", None) if self.remount => self.bind = true,
            // mount(8) hands back what the kernel's table of mounts shows.
            ("user_id" | "group_id" | "max_read" | "blksize", Some(_)) if self.remount => {}
            // Access times wait in memory in any case, and no others do.
            ("lazytime" | "nolazytime", None) => {}
            // Always so.
            ("default_permissions" | "defaults" | "subtype" | "silent" | "", _) => {}
            // For other programs.
            (
                "auto" | "noauto" | "nofail" | "_netdev" | "nouser" | "user" | "users" | "nousers" | "owner"
                | "noowner" | "group" | "nogroup",
                _,
            ) => {}
            (name, _) if name.starts_with("x-") || name.starts_with("X-") || name == "comment" => {}
            ("writeback", _) => {
                return Err(Usage("mount option writeback is not built yet; leave it out".into()));
            }
            _ => return Ok(false),
        }
        Ok(true)
    }
}

/// Whether the lists of `-o` ask for a change of a mount that is there.
pub fn asks_remount(lists: &[String]) -> bool {
    words(lists).any(|word| word == "remount")
}

fn words(lists: &[String]) -> impl Iterator<Item = &str> {
    lists.iter().flat_map(|list| list.split(',')).map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Options, Usage> {
        Options::parse(&[text.to_owned()], true)
    }

    // Goal: each option does its one thing, and the last of two opposites counts. Method: against the defaults.
    #[test]
    fn options_mean_what_they_say() {
        let defaults = Options::default_for(true);
        assert_eq!(parse(""), Ok(defaults.clone()));
        assert_eq!(
            parse("rw,exec,async,defaults,nofail,x-systemd.automount,default_permissions"),
            Ok(defaults.clone())
        );
        assert_eq!(parse("lazytime,nodiscard,nosymfollow,symfollow"), Ok(defaults.clone()));
        assert_eq!(parse("sync,dirsync,async,nodirsync"), Ok(defaults.clone()));
        assert_eq!(parse("rings,norings"), Ok(Options { rings: Rings::Never, ..defaults.clone() }));
        assert_eq!(parse("norings,rings"), Ok(Options { rings: Rings::Wanted, ..defaults.clone() }));
        assert_eq!(parse("discard"), Ok(Options { discard: true, ..defaults.clone() }));
        let read_only = Flags { read_only: true, ..Flags::default() };
        assert_eq!(parse("ro"), Ok(Options { flags: read_only, ..defaults.clone() }));
        assert_eq!(parse("ro,rw"), Ok(defaults.clone()));
        let wanted = Options {
            flags: Flags {
                read_only: false,
                no_dev: true,
                no_suid: true,
                no_exec: true,
                no_symlinks: true,
                access_times: AccessTimes::Never,
                no_directory_access_times: true,
                durable: true,
                durable_names: true,
            },
            cache_bytes: 8 << 20,
            dirty_bytes_max: 2 << 20,
            threads: 3,
            source: Some("name".into()),
            log: Some("/var/log/pool".into()),
            ..defaults
        };
        let text = "nodev,nosuid,noexec,nosymfollow,noatime,nodiratime,sync,dirsync,cache_size=8M,dirty_bytes=2MiB,threads=3,fsname=name,\
                    log=/var/log/pool";
        assert_eq!(parse(text), Ok(wanted));
    }

    // Goal: users who are not root get the options that the kernel forces on them. Method: the defaults of both.
    #[test]
    fn ordinary_users_get_safe_defaults() {
        let options = Options::parse(&[], false).expect("no option is no mistake");
        assert!(options.flags.no_dev && options.flags.no_suid && !options.allow_other);
        assert!(Options::parse(&[], true).expect("no option is no mistake").allow_other);
    }

    // Goal: what is not known is refused by name. Method: one of each kind of mistake.
    #[test]
    fn mistakes_are_refused() {
        for text in [
            "rwx",
            "ro=1",
            "cache_size",
            "cache_size=lots",
            "cache_size=1K",
            "dirty_bytes=1",
            "threads=0",
            "bind",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
        let Usage(sentence) = parse("ro,subvol=home").expect_err("there is no such option");
        assert!(sentence.contains("subvol=home") && sentence.contains("cache_size=SIZE"), "{sentence}");
        let Usage(sentence) = parse("writeback").expect_err("not built");
        assert!(sentence.contains("not built yet"), "{sentence}");
    }

    // Goal: a remount changes what it names and nothing else, whatever mount(8) hands back from the kernel's table.
    // Method: the flags of a mount, and the list of `mount -o remount,ro`.
    #[test]
    fn a_remount_starts_from_the_flags_there_are() {
        let flags = Flags { no_dev: true, access_times: AccessTimes::Never, ..Flags::default() };
        let list = "rw,nodev,noatime,user_id=0,group_id=0,default_permissions,allow_other,remount,ro";
        let options = Options::parse_remount(&[list.to_owned()], flags).expect("all of it is known");
        assert_eq!(options.flags, Flags { read_only: true, ..flags });
        assert!(options.remount && !options.bind);
        let options = Options::parse_remount(&["remount,relatime".to_owned()], flags).expect("known");
        assert_eq!(options.flags, Flags { access_times: AccessTimes::Relative, ..flags });
        assert!(Options::parse_remount(&["remount,frob".to_owned()], flags).is_err());
    }
}
