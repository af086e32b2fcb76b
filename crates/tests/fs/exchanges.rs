//! Subvolumes that change their places while others look for them, remove them, and rename over them.

use std::sync::atomic::{AtomicBool, Ordering};

use super::*;

/// Ends the other thread, whatever happens to this one.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs `change` so many times beside `look`, over and over.
fn beside(rounds: u32, change: impl Fn(), look: impl Fn() + Sync) {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let looking = scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                look();
            }
        });
        let _over = Over(&over);
        for _ in 0..rounds {
            if looking.is_finished() {
                break;
            }
            change();
        }
    });
}

/// A subvolume with a file in it.
fn with_a_file(f: &Fixture, name: &[u8]) {
    let root = f.fs.create_subvolume(Caller::ROOT, ROOT, name, 0o755).unwrap().ino;
    f.fs.create(Caller::ROOT, root, b"file", 0o644).unwrap();
}

// Goal: a name that leads to a subvolume all the time is found all the time, also where its subvolume is exchanged and the one that it
// led to deleted at once. Method: two names are exchanged and one of them deleted, over and over, beside one that looks up the other and
// would remove it if it were empty; the one that is deleted is found, or is not.
#[test]
fn a_name_is_found_while_its_subvolume_is_exchanged() {
    let f = Fixture::new(64 * MIB);
    with_a_file(&f, b"stays");
    let change = || {
        with_a_file(&f, b"goes");
        f.fs.rename(ROOT, b"stays", ROOT, b"goes", RenameMode::Exchange).unwrap();
        f.fs.delete_subvolume(ROOT, b"goes").unwrap();
    };
    beside(4_000, change, || {
        f.fs.lookup(ROOT, b"stays").unwrap();
        refused(f.fs.rmdir(ROOT, b"stays"), 39);
        match f.fs.lookup(ROOT, b"goes").map_err(|error| error.errno()) {
            Ok(_) | Err(2) => {}
            Err(errno) => panic!("errno {errno}"),
        }
    });
    f.fs.maintain().unwrap();
    f.check();
}

// Goal: who renames a directory over a subvolume that has something in it hears that it is not empty, or that it is done where the subvolume
// has just been deleted, and nothing else. Method: one that puts such a subvolume there and deletes it, over and over, beside one
// that renames a directory there and back.
#[test]
fn a_directory_takes_the_place_of_a_subvolume_that_has_gone() {
    let f = Fixture::new(64 * MIB);
    f.mkdir(ROOT, b"dir");
    let change = || {
        with_a_file(&f, b"made");
        // Unless the directory is there.
        if f.fs.rename(ROOT, b"made", ROOT, b"place", RenameMode::NoReplace).is_ok() {
            f.fs.delete_subvolume(ROOT, b"place").unwrap();
        } else {
            f.fs.delete_subvolume(ROOT, b"made").unwrap();
        }
    };
    beside(6_000, change, || {
        match f.fs.rename(ROOT, b"dir", ROOT, b"place", RenameMode::Replace).map_err(|error| error.errno()) {
            Ok(()) => f.fs.rename(ROOT, b"place", ROOT, b"dir", RenameMode::Replace).unwrap(),
            Err(17 | 39) => {}
            Err(errno) => panic!("errno {errno}"),
        }
        // Two that are exchanged are subvolumes, or entries of one directory.
        match f.fs.rename(ROOT, b"dir", ROOT, b"place", RenameMode::Exchange).map_err(|error| error.errno()) {
            Err(2 | 95) => {}
            other => panic!("{other:?}"),
        }
    });
    f.fs.maintain().unwrap();
    f.check();
}
