//! Files that begin without a name.

use super::*;

fn nameless(f: &Fixture, parent: InodeId, linkable: bool) -> InodeId {
    let new = NewNameless { mode: 0o6666, umask: 0o027, linkable, set_gid_judged: false };
    let attr = f.fs.tmpfile(Caller { uid: 7, gid: 8 }, parent, new).unwrap();
    assert_eq!((attr.kind, attr.mode, attr.links, attr.uid, attr.gid), (FileKind::File, 0o6640, 0, 7, 8));
    attr.ino
}

// Goal: such a file is one like others but for its name, which it gets once, with all that was written to it; till then it is not
// in the count of files, and goes with its handle or the machine. Method: files of one page and of many, synced, linked, killed
// before and after that, and opened again.
#[test]
fn a_first_name() {
    for len in [100, 50_000] {
        let mut f = Fixture::new(64 * MIB);
        let dir = f.mkdir(ROOT, b"dir");
        let before = f.fs.statfs().unwrap().files;
        let data = pattern(3, len);
        let ino = nameless(&f, dir, true);
        f.write(ino, 0, &data);
        f.fs.fsync(ino).unwrap();
        assert_eq!(
            (f.read_all(ino) == data, f.list(dir).len(), f.fs.statfs().unwrap().files),
            (true, 0, before)
        );
        f.check();
        // A machine that dies takes it along.
        f.kill();
        refused(f.fs.getattr(ino), 2);
        f.fs.maintain().unwrap();
        assert_eq!(f.fs.statfs().unwrap().files, before);
        f.check();

        let ino = nameless(&f, dir, true);
        f.write(ino, 0, &data);
        let linked = f.fs.link(ino, ROOT, b"first").unwrap();
        assert_eq!((linked.ino, linked.links, linked.mode), (ino, 1, 0o6640));
        f.check();
        assert_eq!(f.fs.link(ino, dir, b"second").unwrap().links, 2);
        assert_eq!(f.fs.statfs().unwrap().files, before + 1);
        f.fs.fsync(ino).unwrap();
        f.kill();
        assert!(f.read_all(f.fs.lookup(ROOT, b"first").unwrap().ino) == data);
        f.fs.maintain().unwrap();
        assert_eq!((f.list(dir), f.fs.statfs().unwrap().files), (vec![b"second".to_vec()], before + 1));
        f.check();
        f.fs.unlink(dir, b"second").unwrap();
        f.fs.unlink(ROOT, b"first").unwrap();
        f.reopen();
        assert_eq!(f.fs.statfs().unwrap().files, before);
        f.check();
    }
}

// Goal: nobody gives a name to a file that may have none, that has had one, or that is gone, nor one in another subvolume; and
// nothing is made where nothing can be changed. Method: each.
#[test]
fn no_name_for_others() {
    let f = Fixture::new(64 * MIB);
    let home = f.fs.create_subvolume(Caller::ROOT, ROOT, b"home", 0o755).unwrap().ino;
    let snapshot = f.fs.snapshot(home, ROOT, b"snapshot", true, false).unwrap();
    let new = NewNameless { mode: 0o644, umask: 0, linkable: true, set_gid_judged: false };
    refused(f.fs.tmpfile(Caller::ROOT, snapshot, new), 30);
    let plain = f.create(b"plain");
    refused(f.fs.tmpfile(Caller::ROOT, plain, new), 20);
    let private = nameless(&f, home, false);
    refused(f.fs.link(private, home, b"name"), 2);
    let ino = nameless(&f, home, true);
    refused(f.fs.link(ino, ROOT, b"name"), 18);
    refused(f.fs.link(ino, ROOT, b"plain"), 18);
    f.fs.link(ino, home, b"name").unwrap();
    f.fs.unlink(home, b"name").unwrap();
    refused(f.fs.link(ino, home, b"name"), 2);
    let gone = nameless(&f, home, true);
    f.fs.release_inode(gone).unwrap();
    refused(f.fs.link(gone, home, b"name"), 2);
    let late = nameless(&f, home, true);
    refused(f.fs.link(late, home, &[b'n'; 256]), 36);
    f.fs.link(late, home, b"late").unwrap();
    for ino in [private, ino, late] {
        f.fs.release_inode(ino).unwrap();
    }
    f.fs.maintain().unwrap();
    assert_eq!(f.list(home), [b"late".to_vec()]);
    assert!(f.list(snapshot).is_empty());
    f.check();
}

// Goal: a snapshot shows nothing of a file without a name, whatever of it waits or lies on the device, and the file gets its name
// all the same. Method: files with data and attributes, one synced, one not, linked or let go of after a snapshot.
#[test]
fn snapshots_beside() {
    let mut f = Fixture::new(64 * MIB);
    let home = f.fs.create_subvolume(Caller::ROOT, ROOT, b"home", 0o755).unwrap().ino;
    let data = pattern(4, 20_000);
    let files = [(true, true), (true, false), (false, true), (false, false)].map(|(synced, linked)| {
        let ino = nameless(&f, home, true);
        f.fs.setxattr(ino, b"user.k", b"value", XattrMode::Set).unwrap();
        f.write(ino, 0, &data);
        if synced {
            f.fs.fsync(ino).unwrap();
        }
        (ino, linked)
    });
    let snapshot = f.fs.snapshot(home, ROOT, b"snapshot", false, false).unwrap();
    for (number, (ino, linked)) in files.into_iter().enumerate() {
        f.write(ino, 30_000, &data);
        if linked {
            f.fs.link(ino, home, format!("f{number}").as_bytes()).unwrap();
        }
        f.fs.release_inode(ino).unwrap();
    }
    f.fs.sync().unwrap();
    f.fs.maintain().unwrap();
    f.check();
    f.kill();
    assert!(f.list(snapshot).is_empty());
    assert_eq!(f.list(home), [b"f0".to_vec(), b"f2".to_vec()]);
    for name in [b"f0", b"f2"] {
        let ino = f.fs.lookup(home, name).unwrap().ino;
        let all = f.read_all(ino);
        assert!(all[..20_000] == data && all[30_000..] == data && all[20_000..30_000] == [0; 10_000]);
        assert_eq!(f.fs.getxattr(ino, b"user.k").unwrap(), b"value");
    }
    f.fs.delete_subvolume(ROOT, b"snapshot").unwrap();
    f.fs.maintain().unwrap();
    f.check();
}

// Goal: it inherits what its directory gives to all that is made there, and keeps it under its first name. Method: a directory with
// a default list and its group; before and after the link, a snapshot between them and the end of the machine.
#[test]
fn inherits() {
    let mut f = Fixture::new(64 * MIB);
    let home = f.fs.create_subvolume(Caller::ROOT, ROOT, b"home", 0o755).unwrap().ino;
    let entries: [(u16, u16, u32); 5] =
        [(1, 7, u32::MAX), (2, 6, 1000), (4, 5, u32::MAX), (0x10, 7, u32::MAX), (0x20, 1, u32::MAX)];
    let mut list = 2u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        list.extend([tag.to_le_bytes(), permissions.to_le_bytes()].concat());
        list.extend(id.to_le_bytes());
    }
    f.fs.setxattr(home, b"system.posix_acl_default", &list, XattrMode::Set).unwrap();
    let new = NewNameless { mode: 0o666, umask: 0o077, linkable: true, set_gid_judged: false };
    let attr = f.fs.tmpfile(Caller { uid: 7, gid: 8 }, home, new).unwrap();
    let ino = attr.ino;
    assert_eq!(attr.mode, 0o660, "the list counts, not the umask");
    let inherited = f.fs.getxattr(ino, b"system.posix_acl_access").unwrap();
    let snapshot = f.fs.snapshot(home, ROOT, b"snapshot", false, false).unwrap();
    f.check();
    f.fs.link(ino, home, b"file").unwrap();
    f.fs.fsync(ino).unwrap();
    f.kill();
    let found = f.fs.lookup(home, b"file").unwrap();
    assert_eq!((found.ino, found.mode), (ino, 0o660));
    assert_eq!(f.fs.getxattr(ino, b"system.posix_acl_access").unwrap(), inherited);
    assert!(f.list(snapshot).is_empty());
    f.fs.delete_subvolume(ROOT, b"snapshot").unwrap();
    f.fs.maintain().unwrap();
    f.check();
}

// Goal: all of a file can be copied into one without a name, which then gets one. Method: small and large, dirty and synced,
// compared after the link and after the machine has died.
#[test]
fn takes_a_copy() {
    for (len, synced) in [(100, true), (300_000, true), (300_000, false)] {
        let mut f = Fixture::new(64 * MIB);
        let data = pattern(6, len);
        let source = f.create(b"source");
        f.write(source, 0, &data);
        if synced {
            f.fs.sync().unwrap();
        }
        let ino = nameless(&f, ROOT, true);
        let mut copied = 0;
        while copied < len as u64 {
            let some = f.fs.copy_range(Caller::ROOT, (source, copied), (ino, copied), u64::MAX >> 1).unwrap();
            assert!(some > 0, "it ends at {copied}");
            copied += some;
        }
        f.fs.link(ino, ROOT, b"copy").unwrap();
        f.fs.sync().unwrap();
        f.write(source, 0, b"later");
        f.check();
        f.kill();
        assert!(f.read_all(f.fs.lookup(ROOT, b"copy").unwrap().ino) == data, "{len}, {synced}");
        f.check();
    }
}

// Goal: it takes the name of another in one step, with all that was written to it; what was there lives on under its other names, for
// who has it open, and in a snapshot. Method: small and large files with nothing of them logged, in place of files, a hard link, one that is
// open, a symbolic link and one that a snapshot shows; killed, and opened again; what each leads to, the counts, and a check.
#[test]
fn takes_the_place_of_another() {
    for (len, forked) in [(100, false), (50_000, false), (100, true), (50_000, true)] {
        let mut f = Fixture::new(64 * MIB);
        let home = f.fs.create_subvolume(Caller::ROOT, ROOT, b"home", 0o755).unwrap().ino;
        let (old, new) = (pattern(3, len + 5_000), pattern(4, len));
        let names = [&b"alone"[..], b"linked", b"open", b"symlink"];
        let make = |name| f.fs.create(Caller::ROOT, home, name, 0o644).unwrap().ino;
        let inodes = [make(names[0]), make(names[1]), make(names[2])];
        for ino in inodes {
            f.write(ino, 0, &old);
        }
        f.fs.symlink(Caller::ROOT, home, names[3], b"alone").unwrap();
        f.fs.link(inodes[1], home, b"other").unwrap();
        f.fs.open_inode(Caller::ROOT, inodes[2], false).unwrap();
        let snapshot = forked.then(|| f.fs.snapshot(home, ROOT, b"snapshot", true, false).unwrap());
        let before = f.fs.statfs().unwrap().files;
        for name in names {
            let ino = nameless(&f, home, true);
            f.write(ino, 0, &new);
            f.fs.link_over(ino, home, name).unwrap();
            let seen = f.fs.lookup(home, name).unwrap();
            assert_eq!((seen.ino, seen.links, seen.mode, seen.kind), (ino, 1, 0o6640, FileKind::File));
            refused(f.fs.link_over(ino, home, names[0]), 2);
            f.fs.release_inode(ino).unwrap();
            f.check();
        }
        assert!(f.read_all(inodes[2]) == old);
        assert_eq!(f.fs.getattr(inodes[2]).unwrap().links, 0);
        refused(f.fs.getattr(inodes[0]), 2);
        // One more: "linked" is a file of its own now. What a snapshot shows is counted, too.
        let counted = |f: &Fixture| f.fs.statfs().unwrap().files;
        assert!(forked || counted(&f) == before + 1);
        // The new ones have been logged before they got their names.
        f.fs.fsync(inodes[1]).unwrap();
        f.fs.fsync(home).unwrap();
        if forked {
            f.fs.sync().unwrap();
        }
        f.kill();
        for name in names {
            assert!(f.read_all(f.fs.lookup(home, name).unwrap().ino) == new, "{len} {forked}");
        }
        let other = f.fs.lookup(home, b"other").unwrap();
        assert!(other.links == 1 && f.read_all(other.ino) == old);
        f.fs.maintain().unwrap();
        assert_eq!(f.list(home).len(), 5);
        if let Some(snapshot) = snapshot {
            for name in &names[..3] {
                assert!(f.read_all(f.fs.lookup(snapshot, name).unwrap().ino) == old, "{len}");
            }
            assert_eq!(f.fs.lookup(snapshot, b"symlink").unwrap().kind, FileKind::Symlink);
            f.check();
            f.fs.delete_subvolume(ROOT, b"snapshot").unwrap();
            f.fs.maintain().unwrap();
        }
        assert_eq!(counted(&f), before + 1);
        f.check();
    }
}

// Goal: nothing takes the place of what is not there, of a directory, a subvolume, or what must not go, and nothing does that has had a name or
// may have none, or where nothing can be changed. Method: each; afterwards the file takes the one place that it may.
#[test]
fn no_place_for_others() {
    let f = Fixture::new(64 * MIB);
    let home = f.fs.create_subvolume(Caller::ROOT, ROOT, b"home", 0o755).unwrap().ino;
    let there = f.fs.create(Caller::ROOT, home, b"there", 0o644).unwrap().ino;
    f.fs.mkdir(Caller::ROOT, home, b"directory", 0o755).unwrap();
    f.fs.create_subvolume(Caller::ROOT, home, b"inner", 0o755).unwrap();
    f.create(b"outside");
    let ino = nameless(&f, home, true);
    refused(f.fs.link_over(ino, home, b"nothing"), 2);
    refused(f.fs.link_over(ino, home, b"directory"), 21);
    refused(f.fs.link_over(ino, home, b"inner"), 21);
    refused(f.fs.link_over(ino, there, b"x"), 20);
    refused(f.fs.link_over(ino, ROOT, b"outside"), 18);
    refused(f.fs.link_over(ino, home, &[b'n'; 256]), 36);
    refused(f.fs.link_over(there, home, b"there"), 2);
    refused(f.fs.link_over(home, home, b"there"), 1);
    let private = nameless(&f, home, false);
    refused(f.fs.link_over(private, home, b"there"), 2);
    for protecting in [FileFlags::IMMUTABLE, FileFlags::APPEND_ONLY] {
        for what in [there, home] {
            f.fs.set_flags(Caller::ROOT, what, protecting).unwrap();
            refused(f.fs.link_over(ino, home, b"there"), 1);
            f.fs.set_flags(Caller::ROOT, what, FileFlags::NONE).unwrap();
        }
    }
    let snapshot = f.fs.snapshot(home, ROOT, b"snapshot", true, false).unwrap();
    refused(f.fs.link_over(ino, snapshot, b"there"), 30);
    assert_eq!(f.fs.lookup(home, b"there").unwrap().ino, there);
    f.fs.link_over(ino, home, b"there").unwrap();
    assert_eq!(f.fs.lookup(home, b"there").unwrap().ino, ino);
    for ino in [ino, private] {
        f.fs.release_inode(ino).unwrap();
    }
    f.fs.maintain().unwrap();
    f.check();
}

// Goal: on a full pool it is refused or works, and what it took comes back. Method: fill a pool by such a file, let go of it.
#[test]
fn a_full_pool() {
    let f = Fixture::new(64 * MIB);
    let free = f.fs.statfs().unwrap().free_bytes;
    for _ in 0..2 {
        let ino = nameless(&f, ROOT, true);
        let data = pattern(5, MIB as usize);
        let mut offset = 0;
        let refusal = loop {
            match f.fs.write(Caller::ROOT, ino, offset, &data) {
                Ok(written) => offset += written as u64,
                Err(error) => break error,
            }
        };
        assert_eq!(refusal.errno(), 28, "{refusal}");
        assert!(offset > free / 10 * 9, "{offset} of {free}");
        f.fs.fsync(ino).unwrap();
        f.fs.release_inode(ino).unwrap();
        f.fs.sync().unwrap();
        f.fs.maintain().unwrap();
        f.check();
    }
}

// Goal: root gives away a file that it has made, before its first name, as it is (overlayfs copies files up so); nobody else does,
// nor root what has or had a name or is another's. Method: each, the owner, the group, the size or all set, by the answer, by what is
// seen later, and after a kill.
#[test]
fn given_away_before_its_name() {
    const CAPABILITY: &[u8] = b"security.capability";
    let mut f = Fixture::new(64 * MIB);
    let (root, user) = (Caller::ROOT, Caller { uid: 7, gid: 8 });
    let make = |f: &Fixture, owner: Caller, linkable: bool| {
        let new = NewNameless { mode: 0o600, umask: 0, linkable, set_gid_judged: false };
        let ino = f.fs.tmpfile(owner, ROOT, new).unwrap().ino;
        f.write(ino, 0, b"program");
        ino
    };
    let privileged = |f: &Fixture, ino: InodeId| {
        f.fs.setxattr(ino, CAPABILITY, b"x", XattrMode::Set).unwrap();
        let set = SetAttr { mode: Some(0o6755), ..SetAttr::default() };
        assert_eq!(f.fs.setattr(root, ino, set).unwrap().mode, 0o6755);
    };
    let seen = |f: &Fixture, ino: InodeId, answered: u32| {
        assert_eq!(f.fs.getattr(ino).unwrap().mode, answered);
        (answered, f.fs.getxattr(ino, CAPABILITY).is_ok())
    };
    let both = SetAttr { uid: Some(1), gid: Some(2), ..SetAttr::default() };
    let ways = [both, SetAttr { gid: None, ..both }, SetAttr { uid: None, ..both }];
    for (number, set) in ways.into_iter().enumerate() {
        let give = |f: &Fixture, caller: Caller, ino: InodeId, set: SetAttr| {
            privileged(f, ino);
            let answered = f.fs.setattr(caller, ino, set).unwrap();
            assert_eq!((answered.uid, answered.gid), (set.uid.unwrap_or(0), set.gid.unwrap_or(0)));
            seen(f, ino, answered.mode)
        };
        let (kept, taken) = ((0o6755, true), (0o755, false));
        let ino = make(&f, root, true);
        assert_eq!(give(&f, root, ino, set), kept, "{set:?}");
        // What is another's by now keeps nothing, with a name or without.
        f.fs.link(ino, ROOT, format!("copied{number}").as_bytes()).unwrap();
        assert_eq!(seen(&f, ino, f.fs.getattr(ino).unwrap().mode), kept);
        f.fs.sync().unwrap();
        f.check();
        f.kill();
        let ino = f.fs.lookup(ROOT, format!("copied{number}").as_bytes()).unwrap().ino;
        assert_eq!(seen(&f, ino, f.fs.getattr(ino).unwrap().mode), kept, "{set:?}");
        assert_eq!(f.fs.setattr(root, ino, both).unwrap().mode, 0o755, "it has a name");

        assert_eq!(give(&f, user, make(&f, root, true), set), taken, "{set:?}: not root");
        assert_eq!(give(&f, root, make(&f, root, false), set), taken, "{set:?}: it never gets a name");
        let cut = SetAttr { size: Some(3), ..set };
        assert_eq!(give(&f, root, make(&f, root, true), cut), kept, "{set:?}: it is cut");
        assert_eq!(give(&f, user, make(&f, root, true), cut), taken, "{set:?}: it is cut by another");
        let cut = SetAttr { size: Some(3), ..SetAttr::default() };
        assert_eq!(give(&f, root, make(&f, root, true), cut), kept, "cut alone");
        assert_eq!(give(&f, user, make(&f, root, true), cut), taken, "cut alone by another");
        let named = f.create(format!("named{number}").as_bytes());
        assert_eq!(give(&f, root, named, set), taken, "{set:?}: it has a name");
        f.fs.open_inode(root, named, false).unwrap();
        f.fs.unlink(ROOT, format!("named{number}").as_bytes()).unwrap();
        f.fs.setattr(root, named, SetAttr { uid: Some(0), gid: Some(0), ..SetAttr::default() }).unwrap();
        assert_eq!(give(&f, root, named, set), taken, "{set:?}: it had a name");

        let other = make(&f, user, true);
        privileged(&f, other);
        let answered = f.fs.setattr(root, other, set).unwrap().mode;
        assert_eq!(seen(&f, other, answered), taken, "{set:?}: another's");
    }
    f.check();
}
