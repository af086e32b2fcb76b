//! Where a file has data and where holes, what waits in memory included.

use varve_engine::version::{self, Mapping};
use varve_engine::{BLOCK_BYTES, InodeId};

use super::require_file;
use crate::Result;
use crate::api::SeekTo;
use crate::bounds::bound;
use crate::core::Core;
use crate::inode::Inner;
use crate::table::extents;

const BLOCK: u64 = BLOCK_BYTES as u64;
/// Pieces of a file looked at in one go.
const PIECES_MAX: usize = 64;
/// Entries looked at for them: those of space that is set aside are many, and one piece. (Few in tests, so that there are more looks.)
fn entries_max() -> usize {
    bound(1024, 3)
}

impl Core {
    pub(crate) fn seek(&self, ino: InodeId, offset: u64, to: SeekTo) -> Result<Option<u64>> {
        match to {
            SeekTo::Data => self.seek_data(ino, offset),
            SeekTo::Hole => self.seek_hole(ino, offset),
        }
    }

    fn seek_hole(&self, ino: InodeId, offset: u64) -> Result<Option<u64>> {
        let state = self.state(ino);
        let mut inner = self.read_lock(&state)?;
        require_file(&inner)?;
        if offset >= inner.size {
            return Ok(None);
        }
        let mut at = offset;
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

    /// Each look is at what the log and memory say at one moment. The file is locked for that moment alone: behind its last data there
    /// may be a million entries of space that is set aside. Who asks step by step finds what was looked at before ([`crate::inode::Gap`]).
    fn seek_data(&self, ino: InodeId, offset: u64) -> Result<Option<u64>> {
        let state = self.state(ino);
        let mut at = offset;
        loop {
            let (view, record, mapping, page, end) = {
                let inner = self.read_lock(&state)?;
                require_file(&inner)?;
                if at >= inner.size {
                    return Ok(None);
                }
                let page =
                    inner.pages.map.range(at / BLOCK..).next().map(|(index, _)| (index * BLOCK).max(at));
                let page = page.filter(|page| *page < inner.size);
                if page == Some(at) {
                    return Ok(page);
                }
                if let Some(contents) = &inner.record.inline {
                    let in_record = at < (contents.len() as u64).next_multiple_of(BLOCK);
                    return Ok(if in_record { Some(at) } else { page });
                }
                at = state.gap().end_of(inner.mapping, at);
                let end = page.unwrap_or(u64::MAX).min(inner.record.size).min(inner.size);
                if at >= end {
                    return Ok(page);
                }
                (self.view_of(ino)?, inner.record.clone(), inner.mapping, page, end)
            };
            let path = extents::path(&view, &record, self.sharing())?;
            let (from, mut found) = (at, false);
            for piece in version::resolve_some(&view, &path, at, end, PIECES_MAX, entries_max())? {
                found = matches!(piece.what, Mapping::Data { .. });
                if found {
                    at = piece.offset.max(at);
                    break;
                }
                at = piece.offset + piece.len;
            }
            state.gap().widen(mapping, from, at);
            if found {
                return Ok(Some(at));
            }
            if at >= end {
                return Ok(page);
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
            let resolved =
                version::resolve_some(&view, &path, at, inner.record.size, PIECES_MAX, entries_max())?;
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
}
