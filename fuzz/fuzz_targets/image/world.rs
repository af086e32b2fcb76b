//! The pools whose images are edited.

use std::sync::Arc;

use varve_device::{Device, MemoryDevice};
use varve_format::TreeId;
use varve_fs::{
    Allocate, Caller, Clock, FileFlags, FileKind, Filesystem, FormatOptions, InodeId, NewInode, Profile,
    ROOT_INODE, Timestamp, XattrMode,
};

use crate::image::{Entries, Image};

const POOL_BYTES: u64 = 64 << 20;
const CALLER: Caller = Caller::ROOT;

/// It stands still, so that an input does the same each time.
pub struct FixedClock;

impl Clock for FixedClock {
    fn now(&self) -> Timestamp {
        Timestamp { seconds: 1_700_000_000, nanoseconds: 1 }
    }
}

/// A pool, and what was in its trees at its last checkpoint.
pub struct World {
    /// The pool.
    pub device: MemoryDevice,
    /// Each tree that has entries.
    pub trees: Vec<(TreeId, Entries)>,
}

impl World {
    fn new(device: MemoryDevice) -> World {
        let image = Image::of(&device).expect("a pool");
        let entries = |tree| image.entries(tree).map(|entries| (tree, entries));
        let trees = TreeId::ALL.into_iter().filter_map(entries).filter(|(_, all)| !all.is_empty());
        World { trees: trees.collect(), device }
    }
}

/// All pools: closed with everything in it; closed with snapshots and clones; and both as a kill leaves them, with a log to replay.
pub fn all() -> Vec<World> {
    let mut worlds = Vec::new();
    for (metadata, build) in [(Profile::Dup, plain as fn(&Filesystem)), (Profile::Single, forked)] {
        let device = Arc::new(MemoryDevice::new(POOL_BYTES));
        let devices = || vec![device.clone() as Arc<dyn Device>];
        let format = FormatOptions {
            data: Profile::Single,
            metadata,
            pool_id: *b"a pool of a fuzz",
            hash_seed: 7,
            force: false,
        };
        Filesystem::format(&devices(), &format, CALLER, &FixedClock).expect("a new pool");
        let open = || Filesystem::open(devices(), super::options(false)).expect("it is a pool").0;
        let fs = open();
        build(&fs);
        fs.close().expect("closes");
        drop(fs);
        worlds.push(World::new(device.snapshot()));
        let fs = open();
        more(&fs);
        worlds.push(World::new(device.snapshot()));
    }
    worlds
}

/// Bytes that differ from block to block.
fn pattern(seed: u8, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at / 256) as u8 ^ (at as u8).wrapping_mul(seed | 1) | 1).collect()
}

fn create(fs: &Filesystem, parent: InodeId, name: &[u8], contents: &[u8]) -> InodeId {
    let ino = fs.create(CALLER, parent, name, 0o644).expect("a file").ino;
    fs.write(CALLER, ino, 0, contents).expect("written");
    ino
}

fn plain(fs: &Filesystem) {
    let dir = fs.mkdir(CALLER, ROOT_INODE, b"dir", 0o755).expect("a directory").ino;
    fs.mkdir(CALLER, dir, b"inner", 0o755).expect("a directory");
    let file = create(fs, dir, b"file", &pattern(1, 10_000));
    fs.setxattr(file, b"user.big", &pattern(2, 3000), XattrMode::Set).expect("an attribute");
    fs.setxattr(file, b"user.small", b"value", XattrMode::Set).expect("an attribute");
    create(fs, ROOT_INODE, b"small", b"contents");
    fs.link(file, ROOT_INODE, b"hard").expect("a link");
    fs.symlink(CALLER, ROOT_INODE, b"link", b"dir/file").expect("a link");
    fs.symlink(CALLER, ROOT_INODE, b"long link", &[b'x'; 3000]).expect("a link");
    let big = create(fs, ROOT_INODE, b"big", &pattern(3, 100_000));
    fs.write(CALLER, big, 1 << 20, &pattern(4, 50_000)).expect("written");
    let reserved = create(fs, ROOT_INODE, b"reserved", b"");
    fs.fallocate(CALLER, reserved, 0, 65_536, Allocate::Reserve { keep_size: false }).expect("reserved");
    let pipe = NewInode { kind: FileKind::Fifo, mode: 0o644, umask: 0, rdev: 0, set_gid_judged: true };
    fs.make(CALLER, ROOT_INODE, b"pipe", pipe).expect("a pipe");
    let kept = create(fs, ROOT_INODE, b"kept", b"kept");
    fs.set_flags(CALLER, kept, FileFlags::NO_DUMP).expect("a flag");
    let many = fs.mkdir(CALLER, ROOT_INODE, b"many", 0o755).expect("a directory").ino;
    for i in 0..40 {
        fs.create(CALLER, many, format!("{i:0>200}").as_bytes(), 0o644).expect("a file");
    }
}

fn forked(fs: &Filesystem) {
    let dir = fs.mkdir(CALLER, ROOT_INODE, b"dir", 0o755).expect("a directory").ino;
    let file = create(fs, ROOT_INODE, b"file", &pattern(1, 10_000));
    let inner = fs.create_subvolume(CALLER, dir, b"inner", 0o755).expect("a subvolume").ino;
    let big = create(fs, inner, b"big", &pattern(3, 150_000));
    fs.mkdir(CALLER, inner, b"below", 0o755).expect("a directory");
    fs.setxattr(big, b"user.small", b"value", XattrMode::Set).expect("an attribute");
    let taken = fs.snapshot(inner, ROOT_INODE, b"taken", false, false).expect("a snapshot");
    fs.write(CALLER, big, 4096, &pattern(4, 5000)).expect("written");
    fs.create(CALLER, taken, b"new", 0o644).expect("a file");
    fs.snapshot(inner, ROOT_INODE, b"frozen", true, false).expect("a snapshot");
    fs.write(CALLER, big, 40_960, &pattern(5, 9000)).expect("written");
    fs.unlink(taken, b"big").expect("a name");
    let deep = fs.lookup(taken, b"below").expect("a directory").ino;
    fs.create_subvolume(CALLER, deep, b"deepest", 0o755).expect("a subvolume");
    fs.clone_file(CALLER, file, ROOT_INODE, b"clone").expect("a clone");
    fs.write(CALLER, file, 0, &pattern(6, 4096)).expect("written");
    let shares = create(fs, ROOT_INODE, b"shares", &pattern(7, 100));
    fs.flush_all().expect("logged");
    fs.clone_range(CALLER, (big, 0), (shares, 1 << 20), 65_536).expect("shared");
    fs.clone_range(CALLER, (big, 0), (shares, 2 << 20), 32_768).expect("shared");
    fs.flush_all().expect("logged");
    // Who has looked at an old version wants a keyframe.
    let frozen = fs.lookup(ROOT_INODE, b"frozen").expect("a snapshot").ino;
    for root in [frozen, taken, inner] {
        if let Ok(found) = fs.lookup(root, b"big") {
            fs.map(found.ino, 0, 1000).expect("a map");
            fs.read(found.ino, 0, 200_000).expect("read");
        }
    }
    fs.maintain().expect("maintained");
}

/// What is in the log and in no checkpoint.
fn more(fs: &Filesystem) {
    let file = create(fs, ROOT_INODE, b"logged", &pattern(8, 20_000));
    fs.setxattr(file, b"user.logged", &pattern(9, 1500), XattrMode::Set).expect("an attribute");
    fs.fsync(file).expect("durable");
    let gone = create(fs, ROOT_INODE, b"gone", &pattern(10, 9000));
    fs.fsync(gone).expect("durable");
    fs.open_inode(CALLER, gone, false).expect("open");
    fs.unlink(ROOT_INODE, b"gone").expect("a name");
    fs.snapshot(ROOT_INODE, ROOT_INODE, b"late", false, true).expect("a snapshot");
    fs.write(CALLER, file, 8192, &pattern(11, 4096)).expect("written");
    let _ = fs.delete_subvolume(ROOT_INODE, b"frozen");
    fs.sync().expect("durable");
}
