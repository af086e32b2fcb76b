//! Whether a pool still writes, what others have done to its file, and checks.

use std::fs::{self, File};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use varvefs::{FileState, Pool, Reason};

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
    assert!(first.reason.contains("panicked"), "{first:?}");
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
