//! Files that are large, and cost what they hold and not what they look like.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use varvefs::{MemoryDisk, OpenOptions, Pool};

use crate::{MIB, assert_sound, quiet};

const TIB: u64 = 1 << 40;
/// Longest that something may take which is said to return at once: of the thread's own time, and by the clock when
/// `VARVE_MANY` is given.
const AT_ONCE: Duration = Duration::from_millis(300);

/// How many: few in every run, as many as `VARVE_MANY` says when somebody wants to know.
fn many(ordinary: u64) -> u64 {
    std::env::var("VARVE_MANY").map_or(ordinary, |text| text.parse().expect("VARVE_MANY is a number"))
}

/// Runs `verb`, which must return at once.
fn at_once(what: &str, verb: impl FnOnce() -> varvefs::Result<()>) {
    let thread_time = || {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    };
    let (started, worked) = (Instant::now(), thread_time());
    verb().unwrap();
    let (took, worked) = (started.elapsed(), thread_time() - worked);
    println!("{what}: {took:?}, {worked:?} of them work");
    assert!(worked < AT_ONCE, "{what} was {worked:?} of work");
    assert!(std::env::var_os("VARVE_MANY").is_none() || took < AT_ONCE, "{what} took {took:?}");
}

fn used(pool: &Pool) -> u64 {
    pool.stats().unwrap().space.used_bytes
}

// Goal: cutting, removing and replacing a file return at once however large it is and in however many pieces, also over a
// kill, and its space comes back. Method: blocks scattered over 1 TiB; each way timed, with a kill before the background
// has done its work.
#[test]
fn a_huge_sparse_file_goes_at_once() {
    let pieces = many(20_000);
    let mut disk = MemoryDisk::new((64 + pieces / 50).next_multiple_of(64) * MIB);
    let mut pool = quiet().create_on(&disk).unwrap();
    let empty = used(&pool);
    for way in ["cut", "removed", "replaced"] {
        let mut fs = pool.filesystem();
        let file = OpenOptions::new().write(true).create(true).open(&fs, "/huge").unwrap();
        let step = TIB / pieces / 4096 * 4096;
        for i in 0..pieces {
            file.write_all_at(&[1; 16], i * step).unwrap();
        }
        file.set_len(TIB).unwrap();
        fs.sync().unwrap();
        let full = used(&pool);
        match way {
            "cut" => {
                at_once("cutting half of it", || file.set_len(TIB / 2 + 5));
                assert_eq!(file.seek_data(TIB / 2 + 1).unwrap(), None);
                at_once("cutting the rest", || file.set_len(0));
                file.sync_all().unwrap();
                drop(file);
                disk = disk.after_kill();
                pool = quiet().open_on(&disk).unwrap();
                fs = pool.filesystem();
                let again = OpenOptions::new().read(true).write(true).open(&fs, "/huge").unwrap();
                assert_eq!(again.metadata().unwrap().len, 0);
                again.write_all_at(b"new", TIB / 3).unwrap();
                pool.maintain().unwrap();
                let mut bytes = [9; 6];
                again.read_exact_at(&mut bytes, TIB / 3 - 3).unwrap();
                assert_eq!(&bytes, b"\0\0\0new");
                drop(again);
                fs.remove_file("/huge").unwrap();
            }
            "removed" => {
                drop(file);
                at_once("removing it", || fs.remove_file("/huge"));
            }
            _ => {
                drop(file);
                fs.write("/small", b"small").unwrap();
                at_once("replacing it", || fs.rename("/small", "/huge"));
                fs.sync().unwrap();
                disk = disk.after_kill();
                pool = quiet().open_on(&disk).unwrap();
                fs = pool.filesystem();
                assert_eq!(fs.read("/huge").unwrap(), b"small");
                fs.remove_file("/huge").unwrap();
            }
        }
        pool.maintain().unwrap();
        fs.sync().unwrap();
        // What the durable checkpoint still refers to is given back with the next one.
        pool.checkpoint().unwrap();
        pool.checkpoint().unwrap();
        assert_sound(&pool);
        let left = used(&pool);
        assert!(left < empty + MIB && full >= empty + pieces * 4096, "{way}: {empty} {full} {left}");
        assert_eq!(pool.stats().unwrap().reap.backlog_count, 0);
    }
}
