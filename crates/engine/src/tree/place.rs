//! Where entries come into a leaf, so that a full one is split there.
//!
//! Keys often grow or fall at one place in the middle of a tree: of a segment of a file that is written and forked in turn,
//! the newest version's extents come in front of all others. Split in the middle, a leaf leaves half of itself behind
//! each time where nothing comes in any more. Split at the place, what lies beside it stays full, and what comes next
//! finds the room. (Splitting where a run of keys ends is old: Graefe, "Modern B-Tree Techniques", 2011, section 4.2; here
//! a run may also fall, or fall run by run.)
//!
//! Nothing of this is on disk: a leaf that was read knows of no place, and is split in the middle.
//!
//! A part of such a split may hold next to nothing, so hostile keys must not come by many of them cheaply: a quarter of what
//! the leaf holds must have come in at the place since it was last split or read ([`PAID_RATIO`]).

/// What came in at the place must be at least one part in so many of the leaf.
const PAID_RATIO: usize = 4;
/// A run of at most one part in so many of the leaf is followed by another one in front of it.
const SHORT_RATIO: usize = 8;

/// Where the last entries of a leaf came in.
#[derive(Clone, Copy, Default)]
pub(super) struct Place {
    /// The newest run: its first entry, and the one behind it. Both the same: there is none.
    low: u16,
    end: u16,
    /// Bytes that came in here; halved by each entry that came in elsewhere.
    bytes: u16,
}

impl Place {
    /// A new entry is at `at`, of so many bytes.
    pub(super) fn put(&mut self, at: usize, bytes: usize) {
        let at = at as u16;
        let run = self.low..self.end;
        if run.is_empty() || at < run.start || at > run.end {
            (self.low, self.end, self.bytes) = (at, at + 1, self.bytes / 2);
            return;
        }
        // In front of the run begins another.
        self.end = if at == run.start { at + 1 } else { run.end + 1 };
        self.bytes = self.bytes.saturating_add(bytes as u16);
    }

    /// The entry at `at`, of so many bytes, is gone.
    pub(super) fn removed(&mut self, at: usize, bytes: usize) {
        let at = at as u16;
        self.low -= u16::from(at < self.low);
        self.end -= u16::from(at < self.end);
        self.bytes = self.bytes.saturating_sub(bytes as u16);
    }

    /// An entry has become shorter by so many bytes: what it was when it came in is not there any more.
    pub(super) fn shrunk(&mut self, bytes: usize) {
        self.bytes = self.bytes.saturating_sub(bytes as u16);
    }

    /// Where to split a leaf of `len` entries, of `bytes_of(len)` bytes, at the place; `bytes_of` says how many bytes the first
    /// ones have. `None`: not enough has come in here. It may be 0 or `len`.
    pub(super) fn cut(&self, len: usize, bytes_of: &dyn Fn(usize) -> usize) -> Option<usize> {
        let all = bytes_of(len);
        let (low, end) = (usize::from(self.low), usize::from(self.end));
        if low == end || usize::from(self.bytes) * PAID_RATIO < all {
            return None;
        }
        let (before, upto) = (bytes_of(low), bytes_of(end));
        Some(if (upto - before) * SHORT_RATIO <= all {
            // The next run comes in front of this one. What lies in front of both is parted from them, once: its keys have less
            // in common with theirs than theirs have, and the leaves that are left behind would be shorter by it each time.
            if low == 0 { end } else { low }
        } else if end == len {
            // The run goes on, in the right part.
            end - 1
        } else {
            // The run goes on, in the left part.
            end
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Goal: what came in and did not stay pays for no split at the place. Method: a large entry beside many small ones splits the
    // leaf there; shortened, or gone, it does not.
    #[test]
    fn only_what_stays_pays() {
        let bytes_of = |entries: usize| entries * 40;
        let mut place = Place::default();
        place.put(50, 40);
        place.put(51, 1800);
        assert!(place.cut(100, &bytes_of).is_some());
        let mut gone = place;
        gone.removed(51, 1800);
        assert!(gone.cut(100, &bytes_of).is_none());
        place.shrunk(1790);
        assert!(place.cut(100, &bytes_of).is_none());
    }
}
