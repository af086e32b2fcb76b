//! The tree of keyframes can be thrown away, and no other: it owns nothing, and says nothing that the entries do not say.
//!
//! Where a node of it is lost that the log changes, or that leads to others, the tree is emptied and its part of the log passed over.
//! That is durable before anybody writes: who changes entries then takes no keyframes away, and a node that can be read again after
//! the next crash would show what has been changed since.
//!
//! A device that fails may work again at the next opening, and is no reason for what cannot be undone: then the pool is not opened for
//! writing.

use varve_format::TreeId;
use varve_format::root::NodePtr;

use super::{Halt, Result};
use crate::EngineError;
use crate::options::RecoveryReport;
use crate::space::bits::Bits;
use crate::store::Store;
use crate::tree::node::{Body, Link};
use crate::tree::{Miss, NodeSource, Replaced, Tree};

/// What goes with a tree.
#[derive(Default)]
struct Gone {
    written: Vec<NodePtr>,
    dirty_count: u64,
}

impl Store {
    /// Whether keyframes may be thrown away because of `why`: who only reads does so for himself.
    pub(super) fn may_drop_keyframes(&self, why: &EngineError) -> bool {
        self.options.read_only || !why.may_pass()
    }

    /// Empties the tree of keyframes, of which something cannot be read (`why`). Its nodes are given back by the next checkpoint; those
    /// to which only a lost one leads are not found: they stay in use. `metadata` are the blocks of all nodes that were found
    /// when the pool was opened; no others are given back.
    pub(super) fn drop_keyframes(
        &self,
        why: &EngineError,
        metadata: &Bits,
        report: &mut RecoveryReport,
    ) -> Result<()> {
        tracing::warn!("{why}: all keyframes are thrown away; they are made again where they are missing");
        let tree = self.core.lock().tree(TreeId::KEYFRAMES).clone();
        let mut gone = Gone::default();
        if let Some(root) = &tree.root {
            self.gather(&tree, root, tree.height - 1, &mut gone)?;
        }
        let mut core = self.core.lock();
        let total = core.space.total;
        let found =
            |ptr: &NodePtr| ptr.copies().all(|addr| addr.block() < total && metadata.get(addr.block()));
        core.replaced.extend(gone.written.into_iter().filter(found).map(Replaced::At));
        core.space.dirty_nodes -= gone.dirty_count;
        core.trees[TreeId::KEYFRAMES.0 as usize - 1] = Tree::empty(TreeId::KEYFRAMES);
        report.keyframes_lost = Some(why.to_string());
        Ok(())
    }

    fn gather(&self, tree: &Tree, link: &Link, level: u8, gone: &mut Gone) -> Result<()> {
        let node = match link {
            Link::Disk(ptr) => {
                gone.written.push(*ptr);
                if level == 0 {
                    return Ok(());
                }
                match Halt::reading(|| self.load(Miss { ptr: *ptr, tree: tree.id, level }, tree)) {
                    Ok(node) => node,
                    Err(Halt::Lost(error)) if self.may_drop_keyframes(&error) => return Ok(()),
                    Err(Halt::Lost(error) | Halt::Refused(error)) => return Err(error),
                }
            }
            Link::Mem(node) => {
                match node.location.get() {
                    Some(ptr) => gone.written.push(*ptr),
                    None => gone.dirty_count += 1,
                }
                node.clone()
            }
        };
        if let Body::Interior(n) = &node.body {
            for child in &n.children {
                self.gather(tree, child, level - 1, gone)?;
            }
        }
        Ok(())
    }
}
