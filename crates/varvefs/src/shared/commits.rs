//! A thread that commits for those who wait with a limit: a flush of a device cannot be given up, but need not be waited for.
//!
//! One at most a pool. It is started by the first who waits, commits up to the latest place that anybody has asked for, and ends when
//! there is nothing more; it holds the pool as a call does, and lets go of it before anybody hears that it has ended.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::Shared;
use crate::error::{Fault, Reason};

/// Who waits with a limit, and what for.
#[derive(Default)]
pub(crate) struct Commits(Arc<Inner>);

#[derive(Default)]
struct Inner {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// The latest place in the log that anybody has asked for.
    wanted: varve_fs::Lsn,
    /// Up to where the thread has come, with or without an error.
    tried: varve_fs::Lsn,
    /// There is a thread.
    running: bool,
}

impl Commits {
    /// Has the log committed up to `upto`, and waits for that, for no longer than `limit`. False if it is not over by then; else whoever asks
    /// finds out at once what came of it.
    pub(crate) fn wait(
        &self,
        shared: &Arc<Shared>,
        upto: varve_fs::Lsn,
        limit: Duration,
    ) -> Result<bool, Fault> {
        // A forked child takes no lock.
        if shared.enter_again().is_err() {
            return Ok(true);
        }
        let mut state = self.0.state.lock();
        // What was tried in vain was so for good, and is told as that.
        if state.tried >= upto && !state.running {
            return Ok(true);
        }
        state.wanted = state.wanted.max(upto);
        if !state.running {
            let (inner, shared) = (self.0.clone(), shared.clone());
            std::thread::Builder::new()
                .name("varve-commit".to_owned())
                .spawn(move || inner.run(shared))
                .map_err(|error| Reason::Refused(format!("no thread can be started: {error}")))?;
            state.running = true;
        }
        let over = |state: &mut State| state.running && state.tried < upto;
        Ok(!self.0.changed.wait_while_for(&mut state, over, limit).timed_out())
    }
}

impl Inner {
    fn run(&self, shared: Arc<Shared>) {
        loop {
            let wanted = self.state.lock().wanted;
            let commit = || shared.enter_again().is_ok_and(|fs| fs.commit(wanted).is_ok());
            // A panic has stopped the pool: nobody waits for who will not come.
            let done = catch_unwind(AssertUnwindSafe(commit)).unwrap_or(false);
            let mut state = self.state.lock();
            state.tried = wanted;
            let ends = !done || state.wanted <= wanted;
            if ends {
                state.running = false;
                // Under the lock: whoever hears of it and lets go of the last handle closes the pool himself.
                drop(shared);
                self.changed.notify_all();
                return;
            }
            self.changed.notify_all();
        }
    }
}
