//! Finds out who has a file or block device open, for the message of a failed lock.
//!
//! Best effort from /proc: an answer may be missing (another user's process, another container), never an
//! error. The lock table names whoever took the lock, which may have handed it on to a child and ended;
//! then the open files of all processes are looked through. The kernel says of each whether it has a lock
//! (/proc/PID/fdinfo): who only has the file open, to copy it perhaps, keeps nobody from it.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, FileType, StatxFlags, makedev, statx};

use super::loops::FileId;

/// Processes and open files looked at, at most.
const PROCESSES_MAX: usize = 20_000;
const FILES_PER_PROCESS_MAX: usize = 4_096;

/// The identity by which an open file is recognised.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Identity {
    Inode { device: u64, inode: u64 },
    BlockDevice { number: u64 },
}

impl Identity {
    /// Of the open file that a link in /proc leads to, as the kernel has it: a filesystem that does not answer is not asked.
    fn of_open(link: &Path) -> Option<Self> {
        let flags = AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT;
        let stat = statx(CWD, link, flags, StatxFlags::TYPE | StatxFlags::INO).ok()?;
        Some(if FileType::from_raw_mode(stat.stx_mode.into()) == FileType::BlockDevice {
            Self::BlockDevice { number: makedev(stat.stx_rdev_major, stat.stx_rdev_minor) }
        } else {
            Self::Inode { device: makedev(stat.stx_dev_major, stat.stx_dev_minor), inode: stat.stx_ino }
        })
    }

    fn of(metadata: &fs::Metadata) -> Self {
        if metadata.file_type().is_block_device() {
            Self::BlockDevice { number: metadata.rdev() }
        } else {
            Self::Inode { device: metadata.dev(), inode: metadata.ino() }
        }
    }
}

/// Something like "process 4711 (varve)", if a process can be found that has `path` (open as `ours` here)
/// locked or open for writing, or at all if that is what claims it (`ours` is `None`).
pub(super) fn describe_holder(path: &Path, ours: Option<&File>) -> Option<String> {
    let metadata = match ours {
        Some(file) => file.metadata(),
        None => fs::metadata(path),
    }
    .ok()?;
    let mut holders = lock_holders(&metadata);
    holders.retain(|pid| lives(*pid));
    // This process may have it locked as well.
    let other = holders.iter().find(|pid| **pid != std::process::id());
    let pid = other.or(holders.first()).copied().or_else(|| {
        let found = opener(Identity::of(&metadata));
        found.locks.or(found.writes).or(if ours.is_none() { found.reads } else { None })
    })?;
    Some(describe(pid))
}

fn describe(pid: u32) -> String {
    let comm = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    let program: String = comm.trim_end().chars().map(|c| if c.is_control() { '?' } else { c }).collect();
    let whose = if pid == std::process::id() { "this process" } else { "process" };
    if program.is_empty() { format!("{whose} {pid}") } else { format!("{whose} {pid} ({program})") }
}

/// Whether a living process (this one included, if it has the file open elsewhere) holds `ours` locked. `own_locks` of the
/// locks are those of who asks.
pub(super) fn held_by_living(ours: &File, own_locks: usize) -> bool {
    let Ok(metadata) = ours.metadata() else { return false };
    let mut holders = lock_holders(&metadata);
    for _ in 0..own_locks {
        if let Some(own) = holders.iter().position(|pid| *pid == std::process::id()) {
            holders.swap_remove(own);
        }
    }
    holders.into_iter().any(lives) || opener(Identity::of(&metadata)).locks.is_some()
}

/// Something like "process 4711 (varve)": a living process that has a lock on `file` which is in the way of a shared one, or
/// with `alone` of an exclusive one.
pub(super) fn lock_holder(file: FileId, alone: bool) -> Option<String> {
    let locks = locks_on(file.device, file.inode);
    let (pid, _) = locks.into_iter().find(|(pid, is_exclusive)| (alone || *is_exclusive) && lives(*pid))?;
    Some(describe(pid))
}

fn lives(pid: u32) -> bool {
    fs::metadata(format!("/proc/{pid}")).is_ok()
}

fn lock_holders(metadata: &fs::Metadata) -> Vec<u32> {
    locks_on(metadata.dev(), metadata.ino()).into_iter().map(|(pid, _)| pid).collect()
}

/// The pids that hold a flock on the inode, and whether it is exclusive, according to /proc/locks, whose lines read
/// `1: FLOCK  ADVISORY  WRITE 4711 fe:00:1234 0 EOF`.
fn locks_on(device: u64, inode: u64) -> Vec<(u32, bool)> {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let inode = format!("{major:02x}:{minor:02x}:{inode}");
    let locks = fs::read_to_string("/proc/locks").unwrap_or_default();
    let holder = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        // A waiter's line has "->" in second place and is no holder.
        match fields[..] {
            [_, "FLOCK", _, kind, pid, locked, ..] if locked == inode => {
                Some((pid.parse().ok()?, kind == "WRITE"))
            }
            _ => None,
        }
    };
    locks.lines().filter_map(holder).collect()
}

/// Processes other than this one that have a file open.
#[derive(Default)]
struct Openers {
    /// With a lock on it.
    locks: Option<u32>,
    writes: Option<u32>,
    reads: Option<u32>,
}

/// Whether an open file, number `name` of this process, has a lock that it got by flock(2).
fn has_lock(process: &Path, name: &OsStr) -> bool {
    let info = fs::read_to_string(process.join("fdinfo").join(name)).unwrap_or_default();
    info.lines().any(|line| line.starts_with("lock:") && line.contains(" FLOCK "))
}

/// Who has the file open. This process has because it asks; a lock of its own stands in the lock table.
fn opener(identity: Identity) -> Openers {
    let mut found = Openers::default();
    let Ok(processes) = fs::read_dir("/proc") else { return found };
    for process in processes.flatten().take(PROCESSES_MAX) {
        let Some(pid) = process.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        if pid == std::process::id() {
            continue;
        }
        let Ok(files) = fs::read_dir(process.path().join("fd")) else { continue };
        for file in files.flatten().take(FILES_PER_PROCESS_MAX) {
            if Identity::of_open(&file.path()) != Some(identity) {
                continue;
            }
            if has_lock(&process.path(), &file.file_name()) {
                found.locks = Some(pid);
                return found;
            }
            // The link's own mode bits say how the file was opened.
            let writes = file.metadata().is_ok_and(|link| link.mode() & 0o200 != 0);
            (if writes { &mut found.writes } else { &mut found.reads }).get_or_insert(pid);
        }
    }
    found
}
