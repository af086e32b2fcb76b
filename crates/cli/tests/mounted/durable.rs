//! The mount options `sync` and `dirsync`, and their flags of chattr: what is answered is durable.

use std::fs;
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::Path;
use std::time::Instant;

use rustix::fs::{CWD, FallocateFlags, FileType, IFlags, Mode, OFlags, XattrFlags};

use crate::harness::*;

/// How often each change is made.
const TIMES: usize = 24;
/// Flushes that the background may add while one change is made so often, two a second not counted.
const BY_THE_BACKGROUND: u64 = 8;

/// A change, made to what has a number.
type Make = fn(&Path, usize);

/// Changes of names, each of what those in front of it have made.
const OF_NAMES: [(&str, Make); 8] = [
    ("create", |dir, n| drop(fs::File::create_new(dir.join(format!("file{n}"))).unwrap())),
    ("mkdir", |dir, n| fs::create_dir(dir.join(format!("dir{n}"))).unwrap()),
    ("mknod", |dir, n| {
        rustix::fs::mknodat(CWD, dir.join(format!("fifo{n}")), FileType::Fifo, Mode::RUSR, 0).unwrap();
    }),
    ("symlink", |dir, n| symlink("file0", dir.join(format!("symlink{n}"))).unwrap()),
    ("link", |dir, n| fs::hard_link(dir.join("file0"), dir.join(format!("link{n}"))).unwrap()),
    ("rename", |dir, n| {
        fs::rename(dir.join(format!("link{n}")), dir.join(format!("dir{n}/link"))).unwrap();
    }),
    ("unlink", |dir, n| fs::remove_file(dir.join(format!("dir{n}/link"))).unwrap()),
    ("rmdir", |dir, n| fs::remove_dir(dir.join(format!("dir{n}"))).unwrap()),
];

/// Changes of `file0`, of each number another one.
const OF_INODES: [(&str, Make); 8] = [
    ("write", |dir, n| open(dir, OFlags::empty()).write_all_at(&[n as u8], n as u64).unwrap()),
    ("direct write", |dir, n| {
        let buf = varve_device::AlignedBuf::from_slice(&[n as u8; 4096]);
        open(dir, OFlags::DIRECT).write_all_at(&buf, 4096 * n as u64).unwrap();
    }),
    ("truncate", |dir, n| open(dir, OFlags::empty()).set_len(1_000_000 + n as u64).unwrap()),
    ("chmod", |dir, n| {
        let mode = fs::Permissions::from_mode(if n % 2 == 0 { 0o600 } else { 0o644 });
        fs::set_permissions(dir.join("file0"), mode).unwrap();
    }),
    ("setxattr", |dir, n| {
        let name = format!("user.name{n}");
        rustix::fs::setxattr(dir.join("file0"), name, b"value", XattrFlags::empty()).unwrap();
    }),
    ("removexattr", |dir, n| {
        rustix::fs::removexattr(dir.join("file0"), format!("user.name{n}")).unwrap();
    }),
    ("fallocate", |dir, n| {
        let from = 2_000_000 + 8192 * n as u64;
        rustix::fs::fallocate(open(dir, OFlags::empty()), FallocateFlags::empty(), from, 4096).unwrap();
    }),
    ("copy_file_range", |dir, n| {
        let (from, to) = (open(dir, OFlags::empty()), 3_000_000 + 8192 * n as u64);
        let mut places = (0, to);
        let copied =
            rustix::fs::copy_file_range(&from, Some(&mut places.0), &from, Some(&mut places.1), 4096);
        assert_eq!(copied, Ok(4096));
    }),
];

fn open(dir: &Path, flags: OFlags) -> fs::File {
    let mut options = fs::File::options();
    options.read(true).write(true).custom_flags(flags.bits() as i32);
    options.open(dir.join("file0")).unwrap()
}

/// Goal: with `sync` each change has been flushed when its call returns, with `dirsync` each of names, and without either
/// none waits for a flush; what a remount says holds at once, and is shown: sync in the kernel's
/// table, which passes over dirsync in a remount, and both by `varve stats`. Method: one mount on a loop
/// device, remounted; the block layer counts while each change is made 24 times.
#[test]
fn changes_are_flushed_before_they_are_answered() {
    let test = "changes_are_flushed_before_they_are_answered";
    if !can_mount(test) || !can_loop(test) {
        return;
    }
    let scratch = Scratch::new("durable");
    let device = Loop::new(&scratch, "device.img", 512 << 20);
    succeed(varve(&["create"]).arg(&device.device));
    let mount = Mount::start_with(&device.device, &scratch.path("mnt"), &["-o", "sync"]);
    for (number, (words, shown, names_wait, inodes_wait)) in [
        ("", "rw,sync,user_id=0,", true, true),
        ("async", "rw,user_id=0,", false, false),
        ("dirsync", "rw,user_id=0,", true, false),
        ("sync", "rw,sync,user_id=0,", true, true),
        ("async", "rw,user_id=0,", true, false),
        ("nodirsync", "rw,user_id=0,", false, false),
    ]
    .into_iter()
    .enumerate()
    {
        if !words.is_empty() {
            let mut remount = varve(&["mount", "-o", &format!("remount,{words}"), "none"]);
            succeed(remount.arg(&mount.point));
        }
        let table = fs::read_to_string("/proc/self/mountinfo").expect("the kernel tells what is mounted");
        let line = table.lines().find(|line| line.contains(mount.point.to_str().unwrap())).unwrap();
        assert!(line.contains(&format!(" fuse.varve {} {shown}", device.device.display())), "{line}");
        let stats = succeed(varve(&["stats", "--json"]).arg(&mount.point));
        let stats: serde_json::Value = serde_json::from_str(&stats).expect("stats --json is JSON");
        let durable = match (names_wait, inodes_wait) {
            (true, true) => Some("everything"),
            (true, false) => Some("names"),
            _ => None,
        };
        assert_eq!(stats["durable_at_once"].as_str(), durable);
        let dir = mount.path(&format!("dir{number}"));
        fs::create_dir(&dir).unwrap();
        for (what, make, waits) in OF_NAMES
            .map(|(what, make)| (what, make, names_wait))
            .into_iter()
            .chain(OF_INODES.map(|(what, make)| (what, make, inodes_wait)))
        {
            let (before, begun) = (device.stat(), Instant::now());
            (0..TIMES).for_each(|n| make(&dir, n));
            let flushes = device.stat().since(before).flushes;
            let by_the_background = BY_THE_BACKGROUND + 2 * begun.elapsed().as_secs();
            let expected = match waits {
                true => TIMES as u64..=TIMES as u64 + by_the_background,
                false => 0..=by_the_background.min(TIMES as u64 - 1),
            };
            assert!(expected.contains(&flushes), "{words:?}: {TIMES} times {what}: {flushes} flushes");
        }
    }
    mount.unmount();
    check(&device.device);
}

/// Changes of names by commands, each of what those in front of it have made.
fn by_command(dir: &Path, what: &str, n: usize) {
    let at = |name: &str| dir.join(format!("{name}{n}"));
    let (words, paths): (&[&str], _) = match what {
        "create" => (&["subvolume", "create"], vec![at("sub")]),
        "snapshot" => (&["snapshot"], vec![at("sub"), at("snap")]),
        "clone" => (&["clone"], vec![dir.join("file"), at("clone")]),
        _ => (&["subvolume", "delete"], vec![at("snap")]),
    };
    succeed(varve(words).args(paths));
}

/// Goal: what commands change in a mount is durable when they end wherever that holds for other programs: with `sync`, `dirsync`, and in
/// a directory with the flag for either. Method: a mount on a loop device with each; the block layer counts while each change is made
/// eight times.
#[test]
fn commands_are_flushed_before_they_end() {
    const TIMES: u64 = 8;
    let test = "commands_are_flushed_before_they_end";
    if !can_mount(test) || !can_loop(test) {
        return;
    }
    let scratch = Scratch::new("durable-commands");
    let device = Loop::new(&scratch, "device.img", 512 << 20);
    succeed(varve(&["create"]).arg(&device.device));
    let mount = Mount::start(&device.device, &scratch.path("mnt"));
    for (name, words, flags, waits) in [
        ("plain", "async", IFlags::empty(), false),
        ("sync", "sync", IFlags::empty(), true),
        ("dirsync", "async,dirsync", IFlags::empty(), true),
        ("S", "async,nodirsync", IFlags::SYNC, true),
        ("D", "async", IFlags::DIRSYNC, true),
        ("not", "async", IFlags::NODUMP, false),
    ] {
        succeed(varve(&["mount", "-o", &format!("remount,{words}"), "none"]).arg(&mount.point));
        let dir = mount.path(name);
        fs::create_dir(&dir).unwrap();
        fs::write(dir.join("file"), name).unwrap();
        if rustix::fs::ioctl_setflags(fs::File::open(&dir).unwrap(), flags).is_err() {
            say(&format!(
                "\n*** {test}: flags cannot be set through a mount here: {flags:?} is left out ***\n"
            ));
            continue;
        }
        mount.sync();
        for what in ["create", "snapshot", "clone", "delete"] {
            let (before, begun) = (device.stat(), Instant::now());
            (0..TIMES as usize).for_each(|n| by_command(&dir, what, n));
            let flushes = device.stat().since(before).flushes;
            // The background may flush twice a second.
            let others = 2 * begun.elapsed().as_secs();
            if !waits && others >= TIMES / 2 {
                say(&format!("*** {test}: {name}: {TIMES} times {what} take too long to be judged ***"));
                continue;
            }
            let expected = if waits { TIMES..=3 * TIMES + others } else { 0..=TIMES - 1 };
            assert!(expected.contains(&flushes), "{name}: {TIMES} times {what}: {flushes} flushes");
        }
    }
    mount.unmount();
    check(&device.device);
}
