//! Editing the entries of one version key in one segment: load a window, lay something over it or cut a piece out of
//! it in memory, write the difference.
//!
//! Every change of the extents tree goes through here or is a plain delete. Invariants: a list is sorted and free of
//! overlaps; whatever an edit removes from a list is freed exactly once; a list that is not empty is in the index of its
//! version (tree *held*), and no other, except that a family's first version has no index. A list has at most one entry a
//! block (256).

use varve_format::record::extent::{DATA_KEY_BYTES, DataKey, Extent, ExtentKind};
use varve_format::record::held::held_key;
use varve_format::record::reap::Work;
use varve_format::{BLOCK_BYTES, FamilyId, Run, SEGMENT_BYTES, TreeId, VersionId, VersionKey};

use super::pending;
use super::resolve::{scan, scan_covering};
use super::{Planted, Read, Result, Unreserved, planted};
use crate::Transaction;

/// An entry inside its segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Entry {
    /// First byte, from the start of the segment.
    pub(super) off: u32,
    pub(super) extent: Extent,
}

impl Entry {
    pub(super) fn end(&self) -> u32 {
        self.off + self.extent.len
    }
    /// The part of this entry in [`low`, `high`), which lies inside it.
    pub(super) fn part(&self, low: u32, high: u32) -> Entry {
        Entry { off: low, extent: self.extent.piece(low - self.off, high - low) }
    }
}

/// Which list is meant.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) family: FamilyId,
    pub(super) segment: u64,
    pub(super) version: VersionKey,
}

impl Place {
    pub(super) fn key(&self, offset: u32) -> [u8; DATA_KEY_BYTES] {
        self.data_key(offset).encode()
    }
    /// Its entry in the index.
    pub(super) fn held(&self) -> Vec<u8> {
        held_key(self.family, self.version, TreeId::EXTENTS, &self.segment.to_be_bytes())
    }
    /// Whether more than `entries` entries are stored here.
    fn has_more_than(&self, read: &dyn Read, entries: usize) -> Result<bool> {
        let mut found = 0;
        scan(read, &self.data_key(0), |key, _| {
            let here = (key.segment, key.version) == (self.segment, self.version);
            found += usize::from(here);
            here && found <= entries
        })?;
        Ok(found > entries)
    }
    fn data_key(&self, offset: u32) -> DataKey {
        DataKey { family: self.family, segment: self.segment, version: self.version, offset }
    }
}

/// Puts, deletes and frees on their way into a transaction, counted. Neighbouring frees are joined: call
/// [`Changes::finish`] in the end, it adds the last one.
pub(super) struct Changes<'a> {
    tx: &'a mut Transaction,
    pending: Option<Run>,
    pub(super) puts: u64,
    pub(super) deletes: u64,
    pub(super) blocks_freed: u64,
    /// Blocks of reservations that are gone.
    pub(super) reserved_freed: Unreserved,
}

impl<'a> Changes<'a> {
    pub(super) fn new(tx: &'a mut Transaction) -> Self {
        Changes {
            tx,
            pending: None,
            puts: 0,
            deletes: 0,
            blocks_freed: 0,
            reserved_freed: Unreserved::default(),
        }
    }
    /// Entries put or deleted so far.
    pub(super) fn entries(&self) -> u64 {
        self.puts + self.deletes
    }
    pub(super) fn put(&mut self, key: &[u8], extent: &Extent) {
        self.tx.put(TreeId::EXTENTS, key, &extent.encode());
        self.puts += 1;
    }
    pub(super) fn delete(&mut self, key: &[u8]) {
        self.tx.delete(TreeId::EXTENTS, key);
        self.deletes += 1;
    }
    /// Frees the blocks of an extent (or of a piece of one) that no entry shows any more; counts those of a reservation.
    pub(super) fn free(&mut self, extent: &Extent) {
        if extent.kind == ExtentKind::Reserved {
            self.reserved_freed.blocks += u64::from(extent.len) / BLOCK_BYTES as u64;
        }
        let Some(run) = extent.run() else { return };
        self.blocks_freed += u64::from(run.blocks);
        if let Some(last) = &mut self.pending {
            let joins = last.addr.0 + last.bytes() == run.addr.0;
            if let Some(blocks) = last.blocks.checked_add(run.blocks).filter(|_| joins) {
                last.blocks = blocks;
                return;
            }
            self.tx.free(*last);
        }
        self.pending = Some(run);
    }
    /// Hands over what is pending and lets go of the transaction.
    pub(super) fn finish(&mut self) -> &mut Transaction {
        if let Some(run) = self.pending.take() {
            self.tx.free(run);
        }
        self.tx
    }

    /// Writes the difference between two lists of `place`, and whether there is anything into the index. With `all`
    /// there is nothing else in this place.
    pub(super) fn difference(
        &mut self,
        read: &dyn Read,
        place: &Place,
        old: &[Entry],
        new: &[Entry],
        all: bool,
    ) -> Result<()> {
        let reserved = |list: &[Entry]| {
            list.iter().filter(|entry| entry.extent.kind == ExtentKind::Reserved).count() as i64
        };
        self.reserved_freed.extents += reserved(new) - reserved(old);
        let mut olds = old.iter().peekable();
        for entry in new {
            while let Some(gone) = olds.next_if(|o| o.off < entry.off) {
                self.delete(&place.key(gone.off));
            }
            let same = olds.next_if(|o| o.off == entry.off);
            if same != Some(entry) {
                self.put(&place.key(entry.off), &entry.extent);
            }
        }
        for gone in olds {
            self.delete(&place.key(gone.off));
        }
        // The first version has no index.
        let same = old.is_empty() == new.is_empty();
        if place.version.0 == place.family.0 || same || planted(Planted::IndexForgets) {
            return Ok(());
        }
        let key = place.held();
        if old.is_empty() {
            if all || read.get(TreeId::HELD, &key)?.is_none() {
                self.tx.put(TreeId::HELD, &key, &[]);
            }
        } else if all || !place.has_more_than(read, old.len())? {
            self.tx.delete(TreeId::HELD, &key);
        }
        Ok(())
    }

    /// Has the reaper recheck what a version has in a segment.
    pub(super) fn recheck(&mut self, family: FamilyId, id: VersionId, segment: u64) {
        let work = Work::Place(id, TreeId::EXTENTS, &segment.to_be_bytes());
        pending::mark(self.tx, family, work, &[]);
    }
}

/// Replaces `out` by the entries of `place` that overlap or touch [`low`, `high`): the touching ones so that
/// neighbours can be joined. A descent and a scan as long as the answer.
pub(super) fn load(read: &dyn Read, place: &Place, low: u32, high: u32, out: &mut Vec<Entry>) -> Result<()> {
    out.clear();
    scan_covering(read, &place.data_key(low), |key, extent| {
        let here = (key.segment, key.version) == (place.segment, place.version) && key.offset <= high;
        if here && key.offset + extent.len >= low {
            out.push(Entry { off: key.offset, extent });
        }
        here
    })
}

/// All entries of `place`.
pub(super) fn load_all(read: &dyn Read, place: &Place, out: &mut Vec<Entry>) -> Result<()> {
    load(read, place, 0, SEGMENT_BYTES as u32, out)
}

/// Appends `entry` to a list, as part of its last entry if it continues that one in file and pool.
pub(super) fn push_joined(list: &mut Vec<Entry>, entry: Entry) {
    if let Some(last) = list.last_mut()
        && last.end() == entry.off
        && last.extent.continues(&entry.extent)
    {
        last.extent.append(&entry.extent);
        return;
    }
    list.push(entry);
}

/// Replaces `out` by `top` laid over `under`. What `top` covers is freed.
pub(super) fn overlay(top: &[Entry], under: &[Entry], out: &mut Vec<Entry>, changes: &mut Changes) {
    merge(top, under, true, out, changes);
}

/// Replaces `out` by what `top` leaves of `under`. What it covers is freed.
pub(super) fn subtract(top: &[Entry], under: &[Entry], out: &mut Vec<Entry>, changes: &mut Changes) {
    merge(top, under, false, out, changes);
}

fn merge(top: &[Entry], under: &[Entry], keep_top: bool, out: &mut Vec<Entry>, changes: &mut Changes) {
    out.clear();
    let mut tops = top.iter().peekable();
    for below in under {
        let (mut at, end) = (below.off, below.end());
        while let Some(above) = tops.peek().filter(|a| a.off < end) {
            if above.off > at {
                push_joined(out, below.part(at, above.off));
                at = above.off;
            }
            let covered = above.end().min(end);
            if covered > at {
                changes.free(&below.part(at, covered).extent);
                at = covered;
            }
            if above.end() > end {
                // It reaches beyond this entry: the next one meets it again.
                break;
            }
            if keep_top {
                push_joined(out, **above);
            }
            tops.next();
        }
        if at < end {
            push_joined(out, below.part(at, end));
        }
    }
    for above in tops.filter(|_| keep_top) {
        push_joined(out, *above);
    }
}
