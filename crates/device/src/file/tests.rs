//! Tests of the file device: equivalence with memory on both backends, locks, short devices, block devices.

use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::sync::Arc;

use super::*;
use crate::{AlignedBuf, MemoryDevice};

const MIB: u64 = 1 << 20;

/// splitmix64, enough for choosing offsets.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n
    }
}

/// The backends that there are here: kernels and their containers may forbid io_uring.
fn backends() -> &'static [Backend] {
    if io_uring::IoUring::new(2).is_ok() {
        return &[Backend::Uring, Backend::Pread];
    }
    eprintln!("\n*** SKIPPED, half of it not shown: io_uring is not allowed here ***\n");
    &[Backend::Pread]
}

fn create(path: &Path, size_bytes: u64, backend: Backend, direct: bool) -> FileDevice {
    let options = FileOptions { backend: Some(backend), direct, ..FileOptions::default() };
    FileDevice::open_with(path, OpenMode::Create { size_bytes }, options).unwrap()
}

/// Applies the same random groups to every device and compares what they read, then the whole contents.
fn run_in_lockstep(seed: u64, devices: &[&dyn Device], size_bytes: u64, groups_count: usize) {
    let mut random = Random(seed);
    for round in 0..groups_count {
        // Requests of a group lie in disjoint slots: the outcome of overlapping ones is not defined.
        let slot_bytes = 128 << 10;
        let mut slots: Vec<u64> = (0..size_bytes / slot_bytes).collect();
        let requests_count = 1 + random.below(200.min(slots.len() as u64));
        let mut plan = Vec::new();
        for _ in 0..requests_count {
            let slot = slots.swap_remove(random.below(slots.len() as u64) as usize);
            let first_block = random.below(slot_bytes / 4096);
            let blocks = 1 + random.below(slot_bytes / 4096 - first_block);
            let fill = (random.below(2) == 0).then(|| random.below(256) as u8);
            plan.push((slot * slot_bytes + first_block * 4096, (blocks * 4096) as usize, fill));
        }
        let mut read: Vec<Vec<AlignedBuf>> = Vec::new();
        for device in devices {
            let mut buffers: Vec<AlignedBuf> = plan
                .iter()
                .map(|(offset, len, fill)| {
                    let mut buf = AlignedBuf::new(*len);
                    if let Some(fill) = fill {
                        for (i, sector) in buf.chunks_mut(512).enumerate() {
                            sector.fill(fill.wrapping_add(i as u8));
                        }
                        buf[..8].copy_from_slice(&offset.to_le_bytes());
                    }
                    buf
                })
                .collect();
            let mut requests: Vec<Request<'_>> = buffers
                .iter_mut()
                .zip(&plan)
                .map(|(buf, (offset, _, fill))| match fill {
                    Some(_) => Request::Write { offset: *offset, buf },
                    None => Request::Read { offset: *offset, buf },
                })
                .collect();
            for (i, result) in device.run(&mut requests).into_iter().enumerate() {
                result.unwrap_or_else(|error| panic!("seed {seed} round {round} request {i}: {error}"));
            }
            if round % 7 == 0 {
                device.flush().unwrap();
            }
            if round % 11 == 0 {
                device.discard(plan[0].0, plan[0].1 as u64).unwrap();
                // What a discarded range holds is not promised: give it known bytes again.
                device.write_at(plan[0].0, &AlignedBuf::new(plan[0].1)).unwrap();
            }
            read.push(buffers);
        }
        for (i, other) in read.iter().enumerate().skip(1) {
            assert!(read[0] == *other, "seed {seed} round {round}: {} differs", devices[i].name());
        }
    }
    let mut expected = AlignedBuf::new(size_bytes as usize);
    devices[0].read_at(0, &mut expected).unwrap();
    for device in &devices[1..] {
        let mut got = AlignedBuf::new(size_bytes as usize);
        device.read_at(0, &mut got).unwrap();
        assert!(got == expected, "seed {seed}: contents of {} differ", device.name());
    }
}

// Goal: io_uring, its fallback, buffered I/O and memory are the same device. Method: the same random groups on
// all four (groups larger than a ring too), everything read is compared, then all bytes and the counters.
#[test]
fn backends_and_memory_agree() {
    let [Backend::Uring, _] = backends() else { return };
    let dir = tempfile::tempdir().unwrap();
    let size_bytes = 32 * MIB;
    for seed in 0..3 {
        let path = |kind: &str| dir.path().join(format!("{kind}-{seed}"));
        let memory = MemoryDevice::new(size_bytes);
        let uring = create(&path("uring"), size_bytes, Backend::Uring, true);
        let pread = create(&path("pread"), size_bytes, Backend::Pread, true);
        let buffered = create(&path("buffered"), size_bytes, Backend::Uring, false);
        assert_eq!((uring.backend(), pread.backend()), (Backend::Uring, Backend::Pread));
        assert!(buffered.describe().contains("buffered"), "{}", buffered.describe());
        run_in_lockstep(seed, &[&memory, &uring, &pread, &buffered], size_bytes, 40);
        let counts = |device: &dyn Device| {
            let stats = device.stats();
            (
                (stats.reads_count, stats.read_bytes, stats.writes_count, stats.write_bytes),
                (stats.flushes_count, stats.discards_count, stats.discard_bytes, stats.errors_count),
            )
        };
        assert_eq!(counts(&memory), counts(&uring));
        assert_eq!(counts(&memory), counts(&pread));
        assert_eq!(uring.stats().write_latency.count, uring.stats().writes_count);
    }
}

// Goal: what is discarded takes no space on the filesystem below, and the file stays as long as it was. Method: the blocks of a
// file that was written and discarded in its middle.
#[test]
fn discarded_bytes_take_no_space() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool");
    let device = create(&path, 8 * MIB, Backend::Pread, true);
    device.write_at(0, &AlignedBuf::from_slice(&vec![7; 8 * MIB as usize])).unwrap();
    device.flush().unwrap();
    let used = || std::fs::metadata(&path).unwrap().blocks() * 512;
    let before = used();
    assert_eq!(device.discard(MIB, 6 * MIB), Ok(Discarded::Done));
    device.flush().unwrap();
    let after = used();
    // One extent more may take the filesystem below a block for its map.
    assert!(after + 6 * MIB <= before + 64 * 1024 && after >= 2 * MIB, "{before} bytes, then {after}");
    assert_eq!(std::fs::metadata(&path).unwrap().size(), 8 * MIB);
    assert_eq!((device.stats().discards_count, device.stats().discard_bytes), (1, 6 * MIB));
}

// Goal: more concurrent groups than rings neither mix up nor fail, whether a thread uses the rings of all (its first groups),
// has one of its own, or finds that there are no more of these. Method: 80 threads, each with its own region, write and read
// back groups of 8.
#[test]
fn many_threads_share_the_rings() {
    let [Backend::Uring, _] = backends() else { return };
    let dir = tempfile::tempdir().unwrap();
    let device = Arc::new(create(&dir.path().join("pool"), 80 * MIB, Backend::Uring, true));
    std::thread::scope(|scope| {
        for thread in 0..80u64 {
            let device = Arc::clone(&device);
            scope.spawn(move || {
                for round in 0..20u8 {
                    let mut buffers: Vec<AlignedBuf> =
                        (0..8u8).map(|i| AlignedBuf::from_slice(&[round ^ i ^ thread as u8; 8192])).collect();
                    let at = |i: usize| thread * MIB + i as u64 * 8192;
                    let mut writes: Vec<_> = buffers
                        .iter()
                        .enumerate()
                        .map(|(i, buf)| Request::Write { offset: at(i), buf })
                        .collect();
                    device.run(&mut writes).into_iter().for_each(|result| result.unwrap());
                    buffers.iter_mut().for_each(|buf| buf.fill(0xee));
                    let mut reads: Vec<_> = buffers
                        .iter_mut()
                        .enumerate()
                        .map(|(i, buf)| Request::Read { offset: at(i), buf })
                        .collect();
                    device.run(&mut reads).into_iter().for_each(|result| result.unwrap());
                    for (i, buf) in buffers.iter().enumerate() {
                        let expected = round ^ i as u8 ^ thread as u8;
                        assert!(
                            buf.iter().all(|b| *b == expected),
                            "thread {thread} round {round} request {i}"
                        );
                    }
                }
            });
        }
    });
    assert_eq!(device.stats().reads_count, 80 * 20 * 8);
}

// Goal: one writer or many readers, and a sentence that names the holder. Method: every pair of modes on one file.
#[test]
fn the_second_opener_is_told_who_was_first() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool");
    let size_bytes = MIB;
    let writer = FileDevice::open(&path, OpenMode::Create { size_bytes }).unwrap();
    for mode in [OpenMode::ReadWrite, OpenMode::ReadOnly] {
        match FileDevice::open(&path, mode).map(|_| ()) {
            Err(DeviceError::LockedBy(text)) => {
                assert!(text.contains(&format!("process {} (", std::process::id())), "{text}");
                assert!(text.contains(path.to_str().unwrap()), "{text}");
            }
            other => panic!("{mode:?}: {other:?}"),
        }
    }
    // A locked file is not changed by a refused re-creation either.
    let reuse = FileOptions { reuse_existing: true, ..FileOptions::default() };
    let refused = FileDevice::open_with(&path, OpenMode::Create { size_bytes: 4096 }, reuse);
    assert!(matches!(refused.map(|_| ()), Err(DeviceError::LockedBy(_))));
    assert_eq!(std::fs::metadata(&path).unwrap().size(), size_bytes);

    let looker = FileDevice::open(&path, OpenMode::ReadOnlyUnlocked).unwrap();
    assert!(matches!(looker.write_at(0, &AlignedBuf::new(4096)), Err(DeviceError::NotPermitted { .. })));
    assert!(matches!(looker.discard(0, 4096), Err(DeviceError::NotPermitted { .. })));
    drop(writer);

    let reader = FileDevice::open(&path, OpenMode::ReadOnly).unwrap();
    let second_reader = FileDevice::open(&path, OpenMode::ReadOnly).unwrap();
    let refused = FileDevice::open(&path, OpenMode::ReadWrite);
    assert!(matches!(refused.map(|_| ()), Err(DeviceError::LockedBy(_))));
    drop((reader, second_reader));
    FileDevice::open(&path, OpenMode::ReadWrite).unwrap();
}

// Goal: the process that has the lock is named, not the one that asks, also when the lock was taken by a process that has ended.
// Method: a shell that has its lock from flock(1).
#[test]
fn the_holder_of_an_inherited_lock_is_named() {
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool");
    drop(create(&path, MIB, Backend::Pread, true));
    let mut shell = Command::new("bash")
        .args(["-c", "exec 9<\"$0\"; flock 9; echo locked; read -r _"])
        .arg(&path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(shell.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let refused = FileDevice::open(&path, OpenMode::ReadWrite).map(|_| ());
    drop(shell.stdin.take());
    shell.wait().unwrap();
    assert_eq!(line, "locked\n");
    match refused {
        Err(DeviceError::LockedBy(text)) => {
            assert!(text.contains(&format!("by process {} (bash)", shell.id())), "{text}");
        }
        other => panic!("{other:?}"),
    }
    drop(FileDevice::open(&path, OpenMode::ReadWrite).unwrap());
}

// Goal: a file has its name when it is whole, and is of the size asked for; an error leaves nothing; what a killed attempt left is no
// hindrance. Method: each of them.
#[test]
fn a_file_appears_whole() {
    let dir = tempfile::tempdir().unwrap();
    let (path, unfinished) = (dir.path().join("pool"), dir.path().join(".pool.creating"));
    let leave = || {
        std::fs::write(&unfinished, vec![7; 3 << 20]).unwrap();
        std::fs::set_permissions(&unfinished, PermissionsExt::from_mode(0o600)).unwrap();
    };
    leave();
    let failed = FileDevice::create_whole(&path, MIB, |_| {
        assert!(!path.exists());
        Err(DeviceError::NotFound { device: "planted".into() })
    });
    assert_eq!(failed.map(drop), Err(DeviceError::NotFound { device: "planted".into() }));
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    leave();
    FileDevice::create_whole(&path, MIB + 5, |device| {
        device.write_at(0, &AlignedBuf::from_slice(&[1; 4096]))
    })
    .unwrap();
    let names: Vec<_> =
        std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["pool"]);
    let bytes = std::fs::read(&path).unwrap();
    assert_eq!((bytes.len(), &bytes[..4096]), (MIB as usize, &[1; 4096][..]));
    let again =
        FileDevice::create_whole(&path, MIB, |_| -> Result<(), DeviceError> { panic!("it is there") })
            .map(drop);
    assert!(matches!(again, Err(DeviceError::AlreadyExists { .. })), "{again:?}");
    let nowhere = dir.path().join("none/pool");
    let nowhere =
        FileDevice::create_whole(&nowhere, MIB, |_| Ok::<(), DeviceError>(())).map(drop).unwrap_err();
    assert!(nowhere.to_string().ends_with("none/pool does not exist"), "{nowhere}");
}

// Goal: a reader becomes a writer where nobody else reads, keeps its lock where somebody does, and gives it to what it was
// reopened as. Method: on both backends one reader beside another and alone; who may open it beside each; the file under
// another name meanwhile.
#[test]
fn a_reader_becomes_a_writer() {
    let dir = tempfile::tempdir().unwrap();
    for &backend in backends() {
        let path = dir.path().join(format!("{backend:?}"));
        drop(create(&path, MIB, backend, true));
        let options = FileOptions { backend: Some(backend), ..FileOptions::default() };
        let reader = FileDevice::open_with(&path, OpenMode::ReadOnly, options).unwrap();
        let other = FileDevice::open(&path, OpenMode::ReadOnly).unwrap();
        match reader.reopen_for_writing().map(|_| ()) {
            Err(DeviceError::LockedBy(text)) => {
                assert!(text.contains(&format!("process {} (", std::process::id())), "{text}");
            }
            refused => panic!("{refused:?}"),
        }
        drop(other);
        let is_locked =
            |mode| matches!(FileDevice::open(&path, mode).map(|_| ()), Err(DeviceError::LockedBy(_)));
        assert!(is_locked(OpenMode::ReadWrite), "it has lost its lock");
        drop(FileDevice::open(&path, OpenMode::ReadOnly).unwrap());

        // Somebody else's file has its name now.
        let moved = dir.path().join("moved");
        std::fs::rename(&path, &moved).unwrap();
        std::fs::write(&path, "another").unwrap();
        let writer = reader.reopen_for_writing().unwrap();
        std::fs::rename(&moved, &path).unwrap();
        assert_eq!((writer.backend(), writer.is_direct()), (backend, reader.is_direct()));
        assert!(is_locked(OpenMode::ReadOnly));
        writer.write_at(4096, &AlignedBuf::from_slice(&[7; 4096])).unwrap();
        let mut seen = AlignedBuf::new(4096);
        reader.read_at(4096, &mut seen).unwrap();
        assert!(seen.iter().all(|byte| *byte == 7));
        assert!(matches!(reader.write_at(0, &seen), Err(DeviceError::NotPermitted { .. })));
        writer.flush().unwrap();
        drop(writer);
        reader.share_again().unwrap();
        drop(FileDevice::open(&path, OpenMode::ReadOnly).unwrap());

        let writer = reader.reopen_for_writing().unwrap();
        drop(reader);
        assert!(is_locked(OpenMode::ReadOnly), "the lock went with the reader");
        drop(writer);
        drop(FileDevice::open(&path, OpenMode::ReadWrite).unwrap());
    }
}

// Goal: nothing is read once a writer may have been there. Method: a reader's lock is taken away, as if it had been let go
// of for the exclusive one, and a writer is faster.
#[test]
fn who_has_lost_the_lock_reads_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool");
    drop(create(&path, MIB, Backend::Pread, true));
    let reader = FileDevice::open(&path, OpenMode::ReadOnly).unwrap();
    rustix::fs::flock(&reader.file, rustix::fs::FlockOperation::Unlock).unwrap();
    let writer = FileDevice::open(&path, OpenMode::ReadWrite).unwrap();
    assert!(!reader.has_lost_lock());
    assert!(matches!(reader.share_again(), Err(DeviceError::LockedBy(_))));
    drop(writer);
    assert!(reader.has_lost_lock());
    let (mut one, mut other) = (AlignedBuf::new(4096), AlignedBuf::new(4096));
    assert!(matches!(reader.read_at(0, &mut one), Err(DeviceError::LockedBy(_))));
    let results = reader.run(&mut [
        Request::Read { offset: 0, buf: &mut one },
        Request::Read { offset: 4096, buf: &mut other },
    ]);
    assert!(results.iter().all(|result| matches!(result, Err(DeviceError::LockedBy(_)))));
}

// Goal: creation makes a sparse file of the size, never touches an existing one unasked, and other kinds of
// path are refused. Method: create twice, reuse with another size, open a directory and a missing file.
#[test]
fn creation_is_careful() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool");
    let mode = OpenMode::Create { size_bytes: 64 * MIB };
    let device = FileDevice::open(&path, mode).unwrap();
    assert_eq!(device.size_bytes(), 64 * MIB);
    assert!(std::fs::metadata(&path).unwrap().blocks() < 64, "the file is not sparse");
    assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o177, 0, "others may read it");
    device.write_at(4096, &AlignedBuf::from_slice(&[9; 4096])).unwrap();
    drop(device);
    let again = FileDevice::open(&path, mode).map(|_| ());
    assert_eq!(again, Err(DeviceError::AlreadyExists { device: path.display().to_string() }));

    let reuse = FileOptions { reuse_existing: true, ..FileOptions::default() };
    // A size that is no multiple of a block: the usable size is rounded down.
    let device = FileDevice::open_with(&path, OpenMode::Create { size_bytes: 2 * MIB + 100 }, reuse).unwrap();
    assert_eq!(device.size_bytes(), 2 * MIB);
    let mut buf = AlignedBuf::new(4096);
    device.read_at(4096, &mut buf).unwrap();
    assert!(buf.iter().all(|b| *b == 9));

    let giant = dir.path().join("giant");
    let refused = FileDevice::open(&giant, OpenMode::Create { size_bytes: 1 << 62 }).map(|_| ());
    assert!(refused.is_err());
    assert!(!giant.exists(), "a failed creation left a file behind: {refused:?}");

    let directory = FileDevice::open(dir.path(), OpenMode::ReadWrite).map(|_| ());
    assert!(matches!(directory, Err(DeviceError::Unsupported { .. })));
    let missing = FileDevice::open(dir.path().join("missing"), OpenMode::ReadWrite).map(|_| ());
    assert!(matches!(missing, Err(DeviceError::NotFound { .. })));
}

// Goal: a device that has become shorter gives Short, not zeros, alone and in a group; a request beyond the end
// is refused before it is issued and does not disturb its group. Method: truncate the file under the device.
#[test]
fn short_devices_are_noticed() {
    let dir = tempfile::tempdir().unwrap();
    for &backend in backends() {
        let path = dir.path().join(format!("{backend:?}"));
        let device = create(&path, 64 << 10, backend, true);
        std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(8192).unwrap();
        let (mut inside, mut across, mut beyond) =
            (AlignedBuf::new(4096), AlignedBuf::new(8192), AlignedBuf::new(4096));
        let short = device.read_at(32 << 10, &mut beyond);
        assert!(matches!(short, Err(DeviceError::Short { done_bytes: 0, .. })), "{short:?}");
        let results = device.run(&mut [
            Request::Read { offset: 0, buf: &mut inside },
            Request::Read { offset: 4096, buf: &mut across },
            Request::Read { offset: 64 << 10, buf: &mut beyond },
        ]);
        assert!(results[0].is_ok());
        assert!(matches!(results[1], Err(DeviceError::Short { done_bytes: 4096, .. })), "{:?}", results[1]);
        assert!(
            matches!(results[2], Err(DeviceError::PastEnd { size_bytes: 65536, .. })),
            "{:?}",
            results[2]
        );
        assert_eq!(device.stats().errors_count, 3);
    }
}

// Goal: block devices have their size, discard and exclusive opening. Method: a loop device; needs root, hence
// ignored: run with `--ignored`.
#[test]
#[ignore = "needs root and a free loop device"]
fn block_devices_work() {
    let dir = tempfile::tempdir().unwrap();
    let backing = dir.path().join("backing");
    std::fs::File::create(&backing).unwrap().set_len(32 * MIB).unwrap();
    let output =
        std::process::Command::new("losetup").arg("--find").arg("--show").arg(&backing).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let path = PathBuf::from(String::from_utf8(output.stdout).unwrap().trim());
    let checks = std::panic::catch_unwind(|| {
        let device = FileDevice::open(&path, OpenMode::ReadWrite).unwrap();
        assert!(device.is_block_device());
        assert_eq!(device.size_bytes(), 32 * MIB);
        let memory = MemoryDevice::new(32 * MIB);
        run_in_lockstep(1, &[&memory, &device], 32 * MIB, 20);
        match FileDevice::open(&path, OpenMode::ReadWrite).map(|_| ()) {
            Err(DeviceError::LockedBy(text)) => {
                assert!(text.contains(&std::process::id().to_string()), "{text}");
            }
            other => panic!("{other:?}"),
        }
        assert!(FileDevice::open(&path, OpenMode::ReadOnly).is_err());
        FileDevice::open(&path, OpenMode::ReadOnlyUnlocked).unwrap();
        drop(device);
        let reader = FileDevice::open(&path, OpenMode::ReadOnly).unwrap();
        let writer = reader.reopen_for_writing().unwrap();
        assert!(writer.is_block_device());
        writer.write_at(0, &AlignedBuf::new(4096)).unwrap();
        drop(reader);
        assert!(FileDevice::open(&path, OpenMode::ReadOnly).is_err());
        // It is free when it is closed, or a moment later, if a process is being started.
        let (mut forked, tell) = std::io::pipe().unwrap();
        let mut command = std::process::Command::new("true");
        let inside = move || {
            (&tell).write_all(b"x")?;
            std::thread::sleep(Duration::from_millis(800));
            Ok(())
        };
        // SAFETY: the child makes system calls alone.
        unsafe { command.pre_exec(inside) };
        std::thread::scope(|scope| {
            let started = scope.spawn(move || command.status());
            forked.read_exact(&mut [0]).unwrap();
            drop(writer);
            let again = FileDevice::open(&path, OpenMode::ReadWrite).map(drop);
            assert!(started.join().unwrap().unwrap().success());
            again.unwrap();
        });
    });
    let detached = std::process::Command::new("losetup").arg("--detach").arg(&path).status().unwrap();
    assert!(detached.success());
    if let Err(panic) = checks {
        std::panic::resume_unwind(panic);
    }
}

// Goal: a block device that has become shorter is told so at once, and nobody waits for space. Method: a loop device whose file is cut
// to half, one that waits for its host, a write of each kind behind the end and across it; needs root, hence ignored.
#[test]
#[ignore = "needs root and a free loop device"]
fn a_block_device_that_shrinks_is_short() {
    let dir = tempfile::tempdir().unwrap();
    let backing = dir.path().join("backing");
    let file = std::fs::File::create(&backing).unwrap();
    file.set_len(32 * MIB).unwrap();
    let losetup = |args: &[&str], path: &Path| {
        let output = std::process::Command::new("losetup").args(args).arg(path).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let path = PathBuf::from(losetup(&["--find", "--show"], &backing).trim());
    let checks = std::panic::catch_unwind(|| {
        for &backend in backends() {
            file.set_len(32 * MIB).unwrap();
            losetup(&["--set-capacity"], &path);
            let options = FileOptions { backend: Some(backend), ..FileOptions::default() };
            let device = FileDevice::open_with(&path, OpenMode::ReadWrite, options).unwrap();
            device.wait_for_host(Duration::from_secs(10));
            file.set_len(16 * MIB).unwrap();
            losetup(&["--set-capacity"], &path);
            let (begun, buf) = (Instant::now(), AlignedBuf::new(8192));
            let write = |offset| Request::Write { offset, buf: &buf };
            let mut results = device.run(&mut [write(16 * MIB - 4096)]);
            results.extend(device.run(&mut [write(24 * MIB), write(0), write(16 * MIB - 4096)]));
            assert!(begun.elapsed() < Duration::from_secs(5), "it was waited for: {results:?}");
            assert_eq!(results.remove(2), Ok(()));
            let is_short =
                |result: &Result<(), DeviceError>| matches!(result, Err(DeviceError::Short { .. }));
            assert!(results.iter().all(is_short), "{backend:?}: {results:?}");
        }
    });
    losetup(&["--detach"], &path);
    if let Err(panic) = checks {
        std::panic::resume_unwind(panic);
    }
}

// Goal: flushes may overlap, each through an open file of its own, and a third waits its turn. Method: a device on
// a file has two; threads flush it at once, all are counted.
#[test]
fn flushes_overlap() {
    let directory = tempfile::tempdir().unwrap();
    let device = create(&directory.path().join("flushes"), MIB, Backend::Pread, true);
    assert_eq!(device.flush_turns.len(), 2);
    std::thread::scope(|scope| {
        for i in 0..4 {
            let device = &device;
            scope.spawn(move || {
                for _ in 0..10 {
                    device.write_at(i * 4096, &AlignedBuf::new(4096)).unwrap();
                    device.flush().unwrap();
                }
            });
        }
    });
    assert_eq!(device.stats().flushes_count, 40);
    assert!(device.flush_turns.iter().all(|turn| turn.0.try_lock().is_some()));
}
