//! Keyframes: single cases. The model makes them all the time.

use super::super::resolve::FILE_END;
use super::cases::{keep_version, world_with_one_file, write};
use super::world::World;
use super::*;
use crate::problem::ProblemKind;

const SEGMENTS: u64 = 2;

/// A file of two segments, written in so many versions, four random blocks of each segment in each; all are held.
fn aged(versions: u64) -> World {
    let mut world = world_with_one_file();
    let (mut random, mut block) = (Random(7), 1_000_000);
    for version in 0..versions {
        if version > 0 {
            keep_version(&mut world, VersionId(1000 + version));
        }
        for at in (0..4 * SEGMENTS).map(|n| n % SEGMENTS * SEGMENT_BLOCKS + random.below(SEGMENT_BLOCKS)) {
            block += 2;
            write(&mut world, at, block, 1);
            world.files[0].blocks.insert(at, block);
            world.live.insert(block);
        }
    }
    world
}

/// All keyframes that are wanted; says how many pieces there are then.
fn make_all(world: &mut World) -> usize {
    while let Some((family, id, segments)) = world.maps.known.keyframes.take(100) {
        let mut tx = Transaction::new();
        make_keyframes(&world.maps, &mut tx, family, id, &segments).unwrap();
        world.apply(&tx);
    }
    pieces(world)
}

fn pieces(world: &World) -> usize {
    world.maps.count(TreeId::KEYFRAMES, world.families[0])
}

/// What is read and mapped of a file, and the entries met for both.
fn look(world: &World, file: usize) -> (Vec<Mapped>, MapPage, u64) {
    let holder = world.files[file].holder;
    let path = Path::load(&world.maps, holder).unwrap();
    world.maps.met.set(0);
    let read = resolve(&world.maps, &path, 0, FILE_END).unwrap();
    let in_read = world.maps.met.replace(0);
    let page = map(&world.maps, holder, false, 0, FILE_END, 100_000).unwrap();
    // Beside the entries, the records of all versions.
    (read, page, in_read + world.maps.met.get().saturating_sub(world.files.len() as u64))
}

fn problems(world: &World) -> Vec<ProblemKind> {
    let holders: Vec<Holder> = world.files.iter().map(|file| file.holder).collect();
    let mut problems = Vec::new();
    walk_family(&world.maps, world.families[0], &holders, &mut |_, _| (), &mut problems).unwrap();
    problems.iter().map(|problem| problem.kind).collect()
}

/// Goal: with a keyframe, what is read and mapped of a version among hundreds costs a bounded number of entries and is the same as
/// without; the newest versions go on using that of an older one. Method: 400 versions of four random blocks of 256 in each
/// segment; look at three of them before and after keyframes are made, and at neighbours.
#[test]
fn a_keyframe_bounds_what_is_passed() {
    let mut world = aged(400);
    let last = world.files.len() - 1;
    // Files but the first are in the order of their versions. The newest of them sees what the first one's keyframe is of.
    for (file, needs) in [(0, true), (last, false), (last / 2, true)] {
        let (read, page, met) = look(&world, file);
        assert_eq!(met > 800, needs, "{met} entries met of file {file}");
        let before = pieces(&world);
        let made = make_all(&mut world);
        assert_eq!(made > before, needs, "file {file}");
        let (read_now, page_now, met_now) = look(&world, file);
        assert!(read == read_now && page == page_now, "file {file} is not what it was");
        assert!(met_now < 200, "{met_now} entries met of file {file} with a keyframe, {met} without");
        assert_eq!(make_all(&mut world), made, "no more are wanted");
        // Some that are a little newer or older.
        for beside in [file + 2, file.saturating_sub(2).max(1)].into_iter().filter(|file| *file <= last) {
            let expect: Vec<_> = world.files[beside].blocks.iter().map(|(at, block)| (*at, *block)).collect();
            let (read, ..) = look(&world, beside);
            world.maps.known.keyframes.forget();
            same(&listed(&read, 0, FILE_END), &expect, &format!("file {beside}"));
        }
    }
    assert_eq!(problems(&world), []);
}

/// Goal: a write at the newest version takes no keyframe away, one at a version takes its own, and whoever reaps what one is made of
/// takes it. Method: as above; the keyframes after each.
#[test]
fn a_keyframe_goes_with_what_it_is_made_of() {
    let mut world = aged(40);
    look(&world, 0);
    let made = make_all(&mut world);
    assert!(made > 0);
    write(&mut world, 3, 5_000_000, 1);
    assert_eq!(pieces(&world), made, "they lie below the newest version");
    // All that they are made of has another key.
    world.loses = false;
    while world.files.len() > 1 {
        world.let_go(1);
    }
    let family = world.families[0];
    while world.reap(family) {
        assert_eq!(problems(&world), []);
    }
    assert_eq!(pieces(&world), 0);
}

/// Goal: a segment has a bounded number of keyframes, far from each other. Method: one wanted at every version of 40, in order.
#[test]
fn a_segment_has_few_keyframes() {
    let mut world = aged(40);
    let mut keys = Vec::new();
    for file in (1..world.files.len()).rev() {
        let holder = world.files[file].holder;
        let mut tx = Transaction::new();
        make_keyframes(&world.maps, &mut tx, holder.family, holder.version, &[0]).unwrap();
        world.apply(&tx);
        keys = world.maps.trees.keys().filter(|(tree, _)| *tree == TreeId::KEYFRAMES.0).cloned().collect();
        keys.dedup_by_key(|(_, key)| key[..24].to_vec());
        assert!(keys.len() <= keyframe::KEYFRAMES_MAX);
        assert_eq!(problems(&world), []);
    }
    assert_eq!(keys.len(), keyframe::KEYFRAMES_MAX);
}

/// Goal: a keyframe that is not true is named, and one that is not whole is named and not used. Method: change a byte of one, and
/// take a piece away.
#[test]
fn what_is_wrong_with_a_keyframe_is_named() {
    let mut world = aged(400);
    look(&world, 0);
    make_all(&mut world);
    let (read, ..) = look(&world, 0);
    let of_keyframes = |(tree, _): &&(u16, Vec<u8>)| *tree == TreeId::KEYFRAMES.0;
    let key = world.maps.trees.keys().find(of_keyframes).unwrap().clone();
    let value = world.maps.trees[&key].clone();
    assert!(value[0] > 1, "of several pieces");
    world.maps.trees.get_mut(&key).unwrap()[4] ^= 1;
    assert_eq!(problems(&world), [ProblemKind::KeyframeWrong]);
    world.maps.trees.remove(&key);
    assert_eq!(problems(&world), [ProblemKind::KeyframeMalformed]);
    let (without, ..) = look(&world, 0);
    assert!(without == read, "it is not used");
}
