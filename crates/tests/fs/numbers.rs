//! Numbers and generations of inodes in subvolumes, and whose they are after a deletion.

use varve_engine::TreeId;
use varve_format::record::inode::InodeRecord;

use super::hostile::forge;
use super::subvolumes::{content, file, make, snapshot};
use super::*;
use varve_fs::internals::subvolume::Slot;

// Goal: whoever gives an inode's attributes gives the same generation: the kernel takes another one for another inode, and what it had open for
// broken. Method: everything that makes an inode or changes one, in the first subvolume, another one and a snapshot of that; looked up, and
// after the pool has been opened again.
#[test]
fn generations_are_always_the_same() {
    let mut f = Fixture::new(64 * MIB);
    let sub = make(&f, ROOT, b"sub");
    let nameless = NewNameless { mode: 0o600, umask: 0, linkable: true, set_gid_judged: false };
    let snap = snapshot(&f, sub, b"snap");
    for dir in [ROOT, sub, snap] {
        let mut made = vec![
            f.fs.create(Caller::ROOT, dir, b"file", 0o644).unwrap(),
            f.fs.mkdir(Caller::ROOT, dir, b"directory", 0o755).unwrap(),
            f.fs.mknod(Caller::ROOT, dir, b"fifo", FileKind::Fifo, 0o644, 0).unwrap(),
            f.fs.symlink(Caller::ROOT, dir, b"symlink", b"target").unwrap(),
            f.fs.create_subvolume(Caller::ROOT, dir, b"subvolume", 0o755).unwrap(),
            f.fs.tmpfile(Caller::ROOT, dir, nameless).unwrap(),
        ];
        f.write(made[0].ino, 0, &pattern(1, 9000));
        made.push(f.fs.clone_file(Caller::ROOT, made[0].ino, dir, b"clone").unwrap());
        made.push(f.fs.link(made[5].ino, dir, b"nameless").unwrap());
        made.push(
            f.fs.setattr(Caller::ROOT, made[0].ino, SetAttr { size: Some(0), ..SetAttr::default() }).unwrap(),
        );
        made.push(
            f.fs.setattr(Caller::ROOT, made[0].ino, SetAttr { size: Some(9), ..SetAttr::default() }).unwrap(),
        );
        made.push(
            f.fs.setattr(Caller::ROOT, made[1].ino, SetAttr { mode: Some(0o700), ..SetAttr::default() })
                .unwrap(),
        );
        f.fs.release_inode(made[5].ino).unwrap();
        for round in 0..2 {
            for attr in &made {
                assert_eq!(
                    f.fs.getattr(attr.ino).unwrap().generation,
                    attr.generation,
                    "{round}: {:?}",
                    attr.kind
                );
            }
            for (name, at) in
                [(&b"file"[..], 0), (b"clone", 6), (b"nameless", 7), (b"directory", 1), (b"subvolume", 4)]
            {
                let found = f.fs.lookup(dir, name).unwrap();
                assert_eq!((found.ino, found.generation), (made[at].ino, made[at].generation), "{round}");
            }
            f.reopen();
        }
    }
}

// Goal: however few numbers there are, there may be many subvolumes one after the other. A deleted one's numbers become another's when nobody has
// anything of it any more: nothing in it is open, and nobody outside says that he knows it. Who comes with a number and a generation of before
// finds another generation. Method: seven slots, snapshots made and deleted, with a file kept open in one and another one known outside; numbers,
// generations and contents of each; a kill while the last one is being deleted, and the pool opened again.
#[test]
fn numbers_come_back_while_the_pool_is_open() {
    let mut f = Fixture::new(64 * MIB);
    f.fs.limit_subvolumes(8, 2);
    let sub = make(&f, ROOT, b"sub");
    file(&f, sub, b"file", &pattern(1, 9000));
    let held = snapshot(&f, sub, b"held");
    let open = f.fs.lookup(held, b"file").unwrap().ino;
    f.fs.open_inode(Caller::ROOT, open, false).unwrap();
    let known = snapshot(&f, sub, b"known");
    let mut next = 0;
    let mut use_one = |f: &Fixture| {
        next += 1;
        f.write(f.fs.lookup(sub, b"file").unwrap().ino, 0, &pattern(next, 9000));
        let made = f.fs.snapshot(sub, ROOT, b"next", false, false)?;
        let inside = f.fs.lookup(made, b"file").unwrap();
        assert!(f.read_all(inside.ino) == pattern(next, 9000));
        f.write(inside.ino, 3, b"of its own");
        f.fs.delete_subvolume(ROOT, b"next").unwrap();
        f.fs.maintain().unwrap();
        Ok::<_, FsError>((Slot::of(made).0, inside.generation))
    };
    f.fs.delete_subvolume(ROOT, b"held").unwrap();
    f.fs.delete_subvolume(ROOT, b"known").unwrap();
    f.fs.maintain().unwrap();
    let mut fresh: Vec<u32> = (0..4).map(|_| use_one(&f).unwrap().0).collect();
    assert!(matches!(use_one(&f), Err(FsError::SlotsUsedUp)), "nobody has said that they may be reused");
    f.fs.reuse_numbers(|_| false);
    f.fs.reuse_numbers(move |root| root == known);
    let (slots, mut generations): (Vec<_>, Vec<_>) = (0..40).map(|_| use_one(&f).unwrap()).unzip();
    fresh.sort_unstable();
    let mut used = slots.clone();
    used.sort_unstable();
    used.dedup();
    assert_eq!(used, fresh, "what is open or known stays");
    assert!(slots.windows(2).all(|pair| pair[0] != pair[1]), "two rest");
    generations.sort_unstable();
    generations.dedup();
    assert_eq!(generations.len(), 40);
    f.fs.release_inode(open).unwrap();
    assert!((0..8).any(|_| use_one(&f).unwrap().0 == Slot::of(held).0), "it is open no longer");
    f.check();
    // A crash finds the one or the other, each whole.
    let last = f.fs.snapshot(sub, ROOT, b"last", false, true).unwrap();
    assert!(fresh.contains(&Slot::of(last).0) || last == held);
    f.fs.delete_subvolume(ROOT, b"last").unwrap();
    f.kill();
    assert!(content(&f, f.fs.lookup(ROOT, b"last").unwrap().ino, b"file") == pattern(next, 9000));
    f.fs.delete_subvolume(ROOT, b"last").unwrap();
    f.check();
    f.reopen();
    assert!(f.read_all(f.fs.lookup(sub, b"file").unwrap().ino) == pattern(next, 9000));
    f.check();
}

// Goal: of a subvolume that is just going nothing is shown with another generation: the kernel would take what is open there for broken. Method:
// while one inode of it keeps the deletion from coming to the others they are asked for.
#[test]
fn what_is_going_shows_no_other_generation() {
    let f = Fixture::new(64 * MIB);
    let sub = make(&f, ROOT, b"sub");
    let names: Vec<Vec<u8>> = (0..40).map(|n| format!("file{n}").into_bytes()).collect();
    for name in &names {
        file(&f, sub, name, b"contents");
    }
    let snap = snapshot(&f, sub, b"snap");
    let before: Vec<Attr> = names.iter().map(|name| f.fs.lookup(snap, name).unwrap()).collect();
    let core = f.fs.core();
    let first = before.iter().min_by_key(|attr| attr.ino.0 % 16).unwrap();
    let held = core.state(first.ino);
    let held = held.inner.read();
    std::thread::scope(|scope| {
        let deleted = scope.spawn(|| f.fs.delete_subvolume(ROOT, b"snap"));
        while core.subvolumes.get(Slot::of(snap)).is_ok() {
            std::thread::yield_now();
        }
        for attr in before.iter().filter(|attr| attr.ino != first.ino) {
            match f.fs.getattr(attr.ino) {
                Ok(now) => assert_eq!(now.generation, attr.generation),
                Err(error) => assert!(matches!(error, FsError::Stale), "{error}"),
            }
        }
        drop(held);
        deleted.join().unwrap().unwrap();
    });
    f.check();
}

// Goal: a name that was found in a deleted subvolume is not found in the next one that gets its slot, where the directory has the same number.
// Method: subvolumes made and deleted until the slot comes again, each with a name of its own that is looked for.
#[test]
fn names_of_before_are_not_found_in_the_same_slot() {
    let f = Fixture::new(64 * MIB);
    f.fs.limit_subvolumes(4, 1);
    f.fs.reuse_numbers(|_| false);
    let mut names: Vec<(InodeId, Vec<u8>)> = Vec::new();
    let mut again = 0;
    for n in 0..8 {
        let sub = make(&f, ROOT, b"sub");
        for (root, name) in &names {
            again += usize::from(*root == sub);
            refused(f.fs.lookup(sub, name), 2);
            refused(f.fs.find(sub, name), 2);
        }
        let name = format!("name{n}").into_bytes();
        file(&f, sub, &name, b"contents");
        for _ in 0..2 {
            assert_eq!(f.fs.lookup(sub, &name).unwrap().size, 8);
        }
        f.fs.delete_subvolume(ROOT, b"sub").unwrap();
        refused(f.fs.lookup(sub, &name), 116);
        refused(f.fs.find(sub, &name), 116);
        names.push((sub, name));
        f.fs.maintain().unwrap();
    }
    assert!(again > 5, "{again}");
}

// Goal: a check names an inode by the number that programs see of it, also where it has no path. Method: a file of a subvolume whose record says
// one link too many.
#[test]
fn a_check_gives_the_numbers_that_programs_see() {
    let f = Fixture::new(64 * MIB);
    let sub = make(&f, ROOT, b"sub");
    let file = f.fs.create(Caller::ROOT, sub, b"file", 0o640).unwrap().ino;
    assert_ne!(varve_fs::shown_number(file), file.0);
    f.fs.sync().unwrap();
    forge(&f.fs, TreeId::INODES, |value| {
        let record = InodeRecord::decode(value).ok()?;
        (record.mode == 0o640).then(|| InodeRecord { links: 2, ..record }.encode())
    });
    let problems = f.fs.check(true).unwrap().problems;
    let problem = problems.iter().find(|problem| problem.inode.is_some()).expect("it is found");
    assert_eq!(problem.inode, Some(varve_fs::shown_number(file)), "{problems:?}");
    assert!(problem.to_string().contains(&format!("inode {} ", varve_fs::shown_number(file))), "{problem}");
}
