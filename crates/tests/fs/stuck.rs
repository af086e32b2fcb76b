//! What cannot be written back, and waits: how much of it there may be, and who hears of it.

use varve_engine::TreeId;

use super::durability::spoil;
use super::*;

// Goal: whoever writes more than may be dirty hears nothing of a stranger's file that cannot be written back, and his own is
// written back; who writes to that file itself is refused before anything is accepted, so that what is dirty stays bounded.
// Method: two such files, of which the first is larger than the bound, beside others that are written to by turns; then what
// was damaged is mended.
#[test]
fn strangers_write_past_a_bad_file() {
    // More than the bound, and less than twice that.
    const LARGE: usize = 3 << 19;
    let f = Fixture::with(128 * MIB, HASH_KIND_SIPHASH13, MIB);
    let [bad, small, good, other] = [b"bad", b"sml", b"gud", b"oth"].map(|name| f.create(name));
    for ino in [bad, small] {
        f.write(ino, 0, &pattern(9, 53_248));
    }
    f.fs.sync().unwrap();
    let extents = [bad, small].map(|ino| spoil(&f, ino));
    f.write(small, 0, &pattern(8, 20_480));
    let core = f.fs.core();
    let (step, most) = (65_536, MIB + 65_536);
    for n in 0..40 {
        for ino in [good, other] {
            f.write(ino, n * step, &pattern(n, step as usize));
            assert!(core.dirty.bytes() <= most, "{} bytes are dirty", core.dirty.bytes());
        }
    }
    f.write(bad, 53_248, &pattern(7, LARGE));
    let stuck = core.dirty.bytes();
    assert_eq!(stuck, LARGE as u64 + 20_480, "all others could be written");
    for n in 40..50 {
        // Nor does another attempt make him forget that.
        refused(
            f.fs.setattr(
                Caller::ROOT,
                bad,
                SetAttr { size: Some(53_249 + LARGE as u64), ..SetAttr::default() },
            ),
            5,
        );
        for (ino, size) in [(bad, 53_248 + LARGE as u64), (small, 53_248)] {
            refused(f.fs.write(Caller::ROOT, ino, size, &[1; 4096]), 5);
            assert_eq!(f.fs.getattr(ino).unwrap().size, size);
        }
        for ino in [good, other] {
            f.write(ino, n * step, &pattern(n, step as usize));
            assert_eq!(core.dirty.bytes(), stuck);
        }
    }
    extents.iter().for_each(|entries| reaping::mend(&f.fs, TreeId::EXTENTS, entries));
    f.write(small, 53_248, &[1; 4096]);
    f.write(bad, 53_248 + LARGE as u64, &[1; 4096]);
    assert!(core.dirty.bytes() <= 2 * 4096);
    f.fs.sync().unwrap();
    assert!(f.read_all(bad)[53_248..][..LARGE] == pattern(7, LARGE));
    assert!(f.read_all(small) == [&pattern(8, 20_480), &pattern(9, 53_248)[20_480..], &[1; 4096]].concat());
    f.check();
}

// Goal: however many files cannot be written back, what is dirty is bounded, and who writes more hears of it, but not who gives space
// back. Method: sixty files whose extents cannot be read, 64 KiB written to each; the bound is a MiB. Then another is zeroed in part,
// punched as a whole, cut and removed.
#[test]
fn many_bad_files_are_bounded() {
    let f = Fixture::with(128 * MIB, HASH_KIND_SIPHASH13, MIB);
    let files: Vec<InodeId> = (0..60).map(|n| f.create(format!("file {n}").as_bytes())).collect();
    let good = f.create(b"good");
    for ino in files.iter().chain([&good]) {
        f.write(*ino, 0, &pattern(9, 53_248));
    }
    f.fs.sync().unwrap();
    let extents: Vec<_> = files.iter().map(|ino| spoil(&f, *ino)).collect();
    let written =
        files.iter().filter(|ino| f.fs.write(Caller::ROOT, **ino, 0, &pattern(8, 65_536)).is_ok()).count();
    let dirty = f.fs.core().dirty.bytes();
    assert!(written < 40 && dirty <= 2 * MIB + 65_536, "{written} files with {dirty} bytes in all");
    let punch = |from, len| f.fs.fallocate(Caller::ROOT, good, from, len, Allocate::Punch);
    refused(punch(1, 100), 5);
    punch(1, 53_247).unwrap();
    punch(0, 53_247).unwrap();
    f.truncate(good, 1);
    f.fs.unlink(ROOT, b"good").unwrap();
    extents.iter().for_each(|entries| reaping::mend(&f.fs, TreeId::EXTENTS, entries));
    f.fs.sync().unwrap();
    f.write(files[59], 0, b"as before");
    f.check();
}

// Goal: who writes to a file that can be written back is refused only as long as what cannot be comes to twice the bound, and not because
// it came to that a moment ago. Method: two files whose extents cannot be read, which come to more than that together; one is mended.
#[test]
fn room_that_can_be_made_is_made_first() {
    let f = Fixture::with(128 * MIB, HASH_KIND_SIPHASH13, MIB);
    let [bad, other, good] = [b"bad", b"oth", b"gud"].map(|name| f.create(name));
    for ino in [bad, other] {
        f.write(ino, 0, &pattern(9, 53_248));
    }
    f.fs.sync().unwrap();
    let extents = [bad, other].map(|ino| spoil(&f, ino));
    let dirty = || f.fs.core().dirty.bytes();
    f.write(bad, 53_248, &pattern(8, 5 << 18));
    f.write(other, 53_248, &pattern(7, 230 * 4096));
    assert!(dirty() > 2 * MIB);
    refused(f.fs.write(Caller::ROOT, good, 0, &[1; 4096]), 5);
    reaping::mend(&f.fs, TreeId::EXTENTS, &extents[0]);
    f.write(good, 0, &[1; 4096]);
    assert_eq!(dirty(), 231 * 4096, "what can be written is");
    reaping::mend(&f.fs, TreeId::EXTENTS, &extents[1]);
    f.fs.sync().unwrap();
    assert!(f.read_all(bad)[53_248..] == pattern(8, 5 << 18));
    assert!(f.read_all(other)[53_248..] == pattern(7, 230 * 4096));
    f.check();
}
