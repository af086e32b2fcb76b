//! One of the two subvolumes of a diff, as it is in one view.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use varve_engine::version::Path;
use varve_engine::version::points::{self, find};
use varve_engine::{EngineError, InodeId, View};
use varve_format::record::inode::{INODE_KEY_BYTES, InodeRecord};
use varve_format::record::name::{NamePosition, NameRecord};
use varve_format::record::xattr::{XATTR_CHUNK_BYTES, XattrHead, xattr_chunks};
use varve_format::{Corrupt, FamilyId, TreeId};

use super::hints::{Place, Places};
use crate::api::ROOT_INODE;
use crate::changes::Parked;
use crate::table::number;
use crate::{FileKind, Result};

/// Directories within one another, at most: bounds walks in a damaged pool.
const DEPTH_MAX: usize = 1 << 20;

/// Of each inode the place of a name, and the name.
pub type Known = HashMap<u64, (Place, Vec<u8>)>;
/// Hears of a name: the inode it leads to, what that is, and where the name is.
type Pass<'a> = &'a mut dyn FnMut(u64, FileKind, Place);
/// Gets a prefix and a value; false ends the scan.
type Each<'a> = &'a mut dyn FnMut(&[u8], &[u8]) -> Result<bool>;
/// Asked of a directory, by its number, place and name.
type Asked<'a> = &'a mut dyn FnMut(u64, Place, &[u8]) -> Result<bool>;

pub struct Side {
    pub path: Path,
    pub family: FamilyId,
}

pub(super) fn corrupt(what: String) -> impl FnOnce(Corrupt) -> EngineError {
    |why| EngineError::corrupt(what, why)
}

pub(super) fn record(inode: u64, value: &[u8]) -> Result<InodeRecord> {
    Ok(InodeRecord::decode(value).map_err(corrupt(format!("the record of inode {inode}")))?)
}

/// An entry of a directory, unless it only keeps a place.
pub(super) fn entry(directory: u64, value: &[u8]) -> Result<Option<(Vec<u8>, u64, FileKind)>> {
    let record = NameRecord::decode(value).map_err(corrupt(format!("an entry of directory {directory}")))?;
    Ok(match record {
        NameRecord::Entry { name, ino, kind, .. } => Some((name, ino.0, kind)),
        NameRecord::Removed => None,
    })
}

impl Side {
    fn prefix(&self, inode: u64, rest: &[&[u8]]) -> Vec<u8> {
        let mut prefix = [self.family.0.to_be_bytes(), inode.to_be_bytes()].concat();
        rest.iter().for_each(|part| prefix.extend_from_slice(part));
        prefix
    }

    pub(super) fn inode(&self, view: &View, inode: u64) -> Result<Option<InodeRecord>> {
        let prefix = self.prefix(inode, &[]);
        debug_assert_eq!(prefix.len() + 8, INODE_KEY_BYTES);
        let found = find(view, &self.path, TreeId::INODES, &prefix)?;
        found.map(|found| record(inode, &found.value)).transpose()
    }

    /// Where the name in `directory` leads that has the hash of `position`.
    pub(super) fn name(
        &self,
        view: &View,
        directory: u64,
        position: NamePosition,
        name: &[u8],
    ) -> Result<Option<u64>> {
        // Names of one hash lie side by side.
        let bucket = self.prefix(directory, &[&position.0.to_be_bytes()[..7]]);
        let mut leads = None;
        self.scan(view, TreeId::NAMES, &bucket, &mut |_, value| {
            if let Some((found, inode, _)) = entry(directory, value)?
                && found == name
            {
                leads = Some(inode);
            }
            Ok(leads.is_none())
        })?;
        Ok(leads)
    }

    /// The extended attribute at `position`: name and value.
    pub(super) fn xattr(
        &self,
        view: &View,
        inode: u64,
        position: NamePosition,
    ) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
        let what = || format!("an attribute of inode {inode}");
        let piece = |chunk: u16| {
            let prefix = self.prefix(inode, &[&position.0.to_be_bytes(), &chunk.to_be_bytes()]);
            find(view, &self.path, TreeId::XATTRS, &prefix)
        };
        let Some(first) = piece(0)? else { return Ok(None) };
        let head = XattrHead::decode(&first.value).map_err(corrupt(what()))?;
        let (len, mut value) = (head.value_len as usize, head.start);
        for chunk in 1..xattr_chunks(len) {
            let bytes = piece(chunk)?.map(|found| found.value).unwrap_or_default();
            if bytes.len() != (len - value.len()).min(XATTR_CHUNK_BYTES) {
                let why =
                    Corrupt { what: "a chunk of a value is missing or of the wrong length", at: value.len() };
                return Err(EngineError::corrupt(what(), why).into());
            }
            value.extend_from_slice(&bytes);
        }
        Ok(Some((head.name, value)))
    }

    /// The value of the extended attribute with this name, whose hash is that of `position`.
    pub(super) fn xattr_named(
        &self,
        view: &View,
        inode: u64,
        position: NamePosition,
        name: &[u8],
    ) -> Result<Option<Vec<u8>>> {
        for position in self.xattr_positions(view, inode, &position.0.to_be_bytes()[..7])? {
            if let Some((found, value)) = self.xattr(view, inode, position)?
                && found == name
            {
                return Ok(Some(value));
            }
        }
        Ok(None)
    }

    /// Where this side has extended attributes of an inode, whether it shows the inode or not: all positions that begin with `within`.
    pub(super) fn xattr_positions(
        &self,
        view: &View,
        inode: u64,
        within: &[u8],
    ) -> Result<BTreeSet<NamePosition>> {
        let mut positions = BTreeSet::new();
        self.scan(view, TreeId::XATTRS, &self.prefix(inode, &[within]), &mut |prefix, _| {
            positions.insert(NamePosition(number(prefix, 16)));
            Ok(true)
        })?;
        Ok(positions)
    }

    fn scan(&self, view: &View, tree: TreeId, within: &[u8], each: Each<'_>) -> Result<()> {
        let mut failed = None;
        points::scan(view, &self.path, tree, within, within, &mut |prefix, _, value| {
            Ok(each(prefix, value).unwrap_or_else(|error| {
                failed = Some(error);
                false
            }))
        })?;
        failed.map_or(Ok(()), Err)
    }

    /// The name at a place, if it leads to `inode`.
    fn name_at(&self, view: &View, (directory, position): Place, inode: u64) -> Result<Option<Vec<u8>>> {
        let prefix = self.prefix(directory, &[&position.0.to_be_bytes()]);
        let Some(found) = find(view, &self.path, TreeId::NAMES, &prefix)? else { return Ok(None) };
        Ok(entry(directory, &found.value)?.filter(|(_, leads, _)| *leads == inode).map(|(name, ..)| name))
    }

    /// Looks for names of the inodes `sought` among those that begin with `within`, and takes those that it finds away. With `pass` it
    /// goes by all names there, which are told to that.
    fn find_names(
        &self,
        view: &View,
        within: &[u8],
        sought: &mut BTreeSet<u64>,
        known: &mut Known,
        mut pass: Option<Pass<'_>>,
    ) -> Result<()> {
        self.scan(view, TreeId::NAMES, within, &mut |prefix, value| {
            let (parent, position) = (number(prefix, 8), NamePosition(number(prefix, 16)));
            if let Some((name, inode, kind)) = entry(parent, value)? {
                if let Some(pass) = &mut pass {
                    pass(inode, kind, (parent, position));
                }
                if sought.remove(&inode) {
                    known.insert(inode, ((parent, position), name));
                }
            }
            Ok(pass.is_some() || !sought.is_empty())
        })
    }

    /// A name of each of these inodes, and of each directory above. Reads the directories in which they have a name, but where that is in `places`; if a file is not where it was named last (it had several names), all names. Where there is
    /// `more` to come, `places` gets the names that it passes.
    pub(super) fn names(
        &self,
        view: &View,
        wanted: &BTreeSet<u64>,
        places: &mut Places,
        more: bool,
    ) -> Result<Known> {
        let Some(first) = wanted.first().copied() else { return Ok(Known::new()) };
        places.begin(first);
        let mut known = Known::new();
        let mut passed = Places::passed();
        let (mut left, mut lost, mut is_above) = (wanted.clone(), BTreeSet::new(), false);
        // Each is looked for once: a record may name any directory as its own, also itself.
        let mut sought: HashSet<u64> = HashSet::new();
        while !left.is_empty() {
            let mut by_parent: BTreeMap<u64, BTreeSet<u64>> = BTreeMap::new();
            for inode in std::mem::take(&mut left) {
                if inode == ROOT_INODE.0 || known.contains_key(&inode) || !sought.insert(inode) {
                    continue;
                }
                if let Some(place) = places.get(inode) {
                    if let Some(name) = self.name_at(view, place, inode)? {
                        known.insert(inode, (place, name));
                        left.insert(place.0);
                        continue;
                    }
                    places.forget(inode);
                }
                let parent = self.inode(view, inode)?.map_or(0, |record| record.parent.0);
                by_parent.entry(parent).or_default().insert(inode);
            }
            for (parent, mut inodes) in by_parent {
                if is_above {
                    passed.begin_lower(inodes.first().copied().unwrap_or_default());
                }
                let mut pass = |inode: u64, kind: FileKind, place: Place| {
                    places.look();
                    match is_above {
                        true if kind == FileKind::Directory => passed.add(inode, place),
                        true => {}
                        false => places.next.add(inode, place),
                    }
                };
                let pass = more.then_some(&mut pass as Pass<'_>);
                self.find_names(view, &self.prefix(parent, &[]), &mut inodes, &mut known, pass)?;
                lost.append(&mut inodes);
                left.insert(parent);
            }
            left.retain(|inode| *inode != 0 && !sought.contains(inode));
            is_above = true;
            if left.is_empty() && !lost.is_empty() {
                let mut found = lost.clone();
                let mut pass = |inode: u64, _: FileKind, place: Place| {
                    places.look();
                    places.next.add(inode, place);
                };
                let pass = more.then_some(&mut pass as Pass<'_>);
                self.find_names(view, &self.family.0.to_be_bytes(), &mut lost, &mut known, pass)?;
                found.retain(|inode| !lost.contains(inode));
                left.extend(
                    found.iter().filter_map(|inode| known.get(inode)).map(|((parent, _), _)| *parent),
                );
                lost.clear();
            }
        }
        if more {
            let needed = known.iter().filter(|(inode, _)| !wanted.contains(inode));
            places.end(passed, needed.map(|(inode, (place, _))| (*inode, *place)));
        }
        Ok(known)
    }
}

/// The path of an inode below the root.
pub(super) fn path(known: &Known, inode: u64) -> Option<Vec<u8>> {
    let (mut names, mut at) = (Vec::new(), inode);
    while at != ROOT_INODE.0 {
        // Directories that lie in each other lead nowhere.
        if names.len() > known.len().min(DEPTH_MAX) {
            return None;
        }
        let ((parent, _), name) = known.get(&at)?;
        names.push(name.as_slice());
        at = *parent;
    }
    names.reverse();
    Some(names.join(&b'/'))
}

/// The nearest directory of those from `directory` up to the root that `is_parked` says of.
pub(super) fn parked(known: &Known, directory: u64, is_parked: Asked<'_>) -> Result<Option<Parked>> {
    let (mut at, mut rest_bytes, mut steps) = (directory, 0, 0);
    while at != ROOT_INODE.0 && steps <= known.len().min(DEPTH_MAX) {
        let Some((place, name)) = known.get(&at) else { return Ok(None) };
        if is_parked(at, *place, name)? {
            return Ok(Some(Parked { inode: at, rest_bytes }));
        }
        // With the slash before it, which the first one of them has not.
        rest_bytes += name.len() + usize::from(steps > 0);
        (at, steps) = (place.0, steps + 1);
    }
    Ok(None)
}

/// The number of an inode in an argument, without its slot.
pub(super) fn root(ino: InodeId) -> bool {
    crate::subvolume::local(ino) == ROOT_INODE
}
