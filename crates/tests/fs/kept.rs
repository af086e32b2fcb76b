//! What a full pool keeps for deleting: who is refused takes nothing of it.

use varve_fs::internals::core::Owning;

use super::space::full_with_a_snapshot;
use super::*;

const CAPABILITY: &[u8] = b"security.capability";

/// The files of `sub` are a snapshot's, too, the subvolume has a version of its own, and all the space is taken that an ordinary request may have.
fn inherited_on_a_full_pool(f: &Fixture, sub: InodeId) -> Vec<Reservation> {
    f.fs.sync().unwrap();
    f.fs.snapshot(sub, ROOT, b"snapshot", true, false).unwrap();
    f.fs.create(Caller::ROOT, sub, b"new", 0o644).unwrap();
    f.fs.sync().unwrap();
    // Nodes that are dirty already would take a little more.
    f.fs.checkpoint().unwrap();
    f.fs.checkpoint().unwrap();
    f.take_all()
}

/// Whether the record of `ino` is its subvolume's own.
fn is_own(f: &Fixture, ino: InodeId) -> bool {
    let core = f.fs.core();
    let (change, state) = (core.change(ino).unwrap(), core.state(ino));
    let inner = state.inner.read();
    core.is_own(&change, ino, &inner).unwrap()
}

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
        "same",
        "emptied",
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
        if !["copied", "emptied"].contains(&name) {
            f.write(ino, 0, &pattern(1, 16_384));
        }
        ino
    });
    let [same, emptied, cut, cloned, deduped, copied, inserted, collapsed, there, left, right, white, out] =
        files;
    let taken = inherited_on_a_full_pool(&f, sub);
    let own = |ino| is_own(&f, ino);
    let size = |size| SetAttr { size: Some(size), ..SetAttr::default() };
    let exchange = |from: &[u8], to: &[u8], mode| f.fs.rename(sub, from, sub, to, mode);
    let whiteout = RenameMode::Whiteout { caller: Caller::ROOT, replace: true };
    let keep = Allocate::Reserve { keep_size: true };
    type Call<'a> = &'a dyn Fn() -> varve_fs::internals::Result<()>;
    let calls: [(&str, &[InodeId], Call<'_>); 12] = [
        ("the same size", &[same], &|| f.fs.setattr(Caller::ROOT, same, size(16_384)).map(drop)),
        ("O_TRUNC", &[emptied], &|| f.fs.open_inode(Caller::ROOT, emptied, true)),
        ("truncate", &[cut], &|| f.fs.setattr(Caller::ROOT, cut, size(16_385)).map(drop)),
        ("clone", &[cloned], &|| f.fs.clone_range(Caller::ROOT, (source, 0), (cloned, 0), 8192)),
        ("dedupe", &[deduped], &|| f.fs.dedupe_range((source, 0), (deduped, 0), 8192).map(drop)),
        ("copy", &[copied], &|| f.fs.copy_range(Caller::ROOT, (source, 0), (copied, 0), 16_384).map(drop)),
        ("insert", &[inserted], &|| f.fs.insert_range(Caller::ROOT, inserted, 4096, 4096)),
        ("collapse", &[collapsed], &|| f.fs.collapse_range(Caller::ROOT, collapsed, 4096, 4096)),
        ("allocate", &[there], &|| f.fs.fallocate(Caller::ROOT, there, 0, 4096, keep)),
        ("punch", &[there], &|| f.fs.fallocate(Caller::ROOT, there, 65_536, 4096, Allocate::Punch)),
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
    // What would free something, had nobody else it, is none of these.
    f.truncate(cut, 16_383);
    f.truncate(same, 0);
    assert!(own(cut) && own(same));
    for name in names {
        f.fs.unlink(sub, name.as_bytes()).unwrap();
    }
    drop(taken);
    f.fs.sync().unwrap();
    f.check();
}

/// On a full pool, of whose files a snapshot shows many: what `attempt` does to each of those is refused, but to a few. Then something is
/// written over, before which `own` has its turn with that file, and as many are removed as could be without all that.
fn what_is_kept_is_there_after(
    attempt: impl Fn(&Fixture, InodeId) -> varve_fs::internals::Result<()>,
    own: impl FnOnce(&Fixture, InodeId),
) {
    let (f, names) = full_with_a_snapshot(0);
    let over = f.fs.lookup(ROOT, b"big").unwrap().ino;
    f.fs.checkpoint().unwrap();
    let mut accepted = 0;
    for name in names.clone().step_by(6) {
        match attempt(&f, f.fs.lookup(ROOT, &name).unwrap().ino) {
            Ok(()) => accepted += 1,
            Err(error) => assert_eq!(error.errno(), 28, "{error}"),
        }
    }
    own(&f, over);
    f.write(over, 4096, &[1; 4096]);
    f.fs.sync().unwrap();
    for name in names.take(500) {
        f.fs.unlink(ROOT, &name).unwrap();
    }
    f.check();
    assert!(accepted < 100, "{accepted}");
}

// Goal: however often somebody is refused who makes files longer that a snapshot shows, too, they can be removed and written over
// afterwards. Method: all that are wanted longer are refused on a full pool.
#[test]
fn what_is_kept_is_there_after_many_refusals() {
    let set = SetAttr { size: Some(1), ..SetAttr::default() };
    what_is_kept_is_there_after(|f, ino| f.fs.setattr(Caller::ROOT, ino, set).map(drop), |_, _| ());
}

// Goal: the same for who sets the size that such files have: it frees nothing, and each takes a record. Method: as before, with O_TRUNC of the
// empty files; then the size that a file of the subvolume's own has, which takes no record: it marks the times, and after it all goes on.
#[test]
fn what_is_kept_is_there_after_many_cuts_of_nothing() {
    let cut = |f: &Fixture, ino: InodeId| {
        f.fs.open_inode(Caller::ROOT, ino, true)?;
        f.fs.release_inode(ino)
    };
    what_is_kept_is_there_after(cut, |f, own| {
        let before = f.fs.getattr(own).unwrap();
        f.truncate(own, before.size);
        let after = f.fs.getattr(own).unwrap();
        assert!(after.mtime > before.mtime && after.ctime > before.ctime, "{before:?} {after:?}");
    });
}

// Goal: the same for who punches holes where such files have nothing. Method: as before; then a file of the subvolume's own, which takes no record.
#[test]
fn what_is_kept_is_there_after_many_punches_of_nothing() {
    let punch = |f: &Fixture, ino: InodeId| f.fs.fallocate(Caller::ROOT, ino, 4096, 1 << 20, Allocate::Punch);
    what_is_kept_is_there_after(punch, |f, own| {
        let size = f.fs.getattr(own).unwrap().size;
        f.fs.fallocate(Caller::ROOT, own, size.next_multiple_of(4096), 4096, Allocate::Punch).unwrap();
    });
}

/// Writes every second page of a file, whose extents then fill about so many nodes to the last entry. Gives, for each of these, where a page
/// between two others is.
fn scattered(f: &Fixture, ino: InodeId, nodes: u64) -> impl Fn(u64) -> u64 + use<> {
    const EXTENTS: u64 = 172;
    let data = pattern(1, 4096);
    (0..nodes * EXTENTS).for_each(|n| f.write(ino, n * 8192, &data));
    f.fs.sync().unwrap();
    f.fs.checkpoint().unwrap();
    f.fs.checkpoint().unwrap();
    |n| (n * EXTENTS * 2 + 101) * 4096
}

/// A full pool on which no more may be removed beside a snapshot: others have taken all there is, and of what is kept all but the quarter (of
/// what does not float) that removals leave, and `less` blocks. `pages` pages of a file wait, each in a node of its own but for the first,
/// of which `near` lie in one.
struct Squeezed<At> {
    f: Fixture,
    ino: InodeId,
    /// Where each page is.
    odd: At,
    /// Bytes that were unused before, by the bitmap and by the books.
    unused: (u64, u64),
    taken: Vec<Reservation>,
    kept: Reservation,
}

fn squeezed(pages: u64, less: u64, near: u64) -> Squeezed<impl Fn(u64) -> u64> {
    let f = Fixture::new(128 * MIB);
    let sub = f.fs.create_subvolume(Caller::ROOT, ROOT, b"sub", 0o755).unwrap().ino;
    let ino = f.fs.create(Caller::ROOT, sub, b"scattered", 0o644).unwrap().ino;
    let far = scattered(&f, ino, pages);
    let odd = move |n| if n < near { (2 * n + 1) * 4096 } else { far(n) };
    f.fs.snapshot(ROOT, ROOT, b"snapshot", true, false).unwrap();
    let own = f.create(b"own");
    f.write(own, 0, &[1; 1 << 20]);
    f.fs.sync().unwrap();
    f.fs.checkpoint().unwrap();
    f.fs.checkpoint().unwrap();
    let unused = (f.unused_bytes(), f.fs.space().free_bytes);
    (0..pages).for_each(|n| f.write(ino, odd(n), &pattern(2 + n, 4096)));
    let taken = f.take_all();
    let store = &f.fs.core().store;
    let all = f.fs.space().protected_bytes / 4096;
    let left = (all - store.float_blocks()) / 4 - less;
    let kept = store.reserve_again(all - left, 0, 0).unwrap().unwrap();
    assert_eq!(f.fs.core().dirty.bytes(), pages * 4096);
    Squeezed { f, ino, odd, unused, taken, kept }
}

// Goal: scattered pages that were accepted are logged on a pool that removals beside a snapshot have left a quarter of what is kept,
// however many nodes they divide. Method: a file of every second page, whose entries fill some 64 nodes to 128; a page between two others
// is written in each, and waits. What has been refused where less was left keeps its nodes; all is synced and read, and what was set
// aside for nodes and not needed is there again.
#[test]
fn scattered_pages_are_logged_in_smaller_steps() {
    for pages in [64, 96, 128] {
        let Squeezed { f, ino, odd, taken, mut kept, .. } = squeezed(pages, 160, 0);
        refused(f.fs.fsync(ino), 28);
        drop(f.fs.core().store.split(&mut kept, 160, 0, 0));
        f.fs.fsync(ino).unwrap_or_else(|error| panic!("{pages} pages: {error}"));
        assert_eq!(f.fs.core().dirty.bytes(), 0);
        for n in 0..pages {
            assert!(f.fs.read(ino, odd(n), 4096).unwrap() == pattern(2 + n, 4096), "{pages} pages: {n}");
        }
        drop((taken, kept));
        f.fs.sync().unwrap();
        f.fs.checkpoint().unwrap();
        assert_eq!(f.fs.space().reserved_bytes, 0, "{pages} pages");
        f.check();
    }
}

// Goal: where not even that does, what was logged stays, the rest keeps its space, and what is nobody else's can still be removed.
// Method: the same with less of what is kept, and some pages that lie in one node; the blocks are counted after each refusal, a file is removed, and when all is
// logged in the end the books are compared with the bitmap.
#[test]
fn what_is_logged_in_part_keeps_its_space() {
    let mut in_part = 0;
    for (pages, less) in [(64, 176), (100, 174), (128, 172)] {
        let what = format!("{pages} pages, {less} blocks less");
        let Squeezed { f, ino, odd, unused: (unused, free), taken, kept } = squeezed(pages, less, 16);
        let waiting = || f.fs.core().dirty.bytes() / 4096;
        for _ in 0..3 {
            refused(f.fs.fsync(ino), 28);
            accepted::look(&f, &[ino], &what);
        }
        in_part += u32::from(waiting() < pages);
        f.fs.unlink(ROOT, b"own").unwrap();
        drop(kept);
        f.fs.fsync(ino).unwrap();
        drop(taken);
        for n in 0..pages {
            assert!(f.fs.read(ino, odd(n), 4096).unwrap() == pattern(2 + n, 4096), "{what}: {n}");
        }
        f.fs.maintain().unwrap();
        f.check();
        f.fs.checkpoint().unwrap();
        f.fs.checkpoint().unwrap();
        let space = f.fs.space();
        assert_eq!((space.reserved_bytes, space.held_back_bytes), (0, 0), "{what}");
        // The books keep room for all pages of checksums, whether they are there or not.
        let lost = (unused as i64 - f.unused_bytes() as i64) - (free as i64 - space.free_bytes as i64);
        assert!((0..=4 * 4096).contains(&lost), "{what}: {lost} bytes");
    }
    assert!(in_part > 1);
}

// Goal: what is set aside for nodes costs nobody the space he would get without it, nor many flushes. Method: pages that are written singly,
// in any order, into a sparse file until they are refused, where 2,000 blocks are free; and so many files of one block.
#[test]
fn who_scatters_pages_gets_what_is_free() {
    for files in [false, true] {
        let f = Fixture::new(64 * MIB);
        let ino = f.create(b"sparse");
        let free = f.fs.core().store.reserve(2000, 0, 0).unwrap();
        let taken = f.take_all();
        drop(free);
        let (before, mut count) = (super::float::flushes(&f), 0);
        let scattered = |n: u64| {
            if files {
                let ino = f.fs.create(Caller::ROOT, ROOT, format!("file{n}").as_bytes(), 0o644)?.ino;
                f.fs.write(Caller::ROOT, ino, 0, &pattern(n, 4096))
            } else {
                f.fs.write(Caller::ROOT, ino, n * 1103 % 4096 * 8192, &pattern(n, 4096))
            }
        };
        let error = loop {
            match scattered(count) {
                Ok(_) => count += 1,
                Err(error) => break error,
            }
        };
        let flushes = super::float::flushes(&f) - before;
        assert_eq!(error.errno(), 28, "{error}");
        assert!(count > 1700 && flushes < 400, "{count} pages, {flushes} flushes");
        drop(taken);
        f.check();
    }
}

// Goal: what is refused has not taken the capability of a file that a snapshot shows, too, nor made the file's record the subvolume's own,
// which would come out of what is kept for deleting. Method: as at first, with all that takes a capability away; after each refusal it is
// still there, and what is done when there is space again takes it.
#[test]
fn who_is_refused_keeps_the_capability() {
    let f = Fixture::new(64 * MIB);
    let source = f.create(b"source");
    f.write(source, 0, &pattern(1, 40_960));
    let sub = f.fs.create_subvolume(Caller::ROOT, ROOT, b"sub", 0o755).unwrap().ino;
    let size = |size| SetAttr { size: Some(size), ..SetAttr::default() };
    let given = SetAttr { uid: Some(7), ..SetAttr::default() };
    let (keep, zero) = (Allocate::Reserve { keep_size: true }, Allocate::Zero { keep_size: false });
    type Call<'a> = &'a dyn Fn(InodeId) -> varve_fs::internals::Result<()>;
    let calls: [(&str, Call<'_>); 13] = [
        ("longer", &|ino| f.fs.setattr(Caller::ROOT, ino, size(50_000)).map(drop)),
        ("the same size", &|ino| f.fs.setattr(Caller::ROOT, ino, size(16_384)).map(drop)),
        ("given away", &|ino| f.fs.setattr(Caller::ROOT, ino, given).map(drop)),
        ("written over", &|ino| f.fs.write(Caller::ROOT, ino, 4096, &[7; 4096]).map(drop)),
        ("written behind", &|ino| f.fs.write(Caller::ROOT, ino, 16_384, &[7; 10]).map(drop)),
        ("allocated", &|ino| f.fs.fallocate(Caller::ROOT, ino, 16_384, 65_536, keep)),
        ("allocated what is there", &|ino| f.fs.fallocate(Caller::ROOT, ino, 0, 4096, keep)),
        ("zeroed", &|ino| f.fs.fallocate(Caller::ROOT, ino, 0, 65_536, zero)),
        ("no hole", &|ino| f.fs.fallocate(Caller::ROOT, ino, 65_536, 4096, Allocate::Punch)),
        ("cloned", &|ino| f.fs.clone_range(Caller::ROOT, (source, 0), (ino, 0), 8192)),
        ("copied", &|ino| f.fs.copy_range(Caller::ROOT, (source, 0), (ino, 0), 40_960).map(drop)),
        ("inserted", &|ino| f.fs.insert_range(Caller::ROOT, ino, 4096, 4096)),
        ("collapsed", &|ino| f.fs.collapse_range(Caller::ROOT, ino, 4096, 4096)),
    ];
    let files = calls.map(|(name, _)| {
        let ino = f.fs.create(Caller::ROOT, sub, name.as_bytes(), 0o644).unwrap().ino;
        f.write(ino, 0, &pattern(1, 16_384));
        f.fs.setxattr(ino, CAPABILITY, b"all", XattrMode::Set).unwrap();
        ino
    });
    let taken = inherited_on_a_full_pool(&f, sub);
    let own = |ino| is_own(&f, ino);
    let has = |ino| f.fs.getxattr(ino, CAPABILITY).is_ok();
    let mut wrong = Vec::new();
    for ((what, call), ino) in calls.iter().zip(files) {
        let came = call(ino).map_err(|error| error.errno());
        if came != Err(28) || !has(ino) || own(ino) {
            wrong.push((what, came, has(ino), own(ino)));
        }
    }
    assert!(wrong.is_empty(), "not refused, or lost, or copied: {wrong:?}");
    drop(taken);
    for ((what, call), ino) in calls.iter().zip(files) {
        call(ino).unwrap();
        assert!(!has(ino), "{what}");
    }
    f.fs.sync().unwrap();
    f.check();
}

/// A file of `blocks` pages, written or set aside, with a capability, in a subvolume of which there is a snapshot, on a full pool.
fn capable(f: &Fixture, blocks: u64, reserved: bool) -> (InodeId, Vec<Reservation>) {
    let sub = f.fs.create_subvolume(Caller::ROOT, ROOT, b"sub", 0o755).unwrap().ino;
    let ino = f.fs.create(Caller::ROOT, sub, b"capable", 0o644).unwrap().ino;
    if reserved {
        let set_aside = Allocate::Reserve { keep_size: false };
        f.fs.fallocate(Caller::ROOT, ino, 0, blocks * 4096, set_aside).unwrap();
    } else {
        f.write(ino, 0, &pattern(1, blocks as usize * 4096));
    }
    f.fs.setxattr(ino, CAPABILITY, b"all", XattrMode::Set).unwrap();
    (ino, inherited_on_a_full_pool(f, sub))
}

// Goal: a write to a file with a capability that a snapshot shows, too, takes what space there is, as it does of others. Method: a pool on
// which some blocks are free, and a write of more.
#[test]
fn a_short_write_takes_the_capability() {
    let f = Fixture::new(64 * MIB);
    let free = f.fs.core().store.reserve(60, 0, 0).unwrap();
    let (ino, taken) = capable(&f, 4, false);
    drop(free);
    let data = pattern(2, 64 * 4096);
    let len = f.fs.write(Caller::ROOT, ino, 0, &data).unwrap();
    assert!((4096..data.len()).contains(&len), "{len}");
    refused(f.fs.getxattr(ino, CAPABILITY), 61);
    f.fs.fsync(ino).unwrap();
    assert!(f.fs.read(ino, 0, len).unwrap() == data[..len]);
    drop(taken);
    f.check();
}

// Goal: what is set aside is there for who writes into a file with a capability, however little is left of what is kept for deleting.
// Method: others have taken all there is, and of what is kept all but the quarter that removals beside a snapshot leave.
#[test]
fn what_is_set_aside_is_there_beside_a_capability() {
    let f = Fixture::new(64 * MIB);
    let (ino, taken) = capable(&f, 16, true);
    let store = &f.fs.core().store;
    let all = f.fs.space().protected_bytes / 4096;
    let kept = store.reserve_again(all - (all - store.float_blocks()) / 4, 0, 0).unwrap().unwrap();
    let data = pattern(2, 16 * 4096);
    assert_eq!(f.fs.write(Caller::ROOT, ino, 0, &data).unwrap(), data.len());
    refused(f.fs.getxattr(ino, CAPABILITY), 61);
    f.fs.fsync(ino).unwrap();
    assert!(f.fs.read(ino, 0, data.len()).unwrap() == data);
    drop((taken, kept));
    f.check();
}

// Goal: who is refused a write into what his file has set aside still has it set aside, with a capability, too. Method: so few of the blocks that are
// kept for deleting are left that spending and dropping do not both find theirs, none to fifteen.
#[test]
fn who_is_refused_what_is_set_aside_keeps_it() {
    let (mut refusals, data) = (0, pattern(2, 16 * 4096));
    for left in 0..16 {
        let f = Fixture::new(64 * MIB);
        let ino = f.create(b"capable");
        f.fs.fallocate(Caller::ROOT, ino, 0, 16 * 4096, Allocate::Reserve { keep_size: false }).unwrap();
        f.fs.setxattr(ino, CAPABILITY, b"all", XattrMode::Set).unwrap();
        (0..3000u32).for_each(|n| _ = f.create(format!("{n:0100}").as_bytes()));
        f.fs.sync().unwrap();
        f.fs.checkpoint().unwrap();
        f.fs.checkpoint().unwrap();
        let taken = f.take_all();
        let all = f.fs.space().protected_bytes / 4096;
        let kept = f.fs.core().store.reserve_again(all - left, 0, 0).unwrap().unwrap();
        let has = || f.fs.getxattr(ino, CAPABILITY).is_ok();
        match f.fs.write(Caller::ROOT, ino, 0, &data) {
            Ok(len) => assert!(len > 0 && !has(), "{left}: {len}"),
            refusal => {
                refused(refusal, 28);
                refusals += 1;
                assert!(has(), "{left} blocks left");
                let pieces = f.fs.map(ino, 0, 100).unwrap().pieces;
                assert!(pieces.iter().all(|piece| piece.kind == PieceKind::Reserved), "{left}: {pieces:?}");
            }
        }
        drop((taken, kept));
        f.check();
    }
    assert!((1..16).contains(&refusals), "{refusals}");
}

// Goal: an inode that gets a record of its own is counted once, also where that was refused first, by who then tries again with the same right. Method:
// a full pool, then space; the count before and after, and with what a check finds.
#[test]
fn an_inode_that_was_refused_first_is_counted_once() {
    let mut f = Fixture::new(64 * MIB);
    let (ino, taken) = capable(&f, 4, false);
    let before = f.fs.statfs().unwrap().files;
    {
        let core = f.fs.core();
        let (change, state) = (core.change(ino).unwrap(), core.state(ino));
        let mut inner = state.inner.write();
        let mut own = || core.own_first(&change, ino, &mut inner, Owning::ToAdd);
        refused(own(), 28);
        drop(taken);
        own().unwrap();
    }
    assert!(is_own(&f, ino));
    assert_eq!(f.fs.statfs().unwrap().files, before + 1);
    f.reopen();
    f.check();
}

// Goal: who is refused has lost nothing, however many blocks are free: bytes, size, what is set aside, owner and capability are as before. Method: each call on a
// file of its own that a snapshot shows, too, or not, with 0 to 23 blocks free; what may be done in part, from the front (cloning, and punching parts of blocks), is left out.
#[test]
fn who_is_refused_has_lost_nothing_with_few_blocks_free() {
    let size = |size| SetAttr { size: Some(size), ..SetAttr::default() };
    let given = SetAttr { uid: Some(7), mode: Some(0o600), ..SetAttr::default() };
    let (keep, zero) = (Allocate::Reserve { keep_size: true }, Allocate::Zero { keep_size: false });
    type Call<'a> = &'a dyn Fn(&Fixture, InodeId) -> varve_fs::internals::Result<()>;
    let calls: [(&str, Call<'_>); 12] = [
        ("longer", &|f, ino| f.fs.setattr(Caller::ROOT, ino, size(90_000)).map(drop)),
        ("shorter", &|f, ino| f.fs.setattr(Caller::ROOT, ino, size(10_000)).map(drop)),
        ("given away", &|f, ino| f.fs.setattr(Caller::ROOT, ino, given).map(drop)),
        ("written over", &|f, ino| f.fs.write(Caller::ROOT, ino, 4096, &[7; 4096]).map(drop)),
        ("written behind", &|f, ino| f.fs.write(Caller::ROOT, ino, 80_000, &[7; 10]).map(drop)),
        ("allocated", &|f, ino| f.fs.fallocate(Caller::ROOT, ino, 16_384, 65_536, keep)),
        ("zeroed", &|f, ino| f.fs.fallocate(Caller::ROOT, ino, 0, 65_536, zero)),
        ("zeroed in part", &|f, ino| f.fs.fallocate(Caller::ROOT, ino, 100, 20_000, zero)),
        ("punched", &|f, ino| f.fs.fallocate(Caller::ROOT, ino, 4096, 8192, Allocate::Punch)),
        ("inserted", &|f, ino| f.fs.insert_range(Caller::ROOT, ino, 4096, 4096)),
        ("collapsed", &|f, ino| f.fs.collapse_range(Caller::ROOT, ino, 4096, 4096)),
        ("attributed", &|f, ino| f.fs.setxattr(ino, b"user.new", &[1; 3000], XattrMode::Set)),
    ];
    let (mut wrong, mut done, mut refusals) = (Vec::new(), 0, 0);
    for (what, call) in calls {
        for (shown, free) in
            [false, true].into_iter().flat_map(|shown| (0..24).map(move |free| (shown, free)))
        {
            let f = Fixture::new(64 * MIB);
            let sub = f.fs.create_subvolume(Caller::ROOT, ROOT, b"sub", 0o755).unwrap().ino;
            let ino = f.fs.create(Caller::ROOT, sub, b"file", 0o644).unwrap().ino;
            f.write(ino, 0, &pattern(1, 20_480));
            let ahead = Allocate::Reserve { keep_size: true };
            f.fs.fallocate(Caller::ROOT, ino, 20_480, 8192, ahead).unwrap();
            f.fs.setxattr(ino, CAPABILITY, b"all", XattrMode::Set).unwrap();
            f.fs.sync().unwrap();
            if shown {
                f.fs.snapshot(sub, ROOT, b"snapshot", true, false).unwrap();
                f.fs.create(Caller::ROOT, sub, b"new", 0o644).unwrap();
                f.fs.sync().unwrap();
            }
            f.fs.checkpoint().unwrap();
            f.fs.checkpoint().unwrap();
            let held = f.fs.core().store.reserve(free, 0, 0).unwrap();
            let taken = f.take_all();
            drop(held);
            let look = || {
                let attr = f.fs.getattr(ino).unwrap();
                let pieces = f.fs.map(ino, 0, 100).unwrap().pieces;
                let kinds: Vec<_> =
                    pieces.iter().map(|piece| (piece.offset, piece.len, piece.kind)).collect();
                let has = f.fs.getxattr(ino, CAPABILITY).is_ok();
                (attr.size, attr.uid, attr.mode, has, kinds, f.read_all(ino))
            };
            let before = look();
            match call(&f, ino) {
                Ok(()) => done += 1,
                refusal => {
                    refused(refusal, 28);
                    refusals += 1;
                    let mut after = look();
                    let same_bytes = after.5 == before.5;
                    if after != before {
                        after.5.clear();
                        wrong.push((what, shown, free, same_bytes, after));
                    }
                }
            }
            drop(taken);
            f.fs.sync().unwrap();
            f.check();
        }
    }
    assert!(wrong.is_empty(), "{wrong:?}");
    assert!(done > 100 && refusals > 100, "{done} done, {refusals} refused");
}

// Goal: a size and a mode that are set at once are both set, or neither. Method: a file is cut where the part that is kept for deleting has less and less left, in eighths.
#[test]
fn a_size_and_a_mode_are_set_together() {
    let set = SetAttr { size: Some(100), mode: Some(0o600), ..SetAttr::default() };
    let (mut done, data) = (0, pattern(1, 20_480));
    for eighths in 0..=8 {
        let f = Fixture::new(64 * MIB);
        let ino = f.create(b"file");
        f.write(ino, 0, &data);
        f.fs.sync().unwrap();
        f.fs.checkpoint().unwrap();
        f.fs.checkpoint().unwrap();
        let taken = f.take_all();
        let all = f.fs.space().protected_bytes / 4096;
        let kept = f.fs.core().store.reserve_again(all * eighths / 8, 0, 0).unwrap().unwrap();
        let result = f.fs.setattr(Caller::ROOT, ino, set);
        let attr = f.fs.getattr(ino).unwrap();
        let seen = (attr.size, attr.mode & 0o7777, f.read_all(ino));
        match result {
            Ok(_) => {
                done += 1;
                assert!(seen == (100, 0o600, data[..100].to_vec()), "{eighths}: {:?}", (seen.0, seen.1));
            }
            refusal => {
                refused(refusal, 28);
                assert!(seen == (20_480, 0o644, data.clone()), "{eighths}: {:?}", (seen.0, seen.1));
            }
        }
        drop((taken, kept));
        f.check();
    }
    assert!((5..9).contains(&done), "{done}");
}
