//! Tests of the reaper from within: its tasks, its steps, and what it finds.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use varve_device::{AlignedBuf, Device};
use varve_engine::{FamilyId, InodeId, PoolAddr, Run, Store, StoreOptions, Transaction, TreeId, VersionKey};
use varve_format::record::name::NamePosition;
use varve_format::record::xattr::xattr_key;

use varve_fs::internals::reaper::pace::{Pace, RESTS_AT_A_TIME, SPELL, Step};
use varve_fs::internals::reaper::tasks::Tasks;
use varve_fs::internals::reaper::{ENTRIES_WHEN_CRAMPED, ReapQueue, STEPS_AT_CLOSE, STEPS_IN_A_TURN, Task};
use varve_fs::internals::subvolume::Slot;

use super::*;
use crate::keyframes::nodes_of;

// Goal: a long task keeps the background from nothing else: when the reaper has rested often enough it stops, wherever it is,
// and goes on there in its next turn. Method: each kind of task, begun when its time is over, and then again.
#[test]
fn no_task_goes_on_when_its_time_is_over() {
    let f = Fixture::new(64 * MIB);
    let home = f.fs.create_subvolume(Caller::ROOT, ROOT, b"home", 0o755).unwrap().ino;
    let ino = f.fs.create(Caller::ROOT, home, b"f", 0o644).unwrap().ino;
    f.write(ino, 0, &[1; 16384]);
    let snapshot = f.fs.snapshot(home, ROOT, b"snapshot", false, false).unwrap();
    f.fs.unlink(snapshot, b"f").unwrap();
    let reserved = f.create(b"reserved");
    f.fs.fallocate(Caller::ROOT, reserved, 0, MIB, Allocate::Reserve { keep_size: true }).unwrap();
    f.fs.unlink(ROOT, b"reserved").unwrap();
    f.fs.delete_subvolume(ROOT, b"snapshot").unwrap();
    f.fs.sync().unwrap();
    let core = f.fs.core();
    let over = core.pace(u32::MAX);
    for _ in 0..RESTS_AT_A_TIME {
        assert!(!over.is_over());
        over.others.set(true);
        core.rest_after(Step::of(core.store.position(), SPELL), &over);
    }
    assert!(over.is_over());
    let task = |pace: &Pace| {
        let task = core.reap.tasks.lock().begin()?;
        let done = match task {
            Task::Orphan(ino) => core.reap_orphan(ino, pace),
            Task::Names(family) => core.reap_names(family, pace),
            Task::Subvolume { id, slot, family } => core.reap_subvolume(id, slot, family, pace),
            Task::Family(family) => core.reap_family_while(family, pace, |_| true),
        };
        Some((task, done.unwrap()))
    };
    let mut kinds = HashSet::new();
    loop {
        let position = core.store.position();
        let Some((begun, done)) = task(&over) else { break };
        // A family looks after a step whether there is time for another.
        if !matches!(begun, Task::Family(_)) {
            assert!(!done && core.store.position() == position, "{begun:?}");
            kinds.insert(std::mem::discriminant(&begun));
        }
        let (again, done) = task(&core.pace(u32::MAX)).unwrap();
        assert!(again == begun && done, "{begun:?}");
        core.reap.tasks.lock().done(begun);
    }
    assert!(kinds.len() >= 2, "{kinds:?}");
    f.fs.maintain().unwrap();
    assert_eq!(core.reap.backlog(), 0);
    f.check();
}

// Goal: who asks for a few steps, because somebody waits for space, gets these and not all of a task, which goes on from there.
// Method: a file of 8,000 scattered blocks and a subvolume of 1,000 files, deleted; four steps, then the rest four by four.
#[test]
fn a_long_task_takes_no_more_steps_than_are_allowed() {
    const STEPS: u32 = 4;
    let f = Fixture::new(128 * MIB);
    let core = f.fs.core();
    let scattered = f.create(b"scattered");
    (0..8_000).for_each(|block| f.write(scattered, block * 8192, &[1; 4096]));
    let home = f.fs.create_subvolume(Caller::ROOT, ROOT, b"home", 0o755).unwrap().ino;
    for i in 0..1_000 {
        let ino = f.fs.create(Caller::ROOT, home, format!("{i}").as_bytes(), 0o644).unwrap().ino;
        f.write(ino, 0, &[1; 4096]);
    }
    f.fs.sync().unwrap();
    let (delete_file, delete_home) =
        (|| f.fs.unlink(ROOT, b"scattered").unwrap(), || f.fs.delete_subvolume(ROOT, b"home").unwrap());
    let deletions: [&dyn Fn(); 2] = [&delete_file, &delete_home];
    for delete in deletions {
        delete();
        assert!(core.reap.has_work());
        let mut turns = 0;
        loop {
            let position = core.store.position();
            let all = core.reap_at_once(STEPS).unwrap();
            let steps = core.store.position().0 - position.0;
            assert!(steps <= u64::from(STEPS), "{steps} steps in turn {turns}");
            if all {
                break;
            }
            turns += 1;
            assert!(turns < 1_000, "it never ends");
        }
        assert!(turns > 10, "{turns} turns");
        assert_eq!(core.reap.backlog(), 0);
    }
    f.check();
}

// Goal: opening a pool finds the namespaces with work in them and no others, however many there are. Method: fifty subvolumes and a
// clone of one, when all is reaped, and again when both have deleted a file that they share.
#[test]
fn only_namespaces_with_work_are_found() {
    let f = Fixture::new(64 * MIB);
    let core = f.fs.core();
    let make = |n: usize| {
        let name = format!("{n}").into_bytes();
        let root = f.fs.create_subvolume(Caller::ROOT, ROOT, &name, 0o755).unwrap().ino;
        f.fs.create(Caller::ROOT, root, b"file", 0o644).unwrap();
        root
    };
    let roots: Vec<InodeId> = (0..50).map(make).collect();
    let clone = f.fs.snapshot(roots[7], ROOT, b"clone", false, false).unwrap();
    f.fs.maintain().unwrap();
    core.find_reap_work().unwrap();
    assert_eq!(core.reap.backlog(), 0, "nothing is to be done");
    [roots[7], clone].into_iter().for_each(|root| f.fs.unlink(root, b"file").unwrap());
    // As opening does: nothing is known of it yet.
    *core.reap.tasks.lock() = Tasks::default();
    core.find_reap_work().unwrap();
    let family = core.subvolumes.get(Slot::of(clone)).unwrap().family;
    let found = core.reap.tasks.lock().begin();
    assert_eq!((core.reap.backlog(), found), (1, Some(Task::Names(family))));
    f.fs.maintain().unwrap();
    assert_eq!(core.reap.backlog(), 0);
    f.check();
}

// Goal: opening finds the work of a namespace also where the extents beside its number are lost, which it has none of. Method: every node
// of their tree is spoilt in a pool that is closed; then a file that a subvolume and its clone share is deleted in both.
#[test]
fn a_namespace_beside_lost_extents_is_found() {
    let mut f = Fixture::new(64 * MIB);
    let home = f.fs.create_subvolume(Caller::ROOT, ROOT, b"home", 0o755).unwrap().ino;
    f.fs.create(Caller::ROOT, home, b"file", 0o644).unwrap();
    f.fs.snapshot(home, ROOT, b"clone", false, false).unwrap();
    let data = f.create(b"data");
    f.write(data, 0, &[1; 40_000]);
    f.fs.close().unwrap();
    let nodes = nodes_of(&f.device, TreeId::EXTENTS);
    assert!(!nodes.is_empty());
    nodes.into_iter().for_each(|at| f.device.write_at(at, &AlignedBuf::new(4096)).unwrap());
    f.kill();
    let roots = [&b"home"[..], b"clone"].map(|name| f.fs.lookup(ROOT, name).unwrap().ino);
    roots.into_iter().for_each(|root| f.fs.unlink(root, b"file").unwrap());
    let core = f.fs.core();
    // As opening does: nothing is known of it yet.
    *core.reap.tasks.lock() = Tasks::default();
    core.find_reap_work().unwrap();
    let family = core.subvolumes.get(Slot::of(roots[0])).unwrap().family;
    let found = core.reap.tasks.lock().begin();
    assert_eq!((core.reap.backlog(), found), (1, Some(Task::Names(family))));
}

// Goal: a step for names that finds no space is tried again with less, and then waits; with a little space all goes, in small steps
// until the task has ended. Method: a snapshot of names that are gone, deleted where nothing at all is free, not even what is kept
// for deleting, and then a block; the same with all there is.
#[test]
fn names_wait_for_space() {
    const FILES: usize = 2_000;
    let steps = [false, true].map(|full| {
        let f = Fixture::new(64 * MIB);
        let core = f.fs.core();
        let home = f.fs.create_subvolume(Caller::ROOT, ROOT, b"home", 0o755).unwrap().ino;
        let name = |i: usize| format!("{i}{}", "x".repeat(100)).into_bytes();
        for i in 0..FILES {
            f.fs.create(Caller::ROOT, home, &name(i), 0o644).unwrap();
        }
        f.fs.snapshot(home, ROOT, b"snapshot", false, false).unwrap();
        (0..FILES).for_each(|i| f.fs.unlink(home, &name(i)).unwrap());
        f.fs.delete_subvolume(ROOT, b"snapshot").unwrap();
        let position = core.store.position();
        let mut taken = Vec::new();
        if full {
            taken = f.take_all();
            for blocks in [64, 1] {
                while let Some(more) = core.store.reserve_again(blocks, 0, 0).unwrap() {
                    taken.push(more);
                }
            }
            let (backlog, inodes) = (core.reap.backlog(), f.fs.statfs().unwrap().files);
            assert_eq!(f.fs.maintain().unwrap_err().errno(), 28);
            assert_eq!(core.reap.cramped.load(Ordering::Relaxed), ENTRIES_WHEN_CRAMPED.len() - 1);
            let unchanged = (core.store.position(), core.reap.backlog(), f.fs.statfs().unwrap().files);
            assert_eq!(unchanged, (position, backlog, inodes));
            // Some of them together.
            let some = taken.iter().rposition(|one| one.data_blocks() == 64).unwrap();
            taken.swap_remove(some);
        }
        f.fs.maintain().unwrap();
        assert_eq!(core.reap.backlog(), 0);
        assert_eq!(core.reap.cramped.load(Ordering::Relaxed), 0, "it has ended");
        let steps = core.store.position().0 - position.0;
        drop(taken);
        f.check();
        steps
    });
    assert!(steps[1] > 3 * steps[0], "{steps:?}");
}

// Goal: closing reaps some of what there is and does not wait for all, and the next opening finds the rest. Method: files with
// reservations are deleted, each a step of its own; steps and device writes of the closing.
#[test]
fn closing_reaps_some() {
    const FILES: u64 = 20 * STEPS_AT_CLOSE as u64;
    let mut f = Fixture::new(128 * MIB);
    let name = |i: u64| format!("{i}").into_bytes();
    for i in 0..FILES {
        let ino = f.create(&name(i));
        f.fs.fallocate(Caller::ROOT, ino, 0, 4096, Allocate::Reserve { keep_size: true }).unwrap();
    }
    (0..FILES).for_each(|i| f.fs.unlink(ROOT, &name(i)).unwrap());
    f.fs.checkpoint().unwrap();
    assert_eq!(f.fs.reap_backlog(), FILES);
    let (position, stats) = (f.fs.position().0, f.device.stats());
    f.fs.close().unwrap();
    let (steps, writes) = (f.fs.position().0 - position, f.device.stats().since(&stats).writes_count);
    assert_eq!(f.fs.reap_backlog(), FILES - u64::from(STEPS_AT_CLOSE));
    assert!(steps <= u64::from(STEPS_AT_CLOSE) + 2 && writes < 100, "{steps} steps, {writes} writes");
    f.reopen();
    assert_eq!(f.fs.reap_backlog(), 0);
    f.check();
}

// Goal: a pool in which the reaper finds no space is closed and opened all the same, with all that is in it. Method: a snapshot
// of names that are gone is deleted where nothing at all is free: a file has what files may have, and entries that nobody looks for have
// what is kept for deleting.
#[test]
fn a_pool_without_space_to_reap_closes_and_opens() {
    let mut f = Fixture::new(64 * MIB);
    let home = f.fs.create_subvolume(Caller::ROOT, ROOT, b"home", 0o755).unwrap().ino;
    let name = |i: usize| format!("{i}{}", "x".repeat(100)).into_bytes();
    for i in 0..2_000 {
        f.fs.create(Caller::ROOT, home, &name(i), 0o644).unwrap();
    }
    f.fs.snapshot(home, ROOT, b"snapshot", false, false).unwrap();
    (0..2_000).for_each(|i| f.fs.unlink(home, &name(i)).unwrap());
    let big = f.create(b"big");
    let (data, mut at) = (vec![2; MIB as usize], 0);
    while let Ok(written) = f.fs.write(Caller::ROOT, big, at, &data) {
        at += written as u64;
    }
    f.fs.sync().unwrap();
    f.fs.delete_subvolume(ROOT, b"snapshot").unwrap();
    let mut position = 256..;
    for bytes in [1_000, 100] {
        loop {
            let position = NamePosition(position.next().unwrap());
            let key = xattr_key(FamilyId(1), InodeId(1 << 40), position, 0, VersionKey(1));
            let mut tx = Transaction::new();
            tx.put(TreeId::XATTRS, &key, &vec![3; bytes]);
            tx.privileged();
            if f.fs.core().apply(tx).is_err() {
                break;
            }
        }
    }
    // And most of the blocks that were too few for one more.
    let store = &f.fs.core().store;
    while store.reserve_again(5, 0, 0).unwrap().is_some() {
        let mut one = store.reserve_again(1, 0, 0).unwrap().unwrap();
        let mut tx = Transaction::new();
        tx.place_summed(store.allocate(&mut one, 1, PoolAddr::NULL).unwrap()[0], &[0]);
        tx.privileged();
        store.apply(tx, Some(&mut one)).unwrap();
    }
    assert_eq!(f.fs.maintain().unwrap_err().errno(), 28);
    f.fs.close().unwrap();
    f.reopen();
    assert!(f.fs.reap_backlog() > 0);
    assert!(f.read_all(big).len() as u64 == at && f.list(home).is_empty());
}

/// Has everything taken that can be, in runs of no more than so many blocks.
fn take_all_blocks(store: &Store, taken: &mut Vec<Run>) {
    for blocks in [64, 1, 1] {
        while let Some(mut space) = store.reserve_again(blocks, 0, 0).unwrap() {
            let mut tx = Transaction::new();
            for run in store.allocate(&mut space, blocks as u32, PoolAddr::NULL).unwrap() {
                tx.place_summed(run, &vec![0; run.blocks as usize]);
                taken.push(run);
            }
            tx.privileged();
            store.apply(tx, Some(&mut space)).unwrap();
        }
        store.reclaim().unwrap();
    }
}

// Goal: a snapshot that is not complete, and that there is no space to remove, keeps no pool from being opened for writing: it is not
// shown, and goes at the next opening with space. Method: it waits for a file; the machine dies, and all blocks are in use, also those
// that are kept for deleting.
#[test]
fn a_pool_without_space_to_remove_a_snapshot_opens() {
    let mut f = Fixture::new(64 * MIB);
    let home = f.fs.create_subvolume(Caller::ROOT, ROOT, b"home", 0o755).unwrap().ino;
    let file = f.fs.create(Caller::ROOT, home, b"file", 0o644).unwrap().ino;
    f.fs.sync().unwrap();
    f.write(file, 0, &[1; 9000]);
    let incomplete = f.fs.snapshot(home, ROOT, b"incomplete", true, false).unwrap();
    f.fs.commit(f.fs.position()).unwrap();
    let (device, mut taken) = (Arc::new(f.device.snapshot()), Vec::new());
    let options = StoreOptions { background: false, ..StoreOptions::default() };
    let (store, _) = Store::open(vec![device.clone()], options).unwrap();
    take_all_blocks(&store, &mut taken);
    store.commit(store.position()).unwrap();
    drop(store);
    f.device = device;
    f.kill();
    let there = |f: &Fixture| f.fs.core().subvolumes.get(Slot::of(incomplete)).is_ok();
    assert!(there(&f), "there was space to remove it");
    assert_eq!(f.list(ROOT), [b"home".to_vec()]);
    let mut tx = Transaction::new();
    taken.into_iter().for_each(|run| tx.free(run));
    tx.privileged();
    f.fs.core().apply(tx).unwrap();
    f.create(b"another");
    f.reopen();
    assert!(!there(&f) && f.fs.reap_backlog() == 0);
    f.check();
}

// Goal: what finds no space waits for the families that free it, and is refused when there are none. Method: an orphan
// that finds none beside two families.
#[test]
fn families_free_space() {
    let queue = ReapQueue::default();
    let orphan = Task::Orphan(InodeId(1));
    queue.push(orphan);
    queue.push(Task::Family(FamilyId(1)));
    queue.push(Task::Family(FamilyId(2)));
    let begin = || queue.tasks.lock().begin();
    assert_eq!(begin(), Some(orphan));
    assert!(queue.tasks.lock().refuse(orphan));
    for family in [1, 2] {
        let task = Task::Family(FamilyId(family));
        assert_eq!(begin(), Some(task));
        assert!(queue.family_goes_on(STEPS_IN_A_TURN), "to its end");
        queue.tasks.lock().done(task);
        assert_eq!(begin(), Some(orphan), "it is tried again after each");
        assert_eq!(queue.tasks.lock().refuse(orphan), family == 1);
    }
}

// Goal: what a device that failed has kept from being reaped is tried again however often something else fails meanwhile, waits once, and
// hurries nobody. Method: one task that is put off once, and one that is put off again each time; then many that wait for nothing else.
#[test]
fn what_is_put_off_is_tried_again() {
    let queue = ReapQueue::default();
    let [once, always] = [1, 2].map(|number| Task::Orphan(InodeId(number)));
    queue.put_off(once, "one block");
    let mut tried = Vec::new();
    for _ in 0..100 {
        queue.put_off(always, "another block");
        queue.look_at_the_ailing();
        let begin = || queue.tasks.lock().begin();
        while let Some(task) = begin() {
            tried.push(task);
            if task == once {
                queue.recovered(task);
            }
            queue.tasks.lock().done(task);
        }
        assert!(queue.backlog() <= 2, "{}", queue.backlog());
    }
    // After 20 looks, and 40 more.
    assert_eq!((tried.len(), tried.iter().filter(|task| **task == once).count()), (3, 1), "{tried:?}");
    for number in 0..17 {
        queue.put_off(Task::Orphan(InodeId(number)), "one block");
    }
    assert!(queue.backlog() >= 17 && queue.at_ease());
}

// Goal: who waits for space has that of what a device kept from being reaped, when it is well again, though the background would leave it
// alone for much longer. Method: a file with reservations is deleted and put off until it is seldom tried; all other space is taken.
#[test]
fn who_waits_for_space_tries_what_is_put_off() {
    let f = Fixture::new(64 * MIB);
    let core = f.fs.core();
    let big = f.create(b"big");
    f.fs.fallocate(Caller::ROOT, big, 0, 16 * MIB, Allocate::Reserve { keep_size: true }).unwrap();
    f.fs.unlink(ROOT, b"big").unwrap();
    let begin = || core.reap.tasks.lock().begin();
    let (task, mut looks) = (begin().unwrap(), 0);
    for _ in 0..6 {
        core.reap.put_off(task, "one block");
        core.reap.tasks.lock().done(task);
        while begin().is_none() {
            core.reap.look_at_the_ailing();
            looks += 1;
        }
    }
    core.reap.put_off(task, "one block");
    core.reap.tasks.lock().done(task);
    assert!(looks > 1_000);
    (0..100).for_each(|_| core.reap.look_at_the_ailing());
    assert!(begin().is_none() && core.reap.backlog() == 1);
    let taken = f.take_all();
    let file = f.create(b"file");
    f.write(file, 0, &vec![1; 4 * MIB as usize]);
    f.fs.sync().unwrap();
    assert_eq!(core.reap.backlog(), 0);
    drop(taken);
    f.check();
}
