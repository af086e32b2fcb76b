//! Small trees, forked again and again: subvolumes, snapshots of snapshots and clones, changed on both sides, moved and
//! deleted, with the reaper at work between. In half of the workloads everything goes in the end, and its space with it.

use varve_fs::{Caller, InodeId, ROOT_INODE};
use varve_sim::Rng;

use super::random::{Character, Generator};
use crate::call::Call;
use crate::model::{is_subvolume, slot};
use crate::session::{Session, Setup, Violation};
use crate::violation;

/// What may stay in use after everything has been deleted, in bytes: trees keep their roots.
const LEFT_BYTES_MAX: u64 = 64 << 10;

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
    };
    let mut generator = Generator::new(character);
    for _ in 0..character.calls {
        let call = generator.draw(session.live(), &mut rng);
        generator.make(session, &call)?;
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
    while let Some(call) = removal(session, &mut rng) {
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
                    if !holds_others(child) {
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
