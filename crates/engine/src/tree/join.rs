//! Joining nodes that have become underfull: two into one, or three leaves into two.
//!
//! A tree is right without it, and smaller with it. So it takes only neighbours that are in memory, under the same parent,
//! and what makes a node dirty only where the books have room for that ([`Mutation::spare`]). Where all of them are dirty, there is one dirty
//! node less, on a full pool and when the log is replayed as well: there must not be more of them then than there were. What remains has
//! room to grow: a node that was joined is not split again by the next few puts of small entries.
//!
//! The bounds: two neighbours that fit into seven eighths of a node, or three that fit into two with a sixteenth of each
//! left free.

use std::sync::Arc;

use varve_format::BLOCK_BYTES;

use super::mutate::{Mutation, separator};
use super::node::{Body, Interior, Leaf, Link, Node};
use super::resident;
use crate::key::Key;

/// A node with more than this is not looked at.
const UNDERFULL_BYTES: usize = BLOCK_BYTES * 3 / 4;
/// What two may come to as one.
const PAIR_BYTES: usize = BLOCK_BYTES * 7 / 8;
/// What each of two that were three may have.
const PART_BYTES: usize = BLOCK_BYTES * 15 / 16;

/// Nodes that a split elsewhere than in the middle may cost beyond the forecast, at most: splits of what it left, by puts of the
/// same transaction, which were forecast for nodes that had more room. Joining costs less: one that is dirty and was not.
pub(super) const SPARE_OF_ONE: u64 = 3;
/// What a transaction may spend on both, if there is so much room.
pub const SPARE_NODES: u64 = 256 * SPARE_OF_ONE;

impl Mutation<'_> {
    /// Joins child `i`, if it is dirty, with its neighbours if that makes a node less. Says whether it did.
    pub(super) fn join_around(&mut self, n: &mut Interior, i: usize) -> bool {
        let Link::Mem(child) = &n.children[i] else { return false };
        if !self.is_dirty(child) || child.encoded_bytes() > UNDERFULL_BYTES {
            return false;
        }
        let child = child.clone();
        let has_room = self.spare >= SPARE_OF_ONE;
        // A neighbour that is not in memory is not worth a read.
        let find = |at: Option<usize>| {
            resident(n.children.get(at?)?, self.cache, self.pins)
                .filter(|node| has_room || self.is_dirty(node))
        };
        let (left, right) = (find(i.checked_sub(1)), find(Some(i + 1)));
        let pair = |l: &Arc<Node>, r: &Arc<Node>, low: &Key| l.joined_bytes(r, low) <= PAIR_BYTES;
        match (left, right) {
            (_, Some(right)) if pair(&child, &right, &n.keys()[i + 1]) => {
                self.join_pair(n, i, child, right);
                true
            }
            (Some(left), _) if pair(&left, &child, &n.keys()[i]) => {
                self.join_pair(n, i - 1, left, child);
                true
            }
            (Some(left), Some(right)) => self.join_three(n, i - 1, &[left, child, right]),
            _ => false,
        }
    }

    /// Makes children `i` and `i + 1` of `n` one.
    fn join_pair(&mut self, n: &mut Interior, i: usize, left: Arc<Node>, right: Arc<Node>) {
        self.spare = self.spare.saturating_sub(SPARE_OF_ONE);
        let separator = n.keys()[i + 1];
        let gone = n.remove(i + 1);
        // It may leave the cache at any moment: hold on to what was found.
        n.children[i] = Link::Mem(left);
        let survivor = self.writable(&mut n.children[i]);
        match (&mut survivor.body, &right.body) {
            (Body::Leaf(l), Body::Leaf(r)) => l.absorb(r),
            (Body::Interior(l), Body::Interior(r)) => l.absorb(separator, r),
            _ => unreachable!("neighbours have the same level"),
        }
        drop(right);
        self.forget(gone);
    }

    /// Makes the three leaves from child `first` of `n` on two, if they fit and so does `n`.
    fn join_three(&mut self, n: &mut Interior, first: usize, three: &[Arc<Node>; 3]) -> bool {
        let leaves: Vec<&Leaf> = three
            .iter()
            .filter_map(|node| if let Body::Leaf(leaf) = &node.body { Some(leaf) } else { None })
            .collect();
        let bytes: usize = leaves.iter().map(|leaf| leaf.encoded_bytes()).sum();
        if leaves.len() < 3 || bytes > 2 * PART_BYTES {
            return false;
        }
        let live_bytes: usize = leaves.iter().map(|leaf| leaf.live_bytes()).sum();
        let entries = || leaves.iter().flat_map(|leaf| (0..leaf.len()).map(|i| (leaf.key(i), leaf.value(i))));
        let (mut count, mut upto) = (0, 0);
        for (key, value) in entries() {
            let len = key.len() + value.len();
            if count > 0 && 2 * upto + len > live_bytes {
                break;
            }
            (count, upto) = (count + 1, upto + len);
        }
        let (left, right) = (Leaf::of(entries().take(count)), Leaf::of(entries().skip(count)));
        if left.encoded_bytes() > PART_BYTES || right.encoded_bytes() > PART_BYTES || right.len() == 0 {
            return false;
        }
        let low = separator(&left.key(left.len() - 1), &right.key(0));
        let range = first..first + 3;
        // Its keys may have less in common than before.
        if n.bytes_with(range.clone(), &[low]) > BLOCK_BYTES {
            return false;
        }
        self.spare = self.spare.saturating_sub(SPARE_OF_ONE);
        let children = vec![self.add(Body::Leaf(left)), self.add(Body::Leaf(right))];
        for gone in n.replace(range, &[low], children) {
            self.forget(gone);
        }
        true
    }
}
