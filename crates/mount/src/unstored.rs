//! What programs have stored through mmap and what could not be written: no space, or a device that fails.
//!
//! The kernel says so once to each file that is open, takes the pages for clean from then on, and never sends them again. It goes on
//! showing them for as long as it has them. So the next msync would find nothing to do and say that all is well, and so would `varve sync`,
//! while the pool has something else there. So the bytes are kept here, and each sync of the file tries to store them again; while it
//! cannot it is refused, with the error the write had. That ends, too, when what was lost has been written again or cut off, or when
//! the kernel has thrown the file away, pages and all, and reads what is stored.
//!
//! Of a page only one write is under way, and it is noted here before the kernel is told: the next one finds it. So who writes what is kept
//! does it under the file's lock ([`Unstored::writing`]), and so does whoever writes to the file as long as there is anything: nothing old is put
//! over something new.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use parking_lot::{Mutex, MutexGuard};
use rustix::io::Errno;

/// Ranges kept of a file. Of one with more, what lies between the two nearest counts as lost, too.
const RANGES_MAX: usize = 4096;
/// Bytes kept of all files. What is beyond is known to be lost, and can only be stored again by who has it.
const KEPT_BYTES_MAX: usize = 64 << 20;
/// Locks, each for many files.
const LOCKS: usize = 16;

/// The files of which the kernel shows what is not stored.
#[derive(Default, Debug)]
pub(crate) struct Unstored {
    /// How many there are: nearly always none.
    files_count: AtomicUsize,
    files: Mutex<Files>,
    writing: [Mutex<()>; LOCKS],
}

#[derive(Default, Debug)]
struct Files {
    by_ino: HashMap<u64, File>,
    kept_bytes: usize,
}

#[derive(Debug)]
struct File {
    error: Errno,
    /// In bytes, from and to; ascending, apart from each other.
    ranges: Vec<(u64, u64)>,
    /// What was to be there, as far as it is kept, by its offset; apart from each other.
    kept: BTreeMap<u64, Vec<u8>>,
}

impl Unstored {
    /// To be held by who writes to the file, until [`Unstored::settled`]. `None`: there is no need.
    pub(crate) fn writing(&self, ino: u64) -> Option<MutexGuard<'_, ()>> {
        (self.files_count.load(SeqCst) > 0).then(|| self.writing[ino as usize % LOCKS].lock())
    }

    /// `bytes` at `offset` of a file could not be written.
    pub(crate) fn note(&self, ino: u64, offset: u64, bytes: &[u8], error: Errno) {
        let end = offset.saturating_add(bytes.len() as u64);
        let mut files = self.files.lock();
        let files = &mut *files;
        let new = || File { error, ranges: Vec::new(), kept: BTreeMap::new() };
        let file = files.by_ino.entry(ino).or_insert_with(new);
        file.error = error;
        files.kept_bytes -= file.drop_kept(offset, end);
        if files.kept_bytes + bytes.len() <= KEPT_BYTES_MAX {
            files.kept_bytes += bytes.len();
            file.kept.insert(offset, bytes.to_vec());
        }
        file.ranges.push((offset, end));
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
        self.files_count.store(files.by_ino.len(), SeqCst);
    }

    /// What the kernel has of `len` bytes at `offset` is stored now, or is not shown any more.
    pub(crate) fn settled(&self, ino: u64, (offset, len): (u64, u64)) {
        if self.files_count.load(SeqCst) == 0 {
            return;
        }
        let mut files = self.files.lock();
        let files = &mut *files;
        if let Some(file) = files.by_ino.get_mut(&ino) {
            let end = offset.saturating_add(len);
            let cut = |&(from, to): &(u64, u64)| [(from, to.min(offset)), (from.max(end), to)];
            file.ranges = file.ranges.iter().flat_map(cut).filter(|(from, to)| from < to).collect();
            files.kept_bytes -= file.drop_kept(offset, end);
            if file.ranges.is_empty() {
                files.by_ino.remove(&ino);
            }
        }
        self.files_count.store(files.by_ino.len(), SeqCst);
    }

    /// Has what is kept of a file stored by `write` (at an offset), until that is refused. Whether anything was.
    pub(crate) fn store(&self, ino: u64, mut write: impl FnMut(u64, &[u8]) -> Result<(), Errno>) -> bool {
        let mut stored = false;
        let Some(_writing) = self.writing(ino) else { return stored };
        loop {
            let next = {
                let files = self.files.lock();
                let kept = files.by_ino.get(&ino).and_then(|file| file.kept.first_key_value());
                kept.map(|(offset, bytes)| (*offset, bytes.clone()))
            };
            let Some((offset, bytes)) = next else { return stored };
            match write(offset, &bytes) {
                Ok(()) => self.settled(ino, (offset, bytes.len() as u64)),
                Err(error) => {
                    if let Some(file) = self.files.lock().by_ino.get_mut(&ino) {
                        file.error = error;
                    }
                    return stored;
                }
            }
            stored = true;
        }
    }

    /// The error of what the kernel shows of a file and the pool has not.
    pub(crate) fn error(&self, ino: u64) -> Option<Errno> {
        if self.files_count.load(SeqCst) == 0 {
            return None;
        }
        self.files.lock().by_ino.get(&ino).map(|file| file.error)
    }

    /// All such files.
    pub(crate) fn files(&self) -> Vec<u64> {
        self.files.lock().by_ino.keys().copied().collect()
    }

    /// How many files there are; the number of one, and its error.
    pub(crate) fn any(&self) -> Option<(usize, u64, Errno)> {
        let files = self.files.lock();
        files.by_ino.iter().next().map(|(ino, file)| (files.by_ino.len(), *ino, file.error))
    }
}

impl File {
    /// Keeps nothing of [`from`, `to`) any more; gives how many bytes that were.
    fn drop_kept(&mut self, from: u64, to: u64) -> usize {
        let mut dropped = 0;
        let end = |(offset, bytes): (&u64, &Vec<u8>)| offset + bytes.len() as u64;
        let before = self.kept.range(..from).next_back().filter(|piece| end(*piece) > from);
        let first = before.map_or(from, |(offset, _)| *offset);
        let touched: Vec<u64> = self.kept.range(first..to.max(first)).map(|(offset, _)| *offset).collect();
        for offset in touched {
            let Some(mut bytes) = self.kept.remove(&offset) else { continue };
            dropped += bytes.len();
            let behind = to.saturating_sub(offset).min(bytes.len() as u64) as usize;
            let tail = bytes.split_off(behind);
            bytes.truncate(from.saturating_sub(offset) as usize);
            for (offset, left) in [(offset, bytes), (to, tail)] {
                if !left.is_empty() {
                    dropped -= left.len();
                    self.kept.insert(offset, left);
                }
            }
        }
        dropped
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    proptest::proptest! {
        // Goal: a file counts until each byte has been settled, in whatever pieces, and no longer; what is kept is what was to be there, all
        // of it and nothing that has been settled. Method: beside a list of bytes.
        #[test]
        fn beside_a_list_of_bytes(
            steps in proptest::collection::vec((0..5, 0u64..190, 1u64..10, 1..100u8), 1..300)
        ) {
            let (unstored, mut lost) = (Unstored::default(), [0; 200]);
            for (what, offset, len, byte) in steps {
                let range = offset as usize..(offset + len) as usize;
                match what {
                    0 | 1 => {
                        unstored.note(7, offset, &vec![byte; len as usize], Errno::NOSPC);
                        lost[range].fill(byte);
                    }
                    2 | 3 => {
                        unstored.settled(7, (offset, len));
                        lost[range].fill(0);
                    }
                    _ => {
                        // So many pieces are stored, and then there is no space.
                        let mut pieces = 0;
                        unstored.store(7, |offset, bytes| {
                            let range = offset as usize..offset as usize + bytes.len();
                            assert_eq!(bytes, &lost[range.clone()]);
                            pieces += 1;
                            if pieces > len { return Err(Errno::NOSPC) }
                            lost[range].fill(0);
                            Ok(())
                        });
                    }
                }
                let any = lost.iter().any(|byte| *byte > 0);
                assert_eq!(unstored.error(7), any.then_some(Errno::NOSPC));
                assert_eq!(unstored.any().is_some(), any);
                let files = unstored.files.lock();
                assert_eq!(files.kept_bytes, lost.iter().filter(|byte| **byte > 0).count());
            }
        }
    }

    // Goal: of a file with very many ranges a bounded number is kept, and it counts until all has been settled; so do bytes beyond those
    // that are kept. Method: more ranges than that; more bytes.
    #[test]
    fn many_ranges_and_bytes() {
        let unstored = Unstored::default();
        (0..5000).for_each(|at| unstored.note(7, at * 10, &[1], Errno::IO));
        assert_eq!((unstored.error(7), unstored.error(8)), (Some(Errno::IO), None));
        assert_eq!(unstored.files.lock().by_ino[&7].ranges.len(), RANGES_MAX);
        assert!(
            unstored.store(7, |_, _| Ok(())) && unstored.error(7).is_some(),
            "what lies between counts, too"
        );
        unstored.settled(7, (0, u64::MAX));
        assert_eq!((unstored.error(7), unstored.any()), (None, None));
        let bytes = vec![1; 1 << 20];
        (0..100).for_each(|at| unstored.note(7, at << 20, &bytes, Errno::NOSPC));
        assert_eq!(unstored.files.lock().kept_bytes, KEPT_BYTES_MAX);
        let mut stored = 0;
        unstored.store(7, |_, bytes| {
            stored += bytes.len();
            Ok(())
        });
        assert_eq!((stored, unstored.error(7)), (KEPT_BYTES_MAX, Some(Errno::NOSPC)));
        unstored.settled(7, (64 << 20, 36 << 20));
        assert_eq!((unstored.error(7), unstored.files.lock().kept_bytes), (None, 0));
    }
}
