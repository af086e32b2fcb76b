//! Names: create, link, unlink, rename, directories, listings.

use std::collections::BTreeMap;

use varve_engine::InodeId;
use varve_sim::Rng;

use super::*;
use varve_fs::internals::hash::HASH_KIND_COLLIDING;

// Goal: the narrow path works and survives closing. Method: make a little tree by hand, reopen, look.
#[test]
fn a_small_tree() {
    let mut f = Fixture::new(64 * MIB);
    let dir = f.mkdir(ROOT, b"dir");
    let file = f.fs.create(Caller { uid: 5, gid: 6 }, dir, b"file", 0o640).unwrap();
    assert_eq!((file.uid, file.gid, file.mode, file.links, file.size), (5, 6, 0o640, 1, 0));
    f.fs.symlink(Caller::ROOT, dir, b"link", b"../target").unwrap();
    let long = pattern(1, 4000).iter().map(|b| b | 1).collect::<Vec<u8>>();
    let long_link = f.fs.symlink(Caller::ROOT, ROOT, b"long", &long).unwrap();
    f.fs.link(file.ino, ROOT, b"hard").unwrap();
    for _ in 0..2 {
        assert_eq!(f.fs.lookup(dir, b"..").unwrap().ino, ROOT);
        assert_eq!(f.fs.lookup(dir, b".").unwrap().ino, dir);
        assert_eq!(f.fs.lookup(ROOT, b"hard").unwrap().links, 2);
        let link = f.fs.lookup(dir, b"link").unwrap();
        assert_eq!((link.kind, link.size), (FileKind::Symlink, 9));
        assert_eq!(f.fs.readlink(link.ino).unwrap(), b"../target");
        assert_eq!(f.fs.readlink(long_link.ino).unwrap(), long);
        assert_eq!(f.list(dir), [b"file".to_vec(), b"link".to_vec()]);
        assert_eq!(f.fs.statfs().unwrap().files, 5);
        f.check();
        f.reopen();
    }
    f.fs.unlink(ROOT, b"long").unwrap();
    f.check();
}

// Goal: each refusal has its errno and changes nothing. Method: a table of wrong calls, then compare the listing.
#[test]
fn refusals() {
    let f = Fixture::new(64 * MIB);
    let c = Caller::ROOT;
    let dir = f.mkdir(ROOT, b"dir");
    let file = f.create(b"file");
    f.mkdir(dir, b"inner");
    let before = (f.fs.position(), f.list(ROOT));
    refused(f.fs.lookup(ROOT, b"none"), 2);
    refused(f.fs.lookup(file, b"x"), 20);
    refused(f.fs.lookup(ROOT, &[b'x'; 256]), 36);
    refused(f.fs.getattr(InodeId(9999)), 2);
    refused(f.fs.create(c, ROOT, b"file", 0), 17);
    refused(f.fs.create(c, ROOT, b".", 0), 17);
    refused(f.fs.create(c, ROOT, b"a/b", 0), 22);
    refused(f.fs.create(c, ROOT, b"a\0b", 0), 22);
    refused(f.fs.create(c, ROOT, &[b'x'; 256], 0), 36);
    refused(f.fs.create(c, file, b"x", 0), 20);
    refused(f.fs.mkdir(c, ROOT, b"dir", 0), 17);
    refused(f.fs.unlink(ROOT, b"dir"), 21);
    refused(f.fs.rmdir(ROOT, b"file"), 20);
    refused(f.fs.rmdir(ROOT, b"dir"), 39);
    refused(f.fs.rmdir(dir, b"."), 22);
    refused(f.fs.unlink(ROOT, b"none"), 2);
    refused(f.fs.link(dir, ROOT, b"x"), 1);
    refused(f.fs.link(file, ROOT, b"dir"), 17);
    refused(f.fs.symlink(c, ROOT, b"s", &[b'x'; 4096]), 36);
    refused(f.fs.readlink(file), 22);
    refused(f.fs.read(dir, 0, 1), 21);
    refused(f.fs.write(c, dir, 0, b"x"), 21);
    refused(f.fs.readdir(file, 0, &mut |_| true), 20);
    let (r, n, x) = (RenameMode::Replace, RenameMode::NoReplace, RenameMode::Exchange);
    refused(f.fs.rename(ROOT, b"none", ROOT, b"y", r), 2);
    refused(f.fs.rename(ROOT, b"file", ROOT, b"dir", r), 21);
    refused(f.fs.rename(ROOT, b"dir", ROOT, b"file", r), 20);
    refused(f.fs.rename(ROOT, b"file", ROOT, b"dir", n), 17);
    refused(f.fs.rename(ROOT, b"file", ROOT, b"none", x), 2);
    refused(f.fs.rename(ROOT, b"dir", dir, b"below", r), 22);
    refused(f.fs.rename(dir, b"inner", ROOT, b"dir", r), 39);
    refused(f.fs.rename(ROOT, b"dir", dir, b"inner", x), 22);
    // Whether the name is there is asked before where it is, as rename(2) does.
    refused(f.fs.rename(ROOT, b"dir", dir, b"none", x), 2);
    refused(f.fs.rename(ROOT, b"dir", dir, b"inner", n), 17);
    refused(f.fs.rename(dir, b"inner", ROOT, b"dir", n), 17);
    refused(f.fs.rename(ROOT, b"dir", ROOT, b"..", r), 22);
    assert_eq!((f.fs.position(), f.list(ROOT)), before);
    f.check();
}

// Goal: rename in all modes moves what it should, counts and parents included. Method: by hand, with check after each.
#[test]
fn renames() {
    let mut f = Fixture::new(64 * MIB);
    let (a, b) = (f.mkdir(ROOT, b"a"), f.mkdir(ROOT, b"b"));
    let file = f.fs.create(Caller::ROOT, a, b"f", 0o644).unwrap().ino;
    f.write(file, 0, b"source");
    f.fs.rename(a, b"f", b, b"g", RenameMode::Replace).unwrap();
    f.check();
    let old = f.fs.create(Caller::ROOT, b, b"old", 0o644).unwrap().ino;
    f.write(old, 0, &pattern(2, 9000));
    f.fs.rename(b, b"g", b, b"old", RenameMode::Replace).unwrap();
    refused(f.fs.getattr(old), 2);
    assert_eq!(f.fs.lookup(b, b"old").unwrap().ino, file);
    f.check();
    // A directory goes below another; its ".." follows.
    f.fs.rename(ROOT, b"b", a, b"b", RenameMode::NoReplace).unwrap();
    assert_eq!(f.fs.lookup(b, b"..").unwrap().ino, a);
    f.check();
    let other = f.create(b"other");
    f.fs.rename(ROOT, b"other", a, b"b", RenameMode::Exchange).unwrap();
    assert_eq!(f.fs.lookup(b, b"..").unwrap().ino, ROOT);
    assert_eq!(f.fs.lookup(ROOT, b"other").unwrap().ino, b);
    assert_eq!(f.fs.lookup(a, b"b").unwrap().ino, other);
    f.check();
    // Names of one inode: nothing happens.
    f.fs.link(other, ROOT, b"again").unwrap();
    let position = f.fs.position();
    f.fs.rename(ROOT, b"again", a, b"b", RenameMode::Replace).unwrap();
    f.fs.rename(ROOT, b"again", ROOT, b"again", RenameMode::Replace).unwrap();
    assert_eq!(f.fs.position(), position);
    // Over an empty directory.
    f.mkdir(ROOT, b"empty");
    f.fs.rename(ROOT, b"other", ROOT, b"empty", RenameMode::Replace).unwrap();
    f.check();
    f.kill();
    f.check();
}

// Goal: promise 1 for rename: the source's data is logged before the name moves, without riding. Method: order of the
// log positions, and read after a kill right behind the rename.
#[test]
fn rename_over_logs_the_source_first() {
    let mut f = Fixture::new(64 * MIB);
    let (old, new) = (f.create(b"file"), f.create(b"file.new"));
    let data = pattern(3, 100_000);
    f.write(old, 0, b"old");
    f.fs.fsync(old).unwrap();
    f.write(new, 0, &data);
    f.fs.rename(ROOT, b"file.new", ROOT, b"file", RenameMode::Replace).unwrap();
    let logged = *f.logged.lock().last().unwrap();
    assert_eq!((logged.ino, logged.size), (new, 100_000));
    assert!(logged.lsn < f.fs.position());
    f.fs.fsync(ROOT).unwrap();
    f.kill();
    let ino = f.fs.lookup(ROOT, b"file").unwrap().ino;
    assert_eq!(f.read_all(ino), data);
    f.check();
}

// Goal: an unlinked file lives until its last handle ends, also over a kill, and then its space comes back. Method:
// unlink while open, read and write on, release or kill; statfs before and after.
#[test]
fn unlinked_while_open() {
    for kill in [false, true] {
        let mut f = Fixture::new(64 * MIB);
        f.fs.sync().unwrap();
        f.fs.checkpoint().unwrap();
        let ino = f.create(b"f");
        f.fs.setxattr(ino, b"user.a", b"b", XattrMode::Set).unwrap();
        f.fs.open_inode(Caller::ROOT, ino, false).unwrap();
        f.write(ino, 0, &pattern(4, 3 << 20));
        f.fs.fsync(ino).unwrap();
        f.fs.unlink(ROOT, b"f").unwrap();
        f.check();
        assert_eq!(f.fs.getattr(ino).unwrap().links, 0);
        refused(f.fs.link(ino, ROOT, b"g"), 2);
        f.write(ino, 10, b"changed");
        f.fs.fsync(ino).unwrap();
        assert_eq!(&f.fs.read(ino, 10, 7).unwrap(), b"changed");
        f.check();
        if kill {
            f.kill();
        } else {
            f.write(ino, 5000, b"never logged");
            f.fs.release_inode(ino).unwrap();
            f.fs.maintain().unwrap();
        }
        refused(f.fs.getattr(ino), 2);
        f.check();
        f.fs.sync().unwrap();
        f.fs.checkpoint().unwrap();
        assert!(f.fs.space().used_bytes < MIB, "{:?}", f.fs.space());
    }
}

// Goal: names are bytes, up to 255 of any but two, and collisions of hashes change nothing. Method: random creates,
// unlinks, renames and links of odd names in one directory against a map, with the real hash and with one that has
// few values.
#[test]
fn odd_names_and_collisions() {
    for kind in [HASH_KIND_SIPHASH13, HASH_KIND_COLLIDING] {
        let mut f = Fixture::with(64 * MIB, kind, MIB);
        let mut rng = Rng::new(u64::from(kind));
        let mut model: BTreeMap<Vec<u8>, InodeId> = BTreeMap::new();
        let pool: Vec<Vec<u8>> = (0..40u8)
            .map(|i| {
                let mut name =
                    vec![if i % 3 == 0 { 0xff } else { b'x' }; if i % 4 == 0 { 255 } else { 1 + i as usize }];
                let last = name.len() - 1;
                name[last] = 0x80 | i;
                name
            })
            .collect();
        for step in 0..2000 {
            let (name, other) = (rng.pick(&pool).unwrap().clone(), rng.pick(&pool).unwrap().clone());
            match rng.below(5) {
                0 | 1 => match f.fs.create(Caller::ROOT, ROOT, &name, 0o600) {
                    Ok(attr) => assert!(model.insert(name, attr.ino).is_none(), "step {step}"),
                    Err(error) => {
                        assert_eq!((error.errno(), model.contains_key(&name)), (17, true), "step {step}")
                    }
                },
                2 => match f.fs.unlink(ROOT, &name) {
                    Ok(()) => assert!(model.remove(&name).is_some(), "step {step}"),
                    Err(error) => {
                        assert_eq!((error.errno(), model.contains_key(&name)), (2, false), "step {step}")
                    }
                },
                3 => {
                    if let Some(ino) = model.get(&name).copied() {
                        f.fs.rename(ROOT, &name, ROOT, &other, RenameMode::Replace).unwrap();
                        if model.get(&other) != Some(&ino) {
                            model.remove(&name);
                            model.insert(other, ino);
                        }
                    }
                }
                _ => {
                    if let (Some(a), Some(b)) = (model.get(&name).copied(), model.get(&other).copied()) {
                        f.fs.rename(ROOT, &name, ROOT, &other, RenameMode::Exchange).unwrap();
                        model.insert(name, b);
                        model.insert(other, a);
                    } else if let Some(ino) = model.get(&name).copied() {
                        f.fs.link(ino, ROOT, &other).unwrap();
                        model.insert(other, ino);
                    }
                }
            }
            if step % 100 == 0 {
                assert_eq!(
                    f.list(ROOT),
                    model.keys().cloned().collect::<Vec<_>>(),
                    "kind {kind} step {step}"
                );
                for (name, ino) in &model {
                    assert_eq!(f.fs.lookup(ROOT, name).unwrap().ino, *ino, "kind {kind} step {step}");
                }
                f.check();
            }
            if step % 701 == 700 {
                f.kill();
                f.reopen();
                model.retain(|name, _| f.fs.lookup(ROOT, name).is_ok());
                model.extend(f.list(ROOT).into_iter().map(|name| {
                    let ino = f.fs.lookup(ROOT, &name).unwrap().ino;
                    (name, ino)
                }));
            }
        }
        assert_eq!(
            f.fs.statfs().unwrap().files as usize,
            1 + model.values().collect::<std::collections::BTreeSet<_>>().len()
        );
    }
}

// Goal: a listing interrupted by changes shows every name that was there all the time exactly once. Method: list in
// small pieces, and between them add and remove other names.
#[test]
fn listing_while_names_change() {
    for kind in [HASH_KIND_SIPHASH13, HASH_KIND_COLLIDING] {
        let f = Fixture::with(64 * MIB, kind, MIB);
        let dir = f.mkdir(ROOT, b"d");
        let stay: Vec<Vec<u8>> = (0..100).map(|i| format!("stay{i}").into_bytes()).collect();
        let go: Vec<Vec<u8>> = (0..100).map(|i| format!("go{i}").into_bytes()).collect();
        for name in stay.iter().chain(&go) {
            f.fs.create(Caller::ROOT, dir, name, 0o600).unwrap();
        }
        let (mut cookie, mut seen, mut turn) = (0, Vec::new(), 0);
        loop {
            let mut got = Vec::new();
            f.fs.readdir(dir, cookie, &mut |entry| {
                assert!(entry.cookie > cookie && entry.cookie < 1 << 63);
                cookie = entry.cookie;
                got.push(entry.name);
                got.len() < 7
            })
            .unwrap();
            if got.is_empty() {
                break;
            }
            seen.extend(got);
            if turn < go.len() {
                f.fs.unlink(dir, &go[turn]).unwrap();
                // With few hashes 256 names of one first letter is the most there can be.
                f.fs.create(Caller::ROOT, dir, format!("new{turn}").as_bytes(), 0o600).unwrap();
            }
            turn += 1;
        }
        assert_eq!(&seen[..2], [b".".to_vec(), b"..".to_vec()]);
        for name in &stay {
            assert_eq!(seen.iter().filter(|n| *n == name).count(), 1, "{}", name.escape_ascii());
        }
        for name in &go {
            assert!(seen.iter().filter(|n| *n == name).count() <= 1);
        }
        f.check();
    }
}

// Goal: attributes change as POSIX says. Method: a few calls by hand, with the set-id rules.
#[test]
fn attributes() {
    let mut f = Fixture::new(64 * MIB);
    let user = Caller { uid: 1000, gid: 1000 };
    let ino = f.fs.create(user, ROOT, b"f", 0o6755).unwrap().ino;
    f.write(ino, 0, b"by root");
    assert_eq!(f.fs.getattr(ino).unwrap().mode, 0o6755);
    f.fs.write(user, ino, 0, b"by user").unwrap();
    assert_eq!(f.fs.getattr(ino).unwrap().mode, 0o755);
    let set = |set: SetAttr, caller| f.fs.setattr(caller, ino, set).unwrap();
    let none = SetAttr::default();
    set(SetAttr { mode: Some(0o6711), ..none }, user);
    assert_eq!(set(SetAttr { gid: Some(7), ..none }, user).mode, 0o711);
    // A new owner clears them whoever asks; a new size does not when root asks.
    set(SetAttr { mode: Some(0o6711), ..none }, user);
    assert_eq!(set(SetAttr { uid: Some(1000), ..none }, Caller::ROOT).mode, 0o711);
    set(SetAttr { mode: Some(0o6711), ..none }, user);
    assert_eq!(set(SetAttr { size: Some(7), ..none }, Caller::ROOT).mode, 0o6711);
    assert_eq!(set(SetAttr { size: Some(2), ..none }, user).mode, 0o711);
    let time = Timestamp { seconds: -5, nanoseconds: 7 };
    let attr = set(SetAttr { mtime: Some(SetTime::At(time)), atime: Some(SetTime::At(time)), ..none }, user);
    assert_eq!((attr.mtime, attr.atime), (time, time));
    assert!(attr.ctime > attr.btime);
    f.fs.write(user, ino, 0, b"x").unwrap();
    assert!(f.fs.getattr(ino).unwrap().mtime > time);
    // An explicit time overrides that of a write that still waits.
    f.fs.setattr(user, ino, SetAttr { mtime: Some(SetTime::At(time)), ..none }).unwrap();
    f.reopen();
    let attr = f.fs.getattr(ino).unwrap();
    assert_eq!((attr.mtime, attr.mode, attr.gid, attr.size), (time, 0o711, 7, 2));
    // Everything that is set at once is, beside a mode and a size, too.
    let (atime, mtime) = (Timestamp { seconds: 11, ..time }, Timestamp { seconds: 12, ..time });
    let times = SetAttr { atime: Some(SetTime::At(atime)), mtime: Some(SetTime::At(mtime)), ..none };
    let set = SetAttr { mode: Some(0o640), uid: Some(3), gid: Some(4), size: Some(1), ..times };
    let attr = f.fs.setattr(Caller::ROOT, ino, set).unwrap();
    assert_eq!((attr.atime, attr.mtime), (atime, mtime));
    assert_eq!((attr.mode, attr.uid, attr.gid, attr.size), (0o640, 3, 4, 1));
    // A set-group-id directory gives its group, and its bit to directories.
    let dir = f.fs.mkdir(Caller { uid: 0, gid: 50 }, ROOT, b"d", 0o2775).unwrap().ino;
    assert_eq!(f.fs.create(user, dir, b"f", 0o644).unwrap().gid, 50);
    let inner = f.fs.mkdir(user, dir, b"d", 0o755).unwrap();
    assert_eq!((inner.gid, inner.mode), (50, 0o2755));
    f.check();
}

/// Goal: a directory counts a link for each directory in it, as find(1) and others expect. Method: directories made,
/// removed, moved, swapped with a file, and replaced; the counts after each; a directory of an older version, which
/// does not count, says 1 throughout.
#[test]
fn directories_count_their_links() {
    let mut f = Fixture::new(64 * MIB);
    let links = |ino| f.fs.getattr(ino).unwrap().links;
    let made = |parent, name: &[u8]| f.mkdir(parent, name);
    assert_eq!(links(ROOT), 2);
    let (a, b) = (made(ROOT, b"a"), made(ROOT, b"b"));
    assert_eq!((links(ROOT), links(a), links(b)), (4, 2, 2));
    made(a, b"inner");
    f.fs.create(Caller::ROOT, b, b"file", 0o644).unwrap();
    assert_eq!((links(a), links(b)), (3, 2), "files do not count");
    f.fs.rename(a, b"inner", b, b"inner", RenameMode::Replace).unwrap();
    assert_eq!((links(a), links(b)), (2, 3));
    f.fs.rename(b, b"inner", b, b"other", RenameMode::Replace).unwrap();
    assert_eq!(links(b), 3);
    f.fs.create(Caller::ROOT, a, b"swapped", 0o644).unwrap();
    f.fs.rename(b, b"other", a, b"swapped", RenameMode::Exchange).unwrap();
    assert_eq!((links(a), links(b)), (3, 2));
    made(b, b"empty");
    f.fs.rename(a, b"swapped", b, b"empty", RenameMode::Replace).unwrap();
    assert_eq!((links(a), links(b)), (2, 3));
    let gone = f.fs.lookup(b, b"empty").unwrap().ino;
    f.fs.open_inode(Caller::ROOT, gone, false).unwrap();
    f.fs.rmdir(b, b"empty").unwrap();
    assert_eq!((links(b), links(gone)), (2, 0));
    f.fs.release_inode(gone).unwrap();
    f.check();
    // As an older version would have left it.
    let older = made(ROOT, b"older");
    made(older, b"first");
    super::check::change(f.fs.core(), older, |record| record.rdev = 0);
    f.reopen();
    let links = |ino| f.fs.getattr(ino).unwrap().links;
    assert_eq!(links(older), 1);
    f.mkdir(older, b"second");
    f.fs.rmdir(older, b"first").unwrap();
    assert_eq!(links(older), 1);
    f.check();
}
