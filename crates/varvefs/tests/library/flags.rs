//! Flags of chattr, owners of what is open, and a copy that is kept up to date with both.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use varvefs::{
    Allocate, Change, FileType, Filesystem, Flags, OpenOptions, Place, Reason, SnapshotOptions, Times,
    XattrMode,
};

use crate::{MIB, assert_sound, fresh, names, quiet};

fn with(change: impl Fn(&mut Flags)) -> Flags {
    let mut flags = Flags::default();
    change(&mut flags);
    flags
}

fn immutable() -> Flags {
    with(|flags| flags.immutable = true)
}

fn append_only() -> Flags {
    with(|flags| flags.append_only = true)
}

// Goal: what is immutable or only added to can be freed again, by path and by handle, and is what it was until then. Method: either flag
// set in both ways on a file; each verb that it forbids, with its reason; cleared, and the verbs once more.
#[test]
fn protected_and_freed_again() {
    type Try = (&'static str, fn(&Filesystem) -> varvefs::Result<()>);
    let tries: [Try; 6] = [
        ("cut", |fs| fs.set_len("/dir/file", 1)),
        ("chmod", |fs| fs.set_permissions("/dir/file", 0o600)),
        ("attribute", |fs| fs.set_xattr("/dir/file", "user.a", "b", XattrMode::Set)),
        ("rename", |fs| fs.rename("/dir/file", "/moved").and_then(|()| fs.rename("/moved", "/dir/file"))),
        ("remove", |fs| fs.remove_file("/dir/file")),
        ("remove all", |fs| fs.remove_dir_all("/dir")),
    ];
    for (flags, by_handle) in
        [(immutable(), false), (immutable(), true), (append_only(), false), (append_only(), true)]
    {
        let pool = quiet().in_memory(64 * MIB).unwrap();
        let fs = pool.filesystem();
        fs.create_dir("/dir").unwrap();
        fs.write("/dir/file", "twelve bytes").unwrap();
        let mut open = OpenOptions::new().write(true).open(&fs, "/dir/file").unwrap();
        let set = |flags| {
            if by_handle {
                fs.open("/dir/file").unwrap().set_flags(flags).unwrap();
            } else {
                fs.set_flags("/dir/file", flags).unwrap();
            }
            assert_eq!(fs.metadata("/dir/file").unwrap().flags, flags);
        };
        set(flags);
        for (what, change) in tries {
            let error = change(&fs).expect_err(what);
            assert_eq!(error.reason(), &Reason::NotPermitted, "{what}: {error}");
        }
        let error = open.write_all(b"x").unwrap_err().downcast::<varvefs::Error>().unwrap();
        assert_eq!(error.reason(), &Reason::NotPermitted);
        assert_eq!(fs.read("/dir/file").unwrap(), b"twelve bytes");
        set(Flags::default());
        open.write_all(b"x").unwrap();
        for (what, change) in tries {
            if what == "remove all" {
                fs.write("/dir/file", "again").unwrap();
            }
            change(&fs).unwrap_or_else(|error| panic!("{what}: {error}"));
        }
        assert_eq!(names(&fs, "/"), [""; 0]);
        drop(open);
        assert_sound(&pool);
    }
}

// Goal: a file whose flags forbid it is not opened to write. Method: each flag and each way to open.
#[test]
fn flags_refuse_at_opening() {
    let fs = fresh();
    let cases = [
        (with(|flags| flags.no_dump = true), [true; 4]),
        (append_only(), [true, false, false, true]),
        (immutable(), [true, false, false, false]),
    ];
    for (n, (flags, opens)) in cases.into_iter().enumerate() {
        let path = format!("/{n}");
        fs.write(&path, b"x").unwrap();
        fs.set_flags(&path, flags).unwrap();
        let ways = [
            OpenOptions::new().read(true).clone(),
            OpenOptions::new().read(true).write(true).create(true).clone(),
            OpenOptions::new().write(true).truncate(true).clone(),
            OpenOptions::new().append(true).clone(),
        ];
        for (way, opens) in ways.iter().zip(opens) {
            match way.open(&fs, &path) {
                Ok(_) => assert!(opens, "{flags:?}: {way:?}"),
                Err(error) => assert!(!opens && *error.reason() == Reason::NotPermitted, "{error}"),
            }
        }
    }
}

// Goal: each flag is set alone, and what can have none, or not this one, says so. Method: all flags on a directory, one by one and
// together; a file, a link to it, a fifo, and a file in a read-only snapshot.
#[test]
fn what_has_which_flags() {
    let fs = fresh();
    fs.create_subvolume("/dir").unwrap();
    let each: [fn(&mut Flags); 6] = [
        |flags| flags.immutable = true,
        |flags| flags.append_only = true,
        |flags| flags.no_dump = true,
        |flags| flags.no_access_time = true,
        |flags| flags.durable = true,
        |flags| flags.durable_names = true,
    ];
    let all = with(|flags| each.iter().for_each(|set| set(flags)));
    for flags in each.iter().map(with).chain([all, Flags::default()]) {
        fs.set_flags("/dir", flags).unwrap();
        assert_eq!(fs.metadata("/dir").unwrap().flags, flags);
    }
    fs.write("/dir/file", "").unwrap();
    fs.symlink("/dir/file", "/link").unwrap();
    fs.create_node("/fifo", FileType::Fifo, 0o600, 0).unwrap();
    fs.snapshot("/dir", "/frozen", SnapshotOptions::new().read_only(true)).unwrap();
    let no_dump = with(|flags| flags.no_dump = true);
    fs.set_flags("/link", no_dump).unwrap();
    assert_eq!(fs.metadata("/dir/file").unwrap().flags, no_dump);
    let refused = |path: &str, flags| fs.set_flags(path, flags).unwrap_err().reason().clone();
    assert_eq!(refused("/dir/file", with(|flags| flags.durable_names = true)), Reason::NotSupported);
    assert_eq!(refused("/fifo", no_dump), Reason::NotSupported);
    assert_eq!(refused("/frozen/file", no_dump), Reason::ReadOnlySubvolume);
    assert_eq!(refused("/none", no_dump), Reason::NotFound);
}

// Goal: the owner of what is open is changed by its handle, wherever its name is. Method: a file that is renamed, and a directory.
#[test]
fn owners_by_handle() {
    let fs = fresh();
    fs.write("/a", "x").unwrap();
    fs.set_permissions("/a", 0o4755).unwrap();
    fs.create_dir("/dir").unwrap();
    let (file, dir) = (fs.open("/a").unwrap(), fs.open("/dir").unwrap());
    fs.rename("/a", "/b").unwrap();
    file.set_owner(Some(7), None).unwrap();
    file.set_owner(None, Some(8)).unwrap();
    dir.set_owner(Some(9), Some(10)).unwrap();
    let owner = |path: &str| fs.metadata(path).map(|it| (it.user, it.group, it.mode)).unwrap();
    assert_eq!(owner("/b"), (7, 8, 0o755));
    assert_eq!(owner("/dir"), (9, 10, 0o755));
}

// Goal: a subvolume in which something is immutable is not removed as a directory is, by a single step past it, and goes when that is
// freed. Method: immutable files at its top and below, another subvolume beside; each is freed and removal tried again.
#[test]
fn a_subvolume_with_immutable_files_is_removed_when_they_are_freed() {
    let pool = quiet().in_memory(64 * MIB).unwrap();
    let fs = pool.filesystem();
    fs.create_dir("/tree").unwrap();
    for name in ["/tree/sub", "/tree/plain"] {
        fs.create_subvolume(name).unwrap();
        fs.create_dir(format!("{name}/below")).unwrap();
        for file in ["file", "below/kept", "below/file"] {
            fs.write(format!("{name}/{file}"), "contents").unwrap();
        }
    }
    let kept = ["/tree/sub/below/kept", "/tree/sub/file"];
    kept.iter().for_each(|path| fs.set_flags(path, immutable()).unwrap());
    for path in kept {
        for tree in ["/tree/sub", "/tree"] {
            assert_eq!(fs.remove_dir_all(tree).unwrap_err().reason(), &Reason::NotPermitted, "{tree}");
        }
        assert_eq!(fs.read(path).unwrap(), b"contents");
        fs.set_flags(path, Flags::default()).unwrap();
    }
    fs.remove_dir_all("/tree").unwrap();
    assert_eq!(names(&fs, "/"), [""; 0]);
    assert_eq!(fs.subvolumes().unwrap().len(), 1);
    assert_sound(&pool);
}

/// What waits for a name in a copy.
const HELD: &str = ".held";

/// Does to `copy`, which is as the older one is, what leads from there to `newer`: each change when it comes.
fn follow(fs: &Filesystem, changes: impl Iterator<Item = Change>, newer: &Path, copy: &Path) {
    let held = |inode: u64| copy.join(HELD).join(inode.to_string());
    let at = |place: &Place| match place.within {
        Some(directory) => held(directory).join(&place.path),
        None => copy.join(&place.path),
    };
    let waits = |inode| fs.symlink_metadata(held(inode)).is_ok();
    fs.create_dir(copy.join(HELD)).unwrap();
    let mut of_names = true;
    for change in changes {
        let is_named =
            matches!(change, Change::Created { .. } | Change::Unlinked { .. } | Change::Linked { .. });
        if of_names && !is_named {
            fs.remove_dir_all(copy.join(HELD)).unwrap();
            of_names = false;
        }
        match &change {
            Change::Created { inode, file_type, rdev } => match file_type {
                FileType::Directory => fs.create_dir(held(*inode)).unwrap(),
                // What it says is read where it has a name.
                FileType::Symlink => {}
                kind => fs.create_node(held(*inode), *kind, 0o600, *rdev).unwrap(),
            },
            Change::Unlinked { inode, place, .. } if waits(*inode) => fs.remove_file(at(place)).unwrap(),
            Change::Unlinked { inode, place, .. } => fs.rename(at(place), held(*inode)).unwrap(),
            Change::Linked { inode, file_type: FileType::Directory, place, .. } => {
                fs.rename_no_replace(held(*inode), at(place)).unwrap();
            }
            Change::Linked { inode, file_type, path, place, original, .. } => {
                if *file_type == FileType::Symlink && original.is_none() && !waits(*inode) {
                    fs.symlink(fs.read_link(newer.join(path)).unwrap(), held(*inode)).unwrap();
                }
                let original = original.as_ref().map_or_else(|| held(*inode), at);
                fs.hard_link(original, at(place)).unwrap();
            }
            Change::Resized { path, len, .. } => fs.set_len(copy.join(path), *len).unwrap(),
            Change::Data { path, offset, len, zeros, .. } => {
                let file = OpenOptions::new().write(true).open(fs, copy.join(path)).unwrap();
                if *zeros {
                    file.allocate(*offset, *len, Allocate::Punch).unwrap();
                } else {
                    let mut bytes = vec![0; *len as usize];
                    let count = fs.open(newer.join(path)).unwrap().read_at(&mut bytes, *offset).unwrap();
                    file.write_all_at(&bytes[..count], *offset).unwrap();
                }
            }
            Change::Attributes { path, mode, uid, gid, modified, .. } => {
                let path = copy.join(path);
                let is_link = fs.symlink_metadata(&path).unwrap().is_symlink();
                fs.set_link_owner(&path, *uid, *gid).unwrap();
                if let Some(mode) = mode.filter(|_| !is_link) {
                    fs.set_permissions(&path, mode).unwrap();
                }
                fs.set_link_times(&path, Times { modified: *modified, ..Times::default() }).unwrap();
            }
            Change::XattrSet { path, name, value, .. } => {
                fs.set_link_xattr(copy.join(path), name, value, XattrMode::Set).unwrap();
            }
            Change::XattrRemoved { path, name, .. } => fs.remove_link_xattr(copy.join(path), name).unwrap(),
            Change::Flags { path, flags, .. } => fs.set_flags(copy.join(path), *flags).unwrap(),
            Change::Deleted { inode, .. } => assert!(!waits(*inode)),
            other => panic!("unknown: {other:?}"),
        }
    }
    if of_names {
        fs.remove_dir_all(copy.join(HELD)).unwrap();
    }
}

/// Everything below `root` that a copy of it has, too.
fn tree(fs: &Filesystem, root: &Path) -> Vec<String> {
    let (mut all, mut ahead) = (Vec::new(), vec![PathBuf::new()]);
    while let Some(here) = ahead.pop() {
        for entry in fs.read_dir(root.join(&here)).unwrap() {
            let below = here.join(entry.unwrap().file_name());
            let path = root.join(&below);
            let it = fs.symlink_metadata(&path).unwrap();
            let mut xattrs: Vec<_> = fs.list_link_xattrs(&path).unwrap();
            xattrs.sort();
            let values: Vec<_> =
                xattrs.iter().map(|name| fs.get_link_xattr(&path, name).unwrap().unwrap()).collect();
            let contents = match it.file_type {
                FileType::File => fs.read(&path).unwrap(),
                FileType::Symlink => fs.read_link(&path).unwrap().into_os_string().into_encoded_bytes(),
                _ => Vec::new(),
            };
            let attributes = (it.file_type, it.mode, it.user, it.group, it.links, it.len, it.device);
            all.push(format!(
                "{below:?}: {attributes:?} {:?} {:?} {xattrs:?} {values:?} {contents:?}",
                it.flags, it.modified
            ));
            if it.is_dir() {
                ahead.push(below);
            }
        }
    }
    all.sort();
    all
}

// Goal: what `diff` tells can all be done through the library, flags too, so that a copy is what the newer one is. Method: a tree with each
// kind of file and of change, immutable ones among them; its changes done to a writable snapshot of what it was; the two compared.
#[test]
fn a_copy_follows_a_diff() {
    let pool = quiet().in_memory(64 * MIB).unwrap();
    let fs = pool.filesystem();
    fs.create_subvolume("/o").unwrap();
    fs.create_dir_all("/o/dir/below").unwrap();
    for name in ["/o/sealed", "/o/opened", "/o/gone", "/o/moved", "/o/dir/log", "/o/dir/below/still"] {
        fs.write(name, vec![1; 20_000]).unwrap();
    }
    fs.set_flags("/o/opened", immutable()).unwrap();
    fs.set_flags("/o/dir/below/still", immutable()).unwrap();
    fs.set_xattr("/o/moved", "user.old", "x", XattrMode::Set).unwrap();
    let frozen = SnapshotOptions::new().read_only(true);
    fs.snapshot("/o", "/before", frozen).unwrap();
    fs.snapshot("/o", "/copy", SnapshotOptions::new()).unwrap();

    fs.set_flags("/o/opened", Flags::default()).unwrap();
    fs.write("/o/opened", "short").unwrap();
    fs.rename("/o/moved", "/o/dir/moved").unwrap();
    fs.remove_xattr("/o/dir/moved", "user.old").unwrap();
    fs.remove_file("/o/gone").unwrap();
    let sealed = OpenOptions::new().write(true).open(&fs, "/o/sealed").unwrap();
    sealed.write_all_at(b"new", 5000).unwrap();
    sealed.allocate(8192, 4096, Allocate::Punch).unwrap();
    sealed.set_owner(Some(7), Some(8)).unwrap();
    sealed.set_permissions(0o640).unwrap();
    sealed
        .set_times(Times { modified: Some(UNIX_EPOCH + Duration::from_secs(5)), ..Times::default() })
        .unwrap();
    sealed.set_flags(immutable()).unwrap();
    fs.create_dir("/o/dir/new").unwrap();
    fs.write("/o/dir/new/first", vec![3; 100_000]).unwrap();
    fs.hard_link("/o/dir/new/first", "/o/second").unwrap();
    fs.set_xattr("/o/second", "user.new", "y", XattrMode::Set).unwrap();
    fs.symlink("sealed", "/o/link").unwrap();
    fs.set_link_owner("/o/link", Some(9), None).unwrap();
    fs.create_node("/o/node", FileType::CharDevice, 0o600, 0x103).unwrap();
    fs.set_flags("/o/dir/log", append_only()).unwrap();
    fs.set_flags("/o/dir", with(|flags| (flags.no_dump, flags.durable_names) = (true, true))).unwrap();
    fs.set_flags("/o/dir/new", immutable()).unwrap();
    fs.snapshot("/o", "/after", frozen).unwrap();

    // The only one that was immutable and has changed.
    fs.set_flags("/copy/opened", Flags::default()).unwrap();
    let changes: Vec<_> = fs.diff("/before", "/after").unwrap().map(Result::unwrap).collect();
    let flags = changes.iter().filter(|change| matches!(change, Change::Flags { .. })).count();
    assert_eq!(flags, 5, "{changes:#?}");
    follow(&fs, changes.into_iter(), Path::new("/after"), Path::new("/copy"));
    let (copy, after) = (tree(&fs, Path::new("/copy")), tree(&fs, Path::new("/after")));
    assert_eq!(copy.len(), 12);
    assert_eq!(copy, after);
    assert_sound(&pool);
}

/// The numbers, in an order that is all its own.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) % end.max(1) as u64) as usize
    }
    fn one<'a>(&mut self, of: &'a [PathBuf]) -> &'a Path {
        &of[self.below(of.len())]
    }
}

/// All paths below `root`; those of directories apart, the root first.
fn paths(fs: &Filesystem, root: &Path) -> (Vec<PathBuf>, Vec<PathBuf>) {
    let (mut directories, mut others, mut at) = (vec![root.to_owned()], Vec::new(), 0);
    while let Some(here) = directories.get(at).cloned() {
        for entry in fs.read_dir(&here).unwrap() {
            let path = here.join(entry.unwrap().file_name());
            let is_dir = fs.symlink_metadata(&path).unwrap().is_dir();
            if is_dir { &mut directories } else { &mut others }.push(path);
        }
        at += 1;
    }
    (directories, others)
}

/// Changes something below `root`. What is not possible changes nothing.
fn disturb(fs: &Filesystem, root: &Path, random: &mut Random, step: usize) {
    let (directories, others) = paths(fs, root);
    // Few names, so that one is often given again.
    let fresh = random.one(&directories).join(random.below(12).to_string());
    let all: Vec<PathBuf> = directories[1..].iter().chain(&others).cloned().collect();
    let file = |random: &mut Random| {
        let path = others.get(random.below(others.len()))?;
        fs.symlink_metadata(path).unwrap().is_file().then_some(path)
    };
    match random.below(20) {
        0..=3 => drop(fs.create_dir(&fresh)),
        4 | 5 => drop(fs.write(&fresh, vec![step as u8; random.below(20_000)])),
        6 => drop(fs.symlink(format!("to {step}"), &fresh)),
        7 => drop(fs.create_node(&fresh, FileType::Fifo, 0o600, 0)),
        _ if all.is_empty() => {}
        8..=10 => drop(fs.rename(random.one(&all), &fresh)),
        11 => drop(fs.exchange(random.one(&all), random.one(&all))),
        12 => drop(fs.remove_dir_all(random.one(&all))),
        13 => {
            // Out of what is removed.
            let gone = random.one(&directories).to_owned();
            if gone != root {
                let (within, _) = paths(fs, &gone);
                drop(fs.rename(random.one(&within), root.join(format!("saved {step}"))));
                drop(fs.remove_dir_all(&gone));
            }
        }
        14 if !others.is_empty() => drop(fs.remove_file(random.one(&others))),
        15 | 16 if !others.is_empty() => drop(fs.hard_link(random.one(&others), &fresh)),
        17 => drop(fs.set_link_xattr(
            random.one(&all),
            format!("user.{}", step % 3),
            [step as u8],
            XattrMode::Set,
        )),
        18 => drop(fs.set_link_owner(random.one(&all), Some(step as u32), None)),
        _ => {
            if let Some(path) = file(random) {
                let file = OpenOptions::new().write(true).open(fs, path).unwrap();
                file.write_all_at(&[step as u8; 700], random.below(60_000) as u64).unwrap();
                if step.is_multiple_of(3) {
                    file.allocate(4096 * random.below(10) as u64, 8192, Allocate::Punch).unwrap();
                }
                if step.is_multiple_of(4) {
                    file.set_len(random.below(60_000) as u64).unwrap();
                }
            }
        }
    }
}

/// Which names in `root` lead to the same file.
fn same(fs: &Filesystem, root: &Path) -> Vec<Vec<PathBuf>> {
    let mut groups = std::collections::BTreeMap::<u64, Vec<PathBuf>>::new();
    for path in paths(fs, root).1 {
        let inode = fs.symlink_metadata(&path).unwrap().inode;
        groups.entry(inode).or_default().push(path.strip_prefix(root).unwrap().to_owned());
    }
    let mut groups: Vec<_> = groups.into_values().collect();
    groups.iter_mut().for_each(|group| group.sort());
    groups.sort();
    groups
}

/// A tree that `change` changes, and a copy that follows.
fn followed(what: &str, make: impl Fn(&Filesystem, &Path), change: impl Fn(&Filesystem, &Path)) {
    let pool = quiet().in_memory(64 * MIB).unwrap();
    let fs = pool.filesystem();
    let root = Path::new("/o");
    fs.create_subvolume(root).unwrap();
    make(&fs, root);
    let frozen = SnapshotOptions::new().read_only(true);
    fs.snapshot(root, "/before", frozen).unwrap();
    fs.snapshot(root, "/copy", SnapshotOptions::new()).unwrap();
    change(&fs, root);
    fs.snapshot(root, "/after", frozen).unwrap();
    let changes = fs.diff("/before", "/after").unwrap().map(Result::unwrap);
    follow(&fs, changes, Path::new("/after"), Path::new("/copy"));
    let (copy, after) = (tree(&fs, Path::new("/copy")), tree(&fs, Path::new("/after")));
    assert_eq!(copy, after, "{what}");
    assert_eq!(same(&fs, Path::new("/copy")), same(&fs, Path::new("/after")), "{what}");
    assert_sound(&pool);
}

// Goal: each change of names can be done when it comes, at the place that it says, also where a directory on the way has lost its name or
// gets it later, and a further link to an old file. Method: those cases, one by one.
#[test]
fn names_are_where_changes_say() {
    type Do = fn(&Filesystem, &Path);
    let make: Do = |fs, root| {
        fs.create_dir_all(root.join("d/e/f")).unwrap();
        for name in ["d/x", "d/e/y", "d/e/f/z", "other"] {
            fs.write(root.join(name), name).unwrap();
        }
        fs.hard_link(root.join("d/x"), root.join("d/e/x too")).unwrap();
        fs.symlink("leads", root.join("d/link")).unwrap();
    };
    let cases: [(&str, Do); 8] = [
        ("removed with what is in it", |fs, root| fs.remove_dir_all(root.join("d")).unwrap()),
        ("moved away, and a name below removed", |fs, root| {
            fs.rename(root.join("d"), root.join("moved")).unwrap();
            fs.remove_file(root.join("moved/e/f/z")).unwrap();
            fs.remove_file(root.join("moved/x")).unwrap();
        }),
        ("moved below a new one, and a name below made", |fs, root| {
            fs.create_dir(root.join("new")).unwrap();
            fs.rename(root.join("d"), root.join("new/d")).unwrap();
            fs.write(root.join("new/d/e/f/made"), "made").unwrap();
        }),
        ("saved from what is removed", |fs, root| {
            fs.rename(root.join("d/e/f"), root.join("f")).unwrap();
            fs.remove_dir_all(root.join("d")).unwrap();
        }),
        ("turned inside out", |fs, root| {
            fs.rename(root.join("d/e/f"), root.join("f")).unwrap();
            fs.rename(root.join("d/e"), root.join("f/e")).unwrap();
            fs.rename(root.join("d"), root.join("f/e/d")).unwrap();
        }),
        ("a file in the place of a directory", |fs, root| {
            fs.remove_dir_all(root.join("d")).unwrap();
            fs.rename(root.join("other"), root.join("d")).unwrap();
        }),
        ("further links", |fs, root| {
            fs.create_dir(root.join("links")).unwrap();
            for (at, name) in ["d/x", "d/link", "other", "d/e/f/z"].iter().enumerate() {
                fs.hard_link(root.join(name), root.join(format!("links/{at}"))).unwrap();
            }
            fs.remove_file(root.join("d/x")).unwrap();
            fs.rename(root.join("d"), root.join("links/d")).unwrap();
        }),
        ("all links but one gone", |fs, root| fs.remove_file(root.join("d/x")).unwrap()),
    ];
    for (what, change) in cases {
        followed(what, make, change);
    }
}

// Goal: the same of anything. Method: trees made by chance and changed by chance.
#[test]
fn copies_follow_random_changes() {
    for seed in 0..60 {
        let steps = |fs: &Filesystem, root: &Path, from: u64, count: usize| {
            let mut random = Random(seed * 2 + from);
            (0..count).for_each(|step| disturb(fs, root, &mut random, step));
        };
        followed(
            &format!("seed {seed}"),
            |fs, root| steps(fs, root, 0, 60),
            |fs, root| steps(fs, root, 1, 10 + seed as usize),
        );
    }
}

// Goal: the flags that a link has from its directory are not told as a change, which by its path would be done to what it leads to. Method:
// a link made in a directory whose flags its contents take over, to an immutable file; the changes done to a copy.
#[test]
fn flags_of_links_are_no_changes() {
    let pool = quiet().in_memory(64 * MIB).unwrap();
    let fs = pool.filesystem();
    fs.create_subvolume("/o").unwrap();
    fs.create_dir("/o/dir").unwrap();
    fs.set_flags("/o/dir", with(|flags| flags.no_dump = true)).unwrap();
    fs.write("/o/sealed", "kept").unwrap();
    fs.set_flags("/o/sealed", immutable()).unwrap();
    fs.snapshot("/o", "/before", SnapshotOptions::new().read_only(true)).unwrap();
    fs.snapshot("/o", "/copy", SnapshotOptions::new()).unwrap();
    fs.symlink("../sealed", "/o/dir/link").unwrap();
    assert!(fs.symlink_metadata("/o/dir/link").unwrap().flags.no_dump, "it has its directory's");
    fs.snapshot("/o", "/after", SnapshotOptions::new().read_only(true)).unwrap();
    let changes: Vec<_> = fs.diff("/before", "/after").unwrap().map(Result::unwrap).collect();
    assert!(!changes.iter().any(|change| matches!(change, Change::Flags { .. })), "{changes:#?}");
    follow(&fs, changes.into_iter(), Path::new("/after"), Path::new("/copy"));
    assert_eq!(fs.metadata("/copy/dir/link").unwrap().flags, immutable());
}
