//! What is given back by writing over a place.

use std::ops::Range;

use varve_format::record::extent::ExtentKind;
use varve_format::{BLOCK_BYTES, SEGMENT_BYTES};

use super::family::Blocks;
use super::map::Elsewhere;
use super::path::Path;
use super::segment::{Place, load};
use super::{Read, Result};

const BLOCK: u64 = BLOCK_BYTES as u64;

/// How far from `from` on each block that is written over gives one back, at most to `to` (both block aligned): data that no
/// other holder sees and no other extent names, or space that is set aside and the holder's own. `from`: the first gives none, or
/// the version is not written without opening a child. What only the reaper has not come to yet counts as seen. Cost: a short
/// scan per segment, and a look for each run of blocks at what others name.
///
/// # Errors
/// [`crate::EngineError::Corrupt`] for an entry that cannot be.
pub fn gives_back(read: &dyn Read, path: &Path, from: u64, to: u64) -> Result<u64> {
    run_end(read, path, from, to, true)
}

/// Where the first block in [`from`, `to`) lies that gives one back, or `to`.
///
/// # Errors
/// As [`gives_back`].
pub fn first_that_gives_back(read: &dyn Read, path: &Path, from: u64, to: u64) -> Result<u64> {
    run_end(read, path, from, to, false)
}

/// The end of the blocks from `from` on that do, or do not, give one back.
fn run_end(read: &dyn Read, path: &Path, from: u64, to: u64, giving: bool) -> Result<u64> {
    debug_assert!(from.is_multiple_of(BLOCK) && to.is_multiple_of(BLOCK), "whole blocks");
    if !path.writable() {
        return Ok(if giving { from } else { to });
    }
    let mut elsewhere = Elsewhere::default();
    let mut at = from;
    while at < to {
        let base = at / SEGMENT_BYTES * SEGMENT_BYTES;
        let part = (at - base) as u32..(to - base).min(SEGMENT_BYTES) as u32;
        let (first, last) = (block(part.start), block(part.end));
        let given = given(read, path, base / SEGMENT_BYTES, part, &mut elsewhere)?;
        let end = if given.has(first) == giving { given.run_end(first, last) } else { first };
        at = base + end as u64 * BLOCK;
        if end < last {
            break;
        }
    }
    Ok(at)
}

/// The blocks in a part of a segment that give one back.
fn given(
    read: &dyn Read,
    path: &Path,
    segment: u64,
    part: Range<u32>,
    elsewhere: &mut Elsewhere,
) -> Result<Blocks> {
    let (mut given, mut list) = (Blocks::NONE, Vec::new());
    for step in (0..path.own()).map(|at| path.step(at)) {
        let place = Place { family: path.family(), segment, version: step.key };
        load(read, &place, part.start, part.end, &mut list)?;
        for entry in list.iter().filter(|entry| entry.off < part.end && entry.end() > part.start) {
            let entry = entry.part(entry.off.max(part.start), entry.end().min(part.end));
            let first = block(entry.off);
            match (entry.extent.kind, entry.extent.run()) {
                (ExtentKind::Reserved, _) => given = given.or(Blocks::range(first, block(entry.end()))),
                (_, Some(run)) => {
                    let (mut done, start) = (0, run.addr.block());
                    while done < u64::from(run.blocks) {
                        let (names, end) = elsewhere.look(read, start + done)?;
                        let alike = (end - start).min(u64::from(run.blocks));
                        if names == 1 {
                            given = given.or(Blocks::range(first + done as usize, first + alike as usize));
                        }
                        done = alike;
                    }
                }
                (_, None) => {}
            }
        }
    }
    Ok(given)
}

fn block(bytes: u32) -> usize {
    bytes as usize / BLOCK_BYTES
}
