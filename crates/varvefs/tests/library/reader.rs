//! `tools/read_pool.py`, which knows the format from SPEC.md alone, sees in pools what the library sees.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use varvefs::{
    Allocate, FileType, Filesystem, Metadata, OpenOptions, Pool, PoolOptions, Profile, SnapshotOptions,
    Times, XattrMode,
};

use crate::{MIB, quiet};

const BLOCK: usize = 4096;
/// Files beyond are not hashed as a whole.
const DIGEST_MAX: u64 = 1 << 30;
/// Where the slots at the front of a device begin and end, and how many bytes have them at its end.
const FRONT_BYTES: usize = 320 << 10;
const SLOTS: usize = 64 << 10;
const TAIL_BYTES: usize = 512 << 10;

/// What the reader prints, or nothing where there is no Python.
fn reader(pool: &Path, args: &[&str]) -> Output {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tools/read_pool.py");
    Command::new("python3").arg("-B").arg(script).arg(pool).args(args).output().unwrap()
}

fn has_python() -> bool {
    let found = Command::new("python3").arg("--version").output().is_ok_and(|output| output.status.success());
    if !found {
        eprintln!("SKIPPED: there is no python3, so nothing has compared SPEC.md with pools");
    }
    found
}

/// What the reader says of each path, and whether it had to warn.
fn seen_by_reader(pool: &Path) -> (BTreeMap<Vec<u8>, Value>, String) {
    let output = reader(pool, &["tree", "--json"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(!said.contains("Traceback"), "{said}");
    assert_eq!(output.status.code(), Some(i32::from(!said.is_empty())), "{said}");
    let entries = output.stdout.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).map(|line| {
        let mut entry: Value = serde_json::from_slice(line).unwrap();
        let fields = entry.as_object_mut().unwrap();
        fields.remove("subvolume");
        fields.remove("own_number");
        (unshown(fields.remove("path").unwrap().as_str().unwrap()), entry)
    });
    (entries.collect(), said)
}

/// A name as the reader writes it, back to bytes.
fn unshown(text: &str) -> Vec<u8> {
    let (mut bytes, mut out) = (text.bytes(), Vec::new());
    while let Some(byte) = bytes.next() {
        out.push(match (byte, if byte == b'\\' { bytes.next() } else { None }) {
            (b'\\', Some(b'x')) => {
                let digits = [bytes.next().unwrap(), bytes.next().unwrap()];
                u8::from_str_radix(str::from_utf8(&digits).unwrap(), 16).unwrap()
            }
            (b'\\', Some(b'n')) => b'\n',
            (b'\\', Some(b'r')) => b'\r',
            (b'\\', Some(b't')) => b'\t',
            (b'\\', Some(other)) => other,
            (other, _) => other,
        });
    }
    out
}

fn seconds(time: SystemTime) -> Value {
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => json!([after.as_secs(), after.subsec_nanos()]),
        Err(error) => {
            let before = error.duration();
            let whole = -i64::try_from(before.as_secs()).unwrap();
            match before.subsec_nanos() {
                0 => json!([whole, 0]),
                part => json!([whole - 1, 1_000_000_000 - part]),
            }
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The same as the library sees it. Digests are made by sha256sum.
fn seen_by_library(filesystem: &Filesystem, scratch: &Path) -> BTreeMap<Vec<u8>, Value> {
    let (mut found, mut files, mut todo) = (BTreeMap::new(), Vec::new(), vec![b"/".to_vec()]);
    let mut seen = BTreeMap::new();
    while let Some(path) = todo.pop() {
        let metadata = filesystem.symlink_metadata(&path).unwrap();
        let mut entry = described(filesystem, &path, &metadata);
        if metadata.is_dir() {
            for child in filesystem.read_dir(&path).unwrap() {
                todo.push([path.strip_suffix(b"/").unwrap_or(&path), b"/", child.unwrap().name()].concat());
            }
            // Sizes do not count the subvolumes in a directory, links do.
            entry["nlink"] = json!(metadata.links);
        } else if metadata.is_file() {
            let name = seen.entry(metadata.inode).or_insert_with(|| {
                let name = scratch.join(files.len().to_string());
                fs::write(&name, hashed(filesystem, &path, metadata.len)).unwrap();
                files.push(name.clone());
                name
            });
            let digest = if metadata.len <= DIGEST_MAX { "sha256" } else { "blocks_sha256" };
            entry[digest] = json!(name);
        }
        found.insert(path, entry);
    }
    let sums = Command::new("sha256sum").args(&files).output().unwrap();
    let sums = String::from_utf8(sums.stdout).unwrap();
    let sums: BTreeMap<&str, &str> =
        sums.lines().map(|line| line.split_once("  ").unwrap()).map(|(sum, name)| (name, sum)).collect();
    for entry in found.values_mut() {
        for digest in ["sha256", "blocks_sha256"] {
            if let Some(name) = entry.get(digest).and_then(Value::as_str) {
                entry[digest] = json!(sums[name]);
            }
        }
    }
    found
}

/// What is hashed of a file: all of it, or of a huge one its blocks that have any but zeros, each after its offset.
fn hashed(filesystem: &Filesystem, path: &[u8], len: u64) -> Vec<u8> {
    if len <= DIGEST_MAX {
        return filesystem.read(path).unwrap();
    }
    let (file, mut out, mut at) = (filesystem.open(path).unwrap(), Vec::new(), 0);
    while let Some(data) = file.seek_data(at).unwrap() {
        at = file.seek_hole(data).unwrap().unwrap();
        for block in (data..at).step_by(BLOCK) {
            let mut bytes = [0; BLOCK];
            file.read_at(&mut bytes, block).unwrap();
            if bytes != [0; BLOCK] {
                out.extend_from_slice(&block.to_le_bytes());
                out.extend_from_slice(&bytes);
            }
        }
    }
    out
}

fn described(filesystem: &Filesystem, path: &[u8], metadata: &Metadata) -> Value {
    let mut names = filesystem.list_link_xattrs(path).unwrap();
    names.sort();
    let xattrs: BTreeMap<String, String> = names
        .into_iter()
        .map(|name| {
            let value = filesystem.get_link_xattr(path, &name).unwrap().unwrap();
            (String::from_utf8(name).unwrap(), hex(&value))
        })
        .collect();
    let flags = metadata.flags;
    let flags = [
        flags.immutable,
        flags.append_only,
        flags.no_dump,
        flags.no_access_time,
        flags.durable,
        flags.durable_names,
    ];
    let flags: u32 = flags.iter().enumerate().map(|(bit, set)| u32::from(*set) << (bit + 2)).sum();
    let kind = match metadata.file_type {
        FileType::File => "file",
        FileType::Directory => "directory",
        FileType::Symlink => "symlink",
        FileType::Fifo => "fifo",
        FileType::Socket => "socket",
        FileType::CharDevice => "char_device",
        FileType::BlockDevice => "block_device",
        _ => "another",
    };
    let mut entry = json!({
        "type": kind,
        "inode": metadata.inode,
        "mode": format!("{:04o}", metadata.mode),
        "uid": metadata.user,
        "gid": metadata.group,
        "nlink": metadata.links,
        "size": metadata.len,
        "flags": flags,
        "atime": seconds(metadata.accessed),
        "mtime": seconds(metadata.modified),
        "ctime": seconds(metadata.changed),
        "btime": seconds(metadata.created),
        "xattrs": xattrs,
    });
    if matches!(metadata.file_type, FileType::CharDevice | FileType::BlockDevice) {
        entry["rdev"] = json!(metadata.device);
    }
    if metadata.is_symlink() {
        entry["target"] = json!(filesystem.read_link(path).unwrap().to_str().unwrap());
    }
    entry
}

/// Compares what is in a pool's file, which nobody has open for writing. Gives what the reader said.
fn compare(what: &str, pool: &Path) -> String {
    let scratch = tempfile::tempdir().unwrap();
    let open = quiet().read_only(true).open(pool).unwrap_or_else(|error| panic!("{what}: {error}"));
    let wanted = seen_by_library(&open.filesystem(), scratch.path());
    drop(open);
    let (found, said) = seen_by_reader(pool);
    let paths = |tree: &BTreeMap<Vec<u8>, Value>| -> Vec<String> {
        tree.keys().map(|path| path.escape_ascii().to_string()).collect()
    };
    assert_eq!(paths(&found), paths(&wanted), "{what}: {said}");
    for (path, wanted) in &wanted {
        let mut found = found[path].clone();
        // What only programs that write heed.
        found["flags"] = json!(found["flags"].as_u64().unwrap() & 252);
        assert_eq!(&found, wanted, "{what}: {} {said}", path.escape_ascii());
    }
    said
}

/// The file as it is now: what a killed process leaves.
fn killed(pool: &Path, name: &str) -> PathBuf {
    let copy = pool.with_file_name(name);
    fs::copy(pool, &copy).unwrap();
    copy
}

/// Overwrites bytes of a file.
fn overwrite(path: &Path, at: usize, bytes: &[u8]) {
    use std::os::unix::fs::FileExt;
    fs::OpenOptions::new().write(true).open(path).unwrap().write_all_at(bytes, at as u64).unwrap();
}

/// Bytes that do not repeat.
fn noise(len: usize, mut seed: u64) -> Vec<u8> {
    (0..len)
        .map(|_| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 56) as u8
        })
        .collect()
}

fn writable(filesystem: &Filesystem, path: &str) -> varvefs::File {
    OpenOptions::new().read(true).write(true).open(filesystem, path).unwrap()
}

/// A tree with one of everything.
fn fill(fs: &Filesystem) {
    fs.create_subvolume("/volume").unwrap();
    fs.create_dir_all("/volume/deep/er").unwrap();
    for (number, len) in [0, 1, 1700, 1701, 4096, 5000, 300_000, 1_500_000].into_iter().enumerate() {
        fs.write(format!("/volume/deep/file-{number}"), noise(len, number as u64)).unwrap();
    }
    for number in 0..300 {
        fs.write(format!("/volume/deep/er/{number}"), number.to_string()).unwrap();
    }
    fs.hard_link("/volume/deep/file-3", "/volume/other name").unwrap();
    fs.write(b"/volume/bytes \xff\xfe\n\\\"".as_slice(), b"x").unwrap();
    fs.write([b"/volume/".as_slice(), &[b'n'; 255]].concat(), b"long").unwrap();
    fs.symlink("deep/file-1", "/volume/link").unwrap();
    fs.symlink("t".repeat(4000), "/volume/long link").unwrap();
    for (name, kind) in [
        ("fifo", FileType::Fifo),
        ("socket", FileType::Socket),
        ("char", FileType::CharDevice),
        ("block", FileType::BlockDevice),
    ] {
        fs.create_node(format!("/volume/{name}"), kind, 0o4640, 0x1234_5678).unwrap();
    }
    let sparse = fs.create("/volume/sparse").unwrap();
    sparse.write_all_at(b"far", 1 << 40).unwrap();
    sparse.write_all_at(&noise(10_000, 9), 12_345).unwrap();
    sparse.set_len(1 << 50).unwrap();
    let holes = fs.create("/volume/holes").unwrap();
    holes.write_all_at(&noise(400_000, 10), 0).unwrap();
    holes.allocate(8192, 100_000, Allocate::Punch).unwrap();
    holes.allocate(200_000, 50_000, Allocate::Zero { keep_size: true }).unwrap();
    holes.allocate(390_000, 3_000_000, Allocate::Reserve { keep_size: true }).unwrap();
    holes.set_len(350_001).unwrap();
    holes.set_len(360_000).unwrap();
    fs.set_xattr("/volume/deep/file-1", "user.long", noise(65_536, 11), XattrMode::Set).unwrap();
    fs.set_xattr("/volume/deep/file-1", "trusted.1024", noise(1024, 12), XattrMode::Set).unwrap();
    fs.set_xattr("/volume/deep/file-1", "user.empty", "", XattrMode::Set).unwrap();
    fs.set_link_xattr("/volume/link", "security.link", "of the link", XattrMode::Set).unwrap();
    let acl = [2_u32.to_le_bytes().to_vec()].into_iter().chain(
        [(1_u16, 6_u16, u32::MAX), (2, 4, 1000), (4, 4, u32::MAX), (0x10, 4, u32::MAX), (0x20, 0, u32::MAX)]
            .into_iter()
            .map(|(tag, bits, id)| [&tag.to_le_bytes()[..], &bits.to_le_bytes(), &id.to_le_bytes()].concat()),
    );
    let acl = acl.collect::<Vec<_>>().concat();
    fs.set_xattr("/volume/deep", "system.posix_acl_default", &acl, XattrMode::Set).unwrap();
    fs.set_xattr("/volume/deep/file-2", "system.posix_acl_access", &acl, XattrMode::Set).unwrap();
    fs.set_owner("/volume/deep/file-2", Some(1234), Some(4_000_000_000)).unwrap();
    let times = |time| Times { accessed: Some(time), modified: Some(time) };
    fs.set_times("/volume/deep/file-4", times(UNIX_EPOCH - Duration::new(1 << 33, 1))).unwrap();
    fs.set_times("/volume/deep/file-5", times(UNIX_EPOCH + Duration::new(1 << 35, 999_999_999))).unwrap();
    let mut flags = fs.metadata("/volume/deep/file-6").unwrap().flags;
    flags.no_dump = true;
    fs.set_flags("/volume/deep/file-6", flags).unwrap();
}

/// What makes versions: snapshots of snapshots, clones, shared ranges, and changes on all sides.
fn share(fs: &Filesystem) {
    fs.snapshot("/volume", "/one", SnapshotOptions::new().sync(true)).unwrap();
    fs.snapshot("/volume", "/frozen", SnapshotOptions::new().read_only(true).sync(true)).unwrap();
    let file = writable(fs, "/volume/deep/file-7");
    file.write_all_at(&noise(20_000, 20), 700_000).unwrap();
    file.set_len(1_200_000).unwrap();
    fs.sync().unwrap();
    file.set_len(1_300_000).unwrap();
    fs.remove_file("/volume/deep/file-5").unwrap();
    fs.remove_dir_all("/volume/deep/er").unwrap();
    fs.write("/volume/deep/er", "a file now").unwrap();
    fs.set_xattr("/volume/deep/file-1", "user.long", "short now", XattrMode::Set).unwrap();
    fs.remove_xattr("/volume/deep/file-1", "trusted.1024").unwrap();
    fs.rename("/one/deep/file-6", "/one/moved").unwrap();
    fs.write("/one/deep/er/7", noise(9000, 21)).unwrap();
    fs.snapshot("/one", "/volume/two", SnapshotOptions::new().sync(true)).unwrap();
    writable(fs, "/volume/two/deep/file-7").allocate(0, 900_000, Allocate::Punch).unwrap();
    fs.clone_file("/frozen/deep/file-7", "/volume/clone").unwrap();
    fs.clone_file("/volume/clone", "/volume/two/clone").unwrap();
    writable(fs, "/volume/clone").write_all_at(b"changed", 77_777).unwrap();
    writable(fs, "/volume/two/clone").set_len(1_034_567).unwrap();
    let (from, to) = (fs.open("/volume/two/clone").unwrap(), fs.create("/volume/ranges").unwrap());
    from.clone_range(4096, &to, 1 << 20, 409_600).unwrap();
    from.clone_range(8192, &to, 0, 40_960).unwrap();
    to.collapse_range(8192, 4096).unwrap();
    to.insert_range(4096, 12_288).unwrap();
    fs.write("/volume/same-1", noise(200_000, 22)).unwrap();
    fs.write("/volume/same-2", noise(200_000, 22)).unwrap();
    fs.sync().unwrap();
    let same =
        fs.open("/volume/same-1").unwrap().dedupe_range(0, &writable(fs, "/volume/same-2"), 0, 200_000);
    assert_eq!(same.unwrap(), Some(200_000));
}

/// Makes a pool in a file, with all of it and at each step what a killed process would have left. Gives these files.
fn pools(dir: &Path, options: &PoolOptions) -> Vec<(&'static str, PathBuf)> {
    let path = dir.join("pool");
    let pool = options.create(&path, 64 * MIB).unwrap();
    let fs = pool.filesystem();
    fill(&fs);
    fs.sync().unwrap();
    let mut found = vec![("filled, and killed", killed(&path, "filled"))];
    share(&fs);
    fs.sync().unwrap();
    found.push(("shared, and killed", killed(&path, "shared")));
    pool.checkpoint().unwrap();
    // An unlinked file that is open is an orphan; a snapshot that nobody has synced is pending, or gone.
    let open = fs.open("/volume/ranges").unwrap();
    fs.remove_file("/volume/ranges").unwrap();
    fs.delete_subvolume("/volume/two").unwrap();
    fs.snapshot("/volume", "/pending", SnapshotOptions::new()).unwrap();
    fs.write("/volume/last", noise(50_000, 30)).unwrap();
    writable(&fs, "/volume/last").sync_all().unwrap();
    found.push(("deleted in part, and killed", killed(&path, "deleted")));
    drop(open);
    fs.delete_subvolume("/one").unwrap();
    fs.sync().unwrap();
    pool.maintain().unwrap();
    found.push(("reaped, and killed", killed(&path, "reaped")));
    drop(fs);
    Pool::close(pool).unwrap();
    found.push(("closed", path));
    found
}

// Goal: SPEC.md says all that there is to know of a pool. Method: a reader that was written from it alone, and the library, go through
// pools with one of everything, closed and killed, and see the same.
#[test]
fn a_reader_made_from_the_specification_sees_the_same() {
    if !has_python() {
        return;
    }
    for (data, metadata) in [(Profile::Single, Profile::Dup), (Profile::Dup, Profile::Single)] {
        let dir = tempfile::tempdir().unwrap();
        let options = quiet().data_profile(data).metadata_profile(metadata);
        let skipped = if data == Profile::Single { 0 } else { 4 };
        for (what, pool) in pools(dir.path(), &options).into_iter().skip(skipped) {
            assert_eq!(compare(what, &pool), "", "{what}");
        }
    }
}

// Goal: the reader takes what is left of a damaged pool, as the library does. Method: either end of the device overwritten; the first
// copies of all nodes; the data of the last batch, which is cut off then; the whole pool cut short, where there is an error and no more.
#[test]
fn a_reader_made_from_the_specification_sees_what_is_left() {
    if !has_python() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let pools = pools(dir.path(), &quiet());
    for (_, pool) in &pools[2..3] {
        let whole = fs::read(pool).unwrap();
        let copy = killed(pool, "damaged");
        overwrite(&copy, 0, &vec![0xa5; FRONT_BYTES]);
        assert!(compare("the front is lost", &copy).contains("first label"));
        // The label at the end of the pool is found though the device has become longer.
        overwrite(&copy, SLOTS, &whole[SLOTS..FRONT_BYTES]);
        overwrite(&copy, whole.len() + MIB as usize - 1, &[0]);
        assert!(compare("the first block is lost, and the device is longer", &copy).contains("first label"));
        let copy = killed(pool, "damaged");
        overwrite(&copy, whole.len() - TAIL_BYTES, &vec![0xa5; TAIL_BYTES]);
        assert_eq!(compare("the end is lost", &copy), "");
        let copy = killed(pool, "damaged");
        let mut nodes = BTreeMap::new();
        for (at, block) in whole.chunks(BLOCK).enumerate().filter(|(_, block)| block.starts_with(b"VVND")) {
            if nodes.insert(block, at).is_none() {
                overwrite(&copy, at * BLOCK, &[0; BLOCK]);
            }
        }
        assert!(nodes.len() > 10);
        assert_eq!(compare("first copies are lost", &copy), "");
    }
    let (_, last) = &pools[2];
    let copy = killed(last, "damaged");
    let (whole, wanted) = (fs::read(&copy).unwrap(), noise(50_000, 30));
    let at = whole.chunks(BLOCK).position(|block| block == &wanted[4096..8192]).unwrap();
    overwrite(&copy, at * BLOCK, &[1; BLOCK]);
    assert_eq!(compare("data of the last batch is lost", &copy), "");
    let info = String::from_utf8(reader(&copy, &["info"]).stdout).unwrap();
    assert!(info.contains("1 cut off"), "{info}");
    for len in [0, 100, 4096, 70_000, 2 << 20, 20 << 20, whole.len() - 1] {
        let copy = killed(last, "damaged");
        fs::OpenOptions::new().write(true).open(&copy).unwrap().set_len(len as u64).unwrap();
        let output = reader(&copy, &["ls", "-R"]);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), said.contains("Traceback")), (Some(1), false), "{len}: {said}");
    }
}
