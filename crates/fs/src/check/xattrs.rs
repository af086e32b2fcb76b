//! Extended attributes and their pieces.

use std::collections::HashSet;

use varve_engine::{InodeId, ProblemKind as Kind, TreeId};
use varve_format::record::name::NamePosition;
use varve_format::record::xattr::{XATTR_CHUNK_BYTES, XattrHead, decode_xattr_key};

use varve_format::text::escape;

use super::Check;
use crate::Result;
use crate::ops::xattr::{cost, is_known};
use crate::shown_number;

/// Attributes that are being read, one inode after the other.
#[derive(Default)]
pub struct Reading {
    /// The last one: inode, position, number of the next piece, bytes of value still to come.
    open: Option<(InodeId, NamePosition, u16, usize)>,
    /// Names of one inode and hash.
    bucket: (InodeId, u64, HashSet<Vec<u8>>),
}

impl Check<'_> {
    pub(super) fn xattrs(&mut self) -> Result<()> {
        let mut reading = Reading::default();
        self.each(TreeId::XATTRS, &mut |me, key, value| me.xattr_entry(&mut reading, key, value))?;
        self.xattrs_end(&reading);
        Ok(())
    }

    /// The attribute that was being read must be whole.
    pub(super) fn xattrs_end(&mut self, reading: &Reading) {
        if let Some((ino, _, _, left)) = reading.open
            && left > 0
        {
            let kind = if self.has_lost(TreeId::XATTRS) { Kind::XattrsLost } else { Kind::XattrIncomplete };
            let ino = self.full(ino);
            self.of(kind, ino, format!("an attribute of inode {} lacks {left} bytes", shown_number(ino)));
        }
    }

    /// An entry of the attributes.
    pub(super) fn xattr_entry(&mut self, reading: &mut Reading, key: &[u8], value: &[u8]) {
        let (ino, position, chunk) = match decode_xattr_key(key) {
            Ok((_, ino, position, chunk, _)) => (ino, position, chunk),
            Err(why) => return self.bad_key(TreeId::XATTRS, why),
        };
        let full = self.full(ino);
        if chunk > 0 {
            match &mut reading.open {
                Some((i, p, next, left))
                    if (*i, *p, *next) == (ino, position, chunk)
                        && *left > 0
                        && value.len() == (*left).min(XATTR_CHUNK_BYTES) =>
                {
                    *left -= value.len();
                    *next += 1;
                }
                _ if self.has_lost(TreeId::XATTRS) => {}
                _ => {
                    let text = format!("inode {} has a stray piece of an attribute", shown_number(full));
                    self.of(Kind::XattrPiece, full, text);
                }
            }
            return;
        }
        self.xattrs_end(reading);
        reading.open = None;
        let head = match XattrHead::decode(value) {
            Ok(head) => head,
            Err(why) => {
                let text = format!("an attribute of inode {}: {why}", shown_number(full));
                return self.of(Kind::XattrMalformed, full, text);
            }
        };
        reading.open = Some((ino, position, 1, head.value_len as usize - head.start.len()));
        let name = escape(&head.name);
        let hash = self.namespace.hasher.hash(&head.name);
        if NamePosition::new(hash, position.sequence()) != position {
            let text = format!(
                "attribute \"{name}\" of inode {} is not at the place of its hash",
                shown_number(full)
            );
            self.of(Kind::XattrMisplaced, full, text);
        }
        if !is_known(&head.name) {
            let text =
                format!("attribute \"{name}\" of inode {} is of no known namespace", shown_number(full));
            self.of(Kind::XattrNamespace, full, text);
        }
        let bucket = &mut reading.bucket;
        if (bucket.0, bucket.1) != (ino, position.0 >> 8) {
            *bucket = (ino, position.0 >> 8, HashSet::new());
        }
        if !bucket.2.insert(head.name.clone()) {
            let text = format!("attribute \"{name}\" of inode {} is there twice", shown_number(full));
            self.of(Kind::XattrDuplicate, full, text);
        }
        // A snapshot may have been taken while the file was open and had no name.
        let nameless = self.namespace.forked || self.orphans.contains(&full);
        let there = self.inodes.get(&ino).is_some_and(|seen| seen.says.is_some()) || self.inode_is_lost(ino);
        if !there && !nameless {
            let text = format!("attribute \"{name}\" of inode {}, which does not exist", shown_number(full));
            self.problem(Kind::XattrStray, text);
        }
        let seen = self.inodes.entry(ino).or_default();
        seen.xattrs += 1;
        seen.bytes = seen.bytes.saturating_add(cost(&head.name, head.value_len as usize));
    }
}
