//! Of which subvolumes the kernel has inodes: their numbers must not become another's meanwhile.
//!
//! The kernel counts each answer that gives it an inode with attributes, and says with FORGET how many it lets go of. So does this, for each
//! subvolume as a whole, before the answer is sent: it never counts fewer than the kernel. Of the first subvolume, whose numbers stay,
//! nothing is counted.

use std::collections::HashMap;

use parking_lot::Mutex;
use varve_fs::{InodeId, ROOT_INODE, subvolume_root};

/// Locks, each for many subvolumes.
const PARTS: usize = 16;

/// How many answers the kernel has not forgotten, by the root of the subvolume.
#[derive(Default)]
pub(crate) struct Numbers([Mutex<HashMap<u64, u64>>; PARTS]);

impl Numbers {
    /// The kernel is about to get this inode.
    pub(crate) fn give(&self, ino: InodeId) {
        let root = subvolume_root(ino);
        if root != ROOT_INODE {
            *self.part(root).lock().entry(root.0).or_insert(0) += 1;
        }
    }

    /// The kernel has forgotten so many answers that gave it this inode.
    pub(crate) fn forget(&self, ino: InodeId, answers: u64) {
        let root = subvolume_root(ino);
        if root == ROOT_INODE {
            return;
        }
        let mut part = self.part(root).lock();
        if let Some(given) = part.get_mut(&root.0) {
            *given = given.saturating_sub(answers);
            if *given == 0 {
                part.remove(&root.0);
            }
        }
    }

    /// The mount is gone, and with it all that the kernel had.
    pub(crate) fn forget_all(&self) {
        self.0.iter().for_each(|part| part.lock().clear());
    }

    /// Whether the kernel may have an inode of the subvolume with this root.
    pub(crate) fn is_known(&self, root: InodeId) -> bool {
        self.part(root).lock().contains_key(&root.0)
    }

    fn part(&self, root: InodeId) -> &Mutex<HashMap<u64, u64>> {
        // All have the lower bits of the first's.
        &self.0[root.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) as usize >> (usize::BITS - PARTS.ilog2())]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Goal: a subvolume is known from the first answer until as many as were given are forgotten, and others are not; the first is not counted.
    // Method: several inodes of some subvolumes, given and forgotten in parts; more forgotten than given.
    #[test]
    fn what_the_kernel_has_is_known() {
        let numbers = Numbers::default();
        // As SPEC.md has it.
        let ino = |slot: u64, local: u64| InodeId(slot << 43 | local);
        let known = |slot: u64| numbers.is_known(ino(slot, 1));
        for slot in [0, 3, 19] {
            (1..4).for_each(|local| numbers.give(ino(slot, local)));
        }
        assert_eq!([0, 3, 4, 19].map(known), [false, true, false, true]);
        numbers.forget(ino(3, 3), 2);
        assert!(known(3));
        numbers.forget(ino(3, 2), 1);
        numbers.forget(ino(4, 2), 1);
        numbers.forget(ino(0, 2), 1);
        assert_eq!([0, 3, 4, 19].map(known), [false, false, false, true]);
        numbers.forget(ino(19, 1), 100);
        assert!(numbers.0.iter().all(|part| part.lock().is_empty()));
    }
}
