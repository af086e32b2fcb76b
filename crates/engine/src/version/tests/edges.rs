//! What is decided at an edge: limits that meet, marks that are told of, the first of much work, holes that hide nothing.

use varve_device::{DeviceError, Operation};
use varve_format::Corrupt;
use varve_format::record::extent;
use varve_format::record::reap::{Work, reap_key};
use varve_format::record::version;

use super::super::points::pending_points_families;
use super::super::truncate::truncate_within;
use super::implicit::{empty, write};
use super::*;
use crate::transaction::Op;

const FAMILY: FamilyId = FamilyId(5);

fn punch_out(world: &mut World, f: usize, from: u64, to: u64) {
    let mut tx = Transaction::new();
    let path = world.writable(f, &mut tx);
    assert!(!punch(&world.maps, &mut tx, &path, from * BLOCK, to * BLOCK, 1000).unwrap().more);
    world.apply(&tx);
    world.files[f].blocks.retain(|at, _| !(from..to).contains(at));
}

/// Cuts a file to a size in bytes; the block that this cuts is data.
fn cut(world: &mut World, f: usize, size: u64, at_once: usize) -> Truncated {
    let tail = if size.is_multiple_of(BLOCK) { None } else { Some(world.allocate(1)) };
    let (mut tx, mut holder, id) = (Transaction::new(), world.files[f].holder, world.new_id());
    let done = truncate_within(&world.maps, &mut tx, &mut holder, &mut || id, size, tail, at_once).unwrap();
    world.apply(&tx);
    world.files[f].holder = holder;
    world.files[f].blocks.retain(|at, _| *at < size.div_ceil(BLOCK));
    if let Some(run) = tail {
        world.files[f].blocks.insert(size / BLOCK, run.addr.block());
    }
    done
}

/// Two files in versions of their own, of one with ten blocks that nobody holds any more.
fn inner() -> World {
    let mut world = empty();
    write(&mut world, 0, 0, 10);
    for at in [20, 30] {
        world.fork(0);
        let last = world.files.len() - 1;
        write(&mut world, last, at, 1);
    }
    world.let_go(0);
    world.idle();
    world
}

fn works(world: &World) -> bool {
    world.maps.count(TreeId::REAP, FAMILY) > 0
}

/// Goal: of two versions that become one the smaller limit stays, and a record is put only if it changes. Method: a clone that is
/// cut at once, or not, and then by a new version, to less, to more and to the same; its reads and the limit.
#[test]
fn the_smaller_limit_stays() {
    for (first, second) in [(None, 5), (Some(8), 5), (Some(5), 8), (Some(5), 5)] {
        let mut world = empty();
        write(&mut world, 0, 0, 10);
        world.fork(0);
        write(&mut world, 0, 0, 1);
        let own = world.files[0].holder.version;
        if let Some(first) = first {
            cut(&mut world, 0, first * BLOCK, 256);
            assert_eq!(world.files[0].holder.version, own, "at once");
        }
        write(&mut world, 0, 9, 1);
        assert!(cut(&mut world, 0, second * BLOCK, 0).reap);
        assert_ne!(world.files[0].holder.version, own, "by a new version");
        world.check();
        let mut tx = Transaction::new();
        reap_step(&world.maps, &mut tx, FAMILY, 100, &mut ReaperMemory::default()).unwrap();
        let put = tx.ops().iter().filter(|op| matches!(op, Op::Put { tree: TreeId::VERSIONS, .. })).count();
        assert_eq!(put, 1 + usize::from(first.is_none_or(|first| second < first)), "{first:?}, {second}");
        world.apply(&tx);
        world.check();
        world.idle();
        world.check();
        let left = pending::record(&world.maps, FAMILY, world.files[0].holder.version).unwrap();
        assert_eq!(left.limit, first.map_or(second, |first| second.min(first)) * BLOCK);
    }
}

/// Goal: the oldest version that goes is the first, and with the other choice, which must not matter, the youngest. Method: two
/// clones with a block each let go, the younger one first; which record a step takes.
#[test]
fn the_oldest_that_goes_is_the_first() {
    let choices: [(&'static [Planted], usize); 2] = [(&[], 1), (&[Planted::YoungestFirst], 0)];
    for (choice, left) in choices {
        let mut world = empty();
        write(&mut world, 0, 0, 4);
        let mut ids = Vec::new();
        for f in [1, 2] {
            world.fork(0);
            write(&mut world, f, f as u64, 1);
            ids.push(world.files[f].holder.version);
        }
        world.let_go(2);
        world.let_go(1);
        PLANTED.set(choice);
        let mut tx = Transaction::new();
        let step = reap_step(&world.maps, &mut tx, FAMILY, 100, &mut ReaperMemory::default());
        PLANTED.set(&[]);
        assert!(step.unwrap().more);
        world.apply(&tx);
        world.check();
        let there = |id: &VersionId| {
            let key = version::encode_key(FAMILY, *id).to_vec();
            world.maps.trees.contains_key(&(TreeId::VERSIONS.0, key))
        };
        let stay: Vec<_> = ids.iter().copied().filter(there).collect();
        assert_eq!(stay, [ids[left]], "{choice:?}");
        world.idle();
    }
}

/// Trees of which the extents cannot be read.
struct Failing<'a>(&'a Maps, fn() -> EngineError);

impl Read for Failing<'_> {
    fn get(&self, tree: TreeId, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.0.get(tree, key)
    }
    fn scan(&self, tree: TreeId, from: &[u8], each: &mut dyn FnMut(&[u8], &[u8]) -> bool) -> Result<()> {
        if tree == TreeId::EXTENTS { Err((self.1)()) } else { self.0.scan(tree, from, each) }
    }
    fn last_at_or_before(&self, tree: TreeId, at: &[u8]) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
        self.0.last_at_or_before(tree, at)
    }
}

/// Goal: damage hides no work, that of a namespace neither, and what may pass is no answer. Method: work in two families, of which it
/// cannot be read what they are, for lasting reasons and for others.
#[test]
fn damage_does_not_end_the_search_for_work() {
    let mut maps = Maps::default();
    for family in [5, 6] {
        let mark = reap_key(FamilyId(family), Work::Going(VersionId(family)));
        maps.trees.insert((TreeId::REAP.0, mark), Vec::new());
    }
    let lasting: [fn() -> EngineError; 2] = [
        || EngineError::corrupt("a leaf", Corrupt { what: "nonsense", at: 0 }),
        || EngineError::Checksum { addr: 4096 },
    ];
    for error in lasting {
        let read = Failing(&maps, error);
        let both = vec![FamilyId(5), FamilyId(6)];
        assert_eq!(pending_families(&read, None, 10).unwrap(), (both.clone(), None));
        assert_eq!(pending_points_families(&read, None, 10).unwrap(), (both, None));
    }
    let others: [fn() -> EngineError; 2] = [
        || {
            let (operation, device, text) = (Operation::Read, "disk".to_string(), "failed".to_string());
            DeviceError::Io { operation, device, offset: 0, len_bytes: 4096, errno: Some(5), text }.into()
        },
        || EngineError::Stopped("a write failed".to_string()),
    ];
    for error in others {
        let read = Failing(&maps, error);
        assert!(
            pending_families(&read, None, 10).is_err() && pending_points_families(&read, None, 10).is_err()
        );
    }
}

/// Goal: who cuts inside a block hears of the reaper's work, whatever of it comes from the new tail and from the rest. Method: a new
/// version with a tail over what nobody holds and over its parent's own; a cut at once whose limit stays, with a tail alone.
#[test]
fn a_tail_and_the_rest_are_told() {
    for own in [false, true] {
        let mut world = inner();
        if own {
            write(&mut world, 0, 4, 1);
            world.idle();
        }
        let before = world.files[0].holder.version;
        assert!(cut(&mut world, 0, 4 * BLOCK + 1, 0).reap && works(&world), "own block: {own}");
        assert_ne!(world.files[0].holder.version, before);
        world.check();
        world.idle();
        world.check();
    }
    let mut world = inner();
    cut(&mut world, 0, 5 * BLOCK, 256);
    world.idle();
    let before = world.files[0].holder.version;
    assert!(cut(&mut world, 0, 4 * BLOCK + 1, 256).reap && works(&world), "the tail alone");
    assert_eq!(world.files[0].holder.version, before);
    world.check();
    world.idle();
    world.check();
}

/// Goal: a cut at once ends what is seen of older versions, never makes it more, and tells of work exactly if there is some. Method:
/// two files above one that nobody holds are cut, to the same again, and to more; and one above a file that is held.
#[test]
fn a_limit_falls_and_is_told() {
    let mut world = inner();
    for (f, blocks, told) in [(0, 5, true), (0, 5, false), (0, 8, false), (1, 5, true)] {
        let done = cut(&mut world, f, blocks * BLOCK, 256);
        assert_eq!((done.reap, works(&world)), (told, told), "file {f} to {blocks}");
        world.check();
        world.idle();
        world.check();
    }
    let mut world = empty();
    write(&mut world, 0, 0, 10);
    world.fork(0);
    write(&mut world, 1, 20, 1);
    let done = cut(&mut world, 1, 5 * BLOCK, 256);
    assert_eq!((done.reap, works(&world)), (false, false), "the other one sees it");
    world.check();
    world.idle();
}

/// The blocks of files that are hole entries.
fn holes(world: &World) -> Vec<u64> {
    let stored = world.maps.trees.iter().filter(|((tree, _), _)| *tree == TreeId::EXTENTS.0);
    let stored = stored.map(|((_, key), value)| extent::decode_entry(key, value).unwrap());
    let blocks = stored.filter(|(_, extent)| extent.kind == ExtentKind::Hole).flat_map(|(key, extent)| {
        let first = key.file_offset() / BLOCK;
        first..first + u64::from(extent.len) / BLOCK
    });
    blocks.collect()
}

/// Goal: of versions that become one, holes stay exactly where they hide something beneath, and data stays. Method: a hole over all
/// there is; one beside data; holes over what goes, and partly over what another file goes on seeing.
#[test]
fn holes_that_hide_nothing_go() {
    for blocks in [1, 4] {
        let mut world = empty();
        write(&mut world, 0, 0, blocks);
        world.fork(0);
        punch_out(&mut world, 0, 0, 1);
        assert_eq!(holes(&world), [0]);
        world.let_go(1);
        world.idle();
        world.check();
        assert!(holes(&world).is_empty());
        assert_eq!(world.maps.count(TreeId::EXTENTS, FAMILY), usize::from(blocks > 1));
    }
    let mut world = empty();
    write(&mut world, 0, 1, 2);
    world.fork(0);
    write(&mut world, 0, 0, 2);
    write(&mut world, 0, 7, 1);
    world.fork(0);
    punch_out(&mut world, 0, 0, 3);
    punch_out(&mut world, 0, 7, 8);
    write(&mut world, 0, 9, 1);
    assert_eq!(holes(&world), [0, 1, 2, 7]);
    world.let_go(2);
    world.idle();
    world.check();
    assert_eq!(holes(&world), [1, 2]);
}
