//! Before a tree is changed: what will become dirty and what splits may add is counted, and what is not in memory is found
//! out. Afterwards everything on the ways of the steps is resident.
//!
//! How many nodes splits add is an upper bound: a reservation that it fits into is enough. A leaf is split only if it is too
//! large when all of its steps are done ([`super::mutate`]), and how large it is then can be told before: values that are
//! replaced count by what they grow, and what all keys begin with becomes shorter once. Of one that is too large, each split
//! in the middle leaves parts of a certain size at least ([`splits`]). So do splits of interior nodes, into which a key comes
//! for each node that is added below.

use varve_format::node::{ENTRY_OVERHEAD_BYTES, NODE_HEADER_BYTES, common_prefix, encoded_bytes};
use varve_format::root::NODE_PTR_BYTES;
use varve_format::{BLOCK_BYTES, KEY_BYTES_MAX};

use super::node::{Body, Leaf, Link, Node};
use super::step::{Change, Step, in_front};
use super::{Miss, NodeCache, Pins, Route, Tree, hold};
use crate::key::{Key, compare};

/// What a transaction will need at most.
#[derive(Default, Clone, Copy, Debug)]
pub struct Forecast {
    /// Clean nodes that become dirty.
    pub dirtied: u64,
    /// Nodes that splits may add.
    pub added: u64,
}

/// What [`Tree::prepare`] is asked, and the three things it collects.
pub struct Asked<'a> {
    /// The checkpoint generation that dirty nodes belong to.
    pub generation: u64,
    /// Clean nodes.
    pub cache: &'a NodeCache,
    /// Clean nodes on the paths, so that the cache cannot drop them.
    pub pins: &'a mut Pins,
    /// What all of it will need. What joining underfull nodes takes is not in it: that is done if there is room
    /// ([`super::Mutation::spare`]).
    pub forecast: Forecast,
    /// The ways that they will go.
    pub route: &'a mut Route,
}

/// What steps do to a node.
#[derive(Default)]
struct Below {
    /// Something happens in it or below it.
    touched: bool,
    /// It may be split so many times.
    splits: usize,
    /// The keys that go up then lie between these.
    ends: Option<(Key, Key)>,
}

/// Most bytes of an entry of an interior node.
const INTERIOR_ENTRY_BYTES_MAX: usize = ENTRY_OVERHEAD_BYTES + KEY_BYTES_MAX + NODE_PTR_BYTES;
/// A node that is too large holds at least so many bytes of entries, what all of its keys begin with not counted.
const FULL_BYTES: usize = BLOCK_BYTES - NODE_HEADER_BYTES - KEY_BYTES_MAX;

/// How many times a node, and its parts, may be split in the middle until all of it has come in that would take `bytes` as one
/// node. A part has `part_bytes` at least when it is made.
///
/// Each split needs a part of more than [`FULL_BYTES`], and what that has beyond `part_bytes` is less by `part_bytes` in both
/// of its parts together. What comes in adds to it, and no more than what all of it has in the end.
fn splits(bytes: usize, part_bytes: usize) -> usize {
    if bytes <= BLOCK_BYTES {
        return 0;
    }
    (bytes - NODE_HEADER_BYTES - FULL_BYTES).div_ceil(part_bytes)
}

fn interior_splits(bytes: usize) -> usize {
    // The middle is missed by half an entry at most, and the key between the parts goes up.
    splits(bytes, (FULL_BYTES - INTERIOR_ENTRY_BYTES_MAX) / 2 - KEY_BYTES_MAX)
}

/// The ends of both together.
fn wider(one: Option<(Key, Key)>, other: Option<(Key, Key)>) -> Option<(Key, Key)> {
    let ((a, b), (c, d)) = match (one, other) {
        (Some(one), Some(other)) => (one, other),
        (one, other) => return one.or(other),
    };
    let first = if compare(&c, &a).is_lt() { c } else { a };
    let last = if compare(&d, &b).is_gt() { d } else { b };
    Some((first, last))
}

/// What a leaf comes to.
struct Outcome {
    bytes: usize,
    /// Bytes of the largest entry that is put.
    largest: usize,
    /// Entries that come in or grow.
    growing: usize,
    /// Its first and its last key.
    ends: Option<(Key, Key)>,
}

impl Outcome {
    /// That of `steps` in `leaf`.
    fn of(leaf: &Leaf, steps: &[Step<'_>]) -> Outcome {
        let (mut count, mut live_bytes) = (leaf.len(), leaf.live_bytes());
        let (mut largest, mut growing) = (0, 0);
        // What goes of the entries that are there: so many in front, and the last run.
        let (mut front, mut run) = (0, 0..0);
        for step in steps {
            match (step.change, leaf.find(step.key)) {
                (Change::Put(value), at) => {
                    let old = at.map(|i| leaf.value(i).len());
                    live_bytes += value.len();
                    match old {
                        Ok(old) => live_bytes -= old,
                        Err(_) => (count, live_bytes) = (count + 1, live_bytes + step.key.len()),
                    }
                    largest = largest.max(ENTRY_OVERHEAD_BYTES + step.key.len() + value.len());
                    growing += usize::from(old.is_err() || old.is_ok_and(|old| value.len() > old));
                }
                (Change::Delete, Ok(i)) => {
                    (count, live_bytes) = (count - 1, live_bytes - step.key.len() - leaf.value(i).len());
                    front += usize::from(i == front);
                    run = if i == run.end { run.start..i + 1 } else { i..i + 1 };
                }
                _ => {}
            }
        }
        let left = front..if run.end == leaf.len() { run.start } else { leaf.len() };
        let puts = || {
            steps.iter().filter(|step| matches!(step.change, Change::Put(_))).map(|step| Key::new(step.key))
        };
        let old = |i: usize| (!left.is_empty()).then(|| leaf.key(i));
        let ends =
            wider(puts().next().zip(puts().next_back()), old(left.start).zip(old(left.end.wrapping_sub(1))));
        let prefix = ends.map_or(0, |(first, last)| common_prefix(&first, &last));
        Outcome { bytes: encoded_bytes(count, count, live_bytes, prefix), largest, growing, ends }
    }

    /// How many times `leaf`, of which it is, may be split.
    fn splits(&self, leaf: &Leaf) -> usize {
        if self.bytes <= BLOCK_BYTES {
            return 0;
        }
        let largest = self.largest.max(leaf.largest_entry_bytes());
        // An entry that comes into a leaf that fitted, and both halves fit.
        if self.growing == 1 && self.bytes <= BLOCK_BYTES + FULL_BYTES - largest {
            return 1;
        }
        splits(self.bytes, (FULL_BYTES - largest) / 2)
    }
}

impl Step<'_> {
    /// Whether it makes an entry larger, or one more.
    fn grows(&self, leaf: &Leaf) -> bool {
        let Change::Put(value) = self.change else { return false };
        leaf.find(self.key).map_or(true, |at| value.len() > leaf.value(at).len())
    }
}

impl Below {
    /// What `steps` do to `leaf`. Those that delete what is not there become [`Change::Nothing`].
    fn leaf(leaf: &Leaf, steps: &mut [Step<'_>]) -> Below {
        let (mut below, mut count, mut bytes) = (Below::default(), 0, 0);
        let mut ends: Option<(&[u8], &[u8])> = None;
        for step in &mut *steps {
            match step.change {
                Change::Delete if leaf.find(step.key).is_err() => step.change = Change::Nothing,
                Change::Delete => below.touched = true,
                Change::Put(value) => {
                    below.touched = true;
                    (count, bytes) = (count + 1, bytes + step.key.len() + value.len());
                    ends = Some((ends.map_or(step.key, |(first, _)| first), step.key));
                }
                Change::Nothing => {}
            }
        }
        // As a rule there is room, whatever is replaced and goes.
        if let Some((first, last)) = ends
            && !leaf.fits_with(count, bytes, first, last)
            && steps.iter().any(|step| step.grows(leaf))
        {
            let outcome = Outcome::of(leaf, steps);
            (below.splits, below.ends) = (outcome.splits(leaf), outcome.ends);
        }
        below
    }
}

impl Tree {
    /// Adds to the forecast what `steps` will need, which are sorted and all of this tree. Those that delete what is not
    /// there become [`Change::Nothing`]. Gives how many levels they may add at most.
    pub fn prepare(&self, steps: &mut [Step<'_>], asked: &mut Asked<'_>) -> Result<usize, Miss> {
        asked.route.note_tree();
        let below = match &self.root {
            Some(root) => self.prepare_below(root, self.height - 1, steps, asked)?,
            None => {
                let below = Below::leaf(&Leaf::default(), steps);
                asked.forecast.added += below.splits as u64 + u64::from(below.touched);
                below
            }
        };
        // New roots.
        let (mut splits, mut levels) = (below.splits, 0);
        while splits > 0 {
            splits = interior_splits(NODE_HEADER_BYTES + (splits + 1) * INTERIOR_ENTRY_BYTES_MAX);
            asked.forecast.added += 1 + splits as u64;
            levels += 1;
        }
        Ok(levels)
    }

    fn prepare_below(
        &self,
        link: &Link,
        level: u8,
        mut steps: &mut [Step<'_>],
        asked: &mut Asked<'_>,
    ) -> Result<Below, Miss> {
        let held;
        let node: &Node = match link {
            Link::Mem(node) => node,
            Link::Disk(ptr) => {
                let missed = Miss { ptr: *ptr, tree: self.id, level };
                held = hold(link, asked.cache, asked.pins).ok_or(missed)?;
                &held
            }
        };
        let below = match &node.body {
            Body::Leaf(leaf) => Below::leaf(leaf, steps),
            Body::Interior(n) => {
                let (mut below, mut added) = (Below::default(), 0);
                while let Some(first) = steps.first() {
                    let i = n.child_index(first.key);
                    let count = in_front(steps, n.keys().get(i + 1));
                    asked.route.note(i, count);
                    let (here, behind) = std::mem::take(&mut steps).split_at_mut(count);
                    let child = self.prepare_below(&n.children[i], level - 1, here, asked)?;
                    below.touched |= child.touched;
                    if child.splits > 0 {
                        added += child.splits;
                        below.ends = wider(below.ends, child.ends);
                    }
                    steps = behind;
                }
                if added > 0
                    && let Some(ends) = wider(below.ends, n.ends())
                {
                    let prefix = common_prefix(&ends.0, &ends.1);
                    let bytes = n.bytes_with_prefix(prefix) + added * (INTERIOR_ENTRY_BYTES_MAX - prefix);
                    below = Below { splits: interior_splits(bytes), ends: Some(ends), ..below };
                }
                below
            }
        };
        asked.forecast.added += below.splits as u64;
        asked.forecast.dirtied += u64::from(below.touched && node.generation != asked.generation);
        Ok(below)
    }
}
