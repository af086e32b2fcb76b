//! Whose a pool is when its process starts others. In a process of its own: for a moment the children that are started here have all
//! that is open in it, files of other tests too.

use std::io::{self, Read, Write, pipe};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::thread;

use varvefs::{Pool, PoolOptions};

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
