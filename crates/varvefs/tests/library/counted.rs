//! What verbs cost in counts that do not depend on the machine: the memory they ask for.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use varvefs::{OpenOptions, SnapshotOptions};

use super::*;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

/// The system's, counting what each thread asks for.
struct Counting;

// SAFETY: everything is passed on as it comes, to an allocator that keeps the contract; the counter allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller keeps the contract of this function, which is the same.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: as above; `ptr` comes from `System`.
        unsafe { System.dealloc(ptr, layout) }
    }
    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        count();
        // SAFETY: as above; `ptr` comes from `System`.
        unsafe { System.realloc(ptr, layout, new_size) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

fn count() {
    // A thread that ends may still free and ask for memory when its counter has gone.
    let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
}

/// The median of what each of many calls asks for, each after `prepare`: now and then a table grows.
fn allocations(calls: usize, prepare: &dyn Fn(), mut call: impl FnMut(usize)) -> u64 {
    let mut counts: Vec<u64> = (0..calls)
        .map(|n| {
            prepare();
            let before = ALLOCATIONS.get();
            call(n);
            ALLOCATIONS.get() - before
        })
        .collect();
    counts.sort_unstable();
    counts[calls / 2]
}

// Goal: a snapshot and a clone ask for the same few pieces of memory whatever is in the source, whatever of it is dirty, and
// however many there are already. Method: count them with one file and with 2,000, with nothing dirty, a large file and
// 2,000 small ones, and after two thousand forks.
#[test]
fn forks_ask_for_little_memory() {
    let pool = quiet().dirty_bytes_max(256 * MIB).in_memory(512 * MIB).unwrap();
    let fs = pool.filesystem();
    fs.create_subvolume("/origin").unwrap();
    fs.write("/origin/cloned", vec![7; 10_000]).unwrap();
    fs.sync().unwrap();
    let (mut snapshots, mut clones) = (Vec::new(), Vec::new());
    let mut measure = |what: &str, times: usize, dirty: &dyn Fn()| {
        let paths: Vec<_> =
            (0..times).map(|n| (format!("/s {what} {n}"), format!("/c {what} {n}"))).collect();
        clones.push(allocations(times, &|| {}, |n| fs.clone_file("/origin/cloned", &paths[n].1).unwrap()));
        snapshots.push(allocations(times, dirty, |n| {
            fs.snapshot("/origin", &paths[n].0, SnapshotOptions::new()).unwrap();
        }));
        fs.sync().unwrap();
    };
    measure("at first", 15, &|| {});
    let file = OpenOptions::new().write(true).create(true).open(&fs, "/origin/large").unwrap();
    measure("large", 5, &|| file.write_all_at(&vec![1; 16 << 20], 0).unwrap());
    for n in 0..2000 {
        fs.write(format!("/origin/{n}"), b"small").unwrap();
    }
    fs.sync().unwrap();
    measure("of many", 15, &|| {});
    measure("many dirty", 5, &|| (0..2000).for_each(|n| fs.write(format!("/origin/{n}"), b"dirty").unwrap()));
    measure("a thousand", 1000, &|| {});
    measure("after them", 15, &|| {});
    // A node of a tree that has been written is copied when it is changed, which takes a dozen more.
    for (what, counts, at_first) in [("snapshot", &snapshots, 8), ("clone", &clones, 12)] {
        println!("{what}: {counts:?} allocations");
        assert!(counts[0] <= at_first, "{what}: {counts:?}, at first at most {at_first}");
        assert!(counts.iter().all(|count| *count <= at_first + 14), "{what}: {counts:?}");
    }
    assert_sound(&pool);
}
