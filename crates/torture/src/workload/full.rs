//! A pool filled to its last block: refusals change nothing, what frees space never fails, no accepted write is lost,
//! and when everything has been deleted everything fits again.

use varve_fs::{Caller, InodeId, ROOT_INODE, SetAttr};
use varve_sim::Rng;

use super::random::{Character, Generator};
use crate::call::Call;
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
    let first = fill_up(session, &mut rng)?;

    // Work on the full pool.
    let character = Character {
        calls: 40 + rng.below(80),
        write_bytes_max: 200_000,
        fsync: 80,
        sync: 20,
        flush_file: 10,
        checkpoint: 20,
        maintain: 40,
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
    // Both fills end with small files, so the two totals differ by what one file of a size may leave.
    if again + (3 << 20) < first {
        return Err(violation!("a pool that held {first} bytes holds {again} after everything was deleted"));
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

/// Deletes everything: none of it may be refused.
fn empty(session: &mut Session, rng: &mut Rng) -> Result<(), Violation> {
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
