//! Writing for whoever can make nothing of a part: what was stored through mmap, and what goes past the kernel's cache.

use std::sync::Arc;

use varve_device::AlignedBuf;
use varve_engine::{EngineError, InodeId};
use varve_format::record::inode::INODE_FLAG_RESERVED;

use super::write::BLOCK;
use crate::api::Caller;
use crate::core::{Core, Rounds};
use crate::writeback::buffers::Chunk;
use crate::{FsError, Result};

/// So often a write that is wanted whole looks for space again: for each page of the kernel's largest.
const LOOKS_MAX: u32 = 256;

impl Core {
    /// [`Core::write_owned`] of all of it. Goes on where pages that have space set aside meet others, and past pages that find none to
    /// those that have some: nothing that is guaranteed depends on what is written with it. Gives the first refusal. Space is
    /// looked for where the last look has found some: what is written may give back what it replaces.
    pub(crate) fn write_whole(
        &self,
        caller: Caller,
        ino: InodeId,
        offset: u64,
        buf: &mut AlignedBuf,
        len: usize,
    ) -> Result<()> {
        let chunk = self.adopt(ino, offset, buf, len);
        let result = self.write_all_pages(
            caller,
            ino,
            offset,
            chunk.as_ref().map_or(&buf[..len], |chunk| &chunk.buf()[..len]),
            chunk.as_ref(),
        );
        if let (Err(_), Some(chunk)) = (&result, &chunk) {
            *buf = AlignedBuf::from_slice(&chunk.buf()[..len]);
        }
        result
    }

    /// [`Core::write_whole`] of `data`, of which whole pages may lie in `chunk`.
    fn write_all_pages(
        &self,
        caller: Caller,
        ino: InodeId,
        offset: u64,
        data: &[u8],
        chunk: Option<&Arc<Chunk>>,
    ) -> Result<()> {
        let len = data.len();
        let mut refused = Ok(());
        let (mut done, mut looks, mut looking) = (0, LOOKS_MAX, true);
        loop {
            let at = offset + done as u64;
            let chunk = chunk.filter(|_| done == 0);
            let rounds = || if looking { Rounds::default() } else { Rounds::none() };
            match self.thawing(|| self.write_from(caller, ino, at, &data[done..], chunk, rounds())) {
                Ok(written) => (done, looking) = (done + written, false),
                // Something in front was refused, so that this is not the end of a file that is only appended to.
                Err(FsError::NotPermitted) if refused.is_err() => return refused,
                Err(FsError::Engine(EngineError::NoSpace)) if !looking && looks > 0 => {
                    (looks, looking) = (looks - 1, true);
                }
                Err(error @ FsError::Engine(EngineError::NoSpace)) if done < len => {
                    (looks, looking) = (0, false);
                    refused = refused.and(Err(error));
                    done += self.past_refused(ino, at, len - done)?;
                }
                Err(error) => return Err(error),
            }
            if done >= len {
                return refused;
            }
        }
    }

    /// How far it is from a page that was refused to the next that has space, in memory or set aside for it.
    fn past_refused(&self, ino: InodeId, offset: u64, len: usize) -> Result<usize> {
        let state = self.state(ino);
        let inner = self.read_lock(&state)?;
        let reserves = inner.record.flags & INODE_FLAG_RESERVED != 0 && inner.record.inline.is_none();
        let len = if reserves { self.first_stretch(ino, &inner, offset, len)?.0 } else { len };
        let behind = offset / BLOCK + 1..(offset + len as u64).div_ceil(BLOCK);
        let in_memory = {
            let mut pages = inner.pages.map.range(behind.clone()).filter(|(_, page)| page.has_space());
            pages.next().map(|(index, _)| index * BLOCK)
        };
        drop(inner);
        let floats =
            self.next_that_gives_back(&state, behind.start * BLOCK, behind.end.max(behind.start) * BLOCK)?;
        let next = in_memory.map_or(floats, |at| at.min(floats));
        Ok(len.min((next - offset) as usize))
    }
}
