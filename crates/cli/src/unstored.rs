//! What programs have changed through mmap and what could not be stored is tried again when there is more room than there was, without
//! anybody's asking: the only copy is in the memory of the mount, and a program that has heard of it may have ended long ago.

use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use varve_mount::Outside;

use crate::current::Current;

/// Between two looks, as long as there is something.
const PAUSE: Duration = Duration::from_secs(5);
/// Where there is so much more room than there was, in bytes, a try may be worth it: the first page of a file needs some blocks.
const MORE_BYTES: u64 = 64 << 10;
/// Between two tries otherwise, at first and at most: on a full pool each refusal costs a checkpoint.
const PAUSE_OTHERWISE: (Duration, Duration) = (Duration::from_secs(60), Duration::from_secs(1000));

/// Tries from now on, on a thread of its own, until the mount ends.
pub fn watch(current: &Arc<Current>, outside: &Outside) {
    let (current, outside) = (Arc::downgrade(current), outside.clone());
    let watching = thread::Builder::new().name("unstored".into()).spawn(move || {
        loop {
            outside.wait_for_unstored();
            if store_all(&current, &outside).is_none() {
                return;
            }
        }
    });
    if let Err(error) = watching {
        tracing::warn!(
            "what cannot be stored of changes through mmap is tried again by syncs alone: {error}"
        );
    }
}

/// Tries until there is nothing left. `None`: the mount is ending, which does it itself, or a bug was hit.
fn store_all(current: &Weak<Current>, outside: &Outside) -> Option<()> {
    let mut tries = Tries::default();
    while outside.unstored().is_some() {
        thread::sleep(PAUSE);
        let current = current.upgrade()?;
        // Before the try: what comes free during it is room for those that were refused first.
        let free_bytes = current.with(|filesystem| filesystem.space().free_bytes);
        if tries.is_due(outside.unstored_lacks(), free_bytes, Instant::now()) {
            let _changing = current.begin_change().ok()?;
            current.store_unstored(outside)?;
        }
    }
    tracing::info!(
        "all that was changed through mmap and could not be stored is stored now, written over or gone"
    );
    Some(())
}

/// When it is worth to try again.
#[derive(Default)]
struct Tries {
    last: Option<Try>,
}

struct Try {
    at: Instant,
    /// The least room that there was at it or since.
    least_bytes: u64,
    /// To the next one where there is hardly more.
    pause: Duration,
}

impl Tries {
    /// Whether to try now, which is taken for done then. What is missing is space, or something else ([`Outside::unstored_lacks`]).
    fn is_due(&mut self, (space, other): (bool, bool), free_bytes: u64, now: Instant) -> bool {
        if !space && !other {
            return false;
        }
        let (first, longest) = PAUSE_OTHERWISE;
        let pause = match &mut self.last {
            None => first,
            Some(last) => {
                last.least_bytes = last.least_bytes.min(free_bytes);
                let is_long_ago = now.duration_since(last.at) >= last.pause;
                if space && free_bytes >= last.least_bytes.saturating_add(MORE_BYTES) {
                    first
                } else if is_long_ago && (other || free_bytes > last.least_bytes) {
                    (last.pause * 2).min(longest)
                } else {
                    return false;
                }
            }
        };
        self.last = Some(Try { at: now, least_bytes: free_bytes, pause });
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Goal: where room is missing a try comes with enough more of it than at the last one or at any time since; with a little more, and where it is
    // something else, now and then, more and more seldom; where nothing is kept never. Method: one step after the other.
    #[test]
    fn tries_when_there_is_more_room() {
        let (space, other, both, nothing) = ((true, false), (false, true), (true, true), (false, false));
        let begun = Instant::now();
        let mut tries = Tries::default();
        let mut is_due = |lacks, free_bytes, seconds| {
            tries.is_due(lacks, free_bytes, begun + Duration::from_secs(seconds))
        };
        assert!(!is_due(nothing, 1 << 30, 0));
        assert!(is_due(space, 8192, 0));
        assert!(!is_due(space, 8192, 1000), "as much as was not enough");
        assert!(!is_due(space, 0, 1005), "others took it");
        assert!(is_due(space, MORE_BYTES, 1010), "and some is back");
        // What a try itself moves is no reason for the next.
        assert!(!is_due(space, 0, 1015) && !is_due(space, 4096, 1020));
        assert!(is_due(space, 4096, 1070), "a little more, a minute later");
        assert!(!is_due(space, 8192, 1180) && is_due(space, 8192, 1190), "then two minutes");
        assert!(is_due(both, 8192 + MORE_BYTES, 1195));
        assert!(!is_due(other, 1 << 30, 1200) && is_due(other, 0, 1255));
        assert!(!is_due(other, 0, 1370) && is_due(other, 0, 1375));
        let mut last = 1375;
        for _ in 0..10 {
            last += 1000;
            assert!(is_due(other, 0, last), "never more seldom than that");
        }
    }
}
