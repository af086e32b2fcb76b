//! Where subvolumes are: a path must lead to each.

use std::collections::{HashMap, HashSet};

use varve_engine::{InodeId, ProblemKind as Kind, TreeId};
use varve_format::record::inode::InodeKind;
use varve_format::record::name::NamePosition;
use varve_format::record::subvolume::{FIRST_SUBVOLUME, SUBVOLUME_DELETING, SubvolumePlace};

use varve_format::text::escape;

use super::Check;
use crate::Result;
use crate::shown_number;
use crate::subvolume::Slot;

/// Where subvolumes are in directories of others, by the slot of those.
pub type Places = HashMap<Slot, Vec<(u64, SubvolumePlace)>>;

impl Check<'_> {
    /// Each subvolume but the first is in a subvolume, at a place that nothing else has, and not below itself. Notes in which
    /// directories they are.
    pub(super) fn places(&mut self) -> Result<()> {
        let open: HashMap<u64, Slot> =
            self.core.subvolumes.all().iter().map(|subvolume| (subvolume.id, subvolume.slot)).collect();
        let mut above: HashMap<u64, u64> = HashMap::new();
        let mut taken = HashSet::new();
        for (id, record) in crate::table::subvolumes::others(&self.view)? {
            let Ok(record) = record else { continue };
            self.taken("subvolume", id);
            if record.flags & SUBVOLUME_DELETING != 0 {
                continue;
            }
            let Some(place) = record.place else {
                self.problem(Kind::SubvolumePlace, format!("subvolume {id} is nowhere"));
                continue;
            };
            above.insert(id, place.parent);
            let Some(slot) = open.get(&place.parent) else {
                let why = format!("is in subvolume {}, which cannot be had", place.parent);
                self.misplaced(id, &place, &why);
                continue;
            };
            if !taken.insert((place.parent, place.directory, place.name.clone()))
                || !taken.insert((place.parent, place.directory, place.position.0.to_be_bytes().to_vec()))
            {
                self.misplaced(id, &place, "is where another one is");
            }
            self.places.entry(*slot).or_default().push((id, place));
        }
        for id in above.keys() {
            let (mut at, mut steps) = (*id, 0);
            while let Some(next) = above.get(&at).filter(|_| steps <= above.len()) {
                (at, steps) = (*next, steps + 1);
            }
            if at != FIRST_SUBVOLUME && steps > above.len() {
                self.problem(Kind::SubvolumePlace, format!("subvolume {id} is below itself"));
            }
        }
        Ok(())
    }

    fn misplaced(&mut self, id: u64, place: &SubvolumePlace, why: &str) {
        self.problem(Kind::SubvolumePlace, format!("subvolume {id} ({}) {why}", escape(&place.name)));
    }

    /// Those that are in the subvolume which is being looked at are in its directories.
    pub(super) fn places_here(&mut self) -> Result<()> {
        for (id, place) in self.places.remove(&self.namespace.slot).unwrap_or_default() {
            if let Some(why) = self.no_place(&place)? {
                self.misplaced(id, &place, &why);
            }
        }
        Ok(())
    }

    /// Whether the directory has the subvolume's name or something at its position, among the names whose hash begins at `base`.
    fn name_there(&mut self, dir: InodeId, place: &SubvolumePlace, base: NamePosition) -> Result<bool> {
        let (last, mut found) = (base.0.saturating_add(255), false);
        let each = &mut |position: NamePosition, _: InodeKind, _: InodeId, name: Vec<u8>| {
            found |= position == place.position || name == place.name;
            !found && position.0 < last
        };
        let scanned = self.namespace.each_name(&self.view, dir, base.0.saturating_sub(1), each);
        scanned.or_else(|error| self.unread(TreeId::NAMES, error))?;
        Ok(found)
    }

    /// Why a subvolume cannot be in the directory it is in.
    fn no_place(&mut self, place: &SubvolumePlace) -> Result<Option<String>> {
        let dir = self.full(place.directory);
        Ok(match self.inodes.get(&place.directory).and_then(|seen| seen.says.as_ref()) {
            _ if self.inode_is_lost(place.directory) => None,
            Some(says) if says.kind != InodeKind::Directory => {
                Some(format!("is in inode {}, which is no directory", shown_number(dir)))
            }
            Some(_) => {
                let hash = self.namespace.hasher.hash(&place.name);
                if NamePosition::new(hash, place.position.sequence()) != place.position {
                    return Ok(Some("is not at the place of its name's hash".into()));
                }
                let hides = self.name_there(dir, place, NamePosition::new(hash, 0))?;
                hides.then(|| "hides a name of its directory, or is at its place".into())
            }
            None => Some(format!("is in directory {}, which does not exist", shown_number(dir))),
        })
    }
}
