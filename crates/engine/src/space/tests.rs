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

/// Of a space of `total` blocks all are in use but those that `clear` names.
fn with_clear(total: u64, clear: impl Fn(u64) -> bool) -> Space {
    let mut space = Space::new(total, 2);
    (1..total).filter(|block| !clear(*block)).for_each(|block| space.mark_busy(run(block, 1)));
    space
}

// Goal: small holes do not hide long runs from a large request. Method: every second block of 4,000 in use behind the cursor, and
// runs of 600 behind those; the same for nodes, with runs of 1,500.
#[test]
fn large_requests_find_long_runs_behind_small_holes() {
    let total = 40_000u64;
    let clear = |len: u64| {
        move |b: u64| if b < total / 8 + 4_000 { b.is_multiple_of(2) } else { b % (len + 50) >= 50 }
    };
    let mut space = with_clear(total, clear(600));
    let runs = space.allocate_data(1024, PoolAddr::NULL).expect("there is room");
    assert!(runs.len() <= 2, "{runs:?}");
    assert!(runs.is_sorted_by_key(|run| run.addr), "{runs:?}");
    // The next goes on where it ended; the small holes are taken by who needs no more.
    let more = space.allocate_data(600, PoolAddr::NULL).expect("there is room");
    assert!(more.len() <= 2 && more[0].addr > runs[1].addr, "{more:?} behind {runs:?}");

    let mut space = with_clear(total, clear(1_500));
    let places = space.allocate_metadata(3_000).expect("there is room");
    for copy in 0..2 {
        let runs = places.windows(2).filter(|p| p[0][copy].block() + 1 != p[1][copy].block()).count() + 1;
        assert!(runs <= 8, "{runs} runs of copy {copy}");
    }
}

// Goal: what is avoided is taken last, however well it would fit, and is taken then; what is named later pushes out what was named first.
// Method: forty short runs and a long one, in what is avoided and across its end: requests that fit only there get the short ones, until these are
// gone; others are named later.
#[test]
fn what_is_avoided_is_taken_last() {
    let avoided = |at: u64| (4096..5120).contains(&at);
    for first in [4200, 5000] {
        let there = |at: u64| (first..first + 300).contains(&at);
        let clear = |at: u64| there(at) || (8192..8192 + 40 * 128).contains(&at) && at % 128 < 100;
        for named_later in [0, 7, 8] {
            let mut space = with_clear(1 << 16, clear);
            space.avoid_for_data((4096, 5120));
            (0..named_later).for_each(|n| space.avoid_for_data((40_000 + n, 40_001 + n)));
            let near = PoolAddr::from_block(4300);
            let runs = space.allocate_data(250, near).expect("there is room");
            let in_avoided =
                runs.iter().any(|run| (0..run.blocks).any(|n| avoided(run.addr.block() + u64::from(n))));
            assert_eq!(in_avoided, named_later == 8, "{runs:?}");
            if named_later == 0 {
                let all = (0..1 << 16).filter(|at| clear(*at)).count() as u32 - 250;
                let last = space.allocate_data(all, near).expect("all of the rest");
                assert!(last.iter().any(|run| avoided(run.addr.block())));
                assert!(space.allocate_data(1, near).is_none());
            }
        }
    }
}

// Goal: what is long is taken first where no run holds all, and all blocks are found in the end, each once. Method: free runs of
// random lengths, requests of all sizes until nothing is left, beside a plain vector.
#[test]
fn requests_take_long_runs_first_and_all_blocks_last() {
    let mut x = 88172645463325252u64;
    for round in 0..60u64 {
        let total = 2 * PAGE_BITS + 777;
        let (most, gap) = ([2, 100, 700, 3_000][round as usize % 4], 1 + next(&mut x) % 60);
        let mut free = vec![false; total as usize];
        let mut block = 1 + next(&mut x) % 500;
        while block < total {
            let len = 1 + next(&mut x) % most;
            free[block as usize..(block + len).min(total) as usize].fill(true);
            block += len + 1 + next(&mut x) % gap;
        }
        let mut space = with_clear(total, |block| free[block as usize]);
        let mut left = free.iter().filter(|free| **free).count() as u64;
        while left > 0 {
            let n = (1 + next(&mut x) % [1, 30, 1024, 3_000][next(&mut x) as usize % 4]).min(left) as u32;
            let runs = space.allocate_data(n, PoolAddr::NULL).expect("so many are left");
            assert_eq!(runs.iter().map(|run| run.blocks).sum::<u32>(), n, "round {round}");
            for block in
                runs.iter().flat_map(|run| run.addr.block()..run.addr.block() + u64::from(run.blocks))
            {
                assert!(std::mem::replace(&mut free[block as usize], false), "round {round}: block {block}");
            }
            // Along the ring: at most once does the next lie before.
            assert!(
                runs.windows(2).filter(|pair| pair[0].addr > pair[1].addr).count() <= 1,
                "round {round}: {runs:?}"
            );
            left -= u64::from(n);
        }
        assert!(space.allocate_data(1, PoolAddr::NULL).is_none());
    }
}

// Goal: what a request reads does not grow with the number of holes. Method: words of the bitmap read, on a pool of millions of
// single holes with nothing long in it, and on a full one with the last blocks at one end.
#[test]
fn searches_read_a_bounded_part_of_the_bitmap() {
    let total = 300 * PAGE_BITS;
    let words_of = |space: &mut Space, blocks: u32, nodes: u64| {
        bits::WORDS_READ.set(0);
        let runs = space.allocate_data(blocks, PoolAddr::NULL).expect("there is room").len();
        let data = bits::WORDS_READ.replace(0);
        space.allocate_metadata(nodes).expect("there is room");
        (runs, data, bits::WORDS_READ.get())
    };
    let mut space = with_clear(total, |block| block % 2 == 0);
    for _ in 0..20 {
        let (runs, data, nodes) = words_of(&mut space, 1024, 1024);
        assert_eq!(runs, 1024);
        assert!(data < 40_000, "{data} words for 1,024 blocks");
        assert!(nodes < 50_000, "{nodes} words for 1,024 nodes");
    }
    let mut space = with_clear(total, |block| block > total - 10_000 && block % 2 == 0);
    for _ in 0..3 {
        let (_, data, nodes) = words_of(&mut space, 500, 200);
        assert!(data < 5_000, "{data} words for 500 blocks");
        assert!(nodes < 200 * 1_000, "{nodes} words for 200 nodes");
    }
}

// Goal: large files on an aged pool, and nodes that are written together, lie in few runs. Method: small and large files fill the
// pool, files are deleted at random until half is free, some times; then 8,000 nodes are placed, and given back, and files of 4 MiB take
// most of what is free.
#[test]
fn large_files_on_an_aged_pool_have_few_runs() {
    let total = 8 * PAGE_BITS;
    let mut space = Space::new(total, 2);
    let mut x = 88172645463325252u64;
    let mut files: Vec<Vec<Run>> = Vec::new();
    let mut free = total - 1;
    for _ in 0..5 {
        while free > total / 16 {
            let len = 1 + next(&mut x) % if next(&mut x).is_multiple_of(20) { 1024 } else { 16 };
            files.push(space.allocate_data(len as u32, PoolAddr::NULL).expect("there is room"));
            free -= len;
        }
        while free < total / 2 {
            for run in files.swap_remove(next(&mut x) as usize % files.len()) {
                space.unallocate(run);
                free += u64::from(run.blocks);
            }
        }
    }
    let places = space.allocate_metadata(8_000).expect("there is room");
    let node_runs = places.windows(2).filter(|p| p[0][0].block() + 1 != p[1][0].block()).count() + 1;
    give_back(&mut space, &places);
    let runs: usize =
        (0..100).map(|_| space.allocate_data(1024, PoolAddr::NULL).expect("there is room").len()).sum();
    assert!(runs < 1_200, "{runs} runs of 100 files");
    assert!(node_runs < 40, "{node_runs} runs of 8,000 nodes");
}
