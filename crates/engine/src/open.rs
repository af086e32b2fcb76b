//! Creating and opening a pool: the checkpoint is loaded, the log replayed, the cut made durable, and only then is
//! anybody served.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

use parking_lot::{Mutex, RwLock};
use quick_cache::sync::Cache;
use varve_device::Device;
use varve_format::root::NodePtr;
use varve_format::superblock::{CUTS_MAX, Cut, INCOMPATIBLE_KNOWN, READ_ONLY_COMPATIBLE_KNOWN, Superblock};
use varve_format::{BLOCK_BYTES, Corrupt, Lsn, Run, TreeId};

use crate::EngineError;
use crate::check::{Damage, Walk};
use crate::checkpoint::Durable;
use crate::checkpoint::arrays::PagePtrs;
use crate::checkpoint::checksums::{self, Checksums, PAGE_BLOCKS};
use crate::core::{Core, Fetched, LogTail, Obstacle, Pending, missed_in};
use crate::journal::Commits;
use crate::journal::recovery::{self, Log};
use crate::options::{FormatOptions, RecoveryReport, StoreOptions};
use crate::planted::{Planted, is};
use crate::pool::{NUMBER_MAX, Pool, format_devices};
use crate::problem::{Judge, Problem, ProblemKind as Kind, Problems};
use crate::space::Space;
use crate::space::bits::{Bits, PAGE_BITS};
use crate::store::{Background, Counters, Store};
use crate::transaction::Op;
use crate::tree::node::Link;
use crate::tree::{NodeSource, Route, Tree};
use crate::unchanged::LogEnd;
use crate::version::Keyframes;

mod background;
mod keyframes;
mod load;

use load::{Source, load_bitmap, load_pages, load_root, load_roots};

type Result<T> = std::result::Result<T, EngineError>;

fn sum_pages(total_blocks: u64) -> usize {
    total_blocks.div_ceil(PAGE_BLOCKS) as usize
}

fn bitmap_pages(total_blocks: u64) -> usize {
    total_blocks.div_ceil(PAGE_BITS) as usize
}

/// Why the log is replayed no further.
enum Halt {
    /// What the next transaction changes is lost.
    Lost(EngineError),
    /// Anything else: then nobody knows what the log says.
    Refused(EngineError),
}

impl Halt {
    /// Reads what the checkpoint refers to. A device that fails is asked once more: that may have been for a moment.
    fn reading<T>(read: impl Fn() -> Result<T>) -> std::result::Result<T, Halt> {
        let result = match read() {
            Err(error) if error.may_pass() => read(),
            result => result,
        };
        result.map_err(Halt::of)
    }

    /// What the checkpoint refers to could not be read.
    fn of(error: EngineError) -> Halt {
        if error.is_damage() { Halt::Lost(error) } else { Halt::Refused(error) }
    }
}

impl From<EngineError> for Halt {
    fn from(error: EngineError) -> Halt {
        Halt::Refused(error)
    }
}

impl Store {
    /// Writes a new, empty pool.
    pub fn format(devices: &[Arc<dyn Device>], options: &FormatOptions) -> Result<()> {
        let superblock = format_devices(devices, options)?;
        let pool = Pool::for_format(devices, &superblock)?;
        let total = superblock.total_blocks;
        let core = Core {
            trees: TreeId::ALL.iter().map(|id| Tree::empty(*id)).collect(),
            generation: 1,
            position: Lsn(0),
            id_floor: 16,
            replaced: Vec::new(),
            space: Space::new(total, u64::from(superblock.metadata.copies)),
            sums: Checksums::new(PagePtrs::new(sum_pages(total))?),
            pending: Pending::default(),
            spare: None,
            spare_steps: Vec::new(),
            spare_runs: Vec::new(),
            route: Route::default(),
            log: LogTail {
                head: superblock.log_start,
                start: superblock.log_start,
                sequence: superblock.log_sequence,
                previous: superblock.log_previous,
                epoch: superblock.epoch,
                ring_bytes: pool.ring_bytes,
            },
        };
        let durable = Durable {
            sums: PagePtrs::new(sum_pages(total))?,
            bitmap: PagePtrs::new(bitmap_pages(total))?,
            root: NodePtr::NULL,
            position: Lsn(u64::MAX),
        };
        let options = StoreOptions {
            read_only: false,
            cache_bytes: 1 << 20,
            background: false,
            ..StoreOptions::default()
        };
        let found = Found { superblock, log_end: LogEnd::default(), bitmap_lost: None };
        let store = assemble(pool, found, core, durable, options, Commits::new(Lsn(0), 0));
        store.checkpoint_as(true)
    }

    /// Opens a pool, recovering it if it was not closed.
    pub fn open(
        devices: Vec<Arc<dyn Device>>,
        options: StoreOptions,
    ) -> Result<(Arc<Store>, RecoveryReport)> {
        Store::open_as(devices, options, Judge::Refuse)
    }

    /// Opens a pool to check it, damaged as it may be: read-only, and without the parts that cannot be used.
    /// [`Store::check`] says what was found. An error means that it cannot even be told what the pool is.
    pub fn open_to_check(
        devices: Vec<Arc<dyn Device>>,
        options: StoreOptions,
    ) -> Result<(Arc<Store>, RecoveryReport)> {
        let options = StoreOptions { read_only: true, background: false, ..options };
        Store::open_as(devices, options, Judge::Note(Problems::default()))
    }

    fn open_as(
        devices: Vec<Arc<dyn Device>>,
        options: StoreOptions,
        mut judge: Judge,
    ) -> Result<(Arc<Store>, RecoveryReport)> {
        let (pool, superblock, newer) = Pool::open(devices)?;
        let unseen = newer.judge(options.read_only, &mut judge)?;
        let unknown = superblock.read_only_compatible & !READ_ONLY_COMPATIBLE_KNOWN;
        if unknown != 0 && !options.read_only {
            return Err(EngineError::Refused(format!(
                "the pool uses features that whoever writes to it must know, and this program does not ({unknown:#x}): open it for \
                 reading, or with a newer program"
            )));
        }
        if !options.read_only {
            pool.require_ours()?;
        }
        let log = recovery::read_log(&pool, &superblock, options.read_only, &mut judge)?;
        let total = superblock.total_blocks;
        let from = Source { pool: &pool, repair: !options.read_only };
        let root = load_root(from, &superblock, &mut judge).map_err(|e| match &log.damage {
            // What an older superblock refers to may be gone, and then there is nothing to show.
            Some(damage) if damage.is_older && !e.may_pass() => damage.refusal(),
            _ => e,
        })?;
        let readers_only = options.read_only && matches!(judge, Judge::Refuse);
        let sums = load_pages(from, sum_pages(total), root.checksums, "checksum", readers_only, &mut judge)?;
        let (bitmap, mut bits, wrong) = load_bitmap(from, root.bitmap, total)?;
        let bitmap_lost = match (&mut judge, wrong.list.first()) {
            (_, None) => None,
            (Judge::Note(problems), _) => {
                // Said once, with all else that was met.
                problems.append(wrong);
                Some(Problems::default())
            }
            (Judge::Refuse, Some(first)) if !options.read_only => {
                return Err(EngineError::Refused(format!(
                    "which blocks of the pool are in use cannot be read ({}), so it cannot be written to; files can still be read: \
                     `varve check` says what is damaged, and `varve export`, or a mount with -o ro, brings them to safety",
                    first.text
                )));
            }
            (Judge::Refuse, Some(first)) => {
                tracing::warn!("{}: the pool can be read, not written to", first.text);
                bits = Bits::new(total);
                Some(wrong)
            }
        };
        let mut space = Space::new(total, u64::from(superblock.metadata.copies));
        space.adopt_referenced(bits);

        let log_end = LogEnd::of(&log, &superblock);
        let kept = &log.batches[..log.keep];
        let head = superblock.log_start + kept.iter().map(|b| b.bytes.len() as u64).sum::<u64>();
        let core = Core {
            trees: load_roots(&root, &mut judge)?,
            generation: root.generation + 1,
            position: root.position,
            id_floor: root.next_id,
            replaced: Vec::new(),
            space,
            sums: Checksums::new(sums.clone()),
            pending: Pending::default(),
            spare: None,
            spare_steps: Vec::new(),
            spare_runs: Vec::new(),
            route: Route::default(),
            log: LogTail {
                head,
                start: superblock.log_start,
                sequence: superblock.log_sequence + log.keep as u64,
                previous: kept.last().map_or(superblock.log_previous, |b| b.checksum),
                epoch: superblock.epoch,
                ring_bytes: pool.ring_bytes,
            },
        };
        let durable = Durable { sums, bitmap, root: superblock.root, position: root.position };
        let clean = superblock.closed && log.batches.is_empty() && !log.leftover && log.damage.is_none();
        let mut report = RecoveryReport {
            batches_cut: (log.batches.len() - log.keep) as u64,
            clean,
            ..RecoveryReport::default()
        };
        let sequence = core.log.sequence;
        let commits = Commits::new(Lsn(u64::MAX), sequence - 1);
        let read_only = options.read_only;
        let found = Found { superblock, log_end, bitmap_lost };
        let store = assemble(pool, found, core, durable, options, commits);
        let (metadata, mut damage) = match judge {
            Judge::Refuse => (store.count_nodes(&mut report)?, None),
            Judge::Note(problems) => {
                let named = log.batches.iter().map(|b| b.header.superblock_generation).max();
                let damage = store.leave_out_damage(problems, named.unwrap_or(0));
                (damage.seen().clone(), Some(damage))
            }
        };
        let is_older = unseen.is_some() || log.damage.as_ref().is_some_and(|damage| damage.is_older);
        let mut ended_by: Vec<String> = unseen.into_iter().collect();
        if let (Some(lost), None) = (&log.damage, &damage) {
            tracing::warn!("{}: what was there before can be read; the pool cannot be written to", lost.why);
            ended_by.push(lost.why.clone());
            report.batches_left = lost.batches_left;
        }
        // The log goes on from where the checkpoint ends; a damaged one is replayed as far as it makes sense.
        match (store.replay(&log, total, &metadata, &mut report), &mut damage) {
            (Ok(()), _) => {}
            (Err(Halt::Lost(e) | Halt::Refused(e)), Some(damage)) => {
                damage.add(Problem::new(Kind::LogSenseless, e.to_string()));
            }
            // Who only reads has what was there before: nothing of this transaction is done, nor of those behind it. On an older
            // superblock one may make no sense because it uses what a checkpoint behind it has given back.
            (Err(halt), None) if read_only && (is_older || matches!(halt, Halt::Lost(_))) => {
                let (Halt::Lost(e) | Halt::Refused(e)) = halt;
                tracing::warn!(
                    "{e}: the log can be replayed up to there, and be read; the pool cannot be written to"
                );
                ended_by.push(e.to_string());
                report.batches_left += log.keep as u64 - report.batches_replayed;
            }
            (Err(Halt::Lost(e)), None) => return Err(e.for_writers_alone("the log was replayed")),
            (Err(Halt::Refused(e)), None) => return Err(e),
        }
        report.replay_ended_by = (!ended_by.is_empty()).then(|| ended_by.join("; "));
        if let Some(damage) = damage {
            let _ = store.damage.set(damage);
        }
        if store.bitmap_lost.is_some() {
            store.core.lock().space.nothing_is_free();
        }
        report.end = store.position();
        store.commits.recovered(report.end);
        let floor = store.core.lock().id_floor;
        store.next_id.store(floor, std::sync::atomic::Ordering::Relaxed);
        if !read_only {
            store.require_room_to_count()?;
        }
        if !clean && !read_only {
            store.make_cut_durable(&log)?;
        } else if !read_only {
            // A process that was killed while it closed may have left all of this in the page cache alone; what it
            // replaces is about to be overwritten.
            let superblock = store.superblock.lock().clone();
            store.pool.repair_labels();
            store.pool.repair_slots(&superblock)?;
            (if is(Planted::CleanUnflushed) { Ok(()) } else { store.pool.flush() })?;
        }
        if report.keyframes_lost.is_some() && !read_only {
            // As if it was being closed: then one is written though nothing else has changed.
            store.checkpoint_as(true)?;
        }
        store.keyframes.begin(store.core.lock().tree(TreeId::KEYFRAMES).root.is_some());
        if !read_only {
            store.take_up_features()?;
        }
        if store.options.background && !read_only {
            store.start_background()?;
        }
        if report.batches_cut > 0 {
            tracing::warn!(
                batches = report.batches_cut,
                "the log was cut: data of its last batches had not arrived"
            );
        }
        Ok((store, report))
    }

    /// Leaves out of the trees what cannot be used, and says what that is. The log names superblock generation `named`.
    fn leave_out_damage(&self, problems: Problems, named: u64) -> Damage {
        let trees = self.core.lock().trees.clone();
        let mut walk = Walk::new(self, problems);
        walk.devices(Some(named));
        let usable: Vec<Tree> = trees.iter().map(|tree| walk.tree(tree)).collect();
        walk.arrays(&self.durable.lock());
        let mut core = self.core.lock();
        core.trees = usable;
        // What replay may free; nobody asks how much of it is nodes.
        core.space.data = core.space.referenced.count();
        drop(core);
        walk.into_damage()
    }

    fn replay(
        &self,
        log: &Log,
        total: u64,
        metadata: &Bits,
        report: &mut RecoveryReport,
    ) -> std::result::Result<(), Halt> {
        // Without the bitmap: what has been freed since the checkpoint and not placed again.
        let mut gone = self.bitmap_lost.is_some().then(|| Bits::new(total));
        for found in &log.batches[..log.keep] {
            let (header, position) = (&found.header, self.position());
            if header.first.0 != position.0 + 1
                || header.last.0 != position.0 + u64::from(header.transactions)
            {
                let why = Corrupt { what: "positions that do not follow those before", at: 0 };
                let what = format!("batch {} of the log", header.sequence);
                return Err(EngineError::corrupt(what, why).into());
            }
            for (position, mut ops) in recovery::transactions(found, total)? {
                if let Some(gone) = &gone {
                    self.assume_used(&ops, total, metadata, gone);
                }
                self.replay_one(position, &mut ops, metadata, report)?;
                if let Some(gone) = &mut gone {
                    for op in &ops {
                        match op {
                            Op::Free { run } => gone.write(*run, true, &mut |_| {}),
                            Op::Place { run, .. } => gone.write(*run, false, &mut |_| {}),
                            _ => 0,
                        };
                    }
                }
                report.transactions_replayed += 1;
            }
            // Also those that changed nothing have their positions.
            self.core.lock().position = header.last;
            report.batches_replayed += 1;
        }
        Ok(())
    }

    /// Without the bitmap, what a transaction frees is taken for used, unless it is `gone` already.
    fn assume_used(&self, ops: &[Op], total: u64, metadata: &Bits, gone: &Bits) {
        let mut core = self.core.lock();
        for op in ops {
            if let Op::Free { run } = op {
                let (first, end) = (run.addr.block(), run.addr.block().saturating_add(run.blocks.into()));
                let free = |bits: &Bits| bits.next(first, end, true).is_none();
                if first > 0 && end <= total && free(metadata) && free(gone) {
                    core.space.assume_used(*run);
                }
            }
        }
    }

    /// `metadata` are the blocks of the checkpoint's nodes and pages: no transaction may give them back.
    fn replay_one(
        &self,
        position: Lsn,
        ops: &mut Vec<Op>,
        metadata: &Bits,
        report: &mut RecoveryReport,
    ) -> std::result::Result<(), Halt> {
        let senseless = |run: Run| {
            let why = Corrupt { what: "blocks used twice, or freed and not in use", at: run.addr.0 as usize };
            Halt::Refused(EngineError::corrupt(format!("transaction {} of the log", position.0), why))
        };
        let mut fetched = Fetched::default();
        for op in &*ops {
            if let Op::Put { tree, .. } | Op::Delete { tree, .. } = op
                && !TreeId::ALL.contains(tree)
            {
                return Err(EngineError::Refused(format!(
                    "the log changes tree {} which this program does not know: open the pool with a newer program",
                    tree.0
                ))
                .into());
            }
            if let Op::Free { run } = op
                && metadata.next(run.addr.block(), run.addr.block() + u64::from(run.blocks), true).is_some()
            {
                return Err(senseless(*run));
            }
            if let Op::IdFloor(floor) = op
                && *floor > NUMBER_MAX
            {
                let why = Corrupt { what: "number that is never reached", at: 0 };
                return Err(
                    EngineError::corrupt(format!("transaction {} of the log", position.0), why).into()
                );
            }
        }
        loop {
            if report.keyframes_lost.is_some() {
                ops.retain(|op| !matches!(op, Op::Put { tree, .. } | Op::Delete { tree, .. } if *tree == TreeId::KEYFRAMES));
            }
            let mut core = self.core.lock();
            let result = core.replay(position, ops, &mut fetched, &self.cache, &self.sum_cache);
            let missed = missed_in(&core, &result);
            drop(core);
            match result {
                Ok(()) => return Ok(()),
                Err(Obstacle::Node(miss)) => {
                    let tree = missed.expect("a node is missed in a tree");
                    match Halt::reading(|| self.load(miss, &tree)) {
                        Ok(node) => drop(fetched.nodes.insert(miss.ptr.addr[0].0, node)),
                        Err(Halt::Lost(why))
                            if miss.tree == TreeId::KEYFRAMES && self.may_drop_keyframes(&why) =>
                        {
                            self.drop_keyframes(&why, metadata, report)?;
                        }
                        Err(halt) => return Err(halt),
                    }
                }
                Err(Obstacle::Sums(ptr)) => {
                    let page = Halt::reading(|| self.load_sums(ptr))?;
                    fetched.sums.insert(checksums::key(ptr), page);
                }
                Err(Obstacle::Blocks(run)) => return Err(senseless(run)),
                Err(Obstacle::Derived(error)) => return Err(Halt::of(error)),
                Err(
                    Obstacle::LogFull
                    | Obstacle::BatchFull
                    | Obstacle::RideFull
                    | Obstacle::NoSpace
                    | Obstacle::TooLarge(_),
                ) => {
                    unreachable!("replay logs nothing, asks for no space, and what it frees has been settled")
                }
            }
        }
    }

    /// Step 4 of recovery: nothing that was cut can ever count again.
    fn make_cut_durable(&self, log: &Log) -> Result<()> {
        if is(Planted::RevivedBatch) {
            return Ok(());
        }
        let before = self.superblock.lock().clone();
        // Flushed with the tail, before another generation follows: no slot stays torn.
        self.pool.repair_labels();
        self.pool.repair_slots(&before)?;
        recovery::rewrite_tail(&self.pool, &before, log)?;
        let superblock = {
            let mut s = self.superblock.lock();
            let last_sequence = self.core.lock().log.sequence - 1;
            s.generation += 1;
            let epoch = s.epoch;
            let ended = s.cuts.last().map_or(s.log_sequence - 1, |c| c.last_sequence);
            if last_sequence > ended {
                s.cuts.push(Cut { epoch, last_sequence });
            } // else no batch of this epoch counts
            s.epoch += 1;
            s.closed = false;
            s.clone()
        };
        if superblock.cuts.len() > CUTS_MAX {
            return Err(EngineError::Refused(
                "the pool has crashed too often without a checkpoint between".into(),
            ));
        }
        self.pool.write_superblock(&superblock)?;
        self.pool.flush()?;
        self.superblock_generation.store(superblock.generation, std::sync::atomic::Ordering::Relaxed);
        self.core.lock().log.epoch = superblock.epoch;
        if superblock.cuts.len() >= CUTS_MAX / 2 {
            self.checkpoint()?;
        }
        Ok(())
    }

    /// A pool of before extents had short forms, or a family's only version needed no record, or there were keyframes, is about to
    /// hold some: programs that do not know them must be told before the first is logged.
    fn take_up_features(&self) -> Result<()> {
        let superblock = {
            let mut s = self.superblock.lock();
            if s.incompatible & INCOMPATIBLE_KNOWN == INCOMPATIBLE_KNOWN {
                return Ok(());
            }
            s.incompatible |= INCOMPATIBLE_KNOWN;
            s.generation += 1;
            s.clone()
        };
        self.pool.write_superblock(&superblock)?;
        self.pool.flush()?;
        self.superblock_generation.store(superblock.generation, std::sync::atomic::Ordering::Relaxed);
        Ok(())
    }

    /// Blocks of data and of nodes in the durable checkpoint: the bitmap says how many in all, the trees' share is
    /// what is left without array pages and data. Returns the blocks of nodes and pages: each is in use by the bitmap,
    /// and has one pointer to it, so that the walk ends and nothing is ever given back twice. For who only reads, what is behind a
    /// node that cannot be had is left out: it is missing to whoever looks for it, and to nobody else. For who writes, that goes for
    /// keyframes alone, which are thrown away then, unless it is the device that fails.
    fn count_nodes(&self, report: &mut RecoveryReport) -> Result<Bits> {
        let (trees, referenced, total) = {
            let core = self.core.lock();
            (core.trees.clone(), core.space.referenced.clone(), core.space.total)
        };
        let mut metadata = Bits::new(total);
        let mut claim = |ptr: NodePtr, what: &str| {
            for addr in ptr.copies() {
                let free =
                    addr.block() >= total || !(self.bitmap_lost.is_some() || referenced.get(addr.block()));
                if free || metadata.write(Run { addr, blocks: 1 }, true, &mut |_| {}) != 1 {
                    let what = format!("the pointer to {what} block at {:#x}", addr.0);
                    let why = if free { "block not in use" } else { "second pointer to one block" };
                    return Err(EngineError::corrupt(what, Corrupt { what: why, at: 0 }));
                }
            }
            Ok(ptr.copies().count() as u64)
        };
        let (mut nodes, mut lost) = (0, None);
        for tree in &trees {
            if let Some(Link::Disk(ptr)) = &tree.root {
                nodes += self.count_below(tree, *ptr, tree.height - 1, &mut claim, &mut lost)?;
            }
        }
        let mut pages = 0;
        {
            let durable = self.durable.lock();
            for ptr in durable.sums.all().chain(durable.bitmap.all()).chain([durable.root]) {
                pages += claim(ptr, "an array or root")?;
            }
        }
        let mut core = self.core.lock();
        core.space.nodes = nodes;
        core.space.metadata = metadata.clone();
        if self.bitmap_lost.is_some() {
            // What replay may not give to data. The rest is found out as it is freed, and then taken for used.
            core.space.adopt_referenced(metadata.clone());
            core.space.data = 0;
        } else {
            // All of them were seen in the bitmap.
            core.space.data = referenced.count() - nodes - pages;
        }
        drop(core);
        if let Some(why) = lost {
            self.drop_keyframes(&why, &metadata, report)?;
        }
        Ok(metadata)
    }

    fn count_below(
        &self,
        tree: &Tree,
        ptr: NodePtr,
        level: u8,
        claim: &mut dyn FnMut(NodePtr, &str) -> Result<u64>,
        keyframes_lost: &mut Option<EngineError>,
    ) -> Result<u64> {
        let mut sum = claim(ptr, tree.id.name())?;
        if level == 0 {
            return Ok(sum);
        }
        let node = match Halt::reading(|| self.load(crate::tree::Miss { ptr, tree: tree.id, level }, tree)) {
            Ok(node) => node,
            Err(Halt::Lost(e)) if tree.id == TreeId::KEYFRAMES && self.may_drop_keyframes(&e) => {
                keyframes_lost.get_or_insert(e);
                return Ok(sum);
            }
            Err(Halt::Lost(e)) if self.options.read_only => {
                tracing::warn!("{e}: the pool can be read but for what is behind that");
                return Ok(sum);
            }
            Err(Halt::Lost(e)) => return Err(e.for_writers_alone("the trees were looked through")),
            Err(Halt::Refused(e)) => return Err(e),
        };
        if let crate::tree::node::Body::Interior(n) = &node.body {
            for child in &n.children {
                if let Link::Disk(ptr) = child {
                    sum += self.count_below(tree, *ptr, level - 1, claim, keyframes_lost)?;
                }
            }
        }
        Ok(sum)
    }
}

/// What is kept of how a pool was found.
struct Found {
    superblock: Superblock,
    log_end: LogEnd,
    bitmap_lost: Option<Problems>,
}

fn assemble(
    pool: Pool,
    Found { superblock, log_end, bitmap_lost }: Found,
    core: Core,
    durable: Durable,
    options: StoreOptions,
    commits: Commits,
) -> Arc<Store> {
    let pages = (options.cache_bytes / 16 / BLOCK_BYTES as u64).max(64) as usize;
    // The rest is for dirty nodes.
    let cache = crate::tree::node_cache(options.cache_bytes / 4 * 3);
    // Nobody makes them where nothing is written.
    let many = if options.read_only { u32::MAX } else { options.keyframe_entries };
    Arc::new_cyclic(|me| Store {
        me: me.clone(),
        pool_tag: u64::from_le_bytes(pool.pool_id[..8].try_into().expect("8 of 16 bytes")),
        pool,
        options,
        next_id: AtomicU64::new(core.id_floor),
        core: Arc::new(Mutex::new(core)),
        commits,
        durable: Mutex::new(durable),
        superblock_generation: AtomicU64::new(superblock.generation),
        superblock: Mutex::new(superblock),
        log_end,
        bitmap_lost,
        cache,
        sum_cache: Cache::new(pages),
        readers: Default::default(),
        trunks: Default::default(),
        keyframes: Keyframes::new(many),
        rides: RwLock::default(),
        written_bytes: AtomicU64::new(0),
        flushed_bytes: AtomicU64::new(0),
        counters: Counters::default(),
        background: Background::default(),
        closed: AtomicBool::new(false),
        damage: Default::default(),
        reclaiming: Mutex::new(()),
        trims: Default::default(),
    })
}
