//! Ways to the root: what is known of them is what the records say, and spares reading these again.

use super::super::truncate::truncate_within;
use super::cases::{keep_version, world_with_one_file, write};
use super::*;

const VERSIONS: u64 = 300;

/// File 0 goes on in so many versions, with ids from `id` on, each with something of its own; what it was is kept each time.
fn go_on(world: &mut World, id: u64) {
    for id in id..id + VERSIONS {
        keep_version(world, VersionId(id));
        write(world, id % 1000, 10 * id, 1);
        world.files[0].blocks.insert(id % 1000, 10 * id);
    }
}

/// Trees of which nothing is known but what they say.
struct Bare<'a>(&'a Maps);

impl Read for Bare<'_> {
    fn get(&self, tree: TreeId, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.0.get(tree, key)
    }
    fn scan(&self, tree: TreeId, from: &[u8], each: &mut dyn FnMut(&[u8], &[u8]) -> bool) -> Result<()> {
        self.0.scan(tree, from, each)
    }
    fn last_at_or_before(&self, tree: TreeId, at: &[u8]) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
        self.0.last_at_or_before(tree, at)
    }
}

impl World {
    /// Compares the way of every file with that which is read record by record.
    pub(super) fn check_ways(&mut self) {
        let all = |path: &Path| {
            let steps: Vec<_> = (0..path.versions()).map(|at| path.step(at)).collect();
            (steps, path.sole(), path.has_inner(), path.writable(), path.own())
        };
        for f in 0..self.files.len() {
            let holder = self.files[f].holder;
            let known = all(&Path::load(&self.maps, holder).unwrap());
            assert_eq!(known, all(&Path::load(&Bare(&self.maps), holder).unwrap()), "the way of file {f}");
            // Beside its head a way has one version of its own at most.
            if known.0.windows(2).skip(2).any(|two| two[1].visible < two[0].visible) {
                self.saw("limit on what is known");
            }
            let told = is_sole(&self.maps, holder).unwrap();
            // Where many go it does not look further.
            let many = known.0.len() > 4;
            assert!(told == known.1 || many && !told, "whether file {f} is the only one");
            if told != known.1 {
                self.saw("only one beneath many");
            }
        }
    }
}

/// What is asked of the trees for the way of a file.
fn cost_of_way(world: &World, file: usize) -> u64 {
    world.maps.descents.set(0);
    Path::load(&world.maps, world.files[file].holder).unwrap();
    world.maps.descents.get()
}

/// Goal: a long way is known also where versions of it were cut. Method: the way of a file that goes on in 300 versions, and of one
/// that is cut to nothing before, or to less and less in between; what is asked for it the second time.
#[test]
fn a_way_with_cuts_is_known() {
    for cuts in [&[][..], &[0], &[0, 100, 200]] {
        let mut world = world_with_one_file();
        write(&mut world, 0, 5, 8);
        world.files[0].blocks.extend((0..8).map(|at| (at, 5 + at)));
        for id in 1000..1000 + VERSIONS {
            keep_version(&mut world, VersionId(id));
            let (mut tx, mut holder) = (Transaction::new(), world.files[0].holder);
            if let Some(at) = cuts.iter().position(|cut| 1000 + cut == id) {
                let left = 2 * (cuts.len() - 1 - at) as u64;
                let new_id = &mut || unreachable!("what has nothing of its own gets a limit");
                truncate_within(&world.maps, &mut tx, &mut holder, new_id, left * BLOCK, None, 0).unwrap();
                world.apply(&tx);
                world.files[0].blocks.retain(|at, _| *at < left);
            }
            write(&mut world, id, 10 * id, 1);
            world.files[0].blocks.insert(id, 10 * id);
        }
        world.check();
        cost_of_way(&world, 0);
        let cost = cost_of_way(&world, 0);
        assert!(cost < 20, "{cost} descents for a way with {} cuts", cuts.len());
    }
}

/// Goal: two long branches of one family are known at the same time. Method: two files that were one go on in 300 versions each;
/// what is asked for their ways in turn.
#[test]
fn two_branches_are_known() {
    let mut world = world_with_one_file();
    write(&mut world, 0, 5000, 8);
    world.files[0].blocks.extend((0..8).map(|at| (at, 5000 + at)));
    world.fork(0);
    go_on(&mut world, 1000);
    world.files.swap(0, 1);
    go_on(&mut world, 2000);
    world.check();
    for turn in 0..5 {
        let costs = [0, 1].map(|file| cost_of_way(&world, file));
        assert!(turn == 0 || costs.iter().all(|cost| *cost < 20), "{costs:?} descents in turn {turn}");
    }
}

/// Goal: letting go of one of many versions costs the same however many there are. Method: of 300 versions all but the last let go, the
/// newest first; what is asked for whether one is the only holder, and for all of it.
#[test]
fn one_of_many_lets_go_at_the_cost_of_one() {
    let mut world = world_with_one_file();
    go_on(&mut world, 1000);
    world.maps.descents.set(0);
    assert!(!is_sole(&world.maps, world.files[150].holder).unwrap());
    let one = world.maps.descents.replace(0);
    for file in (1..world.files.len()).rev() {
        assert!(!is_sole(&world.maps, world.files[file].holder).unwrap());
        world.let_go(file);
    }
    let all = world.maps.descents.get();
    assert!(one <= 3, "{one} descents for one");
    assert!(all < 10 * VERSIONS, "{all} descents for all {VERSIONS}");
    world.check();
    world.idle();
}

/// Goal: whether one is the only holder costs as little where all of many versions above go, and they go with what they have when it lets
/// go. Method: 300 versions let go, and then the last; what is asked for it, and what is left.
#[test]
fn many_that_go_are_left_to_the_reaper() {
    let mut world = world_with_one_file();
    go_on(&mut world, 1000);
    (1..world.files.len()).rev().for_each(|file| world.let_go(file));
    let holder = world.files[0].holder;
    world.maps.descents.set(0);
    assert!(!is_sole(&world.maps, holder).unwrap());
    let cost = world.maps.descents.get();
    assert!(Path::load(&world.maps, holder).unwrap().sole() && cost < 10, "{cost} descents");
    world.let_go(0);
    world.idle();
    world.gone(FamilyId(5));
    assert!(world.live.is_empty());
}
