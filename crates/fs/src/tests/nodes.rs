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
