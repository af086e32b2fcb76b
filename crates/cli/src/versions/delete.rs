//! `varve subvolume delete`: subvolumes go at once, and their space in the background. Who wants to know when it is free waits for that
//! here: for all that has been deleted in the pool, since what is left of one subvolume is told from the rest by nobody.

use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde::Serialize;
use serde_json::Value;

use super::{Request, ask, cannot, each, explain, explained, find, split};
use crate::control::CHECKPOINT;
use crate::mountinfo::{self, Mount};
use crate::names::Shown;
use crate::progress::Progress;
use crate::transfer::Stop;
use crate::{Outcome, show, sync};

/// Between two looks at what is left.
const PAUSE: Duration = Duration::from_millis(100);

/// What `--json` prints.
#[derive(Serialize)]
struct Report {
    deleted: Vec<String>,
    space_free: Option<bool>,
    elapsed_ns: u64,
}

/// Deletes subvolumes, and perhaps waits for their space.
pub fn run(paths: &[PathBuf], wait: bool, json: bool) -> Result<Outcome> {
    let begun = Instant::now();
    let mut mounts: Vec<Mount> = Vec::new();
    let mut report = Report { deleted: Vec::new(), space_free: None, elapsed_ns: 0 };
    let outcome = each(paths, |path| {
        let mount = delete(path).map_err(|error| {
            let is_deleted = || format!("the subvolume {} is deleted", path.shown());
            explained(error, &cannot("delete the subvolume", path), is_deleted)
        })?;
        report.deleted.push(path.shown());
        if mounts.iter().all(|other| other.device != mount.device) {
            mounts.push(mount);
        }
        Ok(())
    });
    let waited = if wait { wait_for(&mounts, &mut report) } else { Ok(()) };
    report.elapsed_ns = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
    if json {
        show(&format!("{}\n", serde_json::to_string_pretty(&report)?))?;
    }
    let outcome = outcome?;
    waited?;
    if report.space_free == Some(false) {
        bail!("interrupted; what is deleted stays so, and its space comes back in the background");
    }
    Ok(outcome)
}

fn delete(path: &Path) -> Result<Mount> {
    // Symbolic links lead to what is deleted, not to themselves.
    let path = mountinfo::resolve(path).map_err(|error| explain(&error))?;
    let found = find(&path)?;
    if path == found.mount.mountpoint {
        bail!("it is what is mounted there; only subvolumes below it can be deleted");
    }
    if !found.is_subvolume() {
        bail!("it is not a subvolume; varve subvolume list shows them, and rm -r removes directories");
    }
    let (directory, name) = split(&path)?;
    let directory = find(directory)?;
    let request = Request::Delete { directory: directory.number(), name, root: found.number() };
    ask(&directory.mount, &request)?;
    Ok(directory.mount)
}

/// Waits until nothing is left to do of what was deleted in these mounts, or somebody wants this to end.
fn wait_for(mounts: &[Mount], report: &mut Report) -> Result<()> {
    let (stop, progress) = (Stop::on_signals()?, Progress::start_steps());
    report.space_free = Some(false);
    let all = mounts.iter().try_fold(true, |all, mount| {
        let waited = wait_for_one(mount, &stop, &progress);
        let doing =
            || format!("waiting for the space of what was deleted in {} failed", mount.mountpoint.shown());
        waited.map(|free| all && free).with_context(doing)
    });
    progress.end();
    report.space_free = Some(all?);
    Ok(())
}

fn wait_for_one(mount: &Mount, stop: &Stop, progress: &Progress) -> Result<bool> {
    // What is not durable yet is deleted by nobody: after a crash it is there again. That may take a while, and a signal is heard meanwhile.
    let mut client = sync::connect(mount)?;
    let mut synced = client.request_within("sync", PAUSE)?.is_some();
    while !synced && !stop.asked() {
        progress.note("making it durable");
        if client.speaks_within(PAUSE)? {
            client.next_line()?.context("the process that serves the mount has gone away")?;
            synced = true;
        }
    }
    let server = sync::Server::of(mount);
    while !stop.asked() {
        let stats = server.request("stats")?;
        let left = stats.pointer("/reap/backlog_count").and_then(Value::as_u64);
        match left.context("this mount is served by another version of varve")? {
            0 => break,
            left => progress.at_step("left to delete", left, 0),
        }
        thread::sleep(PAUSE);
    }
    if stop.asked() {
        return Ok(false);
    }
    // What was freed last is used again from the next checkpoint on.
    server.request(CHECKPOINT)?;
    Ok(true)
}
