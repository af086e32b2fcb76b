//! Keyframes: what one version sees in a segment, stored in one place, so that whoever looks at an old file need not pass what a
//! thousand versions have written there.
//!
//! A keyframe owns nothing and says nothing that the entries do not say. It is true of its version as long as nobody changes
//! an entry of that segment whose version key is at most its own: older entries are all that its version can see, and the
//! way from there to the root changes only by versions that have nothing (left) in the segment, or by limits. So:
//!
//! 1. Whatever puts or deletes entries takes away, in the same transaction, all keyframes of these segments whose keys are
//!    not older than the oldest version key it touches ([`outdated`]; [`crate::Store::apply`] adds it to every transaction).
//!    Who writes does so at the newest version of all, as a rule: that takes none away.
//! 2. A keyframe is made and used only where no limit of the way lies below the end of the segment. A limit goes away only
//!    when the reaper has taken away everything beyond it, entry by entry, and with that the keyframe.
//! 3. A keyframe shows something, so the last entry that it is made of does not go without it. A family without entries has
//!    none.
//!
//! Keyframes are made on demand and never by a writer: who passes many entries in a segment says so ([`Passed`]), and the
//! reaper's thread makes one at that version of the path from which on they were too many ([`make_keyframes`]). That version is
//! frozen, because another is in front of it, but nothing depends on that. What is lost of the demand costs time only. There
//! are at most [`KEYFRAMES_MAX`] in a segment. One whose version has gone is read by nobody, and stays until it has to make
//! room or what lies beneath it changes: keys are not used again.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;
use varve_format::record::extent::{Extent, ExtentKind};
use varve_format::record::keyframe::{
    KEYFRAME_KEY_BYTES, KeyframeKey, KeyframeRun, decode_piece, encode_pieces, segment_prefix,
};
use varve_format::record::version;
use varve_format::{BLOCK_BYTES, FamilyId, PoolAddr, Run, SEGMENT_BYTES, TreeId, VersionId, VersionKey};

use super::family::Blocks;
use super::path::Path;
use super::pending::State;
use super::resolve::scan_path;
use super::{Holder, Planted, Read, Result, planted};
use crate::Transaction;
use crate::key::Key;
use crate::transaction::Op;

/// Keyframes of a segment, at most.
pub(super) const KEYFRAMES_MAX: usize = if cfg!(test) { 3 } else { 16 };
/// Of the entries that are too many, this part stays in front of a keyframe that is made: those who come from versions
/// nearby use it, too.
const IN_FRONT_PART: u32 = 8;
/// Rounds of the background ([`Keyframes::rest`]) for which nobody asks a device for keyframes that has failed to read one, which
/// may take it seconds each time.
const REST_ROUNDS: u32 = 120;
/// Wishes that are kept.
const WISHES_MAX: usize = 1 << 16;

/// A wish for a keyframe: of what a version sees in a segment.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Wish {
    family: FamilyId,
    version: VersionId,
    segment: u64,
}

/// What is known of the keyframes of a store, and where some are missing.
#[derive(Debug)]
pub struct Keyframes {
    /// Whether there may be any.
    any: AtomicBool,
    /// Rounds for which none are read, made or wished for.
    resting: AtomicU32,
    /// Entries passed in a segment that are too many.
    many: u32,
    wishes: Mutex<BTreeSet<Wish>>,
    /// Keyframes made since the store was opened, and bytes of them.
    made: AtomicU64,
    made_bytes: AtomicU64,
}

impl Keyframes {
    /// Of a store in which there may be some, where whoever passes more than `many` entries in a segment wants one.
    pub(crate) fn new(many: u32) -> Keyframes {
        let (resting, made, made_bytes) = Default::default();
        Keyframes { any: AtomicBool::new(true), resting, many, wishes: Mutex::default(), made, made_bytes }
    }
    /// Before anything is applied: whether there are some.
    pub(crate) fn begin(&self, any: bool) {
        self.any.store(any, Relaxed);
    }
    /// To be told of every transaction before it becomes visible.
    pub(crate) fn note(&self, ops: &[Op]) {
        for op in ops {
            if let Op::Put { tree: TreeId::KEYFRAMES, key, value } = op {
                self.any.store(true, Relaxed);
                self.made.fetch_add(u64::from(key.last() == Some(&0)), Relaxed);
                self.made_bytes.fetch_add((key.len() + value.len()) as u64, Relaxed);
            }
        }
    }
    /// Whether there may be some for who reads.
    fn may_be_read(&self) -> bool {
        self.any.load(Relaxed) && !self.is_resting()
    }
    /// The device could not read one: they are done without for a while.
    pub fn fail(&self) {
        self.resting.store(REST_ROUNDS, Relaxed);
        self.forget();
    }
    /// One more round of the background.
    pub fn rest(&self) {
        let _ = self.resting.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1));
    }
    /// Whether they are done without for now.
    pub fn is_resting(&self) -> bool {
        self.resting.load(Relaxed) > 0
    }
    /// Keyframes made since the store was opened, and bytes of them.
    pub(crate) fn made(&self) -> (u64, u64) {
        (self.made.load(Relaxed), self.made_bytes.load(Relaxed))
    }
    /// Whether some keyframe is wanted.
    pub fn wanted(&self) -> bool {
        !self.wishes.lock().is_empty()
    }
    /// Takes up to `max` wishes for keyframes of one version: its family, its id, and the segments.
    pub fn take(&self, max: usize) -> Option<(FamilyId, VersionId, Vec<u64>)> {
        let mut wishes = self.wishes.lock();
        let first = *wishes.first()?;
        let same = |wish: &&Wish| (wish.family, wish.version) == (first.family, first.version);
        let taken: Vec<Wish> = wishes.iter().take_while(same).take(max.max(1)).copied().collect();
        for wish in &taken {
            wishes.remove(wish);
        }
        Some((first.family, first.version, taken.into_iter().map(|wish| wish.segment).collect()))
    }
    /// Forgets them.
    pub fn forget(&self) {
        self.wishes.lock().clear();
    }
}

/// The entries that are passed in a segment.
pub(super) struct Passed<'a> {
    known: Option<&'a Keyframes>,
    segment: u64,
    met: u32,
    /// The place on the path from which on they were too many.
    place: Option<usize>,
}

impl<'a> Passed<'a> {
    pub(super) fn new(read: &'a dyn Read, path: &Path) -> Passed<'a> {
        let wanted = |known: &&Keyframes| known.many < u32::MAX && !known.is_resting();
        let known = read.keyframes().filter(|known| path.versions() > 1 && wanted(known));
        Passed { known, segment: 0, met: 0, place: None }
    }
    /// One more, of the version at place `at` of the path or of one in front of it.
    pub(super) fn pass(&mut self, at: usize) {
        self.met += 1;
        if self.place.is_none()
            && at > 0
            && let Some(known) = self.known
            && self.met > known.many / IN_FRONT_PART
        {
            self.place = Some(at);
        }
    }
    /// Goes on to another segment, or to none; a wish remains if there were too many in this one.
    pub(super) fn leave(&mut self, path: &Path, next: u64) {
        let (met, place) = (std::mem::take(&mut self.met), self.place.take());
        let segment = std::mem::replace(&mut self.segment, next);
        let (Some(known), Some(place)) = (self.known, place) else { return };
        if met <= known.many || !usable(path, segment) {
            return;
        }
        // One that is about to go would take its keyframe along.
        let steps = (place..path.versions()).map(|at| path.step(at));
        let Some(step) = steps.take(64).find(|step| step.state != State::Going) else { return };
        let mut wishes = known.wishes.lock();
        if wishes.len() < WISHES_MAX {
            wishes.insert(Wish { family: path.family(), version: step.id, segment });
        }
    }
}

/// Whether keyframes may be used and made in a segment on this path: no limit lies below the end of it.
pub(super) fn usable(path: &Path, segment: u64) -> bool {
    let end = segment.saturating_add(1).saturating_mul(SEGMENT_BYTES);
    path.step(path.versions() - 1).visible >= end || planted(Planted::KeyframesUnlimited)
}

/// The nearest keyframe of a segment on the path, from place `from` on: the key of the version that sees it; `found` has what it
/// sees. One that is not whole, or cannot be had, counts as none: the entries it was made of say the same.
pub(super) fn nearest(
    read: &dyn Read,
    path: &Path,
    from: usize,
    segment: u64,
    found: &mut Pieces,
) -> Result<Option<VersionKey>> {
    let Some(known) = read.keyframes().filter(|known| known.may_be_read()) else { return Ok(None) };
    if path.versions() == 1 || from >= path.versions() || !usable(path, segment) {
        return Ok(None);
    }
    let prefix = segment_prefix(path.family(), segment);
    let (mut at, mut done) = (from, None);
    found.key = None;
    let start = KeyframeKey { family: path.family(), segment, version: path.step(from).key, piece: 0 };
    let scanned = read.scan(TreeId::KEYFRAMES, &start.encode(), &mut |key, value| {
        // What is malformed is left to the check.
        let key = if key.starts_with(&prefix) { KeyframeKey::decode(key).ok() } else { None };
        let Some(key) = key else { return false };
        at = path.first_at_most(at, key.version);
        if at == path.versions() {
            return false;
        }
        if path.step(at).key == key.version {
            done = found.add(&key, value);
        }
        done.is_none()
    });
    without_damage(known, scanned).map(|()| done)
}

/// What is lost of keyframes keeps nobody from reading. (Who changes what they are made of must take them away, and is refused.)
/// A device that fails is not asked for any more of them for a while.
fn without_damage(known: &Keyframes, read: Result<()>) -> Result<()> {
    match read {
        Err(error) if error.is_damage() => {
            tracing::debug!(%error, "read without keyframes");
            if error.may_pass() {
                known.fail();
            }
            Ok(())
        }
        read => read,
    }
}

/// Has the keyframes of these segments read together, as far as they are not in memory.
pub(super) fn read_ahead(read: &dyn Read, path: &Path, segments: Range<u64>) -> Result<()> {
    let Some(known) = read.keyframes().filter(|known| known.may_be_read()) else { return Ok(()) };
    let (family, version) = (path.family(), path.step(0).key);
    let key = |segment| KeyframeKey { family, segment, version, piece: 0 }.encode().to_vec();
    without_damage(known, read.read_ahead(TreeId::KEYFRAMES, &segments.map(key).collect::<Vec<_>>()))
}

/// The pieces of a keyframe on their way in, and the keyframe when it is whole.
#[derive(Default)]
pub(super) struct Pieces {
    key: Option<(u64, VersionKey)>,
    /// What its version sees, in order.
    pub(super) runs: Vec<KeyframeRun>,
    next: u8,
}

impl Pieces {
    /// Adds a piece; gives the key of the keyframe's version when it is whole.
    pub(super) fn add(&mut self, key: &KeyframeKey, value: &[u8]) -> Option<VersionKey> {
        if self.key != Some((key.segment, key.version)) {
            (self.key, self.next) = (Some((key.segment, key.version)), 0);
            self.runs.clear();
        }
        match decode_piece(key, value, &mut self.runs) {
            Ok(count) if self.next == key.piece => {
                self.next += 1;
                let whole = self.next == count;
                whole.then_some(key.version)
            }
            // Not from the first on, or none.
            _ => {
                self.next = u8::MAX;
                None
            }
        }
    }
}

/// The part of a run in blocks [`low`, `high`) of the segment, as an entry of its owner: first block and extent.
pub(super) fn part(run: &KeyframeRun, low: u16, high: u16) -> Option<(u16, Extent)> {
    let (from, to) = (u16::from(run.first).max(low), run.end().min(high));
    let blocks = u32::from(to.checked_sub(from).filter(|blocks| *blocks > 0)?);
    let block = run.block + u64::from(from - u16::from(run.first));
    let extent = match run.block {
        0 => Extent::reserved(blocks * BLOCK_BYTES as u32),
        _ => Extent::data(Run { addr: PoolAddr::from_block(block), blocks }),
    };
    Some((from, extent))
}

/// What the head of the path sees in a segment, from its entries, and behind the nearest keyframe from that unless
/// `entries_only`. `None`: it cannot be said by a keyframe.
pub(super) fn seen(
    read: &dyn Read,
    path: &Path,
    segment: u64,
    entries_only: bool,
) -> Result<Option<Vec<KeyframeRun>>> {
    let mut pieces = Pieces::default();
    let mut frame = if entries_only { None } else { nearest(read, path, 0, segment, &mut pieces)? };
    let (mut left, mut out, mut plain) = (Blocks::ALL, Vec::new(), true);
    let mut add = |left: &mut Blocks, low: u16, extent: Option<&Extent>, run: KeyframeRun| {
        let high = usize::from(run.end());
        let mut from = usize::from(low);
        while from < high {
            let to = left.run_end(from, high);
            if left.has(from) && extent.is_none_or(|extent| extent.kind != ExtentKind::Hole) {
                let skipped = (from - usize::from(run.first)) as u64;
                let block = if run.block == 0 { 0 } else { run.block + skipped };
                out.push(KeyframeRun { first: from as u8, more: (to - from - 1) as u8, block, ..run });
            }
            from = to;
        }
        *left = left.without(Blocks::range(usize::from(low), high));
    };
    scan_path(read, path, segment, |_, key, extent| {
        if frame.take_if(|frame| key.version <= *frame).is_some() {
            for run in &pieces.runs {
                add(&mut left, u16::from(run.first), None, *run);
            }
            return false;
        }
        let run = Run { addr: extent.addr, blocks: extent.len / BLOCK_BYTES as u32 };
        plain &= match extent.kind {
            ExtentKind::Data => extent == Extent::data(run),
            ExtentKind::Reserved => extent == Extent::reserved(extent.len),
            ExtentKind::Hole => true,
        };
        let first = (key.offset / BLOCK_BYTES as u32) as u8;
        let block = if extent.kind == ExtentKind::Data { extent.addr.block() } else { 0 };
        let run = KeyframeRun { first, more: (run.blocks - 1) as u8, block, owner: key.version };
        add(&mut left, u16::from(first), Some(&extent), run);
        !left.is_empty()
    })?;
    out.sort_unstable_by_key(|run| run.first);
    // What one version shows in pieces that lie side by side is one.
    out.dedup_by(|next, run| {
        let beside = match run.block {
            0 => next.block == 0,
            block => next.block == block + u64::from(run.more) + 1,
        };
        let joins = beside && next.owner == run.owner && run.end() == u16::from(next.first);
        run.more += if joins { next.more + 1 } else { 0 };
        joins
    });
    Ok(plain.then_some(out))
}

/// Makes keyframes of what a version sees in these segments, where there are none, in `tx`. To be applied under the lock of
/// the family, like every change of it. Says how many.
///
/// # Errors
/// [`crate::EngineError::Corrupt`] for a record or an entry that cannot be; `tx` must then be dropped.
pub fn make_keyframes(
    read: &dyn Read,
    tx: &mut Transaction,
    family: FamilyId,
    version: VersionId,
    segments: &[u64],
) -> Result<u64> {
    // It may have gone meanwhile, and all others with it.
    if read.get(TreeId::VERSIONS, &version::encode_key(family, version))?.is_none() {
        return Ok(0);
    }
    let path = Path::load(read, Holder { family, version, has_versions: true })?;
    let (key, mut made) = (path.head().key, 0);
    for &segment in segments.iter().filter(|segment| usable(&path, **segment)) {
        let there = of_segment(read, family, segment).inspect_err(|error| {
            if let Some(known) = read.keyframes().filter(|_| error.may_pass()) {
                known.fail();
            }
        })?;
        if there.iter().any(|one| one.version == key && one.piece == 0) {
            continue;
        }
        let runs = seen(read, &path, segment, false)?;
        let Some(pieces) = runs.and_then(|runs| encode_pieces(key, &runs)) else { continue };
        make_room(tx, &there, key);
        for (piece, value) in (0..).zip(pieces) {
            let at = KeyframeKey { family, segment, version: key, piece };
            tx.put_owned(TreeId::KEYFRAMES, &at.encode(), value.into());
        }
        made += 1;
    }
    Ok(made)
}

/// The pieces of the keyframes of a segment, the newest keyframe first.
fn of_segment(read: &dyn Read, family: FamilyId, segment: u64) -> Result<Vec<KeyframeKey>> {
    let (prefix, mut there) = (segment_prefix(family, segment), Vec::new());
    read.scan(TreeId::KEYFRAMES, &prefix, &mut |key, _| {
        let here = key.starts_with(&prefix);
        there.extend(KeyframeKey::decode(key).ok().filter(|_| here));
        here
    })?;
    Ok(there)
}

/// Takes away the one of `there` whose neighbours are nearest to each other, if there are too many with one at `new`.
fn make_room(tx: &mut Transaction, there: &[KeyframeKey], new: VersionKey) {
    let mut keys: Vec<VersionKey> = there.iter().map(|one| one.version).collect();
    keys.push(new);
    keys.sort_unstable();
    keys.dedup();
    if keys.len() <= KEYFRAMES_MAX {
        return;
    }
    let around = |at: usize| {
        let (before, after) = (at.checked_sub(1).map(|at| keys[at]), keys.get(at + 1));
        after.map_or(u64::MAX, |after| after.0 - before.map_or(0, |before| before.0))
    };
    let others = (0..keys.len()).filter(|at| keys[*at] != new);
    let Some(least) = others.min_by_key(|at| around(*at)) else { return };
    for one in there.iter().filter(|one| one.version == keys[least]) {
        tx.delete(TreeId::KEYFRAMES, &one.encode());
    }
}

/// What takes away the keyframes that a transaction with these `ops` makes untrue. `scan` calls its second argument with the
/// entries of the keyframes tree from the first on until it returns false.
pub(crate) fn outdated<E>(
    ops: &[Op],
    mut scan: impl FnMut(&[u8], &mut dyn FnMut(&[u8], &[u8]) -> bool) -> std::result::Result<(), E>,
) -> std::result::Result<Vec<Op>, E> {
    // Segments, and the oldest version that is touched there: inverted as it is in keys, the largest.
    const SEGMENT: usize = 16;
    const VERSION: usize = 24;
    let mut touched: Vec<[u8; VERSION]> = Vec::new();
    for op in ops {
        let (Op::Put { tree: TreeId::EXTENTS, key, .. } | Op::Delete { tree: TreeId::EXTENTS, key }) = op
        else {
            continue;
        };
        let Some(place) = key.first_chunk::<VERSION>() else { continue };
        match touched.last_mut() {
            Some(last) if last[..SEGMENT] == place[..SEGMENT] => *last = (*last).max(*place),
            _ => touched.push(*place),
        }
    }
    touched.sort_unstable();
    let (mut gone, tree) = (Vec::new(), TreeId::KEYFRAMES);
    for (at, place) in touched.iter().enumerate() {
        if touched.get(at + 1).is_some_and(|next| next[..SEGMENT] == place[..SEGMENT])
            || planted(Planted::KeyframesStay)
        {
            continue;
        }
        scan(&place[..SEGMENT], &mut |key, _| {
            let outdated = key.len() == KEYFRAME_KEY_BYTES
                && key[..SEGMENT] == place[..SEGMENT]
                && key[SEGMENT..VERSION] <= place[SEGMENT..];
            if outdated {
                gone.push(Op::Delete { tree, key: Key::new(key) });
            }
            outdated
        })?;
    }
    Ok(gone)
}
