//! Many threads on one filesystem.

use std::io::{ErrorKind, Write};
use std::sync::Barrier;
use std::sync::mpsc::{self, TryRecvError};
use std::thread;

use varvefs::{MemoryDisk, OpenOptions, Pool, PoolOptions, Reason};

use crate::{MIB, assert_sound, names};

/// Appends of a thread: enough that they overlap.
const APPENDS: usize = 5000;

// Goal: threads that do everything at once, in one directory, disturb nobody. Method: 8 threads with files of their own
// and shared names; then each thread's last contents and the check.
#[test]
fn threads_share_a_filesystem() {
    let pool = Pool::in_memory(256 * MIB).unwrap();
    let fs = pool.filesystem();
    fs.create_dir("/shared").unwrap();
    thread::scope(|scope| {
        for id in 0..8_u8 {
            let fs = &fs;
            scope.spawn(move || {
                for round in 0..60_u8 {
                    let mine = format!("/shared/{id}");
                    fs.write(&mine, vec![id ^ round; 9000]).unwrap();
                    assert_eq!(fs.read(&mine).unwrap(), vec![id ^ round; 9000], "thread {id} round {round}");
                    let tmp = format!("/shared/tmp-{id}");
                    fs.write(&tmp, vec![id; 100]).unwrap();
                    fs.rename(&tmp, "/shared/current").unwrap();
                    fs.create_dir_all(format!("/shared/tree/{}/{id}", round % 4)).unwrap();
                    let current = fs.read("/shared/current").unwrap();
                    assert_eq!(current, vec![current[0]; 100], "a rename shows whole files");
                    if round % 8 == 0 {
                        fs.open(&mine).unwrap().sync_all().unwrap();
                        let _ = fs.read_dir("/shared").unwrap().count();
                    }
                }
            });
        }
    });
    for id in 0..8_u8 {
        assert_eq!(fs.read(format!("/shared/{id}")).unwrap(), vec![id ^ 59; 9000]);
    }
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| match fs.remove_dir_all("/shared/tree") {
                Err(error) if error.kind() != ErrorKind::NotFound => panic!("{error}"),
                _ => {}
            });
        }
    });
    assert_eq!(names(&fs, "/shared").len(), 9);
    fs.sync().unwrap();
    assert_sound(&pool);
    pool.close().unwrap();
}

// Goal: no append is lost or torn, beside plain writes and a truncation of the same file's end. Method: 6 threads append
// lines through handles of their own, one rewrites the head.
#[test]
fn appends_of_many_threads_stay_whole() {
    let pool = Pool::in_memory(64 * MIB).unwrap();
    let fs = pool.filesystem();
    fs.write("/log", b"head head head\n").unwrap();
    let start = Barrier::new(7);
    thread::scope(|scope| {
        for id in 0..6 {
            let (fs, start) = (&fs, &start);
            scope.spawn(move || {
                let mut log = OpenOptions::new().append(true).open(fs, "/log").unwrap();
                start.wait();
                for n in 0..APPENDS {
                    log.write_all(format!("{id} {n} {}\n", "x".repeat(n % 50)).as_bytes()).unwrap();
                }
            });
        }
        let head = OpenOptions::new().write(true).open(&fs, "/log").unwrap();
        start.wait();
        for _ in 0..APPENDS {
            head.write_all_at(b"HEAD", 0).unwrap();
        }
    });
    let text = String::from_utf8(fs.read("/log").unwrap()).unwrap();
    let mut next = [0; 6];
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some("HEAD head head"));
    for line in lines {
        let mut words = line.split(' ');
        let id: usize = words.next().unwrap().parse().unwrap();
        let n: usize = words.next().unwrap().parse().unwrap();
        assert_eq!(n, next[id], "thread {id}: {line}");
        assert_eq!(words.next().unwrap(), "x".repeat(n % 50));
        next[id] += 1;
    }
    assert_eq!(next, [APPENDS; 6]);
}

// Goal: a name that is replaced again and again is there all the time, for every verb, and leads to whole files. Method:
// one thread renames files and links over two names while another uses them.
#[test]
fn a_name_that_is_replaced_is_always_there() {
    let pool = Pool::in_memory(64 * MIB).unwrap();
    let fs = pool.filesystem();
    fs.write("/one", b"1").unwrap();
    fs.symlink("one", "/current").unwrap();
    thread::scope(|scope| {
        let fs = &fs;
        let (alive, gone) = mpsc::channel::<()>();
        scope.spawn(move || {
            // Goes with this thread, however it ends.
            let _alive = alive;
            for _ in 0..3000 {
                fs.write("/new", b"1").unwrap();
                fs.rename("/new", "/one").unwrap();
                fs.symlink("one", "/new").unwrap();
                fs.rename("/new", "/current").unwrap();
            }
        });
        while gone.try_recv() != Err(TryRecvError::Disconnected) {
            assert_eq!(fs.read("/one").unwrap(), b"1");
            assert_eq!(fs.read("/current").unwrap(), b"1");
            assert_eq!(fs.read_link("/current").unwrap().to_str(), Some("one"));
            fs.set_permissions("/one", 0o600).unwrap();
            fs.get_xattr("/current", "user.none").unwrap();
            assert!(fs.exists("/current").unwrap());
        }
    });
}

// Goal: of many who create the same new file one wins, and the others open the same file with `create`. Method: race, 50
// times.
#[test]
fn creations_race_to_one_winner() {
    let pool = Pool::in_memory(64 * MIB).unwrap();
    let fs = pool.filesystem();
    for n in 0..50 {
        let start = Barrier::new(4);
        let won: usize = thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|_| {
                    let (fs, start) = (&fs, &start);
                    scope.spawn(move || {
                        start.wait();
                        let path = format!("/{n}");
                        let new = OpenOptions::new().write(true).create_new(true).open(fs, &path).is_ok();
                        let mut file = OpenOptions::new().append(true).create(true).open(fs, &path).unwrap();
                        file.write_all(b"x").unwrap();
                        usize::from(new)
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!(won, 1);
        assert_eq!(fs.read(format!("/{n}")).unwrap(), b"xxxx");
    }
}

// Goal: of many who open or make the same pool at once one has it, and the others are told that it is in use. Method: race, 20 times, also
// over what a killed creation has left; the pool that was made is whole.
#[test]
fn making_a_pool_races_to_one_winner() {
    for n in 0..20 {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pool");
        if n % 2 == 0 {
            let left = dir.path().join(".pool.creating");
            std::fs::write(&left, b"half").unwrap();
            std::fs::set_permissions(&left, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        }
        let start = Barrier::new(3);
        let open = || {
            start.wait();
            Pool::open_or_create(&path, 64 * MIB)
        };
        let opened: Vec<_> = thread::scope(|scope| {
            let threads: Vec<_> = (0..3).map(|_| scope.spawn(open)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let (have, refused): (Vec<_>, Vec<_>) = opened.into_iter().partition(Result::is_ok);
        assert_eq!(have.len(), 1, "{refused:?}");
        for error in refused.into_iter().map(Result::unwrap_err) {
            assert!(matches!(error.reason(), Reason::InUse(_)), "{error}");
        }
        let pool = have.into_iter().next().unwrap().unwrap();
        assert_eq!(pool.name(), path.to_str().unwrap());
        assert_sound(&pool);
        pool.close().unwrap();
        Pool::open_or_create(&path, 64 * MIB).unwrap();
    }
}

// Goal: closing while others work harms nothing: they are served or refused, and what they were told is done is there, synced or
// not. Method: writers that remember what they were told, one of them without a sync, a close in the middle, another opening.
#[test]
fn closing_loses_nothing_that_was_accepted() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool");
    let pool = Pool::create(&path, 64 * MIB).unwrap();
    let fs = pool.filesystem();
    let start = Barrier::new(5);
    let accepted: Vec<usize> = thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|id| {
                let (fs, start) = (fs.clone(), &start);
                scope.spawn(move || {
                    start.wait();
                    (0..100_000)
                        .take_while(|n| {
                            let written = fs
                                .create(format!("/{id}-{n}"))
                                .and_then(|file| file.write_all_at(b"x", 0).map(|()| file))
                                .and_then(|file| if id == 3 { Ok(()) } else { file.sync_all() });
                            let closed = |error: &varvefs::Error| *error.reason() == Reason::Closed;
                            assert!(written.as_ref().err().is_none_or(closed), "{written:?}");
                            written.is_ok()
                        })
                        .count()
                })
            })
            .collect();
        start.wait();
        while pool.stats().unwrap().files_count < 50 {
            assert!(!threads.iter().any(|thread| thread.is_finished()), "a writer gave up before the close");
            thread::yield_now();
        }
        pool.close().unwrap();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    drop(fs);
    let pool = Pool::open(&path).unwrap();
    let fs = pool.filesystem();
    for (id, count) in accepted.iter().enumerate() {
        for n in 0..*count {
            assert_eq!(
                fs.read(format!("/{id}-{n}")).unwrap(),
                b"x",
                "thread {id} was told that {n} is written"
            );
        }
    }
    assert_sound(&pool);
}

// Goal: what a large write that meets a close says it has written is there. Method: the close begins when the write is seen to be at
// work, somewhere in it; 5 times.
#[test]
fn a_large_write_that_meets_a_close_says_what_is_there() {
    let data: Vec<u8> = (0..96 * MIB).map(|n| (n / 4096 % 251) as u8 + 1).collect();
    for _ in 0..5 {
        let disk = MemoryDisk::new(512 * MIB);
        let pool = PoolOptions::new().create_on(&disk).unwrap();
        let file = pool.filesystem().create("/file").unwrap();
        let written = thread::scope(|scope| {
            let writer = scope.spawn(|| file.write_at(&data, 0));
            while file.metadata().unwrap().len < MIB {
                thread::yield_now();
            }
            pool.close().unwrap();
            writer.join().unwrap().unwrap()
        });
        let pool = PoolOptions::new().open_on(&disk).unwrap();
        let found = pool.filesystem().read("/file").unwrap();
        assert!(found.len() == written && found == data[..written], "{written} bytes were accepted");
    }
}
