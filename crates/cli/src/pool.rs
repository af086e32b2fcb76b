//! Opening a pool's device, and a pool, with errors that say what to do next.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use rustix::fs::{Access, IFlags};
use rustix::io::Errno;
use varve_device::{Device, DeviceError, FileDevice, OpenMode, Operation};
use varve_fs::{CheckProgress, EngineError, Filesystem, FsError, OpenOptions, RecoveryReport, StoreOptions};

use crate::Outcome;
use crate::clock::SystemClock;
use crate::mountinfo::{Mount, MountTable};
use crate::names::Shown;
use crate::size::show_size;
use crate::whose;

/// Smallest pool, in bytes.
pub const POOL_BYTES_MIN: u64 = 64 << 20;

/// How long a pool that is mounted nowhere may stay locked: umount(8) returns before the pool is closed.
const CLOSING: Duration = Duration::from_secs(10);
const CLOSING_PAUSE: Duration = Duration::from_millis(50);

/// Opens the file or block device `path`, waiting for a process that is just closing it.
pub fn open_device(path: &Path, mode: OpenMode) -> Result<FileDevice> {
    open_while(path, mode, &|| true).map_err(|error| explain(path, mode, &error))
}

/// The same for a mount, and waits no longer than somebody wants it.
pub fn open_device_to_mount(path: &Path, mode: OpenMode, is_wanted: &dyn Fn() -> bool) -> Result<FileDevice> {
    open_while(path, mode, is_wanted).map_err(|error| {
        let why = explain(path, mode, &error);
        match (error, mode) {
            (DeviceError::NotPermitted { .. }, OpenMode::ReadWrite) => {
                anyhow!("{why}; what cannot be written to can be mounted with -o ro")
            }
            _ => why,
        }
    })
}

fn open_while(
    path: &Path,
    mode: OpenMode,
    is_wanted: &dyn Fn() -> bool,
) -> std::result::Result<FileDevice, DeviceError> {
    let started = Instant::now();
    loop {
        match FileDevice::open(path, mode) {
            Err(DeviceError::LockedBy(_))
                if started.elapsed() < CLOSING && is_wanted() && mounted_at(path).is_none() =>
            {
                thread::sleep(CLOSING_PAUSE);
            }
            result => return result,
        }
    }
}

/// The absolute path of a pool, as the kernel's table of mounts and messages show it.
pub fn resolve(path: &Path) -> Result<PathBuf> {
    resolve_for(path, OpenMode::ReadOnly)
}

/// As [`resolve`], of a pool that is to be mounted: who writes to it may be about to make it.
pub fn resolve_to_mount(path: &Path, read_only: bool) -> Result<PathBuf> {
    resolve_for(path, if read_only { OpenMode::ReadOnly } else { OpenMode::ReadWrite })
}

fn resolve_for(path: &Path, mode: OpenMode) -> Result<PathBuf> {
    path.canonicalize().map_err(|error| {
        let error = DeviceError::from_os(Operation::Open, path.display().to_string(), 0, 0, &error);
        explain(path, mode, &error)
    })
}

/// What can be done where there is no pool. Creating is no advice to somebody who only wants to look: most of the time the
/// name is mistyped, or it is a pool that is damaged. Nor is it where anything is, which is asked before this.
fn advice(path: &Path, writes: bool) -> String {
    let shown = path.shown();
    if writes {
        // What has a size keeps it.
        let has_size = path.metadata().is_ok_and(|metadata| !metadata.is_file() || metadata.len() > 0);
        let size = if has_size { "" } else { " --size SIZE" };
        format!("; is the name right? To make a new pool there: varve create {shown}{size}")
    } else {
        "; give the file or block device of a pool".to_owned()
    }
}

/// A device error with the next step, where there is one.
pub fn explain(path: &Path, mode: OpenMode, error: &DeviceError) -> anyhow::Error {
    let shown = path.shown();
    match error {
        DeviceError::LockedBy(who) => {
            let who = respelt(path, who);
            match mounted_at(path) {
                Some(place) => {
                    anyhow!("{who}; it is mounted at {place}: unmount it first (varve unmount {place})")
                }
                None => anyhow!("{who}; {}", how_to_end(path, &who)),
            }
        }
        // Made new, it is missing what it is to lie in.
        DeviceError::NotFound { .. } if matches!(mode, OpenMode::Create { .. }) => {
            let parent = path.parent().unwrap_or(path).shown();
            anyhow!("cannot make {shown}: there is no directory {parent}; make it first: mkdir -p {parent}")
        }
        DeviceError::Io { operation: Operation::Open, errno, text, .. } => match mode {
            OpenMode::Create { size_bytes } if is_too_large(*errno) => anyhow!(
                "cannot make {shown} with {}: its filesystem has no files of that size; give a smaller --size, or put it \
                 on another filesystem",
                show_size(size_bytes)
            ),
            OpenMode::Create { .. } => anyhow!("cannot make {shown}: {text}"),
            _ => anyhow!("cannot open {shown}: {text}"),
        },
        DeviceError::NotFound { .. } => {
            anyhow!("{shown} does not exist{}", advice(path, mode == OpenMode::ReadWrite))
        }
        DeviceError::NotPermitted { .. } => {
            let advice = match mode {
                OpenMode::ReadOnly => {
                    "you need permission to read it: ask its owner, or be root (for most block devices)"
                        .to_owned()
                }
                OpenMode::Create { .. } if !path.exists() => {
                    "choose a directory that you may write to, or ask its owner or root".to_owned()
                }
                _ => how_to_write(path),
            };
            anyhow!("{}; {advice}", respelt(path, &error.to_string()))
        }
        DeviceError::Unsupported { .. } if path.is_dir() => anyhow!(
            "{shown} is a directory; give the file or block device of a pool (varve stats {shown} says which is mounted there)"
        ),
        error => anyhow!("{}", with_name(path, &error.to_string())),
    }
}

/// What lets somebody write to a file or block device that he may not write to now.
fn how_to_write(path: &Path) -> String {
    let protected = |file| {
        let flags = rustix::fs::ioctl_getflags(file).unwrap_or(IFlags::empty());
        flags.intersects(IFlags::IMMUTABLE | IFlags::APPEND)
    };
    // To open anything but a file may wait for something.
    let is_file = path.metadata().is_ok_and(|metadata| metadata.is_file());
    if is_file && File::open(path).is_ok_and(protected) {
        return format!(
            "it is immutable or append only (lsattr {shown} shows it): chattr -ia {shown} ends that",
            shown = path.shown()
        );
    }
    if rustix::fs::access(path, Access::WRITE_OK) == Err(Errno::ROFS) {
        return "the filesystem that holds it is read-only: remount that, or use another".to_owned();
    }
    "you need read and write permission for it (or root, for most block devices)".to_owned()
}

/// How the process ends that has a pool open which is mounted nowhere here. One that serves a mount in another mount namespace (a container, or
/// `unshare -m`) keeps that namespace and does not end by itself, whoever else has left it.
fn how_to_end(path: &Path, who: &str) -> String {
    let wait = || "wait for that to end".to_owned();
    // As the device names a living process.
    let number = who.rsplit_once(" process ").and_then(|(_, rest)| rest.strip_suffix(" (varve)"));
    let Some(process) = number.and_then(|number| number.parse::<u32>().ok()) else { return wait() };
    let namespace = |of: &str, kind| std::fs::read_link(format!("/proc/{of}/ns/{kind}")).ok();
    let both = |kind| (namespace("self", kind), namespace(&process.to_string(), kind));
    let (here, there) = both("mnt");
    if there.is_none() || here == there {
        return wait();
    }
    let (table, path) = (MountTable::read_of(process).ok(), path.canonicalize().ok());
    let mounts: Vec<&Mount> = table.iter().flat_map(MountTable::ours).collect();
    if mounts.is_empty() {
        return wait();
    }
    let mount = mounts.into_iter().find(|mount| Some(&mount.source) == path.as_ref());
    let (here, there) = both("user");
    let user = match here == there {
        true => "",
        // As root there, which nsenter sees to, unless it may not.
        false if rustix::process::geteuid().is_root() => " -U",
        false => " -U --preserve-credentials",
    };
    let unmount = mount.map_or_else(String::new, |mount| {
        format!("nsenter -t {process}{user} -m varve unmount {}, or ", mount.mountpoint.shown())
    });
    format!(
        "it serves a mount that is not to be seen from here (of another mount namespace). To end that: {unmount}kill {process}, which closes \
         the pool in order"
    )
}

/// Why what is to be looked at, without a lock, cannot be opened.
pub fn cannot_look_at(path: &Path, error: &std::io::Error) -> anyhow::Error {
    let error = DeviceError::from_os(Operation::Open, path.display().to_string(), 0, 0, error);
    explain(path, OpenMode::ReadOnly, &error)
}

/// What the kernel answers to a size that a file cannot have; nothing, if it is beyond what it can be asked for.
fn is_too_large(errno: Option<i32>) -> bool {
    errno.is_none_or(|errno| [Errno::FBIG, Errno::INVAL].contains(&Errno::from_raw_os_error(errno)))
}

/// Where a pool is mounted, according to the kernel's table, itself or through a loop device.
pub fn mounted_at(path: &Path) -> Option<String> {
    let path = path.canonicalize().ok()?;
    let table = MountTable::read().ok()?;
    let file = varve_device::file_of_storage(&path);
    let is_same = |source: &Path| {
        source == path || file.is_some_and(|file| varve_device::file_of_storage(source) == Some(file))
    };
    let mount = whose::find_by(&table, &path, &is_same)?;
    Some(mount.mountpoint.shown())
}

/// Opens the pool at `path` for `command` to look at, changing nothing. It is recovered in memory if it was not closed; that what
/// came last cannot be shown is told here, and [`outcome`] makes it the command's.
pub fn open_read_only(path: &Path, command: &str) -> Result<(Filesystem, RecoveryReport)> {
    let device: Arc<dyn Device> = Arc::new(open_device(path, OpenMode::ReadOnly)?);
    let (filesystem, recovery) = open(path, device, looking())?;
    if recovery.replay_ended_by.is_some() {
        tell_recovery(path, command, &recovery);
    }
    Ok((filesystem, recovery))
}

/// Tells what recovery did, in memory only, if that is worth saying.
pub fn tell_recovery(path: &Path, command: &str, recovery: &RecoveryReport) {
    if let Some(text) = describe_recovery(recovery) {
        crate::tell(&format!("varve {command}: {}: {text} (in memory only)", path.shown()));
    }
}

/// What a command comes to that has shown a pool as recovery found it: whoever goes by what it showed would miss acknowledged changes.
pub fn outcome(recovery: &RecoveryReport) -> Outcome {
    if recovery.replay_ended_by.is_some() { Outcome::ProblemsFound } else { Outcome::Done }
}

/// The same of a mount, which says why (`None`: nothing is missing). That is told here.
pub fn outcome_of_mount(mount: &Mount, command: &str, log_ended_reason: Option<&str>) -> Outcome {
    let Some(why) = log_ended_reason else { return Outcome::Done };
    let place = mount.mountpoint.shown();
    crate::tell(&format!("varve {command}: {place}: what came last cannot, or may not, be shown: {why}"));
    Outcome::ProblemsFound
}

/// Options for looking only.
fn looking() -> OpenOptions {
    OpenOptions {
        store: StoreOptions { read_only: true, background: false, ..StoreOptions::default() },
        dirty_bytes_max: 0,
        clock: Arc::new(SystemClock),
        on_data_logged: None,
    }
}

/// A pool that is to be checked.
pub enum ToCheck {
    /// It is open, damaged as it may be, recovered in memory if it was not closed.
    Open(Box<Filesystem>, RecoveryReport),
    /// What is on the device cannot be opened, and why.
    Unopenable(anyhow::Error),
}

/// Opens the pool at `path` to check it, changing nothing, with a cache of `cache_bytes`; `progress` tells how far that and
/// the check have come. Fails if its device cannot be looked at.
pub fn open_to_check(path: &Path, cache_bytes: u64, progress: Arc<CheckProgress>) -> Result<ToCheck> {
    let device: Arc<dyn Device> = Arc::new(open_device(path, OpenMode::ReadOnly)?);
    if let Err(error) = require_contents(path, device.as_ref(), false) {
        return Ok(ToCheck::Unopenable(error));
    }
    let mut options = looking();
    (options.store.cache_bytes, options.store.progress) = (cache_bytes, progress);
    Ok(match Filesystem::open_to_check(vec![device], options) {
        Ok((filesystem, report)) => ToCheck::Open(Box::new(filesystem), report),
        Err(error) => ToCheck::Unopenable(explain_contents(path, false, &error.to_string())),
    })
}

fn require_contents(path: &Path, device: &dyn Device, writes: bool) -> Result<()> {
    if device.size_bytes() == 0 {
        // Its size is one in whole blocks.
        let is_empty = path.metadata().is_ok_and(|metadata| metadata.len() == 0);
        let what = if is_empty { "is empty" } else { "is too short for anything" };
        return Err(anyhow!("{} {what} and holds no pool{}", path.shown(), advice(path, writes && is_empty)));
    }
    Ok(())
}

/// Why a device is not the pool that it was opened as, with the next step.
fn explain_contents(path: &Path, writes: bool, sentence: &str) -> anyhow::Error {
    let shown = path.shown();
    if sentence.starts_with("every superblock of ") {
        return anyhow!(
            "{}; nothing can be found without one: do not create a pool on it. varve inspect {shown} superblock shows what is left",
            respelt(path, sentence)
        );
    }
    match sentence.strip_suffix("; `varve create` makes one") {
        Some(sentence) => anyhow!("{}{}", with_name(path, sentence), advice(path, writes)),
        None => anyhow!("{}", with_name(path, sentence)),
    }
}

/// Opens the pool on `device`, which was opened by the name `path`.
pub fn open(
    path: &Path,
    device: Arc<dyn Device>,
    options: OpenOptions,
) -> Result<(Filesystem, RecoveryReport)> {
    let writes = !options.store.read_only;
    require_contents(path, device.as_ref(), writes)?;
    Filesystem::open(vec![device], options).map_err(|error| {
        let other = || explain_contents(path, writes, &error.to_string());
        no_room(path, &error).unwrap_or_else(other)
    })
}

/// An error of a pool that is open, with what to do where the filesystem that holds its file is full.
pub fn explain_error(path: &Path, error: FsError) -> anyhow::Error {
    no_room(path, &error).unwrap_or_else(|| error.into())
}

/// What to do where a file's filesystem has no room for what is written to the file. `None`: it is something else.
fn no_room(path: &Path, error: &FsError) -> Option<anyhow::Error> {
    let FsError::Engine(EngineError::Device(DeviceError::Io { errno: Some(errno), .. })) = error else {
        return None;
    };
    let is_file = path.metadata().is_ok_and(|metadata| metadata.is_file());
    if !is_file || ![Errno::NOSPC, Errno::DQUOT].contains(&Errno::from_raw_os_error(*errno)) {
        return None;
    }
    let (shown, table) = (path.shown(), MountTable::read().ok());
    let path = path.canonicalize().ok()?;
    let holder = table.as_ref().and_then(|table| table.containing(&path));
    let place =
        holder.map_or_else(String::new, |mount| format!(" (mounted at {})", mount.mountpoint.shown()));
    Some(anyhow!(
        "the filesystem that holds {shown}{place} has no room for what has to be written to it. Nothing in the pool is lost: make room \
         there and try again; until then it can be read with varve mount -o ro"
    ))
}

/// `sentence`, naming the pool if it does not.
pub fn with_name(path: &Path, sentence: &str) -> String {
    let (shown, sentence) = (path.shown(), respelt(path, sentence));
    if sentence.contains(&shown) { sentence } else { format!("{shown}: {sentence}") }
}

/// `sentence` from below the program, where names are said as they are, with that of the pool as it is printed.
pub fn respelt(path: &Path, sentence: &str) -> String {
    let (shown, plain) = (path.shown(), path.display().to_string());
    if shown == plain { sentence.to_owned() } else { sentence.replace(&plain, &shown) }
}

/// What recovery did, for people. `None`: nothing worth saying.
pub fn describe_recovery(report: &RecoveryReport) -> Option<String> {
    let keyframes = report.keyframes_lost.as_ref().map(|why| {
        format!(
            "all keyframes, which make old versions faster to read and say nothing else, were thrown away and will be made again: {why}"
        )
    });
    let mut parts = Vec::new();
    if !report.clean {
        parts.push(format!(
            "the pool was not unmounted the last time; recovered {} transactions from {} batches of its log",
            report.transactions_replayed, report.batches_replayed
        ));
    }
    if report.batches_cut > 0 {
        parts.push(format!(
            "{} batches whose data had not reached the device were cut off (nothing that was synced)",
            report.batches_cut
        ));
    }
    parts.extend(report.replay_ended_by.as_ref().map(|why| match report.batches_left {
        0 => format!("what came last may not be shown: {why}"),
        left => format!("what came last, in {left} more, cannot be shown: {why}"),
    }));
    parts.extend(keyframes);
    (!parts.is_empty()).then(|| parts.join("; "))
}
