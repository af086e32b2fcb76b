//! A pool filled to its last block: refusals change nothing, what frees space never fails, no accepted write is lost,
//! what was set aside is there, and when everything has been deleted everything fits again. In half of the workloads
//! snapshots and clones are taken while the pool fills and when it is full; deleting them is never refused, either.

use varve_fs::{Allocate, Caller, InodeId, ROOT_INODE, SetAttr};
use varve_sim::Rng;

use super::random::{Character, Generator, ranges, rarely, starts};
use crate::call::Call;
use crate::model::{Inode, PAGE_BYTES, is_subvolume, slot};
use crate::session::{Session, Setup, Violation};
use crate::violation;

const ENOSPC: i32 = 28;
/// Files that the pool is filled with, at most.
const FILES_MAX: u64 = 4_000;

/// How workload `seed` opens its filesystem.
pub fn setup(seed: u64) -> Setup {
    let mut rng = Rng::new(seed ^ 0x6675_6c6c);
    Setup {
        cache_bytes: 8 << 20,
        dirty_bytes_max: [256 << 10, 4 << 20][rng.below(2) as usize],
        caller: Caller::ROOT,
        tight: true,
    }
}

/// Makes the calls of workload `seed`.
pub fn run(session: &mut Session, seed: u64) -> Result<(), Violation> {
    let mut rng = Rng::new(seed ^ 0x1f);
    set_aside(session, &mut rng)?;
    let forks = rng.below(2) == 0;
    let first = fill_up(session, &mut rng)?;
    zero(session, &mut Rng::new(seed).fork("zeros"))?;
    if rng.below(4) > 0 {
        spend(session, &mut rng)?;
    }
    if forks {
        fork(session, &mut rng)?;
        // What is set aside is now, in part, for several files, and for the first of them that is written to.
        if seed % 4 == 1 {
            spend(session, &mut rng)?;
        }
    }

    // Work on the full pool.
    let character = Character {
        calls: 40 + rng.below(80),
        write_bytes_max: 200_000,
        fsync: 80,
        sync: 20,
        flush_file: 10,
        checkpoint: 20,
        maintain: 40,
        forks: if forks { 100 } else { 0 },
        rare: rarely(seed),
        started: starts(seed),
        twins: 0,
        ranges: ranges(seed),
        reads: 0,
        protects: false,
    };
    let mut generator = Generator::new(character);
    for _ in 0..character.calls {
        let call = generator.draw(session.live(), &mut rng);
        generator.make(session, &call)?;
    }
    fill_up(session, &mut rng)?;

    if rng.below(2) == 0 {
        return Ok(());
    }
    empty(session, &mut rng)?;
    session.must(&Call::Sync)?;
    session.must(&Call::Maintain)?;
    session.must(&Call::Checkpoint)?;
    let again = fill_up(session, &mut rng)?;
    // What was set aside is free for everybody now. Both fills end with small files, so the two totals differ by what one file of a size may leave.
    if again + (3 << 20) < first {
        return Err(violation!("a pool that held {first} bytes holds {again} after everything was deleted"));
    }
    Ok(())
}

/// Takes snapshots of the full pool and clones files in it, where there is space for that, and writes over a little of
/// what they share.
fn fork(session: &mut Session, rng: &mut Rng) -> Result<(), Violation> {
    for number in 0..1 + rng.below(3) {
        let name = format!("snapshot-{number}").into_bytes();
        let (source, read_only, sync) = (ROOT_INODE, rng.below(2) == 0, rng.below(2) == 0);
        session.call(&Call::Snapshot { source, parent: ROOT_INODE, name, read_only, sync })?;
        let files: Vec<InodeId> = session
            .live()
            .inodes()
            .filter(|(ino, inode)| slot(*ino) == 0 && inode.content().is_some() && inode.links > 0)
            .map(|(ino, _)| ino)
            .collect();
        for turn in 0..rng.below(6) {
            let Some(ino) = rng.pick(&files).copied() else { break };
            if rng.below(2) == 0 {
                let name = format!("clone-{number}-{turn}").into_bytes();
                session.call(&Call::CloneFile { source: ino, parent: ROOT_INODE, name })?;
            } else {
                session.call(&Call::Write { ino, offset: 0, len: 5_000, seed: turn })?;
            }
        }
    }
    Ok(())
}

/// Reserves parts of a few files: new ones, small ones, ones that end inside a block.
fn set_aside(session: &mut Session, rng: &mut Rng) -> Result<(), Violation> {
    for number in 0..rng.below(4) {
        let name = format!("reserved-{number}").into_bytes();
        session.must(&Call::Create { parent: ROOT_INODE, name: name.clone(), mode: 0o644 })?;
        let ino = session.live().lookup(ROOT_INODE, &name).expect("created");
        let len = [0, 700, 9_000, 300_000][rng.index(4)];
        if len > 0 {
            session.must(&Call::Write { ino, offset: 0, len, seed: number })?;
        }
        if rng.below(2) == 0 {
            session.must(&Call::Fsync { ino })?;
        }
        if rng.below(2) == 0 {
            let size = Some(rng.below(len as u64 + 1));
            session.must(&Call::SetAttr { ino, set: SetAttr { size, ..SetAttr::default() } })?;
        }
        for _ in 0..1 + rng.below(3) {
            let keep_size = rng.below(2) == 0;
            let longest = [20_000, 4_000_000][rng.index(2)];
            let (offset, len) = (rng.below(400_000), 1 + rng.below(longest));
            let how = [Allocate::Reserve { keep_size }, Allocate::Zero { keep_size }][rng.index(2)];
            session.must(&Call::Fallocate { ino, offset, len, how })?;
        }
    }
    match rng.below(3) {
        0 => session.must(&Call::Sync),
        1 => session.must(&Call::Checkpoint),
        _ => Ok(()),
    }
}

/// Writes to much of what is set aside, in any order; the session sees to it that nothing of that is refused.
fn spend(session: &mut Session, rng: &mut Rng) -> Result<(), Violation> {
    let files: Vec<InodeId> =
        session.live().inodes().filter(|(_, inode)| inode.content().is_some()).map(|(ino, _)| ino).collect();
    let (together, turns) = (1 + rng.below(60), 10 + rng.below(300));
    for ino in files {
        for turn in 0..turns {
            let content = session.live().get(ino).and_then(Inode::content);
            let pages: Vec<u64> = content.into_iter().flat_map(|content| content.reserved()).collect();
            let Some(first) = rng.pick(&pages).copied() else { break };
            let run =
                (0..together).take_while(|more| pages.binary_search(&(first + more)).is_ok()).count() as u64;
            let (skip, cut) = if rng.below(2) == 0 { (0, 0) } else { (rng.below(2_000), rng.below(2_000)) };
            let (offset, len) = (first * PAGE_BYTES + skip, (run * PAGE_BYTES - skip - cut) as usize);
            session.must(&Call::Write { ino, offset, len, seed: turn })?;
            match rng.below(40) {
                0 => session.must(&Call::Fsync { ino })?,
                1 => session.must(&Call::Checkpoint)?,
                _ => {}
            }
        }
    }
    Ok(())
}

/// Zeroes parts of what files hold, which nobody else sees: as it can be written over, that is not refused.
fn zero(session: &mut Session, rng: &mut Rng) -> Result<(), Violation> {
    for _ in 0..rng.below(8) {
        let mut ranges = Vec::new();
        for (ino, content) in session.live().inodes().filter_map(|(ino, inode)| Some((ino, inode.content()?)))
        {
            let pages = content.size() / PAGE_BYTES;
            let first = rng.below(pages + 1);
            let run = (first..pages).take_while(|page| !content.may_be_hole(*page)).count() as u64;
            ranges.extend((run > 0).then_some((ino, first * PAGE_BYTES, run * PAGE_BYTES)));
        }
        let Some((ino, first, run)) = rng.pick(&ranges).copied() else { break };
        let (skip, cut) = if rng.below(2) == 0 { (0, 0) } else { (rng.below(2_000), rng.below(2_000)) };
        let how = Allocate::Zero { keep_size: rng.below(2) == 0 };
        session.must(&Call::Fallocate { ino, offset: first + skip, len: run - skip - cut, how })?;
        match rng.below(8) {
            0 => session.must(&Call::Fsync { ino })?,
            1 => session.must(&Call::Checkpoint)?,
            _ => {}
        }
    }
    Ok(())
}

/// Writes until nothing more is accepted. Gives the bytes accepted.
fn fill_up(session: &mut Session, rng: &mut Rng) -> Result<u64, Violation> {
    let (mut total, mut len) = (0_u64, 1_500_000_usize);
    let round = rng.below(1 << 30);
    for number in 0..FILES_MAX {
        let name = format!("fill-{round}-{number}").into_bytes();
        let created = session.call(&Call::Create { parent: ROOT_INODE, name: name.clone(), mode: 0o644 })?;
        if created == ENOSPC {
            return Ok(total);
        }
        let ino = session.live().lookup(ROOT_INODE, &name).expect("created");
        let mut written = 0_usize;
        loop {
            let seed = round + number;
            let errno =
                session.call(&Call::Write { ino, offset: written as u64, len: len - written, seed })?;
            let now = session.live().get(ino).map_or(0, |inode| inode.size()) as usize;
            total += (now - written) as u64;
            written = now;
            if errno == ENOSPC || written >= len {
                break;
            }
        }
        if rng.below(8) == 0 {
            session.must(&Call::Fsync { ino })?;
        }
        if written < len {
            if len <= 3_000 {
                // Nothing fits any more; make what was accepted durable.
                session.must(&Call::Sync)?;
                return Ok(total);
            }
            len /= 8;
        }
    }
    Ok(total)
}

/// Deletes everything: none of it may be refused. Snapshots go first, because what they share is theirs to keep.
fn empty(session: &mut Session, rng: &mut Rng) -> Result<(), Violation> {
    delete_subvolumes(session)?;
    // Some files are cut first.
    let files: Vec<InodeId> =
        session.live().inodes().filter(|(_, i)| i.content().is_some()).map(|(ino, _)| ino).collect();
    for ino in files {
        if rng.below(6) == 0 && session.live().get(ino).is_some_and(|inode| inode.links > 0) {
            let size = session.live().get(ino).map_or(0, |inode| inode.size()) / 2;
            session.must(&Call::SetAttr { ino, set: SetAttr { size: Some(size), ..SetAttr::default() } })?;
        }
    }
    let mut directories = vec![ROOT_INODE];
    let mut removals = Vec::new();
    while let Some(parent) = directories.pop() {
        let entries =
            session.live().get(parent).and_then(|inode| inode.entries()).cloned().unwrap_or_default();
        for (name, child) in entries {
            if session.live().get(child).is_some_and(|inode| inode.entries().is_some()) {
                directories.push(child);
                removals.push(Call::Rmdir { parent, name });
            } else {
                session.must(&Call::Unlink { parent, name })?;
            }
        }
    }
    // Deepest last found: remove in reverse.
    for call in removals.iter().rev() {
        session.must(call)?;
    }
    let open: Vec<(InodeId, u32)> = session.live().inodes().map(|(ino, i)| (ino, i.opens)).collect();
    for (ino, opens) in open {
        for _ in 0..opens {
            session.must(&Call::Release { ino })?;
        }
    }
    Ok(())
}

/// Deletes all subvolumes, those within others first, and has what nobody shares any more given back.
fn delete_subvolumes(session: &mut Session) -> Result<(), Violation> {
    loop {
        let model = session.live();
        let names = model.inodes().filter_map(|(ino, inode)| Some((ino, inode.entries()?)));
        let placed =
            names.flat_map(|(parent, names)| names.iter().map(move |(name, ino)| (parent, name, *ino)));
        let subvolumes: Vec<_> = placed.filter(|(.., ino)| is_subvolume(*ino)).collect();
        // One at least holds no other.
        let empty = subvolumes
            .iter()
            .find(|(.., root)| !subvolumes.iter().any(|(parent, ..)| slot(*parent) == slot(*root)));
        let Some((parent, name, _)) = empty else { break };
        let call = Call::DeleteSubvolume { parent: *parent, name: (*name).clone() };
        session.must(&call)?;
    }
    session.must(&Call::Maintain)
}
