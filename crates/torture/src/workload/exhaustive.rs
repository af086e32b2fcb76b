//! Small sequences over a small tree: every pair of operations with every placement of fsync and sync.
//!
//! The tree: `/a` (10,000 bytes: extents), `/b` (100 bytes: inside its inode record), `/d/e` (5,000 bytes), the empty
//! directory `/s`, and `/c`, a second name of `/d/h`. Operations on snapshots and clones make one first if there is none.

use varve_fs::{
    Allocate, Caller, FileFlags, FileKind, InodeId, ROOT_INODE, RenameMode, SetAttr, SetTime, Timestamp,
    XattrMode,
};
use varve_sim::Rng;

mod forks;

use crate::call::Call;
use crate::model::{ACCESS, CAPABILITY, DEFAULT, access_list};
use crate::session::{Session, Violation};

/// What makes the state durable after an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Barrier {
    /// Nothing.
    None,
    /// fsync of the file or directory that was worked on.
    Fsync,
    /// sync.
    Sync,
}

const BARRIERS: [Barrier; 3] = [Barrier::None, Barrier::Fsync, Barrier::Sync];

macro_rules! operations {
    ($($name:ident,)*) => {
        /// One operation, by what it does. The list holds every verb of the issue, on inline and on extent files, on
        /// names in one directory and across two.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[allow(missing_docs, reason = "the names say it")]
        pub enum Operation {
            $($name,)*
        }

        /// Every operation.
        pub const OPERATIONS: &[Operation] = &[$(Operation::$name,)*];
    };
}

operations! {
    CreateInRoot,
    CreateBelow,
    WriteExtent,
    WriteInline,
    WriteSparse,
    AppendExtent,
    AppendInlineToExtent,
    TruncateUpExtent,
    TruncateUpInline,
    TruncateDownPartial,
    TruncateToNothing,
    Link,
    Unlink,
    UnlinkOneOfTwo,
    UnlinkBelow,
    UnlinkOpen,
    UnlinkOpenAndWrite,
    UnlinkOpenAndRelease,
    RenameAcross,
    RenameDirectory,
    RenameOverSynced,
    RenameNewOver,
    RenameDirectoryOver,
    ExchangeFiles,
    ExchangeFileAndDirectory,
    RenameWithWhiteout,
    RenameOverWithWhiteout,
    SetAndClearFlags,
    InheritFlags,
    MakeDirectory,
    RemoveDirectory,
    Symlink,
    SetXattrSmall,
    SetXattrLarge,
    SetMode,
    SetTimesAndOwner,
    OverwriteInOneBatch,
    MakeNode,
    SetAccessList,
    SetDefaultListAndCreate,
    SetCapabilityAndWrite,
    ReserveBeyondEnd,
    ReserveAndGrow,
    PunchInside,
    PunchToEnd,
    ZeroInside,
    CopyBetweenFiles,
    CopyInside,
    CloneRangeAcross,
    CloneRangeDirty,
    CloneRangeInline,
    CloneRangeInside,
    CloneRangeThenCut,
    Collapse,
    Insert,
    TakeSnapshot,
    TakeFrozenSnapshot,
    WriteInSnapshot,
    UnlinkInSnapshot,
    DeleteSnapshot,
    MakeSubvolume,
    CloneRangeFromSnapshot,
    CloneFile,
    WriteToClone,
    UnlinkCloned,
    Maintain,
    NamelessAndLink,
    NamelessSyncedAndLink,
    NamelessLinkedAndUnlinked,
    NamelessOver,
    NamelessReleased,
}

use Operation::*;

/// How many sequences of one or two operations there are.
pub const PAIRS: u64 = SINGLES + (OPERATIONS.len() * OPERATIONS.len() * 9) as u64;
const SINGLES: u64 = (OPERATIONS.len() * 3) as u64;

/// Sequence number `index` (modulo [`PAIRS`]).
pub fn pair(index: u64) -> Vec<(Operation, Barrier)> {
    let index = (index % PAIRS) as usize;
    let n = OPERATIONS.len();
    if index < SINGLES as usize {
        return vec![(OPERATIONS[index / 3], BARRIERS[index % 3])];
    }
    let index = index - SINGLES as usize;
    let (barriers, operations) = (index % 9, index / 9);
    vec![
        (OPERATIONS[operations / n], BARRIERS[barriers / 3]),
        (OPERATIONS[operations % n], BARRIERS[barriers % 3]),
    ]
}

/// Three operations drawn by `seed`.
pub fn triple(seed: u64) -> Vec<(Operation, Barrier)> {
    let mut rng = Rng::new(seed ^ 0x7472_6970_6c65);
    let mut draw = |n: usize| rng.below(n as u64) as usize;
    (0..3).map(|_| (OPERATIONS[draw(OPERATIONS.len())], BARRIERS[draw(3)])).collect()
}

/// Makes the tree and syncs it.
pub fn populate(session: &mut Session) -> Result<(), Violation> {
    let name = |text: &str| text.as_bytes().to_vec();
    for directory in ["d", "s"] {
        session.must(&Call::Mkdir { parent: ROOT_INODE, name: name(directory), mode: 0o755 })?;
    }
    let d = path(session, "d").expect("made above");
    for (parent, file, len) in
        [(ROOT_INODE, "a", 10_000), (ROOT_INODE, "b", 100), (d, "e", 5_000), (d, "h", 9_000)]
    {
        session.must(&Call::Create { parent, name: name(file), mode: 0o644 })?;
        let ino = session.live().lookup(parent, file.as_bytes()).expect("made above");
        session.must(&Call::Write { ino, offset: 0, len, seed: len as u64 })?;
    }
    let h = path(session, "d/h").expect("made above");
    session.must(&Call::Link { ino: h, parent: ROOT_INODE, name: name("c") })?;
    session.must(&Call::Sync)
}

fn path(session: &Session, path: &str) -> Option<InodeId> {
    path.split('/').try_fold(ROOT_INODE, |parent, name| session.live().lookup(parent, name.as_bytes()))
}

/// Makes the calls of `sequence`. An operation whose file has gone is left out.
pub fn run(session: &mut Session, sequence: &[(Operation, Barrier)]) -> Result<(), Violation> {
    let mut open = Vec::new();
    for (step, (operation, barrier)) in sequence.iter().enumerate() {
        let target = perform(session, *operation, step as u64 + 1, &mut open)?;
        match (barrier, target) {
            (Barrier::Fsync, Some(ino)) if session.live().get(ino).is_some() => {
                session.must(&Call::Fsync { ino })?
            }
            (Barrier::Fsync | Barrier::Sync, _) => session.must(&Call::Sync)?,
            (Barrier::None, _) => {}
        }
    }
    // Whatever is left takes its way to the device, so that crashes meet it half-way there.
    session.must(&Call::Sync)
}

/// Performs one operation and gives the inode an fsync would name.
fn perform(
    session: &mut Session,
    operation: Operation,
    step: u64,
    open: &mut Vec<InodeId>,
) -> Result<Option<InodeId>, Violation> {
    let name = |text: &str| text.as_bytes().to_vec();
    let fresh = |text: &str| format!("{text}{step}").into_bytes();
    let (a, b, d, h) = (path(session, "a"), path(session, "b"), path(session, "d"), path(session, "c"));
    let root = ROOT_INODE;
    let size = |session: &Session, ino| session.live().get(ino).map_or(0, |inode| inode.size());
    let mode = RenameMode::Replace;
    let on = |session: &mut Session, ino: Option<InodeId>, call: &dyn Fn(InodeId) -> Call| match ino {
        Some(ino) => session.call(&call(ino)).map(|_| Some(ino)),
        None => Ok(None),
    };
    let set_size = |ino, size| Call::SetAttr { ino, set: SetAttr { size: Some(size), ..SetAttr::default() } };
    match operation {
        CreateInRoot => {
            session.call(&Call::Create { parent: root, name: fresh("n"), mode: 0o640 })?;
            Ok(session.live().lookup(root, &fresh("n")))
        }
        CreateBelow => on(session, d, &|d| Call::Create { parent: d, name: name("n"), mode: 0o600 }),
        WriteExtent => on(session, a, &|ino| Call::Write { ino, offset: 4_000, len: 3_000, seed: step }),
        WriteInline => on(session, b, &|ino| Call::Write { ino, offset: 20, len: 50, seed: step }),
        WriteSparse => {
            on(session, a, &|ino| Call::Write { ino, offset: (3 << 20) + 100, len: 6_000, seed: step })
        }
        AppendExtent => {
            let end = a.map_or(0, |a| size(session, a));
            on(session, a, &|ino| Call::Write { ino, offset: end, len: 5_000, seed: step })
        }
        AppendInlineToExtent => {
            let end = b.map_or(0, |b| size(session, b));
            on(session, b, &|ino| Call::Write { ino, offset: end, len: 4_500, seed: step })
        }
        TruncateUpExtent => on(session, a, &|ino| set_size(ino, 20_000 + step)),
        TruncateUpInline => on(session, b, &|ino| set_size(ino, 700 + step)),
        TruncateDownPartial => on(session, a, &|ino| set_size(ino, 4_200 - step)),
        TruncateToNothing => on(session, a, &|ino| set_size(ino, 0)),
        Link => {
            let Some(d) = d else { return Ok(None) };
            on(session, a, &|ino| Call::Link { ino, parent: d, name: fresh("k") })
        }
        Unlink => {
            session.call(&Call::Unlink { parent: root, name: name("a") })?;
            Ok(Some(root))
        }
        UnlinkOneOfTwo => {
            session.call(&Call::Unlink { parent: root, name: name("c") })?;
            Ok(h.or(Some(root)))
        }
        UnlinkBelow => on(session, d, &|d| Call::Unlink { parent: d, name: name("e") }),
        UnlinkOpen | UnlinkOpenAndWrite | UnlinkOpenAndRelease => {
            let file = if operation == UnlinkOpenAndRelease { (b, "b") } else { (a, "a") };
            let is_file =
                |ino: &InodeId| session.live().get(*ino).is_some_and(|inode| inode.content().is_some());
            let Some(ino) = file.0.filter(is_file) else { return Ok(None) };
            session.must(&Call::Open { ino, truncate: false })?;
            session.must(&Call::Unlink { parent: root, name: name(file.1) })?;
            match operation {
                UnlinkOpenAndRelease => session.must(&Call::Release { ino })?,
                UnlinkOpenAndWrite => {
                    session.must(&Call::Write { ino, offset: 8_000, len: 9_000, seed: step })?;
                    open.push(ino);
                }
                _ => open.push(ino),
            }
            Ok(Some(if operation == UnlinkOpenAndWrite { ino } else { root }))
        }
        NamelessAndLink
        | NamelessSyncedAndLink
        | NamelessLinkedAndUnlinked
        | NamelessOver
        | NamelessReleased => {
            let Some(d) = d else { return Ok(None) };
            if session.call(&Call::Tmpfile { parent: d, mode: 0o666, umask: 0o027, linkable: true })? != 0 {
                return Ok(None);
            }
            let ino = session.last_created().expect("it has just been made");
            // In the record, and in blocks.
            let len = if operation == NamelessAndLink { 700 } else { 9_000 };
            session.must(&Call::Write { ino, offset: 0, len, seed: 200 + step })?;
            if !matches!(operation, NamelessAndLink | NamelessOver) {
                session.must(&Call::Fsync { ino })?;
            }
            if operation == NamelessOver {
                if session.call(&Call::LinkOver { ino, parent: root, name: name("a") })? != 0 {
                    session.must(&Call::Release { ino })?;
                    return Ok(Some(d));
                }
            } else if operation != NamelessReleased {
                session.must(&Call::Link { ino, parent: root, name: fresh("w") })?;
            }
            if operation == NamelessLinkedAndUnlinked {
                session.must(&Call::Unlink { parent: root, name: fresh("w") })?;
                // It has had its name.
                session.call(&Call::Link { ino, parent: root, name: fresh("w") })?;
            }
            session.must(&Call::Release { ino })?;
            Ok(Some(if operation == NamelessReleased { d } else { ino }))
        }
        RenameAcross => {
            let Some(d) = d else { return Ok(None) };
            on(session, a, &|_| Call::Rename {
                parent: root,
                name: name("a"),
                new_parent: d,
                new_name: name("moved"),
                mode,
            })
        }
        RenameDirectory => on(session, d, &|_| Call::Rename {
            parent: root,
            name: name("d"),
            new_parent: root,
            new_name: fresh("dir"),
            mode: RenameMode::NoReplace,
        }),
        RenameOverSynced => {
            let Some(d) = d else { return Ok(None) };
            on(session, a, &|_| Call::Rename {
                parent: root,
                name: name("a"),
                new_parent: d,
                new_name: name("e"),
                mode,
            })
        }
        RenameNewOver => {
            // What an editor does, without its fsync: the old file or the whole new one must be there.
            session.must(&Call::Create { parent: root, name: fresh("t"), mode: 0o644 })?;
            let ino = session.live().lookup(root, &fresh("t")).expect("made above");
            session.must(&Call::Write { ino, offset: 0, len: 7_000, seed: 100 + step })?;
            let (parent, new_name) = (root, name("b"));
            session.must(&Call::Rename { parent, name: fresh("t"), new_parent: parent, new_name, mode })?;
            Ok(Some(ino))
        }
        RenameWithWhiteout => on(session, d, &|_| Call::Rename {
            parent: root,
            name: name("d"),
            new_parent: root,
            new_name: fresh("dir"),
            mode: RenameMode::Whiteout { caller: Caller { uid: 7, gid: 8 }, replace: false },
        }),
        RenameOverWithWhiteout => {
            let Some(d) = d else { return Ok(None) };
            on(session, a, &|_| Call::Rename {
                parent: root,
                name: name("a"),
                new_parent: d,
                new_name: name("e"),
                mode: RenameMode::Whiteout { caller: Caller::ROOT, replace: true },
            })
        }
        RenameDirectoryOver => on(session, d, &|_| Call::Rename {
            parent: root,
            name: name("d"),
            new_parent: root,
            new_name: name("s"),
            mode,
        }),
        ExchangeFiles | ExchangeFileAndDirectory => {
            let Some(d) = d else { return Ok(None) };
            let (new_parent, new_name) = match operation {
                ExchangeFiles => (d, name("e")),
                _ => (root, name("d")),
            };
            on(session, a, &|_| Call::Rename {
                parent: root,
                name: name("a"),
                new_parent,
                new_name: new_name.clone(),
                mode: RenameMode::Exchange,
            })
        }
        SetAndClearFlags => {
            let flags = FileFlags::IMMUTABLE | FileFlags::NO_ACCESS_TIME;
            on(session, a, &|ino| Call::SetFlags { ino, flags })?;
            on(session, a, &|ino| Call::Write { ino, offset: 0, len: 10, seed: step })?;
            on(session, a, &|ino| Call::SetFlags { ino, flags: FileFlags::APPEND_ONLY })?;
            on(session, a, &|ino| Call::Write { ino, offset: 0, len: 10, seed: step })?;
            on(session, a, &|ino| Call::SetFlags { ino, flags: FileFlags::NO_DUMP })
        }
        InheritFlags => {
            let Some(d) = d else { return Ok(None) };
            let flags = FileFlags::NO_DUMP | FileFlags::DURABLE | FileFlags::DURABLE_NAMES;
            session.call(&Call::SetFlags { ino: d, flags })?;
            session.call(&Call::Mkdir { parent: d, name: fresh("f"), mode: 0o755 })?;
            session.call(&Call::Create { parent: d, name: fresh("g"), mode: 0o644 })?;
            Ok(session.live().lookup(d, &fresh("g")))
        }
        MakeDirectory => on(session, d, &|d| Call::Mkdir { parent: d, name: fresh("m"), mode: 0o2750 }),
        RemoveDirectory => {
            session.call(&Call::Rmdir { parent: root, name: name("s") })?;
            Ok(Some(root))
        }
        Symlink => {
            session.call(&Call::Symlink { parent: root, name: fresh("y"), target: name("d/../a") })?;
            Ok(session.live().lookup(root, &fresh("y")))
        }
        SetXattrSmall => on(session, b, &|ino| Call::SetXattr {
            ino,
            name: name("user.k"),
            value: vec![step as u8; 40],
            mode: XattrMode::Set,
        }),
        SetXattrLarge => on(session, d, &|ino| Call::SetXattr {
            ino,
            name: name("user.large"),
            value: vec![step as u8; 1_500],
            mode: XattrMode::Set,
        }),
        SetMode => on(session, a, &|ino| Call::SetAttr {
            ino,
            set: SetAttr { mode: Some(0o600 + step as u32), ..SetAttr::default() },
        }),
        OverwriteInOneBatch => {
            // A block is placed and freed within one batch, and taken again by the file before it in the next.
            let mut make = |name: Vec<u8>| -> Result<InodeId, Violation> {
                session.must(&Call::Create { parent: root, name: name.clone(), mode: 0o644 })?;
                Ok(session.live().lookup(root, &name).expect("made above"))
            };
            let (first, second) = (make(fresh("u"))?, make(fresh("v"))?);
            for (number, ino) in [first, second, second].into_iter().enumerate() {
                let seed = 200 + 10 * step + number as u64;
                session.must(&Call::Write { ino, offset: 0, len: 4_096, seed })?;
                session.must(&Call::FlushFile { ino })?;
            }
            session.must(&Call::Fsync { ino: second })?;
            // One block: just the gap that was left.
            session.must(&Call::Write { ino: first, offset: 4_096, len: 4_096, seed: 300 + step })?;
            Ok(Some(first))
        }
        MakeNode => {
            let (kind, rdev) = [(FileKind::Fifo, 0), (FileKind::BlockDevice, 0x0801)][(step % 2) as usize];
            session.call(&Call::Mknod {
                parent: root,
                name: fresh("p"),
                kind,
                mode: 0o660,
                umask: 0o022,
                rdev,
            })?;
            Ok(session.live().lookup(root, &fresh("p")))
        }
        SetAccessList => on(session, a, &|ino| Call::SetXattr {
            ino,
            name: ACCESS.to_vec(),
            value: access_list(0o640, &[(1000, 6)], &[(7, step as u16)], 4),
            mode: XattrMode::Set,
        }),
        SetDefaultListAndCreate => {
            let Some(d) = d else { return Ok(None) };
            let (name, value) = (DEFAULT.to_vec(), access_list(0o750, &[(1000, 7)], &[], 5));
            session.call(&Call::SetXattr { ino: d, name, value, mode: XattrMode::Set })?;
            let (parent, name, mode, umask) = (d, fresh("l"), 0o666, 0o022);
            session.call(&Call::Mknod { parent, name, kind: FileKind::File, mode, umask, rdev: 0 })?;
            Ok(session.live().lookup(d, &fresh("l")))
        }
        SetCapabilityAndWrite => {
            let capability = |ino| Call::SetXattr {
                ino,
                name: CAPABILITY.to_vec(),
                value: vec![step as u8; 20],
                mode: XattrMode::Set,
            };
            on(session, b, &capability)?;
            on(session, b, &|ino| Call::Write { ino, offset: 10, len: 10, seed: step })
        }
        ReserveBeyondEnd => {
            let how = Allocate::Reserve { keep_size: true };
            on(session, a, &|ino| Call::Fallocate { ino, offset: 5_000, len: 30_000, how })
        }
        ReserveAndGrow => {
            let how = Allocate::Reserve { keep_size: false };
            on(session, b, &|ino| Call::Fallocate { ino, offset: 50, len: 9_000 + step, how })
        }
        PunchInside => on(session, a, &|ino| Call::Fallocate {
            ino,
            offset: 1_000,
            len: 8_000 - step,
            how: Allocate::Punch,
        }),
        PunchToEnd => {
            on(session, a, &|ino| Call::Fallocate { ino, offset: 4_096, len: 40_000, how: Allocate::Punch })
        }
        ZeroInside => {
            let how = Allocate::Zero { keep_size: step == 1 };
            on(session, a, &|ino| Call::Fallocate { ino, offset: 3_000, len: 9_500, how })
        }
        CopyBetweenFiles => {
            let Some(from) = h else { return Ok(None) };
            on(session, a, &|to| Call::CopyRange { from, from_offset: 100, to, to_offset: 6_000, len: 8_000 })
        }
        CopyInside => on(session, a, &|ino| Call::CopyRange {
            from: ino,
            from_offset: 0,
            to: ino,
            to_offset: 5_000,
            len: 4_500,
        }),
        CloneRangeAcross | CloneRangeThenCut => {
            // The end of one, inside a page, becomes the end of the other.
            let Some(from) = h else { return Ok(None) };
            let (from_offset, to_offset, len) = (4_096, 8_192, 0);
            on(session, a, &|to| Call::CloneRange { from, from_offset, to, to_offset, len })?;
            match operation {
                CloneRangeThenCut => on(session, h, &|ino| set_size(ino, 5_000 + step)),
                _ => Ok(a),
            }
        }
        CloneRangeDirty => {
            let Some(from) = h else { return Ok(None) };
            on(session, h, &|ino| Call::Write { ino, offset: 3_000, len: 3_000, seed: step })?;
            let (from_offset, to_offset, len) = (0, 4_096, 8_192);
            on(session, a, &|to| Call::CloneRange { from, from_offset, to, to_offset, len })
        }
        CloneRangeInline => {
            let Some(from) = b else { return Ok(None) };
            let (from_offset, to_offset, len) = (0, 12_288, 0);
            on(session, a, &|to| Call::CloneRange { from, from_offset, to, to_offset, len })
        }
        CloneRangeInside => {
            let (from_offset, to_offset, len) = (0, 8_192, 4_096);
            on(session, a, &|to| Call::CloneRange { from: to, from_offset, to, to_offset, len })?;
            on(session, a, &|ino| Call::Write { ino, offset: 100, len: 50, seed: step })
        }
        Collapse => on(session, a, &|ino| Call::Shift { ino, offset: 4_096, len: 4_096, insert: false }),
        Insert => on(session, a, &|ino| Call::Shift { ino, offset: 4_096, len: 8_192, insert: true }),
        TakeSnapshot
        | TakeFrozenSnapshot
        | WriteInSnapshot
        | UnlinkInSnapshot
        | DeleteSnapshot
        | MakeSubvolume
        | CloneRangeFromSnapshot
        | CloneFile
        | WriteToClone
        | UnlinkCloned
        | Maintain => forks::perform(session, operation, step),
        SetTimesAndOwner => {
            let at = |seconds| Some(SetTime::At(Timestamp { seconds, nanoseconds: 999_999_999 }));
            let set = SetAttr {
                uid: Some(7),
                gid: Some(8 + step as u32),
                atime: at(-5),
                mtime: at(1 << 33),
                ..SetAttr::default()
            };
            on(session, b, &|ino| Call::SetAttr { ino, set })
        }
    }
}
