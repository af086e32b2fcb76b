//! What a full pool keeps for deleting: who is refused takes nothing of it.

use super::space::full_with_a_snapshot;
use super::*;

// Goal: what only adds to a file that a snapshot shows, too, and is refused, has not made the file's record the subvolume's own: that would
// come out of what is kept for deleting. Method: a file for each call, a snapshot, and all the space taken that an ordinary request may
// have; after each refusal it is asked whose the record is, and all are removed in the end.
#[test]
fn who_is_refused_copies_no_record() {
    let f = Fixture::new(64 * MIB);
    let source = f.create(b"source");
    f.write(source, 0, &pattern(1, 16_384));
    let sub = f.fs.create_subvolume(Caller::ROOT, ROOT, b"sub", 0o755).unwrap().ino;
    let names = [
        "cut",
        "cloned",
        "deduped",
        "copied",
        "inserted",
        "collapsed",
        "there",
        "left",
        "right",
        "white",
        "out",
    ];
    let files = names.map(|name| {
        let ino = f.fs.create(Caller::ROOT, sub, name.as_bytes(), 0o644).unwrap().ino;
        if name != "copied" {
            f.write(ino, 0, &pattern(1, 16_384));
        }
        ino
    });
    let [cut, cloned, deduped, copied, inserted, collapsed, there, left, right, white, out] = files;
    f.fs.sync().unwrap();
    f.fs.snapshot(sub, ROOT, b"snapshot", true, false).unwrap();
    // The subvolume has a version of its own.
    f.fs.create(Caller::ROOT, sub, b"new", 0o644).unwrap();
    f.fs.sync().unwrap();
    let core = f.fs.core();
    let own = |ino| {
        let (change, state) = (core.change(ino).unwrap(), core.state(ino));
        let inner = state.inner.read();
        core.is_own(&change, ino, &inner).unwrap()
    };
    // Nodes that are dirty already would take a little more.
    f.fs.checkpoint().unwrap();
    f.fs.checkpoint().unwrap();
    let taken = f.take_all();
    let set = SetAttr { size: Some(16_385), ..SetAttr::default() };
    let exchange = |from: &[u8], to: &[u8], mode| f.fs.rename(sub, from, sub, to, mode);
    let whiteout = RenameMode::Whiteout { caller: Caller::ROOT, replace: true };
    let keep = Allocate::Reserve { keep_size: true };
    type Call<'a> = &'a dyn Fn() -> crate::Result<()>;
    let calls: [(&str, &[InodeId], Call<'_>); 9] = [
        ("truncate", &[cut], &|| f.fs.setattr(Caller::ROOT, cut, set).map(drop)),
        ("clone", &[cloned], &|| f.fs.clone_range(Caller::ROOT, (source, 0), (cloned, 0), 8192)),
        ("dedupe", &[deduped], &|| f.fs.dedupe_range((source, 0), (deduped, 0), 8192).map(drop)),
        ("copy", &[copied], &|| f.fs.copy_range(Caller::ROOT, (source, 0), (copied, 0), 16_384).map(drop)),
        ("insert", &[inserted], &|| f.fs.insert_range(Caller::ROOT, inserted, 4096, 4096)),
        ("collapse", &[collapsed], &|| f.fs.collapse_range(Caller::ROOT, collapsed, 4096, 4096)),
        ("allocate", &[there], &|| f.fs.fallocate(Caller::ROOT, there, 0, 4096, keep)),
        ("exchange", &[left, right], &|| exchange(b"left", b"right", RenameMode::Exchange)),
        ("whiteout", &[white, out], &|| exchange(b"white", b"out", whiteout)),
    ];
    let mut copied_by = Vec::new();
    for (what, targets, call) in calls {
        let result = call();
        assert_eq!(result.map_err(|error| error.errno()), Err(28), "{what}");
        copied_by.extend(targets.iter().any(|ino| own(*ino)).then_some(what));
    }
    assert!(copied_by.is_empty(), "refused, and has copied a record: {copied_by:?}");
    for name in names {
        f.fs.unlink(sub, name.as_bytes()).unwrap();
    }
    drop(taken);
    f.fs.sync().unwrap();
    f.check();
}

// Goal: however often somebody is refused who makes files longer that a snapshot shows, too, they can be removed and written over
// afterwards. Method: a full pool, a snapshot of many files; all that are wanted longer are refused, then as many are removed as could
// be without that.
#[test]
fn what_is_kept_is_there_after_many_refusals() {
    let (f, names) = full_with_a_snapshot(0);
    let over = f.fs.lookup(ROOT, b"big").unwrap().ino;
    f.fs.checkpoint().unwrap();
    let set = SetAttr { size: Some(1), ..SetAttr::default() };
    let mut accepted = 0;
    for name in names.clone().step_by(6) {
        match f.fs.setattr(Caller::ROOT, f.fs.lookup(ROOT, &name).unwrap().ino, set) {
            Ok(_) => accepted += 1,
            Err(error) => assert_eq!(error.errno(), 28, "{error}"),
        }
    }
    assert!(accepted < 100, "{accepted}");
    f.write(over, 4096, &[1; 4096]);
    f.fs.sync().unwrap();
    for name in names.take(500) {
        f.fs.unlink(ROOT, &name).unwrap();
    }
    f.check();
}
