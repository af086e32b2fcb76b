//! Tests beside a count a block.

use super::*;
use crate::Transaction;
use crate::version::Read;
use crate::version::maps::{Maps, Random};

const BLOCKS: u64 = 64;

fn load(maps: &Maps, from: u64, to: u64) -> Result<Vec<SharedRun>, crate::EngineError> {
    let before = maps.last_at_or_before(TreeId::SHARES, &shares_key(from - 1))?;
    touching(from, to, before, |key, each| maps.scan(TreeId::SHARES, key, each)).map(|runs| runs.unwrap())
}

fn apply(maps: &mut Maps, ops: &[Op]) {
    for op in ops {
        match op {
            Op::Put { tree, key, value } => {
                drop(maps.trees.insert((tree.0, key.to_vec()), value.to_vec()));
            }
            Op::Delete { tree, key } => {
                assert!(maps.trees.remove(&(tree.0, key.to_vec())).is_some(), "a delete of nothing");
            }
            _ => (),
        }
    }
}

fn stored(maps: &Maps) -> Vec<SharedRun> {
    maps.trees.iter().map(|((_, key), value)| SharedRun::decode(key, value).unwrap()).collect()
}

/// Goal: frees and counts are what a plain count a block says, for any transaction, and the tree is as small as it can
/// be. Method: random sharing and letting go of ranges, several of a block in one transaction, beside the counts.
#[test]
fn beside_a_count_a_block() {
    for seed in 0..200 {
        let (mut maps, mut random) = (Maps::default(), Random(seed));
        // How many name each block.
        let mut named = vec![1u64; BLOCKS as usize + 1];
        for _ in 0..60 {
            let mut tx = Transaction::new();
            let mut next: Vec<i64> = named.iter().map(|n| *n as i64).collect();
            for _ in 0..1 + random.below(4) {
                let first = 1 + random.below(BLOCKS);
                let end = (first + 1 + random.below(12)).min(BLOCKS + 1);
                let here = first as usize..end as usize;
                let run = run(first, end);
                if random.below(2) == 0 {
                    if here.clone().all(|b| next[b] > 0 && named[b] > 0) {
                        tx.share(run);
                        here.for_each(|b| next[b] += 1);
                    }
                } else if here.clone().all(|b| next[b] > 0) {
                    tx.free(run);
                    here.for_each(|b| next[b] -= 1);
                }
            }
            let ops = settle(tx.ops(), &tx.shared, &mut |from, to| load(&maps, from, to)).unwrap();
            apply(&mut maps, &ops);
            let mut gone: Vec<u64> = Vec::new();
            for op in &ops {
                if let Op::Free { run } = op {
                    gone.extend(run.addr.block()..run.addr.block() + u64::from(run.blocks));
                }
            }
            gone.sort_unstable();
            let expect: Vec<u64> =
                (1..=BLOCKS).filter(|b| named[*b as usize] > 0 && next[*b as usize] == 0).collect();
            assert_eq!(gone, expect, "seed {seed}");
            named = next.iter().map(|n| *n as u64).collect();
            let mut counted = vec![0u64; BLOCKS as usize + 1];
            let runs = stored(&maps);
            for run in &runs {
                (run.first..run.end()).for_each(|b| counted[b as usize] += run.more);
            }
            for b in 1..=BLOCKS as usize {
                assert_eq!(counted[b], named[b].saturating_sub(1), "seed {seed}, block {b}");
            }
            let apart = |a: &SharedRun, b: &SharedRun| a.end() < b.first || a.more != b.more;
            assert!(runs.windows(2).all(|two| apart(&two[0], &two[1])), "seed {seed}: {runs:?}");
        }
    }
}

/// Goal: who lets go of what nobody names is refused. Method: a block let go of twice, and of a count of two three times.
#[test]
fn too_many_let_go() {
    let mut maps = Maps::default();
    let mut tx = Transaction::new();
    tx.free(run(5, 6));
    tx.free(run(4, 8));
    let settled = |tx: &Transaction, maps: &Maps| {
        settle(tx.ops(), &tx.shared, &mut |from, to| load(maps, from, to))
            .map_err(|e| matches!(e, Unsettled::Blocks(_)))
    };
    assert_eq!(settled(&tx, &maps).err(), Some(true));
    let mut shared = Transaction::new();
    shared.share(run(1, 20));
    let ops = settled(&shared, &maps).unwrap();
    apply(&mut maps, &ops);
    assert_eq!(
        settled(&tx, &maps).unwrap().len(),
        3,
        "one is free, three are named once; what was one run is two"
    );
    tx.free(run(5, 9));
    assert_eq!(settled(&tx, &maps).err(), Some(true));
}

/// Goal: writing to one block of a large shared run costs a few entries. Method: a run of a million blocks, a block cut
/// out of its middle.
#[test]
fn a_block_of_a_large_run() {
    let mut maps = Maps::default();
    let mut tx = Transaction::new();
    tx.share(run(1, 1_000_001));
    let ops = settle(tx.ops(), &tx.shared, &mut |from, to| load(&maps, from, to)).unwrap();
    apply(&mut maps, &ops);
    assert_eq!(stored(&maps).len(), 1);
    let mut tx = Transaction::new();
    tx.free(run(500_000, 500_001));
    maps.met.set(0);
    let ops = settle(tx.ops(), &tx.shared, &mut |from, to| load(&maps, from, to)).unwrap();
    assert_eq!((ops.len(), maps.met.get()), (2, 0));
    apply(&mut maps, &ops);
    assert_eq!(stored(&maps).len(), 2);
}
