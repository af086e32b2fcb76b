//! Directory entries, and the buckets they live in.
//!
//! A bucket is all names of one directory with one hash: nearly always none or one, found with one lookup because an
//! entry at sequence 0 is there whenever the bucket is not empty. Edits are made on the bucket in memory and then
//! written as the difference, so that two edits of one bucket in one transaction (a rename) cannot step on each other.

use varve_engine::{EngineError, InodeId, Transaction, TreeId, View};
use varve_format::record::inode::InodeKind;
use varve_format::record::name::{NamePosition, NameRecord, NameView, decode_name_key, name_key};

use super::{Namespace, Result, corrupt};
use crate::subvolume::{Change, Slot, local};

/// All names of one directory with one hash.
#[derive(Debug)]
pub struct Bucket {
    slot: Slot,
    /// Without the slot, as are the inodes in the records.
    dir: InodeId,
    base: NamePosition,
    stored: Sequences,
    now: Sequences,
}

/// Records by their sequences, ascending. Nearly always none or one.
#[derive(Clone, Default, Debug)]
struct Sequences(Vec<(u8, NameRecord)>);

impl Sequences {
    fn place(&self, sequence: u8) -> std::result::Result<usize, usize> {
        self.0.binary_search_by_key(&sequence, |(sequence, _)| *sequence)
    }
    fn get(&self, sequence: u8) -> Option<&NameRecord> {
        Some(&self.0[self.place(sequence).ok()?].1)
    }
    fn get_mut(&mut self, sequence: u8) -> Option<&mut NameRecord> {
        let at = self.place(sequence).ok()?;
        Some(&mut self.0[at].1)
    }
    fn insert(&mut self, sequence: u8, record: NameRecord) {
        match self.place(sequence) {
            Ok(at) => self.0[at].1 = record,
            Err(at) => self.0.insert(at, (sequence, record)),
        }
    }
    fn remove(&mut self, sequence: u8) {
        if let Ok(at) = self.place(sequence) {
            self.0.remove(at);
        }
    }
    /// The first that is not there.
    fn free(&self) -> Option<u8> {
        (0..=255)
            .zip(self.0.iter().map(|(sequence, _)| Some(*sequence)).chain(std::iter::repeat(None)))
            .find_map(|(sequence, taken)| (taken != Some(sequence)).then_some(sequence))
    }
}

/// Where a name was found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Found {
    /// Number in its bucket.
    pub sequence: u8,
    /// The inode it leads to.
    pub ino: InodeId,
    /// That inode's kind.
    pub kind: InodeKind,
}

impl Bucket {
    /// The first of the positions that its hash has.
    pub(crate) fn base(&self) -> NamePosition {
        self.base
    }

    /// The entry with this name.
    pub fn find(&self, wanted: &[u8]) -> Option<Found> {
        self.now.0.iter().find_map(|(sequence, record)| match record {
            NameRecord::Entry { kind, ino, name, .. } if name == wanted => {
                Some(Found { sequence: *sequence, ino: self.slot.full(*ino), kind: *kind })
            }
            _ => None,
        })
    }

    /// Whether this is the bucket of the same directory and hash.
    pub(crate) fn same(&self, other: &Bucket) -> bool {
        (self.slot, self.dir, self.base) == (other.slot, other.dir, other.base)
    }

    /// Adds a name that is not in the bucket. False if all 256 sequences are taken.
    #[must_use]
    pub fn insert(&mut self, new_name: &[u8], new_ino: InodeId, new_kind: InodeKind) -> bool {
        let removed_first = matches!(self.now.get(0), Some(NameRecord::Removed));
        let free = if removed_first { Some(0) } else { self.now.free() };
        let Some(sequence) = free else { return false };
        let record = NameRecord::Entry {
            kind: new_kind,
            ino: local(new_ino),
            name: new_name.to_vec(),
            chained: removed_first,
        };
        self.now.insert(sequence, record);
        self.settle();
        true
    }

    /// Lets the name at `at` lead elsewhere.
    pub(crate) fn replace(&mut self, at: u8, new_ino: InodeId, new_kind: InodeKind) {
        if let Some(NameRecord::Entry { kind, ino, .. }) = self.now.get_mut(at) {
            (*kind, *ino) = (new_kind, local(new_ino));
        }
    }

    /// Removes the name at `at`.
    pub fn remove(&mut self, at: u8) {
        self.now.remove(at);
        self.settle();
    }

    /// Restores the rule of sequence 0: it is there while anything is, and says whether others are.
    fn settle(&mut self) {
        let others = self.now.0.last().is_some_and(|(sequence, _)| *sequence > 0);
        match self.now.get_mut(0) {
            Some(NameRecord::Entry { chained, .. }) => *chained = others,
            Some(NameRecord::Removed) if !others => {
                self.now.remove(0);
            }
            Some(NameRecord::Removed) => {}
            None if others => {
                self.now.insert(0, NameRecord::Removed);
            }
            None => {}
        }
    }
}

impl Namespace {
    fn name_key(&self, dir: InodeId, position: NamePosition) -> [u8; 32] {
        name_key(self.family, local(dir), position, self.key())
    }

    /// Looks `name` up in `dir`: one lookup unless hashes collide.
    pub(crate) fn lookup(&self, dir: InodeId, name: &[u8]) -> Result<Option<Found>> {
        self.lookup_at(dir, self.hasher.base(name), name)
    }

    /// The same for a name whose hash has its positions from `base` on.
    pub(crate) fn lookup_at(&self, dir: InodeId, base: NamePosition, name: &[u8]) -> Result<Option<Found>> {
        // The answer, or whether the rest of the bucket may have it.
        let first = self.get(TreeId::NAMES, &self.name_key(dir, base), |bytes| {
            NameView::decode_for(bytes, name).map(|first| match first {
                NameView::Entry { kind, ino, name: found, .. } if found == name => {
                    Ok(Found { sequence: 0, ino: self.slot.full(ino), kind })
                }
                NameView::Entry { chained, .. } => Err(chained),
                NameView::Removed => Err(true),
            })
        })?;
        let first = first.transpose().map_err(corrupt(|| format!("an entry of directory {}", dir.0)))?;
        match first {
            Some(Ok(found)) => Ok(Some(found)),
            Some(Err(true)) => Ok(self.bucket(dir, name)?.find(name)),
            Some(Err(false)) | None => Ok(None),
        }
    }

    /// The bucket of `name` in `dir`: one lookup unless hashes collide.
    pub fn bucket(&self, dir: InodeId, name: &[u8]) -> Result<Bucket> {
        let base = self.hasher.base(name);
        let mut stored = Sequences::default();
        let first = self.get(TreeId::NAMES, &self.name_key(dir, base), NameRecord::decode)?;
        if let Some(first) = first {
            let first = first.map_err(corrupt(|| format!("an entry of directory {}", dir.0)))?;
            if first.chained() {
                let key = self.name_key(dir, base);
                // 8 bytes of family, 8 of directory, 7 of hash.
                self.scan(TreeId::NAMES, &key[..23], &key[..23], &mut |key, value| {
                    let (position, record) = decode_entry(key, value)?;
                    stored.insert(position.sequence(), record);
                    Ok(true)
                })?;
            } else {
                stored.insert(0, first);
            }
        }
        Ok(Bucket { slot: self.slot, dir: local(dir), base, now: stored.clone(), stored })
    }

    /// Calls `each` with the names of `dir` after `position`, in order, until it returns false. In a view that fits this namespace.
    pub(crate) fn each_name(
        &self,
        view: &View,
        dir: InodeId,
        after: u64,
        each: &mut dyn FnMut(NamePosition, InodeKind, InodeId, Vec<u8>) -> bool,
    ) -> Result<()> {
        let mut from = [0; 24];
        from[..8].copy_from_slice(&self.family.0.to_be_bytes());
        from[8..16].copy_from_slice(&local(dir).0.to_be_bytes());
        from[16..].copy_from_slice(&after.saturating_add(1).to_be_bytes());
        self.scan_in(view, TreeId::NAMES, &from, &from[..16], &mut |key, value| {
            let (position, record) = decode_entry(key, value)?;
            Ok(match record {
                NameRecord::Entry { kind, ino, name, .. } => each(position, kind, self.slot.full(ino), name),
                NameRecord::Removed => true,
            })
        })
    }
}

impl Change {
    /// Writes what was edited.
    pub fn put_bucket(&self, tx: &mut Transaction, bucket: &Bucket) -> Result<()> {
        for (sequence, _) in bucket.stored.0.iter().filter(|(s, _)| bucket.now.get(*s).is_none()) {
            let key = self.name_key(bucket.dir, bucket.base.with_sequence(*sequence));
            self.delete(tx, TreeId::NAMES, &key)?;
        }
        for (sequence, record) in &bucket.now.0 {
            if bucket.stored.get(*sequence) != Some(record) {
                let key = self.name_key(bucket.dir, bucket.base.with_sequence(*sequence));
                self.put(tx, TreeId::NAMES, &key, record.encode().into())?;
            }
        }
        Ok(())
    }
}

fn decode_entry(key: &[u8], value: &[u8]) -> std::result::Result<(NamePosition, NameRecord), EngineError> {
    let (_, dir, position, _) =
        decode_name_key(key).map_err(corrupt(|| "the key of a directory entry".into()))?;
    let record = NameRecord::decode(value).map_err(corrupt(|| format!("an entry of directory {}", dir.0)))?;
    Ok((position, record))
}

#[cfg(test)]
mod tests {
    use super::*;

    // Goal: the rule of sequence 0 holds after any edits, and names are found until removed. Method: all sequences of
    // five inserts and removes of three names, against a plain list.
    #[test]
    fn sequence_zero_rule() {
        for program in 0..6u32.pow(5) {
            let mut bucket = Bucket {
                slot: Slot::FIRST,
                dir: InodeId(1),
                base: NamePosition::new(5, 0),
                stored: Sequences::default(),
                now: Sequences::default(),
            };
            let mut model: Vec<u8> = Vec::new();
            for step in 0..5 {
                let action = program / 6u32.pow(step) % 6;
                let name = b'a' + (action % 3) as u8;
                if action < 3 {
                    if !model.contains(&name) {
                        assert!(bucket.insert(&[name], InodeId(u64::from(name)), InodeKind::File));
                        model.push(name);
                    }
                } else if let Some(found) = bucket.find(&[name]) {
                    bucket.remove(found.sequence);
                    model.retain(|n| *n != name);
                }
                for name in b'a'..=b'c' {
                    assert_eq!(bucket.find(&[name]).is_some(), model.contains(&name), "program {program}");
                }
                let others = bucket.now.0.iter().any(|(s, _)| *s > 0);
                assert_eq!(bucket.now.0.is_empty(), model.is_empty(), "program {program}");
                if let Some(first) = bucket.now.get(0) {
                    assert_eq!(first.chained(), others, "program {program}");
                } else {
                    assert!(!others, "program {program}");
                }
            }
        }
    }
}
