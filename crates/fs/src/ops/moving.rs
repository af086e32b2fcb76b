//! Subvolumes that move: to a free name, or into one another's places.
//!
//! A subvolume is no entry of its directory: its record says where it is. One that moves is one record, and two that are exchanged are two,
//! each with the other's place, in the transaction that also has the times of the directory they come to. The times of the other
//! directory come in a second one: if power fails in between, they do not tell that something has happened there, and nothing else is
//! missing. Whoever moves one holds the topology lock.

use varve_engine::{InodeId, Transaction};
use varve_format::Corrupt;
use varve_format::record::inode::InodeKind;
use varve_format::record::name::NamePosition;

use super::flags::Touch;
use super::require_directory;
use crate::api::{ROOT_INODE, RenameMode};
use crate::core::Core;
use crate::subvolume::{Slot, Subvolume, local};
use crate::table::{corrupt, subvolumes};
use crate::{FsError, Result};

/// Subvolumes within one another, at most: bounds walks in a damaged pool.
const DEPTH_MAX: usize = 1 << 20;

/// A name in a directory.
type Name<'a> = (InodeId, &'a [u8]);

/// What two names lead to.
#[derive(PartialEq, Eq)]
enum Both {
    /// Two subvolumes, which are there.
    Two([(NamePosition, Slot); 2]),
    /// One and the same.
    One,
    /// No subvolume.
    Neither,
}

impl Core {
    /// A rename of which either side is a subvolume. False, and nothing has changed: neither is any more.
    pub(crate) fn rename_subvolume(
        &self,
        (parent, name): Name<'_>,
        (new_parent, new_name): Name<'_>,
        mode: RenameMode,
    ) -> Result<bool> {
        if mode == RenameMode::Exchange {
            return self.exchange_subvolumes((parent, name), (new_parent, new_name));
        }
        let topology = self.topology(|set| set.snapshot == Slot::of(new_parent))?;
        let Some((position, entry)) = self.nested(parent, name)? else {
            let Some((_, taken)) = self.nested(new_parent, new_name)? else { return Ok(false) };
            let source = self.names(parent)?.lookup(parent, name)?.ok_or(FsError::NotFound)?;
            return Err(match (source.kind, taken) {
                _ if mode.refuses() => FsError::Exists,
                (InodeKind::Directory, Some(slot)) => self.no_place_of(slot.full(ROOT_INODE)),
                (InodeKind::Directory, None) => FsError::OnlyExchanged,
                _ => FsError::IsDirectory,
            });
        };
        let slot = entry.ok_or(FsError::NotFound)?;
        let target = self.names(new_parent)?.lookup(new_parent, new_name)?;
        let other = self.nested(new_parent, new_name)?;
        if !mode.refuses() && other.is_some_and(|(_, other)| other == Some(slot)) {
            return Ok(true);
        }
        match (target, other) {
            // The name of a subvolume is no entry that another could take the place of.
            (None, None) if matches!(mode, RenameMode::Whiteout { .. }) => return Err(FsError::NotSupported),
            (None, None) => {}
            _ if mode.refuses() => return Err(FsError::Exists),
            (Some(found), _) if found.kind != InodeKind::Directory => return Err(FsError::NotDirectory),
            (Some(found), _) => return Err(self.no_place_of(found.ino)),
            (_, Some((_, Some(other)))) => return Err(self.no_place_of(other.full(ROOT_INODE))),
            (_, Some((_, None))) => return Err(FsError::OnlyExchanged),
        }
        self.refuse_below_itself(slot, new_parent)?;
        let subvolume = self.subvolumes.get(slot)?.shared();
        self.require_unprotected_root(&subvolume)?;
        let new_id = self.subvolumes.get(Slot::of(new_parent))?.id;
        let change = self.change(new_parent)?;
        let state = self.state(new_parent);
        let mut dir = self.write_lock(&state)?;
        let new_position = self.free_place(&change, &dir, new_parent, new_name)?;
        let mut tx = Transaction::new();
        let noted = self.note_change(&change, &mut tx, new_parent, &dir, self.now())?;
        self.apply_record(tx, &subvolume, |record| {
            if let Some(place) = &mut record.place {
                (place.parent, place.directory) = (new_id, local(new_parent));
                (place.position, place.name) = (new_position, new_name.to_vec());
            }
        })?;
        self.subvolumes.nested.put(new_parent, new_position, new_name, Some(slot));
        self.subvolumes.nested.remove(parent, position);
        *subvolume.place.lock() = Some((new_parent, new_position));
        dir.take_over(&change, noted);
        drop(dir);
        drop(change);
        drop(topology);
        self.note_loss(parent).map(|()| true)
    }

    /// Why a directory, or the root of a subvolume, does not make room for a subvolume, nor for another directory that comes where a
    /// subvolume is: as of any directory, if there is something in it.
    fn no_place_of(&self, dir: InodeId) -> FsError {
        let state = self.state(dir);
        match self.read_lock(&state) {
            Ok(inner) if inner.size == 0 && self.subvolumes.nested.count_in(dir) == 0 => {
                FsError::OnlyExchanged
            }
            Ok(_) => FsError::NotEmpty,
            Err(error) => error,
        }
    }

    /// A subvolume must not get into itself.
    fn refuse_below_itself(&self, slot: Slot, new_parent: InodeId) -> Result<()> {
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
        Ok(())
    }

    /// Two subvolumes get each other's names, in one transaction. False, and nothing has changed: neither name is one's any more.
    fn exchange_subvolumes(&self, one: Name<'_>, other: Name<'_>) -> Result<bool> {
        let (parent, new_parent) = (one.0, other.0);
        let (topology, found) = loop {
            let found = match self.both_places(one, other)? {
                Both::Neither => return Ok(false),
                Both::One => return Ok(true),
                Both::Two(found) => found,
            };
            // A crash removes a snapshot that is not complete yet. With one of them it would remove a name that was there before the
            // exchange, and of what others have put there something; so both are logged first, and those in which they are.
            let all = [found[0].1, found[1].1, Slot::of(parent), Slot::of(new_parent)];
            let topology = self.topology(|set| all.contains(&set.snapshot))?;
            if self.both_places(one, other)? == Both::Two(found) {
                break (topology, found);
            }
        };
        let [(position, slot), (new_position, new_slot)] = found;
        self.refuse_below_itself(slot, new_parent)?;
        self.refuse_below_itself(new_slot, parent)?;
        let both = [self.subvolumes.get(slot)?.shared(), self.subvolumes.get(new_slot)?.shared()];
        for subvolume in &both {
            self.require_unprotected_root(subvolume)?;
        }
        // A name that is there is no new one.
        self.permit(new_parent, Touch::NameGoes)?;
        let change = self.change(new_parent)?;
        let state = self.state(new_parent);
        let mut dir = self.write_lock(&state)?;
        require_directory(&dir)?;
        let mut tx = Transaction::new();
        let noted = self.note_change(&change, &mut tx, new_parent, &dir, self.now())?;
        if !change.forked {
            // On a full pool, too: each record is as long as before, but for the length of a name.
            tx.replacing();
        }
        self.apply_exchange(tx, [&*both[0], &*both[1]])?;
        self.subvolumes.nested.exchange((parent, position), (new_parent, new_position));
        *both[0].place.lock() = Some((new_parent, new_position));
        *both[1].place.lock() = Some((parent, position));
        dir.take_over(&change, noted);
        drop(dir);
        drop(change);
        drop(topology);
        if parent != new_parent {
            self.note_loss(parent)?;
        }
        Ok(true)
    }

    /// Where the two subvolumes are that bear these names, and which.
    fn both_places(&self, one: Name<'_>, other: Name<'_>) -> Result<Both> {
        let mut found = [None; 2];
        for ((dir, name), found) in [one, other].into_iter().zip(&mut found) {
            *found = match self.nested(dir, name)? {
                Some((position, slot)) => Some((position, slot.ok_or(FsError::NotFound)?)),
                None => self.names(dir)?.lookup(dir, name)?.map(|_| None).ok_or(FsError::NotFound)?,
            };
        }
        match found {
            [Some(one), Some(other)] if one.1 == other.1 => Ok(Both::One),
            [Some(one), Some(other)] => Ok(Both::Two([one, other])),
            [None, None] => Ok(Both::Neither),
            // One is an ordinary file or directory, whose name is the business of its subvolume alone.
            _ if Slot::of(one.0) != Slot::of(other.0) => Err(FsError::CrossDevice),
            _ => Err(FsError::NotSupported),
        }
    }

    /// Applies `tx` with the places of two subvolumes exchanged.
    fn apply_exchange(&self, mut tx: Transaction, both: [&Subvolume; 2]) -> Result<()> {
        // Until it is applied nobody else changes them.
        let _changing = self.subvolumes.changing_both(both.map(|subvolume| subvolume.slot));
        let mut one = subvolumes::get(&self.store, both[0].id)?;
        let mut other = subvolumes::get(&self.store, both[1].id)?;
        let (Some(place), Some(new_place)) = (&mut one.place, &mut other.place) else {
            let why = Corrupt { what: "a subvolume that is nowhere", at: 0 };
            return Err(corrupt(|| format!("the records of subvolumes {} and {}", both[0].id, both[1].id))(
                why,
            )
            .into());
        };
        // When it was made, and of what, is no matter of where it is.
        std::mem::swap(&mut place.parent, &mut new_place.parent);
        std::mem::swap(&mut place.directory, &mut new_place.directory);
        std::mem::swap(&mut place.position, &mut new_place.position);
        std::mem::swap(&mut place.name, &mut new_place.name);
        subvolumes::put(&mut tx, both[0].id, &one);
        subvolumes::put(&mut tx, both[1].id, &other);
        self.apply(tx)?;
        Ok(())
    }
}
