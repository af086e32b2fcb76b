//! What programs have stored through mmap and what could not be written: no space, or a device that fails.
//!
//! The kernel says so once to each file that is open, takes the pages for clean from then on, and never sends them again. It goes on
//! showing them for as long as it has them. So the next msync would find nothing to do and say that all is well, and so would `varve sync`,
//! while the pool has something else there. As long as that is so, every sync of the file is refused here, with the error the write had: until
//! what was lost has been written again or cut off, or the kernel has thrown the file away, pages and all, and reads what is stored.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use parking_lot::Mutex;
use rustix::io::Errno;

/// Ranges kept of a file. Of one with more, what lies between the two nearest counts as lost, too.
const RANGES_MAX: usize = 64;

/// The files of which the kernel shows what is not stored.
#[derive(Default, Debug)]
pub(crate) struct Unstored {
    /// How many there are: nearly always none.
    files_count: AtomicUsize,
    files: Mutex<HashMap<u64, File>>,
}

#[derive(Debug)]
struct File {
    error: Errno,
    /// In bytes, from and to; ascending, apart from each other.
    ranges: Vec<(u64, u64)>,
}

impl Unstored {
    /// `len` bytes at `offset` of a file could not be written.
    pub(crate) fn note(&self, ino: u64, (offset, len): (u64, u64), error: Errno) {
        let mut files = self.files.lock();
        let file = files.entry(ino).or_insert(File { error, ranges: Vec::new() });
        file.error = error;
        file.ranges.push((offset, offset.saturating_add(len)));
        file.ranges.sort_unstable();
        file.ranges.dedup_by(|next, last| {
            let touches = next.0 <= last.1;
            if touches {
                last.1 = last.1.max(next.1);
            }
            touches
        });
        if file.ranges.len() > RANGES_MAX {
            let gap = |at: &usize| file.ranges[at + 1].0 - file.ranges[*at].1;
            if let Some(at) = (0..RANGES_MAX).min_by_key(gap) {
                file.ranges[at].1 = file.ranges[at + 1].1;
                file.ranges.remove(at + 1);
            }
        }
        self.files_count.store(files.len(), SeqCst);
    }

    /// What the kernel has of `len` bytes at `offset` is stored now, or is not shown any more.
    pub(crate) fn settled(&self, ino: u64, (offset, len): (u64, u64)) {
        if self.files_count.load(SeqCst) == 0 {
            return;
        }
        let mut files = self.files.lock();
        if let Some(file) = files.get_mut(&ino) {
            let end = offset.saturating_add(len);
            let cut = |&(from, to): &(u64, u64)| [(from, to.min(offset)), (from.max(end), to)];
            file.ranges = file.ranges.iter().flat_map(cut).filter(|(from, to)| from < to).collect();
            if file.ranges.is_empty() {
                files.remove(&ino);
            }
        }
        self.files_count.store(files.len(), SeqCst);
    }

    /// The error of what the kernel shows of a file and the pool has not.
    pub(crate) fn error(&self, ino: u64) -> Option<Errno> {
        if self.files_count.load(SeqCst) == 0 {
            return None;
        }
        self.files.lock().get(&ino).map(|file| file.error)
    }

    /// How many files there are; the number of one, and its error.
    pub(crate) fn any(&self) -> Option<(usize, u64, Errno)> {
        let files = self.files.lock();
        files.iter().next().map(|(ino, file)| (files.len(), *ino, file.error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    proptest::proptest! {
        // Goal: a file counts until each byte has been settled, in whatever pieces, and no longer. Method: beside a list of bytes.
        #[test]
        fn beside_a_list_of_bytes(
            steps in proptest::collection::vec((proptest::bool::weighted(0.4), 0u64..190, 1u64..10), 1..300)
        ) {
            let (unstored, mut lost) = (Unstored::default(), [false; 200]);
            for (noted, offset, len) in steps {
                match noted {
                    true => unstored.note(7, (offset, len), Errno::NOSPC),
                    false => unstored.settled(7, (offset, len)),
                }
                lost[offset as usize..(offset + len) as usize].fill(noted);
                assert_eq!(unstored.error(7), lost.contains(&true).then_some(Errno::NOSPC));
                assert_eq!(unstored.any().is_some(), lost.contains(&true));
            }
        }
    }

    // Goal: of a file with very many ranges a bounded number is kept, and it counts until all has been settled. Method: a thousand.
    #[test]
    fn many_ranges() {
        let unstored = Unstored::default();
        (0..1000).for_each(|at| unstored.note(7, (at * 10, 1), Errno::IO));
        assert_eq!((unstored.error(7), unstored.error(8)), (Some(Errno::IO), None));
        assert_eq!(unstored.files.lock()[&7].ranges.len(), RANGES_MAX);
        (0..1000).for_each(|at| unstored.settled(7, (at * 10, 9)));
        assert!(unstored.error(7).is_some(), "what lies between counts, too");
        unstored.settled(7, (0, u64::MAX));
        assert_eq!((unstored.error(7), unstored.any()), (None, None));
    }
}
