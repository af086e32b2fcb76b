//! The list of subvolumes, in pages.
//!
//! A page reads the records in one view and asks under the topology lock, for a moment, where each subvolume is. The ways
//! to those places are looked up without it: each directory on them once for all that lead through it. So a page costs
//! its subvolumes and the directories above them, and nobody waits for more than a look into memory. What is moved
//! meanwhile is looked for again, and what is deleted is left out.

use std::collections::{BTreeMap, HashMap, HashSet};

use varve_engine::{InodeId, TreeId};
use varve_format::Corrupt;
use varve_format::record::subvolume::{FIRST_SUBVOLUME, SUBVOLUME_DELETING, SubvolumeRecord, subvolume_key};

use crate::api::{ROOT_INODE, SubvolumeInfo, SubvolumePage};
use crate::core::Core;
use crate::subvolume::{Slot, local};
use crate::table::{Namespace, corrupt};
use crate::{FsError, Result};

/// Most subvolumes in a page.
const PAGE_COUNT_MAX: usize = 4096;
/// A page ends behind so many bytes of paths.
const PAGE_PATH_BYTES: usize = 1 << 20;
/// So often a page is begun anew when directories on the way have moved. More than that is damage.
const ROUNDS_MAX: usize = 16;

/// Where a subvolume is: its directory, and its name there.
type Place = (InodeId, Vec<u8>);

/// Directories on the way to the root: the one above each, and the name there.
#[derive(Default)]
pub struct Ways {
    above: HashMap<InodeId, Place>,
    /// Names of directories that were looked at.
    #[cfg(feature = "internals")]
    pub looks: u64,
}

impl Core {
    /// The subvolumes behind number `after`: a page of at most `count_max`.
    pub(crate) fn list_subvolumes(&self, after: u64, count_max: usize) -> Result<SubvolumePage> {
        let count_max = count_max.clamp(1, PAGE_COUNT_MAX);
        for _ in 1..ROUNDS_MAX {
            match self.list_page(after, count_max) {
                // Something has moved, or went with all that was in it.
                Err(FsError::NotFound | FsError::Stale) => {}
                result => return result,
            }
        }
        self.list_page(after, count_max)
    }

    fn list_page(&self, after: u64, count_max: usize) -> Result<SubvolumePage> {
        let (records, more) = self.records_after(after, count_max)?;
        let last = records.last().map(|(id, _)| *id);
        let found = self.places_of(records);
        let mut ways = Ways::default();
        ways.find(self, found.iter().filter_map(|(_, _, place)| Some(place.as_ref()?.0)))?;
        let (mut subvolumes, mut bytes) = (Vec::with_capacity(found.len()), 0);
        for (mut info, at, place) in found {
            if bytes >= PAGE_PATH_BYTES {
                let next = subvolumes.last().map(|info: &SubvolumeInfo| info.id);
                return Ok(SubvolumePage { subvolumes, next });
            }
            info.path = match place {
                Some((dir, name)) => ways.path(self, dir, &name)?,
                None => b"/".to_vec(),
            };
            // The number of the one it is in, as long as that is there.
            info.parent = at.map(|slot| self.subvolumes.get(slot).map(|parent| parent.id)).transpose()?;
            bytes += info.path.len();
            subvolumes.push(info);
        }
        Ok(SubvolumePage { subvolumes, next: last.filter(|_| more) })
    }

    /// The records behind number `after`, in order, and whether more follow; without those that are being deleted.
    fn records_after(&self, after: u64, count_max: usize) -> Result<(Vec<(u64, SubvolumeRecord)>, bool)> {
        let (mut records, mut more, mut failed) = (Vec::new(), false, Ok(()));
        if after < FIRST_SUBVOLUME {
            records.push((FIRST_SUBVOLUME, self.subvolume_record(&self.subvolumes.first)?));
        }
        let from = after.max(FIRST_SUBVOLUME).saturating_add(1);
        self.store.view().scan(TreeId::SUBVOLUMES, &subvolume_key(from), &mut |key, value| {
            if records.len() >= count_max {
                more = true;
                return false;
            }
            let key = key.first_chunk().map(|bytes| u64::from_be_bytes(*bytes));
            match (key, SubvolumeRecord::decode(value)) {
                (Some(id), Ok(record)) => {
                    if record.flags & SUBVOLUME_DELETING == 0 {
                        records.push((id, record));
                    }
                }
                (id, record) => {
                    let why = record.err().unwrap_or(Corrupt { what: "key of a subvolume", at: 0 });
                    failed = Err(corrupt(|| format!("the record of subvolume {}", id.unwrap_or(0)))(why));
                }
            }
            failed.is_ok()
        })?;
        failed?;
        Ok((records, more))
    }

    /// Those of the subvolumes that something leads to: what is known of each, the slot of the one it is in, and where.
    fn places_of(
        &self,
        records: Vec<(u64, SubvolumeRecord)>,
    ) -> Vec<(SubvolumeInfo, Option<Slot>, Option<Place>)> {
        let _topology = self.subvolumes.topology.lock();
        let mut found = Vec::with_capacity(records.len());
        for (id, record) in records {
            let slot = Slot(record.slot);
            let Ok(subvolume) = self.subvolumes.get(slot) else { continue };
            let place = self.place_of(slot).ok();
            // Gone by now; or nothing leads to it: it was not complete, or where it was is damaged.
            if subvolume.id != id || (slot != Slot::FIRST && place.is_none()) {
                continue;
            }
            let stored = record.place.as_ref();
            let info = SubvolumeInfo {
                id,
                parent: None,
                origin: stored.map(|place| place.origin).filter(|origin| *origin != 0),
                root: slot.full(ROOT_INODE),
                path: Vec::new(),
                read_only: subvolume.read_only,
                created: stored.map(|place| place.created),
                uuid: record.uuid,
            };
            found.push((info, place.as_ref().map(|(dir, _)| Slot::of(*dir)), place));
        }
        found
    }

    /// Where a subvolume other than the first is. For who has the topology lock.
    fn place_of(&self, slot: Slot) -> Result<Place> {
        let (dir, position) = (*self.subvolumes.get(slot)?.place.lock()).ok_or(FsError::Stale)?;
        Ok((dir, self.subvolumes.nested.name(dir, position).ok_or(FsError::Stale)?))
    }
}

impl Ways {
    /// Looks up the ways from these directories to the root.
    pub fn find(&mut self, core: &Core, dirs: impl Iterator<Item = InodeId>) -> Result<()> {
        let mut left: Vec<InodeId> = dirs.collect();
        let mut unnamed: BTreeMap<InodeId, HashSet<InodeId>> = BTreeMap::new();
        while let Some(dir) = left.pop() {
            if dir == core.root() || self.above.contains_key(&dir) {
                continue;
            }
            let (above, name) = if local(dir) == ROOT_INODE {
                let _topology = core.subvolumes.topology.lock();
                core.place_of(Slot::of(dir))?
            } else {
                let above = core.up(dir)?;
                unnamed.entry(above).or_default().insert(dir);
                (above, Vec::new())
            };
            self.above.insert(dir, (above, name));
            left.push(above);
        }
        for (above, mut dirs) in unnamed {
            // As a listing does: a copy, and a view that fits it, so that nobody who wants the gate waits for all of the directory.
            let (names, view) = {
                let names = core.names_first(above)?;
                (Namespace::clone(&names), core.store.view())
            };
            names.each_name(&view, above, 0, &mut |_, _, ino, name| {
                #[cfg(feature = "internals")]
                {
                    self.looks += 1;
                }
                if dirs.remove(&ino) {
                    self.above.insert(ino, (above, name));
                }
                !dirs.is_empty()
            })?;
            if !dirs.is_empty() {
                return Err(FsError::NotFound);
            }
        }
        Ok(())
    }

    /// The path of `name` in a directory whose way is known.
    fn path(&self, core: &Core, mut dir: InodeId, name: &[u8]) -> Result<Vec<u8>> {
        let mut names = vec![name];
        while dir != core.root() {
            // Parents that form a ring, in a damaged pool or because they moved between two looks.
            if names.len() > self.above.len() + 1 {
                return Err(FsError::NotFound);
            }
            let (above, name) = self.above.get(&dir).ok_or(FsError::NotFound)?;
            names.push(name);
            dir = *above;
        }
        Ok(names.iter().rev().flat_map(|name| [b"/", *name]).flatten().copied().collect())
    }
}
