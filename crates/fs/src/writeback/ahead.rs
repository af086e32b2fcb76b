//! Writing ahead: a thread writes dirty data back before there is so much of it that writers must wait.
//!
//! Without it a writer that reaches the bound writes back everything himself: he and the device take turns, and each is
//! idle half of the time. It begins at a fraction of the bound, so that there is something to pack and what is soon
//! overwritten or deleted is not written at all. Large writes need no packing: from some length of their file on little of them
//! waits, so that the device is not idle at first, and who syncs the file in the end does not wait for much.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::{GROUP_FILES_MAX, Ride};
use crate::Result;
use crate::core::Core;
use crate::inode::InodeState;

/// It begins when this part of the bound is dirty.
const SHARE: u64 = 4;
/// The same while large writes come in, in whole chunks, to a long file.
const SHARE_OF_LARGE: u64 = 64;
/// A file longer than this part of the bound is long.
const SHARE_OF_LONG: u64 = 16;
/// Pause after a failure: whoever syncs that data gets the error himself.
const PAUSE: Duration = Duration::from_millis(500);

/// How the thread is told what to do.
#[derive(Default)]
pub struct Ahead {
    /// Set without the lock by writers, so that they take it once a round.
    wanted: AtomicBool,
    /// Whether a large write to a long file has come since the thread last looked.
    large: AtomicBool,
    /// Files to be written back whatever else is dirty; `None`: nobody writes ahead.
    soon: Mutex<Option<Vec<Arc<InodeState>>>>,
    stop: Mutex<bool>,
    /// Told of both.
    changed: Condvar,
    /// Told of the end alone.
    ended: Condvar,
}

impl Ahead {
    /// Data has been written, so that `dirty` bytes of at most `dirty_max` are. Wakes the thread if that is enough; costs next to
    /// nothing while it is at work.
    pub(crate) fn written(&self, large: bool, dirty: u64, dirty_max: u64) {
        let share = if large { SHARE_OF_LARGE } else { SHARE };
        if dirty > dirty_max / share {
            if large && !self.large.load(Ordering::Relaxed) {
                self.large.store(true, Ordering::Relaxed);
            }
            self.wake();
        }
    }

    /// There is something to do.
    pub(crate) fn wake(&self) {
        if !self.wanted.load(Ordering::Relaxed) && !self.wanted.swap(true, Ordering::AcqRel) {
            // The lock, so that the thread does not fall asleep between looking and waiting.
            let _stop = self.stop.lock();
            self.changed.notify_one();
        }
    }

    /// Has all of a file written back as soon as may be. False: there is nobody who would.
    pub(crate) fn write_soon(&self, state: &Arc<InodeState>) -> bool {
        match &mut *self.soon.lock() {
            Some(soon) => soon.push(state.clone()),
            None => return false,
        }
        self.wake();
        true
    }

    /// The files that are to be written back soon.
    fn soon(&self) -> Vec<Arc<InodeState>> {
        self.soon.lock().as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Waits until there is something to do. False: it is over.
    fn wait(&self) -> bool {
        let mut stop = self.stop.lock();
        while !*stop && !self.wanted.swap(false, Ordering::AcqRel) {
            self.changed.wait(&mut stop);
        }
        !*stop
    }

    /// Waits for so long, or until it is over, whatever there is to do meanwhile.
    fn rest(&self, pause: Duration) {
        let mut stop = self.stop.lock();
        if !*stop {
            self.ended.wait_for(&mut stop, pause);
        }
    }

    /// It is over.
    fn end(&self) {
        *self.stop.lock() = true;
        self.changed.notify_all();
        self.ended.notify_all();
    }

    /// Which part of the bound may be dirty now.
    fn share(&self) -> u64 {
        if self.large.swap(false, Ordering::Relaxed) { SHARE_OF_LARGE } else { SHARE }
    }

    fn stopped(&self) -> bool {
        *self.stop.lock()
    }
}

/// The running thread. Dropping it waits for its end.
pub struct AheadThread {
    core: Arc<Core>,
    thread: Option<JoinHandle<()>>,
}

impl AheadThread {
    /// Starts it.
    pub fn start(core: &Arc<Core>) -> AheadThread {
        let theirs = core.clone();
        let run = move || {
            while theirs.dirty.ahead.wait() {
                // Nobody would write ahead any more, nor hear of it.
                let panics = theirs.store.stop_on_panic("writing ahead");
                let result = theirs.write_ahead();
                panics.done();
                if let Err(error) = result {
                    tracing::debug!(%error, "writing ahead failed");
                    theirs.dirty.ahead.rest(PAUSE);
                }
            }
        };
        let thread = std::thread::Builder::new().name("varve-writeback".into()).spawn(run);
        let thread = thread.inspect_err(
            |error| tracing::error!(%error, "no thread for writing ahead: writers wait instead"),
        );
        if thread.is_ok() {
            *core.dirty.ahead.soon.lock() = Some(Vec::new());
        }
        AheadThread { core: core.clone(), thread: thread.ok() }
    }
}

impl Drop for AheadThread {
    fn drop(&mut self) {
        self.core.dirty.ahead.end();
        *self.core.dirty.ahead.soon.lock() = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that writes ahead panicked");
        }
    }
}

impl Core {
    /// Whether a file of this size is a long one.
    pub(crate) fn is_long(&self, size: u64) -> bool {
        size > self.dirty_bytes_max / SHARE_OF_LONG
    }

    /// Writes back what snapshots wait for, the files of which that was asked, and then the oldest until less is dirty than what this begins at, or only what
    /// cannot be written back. That keeps the rest from nothing; the error is the first.
    pub fn write_ahead(&self) -> Result<()> {
        let mut result = self.complete(|_| !self.dirty.ahead.stopped());
        loop {
            // In each round: under a load without end there are always more.
            for state in self.dirty.ahead.soon() {
                result = result.and(self.write_back(&state, Ride::Allowed));
            }
            let share = self.dirty.ahead.share();
            if self.dirty.bytes() <= self.dirty_bytes_max / share || self.dirty.ahead.stopped() {
                break;
            }
            let files = self.dirty.oldest_to_write(GROUP_FILES_MAX / 8);
            if files.is_empty() {
                break;
            }
            result = result.and(self.write_back_files(files));
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    // Goal: the pause after a failure is one, though data is written all the time; it ends with the thread. Method: a pause longer than any test,
    // and somebody who says again and again that there is something to do.
    #[test]
    fn nobody_who_writes_ends_the_pause() {
        let ahead = Ahead::default();
        let (tell, told) = channel();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                ahead.rest(Duration::from_secs(600));
                tell.send(()).unwrap();
            });
            // Too short is no false alarm.
            for _ in 0..10 {
                ahead.wanted.store(false, Ordering::SeqCst);
                ahead.written(false, 2, 1);
                told.recv_timeout(Duration::from_millis(10)).expect_err("it has been woken");
            }
            ahead.end();
            told.recv_timeout(Duration::from_secs(120)).unwrap();
        });
    }
}
