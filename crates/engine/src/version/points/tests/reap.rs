//! What reaping costs, what it tells, and what a check says of it.

use super::*;
use crate::problem::{Problem, ProblemKind as Kind};

/// Reaps until there is nothing to do; gives the steps, the entries changed in all, and the values that died.
fn reap_all(maps: &mut Maps, entries_max: u64) -> (u64, u64, Vec<Vec<u8>>) {
    let (mut steps, mut entries, mut dead) = (0, 0, Vec::new());
    loop {
        let mut tx = Transaction::new();
        let on_dead = &mut |_: &mut Transaction, _: TreeId, _: &[u8], value: &[u8]| {
            dead.push(value.to_vec());
            Ok(true)
        };
        let progress =
            reap_points_step(maps, &mut tx, FAMILY, entries_max, &mut ReaperMemory::default(), on_dead)
                .unwrap();
        assert!(progress.entries <= 3 * entries_max + 3, "{progress:?}");
        maps.apply(&tx);
        if !progress.more {
            return (steps, entries, dead);
        }
        (steps, entries) = (steps + 1, entries + progress.entries);
        assert!(steps < 100_000);
    }
}

fn let_go(maps: &mut Maps, holder: Holder) {
    let mut tx = Transaction::new();
    release(maps, &mut tx, holder).unwrap();
    maps.apply(&tx);
}

fn fork(maps: &mut Maps, holder: &mut Holder) -> Holder {
    let mut tx = Transaction::new();
    share(maps, &mut tx, holder).unwrap();
    maps.apply(&tx);
    *holder
}

fn open(maps: &mut Maps, holder: &mut Holder, id: u64) {
    let mut tx = Transaction::new();
    branch(maps, &mut tx, holder, &mut || VersionId(id), false).unwrap();
    maps.apply(&tx);
}

/// A namespace with `n` inodes, and its only holder.
fn plain(n: u64) -> (Maps, Holder) {
    let (mut maps, holder) = (Maps::default(), Holder::new(FAMILY));
    for at in 0..n {
        put_one(&mut maps, holder, TreeId::INODES, at, b"first");
    }
    (maps, holder)
}

fn walk(maps: &Maps, holders: &[(u64, u64)]) -> (Vec<Problem>, u64) {
    let holders: Vec<_> = holders.iter().map(|(id, count)| (VersionId(*id), *count)).collect();
    let (mut problems, mut live) = (Vec::new(), 0);
    walk_points(maps, FAMILY, &holders, &mut problems, &mut |_, _, _| live += 1).unwrap();
    (problems, live)
}

/// Goal: a clone dies at the cost of what it changed, not of what it shows. Method: 20,000 inodes, a clone with 10 of
/// its own, three of them over inherited ones; count entries met.
#[test]
fn a_clone_dies_at_the_cost_of_its_own() {
    let (mut maps, mut origin) = plain(20_000);
    let mut clone = fork(&mut maps, &mut origin);
    open(&mut maps, &mut clone, 100);
    for at in 19_997..20_007 {
        put_one(&mut maps, clone, TreeId::INODES, at, b"clone");
    }
    delete_one(&mut maps, clone, TreeId::INODES, 5);
    let_go(&mut maps, clone);
    maps.met.set(0);
    maps.descents.set(0);
    let (steps, _, dead) = reap_all(&mut maps, 4);
    assert_eq!(dead, vec![b"clone".to_vec(); 10]);
    let (met, descents) = (maps.met.get(), maps.descents.get());
    assert!(steps <= 5 && met < 100 && descents < 100, "{steps} steps, {met} met, {descents} descents");
    assert_eq!(maps.of(TreeId::INODES).count(), 20_000);
    assert_eq!(walk(&maps, &[(5, 1)]), (vec![], 20_000));
}

/// Goal: deleting an old snapshot costs what differs, also where the first version has no index. Method: 20,000 inodes,
/// a snapshot, 10 changes; let the snapshot go; count changes.
#[test]
fn an_old_snapshot_dies_at_the_cost_of_what_differs() {
    let (mut maps, mut head) = plain(20_000);
    let snapshot = fork(&mut maps, &mut head);
    open(&mut maps, &mut head, 100);
    for at in 0..9 {
        put_one(&mut maps, head, TreeId::INODES, at, b"new");
    }
    delete_one(&mut maps, head, TreeId::INODES, 9);
    let_go(&mut maps, snapshot);
    maps.met.set(0);
    let (steps, entries, dead) = reap_all(&mut maps, 100);
    assert_eq!(dead, vec![b"first".to_vec(); 10]);
    assert!(steps <= 4 && entries <= 40 && maps.met.get() < 100, "{steps} {entries} {:?}", maps.met);
    assert_eq!(maps.of(TreeId::INODES).count(), 19_999);
    assert_eq!((maps.of(TreeId::HELD).count(), maps.of(TreeId::VERSIONS).count()), (0, 0));
    assert_eq!(walk(&maps, &[(100, 1)]), (vec![], 19_999));
}

/// Goal: the smaller side moves, in steps of bounded work, though the first version has no index. Method: a snapshot of
/// 10 inodes, then 5,000 new ones; let the snapshot go; only 10 entries move.
#[test]
fn a_small_first_version_moves_down() {
    let (mut maps, mut head) = plain(10);
    let snapshot = fork(&mut maps, &mut head);
    open(&mut maps, &mut head, 100);
    for at in 5..5_000 {
        put_one(&mut maps, head, TreeId::INODES, at, b"new");
    }
    let_go(&mut maps, snapshot);
    maps.met.set(0);
    let (steps, entries, dead) = reap_all(&mut maps, 8);
    assert_eq!(dead.len(), 5);
    assert!(
        entries <= 40 && steps > 20,
        "{steps} steps, {entries} changes: a look at everything, in small steps"
    );
    assert!(maps.met.get() < 20_000, "{:?}", maps.met);
    assert_eq!(maps.of(TreeId::INODES).count(), 5_000);
    assert_eq!(maps.of(TreeId::HELD).count(), 5_000);
    assert_eq!(walk(&maps, &[(100, 1)]), (vec![], 5_000));
}

/// Goal: what nobody sees goes from a version with several children, at the cost of what one of them changed. Method:
/// 20,000 inodes, 3 clones that each replace 4 of them, 2 in common; the origin goes, then one clone.
#[test]
fn what_all_clones_hide_goes() {
    let (mut maps, mut origin) = plain(20_000);
    let mut clones: Vec<Holder> = (0..3).map(|_| fork(&mut maps, &mut origin)).collect();
    for (n, clone) in clones.iter_mut().enumerate() {
        open(&mut maps, clone, 100 + n as u64);
        for at in [1, 2, 10 + n as u64, 20 + n as u64] {
            put_one(&mut maps, *clone, TreeId::INODES, at, b"clone");
        }
    }
    let_go(&mut maps, origin);
    maps.met.set(0);
    let (_, _, dead) = reap_all(&mut maps, 10);
    assert_eq!(dead, vec![b"first".to_vec(); 2]);
    assert!(maps.met.get() < 200, "{:?}", maps.met);
    assert_eq!(walk(&maps, &[(100, 1), (101, 1), (102, 1)]), (vec![], 20_000 - 2 + 12));
    // The two that are left both replace one more: a write notes it.
    put_one(&mut maps, clones[0], TreeId::INODES, 7, b"clone");
    put_one(&mut maps, clones[1], TreeId::INODES, 7, b"clone");
    delete_one(&mut maps, clones[2], TreeId::INODES, 7);
    let (_, _, dead) = reap_all(&mut maps, 10);
    assert_eq!(dead, vec![b"first".to_vec()]);
    assert_eq!(walk(&maps, &[(100, 1), (101, 1), (102, 1)]).0, []);
    assert_eq!(maps.of(TreeId::INODES).filter(|(_, value)| value.is_empty()).count(), 0, "it hides nothing");
    let_go(&mut maps, clones[2]);
    maps.met.set(0);
    let (_, _, dead) = reap_all(&mut maps, 10);
    assert_eq!(dead, vec![b"clone".to_vec(); 4]);
    assert!(maps.met.get() < 200, "{:?}", maps.met);
    assert_eq!(walk(&maps, &[(100, 1), (101, 1)]).0, []);
}

/// Goal: of many clones of an origin that is gone, each dies at the cost of its own, whatever the origin has and however many
/// the others are. Method: 20,000 inodes, 200 clones with 10 changes each, one after the other let go;
/// count entries met.
#[test]
fn many_clones_die_one_after_the_other() {
    const CLONES: u64 = 200;
    let (mut maps, mut origin) = plain(20_000);
    let mut clones: Vec<Holder> = (0..CLONES).map(|_| fork(&mut maps, &mut origin)).collect();
    for (n, clone) in (0..).zip(clones.iter_mut()) {
        open(&mut maps, clone, 100 + n);
        (0..10).for_each(|at| put_one(&mut maps, *clone, TreeId::INODES, 50 * n + at, b"clone"));
    }
    let_go(&mut maps, origin);
    reap_all(&mut maps, 50);
    while let Some(clone) = clones.pop().filter(|_| !clones.is_empty()) {
        let_go(&mut maps, clone);
        maps.met.set(0);
        let (_, entries, dead) = reap_all(&mut maps, 50);
        assert!(dead.iter().filter(|value| *value == b"clone").count() == 10 && entries < 60, "{entries}");
        let met = maps.met.get();
        assert!(met < 400, "{met} entries met for one of {} clones", clones.len() + 1);
    }
    assert_eq!((maps.of(TreeId::INODES).count(), maps.of(TreeId::VERSIONS).count()), (20_000, 0));
}

/// Goal: nothing is moved into a version that dies. Method: three versions that nobody holds, the youngest being merged
/// with its parent when it died; look for puts.
#[test]
fn nothing_moves_into_what_dies() {
    let (mut maps, tree) = (plain(5).0, TreeId::INODES);
    maps.put_version(5, &version_record(None, 5, 0, &[6]));
    maps.put_version(6, &version_record(Some(5), 6, 0, &[7]));
    let dies = VersionRecord { drain: version::Drain::Down, ..version_record(Some(6), 7, 0, &[]) };
    maps.put_version(7, &dies);
    for (n, key) in (0..40).map(|n| (n, 6 + n % 2)) {
        maps.trees.insert((tree.0, entry_key(&prefix(tree, n), VersionKey(key)).to_vec()), b"value".to_vec());
        maps.trees.insert((TreeId::HELD.0, held(tree, &prefix(tree, n), key)), vec![]);
    }
    for id in 5..8 {
        maps.trees.insert((TreeId::REAP.0, reap_key(FAMILY, Work::Going(VersionId(id)))), vec![]);
    }
    let (mut dead, mut more) = (0, true);
    while more {
        let mut tx = Transaction::new();
        let on_dead = &mut |_: &mut Transaction, _: TreeId, _: &[u8], _: &[u8]| {
            dead += 1;
            Ok(true)
        };
        more =
            reap_points_step(&maps, &mut tx, FAMILY, 7, &mut ReaperMemory::default(), on_dead).unwrap().more;
        let moves = tx.ops().iter().filter(|op| matches!(op, Op::Put { tree: TreeId::INODES, .. })).count();
        assert_eq!(moves, 0, "something moves into what dies");
        maps.apply(&tx);
    }
    assert_eq!((dead, maps.trees.len()), (45, 0));
}

/// Goal: a value that must not die yet ends the step, and nothing is lost or told twice. Method: only one a step; kill,
/// drain both ways, recheck.
#[test]
fn a_value_may_be_put_off() {
    let (mut maps, mut origin) = plain(30);
    let mut clones: Vec<Holder> = (0..2).map(|_| fork(&mut maps, &mut origin)).collect();
    for (n, clone) in clones.iter_mut().enumerate() {
        open(&mut maps, clone, 100 + n as u64);
        for at in 0..20 {
            put_one(&mut maps, *clone, TreeId::INODES, at, b"clone");
        }
    }
    let_go(&mut maps, origin);
    let (mut dead, mut steps) = (0, 0);
    for round in 0..2 {
        if round == 1 {
            let_go(&mut maps, clones[0]);
        }
        loop {
            let (mut tx, mut asked) = (Transaction::new(), 0);
            let on_dead = &mut |_: &mut Transaction, _: TreeId, _: &[u8], _: &[u8]| {
                asked += 1;
                Ok(asked == 1)
            };
            let progress =
                reap_points_step(&maps, &mut tx, FAMILY, 50, &mut ReaperMemory::default(), on_dead).unwrap();
            maps.apply(&tx);
            if !progress.more {
                break;
            }
            (dead, steps) = (dead + asked.min(1), steps + 1);
            assert!(steps < 1000);
        }
        assert_eq!(dead, [20, 40][round]);
    }
    assert_eq!(walk(&maps, &[(101, 1)]), (vec![], 30));
}

/// An entry that is put, or taken away.
type Change = ((u16, Vec<u8>), Option<Vec<u8>>);

/// Goal: the walk names each kind of damage it knows. Method: plant one at a time in a small valid namespace.
#[test]
fn the_walk_names_the_damage() {
    let tree = TreeId::NAMES;
    let (mut maps, mut origin) = plain(3);
    let mut clones: Vec<Holder> = (0..2).map(|_| fork(&mut maps, &mut origin)).collect();
    for (n, clone) in clones.iter_mut().enumerate() {
        open(&mut maps, clone, 100 + n as u64);
        put_one(&mut maps, *clone, tree, n as u64, b"clone");
    }
    put_one(&mut maps, origin, tree, 9, b"first");
    let_go(&mut maps, origin);
    reap_all(&mut maps, 10);
    let holders = [(100, 1), (101, 1)];
    assert_eq!(walk(&maps, &holders), (vec![], 6));
    let entry = |n, version| (tree.0, entry_key(&prefix(tree, n), VersionKey(version)).to_vec());
    let index = |n, version| (TreeId::HELD.0, held(tree, &prefix(tree, n), version));
    let work = |work| (TreeId::REAP.0, reap_key(FAMILY, work));
    let value = b"x".to_vec();
    let damaged: [(Kind, Vec<Change>); 11] = [
        (Kind::EntryForeign, vec![(entry(1, 77), Some(value.clone()))]),
        (Kind::KeyMalformed, vec![((tree.0, prefix(tree, 1)), Some(value.clone()))]),
        (Kind::HeldMissing, vec![(index(0, 100), None)]),
        (Kind::HeldStray, vec![(index(5, 100), Some(vec![]))]),
        (Kind::HeldMalformed, vec![((TreeId::HELD.0, index(5, 100).1[..20].to_vec()), Some(vec![]))]),
        (
            Kind::EntryUnseen,
            [100, 101]
                .into_iter()
                .flat_map(|v| [(entry(9, v), Some(value.clone())), (index(9, v), Some(vec![]))])
                .collect(),
        ),
        (Kind::WhiteoutIdle, vec![(entry(4, 101), Some(vec![])), (index(4, 101), Some(vec![]))]),
        (Kind::ReapStray, vec![(work(Work::Going(VersionId(100))), Some(vec![]))]),
        (
            Kind::ReapMalformed,
            vec![(work(Work::Place(VersionId(100), TreeId::EXTENTS, &[0; 8])), Some(vec![]))],
        ),
        (
            Kind::VersionHolders,
            vec![(
                (TreeId::VERSIONS.0, version::encode_key(FAMILY, VersionId(100)).to_vec()),
                Some(version_record(Some(5), 100, 2, &[]).encode().to_vec()),
            )],
        ),
        (
            Kind::VersionParent,
            vec![(
                (TreeId::VERSIONS.0, version::encode_key(FAMILY, VersionId(100)).to_vec()),
                Some(version_record(Some(6), 100, 1, &[]).encode().to_vec()),
            )],
        ),
    ];
    for (kind, changes) in damaged {
        let mut maps = maps.clone();
        for (key, value) in changes {
            match value {
                Some(value) => maps.trees.insert(key, value),
                None => maps.trees.remove(&key),
            };
        }
        let problems = walk(&maps, &holders).0;
        assert!(problems.iter().any(|problem| problem.kind == kind), "{kind:?} is not in {problems:?}");
    }
}

/// Goal: a store full of nonsense gives errors and reports, never a panic and never a loop. Method: change bytes, drop and
/// double entries of a busy namespace, and call everything.
#[test]
fn hostile_stores_do_not_panic() {
    let mut noticed = 0;
    for seed in 0..400 {
        let mut random = Random(seed);
        let (mut maps, origin) = plain(12);
        let mut holders = vec![origin];
        for id in 0..6 {
            let from = random.below(holders.len() as u64) as usize;
            let mut other = fork(&mut maps, &mut holders[from]);
            open(&mut maps, &mut other, 100 + id);
            holders.push(other);
            for _ in 0..6 {
                let (tree, n) = (random.pick(&TREES), random.below(12));
                match random.below(3) {
                    0 => delete_one(&mut maps, other, tree, n),
                    _ => put_one(&mut maps, other, tree, n, b"value"),
                }
            }
        }
        for _ in 0..random.below(5) {
            let gone = holders.remove(random.below(holders.len() as u64) as usize);
            let_go(&mut maps, gone);
        }
        for _ in 0..random.below(12) {
            let mut tx = Transaction::new();
            reap_points_step(&maps, &mut tx, FAMILY, 2, &mut ReaperMemory::default(), &mut |_, _, _, _| {
                Ok(true)
            })
            .unwrap();
            maps.apply(&tx);
        }
        for _ in 0..1 + random.below(4) {
            let at = random.below(maps.trees.len() as u64) as usize;
            let ((tree, mut key), mut value) =
                maps.trees.iter().nth(at).map(|(k, v)| (k.clone(), v.clone())).unwrap();
            if random.below(4) > 0 {
                maps.trees.remove(&(tree, key.clone()));
            }
            let bytes = if value.is_empty() || random.below(3) == 0 { &mut key } else { &mut value };
            let byte = random.below(bytes.len() as u64) as usize;
            bytes[byte] ^= 1 << random.below(8);
            maps.trees.insert((tree, key), value);
        }
        noticed += usize::from(
            !walk(&maps, &holders.iter().map(|h| (h.version.0, 1)).collect::<Vec<_>>()).0.is_empty(),
        );
        for holder in &holders {
            let Ok(path) = Path::load(&maps, *holder) else { continue };
            for tree in TREES {
                let at = prefix(tree, random.below(12));
                drop(find(&maps, &path, tree, &at));
                drop(scan(&maps, &path, tree, &at[..8], &at[..8], &mut |_, _, _| Ok(true)));
                drop(put(&maps, &mut Transaction::new(), &path, tree, &at, vec![1].into()));
                drop(delete(&maps, &mut Transaction::new(), &path, tree, &at));
            }
        }
        drop(pending_points_families(&maps, None, 10));
        for step in 0.. {
            assert!(step < 3_000, "seed {seed}: the reaper does not end");
            let mut tx = Transaction::new();
            match reap_points_step(
                &maps,
                &mut tx,
                FAMILY,
                3,
                &mut ReaperMemory::default(),
                &mut |_, _, _, _| Ok(true),
            ) {
                Ok(progress) if progress.more => maps.apply(&tx),
                _ => break,
            }
        }
    }
    assert!(noticed > 150, "the walk noticed {noticed} of 400");
}

/// Goal: when the last who saw something deletes it, the whiteouts of all others hide nothing any more, and go a few a step, to
/// the last. Method: 300 writable clones of an origin that is gone delete the same inode; each step is bounded ([`reap_all`]), and
/// nothing is left of it.
#[test]
fn whiteouts_that_hide_nothing_go_a_few_a_step() {
    let (mut maps, mut origin) = plain(2);
    let mut clones: Vec<_> = (0..300).map(|_| fork(&mut maps, &mut origin)).collect();
    let_go(&mut maps, origin);
    for (n, clone) in (100..).zip(&mut clones) {
        open(&mut maps, clone, n);
        delete_one(&mut maps, *clone, TreeId::INODES, 0);
    }
    let (steps, _, dead) = reap_all(&mut maps, 10);
    assert_eq!(dead, vec![b"first".to_vec()]);
    assert!(steps >= 30, "{steps} steps");
    assert_eq!(maps.of(TreeId::INODES).count(), 1);
    assert_eq!((maps.of(TreeId::HELD).count(), maps.of(TreeId::REAP).count()), (0, 0));
}

/// Goal: the marks of places that outlived their version go a few hundred a step, however many there are. Method: of two clones of an
/// origin that is gone one hides 5,000 inodes, and the other goes, so that the origin becomes one with the first; the largest step.
#[test]
fn marks_of_a_version_that_is_gone_go_a_few_a_step() {
    let (mut maps, mut origin) = plain(5_000);
    let mut clones: Vec<_> = (0..2).map(|_| fork(&mut maps, &mut origin)).collect();
    let_go(&mut maps, origin);
    for (n, clone) in (100..).zip(&mut clones) {
        open(&mut maps, clone, n);
    }
    (0..5_000).for_each(|at| put_one(&mut maps, clones[0], TreeId::INODES, at, b"clone"));
    let_go(&mut maps, clones[1]);
    let (mut largest, mut steps, mut more) = (0, 0, true);
    while more {
        let mut tx = Transaction::new();
        let memory = &mut ReaperMemory::default();
        more = reap_points_step(&maps, &mut tx, FAMILY, 10, memory, &mut |_, _, _, _| Ok(true)).unwrap().more;
        (largest, steps) = (largest.max(tx.ops().len()), steps + 1);
        maps.apply(&tx);
    }
    assert!(largest <= 600, "{largest} operations in one of {steps} steps");
    assert_eq!((maps.of(TreeId::INODES).count(), maps.of(TreeId::REAP).count()), (5_000, 0));
}

/// Goal: of many clones of an origin that is gone each puts anew what the origin has deleted at the cost of a few entries, and the
/// whiteout goes with the last who sees it. Method: an older snapshot that is held and has an inode, which 1,000 clones of the next
/// version lack and then put one after the other; count what is met.
#[test]
fn a_whiteout_of_a_star_is_rechecked_at_the_cost_of_a_few() {
    const CLONES: u64 = 1000;
    let (mut maps, mut origin) = plain(2);
    let snapshot = fork(&mut maps, &mut origin);
    open(&mut maps, &mut origin, 100);
    delete_one(&mut maps, origin, TreeId::INODES, 0);
    let mut clones: Vec<_> = (0..CLONES).map(|_| fork(&mut maps, &mut origin)).collect();
    for (n, clone) in (200..).zip(&mut clones) {
        open(&mut maps, clone, n);
    }
    let_go(&mut maps, origin);
    let whiteouts = |maps: &Maps| maps.of(TreeId::INODES).filter(|(_, value)| value.is_empty()).count();
    let (mut memory, mut met, mut descents) = (ReaperMemory::default(), 0, 0);
    for (n, clone) in clones.iter().enumerate() {
        assert_eq!(whiteouts(&maps), 1, "clone {n} sees it");
        put_one(&mut maps, *clone, TreeId::INODES, 0, b"clone");
        let mut more = true;
        while more {
            let mut tx = Transaction::new();
            let cost = maps.cost(|| {
                let on_dead = &mut |_: &mut Transaction, _: TreeId, _: &[u8], _: &[u8]| Ok(true);
                more = reap_points_step(&maps, &mut tx, FAMILY, 50, &mut memory, on_dead).unwrap().more;
            });
            (descents, met) = (descents + cost.0, met + cost.1);
            maps.apply(&tx);
        }
    }
    assert_eq!(
        (whiteouts(&maps), found(&maps, snapshot, TreeId::INODES, 0)),
        (0, Some((5, b"first".to_vec())))
    );
    let (met, descents) = (met / CLONES, descents / CLONES);
    assert!(met < 60 && descents < 60, "{met} entries met and {descents} descents for a clone");
}
