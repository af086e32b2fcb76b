//! Ranges of files: space set aside, holes, copies, and moving what lies behind.

use varvefs::{Allocate, OpenOptions, Reason};

use crate::{MIB, assert_sound, fresh, quiet};

// Goal: allocate does what its three ways say, and data and holes are found where they are. Method: each way on one
// file, with the space counted.
#[test]
fn allocate_and_seek() {
    let pool = quiet().in_memory(64 * MIB).unwrap();
    let fs = pool.filesystem();
    let file = OpenOptions::new().read(true).write(true).create(true).open(&fs, "/f").unwrap();
    let reserved = || pool.stats().unwrap().space.reserved_bytes;
    let before = reserved();
    file.allocate(0, 4 * MIB, Allocate::Reserve { keep_size: true }).unwrap();
    assert_eq!(file.metadata().unwrap().len, 0);
    file.allocate(0, 4 * MIB, Allocate::Reserve { keep_size: false }).unwrap();
    assert_eq!(file.metadata().unwrap().len, 4 * MIB);
    assert!(reserved() >= before + 4 * MIB);
    assert_eq!((file.seek_data(0).unwrap(), file.seek_hole(0).unwrap()), (None, Some(0)));
    file.write_all_at(&[1; 12_288], MIB).unwrap();
    assert_eq!(file.seek_data(5).unwrap(), Some(MIB));
    assert_eq!(file.seek_hole(MIB).unwrap(), Some(MIB + 12_288));
    file.allocate(MIB + 4096, 4096, Allocate::Punch).unwrap();
    file.allocate(MIB + 8192, 4096, Allocate::Zero { keep_size: true }).unwrap();
    let mut bytes = [9; 12_288];
    file.read_exact_at(&mut bytes, MIB).unwrap();
    assert!(bytes[..4096].iter().all(|byte| *byte == 1) && bytes[4096..].iter().all(|byte| *byte == 0));
    assert_eq!(file.seek_hole(MIB).unwrap(), Some(MIB + 4096));
    assert_eq!(file.seek_data(4 * MIB).unwrap(), None);
    let error = file.allocate(0, 0, Allocate::Punch).unwrap_err();
    assert!(matches!(error.reason(), Reason::Invalid(_)), "{error}");
    let error = fs.open("/f").unwrap().allocate(0, 1, Allocate::Punch).unwrap_err();
    assert_eq!(*error.reason(), Reason::NotOpenedFor("writing"));
    fs.sync().unwrap();
    assert_sound(&pool);
}

// Goal: copies are whole however long, and refuse what makes no sense. Method: more than one call below copies at once,
// to another file, inside one, past the end, over itself, to another pool.
#[test]
fn copy_range() {
    let pool = quiet().in_memory(512 * MIB).unwrap();
    let fs = pool.filesystem();
    let contents: Vec<u8> = (0..70 * MIB).map(|at| (at / 1000) as u8).collect();
    fs.write("/from", &contents).unwrap();
    let from = OpenOptions::new().read(true).write(true).open(&fs, "/from").unwrap();
    let to = fs.create("/to").unwrap();
    assert_eq!(from.copy_range(3, &to, 5, u64::MAX).unwrap(), 70 * MIB - 3);
    let copied = fs.read("/to").unwrap();
    assert!(copied[..5] == [0; 5] && copied[5..] == contents[3..]);
    assert_eq!(from.copy_range(0, &from, 70 * MIB, 1000).unwrap(), 1000);
    assert!(fs.read("/from").unwrap()[70 * MIB as usize..] == contents[..1000]);
    assert_eq!(from.copy_range(1 << 40, &to, 0, 10).unwrap(), 0);
    let error = from.copy_range(0, &from, 500, 1000).unwrap_err();
    assert!(matches!(error.reason(), Reason::Invalid(_)), "{error}");
    assert_eq!(*to.copy_range(0, &from, 0, 1).unwrap_err().reason(), Reason::NotOpenedFor("reading"));
    let stranger = fresh().create("/to").unwrap();
    let error = from.copy_range(0, &stranger, 0, 1).unwrap_err();
    assert!(error.to_string().contains("different pools"), "{error}");
}

// Goal: what lies behind moves, appends land at the new end, and wrong ranges are refused in words. Method: by hand.
#[test]
fn collapse_and_insert() {
    let pool = quiet().in_memory(64 * MIB).unwrap();
    let fs = pool.filesystem();
    let block = |byte: u8| vec![byte; 4096];
    fs.write("/f", [block(1), block(2), block(3), b"end".to_vec()].concat()).unwrap();
    let file = OpenOptions::new().append(true).open(&fs, "/f").unwrap();
    file.collapse_range(4096, 4096).unwrap();
    std::io::Write::write_all(&mut &file, b"+").unwrap();
    assert!(fs.read("/f").unwrap() == [block(1), block(3), b"end+".to_vec()].concat());
    file.insert_range(0, 8192).unwrap();
    assert!(fs.read("/f").unwrap() == [block(0), block(0), block(1), block(3), b"end+".to_vec()].concat());
    for (offset, len) in [(0, 1), (1, 4096), (0, 1 << 20), (4 * 4096, 4096)] {
        let error = file.collapse_range(offset, len).unwrap_err();
        assert!(error.to_string().contains("not made of whole blocks inside the file"), "{error}");
    }
    assert_eq!(*file.insert_range(0, 1 << 62).unwrap_err().reason(), Reason::FileTooLarge);
    file.sync_all().unwrap();
    assert_sound(&pool);
}
