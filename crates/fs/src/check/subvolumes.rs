//! Where subvolumes are: a path must lead to each.

use std::collections::{HashMap, HashSet};

use varve_engine::{InodeId, ProblemKind as Kind};
use varve_format::record::inode::InodeKind;
use varve_format::record::name::NamePosition;
use varve_format::record::subvolume::{FIRST_SUBVOLUME, SUBVOLUME_DELETING, SubvolumePlace};

use varve_format::text::escape;

use super::Check;
use crate::Result;
use crate::subvolume::Slot;

impl Check<'_> {
    /// Each subvolume but the first is in a directory of a subvolume, at a place that nothing else has, and not below
    /// itself.
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
            let known = open.get(&place.parent);
            let dir = known.map(|slot| slot.full(place.directory));
            if let Some(why) = self.no_place(&place, dir) {
                let text = format!("subvolume {id} ({}) {why}", escape(&place.name));
                self.problem(Kind::SubvolumePlace, text);
            } else if !taken.insert((place.parent, place.directory, place.name.clone()))
                || !taken.insert((place.parent, place.directory, place.position.0.to_be_bytes().to_vec()))
            {
                let text = format!("subvolume {id} ({}) is where another one is", escape(&place.name));
                self.problem(Kind::SubvolumePlace, text);
            }
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

    /// Why a subvolume cannot be in this directory (`None`: of a subvolume that there is not).
    fn no_place(&self, place: &SubvolumePlace, dir: Option<InodeId>) -> Option<String> {
        let Some(dir) = dir else {
            return Some(format!("is in subvolume {}, which cannot be had", place.parent));
        };
        match self.inodes.get(&dir) {
            _ if self.inode_is_lost(dir) => None,
            Some(seen) if seen.orphan || seen.kind != InodeKind::Directory => {
                Some(format!("is in inode {}, which is no directory", dir.0))
            }
            Some(_) => {
                let hash = self.namespace.hasher.hash(&place.name);
                let there = NamePosition::new(hash, place.position.sequence()) == place.position;
                (!there).then(|| "is not at the place of its name's hash".into())
            }
            None => Some(format!("is in directory {}, which does not exist", dir.0)),
        }
    }
}
