//! What the other holders of a family see of it: the demand of [`super::family`], with one holder left out.
//!
//! Of a version without entries of its own anywhere below, others see the blocks in front of one byte, whatever the
//! place: that is worked out once. In one place only those versions are looked at that have something there, and the ones
//! above them for as long as that makes a difference. So a place costs what is stored in it, not what the family has.

use std::collections::BTreeMap;

use varve_format::record::version::{NO_LIMIT, VersionRecord};
use varve_format::{VersionId, VersionKey};

use super::family::{Blocks, no_parent, records};
use super::{Holder, Planted, Read, Result, planted};

/// A version.
struct Node {
    key: VersionKey,
    parent: Option<usize>,
    limit: u64,
    /// Somebody else holds it.
    held: bool,
    /// What others see of it ends at this byte, where nothing below it has anything.
    upto: u64,
    /// Where its children begin in [`Others::children`]; they end where those of the next version begin.
    children: usize,
}

/// A version of which others see something else than [`Node::upto`] says.
#[derive(Default)]
struct Changed {
    /// What it has in this place.
    own: Blocks,
    /// What those of its children want of it that are changed, too.
    wanted: Blocks,
    /// These children, the youngest first.
    children: Vec<usize>,
}

/// The other holders of a family.
pub(super) struct Others {
    /// Parents first.
    nodes: Vec<Node>,
    /// Children of which others see something, parents first, by where what they see of it ends, the last first.
    children: Vec<(u64, usize)>,
    by_key: Vec<(VersionKey, usize)>,
    /// What others see of the versions that are changed, in the place that was looked at last, by key.
    seen: Vec<(VersionKey, Blocks)>,
    /// How often a version was compared with a changed one.
    #[cfg(test)]
    pub(super) compared: std::cell::Cell<u64>,
}

impl Others {
    /// All holders of the family of `holder`, but this one. Reads all its versions.
    ///
    /// # Errors
    /// [`crate::EngineError::Corrupt`] for a record that is none, a parent that is missing or not older.
    pub(super) fn load(read: &dyn Read, holder: Holder) -> Result<Others> {
        let mut records = records(read, holder.family)?;
        // Then the one version has no record, and any number.
        let implicit = records.is_empty();
        if implicit {
            records.push((VersionId(holder.family.0), VersionRecord::implicit(holder.family)));
        }
        let mut nodes: Vec<Node> = Vec::with_capacity(records.len());
        for (at, (id, version)) in records.iter().enumerate() {
            let own = implicit || *id == holder.version;
            let parent = match version.parent {
                None => None,
                // Mostly the one before.
                Some(parent) if at > 0 && records[at - 1].0 == parent => Some(at - 1),
                Some(parent) => {
                    let older = records[..at].binary_search_by_key(&parent, |(id, _)| *id);
                    Some(older.map_err(|_| no_parent(holder.family, *id))?)
                }
            };
            let limit = if planted(Planted::LimitsUnseen) { NO_LIMIT } else { version.limit };
            let held = version.refs.saturating_sub(u64::from(own)) > 0;
            nodes.push(Node { key: version.key, parent, limit, held, upto: 0, children: 0 });
        }
        let mut children = Vec::with_capacity(nodes.len());
        for at in (0..nodes.len()).rev() {
            let node = &mut nodes[at];
            if node.held {
                node.upto = NO_LIMIT;
            }
            let (parent, upto) = (node.parent, node.upto.min(node.limit));
            if let Some(parent) = parent.filter(|_| upto > 0) {
                nodes[parent].upto = nodes[parent].upto.max(upto);
                nodes[parent].children += 1;
                children.push((upto, at));
            }
        }
        let parent = |at: usize| nodes[at].parent;
        children.sort_unstable_by_key(|(upto, at)| (parent(*at), std::cmp::Reverse((*upto, *at))));
        let mut first = 0;
        for node in &mut nodes {
            first += std::mem::replace(&mut node.children, first);
        }
        let mut by_key: Vec<_> = nodes.iter().enumerate().map(|(at, node)| (node.key, at)).collect();
        by_key.sort_unstable();
        Ok(Others {
            nodes,
            children,
            by_key,
            seen: Vec::new(),
            #[cfg(test)]
            compared: Default::default(),
        })
    }

    /// The children of the version at `at`, by where what others see of them ends, the last first.
    fn children(&self, at: usize) -> &[(u64, usize)] {
        let end = self.nodes.get(at + 1).map_or(self.children.len(), |next| next.children);
        &self.children[self.nodes[at].children..end]
    }

    fn find(&self, key: VersionKey) -> Option<usize> {
        self.by_key.binary_search_by_key(&key, |(key, _)| *key).ok().map(|at| self.by_key[at].1)
    }

    /// What others see of the version with this key in every place alike: all of what it has, or nothing. `None`: that is
    /// not so.
    pub(super) fn always(&self, key: VersionKey) -> Option<bool> {
        let node = &self.nodes[self.find(key)?];
        match node.upto {
            0 => Some(false),
            _ if node.held => Some(true),
            _ => None,
        }
    }

    /// The newest version whose entries make a difference to what others see of the versions with these keys, of which it is
    /// not the same everywhere: whoever holds one sees it whole, and nothing in front of it matters.
    pub(super) fn newest(&self, keys: &[VersionKey]) -> VersionKey {
        let (mut newest, mut matters) = (VersionKey(0), vec![false; self.nodes.len()]);
        for at in keys.iter().filter_map(|key| self.find(*key)) {
            matters[at] = true;
        }
        // Parents are first.
        for (at, node) in self.nodes.iter().enumerate() {
            let below = node.parent.is_some_and(|above| matters[above] && !self.nodes[above].held);
            matters[at] |= below && node.upto > 0;
            if matters[at] {
                newest = newest.max(node.key);
            }
        }
        newest
    }

    /// Looks at a place, where the versions with these keys have something; `below` says which of its blocks lie below a
    /// byte. Ask [`Others::seen`] then.
    pub(super) fn look(&mut self, own: &[(VersionKey, Blocks)], below: &dyn Fn(u64) -> Blocks) {
        self.seen.clear();
        let mut left: BTreeMap<usize, Changed> = BTreeMap::new();
        for (key, blocks) in own {
            // Of a version that does not exist nothing is said: it is left to the check.
            if let Some(at) = self.find(*key) {
                left.entry(at).or_default().own = *blocks;
            }
        }
        // Children are younger than their parents, and the youngest come first.
        while let Some((at, changed)) = left.pop_last() {
            let node = &self.nodes[at];
            let is_changed = |child: &usize| {
                let order = |known: &usize| {
                    #[cfg(test)]
                    self.compared.set(self.compared.get() + 1);
                    child.cmp(known)
                };
                changed.children.binary_search_by(order).is_ok()
            };
            let rest = || self.children(at).iter().find(|(_, child)| !is_changed(child));
            let seen = match node.held {
                true => Blocks::ALL,
                false => rest().map_or(Blocks::NONE, |(upto, _)| below(*upto)).or(changed.wanted),
            };
            self.seen.push((node.key, seen));
            let Some(parent) = node.parent else { continue };
            let wanted = seen.without(changed.own).and(below(node.limit));
            if wanted != below(node.limit.min(node.upto)) {
                let above = left.entry(parent).or_default();
                above.wanted = above.wanted.or(wanted);
                above.children.push(at);
            }
        }
        self.seen.sort_unstable_by_key(|(key, _)| *key);
    }

    /// Which blocks of the place that was looked at others see of the version with this key, if it has them.
    pub(super) fn seen(&self, key: VersionKey, below: &dyn Fn(u64) -> Blocks) -> Blocks {
        match self.seen.binary_search_by_key(&key, |(key, _)| *key) {
            Ok(at) => self.seen[at].1,
            Err(_) => self.find(key).map_or(Blocks::NONE, |at| below(self.nodes[at].upto)),
        }
    }
}
