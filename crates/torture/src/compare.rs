//! Walks a filesystem from its root and compares everything a user can see with the model.

use std::collections::BTreeMap;
use std::fmt;

use varve_fs::{Attr, FileKind, Filesystem, FsError, InodeId, ROOT_INODE, SeekTo};

use crate::model::{Body, Content, Inode, Model, PAGE_BYTES, numbered, slot};

/// Bytes read from a file at once: not a power of two of anything, so that reads straddle extents and segments.
const READ_BYTES: usize = 300 * 1024;
const EIO: i32 = 5;
/// Differences reported for one comparison.
const DIFFERENCES_MAX: usize = 8;

/// What the filesystem shows and the model does not, in sentences.
#[derive(Debug, Default, Clone)]
pub struct Differences(pub Vec<String>);

impl fmt::Display for Differences {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for difference in &self.0 {
            writeln!(f, "  {difference}")?;
        }
        Ok(())
    }
}

/// How much there is to see.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sight {
    /// All of it.
    Whole,
    /// Some of it gives EIO; the rest is right.
    InPart,
}

struct Walk<'a> {
    fs: &'a Filesystem,
    model: &'a Model,
    settled: Model,
    found: Vec<String>,
    seen: BTreeMap<InodeId, u32>,
    sight: Sight,
    /// Errors that were met and are allowed.
    unseen: u64,
}

/// Compares everything. Gives the model with every choice replaced by what was found.
pub fn compare(fs: &Filesystem, model: &Model) -> Result<Model, Differences> {
    compare_after(fs, model, Sight::Whole, || {})
}

/// Compares what can be seen, `then` being done once it is known which of what may be there is.
pub fn compare_after(
    fs: &Filesystem,
    model: &Model,
    sight: Sight,
    then: impl FnOnce(),
) -> Result<Model, Differences> {
    let mut model = model.clone();
    model.settle_optional(|dir, name| fs.lookup(dir, name).is_ok());
    then();
    let model = &model;
    let (found, seen) = (Vec::new(), BTreeMap::new());
    let mut walk = Walk { fs, model, settled: model.clone(), found, seen, sight, unseen: 0 };
    walk.inode(ROOT_INODE, "");
    walk.directory(ROOT_INODE, ROOT_INODE, "");
    for (ino, links) in std::mem::take(&mut walk.seen) {
        // Other names may be where nothing was seen.
        if walk.unseen > 0 {
            break;
        }
        let expected = model.get(ino).map_or(0, |inode| inode.links);
        if links != expected && ino != ROOT_INODE {
            walk.differs("", format!("inode {} has {links} names, expected {expected}", ino.0));
        }
    }
    walk.subvolumes();
    if walk.found.is_empty() { Ok(walk.settled) } else { Err(Differences(walk.found)) }
}

impl<'a> Walk<'a> {
    fn differs(&mut self, path: &str, what: String) {
        if self.found.len() < DIFFERENCES_MAX {
            let path = if path.is_empty() { "/" } else { path };
            self.found.push(format!("{path}: {what}"));
        }
    }

    /// A question that has an answer failed.
    fn fails(&mut self, path: &str, what: &str, error: &FsError) {
        if self.sight == Sight::InPart && error.errno() == EIO {
            self.unseen += 1;
        } else {
            self.differs(path, format!("{what} fails: {error}"));
        }
    }

    fn directory(&mut self, ino: InodeId, above: InodeId, path: &str) {
        if self.found.len() >= DIFFERENCES_MAX {
            return;
        }
        let mut listed = BTreeMap::new();
        let mut last = 0;
        let mut odd = Vec::new();
        let listing = self.fs.readdir(ino, 0, &mut |entry| {
            if entry.cookie <= last || entry.cookie > i64::MAX as u64 {
                odd.push(format!("readdir position {} follows {last}", entry.cookie));
            }
            last = entry.cookie;
            let dot = match &entry.name[..] {
                b"." => Some(ino),
                b".." => Some(above),
                _ => None,
            };
            match dot {
                Some(expected) if entry.ino != expected => {
                    odd.push(format!(
                        "readdir gives {} for its dot entry, expected {}",
                        entry.ino.0, expected.0
                    ));
                }
                Some(_) => {}
                None => {
                    if listed.insert(entry.name.clone(), (entry.ino, entry.kind)).is_some() {
                        odd.push(format!("readdir lists {} twice", entry.name.escape_ascii()));
                    }
                }
            }
            true
        });
        let is_listed = listing.is_ok();
        if let Err(error) = listing {
            self.fails(path, "readdir", &error);
        }
        for what in odd {
            self.differs(path, what);
        }
        let nothing = BTreeMap::new();
        let model: &'a Model = self.model;
        let expected = model.get(ino).and_then(Inode::entries).unwrap_or(&nothing);
        for name in expected.keys().filter(|name| is_listed && !listed.contains_key(*name)) {
            self.differs(path, format!("{} is missing", name.escape_ascii()));
        }
        for (name, (found, kind)) in listed {
            let child_path = format!("{path}/{}", name.escape_ascii());
            let Some(child) = expected.get(&name).copied() else {
                self.differs(&child_path, "exists and should not".into());
                continue;
            };
            match self.fs.lookup(ino, &name) {
                Ok(attr) if attr.ino == child && found == child => {}
                Ok(attr) => self.differs(
                    &child_path,
                    format!("readdir gives inode {}, lookup {}, expected {}", found.0, attr.ino.0, child.0),
                ),
                Err(error) => self.fails(&child_path, "is listed, and lookup", &error),
            }
            let first = *self.seen.entry(child).and_modify(|links| *links += 1).or_insert(1) == 1;
            if !first {
                continue;
            }
            self.inode(child, &child_path);
            let should = model.get(child).map(Inode::kind);
            if should.is_some_and(|should| should != kind) {
                self.differs(&child_path, format!("readdir says {kind:?}"));
            }
            if should == Some(FileKind::Directory) {
                self.directory(child, ino, &child_path);
            }
        }
    }

    /// The list holds every subvolume, with its path and whether it can be changed.
    fn subvolumes(&mut self) {
        let listed = match self.fs.list_subvolumes() {
            Ok(listed) => listed,
            Err(error) => return self.fails("", "listing subvolumes", &error),
        };
        let found: BTreeMap<u64, (bool, Vec<u8>)> =
            listed.into_iter().map(|info| (slot(info.root), (info.read_only, info.path))).collect();
        let path = |slot: u64| self.model.path(numbered(slot, ROOT_INODE));
        let expected: BTreeMap<u64, (bool, Vec<u8>)> = self
            .model
            .subvolumes()
            .map(|(slot, subvolume)| (slot, (subvolume.read_only, path(slot))))
            .collect();
        if found != expected {
            self.differs("", format!("subvolumes are {found:?}, expected {expected:?}"));
        }
    }

    fn inode(&mut self, ino: InodeId, path: &str) {
        let model: &'a Model = self.model;
        let Some(expected) = model.get(ino) else {
            return self.differs(path, format!("inode {} is unknown", ino.0));
        };
        match self.fs.getattr(ino) {
            Ok(attr) => {
                for what in attr_differences(&attr, expected) {
                    self.differs(path, what);
                }
                if expected.has_choices() {
                    let settled = self.settled.get_mut(ino).expect("a clone of the model");
                    settled.mode.set(attr.mode);
                    settled.atime.set(attr.atime);
                    settled.mtime.set(attr.mtime);
                    settled.ctime.set(attr.ctime);
                }
            }
            Err(error) => self.fails(path, "getattr", &error),
        }
        self.xattrs(ino, expected, path);
        match &expected.body {
            Body::File(content) => self.data(ino, content, path),
            Body::Symlink(target) => match self.fs.readlink(ino) {
                Ok(found) if found == **target => {}
                Ok(found) => self.differs(path, format!("points at {}", found.escape_ascii())),
                Err(error) => self.fails(path, "readlink", &error),
            },
            Body::Directory { .. } | Body::Node(..) => {}
        }
    }

    fn xattrs(&mut self, ino: InodeId, expected: &Inode, path: &str) {
        let mut names = match self.fs.listxattr(ino) {
            Ok(names) => names,
            Err(error) => return self.fails(path, "listxattr", &error),
        };
        names.sort();
        if !names.iter().eq(expected.xattrs.keys()) {
            let show =
                |names: &[Vec<u8>]| names.iter().map(|n| n.escape_ascii().to_string()).collect::<Vec<_>>();
            let wanted: Vec<Vec<u8>> = expected.xattrs.keys().cloned().collect();
            return self
                .differs(path, format!("has attributes {:?}, expected {:?}", show(&names), show(&wanted)));
        }
        for (name, value) in &expected.xattrs {
            match self.fs.getxattr(ino, name) {
                Ok(found) if found == *value => {}
                Ok(found) => self.differs(
                    path,
                    format!(
                        "attribute {} has {} bytes that differ from {}",
                        name.escape_ascii(),
                        found.len(),
                        value.len()
                    ),
                ),
                Err(error) => self.fails(path, &format!("getxattr({})", name.escape_ascii()), &error),
            }
        }
    }

    fn data(&mut self, ino: InodeId, content: &Content, path: &str) {
        let (size, mut offset) = (content.size(), 0);
        // Whole pages at a time, so that a page with two acceptable contents is compared as a whole.
        let step = READ_BYTES.next_multiple_of(4096);
        while offset < size {
            let bytes = match self.fs.read(ino, offset, step) {
                Ok(bytes) => bytes,
                Err(error) => {
                    self.fails(path, &format!("read at {offset}"), &error);
                    offset += step as u64;
                    continue;
                }
            };
            let want = (size - offset).min(step as u64);
            if bytes.len() as u64 != want {
                return self
                    .differs(path, format!("read at {offset} gives {} bytes, expected {want}", bytes.len()));
            }
            if let Err(at) = content.accepts(offset, &bytes) {
                let found = bytes[(at - offset) as usize];
                let wanted = content.byte(at);
                return self.differs(
                    path,
                    format!("byte {at} of {size} is {found:#04x}, expected {wanted:#04x} (inode {})", ino.0),
                );
            }
            if content.has_choices(offset, want) {
                let settled = self.settled.get_mut(ino).and_then(Inode::content_mut);
                settled.expect("a clone of the model").settle(offset, &bytes);
            }
            offset += want;
        }
        match self.map(ino, content) {
            Ok(()) => {}
            Err(Seen::Wrong(what)) => self.differs(path, format!("{what} (inode {})", ino.0)),
            Err(Seen::Nothing(what, error)) => self.fails(path, &what, &error),
        }
        match self.fs.read(ino, size, 4096) {
            Ok(bytes) if bytes.is_empty() => {}
            Ok(bytes) => self.differs(path, format!("{} bytes can be read beyond the end", bytes.len())),
            Err(error) => self.fails(path, "read at the end", &error),
        }
    }

    /// Seeking shows as data no page that nobody wrote to, and as a hole none that is not zeros.
    fn map(&self, ino: InodeId, content: &Content) -> Result<(), Seen> {
        let seek = |offset, to| {
            let found = self.fs.seek(ino, offset, to);
            found.map_err(|error| Seen::Nothing(format!("seek {to:?} from {offset}"), error))
        };
        let wrong = |what| Err(Seen::Wrong(what));
        let (size, mut at) = (content.size(), 0);
        while at < size {
            let data = seek(at, SeekTo::Data)?.unwrap_or(size);
            if data < at || data > size {
                return wrong(format!("data after {at} is found at {data} of {size}"));
            }
            if let Some(page) = pages(at, data).find(|page| !content.may_be_hole(*page)) {
                return wrong(format!("a hole is shown at {at}..{data}, and page {page} is not zeros"));
            }
            if data == size {
                break;
            }
            let hole = seek(data, SeekTo::Hole)?.unwrap_or(0);
            if hole <= data || hole > size {
                return wrong(format!("a hole after the data at {data} is found at {hole} of {size}"));
            }
            if let Some(page) = pages(data, hole).find(|page| !content.may_be_data(*page)) {
                return wrong(format!("data is shown at {data}..{hole}, and nobody wrote to page {page}"));
            }
            at = hole;
        }
        match (seek(size, SeekTo::Data)?, seek(size, SeekTo::Hole)?) {
            (None, None) => Ok(()),
            found => wrong(format!("seeking from the end finds {found:?}")),
        }
    }
}

/// What is wrong with what was seen, or why nothing was.
enum Seen {
    Wrong(String),
    Nothing(String, FsError),
}

/// Pages of `from..to`, of which the first may be cut.
fn pages(from: u64, to: u64) -> std::ops::Range<u64> {
    from / PAGE_BYTES..to.div_ceil(PAGE_BYTES)
}

/// How `attr` differs from what is expected, in sentences.
pub fn attr_differences(attr: &Attr, expected: &Inode) -> Vec<String> {
    let mut found = Vec::new();
    let mut differ =
        |what: &str, is: String, should: String| found.push(format!("{what} is {is}, expected {should}"));
    if attr.kind != expected.kind() {
        differ("kind", format!("{:?}", attr.kind), format!("{:?}", expected.kind()));
    }
    if !expected.mode.accepts(attr.mode) {
        differ("mode", format!("{:o}", attr.mode), format!("{:o}", expected.mode.get()));
    }
    // Directories keep no count of links.
    if attr.kind != FileKind::Directory && attr.links != expected.links {
        differ("link count", attr.links.to_string(), expected.links.to_string());
    }
    if (attr.uid, attr.gid) != (expected.uid, expected.gid) {
        differ("owner", format!("{}:{}", attr.uid, attr.gid), format!("{}:{}", expected.uid, expected.gid));
    }
    if attr.kind != FileKind::Directory && attr.size != expected.size() {
        differ("size", attr.size.to_string(), expected.size().to_string());
    }
    if attr.flags != expected.flags {
        differ("flags", format!("{:?}", attr.flags), format!("{:?}", expected.flags));
    }
    if attr.rdev != expected.rdev() {
        differ("device number", format!("{:#x}", attr.rdev), format!("{:#x}", expected.rdev()));
    }
    if attr.kind == FileKind::File && attr.blocks.saturating_mul(512) < attr.size {
        differ("blocks", attr.blocks.to_string(), format!("at least {}", attr.size.div_ceil(512)));
    }
    if !expected.atime.accepts(attr.atime) {
        differ("atime", format!("{:?}", attr.atime), format!("{:?}", expected.atime));
    }
    if !expected.mtime.accepts(attr.mtime) {
        differ("mtime", format!("{:?}", attr.mtime), format!("{:?}", expected.mtime));
    }
    if !expected.ctime.accepts(attr.ctime) {
        differ("ctime", format!("{:?}", attr.ctime), format!("{:?}", expected.ctime));
    }
    if attr.btime != expected.btime {
        differ("btime", format!("{:?}", attr.btime), format!("{:?}", expected.btime));
    }
    found
}
