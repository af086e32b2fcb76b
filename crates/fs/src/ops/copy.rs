//! Copying between files: all of one into an empty one is a clone, whole blocks that lie alike in both are shared, the
//! rest goes through memory.

use varve_engine::{BLOCK_BYTES, EngineError, InodeId};

use super::flags::Touch;
use super::ranges::Part;
use super::require_file;
use crate::api::{Caller, FILE_BYTES_MAX};
use crate::core::Core;
use crate::{FsError, Result};

const BLOCK: u64 = BLOCK_BYTES as u64;

/// Copied with one read and one write.
const PIECE_BYTES: u64 = 1 << 20;
/// Copied in one call: whoever asks for more gets a short count and asks again.
const CALL_BYTES_MAX: u64 = 64 << 20;
/// Shared in one call.
const SHARED_BYTES_MAX: u64 = 4 << 30;
/// Less is copied: an extent more and a count a few blocks cost more than they save.
const SHARED_BYTES_MIN: u64 = 4 * BLOCK;

impl Core {
    pub(crate) fn copy_range(
        &self,
        caller: Caller,
        (from, from_offset): (InodeId, u64),
        (to, to_offset): (InodeId, u64),
        len: u64,
    ) -> Result<u64> {
        self.admit_beside(from, to)?;
        self.permit(to, Touch::Otherwise)?;
        let mut sizes = [0; 2];
        for (ino, size) in [from, to].into_iter().zip(&mut sizes) {
            let state = self.state(ino);
            let inner = self.read_lock(&state)?;
            require_file(&inner)?;
            *size = inner.size;
        }
        // All of a file into an empty one: they share it.
        if from != to
            && (from_offset, to_offset) == (0, 0)
            && 0 < sizes[0]
            && sizes[0] <= len
            && sizes[1] == 0
            && let Some(bytes) = self.with_space(|| self.clone_into(caller, from, to, len))?
        {
            return Ok(bytes);
        }
        // To the end that the source has now: a copy within one file must not follow the end that it moves.
        let len = len.min(SHARED_BYTES_MAX).min(sizes[0].saturating_sub(from_offset));
        if len == 0 {
            return Ok(0);
        }
        let ends = [from_offset, to_offset].map(|offset| offset.checked_add(len));
        let [Some(from_end), Some(to_end)] = ends else { return Err(FsError::FileTooBig) };
        if from == to && from_offset < to_end && to_offset < from_end && len > 0 {
            return Err(FsError::Invalid);
        }
        if to_offset >= FILE_BYTES_MAX && len > 0 {
            return Err(FsError::FileTooBig);
        }
        let (mut head, mut shared) = (len.min(CALL_BYTES_MAX), 0);
        if from_offset % BLOCK == to_offset % BLOCK && to_end <= FILE_BYTES_MAX {
            let first = from_offset.next_multiple_of(BLOCK).min(from_end);
            // The end of the source may become the end of the target, whole or not.
            let whole = from_end == sizes[0] && to_end >= sizes[1];
            let last = if whole { from_end } else { from_end / BLOCK * BLOCK };
            if last.saturating_sub(first) >= SHARED_BYTES_MIN {
                (head, shared) = (first - from_offset, last - first);
            }
        }
        let mut done = self.copy_bytes(caller, (from, from_offset), (to, to_offset), head)?;
        if done < head || shared == 0 {
            return Ok(done);
        }
        let part = Part { from: from_offset + done, to: to_offset + done, len: shared };
        match self.share_part(Some(caller), from, to, part, None) {
            // Small contents lie in the record, in the first block: that is copied, and the holes behind it are shared.
            Ok(0) if part.from == 0 && self.read_lock(&self.state(from))?.has_contents_in_record() => {
                let block = self.copy_bytes(caller, (from, 0), (to, to_offset), BLOCK)?;
                if block < BLOCK {
                    return Ok(block);
                }
                let behind = self.copy_range(caller, (from, BLOCK), (to, to_offset + BLOCK), len - BLOCK);
                // What has been copied is told; the next call gets the error.
                return Ok(BLOCK + behind.unwrap_or_default());
            }
            Ok(bytes) => done += bytes,
            // What has been copied is told; the next call gets the error.
            Err(_) if done > 0 => return Ok(done),
            // A write takes less than a step of sharing: as much is copied as there is space for.
            Err(FsError::Engine(EngineError::NoSpace)) => {}
            Err(error) => return Err(error),
        }
        let rest = (len - done).min(CALL_BYTES_MAX);
        match self.copy_bytes(caller, (from, from_offset + done), (to, to_offset + done), rest) {
            Ok(bytes) => Ok(done + bytes),
            Err(_) if done > 0 => Ok(done),
            Err(error) => Err(error),
        }
    }

    /// Copies through memory; gives how many bytes, fewer than asked if the source ends or space runs out on the way.
    pub(super) fn copy_bytes(
        &self,
        caller: Caller,
        (from, from_offset): (InodeId, u64),
        (to, to_offset): (InodeId, u64),
        len: u64,
    ) -> Result<u64> {
        let mut done = 0;
        while done < len {
            let data = match self.read(from, from_offset + done, (len - done).min(PIECE_BYTES) as usize) {
                // As below.
                Err(_) if done > 0 => break,
                data => data?,
            };
            if data.is_empty() {
                break;
            }
            match self.write(caller, to, to_offset + done, &data) {
                Ok(written) => {
                    done += written as u64;
                    if written < data.len() {
                        break;
                    }
                }
                // What has been copied is told; the next call gets the error.
                Err(_) if done > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }
}
