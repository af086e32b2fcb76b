//! What a holder of a version sees of a versioned map, and of which version it is: the read rule of SPEC.md, "Records",
//! on what is stored, without the engine. So what the engine would serve can be held against it.
//!
//! A [`Way`] leads from the holder's version to the root of its family. Of the entries at one key but for the version, the
//! nearest of the way counts, and an empty one says that there is nothing; of extents, each version is seen below the smallest
//! limit met before it, and the nearest covers the others.

use anyhow::{Context, Result, anyhow, bail};
use varve_format::record::extent::{self, DataKey, Extent};
use varve_format::record::version::{self, NO_LIMIT, VersionRecord};
use varve_format::{FamilyId, SEGMENT_BYTES, TreeId, VersionId, VersionKey};

use super::doc::{Doc, map};
use super::records;
use super::state::Entries;

/// Bytes of the version key at the end of the keys of namespaces.
const VERSION_BYTES: usize = 8;
/// So many extents of other versions in a row make the scan leap over the rest of them.
const LEAP_ENTRIES: u32 = 64;

/// A version on the way.
pub struct Step {
    pub id: VersionId,
    /// What its entries carry.
    pub key: VersionKey,
    /// Extents of it are seen below this byte of the file.
    visible: u64,
    record: VersionRecord,
    /// It has a record: it is not the only one of its family.
    stored: bool,
}

/// The versions that a holder sees, nearest first. Ids and keys fall.
pub struct Way {
    pub family: FamilyId,
    pub steps: Vec<Step>,
}

/// An entry that a holder sees, or what hides it.
pub struct Seen {
    /// Its whole key.
    pub key: Vec<u8>,
    /// Place of its version on the way.
    pub at: usize,
    /// Empty: the version says that there is nothing here, whatever older ones have.
    pub value: Vec<u8>,
}

/// A piece of a file, from one extent.
pub struct Piece {
    /// First byte of the file.
    pub offset: u64,
    pub extent: Extent,
    /// The extent's whole key.
    pub key: Vec<u8>,
    /// Place of its version on the way.
    pub at: usize,
}

impl Way {
    /// The way from `id` to the root of `family`.
    pub fn load(entries: &dyn Entries, family: FamilyId, id: VersionId) -> Result<Way> {
        let mut way = Way { family, steps: Vec::new() };
        let (mut next, mut visible) = (Some(id), NO_LIMIT);
        while let Some(id) = next {
            let (record, stored) = record(entries, family, id)?;
            // What is not so may go round in a circle, and scans look for keys that fall.
            let last = way.steps.last().map_or((u64::MAX, u64::MAX), |last| (last.id.0, last.key.0));
            if id.0 >= last.0 || record.key.0 >= last.1 {
                bail!(
                    "version {} of family {} is not older than the one that was opened on it",
                    id.0,
                    family.0
                );
            }
            way.steps.push(Step { id, key: record.key, visible, record, stored });
            (next, visible) = (record.parent, visible.min(record.limit));
        }
        Ok(way)
    }

    /// Whether what belongs to the version at this place was there before the holder's own was opened.
    pub fn inherited(&self, at: usize) -> bool {
        at > 0
    }

    /// The place of the version with this key.
    fn place(&self, key: VersionKey) -> Option<usize> {
        self.steps.binary_search_by(|step| key.cmp(&step.key)).ok()
    }

    /// Where an entry lies: `{ "key", "version", "version_key", "inherited" }`.
    pub fn origin(&self, key: &[u8], at: usize) -> Doc {
        let step = &self.steps[at];
        map! {
            "key": Doc::hex(key), "version": step.id.0, "version_key": step.key.0, "inherited": self.inherited(at),
        }
    }

    /// The first versions of the way.
    pub fn describe(&self, count_max: usize) -> Vec<Doc> {
        let each = |step: &Step| {
            let mut doc = map! {
                "version": step.id.0, "stored": step.stored,
                "visible_bytes": (step.visible != NO_LIMIT).then_some(step.visible),
            };
            doc.extend(records::version_record(&step.record));
            doc
        };
        self.steps.iter().take(count_max).map(each).collect()
    }
}

/// The record of a version, and whether it is stored: the only version of a family needs none.
fn record(entries: &dyn Entries, family: FamilyId, id: VersionId) -> Result<(VersionRecord, bool)> {
    let what = || format!("version {} of family {}", id.0, family.0);
    if let Some(value) = entries.get(TreeId::VERSIONS, &version::encode_key(family, id))? {
        let record = VersionRecord::decode(&value).map_err(|corrupt| anyhow!("{}: {corrupt}", what()))?;
        return Ok((record, true));
    }
    let (prefix, mut has_records) = (family.0.to_be_bytes(), false);
    entries.scan(TreeId::VERSIONS, &prefix, &mut |key, _| {
        has_records = key.starts_with(&prefix);
        false
    })?;
    if has_records && id.0 != family.0 {
        bail!("{} has no record, though others of its family have; varve check says more", what());
    }
    Ok((VersionRecord::implicit(family), false))
}

/// What the holder sees at `prefix` of a tree of namespaces: a whole key but for the version. `None`: no version of the way
/// has anything there.
pub fn find(entries: &dyn Entries, way: &Way, tree: TreeId, prefix: &[u8]) -> Result<Option<Seen>> {
    let mut found = None;
    scan(entries, way, tree, prefix, &mut |seen| {
        found = Some(seen);
        Ok(false)
    })?;
    Ok(found.filter(|seen| seen.key.len() == prefix.len() + VERSION_BYTES))
}

/// Calls `each` with the nearest entry at every key that begins with `prefix`, empty ones too, until it returns false.
pub fn scan(
    entries: &dyn Entries,
    way: &Way,
    tree: TreeId,
    prefix: &[u8],
    each: &mut dyn FnMut(Seen) -> Result<bool>,
) -> Result<()> {
    let (mut done, mut failed) = (Vec::new(), None);
    entries.scan(tree, prefix, &mut |key, value| {
        if !key.starts_with(prefix) {
            return false;
        }
        let Some((place, version)) = key.split_last_chunk::<VERSION_BYTES>() else { return true };
        let version = VersionKey(!u64::from_be_bytes(*version));
        let Some(at) = way.place(version).filter(|_| place != done) else { return true };
        done = place.to_vec();
        each(Seen { key: key.to_vec(), at, value: value.to_vec() }).unwrap_or_else(|error| {
            failed = Some(error);
            false
        })
    })?;
    failed.map_or(Ok(()), Err)
}

/// The pieces of a file as the holder sees them, in order, at most `pieces_max`; and whether there are more.
pub fn pieces(entries: &dyn Entries, way: &Way, pieces_max: usize) -> Result<(Vec<Piece>, bool)> {
    let prefix = extent::family_prefix(way.family);
    let (mut pieces, mut overlay) = (Vec::new(), Vec::<Piece>::new());
    let (mut segment, mut from, mut failed) = (0, Some(prefix.to_vec()), None);
    while let Some(start) = from.take() {
        let mut foreign = 0;
        entries.scan(TreeId::EXTENTS, &start, &mut |bytes, value| {
            if !bytes.starts_with(&prefix) {
                return false;
            }
            let (key, extent) = match extent::decode_entry(bytes, value) {
                Ok(entry) => entry,
                Err(corrupt) => {
                    failed = Some(anyhow!("an extent of family {}: {corrupt}", way.family.0));
                    return false;
                }
            };
            if key.segment != segment {
                pieces.append(&mut overlay);
                segment = key.segment;
            }
            if pieces.len() > pieces_max {
                return false;
            }
            let Some(at) = way.place(key.version) else {
                foreign += 1;
                if foreign >= LEAP_ENTRIES {
                    from = behind(way, &key);
                }
                return from.is_none();
            };
            foreign = 0;
            cover(&mut overlay, &key, &extent, bytes, at, way.steps[at].visible);
            true
        })?;
    }
    if let Some(error) = failed {
        return Err(error).context("varve check says what of the file is damaged");
    }
    pieces.append(&mut overlay);
    let more = pieces.len() > pieces_max;
    pieces.truncate(pieces_max);
    Ok((pieces, more))
}

/// Where the next extents of the way's versions begin, after one of another.
fn behind(way: &Way, key: &DataKey) -> Option<Vec<u8>> {
    let older = way.steps.partition_point(|step| step.key >= key.version);
    let (segment, step) = match way.steps.get(older) {
        Some(step) => (key.segment, step),
        None => (key.segment.checked_add(1).filter(|next| *next <= extent::SEGMENT_MAX)?, way.steps.first()?),
    };
    Some(DataKey { segment, version: step.key, offset: 0, ..*key }.encode().to_vec())
}

/// Fills the gaps of one segment, whose pieces are in order, with what of an extent lies in them and in front of `visible`.
fn cover(overlay: &mut Vec<Piece>, key: &DataKey, extent: &Extent, bytes: &[u8], at: usize, visible: u64) {
    debug_assert!(u64::from(key.offset) + u64::from(extent.len) <= SEGMENT_BYTES, "a decoded entry");
    let low = key.file_offset();
    let (mut from, end) = (low, (low + u64::from(extent.len)).min(visible));
    let mut index = overlay.partition_point(|piece| piece.offset + u64::from(piece.extent.len) <= low);
    while from < end {
        let upto = match overlay.get(index) {
            Some(have) if have.offset <= from => {
                from = have.offset + u64::from(have.extent.len);
                index += 1;
                continue;
            }
            next => next.map_or(end, |next| end.min(next.offset)),
        };
        let extent = extent.piece((from - low) as u32, (upto - from) as u32);
        overlay.insert(index, Piece { offset: from, extent, key: bytes.to_vec(), at });
        (from, index) = (upto, index + 1);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use varve_format::record::inode::inode_key;
    use varve_format::{BLOCK_BYTES, InodeId, PoolAddr, Run};

    use super::*;

    const FAMILY: FamilyId = FamilyId(5);
    const BLOCK: u64 = BLOCK_BYTES as u64;

    #[derive(Default)]
    struct Made(BTreeMap<(u16, Vec<u8>), Vec<u8>>);

    impl Entries for Made {
        fn scan(&self, tree: TreeId, from: &[u8], each: &mut dyn FnMut(&[u8], &[u8]) -> bool) -> Result<()> {
            for ((of, key), value) in self.0.range((tree.0, from.to_vec())..) {
                if *of != tree.0 || !each(key, value) {
                    break;
                }
            }
            Ok(())
        }
    }

    impl Made {
        fn version(&mut self, id: u64, key: u64, parent: Option<u64>, limit: u64) {
            let record = VersionRecord {
                parent: parent.map(VersionId),
                key: VersionKey(key),
                limit,
                ..VersionRecord::implicit(FAMILY)
            };
            let at = version::encode_key(FAMILY, VersionId(id)).to_vec();
            self.0.insert((TreeId::VERSIONS.0, at), record.encode().to_vec());
        }
        fn extent(&mut self, version: u64, block: u64, blocks: u32, address: u64) {
            let offset = (block * BLOCK % SEGMENT_BYTES) as u32;
            let segment = block * BLOCK / SEGMENT_BYTES;
            let key = DataKey { family: FAMILY, segment, version: VersionKey(version), offset };
            let extent = match address {
                0 => Extent::hole(blocks * BLOCK as u32),
                _ => Extent::data(Run { addr: PoolAddr::from_block(address), blocks }),
            };
            self.0.insert((TreeId::EXTENTS.0, key.encode().to_vec()), extent.encode().to_vec());
        }
        fn point(&mut self, version: u64, value: &[u8]) {
            let key = inode_key(FAMILY, InodeId(9), VersionKey(version)).to_vec();
            self.0.insert((TreeId::INODES.0, key), value.to_vec());
        }
        /// First block, blocks, block in the pool, version key of each piece that `version` sees.
        fn pieces(&self, version: u64) -> Result<Vec<(u64, u64, u64, u64)>> {
            let way = Way::load(self, FAMILY, VersionId(version))?;
            let each = |piece: &Piece| {
                let (blocks, address) = (u64::from(piece.extent.len) / BLOCK, piece.extent.addr.block());
                (piece.offset / BLOCK, blocks, address, way.steps[piece.at].key.0)
            };
            let (pieces, more) = pieces(self, &way, 100)?;
            assert!(!more);
            Ok(pieces.iter().map(each).collect())
        }
    }

    /// Goal: of extents the nearest version's is seen, below the smallest limit in front of it, and those of versions beside the
    /// way are not, however many. Method: three versions on a way and many beside it, in two segments, from each of the three.
    #[test]
    fn extents_are_laid_over_each_other() {
        let mut made = Made::default();
        made.version(5, 5, None, NO_LIMIT);
        made.version(7, 7, Some(5), 6 * BLOCK);
        made.version(9, 9, Some(7), NO_LIMIT);
        made.version(8, 8, Some(5), NO_LIMIT);
        for block in 0..200 {
            made.extent(8, block, 1, 9000 + block);
        }
        let second = SEGMENT_BYTES / BLOCK;
        made.extent(5, 0, 8, 100);
        made.extent(5, second, 2, 200);
        made.extent(7, 2, 1, 300);
        made.extent(9, 1, 3, 400);
        made.extent(9, 5, 1, 0);
        made.extent(9, second + 1, 1, 500);
        assert_eq!(made.pieces(5).expect("it is sound"), [(0, 8, 100, 5), (second, 2, 200, 5)]);
        let seen = made.pieces(7).expect("it is sound");
        assert_eq!(seen, [(0, 2, 100, 5), (2, 1, 300, 7), (3, 3, 103, 5)]);
        let seen = made.pieces(9).expect("it is sound");
        let first = [(0, 1, 100, 5), (1, 3, 400, 9), (4, 1, 104, 5), (5, 1, 0, 9)];
        assert_eq!(seen, [&first[..], &[(second + 1, 1, 500, 9)]].concat());
        let way = Way::load(&made, FAMILY, VersionId(9)).expect("it is sound");
        let (cut, more) = pieces(&made, &way, 3).expect("it is sound");
        assert!(cut.len() == 3 && more);
    }

    /// Goal: of points the nearest version's is seen, and what it removed is told from what never was. Method: a record in the
    /// oldest version, removed in the middle, and one beside the way.
    #[test]
    fn the_nearest_point_counts() {
        let mut made = Made::default();
        made.version(5, 5, None, NO_LIMIT);
        made.version(7, 7, Some(5), NO_LIMIT);
        made.version(9, 9, Some(7), NO_LIMIT);
        made.version(8, 8, Some(5), NO_LIMIT);
        made.point(5, b"old");
        made.point(7, b"");
        made.point(8, b"beside");
        let seen = |made: &Made, version| {
            let way = Way::load(made, FAMILY, VersionId(version)).expect("it is sound");
            let prefix = &inode_key(FAMILY, InodeId(9), VersionKey(0))[..16];
            let seen = find(made, &way, TreeId::INODES, prefix).expect("it is sound");
            seen.map(|seen| (way.steps[seen.at].id.0, seen.value, way.inherited(seen.at)))
        };
        assert_eq!(seen(&made, 5), Some((5, b"old".to_vec(), false)));
        assert_eq!(seen(&made, 9), Some((7, Vec::new(), true)));
        assert_eq!(seen(&made, 8), Some((8, b"beside".to_vec(), false)));
        made.0.clear();
        made.point(5, b"only");
        assert_eq!(seen(&made, 5), Some((5, b"only".to_vec(), false)), "a family without records");
    }

    /// Goal: records that cannot be end in a sentence, not in a circle. Method: a version that is its own ancestor, keys that
    /// do not fall, a parent without a record, a record of the wrong length, an extent that is none.
    #[test]
    fn what_cannot_be_is_refused() {
        let refused = |made: &Made, version, word: &str| {
            let error = format!("{:#}", made.pieces(version).expect_err(word));
            assert!(error.contains(word), "{error}");
        };
        let mut made = Made::default();
        made.version(9, 9, Some(9), NO_LIMIT);
        refused(&made, 9, "not older");
        made.version(7, 9, None, NO_LIMIT);
        made.version(9, 9, Some(7), NO_LIMIT);
        refused(&made, 9, "not older");
        made.version(9, 9, Some(6), NO_LIMIT);
        refused(&made, 9, "version 6 of family 5 has no record");
        let at = version::encode_key(FAMILY, VersionId(9)).to_vec();
        made.0.insert((TreeId::VERSIONS.0, at), vec![1]);
        refused(&made, 9, "version 9 of family 5");
        let mut made = Made::default();
        made.extent(5, 0, 1, 10);
        made.0.values_mut().for_each(|value| value.push(0));
        refused(&made, 5, "varve check");
    }
}
