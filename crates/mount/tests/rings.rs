//! A thread that answers through rings and cannot any more. It takes the rings of its own process away, so it has a program of its own.

mod double;
mod switch;

use std::fs::{self, File};
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use double::{Double, options};
use varve_mount::{Mounted, Rings, unmount};

/// Longer than anything here takes; who is not told by then hangs.
const PATIENCE: Duration = Duration::from_secs(60);

/// Takes the mount away whatever happens: by force, so that nobody goes on waiting for an answer in it.
struct Ends<'a>(&'a Path);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(self.0, rustix::mount::UnmountFlags::FORCE);
        let _ = unmount(self.0, true);
    }
}

/// The rings of this process.
fn rings() -> Vec<RawFd> {
    let entries = fs::read_dir("/proc/self/fd").unwrap().map(|entry| entry.unwrap().path());
    let is_ring = |path: &Path| fs::read_link(path).is_ok_and(|to| to.to_string_lossy().contains("io_uring"));
    let number = |path: &Path| path.file_name().unwrap().to_str().unwrap().parse().unwrap();
    entries.filter(|path| is_ring(path)).map(|path| number(&path)).collect()
}

// Goal: when a thread that has a request cannot send its answer any more, the mount ends: whoever asks hears of it instead of
// waiting for ever, all threads leave, and the end of the mount says why. Method: every ring becomes something else behind the threads'
// backs, and then somebody asks.
#[test]
fn a_thread_that_gives_up_ends_the_mount() {
    let directory = tempfile::tempdir().unwrap();
    let _switch = switch::hold();
    let verbs = Arc::new(Double::default());
    let mounted = match Mounted::start(verbs, directory.path(), &options(Rings::Wanted)) {
        Ok(mounted) => mounted,
        Err(error) => return eprintln!("SKIPPED, nothing shown: a_thread_that_gives_up: {error}"),
    };
    let ends = Ends(directory.path());
    if !mounted.rings() {
        drop(ends);
        mounted.wait().unwrap();
        return eprintln!("SKIPPED, nothing shown: a_thread_that_gives_up: no rings here");
    }
    let path = directory.path().join("file");
    let file = File::create(&path).unwrap();
    file.write_all_at(b"before", 0).unwrap();
    let rings = rings();
    assert!(rings.len() >= 4, "{} rings", rings.len());
    let null = File::open("/dev/null").unwrap();
    for ring in rings {
        // SAFETY: the number is open, and stays so, with another file behind it; it is not closed here.
        let mut ring = std::mem::ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(ring) });
        rustix::io::dup2(&null, &mut ring).unwrap();
    }
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || {
        // Through what is open: by its name it may be gone already, should somebody have asked in between.
        let failed = (0..1_000).find_map(|n| file.write_all_at(b"after", n * 10).err());
        let _ = tell.send(failed.map(|error| error.raw_os_error()));
    });
    let heard = told.recv_timeout(PATIENCE).expect("nobody waits for an answer for ever");
    assert!(matches!(heard, Some(Some(103 | 107 | 5 | 4))), "{heard:?}");
    assert!(fs::read(&path).is_err());
    drop(ends);
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || tell.send(mounted.wait().map_err(|error| error.to_string())));
    let ended = told.recv_timeout(PATIENCE).expect("all threads leave");
    assert!(ended.as_ref().is_err_and(|why| why.contains("connection to the kernel broke")), "{ended:?}");
}
