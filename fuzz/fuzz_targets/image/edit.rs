//! One edit of an image, as a fuzzer's bytes name it.

use varve_format::{KEY_BYTES_MAX, PoolAddr, Run, TreeId, VALUE_BYTES_MAX, batch};

use crate::image::{Batch, Image};
use crate::world::World;

/// What an edit takes of the input.
pub const EDIT_BYTES: usize = 16;

/// What to change, where, and into what.
pub struct Edit {
    kind: u8,
    /// Which tree.
    tree: u8,
    /// Which entry, page or batch.
    pick: u16,
    /// Where in it.
    at: u16,
    /// How many bytes, and which of a few.
    width: u8,
    more: u8,
    number: u64,
}

/// Lays up to eight bytes over `target`. What is shorter than they are takes fewer.
fn lay(target: &mut [u8], at: u16, bytes: &[u8]) {
    let width = bytes.len().min(target.len());
    if width > 0 {
        let at = usize::from(at) % (target.len() - width + 1);
        target[at..at + width].copy_from_slice(&bytes[..width]);
    }
}

impl Edit {
    /// The edit that [`EDIT_BYTES`] bytes name.
    pub fn of(bytes: &[u8]) -> Edit {
        let mut eight = [0; 8];
        eight.copy_from_slice(&bytes[8..16]);
        Edit {
            kind: bytes[0],
            tree: bytes[1],
            pick: u16::from_le_bytes([bytes[2], bytes[3]]),
            at: u16::from_le_bytes([bytes[4], bytes[5]]),
            width: 1 << (bytes[6] % 4),
            more: bytes[7],
            number: u64::from_le_bytes(eight),
        }
    }

    fn bytes(&self) -> Vec<u8> {
        self.number.to_le_bytes()[..usize::from(self.width)].to_vec()
    }

    fn bytes_of_key(&self) -> Vec<u8> {
        self.number.to_be_bytes()[8 - usize::from(self.width)..].to_vec()
    }

    /// Does it; `None`: there is nothing to change, or no place for what came of it.
    pub fn apply(&self, image: &mut Image, world: &World) -> Option<()> {
        let (tree, entries) = world.trees.get(usize::from(self.tree) % world.trees.len())?;
        let tree = *tree;
        let (key, value) = entries.get(usize::from(self.pick) % entries.len())?;
        let other = entries.get(usize::from(self.more) % entries.len())?;
        let lay_here = |target: &mut [u8]| lay(target, self.at, &self.bytes());
        let (mut new_key, mut new_value) = (key.clone(), value.clone());
        lay(&mut new_key, self.at, &self.bytes_of_key());
        lay_here(&mut new_value);
        match self.kind % 24 {
            0..=5 => image.edit_entries(tree, key, |all| {
                if let Some((_, value)) = all.iter_mut().find(|(k, _)| k == key) {
                    lay_here(value);
                }
            }),
            6 | 7 => image.edit_entries(tree, key, |all| {
                all.retain(|(k, _)| k != key && *k != new_key);
                all.push((new_key, value.clone()));
            }),
            8 => image.edit_entries(tree, key, |all| {
                all.retain(|(k, _)| *k != new_key);
                all.push((new_key, value.clone()));
            }),
            9 => image.edit_entries(tree, key, |all| all.retain(|(k, _)| k != key)),
            10 => image.edit_entries(tree, key, |all| {
                all.retain(|(k, _)| k != key);
                all.push((key.clone(), other.1.clone()));
            }),
            11 => image.edit_entries(tree, key, |all| {
                for (_, value) in all.iter_mut().filter(|(k, _)| k == key) {
                    value.resize((self.at as usize) % (VALUE_BYTES_MAX + 1), self.more);
                }
            }),
            12 => image.edit_entries(tree, key, |all| {
                all.retain(|(k, _)| k != key);
                new_key.resize(1 + usize::from(self.more) % KEY_BYTES_MAX, 0);
                all.retain(|(k, _)| *k != new_key);
                all.push((new_key, value.clone()));
            }),
            13 => image.edit_node(tree, key, usize::from(self.more % 3), lay_here),
            14 => image.edit_node(tree, key, 0, |block| lay(&mut block[..64], self.at, &self.bytes())),
            15 => image.spoil_node(tree, key, 1 + usize::from(self.more % 2), lay_here),
            // What is in front is used; the rest of the block is zeros.
            16 => image.edit_root(|block| lay(&mut block[..1200], self.at, &self.bytes())),
            17 => image.edit_superblock(lay_here),
            18 => image.edit_label(|block| lay(&mut block[..64], self.at, &self.bytes())),
            19 => image.edit_array(self.more & 1 != 0, usize::from(self.pick), self.more & 2 != 0, lay_here),
            20 => image.edit_batch(usize::from(self.pick), |batch| lay_here(&mut batch.payload)),
            21 => image.edit_batch(usize::from(self.pick), |batch| self.edit_header(batch)),
            22 => image.add_batch(1, |out| match self.more % 3 {
                0 => batch::put_op(out, tree, key, &new_value),
                1 => batch::put_op(out, tree, &new_key, value),
                _ => batch::delete_op(out, tree, key),
            }),
            _ => image.add_batch(1, |out| {
                let run =
                    Run { addr: PoolAddr::from_block(self.number % (1 << 14)), blocks: u32::from(self.at) };
                match self.more % 4 {
                    0 => batch::free_op(out, run),
                    1 => batch::place_op(out, run, &vec![7; usize::from(self.at % 5000)]),
                    2 => batch::id_floor_op(out, self.number),
                    _ => batch::put_op(out, TreeId(self.pick), key, &new_value),
                }
            }),
        }
    }

    fn edit_header(&self, batch: &mut Batch) {
        let header = &mut batch.header;
        match self.more % 8 {
            0 => header.epoch = self.number,
            1 => header.sequence = self.number,
            2 => header.superblock_generation = self.number,
            3 => header.flushed = self.number,
            4 => header.first.0 = self.number,
            5 => header.last.0 = self.number,
            6 => header.transactions = self.number as u32,
            _ => batch.payload.truncate(usize::from(self.at) % (batch.payload.len() + 1)),
        }
    }
}
