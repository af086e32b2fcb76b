//! What the kernel has in its cache beside writes past it.

use std::fs;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use varve_device::AlignedBuf;

use super::{TestMount, write_asynchronously};

/// Goal: what is read while a write past the kernel's cache is on its way is not what is read when that has been answered, whether its
/// program waited for it or not, and whoever syncs it. Method: a write that is held up, a reader by the cache beside it, one after it; the cache
/// has been filled by reading, or by writing.
#[test]
fn the_cache_forgets_what_was_written_past_it() {
    use rustix::fs::OFlags;
    let Some(mount) = TestMount::start("the_cache_forgets_what_was_written_past_it") else { return };
    let page = |byte| AlignedBuf::from_slice(&[byte; 4096]);
    for (number, (flags, waits)) in
        [(OFlags::empty(), true), (OFlags::empty(), false), (OFlags::DSYNC, false)].into_iter().enumerate()
    {
        let path = mount.path(&format!("file{number}"));
        let mut open = fs::OpenOptions::new();
        open.write(true).create(true).custom_flags((flags | OFlags::DIRECT).bits() as i32);
        let mut file = open.open(&path).unwrap();
        file.write_all(&page(1)).unwrap();
        for byte in 2..5 {
            mount.verbs.hold_writes.store(true, Relaxed);
            let written = std::thread::scope(|scope| {
                let writer = scope.spawn(|| match waits {
                    true => file.write_at(&page(byte), 0).map(|count| count as i32),
                    false => write_asynchronously(&file, &page(byte)),
                });
                while mount.verbs.held.load(Relaxed) == 0 && !writer.is_finished() {
                    std::thread::sleep(Duration::from_millis(1));
                }
                let before = fs::read(&path).unwrap();
                mount.verbs.hold_writes.store(false, Relaxed);
                let written = writer.join().unwrap();
                if written.is_ok() {
                    assert!(before == [byte - 1; 4096], "it was there before it was written");
                }
                written
            });
            match written {
                Ok(written) => assert_eq!(written, 4096),
                Err(error) => return eprintln!("SKIPPED, nothing shown of asynchronous writes: {error}"),
            }
            assert!(fs::read(&path).unwrap() == page(byte)[..], "{flags:?}, waits: {waits}, {byte}");
        }
    }
}

/// Goal: writes past the cache that are to have a range forgotten do not keep those from being served who have its pages locked. Method: as many
/// of them as the kernel keeps places for, held up, while a reader by the cache waits for a place with all the pages locked.
#[test]
fn what_is_forgotten_waits_for_nobody_for_ever() {
    use rustix::fs::OFlags;
    const WRITES: usize = 64;
    const LONG: Duration = Duration::from_secs(20);
    let Some(mount) = TestMount::start("what_is_forgotten_waits_for_nobody_for_ever") else { return };
    let path = mount.path("file");
    fs::write(&path, vec![1; 1 << 20]).unwrap();
    let mut open = fs::OpenOptions::new();
    let file = open.write(true).custom_flags(OFlags::DIRECT.bits() as i32).open(&path).unwrap();
    // What is to be read is in the cache no more.
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    let reader = fs::File::open(&path).unwrap();
    let page = AlignedBuf::from_slice(&[2; 4096]);
    mount.verbs.hold_writes.store(true, Relaxed);
    let (ended, end) = std::sync::mpsc::channel();
    let written = std::thread::scope(|scope| {
        let (writer, told) = (&file, ended.clone());
        let writer = scope.spawn(move || {
            let mut ring = io_uring::IoUring::new(WRITES as u32)?;
            for number in 0..WRITES {
                let to = io_uring::types::Fd(writer.as_raw_fd());
                let entry = io_uring::opcode::Write::new(to, page.as_ptr(), page.len() as u32);
                let entry = entry.offset(number as u64 * 4096).build();
                // SAFETY: the file and the page outlive the operation, which is waited for here.
                unsafe { ring.submission().push(&entry) }.expect("there is room in the ring");
            }
            ring.submit_and_wait(WRITES)?;
            let results = ring.completion().map(|entry| entry.result()).collect::<Vec<_>>();
            told.send(()).unwrap();
            io::Result::Ok(results)
        });
        let begun = std::time::Instant::now();
        while mount.verbs.held.load(Relaxed) == 0 && !writer.is_finished() && begun.elapsed() < LONG {
            std::thread::sleep(Duration::from_millis(1));
        }
        // So that all of them are sent, then the read.
        std::thread::sleep(Duration::from_millis(100));
        scope.spawn(|| {
            let mut bytes = vec![0; 1 << 20];
            let read = reader.read_exact_at(&mut bytes, 0);
            ended.send(()).unwrap();
            read
        });
        std::thread::sleep(Duration::from_millis(100));
        mount.verbs.hold_writes.store(false, Relaxed);
        for _ in 0..2 {
            if !writer.is_finished() && end.recv_timeout(LONG).is_err() {
                // All of them would wait in the kernel for ever.
                rustix::mount::unmount(mount.path("."), rustix::mount::UnmountFlags::FORCE).ok();
                panic!("they wait for each other");
            }
        }
        writer.join().unwrap()
    });
    match written {
        Ok(results) => assert_eq!(results, [4096; WRITES]),
        Err(error) => return eprintln!("SKIPPED, nothing shown of asynchronous writes: {error}"),
    }
    let bytes = fs::read(&path).unwrap();
    assert!(
        bytes[..WRITES * 4096].iter().all(|byte| *byte == 2)
            && bytes[WRITES * 4096..].iter().all(|byte| *byte == 1)
    );
}
