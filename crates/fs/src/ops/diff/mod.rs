//! What differs between two subvolumes that descend from one: from their versions, so that it costs what was changed and not
//! what there is. A page at a time, and each begins where a cursor says, so nothing is kept between them but hints.
//!
//! The steps come in phases, each a walk through the places of one tree in which a version that only one of the two sees has
//! something. A cursor is the phase, the place, and for the contents of a file the byte.

mod hints;
mod side;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use varve_engine::version::points::{self, Changed};
use varve_engine::version::{self};
use varve_engine::{BLOCK_BYTES, InodeId, View};
use varve_format::TreeId;
use varve_format::record::held::PLACE_BYTES_MAX;
use varve_format::record::inode::{InodeKind, InodeRecord};
use varve_format::record::name::NamePosition;

pub(crate) use self::hints::{AllHints, Hints};
use self::side::{Known, Side, entry, record};
use crate::api::FileFlags;
use crate::changes::{Change, DiffPage, Original, Parked};
use crate::core::Core;
use crate::subvolume::Slot;
use crate::table::{extents, number};
use crate::{FsError, Result};

const CREATED: u8 = 0;
const UNLINKED: u8 = 1;
const LINKED: u8 = 2;
const CONTENTS: u8 = 3;
const XATTRS: u8 = 4;
/// Inodes that are gone, and flags that have changed.
const LAST: u8 = 5;
const PHASES: u8 = 6;

/// A page ends when so many places have been looked at, whatever was found there: as long as it takes, what is freed cannot be handed
/// out. Those behind which nothing else of their phase comes are fewer, and count if they differ: a page of few changes is the only one.
const PLACES_MAX: usize = 4096;

fn tree_of(phase: u8) -> TreeId {
    match phase {
        UNLINKED | LINKED => TreeId::NAMES,
        XATTRS => TreeId::XATTRS,
        _ => TreeId::INODES,
    }
}

impl Core {
    pub(crate) fn diff(
        &self,
        old: InodeId,
        new: InodeId,
        cursor: &[u8],
        changes_max: usize,
        hints: &mut Hints,
    ) -> Result<DiffPage> {
        if !side::root(old) || !side::root(new) {
            return Err(FsError::NotSubvolume);
        }
        if cursor.is_empty() {
            let of = |slot: Slot| slot == Slot::of(old) || slot == Slot::of(new);
            self.complete(|set| of(set.snapshot))?;
            let mut files = self.dirty.all();
            files.retain(|file| of(Slot::of(file.state.ino)));
            self.write_back_files(files)?;
        }
        let (old, new, view) = {
            // While these are held the versions of the namespaces stay: the view fits the paths.
            let (old, new) = (self.names(old)?, self.names(new)?);
            if old.family != new.family {
                return Err(FsError::Unrelated);
            }
            let of =
                |names: &crate::table::Namespace| Side { path: names.path.clone(), family: names.family };
            (of(&old), of(&new), self.store.view())
        };
        let mut diff = Diff {
            view,
            old,
            new,
            sharing: self.sharing(),
            changes_max: changes_max.max(1),
            page: DiffPage::default(),
            linked_at: BTreeMap::new(),
        };
        diff.run(cursor)?;
        diff.add_paths(hints)?;
        Ok(diff.page)
    }
}

struct Diff {
    view: View,
    old: Side,
    new: Side,
    sharing: bool,
    changes_max: usize,
    page: DiffPage,
    /// Where the names of the page's [`Change::Linked`] are in their directories.
    linked_at: BTreeMap<usize, NamePosition>,
}

impl Diff {
    fn run(&mut self, cursor: &[u8]) -> Result<()> {
        let (mut phase, mut place, mut byte) = match cursor.split_first() {
            None => (CREATED, Vec::new(), 0),
            Some((phase, rest)) if *phase == CONTENTS && rest.len() == 16 => {
                (CONTENTS, rest[..8].to_vec(), number(rest, 8))
            }
            Some((phase, rest)) => (*phase, rest.to_vec(), 0),
        };
        if place.len() > PLACE_BYTES_MAX {
            return Err(FsError::Invalid);
        }
        let mut places_left = PLACES_MAX;
        while phase < PHASES {
            let room = self.changes_max.saturating_sub(self.page.changes.len()).clamp(1, places_left);
            let tree = tree_of(phase);
            let found = points::changes(&self.view, &self.old.path, &self.new.path, tree, &place, room)?;
            let mut seen = Vec::new();
            for changed in &found.changed {
                let begun = byte > 0 && changed.prefix.ends_with(&place);
                let from = if begun { byte } else { 0 };
                if let Some(next) = self.step(phase, changed, from, &mut seen)? {
                    self.page.next = Some([&[phase], &changed.prefix[8..], &next.to_be_bytes()].concat());
                    return Ok(());
                }
            }
            byte = 0;
            let looked = if found.next.is_some() { room } else { found.changed.len() };
            places_left -= looked.min(places_left);
            match found.next {
                Some(next) => place = beyond(next, &seen),
                None => (phase, place) = (phase + 1, Vec::new()),
            }
            let is_full = self.page.changes.len() >= self.changes_max || places_left == 0;
            if is_full && phase < PHASES {
                self.page.next = Some([&[phase], &place[..]].concat());
                return Ok(());
            }
        }
        Ok(())
    }

    /// What a phase says of one place. `Some`: there is more to say, from this byte on.
    fn step(&mut self, phase: u8, changed: &Changed, from: u64, seen: &mut Vec<u8>) -> Result<Option<u64>> {
        let first = number(&changed.prefix, 8);
        let (old, new) = (changed.old.as_deref(), changed.new.as_deref());
        match (phase, old, new) {
            (CREATED, None, Some(new)) => {
                let new = record(first, new)?;
                let device = matches!(new.kind, InodeKind::CharDevice | InodeKind::BlockDevice);
                let rdev = if device { new.rdev } else { 0 };
                self.page.changes.push(Change::Created { inode: first, kind: new.kind, rdev });
            }
            (LAST, Some(old), None) => {
                let kind = record(first, old)?.kind;
                self.page.changes.push(Change::Deleted { inode: first, kind });
            }
            (LAST, old, Some(new)) => {
                let old = old.map(|old| record(first, old)).transpose()?;
                let new = record(first, new)?;
                let flags = FileFlags::of(&new);
                if flags != old.as_ref().map_or(FileFlags::NONE, FileFlags::of) {
                    self.page.changes.push(Change::Flags { inode: first, kind: new.kind, flags });
                }
            }
            (CONTENTS, old, Some(new)) => {
                let old = old.map(|old| record(first, old)).transpose()?;
                let new = record(first, new)?;
                let next = self.contents(first, old.as_ref(), &new, from)?;
                if next.is_none() && old.is_none() && new.xattr_count > 0 {
                    self.kept_xattrs(first, new.kind)?;
                }
                return Ok(next);
            }
            (UNLINKED, Some(value), _) => {
                let position = NamePosition(number(&changed.prefix, 16));
                if let Some((name, inode, kind)) = entry(first, value)?
                    && self.new.name(&self.view, first, position, &name)? != Some(inode)
                {
                    self.page.changes.push(Change::Unlinked { directory: first, name, inode, kind });
                }
            }
            (LINKED, _, Some(value)) => {
                let position = NamePosition(number(&changed.prefix, 16));
                if let Some((name, inode, kind)) = entry(first, value)?
                    && self.old.name(&self.view, first, position, &name)? != Some(inode)
                {
                    self.linked_at.insert(self.page.changes.len(), position);
                    self.page.changes.push(Change::Linked { directory: first, name, inode, kind });
                }
            }
            (XATTRS, ..) if !changed.prefix[8..].starts_with(seen) || seen.is_empty() => {
                *seen = changed.prefix[8..24].to_vec();
                self.xattr(first, NamePosition(number(&changed.prefix, 16)))?;
            }
            _ => {}
        }
        Ok(None)
    }

    /// The older side may have attributes of an inode that it shows nowhere: of a file without a name, or of one that the reaper has not
    /// come to. Those that the newer has like that differ in nothing, and no other phase comes to them.
    fn kept_xattrs(&mut self, inode: u64, kind: InodeKind) -> Result<()> {
        let view = &self.view;
        for position in self.old.xattr_positions(view, inode, &[])? {
            let Some((name, value)) = self.old.xattr(view, inode, position)? else { continue };
            if self.new.xattr_named(view, inode, position, &name)?.as_ref() == Some(&value) {
                self.page.changes.push(Change::XattrSet { inode, kind, name, value });
            }
        }
        Ok(())
    }

    /// An extended attribute of which a piece differs.
    fn xattr(&mut self, inode: u64, position: NamePosition) -> Result<()> {
        let view = &self.view;
        let Some(InodeRecord { kind, .. }) = self.new.inode(view, inode)? else { return Ok(()) };
        let (old, new) = (self.old.xattr(view, inode, position)?, self.new.xattr(view, inode, position)?);
        // Another one of the same hash may have taken its place.
        let moved = old.as_ref().map(|(name, _)| name) != new.as_ref().map(|(name, _)| name);
        if let Some((name, _)) = old.as_ref().filter(|_| moved)
            && self.new.xattr_named(view, inode, position, name)?.is_none()
            && self.old.inode(view, inode)?.is_some()
        {
            self.page.changes.push(Change::XattrRemoved { inode, kind, name: name.clone() });
        }
        if let Some((name, value)) = new {
            let before = match old.filter(|_| !moved) {
                Some((_, value)) => Some(value),
                None => self.old.xattr_named(view, inode, position, &name)?,
            };
            if before.as_ref() != Some(&value) {
                self.page.changes.push(Change::XattrSet { inode, kind, name, value });
            }
        }
        Ok(())
    }

    /// Size, data and attributes of an inode that both have, or only the newer. `Some`: its data goes on from this byte.
    fn contents(
        &mut self,
        inode: u64,
        old: Option<&InodeRecord>,
        new: &InodeRecord,
        from: u64,
    ) -> Result<Option<u64>> {
        if new.kind == InodeKind::File {
            if from == 0 && old.map_or(0, |old| old.size) != new.size {
                self.page.changes.push(Change::Resized { inode, size: new.size });
            }
            if let Some(next) = self.data(inode, old, new, from)? {
                return Ok(Some(next));
            }
        }
        let differs = |field: fn(&InodeRecord) -> u32| {
            Some(field(new)).filter(|now| old.is_none_or(|old| field(old) != *now))
        };
        let (mode, uid, gid) = (differs(|r| u32::from(r.mode)), differs(|r| r.uid), differs(|r| r.gid));
        let mtime = Some(new.mtime).filter(|now| old.is_none_or(|old| old.mtime != *now));
        if mode.or(uid).or(gid).is_some() || mtime.is_some() {
            self.page.changes.push(Change::Attributes { inode, kind: new.kind, mode, uid, gid, mtime });
        }
        Ok(None)
    }

    /// The ranges of a file's data from byte `from` on; where to go on.
    fn data(
        &mut self,
        inode: u64,
        old: Option<&InodeRecord>,
        new: &InodeRecord,
        from: u64,
    ) -> Result<Option<u64>> {
        let inline = old.and_then(|old| old.inline.as_deref());
        let mut from = from;
        match (&new.inline, inline) {
            (Some(now), Some(before)) => {
                let byte = |bytes: &[u8], at| bytes.get(at).copied().unwrap_or(0);
                let upto = now.len().max(before.len());
                let mut differ = (0..upto).filter(|at| byte(now, *at) != byte(before, *at));
                if let Some(first) = differ.next() {
                    let last = differ.next_back().unwrap_or(first);
                    self.range(inode, new.size, first as u64, (last + 1 - first) as u64, false);
                }
                return Ok(None);
            }
            (Some(now), None) => {
                let len = now.len() as u64;
                self.range(inode, new.size, 0, len, false);
                if old.is_some() {
                    self.range(inode, new.size, len, new.size.saturating_sub(len), true);
                }
                return Ok(None);
            }
            // What lay in the record is in a block now, or gone.
            (None, Some(before)) if from == 0 && !before.is_empty() => {
                let block = (before.len() as u64).next_multiple_of(BLOCK_BYTES as u64);
                self.range(inode, new.size, 0, block, false);
                from = block;
            }
            (None, _) => {}
        }
        let holder = |record: &InodeRecord| extents::holder_now(&self.view, record, self.sharing);
        let before = old.filter(|old| old.inline.is_none()).map(holder).transpose()?;
        let now = holder(new)?;
        let room = self.changes_max.saturating_sub(self.page.changes.len()).max(1);
        let found = version::data_changes(&self.view, before, Some(now), from, room)?;
        // In the block in which the older one ends, the newer may show what is cut off in the older.
        let block = BLOCK_BYTES as u64;
        let tail = old.map(|old| old.size).filter(|end| *end >= from && end % block > 0 && *end < new.size);
        let mut tail = tail.filter(|end| found.next.is_none_or(|next| *end < next));
        for range in found.ranges {
            if let Some(end) = tail.take_if(|end| *end < range.offset + range.len)
                && end < range.offset
            {
                self.range(inode, new.size, end, end.next_multiple_of(block) - end, false);
            }
            self.range(inode, new.size, range.offset, range.len, range.zeros);
        }
        if let Some(end) = tail {
            self.range(inode, new.size, end, end.next_multiple_of(block) - end, false);
        }
        Ok(found.next.filter(|next| *next < new.size))
    }

    fn range(&mut self, inode: u64, size: u64, offset: u64, len: u64, zeros: bool) {
        let len = len.min(size.saturating_sub(offset));
        if len > 0 {
            self.page.changes.push(Change::Data { inode, offset, len, zeros });
        }
    }

    fn add_paths(&mut self, hints: &mut Hints) -> Result<()> {
        let (mut old, mut new) = (BTreeSet::new(), BTreeSet::new());
        for change in &self.page.changes {
            match change {
                Change::Unlinked { directory, inode, kind, .. } => {
                    // Of a file that has other names nothing else may say where it is.
                    if *kind != InodeKind::Directory && self.new.inode(&self.view, *inode)?.is_some() {
                        new.insert(*inode);
                    }
                    old.insert(*directory)
                }
                Change::Linked { directory: inode, .. }
                | Change::Resized { inode, .. }
                | Change::Data { inode, .. }
                | Change::Attributes { inode, .. }
                | Change::XattrSet { inode, .. }
                | Change::XattrRemoved { inode, .. }
                | Change::Flags { inode, .. } => new.insert(*inode),
                Change::Created { .. } | Change::Deleted { .. } => false,
            };
        }
        let more = self.page.next.is_some();
        let old_names = self.old.names(&self.view, &old, &mut hints.old, more)?;
        self.originals(hints, more)?;
        let mut above = new.clone();
        above.extend(self.page.originals.values().map(|original| original.directory));
        let new_names = self.new.names(&self.view, &above, &mut hints.new, more)?;
        self.park(&old_names, &new_names)?;
        let paths = |of: BTreeSet<u64>, names: &Known| {
            let path = |inode| side::path(names, inode).map(|path| (inode, path));
            of.into_iter().filter_map(path).collect()
        };
        self.page.old_paths = paths(old, &old_names);
        self.page.new_paths = paths(above, &new_names);
        Ok(())
    }

    /// Of further names of files that both have, a name that both have. One old name says whether there is a need: if it is gone, the file
    /// waits where that has left it.
    fn originals(&mut self, hints: &mut Hints, more: bool) -> Result<()> {
        let mut further = Vec::new();
        for (index, change) in self.page.changes.iter().enumerate() {
            let Change::Linked { inode, kind, .. } = change else { continue };
            // With a single one, this is it.
            if *kind != InodeKind::Directory
                && self.new.inode(&self.view, *inode)?.is_some_and(|record| record.links > 1)
                && self.old.inode(&self.view, *inode)?.is_some()
            {
                further.push((index, *inode));
            }
        }
        let files = further.iter().map(|(_, inode)| *inode).collect();
        let names = self.old.names(&self.view, &files, &mut hints.old, more)?;
        for (index, inode) in further {
            let Some(((directory, position), name)) = names.get(&inode) else { continue };
            if self.new.name(&self.view, *directory, *position, name)? == Some(inode) {
                let original = Original { directory: *directory, name: name.clone(), parked: None };
                self.page.originals.insert(index, original);
            }
        }
        Ok(())
    }

    /// Says of directories on the way to names which of them have none when it is their turn: in the order of the steps, which is that of
    /// the places, one above has lost its name before, or gets it later. Which have, is asked of the other side.
    fn park(&mut self, old_names: &Known, new_names: &Known) -> Result<()> {
        let (view, old, new) = (&self.view, &self.old, &self.new);
        let (mut moved_old, mut moved_new) = (HashMap::new(), HashMap::new());
        let mut moved = |is_old: bool, inode: u64, (above, position): (u64, NamePosition), name: &[u8]| {
            let (known, other) = if is_old { (&mut moved_old, new) } else { (&mut moved_new, old) };
            if let Some(moved) = known.get(&inode) {
                return Ok::<bool, FsError>(*moved);
            }
            let moved = other.name(view, above, position, name)? != Some(inode);
            known.insert(inode, moved);
            Ok(moved)
        };
        let mut found: Vec<(usize, Parked)> = Vec::new();
        for (index, change) in self.page.changes.iter().enumerate() {
            let parked = match change {
                Change::Unlinked { directory, .. } => {
                    side::parked(old_names, *directory, &mut |inode, place, name| {
                        Ok(place.0 < *directory && moved(true, inode, place, name)?)
                    })?
                }
                Change::Linked { directory, .. } => {
                    let Some(position) = self.linked_at.get(&index) else { continue };
                    let mut later = |inode, place: (u64, NamePosition), name: &[u8]| {
                        Ok((place.0, place.1.0) > (*directory, position.0)
                            && moved(false, inode, place, name)?)
                    };
                    if let Some(original) = self.page.originals.get_mut(&index) {
                        original.parked = side::parked(new_names, original.directory, &mut later)?;
                    }
                    side::parked(new_names, *directory, &mut later)?
                }
                _ => None,
            };
            found.extend(parked.map(|parked| (index, parked)));
        }
        self.page.parked = found.into_iter().collect();
        Ok(())
    }
}

/// A place that does not lie in the attribute of which all has been said.
fn beyond(next: Vec<u8>, seen: &[u8]) -> Vec<u8> {
    if seen.is_empty() || !next.starts_with(seen) {
        return next;
    }
    [seen, &[u8::MAX; 2]].concat()
}
