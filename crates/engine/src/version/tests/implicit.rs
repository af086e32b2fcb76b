//! A family of which one version is left is stored as before its first fork: without a record, an index or work for the
//! reaper, whatever the id of that version has become.

use varve_format::VersionKey;
use varve_format::record::version::{self, VersionRecord};

use super::super::resolve::FILE_END;
use super::super::truncate::truncate_within;
use super::world::File;
use super::*;

const FAMILY: FamilyId = FamilyId(5);

/// A file with nothing in it, in a store that loses nothing.
pub(super) fn empty() -> World {
    let mut world = World::new(1, 1);
    (world.next_block, world.loses) = (1 << 20, false);
    world
}

/// A file with something in three segments.
fn plain() -> World {
    let mut world = empty();
    for at in [0, 300, 600] {
        write(&mut world, 0, at, 4);
    }
    world
}

pub(super) fn write(world: &mut World, f: usize, at: u64, blocks: u64) {
    let (run, mut tx) = (world.allocate(blocks), Transaction::new());
    let path = world.writable(f, &mut tx);
    put_extents(&world.maps, &mut tx, &path, &[(at * BLOCK, run)]).unwrap();
    world.apply(&tx);
    world.files[f].blocks.extend((0..blocks).map(|b| (at + b, run.addr.block() + b)));
}

/// Cuts a file, whose entries may go at once if there are no more than `at_once`.
fn cut(world: &mut World, f: usize, blocks: u64, at_once: usize) {
    let (mut tx, mut holder, id) = (Transaction::new(), world.files[f].holder, world.new_id());
    let mut new_id = || id;
    truncate_within(&world.maps, &mut tx, &mut holder, &mut new_id, blocks * BLOCK, None, at_once).unwrap();
    world.apply(&tx);
    world.files[f].holder = holder;
    world.files[f].blocks.retain(|at, _| *at < blocks);
}

fn records(world: &World) -> [usize; 3] {
    [TreeId::VERSIONS, TreeId::HELD, TreeId::REAP].map(|tree| world.maps.count(tree, FAMILY))
}

/// The trees as they were, with what is known of them now: what a view from before is.
struct Before<'a> {
    then: Maps,
    at: Lsn,
    now: &'a Maps,
}

impl Read for Before<'_> {
    fn get(&self, tree: TreeId, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.then.get(tree, key)
    }
    fn scan(&self, tree: TreeId, from: &[u8], each: &mut dyn FnMut(&[u8], &[u8]) -> bool) -> Result<()> {
        self.then.scan(tree, from, each)
    }
    fn last_at_or_before(&self, tree: TreeId, at: &[u8]) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
        self.then.last_at_or_before(tree, at)
    }
    fn trunks(&self) -> Option<(&Trunks, Lsn)> {
        self.now.trunks().map(|(trunks, _)| (trunks, self.at))
    }
    fn latest(&self, family: FamilyId, id: VersionId) -> Option<VersionRecord> {
        self.trunks().and_then(|(trunks, at)| trunks.latest(family, id, at))
    }
}

/// Reaps all there is, and reads file 0 through a view from before each step.
fn reap_all(world: &mut World) {
    loop {
        let (then, (_, at)) = (world.maps.clone(), world.maps.trunks().unwrap());
        let more = world.reap(FAMILY);
        world.check();
        let before = Before { then, at, now: &world.maps };
        let path = Path::load(&before, world.files[0].holder).unwrap();
        let all = resolve(&before, &path, 0, FILE_END).unwrap();
        let expect: Vec<_> = world.files[0].blocks.iter().map(|(at, block)| (*at, *block)).collect();
        same(&listed(&all, 0, FILE_END), &expect, "a view from before");
        if !more {
            break;
        }
    }
}

/// Reaps all there is: nothing says any more that the family was forked. Then again from there, from either side; in the end
/// the file is deleted.
fn as_before(mut world: World) {
    let only = |world: &mut World| {
        reap_all(world);
        world.idle();
        assert_eq!((world.files.len(), records(world)), (1, [0; 3]), "versions, index, work");
        let holder = world.files[0].holder;
        assert!(is_sole(&world.maps, holder).unwrap());
        let page = map(&world.maps, holder, false, 0, FILE_END, 1000).unwrap();
        assert!(page.pieces.iter().all(|piece| !piece.shared));
    };
    only(&mut world);
    for released in [0, 1, 0] {
        world.fork(0);
        assert_eq!(records(&world), [1, 0, 0]);
        write(&mut world, 1, 301, 2);
        world.check();
        assert!(records(&world)[0] > 1);
        world.let_go(released);
        only(&mut world);
    }
    write(&mut world, 0, 2, 700);
    cut(&mut world, 0, 100, 0);
    only(&mut world);
    let holder = world.files[0].holder;
    assert!(holder.version.0 > FAMILY.0, "its id is another");
    world.files.clear();
    while {
        let mut tx = Transaction::new();
        let progress = delete_step(&world.maps, &mut tx, holder, 1).unwrap();
        world.apply(&tx);
        progress.more
    } {}
    world.gone(FAMILY);
    assert!(world.live.is_empty());
}

/// Goal: nothing is left of a fork whose other side is gone, when the reaper is idle. Method: a file that is forked and
/// written, in few places or in more than it had; its copy lets go. Then as [`as_before`].
#[test]
fn after_a_rewrite() {
    for places in [&[1][..], &[1, 301, 601, 901, 1201]] {
        let mut world = plain();
        world.fork(0);
        places.iter().for_each(|at| write(&mut world, 0, *at, 2));
        world.let_go(1);
        as_before(world);
    }
}

/// Goal: as above. Method: the file is cut to nothing and written again.
#[test]
fn after_a_cut_to_nothing() {
    let mut world = plain();
    world.fork(0);
    cut(&mut world, 0, 0, 256);
    [0, 301, 601, 901].iter().for_each(|at| write(&mut world, 0, *at, 2));
    world.let_go(1);
    as_before(world);
}

/// Goal: as above. Method: either of two holders of one version lets go, nobody having written.
#[test]
fn after_nothing() {
    for released in [0, 1] {
        let mut world = plain();
        world.fork(0);
        world.let_go(released);
        assert_eq!(records(&world), [0; 3], "with the transaction that lets go");
        as_before(world);
    }
}

/// Goal: as above. Method: a copy gets a version of its own in the transaction that makes it, and lets go.
#[test]
fn after_the_end_of_a_copy() {
    let mut world = plain();
    let (mut tx, mut holder, id) = (Transaction::new(), world.files[0].holder, world.new_id());
    branch(&world.maps, &mut tx, &mut holder, &mut || id, true).unwrap();
    world.apply(&tx);
    world.files[0].holder.has_versions = true;
    let blocks = world.files[0].blocks.clone();
    world.files.push(File { holder, blocks });
    write(&mut world, 1, 901, 2);
    world.let_go(1);
    as_before(world);
}

/// Goal: as above. Method: a file that was never forked is cut, and too much goes to go at once.
#[test]
fn after_a_long_cut() {
    let mut world = plain();
    (0..400).for_each(|n| write(&mut world, 0, 2 * n, 1));
    cut(&mut world, 0, 100, 256);
    assert_eq!(records(&world), [2, 0, 1]);
    as_before(world);
}

/// Goal: a file that has outgrown its smaller first version by 256 places or more keeps that one record and its index, and is
/// read, forked and deleted with them. Method: one place less, and as many; fork, let go, delete.
#[test]
fn a_large_one_keeps_its_record() {
    for (places, kept) in [(255, 0), (256, 1)] {
        let mut world = plain();
        world.keeps_records = kept > 0;
        world.fork(0);
        (0..places).for_each(|n| write(&mut world, 0, (10 + n) * SEGMENT_BLOCKS, 1));
        world.let_go(1);
        world.idle();
        assert_eq!(records(&world), [kept, kept * (places as usize + 3), 0], "{places} places");
        world.fork(0);
        world.let_go(0);
        world.idle();
        world.check();
        assert_eq!(records(&world), [kept, kept * (places as usize + 3), 0], "{places} places");
        while !world.files.is_empty() {
            world.delete(0);
        }
        world.idle();
        world.gone(FAMILY);
    }
}

/// Goal: a version without a record is the family's only one, or an error. Method: a holder of a version that does not exist,
/// in a family that has records and in one that has none.
#[test]
fn among_records_one_has_to_be_there() {
    let mut world = plain();
    let stranger = |id| Holder { family: FAMILY, version: VersionId(id), has_versions: true };
    let path = Path::load(&world.maps, stranger(77)).unwrap();
    assert_eq!((path.head().key, path.versions(), path.sole()), (VersionKey(FAMILY.0), 1, true));
    assert!(Path::load(&world.maps, stranger(4)).is_err(), "older than its family");
    world.fork(0);
    assert!(Path::load(&world.maps, stranger(77)).is_err());
    write(&mut world, 1, 1, 1);
    assert!(Path::load(&world.maps, stranger(77)).is_err());
    assert!(release(&world.maps, &mut Transaction::new(), stranger(77)).is_err());
    PLANTED.set(&[Planted::AnyIsImplicit]);
    assert!(Path::load(&world.maps, stranger(77)).is_ok(), "nobody looks for others");
    PLANTED.set(&[]);
    // Who stands at a number that is yet to be given out opens no child of that number.
    let mut holder = stranger(world.new_id().0 + 1);
    world.let_go(1);
    world.idle();
    let id = VersionId(holder.version.0);
    assert!(branch(&world.maps, &mut Transaction::new(), &mut holder, &mut || id, false).is_err());
}

/// Goal: records that say no more than none would are no damage: pools of before have them. Method: put one; check, fork, let
/// go.
#[test]
fn a_record_that_says_nothing_is_sound() {
    let mut world = plain();
    let key = version::encode_key(FAMILY, VersionId(FAMILY.0)).to_vec();
    world.maps.trees.insert((TreeId::VERSIONS.0, key), VersionRecord::implicit(FAMILY).encode().to_vec());
    world.files[0].holder.has_versions = true;
    world.check();
    world.fork(0);
    world.let_go(1);
    as_before(world);
}
