//! Where threads sleep until somebody has changed what they wait for, and wakes many of them with one system call.

use std::num::NonZeroU32;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{AcqRel, Acquire};
use std::time::Duration;

use rustix::thread::futex::{Flags, wait_bitset, wake_bitset};
use rustix::time::{ClockId, Timespec, clock_gettime};

/// An event count (Reed and Kanodia, "Synchronization with eventcounts and sequencers", 1979) over a futex. Who waits looks
/// at the count first, then at what is waited for, and sleeps only if the count is still the same; who changes
/// that adds one and wakes. Sleepers are in groups, any of 32, so that not everybody is woken by everything.
///
/// One wake-up of all is one system call, after which the caller may lose its processor once: waking one after the other, a
/// thread that wakes ten loses it up to ten times, and the last of them waits for all that the others do.
#[derive(Debug, Default)]
pub struct EventCount(AtomicU32);

/// The count as somebody has seen it.
#[derive(Debug, Clone, Copy)]
pub struct Seen(u32);

impl EventCount {
    /// The count. Whoever waits asks for it before looking at what is waited for.
    #[must_use]
    pub fn seen(&self) -> Seen {
        Seen(self.0.load(Acquire))
    }

    /// Sleeps until somebody wakes any of `groups` (a bit each), or `timeout` has passed. Returns at once if the count is not what
    /// was seen, and may return for no reason: look again. Without a group it does not sleep.
    pub fn wait(&self, seen: Seen, groups: u32, timeout: Option<Duration>) {
        let Some(groups) = NonZeroU32::new(groups) else { return };
        // The kernel takes the moment, not the time.
        let until = timeout.and_then(|timeout| {
            let now = Duration::try_from(clock_gettime(ClockId::Monotonic)).ok()?;
            Timespec::try_from(now.checked_add(timeout)?).ok()
        });
        // Woken, too late, interrupted, or the count has moved: the caller looks again whatever it was.
        let _ = wait_bitset(&self.0, Flags::PRIVATE, seen.0, until.as_ref(), groups);
    }

    /// Adds one, and wakes whoever sleeps in any of `groups`. What they wait for has been changed before.
    pub fn wake(&self, groups: u32) {
        self.0.fetch_add(1, AcqRel);
        if let Some(groups) = NonZeroU32::new(groups) {
            // It can only fail for an address that is none.
            let _ = wake_bitset(&self.0, Flags::PRIVATE, i32::MAX as u32, groups);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::sync::atomic::Ordering::SeqCst;
    use std::time::Instant;

    use super::*;

    // Goal: who is in a group that is woken wakes, others sleep on, and nobody sleeps who has seen an older count. Method: four threads
    // in two groups that note when they wake for good; a wait with an old count and one that ends by itself, timed.
    #[test]
    fn groups_wake_together() {
        let count = EventCount::default();
        let open: [AtomicBool; 2] = Default::default();
        let woken: [AtomicU32; 2] = Default::default();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (count, open, woken) = (&count, &open[thread % 2], &woken[thread % 2]);
                scope.spawn(move || {
                    loop {
                        let seen = count.seen();
                        if open.load(SeqCst) {
                            break;
                        }
                        count.wait(seen, 1 << (thread % 2), None);
                    }
                    woken.fetch_add(1, SeqCst);
                });
            }
            for group in [1, 0] {
                std::thread::sleep(Duration::from_millis(20));
                open[group].store(true, SeqCst);
                count.wake(1 << group);
                while woken[group].load(SeqCst) < 2 {
                    std::thread::yield_now();
                }
                assert_eq!(woken[0].load(SeqCst), if group == 1 { 0 } else { 2 });
            }
        });
        let old = count.seen();
        count.wake(0);
        count.wait(old, 1, None);
        let begun = Instant::now();
        count.wait(count.seen(), 1, Some(Duration::from_millis(10)));
        assert!(begun.elapsed() >= Duration::from_millis(10));
    }
}
