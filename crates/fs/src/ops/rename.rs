//! Renaming: replace, refuse, exchange, leave a whiteout.
//!
//! Over an existing file the source's dirty data is on the device and its extents are in the log before the rename is:
//! if power fails at any instant, the name leads to the old file or to the whole new one. Two that are exchanged move over each other.

use varve_engine::{InodeId, Transaction};
use varve_format::record::inode::{InodeKind, InodeRecord};

use super::flags::{Touch, require_unprotected};
use super::require_directory;
use super::unlink::{Disposal, past_damage};
use crate::api::{NAME_BYTES_MAX, RenameMode};
use crate::core::{Core, Owning, check_name, touch, touch_directory};
use crate::inode::Presence;
use crate::subvolume::{Slot, local};
use crate::table::names::Found;
use crate::writeback::Ride;
use crate::{FsError, Result};

/// Directories below one another.
const DEPTH_MAX: usize = 1 << 20;

/// One side of a rename.
#[derive(Clone, Copy)]
struct Place<'a> {
    parent: InodeId,
    name: &'a [u8],
}

impl Core {
    pub(crate) fn rename(
        &self,
        parent: InodeId,
        name: &[u8],
        new_parent: InodeId,
        new_name: &[u8],
        mode: RenameMode,
    ) -> Result<()> {
        match self.admit_both(parent, new_parent) {
            // Out of a read-only subvolume into one that can be changed: who hears of a border makes a copy.
            Err(FsError::ReadOnlySubvolume) if self.require_changeable(new_parent).is_ok() => {
                return Err(FsError::CrossDevice);
            }
            result => result?,
        }
        match self.nested(parent, name)? {
            Some(_) => self.permit_parting(parent)?,
            None => self.permit(parent, Touch::NameGoes)?,
        }
        self.permit(new_parent, Touch::NewName)?;
        for name in [name, new_name] {
            if name == b"." || name == b".." {
                return Err(FsError::Invalid);
            }
        }
        if name.len() > NAME_BYTES_MAX {
            return Err(FsError::NameTooLong);
        }
        check_name(new_name)?;
        for _ in 0..super::RETRIES_MAX {
            if self.nested(parent, name)?.is_none() && self.nested(new_parent, new_name)?.is_none() {
                break;
            }
            // Where the last one of them has just been deleted, that came first.
            if self.with_space(|| self.rename_subvolume((parent, name), (new_parent, new_name), mode))? {
                return Ok(());
            }
            self.permit(parent, Touch::NameGoes)?;
        }
        if Slot::of(parent) != Slot::of(new_parent) {
            return Err(FsError::CrossDevice);
        }
        let (from, to) = (Place { parent, name }, Place { parent: new_parent, name: new_name });
        self.with_space(|| self.rename_once(from, to, mode))
    }

    fn look(&self, place: Place<'_>) -> Result<Option<Found>> {
        Ok(self.names_first(place.parent)?.lookup(place.parent, place.name)?)
    }

    fn rename_once(&self, from: Place<'_>, to: Place<'_>, mode: RenameMode) -> Result<()> {
        // Before the lock: others do not wait until it is written.
        let mut written = [None; 2];
        if from.parent != to.parent
            && !mode.refuses()
            && let Some(source) = self.look(from)?
            && let Some(target) = self.look(to)?
        {
            self.write_moving_over(mode, source, target, &mut written)?;
        }
        let _topology = (from.parent != to.parent).then(|| self.rename_lock.lock());
        for _ in 0..super::RETRIES_MAX {
            for parent in [from.parent, to.parent] {
                let state = self.state(parent);
                let inner = self.read_lock(&state)?;
                require_directory(&inner)?;
            }
            let source = self.look(from)?.ok_or(FsError::NotFound)?;
            let target = self.look(to)?;
            refuse_target(mode, target)?;
            if from.parent != to.parent {
                self.refuse_cycles(from, to, source, target, mode)?;
            }
            if let Some(target) = target {
                // Not while holding inodes.
                self.write_moving_over(mode, source, target, &mut written)?;
            }
            if past_damage(|disposal| self.rename_locked(from, to, mode, source, target, disposal))? {
                return Ok(());
            }
            // Each time round somebody else has changed one of the names.
        }
        Err(FsError::NotFound)
    }

    /// Writes back the files that move over something, but for those that have been `written`: what comes after this call began is
    /// not its business.
    fn write_moving_over(
        &self,
        mode: RenameMode,
        source: Found,
        target: Found,
        written: &mut [Option<InodeId>; 2],
    ) -> Result<()> {
        if source.ino == target.ino {
            return Ok(());
        }
        let moves = [!mode.refuses(), mode == RenameMode::Exchange];
        for ((moving, moves), written) in [source, target].into_iter().zip(moves).zip(written) {
            if moves && moving.kind == InodeKind::File && *written != Some(moving.ino) {
                self.write_back(&self.state(moving.ino), Ride::Never)?;
                *written = Some(moving.ino);
            }
        }
        Ok(())
    }

    /// A directory must not move below itself. Directories move between directories only under the rename lock, so
    /// the way up does not change meanwhile.
    fn refuse_cycles(
        &self,
        from: Place<'_>,
        to: Place<'_>,
        source: Found,
        target: Option<Found>,
        mode: RenameMode,
    ) -> Result<()> {
        if source.kind == InodeKind::Directory && self.is_below(to.parent, source.ino)? {
            return Err(FsError::Invalid);
        }
        if let Some(target) = target
            && target.kind == InodeKind::Directory
            && self.is_below(from.parent, target.ino)?
        {
            // The target holds the source, so it is not empty.
            return Err(if mode == RenameMode::Exchange { FsError::Invalid } else { FsError::NotEmpty });
        }
        Ok(())
    }

    /// Whether `dir` is `above` or somewhere below it.
    fn is_below(&self, mut dir: InodeId, above: InodeId) -> Result<bool> {
        // Bounded, so that parents that form a ring in a damaged pool do not hold it up for ever.
        for _ in 0..DEPTH_MAX {
            if dir == above {
                return Ok(true);
            }
            let state = self.state(dir);
            let up = Slot::of(dir).full(self.read_lock(&state)?.record.parent);
            if up == dir || local(up) == InodeId(0) {
                return Ok(false);
            }
            dir = up;
        }
        Err(FsError::TooManyLinks)
    }

    /// False if the names have changed since they were looked up.
    fn rename_locked(
        &self,
        from: Place<'_>,
        to: Place<'_>,
        mode: RenameMode,
        source: Found,
        target: Option<Found>,
        disposal: Disposal,
    ) -> Result<bool> {
        let change = self.change(from.parent)?;
        let mut states = vec![self.state(from.parent), self.state(to.parent), self.state(source.ino)];
        states.extend(target.map(|target| self.state(target.ino)));
        let mut locked = match self.lock_all(&mut states) {
            Ok(locked) => locked,
            Err(FsError::NotFound) => return Ok(false),
            Err(error) => return Err(error),
        };
        require_directory(locked.get(from.parent))?;
        require_directory(locked.get(to.parent))?;
        let mut bucket = change.bucket(from.parent, from.name)?;
        let mut to_bucket = Some(change.bucket(to.parent, to.name)?);
        if to_bucket.as_ref().is_some_and(|to_bucket| to_bucket.same(&bucket)) {
            to_bucket = None;
        }
        let source_now = bucket.find(from.name);
        let target_now = to_bucket.as_ref().unwrap_or(&bucket).find(to.name);
        if source_now.map(|s| s.ino) != Some(source.ino) || target_now.map(|t| t.ino) != target.map(|t| t.ino)
        {
            return Ok(false);
        }
        let Some(source) = source_now else { return Ok(false) };
        if target_now.is_none() && self.nested(to.parent, to.name)?.is_some() {
            // One has been made here since this rename began.
            return Err(FsError::Exists);
        }
        refuse_target(mode, target_now)?;
        match target_now {
            Some(target) if target.ino == source.ino => return Ok(true),
            _ => require_unprotected(&locked.get(source.ino).record)?,
        }
        if let Some(target) = target_now {
            require_unprotected(&locked.get(target.ino).record)?;
            // A name that is there is no new one.
            require_unprotected(&locked.get(to.parent).record)?;
        }
        match target_now {
            Some(target) if mode.replaces() => {
                match (source.kind == InodeKind::Directory, target.kind == InodeKind::Directory) {
                    (true, false) => return Err(FsError::NotDirectory),
                    (false, true) => return Err(FsError::IsDirectory),
                    (true, true)
                        if locked.get(target.ino).record.size > 0
                            || self.subvolumes.nested.count_in(target.ino) > 0 =>
                    {
                        return Err(FsError::NotEmpty);
                    }
                    _ => {}
                }
            }
            _ => {}
        }
        if let Some(target) = target_now {
            // Only where the target goes, and nothing comes but the name, something is given back.
            let why = || if mode == RenameMode::Replace { Owning::ToFree } else { Owning::ToAdd };
            // A transaction changes the count of a version once, and these two may be clones of each other.
            self.own_first(&change, source.ino, locked.get(source.ino), why())?;
            let there = locked.get(target.ino);
            // Of what goes, and is another's, no data is needed: perhaps it cannot be read.
            if !mode.replaces() || there.opens > 0 || there.record.links > 1 {
                self.own_first(&change, target.ino, there, why())?;
            }
        }
        let now = self.now();
        let mut tx = Transaction::new();
        let whiteout = match mode {
            RenameMode::Whiteout { caller, .. } => {
                let number = self.new_inode_number()?;
                tx.claim_id(number.0);
                let above = &locked.get(from.parent).record;
                let mut record = self.record_in(above, InodeKind::CharDevice, number, caller, 0, now);
                record.parent = local(from.parent);
                Some((self.state(change.slot.full(number)), record))
            }
            _ => None,
        };
        let mut records: Vec<(InodeId, InodeRecord)> = Vec::with_capacity(4);
        let mut dropped = None;
        // The inodes that move.
        let mut moved = |ino: InodeId, parent: InodeId, record: &InodeRecord| {
            let mut record = record.clone();
            touch(&mut record, now);
            record.parent = local(parent);
            records.push((ino, record));
        };
        moved(source.ino, to.parent, &locked.get(source.ino).record);
        match target_now {
            Some(target) if mode == RenameMode::Exchange => {
                moved(target.ino, from.parent, &locked.get(target.ino).record);
            }
            Some(target) => {
                dropped = Some((
                    target.ino,
                    self.drop_link(&change, &mut tx, target.ino, locked.get(target.ino), now, disposal)?,
                ));
            }
            None => {}
        }
        // The names.
        let mut entries_from = -1;
        let mut entries_to = 1;
        let directory = |found: Found| i64::from(found.kind == InodeKind::Directory);
        let (mut directories_from, mut directories_to) = (-directory(source), directory(source));
        {
            let to_bucket_mut = to_bucket.as_mut();
            match (target_now, to_bucket_mut) {
                (Some(target), other) => {
                    other.unwrap_or(&mut bucket).replace(target.sequence, source.ino, source.kind);
                    entries_to = 0;
                    directories_to -= directory(target);
                }
                (None, other) => {
                    if !other.unwrap_or(&mut bucket).insert(to.name, source.ino, source.kind) {
                        return Err(FsError::HashFull);
                    }
                }
            }
        }
        match (target_now, &whiteout) {
            (Some(target), _) if mode == RenameMode::Exchange => {
                bucket.replace(source.sequence, target.ino, target.kind);
                entries_from = 0;
                directories_from += directory(target);
            }
            (_, Some((state, record))) => {
                bucket.replace(source.sequence, state.ino, record.kind);
                entries_from = 0;
            }
            _ => bucket.remove(source.sequence),
        }
        change.put_bucket(&mut tx, &bucket)?;
        if let Some(to_bucket) = &to_bucket {
            change.put_bucket(&mut tx, to_bucket)?;
        }
        // The directories; one that also moved (or both at once) is one record.
        for (parent, entries, directories) in
            [(from.parent, entries_from, directories_from), (to.parent, entries_to, directories_to)]
        {
            let at = records.iter().position(|(ino, _)| *ino == parent).unwrap_or_else(|| {
                records.push((parent, locked.get(parent).record.clone()));
                records.len() - 1
            });
            touch_directory(&mut records[at].1, now, entries, directories);
        }
        for (ino, record) in &mut records {
            self.put_record(&change, &mut tx, *ino, locked.get(*ino), record)?;
        }
        if let Some((state, record)) = &whiteout {
            change.put_inode(&mut tx, state.ino, record)?;
        } else if dropped.is_some() {
            tx.privileged();
        } else if !change.forked {
            // On a full pool, too: what comes takes the place of what goes, but for the length of a name.
            tx.replacing();
        }
        {
            let _counting = self.counting()?;
            // As one that is made: who finds its name waits for its state.
            let left = whiteout.as_ref().map(|(state, _)| self.hold_new(state, &locked.numbers()));
            let mut left = left.transpose()?;
            let _changing = self.known.change([
                self.known_name(from.parent, bucket.base(), from.name),
                self.known_name(to.parent, to_bucket.as_ref().unwrap_or(&bucket).base(), to.name),
            ]);
            if let Err(error) = self.apply(tx) {
                left.iter_mut().for_each(|inner| inner.presence = Presence::Gone);
                return Err(error);
            }
            change.applied();
            if let (Some(inner), Some((state, record))) = (&mut left, &whiteout) {
                inner.install(record.clone(), change.version, Presence::Live);
                self.files.add(change.place(state.ino), 1);
            }
        }
        for (ino, record) in records {
            let inner = locked.get(ino);
            if record.kind == InodeKind::Directory {
                inner.size = record.size;
            }
            inner.take_over(&change, record);
        }
        if let Some((ino, dropped)) = dropped {
            self.take_over_dropped(&change, ino, locked.get(ino), dropped);
            drop((locked, change));
            if let Some(at) = states.iter().position(|state| state.ino == ino) {
                self.part_with(states.swap_remove(at));
            }
        }
        Ok(true)
    }
}

/// Whether the mode asks for a name that is there, or for one that is not.
fn refuse_target(mode: RenameMode, target: Option<Found>) -> Result<()> {
    match (mode, target) {
        (_, Some(_)) if mode.refuses() => Err(FsError::Exists),
        (RenameMode::Exchange, None) => Err(FsError::NotFound),
        _ => Ok(()),
    }
}
