//! Tests of data families in a store of plain maps: [`model`] steps a naive model beside the real thing, [`cases`] are
//! single ones.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};

use varve_format::{BLOCK_BYTES, FamilyId, PoolAddr, Run, SEGMENT_BYTES, TreeId, VersionId};

use super::*;
use crate::Transaction;

mod cases;
mod model;
mod world;

use world::World;

const BLOCK: u64 = BLOCK_BYTES as u64;
const SEGMENT_BLOCKS: u64 = SEGMENT_BYTES / BLOCK;

/// Trees in memory. Counts what is looked at.
#[derive(Default, Clone)]
struct Maps {
    trees: BTreeMap<(u16, Vec<u8>), Vec<u8>>,
    looked_at: Cell<u64>,
    descents: Cell<u64>,
}

impl Read for Maps {
    fn get(&self, tree: TreeId, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.descents.set(self.descents.get() + 1);
        Ok(self.trees.get(&(tree.0, key.to_vec())).cloned())
    }
    fn scan(&self, tree: TreeId, from: &[u8], each: &mut dyn FnMut(&[u8], &[u8]) -> bool) -> Result<()> {
        self.descents.set(self.descents.get() + 1);
        for ((t, key), value) in self.trees.range((tree.0, from.to_vec())..) {
            self.looked_at.set(self.looked_at.get() + 1);
            if *t != tree.0 || !each(key, value) {
                break;
            }
        }
        Ok(())
    }
    fn last_at_or_before(&self, tree: TreeId, at: &[u8]) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
        self.descents.set(self.descents.get() + 1);
        let found = self.trees.range(..=(tree.0, at.to_vec())).next_back();
        Ok(found.filter(|((t, _), _)| *t == tree.0).map(|((_, k), v)| (k.clone(), v.clone())))
    }
}

impl Maps {
    fn count(&self, tree: TreeId, family: FamilyId) -> usize {
        self.trees.keys().filter(|(t, k)| *t == tree.0 && k.starts_with(&family.0.to_be_bytes())).count()
    }
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }
}

/// What [`listed`] calls a reserved block.
const RESERVED: u64 = 0;

/// The blocks that an answer of resolve names; it must cover [`from`, `to`) without gaps.
fn listed(pieces: &[Mapped], from: u64, to: u64) -> Vec<(u64, u64)> {
    let (mut at, mut out) = (from, Vec::new());
    for piece in pieces {
        assert_eq!(piece.offset, at, "a gap");
        assert!(piece.len > 0 && piece.len.is_multiple_of(BLOCK));
        match piece.what {
            Mapping::Data { addr, .. } => {
                out.extend((0..piece.len / BLOCK).map(|b| (at / BLOCK + b, addr.block() + b)));
            }
            Mapping::Reserved => out.extend((0..piece.len / BLOCK).map(|b| (at / BLOCK + b, RESERVED))),
            Mapping::Hole => (),
        }
        at += piece.len;
    }
    assert_eq!(at, to.max(from), "the end");
    out
}

/// Panics with the first difference.
fn same(got: &[(u64, u64)], expect: &[(u64, u64)], what: &str) {
    let at = got.iter().zip(expect).take_while(|(a, b)| a == b).count();
    let (g, e) = (got.get(at), expect.get(at));
    assert!(g.is_none() && e.is_none(), "{what}: (block of file, of pool) is {g:?}, should be {e:?}");
}
