//! Extended attributes, their pieces, and their sums in the inodes.

use std::collections::HashSet;

use varve_engine::{InodeId, Problem, ProblemKind as Kind, Problems, TreeId};
use varve_format::record::name::NamePosition;
use varve_format::record::xattr::{XATTR_CHUNK_BYTES, XattrHead, decode_xattr_key};

use varve_format::text::escape;

use super::Check;
use crate::Result;
use crate::ops::xattr::{cost, is_known};

impl Check<'_> {
    pub(super) fn xattrs(&mut self) -> Result<()> {
        // The attribute being read: inode, position, number of the next piece, bytes of value still to come.
        let mut open: Option<(InodeId, NamePosition, u16, usize)> = None;
        // Names of one inode and hash.
        let mut bucket: (InodeId, u64, HashSet<Vec<u8>>) = (InodeId(0), 0, HashSet::new());
        let incomplete = |me: &mut Self, open: &Option<(InodeId, NamePosition, u16, usize)>| {
            if let Some((ino, _, _, left)) = open
                && *left > 0
            {
                let kind = if me.has_lost(TreeId::XATTRS) { Kind::XattrsLost } else { Kind::XattrIncomplete };
                me.of(kind, *ino, format!("an attribute of inode {} lacks {left} bytes", ino.0));
            }
        };
        self.each(TreeId::XATTRS, &mut |me, key, value| {
            let (ino, position, chunk) = match decode_xattr_key(key) {
                Ok((_, ino, position, chunk, _)) => (me.namespace.slot.full(ino), position, chunk),
                Err(why) => return me.bad_key(TreeId::XATTRS, why),
            };
            if chunk > 0 {
                match &mut open {
                    Some((i, p, next, left))
                        if (*i, *p, *next) == (ino, position, chunk)
                            && *left > 0
                            && value.len() == (*left).min(XATTR_CHUNK_BYTES) =>
                    {
                        *left -= value.len();
                        *next += 1;
                    }
                    _ if me.has_lost(TreeId::XATTRS) => {}
                    _ => {
                        let text = format!("inode {} has a stray piece of an attribute", ino.0);
                        me.of(Kind::XattrPiece, ino, text);
                    }
                }
                return;
            }
            incomplete(me, &open);
            open = None;
            let head = match XattrHead::decode(value) {
                Ok(head) => head,
                Err(why) => {
                    return me.of(
                        Kind::XattrMalformed,
                        ino,
                        format!("an attribute of inode {}: {why}", ino.0),
                    );
                }
            };
            open = Some((ino, position, 1, head.value_len as usize - head.start.len()));
            let name = escape(&head.name);
            let hash = me.namespace.hasher.hash(&head.name);
            if NamePosition::new(hash, position.sequence()) != position {
                let text = format!("attribute \"{name}\" of inode {} is not at the place of its hash", ino.0);
                me.of(Kind::XattrMisplaced, ino, text);
            }
            if !is_known(&head.name) {
                let text = format!("attribute \"{name}\" of inode {} is of no known namespace", ino.0);
                me.of(Kind::XattrNamespace, ino, text);
            }
            if (bucket.0, bucket.1) != (ino, position.0 >> 8) {
                bucket = (ino, position.0 >> 8, HashSet::new());
            }
            if !bucket.2.insert(head.name.clone()) {
                let text = format!("attribute \"{name}\" of inode {} is there twice", ino.0);
                me.of(Kind::XattrDuplicate, ino, text);
            }
            let lost = me.inode_is_lost(ino);
            match me.inodes.get_mut(&ino) {
                Some(seen) => {
                    seen.xattrs += 1;
                    seen.bytes = seen.bytes.saturating_add(cost(&head.name, head.value_len as usize));
                }
                None if lost => {}
                // A snapshot may have been taken while the file was open and had no name.
                None if me.namespace.forked => {}
                None => {
                    let text = format!("attribute \"{name}\" of inode {}, which does not exist", ino.0);
                    me.problem(Kind::XattrStray, text);
                }
            }
        })?;
        incomplete(self, &open);
        Ok(())
    }

    /// What the attributes that were seen come to, against what the inodes say.
    pub(super) fn sums(&mut self) {
        let lost = self.has_lost(TreeId::XATTRS);
        let mut found = Problems::default();
        for (ino, seen) in self.inodes.iter().filter(|(_, seen)| !seen.orphan) {
            let (has, says) = ((seen.xattrs, seen.bytes), (seen.xattr_count, seen.xattr_bytes));
            if has != says {
                let kind = if lost && has < says { Kind::XattrsLost } else { Kind::XattrCount };
                let text = format!(
                    "inode {} has {} attributes of {} bytes and says {} of {}",
                    ino.0, has.0, has.1, says.0, says.1
                );
                found.add(Problem::of_inode(kind, ino.0, text));
            }
        }
        self.problems.append(found);
    }
}
