//! The map of a file: where its data is, and what of it others see, too. A page at a time, so that whoever asks can stop.
//!
//! What waits in memory is written back (not flushed) before each page. Who writes all the while may be missed.

use varve_engine::version::{self, ExtentKind};
use varve_engine::{BLOCK_BYTES, InodeId};

use super::require_file;
use crate::Result;
use crate::api::{FILE_BYTES_MAX, FileMap, FilePiece, PieceKind};
use crate::core::Core;
use crate::inode::Presence;
use crate::table::extents;
use crate::writeback::Ride;

/// Rounds in which the file is dirty again when it is looked at.
const ROUNDS_MAX: u32 = 4;

impl Core {
    pub(crate) fn map(&self, ino: InodeId, from: u64, pieces_max: usize) -> Result<FileMap> {
        let state = self.state(ino);
        let mut rounds = 0;
        let inner = loop {
            let inner = self.read_lock(&state)?;
            require_file(&inner)?;
            if inner.pages.is_empty() || rounds == ROUNDS_MAX {
                break inner;
            }
            drop(inner);
            self.write_back(&state, Ride::Allowed)?;
            rounds += 1;
        };
        // While these are held, neither the record nor the versions of the namespace change: the view fits both.
        let names = self.names(ino)?;
        let view = self.store.view();
        let record = &inner.record;
        let shared = inner.presence == Presence::Live && names.others_see(&view, ino)?;
        let size = record.size;
        let from = from / BLOCK_BYTES as u64 * BLOCK_BYTES as u64;
        if let Some(contents) = &record.inline {
            let (len, mut pieces) = (contents.len() as u64, Vec::new());
            if len > 0 && from == 0 {
                let kind = PieceKind::Inline;
                pieces.push(FilePiece { offset: 0, len, kind, address: None, shared, names: 0 });
            }
            let hole = from.max(len);
            if size > hole {
                let (len, kind) = (size - hole, PieceKind::Hole);
                let (address, shared) = (None, false);
                pieces.push(FilePiece { offset: hole, len, kind, address, shared, names: 0 });
            }
            return Ok(FileMap { pieces, next: None, size });
        }
        let holder = extents::holder_now(&view, record, self.sharing())?;
        let page = version::map(&view, holder, shared, from, FILE_BYTES_MAX, pieces_max)?;
        let next = Some(page.next).filter(|next| *next < FILE_BYTES_MAX);
        let pieces = page.pieces.into_iter().map(|piece| FilePiece {
            offset: piece.offset,
            len: piece.len,
            kind: match piece.kind {
                ExtentKind::Data => PieceKind::Data,
                ExtentKind::Reserved => PieceKind::Reserved,
                ExtentKind::Hole => PieceKind::Hole,
            },
            address: (piece.kind == ExtentKind::Data).then_some(piece.addr.0),
            shared: piece.shared,
            names: piece.names,
        });
        let mut pieces: Vec<FilePiece> = pieces.collect();
        // Behind everything there is a hole without end: what of it is the file's ends where the file does.
        if let Some(last) = pieces.last_mut().filter(|last| next.is_none() && last.kind == PieceKind::Hole) {
            last.len = size.saturating_sub(last.offset);
            if last.len == 0 {
                pieces.pop();
            }
        }
        Ok(FileMap { pieces, next, size })
    }
}
