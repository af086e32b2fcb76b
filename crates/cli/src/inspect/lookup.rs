//! What a path or the number of an inode leads to, in the subvolume or snapshot that is meant, as that one sees it.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use anyhow::{Context, Result, anyhow, bail};
use varve_format::record::inode::{InodeKind, InodeRecord};
use varve_format::record::name::NameRecord;
use varve_format::record::orphan::{OrphanRecord, orphan_key};
use varve_format::record::subvolume::{
    FIRST_SUBVOLUME, LOCAL_INODE_BITS, SUBVOLUME_DELETING, SUBVOLUME_PENDING, SUBVOLUME_READ_ONLY,
    SUBVOLUME_SLOTS, SubvolumeRecord, inode_shown, shown_inode,
};
use varve_format::{FamilyId, InodeId, TreeId};

use super::doc::{Doc, map};
use super::state::{Entries, State};
use super::versions::{self, Seen, Way};
use super::{LISTED_MAX, records};
use crate::Usage;
use crate::names::Shown;

/// The subvolumes of a pool.
struct Subvolumes {
    /// By number.
    all: Vec<(u64, SubvolumeRecord)>,
    /// Records that cannot be read.
    damaged: usize,
}

/// A subvolume, and the versions of its namespace that it sees.
struct View {
    id: u64,
    record: SubvolumeRecord,
    way: Way,
}

/// An inode's own number, without the slot of its subvolume.
fn local(ino: InodeId) -> InodeId {
    InodeId(ino.0 & ((1 << LOCAL_INODE_BITS) - 1))
}

impl Subvolumes {
    fn load(state: &State<'_>) -> Result<Subvolumes> {
        let mut found = Subvolumes { all: Vec::new(), damaged: 0 };
        state.scan(TreeId::SUBVOLUMES, &[], &mut |key, value| {
            match (key.try_into().map(u64::from_be_bytes), SubvolumeRecord::decode(value)) {
                (Ok(id), Ok(record)) => found.all.push((id, record)),
                _ => found.damaged += 1,
            }
            true
        })?;
        if found.all.is_empty() && found.damaged == 0 {
            bail!("the pool has no filesystem: creating it was not finished; create it again");
        }
        Ok(found)
    }

    /// What to say where something is not found that may be behind a damaged record.
    fn caveat(&self) -> String {
        match self.damaged {
            0 => String::new(),
            count => format!("; {count} records of subvolumes cannot be read, varve check says more"),
        }
    }

    fn view(
        &self,
        state: &State<'_>,
        is_meant: impl Fn(u64, &SubvolumeRecord) -> bool,
    ) -> Result<Option<View>> {
        let Some((id, record)) = self.all.iter().find(|(id, record)| is_meant(*id, record)) else {
            return Ok(None);
        };
        let way = Way::load(state, record.family, record.version)
            .with_context(|| format!("the namespace of subvolume {id}"))?;
        Ok(Some(View { id: *id, record: record.clone(), way }))
    }

    /// Whether a subvolume has this slot.
    fn has_slot(&self, slot: u64) -> bool {
        self.all.iter().any(|(_, record)| u64::from(record.slot) == slot)
    }

    fn first(&self, state: &State<'_>) -> Result<View> {
        self.view(state, |id, _| id == FIRST_SUBVOLUME)?.ok_or_else(|| {
            anyhow!("there is no readable record of the pool's first subvolume{}", self.caveat())
        })
    }

    /// The subvolume that has this name in a directory of another one.
    fn below(
        &self,
        state: &State<'_>,
        above: &View,
        directory: InodeId,
        name: &[u8],
    ) -> Result<Option<View>> {
        self.view(state, |_, record| {
            let there = record.place.as_ref().filter(|_| record.flags & SUBVOLUME_DELETING == 0);
            there.is_some_and(|place| {
                (place.parent, place.directory, &place.name[..]) == (above.id, directory, name)
            })
        })
    }

    /// The subvolume that is meant by a number or by a path that leads to its root.
    fn named(&self, state: &State<'_>, text: &OsStr) -> Result<View> {
        if text.as_bytes().starts_with(b"/") {
            let (view, ino, _) = self.walk(state, text)?;
            if ino != view.record.root {
                bail!(
                    "{} is not a subvolume but lies in subvolume {}; varve subvolume list shows all",
                    text.shown(),
                    view.id
                );
            }
            return Ok(view);
        }
        let id: u64 = text.to_str().and_then(|text| text.parse().ok()).ok_or_else(|| {
            Usage(format!(
                "--subvolume takes the number of a subvolume, as varve subvolume list shows it, or its path in the pool, \
                 which begins with '/'; not {}",
                text.shown()
            ))
        })?;
        self.view(state, |other, _| other == id)?.ok_or_else(|| {
            anyhow!("there is no subvolume {id}; varve subvolume list shows them{}", self.caveat())
        })
    }

    /// What a path from the pool's root leads to.
    fn walk(&self, state: &State<'_>, path: &OsStr) -> Result<(View, InodeId, InodeKind)> {
        let shown = path.shown();
        let mut view = self.first(state)?;
        let (mut at, mut kind) = (view.record.root, InodeKind::Directory);
        let names = path.as_bytes().split(|byte| *byte == b'/');
        for name in names.filter(|name| !name.is_empty() && *name != b".") {
            let part = OsStr::from_bytes(name).shown();
            if name == b".." {
                return Err(Usage(format!("{shown}: give the path without '..'")).into());
            }
            if kind != InodeKind::Directory {
                bail!("{shown}: what is above {part} is not a directory");
            }
            if let Some(below) = self.below(state, &view, at, name)? {
                (at, kind) = (below.record.root, InodeKind::Directory);
                view = below;
                continue;
            }
            (at, kind) = find_name(state, &view.way, at, name)?.ok_or_else(|| {
                anyhow!(
                    "{shown}: there is no {part} in inode {} of subvolume {}{}",
                    shown_inode(view.full(at).0),
                    view.id,
                    self.caveat()
                )
            })?;
        }
        Ok((view, at, kind))
    }
}

impl View {
    /// The whole number of an inode in this subvolume.
    fn full(&self, ino: InodeId) -> InodeId {
        InodeId(u64::from(self.record.slot) << LOCAL_INODE_BITS | ino.0)
    }

    /// `{ "id", "name", ... }`
    fn describe(&self) -> Doc {
        let record = &self.record;
        let place = record.place.as_ref();
        map! {
            "id": self.id,
            "name": place.map(|place| Doc::name(&place.name)),
            "parent": place.map(|place| place.parent),
            "origin": place.map(|place| place.origin).filter(|origin| *origin != 0),
            "slot": record.slot,
            "read_only": record.flags & SUBVOLUME_READ_ONLY != 0,
            "pending": record.flags & SUBVOLUME_PENDING != 0,
            "deleting": record.flags & SUBVOLUME_DELETING != 0,
            "family": record.family.0,
            "version": record.version.0,
            "versions_count": self.way.steps.len(),
        }
    }
}

/// What `inspect POOL path PATH` shows.
pub fn path_of(state: &State<'_>, path: &OsStr) -> Result<Doc> {
    let subvolumes = Subvolumes::load(state)?;
    let (view, ino, _) = subvolumes.walk(state, path)?;
    let mut doc = map! { "path": Doc::name(path.as_bytes()) };
    doc.extend(inode_in(state, &view, ino)?);
    Ok(doc)
}

/// What `inspect POOL inode NUMBER` shows. The number says in which subvolume, unless `subvolume` does.
pub fn inode_of(state: &State<'_>, shown: u64, subvolume: Option<&OsStr>) -> Result<Doc> {
    let subvolumes = Subvolumes::load(state)?;
    let mut number = InodeId(inode_shown(shown));
    let slot = number.0 >> LOCAL_INODE_BITS;
    let view = match subvolume {
        Some(text) => {
            let view = subvolumes.named(state, text)?;
            let others = slot != 0 && slot != u64::from(view.record.slot);
            if others && shown < 1 << LOCAL_INODE_BITS && !subvolumes.has_slot(slot) {
                // No number that programs see, then: the inode's own.
                number = InodeId(shown);
            } else if others {
                return Err(Usage(format!(
                    "inode {} is one of another subvolume than {}: its own number is {}; leave --subvolume away, or give \
                     that number",
                    shown,
                    view.id,
                    local(number).0
                ))
                .into());
            }
            view
        }
        None if slot == 0 => subvolumes.first(state)?,
        None => {
            let found = match slot < u64::from(SUBVOLUME_SLOTS) {
                true => subvolumes.view(state, |_, record| u64::from(record.slot) == slot)?,
                false => None,
            };
            // What is being deleted may be left of a subvolume that has gone.
            match (found, orphan(state, number)?) {
                (Some(view), _) => view,
                (None, Some(record)) => return orphan_doc(state, number, None, &record),
                (None, None) => bail!(
                    "there is no inode {}, and no subvolume with its slot, {slot}; varve inspect POOL tree subvolumes shows \
                     them{}",
                    shown,
                    subvolumes.caveat()
                ),
            }
        }
    };
    inode_in(state, &view, local(number))
}

/// An inode as a subvolume sees it; `ino` is its own number.
fn inode_in(state: &State<'_>, view: &View, ino: InodeId) -> Result<Doc> {
    let (family, full) = (view.record.family, view.full(ino));
    let prefix = point_prefix(family, ino);
    let seen = versions::find(state, &view.way, TreeId::INODES, &prefix)?;
    let Some(seen) = seen.as_ref().filter(|seen| !seen.value.is_empty()) else {
        if let Some(record) = orphan(state, full)? {
            return orphan_doc(state, full, Some(view), &record);
        }
        let why = match seen {
            Some(seen) => format!(": its version {} has removed it", view.way.steps[seen.at].id.0),
            None => String::new(),
        };
        bail!(
            "there is no inode {} in subvolume {}{why}; name the subvolume that is meant with --subvolume (varve subvolume list \
             shows them)",
            ino.0,
            view.id
        );
    };
    let what = || format!("inode {} of subvolume {}, key {}", ino.0, view.id, hex(&seen.key));
    let record = InodeRecord::decode(&seen.value).map_err(|corrupt| anyhow!("{}: {corrupt}", what()))?;
    let mut doc = map! {
        "inode": shown_inode(full.0), "own_number": ino.0, "subvolume": view.describe(), "orphan": false,
        "record": view.way.origin(&seen.key, seen.at),
    };
    doc.extend(records::inode_record(&record));
    let mut xattrs = Vec::new();
    versions::scan(state, &view.way, TreeId::XATTRS, &prefix, &mut |Seen { key, at, value }| {
        if !value.is_empty() {
            let mut entry = view.way.origin(&key, at);
            entry.extend(records::entry(TreeId::XATTRS, &key, &value).without(&["key", "version_key"]));
            xattrs.push(entry);
        }
        Ok(xattrs.len() < LISTED_MAX)
    })?;
    doc.extend(map! { "xattrs": xattrs });
    doc.extend(contents(state, &record)?);
    Ok(doc)
}

/// The record of an inode that has no name any more; `number` with its slot.
fn orphan(state: &State<'_>, number: InodeId) -> Result<Option<OrphanRecord>> {
    let value = state.get(TreeId::ORPHANS, &orphan_key(number))?;
    value
        .map(|value| OrphanRecord::decode(&value))
        .transpose()
        .map_err(|corrupt| anyhow!("orphan {}: {corrupt}", number.0))
}

fn orphan_doc(state: &State<'_>, number: InodeId, view: Option<&View>, record: &OrphanRecord) -> Result<Doc> {
    let mut doc = map! {
        "inode": shown_inode(number.0), "own_number": local(number).0, "subvolume": view.map(View::describe), "orphan": true,
        // Orphans have no versions.
        "record": map! {
            "key": Doc::hex(&orphan_key(number)), "version": None::<u64>, "version_key": None::<u64>, "inherited": false,
        },
    };
    doc.extend(records::inode_record(&record.inode));
    doc.extend(map! { "xattrs": Vec::new() });
    doc.extend(contents(state, &record.inode)?);
    Ok(doc)
}

/// The versions that a file sees of its data, and where its bytes are: nothing, where they are inline or there are none.
fn contents(state: &State<'_>, record: &InodeRecord) -> Result<Doc> {
    let has_data = matches!(record.kind, InodeKind::File | InodeKind::Symlink) && record.inline.is_none();
    let (mut way, mut pieces, mut more) = (None, Vec::new(), false);
    if has_data {
        let loaded = Way::load(state, record.data.family, record.data.version)?;
        (pieces, more) = versions::pieces(state, &loaded, LISTED_MAX)?;
        way = Some(loaded);
    }
    let extents = pieces.iter().zip(way.iter().cycle()).map(|(piece, way)| {
        let mut doc = map! { "file_offset": piece.offset };
        doc.extend(records::extent_record(&piece.extent));
        doc.extend(way.origin(&piece.key, piece.at));
        doc
    });
    Ok(map! {
        "versions_count": way.as_ref().map_or(0, |way| way.steps.len()),
        "versions": way.as_ref().map_or(Vec::new(), |way| way.describe(LISTED_MAX)),
        "extents": extents.collect::<Vec<Doc>>(),
        "more_extents": more,
    })
}

fn point_prefix(family: FamilyId, ino: InodeId) -> [u8; 16] {
    let mut prefix = [0; 16];
    prefix[..8].copy_from_slice(&family.0.to_be_bytes());
    prefix[8..].copy_from_slice(&ino.0.to_be_bytes());
    prefix
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Looks through a directory for a name.
fn find_name(
    state: &State<'_>,
    way: &Way,
    directory: InodeId,
    name: &[u8],
) -> Result<Option<(InodeId, InodeKind)>> {
    let mut found = None;
    versions::scan(state, way, TreeId::NAMES, &point_prefix(way.family, directory), &mut |seen| {
        // What does not decode is shown by `tree names`.
        if let Ok(NameRecord::Entry { kind, ino, name: entry, .. }) = NameRecord::decode(&seen.value)
            && entry == name
        {
            found = Some((ino, kind));
        }
        Ok(found.is_none())
    })?;
    Ok(found)
}
