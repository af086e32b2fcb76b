//! What many versions cost: stars of clones, and chains that go.

use varve_format::VersionKey;

use super::super::extents::below;
use super::super::family::Blocks;
use super::super::others::Others;
use super::cases::{keep_version, world_with_one_file, write};
use super::*;
use crate::transaction::Op;

/// Clones of the only file, none of which has anything of its own, and who they are clones of.
fn star(world: &mut World, clones: u64) -> (Holder, Vec<Holder>) {
    let mut origin = world.files[0].holder;
    let clone = |_| {
        let mut tx = Transaction::new();
        share(&world.maps, &mut tx, &mut origin).unwrap();
        world.apply(&tx);
        origin
    };
    let clones = (0..clones).map(clone).collect();
    (origin, clones)
}

/// Goal: of many clones of an origin that is gone each overwrites what all see at the cost of a few entries, and what the
/// last one has overwritten goes. Method: 4,000 clones, the reaper after each write or, as when it is slow, after each seventy;
/// count what is met, in two orders, with one clone that never writes, and from the last to the first.
#[test]
fn a_star_is_rechecked_at_the_cost_of_a_few() {
    const CLONES: u64 = 4000;
    let mut world = world_with_one_file();
    write(&mut world, 0, 5000, 8);
    let (origin, mut clones) = star(&mut world, CLONES);
    let put = |world: &mut World, holder: &mut Holder, at: u64, block: u64| {
        let mut tx = Transaction::new();
        let mut path = Path::load(&world.maps, *holder).unwrap();
        if !path.writable() {
            path = branch(&world.maps, &mut tx, holder, &mut || VersionId(block), false).unwrap();
        }
        let run = Run { addr: PoolAddr::from_block(block), blocks: 1 };
        put_extents(&world.maps, &mut tx, &path, &[(at * BLOCK, run)]).unwrap();
        world.live.insert(block);
        world.apply(&tx);
    };
    for (n, clone) in (0..).zip(&mut clones) {
        put(&mut world, clone, 0, 100_000 + n);
    }
    let mut tx = Transaction::new();
    release(&world.maps, &mut tx, origin).unwrap();
    world.apply(&tx);
    while world.reap(FamilyId(5)) {}
    assert!(
        !world.live.contains(&5000) && world.live.contains(&5001),
        "all have overwritten the first block"
    );
    // In order, and in an order without order; then all but the first of them. Then with a reaper that is late.
    let (late, backwards) = (70, CLONES - 1);
    let orders = [
        (1, 1, 0, 1),
        (2, 617, 0, 1),
        (3, 1, 1, 1),
        (4, 1, 0, late),
        (5, 617, 0, late),
        (6, backwards, 0, late),
    ];
    for (at, step, from, late) in orders {
        world.maps.met.set(0);
        world.maps.descents.set(0);
        for n in from..CLONES {
            let last = from == 0 && n == CLONES - 1;
            let which = (n * step % CLONES) as usize;
            put(&mut world, &mut clones[which], at, 200_000 + 10_000 * at + n);
            assert!(world.live.contains(&(5000 + at)));
            if !last && (n + 1) % late > 0 {
                continue;
            }
            while world.reap(FamilyId(5)) {}
            assert_eq!(world.live.contains(&(5000 + at)), !last, "it goes with the last sight of it");
        }
        let cost = (world.maps.met.get() / CLONES, world.maps.descents.get() / CLONES);
        assert!(cost.0 < 60 && cost.1 < 40, "block {at}: {cost:?} entries met and descents for a write");
    }
}

/// Goal: when the last who saw a block punches it, the holes of all others hide nothing any more, and go a few a step, to the last.
/// Method: 300 clones of a file whose source is gone punch the same block, or sixty blocks apart; the largest step, and what is left.
#[test]
fn holes_that_hide_nothing_go_a_few_a_step() {
    holes_go_a_few_a_step(1);
    holes_go_a_few_a_step(60);
}

fn holes_go_a_few_a_step(holes: u64) {
    const PACE: u64 = 60;
    let mut world = world_with_one_file();
    write(&mut world, 0, 5000, 2 * holes as u32);
    let (origin, mut clones) = star(&mut world, 300);
    let mut tx = Transaction::new();
    release(&world.maps, &mut tx, origin).unwrap();
    world.apply(&tx);
    for (n, clone) in (0..).zip(&mut clones) {
        let mut tx = Transaction::new();
        let path = branch(&world.maps, &mut tx, clone, &mut || VersionId(100_000 + n), false).unwrap();
        world.apply(&tx);
        for hole in 0..holes {
            let (mut tx, at) = (Transaction::new(), 2 * hole * BLOCK);
            let path = if hole == 0 { path.clone() } else { Path::load(&world.maps, *clone).unwrap() };
            punch(&world.maps, &mut tx, &path, at, at + BLOCK, 100).unwrap();
            world.apply(&tx);
        }
    }
    let (mut memory, mut largest, mut steps) = (ReaperMemory::default(), 0, 0);
    loop {
        let mut tx = Transaction::new();
        let more = reap_step(&world.maps, &mut tx, FamilyId(5), PACE, &mut memory).unwrap().more;
        largest = largest.max(tx.ops().len());
        world.apply(&tx);
        steps += 1;
        if !more {
            break;
        }
        // Whatever has gone so far: nobody sees the block again.
        for clone in &clones {
            let path = Path::load(&world.maps, *clone).unwrap();
            assert_eq!(
                listed(&resolve(&world.maps, &path, 0, BLOCK).unwrap(), 0, BLOCK),
                [],
                "after {steps} steps"
            );
        }
    }
    assert!(largest as u64 <= 4 * PACE + 8, "{largest} steps of a transaction");
    assert!(!world.live.contains(&5000) && world.live.contains(&5001), "what nobody sees is free");
    assert_eq!(world.maps.count(TreeId::EXTENTS, FamilyId(5)) as u64, holes, "what they share is left");
    assert_eq!(world.maps.count(TreeId::HELD, FamilyId(5)) + world.maps.count(TreeId::REAP, FamilyId(5)), 0);
}

/// Goal: what others see in a place where all clones of a star have something costs what is stored there, and not each with each.
/// Method: 2,000 clones with the same block of their own; count how often one is compared with another.
#[test]
fn a_place_of_a_star_is_looked_at_once() {
    const CLONES: u64 = 2000;
    let mut world = world_with_one_file();
    let (origin, mut clones) = star(&mut world, CLONES);
    for (n, clone) in (100_000..).zip(&mut clones) {
        let mut tx = Transaction::new();
        branch(&world.maps, &mut tx, clone, &mut || VersionId(n), false).unwrap();
        world.apply(&tx);
    }
    let own: Vec<_> = clones.iter().map(|clone| (VersionKey(clone.version.0), Blocks::one(0))).collect();
    let mut others = Others::load(&world.maps, origin).unwrap();
    others.look(&own, &|limit| below(limit, 0));
    let seen = others.seen(VersionKey(origin.family.0), &|limit| below(limit, 0));
    assert_eq!(seen, Blocks::ALL.without(Blocks::one(0)));
    let compared = others.compared.get();
    assert!(compared < 40 * CLONES, "{compared} comparisons for {CLONES} clones");
}

/// Goal: places that nobody sees are a few a step in a family of many versions, all of which are looked at for each of them.
/// Method: 2,000 clones of a file of 256 segments, all cut to nothing, and the source gone; count in the steps until all is free.
#[test]
fn what_nobody_of_many_sees_goes_a_few_places_a_step() {
    const SEGMENTS: u64 = 256;
    let mut world = world_with_one_file();
    for segment in 0..SEGMENTS {
        write(&mut world, segment * SEGMENT_BLOCKS, 5000 + segment, 1);
    }
    let (origin, mut clones) = star(&mut world, 2000);
    for (n, clone) in (100_000..).zip(&mut clones) {
        let mut tx = Transaction::new();
        truncate(&world.maps, &mut tx, clone, &mut || VersionId(n), 0, None).unwrap();
        world.apply(&tx);
    }
    let mut tx = Transaction::new();
    release(&world.maps, &mut tx, origin).unwrap();
    world.apply(&tx);
    let (mut memory, mut most, mut steps, mut more) = (ReaperMemory::default(), 0, 0, true);
    while more {
        let (mut tx, before) = (Transaction::new(), memory.witnesses.wholes);
        more = reap_step(&world.maps, &mut tx, FamilyId(5), 512, &mut memory).unwrap().more;
        (most, steps) = (most.max(memory.witnesses.wholes - before), steps + 1);
        world.apply(&tx);
    }
    assert!(world.live.is_empty(), "nobody sees anything");
    assert!(most <= 10, "{most} looks at all versions in one of {steps} steps");
}

/// Goal: what nobody sees any more is looked for where the child that has least has something. Method: a file of 5,000 segments; an old
/// clone that has been written in each, and ten with a block of their own; one of the ten goes. The steps until it is done.
#[test]
fn a_recheck_goes_by_who_has_least() {
    const SEGMENTS: u64 = 5000;
    let mut world = world_with_one_file();
    let all = |first: u64| -> Vec<(u64, Run)> {
        let run = |n| Run { addr: PoolAddr::from_block(first + 2 * n), blocks: 1 };
        (0..SEGMENTS).map(|n| (n * SEGMENT_BYTES, run(n))).collect()
    };
    let put = |world: &mut World, holder: &mut Holder, id: u64, pieces: &[(u64, Run)]| {
        let mut tx = Transaction::new();
        let mut path = Path::load(&world.maps, *holder).unwrap();
        if !path.writable() {
            path = branch(&world.maps, &mut tx, holder, &mut || VersionId(id), false).unwrap();
        }
        put_extents(&world.maps, &mut tx, &path, pieces).unwrap();
        world.live.extend(pieces.iter().map(|(_, run)| run.addr.block()));
        world.apply(&tx);
    };
    let mut origin = world.files[0].holder;
    put(&mut world, &mut origin, 0, &all(1 << 20));
    world.files[0].holder = origin;
    let (origin, mut clones) = star(&mut world, 11);
    for (n, clone) in (0..).zip(&mut clones) {
        let pieces = all(((2 + n) << 20) + n % 2);
        put(&mut world, clone, 1000 + n, if n == 0 { &pieces } else { &pieces[n as usize..][..1] });
    }
    let (mut memory, mut steps) = (ReaperMemory::default(), Vec::new());
    for holder in [origin, clones[5]] {
        let mut tx = Transaction::new();
        release(&world.maps, &mut tx, holder).unwrap();
        world.apply(&tx);
        steps.push(0);
        loop {
            let mut tx = Transaction::new();
            let more = reap_step(&world.maps, &mut tx, FamilyId(5), 50, &mut memory).unwrap().more;
            world.apply(&tx);
            if !more {
                break;
            }
            *steps.last_mut().unwrap() += 1;
        }
    }
    assert!(steps[1] < 10, "{steps:?} steps");
}

/// A file of so many segments that has been written to in each of them in `versions` versions, a holder each and the
/// last one's being file 0.
fn many_versions(versions: u64, segments: u64) -> World {
    let mut world = world_with_one_file();
    for version in 0..versions {
        if version > 0 {
            keep_version(&mut world, VersionId(1000 + version));
        }
        for segment in 0..segments {
            let block = 1_000_000 + version * segments + segment;
            // One that no other version has, and one that they all have.
            for at in [segment * SEGMENT_BLOCKS + 1 + version % 100 * 2, segment * SEGMENT_BLOCKS + 250] {
                let block = 2 * block + at % 2;
                write(&mut world, at, block, 1);
                world.files[0].blocks.insert(at, block);
            }
        }
    }
    world
}

/// What of a range of keys is met while the reaper is at work: each run of steps between checkpoints writes a leaf once.
struct Leaves {
    touched: BTreeSet<(u16, Vec<u8>)>,
    written: u64,
    entries: u64,
    steps: u64,
}

/// Reaps all there is; counts leaves of 64 entries as the tree had them in the beginning, each written once in `pace` ops.
fn reap_all(world: &mut World, pace: u64) -> Leaves {
    let firsts: BTreeSet<(u16, Vec<u8>)> = world.maps.trees.keys().step_by(64).cloned().collect();
    let mut leaves = Leaves { touched: BTreeSet::new(), written: 0, entries: 0, steps: 0 };
    let (mut memory, mut ops) = (ReaperMemory::default(), 0);
    loop {
        let mut tx = Transaction::new();
        let done = reap_step(&world.maps, &mut tx, FamilyId(5), 128, &mut memory).unwrap();
        for op in tx.ops() {
            if let Op::Put { tree, key, .. } | Op::Delete { tree, key } = op {
                let key = (tree.0, key.to_vec());
                let leaf = firsts.range(..=&key).next_back().or(firsts.first()).unwrap();
                leaves.touched.insert(leaf.clone());
                ops += 1;
            }
        }
        if ops >= pace || !done.more {
            leaves.written += leaves.touched.len() as u64;
            (leaves.touched, ops) = (BTreeSet::new(), 0);
        }
        leaves.entries += done.entries;
        leaves.steps += 1;
        world.apply(&tx);
        if !done.more {
            return leaves;
        }
    }
}

/// Goal: versions that go together cost one way through the file and not one each, in whatever order their holders let
/// go. Method: 100 versions with two blocks in each of 500 segments lose all holders but the last, or every second one;
/// count the leaves that are written and the entries that change against those there are.
#[test]
fn many_versions_go_in_one_sweep() {
    let (versions, segments) = (100, 500);
    for all in [true, false] {
        let mut world = many_versions(versions, segments);
        let leaves_before = world.maps.trees.len() as u64 / 64;
        let stored = world.maps.count(TreeId::EXTENTS, FamilyId(5)) as u64;
        let mut left = 1;
        while left < world.files.len() {
            world.let_go(left);
            left += usize::from(!all);
        }
        let gone = versions - world.files.len() as u64;
        let leaves = reap_all(&mut world, 20_000);
        world.check();
        world.idle();
        println!(
            "{gone} of {versions} versions: {} entries changed of {stored}, {} leaves written of {leaves_before}, {} steps",
            leaves.entries, leaves.written, leaves.steps
        );
        assert!(leaves.entries < 2 * stored, "{} entries of {stored}", leaves.entries);
        assert!(leaves.written < 4 * leaves_before, "{} leaves of {leaves_before}", leaves.written);
    }
}

/// Goal: a step is bounded by what it changes, not by what is stored: of one entry every second block may go. Method: a file that is
/// written as a whole, snapshots of it after each time, and of each a clone that overwrites every second block; all of them go but
/// the clones. Then the number of operations in the largest step.
#[test]
fn a_step_is_bounded_by_what_it_changes() {
    const VERSIONS: u64 = 50;
    const CHANGES: u64 = 60;
    let mut world = world_with_one_file();
    let (mut main, mut next) = (world.files[0].holder, 5000);
    let run = |at: u64, blocks| Run { addr: PoolAddr::from_block(at), blocks };
    for n in 0..=VERSIONS {
        let mut tx = Transaction::new();
        let path = Path::load(&world.maps, main).unwrap();
        put_extents(&world.maps, &mut tx, &path, &[(0, run(next, SEGMENT_BLOCKS as u32))]).unwrap();
        world.live.extend(next..next + SEGMENT_BLOCKS);
        next += 300;
        world.apply(&std::mem::take(&mut tx));
        if n == VERSIONS {
            break;
        }
        share(&world.maps, &mut tx, &mut main).unwrap();
        world.apply(&std::mem::take(&mut tx));
        let mut clone = main;
        let path = branch(&world.maps, &mut tx, &mut clone, &mut || VersionId(1000 + 2 * n), false).unwrap();
        let pieces: Vec<_> =
            (0..SEGMENT_BLOCKS / 2).map(|at| (2 * at * BLOCK, run(next + 2 * at, 1))).collect();
        put_extents(&world.maps, &mut tx, &path, &pieces).unwrap();
        world.live.extend((0..SEGMENT_BLOCKS / 2).map(|at| next + 2 * at));
        next += 300;
        world.apply(&std::mem::take(&mut tx));
        branch(&world.maps, &mut tx, &mut main, &mut || VersionId(1001 + 2 * n), false).unwrap();
        world.apply(&tx);
    }
    let (mut memory, mut largest, mut all) = (ReaperMemory::default(), 0, 0);
    loop {
        let mut tx = Transaction::new();
        let more = reap_step(&world.maps, &mut tx, FamilyId(5), CHANGES, &mut memory).unwrap().more;
        (largest, all) = (largest.max(tx.ops().len()), all + tx.ops().len());
        world.apply(&tx);
        if !more {
            break;
        }
    }
    assert!(all > 10_000, "there is something to do: {all}");
    // Lists of one place are joined as a whole, 512 entries at most.
    assert!(largest as u64 <= 4 * CHANGES + 512, "{largest} operations in a step");
}
