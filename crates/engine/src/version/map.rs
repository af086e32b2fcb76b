//! The map of a file: where each piece of it is, and whether anybody else sees the same blocks. In pages, so that a
//! caller can stop between them.
//!
//! One scan of a segment meets the entries of every version in it, newest first: those of the path are laid over each other,
//! and those of other versions say what others see ([`super::others`]). Where that is the same everywhere (somebody holds
//! the version), nothing newer need be known: entries beside the path are leapt over, and all that are older than what covers
//! the segment. Behind the nearest keyframe ([`super::keyframe`]) nothing of the path is looked at, only what others may see in
//! part.

use varve_format::record::extent::{CODEC_NONE, DataKey, Extent, ExtentKind, SEGMENT_MAX};
use varve_format::record::keyframe::KeyframeRun;
use varve_format::record::shares::{SharedRun, shares_key};
use varve_format::{BLOCK_BYTES, Corrupt, PoolAddr, SEGMENT_BYTES, TreeId, VersionKey};

use super::extents::below;
use super::family::Blocks;
use super::keyframe::{self, Passed, Pieces};
use super::others::Others;
use super::path::Path;
use super::pending::record;
use super::resolve::{FILE_END, scan};
use super::{Holder, Planted, Read, Result, planted};
use crate::EngineError;

const BLOCK: u64 = BLOCK_BYTES as u64;
/// Entries looked at before a page ends, at the end of a segment.
const LOOKS_MAX: usize = 1 << 18;
/// So many entries in a row that say nothing make the scan leap over the rest of them.
const LEAP_ENTRIES: u32 = 16;
/// Segments that are read ahead, at most.
const AHEAD_SEGMENTS_MAX: u64 = 32;

/// A piece of a file, and who sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MapPiece {
    /// First byte of the file, a multiple of the block size.
    pub offset: u64,
    /// Length in bytes, a multiple of the block size.
    pub len: u64,
    /// Data, space set aside, or nothing.
    pub kind: ExtentKind,
    /// Address of its first byte in the pool; null unless it is data.
    pub addr: PoolAddr,
    /// Whether another holder sees the same blocks (or has the same space set aside), or this one sees them in another
    /// place, too. False of holes.
    pub shared: bool,
    /// Of data that nobody else sees through the same extent: how many extents name these blocks, this one included. Else 0.
    pub names: u64,
}

/// A part of a map.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct MapPage {
    /// Pieces in order, without gaps. Neighbours inside a page are joined.
    pub pieces: Vec<MapPiece>,
    /// Where the next page begins: the end of the last piece. The map ends when this is the end that was asked for.
    pub next: u64,
}

/// What is known of the blocks that a version has.
enum Sight {
    /// The same of all of them.
    All(bool),
    /// The same of all that one version has: by place on the path.
    Steps(Vec<bool>),
    /// It depends on the place for some versions of the path.
    Places(Box<Watch>),
}

/// What has to be looked at to tell what others see of a place.
struct Watch {
    others: Others,
    /// The oldest version of the path of which it is not the same everywhere. What is stored in front of it matters.
    oldest: VersionKey,
    /// The newest version that matters: what is stored in front of that is in front of somebody else, too.
    newest: VersionKey,
    /// What others see of all versions of the path that are older than `oldest`, if it is the same.
    beneath: Option<bool>,
}

/// The map of the bytes [`from`, `to`) of what `holder` sees, in whole blocks: the first page of it, which ends behind about
/// `pieces_max` pieces, at the end of a segment. `record_shared`: others see the very record that `holder` is from, and so
/// everything. Exact when the reaper is idle; what it has not come to yet counts as seen. Reads all version records of the
/// family, unless `holder` shares its version or is alone; then one scan.
///
/// # Errors
/// [`EngineError::Corrupt`] for a record or an entry that cannot be.
pub fn map(
    read: &dyn Read,
    holder: Holder,
    record_shared: bool,
    from: u64,
    to: u64,
    pieces_max: usize,
) -> Result<MapPage> {
    let path = Path::load(read, holder)?;
    let from = from.min(FILE_END) / BLOCK * BLOCK;
    let to = to.min(FILE_END).next_multiple_of(BLOCK);
    let page = MapPage { pieces: Vec::new(), next: from };
    if from >= to {
        return Ok(page);
    }
    let sight = sight(read, holder, &path, record_shared)?;
    let (segment, elsewhere) = (from / SEGMENT_BYTES, Elsewhere::default());
    let found = InOrder::default();
    let (own, ahead, window) = (Vec::new(), 0, 0);
    let mut walk = Walk { path, sight, page, from, to, segment, found, own, elsewhere, ahead, window };
    walk.run(read, pieces_max)?;
    Ok(walk.page)
}

/// What can be said before looking at any place.
fn sight(read: &dyn Read, holder: Holder, path: &Path, record_shared: bool) -> Result<Sight> {
    if record_shared || path.sole() {
        return Ok(Sight::All(record_shared));
    }
    if record(read, holder.family, holder.version)?.refs > 1 {
        return Ok(Sight::All(true));
    }
    let others = Others::load(read, holder)?;
    let steps: Option<Vec<bool>> = (0..path.versions()).map(|at| others.always(path.step(at).key)).collect();
    Ok(match steps {
        Some(steps) if steps.iter().all(|shared| *shared == steps[0]) => Sight::All(steps[0]),
        Some(steps) => Sight::Steps(steps),
        None => {
            let unknown = |key: &VersionKey| others.always(*key).is_none();
            // Keys fall along the path.
            let oldest = (0..path.versions()).rev().find(|at| unknown(&path.step(*at).key));
            let place = oldest.unwrap_or(0);
            let mut older = (place + 1..path.versions()).map(|at| others.always(path.step(at).key));
            let first = older.next().flatten();
            let beneath = first.filter(|shared| older.all(|other| other == Some(*shared)));
            let watched: Vec<VersionKey> = (0..=place).map(|at| path.step(at).key).filter(unknown).collect();
            let (oldest, newest) = (path.step(place).key, others.newest(&watched));
            Sight::Places(Box::new(Watch { others, oldest, newest, beneath }))
        }
    })
}

/// Blocks that more than one extent names, as they are asked for: a run of blocks that are, or of blocks that are not.
#[derive(Clone, Copy, Default)]
pub(super) struct Elsewhere {
    from: u64,
    to: u64,
    names: u64,
}

impl Elsewhere {
    /// How many extents name `block`, which is one's, and in front of which block that ends.
    pub(super) fn look(&mut self, read: &dyn Read, block: u64) -> Result<(u64, u64)> {
        if !(self.from..self.to).contains(&block) {
            let wrong = |why| EngineError::corrupt("the counts of shared blocks", why);
            let before = read.last_at_or_before(TreeId::SHARES, &shares_key(block))?;
            let before =
                before.map(|(key, value)| SharedRun::decode(&key, &value).map_err(wrong)).transpose()?;
            *self = match before.filter(|run| block < run.end()) {
                Some(run) => Elsewhere { from: run.first, to: run.end(), names: run.more.saturating_add(1) },
                None => {
                    let mut next = Ok(u64::MAX);
                    read.scan(TreeId::SHARES, &shares_key(block), &mut |key, value| {
                        next = SharedRun::decode(key, value).map(|run| run.first).map_err(wrong);
                        false
                    })?;
                    Elsewhere { from: block, to: next?, names: 1 }
                }
            };
        }
        Ok((self.names, self.to))
    }
}

/// What is to be seen of an entry of a version of the path.
#[derive(Clone, Copy)]
struct Found {
    /// In blocks of the segment.
    low: u16,
    high: u16,
    kind: ExtentKind,
    /// Of block `low`.
    addr: PoolAddr,
    /// The place on the path of its version, or of one in front of that, of which as much can be seen.
    step: u32,
    /// The key of its version.
    owner: VersionKey,
}

impl Found {
    fn blocks(&self) -> Blocks {
        match (usize::from(self.low), usize::from(self.high)) {
            (low, high) if low + 1 == high => Blocks::one(low),
            (low, high) => Blocks::range(low, high),
        }
    }
}

/// Pieces of a segment that do not overlap, as they were met; given back in order of their places, without sorting them.
struct InOrder {
    pieces: Vec<Found>,
    /// Whether they came in order.
    ordered: bool,
    upto: u16,
    /// First blocks of the pieces, and of each the number of its piece.
    starts: Blocks,
    numbers: [u8; 256],
}

impl Default for InOrder {
    fn default() -> InOrder {
        InOrder { pieces: Vec::new(), ordered: true, upto: 0, starts: Blocks::NONE, numbers: [0; 256] }
    }
}

impl InOrder {
    fn push(&mut self, piece: Found) {
        let low = usize::from(piece.low);
        self.ordered &= piece.low >= self.upto;
        self.upto = piece.high;
        self.starts = self.starts.or(Blocks::one(low));
        self.numbers[low] = self.pieces.len() as u8;
        self.pieces.push(piece);
    }
    /// The pieces, in order of their places.
    fn iter(&self) -> impl Iterator<Item = &Found> {
        let mut starts = self.starts;
        (0..self.pieces.len()).map_while(move |number| {
            let number = if self.ordered { number } else { self.numbers[starts.take_first()?].into() };
            self.pieces.get(number)
        })
    }
    fn clear(&mut self) {
        self.pieces.clear();
        (self.ordered, self.upto, self.starts) = (true, 0, Blocks::NONE);
    }
}

struct Walk {
    path: Path,
    sight: Sight,
    page: MapPage,
    from: u64,
    to: u64,
    /// This segment, and what can be seen in it of what was met.
    segment: u64,
    found: InOrder,
    own: Vec<(VersionKey, Blocks)>,
    elsewhere: Elsewhere,
    /// Segments in front of this one have been read ahead, so many the last time.
    ahead: u64,
    window: u64,
}

impl Walk {
    fn run(&mut self, read: &dyn Read, pieces_max: usize) -> Result<()> {
        let watched = match &self.sight {
            Sight::Places(watch) => Some((watch.oldest, watch.newest)),
            _ => None,
        };
        let head = self.path.step(0).key;
        let newest = watched.map_or(head, |(_, newest)| newest.max(head));
        let versions = self.path.versions();
        // Nothing lies over anything.
        let plain = versions == 1 && watched.is_none();
        let family = self.path.family();
        let start = |segment: u64, version| {
            (segment <= SEGMENT_MAX).then_some(DataKey { family, segment, version, offset: 0 })
        };
        let mut next = start(self.segment, newest);
        let (mut at, mut looks, mut full, mut overlap) = (0, 0, false, false);
        // The version the last entry was of, and where that ended.
        let (mut last, mut end) = (None, 0);
        // Blocks of the segment that no entry met so far covers, those of the last one's version that can be seen, and whether
        // others may see what depends on the place in it.
        let (mut left, mut visible, mut watches) = (self.wanted(), Blocks::NONE, false);
        // Of the segment that was entered last.
        let (mut entered, mut frame, mut passed) = (None, None, Passed::new(read, &self.path));
        let (mut laid, mut pieces) = (false, Pieces::default());
        while let Some(begin) = next.take() {
            let (mut foreign, mut failed) = (0, Ok(()));
            scan(read, &begin, |key, extent| {
                if key.segment != self.segment {
                    if let Err(error) = self.end_of_segment(read) {
                        failed = Err(error);
                        return false;
                    }
                    // Not after a hole alone: it may have no end for a long time.
                    full = looks > 0 && (self.page.pieces.len() >= pieces_max || looks >= LOOKS_MAX);
                    (self.segment, at, foreign, last) = (key.segment, 0, 0, None);
                    left = self.wanted();
                }
                if full || key.segment * SEGMENT_BYTES >= self.to {
                    return false;
                }
                if !plain && entered != Some(key.segment) {
                    let ahead = if entered.is_some() { self.read_ahead(read, key.segment) } else { Ok(()) };
                    (entered, laid) = (Some(key.segment), false);
                    passed.leave(&self.path, key.segment);
                    let found = keyframe::nearest(read, &self.path, 0, key.segment, &mut pieces);
                    match ahead.and(found) {
                        Ok(found) => frame = found,
                        Err(error) => {
                            failed = Err(error);
                            return false;
                        }
                    }
                }
                looks += 1;
                if let Some(version) = frame.take_if(|version| key.version <= *version) {
                    self.lay(version, &pieces.runs, left);
                    (left, foreign, laid) = (Blocks::NONE, LEAP_ENTRIES, true);
                }
                if last != Some(key.version) {
                    (last, end) = (Some(key.version), 0);
                    at = self.path.first_at_most(at, key.version);
                    visible = Blocks::NONE;
                    if at < versions && self.path.step(at).key == key.version {
                        visible = below(self.path.step(at).visible, key.segment);
                    }
                    watches =
                        watched.is_some_and(|(oldest, newest)| (oldest..=newest).contains(&key.version));
                    if watches {
                        self.own.push((key.version, Blocks::NONE));
                    }
                }
                if !watches && !laid {
                    passed.pass(at);
                }
                overlap |= key.offset < end;
                end = key.offset + extent.len;
                let (low, high) = (key.offset / BLOCK as u32, end / BLOCK as u32);
                let piece = found(low as u16, high as u16, at as u32, key.version, &extent);
                if plain && left == Blocks::ALL && visible == Blocks::ALL {
                    foreign = 0;
                    self.found.push(piece);
                    return true;
                }
                let whole = piece.blocks();
                if watches && let Some((_, own)) = self.own.last_mut() {
                    *own = own.or(whole);
                }
                let seen = whole.and(visible).and(left);
                if !seen.is_empty() {
                    (left, foreign) = (left.without(seen), 0);
                    self.see(&piece, whole, seen);
                    return true;
                }
                let covered = left.is_empty();
                foreign += 1;
                if at < versions && self.path.step(at).key == key.version && !covered {
                    foreign = 0;
                }
                if watches || foreign < LEAP_ENTRIES {
                    return true;
                }
                // Those that matter to others may all be older.
                let watched = watched.map(|(_, newest)| newest).filter(|newest| *newest < key.version);
                let older = (at < versions && !covered).then(|| self.path.step(at).key);
                next = match older.max(watched) {
                    Some(older) => start(key.segment, older),
                    // All that is left of this segment is older than the path, or than what covers it.
                    None => start(key.segment + 1, newest),
                };
                false
            })?;
            failed?;
        }
        passed.leave(&self.path, self.segment);
        if overlap {
            let why = Corrupt { what: "extents that overlap", at: 0 };
            return Err(EngineError::corrupt(format!("the data of family {}", family.0), why));
        }
        if full {
            return Ok(());
        }
        if self.segment * SEGMENT_BYTES < self.to {
            self.end_of_segment(read)?;
        }
        self.hole_to(self.to);
        Ok(())
    }

    /// Has what the segments from here on begin with read together, as far as it is not in memory: twice as many each time.
    fn read_ahead(&mut self, read: &dyn Read, segment: u64) -> Result<()> {
        if segment < self.ahead {
            return Ok(());
        }
        self.window = (2 * self.window).clamp(2, AHEAD_SEGMENTS_MAX);
        self.ahead = (segment + self.window).min(self.to.div_ceil(SEGMENT_BYTES));
        let (family, version) = (self.path.family(), self.path.step(0).key);
        let key = |segment| DataKey { family, segment, version, offset: 0 }.encode().to_vec();
        read.read_ahead(TreeId::EXTENTS, &(segment..self.ahead).map(key).collect::<Vec<_>>())?;
        keyframe::read_ahead(read, &self.path, segment..self.ahead)
    }

    /// Adds what a keyframe of this segment, at this version, shows of the blocks that are `left`.
    fn lay(&mut self, version: VersionKey, runs: &[KeyframeRun], left: Blocks) {
        let step = self.path.first_at_most(0, version) as u32;
        for run in runs {
            let (low, high) = (u16::from(run.first), run.end());
            let (kind, addr) = match run.block {
                0 => (ExtentKind::Reserved, PoolAddr::NULL),
                block => (ExtentKind::Data, PoolAddr::from_block(block)),
            };
            let piece = Found { low, high, kind, addr, step, owner: run.owner };
            let whole = piece.blocks();
            let seen = whole.and(left);
            if !seen.is_empty() {
                self.see(&piece, whole, seen);
            }
        }
    }

    /// Adds the blocks `seen` of a piece that has the blocks `whole`.
    fn see(&mut self, piece: &Found, whole: Blocks, seen: Blocks) {
        if seen == whole {
            return self.found.push(*piece);
        }
        let (low, high) = (usize::from(piece.low), usize::from(piece.high));
        let mut at = low;
        while at < high {
            let end = seen.run_end(at, high);
            if seen.has(at) {
                let addr = PoolAddr(piece.addr.0 + (at - low) as u64 * BLOCK);
                self.found.push(Found { low: at as u16, high: end as u16, addr, ..*piece });
            }
            at = end;
        }
    }

    /// Adds what was met in this segment to the page, and a hole up to the segment's end.
    fn end_of_segment(&mut self, read: &dyn Read) -> Result<()> {
        let base = self.segment * SEGMENT_BYTES;
        if let Sight::Places(watch) = &mut self.sight {
            watch.others.look(&self.own, &|limit| below(limit, base / SEGMENT_BYTES));
        }
        let mut found = std::mem::take(&mut self.found);
        for piece in found.iter() {
            let (mut low, high) = (usize::from(piece.low), usize::from(piece.high));
            while low < high {
                let (mut shared, mut end) = self.shared(piece, low, high, base);
                let addr = piece.addr.0 + (low - usize::from(piece.low)) as u64 * BLOCK;
                let addr = if piece.kind == ExtentKind::Data { PoolAddr(addr) } else { PoolAddr::NULL };
                let mut names = 0;
                if !shared && piece.kind == ExtentKind::Data {
                    let upto;
                    (names, upto) = self.elsewhere.look(read, addr.block())?;
                    shared = names > 1;
                    let blocks = usize::try_from(upto - addr.block()).unwrap_or(usize::MAX);
                    end = end.min(low.saturating_add(blocks));
                }
                self.hole_to(base + low as u64 * BLOCK);
                self.add((end - low) as u64 * BLOCK, piece.kind, addr, (shared, names));
                low = end;
            }
        }
        found.clear();
        self.found = found;
        self.own.clear();
        self.hole_to((base + SEGMENT_BYTES).min(self.to));
        Ok(())
    }

    /// The blocks of this segment that are asked for.
    fn wanted(&self) -> Blocks {
        let base = self.segment * SEGMENT_BYTES;
        let block = |byte: u64| (byte.saturating_sub(base).min(SEGMENT_BYTES) / BLOCK) as usize;
        Blocks::range(block(self.from), block(self.to))
    }

    /// Whether others see what `piece` has from block `low` on, and up to which block that is so.
    fn shared(&self, piece: &Found, low: usize, high: usize, base: u64) -> (bool, usize) {
        match &self.sight {
            _ if piece.kind == ExtentKind::Hole => (false, high),
            Sight::All(shared) => (*shared, high),
            Sight::Steps(steps) => {
                let step = self.path.first_at_most(piece.step as usize, piece.owner);
                // Of a version that does not exist nothing is said: it is left to the check.
                (steps.get(step).copied().unwrap_or(true), high)
            }
            Sight::Places(watch) => {
                if let Some(shared) = watch.beneath.filter(|_| piece.owner < watch.oldest) {
                    return (shared, high);
                }
                let seen = watch.others.seen(piece.owner, &|limit| below(limit, base / SEGMENT_BYTES));
                let whole = Blocks::range(low, high);
                if seen.and(whole) == whole {
                    return (true, high);
                }
                if planted(Planted::SharedInPart) {
                    return (!seen.and(whole).is_empty(), high);
                }
                (seen.has(low), seen.run_end(low, high))
            }
        }
    }

    fn hole_to(&mut self, end: u64) {
        if end > self.page.next {
            self.add(end - self.page.next, ExtentKind::Hole, PoolAddr::NULL, (false, 0));
        }
    }

    fn add(&mut self, len: u64, kind: ExtentKind, addr: PoolAddr, (shared, names): (bool, u64)) {
        let offset = self.page.next;
        self.page.next += len;
        if let Some(last) = self.page.pieces.last_mut() {
            let follows = kind != ExtentKind::Data || last.addr.0 + last.len == addr.0;
            if follows && (last.kind, last.shared, last.names) == (kind, shared, names) {
                last.len += len;
                return;
            }
        }
        self.page.pieces.push(MapPiece { offset, len, kind, addr, shared, names });
    }
}

fn found(low: u16, high: u16, step: u32, owner: VersionKey, extent: &Extent) -> Found {
    debug_assert_eq!(extent.codec, CODEC_NONE, "the only codec there is");
    let addr = PoolAddr(extent.addr.0 + u64::from(extent.offset));
    Found { low, high, kind: extent.kind, addr, step, owner }
}
