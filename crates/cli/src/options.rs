//! Mount options: what `-o` may say, and what each means.
//!
//! Unknown ones are refused, so that nobody believes that an option does something. Words of fstab that are meant for
//! other programs (`noauto`, `nofail`, `x-...`) are accepted and ignored.

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

/// Everything about a mount that can be chosen.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Options {
    /// Refuse every change, and write nothing to the pool.
    pub read_only: bool,
    /// Do not honour device nodes.
    pub no_dev: bool,
    /// Do not honour set-id bits.
    pub no_suid: bool,
    /// Do not execute programs.
    pub no_exec: bool,
    /// Do not note access times.
    pub no_atime: bool,
    /// Let other users in (they always are when root mounts).
    pub allow_other: bool,
    /// Memory for metadata, in bytes.
    pub cache_bytes: u64,
    /// Dirty file data in memory before writers wait, in bytes.
    pub dirty_bytes_max: u64,
    /// Threads that serve requests.
    pub threads: usize,
    /// Shown as the source by mount(8) instead of the pool's path.
    pub source: Option<String>,
}

impl Options {
    /// What holds without any option, for root or for another user.
    fn default_for(root: bool) -> Self {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        Options {
            read_only: false,
            // As with other filesystems that root mounts; the kernel forces both on everybody else.
            no_dev: !root,
            no_suid: !root,
            no_exec: false,
            no_atime: false,
            allow_other: root,
            cache_bytes: CACHE_BYTES_DEFAULT,
            dirty_bytes_max: DIRTY_BYTES_DEFAULT,
            threads: (2 * cpus).clamp(4, 16),
            source: None,
        }
    }

    /// Reads the lists of `-o` in order; the last of two opposites counts.
    pub fn parse(lists: &[String], root: bool) -> Result<Options, Usage> {
        let mut options = Options::default_for(root);
        for word in lists.iter().flat_map(|list| list.split(',')).map(str::trim) {
            let (name, value) = match word.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (word, None),
            };
            options.apply(word, name, value)?;
        }
        if options.cache_bytes < CACHE_BYTES_MIN {
            return Err(Usage(
                "a cache below 4M is too small to work with; give cache_size=4M or more".into(),
            ));
        }
        if options.dirty_bytes_max < DIRTY_BYTES_MIN {
            return Err(Usage("dirty_bytes below 1M is too small to work with; give 1M or more".into()));
        }
        Ok(options)
    }

    fn apply(&mut self, word: &str, name: &str, value: Option<&str>) -> Result<(), Usage> {
        let size =
            |value: &str| parse_size(value).map_err(|why| Usage(format!("mount option {word}: {why}")));
        match (name, value) {
            ("ro", None) => self.read_only = true,
            ("rw", None) => self.read_only = false,
            ("dev", None) => self.no_dev = false,
            ("nodev", None) => self.no_dev = true,
            ("suid", None) => self.no_suid = false,
            ("nosuid", None) => self.no_suid = true,
            ("exec", None) => self.no_exec = false,
            ("noexec", None) => self.no_exec = true,
            ("atime" | "relatime", None) => self.no_atime = false,
            ("noatime", None) => self.no_atime = true,
            ("allow_other", None) => self.allow_other = true,
            ("cache_size", Some(value)) => self.cache_bytes = size(value)?,
            ("dirty_bytes", Some(value)) => self.dirty_bytes_max = size(value)?,
            ("threads", Some(value)) => {
                self.threads =
                    value.parse().ok().filter(|threads| (1..=THREADS_MAX).contains(threads)).ok_or_else(
                        || Usage(format!("mount option {word}: give a number from 1 to {THREADS_MAX}")),
                    )?;
            }
            ("fsname", Some(value)) if !value.is_empty() => self.source = Some(value.to_owned()),
            // Always so.
            ("default_permissions" | "async" | "defaults" | "subtype" | "", _) => {}
            // For other programs.
            (
                "auto" | "noauto" | "nofail" | "_netdev" | "nouser" | "user" | "users" | "owner" | "group",
                _,
            ) => {}
            (name, _) if name.starts_with("x-") || name == "comment" => {}
            ("writeback", _) => {
                return Err(Usage("mount option writeback is not built yet; leave it out".into()));
            }
            _ => {
                return Err(Usage(format!(
                    "there is no mount option {word}; see varve mount --help for those there are"
                )));
            }
        }
        Ok(())
    }
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
        assert_eq!(parse("ro"), Ok(Options { read_only: true, ..defaults.clone() }));
        assert_eq!(parse("ro,rw"), Ok(defaults.clone()));
        let wanted = Options {
            no_dev: true,
            no_suid: true,
            no_exec: true,
            no_atime: true,
            cache_bytes: 8 << 20,
            dirty_bytes_max: 2 << 20,
            threads: 3,
            source: Some("name".into()),
            ..defaults
        };
        let text = "nodev,nosuid,noexec,noatime,cache_size=8M,dirty_bytes=2MiB,threads=3,fsname=name";
        assert_eq!(parse(text), Ok(wanted));
    }

    // Goal: users who are not root get the options that the kernel forces on them. Method: the defaults of both.
    #[test]
    fn ordinary_users_get_safe_defaults() {
        let options = Options::parse(&[], false).expect("no option is no mistake");
        assert!(options.no_dev && options.no_suid && !options.allow_other);
        assert!(Options::parse(&[], true).expect("no option is no mistake").allow_other);
    }

    // Goal: what is not known is refused by name. Method: one of each kind of mistake.
    #[test]
    fn mistakes_are_refused() {
        for text in
            ["rwx", "ro=1", "cache_size", "cache_size=lots", "cache_size=1K", "dirty_bytes=1", "threads=0"]
        {
            assert!(parse(text).is_err(), "{text}");
        }
        let Usage(sentence) = parse("ro,subvol=home").expect_err("there is no such option");
        assert!(sentence.contains("subvol=home"), "{sentence}");
        let Usage(sentence) = parse("writeback").expect_err("not built");
        assert!(sentence.contains("not built yet"), "{sentence}");
    }
}
