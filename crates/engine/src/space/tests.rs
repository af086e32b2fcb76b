//! Bitmap and books against plain vectors.

use varve_format::{PoolAddr, Run};

use super::bits::{Bits, PAGE_BITS};
use super::*;

fn run(block: u64, blocks: u32) -> Run {
    Run { addr: PoolAddr::from_block(block), blocks }
}

// Goal: bits behave as a vector of bools. Method: random runs, several pages, every query compared.
#[test]
fn bits_behave_as_bools() {
    let total = PAGE_BITS * 2 + 777;
    let mut bits = Bits::new(total);
    let mut model = vec![false; total as usize];
    let mut x = 88172645463325252u64;
    for step in 0..3000 {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        let len = 1 + (x >> 40) % 300;
        let first = x % (total - len);
        let value = step % 3 != 0;
        let want = (first..first + len).filter(|b| model[*b as usize] != value).count() as u64;
        assert_eq!(bits.write(run(first, len as u32), value, &mut |_| {}), want, "step {step}");
        model[first as usize..(first + len) as usize].fill(value);
        let from = (x >> 20) % total;
        for value in [false, true] {
            let want = (from..total).find(|b| model[*b as usize] == value);
            assert_eq!(bits.next(from, total, value), want, "step {step}");
        }
    }
    assert_eq!(bits.count(), model.iter().filter(|b| **b).count() as u64);
}

// Goal: every block can be handed out, once, and all that the books allow can be found. Method: fill, free scattered
// blocks, fill again.
#[test]
fn hands_out_every_block_once() {
    let mut space = Space::new(5000, 2);
    let mut mine = vec![false; 5000];
    let mut left = 4999;
    while left > 0 {
        let n = 7.min(left);
        for r in space.allocate_data(n, PoolAddr::NULL).expect("there is room") {
            for b in r.addr.block()..r.addr.block() + u64::from(r.blocks) {
                assert!(!std::mem::replace(&mut mine[b as usize], true), "block {b} twice");
            }
        }
        left -= n;
    }
    assert!(space.allocate_data(1, PoolAddr::NULL).is_none());
    for b in (3..4990).step_by(5) {
        space.unallocate(run(b, 1));
    }
    let freed = (3..4990).step_by(5).count() as u32;
    let runs = space.allocate_data(freed, PoolAddr::NULL).expect("scattered blocks add up");
    assert_eq!(runs.iter().map(|r| r.blocks).sum::<u32>(), freed);
    assert!(space.allocate_metadata(1).is_none());
}

// Goal: section 3's figures. Method: fixed and protected parts for two sizes, ring and labels added.
#[test]
fn fixed_and_protected_parts_stay_small() {
    for (size, percent_of_1000) in [(256u64 << 20, 60), (64 << 30, 10)] {
        let ring = (size / 64).clamp(8 << 20, 256 << 20);
        let total = (size - ring - (3 << 19)) >> 12;
        let space = Space::new(total, 2);
        let kept = ring + (3 << 19) + ((space.fixed + space.protected) << 12);
        assert!(kept * 1000 <= size * percent_of_1000, "{size}: {kept} bytes kept back");
    }
}

// Goal: a trim takes every free run of the length asked for once, nothing else, a bounded number at a time, and what it took is
// as it was afterwards. Method: random use of a space of several pages, each trimmed whole beside a plain vector, what is held
// not found meanwhile.
#[test]
fn trims_take_what_is_free() {
    let total = PAGE_BITS * 3 + 777;
    let mut x = 88172645463325252u64;
    for round in 0..40 {
        let mut space = Space::new(total, 2);
        let mut used = vec![false; total as usize];
        used[0] = true;
        for _ in 0..round * 5 {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            let (first, len) = (x % total, 1 + (x >> 40) % if x & 1 == 0 { 30_000 } else { 40 });
            for block in first..(first + len).min(total) {
                if !std::mem::replace(&mut used[block as usize], true) {
                    space.mark_busy(run(block, 1));
                }
            }
        }
        let busy = |space: &Space| (0..total).map(|b| space.busy.get(b)).collect::<Vec<_>>();
        assert_eq!(busy(&space), used);
        let (from, end) = ((x >> 30) % 2 * 5_000, total - (x >> 31) % 2 * 5_000);
        let minimum = [0, 1, 20, 9_000, u64::MAX][round % 5];
        let mut rest = trim::Rest { at: from, end, minimum, continues: false };
        let mut found = vec![false; total as usize];
        while rest.at < rest.end {
            let before = rest.at;
            let runs = space.begin_trim(&mut rest);
            assert!(rest.at > before && runs.len() <= 64, "round {round}");
            assert!(runs.iter().map(|r| r.blocks).sum::<u32>() <= 8192, "round {round}");
            assert_eq!(space.is_trimming(), !runs.is_empty());
            for r in &runs {
                for block in r.addr.block()..r.addr.block() + u64::from(r.blocks) {
                    assert!(!used[block as usize] && !std::mem::replace(&mut found[block as usize], true));
                    assert!(space.busy.get(block));
                }
            }
            space.end_trim(&runs);
            assert!(!space.is_trimming());
        }
        let mut want = vec![false; total as usize];
        let mut block = from;
        while block < end {
            let len = (block..end).take_while(|b| !used[*b as usize]).count() as u64;
            if len > 0 && len >= minimum.min(trim::MINIMUM_BLOCKS_MAX) {
                want[block as usize..(block + len) as usize].fill(true);
            }
            block += len.max(1);
        }
        let differs = (0..total as usize).find(|b| want[*b] != found[*b]);
        assert_eq!(differs, None, "round {round}, minimum {minimum}");
        assert_eq!(busy(&space), used);
    }
}

// Goal: nodes for which there is no room leave nothing taken behind. Method: room for one copy, and not for the second.
#[test]
fn what_cannot_be_found_takes_nothing() {
    let mut space = Space::new(100, 2);
    space.allocate_data(94, PoolAddr::NULL).expect("there is room");
    assert!(space.allocate_metadata(3).is_none());
    assert_eq!(space.allocate_metadata(2).map(|places| places.len()), Some(2));
    assert_eq!(space.allocate_data(1, PoolAddr::NULL).map(|runs| runs.len()), Some(1));
}

/// Numbers that come again by their seed.
fn next(x: &mut u64) -> u64 {
    *x ^= *x << 13;
    *x ^= *x >> 7;
    *x ^= *x << 17;
    *x >> 11
}

fn give_back(space: &mut Space, places: &[[PoolAddr; 2]]) {
    for addr in places.iter().flatten() {
        space.unallocate(run(addr.block(), 1));
    }
}

fn apart(place: &[PoolAddr; 2]) -> u64 {
    place[0].block().abs_diff(place[1].block())
}

// Goal: the two copies of nodes lie far apart again once there is room, however full the pool was. Method: nodes and root blocks
// that are rewritten again and again, as checkpoints do, while data fills the pool to the last blocks, and after most of it is gone.
#[test]
fn copies_part_again_after_a_full_pool() {
    let total = 40_000;
    let mut space = Space::new(total, 2);
    let mut data = Vec::new();
    let mut nodes = std::collections::VecDeque::new();
    let mut rewrite = |space: &mut Space, times: usize| {
        for i in 0..times {
            nodes.push_back(space.allocate_metadata([1, 16, 30][i % 3]).expect("there is room"));
            if nodes.len() > 6 {
                give_back(space, &nodes.pop_front().expect("there are some"));
            }
        }
        nodes.iter().flatten().map(apart).min().expect("there are some")
    };
    assert!(rewrite(&mut space, 60) >= total / 8);
    for _ in 0..392 {
        data.extend(space.allocate_data(100, PoolAddr::NULL).expect("there is room"));
        rewrite(&mut space, 3);
    }
    rewrite(&mut space, 60);
    let mut x = 88172645463325252u64;
    for _ in 0..280 {
        let run = data.swap_remove(next(&mut x) as usize % data.len());
        space.unallocate(run);
    }
    let least = rewrite(&mut space, 300);
    assert!(least >= total / 8, "{least} apart");
}

// Goal: of two copies the second is an eighth of the pool away if there is room, and otherwise at least half as far as the
// farthest free block. Method: random use of pools of all sizes, up to full ones, each node's places beside a plain vector.
#[test]
fn the_second_copy_is_as_far_as_there_is_room() {
    let mut x = 88172645463325252u64;
    for round in 0..300u64 {
        let total = [60, 700, 5_000, 3 * PAGE_BITS + 77][round as usize % 4];
        let mut space = Space::new(total, 2);
        let mut used = vec![false; total as usize];
        used[0] = true;
        // From nearly empty to nearly full, in pieces of all lengths; what is left lies on one side of some of the pools.
        let (clear_from, clear_len) = (next(&mut x) % total, 1 + next(&mut x) % total);
        let busy_percent = next(&mut x) % 101;
        let mut block = 1;
        while block < total {
            let len = 1 + next(&mut x) % if next(&mut x) & 1 == 0 { 3 } else { 1 + total / 20 };
            let clear =
                (block + total - clear_from) % total < clear_len && next(&mut x) % 100 >= busy_percent;
            for block in block..(block + len).min(total) {
                if !clear {
                    used[block as usize] = true;
                    space.mark_busy(run(block, 1));
                }
            }
            block += len;
        }
        let ring = |a: u64, b: u64| a.abs_diff(b).min(total - a.abs_diff(b));
        for _ in 0..8 {
            let n = 1 + next(&mut x) % if next(&mut x) & 1 == 0 { 1 } else { 1 + total / 50 };
            let free = used.iter().filter(|b| !**b).count() as u64;
            let Some(places) = space.allocate_metadata(n) else {
                assert!(free < 2 * n, "round {round}: {free} blocks, and not {n} twice");
                continue;
            };
            assert_eq!(places.len() as u64, n);
            for place in &places {
                for addr in place {
                    let was = std::mem::replace(&mut used[addr.block() as usize], true);
                    assert!(!was, "round {round}: block {} twice", addr.block());
                }
            }
            if n > 1 {
                continue;
            }
            let [first, second] = places[0].map(|addr| addr.block());
            let farthest = (0..total).filter(|b| !used[*b as usize]).map(|b| ring(b, first)).max();
            let want = (total / 8).min(farthest.unwrap_or(0).div_ceil(2));
            let is = ring(first, second);
            assert!(
                is >= want,
                "round {round}: {is} apart of {total}, and something is free {farthest:?} away"
            );
        }
    }
}
