//! `varve subvolume`, `varve snapshot`, `varve clone`, `varve extents` and `varve diff`, on mounted pools.
//!
//! The commands find what a path means by walking it through the mount, as any program does, and hand over inode numbers:
//! of the directory, and of what is there. So whatever is renamed meanwhile, what was meant is changed or nothing. The
//! process that serves the mount makes the change ([`serve`]) and has the kernel forget what it remembered of that name.

mod args;
mod delete;
mod diff;
mod extents;
mod serve;

pub use args::{CloneArgs, DiffArgs, ExtentsArgs, SnapshotArgs, SubvolumeArgs};
pub use diff::run as diff;
pub use extents::run as extents;
pub use serve::{Mounted, PANICKED, serve};

use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use serde::{Deserialize, Serialize};
use varve_format::record::subvolume::LOCAL_INODE_BITS;
use varve_fs::{Filesystem, InodeId, ROOT_INODE};

use crate::control::VERSIONS;
use crate::current::NOT_DURABLE;
use crate::mountinfo::{self, Mount, MountTable, is_not_connected};
use crate::transfer::PoolPath;
use crate::{Outcome, Usage, pages, pool, show, sync, whose};
use args::SubvolumeVerb;

use crate::names::{Shown, in_words};

/// What a command asks of the process that serves a mount.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Request {
    /// Make an empty subvolume.
    /// (`asked` is not called `mode`: programs from before there was a umask take that for what is left of it.)
    Create { directory: u64, name: Vec<u8>, asked: u32, umask: u32 },
    /// Delete the subvolume with this root.
    Delete { directory: u64, name: Vec<u8>, root: u64 },
    /// Make a snapshot of the subvolume with this root.
    Snapshot { source: u64, directory: u64, name: Vec<u8>, read_only: bool, sync: bool },
    /// Make a clone of a file.
    Clone { source: u64, directory: u64, name: Vec<u8> },
    /// A page of subvolumes: those with larger numbers than this.
    List { after: u64 },
    /// A page of the map of a file.
    Extents { inode: u64, from: u64, limit: usize },
    /// A page of what differs between the subvolumes with these roots.
    Diff { old: u64, new: u64, cursor: String, steps: usize },
}

/// A subvolume, as `varve subvolume list --json` shows it.
#[derive(Serialize, Deserialize)]
struct Listed {
    id: u64,
    parent_id: Option<u64>,
    origin_id: Option<u64>,
    path: String,
    inode: u64,
    read_only: bool,
    created_ns: Option<i64>,
    uuid: String,
}

/// A part of the list of subvolumes on its way.
#[derive(Serialize, Deserialize)]
struct ListPage {
    subvolumes: Vec<Listed>,
    next: Option<u64>,
    /// What is lost, so that this is without what came last.
    #[serde(default)]
    log_ended_reason: Option<String>,
}

/// Something in a mounted pool: held open, so that its number stays its own.
struct Found {
    held: File,
    metadata: Metadata,
    mount: Mount,
}

/// A directory in a mounted pool, and a name in it.
struct Place {
    directory: Found,
    name: Vec<u8>,
}

/// Runs `varve subvolume`.
pub fn subvolume(args: &SubvolumeArgs) -> Result<Outcome> {
    match &args.verb {
        SubvolumeVerb::Create { paths } => {
            each(paths, |path| {
                let place = to_make(path).with_context(|| cannot("make the subvolume", path))?;
                // As mkdir does.
                let (directory, name) = (place.directory.number(), place.name);
                let request = Request::Create { directory, name, asked: 0o777, umask: umask() };
                ask(&place.directory.mount, &request).map_err(|error| {
                    explained(error, &cannot("make the subvolume", path), || is_there("subvolume", path))
                })
            })
        }
        SubvolumeVerb::Delete { paths, wait, json } => delete::run(paths, *wait, *json),
        SubvolumeVerb::List { path, json } => list(path, *json),
    }
}

/// Runs `varve snapshot`.
pub fn snapshot(args: &SnapshotArgs) -> Result<Outcome> {
    (|| {
        let source = find(&args.subvolume)?;
        if !source.is_subvolume() {
            bail!(
                "{} is not a subvolume; snapshots are taken of subvolumes (varve subvolume list shows them, \
                 varve subvolume create makes one)",
                args.subvolume.shown()
            );
        }
        let place = to_make(&args.dest)?;
        same_pool(&source, &place.directory)?;
        if args.sync {
            // Without it a snapshot waits for nothing, whatever is dirty.
            pages::write_back_mount(&source.mount, &source.path())
                .context("what was changed through mmap cannot be written")?;
        }
        let request = Request::Snapshot {
            source: source.number(),
            directory: place.directory.number(),
            name: place.name,
            read_only: args.read_only,
            sync: args.sync,
        };
        ask(&place.directory.mount, &request)
    })()
    .map_err(|error| {
        let cannot = format!("cannot take a snapshot of {} at {}", args.subvolume.shown(), args.dest.shown());
        explained(error, &cannot, || is_there("snapshot", &args.dest))
    })?;
    Ok(Outcome::Done)
}

/// Runs `varve clone`.
pub fn clone(args: &CloneArgs) -> Result<Outcome> {
    (|| {
        let source = find(&args.file)?;
        if !source.metadata.is_file() {
            bail!(
                "{} is not a regular file; clones are made of files, and of directories that are subvolumes \
                 varve snapshot makes snapshots",
                args.file.shown()
            );
        }
        if args.dest.as_os_str().as_bytes().ends_with(b"/") {
            bail!("{} names a directory, and the clone of a file is none", args.dest.shown());
        }
        let place = to_make(&args.dest)?;
        same_pool(&source, &place.directory)?;
        pages::write_back_at(&source.path());
        let request =
            Request::Clone { source: source.number(), directory: place.directory.number(), name: place.name };
        ask(&place.directory.mount, &request)
    })()
    .map_err(|error| {
        let cannot = format!("cannot clone {} to {}", args.file.shown(), args.dest.shown());
        explained(error, &cannot, || is_there("clone", &args.dest))
    })?;
    Ok(Outcome::Done)
}

fn list(path: &Path, json: bool) -> Result<Outcome> {
    let shown = path.shown();
    let file_type = path.metadata().map_err(|error| {
        let advice = "give anything inside a mount, or the file or block device of a pool";
        anyhow!("cannot look at {shown}: {:#}; {advice}", explain(&error))
    })?;
    let table = MountTable::read()?;
    let resolved = mountinfo::resolve(path).with_context(|| cannot("find", path))?;
    let mount = table
        .ours()
        .find(|mount| mount.device == mountinfo::device(&file_type))
        .or_else(|| whose::find(&table, &resolved))
        .cloned();
    let (listed, outcome) = match mount {
        Some(mount) => {
            let server = sync::Server::of(&mount);
            let mut log_ended_reason = None;
            let listed = pages(|after| {
                let answer = server.request(&line_of(&Request::List { after })?)?;
                let mut page: ListPage = serde_json::from_value(answer)
                    .context("this mount is served by another version of varve")?;
                log_ended_reason = page.log_ended_reason.take();
                Ok(page)
            })?;
            (listed, pool::outcome_of_mount(&mount, "subvolume", log_ended_reason.as_deref()))
        }
        None if file_type.is_dir() => {
            if let Some(why) = table.unseen(&resolved) {
                return Err(why);
            }
            bail!("{shown} is not inside a mounted pool; mount the pool, or name its file or block device")
        }
        None => {
            let (filesystem, recovery) = pool::open_read_only(&resolved, "subvolume")?;
            (pages(|after| serve::list(&filesystem, after))?, pool::outcome(&recovery))
        }
    };
    if json {
        show(&format!("{}\n", serde_json::to_string_pretty(&listed)?))?;
        return Ok(outcome);
    }
    let mut text = format!("{:>8} {:>8} {:<9}  PATH\n", "ID", "ORIGIN", "CHANGES");
    for subvolume in listed {
        let origin = subvolume.origin_id.map_or_else(|| "-".to_owned(), |id| id.to_string());
        let changes = if subvolume.read_only { "read-only" } else { "writable" };
        text.push_str(&format!("{:>8} {origin:>8} {changes:<9}  {}\n", subvolume.id, subvolume.path));
    }
    show(&text)?;
    Ok(outcome)
}

/// All that comes in pages.
fn pages(mut page: impl FnMut(u64) -> Result<ListPage>) -> Result<Vec<Listed>> {
    let (mut listed, mut next) = (Vec::new(), Some(0));
    while let Some(after) = next {
        let mut page = page(after)?;
        listed.append(&mut page.subvolumes);
        // Whatever the other side says, this comes to an end.
        next = page.next.filter(|next| *next > after);
    }
    Ok(listed)
}

/// Does something with each path. Those that fail are told, and the rest goes on.
fn each(paths: &[PathBuf], mut act: impl FnMut(&Path) -> Result<()>) -> Result<Outcome> {
    let mut outcome = Outcome::Done;
    for path in paths {
        if let Err(error) = act(path) {
            if paths.len() == 1 {
                return Err(error);
            }
            crate::tell(&format!("varve subvolume: {error:#}"));
            outcome = Outcome::ProblemsFound;
        }
    }
    Ok(outcome)
}

fn cannot(what: &str, path: &Path) -> String {
    format!("cannot {what} {}", path.shown())
}

fn is_there(what: &str, path: &Path) -> String {
    format!("the {what} {} is there", path.shown())
}

/// An error with what came of it: nothing, or what was wanted, which is only not durable. Who tried that again would find it done.
fn explained(error: anyhow::Error, cannot: &str, done: impl FnOnce() -> String) -> anyhow::Error {
    match error.to_string().strip_prefix(NOT_DURABLE) {
        Some(why) => anyhow!("{}, but it is not durable, and a crash may undo that{why}", done()),
        None => error.context(cannot.to_owned()),
    }
}

impl Found {
    fn number(&self) -> u64 {
        varve_fs::inode_shown(self.metadata.ino()).0
    }

    /// A path to it, wherever it lies now.
    fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.held.as_raw_fd()))
    }

    /// The root of every subvolume has the same number, below that of its slot.
    fn is_subvolume(&self) -> bool {
        is_root(self.number()) && self.metadata.is_dir()
    }
}

/// Whether an inode of this number is the root of its subvolume.
fn is_root(number: u64) -> bool {
    number & ((1 << LOCAL_INODE_BITS) - 1) == ROOT_INODE.0
}

/// What `path` leads to, and the mount of ours that it is in.
fn find(path: &Path) -> Result<Found> {
    const O_PATH: i32 = 0o10000000;
    let held = File::options()
        .read(true)
        .custom_flags(O_PATH)
        .open(path)
        .and_then(|file| file.metadata().map(|metadata| (file, metadata)));
    let (held, metadata) = held.map_err(|error| explain(&error).context(path.shown()))?;
    let table = MountTable::read()?;
    let is_here = |mount: &&Mount| mount.is_ours() && mount.device == mountinfo::device(&metadata);
    // Of several places at which the pool is mounted, that one: its flags count. What has no path any more lies in any.
    let resolved = mountinfo::resolve(path).ok();
    let here = resolved.as_ref().and_then(|path| table.containing(path).filter(is_here));
    let Some(mount) = here.or_else(|| table.ours().find(is_here)) else {
        return Err(resolved.and_then(|path| table.unseen(&path)).unwrap_or_else(|| {
            anyhow!(
                "{} is not inside a mounted pool; mount the pool first: varve mount POOL MOUNTPOINT",
                path.shown()
            )
        }));
    };
    Ok(Found { held, metadata, mount: mount.clone() })
}

/// The place in a pool that is not mounted that an argument names; `None`: it is a path, to be looked for in a mount.
fn unmounted(argument: &OsStr) -> Result<Option<PoolPath>, Usage> {
    let path = Path::new(argument);
    let is_path = path.symlink_metadata().is_ok() || !argument.as_bytes().windows(2).any(|two| two == b":/");
    if is_path { Ok(None) } else { PoolPath::parse(argument).map(Some) }
}

/// What is at a place in a pool that is not mounted. Symbolic links are not followed.
fn walk(filesystem: &Filesystem, place: &PoolPath) -> Result<InodeId> {
    let mut at = ROOT_INODE;
    for name in &place.names {
        at = filesystem.lookup(at, name).with_context(|| format!("{place}"))?.ino;
    }
    Ok(at)
}

/// The place of something that is to be made at `path`, where nothing may be.
fn to_make(path: &Path) -> Result<Place> {
    if path.symlink_metadata().is_ok() {
        bail!("{} exists already; choose a name that is not taken", path.shown());
    }
    let (directory, name) = split(path)?;
    let directory = find(directory)?;
    Ok(Place { directory, name })
}

/// The directory that a path ends in, and the last name.
fn split(path: &Path) -> Result<(&Path, Vec<u8>)> {
    let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else {
        bail!("{} does not end in a name", path.shown());
    };
    let directory = if directory.as_os_str().is_empty() { Path::new(".") } else { directory };
    Ok((directory, name.as_bytes().to_vec()))
}

fn same_pool(source: &Found, directory: &Found) -> Result<()> {
    if source.mount.device != directory.mount.device {
        bail!(
            "they are in different pools ({} and {}), which share nothing; copy with cp -a",
            source.mount.mountpoint.shown(),
            directory.mount.mountpoint.shown()
        );
    }
    Ok(())
}

fn explain(error: &io::Error) -> anyhow::Error {
    if is_not_connected(error) {
        return anyhow!(
            "the process that served this mount has ended; mount the pool again with varve mount"
        );
    }
    anyhow!("{}", in_words(error))
}

/// The umask of this process. Reading it changes it, so it is put back at once; there is no other thread.
fn umask() -> u32 {
    let mask = rustix::process::umask(rustix::fs::Mode::empty());
    rustix::process::umask(mask);
    mask.bits()
}

/// Asks for a change.
fn ask(mount: &Mount, request: &Request) -> Result<()> {
    if mount.flags.read_only {
        bail!(
            "the pool is mounted read-only; to make it writable: varve mount -o remount,rw {} {}",
            whose::pool_of(mount),
            mount.mountpoint.shown()
        );
    }
    sync::connect(mount)?.request(&line_of(request)?).map(drop)
}

fn line_of(request: &Request) -> Result<String> {
    Ok(format!("{VERSIONS}{}", serde_json::to_string(request)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(id: u64) -> Listed {
        let (path, uuid) = ("x".repeat(1000), String::new());
        let (parent_id, origin_id, created_ns) = (Some(1), None, None);
        Listed { id, parent_id, origin_id, path, inode: id << 43, read_only: true, created_ns, uuid }
    }

    // Goal: a list that no line of the control socket would hold arrives whole, and one that leads back to its beginning
    // comes to an end. Method: pages as lines of JSON, with more bytes than a line may have in all.
    #[test]
    fn lists_in_pages() {
        let all = pages(|after| {
            let ids = after + 1..=20_000u64.min(after + 4096);
            let next = Some(*ids.end()).filter(|last| *last < 20_000);
            let line = serde_json::to_string(&ListPage {
                subvolumes: ids.map(listed).collect(),
                next,
                log_ended_reason: None,
            })?;
            assert!((line.len() as u64) < crate::control::REPLY_BYTES_MAX);
            Ok(serde_json::from_str(&line)?)
        });
        let all = all.expect("pages");
        assert!(all.iter().map(|listed| listed.id).eq(1..=20_000));
        assert!(
            all.iter().map(|listed| listed.path.len() as u64).sum::<u64>() > crate::control::REPLY_BYTES_MAX
        );
        let ring = pages(|after| {
            Ok(ListPage { subvolumes: vec![listed(after)], next: Some(3), log_ended_reason: None })
        })
        .expect("pages");
        assert_eq!(ring.len(), 2);
    }
}
