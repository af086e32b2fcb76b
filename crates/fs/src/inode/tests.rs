use super::*;
use crate::met::SLOT_BITS;

// Goal: of a subvolume that is gone nothing stays in the table but what somebody has. Method: three subvolumes, of one an inode is kept and
// one is open, and then they are not.
#[test]
fn a_subvolume_leaves_the_table() {
    let table = InodeTable::default();
    let full = |slot: u32, local: u64| Slot(slot).full(InodeId(local));
    for slot in 4..7 {
        (1..100).for_each(|local| drop(table.state(full(slot, local))));
    }
    let kept = table.state(full(5, 8));
    table.state(full(5, 9)).inner.write().opens = 1;
    assert!(!table.clear(Slot(5)));
    let left = |slot: u32| (1..100).filter(|at| table.known(full(slot, *at)).is_some()).count();
    assert_eq!([4, 5, 6].map(left), [99, 2, 99]);
    drop(kept);
    table.state(full(5, 9)).inner.write().opens = 0;
    assert!(table.clear(Slot(5)) && table.clear(Slot(5)) && table.clear(Slot(8)));
    assert_eq!([4, 5, 6].map(left), [99, 0, 99]);
    for _ in 0..100 {
        (1..=5000).for_each(|local| drop(table.state(full(5, local))));
        assert!(table.clear(Slot(5)));
    }
    for shard in &table.shards {
        let shard = shard.lock();
        assert!(shard.oldest.len() <= 2 * shard.states.len() + VOID_MAX, "what was is remembered");
    }
}

// Goal: a state that is let go of early goes, unless somebody has it, has it open, or is changing it. Method: one of each kind.
#[test]
fn what_is_unused_goes_early() {
    let table = InodeTable::default();
    let state = |ino: u64| table.state(InodeId(ino));
    let held = state(1);
    state(2).inner.write().opens = 1;
    (1..=3).for_each(|ino| table.let_go_unused(state(ino)));
    let is_known = |ino: u64| table.known(InodeId(ino)).is_some();
    assert_eq!([1, 2, 3].map(is_known), [true, true, false]);
    let changing = state(4);
    let inner = changing.inner.write();
    table.let_go_unused(changing.clone());
    drop(inner);
    assert!(is_known(4));
    state(2).inner.write().opens = 0;
    drop((held, changing));
    [1, 2, 4].into_iter().for_each(|ino| table.let_go_unused(state(ino)));
    assert_eq!([1, 2, 4].map(is_known), [false; 3]);
    table.let_go_unused(Arc::new(InodeState::new(InodeId(5))));
}

// Goal: of a subvolume each inode is met that is in the table, and a subvolume without any is not looked for. Method: three
// subvolumes, one of which comes back after it was asked for; what is met, and the marks.
#[test]
fn inodes_of_a_subvolume_are_met() {
    let table = InodeTable::default();
    let met = |slot: u32| {
        let mut met = Vec::new();
        table.each_of(Slot(slot), |state| met.push(state.ino));
        met.sort_unstable();
        met
    };
    let full = |slot: u32, local: u64| Slot(slot).full(InodeId(local));
    let last = (1 << SLOT_BITS) - 1;
    for local in 1..100 {
        table.state(full(5, local));
        table.state(full(last, local));
    }
    assert_eq!((met(4), met(6)), (vec![], vec![]));
    for slot in [5, last, 5] {
        assert_eq!(met(slot), (1..100).map(|local| full(slot, local)).collect::<Vec<_>>());
    }
    table.shards.iter().for_each(|shard| *shard.lock() = Shard::default());
    assert!(met(5).is_empty() && !table.met.take(Slot(5)), "nothing is left, and nothing is looked for");
    table.state(full(5, 7));
    assert_eq!(met(5), [full(5, 7)]);
}

// Goal: who is in use keeps the state there is, whoever comes finds a new one, and unused ones are bounded. Method: many more
// inodes than a table keeps, each with marks of its own; every fifth held, every seventh open.
#[test]
fn unused_states_make_room() {
    let table = InodeTable::default();
    let all = 6 * (SHARDS * UNUSED_PER_SHARD_MAX) as u64;
    let mut held = Vec::new();
    for ino in 1..=all {
        let state = table.state(InodeId(ino));
        {
            let mut inner = state.inner.write();
            assert_eq!((state.ino, inner.presence, inner.size), (InodeId(ino), Presence::Unloaded, 0));
            assert_eq!((inner.opens, inner.owned_by, inner.record.size), (0, VersionId(0), 0));
            assert!(!state.known_directory() && state.dirty_from() == 0, "inode {ino} is as new");
            inner.install(blank_record(InodeKind::Directory), VersionId(ino), Presence::Live);
            inner.size = ino;
            inner.opens = u32::from(ino % 7 == 0);
        }
        state.note_kind(InodeKind::Directory);
        state.set_dirty_from(ino);
        if ino % 5 == 0 {
            held.push(state);
        }
    }
    let in_use = (1..=all).filter(|ino| ino % 5 == 0 || ino % 7 == 0).count();
    let states: usize = table.shards.iter().map(|shard| shard.lock().states.len()).sum();
    assert!(states >= in_use && states <= 2 * in_use, "{states} states, {in_use} in use");
    for shard in &table.shards {
        let shard = shard.lock();
        assert_eq!(shard.oldest.len(), shard.states.len(), "each is listed once");
        assert!(shard.oldest.iter().all(|ino| shard.states.contains_key(ino)));
    }
    for state in held {
        let found = table.known(state.ino).expect("it is held");
        assert!(Arc::ptr_eq(&found, &state) && found.inner.read().size == state.ino.0);
    }
    for ino in (7..=all).step_by(7) {
        assert_eq!(table.state(InodeId(ino)).inner.read().size, ino, "it is open");
    }
}

// Goal: what is let go of is not in the table any more, unless somebody has it, and the list of numbers stays bounded, also
// when the same numbers come again and when old ones make room. Method: inodes that come and go, three in four of them, more
// than the table keeps; some held meanwhile, some looked for once more.
#[test]
fn what_is_let_go_of_leaves_nothing_behind() {
    let table = InodeTable::default();
    let all = 4 * (SHARDS * UNUSED_PER_SHARD_MAX) as u64;
    for ino in 1..=all {
        let state = table.state(InodeId(ino));
        let held = (ino % 5 == 0).then(|| state.clone());
        if ino % 4 == 0 {
            continue;
        }
        table.let_go(state);
        assert_eq!(table.known(InodeId(ino)).is_some(), held.is_some(), "inode {ino}");
        if let Some(held) = held {
            assert!(Arc::ptr_eq(&held, &table.state(InodeId(ino))));
            table.let_go(held);
            assert!(table.known(InodeId(ino)).is_none(), "inode {ino}, let go of by its last");
        }
        if ino % 3 == 0 {
            // It comes again, and may go again.
            let again = table.state(InodeId(ino));
            if ino % 2 == 0 {
                table.let_go(again);
            }
        }
    }
    for shard in &table.shards {
        let shard = shard.lock();
        assert!(shard.states.len() <= UNUSED_PER_SHARD_MAX);
        assert!(shard.oldest.len() <= 2 * shard.states.len() + VOID_MAX);
        let mut listed: Vec<u64> = shard.oldest.iter().copied().collect();
        listed.sort_unstable();
        assert!(shard.states.keys().all(|ino| listed.binary_search(ino).is_ok()), "each can be found");
    }
}
