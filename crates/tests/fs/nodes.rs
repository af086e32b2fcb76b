//! Device nodes, fifos and sockets.

use super::*;

// Goal: nodes keep kind and number, through a kill too, and behave as names. Method: one of each, link, rename, unlink.
#[test]
fn nodes() {
    let mut f = Fixture::new(64 * MIB);
    let kinds =
        [FileKind::Fifo, FileKind::Socket, FileKind::CharDevice, FileKind::BlockDevice, FileKind::File];
    let name = |kind: FileKind| format!("{kind:?}").into_bytes();
    for kind in kinds {
        let attr =
            f.fs.mknod(Caller { uid: 7, gid: 8 }, ROOT, &name(kind), kind, 0o640, 0x1234_5678).unwrap();
        assert_eq!((attr.kind, attr.mode, attr.uid, attr.gid, attr.size), (kind, 0o640, 7, 8, 0));
        refused(f.fs.mknod(Caller::ROOT, ROOT, &name(kind), kind, 0o640, 0), 17);
    }
    refused(f.fs.mknod(Caller::ROOT, ROOT, b"d", FileKind::Directory, 0o755, 0), 22);
    refused(f.fs.mknod(Caller::ROOT, ROOT, b"l", FileKind::Symlink, 0o777, 0), 22);
    f.fs.sync().unwrap();
    f.kill();
    f.check();
    for kind in kinds {
        let attr = f.fs.lookup(ROOT, &name(kind)).unwrap();
        let device = matches!(kind, FileKind::CharDevice | FileKind::BlockDevice);
        assert_eq!((attr.kind, attr.rdev), (kind, if device { 0x1234_5678 } else { 0 }));
        if kind != FileKind::File {
            refused(f.fs.read(attr.ino, 0, 1), 22);
            refused(f.fs.write(Caller::ROOT, attr.ino, 0, b"x"), 22);
        }
        f.fs.link(attr.ino, ROOT, b"second").unwrap();
        f.fs.rename(ROOT, b"second", ROOT, &name(kind), RenameMode::Replace).unwrap();
        f.fs.unlink(ROOT, b"second").unwrap();
        f.fs.unlink(ROOT, &name(kind)).unwrap();
    }
    assert!(f.list(ROOT).is_empty());
    f.check();
}

// Goal: the pool can be told from others. Method: what it was made with is shown.
#[test]
fn pool_id() {
    assert_eq!(&Fixture::new(64 * MIB).fs.pool_id(), b"a pool for tests");
}

// Goal: a rename leaves a whiteout if asked: in the old place, the caller's, in the same step, with nothing inherited. Method: a
// file in a directory that has a group and a default list, and a directory, to new names and over others, in one directory and
// across two; what must be refused; a transaction each, and a kill.
#[test]
fn renames_leave_whiteouts() {
    let mut f = Fixture::new(64 * MIB);
    let (from, to) = (f.mkdir(ROOT, b"from"), f.mkdir(ROOT, b"to"));
    f.fs.setattr(Caller::ROOT, from, SetAttr { gid: Some(77), mode: Some(0o2755), ..SetAttr::default() })
        .unwrap();
    let mut list = vec![2, 0, 0, 0];
    for (tag, bits, id) in
        [(1u16, 7u16, u32::MAX), (2, 7, 5), (4, 7, u32::MAX), (16, 7, u32::MAX), (32, 0, u32::MAX)]
    {
        list.extend([&tag.to_le_bytes()[..], &bits.to_le_bytes(), &id.to_le_bytes()].concat());
    }
    f.fs.setxattr(from, varve_fs::internals::acl::DEFAULT, &list, XattrMode::Set).unwrap();
    let caller = Caller { uid: 7, gid: 8 };
    let leaving = |replace| RenameMode::Whiteout { caller, replace };
    let whiteout = |f: &Fixture, parent, name: &[u8], gid| {
        let attr = f.fs.lookup(parent, name).unwrap();
        assert_eq!((attr.kind, attr.rdev, attr.mode), (FileKind::CharDevice, 0, 0));
        assert_eq!((attr.uid, attr.gid, attr.links, attr.size), (7, gid, 1, 0));
        assert_eq!(f.fs.listxattr(attr.ino).unwrap(), Vec::<Vec<u8>>::new());
        attr.ino
    };
    let create = |parent, name: &[u8]| f.fs.create(Caller::ROOT, parent, name, 0o644).unwrap().ino;
    let file = create(from, b"file");
    let dir = f.mkdir(from, b"dir");
    create(dir, b"inside");
    let other = create(to, b"other");
    f.fs.link(other, to, b"second").unwrap();
    let files = f.fs.statfs().unwrap().files;
    let before = f.fs.position();

    f.fs.rename(from, b"file", from, b"moved", leaving(false)).unwrap();
    assert_eq!(f.fs.position().0, before.0 + 1, "one step");
    let first = whiteout(&f, from, b"file", 77);
    assert_eq!(f.fs.lookup(from, b"moved").unwrap().ino, file);
    f.fs.rename(from, b"moved", to, b"other", leaving(true)).unwrap();
    assert_ne!(whiteout(&f, from, b"moved", 77), first);
    assert_eq!(f.fs.lookup(to, b"second").unwrap().links, 1);
    f.fs.rename(from, b"dir", to, b"dir", leaving(false)).unwrap();
    whiteout(&f, from, b"dir", 77);
    assert_eq!(f.fs.getattr(from).unwrap().links, 2, "no directory is in it any more");
    assert_eq!(f.fs.getattr(to).unwrap().links, 3);
    assert_eq!(f.fs.statfs().unwrap().files, files + 3);

    // Nothing happens between two names of one file, and nothing is left by what is refused.
    f.fs.link(other, to, b"third").unwrap();
    f.fs.rename(to, b"second", to, b"third", leaving(true)).unwrap();
    assert_eq!(f.fs.lookup(to, b"second").unwrap().ino, other);
    refused(f.fs.rename(to, b"second", to, b"third", leaving(false)), 17);
    refused(f.fs.rename(to, b"other", to, b"dir", leaving(true)), 21);
    refused(f.fs.rename(to, b"dir", to, b"other", leaving(true)), 20);
    refused(f.fs.rename(to, b"nothing", to, b"new", leaving(true)), 2);
    assert_eq!(f.fs.statfs().unwrap().files, files + 3);

    // A whiteout moves and goes as any name.
    f.fs.rename(from, b"file", to, b"white", RenameMode::NoReplace).unwrap();
    whiteout(&f, to, b"white", 77);
    f.fs.rename(to, b"third", to, b"white", leaving(true)).unwrap();
    assert_eq!(whiteout(&f, to, b"third", 8), f.fs.lookup(to, b"third").unwrap().ino);
    f.fs.sync().unwrap();
    f.kill();
    f.check();
    whiteout(&f, to, b"third", 8);
    whiteout(&f, from, b"dir", 77);
    assert_eq!(f.list(dir), [b"inside".to_vec()]);
}

// Goal: the names of subvolumes give way to no whiteout. Method: as source and as target.
#[test]
fn subvolumes_leave_no_whiteout() {
    let f = Fixture::new(64 * MIB);
    f.fs.create_subvolume(Caller::ROOT, ROOT, b"subvolume", 0o755).unwrap();
    f.mkdir(ROOT, b"dir");
    let leaving = |replace| RenameMode::Whiteout { caller: Caller::ROOT, replace };
    refused(f.fs.rename(ROOT, b"subvolume", ROOT, b"new", leaving(true)), 95);
    refused(f.fs.rename(ROOT, b"subvolume", ROOT, b"dir", leaving(true)), 1);
    refused(f.fs.rename(ROOT, b"dir", ROOT, b"subvolume", leaving(true)), 1);
    refused(f.fs.rename(ROOT, b"dir", ROOT, b"subvolume", leaving(false)), 17);
    assert_eq!(f.list(ROOT).len(), 2);
    f.check();
}
