//! How much must be free for a call to be accepted: the judge's bound for refusals on a full pool.
//!
//! It comes from the rule by which space is asked for (DESIGN, Space), and from no refusal that was seen. Who is refused has written a
//! checkpoint first, so all nodes are clean: each on the way to a record is asked for anew, and each that is added by a split, or is
//! the first of its tree, is asked for twice. All metadata has two copies here. What else is asked for may be less, and never more.

use varve_fs::{Allocate, InodeId};

use super::{REFUSAL_FREE_BYTES_MAX, RESERVED_PAGE_BYTES_MAX};
use crate::call::Call;
use crate::model::{Content, DEFAULT, Inode, Model, PAGE_BYTES, slot};

/// What a node takes: two copies of it.
const NODE_BYTES: u64 = 2 * PAGE_BYTES;
/// What changing one tree more may take, when all of it is clean: a leaf and the nodes above, two copies of each.
const TREE_PATH_BYTES: u64 = 2 * NODE_BYTES;
/// What moving a page to another place in its file may take, if it is an extent by itself: a key and a value put and a key
/// deleted, in two copies of the tree.
pub(super) const MOVED_PAGE_BYTES_MAX: u64 = 2 * (100 + 60);

/// What records in `leaves` leaves of a tree may take. In pools of this size the trees that a name changes have a leaf, which may be split
/// and gets a root above it then, or leaves and a root, which has room for what splits add: some 55 children, each half full, are 500
/// inodes, and the workloads of full pools end with fewer than 200 (the first 60 of them, those in snapshots counted for each).
fn tree_bytes(leaves: u64) -> u64 {
    let nodes = match leaves {
        0 => 0,
        1 => 1 + 2 * 2,
        _ => leaves + 1 + 2 * leaves,
    };
    nodes * NODE_BYTES
}

/// What a new inode with a name in `parent` may take, or (`named` is false) one without a name.
fn new_inode_bytes(parent: InodeId, named: bool, old: &Model) -> u64 {
    let list = old.get(parent).and_then(|inode| inode.xattrs.get(DEFAULT)).map_or(0, Vec::len) as u64;
    // What it inherits: two lists.
    let lists = if list > 0 { 2 } else { 0 };
    // Its record and its directory's, which may lie in two leaves, and the name; or its record and that of an orphan.
    let (inodes, names, orphans) = if named { (2, 1, 0) } else { (1, 0, 1) };
    let plain = [inodes, names, orphans, lists].map(tree_bytes).iter().sum::<u64>() + 2 * 8 * list;
    if !old.was_forked(slot(parent)) {
        return plain;
    }
    // A version that is not the first of its family has a place in the index for each record, and what it hides (of the directory)
    // is noted for the reaper.
    plain + tree_bytes(inodes + names + lists) + tree_bytes(names)
}

/// What a change of an inode's record may take that replaces it.
fn inode_bytes(ino: InodeId, old: &Model) -> u64 {
    // As of a new one: of a record that others see too there is one of its own then.
    tree_bytes(1) + if old.was_forked(slot(ino)) { 2 * tree_bytes(1) } else { 0 }
}

/// Whether a hole may be punched where there is one already, of a file that others may show, too: it would cost a record, and frees nothing.
pub(super) fn punches_nothing_of_others(call: &Call, old: &Model) -> bool {
    let Call::Fallocate { ino, offset, len, how: Allocate::Punch } = call else { return false };
    let Some(content) = old.get(*ino).and_then(Inode::content) else { return false };
    let mut pages = offset / PAGE_BYTES..(offset + len).div_ceil(PAGE_BYTES);
    old.was_forked(slot(*ino))
        && !content.reserved().any(|page| pages.contains(&page))
        && pages.all(|page| content.may_be_hole(page))
}

/// What must be free beyond [`REFUSAL_FREE_BYTES_MAX`] for `call` to be accepted in the state `old`.
pub(super) fn wanted_bytes(call: &Call, old: &Model) -> u64 {
    let content = call.subject().and_then(|ino| old.get(ino)).and_then(Inode::content);
    let new_inode =
        |parent: &InodeId, named| new_inode_bytes(*parent, named, old).saturating_sub(REFUSAL_FREE_BYTES_MAX);
    match call {
        Call::Fallocate { offset, len, how, .. } => {
            // What is zeroed is punched first: all of it is holes then.
            let zeroes = matches!(how, Allocate::Zero { .. });
            let pages = offset / PAGE_BYTES..(offset + len).div_ceil(PAGE_BYTES);
            let hole = |page: &u64| zeroes || content.is_none_or(|content| content.may_be_hole(*page));
            pages.filter(hole).count() as u64 * RESERVED_PAGE_BYTES_MAX
        }
        // Each extent behind the place gets another key, in one transaction.
        Call::Shift { offset, .. } => {
            let behind = content.map_or(0, Content::size).saturating_sub(*offset);
            behind.div_ceil(PAGE_BYTES) * MOVED_PAGE_BYTES_MAX
        }
        // Of an inode that others see its version, its place in two indexes, and the first leaf of two trees, counted twice.
        Call::SetXattr { value, .. } => 8 * value.len() as u64 + 2 * TREE_PATH_BYTES,
        Call::Create { parent, .. } | Call::Mkdir { parent, .. } | Call::Mknod { parent, .. } => {
            new_inode(parent, true)
        }
        Call::Tmpfile { parent, .. } => new_inode(parent, false),
        Call::SetAttr { ino, .. } | Call::Open { ino, .. } => {
            inode_bytes(*ino, old).saturating_sub(REFUSAL_FREE_BYTES_MAX)
        }
        // The first of a pool is noted in the record of its first subvolume.
        Call::SetFlags { ino, .. } => {
            (inode_bytes(*ino, old) + tree_bytes(1)).saturating_sub(REFUSAL_FREE_BYTES_MAX)
        }
        // Two transactions, which copy nodes of several trees.
        Call::CreateSubvolume { parent, .. }
        | Call::Snapshot { parent, .. }
        | Call::CloneFile { parent, .. } => REFUSAL_FREE_BYTES_MAX + new_inode(parent, true),
        // Two names, two inodes, and of an inode that others see its version, and places in the indexes of two families: all
        // that a new inode takes, and two trees more.
        Call::Rename { new_parent: parent, .. }
        | Call::Link { parent, .. }
        | Call::LinkOver { parent, .. } => new_inode(parent, true) + 2 * TREE_PATH_BYTES,
        // A long target has a block, and that an entry in one tree more.
        Call::Symlink { parent, target, .. } => {
            let block = target.len().next_multiple_of(PAGE_BYTES as usize) as u64;
            new_inode(parent, true) + block + tree_bytes(1)
        }
        _ => 0,
    }
}
