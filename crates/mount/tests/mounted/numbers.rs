//! Inode numbers of deleted subvolumes, which become others' while the mount lives.

use std::fs::{self, File};
use std::os::unix::fs::{DirEntryExt, FileExt, MetadataExt};
use std::sync::Arc;
use std::time::{Duration, Instant};

use varve_device::{Device, MemoryDevice};
use varve_fs::{
    Caller, Clock, Filesystem, FormatOptions, FsError, InodeId, OpenOptions, Profile, ROOT_INODE,
    StoreOptions, Timestamp, shown_number,
};
use varve_mount::{MountError, Mounted, Rings, unmount};

use crate::double;

/// It is always the same time.
struct Stopped;

impl Clock for Stopped {
    fn now(&self) -> Timestamp {
        Timestamp { seconds: 1_700_000_000, nanoseconds: 0 }
    }
}

/// Longer than the kernel takes to forget what nobody has any more.
const PATIENCE: Duration = Duration::from_secs(60);

fn filesystem() -> Arc<Filesystem> {
    let devices: Vec<Arc<dyn Device>> = vec![Arc::new(MemoryDevice::new(64 << 20))];
    let format = FormatOptions {
        data: Profile::Single,
        metadata: Profile::Dup,
        pool_id: *b"a pool for tests",
        hash_seed: 7,
        force: false,
    };
    Filesystem::format(&devices, &format, Caller::ROOT, &Stopped).expect("a pool");
    let options = OpenOptions {
        store: StoreOptions { background: false, ..StoreOptions::default() },
        dirty_bytes_max: 8 << 20,
        clock: Arc::new(Stopped),
        on_data_logged: None,
    };
    Arc::new(Filesystem::open(devices, options).expect("it opens").0)
}

// Goal: however few numbers there are for subvolumes, snapshots go on to be made and deleted on a mount; each shows what it is of, and what somebody
// has open of one that is gone is never taken for something in another. Method: eight numbers, of which each snapshot is read and listed through the
// mount, and deleted; a file of one stays open and is read and written to after each of the others.
#[test]
fn numbers_come_back_when_the_kernel_has_forgotten_them() {
    let directory = tempfile::tempdir().expect("a directory");
    let filesystem = filesystem();
    filesystem.limit_subvolumes(8, 1);
    let source =
        filesystem.create_subvolume(Caller::ROOT, ROOT_INODE, b"source", 0o755).expect("a subvolume").ino;
    let mounted = match Mounted::start(filesystem.clone(), directory.path(), &double::options(Rings::Offered))
    {
        Ok(mounted) => mounted,
        Err(error @ (MountError::NoFuse(_) | MountError::Mount { .. })) => {
            return eprintln!("SKIPPED, nothing shown: numbers_come_back: {error}");
        }
        Err(error) => panic!("{error}"),
    };
    let ends = Ends(directory.path());
    let file = directory.path().join("source/file");
    let snapshot = |name: &str| {
        let begun = Instant::now();
        loop {
            match filesystem.snapshot(source, ROOT_INODE, name.as_bytes(), false, false) {
                // The kernel says a little later what it has forgotten.
                Err(FsError::SlotsUsedUp) if begun.elapsed() < PATIENCE => {
                    std::thread::sleep(Duration::from_millis(10));
                }
                result => {
                    mounted.outside().forget_name(ROOT_INODE, name.as_bytes());
                    break result;
                }
            }
        }
    };
    let delete = |name: &str| {
        filesystem.delete_subvolume(ROOT_INODE, name.as_bytes()).expect("it goes");
        mounted.outside().forget_name(ROOT_INODE, name.as_bytes());
        filesystem.maintain().expect("it is reaped");
    };
    let (mut held, mut held_number): (Option<File>, u64) = (None, 0);
    for round in 0..40u8 {
        fs::write(&file, vec![round; 5000]).expect("room");
        let name = format!("snapshot-{round}");
        let root = snapshot(&name).expect("a number").0;
        let listed = fs::read_dir(directory.path().join(&name)).expect("a directory");
        let listed: Vec<_> = listed.map(|entry| entry.expect("an entry").file_name()).collect();
        assert_eq!(listed, ["file"]);
        let inside = directory.path().join(&name).join("file");
        assert_eq!(fs::read(&inside).expect("it is there"), vec![round; 5000], "round {round}");
        // Programs see it in another order, in listings and attributes alike.
        let seen = fs::metadata(directory.path().join(&name)).expect("a directory").ino();
        assert_eq!(seen, shown_number(InodeId(root)));
        let entry =
            fs::read_dir(directory.path()).expect("a directory").map(|entry| entry.expect("an entry"));
        let entry = entry.into_iter().find(|entry| entry.file_name() == name.as_str()).expect("its name");
        assert_eq!(entry.ino(), seen);
        let bare = fs::read_dir(directory.path().join(&name)).expect("a directory").next().expect("a file");
        assert_eq!(bare.expect("an entry").ino(), fs::metadata(&inside).expect("a file").ino());
        if round == 3 {
            held = Some(File::options().read(true).write(true).open(&inside).expect("it opens"));
            held_number = root;
        } else if let Some(open) = &held {
            assert_ne!(root, held_number, "the kernel has an inode with that number");
            // It is gone; whatever the kernel kept of it is its own.
            let mut bytes = [0; 10];
            assert!(open.read_at(&mut bytes, 0).is_err() || bytes == [3; 10], "{bytes:?}");
            assert!(open.write_at(b"elsewhere", 0).is_err());
            assert_eq!(fs::read(&inside).expect("it is there"), vec![round; 5000], "round {round}");
        }
        delete(&name);
    }
    drop(held);
    drop(ends);
    mounted.wait().expect("it ends well");
    filesystem.close().expect("it closes");
}

// Goal: what is made in a subvolume is the same inode to the kernel ever after. Method: a file and a directory that stay open while their directory
// is listed with attributes, and a name is looked up again; each is used then.
#[test]
fn what_is_open_in_a_subvolume_stays_itself() {
    let directory = tempfile::tempdir().expect("a directory");
    let filesystem = filesystem();
    filesystem.create_subvolume(Caller::ROOT, ROOT_INODE, b"sub", 0o755).expect("a subvolume");
    let mounted = match Mounted::start(filesystem.clone(), directory.path(), &double::options(Rings::Offered))
    {
        Ok(mounted) => mounted,
        Err(error @ (MountError::NoFuse(_) | MountError::Mount { .. })) => {
            return eprintln!("SKIPPED, nothing shown: what_is_open_in_a_subvolume: {error}");
        }
        Err(error) => panic!("{error}"),
    };
    let ends = Ends(directory.path());
    let sub = directory.path().join("sub");
    let file =
        File::options().read(true).write(true).create_new(true).open(sub.join("file")).expect("a file");
    file.write_at(b"one", 0).expect("room");
    fs::create_dir(sub.join("inner")).expect("a directory");
    let inner = File::open(sub.join("inner")).expect("it opens");
    std::os::unix::fs::symlink("target", sub.join("symlink")).expect("a link");
    fs::hard_link(sub.join("file"), sub.join("second")).expect("a name");
    let listed = fs::read_dir(&sub).expect("a directory");
    let kinds = listed.map(|entry| entry.expect("an entry").metadata().expect("it is there").len());
    assert_eq!(kinds.count(), 4);
    file.write_at(b"two", 3).expect("it is the same file");
    assert_eq!(fs::read(sub.join("second")).expect("it is there"), b"onetwo");
    rustix::fs::mkdirat(&inner, "deep", rustix::fs::Mode::RWXU).expect("it is the same directory");
    assert!(sub.join("inner/deep").is_dir());
    drop((file, inner, ends));
    mounted.wait().expect("it ends well");
    filesystem.close().expect("it closes");
    // Nothing of the mount is left that has the filesystem.
    let left = Arc::downgrade(&filesystem);
    drop(filesystem);
    assert!(left.upgrade().is_none());
}

struct Ends<'p>(&'p std::path::Path);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        let _ = unmount(self.0, true);
    }
}
