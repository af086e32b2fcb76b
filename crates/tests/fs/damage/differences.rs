//! Damage in pools of many snapshots, which are looked at by that in which they differ.

use varve_format::record::held::decode_held_key;
use varve_format::record::name::decode_name_key;

use super::*;

/// A subvolume that was changed in every way between snapshots, some of which were changed, too, and have snapshots.
fn aged() -> Image {
    let f = Fixture::new(64 * MIB);
    let inner = f.fs.create_subvolume(Caller::ROOT, ROOT, b"inner", 0o755).unwrap().ino;
    let make = |dir: InodeId, name: &str| f.fs.create(Caller::ROOT, dir, name.as_bytes(), 0o644).unwrap().ino;
    let mut tops = vec![inner];
    for round in 0..6u64 {
        let mut next = Vec::new();
        for (n, top) in tops.iter().enumerate() {
            let name = |what: &str| format!("{what}{round}");
            let dir = f.fs.mkdir(Caller::ROOT, *top, name("dir").as_bytes(), 0o755).unwrap().ino;
            let file = make(dir, "file");
            f.write(file, 0, &pattern(round, 9000));
            f.fs.setxattr(file, b"user.one", &pattern(round, 700), XattrMode::Set).unwrap();
            make(*top, &name("gone"));
            f.fs.link(file, *top, name("link").as_bytes()).unwrap();
            if round > 0 {
                let before = |what: &str| format!("{what}{}", round - 1);
                let old = f.fs.lookup(*top, before("dir").as_bytes()).unwrap().ino;
                f.fs.unlink(*top, before("gone").as_bytes()).unwrap();
                let old_file = f.fs.lookup(old, b"file").unwrap().ino;
                f.fs.setxattr(old_file, b"user.two", b"another", XattrMode::Set).unwrap();
                f.fs.removexattr(old_file, b"user.one").unwrap();
                f.fs.rename(*top, before("dir").as_bytes(), dir, b"moved", RenameMode::Replace).unwrap();
                f.truncate(old_file, 100);
            }
            let place = format!("snapshot{round}-{n}");
            let taken = f.fs.snapshot(*top, ROOT, place.as_bytes(), round % 3 == 2, false).unwrap();
            if round == 1 {
                next.push(taken);
            }
        }
        tops.extend(next);
    }
    f.fs.sync().unwrap();
    f.check();
    f.fs.close().unwrap();
    Image::of(&f.device)
}

// Goal: who watches a check sees how far it is, to the end. Method: the pool with snapshots; the last stage and its numbers, and each
// stage seen from another thread is none before one seen earlier.
#[test]
fn a_check_says_how_far_it_is() {
    let image = aged();
    let progress = Arc::new(CheckProgress::default());
    let watched = progress.clone();
    let (sender, receiver) = mpsc::channel::<()>();
    let watcher = std::thread::spawn(move || {
        let mut seen = vec![];
        while receiver.try_recv() == Err(mpsc::TryRecvError::Empty) {
            let (stage, done, of) = watched.now();
            assert!(of == 0 || done <= of, "{stage:?}: {done} of {of}");
            if seen.last() != Some(&(stage as u8)) {
                seen.push(stage as u8);
            }
        }
        seen
    });
    let store = StoreOptions { cache_bytes: 1 << 20, progress: progress.clone(), ..StoreOptions::default() };
    let clock = Arc::new(TestClock(SimClock::new(1_700_000_000, 1000)));
    let options = OpenOptions { store, dirty_bytes_max: 0, clock, on_data_logged: None };
    let (fs, _) = Filesystem::open_to_check(vec![image.device.clone()], options).unwrap();
    let (stage, nodes, _) = progress.now();
    assert_eq!(stage, CheckStage::Nodes);
    let report = fs.check(true).unwrap();
    assert_eq!((report.problems.len(), report.nodes), (0, nodes));
    assert_eq!(progress.now(), (CheckStage::Data, report.data_blocks, report.data_blocks));
    assert!(report.data_blocks > 0);
    drop(sender);
    let seen = watcher.join().unwrap();
    assert!(seen.is_sorted(), "{seen:?}");
}

/// What a check finds, and how it looked.
fn look(device: &Arc<MemoryDevice>, whole: bool) -> (Vec<Problem>, varve_fs::internals::check::Looks) {
    let options = OpenOptions {
        store: StoreOptions { cache_bytes: 1 << 20, ..StoreOptions::default() },
        dirty_bytes_max: 0,
        clock: Arc::new(TestClock(SimClock::new(1_700_000_000, 1000))),
        on_data_logged: None,
    };
    let (fs, _) = Filesystem::open_to_check(vec![device.clone()], options).unwrap();
    let (report, looks) = fs.core().check_as(true, whole).unwrap();
    (report.problems, looks)
}

/// Changes one number or name in one record of a namespace; the indexes of versions stay right. Says whether it did.
fn spoil(image: &mut Image, rng: &mut Rng) -> bool {
    let tree =
        *rng.pick(&[TreeId::INODES, TreeId::INODES, TreeId::NAMES, TreeId::NAMES, TreeId::XATTRS]).unwrap();
    let entries = image.entries(tree);
    let inodes = image.entries(TreeId::INODES);
    let (key, value) = rng.pick(&entries).unwrap();
    let some_inode = InodeId(u64::from_be_bytes(rng.pick(&inodes).unwrap().0[8..16].try_into().unwrap()));
    let new = match tree {
        _ if value.is_empty() => return false,
        TreeId::INODES => {
            let Ok(mut record) = InodeRecord::decode(value) else { return false };
            match rng.below(6) {
                0 => record.links += 1,
                1 => record.size += 1,
                2 => record.parent = some_inode,
                3 => record.xattr_count += 1,
                4 => record.rdev += 1,
                _ => record.links = 0,
            }
            record.encode()
        }
        TreeId::NAMES => {
            let Ok(NameRecord::Entry { kind, ino, name, chained }) = NameRecord::decode(value) else {
                return false;
            };
            let (mut kind, mut ino, mut name) = (kind, ino, name);
            match rng.below(3) {
                0 => ino = some_inode,
                1 => name.push(b'x'),
                _ => kind = if kind == InodeKind::File { InodeKind::Directory } else { InodeKind::File },
            }
            assert!(decode_name_key(key).is_ok());
            NameRecord::Entry { kind, ino, name, chained }.encode()
        }
        _ => {
            let Ok(mut head) = XattrHead::decode(value) else { return false };
            head.name.push(b'x');
            head.encode()
        }
    };
    if new == *value {
        return false;
    }
    image.put(tree, key, &new);
    true
}

// Goal: looking at a subvolume by that in which it differs from another finds what looking at all of it finds, and costs no
// look at all of it while nothing is wrong. Method: a pool of a dozen subvolumes and snapshots, some of them changed and taken again; single
// records changed at random, whoever sees them, two at once now and then; both ways side by side.
#[test]
fn what_differs_shows_what_the_whole_shows() {
    let image = aged();
    let (problems, looks) = look(&image.device, false);
    assert_eq!(problems, []);
    // The first subvolume and the other family.
    assert_eq!(looks.whole, 2);
    assert!(looks.differences >= 10, "{looks:?}");
    // What is too much in an index hides no difference.
    let mut damaged = Image::of(&image.device);
    let held = damaged.entries(TreeId::HELD).into_iter().map(|(key, _)| key);
    let of_names = held.map(|key| {
        decode_held_key(&key).map(|(family, version, tree, place)| (family, version, tree, place.to_vec()))
    });
    let (family, version, tree, mut place) =
        of_names.flatten().find(|(_, _, tree, _)| *tree == TreeId::NAMES).expect("a version has a name");
    place[3] ^= 1;
    damaged.put(TreeId::HELD, &held_key(family, version, tree, &place), &[]);
    let (problems, seen) = look(&damaged.device, false);
    assert_eq!(problems.iter().map(|problem| problem.kind).collect::<Vec<_>>(), [Kind::HeldStray]);
    assert_eq!(seen, looks);
    let unreachable = Kind::DirectoryUnreachable.name();
    let (mut rng, mut found) = (Rng::new(5), 0);
    while found < 150 {
        let mut damaged = Image::of(&image.device);
        if !(0..1 + rng.below(2)).any(|_| spoil(&mut damaged, &mut rng)) {
            continue;
        }
        let kinds = |problems: &[Problem]| problems.iter().map(|p| p.kind.name()).collect::<BTreeSet<_>>();
        let ((by_differences, looks), (whole, _)) =
            (look(&damaged.device, false), look(&damaged.device, true));
        let (found_so, mut found_whole) = (kinds(&by_differences), kinds(&whole));
        // Where a damage that has been told of leads to in others.
        if found_so.contains(Kind::DirectoryParent.name()) && !found_so.contains(unreachable) {
            found_whole.remove(unreachable);
        }
        assert_eq!(found_so, found_whole, "{by_differences:#?} and as a whole {whole:#?}");
        assert!(looks.differences > 0 || whole.is_empty(), "{looks:?}");
        found += u64::from(!whole.is_empty());
    }
}
