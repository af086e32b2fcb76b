//! Small trees, forked again and again: subvolumes, snapshots of snapshots and clones, changed on both sides, moved and
//! deleted, with the reaper at work between. In half of the workloads everything goes in the end, and its space with it.
//! Some begin with a file in more pieces than the reaper takes away in one step.

use varve_fs::{Caller, InodeId, ROOT_INODE, SetAttr};
use varve_sim::Rng;

use super::random::{Character, Generator, ranges, rarely, starts, twins};
use crate::call::Call;
use crate::model::{PAGE_BYTES, is_subvolume, slot};
use crate::session::{Session, Setup, Violation};
use crate::violation;

/// What may stay in use after everything has been deleted, in bytes: trees keep their roots.
const LEFT_BYTES_MAX: u64 = 64 << 10;

/// Pieces of a scattered file, at least: the reaper takes 128 entries a step.
const PIECES_MIN: u64 = 140;

/// How workload `seed` opens its filesystem.
pub fn setup(seed: u64) -> Setup {
    let mut rng = Rng::new(seed ^ 0x666f_726b);
    Setup {
        cache_bytes: [1 << 20, 32 << 20][rng.index(2)],
        dirty_bytes_max: [64 << 10, 1 << 20, 16 << 20][rng.index(3)],
        caller: if rng.below(3) > 0 { Caller::ROOT } else { Caller { uid: 1000, gid: 100 } },
        tight: false,
    }
}

/// Makes the calls of workload `seed`.
pub fn run(session: &mut Session, seed: u64) -> Result<(), Violation> {
    let mut rng = Rng::new(seed ^ 0x0066_6f72_6b73);
    session.must(&Call::Checkpoint)?;
    let before = session.fs().space().used_bytes;
    let character = Character {
        calls: 30 + rng.below(200),
        write_bytes_max: [2_500, 20_000, 100_000][rng.index(3)],
        fsync: [0, 40, 150][rng.index(3)],
        sync: [10, 60][rng.index(2)],
        flush_file: [0, 30][rng.index(2)],
        checkpoint: [0, 10, 50][rng.index(3)],
        maintain: [0, 30, 150][rng.index(3)],
        forks: [80, 150, 400][rng.index(3)],
        rare: rarely(seed),
        started: starts(seed),
        twins: twins(seed),
        ranges: ranges(seed),
        reads: 0,
        protects: false,
    };
    if rng.below(2) == 0 {
        scatter(session, &mut rng)?;
    }
    let mut generator = Generator::new(character);
    for _ in 0..character.calls {
        let call = generator.draw(session.live(), &mut rng);
        let source = match call {
            Call::Snapshot { source, .. } if rng.below(2) == 0 => Some(source),
            _ => None,
        };
        if let Some(source) = source {
            dirty(session, source, character.write_bytes_max, &mut rng)?;
        }
        generator.make(session, &call)?;
        if let Some(source) = source.filter(|_| rng.below(2) == 0) {
            // On the source, of what was dirty when the snapshot was taken.
            dirty(session, source, character.write_bytes_max, &mut rng)?;
        }
        if call == Call::Maintain {
            // The reaper is idle: every count is exact.
            session.verify()?;
        }
    }
    if rng.below(2) == 0 {
        return Ok(());
    }
    session.verify()?;
    for ino in generator.open() {
        session.must(&Call::Release { ino: *ino })?;
    }
    remove_all(session, before, &mut rng)
}

/// Deletes everything, of which nothing is open: then no more is in use than `before`, bytes that a pool takes with nothing in it.
pub(super) fn remove_all(session: &mut Session, before: u64, rng: &mut Rng) -> Result<(), Violation> {
    while let Some(call) = removal(session, rng) {
        session.must(&call)?;
        if rng.below(20) == 0 {
            session.must(&Call::Maintain)?;
        }
    }
    session.verify_space()?;
    session.verify()?;
    let fails = |error| violation!("statfs fails: {error}");
    let files = session.fs().statfs().map_err(fails)?.files;
    let used = session.fs().space().used_bytes;
    if files != 1 || used > before + LEFT_BYTES_MAX {
        return Err(violation!(
            "with everything deleted {files} inodes and {used} bytes are in use, {before} before"
        ));
    }
    Ok(())
}

/// Writes a file in more pieces than a step of the reaper takes, forks it, changes it on one side, and lets one side go.
fn scatter(session: &mut Session, rng: &mut Rng) -> Result<(), Violation> {
    let (parent, name, other) = (ROOT_INODE, b"scattered".to_vec(), b"other".to_vec());
    session.must(&Call::Create { parent, name: name.clone(), mode: 0o644 })?;
    let ino = session.live().lookup(parent, &name).expect("created");
    let pieces = PIECES_MIN + rng.below(PIECES_MIN);
    for piece in 0..pieces {
        // A page between two pieces stays a hole: they never become one.
        session.must(&Call::Write {
            ino,
            offset: piece * 2 * PAGE_BYTES,
            len: 1 + rng.below(PAGE_BYTES) as usize,
            seed: piece,
        })?;
    }
    let clone = rng.below(2) == 0;
    session.must(&if clone {
        Call::CloneFile { source: ino, parent, name: other.clone() }
    } else {
        let (source, name) = (ROOT_INODE, other.clone());
        Call::Snapshot { source, parent, name, read_only: rng.below(2) == 0, sync: false }
    })?;
    for _ in 0..rng.below(40) {
        let offset = rng.below(pieces * 2) * PAGE_BYTES;
        session.must(&Call::Write { ino, offset, len: 3_000, seed: 1_000 + offset })?;
    }
    if rng.below(2) == 0 {
        let size = Some(rng.below(pieces * 2 * PAGE_BYTES));
        session.must(&Call::SetAttr { ino, set: SetAttr { size, ..SetAttr::default() } })?;
    }
    if rng.below(2) == 0 {
        session.must(&Call::FlushFile { ino })?;
    }
    match rng.below(3) {
        0 => session.must(&Call::Unlink { parent, name })?,
        1 if clone => session.must(&Call::Unlink { parent, name: other })?,
        1 => session.must(&Call::DeleteSubvolume { parent, name: other })?,
        _ => {}
    }
    if rng.below(2) == 0 {
        session.must(&Call::Maintain)?;
        session.verify()?;
    }
    Ok(())
}

/// Writes to most of the files of a subvolume that can be changed.
fn dirty(session: &mut Session, root: InodeId, bytes_max: u64, rng: &mut Rng) -> Result<(), Violation> {
    let model = session.live();
    if model.subvolumes().any(|(at, subvolume)| at == slot(root) && subvolume.read_only) {
        return Ok(());
    }
    let here = model.inodes().filter(|(ino, inode)| slot(*ino) == slot(root) && inode.content().is_some());
    let files: Vec<(InodeId, u64)> = here.map(|(ino, inode)| (ino, inode.size())).collect();
    for (ino, size) in files {
        if rng.below(4) > 0 {
            let (offset, len) = (rng.below(size + 1), 1 + rng.below(bytes_max) as usize);
            session.call(&Call::Write { ino, offset, len, seed: rng.next_u64() })?;
        }
    }
    Ok(())
}

/// Removes one of the names that can be removed.
fn removal(session: &Session, rng: &mut Rng) -> Option<Call> {
    let model = session.live();
    let mut calls = Vec::new();
    let frozen: Vec<u64> =
        model.subvolumes().filter(|(_, subvolume)| subvolume.read_only).map(|(at, _)| at).collect();
    let holds_others = |root: InodeId| {
        let inside = model.inodes().filter(|(ino, _)| slot(*ino) == slot(root));
        inside
            .filter_map(|(_, inode)| inode.entries())
            .flat_map(|names| names.values())
            .any(|child| slot(*child) != slot(root))
    };
    for (parent, inode) in model.inodes().filter(|(ino, _)| !frozen.contains(&slot(*ino))) {
        for (name, child) in inode.entries().into_iter().flatten() {
            let (child, name) = (*child, name.clone());
            match model.get(child)?.entries() {
                Some(_) if is_subvolume(child) => {
                    let empty = model.get(child)?.entries()?.is_empty();
                    if empty && !frozen.contains(&slot(child)) && rng.below(2) == 0 {
                        calls.push(Call::Rmdir { parent, name });
                    } else if !holds_others(child) {
                        calls.push(Call::DeleteSubvolume { parent, name });
                    }
                }
                Some(entries) if entries.is_empty() => calls.push(Call::Rmdir { parent, name }),
                Some(_) => {}
                None => calls.push(Call::Unlink { parent, name }),
            }
        }
    }
    debug_assert!(!calls.is_empty() || model.get(ROOT_INODE)?.entries()?.is_empty());
    rng.pick(&calls).cloned()
}
