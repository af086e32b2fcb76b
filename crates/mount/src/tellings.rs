//! Inodes of which the kernel is being told the attributes.
//!
//! After a change the kernel believes no attributes that it has had before. But an answer that was made before the change, and that it comes
//! to after the change's own, it believes as long as any other, unless the inode's version has risen since it asked. Writes, truncations, chmod
//! and the unlinking of a file raise it; making and taking away names (for their directory), renames, extended attributes, fallocate and
//! the writing back of mapped pages do not. So whoever has changed an inode in such a way has the kernel forget its attributes before
//! he is answered (which raises the version), if an answer may be on its way that was made before.
//!
//! That is so from when the attributes are looked at until the kernel has taken them in, of which we hear nothing: it needs a processor for
//! it. To give such answers no time to be believed, when something has changed by the time they are sent, would not be enough, because
//! the kernel's part of the way is the longest. So an inode counts as being told until the kernel has forgotten it once after that, or until
//! [`SECONDS_KEPT`] have passed. But a thread that asks for something else has taken in what it asked for before: who makes names in a
//! directory asks for its attributes before each, and has nothing forgotten if nobody else has asked.
//!
//! Writes past the kernel's cache that no program waits for (AIO, io_uring) are another matter. The kernel has the attributes forgotten when it
//! queues one, and does nothing of that when it has ended (`fuse_aio_complete`, Linux 6.18): an answer from between the two, which may
//! long have been taken in, would be believed. How long such a write waits in the kernel nobody says, and that the thread which makes it has asked
//! itself changes nothing. So who writes past the cache has the attributes forgotten if they have been told, to anybody, since they were
//! forgotten last, and within [`SECONDS_WRITTEN`]. Requests do not say whether somebody waits; where nobody asks it costs the look at one number.
//!
//! What is left: the answers to SETATTR and LINK the kernel takes whatever the version is. It keeps other changes of the inode away
//! meanwhile, but not the writing back of mapped pages. And before Linux 6.14 an inode that the kernel has thrown away and got anew
//! since it asked has no version.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Instant;

use parking_lot::Mutex;

/// No answer is on its way for so long.
const SECONDS_KEPT: u32 = 60;
/// No write waits in the kernel for so long before it gets here. (As for `caches`.)
const SECONDS_WRITTEN: u32 = 600;
/// Places for inodes. Two that are told and share one are forgotten at each of their changes.
const PLACES: usize = 1 << 15;

/// In the place of an inode's or a thread's number: more than one. (The kernel says 0, too, of a thread that it has no number for.)
const SEVERAL: u32 = 0;

/// The inodes that are being told.
pub(crate) struct Tellings {
    places: Box<[Mutex<Place>]>,
    /// Changes there have been.
    changes: AtomicU64,
    begun: Instant,
}

#[derive(Clone, Copy, Default)]
struct Place {
    /// Who was told last, or [`SEVERAL`].
    ino: u64,
    /// The thread that had asked, or [`SEVERAL`].
    thread: u32,
    /// When: seconds since `begun`, from one on. Zero: that is over.
    at: u32,
    /// Counts how often, and begins anew some day.
    times: u32,
    /// Who has been told since he was forgotten, or [`SEVERAL`].
    written: u64,
    /// When last. Zero: nobody.
    written_at: u32,
}

/// An inode as it had been told when it was changed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Telling {
    ino: u64,
    times: u32,
}

impl Default for Tellings {
    fn default() -> Tellings {
        let places = (0..PLACES).map(|_| Mutex::default()).collect();
        Tellings { places, changes: AtomicU64::new(0), begun: Instant::now() }
    }
}

impl Tellings {
    /// Numbers are given one after the other, in each subvolume, which their upper bits tell.
    fn place(&self, ino: u64) -> &Mutex<Place> {
        &self.places[(ino ^ (ino >> 32).wrapping_mul(0x9e37_79b9)) as usize % PLACES]
    }

    fn now(&self) -> u32 {
        u32::try_from(self.begun.elapsed().as_secs()).unwrap_or(u32::MAX - 1) + 1
    }

    fn is_kept(place: &Place, now: u32) -> bool {
        place.at != 0 && now.saturating_sub(place.at) <= SECONDS_KEPT
    }

    fn is_kept_for_writes(place: &Place, now: u32) -> bool {
        place.written_at != 0 && now.saturating_sub(place.written_at) <= SECONDS_WRITTEN
    }

    /// The kernel is going to tell a thread the attributes of this inode: to be said before they are looked at.
    pub(crate) fn note(&self, ino: u64, thread: u32) {
        let now = self.now();
        let mut place = self.place(ino).lock();
        let kept = Self::is_kept(&place, now);
        let others = Self::is_kept_for_writes(&place, now) && place.written != ino;
        *place = Place {
            ino: if kept && place.ino != ino { SEVERAL.into() } else { ino },
            thread: if kept && place.thread != thread { SEVERAL } else { thread },
            at: now,
            times: place.times.wrapping_add(1),
            written: if others { SEVERAL.into() } else { ino },
            written_at: now,
        };
    }

    /// How many changes there have been. Who has looked at attributes before he could note whose they are, and finds the same number after
    /// that as before both, has overlooked no change that did not see his note.
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(SeqCst)
    }

    /// An inode has been changed for a thread. Something: the kernel is to forget its attributes before it hears of that.
    pub(crate) fn changed(&self, ino: u64, thread: u32) -> Option<Telling> {
        self.changes.fetch_add(1, SeqCst);
        let mut place = self.place(ino).lock();
        if place.at == 0 || ![ino, SEVERAL.into()].contains(&place.ino) {
            return None;
        }
        // Nobody else was told anything.
        if thread != SEVERAL && place.thread == thread || !Self::is_kept(&place, self.now()) {
            place.at = 0;
            return None;
        }
        Some(Telling { ino, times: place.times })
    }

    /// An inode has been written to past the kernel's cache. Something: the kernel is to forget its attributes before it hears of that.
    pub(crate) fn written(&self, ino: u64) -> Option<Telling> {
        self.changes.fetch_add(1, SeqCst);
        let place = self.place(ino).lock();
        let told = [ino, SEVERAL.into()].contains(&place.written);
        (told && Self::is_kept_for_writes(&place, self.now())).then_some(Telling { ino, times: place.times })
    }

    /// The kernel has forgotten the attributes: what was told before is over.
    pub(crate) fn forgotten(&self, telling: Telling) {
        let mut place = self.place(telling.ino).lock();
        if place.times != telling.times {
            return;
        }
        if place.ino == telling.ino {
            place.at = 0;
        }
        if place.written == telling.ino {
            place.written_at = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn set_back(tellings: &mut Tellings) -> bool {
        let past = tellings.begun.checked_sub(Duration::from_secs(u64::from(SECONDS_KEPT) + 2));
        past.map(|past| tellings.begun = past).is_some()
    }

    // Goal: a change hears of every telling before it that was not forgotten since, and of no other. Method: one inode, told and changed in
    // all orders.
    #[test]
    fn what_was_told_is_forgotten_once() {
        let mut tellings = Tellings::default();
        assert!(tellings.changed(7, 1).is_none());
        tellings.note(7, 2);
        let first = tellings.changed(7, 1).unwrap();
        assert!(tellings.changed(7, 1).is_some(), "not forgotten yet");
        assert!(tellings.changed(8, 1).is_none() && tellings.changed(7 | 1 << 40, 1).is_none());
        tellings.forgotten(first);
        assert!(tellings.changed(7, 1).is_none());
        tellings.note(7, 2);
        let first = tellings.changed(7, 1).unwrap();
        // Told once more while the kernel forgets.
        tellings.note(7, 2);
        tellings.forgotten(first);
        tellings.forgotten(tellings.changed(7, 1).unwrap());
        assert!(tellings.changed(7, 1).is_none());
        tellings.note(7, 2);
        assert!(!set_back(&mut tellings) || tellings.changed(7, 1).is_none());
    }

    // Goal: a thread that changes what it was told itself has nothing forgotten, unless others were told, too. Method: one inode and two
    // threads, and one without a number.
    #[test]
    fn who_asked_himself_has_been_told() {
        let tellings = Tellings::default();
        tellings.note(7, 1);
        assert!(tellings.changed(7, 1).is_none());
        assert!(tellings.changed(7, 2).is_none(), "that was over");
        for threads in [[1, 2], [2, 1]] {
            threads.into_iter().for_each(|thread| tellings.note(7, thread));
            tellings.forgotten(tellings.changed(7, 1).unwrap());
            assert!(tellings.changed(7, 2).is_none());
        }
        tellings.note(7, 0);
        tellings.forgotten(tellings.changed(7, 0).unwrap());
        assert!(tellings.changed(7, 0).is_none());
    }

    // Goal: a write past the cache hears of what was told before it once, whoever had asked, however long ago and whatever was changed by others since.
    // Method: one inode, told, changed and written to in all orders, and another that shares its place.
    #[test]
    fn who_writes_past_the_cache_has_it_forgotten() {
        let mut tellings = Tellings::default();
        assert!(tellings.written(7).is_none());
        tellings.note(7, 1);
        assert!(tellings.changed(7, 1).is_none(), "it has asked itself");
        let first = tellings.written(7).unwrap();
        assert!(tellings.written(7).is_some(), "not forgotten yet");
        // Told once more while the kernel forgets.
        tellings.note(7, 2);
        tellings.forgotten(first);
        tellings.forgotten(tellings.written(7).unwrap());
        assert!(tellings.written(7).is_none() && tellings.changed(7, 1).is_none());
        // What others have had forgotten need not be once more.
        tellings.note(7, 2);
        tellings.forgotten(tellings.changed(7, 1).unwrap());
        assert!(tellings.written(7).is_none());
        tellings.note(7, 2);
        if set_back(&mut tellings) {
            assert!(tellings.changed(7, 1).is_none(), "no answer is on its way for so long");
            assert!(tellings.written(7).is_some(), "but a write may be");
            let other = (8..).find(|ino| std::ptr::eq(tellings.place(*ino), tellings.place(7))).unwrap();
            assert!(tellings.written(other).is_none());
            tellings.note(other, 1);
            tellings.forgotten(tellings.written(other).unwrap());
            assert!(tellings.written(7).is_some());
        }
    }

    // Goal: of inodes that share a place none is taken for forgotten because of another. Method: two that share one, found by their numbers.
    #[test]
    fn who_shares_a_place_is_not_overlooked() {
        let mut tellings = Tellings::default();
        let other = (8..).find(|ino| std::ptr::eq(tellings.place(*ino), tellings.place(7))).unwrap();
        tellings.note(7, 2);
        assert!(tellings.changed(other, 1).is_none());
        tellings.note(other, 2);
        tellings.forgotten(tellings.changed(7, 1).unwrap());
        assert!(tellings.changed(other, 1).is_some() && tellings.changed(7, 1).is_some());
        if set_back(&mut tellings) {
            assert!(tellings.changed(7, 1).is_none() && tellings.changed(other, 1).is_none());
            tellings.note(7, 2);
            tellings.forgotten(tellings.changed(7, 1).unwrap());
            assert!(tellings.changed(7, 1).is_none());
        }
    }
}
