//! One of the two subvolumes of a diff, as it is in one view.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use varve_engine::version::Path;
use varve_engine::version::points::{self, find};
use varve_engine::{EngineError, InodeId, View};
use varve_format::record::inode::{INODE_KEY_BYTES, InodeRecord};
use varve_format::record::name::{NamePosition, NameRecord};
use varve_format::record::xattr::{XATTR_CHUNK_BYTES, XattrHead, xattr_chunks};
use varve_format::{Corrupt, FamilyId, TreeId};

use crate::Result;
use crate::api::ROOT_INODE;
use crate::table::number;

/// Directories within one another, at most: bounds walks in a damaged pool.
const DEPTH_MAX: usize = 1 << 20;

/// Gets a prefix and a value; false ends the scan.
type Each<'a> = &'a mut dyn FnMut(&[u8], &[u8]) -> Result<bool>;

pub(super) struct Side {
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
pub(super) fn entry(directory: u64, value: &[u8]) -> Result<Option<(Vec<u8>, u64, crate::FileKind)>> {
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
        let bucket = self.prefix(inode, &[&position.0.to_be_bytes()[..7]]);
        let mut positions = BTreeSet::new();
        self.scan(view, TreeId::XATTRS, &bucket, &mut |prefix, _| {
            positions.insert(number(prefix, 16));
            Ok(true)
        })?;
        for position in positions {
            if let Some((found, value)) = self.xattr(view, inode, NamePosition(position))?
                && found == name
            {
                return Ok(Some(value));
            }
        }
        Ok(None)
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

    /// A path of each of these inodes, below the root. Reads the directories in which they and those above them have a
    /// name; if a file is not where it was named last (it had several names), all names.
    pub(super) fn paths(&self, view: &View, wanted: BTreeSet<u64>) -> Result<Vec<(u64, Vec<u8>)>> {
        // Of each inode the directory it is in, and its name there.
        let mut known: HashMap<u64, (u64, Vec<u8>)> = HashMap::new();
        let (mut left, mut lost) = (wanted.clone(), BTreeSet::new());
        // Each is looked for once: a record may name any directory as its own, also itself.
        let mut sought: HashSet<u64> = HashSet::new();
        while !left.is_empty() {
            let mut by_parent: BTreeMap<u64, BTreeSet<u64>> = BTreeMap::new();
            for inode in std::mem::take(&mut left) {
                if inode == ROOT_INODE.0 || known.contains_key(&inode) || !sought.insert(inode) {
                    continue;
                }
                let parent = self.inode(view, inode)?.map_or(0, |record| record.parent.0);
                by_parent.entry(parent).or_default().insert(inode);
            }
            for (parent, mut inodes) in by_parent {
                self.scan(view, TreeId::NAMES, &self.prefix(parent, &[]), &mut |_, value| {
                    if let Some((name, inode, _)) = entry(parent, value)?
                        && inodes.remove(&inode)
                    {
                        known.insert(inode, (parent, name));
                    }
                    Ok(!inodes.is_empty())
                })?;
                lost.append(&mut inodes);
                left.insert(parent);
            }
            left.retain(|inode| *inode != 0 && !sought.contains(inode));
            if left.is_empty() && !lost.is_empty() {
                self.scan(view, TreeId::NAMES, &self.family.0.to_be_bytes(), &mut |prefix, value| {
                    let parent = number(prefix, 8);
                    if let Some((name, inode, _)) = entry(parent, value)?
                        && lost.remove(&inode)
                    {
                        known.insert(inode, (parent, name));
                        left.insert(parent);
                    }
                    Ok(!lost.is_empty())
                })?;
                lost.clear();
            }
        }
        let path = |inode: u64| {
            let (mut names, mut at) = (Vec::new(), inode);
            while at != ROOT_INODE.0 {
                // Directories that lie in each other lead nowhere.
                if names.len() > known.len().min(DEPTH_MAX) {
                    return None;
                }
                let (parent, name) = known.get(&at)?;
                names.push(name.as_slice());
                at = *parent;
            }
            names.reverse();
            Some((inode, names.join(&b'/')))
        };
        Ok(wanted.into_iter().filter_map(path).collect())
    }
}

/// The number of an inode in an argument, without its slot.
pub(super) fn root(ino: InodeId) -> bool {
    crate::subvolume::local(ino) == ROOT_INODE
}
