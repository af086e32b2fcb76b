//! Whether a pool still writes, what others have done to its file, and checks.

use std::fs::{self, File};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use varvefs::{FileState, MemoryDisk, Pool, PoolOptions, Reason};

use crate::{MIB, quiet};

// Goal: a pool that has stopped says so, and why, and one that has not says that. Method: a clock that panics, before and after; closed.
#[test]
fn a_pool_that_has_stopped_says_why() {
    let panics = Arc::new(AtomicBool::new(false));
    let told = panics.clone();
    let clock = move || {
        assert!(!told.load(Ordering::SeqCst), "planted");
        SystemTime::UNIX_EPOCH
    };
    let pool = quiet().clock(clock).in_memory(64 * MIB).unwrap();
    assert_eq!(pool.stopped().unwrap(), None);
    panics.store(true, Ordering::SeqCst);
    assert!(catch_unwind(AssertUnwindSafe(|| pool.filesystem().create_dir("/d"))).is_err());
    panics.store(false, Ordering::SeqCst);
    let first = pool.stopped().unwrap().unwrap();
    assert!(first.reason.contains("panicked") && !first.host_full, "{first:?}");
    let later = pool.stopped().unwrap().unwrap();
    assert!(later.reason == first.reason && later.ago >= first.ago);
    assert!(pool.clone().close().is_err());
    assert_eq!(*pool.stopped().unwrap_err().reason(), Reason::Closed);
}

// Goal: what is done to the file of an open pool is told, what was cut for good, and nobody keeps the file when the pool is closed. Method:
// each thing, to files of their own; a pool in memory.
#[test]
fn what_is_done_to_a_pools_file_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().canonicalize().unwrap();
    let (path, other) = (dir.join("pool"), dir.join("other"));
    let pool = quiet().create(&path, 64 * MIB).unwrap();
    let state = |pool: &Pool| pool.file_state().unwrap().unwrap();
    assert_eq!(state(&pool), FileState::InPlace);
    fs::rename(&path, &other).unwrap();
    assert_eq!(state(&pool), FileState::Renamed { now: Some(other.clone()) });
    fs::write(&path, "something else").unwrap();
    assert_eq!(state(&pool), FileState::Replaced { now: Some(other.clone()) });
    fs::rename(&other, &path).unwrap();
    assert_eq!(state(&pool), FileState::InPlace);
    pool.clone().close().unwrap();
    assert_eq!(*pool.file_state().unwrap_err().reason(), Reason::Closed);

    // The closed pool's handle is still there.
    let pool = quiet().open(&path).unwrap();
    let resize = |bytes| File::options().write(true).open(&path).unwrap().set_len(bytes).unwrap();
    for (bytes, least) in [(40, 40), (64, 40), (50, 40), (30, 30), (64, 30)] {
        resize(bytes * MIB);
        assert_eq!(state(&pool), FileState::Cut { size_bytes: least * MIB }, "{bytes}");
    }
    fs::remove_file(&path).unwrap();
    assert_eq!(state(&pool), FileState::Deleted { is_name_taken: false });
    fs::write(&path, "something else").unwrap();
    assert_eq!(state(&pool), FileState::Deleted { is_name_taken: true });
    assert_eq!(quiet().in_memory(64 * MIB).unwrap().file_state().unwrap(), None);
}

// Goal: a check of what is not open names what is wrong by kind, file and bytes, changes nothing, and looks at what cannot be opened, too.
// Method: a pool in a file, sound, as a crash leaves it, and with one block of data changed; then with all that is no data changed but
// the ends of the file; a file of zeros; no file; one that is open.
#[test]
fn a_pool_that_is_not_open_can_be_checked() {
    let dir = tempfile::tempdir().unwrap();
    let (path, copy) = (dir.path().join("pool"), dir.path().join("copy"));
    let pool = quiet().create(&path, 64 * MIB).unwrap();
    let fs = pool.filesystem();
    fs.create_dir("/d").unwrap();
    let block = [0xa5; 4096];
    fs.write("/d/data", block.repeat(8)).unwrap();
    fs.sync().unwrap();
    fs::copy(&path, &copy).unwrap();
    assert!(matches!(PoolOptions::new().check(&path, false).unwrap_err().reason(), Reason::InUse(_)));
    pool.close().unwrap();
    drop(fs);
    for path in [&path, &copy] {
        let before = fs::read(path).unwrap();
        let report = PoolOptions::new().check(path, true).unwrap();
        assert!(report.is_clean() && report.data_blocks_count == 8, "{report:#?}");
        assert!(fs::read(path).unwrap() == before);
    }

    let mut bytes = fs::read(&path).unwrap();
    let at = bytes.chunks(4096).position(|chunk| chunk == block).unwrap() * 4096;
    bytes[at + 5000] ^= 1;
    fs::write(&copy, &bytes).unwrap();
    assert!(PoolOptions::new().check(&copy, false).unwrap().is_clean());
    let report = PoolOptions::new().check(&copy, true).unwrap();
    let [problem] = &report.problems[..] else { panic!("{report:#?}") };
    assert_eq!(problem.kind, "data-unreadable");
    assert_eq!(problem.path.as_deref(), Some("/d/data".as_ref()));
    assert_eq!((problem.bytes_start, problem.bytes_end), (Some(4096), Some(8192)));
    assert_eq!(problem.files[0].path, problem.path);
    assert!(problem.to_string().starts_with("data-unreadable: "), "{problem}");

    let ends = MIB as usize;
    let len = bytes.len();
    for chunk in bytes[ends..len - ends].chunks_mut(4096) {
        if chunk.iter().any(|byte| *byte != 0) && chunk[..100] != block[..100] {
            chunk[2000] ^= 1;
        }
    }
    fs::write(&copy, &bytes).unwrap();
    assert!(Pool::open(&copy).is_err());
    let report = PoolOptions::new().check(&copy, true).unwrap();
    let kinds: Vec<_> = report.problems.iter().map(|problem| &problem.kind[..]).collect();
    assert!(kinds.contains(&"root-unreadable"), "{report:#?}");

    fs::write(&copy, vec![0; 64 << 20]).unwrap();
    let report = PoolOptions::new().check(&copy, true).unwrap();
    assert_eq!(report.problems[0].kind, "pool-unopenable", "{report:#?}");
    assert!(report.problems[0].text.contains("`PoolOptions::format`"), "{report:#?}");
    let missing = dir.path().join("none");
    assert_eq!(*PoolOptions::new().check(&missing, true).unwrap_err().reason(), Reason::NotFound);
    let disk = MemoryDisk::new(64 * MIB);
    assert_eq!(PoolOptions::new().check_on(&disk, true).unwrap().problems[0].kind, "pool-unopenable");
    let pool = quiet().create_on(&disk).unwrap();
    assert!(PoolOptions::new().check_on(&disk, true).is_err());
    pool.close().unwrap();
    assert!(PoolOptions::new().check_on(&disk, true).unwrap().is_clean());
}

// Goal: a program can tell that there is no room for the pool's own file from a device that fails, also where the background met it. Method: a
// sparse pool on a tmpfs of a fourth of its size, written to until it has stopped; read, and opened again with room.
#[test]
fn a_full_host_is_told_from_a_broken_device() {
    let scratch = tempfile::tempdir().unwrap();
    struct Small(std::path::PathBuf);
    impl Drop for Small {
        fn drop(&mut self) {
            let _ = std::process::Command::new("umount").arg("-l").arg(&self.0).status();
        }
    }
    let mount = |options: &str| {
        let mut mount = std::process::Command::new("mount");
        let mount = mount.args(["-t", "tmpfs", "-o", options, "none"]).arg(scratch.path());
        mount.output().is_ok_and(|output| output.status.success())
    };
    if !mount("size=64m") {
        return eprintln!(
            "SKIPPED, nothing shown: a_full_host_is_told_from_a_broken_device: only root can mount a tmpfs"
        );
    }
    let small = Small(scratch.path().to_owned());
    let path = small.0.join("pool");
    let pool = PoolOptions::new().create(&path, 256 * MIB).unwrap();
    let fs = pool.filesystem();
    assert!(pool.stopped().unwrap().is_none());
    let mut kept = 0;
    let refusal = loop {
        let written = fs.write(format!("/{kept}"), vec![7; 1 << 20]).and_then(|()| fs.sync());
        match written {
            Ok(()) => kept += 1,
            Err(error) => break error,
        }
    };
    assert!(kept > 20, "{kept}");
    assert!(matches!(refusal.reason(), Reason::HostFull(_) | Reason::Stopped(_)), "{refusal:?}");
    let stopped = pool.stopped().unwrap().unwrap();
    assert!(stopped.host_full, "{stopped:?}");
    drop((fs, pool));
    assert!(mount("remount,size=512m"));
    let pool = PoolOptions::new().open(&path).unwrap();
    let fs = pool.filesystem();
    for n in 0..kept {
        assert!(fs.read(format!("/{n}")).unwrap() == vec![7; 1 << 20], "{n}");
    }
    assert!(pool.stopped().unwrap().is_none());
    pool.close().unwrap();
    drop(small);
}
