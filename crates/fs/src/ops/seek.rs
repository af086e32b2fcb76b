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
                let mut inner = inner;
                loop {
                    let (end, goes_on) = self.data_until(ino, &inner, at)?;
                    if !goes_on || end >= inner.size {
                        return Ok(Some(end.min(inner.size)));
                    }
                    // Others have their turn with the file: the answer may be old when it is heard in any case.
                    at = end;
                    drop(inner);
                    inner = self.read_lock(&state)?;
                    if at >= inner.size {
                        return Ok(Some(inner.size.max(offset)));
                    }
                }
            }
        }
    }

    /// How far there is data from `offset` on without a hole, as far as one look goes, and whether it perhaps goes on from there.
    fn data_until(&self, ino: InodeId, inner: &Inner, offset: u64) -> Result<(u64, bool)> {
        let in_memory = |mut at: u64, end: u64| {
            // What begins in the middle of a block goes on at the next.
            while at < end && inner.pages.map.contains_key(at / BLOCK) {
                at = (at / BLOCK + 1) * BLOCK;
            }
            at.min(end)
        };
        let mut at = in_memory(offset, inner.size);
        let mut pieces = Vec::new();
        if let Some(contents) = &inner.record.inline {
            pieces.push((0, (contents.len() as u64).next_multiple_of(BLOCK), true));
        } else if at < inner.record.size {
            let view = self.view_of(ino)?;
            let path = extents::path(&view, &inner.record, self.sharing())?;
            let resolved = version::resolve_upto(&view, &path, at, inner.record.size, PIECES_MAX)?;
            let data = |what| matches!(what, Mapping::Data { .. });
            pieces.extend(
                resolved.iter().map(|piece| (piece.offset, piece.offset + piece.len, data(piece.what))),
            );
        }
        let looked_upto = pieces.last().map_or(at, |(_, end, _)| *end);
        for (from, end, data) in pieces {
            if end <= at {
                continue;
            }
            if data && from <= at {
                at = in_memory(end, inner.size);
            } else {
                at = in_memory(at, inner.size);
                if at < end {
                    return Ok((at, false));
                }
            }
        }
        let at = in_memory(at, inner.size);
        // All of the logged part has been looked at: behind it is what is in memory alone.
        let goes_on = inner.record.inline.is_none() && at >= looked_upto && at < inner.record.size;
        Ok((at, goes_on))
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
