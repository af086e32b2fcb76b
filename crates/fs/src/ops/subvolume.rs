//! Subvolumes: create, snapshot, rename, delete, list.
//!
//! Who makes, moves or deletes one holds the topology lock throughout. A snapshot takes its name in the directory first,
//! where the name leads nowhere yet, and then, holding the gate of the source's family alone, adds one record and a
//! count: if power fails in between, the directory's times have changed and nothing else. What is dirty of the source is
//! frozen and logged later ([`crate::writeback::frozen`]). A deletion is one transaction, too; the reaper does the rest.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::Mutex;
use varve_engine::version::{self, Holder};
use varve_engine::{FamilyId, InodeId, Transaction, TreeId, VersionKey};
use varve_format::record::inode::{InodeKind, inode_key};
use varve_format::record::name::NamePosition;
use varve_format::record::subvolume::{
    SUBVOLUME_DELETING, SUBVOLUME_PENDING, SUBVOLUME_READ_ONLY, SUBVOLUME_SHARING, SubvolumePlace,
    SubvolumeRecord,
};

use super::require_directory;
use crate::api::{Attr, Caller, ROOT_INODE, RenameMode, SubvolumeInfo};
use crate::core::{Core, check_name, touch_directory};
use crate::inode::root_record;
use crate::reaper::Task;
use crate::subvolume::nested::Entry;
use crate::subvolume::{self, Slot, Subvolume, local};
use crate::table::subvolumes;
use crate::writeback::frozen::Freeze;
use crate::{FsError, Result};

/// Subvolumes within one another, at most: bounds walks in a damaged pool.
const DEPTH_MAX: usize = 1 << 20;

impl Core {
    /// The subvolume with this name in `dir`.
    pub(crate) fn nested(&self, dir: InodeId, name: &[u8]) -> Result<Option<(NamePosition, Entry)>> {
        if !self.subvolumes.nested.any() {
            return Ok(None);
        }
        Ok(self.subvolumes.nested.find(dir, self.names(dir)?.hasher.hash(name), name))
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
        mode: u32,
    ) -> Result<Attr> {
        check_name(name)?;
        self.require_writable()?;
        let slot = self.with_space(|| self.create_subvolume_once(caller, parent, name, mode))?;
        self.getattr(slot.full(ROOT_INODE))
    }

    fn create_subvolume_once(&self, caller: Caller, parent: InodeId, name: &[u8], mode: u32) -> Result<Slot> {
        let _topology = self.topology(|set| set.snapshot == Slot::of(parent))?;
        let id = self.store.new_id();
        let slot = self.subvolumes.new_slot()?;
        let position = self.take_place(parent, name)?;
        let root = root_record(caller, (mode & 0o7777) as u16, self.now());
        let holder = Holder::new(FamilyId(id));
        let record = self.new_record(id, slot, holder, (parent, position, name), 0, 0)?;
        let made = (|| {
            let mut tx = Transaction::new();
            tx.claim_id(id);
            subvolumes::put(&mut tx, id, &record);
            tx.put(TreeId::INODES, &inode_key(FamilyId(id), ROOT_INODE, VersionKey(id)), &root.encode());
            let counting = self.counting()?;
            self.apply(tx)?;
            self.files.add(1);
            drop(counting);
            let gate = self.subvolumes.gate(record.family);
            let hasher = self.names(parent)?.hasher;
            subvolume::open(&self.store, gate, id, record, hasher, false)
        })();
        self.settle_place(made, parent, position, name)
    }

    /// What a name that was taken leads to from now on; if that could not be made, the name is free again.
    fn settle_place(
        &self,
        made: Result<Subvolume>,
        parent: InodeId,
        position: NamePosition,
        name: &[u8],
    ) -> Result<Slot> {
        match made {
            Ok(subvolume) => {
                let slot = subvolume.slot;
                *subvolume.place.lock() = Some((parent, position));
                self.subvolumes.add(subvolume);
                let entry = Entry { name: name.to_vec(), slot: Some(slot) };
                self.subvolumes.nested.put(parent, position, entry);
                Ok(slot)
            }
            Err(error) => {
                self.subvolumes.nested.remove(parent, position);
                Err(error)
            }
        }
    }

    /// Takes a free name in a directory, and notes there that it has changed.
    fn take_place(&self, parent: InodeId, name: &[u8]) -> Result<NamePosition> {
        let change = self.change(parent)?;
        let state = self.state(parent);
        let mut dir = self.write_lock(&state)?;
        require_directory(&dir)?;
        if change.lookup(parent, name)?.is_some() || self.nested(parent, name)?.is_some() {
            return Err(FsError::Exists);
        }
        let hash = change.hasher.hash(name);
        let Some(position) = self.subvolumes.nested.free(parent, hash) else {
            return Err(varve_engine::EngineError::NoSpace.into());
        };
        let mut record = dir.record.clone();
        touch_directory(&mut record, self.now(), 0, 0);
        let mut tx = Transaction::new();
        self.put_record(&change, &mut tx, parent, &dir, &mut record)?;
        self.apply(tx)?;
        dir.take_over(&change, record);
        self.subvolumes.nested.put(parent, position, Entry { name: name.to_vec(), slot: None });
        Ok(position)
    }

    /// Notes in a directory that it has lost a subvolume. Where there is no space for that, it goes without.
    fn note_loss(&self, parent: InodeId) -> Result<()> {
        let result = (|| {
            let change = self.change(parent)?;
            let state = self.state(parent);
            let mut dir = self.write_lock(&state)?;
            let mut record = dir.record.clone();
            touch_directory(&mut record, self.now(), 0, 0);
            let mut tx = Transaction::new();
            self.put_record(&change, &mut tx, parent, &dir, &mut record)?;
            self.apply(tx)?;
            dir.take_over(&change, record);
            Ok(())
        })();
        match result {
            Err(FsError::Engine(varve_engine::EngineError::NoSpace)) => Ok(()),
            result => result,
        }
    }

    fn new_record(
        &self,
        id: u64,
        slot: Slot,
        holder: Holder,
        (dir, position, name): (InodeId, NamePosition, &[u8]),
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
            created: self.now(),
            origin,
            name: name.to_vec(),
        };
        Ok(SubvolumeRecord {
            family: holder.family,
            version: holder.version,
            root: ROOT_INODE,
            hash_kind: self.files.stored.lock().hash_kind,
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
    ) -> Result<Attr> {
        check_name(name)?;
        self.require_writable()?;
        if local(source) != ROOT_INODE {
            return Err(FsError::NotSubvolume);
        }
        let slot = self.with_space(|| self.snapshot_once(Slot::of(source), parent, name, read_only))?;
        if sync {
            self.complete(|set| set.snapshot == slot)?;
            self.commit(self.store.position())?;
        }
        let attr = self.getattr(slot.full(ROOT_INODE))?;
        // Most are not looked at for a long time: their paths of that day would stay in memory.
        if let Some(mut shown) = self.subvolumes.get(slot)?.gate.try_write() {
            shown.unuse(slot);
        }
        Ok(attr)
    }

    fn snapshot_once(&self, source: Slot, parent: InodeId, name: &[u8], read_only: bool) -> Result<Slot> {
        // What is incomplete neither holds others nor has snapshots.
        let topology = self.topology(|set| set.snapshot == source || set.snapshot == Slot::of(parent))?;
        let source = self.subvolumes.get(source)?;
        let slot = self.subvolumes.new_slot()?;
        let position = self.take_place(parent, name)?;
        let made = self.fork(&source, slot, (parent, position, name), read_only);
        if made.is_err() {
            self.frozen.remove(slot);
        }
        let made = self.settle_place(made, parent, position, name);
        drop(topology);
        if self.frozen.has(|set| set.snapshot == slot) {
            // Before somebody needs one of the files.
            self.dirty.ahead.wake();
        }
        made
    }

    /// One more holder of what `source` holds: one transaction, whatever there is in it and whatever is dirty of it.
    fn fork(
        &self,
        source: &Subvolume,
        slot: Slot,
        place: (InodeId, NamePosition, &[u8]),
        read_only: bool,
    ) -> Result<Subvolume> {
        let id = self.store.new_id();
        let mut shown = source.gate.write();
        let mut holder = self.fresh_head(source, &mut shown)?;
        // What is written from here on is not in the snapshot, unless to a file that is frozen: that waits for the gate.
        let mut frozen = self.freeze(source.slot, slot, holder, shown.is_alone(source.slot)?);
        if frozen == Freeze::NeedsVersion {
            self.own_version(source, &mut shown)?;
            holder = self.fresh_head(source, &mut shown)?;
            frozen = self.freeze(source.slot, slot, holder, true);
        }
        let mut tx = Transaction::new();
        version::share(&self.store.view(), &mut tx, &mut holder)?;
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
        shown.fork(source.slot, slot, holder)?;
        Ok(Subvolume {
            id,
            slot,
            read_only,
            gate: source.gate.clone(),
            record: Mutex::new(record),
            place: Mutex::default(),
        })
    }

    pub(crate) fn delete_subvolume(&self, parent: InodeId, name: &[u8]) -> Result<()> {
        self.require_writable()?;
        self.require_changeable(parent)?;
        // What another one waits for is logged before the versions between them change.
        let (topology, position, subvolume) = loop {
            let (_, subvolume) = self.find_to_delete(parent, name)?;
            let family = subvolume.record.lock().family;
            let topology = self.topology(|set| set.family == family)?;
            let (position, again) = self.find_to_delete(parent, name)?;
            if Arc::ptr_eq(&subvolume, &again) {
                break (topology, position, subvolume);
            }
        };
        let slot = subvolume.slot;
        if self.subvolumes.nested.within(slot) {
            return Err(FsError::NotEmpty);
        }
        let family = self.let_go(&subvolume)?;
        self.subvolumes.nested.remove(parent, position);
        self.subvolumes.remove(slot);
        // From here on its numbers lead nowhere, but for what is in memory.
        self.inodes.each_of(slot, |state| self.forget(&mut state.inner.write()));
        self.reap.push(Task::Subvolume { id: subvolume.id, slot, family });
        drop(topology);
        self.note_loss(parent)
    }

    fn find_to_delete(&self, parent: InodeId, name: &[u8]) -> Result<(NamePosition, Arc<Subvolume>)> {
        match self.nested(parent, name)? {
            Some((position, Entry { slot: Some(slot), .. })) => {
                Ok((position, self.subvolumes.get(slot)?.shared()))
            }
            _ => {
                let there = self.names(parent)?.lookup(parent, name)?.is_some();
                Err(if there { FsError::NotSubvolume } else { FsError::NotFound })
            }
        }
    }

    /// A subvolume lets go of its version and is being deleted from now on. Gives the family of its namespace.
    fn let_go(&self, subvolume: &Subvolume) -> Result<FamilyId> {
        let mut shown = subvolume.gate.write();
        let holder = self.fresh_head(subvolume, &mut shown)?;
        let mut tx = Transaction::new();
        version::release(&self.store.view(), &mut tx, holder)?;
        tx.privileged();
        self.apply_record(tx, subvolume, |record| {
            record.flags = record.flags & !SUBVOLUME_PENDING | SUBVOLUME_DELETING;
        })?;
        shown.remove(subvolume.slot);
        Ok(holder.family)
    }

    /// Removes the snapshots whose data was not all logged when the pool was last in use: they are not what was taken.
    /// Their deletions have still to be reaped. They have no place in a directory ([`Core::open_subvolumes`]).
    pub(crate) fn remove_pending(&self) -> Result<()> {
        let pending = |subvolume: &Arc<Subvolume>| subvolume.record.lock().flags & SUBVOLUME_PENDING != 0;
        for subvolume in self.subvolumes.all().iter().filter(|subvolume| pending(subvolume)) {
            tracing::info!("snapshot {} was not complete: it is removed", subvolume.id);
            match self.let_go(subvolume) {
                Ok(_) => self.subvolumes.remove(subvolume.slot),
                Err(FsError::Engine(error)) if error.is_damage() => {
                    tracing::error!("it cannot be removed: {error}; `varve check` says what is damaged");
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// A rename of which either side is a subvolume.
    pub(crate) fn rename_subvolume(
        &self,
        (parent, name): (InodeId, &[u8]),
        (new_parent, new_name): (InodeId, &[u8]),
        mode: RenameMode,
    ) -> Result<()> {
        self.require_changeable(parent)?;
        self.require_changeable(new_parent)?;
        let topology = self.topology(|set| set.snapshot == Slot::of(new_parent))?;
        let Some((position, entry)) = self.nested(parent, name)? else {
            let source = self.names(parent)?.lookup(parent, name)?.ok_or(FsError::NotFound)?;
            return Err(match (mode, source.kind) {
                (RenameMode::NoReplace, _) => FsError::Exists,
                (RenameMode::Exchange, _) => FsError::NotSupported,
                (RenameMode::Replace, InodeKind::Directory) => FsError::NotEmpty,
                (RenameMode::Replace, _) => FsError::IsDirectory,
            });
        };
        let slot = entry.slot.ok_or(FsError::NotFound)?;
        let target = self.names(new_parent)?.lookup(new_parent, new_name)?.map(|found| found.kind);
        let other = self.nested(new_parent, new_name)?;
        if mode != RenameMode::NoReplace && other.as_ref().is_some_and(|(_, other)| other.slot == Some(slot))
        {
            return Ok(());
        }
        match (mode, target, other) {
            (RenameMode::Exchange, None, None) => return Err(FsError::NotFound),
            (RenameMode::Exchange, ..) => return Err(FsError::NotSupported),
            (_, None, None) => {}
            (RenameMode::NoReplace, ..) => return Err(FsError::Exists),
            (_, Some(kind), None) if kind != InodeKind::Directory => return Err(FsError::NotDirectory),
            _ => return Err(FsError::NotEmpty),
        }
        // Not below itself.
        let mut above = Slot::of(new_parent);
        for _ in 0..DEPTH_MAX {
            if above == slot {
                return Err(FsError::Invalid);
            }
            match *self.subvolumes.get(above)?.place.lock() {
                Some((dir, _)) => above = Slot::of(dir),
                None => break,
            }
        }
        let subvolume = self.subvolumes.get(slot)?.shared();
        let new_id = self.subvolumes.get(Slot::of(new_parent))?.id;
        let new_position = self.take_place(new_parent, new_name)?;
        let moved = self.apply_record(Transaction::new(), &subvolume, |record| {
            if let Some(place) = &mut record.place {
                (place.parent, place.directory) = (new_id, local(new_parent));
                (place.position, place.name) = (new_position, new_name.to_vec());
            }
        });
        if let Err(error) = moved {
            self.subvolumes.nested.remove(new_parent, new_position);
            return Err(error);
        }
        let entry = Entry { name: new_name.to_vec(), slot: Some(slot) };
        self.subvolumes.nested.put(new_parent, new_position, entry);
        self.subvolumes.nested.remove(parent, position);
        *subvolume.place.lock() = Some((new_parent, new_position));
        drop(topology);
        self.note_loss(parent)
    }

    pub(crate) fn list_subvolumes(&self) -> Result<Vec<SubvolumeInfo>> {
        let _topology = self.subvolumes.topology.lock();
        let mut all = self.subvolumes.all();
        all.sort_by_key(|subvolume| subvolume.id);
        let mut infos = Vec::with_capacity(all.len());
        for subvolume in all {
            if subvolume.slot != Slot::FIRST && subvolume.place.lock().is_none() {
                // Nothing leads to it: it was not complete, or where it was is damaged.
                continue;
            }
            let record = match subvolume.slot {
                Slot::FIRST => self.files.stored.lock().clone(),
                _ => subvolume.record.lock().clone(),
            };
            let root = subvolume.slot.full(ROOT_INODE);
            let place = record.place.as_ref();
            infos.push(SubvolumeInfo {
                id: subvolume.id,
                parent: place.map(|place| place.parent),
                origin: place.map(|place| place.origin).filter(|origin| *origin != 0),
                root,
                path: self.path_of(root)?,
                read_only: subvolume.read_only,
                created: place.map(|place| place.created),
                uuid: record.uuid,
            });
        }
        Ok(infos)
    }

    /// The path of a directory. Reads the directories above it.
    fn path_of(&self, mut dir: InodeId) -> Result<Vec<u8>> {
        let mut names: Vec<Vec<u8>> = Vec::new();
        while dir != self.root() && names.len() < DEPTH_MAX {
            let above = self.up(dir)?;
            let nested = self.subvolumes.nested.list(above, 0);
            let mut name =
                nested.into_iter().find(|(.., slot)| slot.full(ROOT_INODE) == dir).map(|(_, name, _)| name);
            if name.is_none() {
                self.names(above)?.each_name(above, 0, &mut |_, _, ino, found| {
                    if ino == dir {
                        name = Some(found);
                    }
                    name.is_none()
                })?;
            }
            names.push(name.ok_or(FsError::NotFound)?);
            dir = above;
        }
        let mut path = Vec::new();
        for name in names.iter().rev() {
            path.push(b'/');
            path.extend_from_slice(name);
        }
        if path.is_empty() {
            path.push(b'/');
        }
        Ok(path)
    }
}
