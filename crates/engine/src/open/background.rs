//! The thread that an open pool has: it commits what nobody syncs, and writes checkpoints when they are due.
//!
//! A checkpoint may take long, on a slow device or with much that has changed. So while it writes one, a second thread, which ends
//! with it, goes on committing; a pool in which nothing is being written has one thread, which wakes once in [`TICK`].

use std::sync::{Arc, Weak};
use std::thread::{Builder, scope};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use varve_format::Lsn;

use super::Result;
use crate::EngineError;
use crate::store::Store;

/// How often is looked around.
const TICK: Duration = Duration::from_millis(1000);
/// After so many ticks a transaction is durable, whoever has asked for it or not, and however many follow it.
const COMMITTED_TICKS: usize = 5;

/// Where the log was at the last ticks, the oldest first.
struct Seen([Lsn; COMMITTED_TICKS]);

impl Seen {
    /// The log is at `position` now. What is to be durable, and whether the log is idle: one that is, is committed when nothing has
    /// joined it for a tick, and one that never is when something in it has grown old.
    fn tick(&mut self, position: Lsn) -> (Lsn, bool) {
        let (idle, old) = (position == self.0[COMMITTED_TICKS - 1], self.0[0]);
        self.0.rotate_left(1);
        self.0[COMMITTED_TICKS - 1] = position;
        (if idle { position } else { old }, idle)
    }
}

/// Says when something has ended, with or without a panic.
#[derive(Default)]
struct Ended {
    ended: Mutex<bool>,
    turn: Condvar,
}

impl Ended {
    /// Whether it has within a tick.
    fn within_a_tick(&self) -> bool {
        let mut ended = self.ended.lock();
        self.turn.wait_while_for(&mut ended, |ended| !*ended, TICK);
        *ended
    }
}

/// Ends it.
struct Ends<'a>(&'a Ended);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        *self.0.ended.lock() = true;
        self.0.turn.notify_all();
    }
}

impl Store {
    /// Without its thread a store makes nothing durable by itself: it is not opened then.
    pub(super) fn start_background(self: &Arc<Self>) -> Result<()> {
        let weak: Weak<Store> = self.me.clone();
        let spawned = Builder::new().name("varve-store".into()).spawn(move || {
            let mut seen = Seen([Lsn(0); COMMITTED_TICKS]);
            while let Some(store) = weak.upgrade() {
                let due = {
                    let mut wake = store.background.wake.lock();
                    if !wake.checkpoint && !wake.stop {
                        store.background.turn.wait_for(&mut wake, TICK);
                    }
                    if wake.stop {
                        return;
                    }
                    std::mem::take(&mut wake.checkpoint)
                };
                let (upto, idle) = seen.tick(store.position());
                // What has called for one may have been done by the one before.
                let result = if (due || idle) && store.checkpoint_is_due() {
                    store.while_committing(&mut seen, || {
                        if due { store.checkpoint_when_due() } else { store.maintain() }
                    })
                } else if idle {
                    store.maintain()
                } else {
                    store.commit(upto)
                };
                if let Err(e) = result {
                    tracing::error!("background work: {e}");
                    if store.commits.stopped().is_some() {
                        return;
                    }
                }
            }
        });
        let thread =
            spawned.map_err(|e| EngineError::Refused(format!("no thread for background work: {e}")))?;
        *self.background.thread.lock() = Some(thread);
        Ok(())
    }

    /// Does `work`, and on a second thread commits what is to be durable meanwhile. Who waits for this thread waits for both.
    fn while_committing(&self, seen: &mut Seen, work: impl FnOnce() -> Result<()>) -> Result<()> {
        let ended = Ended::default();
        scope(|both| {
            let commits = || {
                while !ended.within_a_tick() {
                    let (upto, _) = seen.tick(self.position());
                    if let Err(e) = self.commit(upto) {
                        // It has stopped the pool.
                        tracing::error!("background work: {e}");
                        return;
                    }
                }
            };
            if let Err(e) = Builder::new().name("varve-commit".into()).spawn_scoped(both, commits) {
                tracing::warn!("no thread for commits while a checkpoint is being written: {e}");
            }
            let _ends = Ends(&ended);
            work()
        })
    }

    pub(crate) fn stop_background(&self) {
        self.background.wake.lock().stop = true;
        self.background.turn.notify_all();
        let thread = self.background.thread.lock().take();
        if let Some(thread) = thread
            && thread.thread().id() != std::thread::current().id()
        {
            let _ = thread.join();
        }
    }
}
