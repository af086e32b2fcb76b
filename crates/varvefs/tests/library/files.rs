//! Files: the std::io traits, positioned I/O, open options, lengths.

use std::io::{ErrorKind, IoSlice, Read, Seek, SeekFrom, Write};

use varvefs::{OpenOptions, Reason};

use crate::{MIB, fresh};

// Goal: the position behaves as std::fs::File's. Method: write, seek three ways, read short at the end, seek before 0.
#[test]
fn reading_writing_and_seeking_share_a_position() {
    let fs = fresh();
    let mut file = OpenOptions::new().read(true).write(true).create_new(true).open(&fs, "/f").unwrap();
    file.write_all(b"hello world").unwrap();
    assert_eq!(file.stream_position().unwrap(), 11);
    assert_eq!(file.seek(SeekFrom::End(-5)).unwrap(), 6);
    let mut buf = [0; 100];
    assert_eq!(file.read(&mut buf).unwrap(), 5);
    assert_eq!(&buf[..5], b"world");
    assert_eq!(file.read(&mut buf).unwrap(), 0);
    assert_eq!(file.seek(SeekFrom::Current(-11)).unwrap(), 0);
    let mut text = String::new();
    (&file).read_to_string(&mut text).unwrap();
    assert_eq!(text, "hello world");
    assert_eq!(file.seek(SeekFrom::Current(-12)).unwrap_err().kind(), ErrorKind::InvalidInput);
    assert_eq!(file.seek(SeekFrom::End(i64::MIN)).unwrap_err().kind(), ErrorKind::InvalidInput);
    assert_eq!(file.seek(SeekFrom::Start(u64::MAX)).unwrap_err().kind(), ErrorKind::InvalidInput);
    assert_eq!(file.stream_position().unwrap(), 11, "a refused seek leaves the position");
    assert_eq!(file.read(&mut []).unwrap(), 0);
    assert_eq!(file.write(&[]).unwrap(), 0);
}

// Goal: writing beyond the end leaves a hole of zeros, reading beyond it gives nothing. Method: seek past the end, write,
// compare with zeros.
#[test]
fn seeking_past_the_end_leaves_a_hole() {
    let fs = fresh();
    let mut file = OpenOptions::new().read(true).write(true).create(true).open(&fs, "/f").unwrap();
    file.write_all(b"start").unwrap();
    file.seek(SeekFrom::Start(3 * MIB)).unwrap();
    assert_eq!(file.read(&mut [0; 8]).unwrap(), 0);
    file.write_all(b"end").unwrap();
    file.sync_all().unwrap();
    let contents = fs.read("/f").unwrap();
    assert_eq!(contents.len() as u64, 3 * MIB + 3);
    assert!(contents.starts_with(b"start\0") && contents.ends_with(b"\0end"));
    assert!(contents[5..3 * MIB as usize].iter().all(|byte| *byte == 0));
    let hole = 1 << 40;
    assert_eq!(file.write_at(b"far", hole).unwrap(), 3);
    assert_eq!(file.metadata().unwrap().len, hole + 3);
    assert_eq!(file.read_at(&mut [0; 9], hole + 1).unwrap(), 2);
}

// Goal: positioned calls leave the position alone and say when the file ends. Method: around a known position.
#[test]
fn positioned_calls_leave_the_position() {
    let fs = fresh();
    let mut file = OpenOptions::new().read(true).write(true).create(true).open(&fs, "/f").unwrap();
    file.write_all(&[1; 100]).unwrap();
    file.write_all_at(&[2; 50], 75).unwrap();
    assert_eq!(file.stream_position().unwrap(), 100);
    let mut buf = [0; 60];
    file.read_exact_at(&mut buf[..50], 50).unwrap();
    assert_eq!((buf[24], buf[25]), (1, 2));
    assert_eq!(file.read_at(&mut buf, 100).unwrap(), 25, "short at the end");
    assert_eq!(file.read_exact_at(&mut buf, 100).unwrap_err().kind(), ErrorKind::UnexpectedEof);
    assert_eq!(file.read_at(&mut buf, u64::MAX).unwrap(), 0);
    assert_eq!(file.write_at(b"x", u64::MAX).unwrap_err().kind(), ErrorKind::FileTooLarge);
}

// Goal: what is larger than the pieces it is handled in comes back whole. Method: 20 MiB of a pattern in one call.
#[test]
fn large_reads_and_writes_are_whole() {
    let fs = fresh();
    let pattern: Vec<u8> = (0..20 * MIB as u32).map(|i| (i / 4096 + i % 251) as u8).collect();
    fs.write("/big", &pattern).unwrap();
    assert!(fs.read("/big").unwrap() == pattern);
    fs.sync().unwrap();
    assert!(fs.read("/big").unwrap() == pattern);
    let file = fs.open("/big").unwrap();
    let mut buf = vec![0; pattern.len() + 10];
    assert_eq!(file.read_at(&mut buf, 0).unwrap(), pattern.len());
}

// Goal: appends land at the end whatever else happens to the file. Method: two handles, a truncation between, positions.
#[test]
fn appends_go_to_the_end() {
    let fs = fresh();
    let mut log = OpenOptions::new().append(true).read(true).create(true).open(&fs, "/log").unwrap();
    log.write_all(b"one ").unwrap();
    let mut other = OpenOptions::new().append(true).open(&fs, "/log").unwrap();
    other.write_all(b"two ").unwrap();
    log.seek(SeekFrom::Start(0)).unwrap();
    log.write_all(b"three ").unwrap();
    assert_eq!(log.stream_position().unwrap(), 14, "after a write the position is the end");
    assert_eq!(fs.read("/log").unwrap(), b"one two three ");
    log.write_at(b"ONE", 0).unwrap();
    assert_eq!(fs.read("/log").unwrap(), b"ONE two three ", "a positioned write goes where it is told");
    fs.set_len("/log", 4).unwrap();
    log.write_all(b"four").unwrap();
    assert_eq!(fs.read("/log").unwrap(), b"ONE four");
}

// Goal: every combination of open options does what std's does. Method: a table over a file that is there and one that
// is not.
#[test]
fn open_options_agree_with_std() {
    let dir = tempfile::tempdir().unwrap();
    for bits in 0..64_u32 {
        let on = |bit: u32| bits & 1 << bit != 0;
        for there in [false, true] {
            let fs = fresh();
            let path = dir.path().join(format!("{bits}-{there}"));
            if there {
                fs.write("/f", b"old").unwrap();
                std::fs::write(&path, b"old").unwrap();
            }
            let ours = OpenOptions::new()
                .read(on(0))
                .write(on(1))
                .append(on(2))
                .truncate(on(3))
                .create(on(4))
                .create_new(on(5))
                .open(&fs, "/f");
            let theirs = std::fs::OpenOptions::new()
                .read(on(0))
                .write(on(1))
                .append(on(2))
                .truncate(on(3))
                .create(on(4))
                .create_new(on(5))
                .open(&path);
            let case = format!(
                "read, write, append, truncate, create, create_new = {bits:06b} reversed, there: {there}"
            );
            match (ours, theirs) {
                (Ok(mut ours), Ok(mut theirs)) => {
                    for (what, a, b) in [
                        ("write", ours.write(b"new").is_ok(), theirs.write(b"new").is_ok()),
                        ("read", ours.read(&mut [0; 9]).is_ok(), theirs.read(&mut [0; 9]).is_ok()),
                    ] {
                        assert_eq!(a, b, "{what}: {case}");
                    }
                    assert_eq!(fs.read("/f").unwrap(), std::fs::read(&path).unwrap(), "{case}");
                }
                (Err(ours), Err(theirs)) => assert_eq!(ours.kind(), theirs.kind(), "{case}"),
                (ours, theirs) => panic!("{case}: {ours:?}, std: {theirs:?}"),
            }
        }
    }
}

// Goal: handles have only the rights they were opened with. Method: the other verb on each.
#[test]
fn handles_keep_to_their_rights() {
    let fs = fresh();
    fs.write("/f", b"x").unwrap();
    let mut reader = fs.open("/f").unwrap();
    let error = reader.write(b"y").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied);
    assert_eq!(error.to_string(), "cannot write \"/f\": the file was not opened for writing");
    assert_eq!(*reader.set_len(0).unwrap_err().reason(), Reason::NotOpenedFor("writing"));
    let mut writer = OpenOptions::new().write(true).open(&fs, "/f").unwrap();
    assert_eq!(writer.read(&mut [0]).unwrap_err().kind(), ErrorKind::PermissionDenied);
    let directory = fs.open("/").unwrap();
    assert_eq!(*directory.read_at(&mut [0], 0).unwrap_err().reason(), Reason::IsADirectory);
    directory.sync_all().unwrap();
    assert_eq!(fs.create("/").unwrap_err().kind(), ErrorKind::IsADirectory);
}

// Goal: set_len cuts and grows, and what was cut does not come back. Method: cut, grow, look for zeros.
#[test]
fn lengths_cut_and_grow() {
    let fs = fresh();
    fs.write("/f", vec![7; 10_000]).unwrap();
    fs.sync().unwrap();
    fs.set_len("/f", 5_000).unwrap();
    fs.set_len("/f", 9_000).unwrap();
    let contents = fs.read("/f").unwrap();
    assert!(contents[..5_000].iter().all(|byte| *byte == 7));
    assert!(contents[5_000..].iter().all(|byte| *byte == 0) && contents.len() == 9_000);
    assert_eq!(fs.set_len("/f", u64::MAX).unwrap_err().kind(), ErrorKind::FileTooLarge);
    fs.create("/f").unwrap();
    assert_eq!(fs.read("/f").unwrap(), b"");
}

// Goal: an open file outlives its name, and its space comes back when it is closed. Method: unlink, go on, close.
#[test]
fn an_open_file_outlives_its_name() {
    let fs = fresh();
    let before = fs.statfs().unwrap().files_count;
    let file = OpenOptions::new().read(true).write(true).create(true).open(&fs, "/f").unwrap();
    let again = fs.open("/f").unwrap();
    fs.remove_file("/f").unwrap();
    file.write_all_at(b"still here", 0).unwrap();
    file.sync_all().unwrap();
    assert_eq!(file.metadata().unwrap().links, 0);
    drop(file);
    let mut buf = [0; 10];
    again.read_exact_at(&mut buf, 0).unwrap();
    assert_eq!(&buf, b"still here");
    drop(again);
    assert_eq!(fs.statfs().unwrap().files_count, before);
    assert!(!fs.exists("/f").unwrap());
}

// Goal: a write into a full pool is short or says so, and what was accepted can be read. Method: fill 64 MiB, delete,
// write again.
#[test]
fn a_full_pool_says_so() {
    let fs = fresh();
    let mut file = OpenOptions::new().read(true).write(true).create(true).open(&fs, "/big").unwrap();
    let block = vec![9; MIB as usize];
    let error = loop {
        if let Err(error) = file.write_all(&block) {
            break error;
        }
        assert!(file.stream_position().unwrap() < 64 * MIB, "64 MiB cannot hold 64 MiB of data");
    };
    assert_eq!(error.kind(), ErrorKind::StorageFull);
    assert_eq!(error.to_string(), "cannot write \"/big\": no space is left in the pool");
    let len = file.metadata().unwrap().len;
    assert!(len > 32 * MIB, "{len}");
    file.sync_all().unwrap();
    let contents = fs.read("/big").unwrap();
    assert!(contents.len() as u64 == len && contents.iter().all(|byte| *byte == 9));
    drop(file);
    fs.remove_file("/big").unwrap();
    fs.write("/small", vec![1; 20 * MIB as usize]).unwrap();
}

/// Bytes that nobody gets.
struct Panics;

impl AsRef<[u8]> for Panics {
    fn as_ref(&self) -> &[u8] {
        panic!("the user's own")
    }
}

impl varvefs::AsPath for Panics {
    fn as_path_bytes(&self) -> &[u8] {
        panic!("the user's own")
    }
}

// Goal: what panics in the user's code while it is asked for its bytes does not stop the pool. Method: each verb that takes such things, and a
// write after all of them.
#[test]
fn panics_of_arguments_stop_nothing() {
    let fs = crate::fresh();
    let file = fs.create("/file").unwrap();
    let mode = varvefs::XattrMode::Set;
    let calls: [&dyn Fn(); 12] = [
        &|| drop(file.set_xattr(Panics, b"value", mode)),
        &|| drop(file.set_xattr("user.a", Panics, mode)),
        &|| drop(file.get_xattr(Panics)),
        &|| drop(file.remove_xattr(Panics)),
        &|| drop(fs.set_xattr("/file", "user.a", Panics, mode)),
        &|| drop(fs.get_xattr("/file", Panics)),
        &|| drop(fs.remove_xattr("/file", Panics)),
        &|| drop(fs.set_link_xattr("/file", Panics, "", mode)),
        &|| drop(fs.get_link_xattr("/file", Panics)),
        &|| drop(fs.remove_link_xattr("/file", Panics)),
        &|| drop(fs.write("/file", Panics)),
        &|| drop(fs.rename("/file", Panics)),
    ];
    for call in calls {
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(call)).unwrap_err();
    }
    fs.write("/file", "goes on").unwrap();
    fs.sync().unwrap();
}

// Goal: parts are written as one write, so that appends of several threads land whole. Method: parts of each length, none and empty ones among
// them; two threads that append three parts each time, through two handles; more than one write takes.
#[test]
fn parts_are_written_as_one() {
    let fs = fresh();
    let slices = |parts: &[&'static [u8]]| parts.iter().map(|part| IoSlice::new(part)).collect::<Vec<_>>();
    let mut file = OpenOptions::new().read(true).write(true).create(true).open(&fs, "/f").unwrap();
    assert_eq!(file.write_vectored(&[]).unwrap(), 0);
    assert_eq!(file.write_vectored(&slices(&[b"", b"one", b"", b"two", b"three"])).unwrap(), 11);
    assert_eq!(file.write_vectored(&slices(&[b"", b"four"])).unwrap(), 4);
    assert_eq!(fs.read("/f").unwrap(), b"onetwothreefour");
    std::thread::scope(|scope| {
        for letter in [b"a", b"b"] {
            let mut log = OpenOptions::new().append(true).create(true).open(&fs, "/log").unwrap();
            scope.spawn(move || {
                for _ in 0..300 {
                    let parts = [IoSlice::new(letter), IoSlice::new(letter), IoSlice::new(b"\n")];
                    assert_eq!(log.write_vectored(&parts).unwrap(), 3);
                }
            });
        }
    });
    let log = fs.read("/log").unwrap();
    assert_eq!(log.len(), 1800);
    assert!(log.chunks(3).all(|line| line == b"aa\n" || line == b"bb\n"));
    let long = vec![7; 5 << 20];
    let parts = [IoSlice::new(&long), IoSlice::new(&long)];
    assert_eq!(fs.create("/long").unwrap().write_vectored(&parts).unwrap(), 8 << 20);
}

// Goal: all of a file is read into memory of its size, and one for which there is none is an error. Method: capacities after reading from a
// place on; text behind text, and what is none; a hole of 2^61 bytes, in each way.
#[test]
fn whole_files_are_read_into_memory_that_is_there() {
    let fs = fresh();
    fs.write("/f", vec![b'x'; 100_000]).unwrap();
    let mut file = fs.open("/f").unwrap();
    file.seek(SeekFrom::Start(40_000)).unwrap();
    let mut contents = Vec::new();
    assert_eq!(file.read_to_end(&mut contents).unwrap(), 60_000);
    assert!(contents.capacity() < 61_000, "{}", contents.capacity());
    assert_eq!(file.stream_position().unwrap(), 100_000);
    assert_eq!(file.read_to_end(&mut contents).unwrap(), 0);
    let mut text = "begun ".to_owned();
    file.seek(SeekFrom::Start(99_998)).unwrap();
    assert_eq!(file.read_to_string(&mut text).unwrap(), 2);
    assert_eq!(text, "begun xx");
    fs.write("/bytes", b"\xff").unwrap();
    let error = fs.open("/bytes").unwrap().read_to_string(&mut text).unwrap_err();
    assert_eq!((error.kind(), &text[..]), (ErrorKind::InvalidData, "begun xx"));
    fs.create("/hole").unwrap().set_len(1 << 61).unwrap();
    let error = fs.read("/hole").unwrap_err();
    assert_eq!((error.reason(), error.kind()), (&Reason::OutOfMemory, ErrorKind::OutOfMemory));
    let mut hole = fs.open("/hole").unwrap();
    assert_eq!(hole.read_to_end(&mut Vec::new()).unwrap_err().kind(), ErrorKind::OutOfMemory);
    assert_eq!(hole.read_to_string(&mut String::new()).unwrap_err().kind(), ErrorKind::OutOfMemory);
}

// Goal: what cannot be read is refused also where there is nothing to read. Method: an empty directory and one with a file in it; a
// handle that may only write, of an empty file and at the end of another; each way to read all of it.
#[test]
fn what_cannot_be_read_is_refused_where_it_is_empty() {
    let fs = fresh();
    fs.create_dir_all("/full/empty").unwrap();
    for path in ["/", "/full", "/full/empty"] {
        assert_eq!(*fs.read(path).unwrap_err().reason(), Reason::IsADirectory, "{path}");
        let mut directory = fs.open(path).unwrap();
        assert_eq!(directory.read_to_end(&mut Vec::new()).unwrap_err().kind(), ErrorKind::IsADirectory);
        let error = directory.read_to_string(&mut String::new()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::IsADirectory, "{path}");
    }
    for contents in [&b""[..], b"contents"] {
        let mut file = fs.create("/f").unwrap();
        file.write_all(contents).unwrap();
        let error = file.read_to_end(&mut Vec::new()).unwrap_err();
        let error = error.get_ref().unwrap().downcast_ref::<varvefs::Error>().unwrap();
        assert_eq!(*error.reason(), Reason::NotOpenedFor("reading"));
        let error = file.read_to_string(&mut String::new()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PermissionDenied);
    }
}
