//! What snapshots leave behind when they are gone: nothing.

use varve_engine::TreeId;

use super::*;

const FILES: u64 = 1000;
/// Longer than what lies in an inode's record.
const LEN: usize = 8192;

fn entries(f: &Fixture, tree: TreeId) -> usize {
    let mut found = 0;
    let all = &mut |_: &[u8], _: &[u8]| {
        found += 1;
        true
    };
    f.fs.core().store.view().scan(tree, &[], all).unwrap();
    found
}

/// Entries in the trees of what is stored, and in those that only forks have.
fn stored(f: &Fixture) -> ([usize; 3], [usize; 3]) {
    f.fs.maintain().unwrap();
    f.check();
    let count = |tree| entries(f, tree);
    (
        [TreeId::INODES, TreeId::NAMES, TreeId::EXTENTS].map(count),
        [TreeId::VERSIONS, TreeId::HELD, TreeId::REAP].map(count),
    )
}

fn path(n: u64) -> Vec<u8> {
    format!("file {n}").into_bytes()
}

/// Rewrites every file in place, or cuts it to nothing first.
fn rewrite(f: &Fixture, dir: InodeId, seed: u64) {
    for n in 0..FILES {
        let ino = f.fs.lookup(dir, &path(n)).unwrap().ino;
        if n % 2 == 0 {
            f.truncate(ino, 0);
        }
        f.write(ino, 0, &pattern(seed + n, LEN));
    }
}

fn compare(f: &Fixture, dir: InodeId, seed: u64) {
    for n in 0..FILES {
        let ino = f.fs.lookup(dir, &path(n)).unwrap().ino;
        assert!(f.read_all(ino) == pattern(seed + n, LEN), "file {n}");
    }
}

// Goal: when a snapshot or its source is gone and the reaper has nothing to do, as many records are stored as before the snapshot.
// Method: 1,000 files, a snapshot, all of them rewritten in place or cut first; one of the two goes; count; the same again with what
// is left, opened again each time.
#[test]
fn are_as_before_the_first_snapshot() {
    let mut f = Fixture::new(256 * MIB);
    let sub = f.fs.create_subvolume(Caller::ROOT, ROOT, b"0", 0o755).unwrap().ino;
    for n in 0..FILES {
        let ino = f.fs.create(Caller::ROOT, sub, &path(n), 0o644).unwrap().ino;
        f.write(ino, 0, &pattern(n, LEN));
    }
    f.fs.sync().unwrap();
    let before = stored(&f);
    assert_eq!(before.1, [0; 3]);
    // Of what is there, and is to be in the copy.
    let mut seed = 0;
    for round in 0..4 {
        let [name, copy] = [round, round + 1].map(|n| n.to_string().into_bytes());
        let dir = f.fs.lookup(ROOT, &name).unwrap().ino;
        f.fs.snapshot(dir, ROOT, &copy, false, false).unwrap();
        rewrite(&f, dir, seed + 10_000);
        f.fs.sync().unwrap();
        let with = stored(&f).1;
        assert!(with[0] > FILES as usize && with[1] > FILES as usize && with[2] == 0, "{with:?}");
        let copied = f.fs.lookup(ROOT, &copy).unwrap().ino;
        compare(&f, copied, seed);
        if round % 2 == 0 {
            // The source stays, under the name that the next round expects.
            f.fs.delete_subvolume(ROOT, &copy).unwrap();
            f.fs.rename(ROOT, &name, ROOT, &copy, RenameMode::NoReplace).unwrap();
            seed += 10_000;
        } else {
            f.fs.delete_subvolume(ROOT, &name).unwrap();
        }
        assert_eq!(stored(&f), before, "round {round}: {with:?} with both");
        f.reopen();
        f.check();
        let left = f.fs.lookup(ROOT, &copy).unwrap().ino;
        compare(&f, left, seed);
    }
}
