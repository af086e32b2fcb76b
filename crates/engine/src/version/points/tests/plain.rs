//! Single rules and their costs.

use super::*;

/// A chain of `n` versions, the last one held, with ids and keys from 5 on; each but the last also has a holder.
fn chain(n: u64) -> (Maps, Holder) {
    let mut maps = Maps::default();
    for id in 5..5 + n {
        let parent = (id > 5).then(|| id - 1);
        let child: &[u64] = if id + 1 < 5 + n { &[id + 1] } else { &[] };
        maps.put_version(id, &version_record(parent, id, 1, child));
    }
    (maps, holder_of(4 + n))
}

/// Goal: a namespace that was never forked costs what it costs without this module. Method: count the steps of the
/// transactions and what is asked of the trees.
#[test]
fn a_plain_namespace_pays_nothing() {
    let mut maps = Maps::default();
    let path = Path::implicit(Holder::new(FAMILY));
    for tree in TREES {
        let at = prefix(tree, 3);
        let mut tx = Transaction::new();
        let cost = maps.cost(|| put(&maps, &mut tx, &path, tree, &at, b"a".as_slice().into()).unwrap());
        assert_eq!((cost, tx.ops().len()), ((0, 0), 1));
        maps.apply(&tx);
        let cost = maps.cost(|| assert_eq!(find(&maps, &path, tree, &at).unwrap().unwrap().value, b"a"));
        assert_eq!(cost, (1, 0));
        let mut tx = Transaction::new();
        let cost = maps.cost(|| delete(&maps, &mut tx, &path, tree, &at).unwrap());
        assert_eq!((cost, tx.ops().len()), ((0, 0), 1));
        maps.apply(&tx);
        assert_eq!(find(&maps, &path, tree, &at).unwrap(), None);
    }
    assert!(maps.trees.is_empty() && own(&path, VersionKey(5)) && sole_key(&path) == Some(VersionKey(5)));
}

/// Goal: a long chain costs no more than a short one. Method: 1,000 versions; look one inherited prefix up, and list a
/// directory of 400 names of which nothing changed; count descents and entries.
#[test]
fn a_thousand_versions_cost_one_descent() {
    let (mut maps, head) = chain(1000);
    for n in 0..400 {
        let mut at = prefix(TreeId::NAMES, n);
        at[8..16].copy_from_slice(&77u64.to_be_bytes());
        maps.trees.insert((TreeId::NAMES.0, entry_key(&at, VersionKey(5)).to_vec()), vec![1]);
    }
    let path = Path::load(&maps, head).unwrap();
    assert_eq!((path.versions(), sole_key(&path)), (1000, None));
    let mut directory = prefix(TreeId::NAMES, 7);
    directory[8..16].copy_from_slice(&77u64.to_be_bytes());
    let cost = maps.cost(|| drop(find(&maps, &path, TreeId::NAMES, &directory).unwrap().unwrap()));
    assert_eq!(cost, (1, 1));
    let mut names = 0;
    let each = &mut |_: &[u8], version: VersionKey, _: &[u8]| {
        assert_eq!(version, VersionKey(5));
        names += 1;
        Ok(true)
    };
    let cost =
        maps.cost(|| scan(&maps, &path, TreeId::NAMES, &directory[..16], &directory[..16], each).unwrap());
    assert_eq!((names, cost), (400, (1, 400)));
}

/// Goal: entries that cannot matter are passed over, a few one by one, many by a new descent. Method: a prefix that each
/// of 1,000 versions of a path has, and one that 1,000 clones beside the path have.
#[test]
fn many_entries_of_one_prefix_are_passed_over() {
    let (mut maps, head) = chain(1000);
    for id in 5..1005 {
        maps.trees.insert(
            (TreeId::INODES.0, entry_key(&prefix(TreeId::INODES, 1), VersionKey(id)).to_vec()),
            vec![1],
        );
    }
    for clone in 2000..3000 {
        let at = entry_key(&prefix(TreeId::INODES, 2), VersionKey(clone));
        maps.trees.insert((TreeId::INODES.0, at.to_vec()), vec![2]);
    }
    maps.trees
        .insert((TreeId::INODES.0, entry_key(&prefix(TreeId::INODES, 2), VersionKey(9)).to_vec()), vec![3]);
    let path = Path::load(&maps, head).unwrap();
    let at = &prefix(TreeId::INODES, 0)[..8];
    let mut all = Vec::new();
    let each = &mut |_: &[u8], version: VersionKey, value: &[u8]| {
        all.push((version.0, value[0]));
        Ok(true)
    };
    let cost = maps.cost(|| scan(&maps, &path, TreeId::INODES, at, at, each).unwrap());
    assert_eq!(all, [(1004, 1), (9, 3)]);
    assert!(cost.0 <= 3 && cost.1 <= 40, "{cost:?}");
    let cost = maps.cost(|| {
        let found = find(&maps, &path, TreeId::INODES, &prefix(TreeId::INODES, 2)).unwrap().unwrap();
        assert_eq!((found.version.0, found.value), (9, vec![3]));
    });
    assert_eq!(cost, (1, 1), "clones that are younger than the head are not met at all");
    // Clones between the head and what it sees: as many as are passed one by one, then one descent.
    let path = Path::load(&maps, holder_of(10)).unwrap();
    let cost =
        maps.cost(|| drop(find(&maps, &path, TreeId::INODES, &prefix(TreeId::INODES, 1)).unwrap().unwrap()));
    assert_eq!(cost, (1, 1));
    maps.put_version(4000, &version_record(Some(10), 4000, 1, &[]));
    let path = Path::load(&maps, holder_of(4000)).unwrap();
    let cost =
        maps.cost(|| drop(find(&maps, &path, TreeId::INODES, &prefix(TreeId::INODES, 2)).unwrap().unwrap()));
    assert!(cost.0 == 2 && cost.1 <= 18, "{cost:?}");
}

/// Goal: a whiteout only where something is visible, an index entry for each entry but those of the first version.
/// Method: one prefix through the life of a fork.
#[test]
fn whiteouts_and_index() {
    let tree = TreeId::NAMES;
    let (mut maps, head) = chain(2);
    let count = |maps: &Maps, tree| maps.of(tree).count();
    maps.trees.insert((tree.0, entry_key(&prefix(tree, 1), VersionKey(5)).to_vec()), b"old".to_vec());
    delete_one(&mut maps, head, tree, 9);
    assert_eq!((count(&maps, tree), count(&maps, TreeId::HELD)), (1, 0), "nothing to hide");
    put_one(&mut maps, head, tree, 9, b"new");
    assert_eq!((count(&maps, tree), count(&maps, TreeId::HELD)), (2, 1));
    delete_one(&mut maps, head, tree, 9);
    assert_eq!((count(&maps, tree), count(&maps, TreeId::HELD)), (1, 0), "nothing to hide");
    assert_eq!(found(&maps, head, tree, 1), Some((5, b"old".to_vec())));
    put_one(&mut maps, head, tree, 1, b"mine");
    assert_eq!(found(&maps, head, tree, 1), Some((6, b"mine".to_vec())));
    delete_one(&mut maps, head, tree, 1);
    delete_one(&mut maps, head, tree, 1);
    assert_eq!((found(&maps, head, tree, 1), count(&maps, tree), count(&maps, TreeId::HELD)), (None, 2, 1));
    let listed = maps.of(TreeId::HELD).next().unwrap().0.clone();
    assert_eq!(listed, held(tree, &prefix(tree, 1), 6));
    assert_eq!(found(&maps, holder_of(5), tree, 1), Some((5, b"old".to_vec())));
    put_one(&mut maps, head, tree, 1, b"again");
    assert_eq!((count(&maps, tree), count(&maps, TreeId::HELD), count(&maps, TreeId::REAP)), (2, 1, 0));
    // The first version writes without an index.
    maps.put_version(5, &version_record(None, 5, 1, &[]));
    put_one(&mut maps, holder_of(5), tree, 2, b"first");
    assert_eq!((count(&maps, tree), count(&maps, TreeId::HELD)), (3, 1));
}

/// Goal: while the head drains up, what is new goes to its parent's key, and nothing of the parent's that lies hidden
/// vanishes in a write. Method: every combination of entries of the two and beneath them, put and delete on each.
#[test]
fn writes_while_draining_up() {
    let tree = TreeId::INODES;
    for (case, deletes) in (0..8).flat_map(|case| [(case, false), (case, true)]) {
        let (beneath, parent, head) = (case & 1 > 0, case & 2 > 0, case & 4 > 0);
        let mut maps = Maps::default();
        maps.put_version(5, &version_record(None, 5, 1, &[6]));
        maps.put_version(6, &version_record(Some(5), 6, 0, &[7]));
        let drains = VersionRecord { drain: version::Drain::Up, ..version_record(Some(6), 7, 1, &[]) };
        maps.put_version(7, &drains);
        let at = prefix(tree, 1);
        for (there, key, value) in [(beneath, 5, b"b"), (parent, 6, b"p"), (head, 7, b"h")] {
            if there {
                maps.trees.insert((tree.0, entry_key(&at, VersionKey(key)).to_vec()), value.to_vec());
                if key > 5 {
                    maps.trees.insert((TreeId::HELD.0, held(tree, &at, key)), vec![]);
                }
            }
        }
        if deletes {
            delete_one(&mut maps, holder_of(7), tree, 1);
        } else {
            put_one(&mut maps, holder_of(7), tree, 1, b"new");
        }
        let value =
            |key| maps.trees.get(&(tree.0, entry_key(&at, VersionKey(key)).to_vec())).map(Vec::as_slice);
        let written =
            if deletes { (beneath || (head && parent)).then_some(&b""[..]) } else { Some(&b"new"[..]) };
        let (of_head, of_parent) =
            if head { (written, parent.then_some(&b"p"[..])) } else { (None, written) };
        assert_eq!(
            (value(7), value(6), value(5)),
            (of_head, of_parent, beneath.then_some(&b"b"[..])),
            "case {case}"
        );
        let listed: Vec<_> = maps.of(TreeId::HELD).map(|(key, _)| key[15]).collect();
        let stored: Vec<_> = [6, 7].into_iter().filter(|key| value(u64::from(*key)).is_some()).collect();
        assert_eq!(listed, stored, "case {case}");
    }
}

/// Goal: several calls in one transaction may touch one prefix; the last one counts, and the index follows it. Method:
/// all sequences of three, over a prefix that is inherited, own, or nowhere.
#[test]
fn the_last_call_of_a_transaction_counts() {
    let tree = TreeId::XATTRS;
    for (before, calls) in (0..4).flat_map(|before| (0..8).map(move |calls| (before, calls))) {
        let (mut maps, head) = chain(2);
        if before & 1 > 0 {
            maps.trees.insert((tree.0, entry_key(&prefix(tree, 1), VersionKey(5)).to_vec()), b"old".to_vec());
        }
        if before & 2 > 0 {
            put_one(&mut maps, head, tree, 1, b"own");
        }
        let (mut tx, path, at) = (Transaction::new(), Path::load(&maps, head).unwrap(), prefix(tree, 1));
        for call in 0..3u8 {
            if calls & (1 << call) > 0 {
                put(&maps, &mut tx, &path, tree, &at, vec![call + 1].into()).unwrap();
            } else {
                delete(&maps, &mut tx, &path, tree, &at).unwrap();
            }
        }
        maps.apply(&tx);
        let expect = (calls & 4 > 0).then(|| (6, vec![3]));
        assert_eq!(found(&maps, head, tree, 1), expect, "{before} {calls}");
        let has = maps.trees.contains_key(&(tree.0, entry_key(&at, VersionKey(6)).to_vec()));
        assert_eq!(has, expect.is_some() || before & 1 > 0, "{before} {calls}");
        assert_eq!(maps.of(TreeId::HELD).count(), usize::from(has), "{before} {calls}");
    }
}

/// Goal: what a write hides from a version that nobody holds is noted, once, and nothing else is. Method: the hidden
/// entry belongs to a version with and without holders and other children.
#[test]
fn what_is_hidden_is_noted() {
    let tree = TreeId::INODES;
    for (refs, children, noted) in [(1, 1, 0), (0, 1, 0), (1, 2, 0), (0, 2, 1)] {
        let mut maps = Maps::default();
        maps.put_version(5, &version_record(None, 5, refs, &[6, 7][..children]));
        maps.put_version(6, &version_record(Some(5), 6, 1, &[]));
        maps.put_version(7, &version_record(Some(5), 7, 1, &[]));
        maps.trees.insert((tree.0, entry_key(&prefix(tree, 1), VersionKey(5)).to_vec()), b"old".to_vec());
        for value in [b"a", b"b"] {
            put_one(&mut maps, holder_of(6), tree, 1, value);
            assert_eq!(maps.of(TreeId::REAP).count(), noted);
        }
        put_one(&mut maps, holder_of(6), tree, 2, b"new");
        assert_eq!(maps.of(TreeId::REAP).count(), noted);
    }
}

/// Goal: keys that cannot be are errors. Method: entries of wrong lengths in the way of every call.
#[test]
fn hostile_keys_are_errors() {
    let (mut maps, head) = chain(3);
    let tree = TreeId::NAMES;
    let long = [prefix(tree, 1), vec![0xff; 9]].concat();
    maps.trees.insert((tree.0, long), vec![1]);
    let path = Path::load(&maps, head).unwrap();
    let at = prefix(tree, 1);
    assert!(find(&maps, &path, tree, &at).is_err());
    assert!(put(&maps, &mut Transaction::new(), &path, tree, &at, vec![1].into()).is_err());
    assert!(delete(&maps, &mut Transaction::new(), &path, tree, &at).is_err());
    assert!(scan(&maps, &path, tree, &at[..8], &at[..8], &mut |_, _, _| Ok(true)).is_err());
    // Version key 0 belongs to nobody, and sorts last.
    let mut maps = chain(3).0;
    for n in 0..40u64 {
        maps.trees.insert((tree.0, entry_key(&prefix(tree, n / 20), VersionKey(n % 20)).to_vec()), vec![1]);
    }
    let mut seen = 0;
    scan(&maps, &path, tree, &at[..8], &at[..8], &mut |_, _, _| {
        seen += 1;
        Ok(true)
    })
    .unwrap();
    assert_eq!(seen, 2);
}
