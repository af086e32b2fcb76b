//! How full leaves are, by the order in which keys come: at one place, at several, at random, and as somebody would have them
//! who wants them empty.

use super::*;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

/// The key of an entry of a file's segment, as extents have it: newest version first.
fn extent_key(segment: u64, version: u64, block: u32) -> Vec<u8> {
    let mut key = 7u64.to_be_bytes().to_vec();
    key.extend(segment.to_be_bytes());
    key.extend((!version).to_be_bytes());
    key.extend((block << 12).to_be_bytes());
    key
}

// Goal: what a file leaves behind that is written at random and forked in turn fills its leaves, with one segment in a leaf as
// with many. Method: two or three entries for each segment and version, versions in their order, segments in theirs.
#[test]
fn versions_of_segments_fill_leaves() {
    for segments in [1, 5, 64] {
        let mut loose = Loose::new();
        let mut random = 9u64;
        for version in 1..=(3_000 / segments).max(600) {
            for segment in 0..segments {
                random = random.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ random >> 29 ^ segment;
                for block in 0..2 + (random >> 40) as u32 % 2 {
                    let key = extent_key(segment, version, block * 50 + random as u32 % 50);
                    loose.change(SPARE_NODES, |tree, m| tree.put(m, &key, &random.to_le_bytes()));
                }
            }
        }
        let (leaves, fill) = loose.fill();

        assert!(fill > 0.72, "{segments} segments: {leaves} leaves are {fill:.2} full");
    }
}

// Goal: keys that grow or fall between others fill leaves, in runs as one by one; keys in an order of chance leave them as
// full as halves do, and without room to spare nothing breaks. Method: 20,000 keys between two, and the leaves afterwards.
#[test]
fn keys_at_one_place_fill_leaves() {
    let many = 20_000u64;
    let up: Vec<u64> = (0..many).collect();
    let down: Vec<u64> = up.iter().rev().copied().collect();
    let runs_down: Vec<u64> = up.chunks(8).rev().flatten().copied().collect();
    let long_runs_down: Vec<u64> = up.chunks(500).rev().flatten().copied().collect();
    let chance = shuffled(many, 3);
    for (what, order, least) in [
        ("up", up, 0.95),
        ("down", down, 0.8),
        ("down, in runs", runs_down, 0.75),
        ("down, in runs of several leaves", long_runs_down, 0.55),
        ("by chance", chance, 0.65),
    ] {
        for spare in [SPARE_NODES, 0] {
            let mut loose = Loose::new();
            for edge in [0, u64::MAX] {
                loose.change(0, |tree, m| tree.put(m, &edge.to_be_bytes(), &[1; 20]));
            }
            for n in &order {
                loose.change(spare, |tree, m| tree.put(m, &(n + (1 << 40)).to_be_bytes(), &[1; 20]));
            }
            let (leaves, fill) = loose.fill();
            let least = if spare > 0 { least } else { 0.35 };

            assert!(fill > least, "{what}, spare {spare}: {leaves} leaves are {fill:.2} full");
        }
    }
}

// Goal: a leaf whose split is hoped to be followed by more of the same, and is not, costs no more than it was paid for. Method:
// keys that fall in the gap behind a full leaf that does not lie at the edge.
#[test]
fn keys_that_fall_behind_a_full_leaf_leave_no_row_of_small_ones() {
    let mut loose = Loose::new();
    for n in (0..2_000u64).chain(1 << 40..(1 << 40) + 2_000) {
        loose.change(SPARE_NODES, |tree, m| tree.put(m, &(n << 20).to_be_bytes(), &[1; 20]));
    }
    let (before, _) = loose.fill();
    for n in (0..3_000u64).rev() {
        let key = (1_999 << 20) + 1 + n;
        loose.change(SPARE_NODES, |tree, m| tree.put(m, &key.to_be_bytes(), &[1; 20]));
    }
    let (leaves, fill) = loose.fill();
    assert!(leaves - before < 35 && fill > 0.75, "{} more leaves, all {fill:.2} full", leaves - before);
}

/// Part of an order of keys that somebody may have thought out.
#[derive(Clone, Debug)]
enum Part {
    /// Keys that grow, or fall, by so much each, from the key of this rank among those that are there.
    Run { rank: u16, count: u8, step: i8, value: u16 },
    /// A key in front of or behind every leaf's first or last one, of so many leaves from this one on.
    AtLeaves { leaf: u16, count: u8, last: bool, behind: bool, value: u16 },
    /// Keys by chance.
    Chance { seed: u32, count: u8, value: u16 },
}

fn part() -> impl Strategy<Value = Part> {
    let value = || prop_oneof![6 => 0..40_u16, 2 => 100..400_u16, 1 => 1200..1900_u16];
    let step = prop_oneof![Just(1_i8), Just(-1), Just(3), Just(-3)];
    prop_oneof![
        4 => (any::<u16>(), 1..120_u8, step, value())
            .prop_map(|(rank, count, step, value)| Part::Run { rank, count, step, value }),
        4 => (any::<u16>(), 1..40_u8, any::<bool>(), any::<bool>(), value())
            .prop_map(|(leaf, count, last, behind, value)| Part::AtLeaves { leaf, count, last, behind, value }),
        1 => (any::<u32>(), 1..80_u8, value()).prop_map(|(seed, count, value)| Part::Chance { seed, count, value }),
    ]
}

/// First and last keys of the leaves.
fn leaf_ends(tree: &Tree) -> Vec<[u64; 2]> {
    fn below(link: &Link, ends: &mut Vec<[u64; 2]>) {
        let Link::Mem(node) = link else { panic!("nothing has been written") };
        match &node.body {
            Body::Leaf(leaf) => {
                let key = |i: usize| u64::from_be_bytes(leaf.key(i).as_slice().try_into().expect("8 bytes"));
                ends.push([key(0), key(leaf.len() - 1)]);
            }
            Body::Interior(n) => n.children.iter().for_each(|child| below(child, ends)),
        }
    }
    let mut ends = Vec::new();
    tree.root.iter().for_each(|root| below(root, &mut ends));
    ends
}

impl Part {
    fn keys(&self, there: &[u64], tree: &Tree) -> (Vec<u64>, u16) {
        let near = |key: u64, by: i64| key.wrapping_add_signed(by);
        match *self {
            Part::Run { rank, count, step, value } => {
                let from = there.get(usize::from(rank) % there.len().max(1)).copied().unwrap_or(1 << 60);
                ((1..=i64::from(count)).map(|i| near(from, i64::from(step) * i)).collect(), value)
            }
            Part::AtLeaves { leaf, count, last, behind, value } => {
                let ends = leaf_ends(tree);
                let from = usize::from(leaf) % ends.len().max(1);
                let ends = ends.iter().skip(from).take(count.into());
                (ends.map(|ends| near(ends[usize::from(last)], if behind { 1 } else { -1 })).collect(), value)
            }
            Part::Chance { seed, count, value } => {
                let chance = |i: u64| (u64::from(seed) + i).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 1;
                ((0..u64::from(count)).map(chance).collect(), value)
            }
        }
    }
}

proptest! {
    // The same orders each time: how many leaves are many is a judgement. One by chance had 56 where halves would have been 34.
    #![proptest_config(ProptestConfig { cases: 200, rng_seed: RngSeed::Fixed(1), ..ProptestConfig::default() })]

    // Goal: no order of puts makes many more leaves than halves would be, and no put more nodes than were forecast and it
    // spent of the spare. Method: runs, keys at the ends of leaves, keys by chance, each key a transaction, beside a tree that
    // only knows halves; the entries against a sorted map.
    #[test]
    fn no_order_makes_many_leaves(
        parts in proptest::collection::vec(part(), 1..120),
    ) {
        let spare = SPARE_NODES;
        let (mut loose, mut halves, mut model) = (Loose::new(), Loose::new(), Model::new());
        for part in parts {
            let there: Vec<u64> =
                model.keys().map(|key| u64::from_be_bytes(key[..].try_into().expect("8 bytes"))).collect();
            let (keys, value) = part.keys(&there, &loose.tree);
            let value = vec![1; value.into()];
            // One after the other, in the order that somebody has thought out, is worse than in the order of keys.
            for key in keys.iter().map(|key| key.to_be_bytes()) {
                let mut step = [Step { tree: loose.tree.id, key: &key, change: Change::Put(&value) }];
                let disk = (&Disk::default(), &mut Pins::new());
                let (forecast, ..) = prepared(&loose.tree, &mut step, 1, &loose.cache, disk);
                let (before, mut spent) = (loose.nodes, 0);
                loose.change(spare, |tree, m| {
                    tree.change(m, &step);
                    spent = (spare - m.spare) as i64;
                });
                halves.change(0, |tree, m| tree.change(m, &step));
                let made = loose.nodes - before;
                let allowed = (forecast.dirtied + forecast.added) as i64 + spent;
                prop_assert!(made <= allowed, "{} nodes, {} forecast, {} spare", made, allowed, spent);
            }
            model.extend(keys.iter().map(|key| (key.to_be_bytes().to_vec(), value.clone())));
        }
        same(&loose.tree, &model, &Disk::default(), 0);
        let ((leaves, fill), (other, other_fill)) = (loose.fill(), halves.fill());
        prop_assert!(
            leaves <= other + other * 2 / 3 + 4,
            "{} leaves {:.2} full, halves would be {}, {:.2} full", leaves, fill, other, other_fill
        );
    }
}
