//! The first names of files that have several, while an import has not met the others.
//!
//! Another name is told by filesystem and inode number, which a source that is in use may give to another file once the first is gone,
//! long before the import ends. What is looked at under such a number has to be what the first name was, as far as that shows.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use varve_fs::{FileKind, InodeId, Timestamp};

use super::host::HostStat;

/// For each subvolume of the pool, which no link leaves.
#[derive(Default)]
pub struct Links(HashMap<Key, First>);

/// Filesystem and inode of the source, subvolume of the pool.
type Key = ((u64, u64), u64);

struct First {
    /// What it has become.
    ino: InodeId,
    /// Names still to come, at most.
    left: u64,
    seen: Seen,
}

/// What stays as it is while names come and go, and seldom is the same of two files. (ctime is not among that.)
#[derive(PartialEq, Eq)]
struct Seen {
    kind: FileKind,
    size: u64,
    rdev: u32,
    mtime: Timestamp,
}

impl Seen {
    fn of(stat: &HostStat) -> Seen {
        Seen { kind: stat.kind, size: stat.size, rdev: stat.rdev, mtime: stat.mtime }
    }
}

impl Links {
    /// A name was met that leads to `stat`, in subvolume `slot`. Gives what the first name has become; `None`: this is the first.
    pub fn meet(&mut self, stat: &HostStat, slot: u64) -> Option<InodeId> {
        if stat.links <= 1 {
            return None;
        }
        let Entry::Occupied(mut entry) = self.0.entry((stat.id, slot)) else { return None };
        let first = entry.get_mut();
        let ino = first.ino;
        first.left -= 1;
        let is_same = first.seen == Seen::of(stat);
        if first.left == 0 || !is_same {
            entry.remove();
        }
        is_same.then_some(ino)
    }

    /// A name has become `ino`: the first, unless it has come to `stat` only after it was met.
    pub fn add(&mut self, stat: &HostStat, slot: u64, ino: InodeId) {
        let (key, seen) = ((stat.id, slot), Seen::of(stat));
        // Names that still come have their first, and stay with it.
        if stat.links > 1 && self.0.get(&key).is_none_or(|first| first.seen != seen) {
            self.0.insert(key, First { ino, left: stat.links - 1, seen });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file with three names.
    fn stat() -> HostStat {
        let time = |seconds| Timestamp { seconds, nanoseconds: 5 };
        HostStat {
            kind: FileKind::File,
            mode: 0o644,
            uid: 0,
            gid: 0,
            size: 10,
            links: 3,
            rdev: 0,
            id: (1, 2),
            atime: time(1),
            mtime: time(2),
            ctime: time(3),
        }
    }

    // Goal: further names lead to what the first has become, and a number that has come to another file does not. Method: the names of one
    // file in two subvolumes, one of which is touched meanwhile by who makes links; then the first of something else under its number.
    #[test]
    fn a_number_may_come_to_another_file() {
        let (mut links, stat) = (Links::default(), stat());
        assert_eq!(links.meet(&stat, 0), None);
        links.add(&stat, 0, InodeId(7));
        assert_eq!(links.meet(&stat, 1), None);
        let linked = HostStat { ctime: stat.mtime, links: 4, ..stat };
        assert_eq!((links.meet(&linked, 0), links.meet(&stat, 0)), (Some(InodeId(7)), Some(InodeId(7))));
        assert_eq!(links.meet(&stat, 0), None, "all of its names have come");

        let others = [
            HostStat { size: 11, ..stat },
            HostStat { mtime: stat.ctime, ..stat },
            HostStat { kind: FileKind::Fifo, ..stat },
            HostStat { rdev: 1, ..stat },
        ];
        for other in others {
            links.add(&stat, 0, InodeId(7));
            assert_eq!(links.meet(&other, 0), None, "{other:?}");
            links.add(&other, 0, InodeId(8));
            assert_eq!(links.meet(&other, 0), Some(InodeId(8)));
            assert_eq!(links.meet(&HostStat { links: 1, ..other }, 0), None);
        }
    }
}
