//! Reading: lookups and ordered scans over a root that does not change.

use std::sync::Arc;

use super::node::{Body, Link, Node};
use super::{Miss, NodeSource, Tree};
use crate::EngineError;

type Result<T> = std::result::Result<T, EngineError>;

impl Tree {
    fn fetch(&self, link: &Link, level: u8, source: &dyn NodeSource) -> Result<Arc<Node>> {
        match link {
            Link::Mem(node) => Ok(node.clone()),
            Link::Disk(ptr) => source.load(Miss { ptr: *ptr, tree: self.id, level }),
        }
    }

    /// The value at `key`, as `decode` sees it in place.
    pub fn get<T>(
        &self,
        key: &[u8],
        source: &dyn NodeSource,
        decode: impl FnOnce(&[u8]) -> T,
    ) -> Result<Option<T>> {
        match &self.root {
            Some(root) => self.get_below(root, self.height - 1, key, source, decode),
            None => Ok(None),
        }
    }

    fn get_below<T>(
        &self,
        link: &Link,
        level: u8,
        key: &[u8],
        source: &dyn NodeSource,
        decode: impl FnOnce(&[u8]) -> T,
    ) -> Result<Option<T>> {
        let fetched;
        let node = match link {
            // What is below the root stays while the root is held.
            Link::Mem(node) => node,
            Link::Disk(_) => {
                fetched = self.fetch(link, level, source)?;
                &fetched
            }
        };
        match &node.body {
            Body::Leaf(leaf) => Ok(leaf.find(key).ok().map(|i| decode(leaf.value(i)))),
            Body::Interior(n) => {
                self.get_below(&n.children[n.child_index(key)], level - 1, key, source, decode)
            }
        }
    }

    /// Calls `each` with every entry from `from` on, ascending, until it returns false.
    pub fn scan(
        &self,
        from: &[u8],
        source: &dyn NodeSource,
        each: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<()> {
        if let Some(root) = &self.root {
            self.scan_below(root, self.height - 1, from, source, each)?;
        }
        Ok(())
    }

    fn scan_below(
        &self,
        link: &Link,
        level: u8,
        from: &[u8],
        source: &dyn NodeSource,
        each: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<bool> {
        let node = self.fetch(link, level, source)?;
        match &node.body {
            Body::Leaf(leaf) => {
                let start = leaf.find(from).unwrap_or_else(|i| i);
                Ok((start..leaf.len()).all(|i| each(leaf.key(i), leaf.value(i))))
            }
            Body::Interior(n) => {
                let first = n.child_index(from);
                for child in &n.children[first..] {
                    if !self.scan_below(child, level - 1, from, source, each)? {
                        return Ok(false);
                    }
                }
                Ok(true)
            }
        }
    }

    /// The last entry whose key is at most `at`.
    pub fn last_at_or_before(
        &self,
        at: &[u8],
        source: &dyn NodeSource,
    ) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
        match &self.root {
            Some(root) => self.last_below(root, self.height - 1, at, source),
            None => Ok(None),
        }
    }

    fn last_below(
        &self,
        link: &Link,
        level: u8,
        at: &[u8],
        source: &dyn NodeSource,
    ) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
        let node = self.fetch(link, level, source)?;
        match &node.body {
            Body::Leaf(leaf) => {
                let end = match leaf.find(at) {
                    Ok(i) => i + 1,
                    Err(i) => i,
                };
                Ok(end.checked_sub(1).map(|i| (leaf.key(i).to_vec(), leaf.value(i).to_vec())))
            }
            Body::Interior(n) => {
                for i in (0..=n.child_index(at)).rev() {
                    if let Some(found) = self.last_below(&n.children[i], level - 1, at, source)? {
                        return Ok(Some(found));
                    }
                }
                Ok(None)
            }
        }
    }
}
