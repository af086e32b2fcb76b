//! Space: what is set aside is what files show, and the parts of it add up.

use varve_fs::PieceKind;

use super::{RESERVED_PAGE_BYTES_MAX, Session, Violation};
use crate::call::Call;
use crate::model::PAGE_BYTES;
use crate::oracle::LOOKS_MAX;
use crate::violation;

/// Pieces of a file that are looked at in one go.
const PIECES_MAX: usize = 1_000;

impl Session {
    /// Makes everything durable and written out: then nothing may be set aside any more, and the parts of the space
    /// add up to the whole.
    pub fn verify_space(&mut self) -> Result<(), Violation> {
        // What could not be read is tried again, not at once, and more and more seldom if that fails.
        let unread = self.unread.take();
        self.must(&Call::Sync)?;
        self.must(&Call::Maintain)?;
        for _ in 0..LOOKS_MAX {
            if unread.is_none() || self.fs.reap_backlog() == 0 {
                break;
            }
            self.must(&Call::Maintain)?;
        }
        self.must(&Call::Checkpoint)?;
        self.unread = unread;
        let space = self.fs.space();
        let parts = [
            space.fixed_bytes,
            space.used_bytes,
            space.held_back_bytes,
            space.reserved_bytes,
            space.protected_bytes,
            space.free_bytes,
        ];
        let sum: u64 = parts.iter().sum();
        let (least, most) = self.live.reserved_pages();
        let most = most.min(self.pages_that_say_so()?);
        let (least, most) = (least * PAGE_BYTES, most * RESERVED_PAGE_BYTES_MAX);
        if space.reserved_bytes < least || space.reserved_bytes > most {
            return Err(violation!(
                "with nothing to write, {} bytes are reserved, not {least} to {most}: {space:?}",
                space.reserved_bytes
            ));
        }
        if sum != space.total_bytes && space.free_bytes > 0 {
            return Err(violation!("the parts of the space add up to {sum}: {space:?}"));
        }
        Ok(())
    }

    /// Pages that files say they have space set aside for; those that several share are counted for each.
    fn pages_that_say_so(&self) -> Result<u64, Violation> {
        let mut bytes = 0;
        for (ino, _) in self.live.inodes().filter(|(_, inode)| inode.content().is_some()) {
            let mut next = Some(0);
            while let Some(from) = next {
                let map = self.fs.map(ino, from, PIECES_MAX);
                let map = map.map_err(|error| violation!("the map of inode {}: {error}", ino.0))?;
                let reserved = map.pieces.iter().filter(|piece| piece.kind == PieceKind::Reserved);
                bytes += reserved.map(|piece| piece.len).sum::<u64>();
                next = map.next;
            }
        }
        Ok(bytes / PAGE_BYTES)
    }
}
