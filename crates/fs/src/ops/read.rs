//! Reading: what waits in memory, then what the log holds.
//!
//! Under the inode's lock it is decided where every byte comes from; the device is read without it. The view that
//! resolved the addresses is kept until then, so that the blocks are not reused.

use varve_device::{ALIGN_BYTES, AlignedBuf};
use varve_engine::version::{self, Mapping};
use varve_engine::{BLOCK_BYTES, InodeId, PoolAddr, View};

use super::require_file;
use crate::Result;
use crate::core::Core;
use crate::inode::Inner;
use crate::table::extents;

const BLOCK: u64 = BLOCK_BYTES as u64;

/// Blocks to read, and which of their bytes go where.
struct Piece {
    addr: PoolAddr,
    /// Whole blocks, in bytes.
    len: usize,
    /// The bytes wanted begin here.
    skip: usize,
    /// Where they go in the caller's buffer, and how many.
    to: usize,
    count: usize,
}

/// Reads still to be done.
pub struct ReadPlan {
    /// Of which inode.
    ino: InodeId,
    view: Option<View>,
    pieces: Vec<Piece>,
}

impl Core {
    pub(crate) fn read(&self, ino: InodeId, offset: u64, len: usize) -> Result<Vec<u8>> {
        let state = self.state(ino);
        let inner = self.read_lock(&state)?;
        require_file(&inner)?;
        let left = inner.size.saturating_sub(offset);
        let mut out = vec![0; left.min(len as u64) as usize];
        if out.is_empty() {
            return Ok(out);
        }
        let plan = self.plan_read(ino, &inner, offset, &mut out)?;
        drop(inner);
        self.run_reads(plan, &mut out)?;
        Ok(out)
    }

    pub(crate) fn read_into(&self, ino: InodeId, offset: u64, out: &mut [u8]) -> Result<usize> {
        let state = self.state(ino);
        let inner = self.read_lock(&state)?;
        require_file(&inner)?;
        let left = inner.size.saturating_sub(offset);
        let count = left.min(out.len() as u64) as usize;
        if count > 0 {
            let plan = self.plan_read(ino, &inner, offset, &mut out[..count])?;
            drop(inner);
            self.run_plan(plan, out, count)?;
        }
        Ok(count)
    }

    /// Fills `out` with the bytes at `offset` that are in memory and the zeros of holes, and plans reads for the rest.
    /// What it held before does not matter. Nothing beyond the logged size is taken from the device: a block's tail may
    /// be stale there.
    pub fn plan_read(&self, ino: InodeId, inner: &Inner, offset: u64, out: &mut [u8]) -> Result<ReadPlan> {
        let end = offset + out.len() as u64;
        let mut plan = ReadPlan { ino, view: None, pieces: Vec::new() };
        let mut at = offset;
        for (index, page) in inner.pages.map.range(offset / BLOCK..end.div_ceil(BLOCK)) {
            let begin = (index * BLOCK).max(offset);
            let stop = ((index + 1) * BLOCK).min(end);
            self.plan_logged(inner, &mut plan, offset, at, begin, out)?;
            let from = (begin - index * BLOCK) as usize;
            let count = (stop - begin) as usize;
            out[(begin - offset) as usize..][..count].copy_from_slice(&page.data[from..from + count]);
            at = stop;
        }
        self.plan_logged(inner, &mut plan, offset, at, end, out)?;
        Ok(plan)
    }

    /// As [`Core::plan_read`] for [`from`, `to`), which no page in memory covers.
    fn plan_logged(
        &self,
        inner: &Inner,
        plan: &mut ReadPlan,
        offset: u64,
        from: u64,
        to: u64,
        out: &mut [u8],
    ) -> Result<()> {
        let (end, to) = (to, to.min(inner.record.size));
        // Everything before this has been filled or planned.
        let mut at = from;
        let mut zeros = |from: u64, to: u64| {
            if from < to {
                out[(from - offset) as usize..(to - offset) as usize].fill(0);
            }
        };
        if from >= to {
            zeros(from, end);
            return Ok(());
        }
        if let Some(contents) = &inner.record.inline {
            let have = to.min(contents.len() as u64);
            zeros(from.max(have), end);
            if from < have {
                let part = &contents[from as usize..have as usize];
                out[(from - offset) as usize..][..part.len()].copy_from_slice(part);
            }
            return Ok(());
        }
        let view = match &mut plan.view {
            Some(view) => view,
            none => none.insert(self.view_of(plan.ino)?),
        };
        let path = extents::path(view, &inner.record, self.sharing())?;
        for mapped in version::resolve(view, &path, from, to)? {
            let Mapping::Data { addr, .. } = mapped.what else { continue };
            let begin = mapped.offset.max(from);
            let stop = (mapped.offset + mapped.len).min(to);
            if begin >= stop {
                continue;
            }
            zeros(at, begin);
            at = stop;
            let first = begin / BLOCK * BLOCK;
            plan.pieces.push(Piece {
                addr: PoolAddr(addr.0 + (first - mapped.offset)),
                len: (stop.next_multiple_of(BLOCK) - first) as usize,
                skip: (begin - first) as usize,
                to: (begin - offset) as usize,
                count: (stop - begin) as usize,
            });
        }
        zeros(at, end);
        Ok(())
    }

    /// Does the reads of a plan for all of `out`.
    pub fn run_reads(&self, plan: ReadPlan, out: &mut [u8]) -> Result<()> {
        let wanted = out.len();
        self.run_plan(plan, out, wanted)
    }

    /// Does the reads of a plan for the first `wanted` bytes of `out`. Whole blocks go from the device to where they
    /// are wanted, if memory is aligned there; of the last one the rest may go beyond `wanted`, if `out` has room.
    pub(crate) fn run_plan(&self, plan: ReadPlan, out: &mut [u8], wanted: usize) -> Result<()> {
        for piece in &plan.pieces {
            let (end, blocks_end) = (piece.to + piece.count, piece.to + piece.len);
            let whole = piece.count == piece.len || (end == wanted && blocks_end <= out.len());
            if piece.skip == 0 && whole && out[piece.to..].as_ptr().addr().is_multiple_of(ALIGN_BYTES) {
                self.store.read_data(piece.addr, &mut out[piece.to..blocks_end])?;
                continue;
            }
            let mut buf = AlignedBuf::new(piece.len);
            self.store.read_data(piece.addr, &mut buf)?;
            out[piece.to..end].copy_from_slice(&buf[piece.skip..piece.skip + piece.count]);
        }
        Ok(())
    }
}
