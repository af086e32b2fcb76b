//! `-o remount`: the flags of a mount that is there are changed.
//!
//! The kernel enforces the flags; the process that serves the mount has a say and is told. Order:
//! - To read-write: it is asked first, because a pool that was opened for reading must be opened for writing. Before that
//!   the kernel is asked for nothing at all, to hear whether it would do as it is told: a pool that is open for writing can
//!   be read by nobody else.
//! - To read-only: the kernel first, so that nothing more is changed; then the process makes everything durable.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use rustix::io::Errno;
use serde_json::Value;
use varve_device::file_of_storage;
use varve_mount::{AccessTimes, Flags, Rings};

use crate::mountinfo::{self, Mount, MountTable};
use crate::names::Shown;
use crate::options::Options;
use crate::{Outcome, sync, whose};

/// So long the kernel is asked again whether a mount may become read-only, and how often.
const BUSY_PATIENCE: Duration = Duration::from_secs(1);
const BUSY_PAUSE: Duration = Duration::from_millis(20);

/// Changes the mount at `mountpoint` as the lists of `-o` say; what they do not name stays. It must be of `pool`, if one is
/// named. `complete`: the lists are mount(8)'s, which names all that is to hold, and none of the words that say that
/// something does not (`async`, `exec`).
pub fn run(pool: Option<&Path>, mountpoint: &Path, lists: &[String], complete: bool) -> Result<Outcome> {
    let shown = mountpoint.shown();
    let path = mountinfo::resolve(mountpoint).with_context(|| format!("cannot find {shown}"))?;
    let table = MountTable::read()?;
    let Some(mount) = table.at(&path).filter(|mount| mount.is_ours()) else {
        bail!(
            "no pool is mounted on {shown}, so there is nothing to remount; leave remount out to mount one"
        );
    };
    let stays = |name| {
        crate::tell(&format!(
            "varve mount: {name} stays as it is until {shown} is unmounted and mounted again"
        ))
    };
    let options = Options::parse_remount(lists, if complete { unnamed(mount.flags) } else { mount.flags })?;
    // In a remount the kernel passes over this one. What it shows would come back with the next.
    let durable_names =
        match lists.iter().flat_map(|list| list.split(',')).rfind(|word| word.ends_with("dirsync")) {
            _ if mount.flags.durable_names => {
                if !options.flags.durable_names {
                    stays("dirsync");
                }
                Some(true)
            }
            Some(_) => Some(options.flags.durable_names),
            None => None,
        };
    if let Some(pool) = pool {
        require_source(mount, pool, mountpoint)?;
    }
    let change =
        || remount_soon(&path, options.flags, options.bind).map_err(|error| explain(mountpoint, &error));
    if options.bind {
        // This place only: for the process that serves the filesystem nothing changes.
        change()?;
        return Ok(Outcome::Done);
    }
    let mut server = sync::connect(mount)?;
    let request = format!("remount {}", words(options.flags, durable_names));
    let answer = if options.flags.read_only {
        change()?;
        server.request(&request).with_context(|| {
            format!("{shown} is read-only now, but making everything in it durable failed")
        })?
    } else {
        if mount.flags.read_only {
            // This place becomes what it is.
            varve_mount::remount(&path, mount.flags, true).map_err(|error| explain(mountpoint, &error))?;
        }
        let answer = server.request(&request).with_context(|| format!("cannot remount {shown}"))?;
        if let Err(error) = change() {
            // No access is to be noted on what stays read-only. The kernel's refusal is what matters.
            let _ = sync::connect(mount)
                .and_then(|mut server| server.request(&format!("remount {}", words(mount.flags, None))));
            return Err(error);
        }
        answer
    };
    if options.source.as_ref().is_some_and(|source| Path::new(source) != mount.source) {
        stays("fsname");
    }
    let words = || lists.iter().flat_map(|list| list.split(','));
    let is = |name: &str| answer.get(name).and_then(Value::as_bool);
    for (name, wanted) in
        [("direct_io", options.direct_io), ("allow_other", words().any(|word| word == "allow_other"))]
    {
        if wanted && is(name) == Some(false) {
            stays(name);
        }
    }
    let rings = match options.rings {
        Rings::Wanted => is("rings") == Some(false),
        Rings::Never => is("rings") == Some(true),
        Rings::Offered => false,
    };
    if rings {
        stays(if options.rings == Rings::Wanted { "norings" } else { "rings" });
    }
    let log = options.log.as_ref().map(|log| log.shown());
    if log.is_some() && answer.get("log").is_some_and(|has| has.as_str() != log.as_deref()) {
        stays("log");
    }
    for (name, wanted) in [
        ("cache_size", options.cache_bytes),
        ("dirty_bytes", options.dirty_bytes_max),
        ("threads", options.threads as u64),
    ] {
        let named = words().any(|word| word.starts_with(name));
        let has = answer.get(name).and_then(Value::as_u64);
        if named && has.is_some_and(|has| has != wanted) {
            stays(name);
        }
    }
    Ok(Outcome::Done)
}

/// Refuses a mount of another pool than the one that is named. mount(8) names what it has found in fstab or in the kernel's
/// table, or nothing.
fn require_source(mount: &Mount, pool: &Path, mountpoint: &Path) -> Result<()> {
    if pool.as_os_str().is_empty() || pool == Path::new("none") || pool == mount.source {
        return Ok(());
    }
    let is_same = |source: &Path| match (pool.canonicalize(), source.canonicalize()) {
        (Ok(pool), Ok(source)) if pool == source => true,
        _ => file_of_storage(pool).is_some_and(|file| file_of_storage(source) == Some(file)),
    };
    if is_same(&mount.source) {
        return Ok(());
    }
    // The table may show a name of the user's choice (fsname=); who serves the mount knows the pool.
    let source = whose::served(mount);
    // As it is printed, which only a name without anything unusual is too.
    let same = |source: &String| {
        pool.canonicalize().is_ok_and(|pool| pool.shown() == *source) || is_same(Path::new(source))
    };
    if source.as_ref().is_some_and(same) {
        return Ok(());
    }
    bail!(
        "{} is mounted on {}, not {}; nothing was changed: name that pool, or the other mount point",
        source.unwrap_or_else(|| mount.source.shown()),
        mountpoint.shown(),
        pool.shown()
    )
}

/// What has just been closed keeps the kernel for a moment from making a mount read-only: it is told of the end of a file that has no
/// name any more only when we have answered.
fn remount_soon(path: &Path, flags: Flags, bind: bool) -> std::io::Result<()> {
    let begun = Instant::now();
    loop {
        match varve_mount::remount(path, flags, bind) {
            Err(error)
                if flags.read_only
                    && Errno::from_io_error(&error) == Some(Errno::BUSY)
                    && begun.elapsed() < BUSY_PATIENCE =>
            {
                std::thread::sleep(BUSY_PAUSE);
            }
            result => return result,
        }
    }
}

fn explain(mountpoint: &Path, error: &std::io::Error) -> anyhow::Error {
    let shown = mountpoint.shown();
    match Errno::from_io_error(error) {
        Some(Errno::BUSY) => anyhow!(
            "{shown} cannot become read-only while files in it are open for writing; close them and try again \
             (fuser -vm {shown} shows who has files open)"
        ),
        Some(Errno::PERM) => anyhow!("only root can change how {shown} is mounted"),
        _ => anyhow!("the kernel refuses to remount {shown}: {error}"),
    }
}

/// What holds of a mount with these flags if a complete list names nothing. What makes access times be noted always it
/// cannot know: the kernel has no word for it.
fn unnamed(flags: Flags) -> Flags {
    let access_times = match flags.access_times {
        AccessTimes::Always => AccessTimes::Always,
        AccessTimes::Relative | AccessTimes::Never => AccessTimes::Relative,
    };
    Flags { access_times, ..Flags::default() }
}

/// What the process that serves the mount is told. `durable_names`: if that is to change.
fn words(flags: Flags, durable_names: Option<bool>) -> String {
    format!(
        "{},{},{},{}{}",
        if flags.read_only { "ro" } else { "rw" },
        match flags.access_times {
            AccessTimes::Relative => "relatime",
            AccessTimes::Never => "noatime",
            AccessTimes::Always => "strictatime",
        },
        if flags.no_directory_access_times { "nodiratime" } else { "diratime" },
        if flags.durable { "sync" } else { "async" },
        match durable_names {
            Some(true) => ",dirsync",
            Some(false) => ",nodirsync",
            None => "",
        }
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    // Goal: both ends of the request understand each other. Method: what is sent is read back by the options' parser.
    #[test]
    fn the_request_can_be_read() {
        for flags in [
            Flags::default(),
            Flags { read_only: true, access_times: AccessTimes::Never, ..Flags::default() },
            Flags { access_times: AccessTimes::Always, no_directory_access_times: true, ..Flags::default() },
            Flags { durable: true, ..Flags::default() },
            Flags { durable_names: true, ..Flags::default() },
        ] {
            let words = words(flags, Some(flags.durable_names));
            let options = Options::parse_remount(&[words], Flags::default()).expect("known words");
            assert_eq!(options.flags, flags);
        }
    }

    // Goal: what a remount does not speak of stays as it is. Method: words without dirsync, to a mount that has it.
    #[test]
    fn what_is_not_named_stays() {
        let flags = Flags { durable_names: true, ..Flags::default() };
        let options = Options::parse_remount(&[words(Flags::default(), None)], flags).expect("known words");
        assert_eq!(options.flags, flags);
    }
}
