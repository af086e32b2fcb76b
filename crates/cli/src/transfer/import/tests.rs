//! Single entries, in a pool whose power fails.

use std::time::Duration;

use super::*;
use crate::transfer::test_pool;

/// An import of `tree` to the root of a pool, and its level.
fn begin(pool: &Arc<Filesystem>, tree: &Path) -> (Import, Level) {
    let source = host::open_directory(tree).expect("a directory");
    let stat = host::stat_of(&source).expect("a directory");
    let mut import = Import {
        filesystem: pool.clone(),
        tally: Tally::start("import", String::new(), String::new()),
        finisher: Finisher::start(pool.clone(), Duration::MAX).expect("a thread"),
        links: Links::default(),
        claimed: HashSet::new(),
        flags_last: Vec::new(),
        pool_file: None,
        one_file_system: None,
        settled: HashSet::new(),
        buffer: vec![0; PIECE_BYTES],
        room: Vec::new(),
    };
    let level = import.open_level(source, stat, Target { ino: ROOT_INODE, fresh: false });
    (import, level.unwrap_or_else(|_| panic!("a level")))
}

// Goal: a file that takes the place of an older copy by a further name, its first being nobody's before, has its bytes in the log before.
// Method: the log is made durable as it is then, and the power cut.
#[test]
fn a_further_name_takes_a_place_with_its_bytes() {
    let (older, newer) = (vec![1; 100_000], vec![2; 300_000]);
    let device = test_pool::format();
    let pool = Arc::new(test_pool::open(device.clone()));
    let old = pool.create(Caller::ROOT, ROOT_INODE, b"y", 0o644).expect("a file").ino;
    pool.write(Caller::ROOT, old, 0, &older).expect("contents");
    pool.sync().expect("synced");
    let scratch = tempfile::tempdir().expect("a directory");
    let tree = scratch.path();
    std::fs::write(tree.join("x"), &newer).expect("a file");
    std::fs::hard_link(tree.join("x"), tree.join("y")).expect("a link");
    let (mut import, level) = begin(&pool, tree);
    for name in [b"x", b"y"] {
        assert!(import.entry(&level, name).is_ok());
    }
    assert_eq!(import.tally.summary.hard_links_count, 1);
    pool.commit(pool.position()).expect("the log is durable");
    let left = test_pool::open(Arc::new(device.snapshot()));
    let file = left.lookup(ROOT_INODE, b"y").expect("one of the two").ino;
    assert!([older, newer].contains(&left.read(file, 0, 1 << 20).expect("it can be read")));
}
