//! A filesystem in memory, as small as can be while real programs run on it. It knows nothing of disks; it exists so
//! that the adapter can be tested without an engine.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::Mutex;
use varve_device::AlignedBuf;
use varve_fs::{
    Allocate, Attr, Caller, DirEntry, EngineError, FileKind, FsError, InodeId, NewInode, ROOT_INODE,
    RenameMode, SeekTo, SetAttr, SetTime, StatFs, Timestamp, Trimmed, XattrMode,
};
use varve_mount::{Flags, MountOptions, Rings, Verbs};

type Result<T> = std::result::Result<T, FsError>;

struct Node {
    attr: Attr,
    data: Vec<u8>,
    names: BTreeMap<Vec<u8>, (InodeId, u64)>,
    parent: InodeId,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    open: u64,
}

struct Tree {
    nodes: HashMap<InodeId, Node>,
    next: u64,
}

/// The double, with counters of what reached it.
pub struct Double {
    tree: Mutex<Tree>,
    /// Lookups that were asked of it.
    pub lookups: AtomicU64,
    /// Handles that are open.
    pub opens: AtomicU64,
    /// Fsyncs that were asked of it.
    pub fsyncs: AtomicU64,
    /// Writes that came in a buffer of their own, all of it theirs, and were taken with it.
    pub taken: AtomicU64,
    /// Writes wait before they do anything.
    pub hold_writes: AtomicBool,
    /// Writes that have begun and not done anything yet.
    pub held: AtomicU64,
    /// Attributes that were asked of it, but for those that come with a name.
    pub getattrs: AtomicU64,
    /// getattr of this inode waits when it knows its answer. Zero: none.
    pub hold_getattr: AtomicU64,
    /// Such ones that wait.
    pub held_getattr: AtomicU64,
    /// fallocate zeroes what it is asked to and fails then.
    pub half_zeroes: AtomicBool,
    /// copy_range copies half of what it is asked to and fails then.
    pub half_copies: AtomicBool,
    /// What a rename is to replace is damaged, so that it can only go while nobody has it open.
    pub bad_targets: AtomicBool,
    /// Trims that have begun, and that have ended: none does before it is interrupted.
    pub trims: (AtomicU64, AtomicU64),
    /// Who mounts has said that the kernel keeps names.
    pub names_left: AtomicBool,
    /// Why all writing is to end.
    pub stopped: Mutex<Vec<String>>,
}

/// How a double is mounted.
pub fn options(rings: Rings) -> MountOptions {
    MountOptions {
        source: "double".into(),
        flags: Flags::default(),
        allow_other: false,
        threads: 4,
        direct_io: false,
        rings,
    }
}

fn node(ino: InodeId, kind: FileKind, mode: u32, caller: Caller, parent: InodeId) -> Node {
    let now = Timestamp { seconds: 1_000_000_000, nanoseconds: 5 };
    let attr = Attr {
        ino,
        generation: 1,
        kind,
        mode,
        links: 1,
        uid: caller.uid,
        gid: caller.gid,
        rdev: 0,
        size: 0,
        blocks: 0,
        atime: now,
        mtime: now,
        ctime: now,
        btime: Timestamp { seconds: 900_000_000, nanoseconds: 3 },
        flags: varve_fs::FileFlags::NONE,
    };
    Node { attr, data: Vec::new(), names: BTreeMap::new(), parent, xattrs: BTreeMap::new(), open: 0 }
}

impl Default for Double {
    fn default() -> Self {
        let root = node(ROOT_INODE, FileKind::Directory, 0o755, Caller::ROOT, ROOT_INODE);
        let tree = Tree { nodes: HashMap::from([(ROOT_INODE, root)]), next: 2 };
        Double {
            tree: Mutex::new(tree),
            lookups: AtomicU64::new(0),
            opens: AtomicU64::new(0),
            fsyncs: AtomicU64::new(0),
            taken: AtomicU64::new(0),
            hold_writes: AtomicBool::new(false),
            held: AtomicU64::new(0),
            getattrs: AtomicU64::new(0),
            hold_getattr: AtomicU64::new(0),
            held_getattr: AtomicU64::new(0),
            half_zeroes: AtomicBool::new(false),
            half_copies: AtomicBool::new(false),
            bad_targets: AtomicBool::new(false),
            trims: Default::default(),
            names_left: AtomicBool::new(false),
            stopped: Mutex::default(),
        }
    }
}

/// The mode that an access control list of three entries stands for.
fn mode_of_list(value: &[u8]) -> u32 {
    value[4..].chunks_exact(8).fold(0, |mode, entry| mode << 3 | u32::from(entry[2]))
}

impl Tree {
    fn get(&mut self, ino: InodeId) -> Result<&mut Node> {
        self.nodes.get_mut(&ino).ok_or(FsError::NotFound)
    }

    fn child(&mut self, parent: InodeId, name: &[u8]) -> Result<InodeId> {
        self.get(parent)?.names.get(name).map(|(ino, _)| *ino).ok_or(FsError::NotFound)
    }

    fn add(
        &mut self,
        caller: Caller,
        parent: InodeId,
        name: &[u8],
        mode: u32,
        kind: FileKind,
    ) -> Result<Attr> {
        if self.child(parent, name).is_ok() {
            return Err(FsError::Exists);
        }
        let ino = InodeId(self.next);
        self.nodes.insert(ino, node(ino, kind, mode, caller, parent));
        self.name(parent, name, ino)?;
        Ok(self.get(ino)?.attr)
    }

    fn name(&mut self, parent: InodeId, name: &[u8], ino: InodeId) -> Result<()> {
        self.next += 1;
        let cookie = self.next + 2;
        let parent = self.get(parent)?;
        parent.names.insert(name.to_vec(), (ino, cookie));
        parent.attr.mtime.seconds += 1;
        Ok(())
    }

    fn unname(&mut self, parent: InodeId, name: &[u8]) -> Result<()> {
        let parent = self.get(parent)?;
        parent.names.remove(name);
        parent.attr.mtime.seconds += 1;
        Ok(())
    }

    fn drop_link(&mut self, ino: InodeId) -> Result<()> {
        let node = self.get(ino)?;
        node.attr.links -= 1;
        if node.attr.links == 0 && node.open == 0 {
            self.nodes.remove(&ino);
        }
        Ok(())
    }
}

impl Verbs for Double {
    fn trim(&self, range: Range<u64>, _: u64, goes_on: &dyn Fn() -> bool) -> Result<Trimmed> {
        self.trims.0.fetch_add(1, Relaxed);
        while goes_on() {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.trims.1.fetch_add(1, Relaxed);
        Ok(Trimmed { discarded_bytes: 0, position_bytes: 0, end_bytes: range.end, is_supported: true })
    }
    fn lookup(&self, parent: InodeId, name: &[u8]) -> Result<Attr> {
        self.lookups.fetch_add(1, Relaxed);
        let mut tree = self.tree.lock();
        let ino = tree.child(parent, name)?;
        Ok(tree.get(ino)?.attr)
    }

    fn getattr(&self, ino: InodeId) -> Result<Attr> {
        self.getattrs.fetch_add(1, Relaxed);
        let attr = self.tree.lock().get(ino)?.attr;
        if self.hold_getattr.load(Relaxed) == ino.0 {
            self.held_getattr.fetch_add(1, Relaxed);
            while self.hold_getattr.load(Relaxed) == ino.0 {
                std::thread::sleep(Duration::from_millis(1));
            }
            self.held_getattr.fetch_sub(1, Relaxed);
        }
        Ok(attr)
    }

    fn setattr(&self, _: Caller, ino: InodeId, set: SetAttr) -> Result<Attr> {
        let mut tree = self.tree.lock();
        let node = tree.get(ino)?;
        let time = |time| match time {
            SetTime::Now => Timestamp { seconds: 1_500_000_000, nanoseconds: 7 },
            SetTime::At(time) => time,
        };
        if let Some(size) = set.size {
            node.data.resize(size as usize, 0);
            node.attr.size = size;
        }
        node.attr.mode = set.mode.unwrap_or(node.attr.mode);
        node.attr.uid = set.uid.unwrap_or(node.attr.uid);
        node.attr.gid = set.gid.unwrap_or(node.attr.gid);
        node.attr.atime = set.atime.map_or(node.attr.atime, time);
        node.attr.mtime = set.mtime.map_or(node.attr.mtime, time);
        Ok(node.attr)
    }

    fn make(&self, caller: Caller, parent: InodeId, name: &[u8], new: NewInode) -> Result<Attr> {
        let mut tree = self.tree.lock();
        let ino = tree.add(caller, parent, name, new.mode & !new.umask, new.kind)?.ino;
        let node = tree.get(ino)?;
        node.attr.rdev = new.rdev;
        Ok(node.attr)
    }

    fn symlink(&self, caller: Caller, parent: InodeId, name: &[u8], target: &[u8]) -> Result<Attr> {
        let mut tree = self.tree.lock();
        let ino = tree.add(caller, parent, name, 0o777, FileKind::Symlink)?.ino;
        let node = tree.get(ino)?;
        node.data = target.to_vec();
        node.attr.size = target.len() as u64;
        Ok(node.attr)
    }

    fn readlink(&self, ino: InodeId) -> Result<Vec<u8>> {
        Ok(self.tree.lock().get(ino)?.data.clone())
    }

    fn link(&self, ino: InodeId, parent: InodeId, name: &[u8]) -> Result<Attr> {
        let mut tree = self.tree.lock();
        tree.name(parent, name, ino)?;
        let node = tree.get(ino)?;
        node.attr.links += 1;
        Ok(node.attr)
    }

    fn unlink(&self, parent: InodeId, name: &[u8]) -> Result<()> {
        if name == b"panic" {
            panic!("planted");
        }
        let mut tree = self.tree.lock();
        let ino = tree.child(parent, name)?;
        tree.unname(parent, name)?;
        tree.drop_link(ino)
    }

    fn rmdir(&self, parent: InodeId, name: &[u8]) -> Result<()> {
        let mut tree = self.tree.lock();
        let ino = tree.child(parent, name)?;
        if !tree.get(ino)?.names.is_empty() {
            return Err(FsError::NotEmpty);
        }
        tree.unname(parent, name)?;
        tree.drop_link(ino)
    }

    fn rename(
        &self,
        parent: InodeId,
        name: &[u8],
        new_parent: InodeId,
        new_name: &[u8],
        mode: RenameMode,
    ) -> Result<()> {
        let mut tree = self.tree.lock();
        let ino = tree.child(parent, name)?;
        let target = tree.child(new_parent, new_name).ok();
        if let Some(target) = target.filter(|_| self.bad_targets.load(Relaxed))
            && tree.get(target)?.open > 0
        {
            return Err(FsError::Engine(EngineError::Checksum { addr: 4096 }));
        }
        tree.get(ino)?.attr.ctime.seconds += 1;
        match (mode, target) {
            (RenameMode::NoReplace, Some(_)) => return Err(FsError::Exists),
            (RenameMode::Exchange, None) => return Err(FsError::NotFound),
            (RenameMode::Exchange, Some(target)) => {
                tree.name(parent, name, target)?;
                tree.get(target)?.attr.ctime.seconds += 1;
            }
            (RenameMode::Whiteout { .. }, _) => return Err(FsError::NotSupported),
            (_, target) => {
                tree.unname(parent, name)?;
                if let Some(target) = target {
                    tree.drop_link(target)?;
                }
            }
        }
        tree.name(new_parent, new_name, ino)
    }

    fn admit(&self, _: InodeId) -> Result<()> {
        Ok(())
    }
    fn open_inode(&self, _: Caller, ino: InodeId, truncate: bool) -> Result<()> {
        let mut tree = self.tree.lock();
        let node = tree.get(ino)?;
        node.open += 1;
        if truncate {
            node.data.clear();
            node.attr.size = 0;
        }
        self.opens.fetch_add(1, Relaxed);
        Ok(())
    }

    fn release_inode(&self, ino: InodeId) -> Result<()> {
        let mut tree = self.tree.lock();
        let node = tree.get(ino)?;
        node.open -= 1;
        if node.open == 0 && node.attr.links == 0 {
            tree.nodes.remove(&ino);
        }
        self.opens.fetch_sub(1, Relaxed);
        Ok(())
    }

    fn read_into(&self, ino: InodeId, offset: u64, out: &mut [u8]) -> Result<usize> {
        let mut tree = self.tree.lock();
        let data = &tree.get(ino)?.data;
        let start = data.len().min(offset as usize);
        let found = &data[start..data.len().min(start + out.len())];
        out[..found.len()].copy_from_slice(found);
        Ok(found.len())
    }

    fn write(&self, _: Caller, ino: InodeId, offset: u64, data: &[u8]) -> Result<usize> {
        self.held.fetch_add(1, Relaxed);
        while self.hold_writes.load(Relaxed) {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.held.fetch_sub(1, Relaxed);
        let mut tree = self.tree.lock();
        let node = tree.get(ino)?;
        let end = offset as usize + data.len();
        if node.data.len() < end {
            node.data.resize(end, 0);
        }
        node.data[offset as usize..end].copy_from_slice(data);
        node.attr.size = node.data.len() as u64;
        node.attr.blocks = node.attr.size.div_ceil(512);
        node.attr.mtime.seconds += 1;
        Ok(data.len())
    }

    fn write_owned(
        &self,
        caller: Caller,
        ino: InodeId,
        offset: u64,
        buf: &mut AlignedBuf,
        len: usize,
    ) -> Result<usize> {
        if len < buf.len() {
            return self.write(caller, ino, offset, &buf[..len]);
        }
        self.taken.fetch_add(1, Relaxed);
        let other = AlignedBuf::from_slice(&vec![0xee; len]);
        let taken = std::mem::replace(buf, other);
        self.write(caller, ino, offset, &taken)
    }

    fn fallocate(&self, _: Caller, ino: InodeId, offset: u64, len: u64, _: Allocate) -> Result<()> {
        if !self.half_zeroes.load(Relaxed) {
            return Err(FsError::NotSupported);
        }
        self.tree.lock().get(ino)?.data[offset as usize..][..len as usize].fill(0);
        Err(FsError::Engine(EngineError::NoSpace))
    }

    fn seek(&self, _: InodeId, _: u64, _: SeekTo) -> Result<Option<u64>> {
        Err(FsError::NotSupported)
    }

    fn copy_range(
        &self,
        caller: Caller,
        (from, from_offset): (InodeId, u64),
        (to, to_offset): (InodeId, u64),
        len: u64,
    ) -> Result<u64> {
        if !self.half_copies.load(Relaxed) {
            return Err(FsError::NotSupported);
        }
        let half = self.tree.lock().get(from)?.data[from_offset as usize..][..len as usize / 2].to_vec();
        self.write(caller, to, to_offset, &half)?;
        Err(FsError::Engine(EngineError::NoSpace))
    }

    fn fsync_then(&self, ino: InodeId, done: Box<dyn FnOnce(Result<()>) + Send>) {
        self.fsyncs.fetch_add(1, Relaxed);
        let result = self.tree.lock().get(ino).map(|_| ());
        std::thread::spawn(move || done(result));
    }

    fn readdir(&self, ino: InodeId, cookie: u64, each: &mut dyn FnMut(DirEntry) -> bool) -> Result<()> {
        let mut tree = self.tree.lock();
        let parent = tree.get(ino)?.parent;
        let mut entries = vec![
            DirEntry { name: b".".to_vec(), ino, kind: FileKind::Directory, cookie: 1 },
            DirEntry { name: b"..".to_vec(), ino: parent, kind: FileKind::Directory, cookie: 2 },
        ];
        for (name, (child, cookie)) in tree.get(ino)?.names.clone() {
            let kind = tree.get(child)?.attr.kind;
            entries.push(DirEntry { name, ino: child, kind, cookie });
        }
        drop(tree);
        entries.sort_by_key(|entry| entry.cookie);
        for entry in entries.into_iter().filter(|entry| entry.cookie > cookie) {
            if !each(entry) {
                break;
            }
        }
        Ok(())
    }

    fn setxattr(&self, _: Caller, ino: InodeId, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()> {
        let mut tree = self.tree.lock();
        let node = tree.get(ino)?;
        match (mode, node.xattrs.contains_key(name)) {
            (XattrMode::Create, true) => Err(FsError::Exists),
            (XattrMode::Replace, false) => Err(FsError::NoAttribute),
            _ => {
                if name == b"system.posix_acl_access" {
                    node.attr.mode = mode_of_list(value);
                }
                node.xattrs.insert(name.to_vec(), value.to_vec());
                node.attr.ctime.seconds += 1;
                Ok(())
            }
        }
    }

    fn getxattr(&self, ino: InodeId, name: &[u8]) -> Result<Vec<u8>> {
        self.tree.lock().get(ino)?.xattrs.get(name).cloned().ok_or(FsError::NoAttribute)
    }

    fn listxattr(&self, ino: InodeId) -> Result<Vec<Vec<u8>>> {
        Ok(self.tree.lock().get(ino)?.xattrs.keys().cloned().collect())
    }

    fn removexattr(&self, ino: InodeId, name: &[u8]) -> Result<()> {
        let mut tree = self.tree.lock();
        let node = tree.get(ino)?;
        node.attr.ctime.seconds += 1;
        node.xattrs.remove(name).map(|_| ()).ok_or(FsError::NoAttribute)
    }

    fn statfs(&self) -> Result<StatFs> {
        Ok(StatFs { total_bytes: 1 << 30, free_bytes: 1 << 29, files: self.tree.lock().nodes.len() as u64 })
    }
    fn leave_names_to_caller(&self) {
        self.names_left.store(true, Relaxed);
    }
    fn stop(&self, why: &str) {
        self.stopped.lock().push(why.to_owned());
    }
}
