//! Property tests: a full copy a holder, stepped beside the real thing, everything compared after every step.
//!
//! Every operation is one transaction and every step reloads what it knows from the records, so a crash between any
//! two transactions is the ordinary case here.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::*;

/// Prefixes a tree.
const PREFIXES: u64 = 10;
const HOLDERS_MAX: usize = 6;

/// What a holder should see: (tree, number of the prefix) to value. Values are never used twice.
type Copy = BTreeMap<(u16, u64), u64>;

pub(super) struct World {
    maps: Maps,
    random: Random,
    holders: Vec<(Holder, Copy)>,
    next_value: u64,
    next_id: u64,
    /// Values put and not yet gone.
    alive: BTreeSet<u64>,
    log: Vec<String>,
    /// Situations that the run has been in, and how often.
    seen: BTreeMap<&'static str, u64>,
}

impl World {
    fn new(seed: u64) -> World {
        World {
            maps: Maps::default(),
            random: Random(seed),
            holders: vec![(Holder::new(FAMILY), Copy::new())],
            next_value: 1,
            next_id: 100,
            alive: BTreeSet::new(),
            log: Vec::new(),
            seen: BTreeMap::new(),
        }
    }

    fn saw(&mut self, what: &'static str) {
        *self.seen.entry(what).or_default() += 1;
    }

    fn some_holder(&mut self) -> usize {
        self.random.below(self.holders.len() as u64) as usize
    }

    /// A path the holder `h` may write through, and what had to be done for it.
    fn writable(&mut self, h: usize, tx: &mut Transaction) -> Path {
        let path = Path::load(&self.maps, self.holders[h].0).unwrap();
        if path.writable() {
            return path;
        }
        self.next_id += 1 + self.random.below(3);
        let id = self.next_id;
        self.log.push(format!("holder {h} opens version {id}"));
        branch(&self.maps, tx, &mut self.holders[h].0, &mut || VersionId(id), false).unwrap()
    }

    /// One to three puts and deletes in one transaction.
    fn change(&mut self, h: usize) {
        let mut tx = Transaction::new();
        let path = self.writable(h, &mut tx);
        let before = self.holders[h].1.clone();
        for _ in 0..1 + self.random.below(3) {
            let (tree, n) = (self.random.pick(&TREES), self.random.below(PREFIXES));
            let at = prefix(tree, n);
            if self.random.below(3) == 0 {
                self.log.push(format!("holder {h} deletes {}:{n}", tree.0));
                delete(&self.maps, &mut tx, &path, tree, &at).unwrap();
                self.holders[h].1.remove(&(tree.0, n));
            } else {
                self.next_value += 1;
                self.log.push(format!("holder {h} puts {}:{n} = {}", tree.0, self.next_value));
                let value = self.next_value.to_le_bytes().to_vec();
                put(&self.maps, &mut tx, &path, tree, &at, value.into()).unwrap();
                self.holders[h].1.insert((tree.0, n), self.next_value);
            }
        }
        // What the version had of its own is the caller's to let go; what others see is not.
        for ((tree, n), value) in &before {
            let found = find(&self.maps, &path, TreeId(*tree), &prefix(TreeId(*tree), *n)).unwrap().unwrap();
            if self.holders[h].1.get(&(*tree, *n)) != Some(value) && own(&path, found.version) {
                assert!(self.alive.remove(value));
            }
        }
        self.alive.extend(self.holders[h].1.values());
        let steps = tx.ops().len();
        self.maps.apply(&tx);
        self.saw(if steps > 3 { "changes of several trees" } else { "changes" });
    }

    fn fork(&mut self, h: usize) {
        if self.holders.len() < HOLDERS_MAX {
            self.log.push(format!("fork of holder {h}"));
            let mut tx = Transaction::new();
            share(&self.maps, &mut tx, &mut self.holders[h].0).unwrap();
            self.maps.apply(&tx);
            let (holder, copy) = &self.holders[h];
            let fork = (*holder, copy.clone());
            self.holders.push(fork);
        }
    }

    /// Compares every holder with its copy, and the index with the entries.
    fn check(&mut self) {
        for (h, (holder, copy)) in self.holders.iter().enumerate() {
            let path = Path::load(&self.maps, *holder).unwrap();
            for tree in TREES {
                let mut listed = Copy::new();
                let number: BTreeMap<Vec<u8>, u64> = (0..PREFIXES).map(|n| (prefix(tree, n), n)).collect();
                let from = prefix(tree, self.random.below(PREFIXES));
                scan(&self.maps, &path, tree, &from[..16], &from[..8], &mut |at, _, value| {
                    let value = u64::from_le_bytes(value.try_into().unwrap());
                    assert!(listed.insert((tree.0, number[at]), value).is_none(), "a prefix twice");
                    Ok(true)
                })
                .unwrap();
                let mut expect = copy.clone();
                expect.retain(|(t, n), _| *t == tree.0 && prefix(tree, *n)[..16] >= from[..16]);
                assert_eq!(listed, expect, "a scan of holder {h}, tree {}", tree.0);
                for n in 0..PREFIXES {
                    let found = find(&self.maps, &path, tree, &prefix(tree, n)).unwrap();
                    let found = found.map(|f| u64::from_le_bytes(f.value.try_into().unwrap()));
                    assert_eq!(found, copy.get(&(tree.0, n)).copied(), "holder {h}, {}:{n}", tree.0);
                }
            }
        }
        let (mut held, mut stored) = (BTreeSet::new(), BTreeSet::new());
        for tree in TREES {
            for (key, value) in self.maps.of(tree) {
                let (at, version) = split(tree, key).unwrap();
                if is_listed(FAMILY, version) {
                    held.insert(held_key(FAMILY, version, tree, place_of(at)));
                }
                if !value.is_empty() {
                    let value = u64::from_le_bytes(value.as_slice().try_into().unwrap());
                    assert!(stored.insert(value), "value {value} is stored twice");
                }
            }
        }
        assert_eq!(self.maps.of(TreeId::HELD).map(|(key, _)| key.clone()).collect::<BTreeSet<_>>(), held);
        assert_eq!(stored, self.alive, "what is stored, and what nobody was told is gone");
    }

    fn step(&mut self) {
        let h = self.some_holder();
        match self.random.below(100) {
            0..60 => self.change(h),
            60..75 => self.fork(h),
            _ => return,
        }
        self.check();
    }
}

/// Runs one seed; gives the situations it met, or what went wrong.
fn run(seed: u64) -> std::result::Result<BTreeMap<&'static str, u64>, String> {
    let mut world = World::new(seed);
    let failed = catch_unwind(AssertUnwindSafe(|| {
        for _ in 0..120 {
            world.step();
        }
    }));
    let Err(why) = failed else { return Ok(world.seen) };
    let why = why.downcast_ref::<String>().cloned().or(why.downcast_ref::<&str>().map(|s| (*s).to_string()));
    let tail = world.log.iter().rev().take(12).rev().cloned().collect::<Vec<_>>().join("\n  ");
    Err(format!("seed {seed} (run({seed}) repeats it): {}\n  {tail}", why.unwrap_or_default()))
}

/// Goal: any sequence of puts, deletes and forks over three trees reads like a full copy a holder, with an exact
/// index, and no value vanishes but those that a holder replaced in its own version. Method: random steps beside the
/// copies, all compared after each.
#[test]
fn beside_full_copies() {
    let mut seen: BTreeMap<&'static str, u64> = BTreeMap::new();
    for seed in 0..100 {
        let more = run(seed).unwrap_or_else(|why| panic!("{why}"));
        more.into_iter().for_each(|(what, n)| *seen.entry(what).or_default() += n);
    }
    assert!(seen.len() == 2 && seen.values().all(|n| *n > 20), "a situation was hardly met: {seen:?}");
}
