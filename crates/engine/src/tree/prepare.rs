//! Before a tree is changed: what will become dirty and what splits may add is counted, and what is not in memory is found
//! out. Afterwards everything on the ways of the steps is resident.

use std::sync::atomic::Ordering::Relaxed;

use varve_format::node::ENTRY_OVERHEAD_BYTES;
use varve_format::root::NODE_PTR_BYTES;
use varve_format::{BLOCK_BYTES, KEY_BYTES_MAX};

use super::node::{Body, Link, Node};
use super::step::{Change, Step, in_front};
use super::{Miss, NodeCache, Pins, Tree, hold};

/// What a transaction will need at most.
#[derive(Default, Clone, Copy, Debug)]
pub struct Forecast {
    /// Clean nodes that become dirty.
    pub dirtied: u64,
    /// Nodes that splits may add.
    pub added: u64,
}

/// What [`Tree::prepare`] is asked, and the two things it collects.
pub struct Asked<'a> {
    /// The checkpoint generation that dirty nodes belong to.
    pub generation: u64,
    /// Number of the transaction: nodes are counted once a stamp.
    pub stamp: u64,
    /// Clean nodes.
    pub cache: &'a NodeCache,
    /// Clean nodes on the paths, so that the cache cannot drop them.
    pub pins: &'a mut Pins,
    /// What all of it will need.
    pub forecast: Forecast,
}

/// A path, from a node up to the root.
struct Above<'a> {
    node: &'a Node,
    above: Option<&'a Above<'a>>,
}

impl<'a> Above<'a> {
    fn up(&'a self) -> impl Iterator<Item = &'a Node> {
        std::iter::successors(Some(self), |at| at.above).map(|at| at.node)
    }
}

impl Asked<'_> {
    /// Counts the nodes of a path that become dirty.
    fn touch(&mut self, path: &Above<'_>) {
        for node in path.up() {
            // Nobody else does this at the same time.
            if node.stamp.load(Relaxed) != self.stamp {
                node.stamp.store(self.stamp, Relaxed);
                node.incoming_bytes.store(0, Relaxed);
                self.forecast.dirtied += u64::from(node.generation != self.generation);
            }
        }
    }

    /// Counts what an entry that is put does to the nodes of its path, which has been touched.
    ///
    /// What joining underfull nodes takes is not forecast: it is done if there is room ([`super::Mutation::spare`]).
    fn enter(&mut self, path: &Above<'_>, key: &[u8], value: &[u8]) {
        let forecast = &mut self.forecast;
        // A key that does not share the common prefix makes every other one longer.
        let mut add = key.len() + value.len() + ENTRY_OVERHEAD_BYTES + path.node.prefix_growth(Some(key));
        let mut nodes = path.up().peekable();
        while let Some(node) = nodes.next() {
            let before = node.incoming_bytes.load(Relaxed) as usize;
            let incoming = before + add;
            node.incoming_bytes.store(incoming as u32, Relaxed);
            let bytes = node.encoded_bytes();
            let over = |incoming: usize| (bytes + incoming).saturating_sub(1) / BLOCK_BYTES;
            let splits = over(incoming) - over(before).min(over(incoming));
            if splits == 0 {
                return;
            }
            forecast.added += 2 * splits as u64;
            add = INTERIOR_ENTRY_BYTES_MAX * 2 * splits;
            if let Some(parent) = nodes.peek() {
                add += parent.prefix_growth(None);
            }
        }
        forecast.added += 1; // a new root
    }
}

const INTERIOR_ENTRY_BYTES_MAX: usize = ENTRY_OVERHEAD_BYTES + KEY_BYTES_MAX + NODE_PTR_BYTES;

impl Tree {
    /// Adds to the forecast what `steps` will need, which are sorted and all of this tree. Those that delete what is not
    /// there become [`Change::Nothing`].
    pub fn prepare(&self, steps: &mut [Step<'_>], asked: &mut Asked<'_>) -> Result<(), Miss> {
        if let Some(root) = &self.root {
            return self.prepare_below(root, self.height - 1, None, steps, asked);
        }
        for step in steps {
            match step.change {
                // Every put of this transaction may open a leaf of its own in the worst case; one is the rule.
                Change::Put(_) => asked.forecast.added += 1,
                Change::Delete | Change::Nothing => step.change = Change::Nothing,
            }
        }
        Ok(())
    }

    fn prepare_below(
        &self,
        link: &Link,
        level: u8,
        above: Option<&Above<'_>>,
        mut steps: &mut [Step<'_>],
        asked: &mut Asked<'_>,
    ) -> Result<(), Miss> {
        let held;
        let node: &Node = match link {
            Link::Mem(node) => node,
            Link::Disk(ptr) => {
                let missed = Miss { ptr: *ptr, tree: self.id, level };
                held = hold(link, asked.cache, asked.pins).ok_or(missed)?;
                &held
            }
        };
        let path = Above { node, above };
        match &node.body {
            Body::Leaf(leaf) => {
                let mut touched = false;
                for step in steps {
                    if matches!(step.change, Change::Delete) && leaf.find(step.key).is_err() {
                        step.change = Change::Nothing;
                    }
                    if matches!(step.change, Change::Nothing) {
                        continue;
                    }
                    if !touched {
                        asked.touch(&path);
                        touched = true;
                    }
                    if let Change::Put(value) = step.change {
                        asked.enter(&path, step.key, value);
                    }
                }
            }
            Body::Interior(n) => {
                while let Some(first) = steps.first() {
                    let i = n.child_index(first.key);
                    let count = in_front(steps, n.keys().get(i + 1));
                    let (here, behind) = std::mem::take(&mut steps).split_at_mut(count);
                    self.prepare_below(&n.children[i], level - 1, Some(&path), here, asked)?;
                    steps = behind;
                }
            }
        }
        Ok(())
    }
}
