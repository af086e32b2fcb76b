//! Holes, reservations, copies, direct I/O and mappings through the kernel.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::process::Command;

use rustix::fs::{FallocateFlags, Mode, OFlags, SeekFrom as Seeking, copy_file_range, fallocate, seek};
use rustix::io::Errno;

use super::Mount;

fn open(mount: &Mount, name: &str) -> File {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(mount.path(name)).unwrap()
}

// Goal: programs find the holes of a file that has just been written, and make holes. Method: lseek and fallocate.
#[test]
fn holes() {
    let Some(mount) = Mount::start("holes", 64 << 20) else { return };
    let file = open(&mount, "file");
    file.write_all_at(&[1; 10_000], 1 << 20).unwrap();
    file.set_len(3 << 20).unwrap();
    assert_eq!(seek(&file, Seeking::Data(0)), Ok(1 << 20));
    assert_eq!(seek(&file, Seeking::Hole(1 << 20)), Ok((1 << 20) + 3 * 4096));
    assert_eq!(seek(&file, Seeking::Data(2 << 20)), Err(Errno::NXIO));
    assert_eq!(seek(&file, Seeking::Hole(3 << 20)), Err(Errno::NXIO));
    // Before a file there is nothing either. (rustix takes no negative offset for these, but hands over all 64 bits.)
    for before in [-1, i64::MIN] {
        assert_eq!(seek(&file, Seeking::Data(before as u64)), Err(Errno::NXIO), "data from {before}");
        assert_eq!(seek(&file, Seeking::Hole(before as u64)), Err(Errno::NXIO), "a hole from {before}");
    }
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(&file, punch, (1 << 20) + 100, 9000).unwrap();
    let mut bytes = vec![7; 10_000];
    file.read_exact_at(&mut bytes, 1 << 20).unwrap();
    assert!(bytes[..100].iter().all(|byte| *byte == 1) && bytes[100..9100].iter().all(|byte| *byte == 0));
    assert!(bytes[9100..].iter().all(|byte| *byte == 1));
    fallocate(&file, FallocateFlags::ZERO_RANGE, (4 << 20) - 5, 10).unwrap();
    assert_eq!(file.metadata().unwrap().len(), (4 << 20) + 5);
    fallocate(&file, FallocateFlags::KEEP_SIZE, 8 << 20, 1 << 20).unwrap();
    assert_eq!(file.metadata().unwrap().len(), (4 << 20) + 5);
    fallocate(&file, FallocateFlags::empty(), 0, 8 << 20).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 8 << 20);
    assert_eq!(fallocate(&file, FallocateFlags::empty(), 0, 1 << 30), Err(Errno::NOSPC));
    assert_eq!(fallocate(&file, FallocateFlags::COLLAPSE_RANGE, 0, 4096), Err(Errno::OPNOTSUPP));
}

// Goal: copy_file_range copies, also what another program has just written. Method: two files and one; cp.
#[test]
fn copies() {
    let Some(mount) = Mount::start("copies", 64 << 20) else { return };
    let data: Vec<u8> = (0..3_000_000u32).map(|i| (i % 249) as u8).collect();
    fs::write(mount.path("from"), &data).unwrap();
    let (from, to) = (open(&mount, "from"), open(&mount, "to"));
    let (mut off_in, mut off_out) = (1000, 77);
    let mut left = 2_000_000;
    while left > 0 {
        left -= copy_file_range(&from, Some(&mut off_in), &to, Some(&mut off_out), left).unwrap();
    }
    let copied = fs::read(mount.path("to")).unwrap();
    assert!(copied[77..] == data[1000..2_001_000] && copied[..77] == [0; 77]);
    let status = Command::new("cp").arg(mount.path("from")).arg(mount.path("again")).status().unwrap();
    assert!(status.success() && fs::read(mount.path("again")).unwrap() == data);
}

// Goal: direct and buffered I/O and shared mappings see each other. Method: write by one, read by the others.
#[test]
fn direct_io_and_mappings() {
    let Some(mount) = Mount::start("direct_io_and_mappings", 64 << 20) else { return };
    let direct_flag = rustix::fs::OFlags::DIRECT.bits() as i32;
    let mut buffered = open(&mount, "file");
    buffered.write_all(&[1; 64 << 10]).unwrap();
    let direct =
        OpenOptions::new().read(true).write(true).custom_flags(direct_flag).open(mount.path("file")).unwrap();
    direct.write_all_at(&[2; 8192], 4096).unwrap();
    // At an odd place and of an odd length: nothing here needs alignment.
    direct.write_all_at(&[3; 100], 50_001).unwrap();
    let mut bytes = vec![0; 64 << 10];
    buffered.seek(SeekFrom::Start(0)).unwrap();
    buffered.read_exact(&mut bytes).unwrap();
    let mut expected = vec![1; 64 << 10];
    expected[4096..12288].fill(2);
    expected[50_001..50_101].fill(3);
    assert!(bytes == expected);
    buffered.write_all_at(&[4; 10], 20_000).unwrap();
    let mut bytes = [0; 10];
    direct.read_exact_at(&mut bytes, 20_000).unwrap();
    assert_eq!(bytes, [4; 10]);
    // A program that changes a file through a mapping.
    let script = "import mmap,sys\n\
        f = open(sys.argv[1], 'r+b')\n\
        m = mmap.mmap(f.fileno(), 0)\n\
        assert m[20000:20010] == b'\\x04' * 10\n\
        m[30000:30005] = b'mmap!'\n\
        m.flush()\n";
    match Command::new("python3").arg("-c").arg(script).arg(mount.path("file")).status() {
        Ok(status) => assert!(status.success(), "{status}"),
        Err(error) => return eprintln!("SKIPPED: mappings: python3: {error}"),
    }
    let mut bytes = [0; 5];
    direct.read_exact_at(&mut bytes, 30_000).unwrap();
    assert_eq!(&bytes, b"mmap!");
    buffered.sync_all().unwrap();
}

/// Goal: a program that runs cannot be cut or written to, and goes on running. Method: a copy of sleep(1) runs; every way
/// to open it for that is refused with ETXTBSY, and its bytes stay.
#[test]
fn running_programs_are_busy() {
    let Some(mount) = Mount::start("running_programs_are_busy", 64 << 20) else { return };
    let original = ["/bin/sleep", "/usr/bin/sleep"].into_iter().find_map(|path| fs::read(path).ok());
    let original = original.expect("sleep is on every machine");
    let program = mount.path("program");
    fs::write(&program, &original).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let mut running = Command::new(&program).arg("60").spawn().unwrap();
    let open = |flags| rustix::fs::open(&program, flags, Mode::empty()).map(|_| ());
    let opened: Vec<_> =
        [OFlags::WRONLY, OFlags::RDWR, OFlags::RDONLY | OFlags::TRUNC].into_iter().map(open).collect();
    let same = fs::read(&program).unwrap() == original;
    let ended = running.try_wait().unwrap();
    running.kill().unwrap();
    running.wait().unwrap();
    assert_eq!(opened, [Err(Errno::TXTBSY); 3]);
    assert!(same, "the program was changed while it ran");
    assert_eq!(ended, None, "it did not go on running");
}
