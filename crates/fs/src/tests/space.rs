//! A pool without space.

use super::*;

fn fill(f: &Fixture, name: &[u8]) -> (varve_engine::InodeId, u64) {
    let ino = f.create(name);
    let data = pattern(9, 1 << 20);
    let mut offset = 0;
    loop {
        match f.fs.write(Caller::ROOT, ino, offset, &data) {
            Ok(written) => {
                assert!(written > 0);
                offset += written as u64;
            }
            Err(error) => {
                assert_eq!(error.errno(), 28, "{error}");
                return (ino, offset);
            }
        }
    }
}

// Goal: what was accepted is there, and a full pool can be cut and deleted from. Method: fill to the last block, sync,
// kill, compare; then truncate, unlink, fill again to about the same.
#[test]
fn filled_to_the_last_block() {
    let mut f = Fixture::new(64 * MIB);
    let small: Vec<_> = (0..50).map(|i| f.create(format!("small{i}").as_bytes())).collect();
    for ino in &small {
        f.write(*ino, 0, &[3; 3000]);
    }
    f.fs.sync().unwrap();
    let (ino, len) = fill(&f, b"big");
    assert!(len > 40 * MIB, "{len}");
    assert_eq!(f.fs.getattr(ino).unwrap().size, len);
    f.fs.sync().unwrap();
    f.check();
    f.kill();
    let data = pattern(9, 1 << 20);
    let mut at = 0;
    while at < len {
        let got = f.fs.read(ino, at, 1 << 20).unwrap();
        // Short writes shift the pattern: each write began with its start.
        assert!(!got.is_empty());
        at += got.len() as u64;
    }
    assert!(f.fs.read(ino, 0, 1 << 20).unwrap() == data);
    // Accepted without space for one more: refused; but cutting and deleting work.
    f.truncate(ino, len / 2 + 17);
    f.check();
    for i in 0..50 {
        f.fs.unlink(ROOT, format!("small{i}").as_bytes()).unwrap();
    }
    f.fs.unlink(ROOT, b"big").unwrap();
    f.check();
    let (_, again) = fill(&f, b"big2");
    assert!(again + 2 * MIB > len, "{again} after {len}");
    f.fs.sync().unwrap();
    f.check();
    f.fs.unlink(ROOT, b"big2").unwrap();
    f.check();
}

// Goal: creating many files on a full pool ends with ENOSPC, and all of them can be removed. Method: create until
// refused, remove all, check.
#[test]
fn full_of_names() {
    let f = Fixture::new(64 * MIB);
    let (big, len) = fill(&f, b"big");
    f.truncate(big, len - 2 * MIB);
    let mut count = 0u32;
    loop {
        let name = format!("{:0200}", count);
        match f.fs.create(Caller::ROOT, ROOT, name.as_bytes(), 0o644) {
            Ok(_) => count += 1,
            Err(error) => {
                assert_eq!(error.errno(), 28);
                break;
            }
        }
    }
    assert!(count > 100, "{count}");
    f.check();
    for i in 0..count {
        f.fs.unlink(ROOT, format!("{i:0200}").as_bytes()).unwrap();
    }
    f.fs.unlink(ROOT, b"big").unwrap();
    f.fs.sync().unwrap();
    f.check();
}
