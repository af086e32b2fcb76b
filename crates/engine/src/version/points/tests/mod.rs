//! Tests of points: a world of holders, each with a full copy beside it, over trees in plain maps.

use std::collections::{BTreeMap, BTreeSet};

use varve_format::record::held::held_key;
use varve_format::record::reap::{Work, reap_key};
use varve_format::record::version::{self, VersionRecord};
use varve_format::{FamilyId, TreeId, VersionId, VersionKey};

use super::super::maps::{Maps, Random, hands_a_recheck_on};
use super::super::{Holder, Path, ReaperMemory, branch, release, share};
use super::*;
use crate::Transaction;
use crate::transaction::Op;

mod changes;
mod plain;
mod reap;
mod world;

const FAMILY: FamilyId = FamilyId(5);

impl Maps {
    /// Points have no blocks.
    fn apply(&mut self, tx: &Transaction) {
        assert!(!tx.ops().iter().any(|op| matches!(op, Op::Place { .. } | Op::Free { .. })));
        self.put_in(tx);
    }
    fn of(&self, tree: TreeId) -> impl Iterator<Item = (&Vec<u8>, &Vec<u8>)> {
        self.trees.range((tree.0, vec![])..(tree.0 + 1, vec![])).map(|((_, key), value)| (key, value))
    }
    fn put_version(&mut self, id: u64, version: &VersionRecord) {
        let key = version::encode_key(FAMILY, VersionId(id));
        self.trees.insert((TreeId::VERSIONS.0, key.to_vec()), version.encode().to_vec());
    }
    /// What was asked of it meanwhile: descents, entries met.
    fn cost(&self, of: impl FnOnce()) -> (u64, u64) {
        self.descents.set(0);
        self.met.set(0);
        of();
        (self.descents.get(), self.met.get())
    }
}

/// The prefix number `n` of a tree; neighbours share a directory or an inode.
fn prefix(tree: TreeId, n: u64) -> Vec<u8> {
    let mut out = vec![0; key_bytes(tree) - VERSION_BYTES];
    out[..8].copy_from_slice(&FAMILY.0.to_be_bytes());
    match tree {
        TreeId::INODES => out[8..16].copy_from_slice(&(n + 1).to_be_bytes()),
        TreeId::NAMES => {
            out[8..16].copy_from_slice(&(n / 4 + 1).to_be_bytes());
            out[16..24].copy_from_slice(&(300 + n).to_be_bytes());
        }
        _ => {
            out[8..16].copy_from_slice(&(n / 4 + 1).to_be_bytes());
            out[16..24].copy_from_slice(&(300 + n / 2).to_be_bytes());
            out[24..26].copy_from_slice(&((n % 2) as u16).to_be_bytes());
        }
    }
    out
}

fn held(tree: TreeId, prefix: &[u8], version: u64) -> Vec<u8> {
    held_key(FAMILY, VersionKey(version), tree, place_of(prefix))
}

fn version_record(parent: Option<u64>, key: u64, refs: u64, children: &[u64]) -> VersionRecord {
    VersionRecord {
        parent: parent.map(VersionId),
        key: VersionKey(key),
        refs,
        children: children.len() as u64,
        children_xor: children.iter().fold(0, |x, id| x ^ id),
        ..VersionRecord::implicit(FAMILY)
    }
}

fn holder_of(version: u64) -> Holder {
    Holder { family: FAMILY, version: VersionId(version), has_versions: true }
}

fn put_one(maps: &mut Maps, holder: Holder, tree: TreeId, n: u64, value: &[u8]) {
    let (mut tx, path) = (Transaction::new(), Path::load(maps, holder).unwrap());
    put(maps, &mut tx, &path, tree, &prefix(tree, n), value.into()).unwrap();
    maps.apply(&tx);
}

fn delete_one(maps: &mut Maps, holder: Holder, tree: TreeId, n: u64) {
    let (mut tx, path) = (Transaction::new(), Path::load(maps, holder).unwrap());
    delete(maps, &mut tx, &path, tree, &prefix(tree, n)).unwrap();
    maps.apply(&tx);
}

fn found(maps: &Maps, holder: Holder, tree: TreeId, n: u64) -> Option<(u64, Vec<u8>)> {
    let path = Path::load(maps, holder).unwrap();
    find(maps, &path, tree, &prefix(tree, n)).unwrap().map(|f| (f.version.0, f.value))
}
