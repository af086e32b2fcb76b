//! Which pool is mounted somewhere. The kernel's table says so, unless the mount was given a name to be shown there (`-o fsname=`): then
//! only the process that serves it knows, and when that has ended nobody does.

use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::control::Client;
use crate::mountinfo::{Mount, MountTable};
use crate::names::Shown;

/// So long all processes together may take to say which pools they serve, to somebody who may not mean their mounts at all.
const PATIENCE: Duration = Duration::from_secs(5);

/// The mount of the pool at `path`, an absolute path without symbolic links.
pub fn find<'a>(table: &'a MountTable, path: &Path) -> Option<&'a Mount> {
    find_by(table, path, &|source| source == path)
}

/// The same, of a pool whose paths `is_same` knows. What need not be asked goes first.
pub fn find_by<'a>(table: &'a MountTable, path: &Path, is_same: &dyn Fn(&Path) -> bool) -> Option<&'a Mount> {
    let named = || {
        let until = Instant::now() + PATIENCE;
        let is_its = |mount: &&Mount| {
            let left = until.saturating_duration_since(Instant::now());
            // As it is printed, which only a name without anything unusual is too.
            served_within(mount, left)
                .is_some_and(|pool| pool == path.shown() || is_same(&PathBuf::from(pool)))
        };
        table.ours().filter(|mount| !is_pool(&mount.source)).find(is_its)
    };
    table.ours().find(|mount| is_same(&mount.source)).or_else(|| if is_pool(path) { named() } else { None })
}

/// The pool that is mounted there, as its process prints it, to somebody who means this mount. `None`: it does not say.
pub fn served(mount: &Mount) -> Option<String> {
    pool_in(&Client::connect(mount).ok()??.request("stats").ok()?)
}

fn served_within(mount: &Mount, limit: Duration) -> Option<String> {
    pool_in(&Client::connect(mount).ok()??.request_within("stats", limit).ok()??)
}

fn pool_in(stats: &Value) -> Option<String> {
    stats.get("pool").and_then(Value::as_str).map(str::to_owned)
}

/// The path of the pool that is mounted there, to be printed.
pub fn pool_of(mount: &Mount) -> String {
    let asked = if is_pool(&mount.source) { None } else { served_within(mount, PATIENCE) };
    asked.unwrap_or_else(|| known(mount))
}

/// The same of a mount whose process cannot be asked.
pub fn known(mount: &Mount) -> String {
    let source = mount.source.shown();
    if is_pool(&mount.source) { source } else { format!("POOL (which was mounted as {source})") }
}

/// Whether there may be a pool at `path`. The command gives absolute paths to the kernel.
fn is_pool(path: &Path) -> bool {
    let is_storage = |metadata: std::fs::Metadata| {
        metadata.file_type().is_file() || metadata.file_type().is_block_device()
    };
    path.is_absolute() && path.metadata().is_ok_and(is_storage)
}
