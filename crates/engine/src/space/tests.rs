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
