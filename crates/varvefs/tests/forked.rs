//! Whose a pool is when its process starts others or is forked. In a process of its own: for a moment the children that are started here have all
//! that is open in it, files of other tests too.

use std::io::{self, Read, Write, pipe};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use varvefs::{Error, Pool, PoolOptions, Reason};

const MIB: u64 = 1 << 20;
/// One test at a time.
static ALONE: Mutex<()> = Mutex::new(());

/// A process that does `inside` before its program begins.
fn child(inside: impl FnMut() -> io::Result<()> + Send + Sync + 'static) -> Command {
    let mut command = Command::new("true");
    // SAFETY: the child has one thread; what it does is what these tests are about, and the C library sees to it that it can ask for
    // memory.
    unsafe { command.pre_exec(inside) };
    command
}

// Goal: a device is free when its pool is closed, though another thread is starting a process, which has copies of all that is open
// until its program begins. Method: that process waits; meanwhile the pool is closed, opened, made anew in the file that is there, and
// opened again.
#[test]
fn who_starts_a_process_keeps_no_lock() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool");
    let pool = Pool::create(&path, 64 * MIB).unwrap();
    pool.filesystem().write("/file", b"kept").unwrap();
    let ((mut forked, tell), (goes_on, mut go_on)) = (pipe().unwrap(), pipe().unwrap());
    let mut command = child(move || {
        (&tell).write_all(b"x")?;
        (&goes_on).read_exact(&mut [0])
    });
    thread::scope(|scope| {
        let started = scope.spawn(move || command.status());
        forked.read_exact(&mut [0]).unwrap();
        let closed = pool.close();
        let again = Pool::open(&path).and_then(|again| {
            let kept = again.filesystem().read("/file");
            again.close()?;
            kept
        });
        let formatted = PoolOptions::new().force(true).format(&path).and_then(Pool::close);
        let last = Pool::open(&path);
        go_on.write_all(b"x").unwrap();
        assert!(started.join().unwrap().unwrap().success());
        closed.unwrap();
        assert_eq!(again.unwrap(), b"kept");
        formatted.unwrap();
        assert!(!last.unwrap().filesystem().exists("/file").unwrap());
    });
}

// Goal: a forked child changes nothing in its parent's pool, neither by a verb nor when its handles go, and waits for nobody; what the
// parent does afterwards is durable, and the pool is sound. Method: with threads of the pool and without, a child tries verbs of every
// handle and lets go of all of them; its program is never begun where something is not as it should be, and the error's number says
// what. Then the parent syncs another file, and what is on the device is opened as after a crash, too.
#[test]
fn a_forked_child_leaves_the_pool_alone() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    for background in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let options = PoolOptions::new().background(background);
        let pool = options.create(at("pool"), 64 * MIB).unwrap();
        let fs = pool.filesystem();
        let file = fs.create("/file").unwrap();
        file.write_all_at(b"the parent's", 0).unwrap();
        let pending = file.start_sync().unwrap();
        let listing = fs.read_dir("/").unwrap();
        // For the child to let go of: what is in here is the child's alone when it is forked.
        let held = Arc::new(Mutex::new(Some((pool, fs, file, pending, listing))));
        let childs = held.clone();
        let mut command = child(move || {
            let handles = childs.lock().unwrap_or_else(PoisonError::into_inner).take();
            let (pool, fs, file, pending, mut listing) = handles.expect("handles");
            fn refused<T>(result: Result<T, Error>) -> bool {
                result.is_err_and(|error| matches!(error.reason(), Reason::InUse(_)))
            }
            let held = [
                refused(file.write_all_at(b"the child's", 0)),
                refused(file.sync_all()),
                refused(fs.write("/childs", b"the child's")),
                refused(fs.sync()),
                listing.next().is_some_and(refused),
                refused(pending.wait_timeout(Duration::MAX)),
                !pending.is_durable() && refused(pending.wait()),
                refused(pool.check(true)),
                refused(pool.clone().close()),
            ];
            drop((pool, fs, file, listing));
            match held.iter().position(|held| !held) {
                Some(step) => Err(io::Error::from_raw_os_error(step as i32 + 1)),
                None => Ok(()),
            }
        });
        assert!(command.status().unwrap().success());
        let (pool, fs, file, pending, listing) = held.lock().unwrap().take().unwrap();
        pending.wait().unwrap();
        assert_eq!(listing.count(), 1);
        let late = fs.create("/late").unwrap();
        late.write_all_at(&[7; 100_000], 0).unwrap();
        late.sync_all().unwrap();
        std::fs::copy(at("pool"), at("crashed")).unwrap();
        drop((late, file));
        assert!(pool.check(true).unwrap().is_clean());
        pool.close().unwrap();
        for name in ["pool", "crashed"] {
            let pool = options.open(at(name)).unwrap();
            let fs = pool.filesystem();
            assert_eq!(fs.read("/file").unwrap(), b"the parent's", "{name}");
            assert!(fs.read("/late").unwrap() == [7; 100_000], "{name}");
            assert!(pool.check(true).unwrap().is_clean(), "{name}");
        }
    }
}
