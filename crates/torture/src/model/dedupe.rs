//! Ranges of two files that hold the same bytes, and share them from then on: what a user sees stays as it is.

use varve_fs::InodeId;

use super::apply::{Context, EINVAL, ENOENT, Errno};
use super::{Inode, Model, PAGE_BYTES};

/// Ranges are compared in pieces of this size; the first one that differs ends it.
const COMPARED_BYTES: u64 = 1 << 20;

impl Model {
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

    /// How many bytes from the front of two ranges are found to be the same.
    pub fn same_bytes(&self, from: (InodeId, u64), to: (InodeId, u64), len: u64) -> u64 {
        let [from, to] = [from, to].map(|(ino, offset)| {
            self.get(ino).and_then(Inode::content).map_or_else(Vec::new, |content| content.read(offset, len))
        });
        match from.iter().zip(&to).position(|(one, other)| one != other) {
            Some(at) => at as u64 / COMPARED_BYTES * COMPARED_BYTES,
            None => len,
        }
    }
}
