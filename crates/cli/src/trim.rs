//! `varve trim`: the device below a pool is told what is free. A mounted pool is trimmed by the process that serves it, in
//! turns, so that somebody sees how far it is and can end it; another one by this process.

use std::fmt::Write;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use varve_device::OpenMode;
use varve_fs::{Filesystem, FsError, OpenOptions, StoreOptions};

use crate::args::TrimArgs;
use crate::clock::SystemClock;
use crate::mountinfo::{self, Mount, MountTable};
use crate::names::{Shown, in_words};
use crate::progress::Progress;
use crate::size::show_size;
use crate::transfer::Stop;
use crate::{Outcome, log, pool, show, stats, sync, whose};

/// How long the process that serves a mount works before it says how far it is.
const TURN: Duration = Duration::from_millis(500);

/// What came of one turn: as [`varve_fs::Trimmed`].
#[derive(Serialize, Deserialize)]
struct Turn {
    discarded_bytes: u64,
    position_bytes: u64,
    end_bytes: u64,
    is_supported: bool,
}

/// What `--json` prints.
#[derive(Serialize)]
struct Report {
    pool: String,
    mountpoint: Option<String>,
    discarded_bytes: u64,
    supported: bool,
    finished: bool,
    elapsed_ns: u64,
}

/// Answers a request of the control socket: where to begin and the shortest run, in bytes.
pub fn serve(filesystem: &Filesystem, request: &str) -> Result<Value> {
    let mut numbers = request.split(' ').map(str::parse);
    let (Some(Ok(start)), Some(Ok(minimum_bytes)), None) = (numbers.next(), numbers.next(), numbers.next())
    else {
        bail!("{request:?} is not where to begin and the shortest run, in bytes");
    };
    Ok(serde_json::to_value(turn(filesystem, start..u64::MAX, minimum_bytes)?)?)
}

/// Trims for as long as a turn is.
fn turn(filesystem: &Filesystem, range: Range<u64>, minimum_bytes: u64) -> Result<Turn> {
    let begun = Instant::now();
    let done = filesystem.trim(range, minimum_bytes, &mut |_| begun.elapsed() < TURN)?;
    Ok(Turn {
        discarded_bytes: done.discarded_bytes,
        position_bytes: done.position_bytes,
        end_bytes: done.end_bytes,
        is_supported: done.is_supported,
    })
}

/// Runs the command.
pub fn run(args: &TrimArgs) -> Result<Outcome> {
    let shown = args.path.shown();
    let path = mountinfo::resolve(&args.path).map_err(|error| {
        let advice = "give anything inside a mount, or the file or block device of a pool";
        anyhow!("cannot look at {shown}: {}; {advice}", in_words(&error))
    })?;
    let minimum = args.minimum.unwrap_or(0);
    let table = MountTable::read()?;
    match stats::find_mount(&table, &path) {
        Some(mount) => {
            let server = sync::Server::of(mount);
            let ask = |at: u64| -> Result<Turn> {
                let answer = server.request(&format!("trim {at} {minimum}"))?;
                serde_json::from_value(answer).context("this mount is served by another version of varve")
            };
            let doing = || format!("trimming {} failed", mount.mountpoint.shown());
            let stop = Stop::on_signals()?;
            report(args, whose::pool_of(mount), Some(mount), &stop, &mut |at| ask(at).with_context(doing))
        }
        None => match table.unseen(&path).filter(|_| path.is_dir()) {
            Some(why) => Err(why),
            None => unmounted(args, &path, minimum),
        },
    }
}

fn unmounted(args: &TrimArgs, path: &Path, minimum: u64) -> Result<Outcome> {
    log::start_for_writer();
    let device = Arc::new(pool::open_device(path, OpenMode::ReadWrite)?);
    let options = OpenOptions {
        store: StoreOptions { background: false, ..StoreOptions::default() },
        dirty_bytes_max: 1 << 20,
        clock: Arc::new(SystemClock),
        on_data_logged: None,
    };
    let (filesystem, recovery) = pool::open(path, device, options)?;
    if let Some(text) = pool::describe_recovery(&recovery) {
        crate::tell(&format!("varve trim: {}: {text}", path.shown()));
    }
    let stop = Stop::on_signals()?;
    // What was deleted when the pool was last in use, and the nodes that went with it.
    let trimmed = reap(&filesystem, &stop)
        .and_then(|()| filesystem.checkpoint())
        .map_err(|error| pool::explain_error(path, error))
        .and_then(|()| {
            report(args, path.shown(), None, &stop, &mut |at| turn(&filesystem, at..u64::MAX, minimum))
        })
        .with_context(|| format!("trimming {} failed", path.shown()));
    let closed = filesystem.close().map_err(|error| pool::explain_error(path, error));
    let closed = closed.with_context(|| format!("closing {} failed", path.shown()));
    let outcome = trimmed?;
    closed.map(|()| outcome)
}

/// Deletes what was deleted, as long as nobody wants this to end.
fn reap(filesystem: &Filesystem, stop: &Stop) -> Result<(), FsError> {
    let mut all = false;
    while !all && !stop.asked() {
        all = filesystem.maintain_some()?;
    }
    Ok(())
}

/// Takes turns until everything has been looked at, and says what came of it.
fn report(
    args: &TrimArgs,
    pool: String,
    mount: Option<&Mount>,
    stop: &Stop,
    turn: &mut dyn FnMut(u64) -> Result<Turn>,
) -> Result<Outcome> {
    let (begun, progress) = (Instant::now(), Progress::start());
    let mut report = Report {
        pool,
        mountpoint: mount.map(|mount| mount.mountpoint.shown()),
        discarded_bytes: 0,
        supported: true,
        finished: false,
        elapsed_ns: 0,
    };
    let mut at = 0;
    while report.supported && !report.finished && !stop.asked() {
        let done = turn(at).inspect_err(|_| progress.end())?;
        at = done.position_bytes;
        report.discarded_bytes += done.discarded_bytes;
        report.supported = done.is_supported;
        report.finished = done.is_supported && at >= done.end_bytes;
        progress.at_byte(at, done.end_bytes);
    }
    progress.end();
    report.elapsed_ns = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
    if args.json {
        show(&format!("{}\n", serde_json::to_string_pretty(&report)?))?;
    } else if report.supported {
        let mut line =
            format!("{}: {} of free space given back", report.pool, show_size(report.discarded_bytes));
        if let Some(place) = &report.mountpoint {
            let _ = write!(line, ", mounted at {place}");
        }
        show(&format!("{line}\n"))?;
    }
    if !report.supported {
        bail!("{}: what is below the pool takes nothing back (it knows no discard)", report.pool);
    }
    if !report.finished {
        bail!("interrupted; what was given back is");
    }
    Ok(Outcome::Done)
}

#[cfg(test)]
mod tests {
    use varve_fs::{Caller, ROOT_INODE};

    use super::*;
    use crate::transfer::test_pool;

    // Goal: a signal is heard while what was deleted goes. Method: a file of many extents is deleted; with a signal it stays, without it goes.
    #[test]
    fn a_signal_is_heard_while_deleted_files_go() {
        let pool = test_pool::open(test_pool::format());
        let ino = pool.create(Caller::ROOT, ROOT_INODE, b"file", 0o644).expect("a file").ino;
        for block in 0..2000u64 {
            pool.write(Caller::ROOT, ino, block * 8192, &[7; 4096]).expect("contents");
        }
        pool.sync().expect("synced");
        pool.unlink(ROOT_INODE, b"file").expect("its name");
        assert_eq!(pool.reap_backlog(), 1);
        reap(&pool, &Stop::asked_for()).expect("no error");
        assert_eq!(pool.reap_backlog(), 1);
        reap(&pool, &Stop::default()).expect("no error");
        assert_eq!(pool.reap_backlog(), 0);
    }
}
