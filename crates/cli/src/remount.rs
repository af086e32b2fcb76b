//! `-o remount`: the flags of a mount that is there are changed.
//!
//! The kernel enforces the flags; the process that serves the mount has a say and is told. Order:
//! - To read-write: it is asked first, because a pool that was opened for reading must be opened for writing. Before that
//!   the kernel is asked for nothing at all, to hear whether it would do as it is told: a pool that is open for writing can
//!   be read by nobody else.
//! - To read-only: the kernel first, so that nothing more is changed; then the process makes everything durable.

use std::path::Path;

use anyhow::{Context, Result, anyhow, bail};
use rustix::io::Errno;
use serde_json::Value;
use varve_mount::{AccessTimes, Flags};

use crate::mountinfo::{self, MountTable};
use crate::options::Options;
use crate::{Outcome, sync};

/// Changes the mount at `mountpoint` as the lists of `-o` say; what they do not name stays.
pub fn run(mountpoint: &Path, lists: &[String]) -> Result<Outcome> {
    let shown = mountpoint.display();
    let path = mountinfo::resolve(mountpoint).with_context(|| format!("cannot find {shown}"))?;
    let table = MountTable::read()?;
    let Some(mount) = table.at(&path).filter(|mount| mount.is_ours()) else {
        bail!(
            "no pool is mounted on {shown}, so there is nothing to remount; leave remount out to mount one"
        );
    };
    let options = Options::parse_remount(lists, mount.flags)?;
    let change = || {
        varve_mount::remount(&path, options.flags, options.bind).map_err(|error| explain(mountpoint, &error))
    };
    if options.bind {
        // This place only: for the process that serves the filesystem nothing changes.
        change()?;
        return Ok(Outcome::Done);
    }
    let mut server = sync::connect(mount)?;
    let request = format!("remount {}", words(options.flags));
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
                .and_then(|mut server| server.request(&format!("remount {}", words(mount.flags))));
            return Err(error);
        }
        answer
    };
    for (name, wanted) in [
        ("cache_size", options.cache_bytes),
        ("dirty_bytes", options.dirty_bytes_max),
        ("threads", options.threads as u64),
    ] {
        let named = lists.iter().flat_map(|list| list.split(',')).any(|word| word.starts_with(name));
        let has = answer.get(name).and_then(Value::as_u64);
        if named && has.is_some_and(|has| has != wanted) {
            eprintln!("varve mount: {name} stays as it is until {shown} is unmounted and mounted again");
        }
    }
    Ok(Outcome::Done)
}

fn explain(mountpoint: &Path, error: &std::io::Error) -> anyhow::Error {
    let shown = mountpoint.display();
    match Errno::from_io_error(error) {
        Some(Errno::BUSY) => anyhow!(
            "{shown} cannot become read-only while files in it are open for writing; close them and try again \
             (fuser -vm {shown} shows who has files open)"
        ),
        Some(Errno::PERM) => anyhow!("only root can change how {shown} is mounted"),
        _ => anyhow!("the kernel refuses to remount {shown}: {error}"),
    }
}

/// What the process that serves the mount is told.
fn words(flags: Flags) -> String {
    format!(
        "{},{},{}",
        if flags.read_only { "ro" } else { "rw" },
        match flags.access_times {
            AccessTimes::Relative => "relatime",
            AccessTimes::Never => "noatime",
            AccessTimes::Always => "strictatime",
        },
        if flags.no_directory_access_times { "nodiratime" } else { "diratime" }
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
        ] {
            let options = Options::parse_remount(&[words(flags)], Flags::default()).expect("known words");
            assert_eq!(options.flags, flags);
        }
    }
}
