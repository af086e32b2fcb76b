//! From one subvolume to another of the same family: only that in which they differ is looked at.
//!
//! What differs is told by the indexes of the versions below the one both descend from, which have been compared with the
//! entries before ([`super::Check::versions`]). All that was counted of the one subvolume becomes what the other shows: records are
//! replaced, names and attributes of a changed place taken away as the one shows them and added as the other does, and then the inodes
//! that any of this was about are compared with what was counted. This finds nothing, or that something is wrong; in that case
//! the caller looks at the whole subvolume, and says what.

use varve_engine::version::points::{self, Changed};
use varve_engine::{InodeId, TreeId};

use super::names::Bucket;
use super::xattrs::Reading;
use super::{Check, Entries, PIECE, Touched};
use crate::Result;
use crate::table::{Namespace, number};

/// Bytes of a name's prefix that say in which bucket it is: family, directory, hash without the number of the entry.
const BUCKET_BYTES: usize = 23;
/// Bytes of a prefix that say whose attributes they are: family, inode.
const INODE_BYTES: usize = 16;

impl Check<'_> {
    /// Whether the differences between a subvolume and the one that is being looked at can be told.
    pub(super) fn tells_differences(&self, before: &Namespace) -> bool {
        let trees = [TreeId::INODES, TreeId::NAMES, TreeId::XATTRS, TreeId::HELD, TreeId::VERSIONS];
        let forked = before.forked && self.namespace.forked;
        forked
            && before.family == self.namespace.family
            && !self.unsound.contains(&before.family)
            && !trees.iter().any(|tree| self.lost.overlaps(*tree, &before.family.0.to_be_bytes()))
    }

    /// Looks at that in which the subvolume differs from `before`, which is what has been counted. False: something is wrong, or could
    /// not be told; it is to be looked at as a whole.
    pub(super) fn differences(&mut self, before: &Namespace) -> bool {
        let said = std::mem::take(&mut self.problems);
        let done = self.all_differences(before);
        let found = std::mem::replace(&mut self.problems, said);
        done.is_ok_and(|whole| whole) && found.list.is_empty()
    }

    /// The same, whose problems say no more than that there are any.
    fn all_differences(&mut self, before: &Namespace) -> Result<bool> {
        let (mut touched, mut plain) = (Touched::new(), true);
        self.each_difference(before, TreeId::INODES, &mut |me, changed| {
            let ino = InodeId(number(&changed.prefix, 8));
            let kind = |me: &Self| Some(me.inodes.get(&ino)?.says.as_ref()?.kind);
            let was = kind(me);
            // What was wrong there may be hiding something else.
            let odd = me.inodes.get(&ino).is_some_and(|seen| {
                seen.malformed || (seen.says.is_none() && (seen.names, seen.entries) != (0, 0))
            });
            me.inode(ino, changed.new.as_deref());
            touched.insert(ino);
            // A number is never given out again.
            plain &= !odd && was.zip(kind(me)).is_none_or(|(was, is)| was == is);
            Ok(())
        })?;
        let mut last = Vec::new();
        self.each_difference(before, TreeId::NAMES, &mut |me, changed| {
            let prefix = &changed.prefix[..BUCKET_BYTES];
            if prefix != last {
                last = prefix.to_vec();
                let (Some(gone), Some(there)) = (
                    me.entries_of(before, TreeId::NAMES, prefix)?,
                    me.entries_of(&me.namespace, TreeId::NAMES, prefix)?,
                ) else {
                    plain = false;
                    return Ok(());
                };
                for (key, value) in gone {
                    touched.extend(me.name_gone(&key, &value).into_iter().flatten());
                }
                let mut bucket = Bucket::default();
                for (key, value) in there {
                    touched.extend(me.name_entry(&mut bucket, &key, &value).into_iter().flatten());
                }
            }
            Ok(())
        })?;
        last.clear();
        self.each_difference(before, TreeId::XATTRS, &mut |me, changed| {
            let prefix = &changed.prefix[..INODE_BYTES];
            if prefix != last {
                last = prefix.to_vec();
                let ino = InodeId(number(prefix, 8));
                touched.insert(ino);
                let seen = me.inodes.entry(ino).or_default();
                (seen.xattrs, seen.bytes) = (0, 0);
                let mut reading = Reading::default();
                let Some(there) = me.entries_of(&me.namespace, TreeId::XATTRS, prefix)? else {
                    plain = false;
                    return Ok(());
                };
                for (key, value) in there {
                    me.xattr_entry(&mut reading, &key, &value);
                }
                me.xattrs_end(&reading);
            }
            Ok(())
        })?;
        self.tree(Some(&touched));
        for ino in touched {
            let Some(seen) = self.inodes.get(&ino) else { continue };
            if seen.is_nothing() {
                self.inodes.remove(&ino);
            } else if seen.says.is_none() && (seen.names > 0 || seen.entries > 0) {
                return Ok(false);
            }
        }
        Ok(plain)
    }

    /// Calls `each` with every place of a tree where `before` and the subvolume that is being looked at differ.
    fn each_difference(
        &mut self,
        before: &Namespace,
        tree: TreeId,
        each: &mut dyn FnMut(&mut Self, &Changed) -> Result<()>,
    ) -> Result<()> {
        let (mut from, after) = (Vec::new(), self.namespace.path.clone());
        loop {
            let found = points::changes(&self.view, &before.path, &after, tree, &from, PIECE)?;
            for changed in &found.changed {
                each(self, changed)?;
            }
            match found.next {
                Some(next) => from = next,
                None => return Ok(()),
            }
        }
    }

    /// What `namespace` shows at keys that begin with `prefix`; `None`: more than can be right.
    fn entries_of(&self, namespace: &Namespace, tree: TreeId, prefix: &[u8]) -> Result<Option<Entries>> {
        let mut entries = Vec::new();
        namespace.each(&self.view, tree, prefix, prefix, &mut |key, value| {
            entries.push((key.to_vec(), value.to_vec()));
            entries.len() <= PIECE
        })?;
        Ok((entries.len() <= PIECE).then_some(entries))
    }
}
