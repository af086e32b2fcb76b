//! A tree of files as people have them, made from a seed, and the comparison of two trees to the last attribute.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{BufWriter, Read, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use rustix::fs::XattrFlags;

use crate::harness::Random;

/// Most differences worth reading.
const DIFFERENCES_MAX: usize = 20;

/// Makes `files` files below `root`, with all the odd things that trees have in small numbers: empty, sparse and big
/// files, hard links, symbolic links that lead nowhere, long and non-UTF-8 names, attributes, times before 1970.
pub fn generate(root: &Path, files: u64, seed: u64) {
    let mut random = Random::new(seed);
    let mut dirs = vec![root.to_owned()];
    let mut regular: Vec<PathBuf> = Vec::new();
    let mut xattrs_work = true;
    for number in 0..files {
        if number % 25 == 0 {
            let parent = dirs[random.below(dirs.len() as u64) as usize].clone();
            // A bound on depth keeps paths below PATH_MAX.
            let parent =
                if parent.components().count() > root.components().count() + 8 { root } else { &parent };
            let dir = parent.join(format!("dir{number}"));
            fs::create_dir(&dir).expect("a fresh directory");
            dirs.push(dir);
        }
        let dir = &dirs[random.below(dirs.len() as u64) as usize];
        let path = dir.join(name(number, &mut random));
        match random.below(100) {
            0 | 1 => {
                let target = format!("../{}", "x".repeat(random.below(300) as usize));
                symlink(target, &path).expect("a symbolic link");
                continue;
            }
            2 if !regular.is_empty() => {
                let old = &regular[random.below(regular.len() as u64) as usize];
                fs::hard_link(old, &path).expect("a hard link");
                continue;
            }
            _ => {}
        }
        write_file(&path, &mut random);
        if random.below(20) == 0 && xattrs_work {
            let value = random.bytes([0, 5, 300, 1500][number as usize % 4]);
            let set = rustix::fs::setxattr(&path, "user.varve.test", &value, XattrFlags::empty());
            // Not every host filesystem has them; then there are none to compare.
            xattrs_work = set.is_ok();
        }
        let seconds = Duration::from_nanos(random.below(2_000_000_000 * 1_000_000_000));
        let time = if random.below(50) == 0 { UNIX_EPOCH - seconds / 10 } else { UNIX_EPOCH + seconds };
        let mode = [0o644, 0o755, 0o600, 0o444, 0o640, 0o4755, 0o400][random.below(7) as usize];
        let file = fs::File::options().write(true).open(&path).expect("our own file");
        file.set_times(fs::FileTimes::new().set_modified(time)).expect("times can be set");
        file.set_permissions(fs::Permissions::from_mode(mode)).expect("a mode can be set");
        regular.push(path);
    }
}

fn name(number: u64, random: &mut Random) -> OsString {
    match random.below(60) {
        0 => OsString::from(format!("{number}-{}", "n".repeat(255 - number.to_string().len() - 1))),
        1 => OsString::from_vec([number.to_string().as_bytes(), b"-\xff\xfe\n ".as_slice()].concat()),
        2 => OsString::from(format!("{number} ünïcode ☃")),
        _ => OsString::from(format!("file{number}.rs")),
    }
}

/// Sizes as in a source tree: most files are a few KiB, a few are large, some are empty, some have holes.
fn write_file(path: &Path, random: &mut Random) {
    let size = match random.below(200) {
        0..10 => 0,
        10..130 => 1 + random.below(4 << 10),
        130..190 => (4 << 10) + random.below(28 << 10),
        190..199 => (32 << 10) + random.below(96 << 10),
        _ => (1 << 20) + random.below(2 << 20),
    };
    let file = fs::File::create(path).expect("a fresh file");
    if random.below(100) == 0 {
        file.set_len(size + 100_000).expect("a file can grow");
        file.write_all_at(&random.bytes(700), size).expect("room on the host");
    } else {
        let mut out = BufWriter::new(file);
        let mut left = size as usize;
        while left > 0 {
            let piece = left.min(64 << 10);
            out.write_all(&random.bytes(piece)).expect("room on the host");
            left -= piece;
        }
        out.flush().expect("room on the host");
    }
}

/// Everything in which `b` differs from `a`, at most [`DIFFERENCES_MAX`] sentences.
pub fn differences(a: &Path, b: &Path) -> Vec<String> {
    let mut found = Vec::new();
    compare(a, b, &mut found);
    found
}

/// The test fails unless the two trees are equal to the last attribute.
pub fn assert_equal(a: &Path, b: &Path) {
    let found = differences(a, b);
    assert!(found.is_empty(), "{} and {} differ:\n{}", a.display(), b.display(), found.join("\n"));
}

fn compare(a: &Path, b: &Path, found: &mut Vec<String>) {
    if found.len() >= DIFFERENCES_MAX {
        return;
    }
    let (one, other) = match (fs::symlink_metadata(a), fs::symlink_metadata(b)) {
        (Ok(one), Ok(other)) => (one, other),
        (one, other) => {
            found.push(format!("{}: {:?} / {:?}", b.display(), one.err(), other.err()));
            return;
        }
    };
    let mut differ = |what: &str, one: String, other: String| {
        if one != other {
            found.push(format!("{}: {what} {one} / {other}", b.display()));
        }
    };
    differ("mode", format!("{:o}", one.mode()), format!("{:o}", other.mode()));
    differ("owner", format!("{}:{}", one.uid(), one.gid()), format!("{}:{}", other.uid(), other.gid()));
    let time = |m: &fs::Metadata| format!("{}.{:09}", m.mtime(), m.mtime_nsec());
    differ("mtime", time(&one), time(&other));
    if !one.is_dir() {
        differ("size", one.len().to_string(), other.len().to_string());
        differ("links", one.nlink().to_string(), other.nlink().to_string());
    }
    if one.is_symlink() {
        differ("target", format!("{:?}", fs::read_link(a)), format!("{:?}", fs::read_link(b)));
        return;
    }
    differ("attributes", format!("{:?}", xattrs(a)), format!("{:?}", xattrs(b)));
    if one.is_dir() {
        let (names, others) = (names(a), names(b));
        for name in names.iter().chain(others.iter().filter(|name| !names.contains(*name))) {
            compare(&a.join(name), &b.join(name), found);
        }
    } else if one.is_file()
        && let Some(at) = first_difference(a, b)
    {
        found.push(format!("{}: contents differ from byte {at} on", b.display()));
    }
}

fn names(dir: &Path) -> std::collections::BTreeSet<OsString> {
    fs::read_dir(dir)
        .expect("a directory can be read")
        .map(|entry| entry.expect("an entry").file_name())
        .collect()
}

/// The user attributes of a file.
fn xattrs(path: &Path) -> BTreeMap<OsString, Vec<u8>> {
    let mut list = vec![0; 64 << 10];
    let len = rustix::fs::listxattr(path, &mut list[..]).unwrap_or(0);
    let names = list[..len].split(|byte| *byte == 0).filter(|name| name.starts_with(b"user."));
    names
        .map(|name| {
            let name = OsStr::from_bytes(name);
            let mut value = vec![0; 64 << 10];
            let len =
                rustix::fs::getxattr(path, name, &mut value[..]).expect("a listed attribute can be read");
            value.truncate(len);
            (name.to_owned(), value)
        })
        .collect()
}

fn first_difference(a: &Path, b: &Path) -> Option<u64> {
    let (mut a, mut b) = match (fs::File::open(a), fs::File::open(b)) {
        (Ok(a), Ok(b)) => (a, b),
        _ => return Some(0),
    };
    let (mut one, mut other) = (vec![0; 256 << 10], vec![0; 256 << 10]);
    let mut at = 0;
    loop {
        let n = fill(&mut a, &mut one);
        let m = fill(&mut b, &mut other);
        let both = n.min(m);
        if one[..both] != other[..both] {
            let index = (0..both).find(|index| one[*index] != other[*index]).expect("they differ");
            return Some(at + index as u64);
        }
        if n != m {
            return Some(at + n.min(m) as u64);
        }
        if n == 0 {
            return None;
        }
        at += n as u64;
    }
}

/// Reads until `buffer` is full or the file ends or fails.
fn fill(file: &mut fs::File, buffer: &mut [u8]) -> usize {
    let mut len = 0;
    while len < buffer.len() {
        match file.read(&mut buffer[len..]) {
            Ok(0) | Err(_) => break,
            Ok(n) => len += n,
        }
    }
    len
}

/// Goal: the comparison that the other tests rely on sees every kind of difference. Method: two equal trees on the
/// host, one thing changed at a time and changed back.
#[test]
fn the_comparison_sees_every_difference() {
    let scratch = crate::harness::Scratch::new("compare");
    let (a, b) = (scratch.subdir("a"), scratch.path("b"));
    generate(&a, 300, 1);
    for (name, mode) in [("plain", 0o644), ("run", 0o755)] {
        fs::write(a.join(name), name).expect("a file");
        fs::set_permissions(a.join(name), fs::Permissions::from_mode(mode)).expect("a mode");
    }
    symlink("plain", a.join("link")).expect("a symbolic link");
    let time = |path: &Path, nanos: u64| {
        let time = UNIX_EPOCH + Duration::new(1_000_000_000, 0) + Duration::from_nanos(nanos);
        fs::File::open(path).and_then(|file| file.set_modified(time)).expect("times can be set");
    };
    time(&a.join("plain"), 5);
    time(&a, 0);
    let copy = || {
        let _the_first_time_there_is_none = fs::remove_dir_all(&b);
        let out = std::process::Command::new("cp").arg("-a").arg(&a).arg(&b).status().expect("cp runs");
        assert!(out.success());
        assert_equal(&a, &b);
    };
    let plain = b.join("plain");
    let changes: [(&str, &dyn Fn()); 8] = [
        ("contents", &|| {
            fs::write(&plain, "plaim").expect("a file");
            time(&plain, 5);
        }),
        ("size", &|| {
            fs::write(&plain, "plain+").expect("a file");
            time(&plain, 5);
        }),
        ("mtime", &|| time(&plain, 6)),
        ("mode", &|| fs::set_permissions(&plain, fs::Permissions::from_mode(0o645)).expect("a mode")),
        ("links", &|| {
            fs::hard_link(&plain, b.join("run2")).expect("a hard link");
            fs::remove_file(b.join("run")).expect("our own file");
            fs::rename(b.join("run2"), b.join("run")).expect("our own file");
            time(&b, 0);
        }),
        ("target", &|| {
            fs::remove_file(b.join("link")).expect("our own file");
            symlink("plaim", b.join("link")).expect("a symbolic link");
            time(&b, 0);
        }),
        ("No such file", &|| {
            fs::remove_file(&plain).expect("our own file");
            time(&b, 0);
        }),
        ("No such file", &|| {
            fs::write(b.join("extra"), "").expect("a file");
            time(&b, 0);
        }),
    ];
    for (expected, change) in changes {
        copy();
        change();
        let found = differences(&a, &b);
        assert!(found.iter().any(|line| line.contains(expected)), "{expected} was not noticed: {found:?}");
    }
}
