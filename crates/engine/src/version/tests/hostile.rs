//! Stores that nobody has written so: what is found there is an error, no panic, and no work without end.

use varve_format::VersionKey;
use varve_format::record::extent::{DataKey, Extent, SEGMENT_MAX};
use varve_format::record::reap::{Work, reap_key};
use varve_format::record::version::{self, VersionRecord};

use super::cases::{world_with_one_file, write};
use super::*;

const FAMILY: FamilyId = FamilyId(5);
/// More than anything here takes.
const STEPS_MAX: u32 = 3_000;

/// Reaps until nothing is left to do, or it fails: one of them within a bound.
pub(super) fn reap_ends(maps: &mut Maps, family: FamilyId) {
    let mut memory = ReaperMemory::default();
    for _ in 0..STEPS_MAX {
        let mut tx = Transaction::new();
        let Ok(progress) = reap_step(maps, &mut tx, family, 128, &mut memory) else { return };
        maps.put_in(&tx);
        if !progress.more {
            return;
        }
    }
    panic!("the reaper does not end");
}

fn put_version(world: &mut World, id: u64, version: VersionRecord) {
    let key = version::encode_key(FAMILY, VersionId(id)).to_vec();
    world.maps.trees.insert((TreeId::VERSIONS.0, key), version.encode().to_vec());
}

fn put_extent(world: &mut World, segment: u64, version: u64, offset: u32, extent: Extent) {
    let key = DataKey { family: FAMILY, segment, version: VersionKey(version), offset };
    world.maps.trees.insert((TreeId::EXTENTS.0, key.encode().to_vec()), extent.encode().to_vec());
}

/// Goal: versions that are each other's parents do not hand the reaper's mark round for ever. Method: one that is its own, and a
/// ring of two.
#[test]
fn a_ring_of_parents_ends_the_reaper() {
    let root = VersionRecord::implicit(FAMILY);
    for ring in [&[(9, 9)][..], &[(9, 12), (12, 9)]] {
        let mut world = world_with_one_file();
        put_version(&mut world, 5, root);
        for (id, parent) in ring {
            let (parent, key) = (Some(VersionId(*parent)), VersionKey(*id));
            put_version(&mut world, *id, VersionRecord { refs: 0, children: 2, parent, key, ..root });
        }
        let mark = reap_key(FAMILY, Work::Recheck(VersionId(9)));
        world.maps.trees.insert((TreeId::REAP.0, mark), Vec::new());
        reap_ends(&mut world.maps, FAMILY);
    }
}

/// Goal: an extent that is older than its family does not keep the reaper in one place. Method: a file of twenty segments is cut to
/// ten, so that the first version goes from there on, where it has nothing in front of the forged one.
#[test]
fn an_extent_older_than_its_family_ends_the_reaper() {
    let mut world = world_with_one_file();
    for at in 0..20 * SEGMENT_BLOCKS {
        write(&mut world, at, 5000 + 2 * at, 1);
    }
    let (mut tx, mut holder) = (Transaction::new(), world.files[0].holder);
    truncate(&world.maps, &mut tx, &mut holder, &mut || VersionId(1000), 10 * SEGMENT_BYTES, None).unwrap();
    world.apply(&tx);
    put_extent(&mut world, 30, 4, 0, Extent::hole(BLOCK_BYTES as u32));
    reap_ends(&mut world.maps, FAMILY);
}

/// Goal: what lies beyond all that a file can have is not moved still farther. Method: an extent at the last block that a key can
/// name, and a block inserted in front of it, in a file alone and in one that is shared.
#[test]
fn an_extent_at_the_last_byte_is_not_moved() {
    let mut world = world_with_one_file();
    write(&mut world, 0, 5000, 1);
    let run = Run { addr: PoolAddr::from_block(7000), blocks: 1 };
    put_extent(&mut world, SEGMENT_MAX, 5, (SEGMENT_BYTES - BLOCK) as u32, Extent::data(run));
    let path = Path::load(&world.maps, world.files[0].holder).unwrap();
    assert!(shift(&world.maps, &mut Transaction::new(), &path, 0, 0, BLOCK).is_err_and(|e| e.is_damage()));
    let away = shift_away(&world.maps, &mut Transaction::new(), &path, FamilyId(77), 0, 0, BLOCK);
    assert!(away.is_err_and(|error| error.is_damage()));
}

/// Goal: two versions are made one only if each says so of the other, and the parent is the older. Method: records of such a pair,
/// and each thing that makes it one wrong by itself.
#[test]
fn what_is_no_pair_does_not_become_one() {
    let root = VersionRecord::implicit(FAMILY);
    let parent = VersionRecord { refs: 0, children: 1, children_xor: 9, ..root };
    let child = VersionRecord { parent: Some(VersionId(5)), key: VersionKey(9), ..root };
    let refused = |parent, child| {
        let pair = reap::pair(FAMILY, (VersionId(5), parent), (VersionId(9), child));
        pair.is_err_and(|error| error.is_damage())
    };
    assert!(!refused(parent, child));
    assert!(refused(VersionRecord { refs: 1, ..parent }, child), "somebody holds the parent");
    assert!(refused(VersionRecord { children: 2, ..parent }, child), "the parent has another child, too");
    assert!(refused(VersionRecord { children_xor: 8, ..parent }, child), "its child is another");
    assert!(refused(parent, VersionRecord { parent: Some(VersionId(6)), ..child }), "another's child");
    assert!(refused(parent, VersionRecord { parent: None, ..child }), "nobody's child");
    assert!(refused(parent, VersionRecord { key: parent.key, ..child }), "as old as its parent");
    assert!(refused(parent, VersionRecord { key: VersionKey(4), ..child }), "older than its parent");
}
