//! Tests of data families in a store of plain maps: [`model`] steps a naive model beside the real thing, [`cases`] are
//! single ones.

use std::collections::{BTreeMap, BTreeSet};

use varve_format::{BLOCK_BYTES, FamilyId, PoolAddr, Run, SEGMENT_BYTES, TreeId, VersionId};

use super::maps::{Maps, Random, hands_a_recheck_on};
use super::*;
use crate::Transaction;

mod cases;
mod edges;
mod hostile;
mod implicit;
mod keyframes;
mod many;
mod model;
mod reserving;
mod sharing;
mod ways;
mod world;

use world::World;

const BLOCK: u64 = BLOCK_BYTES as u64;
const SEGMENT_BLOCKS: u64 = SEGMENT_BYTES / BLOCK;

impl Maps {
    fn count(&self, tree: TreeId, family: FamilyId) -> usize {
        self.trees.keys().filter(|(t, k)| *t == tree.0 && k.starts_with(&family.0.to_be_bytes())).count()
    }
}

/// What [`listed`] calls a reserved block.
const RESERVED: u64 = 0;
/// Reservations have numbers from here on in the model, one a block: who has the same shares it.
const RESERVATIONS: u64 = 1 << 48;

/// A block of the model as [`listed`] calls it.
fn shown(block: u64) -> u64 {
    if block < RESERVATIONS { block } else { RESERVED }
}

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
