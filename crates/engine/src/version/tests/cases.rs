//! Single cases: what things cost, hostile stores, what the walk finds.

use std::cmp::Ordering;

use varve_format::VersionKey;
use varve_format::record::extent::{DataKey, Extent};
use varve_format::record::held::held_key;
use varve_format::record::reap::{Work, reap_key};
use varve_format::record::version::{self, NO_LIMIT, VersionRecord};

use super::super::pending::State;
use super::super::resolve::FILE_END;
use super::*;

pub(super) fn world_with_one_file() -> World {
    let mut world = World::new(1, 1);
    (world.next_block, world.loses) = (1 << 20, false);
    world
}

/// File 0 goes on as version `id`; what it was is kept as another file.
pub(super) fn keep_version(world: &mut World, id: VersionId) {
    let (mut tx, mut holder) = (Transaction::new(), world.files[0].holder);
    let blocks = world.files[0].blocks.clone();
    let kept = world::File { holder: Holder { has_versions: true, ..holder }, blocks };
    branch(&world.maps, &mut tx, &mut holder, &mut || id, true).unwrap();
    world.apply(&tx);
    world.files[0].holder = holder;
    world.files.push(kept);
}

pub(super) fn write(world: &mut World, at: u64, block: u64, blocks: u32) -> Replaced {
    let path = Path::load(&world.maps, world.files[0].holder).unwrap();
    let mut tx = Transaction::new();
    let run = Run { addr: PoolAddr::from_block(block), blocks };
    let done = put_extents(&world.maps, &mut tx, &path, &[(at * BLOCK, run)]).unwrap();
    world.live.extend(block..block + u64::from(blocks));
    world.apply(&tx);
    done
}

/// Goal: sequential appends give one entry a segment, not one a write. Method: 600 appends of adjacent blocks.
#[test]
fn appends_grow_one_entry() {
    let mut world = world_with_one_file();
    for at in 0..600 {
        assert_eq!(write(&mut world, at, 5000 + at, 1).entries_put, 1);
    }
    assert_eq!(world.maps.count(TreeId::EXTENTS, FamilyId(5)), 3);
    write(&mut world, 1001, 9001, 1);
    write(&mut world, 1000, 9000, 1);
    assert_eq!(
        world.maps.count(TreeId::EXTENTS, FamilyId(5)),
        4,
        "a write in front of its successor joins it"
    );
}

/// Goal: a small write into a big, fragmented file looks at its neighbours only. Method: count what is looked at.
#[test]
fn a_write_costs_its_neighbours() {
    let mut world = world_with_one_file();
    for at in 0..20 * SEGMENT_BLOCKS {
        write(&mut world, at, 5000 + 2 * at, 1);
    }
    world.maps.met.set(0);
    world.maps.descents.set(0);
    let done = write(&mut world, 7 * SEGMENT_BLOCKS + 100, 1 << 30, 1);
    assert_eq!(
        done,
        Replaced {
            entries_put: 1,
            entries_deleted: 0,
            blocks_freed: 1,
            reserved_freed: Unreserved::default()
        }
    );
    let cost = (world.maps.met.get(), world.maps.descents.get());
    assert!(cost.0 <= 3 && cost.1 <= 2, "looked at {} entries in {} descents", cost.0, cost.1);
    let path = Path::load(&world.maps, world.files[0].holder).unwrap();
    world.maps.met.set(0);
    resolve(&world.maps, &path, (9 * SEGMENT_BLOCKS + 50) * BLOCK, (9 * SEGMENT_BLOCKS + 51) * BLOCK)
        .unwrap();
    assert!(world.maps.met.get() <= 1);
}

/// Goal: a look at some entries ends after so many, also where they are joined to one piece, and where they are others' alone and the
/// file has a hole. Method: 3,000 reserved segments; a file, and one of an older version of it that has none of them; what is met is counted.
#[test]
fn some_entries_are_looked_at() {
    const SEGMENTS: u64 = 3_000;
    let mut world = world_with_one_file();
    write(&mut world, 0, 5000, 1);
    keep_version(&mut world, VersionId(1000));
    let (new, old) = (world.files[0].holder, world.files[1].holder);
    let mut at = SEGMENT_BYTES;
    while at < SEGMENTS * SEGMENT_BYTES {
        let path = Path::load(&world.maps, new).unwrap();
        let mut tx = Transaction::new();
        at = reserve(&world.maps, &mut tx, &path, at, SEGMENTS * SEGMENT_BYTES, 64).unwrap().next;
        world.apply(&tx);
    }
    for (holder, what) in [(new, Mapping::Reserved), (old, Mapping::Hole)] {
        let path = Path::load(&world.maps, holder).unwrap();
        let (mut at, mut looks) = (BLOCK, 0);
        while at < SEGMENTS * SEGMENT_BYTES {
            world.maps.met.set(0);
            let some =
                resolve_some(&world.maps, &path, at, SEGMENTS * SEGMENT_BYTES, usize::MAX, 100).unwrap();
            assert!(world.maps.met.get() < 500, "{} entries met", world.maps.met.get());
            let last = some.last().unwrap();
            assert!(last.offset + last.len > at && last.what == what);
            (at, looks) = (last.offset + last.len, looks + 1);
        }
        assert!(looks > 20, "{looks} looks");
    }
}

/// Goal: cutting a big file is O(1), and reads of what is grown again are zeros at once. Method: truncate a file of
/// 20 fragmented segments, count the changes, look; then reap in steps of 100 and count what is left.
#[test]
fn truncating_a_big_file_is_one_record() {
    let mut world = world_with_one_file();
    for at in 0..20 * SEGMENT_BLOCKS {
        write(&mut world, at, 5000 + 2 * at, 1);
    }
    let (mut tx, mut holder) = (Transaction::new(), world.files[0].holder);
    let done = truncate(&world.maps, &mut tx, &mut holder, &mut || VersionId(1000), 10 * SEGMENT_BYTES, None)
        .unwrap();
    assert!(done.reap && done.blocks_freed == 0);
    assert_eq!(tx.ops().len(), 4, "the claim of an id, two records and what is to be reaped");
    world.apply(&tx);
    world.files[0].holder = holder;
    let all = resolve(&world.maps, &done.path, 0, 20 * SEGMENT_BYTES).unwrap();
    assert_eq!(listed(&all, 0, 20 * SEGMENT_BYTES).len() as u64, 10 * SEGMENT_BLOCKS);
    assert_eq!(pending_families(&world.maps, None, 1).unwrap(), (vec![FamilyId(5)], None));
    let mut steps = 0;
    loop {
        let mut tx = Transaction::new();
        let progress =
            reap_step(&world.maps, &mut tx, FamilyId(5), 100, &mut ReaperMemory::default()).unwrap();
        assert!(progress.entries <= 100);
        world.apply(&tx);
        if !progress.more {
            break;
        }
        steps += 1;
    }
    assert_eq!(world.maps.count(TreeId::EXTENTS, FamilyId(5)) as u64, 10 * SEGMENT_BLOCKS);
    assert!(steps < 40, "{steps} steps: the child is empty, so the parent's entries stay where they are");
    assert_eq!(world.live.len() as u64, 10 * SEGMENT_BLOCKS);
}

/// Goal: a store full of nonsense gives errors and reports, never a panic. Method: flip bytes of a busy store and
/// call everything.
#[test]
fn hostile_stores_do_not_panic() {
    let mut problems_found = 0;
    for seed in 0..300 {
        let mut world = World::new(seed, 2);
        for _ in 0..30 {
            let f = world.random.below(2) as usize;
            match world.random.below(6) {
                0 | 1 => world.truncate(f),
                2 if world.files.len() < 5 => world.fork(f),
                _ => world.put(f),
            }
        }
        for _ in 0..world.random.below(3) {
            world.reap(FamilyId(5));
        }
        for _ in 0..1 + world.random.below(4) {
            let at = world.random.below(world.maps.trees.len() as u64) as usize;
            let ((tree, mut key), mut value) =
                world.maps.trees.iter().nth(at).map(|(k, v)| (k.clone(), v.clone())).unwrap();
            world.maps.trees.remove(&(tree, key.clone()));
            let bytes = if value.is_empty() || world.random.below(3) == 0 { &mut key } else { &mut value };
            let byte = world.random.below(bytes.len() as u64) as usize;
            bytes[byte] ^= 1 << world.random.below(8);
            world.maps.trees.insert((tree, key), value);
        }
        let maps = &world.maps;
        let mut problems = Vec::new();
        for file in &world.files {
            let family = file.holder.family;
            let holders: Vec<Holder> =
                world.files.iter().map(|file| file.holder).filter(|h| h.family == family).collect();
            let walked = walk_family(maps, family, &holders, &mut |_, _| (), &mut problems);
            assert!(walked.is_ok(), "seed {seed}");
            let mut ids = 10_000;
            let mut holder = file.holder;
            let mut new_id = || {
                ids += 1;
                VersionId(ids)
            };
            drop(truncate(maps, &mut Transaction::new(), &mut holder, &mut new_id, 5 * BLOCK, None));
            drop(reap_step(maps, &mut Transaction::new(), family, 10, &mut ReaperMemory::default()));
            drop(delete_step(maps, &mut Transaction::new(), file.holder, 10));
            if let Ok(path) = Path::load(maps, file.holder) {
                drop(resolve(maps, &path, 0, FILE_END));
                if path.writable() {
                    let pieces = [(100 * BLOCK, Run { addr: PoolAddr(1 << 40), blocks: 400 })];
                    drop(put_extents(maps, &mut Transaction::new(), &path, &pieces));
                    drop(punch(maps, &mut Transaction::new(), &path, 0, 700 * BLOCK, 100));
                }
            }
        }
        drop(pending_families(maps, None, 10));
        problems_found += usize::from(!problems.is_empty());
        for family in [FamilyId(5), FamilyId(6)] {
            super::hostile::reap_ends(&mut world.maps, family);
        }
    }
    assert!(problems_found > 100, "the walk noticed {problems_found} of 300");
}

/// Goal: a forged id as large as there is ends a search like any other. Method: a version without holders whose only record beside
/// it is that of the last id there can be, no child of it; and that one, as its own child.
#[test]
fn the_last_id_there_is_ends_a_search() {
    const LAST: u64 = u64::MAX;
    let family = FamilyId(5);
    let inner = VersionRecord { refs: 0, children: 2, ..VersionRecord::implicit(family) };
    let forged = VersionRecord { children: 0, key: VersionKey(LAST), ..inner };
    let itself = VersionRecord { parent: Some(VersionId(LAST)), children: 2, ..forged };
    for (rechecked, last) in [(5, forged), (LAST, itself)] {
        let mut world = world_with_one_file();
        for (id, version) in [(5, inner), (LAST, last)] {
            let key = version::encode_key(family, VersionId(id)).to_vec();
            world.maps.trees.insert((TreeId::VERSIONS.0, key), version.encode().to_vec());
        }
        let mark = reap_key(family, Work::Recheck(VersionId(rechecked)));
        world.maps.trees.insert((TreeId::REAP.0, mark), Vec::new());
        let (told, tell) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let mut tx = Transaction::new();
            let step = reap_step(&world.maps, &mut tx, family, 10, &mut ReaperMemory::default());
            told.send(step.is_ok()).expect("the test listens");
        });
        tell.recv_timeout(std::time::Duration::from_secs(60)).expect("it ends");
    }
}

/// Goal: a hole that becomes a range of another file of the same family costs what lies there, not all that the family has for each
/// part of it. Method: a file with one block at its end and a clone that is written in every segment before; the hole becomes the
/// clone's; count what is met, in twice as many segments.
#[test]
fn a_hole_is_shared_at_the_cost_of_what_it_covers() {
    let cost = |segments: u64| {
        let mut world = world_with_one_file();
        write(&mut world, segments * SEGMENT_BLOCKS, 5000, 1);
        let (source, mut clone, mut tx) = (world.files[0].holder, world.files[0].holder, Transaction::new());
        share(&world.maps, &mut tx, &mut clone).unwrap();
        world.apply(&std::mem::take(&mut tx));
        let source = Holder { has_versions: true, ..source };
        let path = branch(&world.maps, &mut tx, &mut clone, &mut || VersionId(100), false).unwrap();
        let pieces: Vec<_> = (0..segments)
            .map(|n| {
                (n * SEGMENT_BLOCKS * BLOCK, Run { addr: PoolAddr::from_block(9000 + 2 * n), blocks: 1 })
            })
            .collect();
        put_extents(&world.maps, &mut tx, &path, &pieces).unwrap();
        world.live.extend((0..segments).map(|n| 9000 + 2 * n));
        world.apply(&tx);
        let (mut done, len) = (0, segments * SEGMENT_BLOCKS * BLOCK);
        world.maps.met.set(0);
        while done < len {
            let mut tx = Transaction::new();
            let (source, target) =
                (Path::load(&world.maps, source).unwrap(), Path::load(&world.maps, clone).unwrap());
            let range = Range { from: done, to: done, len: len - done };
            done += share_range(&world.maps, &mut tx, &source, &target, range, 64).unwrap().next;
            world.apply(&tx);
        }
        world.maps.met.get()
    };
    let costs = [128, 256].map(cost);
    assert!(costs[1] < 3 * costs[0], "{costs:?} entries met in 128 and 256 segments");
}

/// Goal: the walk finds each kind of damage it knows. Method: plant one at a time in a small valid family.
#[test]
fn the_walk_names_the_damage() {
    let family = FamilyId(5);
    let holder = Holder { family, version: VersionId(50), has_versions: true };
    let data = |block: u64, blocks| Extent::data(Run { addr: PoolAddr::from_block(block), blocks });
    let entry = |version: u64, offset: u32, extent: &Extent| {
        let (segment, offset) = (u64::from(offset / 256), offset % 256 * BLOCK_BYTES as u32);
        let key = DataKey { family, segment, version: VersionKey(version), offset };
        ((TreeId::EXTENTS.0, key.encode().to_vec()), extent.encode().to_vec())
    };
    let record = |id: u64, record: &VersionRecord| {
        ((TreeId::VERSIONS.0, version::encode_key(family, VersionId(id)).to_vec()), record.encode().to_vec())
    };
    let held = |version: u64, segment: u64| {
        held_key(family, VersionKey(version), TreeId::EXTENTS, &segment.to_be_bytes())
    };
    let root = VersionRecord { refs: 0, children: 1, children_xor: 50, ..VersionRecord::implicit(family) };
    let child =
        VersionRecord { parent: Some(VersionId(5)), key: VersionKey(50), ..VersionRecord::implicit(family) };
    let valid: Maps = Maps {
        trees: [
            record(5, &root),
            record(50, &child),
            entry(5, 0, &data(100, 8)),
            entry(50, 4, &data(200, 2)),
            ((TreeId::HELD.0, held(50, 0)), Vec::new()),
            ((TreeId::REAP.0, reap_key(family, Work::Going(VersionId(5)))), Vec::new()),
        ]
        .into(),
        ..Maps::default()
    };
    let walk = |maps: &Maps, holder: Option<Holder>| {
        let mut problems = Vec::new();
        walk_family(maps, family, holder.as_slice(), &mut |_, _| (), &mut problems).unwrap();
        problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
    };
    assert_eq!(walk(&valid, Some(holder)), "");
    assert!(walk(&valid, None).contains("counts 1 holders and has 0"));
    let plain = Maps { trees: [entry(5, 0, &data(100, 8))].into(), ..Maps::default() };
    assert!(walk(&plain, None).contains("no inode"));
    let place = Work::Place(VersionId(50), TreeId::EXTENTS, &0u64.to_be_bytes());
    let left =
        Maps { trees: [((TreeId::REAP.0, reap_key(family, place)), Vec::new())].into(), ..Maps::default() };
    assert_eq!(walk(&left, None), "", "work that is left of a family is no damage");
    assert!(walk(&valid, Some(Holder { has_versions: false, ..holder })).contains("does not know"));
    assert!(walk(&valid, Some(Holder { version: VersionId(77), ..holder })).contains("does not exist"));
    assert_eq!(next_family(&valid, None).unwrap(), Some(family));
    assert_eq!(next_family(&valid, Some(family)).unwrap(), None);
    let damaged = [
        (entry(9, 0, &data(300, 1)), "which nobody owns"),
        (entry(5, 7, &data(300, 1)), "overlaps"),
        (entry(5, 255, &data(300, 2)), "crosses"),
        (record(50, &VersionRecord { key: VersionKey(5), ..child }), "same key"),
        (record(50, &VersionRecord { parent: Some(VersionId(6)), ..child }), "parent 6 that does not exist"),
        (record(50, &VersionRecord { refs: 2, ..child }), "counts 2 holders and has 1"),
        (record(5, &VersionRecord { children: 2, ..root }), "counts its children wrongly"),
        (record(50, &VersionRecord { key: VersionKey(4), ..child }), "not younger"),
        (record(5, &VersionRecord { key: VersionKey(4), ..root }), "older than its family"),
        (((TreeId::HELD.0, held(50, 1)), Vec::new()), "where it has nothing"),
        (((TreeId::HELD.0, held(50, 0)), vec![1]), "index of family 5 is not one"),
        (entry(50, 256, &data(300, 1)), "does not name segment 1"),
        (
            ((TreeId::REAP.0, reap_key(family, Work::Going(VersionId(50)))), Vec::new()),
            "is in use or does not exist",
        ),
        (
            ((TreeId::REAP.0, reap_key(family, Work::Recheck(VersionId(5)))), Vec::new()),
            "is in use or does not exist",
        ),
        (
            ((TreeId::REAP.0, reap_key(family, Work::Going(VersionId(5)))), vec![1]),
            "to be reaped of family 5: place",
        ),
        (record(60, &VersionRecord { refs: 0, ..child }), "it is not to be reaped"),
    ];
    for ((key, value), sentence) in damaged {
        let mut maps = valid.clone();
        maps.trees.insert(key, value);
        let problems = walk(&maps, Some(holder));
        assert!(problems.contains(sentence), "{sentence:?} is not in {problems:?}");
    }
}

/// Goal: a family that is deleted in part has no less sound records than a whole one. Method: four versions, three of which
/// have entries, deleted one entry at a time; walk what is left after each step.
#[test]
fn a_family_deleted_in_part_is_sound() {
    let (mut world, family) = (world_with_one_file(), FamilyId(5));
    for (at, id) in [(0, 200), (1, 300), (2, 400)] {
        for block in 0..3 {
            write(&mut world, at * 300 + 2 * block, 5000 + id + 2 * block, 1);
        }
        let (mut tx, mut holder) = (Transaction::new(), world.files[0].holder);
        branch(&world.maps, &mut tx, &mut holder, &mut || VersionId(id), false).unwrap();
        world.apply(&tx);
        world.files[0].holder = holder;
    }
    let holder = world.files[0].holder;
    assert_eq!((world.maps.count(TreeId::VERSIONS, family), world.maps.count(TreeId::REAP, family)), (4, 3));
    assert!(world.maps.count(TreeId::HELD, family) > 1);
    let mut steps = 0;
    loop {
        let mut tx = Transaction::new();
        let more = delete_step(&world.maps, &mut tx, holder, 1).unwrap().more;
        world.apply(&tx);
        steps += 1;
        if !more {
            break;
        }
        let mut problems = Vec::new();
        walk_family(&world.maps, family, &[holder], &mut |_, _| (), &mut problems).unwrap();
        assert_eq!(problems, [], "after step {steps}");
    }
    assert!(steps > 9, "{steps} steps");
    assert!(world.live.is_empty());
    world.gone(family);
}

/// Goal: holders are counted, and move without touching what is held. Method: share, branch both ways, release; look at
/// the records, the marks of the reaper and the path.
#[test]
fn holders_share_and_branch() {
    let (mut world, family) = (world_with_one_file(), FamilyId(5));
    write(&mut world, 0, 5000, 4);
    let mut first = world.files[0].holder;
    assert!(is_sole(&world.maps, first).unwrap());
    let mut tx = Transaction::new();
    share(&world.maps, &mut tx, &mut first).unwrap();
    assert_eq!(tx.ops().len(), 1);
    world.apply(&tx);
    let mut second = first;
    assert!(first.has_versions && !Path::load(&world.maps, first).unwrap().writable());
    let mut tx = Transaction::new();
    let path = branch(&world.maps, &mut tx, &mut second, &mut || VersionId(200), false).unwrap();
    assert_eq!(tx.ops().len(), 3, "the claim of an id and two records");
    let run = Run { addr: PoolAddr::from_block(9000), blocks: 1 };
    put_extents(&world.maps, &mut tx, &path, &[(BLOCK, run)]).unwrap();
    world.live.insert(9000);
    world.apply(&tx);
    assert_eq!((second.version, path.writable(), path.versions()), (VersionId(200), true, 2));
    assert!(!is_sole(&world.maps, first).unwrap() && !is_sole(&world.maps, second).unwrap());
    let mut third = second;
    let mut tx = Transaction::new();
    branch(&world.maps, &mut tx, &mut third, &mut || VersionId(300), true).unwrap();
    world.apply(&tx);
    let refs = |world: &World, id| pending::record(&world.maps, family, VersionId(id)).unwrap().refs;
    assert_eq!((refs(&world, 5), refs(&world, 200), refs(&world, 300)), (1, 1, 1));
    let shown = |holder| {
        let path = Path::load(&world.maps, holder).unwrap();
        listed(&resolve(&world.maps, &path, 0, 4 * BLOCK).unwrap(), 0, 4 * BLOCK)
    };
    assert_eq!(shown(first), [(0, 5000), (1, 5001), (2, 5002), (3, 5003)]);
    assert_eq!(shown(second), [(0, 5000), (1, 9000), (2, 5002), (3, 5003)]);
    assert_eq!(shown(third), shown(second));
    assert_eq!(world.maps.count(TreeId::REAP, family), 0);
    let mut tx = Transaction::new();
    assert!(release(&world.maps, &mut tx, first).unwrap());
    world.apply(&tx);
    assert_eq!(world.maps.count(TreeId::REAP, family), 1);
    assert!(release(&world.maps, &mut Transaction::new(), first).is_err(), "nobody is left to let go");
}

// Goal: the order of holders is that of a walk down the tree of versions, whatever order they come in. Method: a chain with branches
// and a branch of a branch, sorted from several orders.
#[test]
fn holders_have_the_order_of_a_walk_down() {
    let family = FamilyId(1);
    let of = |ids: &[u64]| {
        let mut path = Path::implicit(Holder::new(family));
        ids.iter().for_each(|id| path.open_child(VersionId(*id), NO_LIMIT, State::Held));
        path
    };
    let walk: [&[u64]; 8] = [&[], &[2], &[2, 3], &[2, 3, 9], &[2, 3, 9, 12], &[2, 5], &[4], &[4, 11]];
    for turn in 0..walk.len() {
        let mut paths: Vec<(usize, Path)> = walk.iter().map(|ids| of(ids)).enumerate().collect();
        paths.rotate_left(turn);
        paths.swap(0, 5);
        paths.sort_by(|(_, a), (_, b)| a.order(b));
        assert_eq!(paths.iter().map(|(at, _)| *at).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5, 6, 7]);
    }
    // As long as it takes for steps to be shared.
    let long: Vec<u64> = (2..400).collect();
    for at in (0..long.len()).step_by(7) {
        let (whole, part) = (of(&long), of(&long[..at]));
        assert_eq!((part.order(&whole), whole.order(&part)), (Ordering::Less, Ordering::Greater));
        assert_eq!(of(&[&long[..at], &[1000]].concat()).order(&whole), Ordering::Greater);
    }
    assert_eq!(of(&long).order(&of(&long)), Ordering::Equal);
}

/// Goal: the map of a version whose segments are covered by few entries passes by the older ones, however many there are, and
/// says the same of what others see. Method: a file that is written whole, or the half of it, in each of 300 versions, and a
/// block of it in the last ones; the entries met for the maps of the two newest, and of one that others lie in front of.
#[test]
fn a_map_leaps_over_what_is_covered() {
    const VERSIONS: u64 = 300;
    const SEGMENTS: u64 = 4;
    let mut world = world_with_one_file();
    for version in 0..VERSIONS {
        if version > 0 {
            keep_version(&mut world, VersionId(1000 + version));
        }
        for segment in 0..SEGMENTS {
            let from = segment * SEGMENT_BLOCKS;
            // The last ones change one block only.
            let blocks = if version < VERSIONS - 5 { SEGMENT_BLOCKS } else { 1 };
            let block = 1_000_000 + (version * SEGMENTS + segment) * 2 * SEGMENT_BLOCKS;
            write(&mut world, from + version % 2, block, (blocks - version % 2 * (blocks / 2)) as u32);
            for at in 0..blocks - version % 2 * (blocks / 2) {
                world.files[0].blocks.insert(from + version % 2 + at, block + at);
            }
        }
    }
    let last = world.files.len() as u64 - 1;
    for (file, met_max) in [(0, SEGMENTS * 40), (last as usize, SEGMENTS * 40), (3, SEGMENTS * 40)] {
        world.maps.met.set(0);
        let page = map(&world.maps, world.files[file].holder, false, 0, FILE_END, 100_000).unwrap();
        // Beside the entries, the records of all versions and those on the path.
        let met = world.maps.met.get().saturating_sub(VERSIONS);
        assert!(met <= met_max, "{met} entries met for the map of file {file}");
        assert_eq!(page.next, FILE_END);
        let others: Vec<_> = (0..world.files.len()).filter(|other| *other != file).collect();
        let mut got = Vec::new();
        for piece in page.pieces.iter().filter(|piece| piece.kind == ExtentKind::Data) {
            for b in 0..piece.len / BLOCK {
                let (at, block) = (piece.offset / BLOCK + b, piece.addr.block() + b);
                got.push((at, block));
                let shared = others.iter().any(|other| world.files[*other].blocks.get(&at) == Some(&block));
                assert_eq!(piece.shared, shared, "block {at} of file {file}");
            }
        }
        let expect: Vec<_> = world.files[file].blocks.iter().map(|(at, block)| (*at, *block)).collect();
        assert_eq!(got, expect, "file {file}");
    }
}

/// Goal: space that was set aside, and that nobody sees any more, is told of when a new reservation takes its place. Method:
/// a reservation, hidden by a hole, of a version that becomes one with the next; reserve again after each number of steps.
#[test]
fn a_hidden_reservation_that_goes_is_told() {
    let mut told = 0;
    for steps in 0..6 {
        let mut world = world_with_one_file();
        world.loses = false;
        let reserve_one = |world: &mut World| {
            let mut tx = Transaction::new();
            let path = Path::load(&world.maps, world.files[0].holder).unwrap();
            let done = reserve(&world.maps, &mut tx, &path, 7 * BLOCK, 8 * BLOCK, 100).unwrap();
            world.reserved += done.blocks;
            world.apply_freeing(&tx, done.reserved_freed);
            world.files[0].blocks.insert(7, RESERVATIONS + world.reserved);
            done
        };
        // The first version has more to move than the second, so that it is the one that stays.
        for at in 0..4 {
            write(&mut world, at * SEGMENT_BLOCKS + 9, 5000 + 2 * at, 1);
        }
        reserve_one(&mut world);
        keep_version(&mut world, VersionId(1000));
        write(&mut world, 2 * SEGMENT_BLOCKS + 20, 6000, 1);
        let mut tx = Transaction::new();
        let path = Path::load(&world.maps, world.files[0].holder).unwrap();
        punch(&world.maps, &mut tx, &path, 7 * BLOCK, 8 * BLOCK, 100).unwrap();
        world.apply(&tx);
        world.files[0].blocks.remove(&7);
        world.let_go(1);
        for _ in 0..steps {
            let mut tx = Transaction::new();
            let step = reap_step(&world.maps, &mut tx, FamilyId(5), 1, &mut ReaperMemory::default()).unwrap();
            world.apply_freeing(&tx, step.reserved_freed);
        }
        told += reserve_one(&mut world).reserved_freed.blocks;
        assert_eq!(world.stored_reservations().0, world.reserved);
    }
    assert!(told > 0, "at no moment the hidden one was still there and in the way");
}
