//! Long sequences drawn by weight: a growing tree, files that cross from inline to extents and past what may ride
//! with the log, open and unlinked files, checkpoints and background work at random.

use varve_fs::{
    AccessRule, Allocate, Caller, FileFlags, FileKind, InodeId, ROOT_INODE, RenameMode, SetAttr, SetTime,
    Timestamp, XattrMode,
};
use varve_sim::Rng;

use crate::call::Call;
use crate::model::{
    ACCESS, CAPABILITY, DEFAULT, Inode, Model, PAGE_BYTES, access_list, is_subvolume, numbered, slot,
};
use crate::session::{Session, Setup, Violation};

/// Files and directories beyond which more are removed than made.
const INODES_MAX: usize = 160;
/// Subvolumes beyond which more are deleted than made.
const SUBVOLUMES_MAX: usize = 7;
/// Bytes in files beyond which writes stay small.
const STORED_BYTES_MAX: u64 = 14 << 20;
/// Bytes set aside beyond which reservations stay small.
const RESERVED_BYTES_MAX: u64 = 8 << 20;
/// A copy is made in pieces of this size, and a page across two of them may be logged between the two.
const COPY_PIECE_BYTES: u64 = 1 << 20;

/// Chosen so that the seeds of what has failed once give 0 in its highest bit, and half of all others do.
const RARE_FACTOR: u64 = 0xe544_6dd4_552b_82f7;

/// As [`RARE_FACTOR`], for syncs that are started.
const STARTED_FACTOR: u64 = 0x121b_4d92_fa3f_da3f;

/// As [`RARE_FACTOR`], for the same bytes in several places.
const TWINS_FACTOR: u64 = 0x01df_e2d9_1f1d_869f;
/// As [`RARE_FACTOR`], for access times.
const READS_FACTOR: u64 = 0xfcdc_fc22_9e5e_be0d;
/// As [`RARE_FACTOR`], for ranges that become a part of another file.
const RANGES_FACTOR: u64 = 0x23f5_a857_9194_6a1d;
/// Writes whose bytes may be written elsewhere, too.
const REMEMBERED_MAX: usize = 6;

/// How often things happen in one workload; drawn by its seed, so that workloads differ in character.
#[derive(Clone, Copy, Debug)]
pub struct Character {
    /// Calls made.
    pub calls: u64,
    /// Largest single write.
    pub write_bytes_max: u64,
    /// Of 1,000 calls: fsync.
    pub fsync: u64,
    /// Of 1,000 calls: sync.
    pub sync: u64,
    /// Of 1,000 calls: flush_file.
    pub flush_file: u64,
    /// Of 1,000 calls: checkpoint.
    pub checkpoint: u64,
    /// Of 1,000 calls: maintain.
    pub maintain: u64,
    /// Of 1,000 calls: subvolumes, snapshots and clones.
    pub forks: u64,
    /// Of 1,000 calls: what [`rarely`] says.
    pub rare: u64,
    /// Of 1,000 calls: a sync that is started, or the end of one.
    pub started: u64,
    /// Of 1,000 calls: the same bytes in another place, or having them share.
    pub twins: u64,
    /// Of 1,000 calls: a range of one file becomes a part of another.
    pub ranges: u64,
    /// Of 1,000 calls: something has been read. Where there are no snapshots, which show one or the other access time.
    pub reads: u64,
    /// Flags are set, too, that keep something from changing.
    pub protects: bool,
}

/// How often calls come that programs seldom make: files without a name, renames that leave a whiteout, flags. Seeds that have found
/// something keep to the calls that there were then.
pub fn rarely(seed: u64) -> u64 {
    [0, 60][(seed.wrapping_mul(RARE_FACTOR) >> 63) as usize]
}

/// How often syncs are started and ended later, behind a bit of the seed as in [`rarely`].
pub fn starts(seed: u64) -> u64 {
    [0, 150][(seed.wrapping_mul(STARTED_FACTOR) >> 63) as usize]
}

/// How often the same bytes are written in two places and made to share, behind a bit of the seed as in [`rarely`].
pub fn twins(seed: u64) -> u64 {
    [0, 150][(seed.wrapping_mul(TWINS_FACTOR) >> 63) as usize]
}

/// How often a range of one file becomes a part of another, behind a bit of the seed as in [`rarely`].
pub fn ranges(seed: u64) -> u64 {
    [0, 90][(seed.wrapping_mul(RANGES_FACTOR) >> 63) as usize]
}

/// The character of workload `seed`.
pub fn character(seed: u64) -> Character {
    let mut rng = Rng::new(seed ^ 0x6368_6172);
    Character {
        calls: 30 + rng.below(270),
        write_bytes_max: [2_500, 20_000, 200_000, 3_000_000][rng.index(4)],
        fsync: [0, 40, 200][rng.index(3)],
        sync: [0, 10, 60][rng.index(3)],
        flush_file: [0, 30][rng.index(2)],
        checkpoint: [0, 10, 50][rng.index(3)],
        maintain: [0, 20, 100][rng.index(3)],
        forks: 0,
        rare: rarely(seed),
        started: starts(seed),
        twins: twins(seed),
        ranges: ranges(seed),
        reads: [0, 60][(seed.wrapping_mul(READS_FACTOR) >> 63) as usize],
        protects: true,
    }
}

/// How workload `seed` opens its filesystem.
pub fn setup(seed: u64) -> Setup {
    let mut rng = Rng::new(seed ^ 0x7365_7475);
    Setup {
        cache_bytes: [1 << 20, 4 << 20, 32 << 20][rng.index(3)],
        dirty_bytes_max: [64 << 10, 1 << 20, 16 << 20][rng.index(3)],
        caller: if rng.below(2) == 0 { Caller::ROOT } else { Caller { uid: 1000, gid: 100 } },
        tight: false,
    }
}

/// Makes the calls of workload `seed`.
pub fn run(session: &mut Session, seed: u64) -> Result<(), Violation> {
    let mut rng = Rng::new(seed);
    let mut generator = Generator::new(character(seed));
    for _ in 0..generator.character.calls {
        let call = generator.draw(session.live(), &mut rng);
        generator.make(session, &call)?;
    }
    Ok(())
}

/// Draws calls that make sense to the state at hand.
pub struct Generator {
    character: Character,
    open: Vec<InodeId>,
    counter: u64,
    /// The last writes of whole pages: file, offset, length and seed.
    written: Vec<(InodeId, u64, usize, u64)>,
}

struct Tree {
    directories: Vec<InodeId>,
    files: Vec<InodeId>,
    /// (parent, name, inode) of everything that has a name.
    names: Vec<(InodeId, Vec<u8>, InodeId)>,
}

impl Tree {
    fn of(model: &Model) -> Tree {
        let mut tree = Tree { directories: Vec::new(), files: Vec::new(), names: Vec::new() };
        for (ino, inode) in model.inodes() {
            if inode.links == 0 {
                continue;
            }
            match inode.kind() {
                FileKind::Directory => tree.directories.push(ino),
                FileKind::File => tree.files.push(ino),
                _ => {}
            }
            for (name, child) in inode.entries().into_iter().flatten() {
                tree.names.push((ino, name.clone(), *child));
            }
        }
        tree
    }

    /// Keeps what lies in one subvolume.
    fn keep(&mut self, kept: u64) {
        self.directories.retain(|ino| slot(*ino) == kept);
        self.files.retain(|ino| slot(*ino) == kept);
        self.names.retain(|(parent, ..)| slot(*parent) == kept);
    }
}

fn pick<T: Clone>(rng: &mut Rng, from: &[T]) -> Option<T> {
    rng.pick(from).cloned()
}

impl Generator {
    /// A generator with nothing open.
    pub fn new(character: Character) -> Self {
        Generator { character, open: Vec::new(), counter: 0, written: Vec::new() }
    }

    /// What is open.
    pub fn open(&self) -> &[InodeId] {
        &self.open
    }

    /// Makes the call and keeps count of what is open.
    pub fn make(&mut self, session: &mut Session, call: &Call) -> Result<i32, Violation> {
        let errno = session.call(call)?;
        match call {
            Call::Open { ino, .. } if errno == 0 => self.open.push(*ino),
            Call::Tmpfile { .. } if errno == 0 => self.open.extend(session.last_created()),
            Call::Release { ino } if errno == 0 => {
                let at =
                    self.open.iter().position(|open| open == ino).expect("only what is open is released");
                self.open.swap_remove(at);
            }
            Call::Write { ino, offset, len, seed }
                if errno == 0 && offset.is_multiple_of(PAGE_BYTES) && *len as u64 >= PAGE_BYTES =>
            {
                self.written.truncate(REMEMBERED_MAX - 1);
                self.written.insert(0, (*ino, *offset, *len, *seed));
            }
            _ => {}
        }
        Ok(errno)
    }

    fn name(&mut self, rng: &mut Rng) -> Vec<u8> {
        self.counter += 1;
        match rng.below(20) {
            // Any bytes but "/" and NUL, and the longest.
            0 => vec![0xff, 0xfe, b'\n', (self.counter % 200 + 48) as u8],
            1 => format!("{:0>255}", self.counter).into_bytes(),
            _ => format!("n{}", rng.below(40)).into_bytes(),
        }
    }

    /// The next call.
    pub fn draw(&mut self, model: &Model, rng: &mut Rng) -> Call {
        let mut tree = Tree::of(model);
        if self.character.forks > 0 && rng.below(5) > 0 {
            // Most names and links cross no border.
            let slots: Vec<u64> = model.subvolumes().map(|(slot, _)| slot).collect();
            tree.keep(pick(rng, &slots).unwrap_or(0));
        }
        let crowded = tree.names.len() > INODES_MAX;
        let character = self.character;
        let file = pick(rng, &tree.files);
        let mut dice = rng.below(1000);
        let mut below = |share: u64| {
            let hit = dice < share;
            dice = dice.saturating_sub(share);
            if hit {
                dice = u64::MAX;
            }
            hit
        };
        if below(character.fsync) {
            // A file that was unlinked while open can be synced too.
            let mut candidates = tree.files.clone();
            candidates.extend(&self.open);
            candidates.push(ROOT_INODE);
            let ino = pick(rng, &candidates).unwrap_or(ROOT_INODE);
            return Call::Fsync { ino };
        }
        if below(character.sync) {
            return Call::Sync;
        }
        if below(character.checkpoint) {
            return Call::Checkpoint;
        }
        if below(character.maintain) {
            return Call::Maintain;
        }
        if below(character.flush_file)
            && let Some(ino) = file
        {
            return Call::FlushFile { ino };
        }
        if below(character.started) {
            return match (rng.below(5), file) {
                (0, _) => Call::FlushAll,
                (1 | 2, Some(ino)) => Call::FlushFile { ino },
                // Of one that later changes have overtaken, too.
                _ => Call::Commit { nth: rng.index(4) },
            };
        }
        if below(character.twins)
            && let Some(call) = self.twin(model, &tree, rng)
        {
            return call;
        }
        if below(character.ranges)
            && let Some(call) = self.clone_range(model, rng)
        {
            return call;
        }
        if below(character.reads) {
            let open = pick(rng, &self.open).filter(|_| rng.below(4) == 0);
            if let Some(ino) = open.or(pick(rng, &tree.names).map(|(.., ino)| ino)) {
                let rule = [AccessRule::Relative, AccessRule::Always][rng.index(2)];
                return Call::NoteAccess { ino, rule };
            }
        }
        if below(character.forks) {
            return self.fork(model, rng);
        }
        if below(character.rare) {
            return self.rare(&tree, rng);
        }
        let directory = pick(rng, &tree.directories).unwrap_or(ROOT_INODE);
        let entry = pick(rng, &tree.names);
        let fallback = |this: &mut Self, rng: &mut Rng| Call::Create {
            parent: directory,
            name: this.name(rng),
            mode: [0o644, 0o755, 0o6755][rng.index(3)],
        };
        match rng.below(123) {
            120..123 => match file {
                Some(ino) => self.shift(model, ino, rng),
                None => fallback(self, rng),
            },
            100..104 if !crowded => self.node(directory, rng),
            104..111 => match file {
                Some(ino) => self.allocate(model, ino, rng),
                None => fallback(self, rng),
            },
            111..115 => match (file, pick(rng, &tree.files)) {
                (Some(from), Some(to)) => self.copy(model, from, to, rng),
                _ => fallback(self, rng),
            },
            115..=118 => match pick(rng, &tree.names) {
                Some((_, _, ino)) => special_xattr(model, ino, rng),
                None => fallback(self, rng),
            },
            0..16 if !crowded => fallback(self, rng),
            16..21 if !crowded => Call::Mkdir {
                parent: directory,
                name: self.name(rng),
                mode: [0o755, 0o700, 0o2775][rng.index(3)],
            },
            21..24 if !crowded => {
                let longest = [20, 300, 4_000][rng.index(3)];
                let target = vec![b'x'; 1 + rng.below(longest) as usize];
                Call::Symlink { parent: directory, name: self.name(rng), target }
            }
            24..28 => match file {
                Some(ino) => Call::Link { ino, parent: directory, name: self.name(rng) },
                None => fallback(self, rng),
            },
            28..54 => match pick(rng, &self.open).filter(|_| rng.below(4) == 0).or(file) {
                Some(ino) => self.write(model, ino, rng),
                None => fallback(self, rng),
            },
            54..62 => match file {
                Some(ino) => {
                    let size = model.get(ino).map_or(0, |inode| inode.size());
                    let size = match rng.below(5) {
                        0 => 0,
                        1 => size / 4096 * 4096,
                        2 => size + rng.below(10_000),
                        3 => size + rng.below(3 << 20),
                        _ => rng.below(size + 1),
                    };
                    Call::SetAttr { ino, set: SetAttr { size: Some(size), ..SetAttr::default() } }
                }
                None => fallback(self, rng),
            },
            62..70 => match entry {
                Some((parent, name, _)) => {
                    let new_name = self.name(rng);
                    Call::Rename { parent, name, new_parent: directory, new_name, mode: RenameMode::Replace }
                }
                None => fallback(self, rng),
            },
            70..76 => match (entry, pick(rng, &tree.names)) {
                (Some((parent, name, _)), Some((new_parent, new_name, _))) => {
                    let mode = [RenameMode::Replace, RenameMode::Exchange, RenameMode::NoReplace];
                    Call::Rename { parent, name, new_parent, new_name, mode: mode[rng.index(3)] }
                }
                _ => fallback(self, rng),
            },
            76..80 => match file {
                Some(ino) => Call::Open { ino, truncate: rng.below(4) == 0 },
                None => fallback(self, rng),
            },
            80..83 => match pick(rng, &self.open) {
                Some(ino) => Call::Release { ino },
                None => Call::Maintain,
            },
            83..87 => match pick(rng, &tree.names) {
                Some((_, _, ino)) => self.xattr(model, ino, rng),
                None => fallback(self, rng),
            },
            87..91 => match pick(rng, &tree.names) {
                Some((_, _, ino)) => attributes(model, ino, rng),
                None => fallback(self, rng),
            },
            _ => match entry {
                Some((parent, name, ino)) => {
                    let directory = model.get(ino).is_some_and(|inode| inode.entries().is_some());
                    if directory { Call::Rmdir { parent, name } } else { Call::Unlink { parent, name } }
                }
                None => fallback(self, rng),
            },
        }
    }

    /// Makes, moves or deletes a subvolume, or clones a file.
    fn fork(&mut self, model: &Model, rng: &mut Rng) -> Call {
        let tree = Tree::of(model);
        let slots: Vec<u64> = model.subvolumes().map(|(slot, _)| slot).collect();
        let parent = pick(rng, &tree.directories).unwrap_or(ROOT_INODE);
        let name = self.name(rng);
        let placed: Vec<_> = tree.names.iter().filter(|(.., ino)| is_subvolume(*ino)).cloned().collect();
        let (placed, all) = (pick(rng, &placed), placed);
        let full = slots.len() > SUBVOLUMES_MAX || tree.names.len() > INODES_MAX;
        match (rng.below(20), placed) {
            (0..3, _) if !full => Call::CreateSubvolume { parent, name, mode: [0o755, 0o2770][rng.index(2)] },
            (3..9, _) if !full => {
                let source = numbered(pick(rng, &slots).unwrap_or(0), ROOT_INODE);
                let (read_only, sync) = (rng.below(4) == 0, rng.below(4) == 0);
                Call::Snapshot { source, parent, name, read_only, sync }
            }
            (0..13, Some((parent, name, _))) => Call::DeleteSubvolume { parent, name },
            (13..15, Some((from, name, _))) if all.len() > 1 => {
                let (new_parent, new_name, _) = pick(rng, &all).expect("there are two");
                Call::Rename { parent: from, name, new_parent, new_name, mode: RenameMode::Exchange }
            }
            (13..17, Some((from, name, _))) => {
                let (new_parent, new_name) = (parent, self.name(rng));
                let mode = [RenameMode::Replace, RenameMode::NoReplace, RenameMode::Exchange][rng.index(3)];
                Call::Rename { parent: from, name, new_parent, new_name, mode }
            }
            _ => match (pick(rng, &tree.files), pick(rng, &tree.files)) {
                (Some(from), Some(to)) if rng.below(4) == 0 => Self::copy_blocks(model, from, to, rng),
                (Some(from), Some(to)) if rng.below(3) == 0 => {
                    let len = model.get(from).map_or(0, Inode::size) + rng.below(2) * 4_000;
                    Call::CopyRange { from, from_offset: 0, to, to_offset: 0, len: len.max(1) }
                }
                (Some(source), _) => Call::CloneFile { source, parent, name },
                _ => Call::CreateSubvolume { parent, name, mode: 0o755 },
            },
        }
    }

    /// A file without a name, a name for one, a rename that leaves a whiteout, or flags.
    fn rare(&mut self, tree: &Tree, rng: &mut Rng) -> Call {
        let parent = pick(rng, &tree.directories).unwrap_or(ROOT_INODE);
        let (entry, open) = (pick(rng, &tree.names), pick(rng, &self.open));
        match (rng.below(10), entry, open) {
            (0..3, Some((from, name, _)), _) => {
                let (new_parent, new_name) = match pick(rng, &tree.names) {
                    Some((parent, name, _)) if rng.below(2) == 0 => (parent, name),
                    _ => (parent, self.name(rng)),
                };
                let caller = [Caller::ROOT, Caller { uid: 1000, gid: 100 }][rng.index(2)];
                let mode = RenameMode::Whiteout { caller, replace: rng.below(3) > 0 };
                Call::Rename { parent: from, name, new_parent, new_name, mode }
            }
            (6.., Some((from, _, ino)), _) => {
                let all = [
                    FileFlags::NO_DUMP,
                    FileFlags::NO_ACCESS_TIME,
                    FileFlags::DURABLE,
                    FileFlags::DURABLE_NAMES,
                    FileFlags::IMMUTABLE,
                    FileFlags::APPEND_ONLY,
                ];
                // Where everything has to go in the end, nothing is kept from going.
                let some = if self.character.protects { &all[..] } else { &all[..4] };
                let mut flags = FileFlags::NONE;
                for _ in 0..rng.below(4) {
                    flags = flags | some[rng.index(some.len())];
                }
                Call::SetFlags { ino: [ino, from][rng.index(2)], flags }
            }
            // Which may have a name or have had one.
            (3, Some((parent, name, _)), Some(ino)) if rng.below(2) == 0 => {
                Call::LinkOver { ino, parent, name }
            }
            (3, _, Some(ino)) => Call::Link { ino, parent, name: self.name(rng) },
            _ => Call::Tmpfile {
                parent,
                mode: [0o600, 0o6755][rng.index(2)],
                umask: [0, 0o022][rng.index(2)],
                linkable: rng.below(4) > 0,
            },
        }
    }

    fn node(&mut self, parent: InodeId, rng: &mut Rng) -> Call {
        let kinds =
            [FileKind::Fifo, FileKind::Socket, FileKind::CharDevice, FileKind::BlockDevice, FileKind::File];
        Call::Mknod {
            parent,
            name: self.name(rng),
            kind: kinds[rng.index(5)],
            mode: [0o666, 0o600, 0o4777][rng.index(3)],
            umask: [0, 0o022, 0o077][rng.index(3)],
            rdev: rng.below(1 << 32) as u32,
        }
    }

    fn allocate(&mut self, model: &Model, ino: InodeId, rng: &mut Rng) -> Call {
        let size = model.get(ino).map_or(0, Inode::size);
        let keep_size = rng.below(2) == 0;
        let how = match rng.below(5) {
            0 | 1 => Allocate::Reserve { keep_size },
            2 => Allocate::Zero { keep_size },
            _ => Allocate::Punch,
        };
        let crowded = model.reserved_pages().1 * PAGE_BYTES > RESERVED_BYTES_MAX;
        let longest = if crowded { 5_000 } else { [200, 5_000, 40_000, 1_500_000][rng.index(4)] };
        let (mut offset, mut len) = (rng.below(size + 20_000), 1 + rng.below(longest));
        match rng.below(4) {
            0 => (offset, len) = (offset / PAGE_BYTES * PAGE_BYTES, len.next_multiple_of(PAGE_BYTES)),
            // To the end, or across it.
            1 => (offset, len) = (size.saturating_sub(len), len + rng.below(3) * 1_000),
            _ => {}
        }
        Call::Fallocate { ino, offset, len, how }
    }

    /// Takes whole pages out of the middle of a file, or puts some in. Files of one page have no middle.
    fn shift(&mut self, model: &Model, ino: InodeId, rng: &mut Rng) -> Call {
        let size = model.get(ino).map_or(0, Inode::size);
        if size <= PAGE_BYTES {
            return self.allocate(model, ino, rng);
        }
        let pages = size.div_ceil(PAGE_BYTES);
        let insert = rng.below(2) == 0;
        let first = rng.below(pages - 1);
        let most = if insert { [1, 20, 300][rng.index(3)] } else { pages - 1 - first };
        let count = 1 + rng.below(most);
        Call::Shift { ino, offset: first * PAGE_BYTES, len: count * PAGE_BYTES, insert }
    }

    fn copy(&mut self, model: &Model, from: InodeId, to: InodeId, rng: &mut Rng) -> Call {
        let size = |ino| model.get(ino).map_or(0, Inode::size);
        let most = if model.stored_bytes() > STORED_BYTES_MAX { 4_000 } else { 3 << 20 };
        let len = 1 + rng.below(most.min(size(from) + 1_000));
        if rng.below(3) == 0 {
            return Self::copy_blocks(model, from, to, rng);
        }
        let from_offset = if rng.below(3) == 0 { 0 } else { rng.below(size(from) + 1) };
        let mut to_offset = if rng.below(3) == 0 { size(to) } else { rng.below(size(to) + 10_000) };
        if len > COPY_PIECE_BYTES {
            to_offset = to_offset / PAGE_BYTES * PAGE_BYTES;
        }
        Call::CopyRange { from, from_offset, to, to_offset, len }
    }

    /// A copy whose pages lie alike in both files, so that they can be shared: mostly whole pages, often to the end.
    fn copy_blocks(model: &Model, from: InodeId, to: InodeId, rng: &mut Rng) -> Call {
        let size = |ino| model.get(ino).map_or(0, Inode::size);
        let mut page = |bytes: u64| rng.below(bytes.min(3 << 20) / PAGE_BYTES + 1) * PAGE_BYTES;
        let (mut from_offset, mut to_offset) = (page(size(from)), page(size(to) + 20_000));
        let within = if rng.below(4) == 0 { rng.below(PAGE_BYTES) } else { 0 };
        (from_offset, to_offset) = (from_offset + within, to_offset + within);
        let left = size(from).saturating_sub(from_offset).min(3 << 20);
        let len = if rng.below(2) == 0 { left } else { rng.below(left + 1) };
        Call::CopyRange { from, from_offset, to, to_offset, len: len.max(1) }
    }

    /// Makes a range of one file a part of another, or of the same: of any file, open or in a snapshot, often of one that has just
    /// been written to, mostly to its end. Now and then what makes no sense.
    fn clone_range(&self, model: &Model, rng: &mut Rng) -> Option<Call> {
        let files: Vec<InodeId> =
            model.inodes().filter(|(_, inode)| inode.content().is_some()).map(|(ino, _)| ino).collect();
        let written = pick(rng, &self.written).map(|(ino, ..)| ino).filter(|ino| model.get(*ino).is_some());
        let from = written.filter(|_| rng.below(3) == 0).or(pick(rng, &files))?;
        let to = if rng.below(6) == 0 { from } else { pick(rng, &files)? };
        let size = |ino| model.get(ino).map_or(0, Inode::size);
        let longest = if model.stored_bytes() > STORED_BYTES_MAX { 40_000 } else { 3 << 20 };
        let mut page = |bytes: u64| rng.below(bytes / PAGE_BYTES + 1) * PAGE_BYTES;
        let (first, pages) = (page(size(from)), page(longest));
        let (behind, within) = (page(20_000) + size(to).next_multiple_of(PAGE_BYTES), page(size(to)));
        let from_offset = if rng.below(3) == 0 { 0 } else { first };
        let left = size(from).saturating_sub(from_offset);
        let (mut to_offset, mut len) = match rng.below(8) {
            // All that is left, named or not, to where it is the end of the target, too.
            0 if left <= longest => (behind, 0),
            1..4 if left <= longest => {
                let least = size(to).saturating_sub(left).next_multiple_of(PAGE_BYTES);
                ([behind, least][rng.index(2)], left)
            }
            _ => ([behind, within, within][rng.index(3)], left.min(pages) / PAGE_BYTES * PAGE_BYTES),
        };
        match rng.below(24) {
            0 => len += 1 + rng.below(PAGE_BYTES),
            1 => to_offset += 1 + rng.below(PAGE_BYTES),
            2 => to_offset = from_offset,
            _ => {}
        }
        Some(Call::CloneRange { from, from_offset, to, to_offset, len })
    }

    /// Writes what was written elsewhere, or has two such places share their bytes, if they still have them.
    fn twin(&self, model: &Model, tree: &Tree, rng: &mut Rng) -> Option<Call> {
        let (from, from_offset, len, seed) = pick(rng, &self.written)?;
        let others = self.written.iter().filter(|(ino, offset, _, other)| {
            *other == seed && (*ino, *offset) != (from, from_offset) && model.get(*ino).is_some()
        });
        let other = pick(rng, &others.collect::<Vec<_>>());
        match other.filter(|_| model.get(from).is_some()) {
            Some((to, to_offset, ..)) if rng.below(3) > 0 => {
                let len = len as u64 / PAGE_BYTES * PAGE_BYTES;
                Some(Call::DedupeRange { from, from_offset, to: *to, to_offset: *to_offset, len })
            }
            _ => {
                let (ino, offset) = (pick(rng, &tree.files)?, rng.below(40) * PAGE_BYTES);
                Some(Call::Write { ino, offset, len, seed })
            }
        }
    }

    fn write(&mut self, model: &Model, ino: InodeId, rng: &mut Rng) -> Call {
        let size = model.get(ino).map_or(0, |inode| inode.size());
        let mut most = self.character.write_bytes_max;
        if model.stored_bytes() > STORED_BYTES_MAX {
            most = most.min(4_000);
        }
        let len = match rng.below(6) {
            0 => 1 + rng.below(200),
            1 => 4096 * (1 + rng.below(most / 4096 + 1)),
            _ => 1 + rng.below(most),
        } as usize;
        let offset = match rng.below(6) {
            0 | 1 => size,
            2 => size / 4096 * 4096,
            3 => size + rng.below(2 << 20),
            _ => rng.below(size + 1),
        };
        self.counter += 1;
        Call::Write { ino, offset, len, seed: self.counter }
    }

    fn xattr(&mut self, model: &Model, ino: InodeId, rng: &mut Rng) -> Call {
        let name = format!("user.{}", rng.below(6)).into_bytes();
        let exists = model.get(ino).is_some_and(|inode| inode.xattrs.contains_key(&name));
        if exists && rng.below(3) == 0 {
            return Call::RemoveXattr { ino, name };
        }
        self.counter += 1;
        let longest = [10, 200, 1_600][rng.index(3)];
        let value = vec![self.counter as u8; rng.below(longest) as usize];
        let mode = match rng.below(4) {
            0 => XattrMode::Create,
            1 => XattrMode::Replace,
            _ => XattrMode::Set,
        };
        Call::SetXattr { ino, name, value, mode }
    }
}

fn attributes(model: &Model, ino: InodeId, rng: &mut Rng) -> Call {
    let mut set = SetAttr::default();
    let symlink = model.get(ino).is_some_and(|inode| inode.kind() == FileKind::Symlink);
    match rng.below(4) {
        0 if !symlink => set.mode = Some([0o600, 0o4755, 0o2711, 0o1777][rng.index(4)]),
        1 => {
            let seconds = rng.below(1 << 34) as i64 - (1 << 33);
            set.mtime =
                Some(SetTime::At(Timestamp { seconds, nanoseconds: rng.below(1_000_000_000) as u32 }));
            set.atime = Some(SetTime::Now);
        }
        2 => set.gid = Some(rng.below(5) as u32),
        _ => set.atime = Some(SetTime::At(Timestamp { seconds: rng.below(1 << 31) as i64, nanoseconds: 0 })),
    }
    Call::SetAttr { ino, set }
}

/// Attributes that mean something: access control lists, capabilities, those that only root or the kernel sets.
fn special_xattr(model: &Model, ino: InodeId, rng: &mut Rng) -> Call {
    let Some(inode) = model.get(ino) else { return Call::Sync };
    let names = [ACCESS, DEFAULT, CAPABILITY, b"trusted.overlay.opaque", b"security.selinux"];
    let name = names[rng.index(names.len())];
    if inode.xattrs.contains_key(name) && rng.below(3) == 0 {
        return Call::RemoveXattr { ino, name: name.to_vec() };
    }
    let value = if name == ACCESS || name == DEFAULT {
        let mut some = |most: u64| -> Vec<(u32, u16)> {
            (0..rng.below(most)).map(|id| (1_000 + id as u32, rng.below(8) as u16)).collect()
        };
        let (users, groups) = (some(4), some(3));
        access_list(rng.below(0o1000) as u32, &users, &groups, rng.below(8) as u16)
    } else {
        let len = if rng.below(12) == 0 { rng.below(65_537) } else { 20 };
        vec![rng.below(256) as u8; len as usize]
    };
    Call::SetXattr { ino, name: name.to_vec(), value, mode: XattrMode::Set }
}
