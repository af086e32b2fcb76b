//! Enough log to go around the ring: many small transactions, few of them durable, checkpoints at random, so that
//! recovery meets the wrap, batches of an older lap, and a checkpoint in the middle of everything.

use varve_fs::{Caller, InodeId, ROOT_INODE, XattrMode};
use varve_sim::Rng;

use crate::call::Call;
use crate::session::{Session, Setup, Violation};

/// Bytes of log to make: the ring of the smallest pool is 8 MiB.
const LOG_BYTES: u64 = 14 << 20;
const VALUE_BYTES: usize = 1_500;
const FILES: usize = 24;

/// How workload `seed` opens its filesystem.
pub fn setup(_seed: u64) -> Setup {
    Setup { cache_bytes: 8 << 20, dirty_bytes_max: 1 << 20, caller: Caller::ROOT, tight: false }
}

/// Makes the calls of workload `seed`.
pub fn run(session: &mut Session, seed: u64) -> Result<(), Violation> {
    let mut rng = Rng::new(seed ^ 0x7269_6e67);
    let mut files: Vec<InodeId> = Vec::new();
    for number in 0..FILES {
        let name = format!("f{number}").into_bytes();
        session.must(&Call::Create { parent: ROOT_INODE, name: name.clone(), mode: 0o644 })?;
        files.push(session.live().lookup(ROOT_INODE, &name).expect("created"));
    }
    // Start at a different place of the ring each time.
    let calls = LOG_BYTES / VALUE_BYTES as u64 / 2 + rng.below(LOG_BYTES / VALUE_BYTES as u64);
    let (sync_every, checkpoint_every) = (20 + rng.below(200), 1_000 + rng.below(6_000));
    for number in 0..calls {
        let ino = files[rng.below(FILES as u64) as usize];
        let call = match rng.below(20) {
            0 => Call::Write {
                ino,
                offset: rng.below(40_000),
                len: 1 + rng.below(9_000) as usize,
                seed: number,
            },
            _ if rng.below(sync_every) == 0 => Call::Fsync { ino },
            _ if rng.below(checkpoint_every) == 0 => Call::Checkpoint,
            _ if rng.below(200) == 0 => Call::Maintain,
            _ => Call::SetXattr {
                ino,
                name: format!("user.{}", rng.below(4)).into_bytes(),
                value: vec![number as u8; VALUE_BYTES],
                mode: XattrMode::Set,
            },
        };
        session.must(&call)?;
    }
    Ok(())
}
