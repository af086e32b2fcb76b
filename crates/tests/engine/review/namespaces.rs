//! Forked namespaces through the store's door: crashes between and inside all steps.

use varve_engine::version::ReaperMemory;
use varve_engine::version::points::{self, find, reap_points_step, walk_points};
use varve_engine::version::{Holder, Path, branch, release, share};
use varve_engine::{FamilyId, VersionId};

use super::*;

const TREES: [(TreeId, usize); 3] = [(TreeId::INODES, 16), (TreeId::NAMES, 24), (TreeId::XATTRS, 26)];
const PREFIXES: u64 = 8;

/// What a holder should see.
type Copy = BTreeMap<(u16, u64), u64>;
/// Holders by number, each with its copy.
type Model = BTreeMap<u64, (Holder, Copy)>;

fn prefix(family: FamilyId, len: usize, n: u64) -> Vec<u8> {
    let mut out = vec![0; len];
    out[..8].copy_from_slice(&family.0.to_be_bytes());
    out[8..16].copy_from_slice(&(n / 2 + 1).to_be_bytes());
    out[len - 1] = n as u8;
    out
}

/// Stores a holder, as the record of a subvolume does.
fn keep(tx: &mut Transaction, number: u64, holder: Holder) {
    let value = [holder.version.0.to_le_bytes(), u64::from(holder.has_versions).to_le_bytes()].concat();
    tx.put(TreeId::SUBVOLUMES, &number.to_be_bytes(), &value);
}

struct Life {
    store: Arc<Store>,
    family: FamilyId,
    model: Model,
    /// What was true after each transaction.
    history: BTreeMap<Lsn, Model>,
    next: u64,
}

impl Life {
    fn apply(&mut self, tx: Transaction) {
        let lsn = self.store.apply(tx, None).expect("applies");
        self.history.insert(lsn, self.model.clone());
    }

    fn change(&mut self, number: u64, rng: &mut Rng) {
        let (view, mut tx) = (self.store.view(), Transaction::new());
        let (holder, copy) = self.model.get_mut(&number).expect("it is there");
        let mut path = Path::load(&view, *holder).expect("loads");
        if !path.writable() {
            let new_id = &mut || VersionId(self.store.new_id());
            path = branch(&view, &mut tx, holder, new_id, false).expect("opens");
            keep(&mut tx, number, *holder);
        }
        for _ in 0..1 + rng.below(3) {
            let ((tree, len), n) = (TREES[rng.below(3) as usize], rng.below(PREFIXES));
            let at = prefix(self.family, len, n);
            if rng.below(3) == 0 {
                points::delete(&view, &mut tx, &path, tree, &at).expect("deletes");
                copy.remove(&(tree.0, n));
            } else {
                self.next += 1;
                points::put(&view, &mut tx, &path, tree, &at, self.next.to_le_bytes().into()).expect("puts");
                copy.insert((tree.0, n), self.next);
            }
        }
        self.apply(tx);
    }

    fn fork(&mut self, number: u64) {
        let (view, mut tx) = (self.store.view(), Transaction::new());
        let (holder, copy) = self.model.get_mut(&number).expect("it is there");
        share(&view, &mut tx, holder).expect("shares");
        let other = (*holder, copy.clone());
        self.next += 1;
        keep(&mut tx, number, other.0);
        keep(&mut tx, self.next, other.0);
        self.model.insert(self.next, other);
        self.apply(tx);
    }

    fn release(&mut self, number: u64) {
        let (view, mut tx) = (self.store.view(), Transaction::new());
        let (holder, _) = self.model.remove(&number).expect("it is there");
        release(&view, &mut tx, holder).expect("lets go");
        tx.delete(TreeId::SUBVOLUMES, &number.to_be_bytes());
        self.apply(tx);
    }

    fn reap(&mut self, entries_max: u64) -> bool {
        let (view, mut tx) = (self.store.view(), Transaction::new());
        let on_dead = &mut |_: &mut Transaction, _: TreeId, _: &[u8], _: &[u8]| Ok(true);
        let more =
            reap_points_step(&view, &mut tx, self.family, entries_max, &mut ReaperMemory::default(), on_dead)
                .expect("reaps")
                .more;
        self.apply(tx);
        more
    }

    /// Compares all holders with their copies; gives the values stored.
    fn check(&self) -> u64 {
        let view = self.store.view();
        let mut counts: BTreeMap<VersionId, u64> = BTreeMap::new();
        for (number, (holder, copy)) in &self.model {
            let kept = view.get(TreeId::SUBVOLUMES, &number.to_be_bytes()).expect("reads").expect("is kept");
            assert_eq!(kept[..8], holder.version.0.to_le_bytes());
            *counts.entry(holder.version).or_default() += 1;
            let path = Path::load(&view, *holder).expect("loads");
            for (tree, len) in TREES {
                for n in 0..PREFIXES {
                    let found = find(&view, &path, tree, &prefix(self.family, len, n)).expect("finds");
                    let value = copy.get(&(tree.0, n)).map(|value| value.to_le_bytes().to_vec());
                    assert_eq!(found.map(|found| found.value), value, "holder {number}, {}:{n}", tree.0);
                }
            }
        }
        let (counts, mut problems, mut live) = (counts.into_iter().collect::<Vec<_>>(), Vec::new(), 0);
        walk_points(&view, self.family, &counts, &mut problems, &mut |_, _, _| live += 1).expect("walks");
        assert_eq!(problems, []);
        live
    }
}

// Goal: whatever power failure does between and inside the steps of forked namespaces and their reaper, all holders see
// what one moment of the past showed them, everything stored keeps the rules, and reaping ends with exactly what is
// seen. Method: random steps, cut at random points, three lives a seed, a full copy of every holder beside each step.
#[test]
fn namespaces_survive_crashes() {
    for seed in 0..25 {
        let mut rng = Rng::new(seed);
        let mut device = Arc::new(RecordingDevice::new(POOL_BYTES));
        format(&device, Profile::Single, Profile::Dup);
        let store = open(&device);
        let family = FamilyId(store.new_id());
        let mut life = Life { store, family, model: Model::new(), history: BTreeMap::new(), next: 0 };
        life.model.insert(0, (Holder::new(family), Copy::new()));
        let mut tx = Transaction::new();
        tx.claim_id(family.0);
        keep(&mut tx, 0, Holder::new(family));
        life.apply(tx);
        life.store.commit(life.store.position()).expect("commits");
        for _ in 0..3 {
            let start = device.mark();
            for _ in 0..80 {
                let numbers: Vec<u64> = life.model.keys().copied().collect();
                let number = numbers[rng.below(numbers.len() as u64) as usize];
                match rng.below(20) {
                    0..9 => life.change(number, &mut rng),
                    9..11 if numbers.len() < 6 => life.fork(number),
                    11..13 if numbers.len() > 1 => life.release(number),
                    13..18 => drop(life.reap(1 + rng.below(4))),
                    _ => life.store.commit(life.store.position()).expect("commits"),
                }
            }
            life.check();
            let at = start.0 + rng.below((device.mark().0 - start.0) as u64 + 1) as usize;
            let image = device.crash_image(varve_sim::CrashPoint(at), &mut rng, CrashPolicy::Seeded);
            device = Arc::new(RecordingDevice::from_image(image));
            let store = open(&device);
            let position = store.position();
            let (_, model) = life.history.range(..=position).next_back().expect("a moment of the past");
            life = Life { store, family, model: model.clone(), history: life.history, next: life.next };
            life.history.retain(|lsn, _| *lsn <= position);
            life.check();
        }
        while life.reap(3) {
            life.check();
        }
        let seen: std::collections::BTreeSet<u64> =
            life.model.values().flat_map(|(_, copy)| copy.values().copied()).collect();
        assert_eq!(life.check(), seen.len() as u64, "seed {seed}: stored is not exactly what is seen");
        sound(&life.store, &[]);
    }
}
