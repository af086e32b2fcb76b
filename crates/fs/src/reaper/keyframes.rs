//! Makes the keyframes that readers of old files want: a few at a time, beside the reaper, by the same rules. They are derived
//! and never needed: where space is short, or something is damaged, none are made.

use parking_lot::MutexGuard;
use varve_engine::version;
use varve_engine::{EngineError, Transaction};

use super::pace::{SPELL, Step};
use crate::core::Core;
use crate::{FsError, Result};

/// Keyframes made in one transaction: for each a thousand entries and more are passed, and others wait for the lock.
const KEYFRAMES_PER_STEP: usize = 4;
/// Steps before the background looks after other things, and whoever closes the filesystem is served.
const STEPS_AT_A_TIME: u32 = 32;
/// There is space for keyframes while this part of the pool is free.
const FREE_PART: u64 = 16;

impl Core {
    /// Makes all keyframes that are wanted, or some of them, with rests between while others change something. False: more are
    /// wanted.
    pub(crate) fn make_keyframes(&self, all: bool) -> Result<bool> {
        let _running = self.reap.running.lock();
        let pace = self.pace(u32::MAX);
        let _hurry = all.then(|| self.reap.hurry());
        if self.store.keyframes().is_resting() {
            return Ok(true);
        }
        let mut steps = 0;
        while all || (steps < STEPS_AT_A_TIME && !pace.is_over()) {
            steps += 1;
            let wishes = self.store.keyframes();
            let Some((family, id, segments)) = wishes.take(KEYFRAMES_PER_STEP) else { return Ok(true) };
            let space = self.store.space();
            if space.free_bytes < space.total_bytes / FREE_PART {
                wishes.forget();
                return Ok(true);
            }
            let make = || {
                let (mut tx, view) = (Transaction::new(), self.store.view());
                let made = version::make_keyframes(&view, &mut tx, family, id, &segments);
                // What a view holds is copied before it is changed.
                made.map(|_| (tx, view.position()))
            };
            // What has to be read for them is read before anybody waits for the lock.
            let mut made = make();
            // A device is not asked again with the lock for what it cannot give, nor in this round.
            match &made {
                Err(error) if error.may_pass() => return Ok(true),
                Err(error) if error.is_damage() => continue,
                _ => {}
            }
            let alone = self.families.lock();
            if !made.as_ref().is_ok_and(|(_, position)| *position == self.store.position()) {
                made = make();
            }
            let applied = match made {
                Ok((tx, _)) if tx.is_empty() => None,
                Ok((tx, _)) => match self.apply(tx) {
                    Ok(lsn) => Some(lsn),
                    Err(FsError::Engine(EngineError::NoSpace)) => {
                        wishes.forget();
                        return Ok(true);
                    }
                    Err(error) => return Err(error),
                },
                // Who reads it hears of it.
                Err(error) if error.is_damage() => None,
                Err(error) => return Err(error.into()),
            };
            MutexGuard::unlock_fair(alone);
            if let Some(lsn) = applied {
                self.rest_after(Step::of(lsn, SPELL), &pace);
            }
        }
        Ok(!self.store.keyframes().wanted())
    }
}
