//! A pool filled to its last block.

use std::fs;
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::thread;
use std::time::{Duration, Instant};

use crate::harness::*;
use crate::mapped::Mapped;

/// A file as far as its writes were accepted.
struct Accepted {
    path: PathBuf,
    seed: u64,
    len: usize,
}

/// Goal: on a full pool no accepted write is lost, every unlink and truncate succeeds, and afterwards everything fits
/// again. Method: writes of falling size until none is accepted, content compared after a remount, then half of the
/// files truncated and all removed, then the same writes again.
#[test]
fn a_full_pool_can_be_emptied_and_filled_again() {
    if !can_mount("a_full_pool_can_be_emptied_and_filled_again") {
        return;
    }
    let scratch = Scratch::new("full");
    let pool = scratch.pool("pool.img", "128M");
    let point = scratch.path("mnt");
    let mut random = Random::new(seed());

    let mount = Mount::start(&pool, &point);
    let dir = mount.path("files");
    fs::create_dir(&dir).expect("a directory");
    let accepted = fill(&dir, &mut random);
    let bytes: usize = accepted.iter().map(|file| file.len).sum();
    say(&format!("a pool of 128 MiB took {} files with {} MiB", accepted.len(), bytes >> 20));
    assert!(bytes > 64 << 20, "most of the pool should hold data");
    mount.sync();
    verify(&accepted);
    mount.unmount();
    check(&pool);

    let mount = Mount::start(&pool, &point);
    verify(&accepted);
    // The pool is full still: a byte more than the last crumbs must not have been conjured up by the remount.
    for (index, file) in accepted.iter().enumerate().filter(|(index, _)| index % 2 == 0) {
        let to = if index % 4 == 0 { file.len as u64 / 2 } else { file.len as u64 / 3 + 1 };
        fs::File::options()
            .write(true)
            .open(&file.path)
            .and_then(|file| file.set_len(to))
            .unwrap_or_else(|error| panic!("truncating file {index} of a full pool to {to}: {error}"));
    }
    for (index, file) in accepted.iter().enumerate() {
        fs::remove_file(&file.path)
            .unwrap_or_else(|error| panic!("removing file {index} of a full pool: {error}"));
    }
    assert_eq!(fs::read_dir(&dir).expect("the directory").count(), 0);

    for (index, file) in accepted.iter().enumerate() {
        write(&file.path, file.seed, file.len).unwrap_or_else(|(done, error)| {
            panic!(
                "file {index} of {} fitted before; now {done} of {} bytes: {error}",
                accepted.len(),
                file.len
            )
        });
    }
    mount.sync();
    verify(&accepted);
    mount.unmount();
    check(&pool);
}

/// Goal: deleting works at the very edge without any pause for breath. Method: fill, then remove one file and create
/// one in turns; the removals must all succeed, the creations may be refused but never half accepted.
#[test]
fn a_full_pool_always_lets_go() {
    if !can_mount("a_full_pool_always_lets_go") {
        return;
    }
    let scratch = Scratch::new("edge");
    let pool = scratch.pool("pool.img", "64M");
    let mut random = Random::new(seed());
    let mount = Mount::start(&pool, &scratch.path("mnt"));
    let dir = mount.path("files");
    fs::create_dir(&dir).expect("a directory");
    let mut accepted = fill(&dir, &mut random);
    for turn in 0..200 {
        let victim = accepted.swap_remove(random.below(accepted.len() as u64) as usize);
        fs::remove_file(&victim.path)
            .unwrap_or_else(|error| panic!("turn {turn}: removing from a full pool: {error}"));
        let path = dir.join(format!("turn{turn}"));
        let seed = random.next();
        let len = match write(&path, seed, victim.len.min(200_000)) {
            Ok(()) => victim.len.min(200_000),
            Err((len, _)) => len,
        };
        if path.exists() {
            accepted.push(Accepted { path, seed, len });
        }
    }
    mount.sync();
    verify(&accepted);
    mount.kill();
    let mount = Mount::start(&pool, &scratch.path("mnt"));
    verify(&accepted);
    mount.unmount();
    check(&pool);
}

/// Goal: ranges of a file are zeroed on a full pool, as programs do it, whole blocks and parts, beside what was stored through mmap and not
/// synced; a range with a hole is refused and stays. Method: fallocate(1) on a file beside those that fill the pool; compared with what
/// the mount shows, after a kill and in the kernel's cache.
#[test]
fn a_range_is_zeroed_on_a_full_pool() {
    if !can_mount("a_range_is_zeroed_on_a_full_pool") {
        return;
    }
    let scratch = Scratch::new("full-zero");
    let pool = scratch.pool("pool.img", "64M");
    let mut random = Random::new(seed());
    let mount = Mount::start(&pool, &scratch.path("mnt"));
    let (image, holes) = (mount.path("image"), mount.path("holes"));
    let mut expected = random.bytes(8 << 20);
    let stays = expected[..1 << 20].to_vec();
    fs::write(&image, &expected).expect("room");
    let mut sparse = fs::File::create(&holes).expect("room");
    sparse.write_all(&stays).expect("room");
    sparse.set_len(2 << 20).expect("room");
    let dir = mount.path("files");
    fs::create_dir(&dir).expect("a directory");
    let accepted = fill(&dir, &mut random);
    mount.sync();
    let zero = |path: &Path, at: usize, len: usize, more: &[&str]| {
        let (at, len) = (at.to_string(), len.to_string());
        let mut command = program("fallocate", &mount.point, &["--zero-range", "-o", &at, "-l", &len]);
        output(command.args(more).arg(path))
    };
    let mapped = Mapped::of(&image, 8 << 20);
    for (n, len) in [4096, 1000, 100_000, 3 << 20, 70_000].into_iter().enumerate() {
        let at = n * 1_000_000 + if n == 0 { 4096 } else { 5 };
        // Before, inside and behind what is zeroed.
        for at in [0, at, (8 << 20) - 12] {
            mapped.store(at, b"through mmap");
            expected[at..][..12].copy_from_slice(b"through mmap");
        }
        let out = zero(&image, at, len, if n % 2 == 0 { &["--keep-size"] } else { &[] });
        assert!(out.status.success(), "{len} bytes at {at}: {out:?}");
        expected[at..at + len].fill(0);
        assert!(fs::read(&image).expect("it is there") == expected, "{len} bytes at {at}");
    }
    let out = zero(&holes, 0, 2 << 20, &[]);
    assert!(String::from_utf8_lossy(&out.stderr).contains("No space left on device"), "{out:?}");
    drop(mapped);
    mount.sync();
    verify(&accepted);
    mount.kill();
    let mount = Mount::start(&pool, &scratch.path("mnt"));
    assert!(fs::read(&image).expect("it was synced") == expected);
    let found = fs::read(&holes).expect("it was synced");
    assert!(found[..1 << 20] == stays && found[1 << 20..] == vec![0; 1 << 20]);
    verify(&accepted);
    mount.unmount();
    check(&pool);
}

/// Writes files of 1 MiB, then 64 KiB, then 4 KiB, then 100 bytes, each size until one is refused.
fn fill(dir: &Path, random: &mut Random) -> Vec<Accepted> {
    let mut accepted = Vec::new();
    for size in [1 << 20, 64 << 10, 4 << 10, 100] {
        loop {
            let path = dir.join(format!("file{}", accepted.len()));
            let seed = random.next();
            match write(&path, seed, size) {
                Ok(()) => accepted.push(Accepted { path, seed, len: size }),
                Err((len, error)) => {
                    assert_eq!(
                        error.kind(),
                        io::ErrorKind::StorageFull,
                        "refused for another reason: {error}"
                    );
                    if path.exists() {
                        accepted.push(Accepted { path, seed, len });
                    }
                    break;
                }
            }
            assert!(accepted.len() < 100_000, "a small pool cannot hold so many files");
        }
    }
    accepted
}

/// Writes a file; an error comes with the bytes that had been accepted.
fn write(path: &Path, seed: u64, len: usize) -> Result<(), (usize, io::Error)> {
    let bytes = Random::new(seed).bytes(len);
    let mut file = fs::File::create(path).map_err(|error| (0, error))?;
    let mut done = 0;
    while done < len {
        match file.write(&bytes[done..len.min(done + (128 << 10))]) {
            Ok(n) => done += n,
            Err(error) => return Err((done, error)),
        }
    }
    Ok(())
}

fn verify(accepted: &[Accepted]) {
    for (index, file) in accepted.iter().enumerate() {
        let bytes =
            fs::read(&file.path).unwrap_or_else(|error| panic!("file {index} cannot be read: {error}"));
        assert_eq!(bytes.len(), file.len, "length of file {index}");
        assert!(
            bytes == Random::new(file.seed).bytes(file.len),
            "contents of file {index} ({} bytes)",
            file.len
        );
    }
}

/// Goal: a pool whose file is sparse, on a filesystem that becomes full, goes on when there is room there again, and loses nothing: neither what is
/// synced meanwhile nor what others have written. Method: on a tmpfs of a quarter of its size, beside a file that fills it; what is written
/// waits, the log says why, and the file goes.
#[test]
fn a_full_host_is_waited_for() {
    if !can_mount("a_full_host_is_waited_for") {
        return;
    }
    let scratch = Scratch::new("full-host");
    let (small, point) = (scratch.subdir("small"), scratch.path("mnt"));
    succeed(program("mount", &small, &["-t", "tmpfs", "-o", "size=64M", "none"]).arg(&small));
    let (pool, ballast) = (small.join("pool.img"), small.join("ballast"));
    succeed(varve(&["create", "--size", "256M"]).arg(&pool));
    let mount = Mount::start(&pool, &point);
    fs::write(mount.path("before"), "before").expect("room");
    mount.sync();
    let mut file = fs::File::create(&ballast).expect("there is room for a name");
    while file.write_all(&[1; 4096]).is_ok() {}
    let contents: Vec<u8> = (0..8u32 << 20).map(|at| (at % 251) as u8).collect();
    thread::scope(|scope| {
        let writer = scope.spawn(|| {
            fs::write(mount.path("meanwhile"), &contents)?;
            fs::File::open(mount.path("meanwhile"))?.sync_all()
        });
        let begun = Instant::now();
        while !mount.messages().contains("is full: what is to be written waits") {
            assert!(begun.elapsed() < Duration::from_secs(60), "{}", mount.messages());
            thread::sleep(Duration::from_millis(20));
        }
        assert!(!writer.is_finished());
        assert_eq!(fs::read_to_string(mount.path("before")).expect("reading goes on"), "before");
        fs::remove_file(&ballast).expect("it is there");
        drop(file);
        writer.join().expect("no panic").expect("it waited");
    });
    mount.kill();
    let mount = Mount::start(&pool, &point);
    assert!(fs::read(mount.path("meanwhile")).expect("it was synced") == contents);
    mount.unmount();
    check(&pool);
}

/// Unmounts what is at `point`; what is said of it goes to the file `said`.
fn unmount_saying(point: &Path, said: &Path) -> Option<ExitStatus> {
    let said = fs::File::create(said).expect("a file for what is said");
    let mut child = varve(&["unmount"]).arg(point).stderr(said).process_group(0).spawn().expect("it starts");
    wait(&mut child, COMMAND_LIMIT)
}

/// Waits until these words are in the file `said`. Whether they are, if not for ever.
fn until_said(said: &Path, words: &str) -> bool {
    let begun = Instant::now();
    let are_there = || fs::read_to_string(said).is_ok_and(|text| text.contains(words));
    while !are_there() && begun.elapsed() < COMMAND_LIMIT / 2 {
        thread::sleep(Duration::from_millis(20));
    }
    are_there()
}

/// Goal: who unmounts a pool while the filesystem that holds its file is full is told what is waited for, and all is stored when there is room.
/// Method: as above, with what nobody has synced; the file that fills it goes when the command should have spoken.
#[test]
fn an_unmount_says_that_the_host_is_full() {
    if !can_mount("an_unmount_says_that_the_host_is_full") {
        return;
    }
    let scratch = Scratch::new("full-host-unmount");
    let (small, point, said) = (scratch.subdir("small"), scratch.path("mnt"), scratch.path("said"));
    succeed(program("mount", &small, &["-t", "tmpfs", "-o", "size=64M", "none"]).arg(&small));
    let (pool, ballast) = (small.join("pool.img"), small.join("ballast"));
    succeed(varve(&["create", "--size", "256M"]).arg(&pool));
    let mount = Mount::start(&pool, &point);
    let mut full = fs::File::create(&ballast).expect("there is room for a name");
    while full.write_all(&[1; 4096]).is_ok() {}
    let contents: Vec<u8> = (0..8u32 << 20).map(|at| (at % 251) as u8).collect();
    fs::write(mount.path("file"), &contents).expect("it waits in memory");
    thread::scope(|scope| {
        let unmounted = scope.spawn(|| unmount_saying(&point, &said));
        let has_said = until_said(&said, "small/pool.img is full, which may be why: make room there");
        let waits = !unmounted.is_finished();
        fs::remove_file(&ballast).expect("it is there");
        drop(full);
        let unmounted = unmounted.join().expect("no panic");
        assert!(
            has_said && waits && unmounted.is_some_and(|status| status.success()),
            "{:?}",
            fs::read_to_string(&said)
        );
    });
    drop(mount);
    let mount = Mount::start(&pool, &point);
    assert!(fs::read(mount.path("file")).expect("it was stored") == contents);
    mount.unmount();
    check(&pool);
}

/// Goal: who unmounts a pool while the filesystem that holds its file does not answer is told so, and all is stored when it answers again. Method:
/// a pool in a file of another mounted pool, whose process is stopped until the command should have spoken.
#[test]
fn an_unmount_says_that_the_host_does_not_answer() {
    if !can_mount("an_unmount_says_that_the_host_does_not_answer") {
        return;
    }
    let scratch = Scratch::new("dead-host-unmount");
    let (outer, point, said) = (scratch.pool("outer", "256M"), scratch.path("mnt"), scratch.path("said"));
    let host = Mount::start(&outer, &scratch.path("host"));
    let pool = host.path("pool");
    succeed(varve(&["create", "--size", "64M"]).arg(&pool));
    let mount = Mount::start(&pool, &point);
    fs::write(mount.path("file"), "contents").expect("it waits in memory");
    let process = rustix::process::Pid::from_raw(host.pid() as i32).expect("a process");
    let signal = |signal| rustix::process::kill_process(process, signal).expect("our own child");
    signal(rustix::process::Signal::STOP);
    thread::scope(|scope| {
        let unmounted = scope.spawn(|| unmount_saying(&point, &said));
        let has_said = until_said(&said, "host/pool does not answer, which may be why");
        let waits = !unmounted.is_finished();
        signal(rustix::process::Signal::CONT);
        let unmounted = unmounted.join().expect("no panic");
        assert!(
            has_said && waits && unmounted.is_some_and(|status| status.success()),
            "{:?}",
            fs::read_to_string(&said)
        );
    });
    drop(mount);
    let mount = Mount::start(&pool, &point);
    assert_eq!(fs::read(mount.path("file")).expect("it was stored"), b"contents");
    mount.unmount();
    host.unmount();
}

/// Goal: who mounts or trims a pool whose file lies on a full filesystem reads which one is full, that nothing is lost and how it can be read
/// meanwhile; that works. Method: a sparse pool on a tmpfs that is filled; both commands, then a mount for reading, then one with room.
#[test]
fn a_full_host_is_named() {
    if !can_mount("a_full_host_is_named") || !rustix::process::geteuid().is_root() {
        return say("*** a_full_host_is_named: only root can mount a tmpfs ***");
    }
    let scratch = Scratch::new("full-host");
    let small = scratch.subdir("small");
    succeed(program("mount", &small, &["-t", "tmpfs", "-o", "size=16M", "none"]).arg(&small));
    let pool = small.join("pool");
    succeed(varve(&["create", "--size", "256M"]).arg(&pool));
    let mount = Mount::start(&pool, &scratch.path("mnt"));
    fs::write(mount.path("file"), "kept").expect("room");
    mount.sync();
    // So that there is a log.
    mount.kill();
    let fill = small.join("fill");
    // As much as fits.
    let _ = fs::write(&fill, vec![7; 16 << 20]);
    for command in [varve(&["mount"]).arg(&pool).arg(scratch.path("mnt")), varve(&["trim"]).arg(&pool)] {
        let out = output(command);
        let said = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(1), "{said}");
        let place = format!("mounted at {}", small.display());
        for words in [&place, "has no room", "Nothing in the pool is lost", "varve mount -o ro"] {
            assert!(said.contains(words), "{words}: {said}");
        }
    }
    let mount = Mount::start_with(&pool, &scratch.path("mnt"), &["-o", "ro"]);
    assert_eq!(fs::read(mount.path("file")).expect("it was synced"), b"kept");
    mount.unmount();
    fs::remove_file(&fill).expect("it is there");
    let mount = Mount::start(&pool, &scratch.path("mnt"));
    assert_eq!(fs::read(mount.path("file")).expect("it was synced"), b"kept");
    mount.unmount();
    check(&pool);
    detach(&small);
}
