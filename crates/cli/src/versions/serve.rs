//! The side of the process that serves a mount: who may do it, the change, and what the kernel has to forget.
//!
//! Root and the user who mounted the pool can connect, nobody else. That user could read the pool's device as well, so what
//! is checked here keeps accidents away, not enemies: owner, group and others as the mode has them, without supplementary
//! groups and access control lists, which the socket does not tell.

use anyhow::{Context, Result, anyhow, bail};
use serde_json::{Value, json};
use varve_fs::{
    Attr, Caller, EngineError, FileFlags, FileKind, Filesystem, FsError, InodeId, SubvolumeInfo, Timestamp,
};
use varve_mount::{Outside, Policy};

use super::{ListPage, Listed, Request, diff, extents};
use crate::current::{Current, NOT_DURABLE};
use crate::names::escape;

const READ: u32 = 4;
const WRITE_AND_SEARCH: u32 = 3;

/// What a request is about: the filesystem, and the mount that it is served through.
pub struct Mounted<'a> {
    pub filesystem: &'a Filesystem,
    pub current: &'a Current,
    pub outside: &'a Outside,
    pub policy: &'a Policy,
    /// What is lost, so that the pool is shown without what came last.
    pub log_ended_reason: Option<String>,
}

/// Does what a request asks.
pub fn serve(mounted: &Mounted<'_>, caller: Caller, request: &str) -> Result<Value> {
    let filesystem = mounted.filesystem;
    let request =
        serde_json::from_str(request).context("this mount is served by another version of varve")?;
    match request {
        Request::List { after } => {
            let mut page = list(filesystem, after)?;
            page.log_ended_reason = mounted.log_ended_reason.clone();
            return Ok(serde_json::to_value(page)?);
        }
        Request::Extents { inode, from, limit } => {
            let inode = InodeId(inode);
            if !allows(caller, &filesystem.getattr(inode).map_err(advise)?, READ) {
                bail!("you may not read it; ask its owner or root");
            }
            let mut page = extents::page(filesystem, inode, from, limit).map_err(advise)?;
            page.log_ended_reason = mounted.log_ended_reason.clone();
            return Ok(serde_json::to_value(page)?);
        }
        Request::Diff { old, new, cursor, steps } => {
            for root in [old, new] {
                must_own(caller, &filesystem.getattr(InodeId(root)).map_err(advise)?)?;
            }
            let mut page = diff::page(filesystem, old, new, &cursor, steps).map_err(advise)?;
            if let Some(page) = &mut page {
                page.log_ended_reason = mounted.log_ended_reason.clone();
            }
            return Ok(serde_json::to_value(page)?);
        }
        Request::Create { directory, name, asked, umask } => {
            let directory = InodeId(directory);
            may_change(filesystem, caller, directory)?;
            mounted.change("create_subvolume", directory, &name, || {
                filesystem.create_subvolume_masked(caller, directory, &name, asked & 0o777, umask & 0o777)
            })?;
            mounted.settle(directory)?;
        }
        Request::Delete { directory, name, root } => {
            let (directory, root) = (InodeId(directory), InodeId(root));
            let attr = filesystem.lookup(directory, &name).map_err(advise)?;
            if attr.ino != root {
                bail!("another one has taken its name meanwhile; look and try again");
            }
            must_own(caller, &attr)?;
            may_change(filesystem, caller, directory)?;
            let done = mounted.attempt("delete_subvolume", directory, &name, || {
                filesystem.delete_subvolume_at(directory, &name, root)
            });
            done?.map_err(|error| match error {
                FsError::NotPermitted if attr.flags.intersects(FileFlags::PROTECTING) => anyhow!(
                    "its root directory is immutable or append only (lsattr -d shows it); to delete it all the same, take that \
                     away first: chattr -ia DIRECTORY"
                ),
                error => advise(error),
            })?;
            // Whoever is in it or has it open sees that it is gone.
            mounted.outside.forget_inode(root);
            mounted.settle(directory)?;
        }
        Request::Snapshot { source, directory, name, read_only, sync } => {
            let (source, directory) = (InodeId(source), InodeId(directory));
            must_own(caller, &filesystem.getattr(source).map_err(advise)?)?;
            may_change(filesystem, caller, directory)?;
            mounted.change("snapshot", directory, &name, || {
                filesystem.snapshot(source, directory, &name, read_only, sync)
            })?;
            if !sync {
                // What is in the directory becomes durable with it.
                mounted.settle(directory)?;
            }
        }
        Request::Clone { source, directory, name } => {
            let (source, directory) = (InodeId(source), InodeId(directory));
            let attr = filesystem.getattr(source).map_err(advise)?;
            if !allows(caller, &attr, READ) {
                bail!("you may not read it; have its owner or root clone it");
            }
            may_change(filesystem, caller, directory)?;
            mounted.change("clone_file", directory, &name, || {
                filesystem.clone_file(caller, source, directory, &name)
            })?;
            mounted.settle(directory)?;
        }
    }
    Ok(json!("done"))
}

/// A bug was met, in this request or one before.
pub const PANICKED: &str = "the process that serves the mount has met a bug in itself and changes nothing any more; unmount and mount again";

impl Mounted<'_> {
    /// Changes a name in a directory, and says what to do about what went wrong.
    fn change<T>(
        &self,
        verb: &'static str,
        directory: InodeId,
        name: &[u8],
        body: impl FnOnce() -> Result<T, FsError>,
    ) -> Result<T> {
        self.attempt(verb, directory, name, body)?.map_err(advise)
    }

    /// Changes a name in a directory. The kernel is told also after a failure, which may have come in the middle; but of a name that
    /// leads where it did only that the directory has changed: with a name the kernel forgets what is mounted below it.
    fn attempt<T>(
        &self,
        verb: &'static str,
        directory: InodeId,
        name: &[u8],
        body: impl FnOnce() -> Result<T, FsError>,
    ) -> Result<Result<T, FsError>> {
        let changing = self.current.begin_change()?;
        let before = self.target(directory, name);
        let result = self.outside.change(verb, body);
        let changed = matches!(result, Some(Ok(_))) || is_changed(before, self.target(directory, name));
        // Closing does not wait for what the kernel takes to hear of it.
        drop(changing);
        match changed {
            true => self.outside.forget_name(directory, name),
            false => self.outside.forget_inode(directory),
        }
        result.context(PANICKED)
    }

    /// Where a name leads, if anywhere; an error: it cannot be told.
    fn target(&self, directory: InodeId, name: &[u8]) -> Result<Option<InodeId>> {
        match self.outside.look("lookup", || self.filesystem.lookup(directory, name)).context(PANICKED)? {
            Ok(attr) => Ok(Some(attr.ino)),
            Err(FsError::NotFound) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Whether changes of names in a directory are durable before they are answered, as those that come through the kernel are: the
    /// mount may want it (`sync`, `dirsync`), or the directory (chattr +S, +D).
    fn wants_durable(&self, directory: InodeId) -> bool {
        self.policy.durable() || self.policy.durable_names() || self.filesystem.wants_durable(directory, true)
    }

    /// A name in a directory has been changed: makes that durable, where it is to be.
    fn settle(&self, directory: InodeId) -> Result<()> {
        if !self.wants_durable(directory) {
            return Ok(());
        }
        self.current.settle(|| {
            let synced = self.outside.change("fsync", || self.filesystem.fsync(directory));
            synced.context(PANICKED)?.map_err(|why| {
                // Whose flush fails hears of the device alone.
                let stopped = self.filesystem.stopped().map(|(why, _)| EngineError::Stopped(why).into());
                anyhow!(what_now(&stopped.unwrap_or(why)))
            })
        })
    }
}

/// Whether a name leads elsewhere than before. Of what cannot be told nothing is forgotten: a name that the kernel wrongly keeps leads to an
/// error, but what it takes away that is mounted below it nobody puts back.
fn is_changed(before: Result<Option<InodeId>>, now: Result<Option<InodeId>>) -> bool {
    matches!((before, now), (Ok(before), Ok(now)) if before != now)
}

/// Subvolumes in a page. A page fits into a line of the control socket ([`crate::control`]) with long paths, too.
const PAGE_SUBVOLUMES: usize = 4096;

/// The subvolumes of a pool behind number `after`: a page of them.
pub fn list(filesystem: &Filesystem, after: u64) -> Result<ListPage> {
    let page = filesystem
        .list_subvolumes_after(after, PAGE_SUBVOLUMES)
        .map_err(|error| anyhow!("cannot list the subvolumes: {error}"))?;
    let listed = |info: SubvolumeInfo| Listed {
        id: info.id,
        parent_id: info.parent,
        origin_id: info.origin,
        path: escape(&info.path),
        inode: varve_fs::shown_number(info.root),
        read_only: info.read_only,
        created_ns: info.created.map(nanoseconds),
        uuid: info.uuid.iter().map(|byte| format!("{byte:02x}")).collect(),
    };
    let subvolumes = page.subvolumes.into_iter().map(listed).collect();
    Ok(ListPage { subvolumes, next: page.next, log_ended_reason: None })
}

fn nanoseconds(time: Timestamp) -> i64 {
    time.seconds.saturating_mul(1_000_000_000).saturating_add(i64::from(time.nanoseconds))
}

/// Whether the mode of an inode allows all of `wanted` to the caller.
fn allows(caller: Caller, attr: &Attr, wanted: u32) -> bool {
    let shift = match caller {
        Caller { uid: 0, .. } => return true,
        Caller { uid, .. } if uid == attr.uid => 6,
        Caller { gid, .. } if gid == attr.gid => 3,
        _ => 0,
    };
    attr.mode >> shift & wanted == wanted
}

fn must_own(caller: Caller, attr: &Attr) -> Result<()> {
    if caller.uid != 0 && caller.uid != attr.uid {
        bail!("the subvolume belongs to user {}; only that user and root may do this", attr.uid);
    }
    Ok(())
}

fn may_change(filesystem: &Filesystem, caller: Caller, directory: InodeId) -> Result<()> {
    let attr = filesystem.getattr(directory).map_err(advise)?;
    if attr.kind == FileKind::Directory && !allows(caller, &attr, WRITE_AND_SEARCH) {
        bail!(
            "you may not write to the directory it is in; have its owner (user {}) or root do this",
            attr.uid
        );
    }
    Ok(())
}

/// What keeps something that is done from being durable, and what to do.
fn what_now(why: &FsError) -> String {
    match why {
        // It says so itself, and no sync helps.
        FsError::Engine(EngineError::Stopped(_)) => why.to_string(),
        why => format!("{why}; varve sync makes it durable, or says what keeps it from that"),
    }
}

/// What went wrong, and what to do.
fn advise(error: FsError) -> anyhow::Error {
    let text = match &error {
        FsError::Exists => "there is something with this name already; choose another name".to_owned(),
        FsError::NotFound | FsError::Stale => "it is not there any more; look and try again".to_owned(),
        FsError::NotEmpty => {
            "there are other subvolumes in it (varve subvolume list shows them); delete those first"
                .to_owned()
        }
        FsError::NotSubvolume => "it is not a subvolume; varve subvolume list shows them".to_owned(),
        FsError::ReadOnlySubvolume => {
            "the directory lies in a read-only snapshot; choose a place outside of it".to_owned()
        }
        FsError::NotPermitted => {
            "the directory it is in, or is to be in, is immutable or append only (lsattr -d shows it); chattr -ia DIRECTORY \
             takes that away"
                .to_owned()
        }
        FsError::NameTooLong => "the name is longer than 255 bytes; choose a shorter one".to_owned(),
        FsError::NotDurable(why) => format!("{NOT_DURABLE}: {}", what_now(why)),
        FsError::Engine(EngineError::NoSpace) => "the pool is full; delete something first".to_owned(),
        FsError::Engine(EngineError::ReadOnly) => {
            "the pool is mounted read-only; to make it writable: varve mount -o remount,rw POOL DIRECTORY"
                .to_owned()
        }
        other => other.to_string(),
    };
    anyhow!(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attr(uid: u32, gid: u32, mode: u32) -> Attr {
        let time = Timestamp { seconds: 0, nanoseconds: 0 };
        Attr {
            ino: InodeId(5),
            generation: 1,
            kind: FileKind::Directory,
            mode,
            links: 2,
            uid,
            gid,
            rdev: 0,
            size: 0,
            blocks: 0,
            atime: time,
            mtime: time,
            ctime: time,
            btime: time,
            flags: varve_fs::FileFlags::NONE,
        }
    }

    // Goal: a name is forgotten that leads elsewhere, and none of which that is not certain. Method: all that can have been seen of it
    // before and after.
    #[test]
    fn what_cannot_be_told_is_not_forgotten() {
        let (one, other) = (Some(InodeId(7)), Some(InodeId(8)));
        for (before, now) in [(one, None), (None, one), (one, other)] {
            assert!(is_changed(Ok(before), Ok(now)));
            assert!(!is_changed(Ok(before), Ok(before)) && !is_changed(Ok(now), Ok(now)));
            assert!(
                !is_changed(Err(anyhow!("lost")), Ok(now)) && !is_changed(Ok(before), Err(anyhow!("lost")))
            );
        }
    }

    // Goal: the mode decides as POSIX has it: the first class that fits, and no other. Method: a caller of each class
    // against modes that allow one class only.
    #[test]
    fn modes_decide() {
        let (owner, member, other) =
            (Caller { uid: 7, gid: 1 }, Caller { uid: 8, gid: 9 }, Caller { uid: 8, gid: 1 });
        for (mode, expected) in [
            (0o300, [true, false, false]),
            (0o030, [false, true, false]),
            (0o003, [false, false, true]),
            (0o200, [false; 3]),
        ] {
            let attr = attr(7, 9, mode);
            assert_eq!([owner, member, other].map(|who| allows(who, &attr, WRITE_AND_SEARCH)), expected);
            assert!(allows(Caller::ROOT, &attr, WRITE_AND_SEARCH));
        }
        assert!(must_own(owner, &attr(7, 9, 0)).is_ok());
        assert!(must_own(Caller::ROOT, &attr(7, 9, 0)).is_ok());
        assert!(must_own(member, &attr(7, 9, 0o777)).is_err());
    }
}
