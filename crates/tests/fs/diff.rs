//! What leads from one subvolume to another.

use super::forks::{Node, Tree};
use super::*;
use varve_fs::Change;

/// All steps, `changes_max` a page. `None`: the two are not related.
pub(super) fn whole(f: &Fixture, old: InodeId, new: InodeId, changes_max: usize) -> Option<Vec<Change>> {
    let (mut cursor, mut all) = (Vec::new(), Vec::new());
    loop {
        let page = match f.fs.diff(old, new, &cursor, changes_max) {
            Err(FsError::Unrelated) => return None,
            page => page.unwrap(),
        };
        for (paths, root) in [(&page.old_paths, old), (&page.new_paths, new)] {
            for (inode, path) in paths {
                assert_eq!(walk(f, root, path), *inode, "a path of the page");
            }
        }
        for change in &page.changes {
            let (old_path, new_path) = match change {
                Change::Unlinked { directory, .. } => (Some(directory), None),
                Change::Linked { directory: inode, .. }
                | Change::Resized { inode, .. }
                | Change::Data { inode, .. }
                | Change::Attributes { inode, .. }
                | Change::XattrSet { inode, .. }
                | Change::XattrRemoved { inode, .. }
                | Change::Flags { inode, .. } => (None, Some(inode)),
                Change::Created { .. } | Change::Deleted { .. } => (None, None),
            };
            assert!(old_path.is_none_or(|wanted| page.old_paths.iter().any(|(inode, _)| inode == wanted)));
            assert!(new_path.is_none_or(|wanted| page.new_paths.iter().any(|(inode, _)| inode == wanted)));
        }
        all.extend(page.changes);
        let Some(next) = page.next else {
            assert!(all.is_sorted_by_key(turn), "{:?}", all.iter().map(turn).collect::<Vec<_>>());
            return Some(all);
        };
        assert!(cursor < next, "the cursor goes on: {cursor:?} {next:?}");
        cursor = next;
    }
}

/// Which of the groups a change is in that come one after the other.
fn turn(change: &Change) -> u8 {
    match change {
        Change::Created { .. } => 0,
        Change::Unlinked { .. } => 1,
        Change::Linked { .. } => 2,
        Change::Resized { .. }
        | Change::Data { .. }
        | Change::Attributes { .. }
        | Change::XattrSet { .. }
        | Change::XattrRemoved { .. } => 3,
        Change::Flags { .. } | Change::Deleted { .. } => 4,
    }
}

/// The number, without the slot, of what a path below a root leads to.
fn walk(f: &Fixture, root: InodeId, path: &[u8]) -> u64 {
    let names = path.split(|byte| *byte == b'/').filter(|name| !name.is_empty());
    names.fold(root, |at, name| f.fs.lookup(at, name).unwrap().ino).0 & ((1 << 43) - 1)
}

/// Does the steps one after the other, as a receiver would: each must be possible when it comes.
pub(super) fn apply(f: &Fixture, mut tree: Tree, new: InodeId, changes: &[Change]) -> Tree {
    for change in changes {
        match change {
            Change::Created { inode, kind, .. } => {
                let node = Node { directory: *kind == FileKind::Directory, ..Node::default() };
                assert!(tree.nodes.insert(*inode, node).is_none(), "{change:?}");
            }
            Change::Unlinked { directory, name, inode, kind } => {
                assert_eq!(tree.names.remove(&(*directory, name.clone())), Some(*inode), "{change:?}");
                assert_eq!(tree.nodes[inode].directory, *kind == FileKind::Directory);
            }
            Change::Linked { directory, name, inode, .. } => {
                assert!(tree.nodes[directory].directory && tree.nodes.contains_key(inode), "{change:?}");
                assert_eq!(tree.names.insert((*directory, name.clone()), *inode), None, "{change:?}");
            }
            Change::Resized { inode, size } => {
                tree.nodes.get_mut(inode).unwrap().data.resize(*size as usize, 0);
            }
            Change::Data { inode, offset, len, zeros } => {
                let full = InodeId(new.0 & !((1 << 43) - 1) | inode);
                let bytes = f.fs.read(full, *offset, *len as usize).unwrap();
                assert_eq!(bytes.len() as u64, *len, "{change:?}");
                assert!(!zeros || bytes.iter().all(|byte| *byte == 0), "{change:?}");
                let range = *offset as usize..(*offset + *len) as usize;
                tree.nodes.get_mut(inode).unwrap().data[range].copy_from_slice(&bytes);
            }
            Change::Attributes { inode, .. } | Change::Flags { inode, .. } => {
                assert!(tree.nodes.contains_key(inode), "{change:?}");
            }
            Change::XattrSet { inode, name, value, .. } => {
                let attributes = &mut tree.nodes.get_mut(inode).unwrap().attributes;
                let old = attributes.insert(name.clone(), value.clone());
                assert_ne!(old.as_ref(), Some(value), "{change:?}");
            }
            Change::XattrRemoved { inode, name, .. } => {
                assert!(tree.nodes.get_mut(inode).unwrap().attributes.remove(name).is_some(), "{change:?}");
            }
            Change::Deleted { inode, .. } => {
                assert!(!tree.names.values().any(|left| left == inode), "{change:?}");
                tree.nodes.remove(inode).unwrap();
            }
        }
    }
    tree
}

// Goal: each kind of change is told as what it is, a directory's rename as one, and nothing else. Method: one of each between
// a snapshot and its source, written out.
#[test]
fn each_kind() {
    let f = Fixture::new(64 * MIB);
    let sub = f.fs.create_subvolume(Caller::ROOT, ROOT, b"sub", 0o755).unwrap().ino;
    let make = |dir: InodeId, name: &[u8]| f.fs.create(Caller::ROOT, dir, name, 0o644).unwrap().ino;
    let dir = f.mkdir(sub, b"dir");
    let (inside, gone, kept) = (make(dir, b"inside"), make(sub, b"gone"), make(sub, b"kept"));
    f.write(kept, 0, &pattern(1, 10 * 4096));
    f.write(inside, 0, &pattern(2, 100));
    f.fs.setxattr(kept, b"user.a", b"old", XattrMode::Set).unwrap();
    f.fs.setxattr(kept, b"user.b", b"same", XattrMode::Set).unwrap();
    let old = f.fs.snapshot(sub, ROOT, b"old", true, false).unwrap();
    assert_eq!(whole(&f, old, sub, 10), Some(vec![]));
    assert_eq!(whole(&f, old, old, 10), Some(vec![]));

    let local = |ino: InodeId| ino.0 & ((1 << 43) - 1);
    f.fs.rename(sub, b"dir", sub, b"moved", RenameMode::Replace).unwrap();
    f.fs.unlink(sub, b"gone").unwrap();
    f.write(kept, 5 * 4096 + 10, b"few bytes");
    f.fs.setxattr(kept, b"user.a", b"new", XattrMode::Set).unwrap();
    let mode = SetAttr { mode: Some(0o600), ..SetAttr::default() };
    f.fs.setattr(Caller::ROOT, inside, mode).unwrap();
    let fresh = make(dir, b"fresh");
    f.write(fresh, 0, b"small");
    let changes = whole(&f, old, sub, 100).unwrap();
    let of = |ino: InodeId| {
        let wanted = local(ino);
        let named = |change: &&Change| match change {
            Change::Created { inode, .. }
            | Change::Unlinked { inode, .. }
            | Change::Linked { inode, .. }
            | Change::Resized { inode, .. }
            | Change::Data { inode, .. }
            | Change::Attributes { inode, .. }
            | Change::XattrSet { inode, .. }
            | Change::XattrRemoved { inode, .. }
            | Change::Flags { inode, .. }
            | Change::Deleted { inode, .. } => *inode == wanted,
        };
        changes.iter().filter(named).cloned().collect::<Vec<_>>()
    };
    let (directory, file) = (FileKind::Directory, FileKind::File);
    let root = local(sub);
    let name = |name: &[u8]| name.to_vec();
    let times = |ino: InodeId| Some(f.fs.getattr(ino).unwrap().mtime);
    let mtime = |ino: InodeId| Change::Attributes {
        inode: local(ino),
        kind: f.fs.getattr(ino).unwrap().kind,
        mode: None,
        uid: None,
        gid: None,
        mtime: times(ino),
    };
    let inode = local(dir);
    assert_eq!(
        of(dir),
        [
            Change::Unlinked { directory: root, name: name(b"dir"), inode, kind: directory },
            Change::Linked { directory: root, name: name(b"moved"), inode, kind: directory },
            mtime(dir),
        ]
    );
    let inode = local(gone);
    assert_eq!(
        of(gone),
        [
            Change::Unlinked { directory: root, name: name(b"gone"), inode, kind: file },
            Change::Deleted { inode, kind: file },
        ]
    );
    let inode = local(kept);
    assert_eq!(
        of(kept),
        [
            Change::Data { inode, offset: 5 * 4096, len: 4096, zeros: false },
            mtime(kept),
            Change::XattrSet { inode, kind: file, name: name(b"user.a"), value: name(b"new") },
        ]
    );
    let inode = local(inside);
    let chmod =
        Change::Attributes { inode, kind: file, mode: Some(0o600), uid: None, gid: None, mtime: None };
    assert_eq!(of(inside), [chmod]);
    let inode = local(fresh);
    assert_eq!(
        of(fresh),
        [
            Change::Created { inode, kind: file, rdev: 0 },
            Change::Linked { directory: local(dir), name: name(b"fresh"), inode, kind: file },
            Change::Resized { inode, size: 5 },
            Change::Data { inode, offset: 0, len: 5, zeros: false },
            Change::Attributes {
                inode,
                kind: file,
                mode: Some(0o644),
                uid: Some(0),
                gid: Some(0),
                mtime: times(fresh)
            },
        ]
    );
    assert_eq!(of(sub), [mtime(sub)]);
    // And back.
    assert_eq!(
        whole(&f, sub, old, 1).unwrap().len(),
        changes.len() - 2,
        "a file has fewer steps to go than to come"
    );
    // What never was one cannot be compared, and what is no subvolume neither.
    let other = f.fs.create_subvolume(Caller::ROOT, ROOT, b"other", 0o755).unwrap().ino;
    refused(f.fs.diff(old, other, &[], 10), 22);
    refused(f.fs.diff(old, dir, &[], 10), 22);
}

// Goal: a change of flags is told, alone or beside others, as the last of its inode, and flags that are there from the beginning
// are. Method: flags given, taken and left as they are on a file, a directory and the root; a new file with some, and one without.
#[test]
fn flags_are_told() {
    let f = Fixture::new(64 * MIB);
    let sub = f.fs.create_subvolume(Caller::ROOT, ROOT, b"sub", 0o755).unwrap().ino;
    let make = |name: &[u8]| f.fs.create(Caller::ROOT, sub, name, 0o644).unwrap().ino;
    let set = |ino: InodeId, flags: FileFlags| f.fs.set_flags(Caller::ROOT, ino, flags).unwrap();
    let (given, taken, left) = (make(b"given"), make(b"taken"), make(b"left"));
    let dir = f.mkdir(sub, b"dir");
    set(taken, FileFlags::IMMUTABLE);
    set(left, FileFlags::IMMUTABLE);
    let old = f.fs.snapshot(sub, ROOT, b"old", true, false).unwrap();
    let written = make(b"written");
    f.write(written, 0, b"x");
    set(given, FileFlags::IMMUTABLE | FileFlags::NO_DUMP);
    set(taken, FileFlags::NONE);
    // There and back: its record is another one, and says the same but for its time.
    set(left, FileFlags::NONE);
    set(left, FileFlags::IMMUTABLE);
    set(dir, FileFlags::ALL);
    make(b"plain");
    set(written, FileFlags::APPEND_ONLY);
    set(sub, FileFlags::DURABLE);
    let changes = whole(&f, old, sub, 3).unwrap();
    let local = |ino: InodeId| ino.0 & ((1 << 43) - 1);
    let told = |ino: InodeId, flags: FileFlags| {
        let kind = f.fs.getattr(ino).unwrap().kind;
        Change::Flags { inode: local(ino), kind, flags }
    };
    let last: Vec<Change> = changes[changes.len() - 5..].to_vec();
    let expected = [
        told(sub, FileFlags::DURABLE),
        told(given, FileFlags::IMMUTABLE | FileFlags::NO_DUMP),
        told(taken, FileFlags::NONE),
        told(dir, FileFlags::ALL),
        told(written, FileFlags::APPEND_ONLY),
    ];
    assert_eq!(last, expected);
    assert_eq!(changes.iter().filter(|change| matches!(change, Change::Flags { .. })).count(), 5);
}

// Goal: what is new has all its attributes, also where the older side has them of a file without a name, which it does not show. Method: a
// file that is named after a snapshot, and one that is removed while it is open before the next: from each snapshot to the other,
// pages of one step and of many; the list that it inherits, short and long values.
#[test]
fn attributes_of_files_without_names_are_told() {
    let f = Fixture::new(64 * MIB);
    let sub = f.fs.create_subvolume(Caller::ROOT, ROOT, b"sub", 0o755).unwrap().ino;
    let dir = f.mkdir(sub, b"dir");
    let mut list = 2u32.to_le_bytes().to_vec();
    for (tag, id) in [(1u16, u32::MAX), (2, 5), (4, u32::MAX), (0x10, u32::MAX), (0x20, u32::MAX)] {
        list.extend([tag.to_le_bytes(), 7u16.to_le_bytes()].concat());
        list.extend(id.to_le_bytes());
    }
    f.fs.setxattr(dir, varve_fs::internals::acl::DEFAULT, &list, XattrMode::Set).unwrap();
    let more = |ino: InodeId| {
        for (name, len) in [(&b"user.short"[..], 10), (b"user.long", 10_000), (b"user.later", 20)] {
            f.fs.setxattr(ino, name, &pattern(3, len), XattrMode::Set).unwrap();
        }
    };
    let gone = f.fs.create(Caller::ROOT, dir, b"gone", 0o644).unwrap().ino;
    f.fs.setxattr(gone, varve_fs::internals::acl::ACCESS, &list, XattrMode::Set).unwrap();
    more(gone);
    let new = NewNameless { mode: 0o644, umask: 0, linkable: true, set_gid_judged: false };
    let named = f.fs.tmpfile(Caller::ROOT, dir, new).unwrap().ino;
    f.write(named, 0, b"contents");
    more(named);
    let a = f.fs.snapshot(sub, ROOT, b"a", true, false).unwrap();
    f.fs.setxattr(named, b"user.later", b"another", XattrMode::Set).unwrap();
    f.fs.link(named, dir, b"named").unwrap();
    f.fs.open_inode(Caller::ROOT, gone, false).unwrap();
    f.fs.unlink(dir, b"gone").unwrap();
    f.fs.removexattr(gone, b"user.later").unwrap();
    let b = f.fs.snapshot(sub, ROOT, b"b", true, false).unwrap();
    for (old, new, name) in [(a, b, &b"named"[..]), (b, a, b"gone")] {
        let ino = f.fs.lookup(f.fs.lookup(new, b"dir").unwrap().ino, name).unwrap().ino;
        let mut wanted: Vec<_> = f.fs.listxattr(ino).unwrap();
        wanted.sort();
        assert_eq!(wanted.len(), 4);
        for changes_max in [1, 100] {
            let of = |change: Change| match change {
                Change::XattrSet { inode, name, value, .. } => {
                    assert_eq!(
                        (inode, &value),
                        (ino.0 & ((1 << 43) - 1), &f.fs.getxattr(ino, &name).unwrap())
                    );
                    Some(name)
                }
                Change::XattrRemoved { .. } => panic!("{change:?}"),
                _ => None,
            };
            let mut told: Vec<_> =
                whole(&f, old, new, changes_max).unwrap().into_iter().filter_map(of).collect();
            told.sort();
            assert_eq!(told, wanted, "{}", String::from_utf8_lossy(name));
        }
    }
}

// Goal: a page looks at so many places and no more, also where there is nothing to say of them. Method: another mode for many files,
// which is said in a later phase; the first page ends in the first one, and all of them say what there is.
#[test]
fn a_page_looks_at_so_many_places() {
    const FILES: usize = 10_000;
    let f = Fixture::new(128 * MIB);
    let sub = f.fs.create_subvolume(Caller::ROOT, ROOT, b"sub", 0o755).unwrap().ino;
    let make = |i: usize| f.fs.create(Caller::ROOT, sub, format!("{i}").as_bytes(), 0o644).unwrap().ino;
    let files: Vec<_> = (0..FILES).map(make).collect();
    let old = f.fs.snapshot(sub, ROOT, b"old", true, false).unwrap();
    for ino in files {
        f.fs.setattr(Caller::ROOT, ino, SetAttr { mode: Some(0o600), ..SetAttr::default() }).unwrap();
    }
    for changes_max in [100, 20_000] {
        let page = f.fs.diff(old, sub, &[], changes_max).unwrap();
        let next = page.next.expect("there are more");
        assert_eq!((page.changes.len(), next[0]), (0, 0), "still among what is new");
        let changes = whole(&f, old, sub, changes_max).unwrap();
        assert_eq!(changes.len(), FILES);
    }
}

/// Names that the pages of a diff pass, but for the last page, and how many of its changes have a path.
fn names_passed(f: &Fixture, old: InodeId, new: InodeId, changes_max: usize) -> (u64, usize) {
    let (mut cursor, mut looks, mut paths) = (Vec::new(), 0, 0);
    loop {
        let page = f.fs.diff(old, new, &cursor, changes_max).unwrap();
        paths += page.new_paths.len();
        let Some(next) = page.next else { break };
        looks = f.fs.diff_looks();
        cursor = next;
    }
    assert_eq!(f.fs.diff_looks(), 0, "nothing is kept of a diff that has ended");
    (looks, paths)
}

// Goal: a diff passes the names of a directory a few times at most, however many pages it takes to say what was changed in there, also where that
// lies in many directories, and also beside another diff. Method: all files of a directory are written, and one in each of many directories
// beside each other; names that are passed, counted; paths are those that a look at each finds.
#[test]
fn names_are_passed_once() {
    const FILES: usize = 10_000;
    let f = Fixture::new(256 * MIB);
    let sub = f.fs.create_subvolume(Caller::ROOT, ROOT, b"sub", 0o755).unwrap().ino;
    let (large, many) = (f.mkdir(sub, b"large"), f.mkdir(sub, b"many"));
    let make = |dir: InodeId, name: &str| f.fs.create(Caller::ROOT, dir, name.as_bytes(), 0o644).unwrap().ino;
    let files: Vec<_> = (0..FILES).map(|i| make(large, &i.to_string())).collect();
    let old = f.fs.snapshot(sub, ROOT, b"old", true, false).unwrap();
    let write = |ino: InodeId| f.write(ino, 0, b"x");
    files.iter().copied().for_each(write);
    let new = f.fs.snapshot(sub, ROOT, b"new", true, false).unwrap();
    let (looks, paths) = names_passed(&f, old, new, 1000);
    assert!(paths >= FILES);
    assert!((FILES as u64..3 * FILES as u64).contains(&looks), "{looks} names");
    // Whoever leaves off in the middle, and who changes something between two pages, gets what is there.
    let half = f.fs.diff(old, sub, &[], 1000).unwrap();
    let mut cursor = half.next.unwrap();
    while f.fs.diff_looks() == 0 {
        cursor = f.fs.diff(old, sub, &cursor, 1000).unwrap().next.unwrap();
    }
    for (i, ino) in files.iter().enumerate() {
        f.fs.rename(
            large,
            i.to_string().as_bytes(),
            many,
            format!("moved{i}").as_bytes(),
            RenameMode::Replace,
        )
        .unwrap();
        write(*ino);
    }
    loop {
        let page = f.fs.diff(old, sub, &cursor, 1000).unwrap();
        assert!(page.new_paths.iter().all(|(inode, path)| walk(&f, sub, path) == *inode));
        match page.next {
            Some(next) => cursor = next,
            None => break,
        }
    }
    whole(&f, new, sub, 3000).unwrap();
    // One file in each of many directories, and those in one: their names are passed once, too.
    let (shelf, dirs) = (f.mkdir(sub, b"shelf"), 10_000);
    let dirs: Vec<_> = (0..dirs).map(|i| f.mkdir(shelf, i.to_string().as_bytes())).collect();
    let files: Vec<_> = dirs.iter().map(|dir| make(*dir, "file")).collect();
    let old = f.fs.snapshot(sub, ROOT, b"older", true, false).unwrap();
    files.iter().copied().for_each(write);
    let (looks, paths) = names_passed(&f, old, sub, 1000);
    assert!(paths >= dirs.len() && (20_000..80_000).contains(&looks), "{looks} names, {paths} paths");
}

// Goal: names of files that went or moved are passed a few times at most, too: pages ask for those in any order. Method: all files of a
// directory are moved to another, get a second name, and lose the one that their records name, or the other; then files each in a directory of
// its own lose a name that they have beside it; names that are passed, counted; paths are those that a look at each finds.
#[test]
fn names_that_went_are_passed_once() {
    const FILES: usize = 5_000;
    let f = Fixture::new(256 * MIB);
    let sub = f.fs.create_subvolume(Caller::ROOT, ROOT, b"sub", 0o755).unwrap().ino;
    let snapshot = |name: &str| f.fs.snapshot(sub, ROOT, name.as_bytes(), true, false).unwrap();
    let (a, b) = (f.mkdir(sub, b"a"), f.mkdir(sub, b"b"));
    let names: Vec<_> = (0..FILES).map(|i| i.to_string().into_bytes()).collect();
    let make = |dir: InodeId, name: &[u8]| f.fs.create(Caller::ROOT, dir, name, 0o644).unwrap().ino;
    let files: Vec<_> = names.iter().map(|name| make(a, name)).collect();
    let first = snapshot("first");
    names.iter().for_each(|name| f.fs.rename(a, name, b, name, RenameMode::Replace).unwrap());
    let moved = snapshot("moved");
    files.iter().zip(&names).for_each(|(ino, name)| assert!(f.fs.link(*ino, a, name).is_ok()));
    let both = snapshot("both");
    names.iter().for_each(|name| f.fs.unlink(b, name).unwrap());
    let last = snapshot("last");
    let steps = [
        ("moved", first, moved),
        ("named again", moved, both),
        ("one name went", both, last),
        ("the other went", both, moved),
        ("named again as before", last, both),
        ("moved back", moved, last),
    ];
    let check = |what: &str, old: InodeId, new: InodeId, looks_max: usize| {
        whole(&f, old, new, 3000).unwrap();
        let (looks, _) = names_passed(&f, old, new, 1000);
        assert!(looks < looks_max as u64, "{what}: {looks} names");
    };
    steps.into_iter().for_each(|(what, old, new)| check(what, old, new, 3 * FILES));
    let shelf = f.mkdir(sub, b"shelf");
    for name in &names[..FILES / 2] {
        let file = make(f.mkdir(shelf, name), b"file");
        f.fs.link(file, b, name).unwrap();
    }
    let older = snapshot("older");
    names[..FILES / 2].iter().for_each(|name| f.fs.unlink(b, name).unwrap());
    let newer = snapshot("newer");
    check("another name went", older, newer, 4 * FILES);
    check("another name came", newer, older, 4 * FILES);
}
