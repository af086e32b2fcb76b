//! What it costs to say what differs.

use super::*;

/// Goal: what differs costs what was changed, not what there is, however many others share. Method: 1,000 and 100,000
/// inodes, a snapshot, 10 changes, and then 100 more snapshots; count descents and entries met, both ways.
#[test]
fn ten_changes_cost_ten_changes() {
    let costs: Vec<_> = [1_000, 100_000]
        .into_iter()
        .map(|inodes| {
            let (mut maps, mut old) = (Maps::default(), Holder::new(FAMILY));
            for n in 0..inodes {
                put_one(&mut maps, old, TreeId::INODES, n, b"old");
            }
            let mut tx = Transaction::new();
            share(&maps, &mut tx, &mut old).unwrap();
            maps.apply(&tx);
            let (mut new, mut tx) = (old, Transaction::new());
            branch(&maps, &mut tx, &mut new, &mut || VersionId(1 << 20), false).unwrap();
            maps.apply(&tx);
            for n in 0..10 {
                put_one(&mut maps, new, TreeId::INODES, n * inodes / 10, b"new");
            }
            for _ in 0..100 {
                let mut tx = Transaction::new();
                share(&maps, &mut tx, &mut old).unwrap();
                maps.apply(&tx);
            }
            let (from, to) = (Path::load(&maps, old).unwrap(), Path::load(&maps, new).unwrap());
            let mut found = 0;
            let cost = maps.cost(|| {
                for (old, new) in [(&from, &to), (&to, &from)] {
                    for tree in TREES {
                        found += changes(&maps, old, new, tree, &[], 100).unwrap().changed.len();
                    }
                }
            });
            assert_eq!(found, 20);
            cost
        })
        .collect();
    assert_eq!(costs[0], costs[1]);
    assert!(costs[0].0 <= 50 && costs[0].1 <= 70, "{costs:?}");
}
