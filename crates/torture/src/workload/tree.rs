//! Trees of many nodes: thousands of names and attributes of all lengths made and deleted again, in phases, so that
//! nodes split, join and empty, and checkpoints write a few of many.

use varve_fs::{Caller, InodeId, ROOT_INODE, SetAttr, XattrMode};
use varve_sim::Rng;

use crate::call::Call;
use crate::session::{Session, Setup, Violation};

/// Calls made.
const CALLS: u64 = 1_800;
/// Directories, so that none grows large.
const DIRECTORIES: usize = 12;

/// How workload `seed` opens its filesystem.
pub fn setup(seed: u64) -> Setup {
    let mut rng = Rng::new(seed ^ 0x7472_6565);
    Setup {
        cache_bytes: [1 << 20, 16 << 20][rng.index(2)],
        dirty_bytes_max: 1 << 20,
        caller: Caller::ROOT,
        tight: false,
    }
}

/// Makes the calls of workload `seed`.
pub fn run(session: &mut Session, seed: u64) -> Result<(), Violation> {
    let mut rng = Rng::new(seed ^ 0x6f61_6b00);
    let mut directories = Vec::new();
    for number in 0..DIRECTORIES {
        let name = format!("d{number}").into_bytes();
        session.must(&Call::Mkdir { parent: ROOT_INODE, name, mode: 0o755 })?;
        directories.extend(session.last_created());
    }
    let mut living: Vec<(InodeId, Vec<u8>, InodeId)> = Vec::new();
    let (sync_every, checkpoint_every) = (10 + rng.below(80), 60 + rng.below(600));
    let phase = 100 + rng.below(500);
    for number in 0..CALLS {
        if rng.below(sync_every) == 0 {
            session.must(&Call::Fsync { ino: ROOT_INODE })?;
        }
        if rng.below(checkpoint_every) == 0 {
            session.must(&Call::Checkpoint)?;
        }
        // Growing, then shrinking, from one end or anywhere.
        let shrinks = number / phase % 2 == 1;
        if !living.is_empty() && rng.chance(if shrinks { 0.9 } else { 0.1 }) {
            let at = if number / phase % 4 == 1 { living.len() - 1 } else { rng.index(living.len()) };
            let (parent, name, _) = living.swap_remove(at);
            session.must(&Call::Unlink { parent, name })?;
            continue;
        }
        if !living.is_empty() && rng.chance(0.4) {
            let (_, _, ino) = living[rng.index(living.len())];
            session.call(&change(session, ino, number, &mut rng))?;
            continue;
        }
        let parent = directories[rng.index(DIRECTORIES)];
        let longest = [12, 60, 255][rng.index(3)];
        let len = 8 + rng.index(longest - 7);
        let name = format!("{number:0>8}{:x<width$}", "", width = len - 8).into_bytes();
        let call = match rng.below(4) {
            0 => {
                let longest = [50, 2_000, 4_000][rng.index(3)];
                let target = vec![b't'; 1 + rng.below(longest) as usize];
                Call::Symlink { parent, name: name.clone(), target }
            }
            _ => Call::Create { parent, name: name.clone(), mode: 0o644 },
        };
        session.must(&call)?;
        living.extend(session.last_created().map(|ino| (parent, name, ino)));
    }
    Ok(())
}

fn change(session: &Session, ino: InodeId, number: u64, rng: &mut Rng) -> Call {
    let is_file = session.live().get(ino).is_some_and(|inode| inode.content().is_some());
    match rng.below(6) {
        0 if is_file => {
            let longest = [1_500, 9_000][rng.index(2)];
            Call::Write { ino, offset: rng.below(2_000), len: 1 + rng.below(longest) as usize, seed: number }
        }
        1 if is_file => {
            Call::SetAttr { ino, set: SetAttr { size: Some(rng.below(3_000)), ..SetAttr::default() } }
        }
        2 => Call::RemoveXattr { ino, name: format!("user.{}", rng.below(5)).into_bytes() },
        _ => {
            let longest = [30, 600, 1_900, 6_000][rng.index(4)];
            let value = vec![number as u8; rng.below(longest) as usize];
            Call::SetXattr {
                ino,
                name: format!("user.{}", rng.below(5)).into_bytes(),
                value,
                mode: XattrMode::Set,
            }
        }
    }
}
