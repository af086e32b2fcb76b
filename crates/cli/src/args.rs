//! The command line: one table of commands and options, from which parsing and help are made.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use varve_fs::Profile;

use crate::size::parse_size;

/// VarveFS: a copy-on-write filesystem in user space, on a file or a block device.
///
/// A pool is a file or block device that holds a filesystem. Create one, mount it on a directory, use it like any
/// other, unmount it. After a crash everything that was synced is there again at the next mount.
#[derive(Parser, Debug)]
#[command(name = "varve", version, propagate_version = true, max_term_width = 100)]
#[command(after_help = "First steps:\n  \
    varve create pool.img --size 10G\n  \
    mkdir mnt && varve mount pool.img mnt\n  \
    varve unmount mnt\n\n\
    Sizes are bytes, or take K, M, G, T (powers of 1024).\n\
    Names are printed as they are but for \\\\ \\\" \\n \\r \\t, \\x and two digits for a byte that is no text\n\
    or cannot be seen, and \\x20 for a space at an edge, in JSON too; printf %b undoes it.\n\
    Exit status: 0 done, 1 a problem was found or the operation failed, 2 wrong usage.")]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands. What help says about each stands at its arguments.
#[derive(Subcommand, Debug)]
pub enum Command {
    Create(CreateArgs),
    Mount(MountArgs),
    Unmount(UnmountArgs),
    Subvolume(crate::versions::SubvolumeArgs),
    Snapshot(crate::versions::SnapshotArgs),
    Clone(crate::versions::CloneArgs),
    Extents(crate::versions::ExtentsArgs),
    Diff(crate::versions::DiffArgs),
    Sync(SyncArgs),
    Trim(TrimArgs),
    Stats(StatsArgs),
    Check(CheckArgs),
    Import(ImportArgs),
    Export(ExportArgs),
    Inspect(InspectArgs),
    Man(ManArgs),
    Completions(CompletionsArgs),
    Lab(crate::lab::LabArgs),
    InstallHelper(crate::install::InstallArgs),
    /// What mount.fuse.varve runs
    #[command(hide = true)]
    MountHelper(crate::helper::HelperArgs),
    /// What umount.fuse.varve runs
    #[command(hide = true)]
    UnmountHelper(crate::helper::HelperArgs),
}

/// Make a new, empty pool in a file or on a block device.
///
/// With --size a sparse file is made, which its owner alone may read (mode 0600): whoever can read it can read every file
/// in it. A file or device that is there already is used as it is, unless it holds
/// something: then nothing is changed, and --force is needed to overwrite it. Of a file everything is looked at, and any
/// byte that is not zero counts. Of a block device the first and the last MiB are looked at, where pools, filesystems, partition
/// tables, volume managers and arrays leave their signs: what is elsewhere on it is not noticed.
#[derive(Args, Debug, Clone)]
pub struct CreateArgs {
    /// File or block device that will hold the pool
    pub pool: PathBuf,
    /// Further devices that join the pool (not built yet: one device for now)
    #[arg(value_name = "DEV", hide = true)]
    pub devices: Vec<PathBuf>,
    /// Make the file, of this size (at least 64M). It is sparse: the filesystem it lies on needs the space as the pool is filled
    #[arg(long, value_parser = parse_size)]
    pub size: Option<u64>,
    /// Copies of file data: single or dup
    #[arg(long, value_name = "PROFILE", default_value = "single", value_parser = parse_profile)]
    pub data: Profile,
    /// Copies of metadata: single or dup (two copies on the device, twice as many if data is dup)
    #[arg(long, value_name = "PROFILE", default_value = "dup", value_parser = parse_profile)]
    pub metadata: Profile,
    /// Overwrite what is there
    #[arg(long)]
    pub force: bool,
    /// Print the result as JSON; docs/json.md explains the keys
    #[arg(long)]
    pub json: bool,
}

/// Mount a pool on a directory; returns when the mount answers.
///
/// A background process then serves the mount until it is unmounted. If the pool was not unmounted
/// the last time, it is recovered first. A dead mount that a killed process left behind on the
/// directory is taken away.
///
/// Mount options, separated by commas, the last of two opposites counts:
///
///   ro, rw            refuse all changes (the pool is not written to), or allow them
///   relatime          note a file's access time once after each change, and once a day (as is usual)
///   noatime           never note access times; strictatime: always; nodiratime: not of directories
///   nodev, nosuid, noexec     ignore device nodes, set-id bits, programs; opposites: dev, suid, exec
///   nosymfollow       do not follow symbolic links; opposite: symfollow
///   sync              every change is durable when the call returns (not stores through mmap); opposite: async
///   dirsync           every change of names is durable when the call returns; opposite: nodirsync
///                     (which a remount cannot make of a mount that began with dirsync)
///   remount           change the options above of a mount that is there; what is not named stays. From ro to
///                     rw: only if nobody else reads the pool; what is open stays open
///   direct_io         go past the kernel's cache; before Linux 6.6 writable shared mappings are refused
///   allow_other       let other users in (always so for root; else /etc/fuse.conf must allow it)
///   default_permissions       permissions are checked by the kernel (always so)
///   cache_size=SIZE   memory for metadata that is kept ready [default: 256M]
///   dirty_bytes=SIZE  file data that may wait in memory before writers do [default: 128M]
///   threads=N         threads that serve requests (through rings it is up to 32 for each processor instead)
///   rings             take requests through rings (FUSE over io_uring, Linux 6.14; as root): better for many threads
///                     at once. The kernel's switch, /sys/module/fuse/parameters/enable_uring, is turned on while the
///                     mount begins. Without this option: if the switch is on; with norings: never
///   fsname=NAME       shown by mount(8) instead of the pool's path
///   log=FILE          as --log
///
/// SIGTERM and SIGINT end the mount as varve unmount does, but whoever uses it still is refused after five seconds.
/// SIGHUP has it open its log file anew; of a process that runs in a terminal (--foreground, without nohup) it ends the mount, too.
///
/// Accepted, and nothing is different for them: lazytime (access times wait in memory anyway), nodiscard,
/// and discard with a warning (run fstrim or varve trim once a week or so instead).
/// What fstab has for other programs (auto, noauto, nofail, _netdev, user, x-...) is accepted.
/// With mount(8) and fstab: see varve install-helper.
#[derive(Args, Debug, Default)]
#[command(verbatim_doc_comment)]
pub struct MountArgs {
    /// File or block device that holds the pool
    pub pool: PathBuf,
    /// Directory to mount it on
    pub mountpoint: PathBuf,
    /// If POOL does not exist, create it as a file of this size first (mode 0600)
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub create: Option<u64>,
    /// Stay in the foreground, with messages on standard error
    #[arg(long)]
    pub foreground: bool,
    /// Memory for metadata that is kept ready [default: 256M]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub cache_size: Option<u64>,
    /// Mount options, separated by commas: ro, noatime, nodev, nosuid, noexec, remount, cache_size=SIZE, ...
    /// (--help explains all)
    #[arg(short = 'o', value_name = "OPTS")]
    pub options: Vec<String>,
    /// Pass over mount options that there are not
    #[arg(long, hide = true)]
    pub sloppy: bool,
    /// Append messages of the background process to this file, which must lie outside the mount, instead of the system log
    ///
    /// To rotate it, rename it and send SIGHUP to the process, which opens it anew then (unless it runs in a terminal, where that signal
    /// unmounts); or copy and cut it, as logrotate does with copytruncate.
    #[arg(long, value_name = "FILE", alias = "log-file")]
    pub log: Option<PathBuf>,
    /// Write down everything that happens on the device, in this file, for tests that cut crash images out of it
    #[cfg(feature = "record")]
    #[arg(long, value_name = "FILE", hide = true)]
    pub record_log: Option<PathBuf>,
    /// This is the background process; whoever started it reads "ready" from standard output
    #[arg(long, hide = true)]
    pub daemon_child: bool,
}

/// Unmount; returns when everything is durable and the pool can be used again.
///
/// umount(8) works too; without the helpers of varve install-helper it returns before the background process has written
/// everything. While the pool is mounted in other places as well (a bind mount, a container that was started meanwhile) it
/// stays open: after two seconds it is said where, or which processes in a chroot of another mount namespace may hide it, and
/// whether all is durable already.
///
/// A pool whose file was deleted or cut while it was mounted is not unmounted without --force: what was deleted is there until
/// then, and the error says how to copy it out. Nor is one of which changes through mmap could not be stored for lack of space:
/// they are there until then, too. umount(8) and SIGTERM do not ask.
#[derive(Args, Debug)]
pub struct UnmountArgs {
    /// Directory that the pool is mounted on
    pub mountpoint: PathBuf,
    /// Wait for other places that the pool is mounted in so long at most; then exit with status 1, when what was written
    /// is durable [default: for good]
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    pub wait: Option<Duration>,
    /// Unmount also when the file of the pool was deleted or cut meanwhile, or when changes through mmap could not be stored:
    /// they are gone then
    #[arg(long)]
    pub force: bool,
}

/// Make everything durable that was written to a mounted pool.
///
/// sync(1) does not reach filesystems in user space; this does. Only the user who mounted the pool and root may: others make
/// their own files durable with fsync.
#[derive(Args, Debug)]
pub struct SyncArgs {
    /// Anything inside the mount
    pub path: PathBuf,
}

/// Give free space back to the device: to the filesystem that a pool's file lies in, to an SSD or a thin volume.
///
/// The file of a pool takes space for whatever was ever written to it. This tells what is below (a file gets holes, a block
/// device is told to discard) which blocks nothing in the pool refers to, not even the state that a crash would bring back.
/// Contents do not change, and a mounted pool can be used meanwhile. Run it once a week or so: every block that is discarded
/// for nothing costs a device something. What was deleted a moment ago is given back when it has been reaped, which goes on in
/// the background (varve stats: reap).
///
/// Of a mounted pool only the user who mounted it and root may ask. fstrim(8) does the same for root.
#[derive(Args, Debug)]
pub struct TrimArgs {
    /// Anything inside a mount, or the file or device of a pool that is not mounted
    #[arg(value_name = "PATH|POOL")]
    pub path: PathBuf,
    /// Leave alone what is free in shorter pieces than this; more than 128M is taken for 128M
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub minimum: Option<u64>,
    /// Print the result as JSON; docs/json.md explains the keys
    #[arg(long)]
    pub json: bool,
}

/// Show space, devices and counters of a pool, mounted or not.
///
/// Of a mounted pool only the user who mounted it and root may ask; df(1) shows the space to everybody. Of one that is not
/// mounted, whoever may read its file or device.
#[derive(Args, Debug)]
pub struct StatsArgs {
    /// Anything inside a mount, or the file or device of a pool
    #[arg(value_name = "PATH|POOL")]
    pub path: PathBuf,
    /// Print as JSON; docs/stats.md explains the keys
    #[arg(long)]
    pub json: bool,
    /// Show them again every second, or as often as said, with what was done meanwhile; only for a mounted pool. With
    /// --json, one line each time
    #[arg(
        long, value_name = "SECONDS", num_args = 0..=1, require_equals = true, default_missing_value = "1",
        value_parser = parse_seconds
    )]
    pub watch: Option<Duration>,
    /// With --watch: stop after so many times
    #[arg(long, value_name = "TIMES", requires = "watch")]
    pub count: Option<u64>,
}

/// Read everything in an unmounted pool and compare it; changes nothing.
///
/// Every block that is in use is read and its checksum verified; everything that could be derived from something else
/// (free space, link counts) is compared with a full scan. Each problem begins with the name of its kind and says, as
/// far as it can be said, which file and which bytes are lost; a damaged part does not hide the rest, and a pool that
/// cannot be mounted any more is checked, too. Exit status 1 if anything is wrong.
#[derive(Args, Debug)]
pub struct CheckArgs {
    /// File or block device that holds the pool
    pub pool: PathBuf,
    /// Memory for metadata that is kept ready: what does not fit is read several times [default: an eighth of what
    /// this machine has or the control group allows, at least 256M and at most 4G]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub cache_size: Option<u64>,
    /// Print the report as JSON; docs/json.md and docs/check.md explain the keys
    #[arg(long)]
    pub json: bool,
}

/// Copy a directory tree of this system into a pool; needs no mount.
///
/// What is in DIR goes into the directory PATH of the pool, which is made if it is not there, with owners, permissions,
/// times, extended attributes and access lists, flags (chattr), hard and symbolic links, device nodes and holes. The pool
/// must not be mounted (into a mounted one, copy with cp -a). PATH itself gets owner, permissions and the like of DIR, also if it was there.
///
/// An import that was interrupted is run again: what is there already is left alone. A file counts as there when its
/// size and modification time are those of the source; attributes are compared and mended. What differs is replaced,
/// and what only the pool has stays. An entry that cannot be copied is told and left out, the rest goes on, and the
/// exit status is 1.
#[derive(Args, Debug)]
pub struct ImportArgs {
    /// Directory to copy
    pub dir: PathBuf,
    /// File or block device of the pool, and a directory in it, such as backup.img:/projects
    #[arg(value_name = "POOL:/PATH")]
    pub place: OsString,
    /// Make durable what is copied so far every so many seconds, so that an import that is cut off goes on from there
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = parse_seconds)]
    pub commit_every: Duration,
    /// Leave out what is mounted below DIR; an empty directory stands for each, and how many there are is said
    #[arg(short = 'x', long)]
    pub one_file_system: bool,
    /// Memory for metadata that is kept ready [default: 256M]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub cache_size: Option<u64>,
    /// Print the summary as JSON; docs/json.md explains the keys
    #[arg(long)]
    pub json: bool,
}

/// Copy a directory tree out of a pool; needs no mount and changes nothing in the pool.
///
/// What is in the directory PATH of the pool goes into DIR, which is made if it is not there, with permissions, times,
/// extended attributes and access lists, flags (chattr), hard and symbolic links and holes. Owners and device nodes need
/// root, and so do the flags i and a. The pool must not be mounted (from a mounted one, copy with cp -a). DIR itself
/// gets owner, permissions and the like of PATH, also if it was there.
///
/// An export that was interrupted is run again: a file whose size and modification time are right is left alone, what
/// differs is replaced, and what only DIR has stays. An entry that cannot be copied is told and left out, the rest goes
/// on, and the exit status is 1.
#[derive(Args, Debug)]
pub struct ExportArgs {
    /// File or block device of the pool, and a directory in it; POOL:/ is all of it
    #[arg(value_name = "POOL:/PATH")]
    pub place: OsString,
    /// Directory to copy to
    pub dir: PathBuf,
    /// Make durable what is copied so far every so many seconds, so that an export that is cut off goes on from there
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = parse_seconds)]
    pub commit_every: Duration,
    /// Leave out what is in subvolumes and snapshots below PATH; an empty directory stands for each
    #[arg(short = 'x', long)]
    pub one_file_system: bool,
    /// Print the summary as JSON; docs/json.md explains the keys
    #[arg(long)]
    pub json: bool,
}

/// Show what is on the device of a pool, mounted or not; changes nothing.
///
/// Without WHAT: the pool in short. Reads the device without a lock, so it works on a mounted pool (what is not committed
/// yet is not there to be seen) and on a damaged one. Lookups show the last checkpoint with the log after it applied, as
/// the next mount will find it. docs/inspect.md explains the keys of an inode, docs/json.md the others,
/// SPEC.md all fields.
#[derive(Args, Debug)]
#[command(subcommand_help_heading = "What", subcommand_value_name = "WHAT", disable_help_subcommand = true)]
pub struct InspectArgs {
    /// File or block device that holds the pool
    pub pool: PathBuf,
    /// What to show
    #[command(subcommand)]
    pub what: Option<InspectWhat>,
    /// Print as JSON
    #[arg(long, global = true)]
    pub json: bool,
    /// With tree, inode or path: show the last checkpoint alone, without the log after it
    #[arg(long, global = true)]
    pub checkpoint: bool,
}

/// Parts of a pool.
#[derive(Subcommand, Debug)]
pub enum InspectWhat {
    /// Labels, superblock slots, and the superblock that counts
    Superblock,
    /// The log since the last checkpoint: its batches, or one of them with its operations
    Ring {
        /// Show the operations of this batch
        #[arg(long, value_name = "NUMBER")]
        batch: Option<u64>,
    },
    /// The root block: trees, checksums of data, bitmap of used blocks
    Roots,
    /// Entries of a tree: inodes, names, xattrs, extents, versions, orphans, subvolumes, held, reap, shares
    /// or keyframes
    Tree {
        /// Name of the tree
        name: String,
        /// Begin at this key, in hexadecimal digits, such as the next_key of an earlier answer
        #[arg(long, value_name = "KEY", default_value = "", hide_default_value = true)]
        from: String,
        /// Show at most so many entries
        #[arg(long, value_name = "COUNT", default_value_t = 100)]
        limit: usize,
    },
    /// The block at an address: a tree node with its entries, or what else is there
    Node {
        /// Address in the pool, such as 0x1234000
        #[arg(value_parser = parse_address)]
        addr: u64,
    },
    /// An inode as one subvolume sees it: its record and of which version that is, its attributes, versions and extents
    Inode {
        /// Inode number, as ls -i shows it, which says in which subvolume; numbers below 2^32 are of the pool's first
        /// subvolume, where the root directory is 1
        number: u64,
        /// The inode of this number in another subvolume or snapshot: its number, as varve subvolume list shows it, or its
        /// path in the pool
        #[arg(long, value_name = "ID|/PATH")]
        subvolume: Option<OsString>,
    },
    /// The same of what a path inside the pool leads to, through subvolumes and snapshots; symbolic links are not followed
    Path {
        /// Path from the pool's root, such as /projects/clay
        path: OsString,
    },
}

/// Thirty years: moments so far away can be reckoned with.
const SECONDS_MAX: f64 = 1e9;

fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.01..=SECONDS_MAX).contains(seconds));
    let duration = seconds.and_then(|seconds: f64| Duration::try_from_secs_f64(seconds).ok());
    duration.ok_or_else(|| "a number of seconds, at least 0.01 and at most a billion".to_owned())
}

fn parse_address(text: &str) -> Result<u64, String> {
    let digits = text.strip_prefix("0x").or(text.strip_prefix("0X"));
    let parsed = digits.map_or_else(|| text.parse(), |digits| u64::from_str_radix(digits, 16));
    parsed.map_err(|_| "an address is a number, such as 0x1234000".to_owned())
}

/// Write the manual pages into a directory.
///
/// For all users: varve man /usr/local/share/man/man1
#[derive(Args, Debug)]
pub struct ManArgs {
    /// Directory to write varve.1, varve-create.1 and the others to; made if it is not there
    pub dir: PathBuf,
}

/// Print a script that completes commands, options and files for a shell.
///
/// For bash: varve completions bash > /etc/bash_completion.d/varve
#[derive(Args, Debug)]
pub struct CompletionsArgs {
    /// Shell to write it for
    pub shell: clap_complete::Shell,
}

/// Profiles that the format has a place for and that are not built yet.
const PROFILES_PLANNED: [&str; 5] = ["raid0", "raid1", "raid1c3", "raid1c4", "raid10"];

fn parse_profile(text: &str) -> Result<Profile, String> {
    match text {
        "single" => Ok(Profile::Single),
        "dup" => Ok(Profile::Dup),
        planned if PROFILES_PLANNED.contains(&planned) => {
            Err(format!("{planned} needs several devices and is not built yet; use single or dup"))
        }
        _ => Err("there is no such profile; use single (one copy) or dup (two copies)".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;
    use clap::error::ErrorKind;

    use super::*;

    fn parse(words: &[&str]) -> Result<Cli, clap::Error> {
        Cli::try_parse_from(std::iter::once("varve").chain(words.iter().copied()))
    }

    // Goal: a time that nobody means is refused, not reckoned with. Method: bounds and beyond.
    #[test]
    fn seconds_have_bounds() {
        for (text, right) in [("0.01", true), ("1e9", true), ("0.001", false), ("-1", false), ("NaN", false)]
        {
            assert_eq!(parse_seconds(text).is_ok(), right, "{text}");
        }
        for text in ["1e10", "1e19", "inf", "18446744073709551615"] {
            assert!(parse_seconds(text).is_err(), "{text}");
        }
    }

    // Goal: the table contradicts itself nowhere. Method: clap's own check.
    #[test]
    fn the_table_is_sound() {
        Cli::command().debug_assert();
    }

    // Goal: the stable names parse. Method: a full line of each command.
    #[test]
    fn commands_parse() {
        for line in [
            "create pool.img --size 64M --data single --metadata dup --force --json",
            "mount --create 1G --foreground --cache-size 64M -o ro,noatime -o nodev pool.img mnt",
            "unmount mnt",
            "unmount --wait 5 mnt",
            "sync mnt/dir",
            "subvolume create mnt/a mnt/b",
            "subvolume list mnt --json",
            "subvolume delete mnt/a mnt/b",
            "snapshot --read-only --sync mnt/a mnt/b",
            "clone mnt/file mnt/other",
            "extents --shared mnt/file --json",
            "extents pool.img:/file",
            "diff mnt/old mnt/new --json",
            "stats mnt --json",
            "check pool.img --json",
            "import -x --cache-size 1G tree pool.img:/a --json",
            "export pool.img:/a tree --json",
            "export -x pool.img:/a tree",
            "inspect pool.img --json",
            "man pages",
            "completions bash",
            "stats mnt --watch --json",
            "stats --watch=0.5 --count 3 mnt",
            "inspect pool.img tree names --from 00ff --limit 5 --checkpoint",
            "inspect --json pool.img node 0x1000",
            "inspect pool.img ring --batch 7 --json",
            "lab commit --on varve --on ext4 --scale seed --json - --html page.html --dir /tmp",
        ] {
            let words: Vec<&str> = line.split(' ').collect();
            parse(&words).unwrap_or_else(|error| panic!("{line}: {error}"));
        }
    }

    // Goal: wrong usage is refused by the parser. Method: one wrong line each, and what the message must say.
    #[test]
    fn wrong_usage_is_refused() {
        for (line, word) in [
            ("create", "<POOL>"),
            ("create pool.img --size plenty", "plenty"),
            ("create pool.img --data raid9", "raid9"),
            ("create pool.img --data raid1", "not built yet"),
            ("mount pool.img", "<MOUNTPOINT>"),
            ("mount --no-such-flag pool.img mnt", "--no-such-flag"),
            ("no-such-verb", "no-such-verb"),
        ] {
            let words: Vec<&str> = line.split(' ').collect();
            let error = parse(&words).expect_err(line);
            assert_eq!(error.exit_code(), 2, "{line}");
            assert!(error.to_string().contains(word), "{line}: {error}");
        }
        assert_eq!(parse(&["--help"]).expect_err("help is shown").kind(), ErrorKind::DisplayHelp);
    }
}
