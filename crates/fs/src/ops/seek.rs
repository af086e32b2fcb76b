//! Where a file has data and where holes, what waits in memory included.

use varve_engine::version::{self, Mapping};
use varve_engine::{BLOCK_BYTES, InodeId};

use super::require_file;
use crate::Result;
use crate::api::SeekTo;
use crate::core::Core;
use crate::inode::Inner;
use crate::table::extents;

const BLOCK: u64 = BLOCK_BYTES as u64;
/// Pieces of a file looked at in one go.
const PIECES_MAX: usize = 64;

impl Core {
    pub(crate) fn seek(&self, ino: InodeId, offset: u64, to: SeekTo) -> Result<Option<u64>> {
        let state = self.state(ino);
        let inner = self.read_lock(&state)?;
        require_file(&inner)?;
        if offset >= inner.size {
            return Ok(None);
        }
        match to {
            SeekTo::Data => {
                let page = inner.pages.map.range(offset / BLOCK..).next().map(|(index, _)| index * BLOCK);
                let logged = self.next_logged(ino, &inner, offset)?.map(|(from, _)| from);
                let first = [page, logged].into_iter().flatten().min();
                Ok(first.map(|at| at.max(offset)).filter(|at| *at < inner.size))
            }
            SeekTo::Hole => {
                let mut at = offset;
                while at < inner.size {
                    if inner.pages.map.contains_key(at / BLOCK) {
                        at = (at / BLOCK + 1) * BLOCK;
                        continue;
                    }
                    match self.next_logged(ino, &inner, at)? {
                        Some((from, end)) if from <= at => {
                            debug_assert!(end > at);
                            at = end;
                        }
                        _ => break,
                    }
                }
                Ok(Some(at.min(inner.size)))
            }
        }
    }

    /// The first run of logged data that ends behind `offset`, in whole blocks.
    fn next_logged(&self, ino: InodeId, inner: &Inner, offset: u64) -> Result<Option<(u64, u64)>> {
        if let Some(contents) = &inner.record.inline {
            let end = (contents.len() as u64).next_multiple_of(BLOCK);
            return Ok((offset < end).then_some((0, end)));
        }
        let view = self.view_of(ino)?;
        let path = extents::path(&view, &inner.record, self.sharing())?;
        let (mut at, end) = (offset, inner.record.size);
        while at < end {
            for piece in version::resolve_upto(&view, &path, at, end, PIECES_MAX)? {
                if matches!(piece.what, Mapping::Data { .. }) {
                    return Ok(Some((piece.offset, piece.offset + piece.len)));
                }
                at = piece.offset + piece.len;
            }
        }
        Ok(None)
    }
}
