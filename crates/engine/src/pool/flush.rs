//! Flushes that overlap, and what their success is worth.
//!
//! A flush that returns well says that what had been written before it began is durable. While others run beside it that
//! needs care: one that began earlier may be about to fail, and what it should have made durable is then gone although a
//! later one returns well (a drive may drop its cache when it reports an error). So a flush counts only when
//! all that began before it have returned well, and after one failure none ever counts again: each gives the error of the first,
//! which says why. One that panics has failed.

use parking_lot::{Condvar, Mutex};

use crate::EngineError;
use crate::planted::{Planted, is};

/// The flushes of a pool.
#[derive(Default)]
pub struct Flushes {
    inner: Mutex<Inner>,
    returned: Condvar,
}

#[derive(Default)]
struct Inner {
    /// Number of the last one that began.
    begun: u64,
    /// Those that have not returned: as many as there are callers.
    running: Vec<u64>,
    /// Why the first that has failed did.
    failed: Option<EngineError>,
}

/// Whom a flush waits for when it has returned well.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Beside {
    /// Those that began before it. What it says of the writes before it then holds, whatever becomes of later ones.
    Earlier,
    /// All that have begun by now: if any of them fails, nothing is to be written any more.
    All,
}

impl Flushes {
    /// Flushes by `flush`. No lock is held meanwhile.
    pub fn run(
        &self,
        beside: Beside,
        flush: impl FnOnce() -> Result<(), EngineError>,
    ) -> Result<(), EngineError> {
        let number = {
            let mut inner = self.inner.lock();
            if let Some(error) = &inner.failed {
                return Err(error.clone());
            }
            inner.begun += 1;
            let number = inner.begun;
            inner.running.push(number);
            number
        };
        let panicked = EngineError::Refused("a flush has panicked".into());
        let mut running = Running { flushes: self, number, result: Err(panicked) };
        running.result = flush();
        let result = running.result.clone();
        drop(running);
        result?;
        let mut inner = self.inner.lock();
        if is(Planted::FlushAlone) {
            return Ok(());
        }
        let last = if beside == Beside::Earlier { number } else { inner.begun };
        while inner.failed.is_none() && inner.running.iter().any(|running| *running <= last) {
            self.returned.wait(&mut inner);
        }
        inner.failed.clone().map_or(Ok(()), Err)
    }
}

/// A flush that has not returned. Should it panic, nobody waits for it for ever.
struct Running<'a> {
    flushes: &'a Flushes,
    number: u64,
    /// What it gives, or that it has panicked.
    result: Result<(), EngineError>,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let mut inner = self.flushes.inner.lock();
        inner.running.retain(|running| *running != self.number);
        if let Err(error) = &self.result {
            inner.failed.get_or_insert_with(|| error.clone());
        }
        self.flushes.returned.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::mpsc::channel;
    use std::thread;
    use std::time::Duration;

    use super::*;

    /// Longer than anything here takes; who is not told by then hangs.
    const PATIENCE: Duration = Duration::from_secs(120);

    // Goal: a flush counts only after those that began before it, and never beside a failed one, whose error all others give. Method:
    // of two that overlap the later returns first; the earlier one is held up, then ends well or not. Also the other way round.
    #[test]
    fn a_flush_waits_for_those_before_it() {
        for (earlier_ends_well, beside) in
            [(true, Beside::Earlier), (false, Beside::Earlier), (true, Beside::All), (false, Beside::All)]
        {
            let flushes = Flushes::default();
            let (go, gate) = channel::<()>();
            let (began, begins) = channel::<()>();
            let (told, tell) = channel();
            let text = |result: Result<(), EngineError>| result.map_err(|error| error.to_string());
            let expected =
                if earlier_ends_well { Ok(()) } else { Err(EngineError::Refused("injected".into())) };
            let injected = expected.clone();
            thread::scope(|scope| {
                let flushes = &flushes;
                let first = scope.spawn(move || {
                    flushes.run(Beside::Earlier, || {
                        began.send(()).expect("the test listens");
                        gate.recv().expect("the test sends");
                        injected
                    })
                });
                begins.recv().expect("the first begins");
                scope.spawn(move || {
                    told.send(text(flushes.run(beside, || Ok(())))).expect("the test listens")
                });
                let early = tell.recv_timeout(Duration::from_millis(50));
                assert!(early.is_err(), "it was believed while an earlier one ran");
                go.send(()).expect("the first waits");
                assert_eq!(text(first.join().expect("no panic")), text(expected.clone()));
                assert_eq!(tell.recv().expect("it ends"), text(expected.clone()));
            });
            assert_eq!(text(flushes.run(Beside::Earlier, || Ok(()))), text(expected));
        }
    }

    // Goal: a commit's flush does not wait for later ones, so that a chain of them ends; a checkpoint's does. Method: a
    // later one is held up while an earlier one returns.
    #[test]
    fn only_who_asks_waits_for_later_ones() {
        for beside in [Beside::Earlier, Beside::All] {
            let flushes = Flushes::default();
            let (go, gate) = channel::<()>();
            let (began, begins) = channel::<()>();
            let (end, ending) = channel::<()>();
            let (told, tell) = channel();
            thread::scope(|scope| {
                let flushes = &flushes;
                let (first_began, first_begins) = channel::<()>();
                scope.spawn(move || {
                    let result = flushes.run(beside, || {
                        first_began.send(()).expect("the test listens");
                        ending.recv().expect("the test sends");
                        Ok(())
                    });
                    told.send(result.is_ok()).expect("the test listens");
                });
                first_begins.recv().expect("the first begins");
                scope.spawn(move || {
                    flushes.run(Beside::Earlier, || {
                        began.send(()).expect("the test listens");
                        gate.recv().expect("the test sends");
                        Ok(())
                    })
                });
                begins.recv().expect("the second begins");
                end.send(()).expect("the first waits");
                // Who waits for nobody is told while the second still runs, however slow the machine is.
                let early = tell.recv_timeout(match beside {
                    Beside::Earlier => PATIENCE,
                    Beside::All => Duration::from_millis(50),
                });
                go.send(()).expect("the second waits");
                assert_eq!(early.ok(), (beside == Beside::Earlier).then_some(true));
                assert!(beside == Beside::Earlier || tell.recv().expect("it ends"));
            });
        }
    }

    // Goal: a flush that panics has failed, and keeps nobody waiting. Method: one panics while a later one, which has returned,
    // waits for it.
    #[test]
    fn a_flush_that_panics_has_failed() {
        let flushes = Flushes::default();
        let (go, gate) = channel::<()>();
        let (began, begins) = channel::<()>();
        let (told, tell) = channel();
        thread::scope(|scope| {
            let flushes = &flushes;
            let first = scope.spawn(move || {
                let flush = || {
                    began.send(()).expect("the test listens");
                    gate.recv().expect("the test sends");
                    panic!("planted")
                };
                catch_unwind(AssertUnwindSafe(|| flushes.run(Beside::Earlier, flush).is_ok()))
            });
            begins.recv().expect("the first begins");
            scope.spawn(move || {
                told.send(flushes.run(Beside::Earlier, || Ok(())).is_ok()).expect("the test listens")
            });
            go.send(()).expect("the first waits");
            assert!(first.join().expect("caught").is_err());
            assert!(!tell.recv_timeout(PATIENCE).expect("it ends"));
        });
        assert!(flushes.run(Beside::Earlier, || Ok(())).is_err());
    }
}
