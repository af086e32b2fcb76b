//! The thread that writes back old data and reaps, the one that writes ahead and those that read ahead. Without them
//! [`crate::Filesystem::maintain`] and the writers do the same.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use varve_engine::EngineError;

use crate::Result;
use crate::core::Core;
use crate::streams::ReadAheadThreads;
use crate::writeback::ahead::AheadThread;

/// How often the thread looks.
const INTERVAL: Duration = Duration::from_millis(500);

#[derive(Default)]
struct Stop {
    asked: Mutex<bool>,
    changed: Condvar,
}

/// The running threads. Dropping it waits for their end.
pub struct Background {
    stop: Arc<Stop>,
    thread: Option<JoinHandle<()>>,
    _ahead: AheadThread,
    _readers: ReadAheadThreads,
}

impl Background {
    /// Starts them.
    /// Without the thread nothing would be written by its age, nor reaped: it is an error.
    pub(crate) fn start(core: &Arc<Core>) -> Result<Background> {
        let (_ahead, _readers) = (AheadThread::start(core), ReadAheadThreads::start(core));
        let stop = Arc::new(Stop::default());
        let (core, told) = (core.clone(), stop.clone());
        let run = move || {
            let (mut failing, mut more) = (false, false);
            loop {
                {
                    let mut asked = told.asked.lock();
                    if !*asked && !more {
                        told.changed.wait_for(&mut asked, INTERVAL);
                    }
                    if *asked {
                        return;
                    }
                }
                // Nobody would do this any more, nor hear of it.
                let panics = core.store.stop_on_panic("background work");
                let (all_reaped, result) = core.maintain_some();
                panics.done();
                more = !all_reaped;
                // What failed is tried again; whoever waits for that data gets the error himself.
                if let Err(error) = &result
                    && !failing
                {
                    tracing::error!(%error, "background work failed");
                }
                failing = result.is_err();
            }
        };
        let thread = std::thread::Builder::new().name("varve-background".into()).spawn(run);
        let thread = thread
            .map_err(|error| EngineError::Refused(format!("no thread for background work: {error}")))?;
        Ok(Background { stop, thread: Some(thread), _ahead, _readers })
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        *self.stop.asked.lock() = true;
        self.stop.changed.notify_all();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the background thread panicked");
        }
    }
}
