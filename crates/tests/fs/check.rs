//! The check finds what is wrong, and failing devices give errors.

use varve_device::Operation;
use varve_engine::{InodeId, Transaction, TreeId, VersionKey};
use varve_format::record::inode::{InodeRecord, inode_key};
use varve_format::record::name::NamePosition;
use varve_format::record::xattr::xattr_key;
use varve_sim::{Fault, FaultRule, FaultyDevice, Trigger};

use super::*;
use varve_fs::internals::core::Core;

/// Changes the record of `ino` behind the filesystem's back.
pub(super) fn change(core: &Core, ino: InodeId, edit: impl Fn(&mut InodeRecord)) {
    let mut record = core.change(ROOT).unwrap().inode(ino).unwrap().unwrap().0;
    edit(&mut record);
    let mut tx = Transaction::new();
    core.change(ROOT).unwrap().put_inode(&mut tx, ino, &record).unwrap();
    core.apply(tx).unwrap();
}

/// Removes the name behind the filesystem's back.
fn lose_name(core: &Core, dir: InodeId, name: &[u8]) {
    let mut bucket = core.change(ROOT).unwrap().bucket(dir, name).unwrap();
    let found = bucket.find(name).unwrap();
    bucket.remove(found.sequence);
    let mut tx = Transaction::new();
    core.change(ROOT).unwrap().put_bucket(&mut tx, &bucket).unwrap();
    core.apply(tx).unwrap();
}

// Goal: no damage to what is derived goes unseen, and the sentence names it. Method: a table of single damages, each on a
// fresh pool that was clean before.
#[test]
fn finds_every_planted_damage() {
    type Damage = fn(&Core, InodeId, InodeId, InodeId);
    let damages: [(&str, Damage); 12] = [
        ("has 1 names and says 2", |core, _, file, _| change(core, file, |r| r.links = 2)),
        ("has 0 names and says 1", |core, dir, _, _| lose_name(core, dir, b"file")),
        ("which does not exist", |core, _, file, _| {
            let mut tx = Transaction::new();
            core.change(ROOT).unwrap().delete_inode(&mut tx, file).unwrap();
            core.apply(tx).unwrap();
        }),
        ("entries and says 9", |core, dir, _, _| change(core, dir, |r| r.size = 9)),
        ("directories in it and says 7", |core, dir, _, _| change(core, dir, |r| r.rdev = 8)),
        ("is in directory", |core, dir, _, _| change(core, dir, |r| r.parent = dir)),
        ("cannot be reached", |core, dir, _, inner| {
            // The two directories contain each other.
            lose_name(core, ROOT, b"dir");
            let mut bucket = core.change(ROOT).unwrap().bucket(inner, b"dir").unwrap();
            assert!(bucket.insert(b"dir", dir, FileKind::Directory));
            let mut tx = Transaction::new();
            core.change(ROOT).unwrap().put_bucket(&mut tx, &bucket).unwrap();
            core.apply(tx).unwrap();
            change(core, dir, |r| r.parent = inner);
            change(core, inner, |r| r.size = 1);
            change(core, ROOT, |r| r.size = 0);
        }),
        ("has data beyond its size", |core, _, file, _| change(core, file, |r| r.size = 4096)),
        ("and extents", |core, _, file, _| change(core, file, |r| r.inline = Some(vec![]))),
        ("attributes of", |core, _, file, _| change(core, file, |r| r.xattr_count = 0)),
        ("lacks", |core, _, file, _| {
            let mut tx = Transaction::new();
            let hash = core.change(ROOT).unwrap().hasher.hash(b"user.big");
            let position = NamePosition::new(hash, 0);
            tx.delete(
                TreeId::XATTRS,
                &xattr_key(
                    core.change(ROOT).unwrap().family,
                    file,
                    position,
                    2,
                    VersionKey(core.change(ROOT).unwrap().version.0),
                ),
            );
            core.apply(tx).unwrap();
        }),
        ("the record of inode", |core, _, file, _| {
            let mut tx = Transaction::new();
            tx.put(
                TreeId::INODES,
                &inode_key(
                    core.change(ROOT).unwrap().family,
                    file,
                    VersionKey(core.change(ROOT).unwrap().version.0),
                ),
                b"garbage",
            );
            core.apply(tx).unwrap();
        }),
    ];
    for (sentence, damage) in damages {
        let f = Fixture::new(64 * MIB);
        let dir = f.mkdir(ROOT, b"dir");
        let inner = f.mkdir(dir, b"inner");
        let file = f.fs.create(Caller::ROOT, dir, b"file", 0o644).unwrap().ino;
        f.write(file, 0, &pattern(1, 10_000));
        f.fs.setxattr(file, b"user.big", &pattern(2, 3000), XattrMode::Set).unwrap();
        f.fs.sync().unwrap();
        f.check();
        damage(f.fs.core(), dir, file, inner);
        let report = f.fs.check(false).unwrap();
        assert!(
            report.problems.iter().any(|p| p.text.contains(sentence)),
            "{sentence}: {:#?}",
            report.problems
        );
    }
}

// Goal: a device that fails gives an error to who waits for it, and nothing acknowledged is lost. Method: writes fail
// from some point on; fsync reports it; on the healthy device the pool holds what was acknowledged before.
#[test]
fn failing_writes() {
    let f = Fixture::new(64 * MIB);
    let ino = f.create(b"f");
    f.write(ino, 0, &pattern(1, 50_000));
    f.fs.sync().unwrap();
    f.fs.close().unwrap();
    let faulty = Arc::new(FaultyDevice::new(f.device.snapshot(), 1, Vec::new()));
    let clock = Arc::new(TestClock(SimClock::new(1_800_000_000, 1)));
    let options = || OpenOptions {
        store: StoreOptions { background: false, ..StoreOptions::default() },
        dirty_bytes_max: MIB,
        clock: clock.clone(),
        on_data_logged: None,
    };
    let fs = Filesystem::open(vec![faulty.clone()], options()).unwrap().0;
    fs.write(Caller::ROOT, ino, 0, b"acknowledged").unwrap();
    fs.fsync(ino).unwrap();
    faulty.set_rules(vec![FaultRule::new(Operation::Write, Trigger::From(1), Fault::Error)]);
    fs.write(Caller::ROOT, ino, 20_000, &pattern(3, 3 << 20)).unwrap_err();
    assert_eq!(fs.fsync(ino).unwrap_err().errno(), 5);
    fs.create(Caller::ROOT, ROOT, b"more", 0o644).unwrap_err();
    let now = fs.read(ino, 0, 12).unwrap();
    assert_eq!(now, b"acknowledged");
    drop(fs);
    faulty.set_rules(Vec::new());
    let fs = Filesystem::open(vec![faulty], options()).unwrap().0;
    assert_eq!(fs.read(ino, 0, 12).unwrap(), b"acknowledged");
    assert!(fs.check(true).unwrap().problems.is_empty());
}
