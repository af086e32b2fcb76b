//! What programs change through mmap and do not msync: the kernel has it, and the mount hears of it later. What commands do to a mount
//! must not depend on that.

use std::fs;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use rustix::fs::{FallocateFlags, OFlags, inotify};
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, mmap_anonymous, msync, munmap};

use crate::harness::{Mount, Random, Scratch, can_mount, check, output, program, say, seed, succeed, varve};
use crate::lost::wait_said;
use crate::transfer::{done, export, import, json};

const LEN: usize = 64 << 10;
/// What is written through the mapping, and where.
const TEXT: &[u8] = b"through mmap";
const AT: usize = 40_000;
/// The kernel writes back by itself after five seconds or more: that is not what is waited for.
const TRIES: usize = 10;

/// A file that is mapped to be changed. It is not open: to close it is to have it written back, and so is to start a program.
pub struct Mapped {
    at: *mut u8,
    len: usize,
}

impl Mapped {
    fn new(path: &Path) -> Mapped {
        Mapped::of(path, LEN)
    }

    pub fn of(path: &Path, len: usize) -> Mapped {
        let file = fs::File::options().read(true).write(true).open(path).expect("a file");
        assert!(file.metadata().expect("a file").len() >= len as u64);
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses the place, and nobody else knows of it.
        let at = unsafe { mmap(std::ptr::null_mut(), len, protection, MapFlags::SHARED, &file, 0) };
        Mapped { at: at.expect("a mapping").cast(), len }
    }

    /// Memory at the beginning of a page.
    fn anonymous(len: usize) -> Mapped {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses the place, and nobody else knows of it.
        let at = unsafe { mmap_anonymous(std::ptr::null_mut(), len, protection, MapFlags::PRIVATE) };
        Mapped { at: at.expect("memory").cast(), len }
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: it is as long, and nobody changes it while this is looked at.
        unsafe { std::slice::from_raw_parts(self.at, self.len) }
    }

    fn set(&self, byte: u8) {
        // SAFETY: as long as the file at most, and that of this value alone.
        unsafe { self.at.write_bytes(byte, self.len) };
    }

    /// Changes all of it, and waits until that is durable.
    fn fill(&self, byte: u8) -> rustix::io::Result<()> {
        self.set(byte);
        self.sync()
    }

    /// Waits until what was changed is durable.
    fn sync(&self) -> rustix::io::Result<()> {
        // SAFETY: it is mapped, and that of this value alone.
        unsafe { msync(self.at.cast(), self.len, MsyncFlags::SYNC) }
    }

    /// Changes the file, of which nobody is told.
    fn change(&self) {
        self.store(AT, TEXT);
    }

    /// The same of any place.
    pub fn store(&self, at: usize, text: &[u8]) {
        assert!(at + text.len() <= self.len);
        // SAFETY: it lies within the mapping, which is as long as the file at most and that of this value alone.
        unsafe { std::ptr::copy_nonoverlapping(text.as_ptr(), self.at.add(at), text.len()) };
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: it was mapped by this value, and goes with it.
        unsafe { munmap(self.at.cast(), self.len) }.expect("it is mapped");
    }
}

fn is_changed(path: &Path) -> bool {
    let bytes = fs::read(path).expect("a file");
    assert_eq!(bytes.len(), LEN);
    &bytes[AT..AT + TEXT.len()] == TEXT
}

fn assert_changed(path: &Path) {
    assert!(is_changed(path), "{}", path.display());
}

/// Goal: durable snapshots and clones show what every program sees in their source when the command begins, and a sync makes it durable. Method:
/// files that are changed through mappings; the daemon is killed after the sync.
#[test]
fn what_is_mapped_is_not_left_out() {
    if !can_mount("what_is_mapped_is_not_left_out") {
        return;
    }
    let scratch = Scratch::new("mapped");
    let pool = scratch.pool("pool.img", "64M");
    let mount = Mount::start(&pool, &scratch.path("mnt"));
    succeed(varve(&["subvolume", "create"]).arg(mount.path("sub")));
    for name in ["synced", "cloned", "sub/file"] {
        fs::write(mount.path(name), vec![b'.'; LEN]).expect("room");
    }
    mount.sync();
    let mapped = ["synced", "cloned", "sub/file"].map(|name| Mapped::new(&mount.path(name)));
    mapped[1].change();
    succeed(varve(&["clone"]).arg(mount.path("cloned")).arg(mount.path("clone")));
    assert_changed(&mount.path("clone"));
    mapped[2].change();
    for _ in 0..TRIES {
        // Writing back is asked for, and waited for a moment only.
        let _ = output(varve(&["subvolume", "delete"]).arg(mount.path("snap")));
        succeed(varve(&["snapshot", "--read-only", "--sync"]).arg(mount.path("sub")).arg(mount.path("snap")));
        if is_changed(&mount.path("snap/file")) {
            break;
        }
    }
    assert_changed(&mount.path("snap/file"));
    mapped[0].change();
    (0..TRIES).for_each(|_| drop(succeed(varve(&["sync"]).arg(mount.path("sub")))));
    mount.kill();
    drop(mapped);
    let mount = Mount::start(&pool, &scratch.path("mnt"));
    for name in ["synced", "clone", "cloned", "sub/file", "snap/file"] {
        assert_changed(&mount.path(name));
    }
    mount.unmount();
    check(&pool);
}

/// A pool with room for about as many bytes as `spare`, mounted, and in it `file`, a hole of `len` bytes.
fn nearly_full(scratch: &Scratch, spare: usize, len: u64) -> (PathBuf, Mount) {
    filled(scratch, spare, &[], |file| file.set_len(len).expect("a hole"))
}

/// A pool with room for about as many bytes as `spare`, mounted with these options, and in it `file`, which `make` has filled before.
fn filled(
    scratch: &Scratch,
    spare: usize,
    options: &[&str],
    make: impl FnOnce(&fs::File),
) -> (PathBuf, Mount) {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let pool = scratch.pool(&format!("{}.img", NEXT.fetch_add(1, Relaxed)), "64M");
    let mount = Mount::start_with(&pool, &scratch.path("mnt"), options);
    make(&fs::File::create(mount.path("file")).expect("room"));
    fs::write(mount.path("spare"), vec![b'.'; spare]).expect("room");
    let mut rest = fs::File::create(mount.path("rest")).expect("room");
    while rest.write_all(&[b'.'; 4096]).is_ok() {}
    mount.sync();
    fs::remove_file(mount.path("spare")).expect("it is there");
    mount.sync();
    (pool, mount)
}

/// Of 1 MiB one page is written, the first or the last, and the others are set aside.
fn set_aside(file: &fs::File, last: bool) {
    let (page, rest) = if last { ((1 << 20) - 4096, 0) } else { (0, 4096) };
    file.write_all_at(&[b'.'; 4096], page).expect("room");
    rustix::fs::fallocate(file, FallocateFlags::empty(), rest, (1 << 20) - 4096).expect("room");
    file.sync_all().expect("room");
}

/// Goal: a program that changes a file through a mapping on a full pool is told by msync, or all of it is there. Method: pools with room for
/// a part of a sparse file, more each time, until all of it fits.
#[test]
fn a_mapping_that_does_not_fit_is_told() {
    const BYTES: usize = 1 << 20;
    if !can_mount("a_mapping_that_does_not_fit_is_told") {
        return;
    }
    let scratch = Scratch::new("mapped-full");
    let mut told = Vec::new();
    for spare in [0, 256 << 10, 512 << 10, 4 << 20] {
        let (pool, mount) = nearly_full(&scratch, spare, BYTES as u64);
        let mapped = Mapped::of(&mount.path("file"), BYTES);
        let filled = mapped.fill(b'x');
        drop(mapped);
        mount.kill();
        let mount = Mount::start(&pool, &scratch.path("mnt"));
        let all = fs::read(mount.path("file")).expect("a file").iter().all(|byte| *byte == b'x');
        assert!(
            filled.is_err() || all,
            "{spare} bytes were free: it is said to be durable, and a part is missing"
        );
        told.push(filled.is_ok());
        mount.unmount();
        check(&pool);
    }
    assert!(!told[0] && told[3], "{told:?}");
}

/// Goal: a write past the kernel's cache that does not fit says that there is no space, and not that the disk is broken. Method: pools with
/// room for a part of it, at the end of a file and into a hole.
#[test]
fn a_direct_write_that_does_not_fit_is_told() {
    if !can_mount("a_direct_write_that_does_not_fit_is_told") {
        return;
    }
    let scratch = Scratch::new("direct-full");
    let pages = Mapped::anonymous(1 << 20);
    for (spare, len) in [(256 << 10, 0), (256 << 10, 1 << 20), (4 << 20, 0), (4 << 20, 1 << 20)] {
        let (pool, mount) = nearly_full(&scratch, spare, len);
        let flags = OFlags::WRONLY | OFlags::DIRECT | OFlags::CLOEXEC;
        let file = rustix::fs::open(mount.path("file"), flags, rustix::fs::Mode::empty()).expect("a file");
        let written = rustix::io::pwrite(&file, pages.bytes(), 0);
        let expected = if spare == 256 << 10 { Err(rustix::io::Errno::NOSPC) } else { Ok(1 << 20) };
        assert_eq!(written, expected, "{spare} bytes were free, the file had {len}");
        drop(file);
        mount.unmount();
        check(&pool);
    }
}

/// Goal: what fallocate has set aside can be written on a pool that is nearly full, also beside pages that have to find space, by
/// whatever the kernel sends at once: what is mapped, and what goes past its cache. Method: files of which all is set aside but their first or
/// last page; all of it is changed, and looked for after a crash.
#[test]
fn what_is_set_aside_is_there_beside_other_pages() {
    if !can_mount("what_is_set_aside_is_there_beside_other_pages") {
        return;
    }
    let scratch = Scratch::new("set-aside");
    let pages = Mapped::anonymous(1 << 20);
    for (last, mapped) in [(false, true), (true, true), (false, false), (true, false)] {
        let (pool, mount) = filled(&scratch, 256 << 10, &[], |file| set_aside(file, last));
        if mapped {
            assert_eq!(Mapped::of(&mount.path("file"), 1 << 20).fill(b'x'), Ok(()), "last: {last}");
        } else {
            let flags = OFlags::WRONLY | OFlags::DIRECT | OFlags::CLOEXEC;
            let file =
                rustix::fs::open(mount.path("file"), flags, rustix::fs::Mode::empty()).expect("a file");
            pages.set(b'x');
            assert_eq!(rustix::io::pwrite(&file, pages.bytes(), 0), Ok(1 << 20), "last: {last}");
            rustix::fs::fsync(&file).expect("it was accepted");
        }
        mount.kill();
        let mount = Mount::start(&pool, &scratch.path("mnt"));
        let found = fs::read(mount.path("file")).expect("a file");
        assert!(found.iter().all(|byte| *byte == b'x'), "last: {last}, mapped: {mapped}");
        mount.unmount();
        check(&pool);
    }
}

/// Goal: what is set aside is there also behind pages that find no space, and who changes both through a mapping is told. Method: nothing
/// is left for a hole in front of what is set aside.
#[test]
fn what_is_set_aside_is_there_behind_what_does_not_fit() {
    const HOLE: u64 = 512 << 10;
    if !can_mount("what_is_set_aside_is_there_behind_what_does_not_fit") {
        return;
    }
    let scratch = Scratch::new("behind");
    let (pool, mount) = filled(&scratch, 0, &[], |file| {
        file.set_len(1 << 20).expect("a hole");
        rustix::fs::fallocate(file, FallocateFlags::empty(), HOLE, HOLE).expect("room");
        file.sync_all().expect("room");
    });
    let told = Mapped::of(&mount.path("file"), 1 << 20).fill(b'x');
    // After an error the kernel has asked for no sync. This one says what is missing, and makes durable what is not.
    let synced = fs::File::open(mount.path("file")).and_then(|file| file.sync_all());
    assert_eq!(synced.expect_err("not all of it is stored").raw_os_error(), Some(28));
    mount.kill();
    let mount = Mount::start(&pool, &scratch.path("mnt"));
    let found = fs::read(mount.path("file")).expect("a file");
    assert!(found[HOLE as usize..].iter().all(|byte| *byte == b'x'), "{told:?}");
    assert_eq!(told, Err(rustix::io::Errno::NOSPC));
    mount.unmount();
    check(&pool);
}

/// Goal: with the mount option direct_io a file can be mapped to be changed (from Linux 6.6 on), and what is read and written beside the mapping
/// and what is stored through it are the same bytes at once. Method: random stores, reads and writes, in and out of pages, beside a model;
/// at the end all of it is there after a kill that follows an msync.
#[test]
fn files_of_a_mount_past_the_cache_can_be_mapped() {
    if !can_mount("files_of_a_mount_past_the_cache_can_be_mapped") {
        return;
    }
    let scratch = Scratch::new("direct-mapped");
    let pool = scratch.pool("pool.img", "64M");
    let mount = Mount::start_with(&pool, &scratch.path("mnt"), &["-o", "direct_io"]);
    let path = mount.path("file");
    fs::write(&path, vec![0; LEN]).expect("a file");
    let (mut model, mut random) = (vec![0; LEN], Random::new(seed()));
    let mapped = Mapped::new(&path);
    let file = fs::File::options().read(true).write(true).open(&path).expect("a file");
    for step in 0..3000 {
        let len = 1 + random.below(6000) as usize;
        let at = random.below((LEN - len) as u64) as usize;
        let range = at..at + len;
        match random.below(3) {
            0 => {
                let bytes = random.bytes(len);
                mapped.store(at, &bytes);
                model[range.clone()].copy_from_slice(&bytes);
            }
            1 => {
                let bytes = random.bytes(len);
                file.write_all_at(&bytes, at as u64).expect("there is space");
                model[range.clone()].copy_from_slice(&bytes);
            }
            _ => {
                let mut found = vec![0; len];
                file.read_exact_at(&mut found, at as u64).expect("it is there");
                assert!(found == model[range.clone()], "step {step}: read of {range:?}");
            }
        }
        assert!(mapped.bytes()[range.clone()] == model[range.clone()], "step {step}: mapping at {range:?}");
    }
    mapped.sync().expect("there is space");
    drop((mapped, file));
    mount.kill();
    let mount = Mount::start(&pool, &scratch.path("mnt"));
    assert!(fs::read(&path).expect("it was synced") == model);
    mount.unmount();
    check(&pool);
}

/// Goal: with the mount option direct_io a write of which a part fits says how much that is, as everywhere. Method: one that is
/// larger than the room there is, with and without O_DIRECT.
#[test]
fn a_write_past_the_cache_of_a_mount_may_be_short() {
    if !can_mount("a_write_past_the_cache_of_a_mount_may_be_short") {
        return;
    }
    let scratch = Scratch::new("direct-mount");
    let pages = Mapped::anonymous(1 << 20);
    for more in [OFlags::empty(), OFlags::DIRECT] {
        let (pool, mount) = filled(&scratch, 256 << 10, &["-o", "direct_io"], |_| ());
        let flags = OFlags::WRONLY | OFlags::CLOEXEC | more;
        let file = rustix::fs::open(mount.path("file"), flags, rustix::fs::Mode::empty()).expect("a file");
        let written = rustix::io::pwrite(&file, pages.bytes(), 0).expect("room for a part");
        assert!((1..1 << 20).contains(&written), "{written}");
        assert_eq!(mount.path("file").metadata().expect("a file").len(), written as u64);
        drop(file);
        mount.unmount();
        check(&pool);
    }
}

/// Goal: an import from a mount takes what every program sees there, also in what is a hole otherwise and in what it has copied before.
/// Method: two sparse files that are changed through mappings, one of them after a first import.
#[test]
fn what_is_mapped_is_imported() {
    if !can_mount("what_is_mapped_is_imported") {
        return;
    }
    let scratch = Scratch::new("mapped-import");
    let mount = Mount::start(&scratch.pool("from.img", "64M"), &scratch.path("mnt"));
    let to = scratch.pool("to.img", "64M");
    let tree = mount.path("tree");
    fs::create_dir(&tree).expect("room");
    for name in ["first", "later"] {
        fs::File::create(tree.join(name)).and_then(|file| file.set_len(LEN as u64)).expect("a sparse file");
    }
    let [first, later] = ["first", "later"].map(|name| Mapped::new(&tree.join(name)));
    first.change();
    let summary = done(&import(&tree, &to, "/"));
    assert_eq!(summary["files_copied_count"], 2, "{summary}");
    later.change();
    (0..TRIES).for_each(|_| drop(done(&import(&tree, &to, "/"))));
    let out = scratch.path("out");
    done(&export(&to, "/", &out));
    for name in ["first", "later"] {
        assert_changed(&out.join(name));
    }
    drop([first, later]);
    mount.unmount();
    check(&to);
}

/// Waits until somebody else has read from the file.
struct Reads(OwnedFd);

impl Reads {
    fn of(path: &Path) -> Reads {
        let fd = inotify::init(inotify::CreateFlags::CLOEXEC).expect("inotify");
        inotify::add_watch(&fd, path, inotify::WatchFlags::ACCESS).expect("a watch");
        Reads(fd)
    }

    fn wait(&self) {
        let mut room = [std::mem::MaybeUninit::uninit(); 1024];
        inotify::Reader::new(&self.0, &mut room).next().expect("it is read");
    }
}

/// Goal: what programs store in a file while an import reads it does not get lost: that import has it, or the next one. Method: two files
/// with a page that is dirty through a mapping, of the first since before the import and of the second since it began; each is stored to once more when the
/// page has been read, which moves no time as long as it is dirty. Then another import.
#[test]
fn what_is_stored_while_it_is_read_is_imported() {
    const FILE_LEN: usize = 64 << 20;
    /// Of tmpfs, as statfs(2) tells it.
    const TMPFS: i64 = 0x0102_1994;
    let scratch = Scratch::new("stored-while-read");
    let tree = scratch.subdir("tree");
    if rustix::fs::statfs(&tree).expect("a directory").f_type == TMPFS {
        say(
            "\n*** SKIPPED what_is_stored_while_it_is_read_is_imported: tmpfs keeps times whatever is stored through mmap ***\n",
        );
        return;
    }
    let mut names = ["a", "b"].map(|name| {
        let path = tree.join(name);
        fs::write(&path, vec![b'.'; FILE_LEN]).expect("room");
        (fs::metadata(&path).expect("a file").ino(), path)
    });
    // The order in which they are imported.
    names.sort();
    let [first, second] = names.map(|(_, path)| path);
    let pool = scratch.pool("pool.img", "512M");
    let mapped = [&first, &second].map(|path| Mapped::of(path, FILE_LEN));
    let reads = [&first, &second].map(|path| Reads::of(path));
    mapped[0].store(0, b"before");
    let command = std::thread::spawn({
        let (tree, pool) = (tree.clone(), pool.clone());
        move || import(&tree, &pool, "/")
    });
    reads[0].wait();
    mapped[1].store(0, b"before");
    mapped[0].store(0, b"after!");
    reads[1].wait();
    mapped[1].store(0, b"after!");
    // On a busy machine it may have ended before it was disturbed: what it copied has to be found out then, too.
    json(&command.join().expect("it ends"));
    done(&import(&tree, &pool, "/"));
    let out = scratch.path("out");
    done(&export(&pool, "/", &out));
    for path in [&first, &second] {
        let copy = out.join(path.file_name().expect("a name"));
        assert!(fs::read(path).expect("a file") == fs::read(copy).expect("a copy"));
    }
}

/// Goal: what was stored through mmap and could not be written is told by every sync of the file, and by `varve sync`, for as long as there is
/// no space; when there is, it is stored by the next one, by itself before long, or by the end of the mount, unless it has been written again or
/// cut off.
/// Method: a file of holes, mapped and changed, on a full pool; msync, fsync by another descriptor, `varve sync`; space is freed; each way on.
#[test]
fn what_mmap_could_not_store_is_told_until_it_is_stored() {
    if !can_mount("what_mmap_could_not_store_is_told_until_it_is_stored") {
        return;
    }
    let scratch = Scratch::new("unstored");
    let ways =
        ["msync", "fsync", "sync", "wait", "flag", "reread", "forget", "unmount", "lost", "write", "cut"];
    for way in ways.into_iter().chain(["too-much"]) {
        let pool = scratch.pool(&format!("{way}.img"), "160M");
        let mount = Mount::start(&pool, &scratch.path("mnt"));
        let no_space = |result: io::Result<()>, what: &str| {
            let error = result.expect_err(what);
            assert_eq!(error.raw_os_error(), Some(28), "{way}, {what}: {error}");
        };
        let synced = || output(varve(&["sync"]).arg(&mount.point));
        let len = if way == "too-much" { 80 << 20 } else { 8 << 20 };
        let (path, filler) = (mount.path("sparse"), mount.path("filler"));
        let file = fs::File::options().read(true).write(true).create_new(true).open(&path).expect("a file");
        file.set_len(len as u64).expect("its size");
        let mut big = fs::File::create(&filler).expect("another");
        while big.write_all(&[7; 1 << 20]).is_ok() {}
        drop(big);
        let mapped = Mapped::of(&path, len);
        let mut expected = vec![0; len];
        let step = if way == "too-much" { 4096 } else { 3 * 4096 };
        for at in (0..len - 4096).step_by(step) {
            mapped.store(at + 100, TEXT);
            expected[at + 100..][..TEXT.len()].copy_from_slice(TEXT);
        }
        let other = fs::File::open(&path).expect("the file");
        let msync = || mapped.sync().map_err(io::Error::from);
        no_space(msync(), "a full pool");
        no_space(msync(), "the kernel takes the pages for clean");
        no_space(other.sync_all(), "by another descriptor");
        assert!(mapped.bytes() == expected, "{way}: the kernel shows it");
        // Also where a copy goes by the holes.
        let copy = scratch.path("copy");
        succeed(program("cp", &mount.point, &["--sparse=auto"]).arg(&path).arg(&copy));
        assert!(fs::read(&copy).expect("contents") == expected, "{way}: a copy");
        let said = synced();
        let text = String::from_utf8_lossy(&said.stderr).into_owned();
        assert!(!said.status.success() && text.contains("mmap"), "{text}");
        assert!(text.contains("No space left on device"), "{text}");
        if way == "lost" {
            drop((mapped, other, file));
            let refused = output(varve(&["unmount"]).arg(&mount.point));
            let text = String::from_utf8_lossy(&refused.stderr).into_owned();
            assert!(!refused.status.success(), "{refused:?}");
            assert!(text.contains("mmap") && text.contains("No space left"), "{refused:?}");
            let ended = output(varve(&["unmount", "--force"]).arg(&mount.point));
            assert!(ended.status.success(), "{ended:?}");
            let said = mount.messages();
            assert!(
                said.lines().last().is_some_and(|line| line.contains("could not be stored")),
                "{ended:?} {said}"
            );
            check(&pool);
            continue;
        }
        fs::remove_file(&filler).expect("it goes");
        match way {
            "msync" => msync().expect("there is space"),
            "reread" => {
                // The kernel has let go of the pages.
                drop(mapped);
                rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).expect("it may");
                assert!(fs::read(&path).expect("contents") == expected, "what is kept is shown");
                other.sync_all().expect("there is space");
                assert!(fs::read(&path).expect("contents") == expected, "it shows what is stored");
                mount.kill();
                let mount = Mount::start(&pool, &scratch.path("mnt"));
                assert!(fs::read(&path).expect("contents") == expected);
                mount.unmount();
                check(&pool);
                continue;
            }
            "fsync" => other.sync_all().expect("there is space"),
            "sync" => mount.sync(),
            // Without anybody's asking.
            "wait" => {
                wait_said(&mount, "could not be stored is stored");
                assert!(mount.messages().contains("cannot be stored: No space left"), "{}", mount.messages());
            }
            "flag" => {
                succeed(&mut program("chattr", &mount.point, &["+i", "sparse"]));
                succeed(&mut program("chattr", &mount.point, &["-i", "sparse"]));
                other.sync_all().expect("there was space");
            }
            "write" => {
                expected[..1 << 20].fill(8);
                file.write_all_at(&expected[..1 << 20], 0).expect("there is space");
                file.set_len(1 << 20).expect("it is cut");
                expected.truncate(1 << 20);
                other.sync_all().expect("nothing is missing");
            }
            "cut" => {
                file.set_len(10_000).expect("it is cut");
                file.set_len(len as u64).expect("it grows");
                expected[10_000..].fill(0);
                other.sync_all().expect("there is space");
            }
            "too-much" => {
                // More than is kept: who has it must store it once more.
                no_space(msync(), "not all is kept");
                let flagged = output(&mut program("chattr", &mount.point, &["+i", "sparse"]));
                assert!(!flagged.status.success(), "it could never be stored again");
                assert!(mapped.bytes() == expected, "the kernel shows what is not, too");
                for at in (0..len - 4096).step_by(step) {
                    mapped.store(at + 100, TEXT);
                }
                msync().expect("all of it was stored again");
            }
            _ => {}
        }
        drop((mapped, other, file));
        match way {
            "forget" => {
                fs::write("/proc/sys/vm/drop_caches", "3").expect("root may");
                mount.sync();
                mount.kill();
            }
            "unmount" => mount.unmount(),
            _ => {
                assert!(synced().status.success(), "{way}");
                mount.kill();
            }
        }
        let mount = Mount::start(&pool, &scratch.path("mnt"));
        assert!(fs::read(&path).expect("contents") == expected, "{way}");
        mount.unmount();
        check(&pool);
        fs::remove_file(&pool).expect("our own pool");
    }
}
