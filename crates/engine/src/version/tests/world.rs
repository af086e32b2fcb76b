//! Files, each with a full copy of what it sees, and what can be done to them: every operation is one transaction, and
//! every step reloads what it knows from the records, so a crash between any two transactions is the ordinary case here.

use varve_format::record::version::{self, Drain, VersionRecord};

use super::super::family::Family;
use super::super::resolve::FILE_END;
use super::super::rows::Kind;
use super::super::sweep::Memory;
use super::super::truncate::truncate_within;
use super::model::CHOICES;
use super::*;
use crate::transaction::Op;

pub(super) struct File {
    pub(super) holder: Holder,
    /// Block of the file -> block of the pool, or number of a reservation ([`RESERVATIONS`]).
    pub(super) blocks: BTreeMap<u64, u64>,
}

pub(super) struct World {
    pub(super) maps: Maps,
    pub(super) random: Random,
    pub(super) families: Vec<FamilyId>,
    /// The holders, each with a full copy of what it sees.
    pub(super) files: Vec<File>,
    /// Blocks placed and not freed.
    pub(super) live: BTreeSet<u64>,
    pub(super) next_block: u64,
    /// Blocks of reservations that are stored, by what the operations said.
    pub(super) reserved: u64,
    /// And extents, by what the functions say.
    pub(super) reserved_extents: i64,
    pub(super) next_reservation: u64,
    next_id: u64,
    /// What the reaper remembers, however much has changed since.
    memory: ReaperMemory,
    /// Whether steps of the reaper get lost, and what it remembers.
    pub(super) loses: bool,
    /// Whether a family with one holder may keep a version that is not like its first: the larger side has moved.
    pub(super) keeps_records: bool,
    /// Where the next transaction's data and the reaper's last words came from.
    pub(super) log: Vec<String>,
    /// Situations that the run has been in, and how often.
    pub(super) seen: BTreeMap<&'static str, u64>,
}

/// Holders there are at most.
const FILES_MAX: usize = 7;

impl World {
    pub(super) fn new(seed: u64, families: u64) -> World {
        let files =
            (0..families).map(|f| File { holder: Holder::new(FamilyId(5 + f)), blocks: BTreeMap::new() });
        World {
            maps: Maps::default(),
            random: Random(seed),
            families: (0..families).map(|f| FamilyId(5 + f)).collect(),
            files: files.collect(),
            live: BTreeSet::new(),
            next_block: 16,
            reserved: 0,
            reserved_extents: 0,
            next_reservation: RESERVATIONS,
            next_id: 100,
            memory: ReaperMemory::default(),
            loses: true,
            keeps_records: PLANTED.get().contains(&Planted::LargerSide),
            log: Vec::new(),
            seen: BTreeMap::new(),
        }
    }

    pub(super) fn saw(&mut self, what: &'static str) {
        *self.seen.entry(what).or_default() += 1;
    }
    fn saw_drain(&mut self, f: usize, none: &'static str, up: &'static str, down: &'static str) {
        let holder = self.files[f].holder;
        self.saw(match pending::record(&self.maps, holder.family, holder.version).unwrap().drain {
            Drain::None => none,
            Drain::Up => up,
            Drain::Down => down,
        });
    }

    pub(super) fn allocate(&mut self, blocks: u64) -> Run {
        self.next_block += self.random.below(2);
        let run = Run { addr: PoolAddr::from_block(self.next_block), blocks: blocks as u32 };
        self.next_block += blocks;
        self.live.extend(run.addr.block()..run.addr.block() + blocks);
        run
    }

    /// Applies a transaction; refuses one that names a key twice or frees what is not used.
    pub(super) fn apply(&mut self, tx: &Transaction) {
        let settled = self.maps.settled(tx);
        self.maps.note(tx);
        let mut seen = BTreeSet::new();
        let of_keyframes = |ops: &[Op]| {
            ops.iter().filter(|op| matches!(op, Op::Delete { tree: TreeId::KEYFRAMES, .. })).count()
        };
        if of_keyframes(&settled) > of_keyframes(tx.ops()) {
            self.saw("keyframe outdated");
        }
        for op in &settled {
            match op {
                Op::Put { tree, key, value } => {
                    assert!(seen.insert((tree.0, key.to_vec())), "a key is named twice");
                    self.maps.trees.insert((tree.0, key.to_vec()), value.to_vec());
                }
                Op::Delete { tree, key } => {
                    assert!(seen.insert((tree.0, key.to_vec())), "a key is named twice");
                    let gone = self.maps.trees.remove(&(tree.0, key.to_vec()));
                    assert!(gone.is_some(), "a delete of nothing");
                }
                Op::Free { run } => {
                    for block in run.addr.block()..run.addr.block() + u64::from(run.blocks) {
                        assert!(self.live.remove(&block), "block {block} is freed twice");
                    }
                }
                Op::Place { .. } | Op::IdFloor(_) => (),
            }
        }
    }

    /// The same for one that ends reservations of so many blocks.
    pub(super) fn apply_freeing(&mut self, tx: &Transaction, freed: Unreserved) {
        self.apply(tx);
        self.ended(freed);
    }

    /// A block of the file: mostly near the start, sometimes very far away.
    pub(super) fn some_block(&mut self) -> u64 {
        let far = if self.random.below(12) == 0 { (1 << 30) * SEGMENT_BLOCKS } else { 0 };
        far + self.random.below(3 * SEGMENT_BLOCKS)
    }
    pub(super) fn new_id(&mut self) -> VersionId {
        self.next_id += 1;
        VersionId(self.next_id)
    }
    pub(super) fn some_length(&mut self) -> u64 {
        let most = self.random.pick(&[2, 6, 20, 20, 300]);
        1 + self.random.below(most)
    }

    /// The path of a file that may write: who shares its version moves to a new one in the same transaction.
    pub(super) fn writable(&mut self, f: usize, tx: &mut Transaction) -> Path {
        let mut holder = self.files[f].holder;
        let path = Path::load(&self.maps, holder).unwrap();
        if path.writable() {
            return path;
        }
        self.saw("moved by a write");
        let id = self.new_id();
        let path = branch(&self.maps, tx, &mut holder, &mut || id, false).unwrap();
        self.files[f].holder = holder;
        path
    }

    /// A new file that holds the same.
    pub(super) fn fork(&mut self, f: usize) {
        let mut tx = Transaction::new();
        let mut holder = self.files[f].holder;
        share(&self.maps, &mut tx, &mut holder).unwrap();
        self.saw("shared");
        self.log.push(format!("share {f}: {holder:?}"));
        self.apply(&tx);
        self.files[f].holder = holder;
        let blocks = self.files[f].blocks.clone();
        self.files.push(File { holder, blocks });
    }

    /// A copy that is made and written, or cut, in one transaction.
    pub(super) fn copy_up(&mut self, f: usize) {
        let mut tx = Transaction::new();
        let (mut holder, id) = (self.files[f].holder, self.new_id());
        let mut blocks = self.files[f].blocks.clone();
        if self.random.below(2) == 0 {
            let path = branch(&self.maps, &mut tx, &mut holder, &mut || id, true).unwrap();
            let (at, run) = (self.some_block(), self.allocate(3));
            let done = put_extents(&self.maps, &mut tx, &path, &[(at * BLOCK, run)]).unwrap();
            self.ended(done.reserved_freed);
            blocks.extend((0..3).map(|b| (at + b, run.addr.block() + b)));
            self.saw("copied and written");
        } else {
            let cut = self.some_block();
            let done =
                truncate_kept(&self.maps, &mut tx, &mut holder, &mut || id, cut * BLOCK, None).unwrap();
            assert!(done.path.writable() && (!done.reap || done.path.has_inner()));
            self.ended(done.reserved_freed);
            blocks.retain(|b, _| *b < cut);
            self.saw("copied and cut");
        }
        self.log.push(format!("copy {f}: {holder:?}"));
        self.apply(&tx);
        self.files[f].holder.has_versions = true;
        self.files.push(File { holder, blocks });
    }

    /// Takes a range out, or makes room, if the file has but one version.
    pub(super) fn shift(&mut self, f: usize) {
        let holder = self.files[f].holder;
        let path = Path::load(&self.maps, holder).unwrap();
        let alone = path.writable() && path.versions() == 1;
        let (at, remove, insert) =
            (self.random.below(3 * SEGMENT_BLOCKS), self.some_length(), self.random.pick(&[0, 1, 300]));
        self.log.push(format!("shift {f} at {at} by -{remove} +{insert}"));
        let mut tx = Transaction::new();
        let (at_byte, gone, room) = (at * BLOCK, remove * BLOCK, insert * BLOCK);
        let moved = if alone {
            self.saw(if path.head().key.0 == path.family().0 { "moved" } else { "moved, with an index" });
            shift(&self.maps, &mut tx, &path, at_byte, gone, room)
        } else if self.random.below(4) == 0 {
            self.saw("moved away");
            let family = FamilyId(self.new_id().0);
            self.families.push(family);
            release(&self.maps, &mut tx, holder).unwrap();
            self.files[f].holder = Holder::new(family);
            self.files[f].blocks.retain(|_, at| *at < RESERVATIONS);
            shift_away(&self.maps, &mut tx, &path, family, at_byte, gone, room)
        } else {
            return;
        };
        self.ended(moved.unwrap().expect("little is moved").reserved_freed);
        self.apply(&tx);
        let old = std::mem::take(&mut self.files[f].blocks);
        let kept = old.into_iter().filter(|(b, _)| !(at..at + remove).contains(b));
        self.files[f].blocks = kept.map(|(b, p)| (if b < at { b } else { b - remove + insert }, p)).collect();
    }

    pub(super) fn put(&mut self, f: usize) {
        let (mut at, mut pieces, mut new) = (self.some_block(), Vec::new(), Vec::new());
        for _ in 0..1 + self.random.below(4) {
            let run = {
                let length = self.some_length();
                self.allocate(length)
            };
            pieces.push((at * BLOCK, run));
            new.extend((0..u64::from(run.blocks)).map(|b| (at + b, run.addr.block() + b)));
            at += u64::from(run.blocks) + self.random.pick(&[0, 0, 1, 40, 300]);
        }
        self.log.push(format!("put {f} {pieces:?}"));
        self.saw_drain(f, "write, no drain", "write, up", "write, down");
        let given = self.given_back(f, &pieces);
        let mut tx = Transaction::new();
        let path = self.writable(f, &mut tx);
        let done = put_extents(&self.maps, &mut tx, &path, &pieces).unwrap();
        self.ended(done.reserved_freed);
        self.apply(&tx);
        let (reserved, data): (Vec<u64>, Vec<u64>) = given.into_iter().partition(|at| *at >= RESERVATIONS);
        let stays = data.iter().find(|block| self.live.contains(block));
        assert!(stays.is_none(), "block {stays:?} should have been given back");
        assert!(
            reserved.len() as u64 <= done.reserved_freed.blocks,
            "{} reserved blocks, freed {done:?}",
            reserved.len()
        );
        self.files[f].blocks.extend(new);
    }

    pub(super) fn punch(&mut self, f: usize) {
        let from = self.some_block();
        let to = from + self.some_length();
        let max = self.random.pick(&[1, 4, 1000]);
        self.log.push(format!("punch {f} {from}..{to} {max}"));
        let mut at = from * BLOCK;
        self.saw_drain(f, "hole, no drain", "hole, up", "hole, down");
        loop {
            let mut tx = Transaction::new();
            let path = self.writable(f, &mut tx);
            let progress = punch(&self.maps, &mut tx, &path, at, to * BLOCK, max).unwrap();
            self.ended(progress.reserved_freed);
            self.apply(&tx);
            self.files[f].blocks.retain(|b, _| !(at / BLOCK..progress.next / BLOCK).contains(b));
            at = progress.next;
            self.check();
            if !progress.more {
                assert_eq!(at, to * BLOCK);
                break;
            }
        }
    }

    pub(super) fn truncate(&mut self, f: usize) {
        let size = self.some_block() * BLOCK + self.random.pick(&[0, 0, 1, 4095]);
        let cut = size / BLOCK;
        let has_tail =
            !size.is_multiple_of(BLOCK) && self.files[f].blocks.get(&cut).is_some_and(|b| *b < RESERVATIONS);
        let tail = has_tail.then(|| self.allocate(1));
        let at_once = self.random.pick(&[0, 0, 3, 256]);
        self.log.push(format!("truncate {f} to {size} ({cut}) {tail:?} {at_once}"));
        let mut tx = Transaction::new();
        let mut holder = self.files[f].holder;
        let (id, before) = (self.new_id(), holder.version);
        let done =
            truncate_within(&self.maps, &mut tx, &mut holder, &mut || id, size, tail, at_once).unwrap();
        self.ended(done.reserved_freed);
        let at_once = holder.version == before;
        self.saw(if at_once { "cut at once" } else { "child opened" });
        if !at_once && !done.reap {
            self.saw("child opened, parent held");
        }
        if at_once {
            self.saw_drain(f, "cut at once, no drain", "cut at once, up", "cut at once, down");
            let lowered = tx.ops().iter().any(|op| matches!(op, Op::Put { tree: TreeId::VERSIONS, .. }));
            self.saw(if lowered { "limit lowered" } else { "limit kept" });
        }
        self.apply(&tx);
        self.files[f].holder = holder;
        self.files[f].blocks.retain(|b, _| *b < size.div_ceil(BLOCK));
        if let Some(run) = tail {
            self.files[f].blocks.insert(cut, run.addr.block());
        }
        let loaded = Path::load(&self.maps, holder).unwrap();
        let steps = |path: &Path| (0..path.versions()).map(|at| path.step(at)).collect::<Vec<_>>();
        assert_eq!(
            steps(&done.path),
            steps(&loaded),
            "the path that truncate gives is the one in the records"
        );
        assert_eq!((done.path.own(), done.path.writable()), (loaded.own(), loaded.writable()));
    }

    /// One step of the reaper; false when it is idle.
    pub(super) fn reap(&mut self, family: FamilyId) -> bool {
        let max = self.random.pick(&[1, 3, 50, 5000]);
        let mut tx = Transaction::new();
        let choice = PLANTED.get();
        if choice.contains(&Planted::YoungestFirst) && self.random.below(3) == 0 {
            // In between another collapse is preferred, and may be begun if its neighbours allow.
            PLANTED.set(if choice.contains(&Planted::LargerSide) { CHOICES[1] } else { CHOICES[0] });
        }
        let progress = reap_step(&self.maps, &mut tx, family, max, &mut self.memory).unwrap();
        PLANTED.set(choice);
        assert!(progress.more || tx.is_empty());
        self.saw_rows();
        self.log.push(format!("reap {} {max}: {progress:?}", family.0));
        if hands_a_recheck_on(&tx) {
            self.saw("recheck handed on");
        }
        for op in tx.ops() {
            match op {
                Op::Delete { tree: TreeId::REAP, key } if key.to_vec()[8] == 2 => {
                    self.saw("version rechecked")
                }
                Op::Delete { tree: TreeId::REAP, key } if key.to_vec()[8] == 3 => self.saw("place rechecked"),
                Op::Put { tree: TreeId::REAP, value, .. } if !value.is_empty() => self.saw("cursor kept"),
                _ => (),
            }
        }
        match self.random.below(40) {
            _ if !self.loses => self.apply_freeing(&tx, progress.reserved_freed),
            // A crash before it, or an error: all that is remembered is of a step that has not been.
            0 if !tx.is_empty() => self.saw("step not applied"),
            1 if !tx.is_empty() => {
                self.saw("step not applied, and forgotten");
                self.memory.forget();
            }
            // A crash after it.
            2..6 => {
                self.apply_freeing(&tx, progress.reserved_freed);
                self.memory.forget();
            }
            _ => self.apply_freeing(&tx, progress.reserved_freed),
        }
        progress.more
    }

    /// What the sweep that goes on does together.
    fn saw_rows(&mut self) {
        let Memory::Sweep(sweep) = &self.memory.sweep else { return };
        let rows: Vec<_> = sweep.rows().collect();
        for (kind, members) in &rows {
            match kind {
                Kind::Dead if *members > 1 => self.saw("dead row"),
                Kind::Dead => self.saw("dead beside others"),
                Kind::Pair(Drain::Up) => self.saw("pair beside others, up"),
                Kind::Pair(_) => self.saw("pair beside others, down"),
                Kind::Joined { target: 0 } if *members > 3 => self.saw("long row, into the oldest"),
                Kind::Joined { target: 0 } => self.saw("row, into the oldest"),
                Kind::Joined { target } if target + 1 == *members => self.saw("row, into the youngest"),
                Kind::Joined { .. } => self.saw("row, into one between"),
            }
        }
    }

    /// Snapshots with changes between them, and their ends, in any order and with the reaper at work or not.
    pub(super) fn snapshots(&mut self, f: usize) {
        let first = self.files.len();
        for _ in 0..2 + self.random.below(5) {
            self.fork(f);
            match self.random.below(6) {
                0..4 => self.put(f),
                4 => self.punch(f),
                _ => self.truncate(f),
            }
        }
        let steps = self.random.pick(&[0, 0, 1, 4]);
        let kept = self.random.pick(&[0, 0, 1]);
        while self.files.len() > first + kept {
            let one = first + self.random.below((self.files.len() - first) as u64) as usize;
            let family = self.files[one].holder.family;
            self.let_go(one);
            for _ in 0..steps {
                self.reap(family);
                self.check();
            }
        }
    }

    pub(super) fn idle(&mut self) {
        for family in self.families.clone() {
            let mut steps = 0;
            while self.reap(family) {
                self.check();
                steps += 1;
                assert!(steps < 20_000, "the reaper does not end");
            }
        }
        let seen: BTreeSet<u64> = self.files.iter().flat_map(|f| f.blocks.values().copied()).collect();
        let reservations = seen.iter().filter(|block| **block >= RESERVATIONS).count() as u64;
        assert_eq!(self.reserved, reservations, "what is set aside is not exactly what somebody sees so");
        let seen: BTreeSet<u64> = seen.into_iter().filter(|block| *block < RESERVATIONS).collect();
        assert!(self.live == seen, "stored is not exactly what is seen");
        for family in &self.families {
            let versions = Family::load(&self.maps, *family).unwrap();
            for key in
                self.maps.trees.keys().filter(|(tree, key)| {
                    *tree == TreeId::VERSIONS.0 && key.starts_with(&family.0.to_be_bytes())
                })
            {
                let (_, id) = version::decode_key(&key.1).unwrap();
                let version = versions.version(id).unwrap();
                assert!(version.refs > 0 || version.children >= 2, "a version that should be gone");
                assert_ne!(*version, VersionRecord::implicit(*family), "a record that says nothing");
            }
            assert_eq!(self.maps.count(TreeId::REAP, *family), 0);
            let holders = self.files.iter().filter(|file| file.holder.family == *family).count();
            if holders < 2 && !self.keeps_records {
                let left = [TreeId::VERSIONS, TreeId::HELD].map(|tree| self.maps.count(tree, *family));
                assert_eq!(left, [0, 0], "records and index of a family with {holders} holders");
            }
        }
        assert_eq!(pending_families(&self.maps, None, 10).unwrap(), (vec![], None));
    }

    /// Compares every file with its model, and what is stored with what is used.
    pub(super) fn check(&mut self) {
        let (mut used, mut problems) = (BTreeMap::new(), Vec::new());
        for f in 0..self.files.len() {
            let File { holder, blocks } = &self.files[f];
            let path = Path::load(&self.maps, *holder).unwrap();
            let all = resolve(&self.maps, &path, 0, FILE_END).unwrap();
            let expect: Vec<(u64, u64)> = blocks.iter().map(|(a, b)| (*a, shown(*b))).collect();
            same(&listed(&all, 0, FILE_END), &expect, &format!("file {f}"));
            // Any part of it, whole and in small portions, says the same.
            let base = if self.random.below(4) == 0 { (1 << 30) * SEGMENT_BYTES } else { 0 };
            let from = base + self.random.below(3 * SEGMENT_BYTES);
            let to = from + self.random.below(SEGMENT_BYTES);
            let (low, high) = (from / BLOCK, to.div_ceil(BLOCK));
            let part = resolve(&self.maps, &path, from, to).unwrap();
            let inside: Vec<(u64, u64)> = blocks.range(low..high).map(|(a, b)| (*a, shown(*b))).collect();
            same(
                &listed(&part, low * BLOCK, high * BLOCK),
                &inside,
                &format!("file {f} from {from} to {to}"),
            );
            let (mut portions, mut at) = (Vec::new(), low * BLOCK);
            while at < high * BLOCK {
                let few = 1 + self.random.below(3) as usize;
                let some = match self.random.below(2) {
                    0 => resolve_upto(&self.maps, &path, at, high * BLOCK, few),
                    _ => resolve_some(&self.maps, &path, at, high * BLOCK, usize::MAX, few - 1),
                };
                let some = some.unwrap();
                at = some.last().map(|m| m.offset + m.len).unwrap();
                portions.extend(some);
            }
            same(&listed(&portions, low * BLOCK, high * BLOCK), &inside, &format!("file {f} in portions"));
        }
        self.check_map();
        self.check_changes();
        self.check_ways();
        for family in &self.families {
            let holders: Vec<Holder> =
                self.files.iter().map(|file| file.holder).filter(|holder| holder.family == *family).collect();
            if holders.is_empty() && self.maps.count(TreeId::VERSIONS, *family) == 0 {
                assert_eq!(self.maps.count(TreeId::EXTENTS, *family), 0);
                continue;
            }
            let mut each = |_: u64, run: Run| {
                for block in run.addr.block()..run.addr.block() + u64::from(run.blocks) {
                    *used.entry(block).or_insert(0) += 1;
                }
            };
            walk_family(&self.maps, *family, &holders, &mut each, &mut problems).unwrap();
        }
        assert_eq!(problems, []);
        let books = (self.reserved, self.reserved_extents);
        assert_eq!(self.stored_reservations(), books, "the books of reservations are wrong");
        assert!(used.keys().eq(&self.live), "used and placed blocks differ");
        let more: BTreeMap<u64, u64> =
            used.into_iter().filter(|(_, n)| *n > 1).map(|(block, n)| (block, n - 1)).collect();
        assert!(more == self.maps.counted(), "blocks are named by other numbers of entries than is counted");
    }

    /// Compares the ranges in which two files are said to differ with their models.
    fn check_changes(&mut self) {
        if self.files.is_empty() {
            return;
        }
        let files = self.files.len() as u64;
        let (a, b) = (self.random.below(files) as usize, self.random.below(files) as usize);
        let (max, (old, new)) = (self.random.pick(&[1, 3, 1000]), (&self.files[a], &self.files[b]));
        let (mut from, mut told) = (Some(0), BTreeMap::new());
        while let Some(at) = from {
            let page = data_changes(&self.maps, Some(old.holder), Some(new.holder), at, max).unwrap();
            for range in &page.ranges {
                assert!(range.offset >= at && range.len.is_multiple_of(BLOCK));
                assert!(range.len / BLOCK < 10_000, "a range without end: {range:?}");
                told.extend((0..range.len / BLOCK).map(|n| (range.offset / BLOCK + n, range.zeros)));
            }
            assert!(page.next.is_none_or(|next| next > at));
            from = page.next;
        }
        let data = |file: &File, at| file.blocks.get(at).copied().filter(|block| *block < RESERVATIONS);
        let all: BTreeSet<u64> = old.blocks.keys().chain(new.blocks.keys()).copied().collect();
        let differs = all.iter().filter(|at| data(old, at) != data(new, at));
        let expect: BTreeMap<_, _> = differs.map(|at| (*at, data(new, at).is_none())).collect();
        let odd = told.iter().find(|(at, zeros)| expect.get(at) != Some(zeros));
        assert!(told == expect, "changes from file {a} to {b}: {odd:?}, {} of {}", told.len(), expect.len());
        if a != b && old.holder.family == new.holder.family && !expect.is_empty() {
            self.saw("changed since");
        }
    }

    /// Compares the map of a file, page by page, with its model and with who else has the same blocks.
    fn check_map(&mut self) {
        if self.files.is_empty() {
            return;
        }
        let f = self.random.below(self.files.len() as u64) as usize;
        let holder = self.files[f].holder;
        let pages_of = self.random.pick(&[1, 40, 4000]);
        let (mut at, mut got, mut kinds) = (0, Vec::new(), BTreeSet::new());
        while at < FILE_END {
            let page = map(&self.maps, holder, false, at, FILE_END, pages_of).unwrap();
            for piece in &page.pieces {
                assert_eq!((piece.offset, piece.len % BLOCK), (at, 0), "a gap in the map of file {f}");
                at += piece.len;
                let (first, blocks) = (piece.offset / BLOCK, piece.len / BLOCK);
                match piece.kind {
                    ExtentKind::Hole => assert!(!piece.shared),
                    ExtentKind::Reserved => got.extend((0..blocks).map(|b| (first + b, RESERVED, None))),
                    ExtentKind::Data => {
                        kinds.insert(piece.shared);
                        let block = piece.addr.block();
                        got.extend((0..blocks).map(|b| (first + b, block + b, Some(piece.shared))));
                    }
                }
            }
            assert_eq!(page.next, at);
        }
        // What only one extent names is in the same place of everybody who has it: only files that share nothing are moved.
        let counted = self.maps.counted();
        let others: Vec<&File> =
            self.files.iter().enumerate().filter(|(o, _)| *o != f).map(|(_, o)| o).collect();
        let shared = |at: &u64, block: &u64| {
            counted.contains_key(block) || others.iter().any(|other| other.blocks.get(at) == Some(block))
        };
        let expect = self.files[f].blocks.iter();
        let expect: Vec<_> = expect
            .map(|(at, block)| (*at, shown(*block), (*block < RESERVATIONS).then(|| shared(at, block))))
            .collect();
        let differs = got.iter().zip(&expect).find(|(got, expect)| got != expect);
        assert!(differs.is_none() && got.len() == expect.len(), "the map of file {f}: {differs:?}");
        if kinds.len() == 2 {
            self.saw("shared in part");
        }
    }

    pub(super) fn step(&mut self) {
        let family = self.families[self.random.below(self.families.len() as u64) as usize];
        if self.files.is_empty() {
            self.reap(family);
            return self.check();
        }
        let f = self.random.below(self.files.len() as u64) as usize;
        let room = self.files.len() < FILES_MAX;
        match self.random.below(100) {
            0..18 => self.put(f),
            18..25 => {
                let g = self.random.below(self.files.len() as u64) as usize;
                self.share_range(f, g);
            }
            25..33 => self.punch(f),
            33..36 => self.reserve(f),
            36..38 => self.spend(f),
            38..41 => self.shift(f),
            41..51 => self.truncate(f),
            51..55 if room => self.fork(f),
            55..58 if room => self.snapshots(f),
            58..62 if room => self.copy_up(f),
            62..70 if self.files.len() > 2 => self.let_go(f),
            70..97 => drop(self.reap(family)),
            97.. => self.idle(),
            _ => (),
        }
        self.check();
        self.keyframes();
    }

    /// Makes the keyframes that whoever looked wanted, or some, or none.
    pub(super) fn keyframes(&mut self) {
        let mut left = self.random.pick(&[0, 1, 8, 1000]);
        while left > 0
            && let Some((family, id, segments)) = self.maps.known.keyframes.take(1 + left % 3)
        {
            left -= 1;
            let mut tx = Transaction::new();
            let made = make_keyframes(&self.maps, &mut tx, family, id, &segments).unwrap();
            self.log.push(format!("{made} keyframes of {} for {} in {segments:?}", family.0, id.0));
            if tx.ops().iter().any(|op| matches!(op, Op::Delete { .. })) {
                self.saw("keyframe made room");
            }
            self.saw(if made > 0 { "keyframe made" } else { "keyframe of no use" });
            self.apply(&tx);
        }
        self.maps.known.keyframes.forget();
    }

    /// A holder ends; the reaper takes the rest.
    pub(super) fn let_go(&mut self, f: usize) {
        let file = self.files.remove(f);
        let mut tx = Transaction::new();
        let last = release(&self.maps, &mut tx, file.holder).unwrap();
        self.saw(if last { "last holder of a version gone" } else { "holder gone" });
        self.log.push(format!("release {f}: {:?}", file.holder));
        self.apply(&tx);
    }

    /// A holder ends as a deleted file does: with all there is, if it is the only one.
    pub(super) fn delete(&mut self, f: usize) {
        let holder = self.files[f].holder;
        if self.random.below(2) == 0 || !is_sole(&self.maps, holder).unwrap() {
            self.let_go(f);
            return self.check();
        }
        self.files.remove(f);
        self.saw("deleted with its family");
        loop {
            let max = self.random.pick(&[1, 3, 50]);
            let mut tx = Transaction::new();
            let progress = delete_step(&self.maps, &mut tx, holder, max).unwrap();
            self.apply_freeing(&tx, progress.reserved_freed);
            if !progress.more {
                break;
            }
            // Between two steps the power may fail, or somebody may look.
            let mut problems = Vec::new();
            walk_family(&self.maps, holder.family, &[holder], &mut |_, _| (), &mut problems).unwrap();
            assert_eq!(problems, [], "of a family that is deleted in part");
            self.saw("deleted in part");
            assert!(is_sole(&self.maps, holder).unwrap());
        }
        self.gone(holder.family);
        self.check();
    }

    /// Nothing is left of a family.
    pub(super) fn gone(&self, family: FamilyId) {
        for tree in [TreeId::EXTENTS, TreeId::VERSIONS, TreeId::HELD, TreeId::REAP] {
            assert_eq!(self.maps.count(tree, family), 0, "{}", tree.name());
        }
    }
}
