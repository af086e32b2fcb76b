//! Ways to the root: what is known of them is what the records say, and spares reading these again.

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
            assert_eq!(is_sole(&self.maps, holder).unwrap(), known.1, "whether file {f} is the only one");
        }
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
