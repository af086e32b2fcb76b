//! What the programs of a mount's user can say to the process that serves it: numbers, names, cursors and ranges as requests of the
//! control socket, ioctls and calls hand them to the filesystem, on a pool that is sound. Whatever they are, nothing panics or hangs,
//! the pool stays sound, and it closes.
//!
//! An input is calls of [`CALL_BYTES`] each; what follows a call's numbers in the input is its name or cursor.
#![no_main]

#[path = "../image/image.rs"]
#[expect(dead_code, reason = "the pools here are as they were made")]
mod image;
#[path = "../image/world.rs"]
mod world;

use std::sync::{Arc, OnceLock};

use libfuzzer_sys::fuzz_target;
use varve_device::Device;
use varve_fs::{
    Allocate, Caller, Filesystem, InodeId, NewInode, OpenOptions, ROOT_INODE, RenameMode, SeekTo, SetAttr,
    SetTime, StoreOptions, Timestamp, XattrMode,
};

use world::World;

const CALLER: Caller = Caller::ROOT;
/// One call: what, two inodes, the length of its text, and two numbers.
const CALL_BYTES: usize = 20;
const CALLS_MAX: usize = 16;
/// Memory that one read may ask for: the kernel asks for no more.
const READ_BYTES_MAX: u64 = 1 << 20;
/// Inodes that there are.
const KNOWN_MAX: usize = 64;

fn options(read_only: bool) -> OpenOptions {
    OpenOptions {
        store: StoreOptions { read_only, cache_bytes: 4 << 20, background: false, ..StoreOptions::default() },
        dirty_bytes_max: 4 << 20,
        clock: Arc::new(world::FixedClock),
        on_data_logged: None,
    }
}

/// All inodes, root directories of subvolumes first.
fn known(fs: &Filesystem) -> Vec<InodeId> {
    let mut all: Vec<_> =
        fs.list_subvolumes().expect("a sound pool").into_iter().map(|one| one.root).collect();
    let mut todo = vec![ROOT_INODE];
    while let Some(directory) = todo.pop() {
        let _ = fs.readdir(directory, 2, &mut |entry| {
            if !all.contains(&entry.ino) || entry.ino == directory {
                all.push(entry.ino);
                todo.push(entry.ino);
            }
            all.len() < KNOWN_MAX
        });
    }
    all
}

struct Calls<'a> {
    fs: &'a Filesystem,
    known: Vec<InodeId>,
}

impl Calls<'_> {
    /// One that there is, or any number.
    fn inode(&self, byte: u8, number: u64) -> InodeId {
        match byte {
            0xff => InodeId(number),
            byte => self.known[usize::from(byte) % self.known.len()],
        }
    }

    fn call(&self, head: &[u8], text: &[u8]) {
        let fs = self.fs;
        let number = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().expect("eight bytes"));
        let (a, b) = (number(4), number(12));
        let (one, other) = (self.inode(head[1], a), self.inode(head[2], b));
        match head[0] % 32 {
            0 => drop(fs.diff(one, other, text, (b % 50) as usize)),
            1 => drop(fs.map(one, a, (b % 600) as usize)),
            2 => drop(fs.list_subvolumes_after(a, (b % 50) as usize)),
            3 => drop(fs.trim(a..b, a ^ b, &mut |_| true)),
            4 => drop(fs.create_subvolume_masked(CALLER, one, text, a as u32, b as u32)),
            5 => drop(fs.snapshot(one, other, text, b & 1 != 0, b & 2 != 0)),
            6 => drop(fs.clone_file(CALLER, one, other, text)),
            7 => drop(fs.delete_subvolume_at(one, text, other)),
            8 => drop(fs.read(one, a, b.min(READ_BYTES_MAX) as usize)),
            9 => drop(fs.write(CALLER, one, a, text)),
            10 => {
                let how = [
                    Allocate::Reserve { keep_size: true },
                    Allocate::Reserve { keep_size: false },
                    Allocate::Punch,
                    Allocate::Zero { keep_size: true },
                    Allocate::Zero { keep_size: false },
                ];
                drop(fs.fallocate(CALLER, one, a, b, how[usize::from(head[2]) % how.len()]));
            }
            11 => drop(fs.collapse_range(CALLER, one, a, b)),
            12 => drop(fs.insert_range(CALLER, one, a, b)),
            13 => drop(fs.copy_range(CALLER, (one, a), (other, b), a ^ b)),
            14 => drop(fs.clone_range(CALLER, (one, a), (other, b), u64::from(head[0]) << 12)),
            15 => drop(fs.dedupe_range((one, a), (other, b), u64::from(head[0]) << 12)),
            16 => drop(fs.seek(one, a, if b & 1 == 0 { SeekTo::Data } else { SeekTo::Hole })),
            17 => {
                let time = Timestamp { seconds: a as i64, nanoseconds: b as u32 };
                let set = SetAttr {
                    mode: Some(b as u32),
                    uid: Some(a as u32),
                    size: (b & 1 != 0).then_some(a),
                    mtime: Some(SetTime::At(time)),
                    ..SetAttr::default()
                };
                drop(fs.setattr(CALLER, one, set));
            }
            18 => {
                let mut seen = 0;
                drop(fs.readdir(one, a, &mut |_| {
                    seen += 1;
                    seen < 50
                }));
            }
            19 => drop(fs.setxattr(one, text, &vec![7; (a % 70_000) as usize], XattrMode::Set)),
            20 => drop(fs.getxattr(one, text)),
            21 => drop(fs.lookup(one, text)),
            22 => drop(fs.create(CALLER, one, text, a as u32)),
            23 => drop(fs.symlink(CALLER, one, text, &vec![b'x'; (a % 5000) as usize])),
            24 => drop(fs.rename(one, text, other, text, RenameMode::Replace)),
            25 => drop(fs.rename(one, text, other, b"big", RenameMode::Exchange)),
            26 => drop(fs.link(one, other, text)),
            27 => drop(fs.unlink(one, text)),
            28 => {
                let new = NewInode {
                    kind: varve_fs::FileKind::CharDevice,
                    mode: a as u32,
                    umask: b as u32,
                    rdev: b as u32,
                    set_gid_judged: false,
                };
                drop(fs.make(CALLER, one, text, new));
            }
            29 => drop((fs.rmdir(one, text), fs.removexattr(other, text))),
            30 => drop((fs.open_inode(CALLER, one, b & 1 != 0), fs.fsync(one), fs.release_inode(one))),
            _ => drop((fs.getattr(one), fs.readlink(one), fs.maintain())),
        }
    }
}

fuzz_target!(|input: &[u8]| {
    static WORLDS: OnceLock<Vec<World>> = OnceLock::new();
    let worlds = WORLDS.get_or_init(world::all);
    let Some((which, mut rest)) = input.split_first() else { return };
    let world = &worlds[usize::from(*which) % worlds.len()];
    let device = Arc::new(world.device.snapshot());
    let devices = || vec![device.clone() as Arc<dyn Device>];
    let (fs, _) = Filesystem::open(devices(), options(false)).expect("a sound pool");
    let calls = Calls { known: known(&fs), fs: &fs };
    for _ in 0..CALLS_MAX {
        let Some((head, more)) = rest.split_at_checked(CALL_BYTES) else { break };
        let (text, more) = more.split_at(usize::from(head[3]).min(more.len()));
        calls.call(head, text);
        rest = more;
    }
    fs.close().expect("nothing has failed");
    drop(fs);
    let (fs, _) = Filesystem::open_to_check(devices(), options(true)).expect("it was closed");
    let report = fs.check(true).expect("it can be checked");
    assert!(report.problems.is_empty(), "{:#?}", report.problems);
});
