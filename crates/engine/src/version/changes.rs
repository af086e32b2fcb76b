//! In what ranges two holders of data differ, from where their versions part: it costs what was written since, not what the
//! files have. Ranges are compared by where they are, so bytes that were written again count as changed.

use varve_format::record::extent::SEGMENT_MAX;
use varve_format::{Corrupt, SEGMENT_BYTES, TreeId};

use super::parting::{Parting, places};
use super::path::Path;
use super::resolve::{FILE_END, resolve_upto};
use super::{Holder, Mapped, Mapping, Planted, Read, Result, planted};
use crate::EngineError;

/// Pieces of a range looked at in one go.
const PIECES_MAX: usize = 512;
/// Segments looked up in one go.
const SEGMENTS_MAX: usize = 256;

/// A range in which the newer of two files differs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DataChange {
    /// First byte, a multiple of the block size.
    pub offset: u64,
    /// Length in bytes, a multiple of the block size.
    pub len: u64,
    /// Whether the newer one reads as zeros there (a hole, or space set aside).
    pub zeros: bool,
}

/// A part of the differences between two files.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct DataChanges {
    /// Ranges in order.
    pub ranges: Vec<DataChange>,
    /// Where to go on; `None`: that is all.
    pub next: Option<u64>,
}

/// Where, from byte `from` on, `new` differs from `old`: about `ranges_max` ranges. Holders of one family cost what was written
/// since they parted; others, all of both. `None` for either: it has nothing at all.
///
/// # Errors
/// [`EngineError::Corrupt`] for a record or an entry that cannot be.
pub fn data_changes(
    read: &dyn Read,
    old: Option<Holder>,
    new: Option<Holder>,
    from: u64,
    ranges_max: usize,
) -> Result<DataChanges> {
    let old_path = old.map(|holder| Path::load(read, holder)).transpose()?;
    let new_path = new.map(|holder| Path::load(read, holder)).transpose()?;
    let mut walk =
        Compare { read, old: old_path, new: new_path, ranges: Vec::new(), ranges_max: ranges_max.max(1) };
    let related = old.zip(new).filter(|(old, new)| old.family == new.family);
    let next = match related {
        None => walk.range(from, FILE_END)?,
        Some((old, new)) if old.version == new.version => None,
        Some(_) => walk.related(from)?,
    };
    Ok(DataChanges { ranges: walk.ranges, next })
}

struct Compare<'a> {
    read: &'a dyn Read,
    old: Option<Path>,
    new: Option<Path>,
    ranges: Vec<DataChange>,
    ranges_max: usize,
}

impl Compare<'_> {
    /// Compares what may differ of two holders of one family; says where to go on.
    fn related(&mut self, from: u64) -> Result<Option<u64>> {
        let (Some(old), Some(new)) = (&self.old, &self.new) else { return Ok(None) };
        let (family, Parting { keys, limits }) = (old.family(), Parting::of(old, new)?);
        let limits = if planted(Planted::LimitsUnseen) { (FILE_END, FILE_END) } else { limits };
        let (low, high) = (limits.0.min(FILE_END), limits.1.min(FILE_END));
        let mut at = from;
        loop {
            let segment = (at / SEGMENT_BYTES).to_be_bytes();
            let found = places(self.read, family, &keys, TreeId::EXTENTS, &segment, SEGMENTS_MAX)?;
            let last = found.len() < SEGMENTS_MAX;
            for place in found {
                let segment = place.as_slice().try_into().ok().map(u64::from_be_bytes);
                let segment = segment.filter(|segment| *segment <= SEGMENT_MAX).ok_or_else(|| {
                    let why = Corrupt { what: "place that is no segment", at: 0 };
                    EngineError::corrupt(format!("the index of family {}", family.0), why)
                })?;
                let begin = segment.saturating_mul(SEGMENT_BYTES).min(FILE_END).max(at);
                let end = segment.saturating_add(1).saturating_mul(SEGMENT_BYTES).min(FILE_END);
                for (begin, end) in [(low.max(at), high.min(begin)), (begin, end)] {
                    if begin < end {
                        if let Some(next) = self.range(begin, end)? {
                            return Ok(Some(next));
                        }
                        at = end;
                    }
                }
            }
            if last {
                return self.range(low.max(at), high);
            }
        }
    }

    /// Compares all of a range; says where to go on if there are too many differences.
    fn range(&mut self, from: u64, to: u64) -> Result<Option<u64>> {
        let mut at = from;
        while at < to {
            let look = |path: &Option<Path>| match path {
                Some(path) => resolve_upto(self.read, path, at, to, PIECES_MAX),
                None => Ok(vec![Mapped { offset: at, len: to - at, what: Mapping::Hole }]),
            };
            let (old, new) = (look(&self.old)?, look(&self.new)?);
            let end = |pieces: &[Mapped]| pieces.last().map_or(to, |last| last.offset + last.len);
            let upto = end(&old).min(end(&new));
            let mut olds = old.iter();
            let Some(mut before) = olds.next() else { break };
            for piece in &new {
                let (mut here, end) = (piece.offset.max(at), (piece.offset + piece.len).min(upto));
                while here < end {
                    while before.offset + before.len <= here {
                        let Some(next) = olds.next() else { break };
                        before = next;
                    }
                    let same_to = end.min((before.offset + before.len).max(here + 1));
                    if !same(before, piece, here) {
                        self.add(here, same_to - here, !matches!(piece.what, Mapping::Data { .. }));
                    }
                    here = same_to;
                }
            }
            at = upto;
            if self.ranges.len() >= self.ranges_max && at < FILE_END {
                return Ok(Some(at));
            }
        }
        Ok(None)
    }

    fn add(&mut self, offset: u64, len: u64, zeros: bool) {
        match self.ranges.last_mut() {
            Some(last) if last.offset + last.len == offset && last.zeros == zeros => last.len += len,
            _ => self.ranges.push(DataChange { offset, len, zeros }),
        }
    }
}

/// Whether two pieces show the same at byte `at`, which lies in both, and so wherever both are.
fn same(a: &Mapped, b: &Mapped, at: u64) -> bool {
    match (a.what, b.what) {
        (Mapping::Data { addr: x, .. }, Mapping::Data { addr: y, .. }) => {
            x.0 + (at - a.offset) == y.0 + (at - b.offset)
        }
        (Mapping::Data { .. }, _) | (_, Mapping::Data { .. }) => false,
        _ => true,
    }
}
