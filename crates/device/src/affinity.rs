//! Threads that stay on one processor, and those that they start, which would stay there too.

use std::sync::OnceLock;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Where this process's threads may run: as it was when the first of them was pinned.
static EVERYWHERE: OnceLock<CpuSet> = OnceLock::new();

/// Keeps this thread on one processor, if the process may use it. Elsewhere everything works as well.
pub fn pin_thread(cpu: usize) {
    let Ok(allowed) = sched_getaffinity(None) else { return };
    let everywhere = *EVERYWHERE.get_or_init(|| allowed);
    if cpu < CpuSet::MAX_CPU && everywhere.is_set(cpu) {
        let mut here = CpuSet::new();
        here.set(cpu);
        let _ = sched_setaffinity(None, &here);
    }
}

/// For a thread that was started by one that is perhaps pinned: it may run wherever the process may.
pub fn unpin_thread() {
    if let Some(everywhere) = EVERYWHERE.get() {
        let _ = sched_setaffinity(None, everywhere);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Goal: a thread that a pinned one starts is free again when it asks to be, and so is one that was never pinned. Method: the
    // masks before and after.
    #[test]
    fn a_pinned_threads_child_is_free() {
        let before = sched_getaffinity(None).unwrap();
        let first = (0..CpuSet::MAX_CPU).find(|cpu| before.is_set(*cpu)).unwrap();
        std::thread::spawn(move || {
            pin_thread(first);
            assert_eq!(sched_getaffinity(None).unwrap().count(), 1);
            std::thread::spawn(move || {
                unpin_thread();
                assert_eq!(sched_getaffinity(None).unwrap().count(), before.count());
            })
            .join()
            .unwrap();
        })
        .join()
        .unwrap();
        unpin_thread();
        assert_eq!(sched_getaffinity(None).unwrap().count(), before.count());
    }
}
