//! Subvolumes: create, snapshot, delete. They move in [`super::moving`], and are listed in [`super::listing`].
//!
//! Who makes, moves or deletes one holds the topology lock throughout. A snapshot is one transaction under the gate of the
//! source's family alone: its record, a count, and what its directory notes. Where that gate cannot be had while the
//! directory is locked, because both are of one family or somebody is at work there, the name is taken in the directory
//! first, where it leads nowhere yet, and the rest comes after: if power fails in between, the directory's times have
//! changed and nothing else. What is dirty of the source is frozen and logged later ([`crate::writeback::frozen`]). A
//! deletion is one transaction, too; the reaper does the rest.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use varve_engine::version::{self, Holder};
use varve_engine::{EngineError, FamilyId, InodeId, Transaction, TreeId, VersionKey};
use varve_format::record::inode::{InodeKind, InodeRecord, Time, inode_key};
use varve_format::record::name::NamePosition;
use varve_format::record::subvolume::{
    SUBVOLUME_DELETING, SUBVOLUME_PENDING, SUBVOLUME_READ_ONLY, SUBVOLUME_SHARING, SubvolumePlace,
    SubvolumeRecord,
};
use varve_format::record::xattr::xattr_key;

use super::flags::{Touch, require_unprotected, unless_damaged};
use super::require_directory;
use super::xattr::note_first_xattr;
use crate::api::{Attr, Caller, ROOT_INODE};
use crate::core::{Core, check_name, touch_directory};
use crate::inode::Inner;
use crate::reaper::Task;
use crate::subvolume::nested::Vacancy;
use crate::subvolume::{Change, Shown, Slot, Subvolume, local};
use crate::table::xattrs::xattr_entries;
use crate::table::{Namespace, inodes, subvolumes};
use crate::writeback::frozen::{Freeze, FrozenSet};
use crate::{FsError, Result};

/// Where a subvolume will be: directory, position there, name; and when it came there.
type NewPlace<'a> = (InodeId, NamePosition, &'a [u8], Time);

/// What a deletion is meant for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Which {
    /// Whatever is in it.
    Any,
    /// The one in this slot, whatever is in it.
    This(Slot),
    /// The one in this slot, if nothing is in it.
    Empty(Slot),
}

impl Which {
    /// Refuses another one that has taken the name.
    fn require(self, slot: Slot) -> Result<()> {
        match self {
            Which::This(meant) if meant != slot => Err(FsError::NotFound),
            // Who removes a directory looks again.
            Which::Empty(meant) if meant != slot => Err(FsError::NotSubvolume),
            _ => Ok(()),
        }
    }
}

/// Whether the root directory of a subvolume has no entries, subvolumes aside.
fn is_empty(namespace: &Namespace, root: InodeId) -> Result<bool> {
    Ok(namespace.inode(root)?.is_some_and(|(record, _)| record.size == 0))
}

impl Core {
    /// Where the subvolume with this name in `dir` is, and which it is ([`crate::subvolume::nested::Nested::find`]).
    pub(crate) fn nested(&self, dir: InodeId, name: &[u8]) -> Result<Option<(NamePosition, Option<Slot>)>> {
        if !self.subvolumes.nested.any() {
            return Ok(None);
        }
        Ok(self.subvolumes.nested.find(dir, self.subvolumes.hasher.base(name), name))
    }

    /// The directory that a directory is in; the root is in itself.
    pub(crate) fn up(&self, dir: InodeId) -> Result<InodeId> {
        let slot = Slot::of(dir);
        if slot != Slot::FIRST && local(dir) == ROOT_INODE {
            let place = *self.subvolumes.get(slot)?.place.lock();
            return place.map(|(above, _)| above).ok_or(FsError::Stale);
        }
        let state = self.state(dir);
        Ok(slot.full(self.read_lock(&state)?.record.parent))
    }

    pub(crate) fn create_subvolume(
        &self,
        caller: Caller,
        parent: InodeId,
        name: &[u8],
        modes: (u32, u32),
    ) -> Result<Attr> {
        self.admit(parent)?;
        self.permit(parent, Touch::NewName)?;
        check_name(name)?;
        let slot = self.with_space(|| self.create_subvolume_once(caller, parent, name, modes))?;
        self.getattr(slot.full(ROOT_INODE))
    }

    /// `modes`: the permission bits that are asked for, and the umask.
    fn create_subvolume_once(
        &self,
        caller: Caller,
        parent: InodeId,
        name: &[u8],
        modes: (u32, u32),
    ) -> Result<Slot> {
        let _topology = self.topology(|set| set.snapshot == Slot::of(parent))?;
        let id = self.store.new_id();
        let slot = self.next_slot()?;
        let change = self.change(parent)?;
        let state = self.state(parent);
        let mut dir = self.write_lock(&state)?;
        let position = self.free_place(&change, &dir, parent, name)?;
        // One transaction with what its directory notes: refused, nothing has happened.
        let (mut tx, now) = (Transaction::new(), self.now());
        tx.claim_id(id);
        let holder = Holder::new(FamilyId(id));
        let record = self.new_record(id, slot, holder, (parent, position, name, now), 0, 0)?;
        subvolumes::put(&mut tx, id, &record);
        let lists = self.lists_in(parent, &dir, InodeKind::Directory, modes)?;
        let mut root = self.record_in(&dir.record, InodeKind::Directory, ROOT_INODE, caller, lists.mode, now);
        root.parent = ROOT_INODE;
        for (name, value) in lists.xattrs(InodeKind::Directory) {
            let position = change.first_xattr_position(name, root.xattr_count as u8);
            note_first_xattr(&mut root, name, &value);
            for (chunk, entry) in xattr_entries(name, &value) {
                let key = xattr_key(FamilyId(id), ROOT_INODE, position, chunk, VersionKey(id));
                tx.put_owned(TreeId::XATTRS, &key, entry);
            }
        }
        let key = inode_key(FamilyId(id), ROOT_INODE, VersionKey(id));
        tx.put(TreeId::INODES, &key, &root.encode());
        let counting = self.counting()?;
        let noted = self.note_change(&change, &mut tx, parent, &dir, now)?;
        self.apply(tx)?;
        self.files.add(inodes::place(&key), 1);
        drop(counting);
        let subvolume = Subvolume::new(id, slot, false, self.subvolumes.gate(holder.family), holder);
        self.settle(subvolume, parent, position, name);
        dir.take_over(&change, noted);
        Ok(slot)
    }

    /// A slot for a new subvolume, as long as the topology lock is held.
    fn next_slot(&self) -> Result<Slot> {
        self.subvolumes.next_slot(|slot| {
            // Whoever asks by number from outside must be able to say of what he knows that he does not.
            let (known_outside, root) = (self.known_outside.read(), slot.full(ROOT_INODE));
            known_outside.is_empty()
                || known_outside.iter().any(|is_known| is_known(root))
                || !self.inodes.clear(slot)
        })
    }

    /// A subvolume that has been made is found from now on.
    fn settle(&self, subvolume: Subvolume, parent: InodeId, position: NamePosition, name: &[u8]) -> Slot {
        let slot = subvolume.slot;
        *subvolume.place.lock() = Some((parent, position));
        self.subvolumes.add(subvolume);
        self.subvolumes.nested.put(parent, position, name, Some(slot));
        slot
    }

    /// A position in a directory, which is locked, for a name that is free there.
    pub(super) fn free_place(
        &self,
        change: &Change,
        dir: &Inner,
        parent: InodeId,
        name: &[u8],
    ) -> Result<NamePosition> {
        require_directory(dir)?;
        let base = self.subvolumes.hasher.base(name);
        let vacancy = self.subvolumes.nested.vacancy(parent, base, name);
        if vacancy == Vacancy::Taken || change.lookup_at(parent, base, name)?.is_some() {
            return Err(FsError::Exists);
        }
        match vacancy {
            Vacancy::At(position) => Ok(position),
            Vacancy::Taken | Vacancy::Full => Err(FsError::HashFull),
        }
    }

    /// Adds to `tx` that a directory has got or lost a subvolume `now`. Gives its new record.
    pub(super) fn note_change(
        &self,
        change: &Change,
        tx: &mut Transaction,
        parent: InodeId,
        dir: &Inner,
        now: Time,
    ) -> Result<InodeRecord> {
        let mut record = dir.record.clone();
        touch_directory(&mut record, now, 0, 0);
        self.put_record(change, tx, parent, dir, &mut record)?;
        Ok(record)
    }

    /// Takes a free name in a directory, and notes there that it has changed. Gives also what it was before and is now.
    fn take_place(&self, parent: InodeId, name: &[u8]) -> Result<(NamePosition, [InodeRecord; 2])> {
        let change = self.change(parent)?;
        let state = self.state(parent);
        let mut dir = self.write_lock(&state)?;
        let position = self.free_place(&change, &dir, parent, name)?;
        let mut tx = Transaction::new();
        let record = self.note_change(&change, &mut tx, parent, &dir, self.now())?;
        self.apply(tx)?;
        let noted = [dir.record.clone(), record.clone()];
        dir.take_over(&change, record);
        self.subvolumes.nested.put(parent, position, name, None);
        Ok((position, noted))
    }

    /// What was to take the name was refused: the directory has not changed, unless somebody else has changed it.
    fn give_back_place(
        &self,
        parent: InodeId,
        position: NamePosition,
        [before, noted]: [InodeRecord; 2],
    ) -> Result<()> {
        self.subvolumes.nested.remove(parent, position);
        let change = self.change(parent)?;
        let state = self.state(parent);
        let mut dir = self.write_lock(&state)?;
        if (dir.record.mtime, dir.record.ctime) != (noted.mtime, noted.ctime) {
            return Ok(());
        }
        let mut record = dir.record.clone();
        (record.mtime, record.ctime) = (before.mtime, before.ctime);
        let mut tx = Transaction::new();
        // The pool is full.
        tx.privileged();
        self.put_record(&change, &mut tx, parent, &dir, &mut record)?;
        self.apply(tx)?;
        dir.take_over(&change, record);
        Ok(())
    }

    /// Notes in a directory that it has lost a subvolume. That has happened, and a deletion may have taken from the protected
    /// part: so may this. Only where not even that has space, or the directory cannot be read, does it go without.
    pub(super) fn note_loss(&self, parent: InodeId) -> Result<()> {
        let result = (|| {
            let change = self.change(parent)?;
            let state = self.state(parent);
            let mut dir = self.write_lock(&state)?;
            let mut tx = Transaction::new();
            tx.privileged();
            let record = self.note_change(&change, &mut tx, parent, &dir, self.now())?;
            self.apply(tx)?;
            dir.take_over(&change, record);
            Ok(())
        })();
        match result {
            // Or it has been removed meanwhile itself.
            Err(FsError::Engine(EngineError::NoSpace) | FsError::NotFound | FsError::Stale) => Ok(()),
            Err(FsError::Engine(error)) if error.is_damage() => {
                tracing::warn!("times of a directory do not tell that a subvolume has left it: {error}");
                Ok(())
            }
            result => result,
        }
    }

    fn new_record(
        &self,
        id: u64,
        slot: Slot,
        holder: Holder,
        (dir, position, name, created): NewPlace<'_>,
        origin: u64,
        flags: u16,
    ) -> Result<SubvolumeRecord> {
        // The pool's name is random; the number makes it the subvolume's.
        let mut uuid = self.store.pool_id();
        for (byte, of_id) in uuid[8..].iter_mut().zip(id.to_be_bytes()) {
            *byte ^= of_id;
        }
        let place = SubvolumePlace {
            parent: self.subvolumes.get(Slot::of(dir))?.id,
            directory: local(dir),
            position,
            created,
            origin,
            name: name.to_vec(),
        };
        Ok(SubvolumeRecord {
            family: holder.family,
            version: holder.version,
            root: ROOT_INODE,
            hash_kind: self.subvolumes.hasher.kind(),
            files: 0,
            files_known: false,
            reserved_blocks: 0,
            slot: slot.0,
            uuid,
            flags,
            place: Some(place),
        })
    }

    pub(crate) fn snapshot(
        &self,
        source: InodeId,
        parent: InodeId,
        name: &[u8],
        read_only: bool,
        sync: bool,
    ) -> Result<InodeId> {
        self.admit_beside(source, parent)?;
        self.permit(parent, Touch::NewName)?;
        check_name(name)?;
        if local(source) != ROOT_INODE {
            return Err(FsError::NotSubvolume);
        }
        let once = || self.snapshot_once(Slot::of(source), parent, name, read_only);
        let slot = self.thawing(|| self.with_space(once))?;
        if sync {
            let completed = self.complete(|set| set.snapshot == slot);
            let durable = completed.and_then(|()| self.commit(self.store.position()));
            // It stays: others may be in it already, and what keeps it from being durable would keep its removal from that, too. Whose
            // flush fails hears of the device alone, and a sync would not be tried again by who has stopped.
            durable.map_err(|why| {
                FsError::NotDurable(Box::new(self.store.stopped().map_or(why, FsError::from)))
            })?;
        }
        Ok(slot.full(ROOT_INODE))
    }

    fn snapshot_once(&self, source: Slot, parent: InodeId, name: &[u8], read_only: bool) -> Result<Slot> {
        // What is incomplete neither holds others nor has snapshots.
        let topology = self.topology(|set| set.snapshot == source || set.snapshot == Slot::of(parent))?;
        let source = self.subvolumes.get(source)?;
        let slot = self.next_slot()?;
        if !self.try_snapshot(&source, slot, (parent, name), read_only)? {
            let (position, noted) = self.take_place(parent, name)?;
            let place = (parent, position, name, self.now());
            let made =
                self.fork(&source, &mut source.gate.write(), slot, place, read_only, Transaction::new());
            match made {
                Ok(subvolume) => drop(self.settle(subvolume, parent, position, name)),
                Err(error) => {
                    // What refused the fork is what the caller has to hear.
                    if let Err(kept) = self.give_back_place(parent, position, noted) {
                        tracing::warn!("times of a directory stay those of a refused snapshot: {kept}");
                    }
                    return Err(error);
                }
            }
        }
        drop(topology);
        if self.frozen.has(|set| set.snapshot == slot) {
            // Before somebody needs one of the files.
            self.dirty.ahead.wake();
        }
        Ok(slot)
    }

    /// A snapshot in one transaction with what its directory notes. False, and nothing has happened, where the gate of the
    /// source cannot be had at once: the directory is locked, so it must not be waited for.
    fn try_snapshot(
        &self,
        source: &Subvolume,
        slot: Slot,
        (parent, name): (InodeId, &[u8]),
        read_only: bool,
    ) -> Result<bool> {
        if Arc::ptr_eq(&source.gate, &self.subvolumes.get(Slot::of(parent))?.gate) {
            return Ok(false);
        }
        let change = self.change(parent)?;
        let state = self.state(parent);
        let mut dir = self.write_lock(&state)?;
        let position = self.free_place(&change, &dir, parent, name)?;
        let Some(mut shown) = source.gate.try_write() else { return Ok(false) };
        let (mut tx, now) = (Transaction::new(), self.now());
        let record = self.note_change(&change, &mut tx, parent, &dir, now)?;
        let subvolume = self.fork(source, &mut shown, slot, (parent, position, name, now), read_only, tx)?;
        drop(shown);
        // Whoever looks for the name waits for the directory, or finds all of it.
        self.settle(subvolume, parent, position, name);
        dir.take_over(&change, record);
        Ok(true)
    }

    /// One more holder of what `source` holds: one transaction, `tx` and what this adds to it, whatever there is in the
    /// source and whatever is dirty of it. Where versions need it, another one comes before.
    fn fork(
        &self,
        source: &Subvolume,
        shown: &mut Shown,
        slot: Slot,
        place: NewPlace<'_>,
        read_only: bool,
        tx: Transaction,
    ) -> Result<Subvolume> {
        let made = self.fork_frozen(source, shown, slot, place, read_only, tx);
        if made.is_err() {
            self.frozen.remove(slot);
        }
        made
    }

    fn fork_frozen(
        &self,
        source: &Subvolume,
        shown: &mut Shown,
        slot: Slot,
        place: NewPlace<'_>,
        read_only: bool,
        mut tx: Transaction,
    ) -> Result<Subvolume> {
        let id = self.store.new_id();
        let (mut at, mut holder, alone) = self.held(source, shown)?;
        // What is written from here on is not in the snapshot, unless to a file that is frozen: that waits for the gate.
        let mut frozen = self.freeze(source.slot, slot, holder, alone);
        if frozen == Freeze::NeedsVersion {
            self.own_version(source, shown)?;
            (at, holder, _) = self.held(source, shown)?;
            frozen = self.freeze(source.slot, slot, holder, true);
        }
        version::share(&self.store, &mut tx, &mut holder)?;
        let mut flags = if read_only { SUBVOLUME_READ_ONLY } else { 0 };
        if frozen == Freeze::Pending {
            flags |= SUBVOLUME_PENDING;
        }
        let record = self.new_record(id, slot, holder, place, source.id, flags)?;
        tx.claim_id(id);
        subvolumes::put(&mut tx, id, &record);
        if self.sharing() {
            self.apply(tx)?;
        } else {
            self.apply_record(tx, &self.subvolumes.first, |first| first.flags |= SUBVOLUME_SHARING)?;
            self.sharing.store(true, Ordering::Release);
        }
        source.set_holder(holder);
        shown.fork(at, holder);
        Ok(Subvolume::new(id, slot, read_only, source.gate.clone(), holder))
    }

    /// Refuses to take the name from a subvolume whose root directory must not lose it, as of any directory. In a read-only
    /// snapshot nobody could take such flags away: there they show what was, and keep nothing.
    pub(super) fn require_unprotected_root(&self, subvolume: &Subvolume) -> Result<()> {
        if !self.flagged() || subvolume.read_only {
            return Ok(());
        }
        let root = subvolume.slot.full(ROOT_INODE);
        // What else is wrong with it, whoever goes on finds out.
        unless_damaged(|| match self.names(root).and_then(|names| Ok(names.inode(root)?)) {
            Ok(Some((record, _))) => require_unprotected(&record),
            Err(error @ FsError::Engine(_)) => Err(error),
            _ => Ok(()),
        })
    }

    /// `meant`: the root of the one that is meant; `None`: whichever has the name.
    pub fn delete_subvolume(&self, parent: InodeId, name: &[u8], meant: Option<InodeId>) -> Result<()> {
        self.admit(parent)?;
        self.permit_parting(parent)?;
        let which = match meant {
            None => Which::Any,
            Some(root) if local(root) == ROOT_INODE => Which::This(Slot::of(root)),
            Some(_) => return Err(FsError::NotSubvolume),
        };
        self.with_space_patiently(|| self.delete_found(parent, name, which))
    }

    /// As rmdir does: one with nothing in it that can be changed.
    pub(super) fn delete_empty_subvolume(&self, parent: InodeId, name: &[u8]) -> Result<()> {
        let (_, subvolume) = self.find_to_delete(parent, name)?;
        if subvolume.read_only {
            return Err(FsError::IsSubvolume);
        }
        self.require_unprotected_root(&subvolume)?;
        // As a rule that settles it, and nothing is logged for a refusal.
        let root = subvolume.slot.full(ROOT_INODE);
        let names = match self.names(root) {
            // Deleted since: who removes a directory looks again.
            Err(FsError::Stale) => return Err(FsError::NotSubvolume),
            names => names?,
        };
        if self.subvolumes.nested.within(subvolume.slot) || !is_empty(&names, root)? {
            return Err(FsError::NotEmpty);
        }
        // With it goes the gate.
        drop(names);
        self.with_space_patiently(|| self.delete_found(parent, name, Which::Empty(subvolume.slot)))
    }

    fn delete_found(&self, parent: InodeId, name: &[u8], which: Which) -> Result<()> {
        // What others of its family wait for is logged first: a crash that removes a snapshot is not to find the one that it came after
        // deleted. What it waits for itself nobody needs any more.
        let (topology, position, subvolume) = loop {
            let (_, subvolume) = self.find_to_delete(parent, name)?;
            let (slot, family) = (subvolume.slot, subvolume.family);
            // Also when another one has taken the name while this waited: below it is the same.
            which.require(slot)?;
            let others = |set: &FrozenSet| set.family == family && set.snapshot != slot;
            // What is dirty of it goes from memory with it; all else that cannot be written stays as it is, whoever goes.
            let topology = self.topology_past_damage(others, |set| set.source != slot)?;
            let (position, again) = self.find_to_delete(parent, name)?;
            if Arc::ptr_eq(&subvolume, &again) {
                break (topology, position, subvolume);
            }
        };
        let slot = subvolume.slot;
        self.require_unprotected_root(&subvolume)?;
        if self.subvolumes.nested.within(slot) {
            return Err(FsError::NotEmpty);
        }
        let family = self.let_go(&subvolume, which)?;
        self.subvolumes.nested.remove(parent, position);
        self.subvolumes.remove(slot);
        // From here on its numbers lead nowhere, but for what is in memory.
        self.inodes.each_of(slot, |state| self.forget(&mut state.inner.write()));
        self.reap.push(Task::Subvolume { id: subvolume.id, slot, family });
        drop(topology);
        self.note_loss(parent)
    }

    fn find_to_delete(&self, parent: InodeId, name: &[u8]) -> Result<(NamePosition, Arc<Subvolume>)> {
        for _ in 0..super::RETRIES_MAX {
            let Some((position, Some(slot))) = self.nested(parent, name)? else {
                let there = self.names(parent)?.lookup(parent, name)?.is_some();
                return Err(if there { FsError::NotSubvolume } else { FsError::NotFound });
            };
            match self.subvolumes.get(slot) {
                // It has been deleted. Another one may have got its name before that.
                Err(FsError::Stale) => {}
                found => return Ok((position, found?.shared())),
            }
        }
        Err(FsError::NotFound)
    }

    /// A subvolume lets go of its version and is being deleted from now on. Gives the family of its namespace.
    fn let_go(&self, subvolume: &Subvolume, which: Which) -> Result<FamilyId> {
        let mut shown = subvolume.gate.write();
        // Not what it shows: the way from its version to the first may be long, or damaged, and nothing of that is needed.
        let holder = subvolume.holder()?;
        if let Which::Empty(slot) = which {
            let at = self.fresh_head(subvolume, &mut shown)?;
            // Nobody is about to put something into it: he would hold the gate.
            if !is_empty(shown.namespace(at), slot.full(ROOT_INODE))? {
                return Err(FsError::NotEmpty);
            }
        }
        let mut tx = Transaction::new();
        version::release(&self.store.view(), &mut tx, holder)?;
        tx.privileged();
        self.apply_record(tx, subvolume, |record| {
            record.flags = record.flags & !SUBVOLUME_PENDING | SUBVOLUME_DELETING;
        })?;
        // Before anybody logs anything: from now on it belongs to the source alone.
        self.waits_no_more(subvolume.slot);
        shown.remove(subvolume);
        Ok(holder.family)
    }

    /// Removes the snapshots whose data was not all logged when the pool was last in use: they are not what was taken.
    /// They have no place in a directory ([`Core::open_subvolumes`]). `removed` hears what is left to be reaped of each. Gives those
    /// that there is no space to remove.
    pub(crate) fn remove_pending(
        &self,
        pending: &[Slot],
        mut removed: impl FnMut(Task),
    ) -> Result<Vec<Slot>> {
        let mut left = Vec::new();
        for slot in pending {
            let subvolume = &self.subvolumes.get(*slot)?;
            tracing::info!("snapshot {} was not complete: it is removed", subvolume.id);
            match self.let_go(subvolume, Which::Any) {
                Ok(family) => {
                    self.subvolumes.remove(subvolume.slot);
                    removed(Task::Subvolume { id: subvolume.id, slot: subvolume.slot, family });
                }
                Err(FsError::Engine(EngineError::NoSpace)) => {
                    tracing::warn!("there is no space to remove it: it is not shown");
                    left.push(*slot);
                }
                Err(FsError::Engine(error)) if error.is_damage() => {
                    tracing::error!("it cannot be removed: {error}; `varve check` says what is damaged");
                }
                Err(error) => return Err(error),
            }
        }
        Ok(left)
    }
}
