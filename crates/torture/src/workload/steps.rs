//! Calls of many steps on files in many pieces, of which as a rule nothing is in memory: reads fail in front of any of the steps,
//! and between them. What is done then is looked at, crashed from, and finished.

use varve_fs::{Allocate, Caller, InodeId, ROOT_INODE, RenameMode, SetAttr};
use varve_sim::Rng;

use super::forks::remove_all;
use crate::call::Call;
use crate::model::{Inode, Model, PAGE_BYTES, is_subvolume, slot};
use crate::session::{Session, Setup, Violation};

/// Pieces of a file, at least: a step does 64, and a node holds some more.
const PIECES_MIN: [u64; 3] = [70, 200, 450];
/// Files; further names are those of their clones.
const FILES: u64 = 3;
const NAMES: u64 = 6;
/// Subvolumes beside the first one.
const SNAPSHOTS_MAX: usize = 3;
/// Pages beyond which no file grows by a call.
const PAGES_MAX: u64 = 1_200;

/// How workload `seed` opens its filesystem.
pub fn setup(seed: u64) -> Setup {
    let mut rng = Rng::new(seed).fork("steps, setup");
    Setup {
        cache_bytes: 1 << 20,
        dirty_bytes_max: [64 << 10, 1 << 20, 16 << 20][rng.index(3)],
        caller: if rng.below(3) > 0 { Caller::ROOT } else { Caller { uid: 1000, gid: 100 } },
        tight: false,
    }
}

/// Makes the calls of workload `seed`.
pub fn run(session: &mut Session, seed: u64) -> Result<(), Violation> {
    let mut rng = Rng::new(seed).fork("steps");
    session.must(&Call::Checkpoint)?;
    let before = session.fs().space().used_bytes;
    for number in 0..FILES {
        scatter(session, number, &mut rng)?;
    }
    for _ in 0..10 + rng.below(30) {
        if rng.below(8) > 0 {
            cool(session, &mut rng)?;
        }
        for _ in 0..1 + rng.below(4).saturating_sub(1) {
            act(session, &mut rng)?;
        }
    }
    if rng.below(2) == 0 {
        return Ok(());
    }
    // What ended half-way has left nothing behind, also of what is let go last of all.
    session.verify()?;
    // One of the files is nobody else's, and nothing is set aside in it: its pieces are read to let it go.
    scatter(session, NAMES, &mut rng)?;
    let names: Vec<_> = (0..=NAMES).map(name).collect();
    let_go(session, &names, &mut rng)?;
    remove_all(session, before, &mut rng)
}

/// From now on nothing is in memory, or what was changed last.
fn cool(session: &mut Session, rng: &mut Rng) -> Result<(), Violation> {
    // What is replayed is in memory, and what the checkpoint has is not.
    if rng.below(6) > 0 {
        session.must(&Call::Checkpoint)?;
    }
    session.restart()
}

/// Writes a file in many pieces: with holes between, or with blocks elsewhere. The first two hold the same bytes.
fn scatter(session: &mut Session, number: u64, rng: &mut Rng) -> Result<(), Violation> {
    let (parent, name) = (ROOT_INODE, name(number));
    session.must(&Call::Create { parent, name, mode: [0o644, 0o6755][rng.index(2)] })?;
    let ino = session.last_created().expect("created");
    let (pieces, holes) = (PIECES_MIN[rng.index(3)] + rng.below(100), rng.below(2) == 0);
    let mut write = |piece: u64| {
        let len = if piece + 1 == pieces { 1 + rng.below(PAGE_BYTES) } else { PAGE_BYTES };
        let seed = if number < 2 { piece } else { number << 32 | piece };
        session.must(&Call::Write { ino, offset: piece * PAGE_BYTES, len: len as usize, seed })
    };
    (0..pieces).step_by(2).try_for_each(&mut write)?;
    if !holes {
        session.must(&Call::FlushFile { ino })?;
        let mut write = |piece: u64| {
            let (offset, len) = (piece * PAGE_BYTES, PAGE_BYTES as usize);
            session.must(&Call::Write { ino, offset, len, seed: number.max(1) << 32 | piece })
        };
        (1..pieces).step_by(2).try_for_each(&mut write)?;
    }
    session.must(&Call::FlushFile { ino })
}

/// One call, or some that belong together.
fn act(session: &mut Session, rng: &mut Rng) -> Result<(), Violation> {
    let model = session.live();
    let writable = |ino: InodeId| !model.subvolumes().any(|(at, one)| at == slot(ino) && one.read_only);
    let files: Vec<InodeId> =
        model.inodes().filter(|(_, inode)| inode.content().is_some()).map(|(ino, _)| ino).collect();
    let mine: Vec<InodeId> = files.iter().copied().filter(|ino| writable(*ino)).collect();
    let (Some(from), Some(to)) = (rng.pick(&files).copied(), rng.pick(&mine).copied()) else {
        return Ok(());
    };
    let (parent, new_name) = (ROOT_INODE, name(rng.below(NAMES)));
    let name = name(rng.below(NAMES));
    let call = match rng.below(24) {
        0..5 => clone_range(model, from, to, rng),
        5..7 => match clone_range(model, from, to, rng) {
            Call::CloneRange { from, from_offset, to, to_offset, len } => {
                let within = [0, 0, 77][rng.index(3)];
                let (from_offset, to_offset) = (from_offset + within, to_offset + within);
                Call::CopyRange { from, from_offset, to, to_offset, len: len.max(1) }
            }
            other => other,
        },
        7..9 => {
            let whole = |ino: InodeId| pages(model, ino) * PAGE_BYTES;
            let offset = rng.below(20) * PAGE_BYTES;
            let len = whole(from).min(whole(to)).saturating_sub(offset + PAGE_BYTES);
            Call::DedupeRange { from, from_offset: offset, to, to_offset: offset, len }
        }
        9..14 => allocate(model, to, rng),
        14..16 => {
            let first = rng.below(pages(model, to) / 2 + 1);
            let len = (1 + rng.below(40)) * PAGE_BYTES;
            let insert = pages(model, to) < PAGES_MAX && rng.below(2) == 0;
            Call::Shift { ino: to, offset: first * PAGE_BYTES, len, insert }
        }
        16 => {
            let (offset, len) =
                (rng.below(pages(model, to) + 1) * PAGE_BYTES, 1 + rng.below(30_000) as usize);
            Call::Write { ino: to, offset: offset + rng.below(PAGE_BYTES), len, seed: rng.next_u64() }
        }
        17 => {
            let size = Some(rng.below((pages(model, to) + 2) * PAGE_BYTES));
            Call::SetAttr { ino: to, set: SetAttr { size, ..SetAttr::default() } }
        }
        18 => return let_go(session, &[name], rng),
        19 => {
            let caller = [Caller::ROOT, Caller { uid: 1000, gid: 100 }][rng.index(2)];
            let mode = RenameMode::Whiteout { caller, replace: true };
            Call::Rename { parent, name, new_parent: parent, new_name, mode }
        }
        20 => return fork(session, to, rng),
        21 => Call::CloneFile { source: from, parent, name },
        22 => [Call::Maintain, Call::Checkpoint, Call::FlushAll][rng.index(3)].clone(),
        _ => [Call::Fsync { ino: to }, Call::FlushFile { ino: to }, Call::Sync][rng.index(3)].clone(),
    };
    session.call(&call).map(drop)
}

/// The name of a file.
fn name(number: u64) -> Vec<u8> {
    format!("f{number}").into_bytes()
}

fn pages(model: &Model, ino: InodeId) -> u64 {
    model.get(ino).map_or(0, Inode::size).div_ceil(PAGE_BYTES)
}

/// A long range, often to the end of its file.
fn clone_range(model: &Model, from: InodeId, to: InodeId, rng: &mut Rng) -> Call {
    let (size, there) = (model.get(from).map_or(0, Inode::size), pages(model, to));
    let from_offset = rng.below(size.div_ceil(PAGE_BYTES) / 4 + 1) * PAGE_BYTES;
    let left = size.saturating_sub(from_offset);
    let most = if there < PAGES_MAX { there + 10 } else { 20 };
    let to_offset = match from == to {
        true => size.next_multiple_of(PAGE_BYTES).min(PAGES_MAX * PAGE_BYTES),
        false => rng.below(most) * PAGE_BYTES,
    };
    let len = match rng.below(3) {
        0 if to_offset + left >= model.get(to).map_or(0, Inode::size) => left,
        1 => rng.below(left + 1) / PAGE_BYTES * PAGE_BYTES,
        _ => left / PAGE_BYTES * PAGE_BYTES,
    };
    Call::CloneRange { from, from_offset, to, to_offset, len }
}

/// Reserves, punches or zeroes much of a file.
fn allocate(model: &Model, ino: InodeId, rng: &mut Rng) -> Call {
    let all = pages(model, ino) * PAGE_BYTES;
    let keep_size = all > PAGES_MAX * PAGE_BYTES || rng.below(2) == 0;
    let how = match rng.below(5) {
        0 | 1 => Allocate::Reserve { keep_size },
        2 | 3 => Allocate::Zero { keep_size },
        _ => Allocate::Punch,
    };
    let (mut offset, mut len) = (rng.below(all / 3 + 1), 1 + rng.below(all + 20_000));
    if rng.below(2) == 0 {
        (offset, len) = (offset / PAGE_BYTES * PAGE_BYTES, len.next_multiple_of(PAGE_BYTES));
    }
    Call::Fallocate { ino, offset, len, how }
}

/// Unlinks files in many pieces that are open, and lets each go when nothing of it is in memory but that.
fn let_go(session: &mut Session, names: &[Vec<u8>], rng: &mut Rng) -> Result<(), Violation> {
    let (parent, mut files) = (ROOT_INODE, Vec::new());
    for name in names {
        let Some(ino) = session.live().lookup(parent, name) else { continue };
        let Some(inode) = session.live().get(ino).filter(|inode| inode.content().is_some()) else { continue };
        if inode.links == 1 && rng.below(3) == 0 {
            let name = [&name[..], b"-kept"].concat();
            session.call(&Call::CloneFile { source: ino, parent, name })?;
        }
        files.push((ino, name.clone()));
    }
    cool(session, rng)?;
    for (ino, name) in files {
        session.must(&Call::Open { ino, truncate: false })?;
        session.must(&Call::Unlink { parent, name })?;
        if rng.below(4) == 0 {
            let (offset, seed) = (rng.below(300_000), rng.next_u64());
            session.must(&Call::Write { ino, offset, len: 9_000, seed })?;
        }
        session.must(&Call::Release { ino })?;
    }
    Ok(())
}

/// Takes a snapshot of everything, or deletes one.
fn fork(session: &mut Session, dirty: InodeId, rng: &mut Rng) -> Result<(), Violation> {
    let model = session.live();
    let there: Vec<Vec<u8>> = model
        .get(ROOT_INODE)
        .and_then(Inode::entries)
        .into_iter()
        .flatten()
        .filter(|(_, child)| is_subvolume(**child))
        .map(|(name, _)| name.clone())
        .collect();
    let parent = ROOT_INODE;
    if there.len() >= SNAPSHOTS_MAX || rng.below(4) == 0 {
        return match rng.pick(&there).cloned() {
            Some(name) => session.call(&Call::DeleteSubvolume { parent, name }).map(drop),
            None => Ok(()),
        };
    }
    if rng.below(2) == 0 {
        session.call(&Call::Write {
            ino: dirty,
            offset: rng.below(9_000),
            len: 5_000,
            seed: rng.next_u64(),
        })?;
    }
    let name = format!("snapshot{}", rng.below(2 * SNAPSHOTS_MAX as u64)).into_bytes();
    let (read_only, sync) = (rng.below(3) == 0, rng.below(3) > 0);
    session.call(&Call::Snapshot { source: ROOT_INODE, parent, name, read_only, sync }).map(drop)
}
