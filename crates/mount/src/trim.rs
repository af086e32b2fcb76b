//! fstrim(8): an ioctl that takes as long as the device does. It has a thread of its own, so that requests are answered
//! meanwhile, however few threads there are for them; and it is the one request that an interruption ends.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;
use varve_fs::Caller;

use crate::Verbs;
use crate::dispatch::Adapter;
use crate::kernel::abi::{self, FstrimRange};
use crate::kernel::reply::Reply;

/// Trims under way.
#[derive(Default)]
pub(crate) struct Trims(Arc<Running>);

#[derive(Default)]
struct Running {
    lists: Mutex<Lists>,
    fewer: Condvar,
}

#[derive(Default)]
struct Lists {
    trims: Vec<Trim>,
    /// Requests that were interrupted before, or instead of, a trim of that number: another thread may have been quicker than the one
    /// that has it. The kernel says it once.
    early: VecDeque<u64>,
}

/// So many of these are remembered.
const EARLY_MAX: usize = 64;

/// By the number of the request, and whether nobody waits for it any more.
struct Trim {
    unique: u64,
    over: Arc<AtomicBool>,
}

impl Running {
    /// This one is over.
    fn remove(&self, unique: u64) {
        self.lists.lock().trims.retain(|trim| trim.unique != unique);
        self.fewer.notify_all();
    }
}

impl Lists {
    fn add(&mut self, unique: u64) -> Arc<AtomicBool> {
        let over = Arc::new(AtomicBool::new(self.early.contains(&unique)));
        self.trims.push(Trim { unique, over: over.clone() });
        over
    }
}

impl Trims {
    /// Whoever waits for this request wants it to end.
    pub(crate) fn interrupt(&self, unique: u64) {
        let mut lists = self.0.lists.lock();
        match lists.trims.iter().find(|trim| trim.unique == unique) {
            Some(trim) => trim.over.store(true, Relaxed),
            None => {
                if lists.early.len() == EARLY_MAX {
                    lists.early.pop_front();
                }
                lists.early.push_back(unique);
            }
        }
    }

    /// The mount is gone: they end, and are waited for.
    pub(crate) fn end(&self) {
        let mut lists = self.0.lists.lock();
        lists.trims.iter().for_each(|trim| trim.over.store(true, Relaxed));
        while !lists.trims.is_empty() {
            self.0.fewer.wait(&mut lists);
        }
    }
}

impl<V: Verbs> Adapter<V> {
    /// FITRIM. The kernel asks nothing of who calls it: root alone may. What was trimmed before an interruption counts.
    pub(crate) fn trim(&self, who: Caller, unique: u64, data: &[u8], out_bytes: u32, reply: Reply) {
        if who.uid != 0 {
            return reply.error(Errno::PERM);
        }
        let Some(asked) = abi::ioctl_trim(data) else { return reply.error(Errno::INVAL) };
        let over = self.trims.0.lists.lock().add(unique);
        let (verbs, health, trims) = (self.verbs.clone(), self.health.clone(), self.trims.0.clone());
        let work = move || {
            varve_device::unpin_thread();
            let range = asked.start..asked.start.saturating_add(asked.len);
            let trim = || verbs.trim(range, asked.minimum, &|| !over.load(Relaxed));
            let done = catch_unwind(AssertUnwindSafe(trim));
            trims.remove(unique);
            match done {
                Ok(Ok(done)) if !done.is_supported => reply.error(Errno::OPNOTSUPP),
                // Nothing of that is in the pool.
                Ok(Ok(done)) if asked.start >= done.end_bytes => reply.error(Errno::INVAL),
                Ok(Ok(done)) => reply.ioctl(&FstrimRange { len: done.discarded_bytes, ..asked }, out_bytes),
                Ok(Err(error)) => {
                    let errno = Errno::from_raw_os_error(error.errno());
                    if errno == Errno::IO {
                        health.note_error("fstrim", abi::ROOT, &error);
                    }
                    reply.error(errno);
                }
                // The reply answers EIO when it is dropped.
                Err(_) => health.note_panic("fstrim"),
            }
        };
        // Without a thread the reply goes with the work, and answers EIO.
        if let Err(error) = thread::Builder::new().name("varve-trim".into()).spawn(work) {
            self.trims.0.remove(unique);
            tracing::error!("no thread for fstrim: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Goal: an interruption is heard of, also by a trim that another thread begins a moment later; one of something else is not. Method:
    // both orders, and more interruptions than are remembered.
    #[test]
    fn interruptions_are_heard_of() {
        let trims = Trims::default();
        let begin = |unique: u64| trims.0.lists.lock().add(unique);
        let (first, other) = (begin(2), begin(4));
        trims.interrupt(2);
        assert!(first.load(Relaxed) && !other.load(Relaxed));
        trims.interrupt(6);
        assert!(begin(6).load(Relaxed) && !begin(8).load(Relaxed));
        (100..100 + EARLY_MAX as u64).for_each(|unique| trims.interrupt(unique));
        assert_eq!(trims.0.lists.lock().early.len(), EARLY_MAX);
        assert!(begin(100).load(Relaxed));
    }
}
