//! Subvolumes, snapshots and clones: a snapshot is a copy of everything in its source that has a name.
//!
//! A user sees the slot of its subvolume in an inode's number, above the number that snapshots share. A subvolume has a
//! name in a directory as everything else has, but a snapshot shows none of the subvolumes in its source.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use varve_fs::{InodeId, NAME_BYTES_MAX, ROOT_INODE, RenameMode};

use super::apply::{
    EEXIST, EINVAL, EISDIR, ENAMETOOLONG, ENOENT, ENOTDIR, ENOTEMPTY, EOPNOTSUPP, EPERM, Errno,
};
use super::{Body, Context, Inode, Model, PAGE_BYTES};
use crate::call::Call;

pub(super) const EROFS: Errno = 30;
pub(super) const EXDEV: Errno = 18;
pub(super) const ESTALE: Errno = 116;

/// Bits of an inode's own number.
const LOCAL_BITS: u32 = 43;

/// The slot in an inode number.
pub fn slot(ino: InodeId) -> u64 {
    ino.0 >> LOCAL_BITS
}

/// The number that snapshots of one inode share.
pub fn local(ino: InodeId) -> InodeId {
    InodeId(ino.0 & ((1 << LOCAL_BITS) - 1))
}

/// The inode `local` in `slot`.
pub fn numbered(slot: u64, local: InodeId) -> InodeId {
    InodeId(slot << LOCAL_BITS | local.0)
}

/// Whether this is the root of a subvolume that lies in another.
pub fn is_subvolume(ino: InodeId) -> bool {
    slot(ino) != 0 && local(ino) == ROOT_INODE
}

/// What is known of a subvolume beside its inodes.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct Subvolume {
    /// Nothing in it can be changed.
    pub read_only: bool,
    /// A snapshot that a crash may take away as a whole: nothing has made it durable yet.
    pub optional: bool,
    /// The same for all that descend from one by snapshots.
    family: u64,
    /// A snapshot has been taken of it, or it is one: what is in it has versions, also when the others have gone.
    forked: bool,
}

impl Model {
    /// All subvolumes: their slots, and what is known of them.
    pub fn subvolumes(&self) -> impl Iterator<Item = (u64, Subvolume)> {
        self.subvolumes.iter().map(|(slot, subvolume)| (*slot, *subvolume))
    }

    /// Whether the names in the subvolume at `slot` have, or had, to be shared with a snapshot.
    pub fn was_forked(&self, slot: u64) -> bool {
        self.subvolumes.get(&slot).is_some_and(|subvolume| subvolume.forked)
    }

    /// The path of a directory that has one.
    pub fn path(&self, mut ino: InodeId) -> Vec<u8> {
        let mut path = Vec::new();
        while ino != ROOT_INODE
            && let Some(Inode { body: Body::Directory { parent, .. }, .. }) = self.get(ino)
        {
            let names = self.get(*parent).and_then(Inode::entries);
            let Some((name, _)) = names.and_then(|names| names.iter().find(|(_, child)| **child == ino))
            else {
                break;
            };
            path = [b"/", &name[..], &path[..]].concat();
            ino = *parent;
        }
        if path.is_empty() { b"/".to_vec() } else { path }
    }

    /// Whether there is a subvolume in this slot.
    pub fn has_slot(&self, slot: u64) -> bool {
        self.subvolumes.contains_key(&slot)
    }

    /// How many inodes that have a name are stored, at least and at most: snapshots share those that nobody changed.
    pub fn named_count(&self) -> (u64, u64) {
        let mut distinct = BTreeSet::new();
        let mut most = 0;
        for (ino, _) in self.inodes().filter(|(_, inode)| inode.links > 0) {
            distinct.insert((self.subvolumes.get(&slot(ino)).map(|subvolume| subvolume.family), local(ino)));
            most += 1;
        }
        (distinct.len() as u64, most)
    }

    /// What must be looked at before any verb: numbers that lead nowhere, and what cannot be changed.
    pub(super) fn admit(&self, call: &Call) -> Result<(), Errno> {
        let inodes = call.inodes();
        if inodes.iter().any(|(ino, _)| !self.has_slot(slot(*ino))) {
            // Whoever has something open may let go of it.
            return if matches!(call, Call::Release { .. }) { Ok(()) } else { Err(ESTALE) };
        }
        let frozen = |ino: InodeId| self.is_frozen(ino);
        // Out of what cannot be changed into what can: who hears of a border makes a copy.
        if let Call::Rename { parent, new_parent, .. } = call
            && frozen(*parent)
            && !frozen(*new_parent)
        {
            return Err(EXDEV);
        }
        // Also of inodes that are not there, and also what would change nothing, or be refused for another reason.
        if inodes.iter().any(|(ino, changed)| *changed && frozen(*ino)) { Err(EROFS) } else { Ok(()) }
    }

    /// Whether this is in a subvolume in which nothing can be changed.
    pub(super) fn is_frozen(&self, ino: InodeId) -> bool {
        self.subvolumes.get(&slot(ino)).is_some_and(|subvolume| subvolume.read_only)
    }

    /// What a call comes to: removing an empty subvolume as a directory deletes it.
    pub fn meaning(&self, call: &Call) -> Call {
        let Call::Rmdir { parent, name } = call else { return call.clone() };
        let empty = |ino: InodeId| self.get(ino).and_then(Inode::entries).is_some_and(BTreeMap::is_empty);
        let deletes = |ino: InodeId| is_subvolume(ino) && !self.is_frozen(ino) && empty(ino);
        match self.lookup(*parent, name).is_some_and(deletes) {
            true => Call::DeleteSubvolume { parent: *parent, name: name.clone() },
            false => call.clone(),
        }
    }

    fn add_subvolume(&mut self, slot: u64, read_only: bool, family: Option<u64>) {
        let next = self.subvolumes.values().map(|subvolume| subvolume.family).max().unwrap_or(0) + 1;
        let (family, forked) = (family.unwrap_or(next), family.is_some());
        let subvolumes = Arc::make_mut(&mut self.subvolumes);
        subvolumes.insert(slot, Subvolume { read_only, optional: false, family, forked });
    }

    /// The subvolumes that `wanted` accepts (by slot and root's directory) survive a crash from now on.
    pub fn require(&mut self, wanted: impl Fn(u64, InodeId) -> bool) {
        for slot in self.optional() {
            let root = numbered(slot, ROOT_INODE);
            let above = match self.get(root).map(|inode| &inode.body) {
                Some(Body::Directory { parent, .. }) => *parent,
                _ => continue,
            };
            if wanted(slot, above)
                && let Some(subvolume) = Arc::make_mut(&mut self.subvolumes).get_mut(&slot)
            {
                subvolume.optional = false;
            }
        }
    }

    fn optional(&self) -> Vec<u64> {
        self.subvolumes().filter(|(_, subvolume)| subvolume.optional).map(|(slot, _)| slot).collect()
    }

    /// Settles which of the optional snapshots there are, by what `exists` says of a name in a directory.
    pub fn settle_optional(&mut self, exists: impl Fn(InodeId, &[u8]) -> bool) {
        for at in self.optional() {
            let root = numbered(at, ROOT_INODE);
            let found = self.inodes().find_map(|(dir, inode)| {
                let (name, _) = inode.entries()?.iter().find(|(_, child)| **child == root)?;
                Some((dir, name.clone()))
            });
            let Some((dir, name)) = found else { continue };
            if exists(dir, &name) {
                self.require(|slot, _| slot == at);
                continue;
            }
            let gone: Vec<InodeId> =
                self.inodes().map(|(ino, _)| ino).filter(|ino| slot(*ino) == at).collect();
            gone.into_iter().for_each(|ino| self.inodes.remove(ino));
            Arc::make_mut(&mut self.subvolumes).remove(&at);
            self.entries_mut(dir).remove(&name);
        }
    }

    /// In a logged state, a snapshot that has just been taken: what was written before is in it, logged or not, or else it
    /// is not there.
    pub fn complete_snapshot(&mut self, root: InodeId, live: &Model, optional: bool) {
        for (ino, inode) in live.inodes().filter(|(ino, _)| slot(*ino) == slot(root)) {
            if inode.content().is_some() {
                self.inodes.insert(ino, inode.clone());
            }
        }
        if let Some(subvolume) = Arc::make_mut(&mut self.subvolumes).get_mut(&slot(root)) {
            subvolume.optional = optional;
        }
    }

    fn free_name(&self, parent: InodeId, name: &[u8]) -> Result<(), Errno> {
        match self.directory(parent)?.contains_key(name) {
            _ if name.len() > NAME_BYTES_MAX => Err(ENAMETOOLONG),
            true => Err(EEXIST),
            false => Ok(()),
        }
    }

    pub(super) fn create_subvolume(
        &mut self,
        parent: InodeId,
        name: &[u8],
        mode: u32,
        cx: &Context,
    ) -> Result<(), Errno> {
        self.free_name(parent, name)?;
        // Nothing is put into, and nothing taken of, what may not be there tomorrow.
        self.require(|at, _| at == slot(parent));
        let root =
            self.new_inode(parent, (mode, 0), Body::Directory { entries: Arc::default(), parent }, cx)?;
        self.inodes.insert(cx.created, root);
        self.entries_mut(parent).insert(name.to_vec(), cx.created);
        self.touch(parent, cx.now);
        self.add_subvolume(slot(cx.created), false, None);
        Ok(())
    }

    pub(super) fn snapshot(
        &mut self,
        source: InodeId,
        parent: InodeId,
        name: &[u8],
        read_only: bool,
        cx: &Context,
    ) -> Result<(), Errno> {
        if local(source) != ROOT_INODE {
            return Err(EINVAL);
        }
        self.free_name(parent, name)?;
        self.require(|at, _| at == slot(parent) || at == slot(source));
        // The name is taken first: a directory of the source is in the snapshot with these times.
        self.touch(parent, cx.now);
        let (from, to) = (slot(source), slot(cx.created));
        let here = |ino: InodeId| slot(ino) == from;
        let named = self.inodes().filter(|(ino, inode)| here(*ino) && inode.links > 0);
        let copies: Vec<(InodeId, Inode)> = named
            .map(|(ino, inode)| {
                let mut copy = Inode { opens: 0, ..inode.clone() };
                match &mut copy.body {
                    Body::Directory { entries, parent: above } => {
                        let inside = entries.iter().filter(|(_, child)| here(**child));
                        let copied = inside.map(|(name, child)| (name.clone(), numbered(to, local(*child))));
                        *entries = Arc::new(copied.collect());
                        *above = if ino == source { parent } else { numbered(to, local(*above)) };
                    }
                    Body::File(content) => Arc::make_mut(content).was_shared(),
                    _ => {}
                }
                (numbered(to, local(ino)), copy)
            })
            .collect();
        for (ino, copy) in copies {
            if copy.content().is_some() {
                self.remember_fork(numbered(from, local(ino)));
            }
            self.inodes.insert(ino, copy);
        }
        self.entries_mut(parent).insert(name.to_vec(), cx.created);
        let family = self.subvolumes.get(&from).map(|subvolume| subvolume.family);
        self.add_subvolume(to, read_only, family);
        if let Some(source) = Arc::make_mut(&mut self.subvolumes).get_mut(&from) {
            source.forked = true;
        }
        Ok(())
    }

    pub(super) fn remember_fork(&mut self, ino: InodeId) {
        if self.get(ino).and_then(Inode::content).is_some_and(|content| !content.is_forked())
            && let Some(content) = self.get_mut(ino).and_then(Inode::content_mut)
        {
            content.was_shared();
        }
    }

    /// Whoever shares space that is set aside in pages of a file loses it: it is being written to.
    pub fn take_shared_reserved(&mut self, ino: InodeId, offset: u64, len: u64) {
        let pages = offset / PAGE_BYTES..(offset + len).div_ceil(PAGE_BYTES);
        let taken = self.get(ino).and_then(Inode::content).map(|content| content.reservations(pages));
        let Some(taken) = taken.filter(|taken| !taken.is_empty()) else { return };
        let loses = |(other, inode): (InodeId, &Inode)| {
            (other != ino && inode.content().is_some_and(|content| content.has_one_of(&taken)))
                .then_some(other)
        };
        for other in self.inodes().filter_map(loses).collect::<Vec<_>>() {
            if let Some(content) = self.get_mut(other).and_then(Inode::content_mut) {
                content.lose(&taken);
            }
        }
    }

    /// Whether a subvolume may lose its name. The flags of a read-only one keep nothing.
    fn require_unprotected_root(&self, root: InodeId) -> Result<(), Errno> {
        if self.is_frozen(root) { Ok(()) } else { self.require_unprotected(root) }
    }

    pub(super) fn delete_subvolume(
        &mut self,
        parent: InodeId,
        name: &[u8],
        cx: &Context,
    ) -> Result<(), Errno> {
        let root = *self.directory(parent)?.get(name).ok_or(ENOENT)?;
        if !is_subvolume(root) {
            return Err(EINVAL);
        }
        self.require_unprotected_root(root)?;
        let gone: Vec<InodeId> =
            self.inodes().filter(|(ino, _)| slot(*ino) == slot(root)).map(|(ino, _)| ino).collect();
        let names = gone.iter().filter_map(|ino| self.get(*ino)?.entries());
        if names.flat_map(BTreeMap::values).any(|child| slot(*child) != slot(root)) {
            return Err(ENOTEMPTY);
        }
        for ino in gone {
            self.inodes.remove(ino);
        }
        Arc::make_mut(&mut self.subvolumes).remove(&slot(root));
        self.entries_mut(parent).remove(name);
        self.touch(parent, cx.now);
        Ok(())
    }

    /// The new file is the caller's, with the source's permission bits and bytes and nothing else of it.
    pub(super) fn clone_file(
        &mut self,
        source: InodeId,
        parent: InodeId,
        name: &[u8],
        cx: &Context,
    ) -> Result<(), Errno> {
        self.file(source)?;
        let inode = self.get(source).ok_or(ENOENT)?;
        let mode = inode.mode.get() & 0o777;
        let mut content = inode.content().cloned().unwrap_or_default();
        content.was_shared();
        self.remember_fork(source);
        self.make(parent, name, (mode, 0), Body::File(Arc::new(content)), cx)
    }

    /// A rename of which either side is a subvolume: it moves over nothing, not even an empty directory. Two are exchanged.
    pub(super) fn rename_subvolume(
        &mut self,
        from: (InodeId, &[u8]),
        to: (InodeId, &[u8]),
        mode: RenameMode,
        cx: &Context,
    ) -> Result<(), Errno> {
        let source = *self.directory(from.0)?.get(from.1).ok_or(ENOENT)?;
        let target = self.directory(to.0)?.get(to.1).copied();
        let entries =
            |model: &Model, ino| model.get(ino).and_then(|inode| inode.entries().map(BTreeMap::len));
        match (mode, target) {
            (_, Some(_)) if mode.refuses() => return Err(EEXIST),
            (RenameMode::Exchange, None) => return Err(ENOENT),
            (_, Some(target)) if target == source => return Ok(()),
            (RenameMode::Exchange, Some(target)) if is_subvolume(source) && is_subvolume(target) => {
                return self.exchange_subvolumes((from, source), (to, target), cx);
            }
            (RenameMode::Exchange, _) if slot(from.0) != slot(to.0) => return Err(EXDEV),
            (RenameMode::Exchange, _) | (RenameMode::Whiteout { .. }, None) => return Err(EOPNOTSUPP),
            (_, None) => {}
            (_, Some(target)) => {
                return Err(match (entries(self, source), entries(self, target)) {
                    (Some(_), None) => ENOTDIR,
                    (None, Some(_)) => EISDIR,
                    (_, Some(1..)) => ENOTEMPTY,
                    _ => EPERM,
                });
            }
        }
        if self.is_below(to.0, source) {
            return Err(EINVAL);
        }
        self.require_unprotected_root(source)?;
        self.require(|at, _| at == slot(to.0));
        self.entries_mut(from.0).remove(from.1);
        self.entries_mut(to.0).insert(to.1.to_vec(), source);
        self.lies_in(source, to.0);
        self.touch(from.0, cx.now);
        self.touch(to.0, cx.now);
        Ok(())
    }

    fn exchange_subvolumes(
        &mut self,
        (from, source): ((InodeId, &[u8]), InodeId),
        (to, target): ((InodeId, &[u8]), InodeId),
        cx: &Context,
    ) -> Result<(), Errno> {
        if self.is_below(to.0, source) || self.is_below(from.0, target) {
            return Err(EINVAL);
        }
        self.require_unprotected_root(source)?;
        self.require_unprotected_root(target)?;
        // A name that is there is no new one.
        self.require_unprotected(to.0)?;
        // Nor may a crash take one of them away, and with it a name that was there.
        let all = [source, target, from.0, to.0].map(slot);
        self.require(|at, _| all.contains(&at));
        self.entries_mut(from.0).insert(from.1.to_vec(), target);
        self.entries_mut(to.0).insert(to.1.to_vec(), source);
        self.lies_in(source, to.0);
        self.lies_in(target, from.0);
        self.touch(from.0, cx.now);
        self.touch(to.0, cx.now);
        Ok(())
    }

    /// Whether a call is to exchange two subvolumes with each other.
    pub fn exchanges(&self, call: &Call) -> bool {
        let Call::Rename { parent, name, new_parent, new_name, mode: RenameMode::Exchange } = call else {
            return false;
        };
        let both = [self.lookup(*parent, name), self.lookup(*new_parent, new_name)];
        both[0] != both[1] && both.into_iter().all(|found| found.is_some_and(is_subvolume))
    }

    fn lies_in(&mut self, root: InodeId, dir: InodeId) {
        if let Some(Body::Directory { parent, .. }) = self.get_mut(root).map(|inode| &mut inode.body) {
            *parent = dir;
        }
    }

    /// What a crash may find of a call of several transactions, beside nothing and all of it: times of a directory
    /// before it gets a name or after it has lost one. Of a clone, nothing: what comes before it is its source's data.
    pub fn partly(&self, call: &Call, cx: &Context) -> Vec<Model> {
        let done = |call: &Call| {
            let mut model = self.clone();
            model.apply(call, cx).is_ok().then_some(model)
        };
        let touched = |parent: InodeId| {
            let mut model = self.clone();
            model.get(parent)?;
            model.touch(parent, cx.now);
            Some(model)
        };
        let with_times_of = |mut model: Model, directory: InodeId| {
            if let (Some(inode), Some(old)) = (model.get_mut(directory), self.get(directory)) {
                (inode.mtime, inode.ctime) = (old.mtime.clone(), old.ctime.clone());
            }
            model
        };
        let found = match call {
            // Also when it is refused in the end.
            Call::Snapshot { parent, .. } => vec![touched(*parent)],
            Call::DeleteSubvolume { parent, .. } => {
                vec![done(call).map(|model| with_times_of(model, *parent)), done(call)]
            }
            Call::Rename { parent, new_parent, mode: RenameMode::Exchange, .. } if self.exchanges(call) => {
                let moved = done(call);
                let times = moved.clone().filter(|_| parent != new_parent);
                vec![times.map(|model| with_times_of(model, *parent)), moved]
            }
            Call::Rename { parent, name, new_parent, .. }
                if self.lookup(*parent, name).is_some_and(is_subvolume) =>
            {
                let moved = done(call);
                let times = moved.clone().filter(|_| parent != new_parent);
                vec![touched(*new_parent), times.map(|model| with_times_of(model, *parent)), moved]
            }
            _ => Vec::new(),
        };
        found.into_iter().flatten().collect()
    }
}

impl Call {
    /// Whether what a crash finds of this call is told by [`Model::partly`] alone.
    pub fn has_parts(&self) -> bool {
        matches!(
            self,
            Call::CreateSubvolume { .. }
                | Call::Snapshot { .. }
                | Call::DeleteSubvolume { .. }
                | Call::CloneFile { .. }
        )
    }
}
