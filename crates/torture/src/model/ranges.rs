//! Ranges of files that are shared: one becomes a part of another file, or both hold the same bytes already.
//!
//! The rules are those of FICLONERANGE and FIDEDUPERANGE: whole pages, but the end of the source may become the end of the target;
//! inside the source; no overlap in one file.

use varve_fs::{FILE_BYTES_MAX, InodeId};

use super::apply::{Context, EFBIG, EINVAL, ENOENT, Errno, clear_set_ids_unless_root};
use super::{Inode, Model, PAGE_BYTES};
use crate::call::Call;

/// Ranges are compared in pieces of at most this size, each from where the last has come to; the first one that differs ends it.
pub const COMPARED_BYTES: u64 = 1 << 20;

/// A range of one file, and where it goes in another.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "as in the call")]
pub struct Part {
    pub from: InodeId,
    pub from_offset: u64,
    pub to: InodeId,
    pub to_offset: u64,
    /// Bytes. None are meant by 0 here.
    pub len: u64,
}

impl Part {
    /// Bytes `begin..end` of the range alone.
    pub fn slice(&self, begin: u64, end: u64) -> Part {
        Part {
            from_offset: self.from_offset + begin,
            to_offset: self.to_offset + begin,
            len: end - begin,
            ..*self
        }
    }
}

impl Model {
    /// What a call makes a part of a file: nothing if it is not such a call.
    pub fn part(&self, call: &Call) -> Result<Option<Part>, Errno> {
        let Call::CloneRange { from, from_offset, to, to_offset, len } = *call else { return Ok(None) };
        let sizes = [self.file(from)?, self.file(to)?];
        let len = if len == 0 { sizes[0].saturating_sub(from_offset) } else { len };
        let ends = [from_offset, to_offset].map(|offset| offset.saturating_add(len));
        if ends.iter().any(|end| *end > FILE_BYTES_MAX) {
            return Err(EFBIG);
        }
        let whole = |bytes: u64| bytes.is_multiple_of(PAGE_BYTES);
        let at_end = ends[0] == sizes[0] && ends[1] >= sizes[1];
        let overlap = from == to && from_offset < ends[1] && to_offset < ends[0];
        if !whole(from_offset)
            || !whole(to_offset)
            || !whole(len) && !at_end
            || ends[0] > sizes[0]
            || overlap && len > 0
        {
            return Err(EINVAL);
        }
        Ok(Some(Part { from, from_offset, to, to_offset, len }))
    }

    pub(super) fn clone_range(&mut self, call: &Call, cx: &Context) -> Result<(), Errno> {
        let Some(part) = self.part(call)?.filter(|part| part.len > 0) else { return Ok(()) };
        self.drop_capability(part.to, cx);
        let source = self.get(part.from).and_then(Inode::content).cloned().unwrap_or_default();
        let inode = self.get_mut(part.to).ok_or(ENOENT)?;
        inode.content_mut().ok_or(EINVAL)?.lay(&source, &part);
        inode.mtime.set(cx.now);
        inode.ctime.set(cx.now);
        clear_set_ids_unless_root(inode, cx.caller);
        Ok(())
    }

    pub(super) fn dedupe(
        &mut self,
        (from, from_offset): (InodeId, u64),
        (to, to_offset): (InodeId, u64),
        len: u64,
        cx: &Context,
    ) -> Result<(), Errno> {
        let sizes = [self.file(from)?, self.file(to)?];
        let ends = [from_offset + len, to_offset + len];
        let whole = |bytes: u64| bytes.is_multiple_of(PAGE_BYTES);
        // The end of the source may become the end of the target.
        let aligned = whole(from_offset) && whole(to_offset) && (whole(len) || ends == sizes);
        let [from_reach, to_reach] = ends.map(|end| end.next_multiple_of(PAGE_BYTES));
        let overlap = from == to && from_offset < to_reach && to_offset < from_reach;
        if !aligned || ends[0] > sizes[0] || ends[1] > sizes[1] || overlap && len > 0 {
            return Err(EINVAL);
        }
        let source = self.get(from).and_then(Inode::content).cloned().unwrap_or_default();
        let target = self.get_mut(to).and_then(Inode::content_mut).ok_or(ENOENT)?;
        target.share(&source, from_offset / PAGE_BYTES, to_offset / PAGE_BYTES, cx.written as u64);
        Ok(())
    }

    /// Whether what a file holds may lie in its inode's record: none of it is behind the first page.
    pub fn may_be_inline(&self, ino: InodeId) -> bool {
        self.get(ino).and_then(Inode::content).is_some_and(|content| {
            content.stored_bytes() == 0 || content.stored_bytes() == PAGE_BYTES && content.may_be_data(0)
        })
    }

    /// How many bytes from the front of two ranges are the same.
    pub fn same_bytes(&self, from: (InodeId, u64), to: (InodeId, u64), len: u64) -> u64 {
        let [from, to] = [from, to].map(|(ino, offset)| {
            self.get(ino).and_then(Inode::content).map_or_else(Vec::new, |content| content.read(offset, len))
        });
        let differs = from.iter().zip(&to).position(|(one, other)| one != other);
        differs.map_or(len, |at| at as u64)
    }
}
