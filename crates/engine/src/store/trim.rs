//! Giving back to the devices what is free, and what that means for who looks for space meanwhile.
//!
//! A trim holds one piece of free space at a time (`space::trim`) and no lock while the device works on it. Who finds too
//! little says so; then the trim gives back what it has not come to yet as soon as the device has answered, takes nothing more,
//! and whoever waits looks again. So a trim never is the cause of a refusal, and costs at most one request to the device.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::Condvar;
use varve_device::Discarded;
use varve_format::{BLOCK_BYTES, Run};

use super::{Result, Store};
use crate::planted::{Planted, is};
use crate::space::Space;
use crate::space::trim::Rest;
use crate::tree::Replaced;

/// Where trims and those who look for space meet; the apply mutex guards it.
#[derive(Default)]
pub(crate) struct Trims {
    /// Who finds too little, because a trim holds some. Trims look without the mutex, too.
    wanting: AtomicU64,
    /// A trim has given something back, or nobody wants anything any more.
    turn: Condvar,
}

/// Somebody who finds too little space; trims rest as long as it lives. Made and dropped under the apply mutex.
struct Wanting<'s>(&'s Trims);

impl<'s> Wanting<'s> {
    fn new(trims: &'s Trims) -> Wanting<'s> {
        trims.wanting.fetch_add(1, Relaxed);
        Wanting(trims)
    }
}

impl Drop for Wanting<'_> {
    fn drop(&mut self) {
        self.0.wanting.fetch_sub(1, Relaxed);
        self.0.turn.notify_all();
    }
}

/// How far a trim has come, or what came of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Trimmed {
    /// Bytes that the device has taken back, each once, however many copies the pool keeps.
    pub discarded_bytes: u64,
    /// In front of this byte of the pool's address space everything has been looked at.
    pub position_bytes: u64,
    /// Where it ends.
    pub end_bytes: u64,
    /// Whether the device can take anything back. If not, nothing was done.
    pub is_supported: bool,
}

/// Free space that a trim holds; what is left of it goes back when this is dropped, whatever happens.
struct Piece<'s> {
    store: &'s Store,
    runs: Vec<Run>,
}

impl Drop for Piece<'_> {
    fn drop(&mut self) {
        let mut core = self.store.core.lock();
        core.space.end_trim(&self.runs);
        self.store.trims.turn.notify_all();
    }
}

impl Store {
    /// What the devices hold in all, copies and all, in bytes: shorter than that none of them may become.
    pub fn device_bytes(&self) -> u64 {
        self.pool.device_bytes()
    }

    /// Tells the devices that free space is free: runs of at least `minimum_bytes` in `range` of the pool's address space (both
    /// in bytes, rounded to whole blocks; a minimum above 128 MiB counts as that). First what was freed is made durable, since
    /// it is not free before; what a checkpoint would free is left for the next time. `goes_on` hears how far it has come,
    /// after each piece, and ends it by `false`.
    ///
    /// An error of a discard stops nothing but the trim.
    pub fn trim(
        &self,
        range: Range<u64>,
        minimum_bytes: u64,
        goes_on: &mut dyn FnMut(&Trimmed) -> bool,
    ) -> Result<Trimmed> {
        self.check_writable()?;
        self.commit(self.position())?;
        self.release_retired();
        let block_bytes = BLOCK_BYTES as u64;
        let total = self.core.lock().space.total;
        let end = (range.end / block_bytes).min(total);
        let mut rest = Rest {
            at: range.start.div_ceil(block_bytes).min(end),
            end,
            minimum: minimum_bytes.div_ceil(block_bytes),
            continues: false,
        };
        let mut done = Trimmed {
            discarded_bytes: 0,
            position_bytes: rest.at * block_bytes,
            end_bytes: end * block_bytes,
            is_supported: true,
        };
        if is(Planted::TrimsCheckpoint) {
            self.trim_replaced()?;
        }
        while rest.at < rest.end {
            let mut piece = self.take_piece(&mut rest)?;
            while let Some(run) = piece.runs.first().copied() {
                if self.trims.wanting.load(Relaxed) > 0 {
                    rest = Rest { at: run.addr.block(), continues: true, ..rest };
                    break;
                }
                if self.pool.discard(run)? == Discarded::NotSupported {
                    return Ok(Trimmed { is_supported: false, ..done });
                }
                done.discarded_bytes += run.bytes();
                let finished = Piece { store: self, runs: vec![piece.runs.remove(0)] };
                drop(finished);
            }
            drop(piece);
            done.position_bytes = rest.at * block_bytes;
            if !goes_on(&done) {
                break;
            }
        }
        Ok(done)
    }

    /// Waits until nobody wants space more urgently, and takes the next piece.
    fn take_piece(&self, rest: &mut Rest) -> Result<Piece<'_>> {
        let mut core = self.core.lock();
        while self.trims.wanting.load(Relaxed) > 0 {
            self.trims.turn.wait(&mut core);
        }
        // Under the mutex: who closes the pool waits for the pieces that were taken before.
        self.check_writable()?;
        Ok(Piece { store: self, runs: core.space.begin_trim(rest) })
    }

    /// Looks for free blocks by `take`, again as long as a trim holds some.
    pub(crate) fn find_space<T>(&self, mut take: impl FnMut(&mut Space) -> Option<T>) -> Option<T> {
        let mut core = self.core.lock();
        let mut found = take(&mut core.space);
        if found.is_some() || !core.space.is_trimming() {
            return found;
        }
        let wanting = Wanting::new(&self.trims);
        while found.is_none() && core.space.is_trimming() {
            self.trims.turn.wait(&mut core);
            found = take(&mut core.space);
        }
        drop(wanting);
        found
    }

    /// Waits until no trim holds anything. The pool has been closed: none takes more.
    pub(super) fn end_trims(&self) {
        let mut core = self.core.lock();
        while core.space.is_trimming() {
            self.trims.turn.wait(&mut core);
        }
    }

    /// The planted error: nodes that the present state has replaced are free, it says; but the durable checkpoint has them.
    fn trim_replaced(&self) -> Result<()> {
        let core = self.core.lock();
        let runs: Vec<Run> = core
            .replaced
            .iter()
            .flat_map(|replaced| match replaced {
                Replaced::At(ptr) => ptr.copies().map(|addr| Run { addr, blocks: 1 }).collect(),
                Replaced::Frozen(_) => Vec::new(),
            })
            .collect();
        drop(core);
        for run in runs {
            self.pool.discard(run)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Goal: a trim goes on past somebody who wanted space and has panicked while he looked for it. Method: one who finds nothing while a trim
    // holds something, and panics when he looks again, because that has been given back; then a trim of everything.
    #[test]
    fn a_trim_goes_on_past_a_panic() {
        let (_, store) = Store::in_memory();
        let mut rest = Rest { at: 0, end: u64::MAX, minimum: 0, continues: false };
        let piece = store.take_piece(&mut rest).expect("nobody wants anything");
        assert!(!piece.runs.is_empty());
        let theirs = store.clone();
        let looking = std::thread::spawn(move || {
            let mut looks = 0;
            theirs.find_space(|_| -> Option<()> {
                looks += 1;
                assert!(looks == 1, "planted");
                None
            })
        });
        while store.trims.wanting.load(Relaxed) == 0 && !looking.is_finished() {
            std::thread::yield_now();
        }
        drop(piece);
        assert!(looking.join().is_err(), "it was planted");
        assert_eq!(store.trims.wanting.load(Relaxed), 0, "nobody would ever trim again");
        let trimmed = store.trim(0..u64::MAX, 0, &mut |_| true).expect("trims");
        assert!(trimmed.position_bytes == trimmed.end_bytes && trimmed.discarded_bytes > 0, "{trimmed:?}");
    }
}
