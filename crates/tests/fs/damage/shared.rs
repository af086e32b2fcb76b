//! Damage of blocks that several files have.

use super::*;

// Goal: of blocks that lie side by side and are damaged, each file is named for its own. Method: forty files of one block, read
// together by the check; those of every third are spoilt, and two next to each other.
#[test]
fn neighbours_are_told_apart() {
    let f = Fixture::new(64 * MIB);
    let names: Vec<String> = (0..40).map(|n| format!("file{n}")).collect();
    for (n, name) in names.iter().enumerate() {
        let file = f.create(name.as_bytes());
        f.write(file, 0, &pattern(n as u64, BLOCK_BYTES));
    }
    f.fs.sync().unwrap();
    let address = |name: &String| {
        let file = f.fs.lookup(ROOT, name.as_bytes()).unwrap().ino;
        f.fs.map(file, 0, 1).unwrap().pieces[0].address.expect("it has data")
    };
    let addresses: Vec<u64> = names.iter().map(address).collect();
    let beside = addresses.windows(2).filter(|pair| pair[0].abs_diff(pair[1]) == BLOCK_BYTES as u64).count();
    assert!(beside > 30, "they do not lie side by side: {addresses:?}");
    f.fs.close().unwrap();
    let image = Image::of(&f.device);
    let spoilt: BTreeSet<usize> = (0..40).filter(|n| n % 3 == 0 || *n == 16).collect();
    spoilt.iter().for_each(|n| image.write(PoolAddr(addresses[*n]), &[0x5a; BLOCK_BYTES]));
    let problems = check(&image.device);
    assert!(problems.iter().all(|problem| problem.kind == Kind::DataUnreadable), "{problems:?}");
    let named: BTreeSet<String> = problems
        .into_iter()
        .map(|problem| String::from_utf8(problem.path.expect("a path")).unwrap())
        .collect();
    assert_eq!(named, spoilt.iter().map(|n| format!("/{}", names[*n])).collect());
}

// Goal: of a damaged block every file is named that sees it, in whatever subvolume and at whatever place, and none that does not;
// of very many, some, and how many more. Method: a file with a clone, a range of it in another file and at a second place of its own, and
// snapshots, in one of which the block was written again, and in another of which the file was removed; one block of it is spoilt.
#[test]
fn all_who_share_a_damaged_block_are_named() {
    let f = Fixture::new(64 * MIB);
    let block = BLOCK_BYTES as u64;
    let inner = f.fs.create_subvolume(Caller::ROOT, ROOT, b"inner", 0o755).unwrap().ino;
    let file = f.fs.create(Caller::ROOT, inner, b"file", 0o644).unwrap().ino;
    f.write(file, 0, &pattern(1, 16 * BLOCK_BYTES));
    f.fs.clone_file(Caller::ROOT, file, ROOT, b"clone").unwrap();
    let other = f.create(b"other");
    f.write(other, 0, &pattern(2, 10 * BLOCK_BYTES));
    f.fs.clone_range(Caller::ROOT, (file, block), (other, 4 * block), 3 * block).unwrap();
    f.fs.clone_range(Caller::ROOT, (file, 2 * block), (file, 12 * block), block).unwrap();
    for name in [&b"same"[..], b"changed", b"removed"] {
        f.fs.snapshot(inner, ROOT, name, false, false).unwrap();
    }
    let of = |name: &[u8]| f.fs.lookup(f.fs.lookup(ROOT, name).unwrap().ino, b"file").unwrap().ino;
    f.write(of(b"changed"), 2 * block, &pattern(3, BLOCK_BYTES));
    f.fs.unlink(f.fs.lookup(ROOT, b"removed").unwrap().ino, b"file").unwrap();
    f.fs.sync().unwrap();
    let map = f.fs.map(file, 2 * block, 1).unwrap();
    let address = map.pieces[0].address.expect("it has data") + (2 * block - map.pieces[0].offset);
    let spoilt = |f: &Fixture| {
        f.fs.close().unwrap();
        let image = Image::of(&f.device);
        image.write(PoolAddr(address), &[0x5a; BLOCK_BYTES]);
        let problems = check(&image.device);
        assert!(problems.len() == 1 && problems[0].kind == Kind::DataUnreadable, "{problems:?}");
        problems.into_iter().next().unwrap()
    };
    let mut f = f;
    let problem = spoilt(&f);
    let named: BTreeSet<(String, (u64, u64))> = problem
        .files
        .iter()
        .map(|file| (String::from_utf8(file.path.clone().expect("it has a path")).unwrap(), file.bytes))
        .collect();
    let at = |n: u64| (n * block, (n + 1) * block);
    let expected = [
        ("/changed/file", at(12)),
        ("/clone", at(2)),
        ("/inner/file", at(2)),
        ("/inner/file", at(12)),
        ("/other", at(5)),
        ("/same/file", at(2)),
        ("/same/file", at(12)),
    ];
    assert_eq!(named, expected.map(|(path, bytes)| (path.to_owned(), bytes)).into(), "{problem:?}");
    assert_eq!((problem.files_omitted, problem.files_uncounted), (0, false));
    let first = &problem.files[0];
    assert_eq!(
        (problem.inode, &problem.path, problem.bytes),
        (Some(first.inode), &first.path, Some(first.bytes))
    );
    for (path, (from, to)) in expected {
        assert!(problem.text.contains(&format!("{path}, bytes {from} to {to}")), "{}", problem.text);
    }

    f.reopen();
    for n in 0..20 {
        f.fs.clone_file(Caller::ROOT, file, ROOT, format!("more{n}").as_bytes()).unwrap();
    }
    let problem = spoilt(&f);
    assert_eq!(problem.files.len(), Problem::FILES_MAX);
    // Of each clone two ranges, as of the file.
    assert_eq!(problem.files.len() as u64 + problem.files_omitted, 7 + 40);
    assert!(problem.text.contains("; and 31 more)"), "{}", problem.text);
}
