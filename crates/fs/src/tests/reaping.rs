//! What of deleted things is left when something fails on the way: only what it failed on, and only as long as it fails.

use varve_engine::{FamilyId, Transaction, TreeId};

use super::*;

/// The orphans that are logged.
fn orphans(fs: &Filesystem) -> Vec<InodeId> {
    let mut found = Vec::new();
    crate::table::orphans::each(&fs.core().store.view(), &mut |ino, _| found.push(ino)).unwrap();
    found
}

/// Puts garbage in place of what a tree has of a family; gives what was there.
fn spoil(fs: &Filesystem, tree: TreeId, family: FamilyId) -> Vec<(Vec<u8>, Vec<u8>)> {
    let (core, prefix) = (fs.core(), family.0.to_be_bytes());
    let (mut entries, mut tx) = (Vec::new(), Transaction::new());
    core.store
        .view()
        .scan(tree, &prefix, &mut |key, value| {
            if key.starts_with(&prefix) {
                entries.push((key.to_vec(), value.to_vec()));
            }
            key.starts_with(&prefix)
        })
        .unwrap();
    assert!(!entries.is_empty());
    entries.iter().for_each(|(key, _)| tx.put(tree, key, b"garbage"));
    core.apply(tx).unwrap();
    entries
}

/// The family of a file's data.
fn data_of(fs: &Filesystem, ino: InodeId) -> FamilyId {
    fs.core().state(ino).inner.read().record.data.family
}

/// Puts back what was there.
fn mend(fs: &Filesystem, tree: TreeId, entries: &[(Vec<u8>, Vec<u8>)]) {
    let mut tx = Transaction::new();
    entries.iter().for_each(|(key, value)| tx.put(tree, key, value));
    fs.core().apply(tx).unwrap();
}

// Goal: a file whose data cannot be let go of keeps none of the others, which died in the same step, from being reaped, nor the
// subvolume they were in. Method: of three files of a deleted subvolume the first has garbage for extents.
#[test]
fn dead_records_are_reaped_past_a_bad_one() {
    let mut f = Fixture::new(64 * MIB);
    let sub = f.fs.create_subvolume(Caller::ROOT, ROOT, b"sub", 0o755).unwrap().ino;
    let files = [b"a", b"b", b"c"].map(|name| f.fs.create(Caller::ROOT, sub, name, 0o644).unwrap().ino);
    for ino in files {
        f.write(ino, 0, &pattern(1, 40_000));
    }
    f.fs.sync().unwrap();
    let entries = spoil(&f.fs, TreeId::EXTENTS, data_of(&f.fs, files[0]));
    f.fs.delete_subvolume(ROOT, b"sub").unwrap();
    f.fs.maintain().unwrap();
    assert_eq!((orphans(&f.fs).len(), f.fs.reap_backlog()), (1, 0));
    mend(&f.fs, TreeId::EXTENTS, &entries);
    f.reopen();
    f.fs.maintain().unwrap();
    assert_eq!(orphans(&f.fs), []);
    f.check();
}
