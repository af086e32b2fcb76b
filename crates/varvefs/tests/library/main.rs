//! The library as a program that links it sees it: nothing but `varvefs` is named here.

mod counted;
mod directories;
mod durability;
mod errors;
mod files;
mod flags;
mod health;
mod huge;
mod paths;
mod ranges;
mod reader;
mod storm;
mod subvolumes;
mod surface;
mod threads;
mod trim;
mod unnamed;

/// The example, which is a test as well.
#[path = "../../examples/embed.rs"]
mod embed;

use varvefs::{Filesystem, Pool, PoolOptions};

const MIB: u64 = 1 << 20;

/// An empty filesystem in memory that does nothing by itself.
fn fresh() -> Filesystem {
    quiet().in_memory(64 * MIB).unwrap().filesystem()
}

/// Options under which nothing happens but in calls, so that flushes can be counted.
fn quiet() -> PoolOptions {
    PoolOptions::new().background(false)
}

/// The check finds nothing.
fn assert_sound(pool: &Pool) {
    let report = pool.check(true).unwrap();
    assert!(report.is_clean(), "check found: {:#?}", report.problems);
}

/// Names in a directory, sorted.
fn names(fs: &Filesystem, path: &str) -> Vec<String> {
    let mut names: Vec<String> =
        fs.read_dir(path).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

// Goal: the example keeps what it promises. Method: its main, whose assertions count a flush and cut the power.
#[test]
fn the_example_keeps_its_promises() {
    embed::main().unwrap();
}
