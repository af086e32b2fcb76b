//! What programs have stored through mmap and what could not be written: no space, or a device that fails.
//!
//! The kernel says so once to each file that is open, takes the pages for clean from then on, and never sends them again. It goes on
//! showing them for as long as it has them. So the next msync would find nothing to do and say that all is well, and so would `varve sync`,
//! while the pool has something else there. So the bytes are kept here, and each sync of the file tries to store them again; while it
//! cannot it is refused, with the error the write had. That ends, too, when what was lost has been written again or cut off. Who reads the
//! file meanwhile is shown what is kept, so that it does not matter which pages the kernel has let go of.
//!
//! Of a page only one write is under way, and it is noted here before the kernel is told: the next one finds it. So who writes what is kept
//! does it under the file's lock ([`Unstored::writing`]), and so does whoever writes to the file or reads it as long as there is anything: nothing old
//! is put over something new, or shown.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};

use parking_lot::{Condvar, Mutex, MutexGuard};
use rustix::io::Errno;
use varve_fs::{InodeId, subvolume_root};

/// Ranges known of a file of which the bytes are not kept. Of one with more, what lies between the two nearest counts as lost, too.
const RANGES_MAX: usize = 4096;
/// Bytes kept of all files. Of what is beyond the place is known, and it can only be stored again by who has it.
const KEPT_BYTES_MAX: usize = 64 << 20;
/// Locks, each for many files.
const LOCKS: usize = 16;

/// The files of which the kernel shows what is not stored.
#[derive(Default, Debug)]
pub(crate) struct Unstored {
    /// How many there are: nearly always none.
    files_count: AtomicUsize,
    files: Mutex<Files>,
    /// There is one where there was none.
    noted: Condvar,
    writing: [Stripe; LOCKS],
}

/// The lock of many files.
#[derive(Default, Debug)]
struct Stripe {
    lock: Mutex<()>,
    /// The one of them that is being stored by who has the lock, also when it has been settled meanwhile. 0: none.
    storing: AtomicU64,
}

/// While it is there a file is being stored.
struct Storing<'s>(&'s AtomicU64);

impl Drop for Storing<'_> {
    fn drop(&mut self) {
        self.0.store(0, SeqCst);
    }
}

#[derive(Default, Debug)]
struct Files {
    by_ino: HashMap<u64, File>,
    kept_bytes: usize,
}

#[derive(Debug)]
struct File {
    error: Errno,
    /// What is kept, by its offset; apart from each other.
    kept: BTreeMap<u64, Vec<u8>>,
    /// Of what is not, in bytes, from and to; ascending, apart from each other.
    ranges: Vec<(u64, u64)>,
}

impl Unstored {
    /// To be held by who writes to the file, until [`Unstored::settled`], or reads it, until [`Unstored::show`]. `None`: there is no need.
    pub(crate) fn writing(&self, ino: u64) -> Option<MutexGuard<'_, ()>> {
        // Nothing is noted of a page of the kernel's while another write, or a read, of it is under way. What goes past its cache may have
        // settled the file while it is being stored.
        let stripe = &self.writing[ino as usize % LOCKS];
        let is_needed = || self.error(ino).is_some() || stripe.storing.load(SeqCst) == ino;
        // Who has waited looks again: else each that holds it would be the reason for the next.
        is_needed().then(|| stripe.lock.lock()).filter(|_| is_needed())
    }

    /// `bytes` at `offset` of a file could not be written. Whether there was nothing of that file before.
    pub(crate) fn note(&self, ino: u64, offset: u64, bytes: &[u8], error: Errno) -> bool {
        let end = offset.saturating_add(bytes.len() as u64);
        let mut files = self.files.lock();
        let files = &mut *files;
        if files.by_ino.is_empty() {
            self.noted.notify_all();
        }
        let is_new = !files.by_ino.contains_key(&ino);
        let new = || File { error, ranges: Vec::new(), kept: BTreeMap::new() };
        let file = files.by_ino.entry(ino).or_insert_with(new);
        file.error = error;
        files.kept_bytes -= file.forget(offset, end);
        if files.kept_bytes + bytes.len() <= KEPT_BYTES_MAX {
            files.kept_bytes += bytes.len();
            file.kept.insert(offset, bytes.to_vec());
        } else {
            file.lose(offset, end);
        }
        self.files_count.store(files.by_ino.len(), SeqCst);
        is_new
    }

    /// What the kernel has of `len` bytes at `offset` is stored now, or is not shown any more.
    pub(crate) fn settled(&self, ino: u64, (offset, len): (u64, u64)) {
        if self.files_count.load(SeqCst) == 0 {
            return;
        }
        let mut files = self.files.lock();
        let files = &mut *files;
        if let Some(file) = files.by_ino.get_mut(&ino) {
            files.kept_bytes -= file.forget(offset, offset.saturating_add(len));
            if file.ranges.is_empty() && file.kept.is_empty() {
                files.by_ino.remove(&ino);
            }
        }
        self.files_count.store(files.by_ino.len(), SeqCst);
    }

    /// Lays what is kept over `bytes` of a file, which were read at `offset`.
    pub(crate) fn show(&self, ino: u64, offset: u64, bytes: &mut [u8]) {
        if self.files_count.load(SeqCst) == 0 {
            return;
        }
        let files = self.files.lock();
        let Some(file) = files.by_ino.get(&ino) else { return };
        let end = offset + bytes.len() as u64;
        for (at, kept) in file.kept.range(..end).rev() {
            let upto = (at + kept.len() as u64).min(end);
            if upto <= offset {
                break;
            }
            let from = offset.max(*at);
            let part = &kept[(from - at) as usize..(upto - at) as usize];
            bytes[(from - offset) as usize..(upto - offset) as usize].copy_from_slice(part);
        }
    }

    /// Has what is kept of a file stored by `write` (at an offset), as far as it is not refused; once there is no space the rest is not tried.
    /// Whether anything was tried: of a piece that is refused a part may have been stored.
    pub(crate) fn store(&self, ino: u64, mut write: impl FnMut(u64, &[u8]) -> Result<(), Errno>) -> bool {
        let Some(_writing) = self.writing(ino) else { return false };
        let storing = Storing(&self.writing[ino as usize % LOCKS].storing);
        storing.0.store(ino, SeqCst);
        let (mut at, mut tried) = (0, false);
        loop {
            let next = {
                let files = self.files.lock();
                let kept = files.by_ino.get(&ino).and_then(|file| file.kept.range(at..).next());
                kept.map(|(offset, bytes)| (*offset, bytes.clone()))
            };
            let Some((offset, bytes)) = next else { return tried };
            tried = true;
            at = offset + bytes.len() as u64;
            match write(offset, &bytes) {
                Ok(()) => self.settled(ino, (offset, bytes.len() as u64)),
                // The file is gone, and with it everything.
                Err(Errno::NOENT | Errno::STALE) => {
                    self.settled(ino, (0, u64::MAX));
                    return tried;
                }
                Err(error) => {
                    if let Some(file) = self.files.lock().by_ino.get_mut(&ino) {
                        file.error = error;
                    }
                    if matches!(error, Errno::NOSPC | Errno::DQUOT) {
                        return tried;
                    }
                }
            }
        }
    }

    /// The error of what the kernel shows of a file and the pool has not.
    pub(crate) fn error(&self, ino: u64) -> Option<Errno> {
        if self.files_count.load(SeqCst) == 0 {
            return None;
        }
        self.files.lock().by_ino.get(&ino).map(|file| file.error)
    }

    /// Waits until there is such a file.
    pub(crate) fn wait_for_any(&self) {
        self.noted.wait_while(&mut self.files.lock(), |files| files.by_ino.is_empty());
    }

    /// Whether there are such files in the subvolume with this root.
    pub(crate) fn has_any_of(&self, root: InodeId) -> bool {
        self.files_count.load(SeqCst) > 0
            && self.files.lock().by_ino.keys().any(|ino| subvolume_root(InodeId(*ino)) == root)
    }

    /// What is missing for what is kept of all files: space, and anything else. Neither: nothing is kept.
    pub(crate) fn lacks(&self) -> (bool, bool) {
        let files = self.files.lock();
        let kept = files.by_ino.values().filter(|file| !file.kept.is_empty());
        kept.fold((false, false), |(space, other), file| match file.error {
            Errno::NOSPC | Errno::DQUOT => (true, other),
            _ => (space, true),
        })
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
    /// Notes that [`from`, `to`) is lost and not kept.
    fn lose(&mut self, from: u64, to: u64) {
        self.ranges.push((from, to));
        self.ranges.sort_unstable();
        self.ranges.dedup_by(|next, last| {
            let touches = next.0 <= last.1;
            if touches {
                last.1 = last.1.max(next.1);
            }
            touches
        });
        if self.ranges.len() > RANGES_MAX {
            let gap = |at: &usize| self.ranges[at + 1].0 - self.ranges[*at].1;
            if let Some(at) = (0..RANGES_MAX).min_by_key(gap) {
                self.ranges[at].1 = self.ranges[at + 1].1;
                self.ranges.remove(at + 1);
            }
        }
    }

    /// Knows nothing of [`from`, `to`) any more; gives how many bytes of it were kept.
    fn forget(&mut self, from: u64, to: u64) -> usize {
        let cut = |&(first, end): &(u64, u64)| [(first, end.min(from)), (first.max(to), end)];
        self.ranges = self.ranges.iter().flat_map(cut).filter(|(first, end)| first < end).collect();
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
            bytes.shrink_to_fit();
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
                let mut shown = [0; 190];
                unstored.show(7, 5, &mut shown);
                assert_eq!(shown[..], lost[5..195]);
                assert_eq!(unstored.error(7), any.then_some(Errno::NOSPC));
                assert_eq!(unstored.any().is_some(), any);
                let files = unstored.files.lock();
                assert_eq!(files.kept_bytes, lost.iter().filter(|byte| **byte > 0).count());
            }
        }
    }

    // Goal: only what is not stored, or being stored, is written and read by one at a time, as long as that is so. Method: a file that is
    // settled while others wait for its lock, its own and another one with the same lock; one that is settled while it is being stored.
    #[test]
    fn one_at_a_time_no_longer_than_need_be() {
        let unstored = Unstored::default();
        let other = 7 + LOCKS as u64;
        for ino in [7, other] {
            unstored.note(ino, 0, &[1], Errno::NOSPC);
        }
        let first = unstored.writing(7).expect("it is needed");
        std::thread::scope(|scope| {
            let waits = [7, other].map(|ino| {
                let unstored = &unstored;
                scope.spawn(move || unstored.writing(ino).is_some())
            });
            // They wait by then, most likely.
            std::thread::sleep(std::time::Duration::from_millis(50));
            unstored.settled(7, (0, 1));
            drop(first);
            assert_eq!(waits.map(|thread| thread.join().unwrap()), [false, true]);
        });
        let held = unstored.writing(other).expect("it is needed");
        assert!(unstored.writing(7).is_none(), "nobody waits for another file");
        drop(held);
        std::thread::scope(|scope| {
            let (tell, told) = std::sync::mpsc::channel();
            let (unstored, mut early) = (&unstored, None);
            unstored.store(other, |_, _| {
                unstored.settled(other, (0, 1));
                let tell = tell.clone();
                scope.spawn(move || tell.send(unstored.writing(other).is_some()).expect("it is heard"));
                early = told.recv_timeout(std::time::Duration::from_millis(100)).ok();
                Ok(())
            });
            assert_eq!(early, None, "what is old would be put over what is new");
            assert_eq!(told.recv(), Ok(false));
        });
        assert!(unstored.writing(other).is_none());
    }

    // Goal: of what is not kept a bounded number of ranges is known, and each counts until it has been settled; what is kept is stored whatever
    // else there is, and past a piece that is refused. Method: more bytes than are kept, then more ranges; one piece that fails; a file
    // that is gone.
    #[test]
    fn many_bytes_and_ranges() {
        let unstored = Unstored::default();
        let bytes = vec![1; 1 << 20];
        let noted = |at: u64| unstored.note(7, at << 20, &bytes, Errno::NOSPC);
        assert_eq!((0..100).filter(|at| noted(*at)).count(), 1, "it is new once");
        assert_eq!(unstored.lacks(), (true, false));
        assert_eq!(unstored.files.lock().kept_bytes, KEPT_BYTES_MAX);
        assert_eq!(unstored.files.lock().by_ino[&7].ranges, [(64 << 20, 100 << 20)]);
        for at in 0..5000 {
            unstored.note(8, at * 10, &[1], Errno::IO);
        }
        assert_eq!(unstored.lacks(), (true, false), "nothing of the other is kept");
        assert_eq!(unstored.files.lock().by_ino[&8].ranges.len(), RANGES_MAX);
        let mut stored = 0;
        unstored.store(7, |offset, bytes| match offset {
            0 => Err(Errno::IO),
            _ => {
                stored += bytes.len();
                Ok(())
            }
        });
        assert_eq!((stored, unstored.error(7)), (KEPT_BYTES_MAX - (1 << 20), Some(Errno::IO)));
        assert_eq!(unstored.lacks(), (false, true));
        unstored.settled(7, (0, 1 << 20));
        assert_eq!(unstored.files.lock().kept_bytes, 0);
        assert!(unstored.error(7).is_some(), "the rest is not kept");
        unstored.settled(7, (64 << 20, 36 << 20));
        assert_eq!((unstored.error(7), unstored.error(8), unstored.error(9)), (None, Some(Errno::IO), None));
        unstored.note(8, 3, &[1], Errno::IO);
        unstored.store(8, |_, _| Err(Errno::STALE));
        assert_eq!(unstored.any(), None);
    }
}
