//! Recovery: which batches of the ring count, and where the log ends (design, section 4; the model is
//! `journal_tail.py` of the brief).
//!
//! 1. Look through the whole ring of every device and take the longest run of whole, chained batches from the checkpoint on.
//! 2. Beyond the known-flushed position P, verify every data block that these batches placed. A block placed in
//!    batch i and freed in batch f (never: infinity) that does not verify excludes the end points i..f-1. Whether one that
//!    no copy gives up had arrived is not known: if the end hangs on it, nothing is cut and the pool is not opened.
//! 3. The end is the largest end point that is not excluded. It is never before an acknowledged fsync: a batch that
//!    was flushed was flushed with its data, and blocks are reused only when the record that frees them is durable.
//!    Where a batch is missing that had been flushed, or the superblock is not the newest, that is damage and no crash: nothing is cut and
//!    nobody writes. Who only reads has what is in front of it, and is told.
//! 4. Before anything is served: bad copies of the tail are rewritten, everything is flushed, and a superblock with
//!    the cut and a new epoch is written and flushed. If power fails before that, the next recovery starts over with
//!    the same bytes; after it, batches beyond the cut can never count again.

use std::collections::BTreeMap;

use varve_device::{AlignedBuf, DeviceError};
use varve_format::batch::{self, BatchHeader, OpRef};
use varve_format::superblock::Superblock;
use varve_format::{BLOCK_BYTES, Lsn, PoolAddr, block_checksum};

use crate::EngineError;
use crate::key::Key;
use crate::planted::{Planted, is};
use crate::pool::{Pool, Unreadable};
use crate::problem::{Judge, ProblemKind as Kind};
use crate::transaction::Op;

type Result<T> = std::result::Result<T, EngineError>;

/// A whole batch of the chain.
pub struct Found {
    /// Its header.
    pub header: BatchHeader,
    /// Its checksum.
    pub checksum: u32,
    /// Header, payload and padding, as they are written.
    pub bytes: Vec<u8>,
    /// The same without its mask, if it has one.
    unmasked: Option<Vec<u8>>,
}

impl Found {
    /// The transactions.
    pub fn payload(&self) -> &[u8] {
        let bytes = self.unmasked.as_ref().unwrap_or(&self.bytes);
        &bytes[batch::BATCH_HEADER_BYTES..batch::BATCH_HEADER_BYTES + self.header.payload_bytes as usize]
    }
}

/// The log as it was found.
pub struct Log {
    /// Whole, chained batches from the checkpoint on.
    pub batches: Vec<Found>,
    /// How many of them count.
    pub keep: usize,
    /// The last batch that is known to have been flushed.
    pub flushed: u64,
    /// Whether parts of a batch after the chain are there, the next one or one that was written while the next was in
    /// flight. What is missing in front of it or of it must not come from a later batch: it needs a new epoch.
    pub leftover: bool,
    /// What of it is damaged or cannot be read, so that it does not count, though it may have been acknowledged. Nobody writes to such a
    /// pool.
    pub damage: Option<Damage>,
}

/// Damage to the log, or to superblocks that it names.
pub struct Damage {
    /// What is wrong.
    pub why: String,
    /// At least so many batches are behind the last that counts.
    pub batches_left: u64,
    /// The superblock is not the newest, or may not be: what its checkpoint refers to, and what was not in use, may have been
    /// overwritten since.
    pub is_older: bool,
    refusal: String,
}

impl Damage {
    /// The log ends before batch `next`, though `last` and all before it had been written.
    fn ends(why: String, next: u64, last: u64) -> Damage {
        let refusal = format!(
            "{why}: this is not a crash but damage to the device. Opening would lose acknowledged changes from batch {next} on; restore the device from its mirror or a backup"
        );
        let batches_left = last.saturating_sub(next).saturating_add(1);
        Damage { why, batches_left, is_older: false, refusal }
    }

    /// The log names the superblock of generation `named`.
    fn is_older(superblock: &Superblock, named: u64) -> Damage {
        let why = format!(
            "the log names superblock generation {named} and the newest that can be read is {}",
            superblock.generation
        );
        let refusal = format!(
            "{why}: superblocks have been damaged after they were written; opening an older one would lose acknowledged changes. Restore the device from its mirror or a backup"
        );
        Damage { why, batches_left: 0, is_older: true, refusal }
    }

    /// More contradicts the superblock than is looked at.
    fn is_full() -> Damage {
        let why = "the log is full of batches that contradict the superblock".to_owned();
        let refusal = format!(
            "{why}: this is not a crash but damage to the device; restore it from its mirror or a backup"
        );
        Damage { why, batches_left: 0, is_older: true, refusal }
    }

    /// The log may go on where it cannot be read.
    fn unread(why: String) -> Damage {
        Damage { refusal: why.clone(), why, batches_left: 0, is_older: false }
    }

    /// Adds what else was found.
    fn join(self, other: Damage) -> Damage {
        Damage {
            why: self.why + "; " + &other.why,
            batches_left: self.batches_left.max(other.batches_left),
            is_older: self.is_older || other.is_older,
            refusal: self.refusal,
        }
    }

    /// What is said to who has nothing of the pool.
    pub fn refusal(&self) -> EngineError {
        EngineError::Refused(self.refusal.clone())
    }

    /// Refuses who would write, or notes it.
    fn judge(&self, read_only: bool, judge: &mut Judge) -> Result<()> {
        match judge {
            Judge::Refuse if read_only => Ok(()),
            Judge::Refuse => Err(EngineError::Refused(format!(
                "{}; opened for reading only, the pool shows what can be had of it",
                self.refusal
            ))),
            Judge::Note(_) => judge.hear(Kind::LogDamaged, self.refusal()),
        }
    }
}

/// The header of what may be a batch, its checksum and its length.
type Header = (BatchHeader, u32, usize);

/// What the ring of one device holds, read when it is asked for.
struct Ring<'p> {
    pool: &'p Pool,
    device: usize,
    /// Where batches seem to begin in the ring.
    headers: BTreeMap<u64, Header>,
    /// What could not be read when it was looked through, or when a batch was wanted.
    unreadable: Vec<Unreadable>,
}

impl<'p> Ring<'p> {
    fn look_through(pool: &'p Pool, device: usize) -> Ring<'p> {
        let magic = batch::BATCH_MAGIC.to_le_bytes();
        let mut headers = BTreeMap::new();
        let unreadable = pool.look_through_log(device, &mut |at, block| {
            if block[..8] == magic
                && let Ok(header) = batch::decode_header(block, &pool.pool_id)
            {
                headers.insert(at, header);
            }
        });
        Ring { pool, device, headers, unreadable }
    }

    /// The header at absolute position `at`, if one seems to be there.
    fn header(&self, at: u64) -> Option<&Header> {
        self.headers.get(&(at % self.pool.ring_bytes))
    }

    /// What of the ring cannot be read at absolute position `at`.
    fn gap(&self, at: u64) -> Option<&Unreadable> {
        let at = at % self.pool.ring_bytes;
        self.unreadable.iter().find(|(from, to, _)| (*from..*to).contains(&at))
    }

    /// The batch at absolute position `at`, if it is whole. Its header could be read a moment ago: a device that fails is asked once
    /// more, and then whether the batch is whole is not known. The error is what cannot be read.
    fn whole(
        &self,
        at: u64,
        (_, checksum, len): &Header,
    ) -> std::result::Result<Option<Vec<u8>>, Vec<Unreadable>> {
        let read = || self.pool.read_log_with_gaps(self.device, at, *len);
        let (mut bytes, mut gaps) = read();
        if is(Planted::UnreadEnds) {
            gaps.clear();
        }
        if !gaps.is_empty() {
            (bytes, gaps) = read();
        }
        match batch::verify(&bytes, *checksum) {
            true => Ok(Some(bytes)),
            false if gaps.is_empty() => Ok(None),
            false => Err(gaps),
        }
    }

    /// Adds what cannot be read and was not known to be so.
    fn lacks(&mut self, gaps: Vec<Unreadable>) {
        let known = |(from, to, _): &Unreadable| self.unreadable.iter().any(|k| k.0 <= *from && *to <= k.1);
        let new: Vec<_> = gaps.into_iter().filter(|gap| !known(gap)).collect();
        self.unreadable.extend(new);
    }
}

/// Reads the rings and decides. Who only reads is not refused for damage, and gets it with what is in front of it.
pub fn read_log(pool: &Pool, superblock: &Superblock, read_only: bool, judge: &mut Judge) -> Result<Log> {
    let mut rings: Vec<Ring<'_>> = (0..pool.devices.len()).map(|i| Ring::look_through(pool, i)).collect();
    let batches = chain(pool, superblock, &mut rings);
    let end = superblock.log_start + batches.iter().map(|b| b.bytes.len() as u64).sum::<u64>();
    let next = superblock.log_sequence + batches.len() as u64;
    // Who only reads has what is in front of what cannot be read.
    let reads = read_only && matches!(judge, Judge::Refuse);
    let hidden = hidden_behind(superblock, &rings, end, next);
    let mut unread = needed_is_readable((pool, superblock), &rings, (end, next), hidden, reads, judge)?;
    let cut = superblock.cuts.last().map_or(0, |c| c.last_sequence);
    let mut damage = (next <= cut).then(|| {
        let why = format!(
            "batch {next} of the log is damaged, and an earlier opening has made the log durable up to batch {cut}"
        );
        Damage::ends(why, next, cut)
    });
    damage.iter().try_for_each(|damage| damage.judge(read_only, judge))?;
    match look_for_rot(pool, superblock, &rings, &batches, hidden) {
        Ok(rot) => {
            if rot.is_some()
                && let Some((from, to, error)) = hidden
            {
                let text = format!("the log cannot be read from its byte {from} to {to}: {error}");
                judge.mention(Kind::LogUnreadable, text);
            }
            rot.iter().try_for_each(|rot| rot.judge(read_only, judge))?;
            damage = damage.into_iter().chain(rot).reduce(Damage::join);
        }
        Err(EngineError::Device(e)) => {
            let why = format!("what may be a later batch of the log cannot be read: {e}");
            match reads {
                true => drop(unread.get_or_insert_with(|| Damage::unread(why))),
                false => judge.hear(Kind::LogUnreadable, undecided(why))?,
            }
        }
        Err(e) => judge.hear(Kind::LogUnreadable, e)?,
    }
    if let Some(damage) = &mut damage {
        // Whatever a forged one says.
        damage.batches_left = damage.batches_left.min(pool.ring_bytes / BLOCK_BYTES as u64);
    }
    let known = batches.iter().map(|b| b.header.flushed).max().unwrap_or(0);
    // What the missing one was flushed after had been flushed, and its data may have been freed and overwritten behind it.
    let before = if damage.as_ref().is_some_and(|damage| damage.batches_left > 0) { next - 1 } else { 0 };
    let flushed = known.max(cut).max(superblock.log_sequence - 1).max(before);
    let keep = match end_point(pool, superblock, &batches, flushed) {
        Ok(End { keep, unknown: None }) => keep,
        Ok(End { unknown: Some(Unknown { keep, error }), .. }) if reads => {
            let data = Damage::unread(format!(
                "data that the last batches of the log name cannot be read, so that it is not known whether they count: {error}"
            ));
            unread = unread.into_iter().chain([data]).reduce(Damage::join);
            keep
        }
        Ok(End { keep, unknown: Some(Unknown { error, .. }) }) => {
            let why = format!(
                "data that the last batches of the log name cannot be read, so that it is not known whether they count: {error}"
            );
            judge.hear(Kind::LogUnreadable, undecided(why))?;
            keep
        }
        Err(e) => {
            judge.hear(Kind::LogSenseless, e)?;
            0
        }
    };
    let left = |h: &BatchHeader| h.epoch == superblock.epoch && h.sequence >= next;
    let leftover = rings.iter().any(|ring| match is(Planted::LeftoverRevived) {
        true => ring.header(end).is_some_and(|(h, ..)| left(h)),
        // What cannot be read now may be read later.
        false => !ring.unreadable.is_empty() || ring.headers.values().any(|(h, ..)| left(h)),
    });
    let damage = damage.into_iter().chain(unread).reduce(Damage::join);
    Ok(Log { batches, keep, flushed, leftover, damage })
}

/// Who writes is refused: `why` something is not known of what counts.
fn undecided(why: String) -> EngineError {
    EngineError::Refused(format!(
        "{why}. Opened for writing without it, the pool might lose acknowledged changes. Try again; if it stays so, open it for reading, which \
         shows what is before that, and restore the device from its mirror or a backup"
    ))
}

/// Whether all of the log that counts could be read: what follows the chain is part of it, as far as the header there
/// says that it belongs to the next batch, and at least that header's block. What lies elsewhere is of an earlier lap, or
/// is not needed: the next writes go over it; of what is `hidden` more is told later. Who `reads` has the log up to there, and is told.
fn needed_is_readable(
    (pool, superblock): (&Pool, &Superblock),
    rings: &[Ring<'_>],
    (end, next): (u64, u64),
    hidden: Option<&Unreadable>,
    reads: bool,
    judge: &mut Judge,
) -> Result<Option<Damage>> {
    let mut unread = None;
    let epoch = expected_epoch(superblock, next);
    for ring in rings {
        let len = pool.ring_bytes;
        let span = match ring.header(end) {
            // One of another epoch was cut off before.
            Some((header, _, bytes)) if header.sequence == next && header.epoch == epoch => {
                (*bytes as u64).min(len)
            }
            _ => BLOCK_BYTES as u64,
        };
        for gap @ (from, to, error) in &ring.unreadable {
            let needed = (0..span).step_by(BLOCK_BYTES).any(|at| (*from..*to).contains(&((end + at) % len)));
            if needed {
                let why = format!("the log cannot be read where batch {next} may be: {error}");
                match reads {
                    true => drop(unread.get_or_insert_with(|| Damage::unread(why))),
                    false => judge.hear(Kind::LogUnreadable, undecided(why))?,
                }
                continue;
            }
            if hidden.is_some_and(|hidden| std::ptr::eq(hidden, gap)) {
                continue;
            }
            judge.mention(
                Kind::LogUnreadable,
                format!(
                    "the log cannot be read from its byte {from} to {to}, where nothing counts now: {error}"
                ),
            );
        }
    }
    Ok(unread)
}

fn expected_epoch(superblock: &Superblock, sequence: u64) -> u64 {
    superblock.cuts.iter().find(|c| sequence <= c.last_sequence).map_or(superblock.epoch, |c| c.epoch)
}

/// The batches from the checkpoint on. What could not be read of one that may follow is added to what its ring lacks.
fn chain(pool: &Pool, superblock: &Superblock, rings: &mut [Ring<'_>]) -> Vec<Found> {
    let mut out: Vec<Found> = Vec::new();
    let (mut at, mut sequence, mut previous) =
        (superblock.log_start, superblock.log_sequence, superblock.log_previous);
    while at - superblock.log_start < pool.ring_bytes {
        let room = pool.ring_bytes - (at - superblock.log_start);
        let epoch = expected_epoch(superblock, sequence);
        let found = rings.iter_mut().find_map(|ring| {
            let found = *ring.header(at)?;
            let (header, checksum, len) = found;
            if header.epoch != epoch
                || header.sequence != sequence
                || header.previous != previous
                || len as u64 > room
            {
                return None;
            }
            let whole = ring.whole(at, &found).unwrap_or_else(|gaps| {
                ring.lacks(gaps);
                None
            });
            whole.map(|bytes| {
                let unmasked = batch::unmasked(&bytes);
                Found { header, checksum, bytes, unmasked }
            })
        });
        let Some(found) = found else { break };
        at += found.bytes.len() as u64;
        sequence += 1;
        previous = found.checksum;
        out.push(found);
    }
    out
}

/// What cannot be read where a batch may begin that says whether the `next` one, which is there and not whole, had been flushed. Batches
/// lie one behind the other: it is where the headers that can be read lead to. Where one can be read that is not of the batch that would
/// follow, that was not written, and nothing behind it could have been acknowledged; so a sector that is bad anywhere else does not
/// keep a crash from being one.
fn hidden_behind<'r>(
    superblock: &Superblock,
    rings: &'r [Ring<'_>],
    end: u64,
    next: u64,
) -> Option<&'r Unreadable> {
    let ring_bytes = rings.first()?.pool.ring_bytes;
    let (mut at, mut sequence) = (end, next);
    // No batch is written beyond one lap.
    while at - superblock.log_start < ring_bytes {
        let epoch = expected_epoch(superblock, sequence);
        let follows = |h: &BatchHeader| h.sequence == sequence && h.epoch == epoch;
        let found = rings.iter().find_map(|ring| ring.header(at).filter(|(header, ..)| follows(header)));
        match found {
            Some((_, _, len)) => at += *len as u64,
            None if sequence == next => return None,
            None => return rings.iter().find_map(|ring| ring.gap(at)),
        }
        sequence += 1;
    }
    None
}

/// A break in the chain is a crash unless a later batch says that what is missing had been flushed. A device's error: whether one does
/// cannot be read, as what is `hidden` cannot.
fn look_for_rot(
    pool: &Pool,
    superblock: &Superblock,
    rings: &[Ring<'_>],
    batches: &[Found],
    hidden: Option<&Unreadable>,
) -> Result<Option<Damage>> {
    let next = superblock.log_sequence + batches.len() as u64;
    let mut unread = hidden.cloned();
    // The first batch says it; of each kind once, for who reads is to know of both.
    let mut found: Vec<Damage> = Vec::new();
    'rings: for ring in rings {
        // Each that is looked at contradicts the superblock. In a log that this program wrote the first of them is whole;
        // in a forged one they may overlap, and each may be as long as a batch can be.
        let mut bytes_left = 2 * pool.ring_bytes as usize;
        for (at, seen) in &ring.headers {
            let (header, _, len) = seen;
            let newer_superblock = header.superblock_generation > superblock.generation;
            let beyond = header.epoch == superblock.epoch && header.sequence > next && header.flushed >= next;
            if !(newer_superblock || beyond) {
                continue;
            }
            bytes_left = match bytes_left.checked_sub(*len) {
                Some(left) => left,
                None => {
                    found.push(Damage::is_full());
                    break 'rings;
                }
            };
            let whole = ring.whole(*at, seen).unwrap_or_else(|gaps| {
                unread = unread.take().or(gaps.into_iter().next());
                None
            });
            if whole.is_none() {
                continue;
            }
            let rot = if newer_superblock {
                Damage::is_older(superblock, header.superblock_generation)
            } else {
                let why = format!(
                    "batch {next} of the log is damaged, and batch {} says that it had been flushed",
                    header.sequence
                );
                Damage::ends(why, next, header.sequence)
            };
            match found.iter_mut().find(|known| known.is_older == rot.is_older) {
                Some(known) => known.batches_left = known.batches_left.max(rot.batches_left),
                None => found.push(rot),
            }
        }
    }
    match (found.into_iter().reduce(Damage::join), unread) {
        // Where one may be whole that cannot be read, it is not known to be a crash.
        (None, Some((_, _, error))) => Err(error.into()),
        (damage, _) => Ok(damage),
    }
}

/// Step 2 and 3: how many batches count.
fn end_point(pool: &Pool, superblock: &Superblock, batches: &[Found], flushed: u64) -> Result<End> {
    let last = batches.len();
    // excluded[n]: the log may not end after n batches.
    let mut excluded = vec![false; last + 1];
    // Blocks placed beyond P and not freed since: batch and checksum.
    let mut live: BTreeMap<u64, (usize, u32)> = BTreeMap::new();
    let mut placements: Vec<(u64, usize, usize, u32)> = Vec::new();
    for (i, found) in batches.iter().enumerate() {
        let n = i + 1;
        let beyond = found.header.sequence > flushed;
        batch::for_each_op(found.payload(), superblock.total_blocks, |_, op| match op {
            OpRef::Place(run, sums) if beyond => {
                for (k, sum) in sums.chunks_exact(4).enumerate() {
                    let sum = u32::from_le_bytes([sum[0], sum[1], sum[2], sum[3]]);
                    let block = run.addr.block() + k as u64;
                    if let Some((placed, old)) = live.insert(block, (n, sum)) {
                        placements.push((block, placed, n, old));
                    }
                }
            }
            OpRef::Free(run) if beyond => {
                // Not block by block: a forged log may name all of a large pool in each step.
                let blocks = run.addr.block()..run.addr.block() + u64::from(run.blocks);
                let gone = live.extract_if(blocks, |_, _| true);
                placements.extend(gone.map(|(block, (placed, sum))| (block, placed, n, sum)));
            }
            _ => {}
        })
        .map_err(|e| EngineError::corrupt(format!("batch {} of the log", found.header.sequence), e))?;
    }
    placements.extend(live.into_iter().map(|(block, (placed, sum))| (block, placed, last + 1, sum)));
    if is(Planted::UnverifiedTail) {
        return Ok(End { keep: last, unknown: None });
    }
    placements.sort_unstable();
    let bad = verify_placements(pool, &placements);
    let end = |excluded: &[bool]| (0..=last).rev().find(|n| !excluded[*n]).unwrap_or(0);
    let exclude = |excluded: &mut [bool], at: usize| {
        let (_, placed, freed, _) = placements[at];
        let upto = if is(Planted::FirstMismatch) { excluded.len() } else { freed };
        excluded[placed..upto].fill(true);
    };
    bad.iter().filter(|(_, error)| error.is_none()).for_each(|(at, _)| exclude(&mut excluded, *at));
    let keep = end(&excluded);
    bad.iter().filter(|(_, error)| error.is_some()).for_each(|(at, _)| exclude(&mut excluded, *at));
    let without = end(&excluded);
    let unknown = bad.into_iter().find_map(|(_, error)| error).filter(|_| without < keep);
    Ok(End { keep, unknown: unknown.map(|error| Unknown { keep: without, error }) })
}

/// Where the log ends.
struct End {
    /// How many batches count, if what cannot be read had arrived.
    keep: usize,
    /// Whether that is so, if it matters.
    unknown: Option<Unknown>,
}

/// What a block that cannot be read leaves open.
struct Unknown {
    /// How many batches count if it had not arrived: fewer.
    keep: usize,
    error: DeviceError,
}

/// Indices of placements whose block no copy of which holds what it should, and why if a copy could not be read. Bad copies
/// beside a good one are rewritten when the pool is opened for writing.
fn verify_placements(
    pool: &Pool,
    placements: &[(u64, usize, usize, u32)],
) -> Vec<(usize, Option<DeviceError>)> {
    const READ_BLOCKS: usize = 256;
    let mut bad = Vec::new();
    let mut i = 0;
    let mut buf = AlignedBuf::new(READ_BLOCKS * BLOCK_BYTES);
    while i < placements.len() {
        let first = placements[i].0;
        let mut j = i;
        while j < placements.len() && placements[j].0 < first + READ_BLOCKS as u64 && j - i < READ_BLOCKS {
            j += 1;
        }
        let blocks = (placements[j - 1].0 - first + 1) as usize;
        let addr = PoolAddr::from_block(first);
        let mut good = vec![false; j - i];
        let mut unread = vec![None; j - i];
        for copy in 0..pool.copies(addr) {
            let bytes = &mut buf[..blocks * BLOCK_BYTES];
            let all = pool.read_copy(addr, bytes, copy).is_ok();
            for (k, (block, _, _, sum)) in placements[i..j].iter().enumerate() {
                let at = (block - first) as usize * BLOCK_BYTES;
                let bytes = &mut bytes[at..at + BLOCK_BYTES];
                // One bad sector, perhaps of a block that nobody placed, is not to hide its neighbours.
                match if all { Ok(()) } else { pool.read_copy(PoolAddr::from_block(*block), bytes, copy) } {
                    Ok(()) => good[k] |= block_checksum(bytes) == *sum,
                    Err(EngineError::Device(error)) => unread[k] = Some(error),
                    Err(_) => {}
                }
            }
        }
        let all = good.into_iter().zip(unread).enumerate();
        bad.extend(all.filter(|(_, (good, _))| !good).map(|(k, (_, unread))| (i + k, unread)));
        i = j;
    }
    bad
}

/// The transactions of a batch as owned steps.
pub fn transactions(found: &Found, total_blocks: u64) -> Result<Vec<(Lsn, Vec<Op>)>> {
    let mut out: Vec<(Lsn, Vec<Op>)> = Vec::new();
    batch::for_each_op(found.payload(), total_blocks, |position, op| {
        if out.last().is_none_or(|(p, _)| *p != position) {
            out.push((position, Vec::new()));
        }
        let ops = &mut out.last_mut().expect("just pushed").1;
        ops.push(match op {
            OpRef::Put(tree, key, value) => Op::Put { tree, key: Key::new(key), value: value.into() },
            OpRef::Delete(tree, key) => Op::Delete { tree, key: Key::new(key) },
            OpRef::Place(run, sums) => {
                let number = |s: &[u8]| u32::from_le_bytes([s[0], s[1], s[2], s[3]]);
                Op::Place { run, checksums: sums.chunks_exact(4).map(number).collect() }
            }
            OpRef::Free(run) => Op::Free { run },
            OpRef::IdFloor(floor) => Op::IdFloor(floor),
        });
    })
    .map_err(|e| EngineError::corrupt(format!("batch {} of the log", found.header.sequence), e))?;
    Ok(out)
}

/// Step 4, first half: makes the part of the log that counts, and the data it names, durable on every copy.
///
/// Of data only what is there in the end: a block that was freed and placed again within the tail may still hold in one copy what was
/// there first, and that is not to be written over the other.
pub fn rewrite_tail(pool: &Pool, superblock: &Superblock, log: &Log) -> Result<()> {
    let mut at = superblock.log_start;
    // Blocks and checksums.
    let mut live: BTreeMap<u64, u32> = BTreeMap::new();
    for found in &log.batches[..log.keep] {
        if found.header.sequence > log.flushed {
            rewrite_bad_batches(pool, at, &found.bytes)?;
            for op in transactions(found, superblock.total_blocks)?.into_iter().flat_map(|(_, ops)| ops) {
                match op {
                    Op::Place { run, checksums } => {
                        live.extend((run.addr.block()..).zip(checksums.iter().copied()));
                    }
                    Op::Free { run } => {
                        let blocks = run.addr.block()..run.addr.block() + u64::from(run.blocks);
                        live.extract_if(blocks, |_, _| true).for_each(drop);
                    }
                    _ => {}
                }
            }
        }
        at += found.bytes.len() as u64;
    }
    for (block, sum) in live {
        let addr = PoolAddr::from_block(block);
        if pool.copies(addr) > 1 {
            // The end hangs on it: one copy was whole a moment ago. If it cannot be read now, a torn one would stay beside it.
            pool.repair_copies(addr, &|b| block_checksum(b) == sum)?;
        }
    }
    if is(Planted::TailUnflushed) { Ok(()) } else { pool.flush() }
}

/// Only copies that differ are written: what is whole may have been acknowledged, and a write that power cuts short
/// must not be able to spoil it.
fn rewrite_bad_batches(pool: &Pool, at: u64, bytes: &[u8]) -> Result<()> {
    for device in 0..pool.devices.len() {
        if pool.read_log(device, at, bytes.len())? != bytes {
            pool.write_log(device, at, &AlignedBuf::from_slice(bytes))?;
        }
    }
    Ok(())
}
