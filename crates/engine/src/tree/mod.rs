//! B+-trees of one-block nodes, kept decoded and shared by `Arc`.
//!
//! A tree is a value: cloning its root gives a picture that never changes. Writers hold the apply mutex; they clone
//! a node only when a reader or the running checkpoint still holds it, and take it out of the cache otherwise. Nothing here
//! does I/O under that mutex: what is not resident is reported as [`Miss`], fetched
//! outside and tried again.

mod cursor;
mod heads;
mod join;
pub mod leaf;
mod mutate;
pub mod node;
mod place;
mod prepare;
mod route;
pub mod step;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::Arc;

use quick_cache::Weighter;
use quick_cache::sync::Cache;
use varve_format::TreeId;
use varve_format::root::NodePtr;

use crate::EngineError;
use node::{Link, Node};

/// Memory that a dirty node takes, about: most of a block, a quarter of one of room to grow, ten bytes for each entry and what
/// the allocator adds.
pub const NODE_MEMORY_BYTES: u64 = 6 << 10;

pub use join::SPARE_NODES;
pub use mutate::{Mutation, Replaced};
pub use prepare::{Asked, Forecast};
pub use route::Route;
pub use step::{Change, Step};

/// A tree: its root and height.
#[derive(Clone)]
pub struct Tree {
    /// Which.
    pub id: TreeId,
    /// 0 when empty.
    pub height: u8,
    /// None when empty.
    pub root: Option<Link>,
}

impl Tree {
    /// An empty tree.
    pub fn empty(id: TreeId) -> Tree {
        Tree { id, height: 0, root: None }
    }
}

/// A node that is needed and not in memory.
#[derive(Clone, Copy, Debug)]
pub struct Miss {
    /// Where it is.
    pub ptr: NodePtr,
    /// The tree it must belong to.
    pub tree: TreeId,
    /// The level it must have.
    pub level: u8,
}

/// Clean nodes by the address of their first copy.
pub type NodeCache = Cache<u64, Arc<Node>, ByMemory>;

/// Weighs nodes by the memory they take.
#[derive(Clone)]
pub struct ByMemory;

impl Weighter<u64, Arc<Node>> for ByMemory {
    // A node in the cache is shared, and a shared node never changes: its weight does not either.
    fn weight(&self, _: &u64, node: &Arc<Node>) -> u64 {
        node.memory_bytes() as u64
    }
}

/// A cache of nodes that take up to `bytes` of memory.
pub fn node_cache(bytes: u64) -> NodeCache {
    let bytes = bytes.max(256 * NODE_MEMORY_BYTES);
    Cache::with_weighter((bytes / NODE_MEMORY_BYTES) as usize, bytes, ByMemory)
}

/// Nodes held so that the cache cannot drop them between fetching and applying.
pub type Pins = HashMap<u64, Arc<Node>>;

/// Fetches nodes; may do I/O.
pub trait NodeSource {
    /// The node a miss asks for. `tree` is the one in which it was missed: there the ways of its keys must lead to it
    /// ([`Tree::leads_to`]), which is looked at when it is read from a device.
    fn load(&self, miss: Miss, tree: &Tree) -> Result<Arc<Node>, EngineError>;
    /// The same, if that costs no I/O.
    fn cached(&self, _miss: Miss) -> Option<Arc<Node>> {
        None
    }
    /// Those of several nodes that can be had in one go, in the same order. What is `None` has to be loaded by itself, and
    /// what is wrong with it is heard of then.
    fn load_ahead(&self, misses: &[Miss], _tree: &Tree) -> Vec<Option<Arc<Node>>> {
        vec![None; misses.len()]
    }
}

/// The node behind `link` if it is in memory. An address may have been given to another node since a pin was taken:
/// the pointer decides.
pub fn resident(link: &Link, cache: &NodeCache, pins: &Pins) -> Option<Arc<Node>> {
    match link {
        Link::Mem(node) => Some(node.clone()),
        Link::Disk(ptr) => {
            let key = ptr.addr[0].0;
            let meant = |node: &Arc<Node>| node.location.get() == Some(ptr);
            pins.get(&key).filter(|n| meant(n)).cloned().or_else(|| cache.get(&key).filter(meant))
        }
    }
}

/// The same, and the cache cannot drop it any more.
pub fn hold(link: &Link, cache: &NodeCache, pins: &mut Pins) -> Option<Arc<Node>> {
    let node = resident(link, cache, pins)?;
    if let Link::Disk(ptr) = link {
        pins.insert(ptr.addr[0].0, node.clone());
    }
    Some(node)
}
