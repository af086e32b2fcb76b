//! A thread that commits for those who wait with a limit: a flush of a device cannot be given up, but need not be waited for.
//!
//! One at most a pool. It is started by the first who waits, commits up to the latest place that anybody has asked for, and ends when
//! there is nothing more. Each commit holds the pool open as a call does. It has no handle of the pool: the last of those that goes waits for
//! it ([`Commits::end`]), and then closes the pool.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::ThreadId;
use std::time::Instant;

use parking_lot::{Condvar, Mutex};

use super::Door;
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
    /// Which, once it has begun.
    thread: Option<ThreadId>,
    /// The last handle went on it, in the middle of a commit: it closes the pool when it ends.
    closes: bool,
}

impl Commits {
    /// Has the log committed up to `upto`, and waits for that, no longer than `until`. False if it is not over by then; else whoever asks
    /// finds out at once what came of it.
    pub(crate) fn wait(
        &self,
        door: &Arc<Door>,
        upto: varve_fs::Lsn,
        until: Option<Instant>,
    ) -> Result<bool, Fault> {
        // A forked child takes no lock.
        match door.enter_until(until) {
            None => return Ok(false),
            Some(Err(_)) => return Ok(true),
            Some(Ok(_)) => {}
        }
        let mut state = self.0.state.lock();
        // What was tried in vain was so for good, and is told as that.
        if state.tried >= upto && !state.running {
            return Ok(true);
        }
        state.wanted = state.wanted.max(upto);
        if !state.running {
            let (inner, door) = (self.0.clone(), door.clone());
            std::thread::Builder::new()
                .name("varve-commit".to_owned())
                .spawn(move || inner.run(&door))
                .map_err(|error| Reason::Refused(format!("no thread can be started: {error}")))?;
            state.running = true;
        }
        let over = |state: &mut State| state.running && state.tried < upto;
        match until {
            Some(until) => Ok(!self.0.changed.wait_while_until(&mut state, over, until).timed_out()),
            None => {
                self.0.changed.wait_while(&mut state, over);
                Ok(true)
            }
        }
    }

    /// Waits until there is no thread, as the last handle. False on the thread itself, which cannot: it closes the pool when it ends.
    pub(crate) fn end(&self) -> bool {
        let mut state = self.0.state.lock();
        if state.running && state.thread == Some(std::thread::current().id()) {
            state.closes = true;
            return false;
        }
        self.0.changed.wait_while(&mut state, |state| state.running);
        true
    }
}

impl Inner {
    fn run(&self, door: &Door) {
        self.state.lock().thread = Some(std::thread::current().id());
        loop {
            let wanted = self.state.lock().wanted;
            let commit = || door.enter().is_ok_and(|fs| fs.commit(wanted).is_ok());
            // A panic has stopped the pool: nobody waits for who will not come.
            let done = catch_unwind(AssertUnwindSafe(commit)).unwrap_or(false);
            let mut state = self.state.lock();
            state.tried = wanted;
            if !done || state.wanted <= wanted {
                (state.running, state.thread) = (false, None);
                let closes = state.closes;
                self.changed.notify_all();
                drop(state);
                if closes {
                    door.close_at_last();
                }
                return;
            }
            self.changed.notify_all();
        }
    }
}
