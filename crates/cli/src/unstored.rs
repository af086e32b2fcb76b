//! What programs have changed through mmap and what could not be stored is tried again when there is more room than there was, without
//! anybody's asking: the only copy is in the memory of the mount, and a program that has heard of it may have ended long ago.

use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use varve_mount::Outside;

use crate::current::Current;
use crate::names::in_words;

/// Between two looks, as long as there is something.
const PAUSE: Duration = Duration::from_secs(5);
/// Between two tries where it is not room that is missing.
const PAUSE_OTHERWISE: Duration = Duration::from_secs(60);

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
    let mut told = false;
    loop {
        let Some((files, ino, error)) = outside.unstored() else {
            tracing::info!(
                "what was changed through mmap and could not be stored is stored now, or gone with its file"
            );
            return Some(());
        };
        if !told {
            told = true;
            tracing::warn!(
                "what was changed through mmap in {files} files (inode {} is one) cannot be stored: {}; it is kept in memory and tried \
                 again, and each sync of these files fails until then",
                ino.0,
                in_words(&error)
            );
        }
        thread::sleep(PAUSE);
        let current = current.upgrade()?;
        let free = || current.with(|filesystem| filesystem.space().free_bytes);
        let lacks_room = matches!(error.raw_os_error(), Some(28 | 122));
        if !tries.is_due(lacks_room.then(&free), Instant::now()) {
            continue;
        }
        let changing = current.begin_change().ok()?;
        current.store_unstored(outside)?;
        drop(changing);
        tries.note(free(), Instant::now());
    }
}

/// When it is worth to try again.
#[derive(Default)]
struct Tries {
    /// The last one, and the least room that there was at it or since, in bytes.
    last: Option<(Instant, u64)>,
}

impl Tries {
    /// Whether to try now; `free_bytes` is there where room is what is missing.
    fn is_due(&mut self, free_bytes: Option<u64>, now: Instant) -> bool {
        match (&mut self.last, free_bytes) {
            (None, _) => true,
            (Some((_, least)), Some(free)) => {
                let is_more = free > *least;
                *least = free.min(*least);
                is_more
            }
            (Some((at, _)), None) => now.duration_since(*at) >= PAUSE_OTHERWISE,
        }
    }

    fn note(&mut self, free_bytes: u64, now: Instant) {
        self.last = Some((now, free_bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Goal: where room is missing nothing is tried until there is more of it than at the last try or at any time since; anything else is tried
    // now and then. Method: one step after the other.
    #[test]
    fn tries_when_there_is_more_room() {
        let begun = Instant::now();
        let after = |seconds| begun + Duration::from_secs(seconds);
        let mut tries = Tries::default();
        assert!(tries.is_due(Some(0), begun));
        tries.note(8192, begun);
        assert!(!tries.is_due(Some(8192), after(1000)), "as much as was not enough");
        assert!(!tries.is_due(Some(0), after(1005)), "others took it");
        assert!(tries.is_due(Some(4096), after(1010)), "and some is back");
        tries.note(0, after(1010));
        assert!(!tries.is_due(None, after(1069)));
        assert!(tries.is_due(None, after(1070)));
    }
}
