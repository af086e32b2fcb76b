//! Taking a file's dirty pages for write-back, and giving them back when it fails.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use varve_engine::{BLOCK_BYTES, EngineError, PoolAddr, Reservation, Transaction};
use varve_format::record::inode::{INLINE_BYTES_MAX, INODE_FLAG_RESERVED, INODE_FLAG_STALE_TAIL};

use super::job::{FileJob, Group};
use crate::api::DataLogged;
use crate::core::Core;
use crate::inode::{Inner, InodeState, Pending, Turn};
use crate::subvolume::Change;
use crate::{FsError, Result};

impl Core {
    /// Adds the dirty pages of a file to `group`; with `size_max`, those below it, as if the file ended there. Small
    /// files are logged at once. The turn comes back when there is nothing (more) to write.
    pub fn take(&self, turn: Turn, size_max: u64, group: &mut Group) -> Result<Option<Turn>> {
        let state = turn.state().clone();
        let change = match self.change_to_log(&state) {
            Ok(change) => change,
            Err(FsError::Stale) => return Ok(Some(turn)),
            Err(error) => return Err(error),
        };
        let mut guard = match self.hold(&state) {
            Ok(guard) => guard,
            Err(FsError::NotFound) => return Ok(Some(turn)),
            Err(error) => return Err(error),
        };
        let inner = &mut *guard;
        if inner.pages.dirty == 0 {
            return Ok(Some(turn));
        }
        let size = inner.size.min(size_max);
        let stays_out = inner.record.flags & INODE_FLAG_RESERVED != 0;
        if inner.record.inline.is_some() && size <= INLINE_BYTES_MAX as u64 && !stays_out {
            let logged = self.log_inline(&change, &state, inner, size);
            drop((guard, change));
            self.store.settle(0);
            return logged.map(|()| Some(turn));
        }
        let end = size.div_ceil(BLOCK_BYTES as u64);
        self.make_up(inner, size, end)?;
        let id = self.next_job.fetch_add(1, Ordering::Relaxed) + 1;
        // Whose clock it is may panic: not where pages are neither dirty nor logged.
        let now = self.now();
        let mut pages = Vec::with_capacity(inner.pages.dirty as usize);
        let mut taken = 0;
        for (index, page) in inner.pages.map.range_mut(..end).filter(|(_, page)| page.dirty) {
            page.job = id;
            let mut data = page.data.clone();
            let cut = (size - index * BLOCK_BYTES as u64) as usize;
            if size < inner.size && cut < BLOCK_BYTES {
                // Logged as if the file ended here; in memory it goes on until it is cut.
                data.make_mut()[cut..].fill(0);
                page.logged_to = Some(size);
            } else {
                page.dirty = false;
                taken += 1;
            }
            pages.push((index, data));
        }
        if pages.is_empty() {
            return Ok(Some(turn));
        }
        inner.pages.dirty -= taken;
        let partial = inner.pages.dirty > 0;
        if let (false, Some(place)) = (partial, inner.pages.listed) {
            // It stays in the list until its pages are logged, behind those that nobody writes back yet.
            inner.pages.listed = Some(self.dirty.renew(place, now));
        }
        let reservation = inner.pages.reservation.take();
        let near = inner.near;
        drop(guard);
        group.add(
            &self.store,
            FileJob { state, id, pages: pages.into_iter(), size, partial, near, turn: Some(turn) },
            reservation,
        );
        Ok(None)
    }

    /// Sets aside what is missing of the space for the dirty pages in front of page `end`, when the file is to be taken up to
    /// `size`. A page that was logged cut has used its own; if the cut has not come, because a snapshot came before it or it was
    /// refused, the page is logged once more. It was accepted, and what it replaces becomes free: so there is room for it on a full
    /// pool, too, where the file could not even be deleted otherwise if a snapshot waits for it.
    fn make_up(&self, inner: &mut Inner, size: u64, end: u64) -> Result<()> {
        let pages = &inner.pages;
        let wanted = if size < inner.size {
            let here = pages.map.range(..end).filter(|(_, page)| page.dirty).count();
            here + pages.map.range(end..).filter(|(_, page)| page.has_space()).count()
        } else {
            pages.dirty as usize
        };
        let missing =
            (wanted as u64).saturating_sub(pages.reservation.as_ref().map_or(0, Reservation::data_blocks));
        if missing > 0 {
            let entries = super::entries(missing, true);
            let more = self.store.reserve_again(missing, entries, super::ENTRY_BYTES)?;
            let more = more.ok_or(EngineError::NoSpace)?;
            match &mut inner.pages.reservation {
                Some(mine) => self.store.merge(mine, more),
                none => *none = Some(more),
            }
        }
        Ok(())
    }

    /// Takes a file out of the list if no page of it waits to be logged, in flight or not.
    pub(crate) fn unlist(&self, inner: &mut Inner) {
        if inner.pages.is_empty()
            && let Some(place) = inner.pages.listed.take()
        {
            self.dirty.remove(place);
        }
    }

    /// Notes that page data is dirty.
    pub(crate) fn enlist(&self, state: &Arc<InodeState>, inner: &mut Inner) {
        if inner.pages.listed.is_none() {
            inner.pages.listed = Some(self.dirty.add(state.clone(), self.now()));
        }
    }

    /// Drops the pages from `index` on, and hands their space back.
    pub(crate) fn drop_pages(&self, inner: &mut Inner, index: u64) {
        let (pages, with_space) = inner.pages.drop_from(index);
        self.pages_gone(inner, pages, with_space);
    }

    /// The file ends at `size` from now on: drops what is in memory beyond.
    pub(crate) fn cut_pages(&self, inner: &mut Inner, size: u64) {
        // The space of the page that `size` cuts was used when it was logged.
        let gone = u64::from(inner.pages.cut_tail(size));
        self.dirty.pages_removed(gone);
        self.drop_pages(inner, size.div_ceil(BLOCK_BYTES as u64));
    }

    fn pages_gone(&self, inner: &mut Inner, pages: u64, with_space: u64) {
        self.dirty.pages_removed(pages);
        if inner.pages.dirty == 0 {
            inner.pages.reservation = None;
        } else {
            self.give_up(inner, with_space);
        }
        self.unlist(inner);
    }

    /// So many pages have no space any more.
    fn give_up(&self, inner: &mut Inner, pages: u64) {
        if let Some(reservation) = &mut inner.pages.reservation {
            self.store.hand_back(reservation, pages, pages * super::ENTRIES_PER_PAGE, super::ENTRY_BYTES);
        }
    }

    /// Logs a file whose contents fit into its record.
    fn log_inline(
        &self,
        change: &Change,
        state: &Arc<InodeState>,
        inner: &mut Inner,
        size: u64,
    ) -> Result<()> {
        let mut contents = match inner.pages.map.get(0) {
            Some(page) => page.data[..size as usize].to_vec(),
            // Only pages beyond the end are dirty; they are about to be cut off.
            None => return Ok(()),
        };
        // Zeros at the end need no bytes.
        let used = contents.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        contents.truncate(used);
        let mut record = inner.record_with_pending();
        record.inline = Some(contents);
        record.size = size;
        record.flags &= !INODE_FLAG_STALE_TAIL;
        record.change = record.change.wrapping_add(1);
        let mut tx = Transaction::new();
        self.put_record(change, &mut tx, state.ino, inner, &mut record)?;
        tx.privileged();
        tx.settles_later();
        let lsn = self.store.apply(tx, inner.pages.reservation.as_mut())?;
        inner.logged(change, record);
        inner.mapping += 1;
        if size == inner.size {
            inner.pages.map.remove(0);
            inner.pages.dirty -= 1;
            self.dirty.pages_removed(1);
        } else if let Some(page) = inner.pages.map.get_mut(0) {
            // No block was used, but it has none from now on, as if one had been.
            let had_space = u64::from(page.has_space());
            page.logged_to = Some(size);
            self.give_up(inner, had_space);
        }
        if inner.pages.dirty == 0 {
            inner.pending = Pending::default();
            inner.pages.reservation = None;
            self.unlist(inner);
        }
        if let Some(observer) = &self.on_data_logged {
            observer(DataLogged { ino: state.ino, offset: 0, len: size, size, lsn });
        }
        Ok(())
    }

    /// Ends a group. When it failed, what it has not logged is dirty again, and each file has the space for what is its own:
    /// with another file's it would be given back when that is written or deleted, and be gone when it is needed.
    pub fn finish(&self, group: Group, result: Result<()>) -> Result<Vec<Turn>> {
        let (jobs, mut reservation) = group.into_parts();
        let mut turns = Vec::with_capacity(jobs.len());
        for job in jobs {
            if result.is_err() || job.partial {
                let mut inner = job.state.inner.write();
                let (mut again, mut is_left) = (0, false);
                for page in inner.pages.map.values_mut().filter(|page| page.job == job.id) {
                    (page.job, page.logged_to) = (0, None);
                    again += u64::from(!page.dirty);
                    page.dirty = true;
                    is_left = true;
                }
                inner.pages.dirty += again;
                if result.is_err() {
                    // What failed may be about the blocks there, which would be the first to be taken again.
                    inner.near = PoolAddr::NULL;
                }
                // All of a file whose turn has been let go is logged. What it has by now has come since, with its space, which may
                // be another group's in flight: what is left here is the others'.
                if inner.pages.dirty > 0 && (is_left || job.turn.is_some()) {
                    // What was overwritten in flight has got a block of its own meanwhile.
                    let (with_space, runs) = inner.pages.with_space();
                    let mine = inner.pages.reservation.as_ref().map_or(0, Reservation::data_blocks);
                    let missing = with_space.saturating_sub(mine);
                    if let Some(all) = reservation.as_mut().filter(|_| missing > 0) {
                        let wanted = super::wanted(missing, runs.min(missing), true);
                        let space = self.store.split_for(all, wanted);
                        match &mut inner.pages.reservation {
                            Some(mine) => self.store.merge(mine, space),
                            none => *none = Some(space),
                        }
                    }
                    self.enlist(&job.state, &mut inner);
                }
            }
            turns.extend(job.turn);
        }
        result.map(|()| turns)
    }
}
