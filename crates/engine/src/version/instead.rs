//! What is given back by writing over a place.

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
    debug_assert!(from.is_multiple_of(BLOCK) && to.is_multiple_of(BLOCK), "whole blocks");
    if !path.writable() {
        return Ok(from);
    }
    let (mut elsewhere, mut list) = (Elsewhere::default(), Vec::new());
    let mut at = from;
    while at < to {
        let segment = at / SEGMENT_BYTES;
        let base = segment * SEGMENT_BYTES;
        let (low, high) = ((at - base) as u32, (to - base).min(SEGMENT_BYTES) as u32);
        let mut given = Blocks::NONE;
        for step in (0..path.own()).map(|at| path.step(at)) {
            load(read, &Place { family: path.family(), segment, version: step.key }, low, high, &mut list)?;
            for entry in list.iter().filter(|entry| entry.off < high && entry.end() > low) {
                let part = entry.part(entry.off.max(low), entry.end().min(high));
                let first = block(part.off);
                match (part.extent.kind, part.extent.run()) {
                    (ExtentKind::Reserved, _) => {
                        given = given.or(Blocks::range(first, block(part.end())));
                    }
                    (_, Some(run)) => {
                        let (mut done, start) = (0, run.addr.block());
                        while done < u64::from(run.blocks) {
                            let (names, end) = elsewhere.look(read, start + done)?;
                            let alike = (end - start).min(u64::from(run.blocks));
                            if names == 1 {
                                given =
                                    given.or(Blocks::range(first + done as usize, first + alike as usize));
                            }
                            done = alike;
                        }
                    }
                    (_, None) => {}
                }
            }
        }
        let (first, last) = (block(low), block(high));
        let end = if given.has(first) { given.run_end(first, last) } else { first };
        at = base + end as u64 * BLOCK;
        if end < last {
            break;
        }
    }
    Ok(at)
}

fn block(bytes: u32) -> usize {
    bytes as usize / BLOCK_BYTES
}
