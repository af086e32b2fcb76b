//! Extended attributes.

use std::collections::BTreeMap;

use varve_sim::Rng;

use super::*;
use varve_fs::internals::hash::HASH_KIND_COLLIDING;

// Goal: attributes of all sizes are kept, replaced and removed whole, also when hashes collide. Method: random steps
// against a map, with kills and checks.
#[test]
fn against_a_map() {
    for kind in [HASH_KIND_SIPHASH13, HASH_KIND_COLLIDING] {
        let mut f = Fixture::with(64 * MIB, kind, MIB);
        let mut rng = Rng::new(5);
        let ino = f.create(b"f");
        let mut model: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
        for step in 0..400 {
            let name = format!("user.{}", rng.below(12)).into_bytes();
            let len = *rng.pick(&[0, 1, 1023, 1024, 1025, 5000, 20_000]).unwrap();
            let value = pattern(rng.next_u64(), len);
            match rng.below(4) {
                0 => {
                    let set = f.fs.setxattr(ino, &name, &value, XattrMode::Create);
                    assert_eq!(set.is_ok(), !model.contains_key(&name));
                    if set.is_ok() {
                        model.insert(name, value);
                    }
                }
                1 | 2 => {
                    f.fs.setxattr(ino, &name, &value, XattrMode::Set).unwrap();
                    model.insert(name, value);
                }
                _ => match f.fs.removexattr(ino, &name) {
                    Ok(()) => assert!(model.remove(&name).is_some()),
                    Err(error) => assert_eq!((error.errno(), model.contains_key(&name)), (61, false)),
                },
            }
            if step % 50 == 49 {
                f.fs.sync().unwrap();
                f.kill();
                f.check();
                let mut names = f.fs.listxattr(ino).unwrap();
                names.sort();
                assert_eq!(names, model.keys().cloned().collect::<Vec<_>>());
            }
            for (name, value) in &model {
                assert!(f.fs.getxattr(ino, name).unwrap() == *value, "step {step}");
            }
        }
        f.fs.unlink(ROOT, b"f").unwrap();
        f.fs.maintain().unwrap();
        f.check();
    }
}

// Goal: limits and namespaces are refused with their errno. Method: a table.
#[test]
fn refusals() {
    let f = Fixture::new(64 * MIB);
    let ino = f.create(b"f");
    let big = vec![1; 64 << 10];
    refused(f.fs.setxattr(ino, b"system.a", b"", XattrMode::Set), 95);
    refused(f.fs.setxattr(ino, b"unknown.a", b"", XattrMode::Set), 95);
    refused(f.fs.setxattr(ino, b"system.posix_acl_access", b"x", XattrMode::Set), 22);
    refused(f.fs.setxattr(ino, b"user.", b"", XattrMode::Set), 22);
    refused(f.fs.setxattr(ino, &[b"user.".as_slice(), &[b'x'; 251]].concat(), b"", XattrMode::Set), 34);
    refused(f.fs.setxattr(ino, b"user.a", &vec![1; (64 << 10) + 1], XattrMode::Set), 7);
    refused(f.fs.setxattr(ino, b"user.a", b"", XattrMode::Replace), 61);
    refused(f.fs.getxattr(ino, b"user.a"), 61);
    for name in [b"user.a", b"user.b", b"user.c"] {
        f.fs.setxattr(ino, name, &big, XattrMode::Set).unwrap();
    }
    refused(f.fs.setxattr(ino, b"user.d", &big, XattrMode::Set), 28);
    f.check();
    f.fs.unlink(ROOT, b"f").unwrap();
    f.fs.maintain().unwrap();
    f.check();
}

// Goal: an inode whose attributes are full is refused as that, and nobody else pays: nothing is written back, reaped or made
// durable for it. Method: what waits of another file, the end of the log, and the device's counters, around each refusal.
#[test]
fn full_of_attributes() {
    let f = Fixture::new(64 * MIB);
    let (ino, other) = (f.create(b"f"), f.create(b"other"));
    for name in [b"user.a", b"user.b", b"user.c"] {
        f.fs.setxattr(ino, name, &[1; 64 << 10], XattrMode::Set).unwrap();
    }
    f.write(other, 0, &pattern(1, 100_000));
    let state = || (f.fs.core().dirty.bytes(), f.fs.position(), f.logged.lock().len(), f.device.stats());
    let before = state();
    assert!(before.0 > 0);
    for _ in 0..3 {
        let refused = f.fs.setxattr(ino, b"user.d", &[1; 64 << 10], XattrMode::Set).unwrap_err();
        assert!(matches!(refused, FsError::AttributesFull), "{refused}");
        assert_eq!(refused.errno(), 28);
    }
    assert_eq!(format!("{before:?}"), format!("{:?}", state()));
    f.fs.removexattr(ino, b"user.a").unwrap();
    f.fs.setxattr(ino, b"user.d", &[1; 64 << 10], XattrMode::Set).unwrap();
    f.check();
}

// Goal: a new owner takes the capabilities of a file away, and leaves a directory as it is. Method: by hand.
#[test]
fn a_new_owner_and_capabilities() {
    let f = Fixture::new(64 * MIB);
    let (file, dir) = (f.create(b"f"), f.mkdir(ROOT, b"d"));
    for ino in [file, dir] {
        f.fs.setxattr(ino, b"security.capability", b"x", XattrMode::Set).unwrap();
        f.fs.setattr(Caller::ROOT, ino, SetAttr { uid: Some(5), ..SetAttr::default() }).unwrap();
    }
    refused(f.fs.getxattr(file, b"security.capability"), 61);
    assert_eq!(f.fs.getxattr(dir, b"security.capability").unwrap(), b"x");
}

// Goal: no change leaves a capability, beside those who take snapshots and log what is written, and nobody waits for ever. Method: threads
// that give their file one and then change it in one of several ways, beside one that takes snapshots and deletes them.
#[test]
fn capabilities_go_beside_snapshots() {
    const CAPABILITY: &[u8] = b"security.capability";
    let f = Fixture::with(128 * MIB, HASH_KIND_SIPHASH13, MIB);
    let sub = f.fs.create_subvolume(Caller::ROOT, ROOT, b"sub", 0o755).unwrap().ino;
    let over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (fs, over) = (&f.fs, &over);
        let writers = [b"0", b"1", b"2"].map(|name| {
            let ino = fs.create(Caller::ROOT, sub, name, 0o644).unwrap().ino;
            scope.spawn(move || {
                let mut rng = varve_sim::Rng::new(ino.0);
                for _ in 0..1_000 {
                    fs.setxattr(ino, CAPABILITY, b"all", XattrMode::Set).unwrap();
                    let (at, len) = (rng.below(60_000), rng.below(30_000) as usize + 1);
                    let size = SetAttr { size: Some(at), ..SetAttr::default() };
                    match rng.below(4) {
                        0 => fs.setattr(Caller::ROOT, ino, size).map(drop),
                        1 => fs.fallocate(Caller::ROOT, ino, at, len as u64, Allocate::Punch),
                        _ => fs.write(Caller::ROOT, ino, at, &pattern(at, len)).map(drop),
                    }
                    .unwrap();
                    refused(fs.getxattr(ino, CAPABILITY), 61);
                }
            })
        });
        scope.spawn(move || {
            while !over.load(std::sync::atomic::Ordering::Relaxed) {
                fs.snapshot(sub, ROOT, b"snapshot", true, false).unwrap();
                fs.maintain().unwrap();
                fs.delete_subvolume(ROOT, b"snapshot").unwrap();
            }
        });
        let done = writers.map(|writer| writer.join());
        over.store(true, std::sync::atomic::Ordering::Relaxed);
        for done in done {
            done.unwrap();
        }
    });
    f.fs.maintain().unwrap();
    f.check();
}
