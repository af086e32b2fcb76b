//! What reached a block device, as the kernel's block layer counts it: `/sys/block/DEV/stat`.

use std::ops::Sub;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::Serialize;

/// Bytes of the unit that the kernel counts in, whatever the device's sectors.
const SECTOR_BYTES: u64 = 512;

/// Requests completed since the device came to be, or between two readings.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Counters {
    /// Reads.
    pub reads_count: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Writes.
    pub writes_count: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Flushes of the device's cache.
    pub flushes_count: u64,
}

impl Counters {
    /// Reads the file `stat` of a block device's directory in sysfs.
    pub fn read(path: &Path) -> Result<Counters> {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read the block layer's counters {}", path.display()))?;
        Counters::parse(&text)
            .with_context(|| format!("{} is not as Linux 5.5 and later have it", path.display()))
    }

    /// Fields as in the kernel's Documentation/block/stat.rst. `None` if there are too few (kernels before 5.5 count no
    /// flushes) or one is no number.
    #[must_use]
    pub fn parse(text: &str) -> Option<Counters> {
        let fields: Vec<u64> =
            text.split_whitespace().map(|field| field.parse().ok()).collect::<Option<_>>()?;
        Some(Counters {
            reads_count: *fields.first()?,
            read_bytes: fields.get(2)?.checked_mul(SECTOR_BYTES)?,
            writes_count: *fields.get(4)?,
            written_bytes: fields.get(6)?.checked_mul(SECTOR_BYTES)?,
            flushes_count: *fields.get(15)?,
        })
    }
}

/// Where the kernel counts for a block device that may be a part of another.
pub(crate) struct Counted {
    own: PathBuf,
    /// The whole disk's, for a partition: the kernel counts reads and writes of a partition, and flushes of whole disks alone.
    disk: Option<PathBuf>,
}

impl Counted {
    /// Those of a block device's directory in sysfs, or a link to that. `None`: there are none.
    pub fn of(block: &Path) -> Option<Counted> {
        let own = block.join("stat");
        let is_partition = block.join("partition").exists();
        // A partition's directory lies in its disk's.
        let disk = is_partition.then(|| block.join("..").join("stat"));
        own.exists().then_some(Counted { own, disk })
    }

    /// Whether flushes of other partitions are among them.
    pub fn is_partition(&self) -> bool {
        self.disk.is_some()
    }

    /// As they are now.
    pub fn read(&self) -> Result<Counters> {
        let own = Counters::read(&self.own)?;
        match &self.disk {
            Some(disk) => Ok(Counters { flushes_count: Counters::read(disk)?.flushes_count, ..own }),
            None => Ok(own),
        }
    }
}

impl Sub for Counters {
    type Output = Counters;

    fn sub(self, earlier: Counters) -> Counters {
        Counters {
            reads_count: self.reads_count.wrapping_sub(earlier.reads_count),
            read_bytes: self.read_bytes.wrapping_sub(earlier.read_bytes),
            writes_count: self.writes_count.wrapping_sub(earlier.writes_count),
            written_bytes: self.written_bytes.wrapping_sub(earlier.written_bytes),
            flushes_count: self.flushes_count.wrapping_sub(earlier.flushes_count),
        }
    }
}

impl std::ops::AddAssign for Counters {
    fn add_assign(&mut self, more: Counters) {
        self.reads_count += more.reads_count;
        self.read_bytes += more.read_bytes;
        self.writes_count += more.writes_count;
        self.written_bytes += more.written_bytes;
        self.flushes_count += more.flushes_count;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Goal: each field is taken from its place, and short or foreign text is refused. Method: numbers that tell where
    // they stand.
    #[test]
    fn fields_have_their_places() {
        let line = "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17\n";
        let counters = Counters::parse(line).expect("seventeen numbers");
        assert_eq!(counters.reads_count, 1);
        assert_eq!(counters.read_bytes, 3 * 512);
        assert_eq!(counters.writes_count, 5);
        assert_eq!(counters.written_bytes, 7 * 512);
        assert_eq!(counters.flushes_count, 16);
        assert_eq!(Counters::parse("1 2 3 4 5 6 7 8 9 10 11 12 13 14 15"), None);
        assert_eq!(Counters::parse("1 2 three"), None);
    }

    // Goal: a partition's reads and writes are its own, its flushes those of its disk, where the kernel counts them. Method: a disk and a
    // partition as sysfs has them, found through links.
    #[test]
    fn flushes_of_a_partition_are_its_disks() {
        let directory = tempfile::tempdir().expect("a directory");
        let at = |name: &str| directory.path().join(name);
        std::fs::create_dir_all(at("devices/vda/vda1")).expect("directories");
        std::fs::write(at("devices/vda/stat"), "10 0 10 0 10 0 10 0 0 0 0 0 0 0 0 7 0\n").expect("counters");
        std::fs::write(at("devices/vda/vda1/stat"), "1 0 2 0 3 0 4 0 0 0 0 0 0 0 0 0 0\n").expect("counters");
        std::fs::write(at("devices/vda/vda1/partition"), "1\n").expect("a number");
        std::os::unix::fs::symlink("devices/vda", at("254:0")).expect("a link");
        std::os::unix::fs::symlink("devices/vda/vda1", at("254:1")).expect("a link");
        let part = Counted::of(&at("254:1")).expect("it counts");
        let counters = part.read().expect("numbers");
        assert_eq!((counters.reads_count, counters.writes_count, counters.flushes_count), (1, 3, 7));
        let disk = Counted::of(&at("254:0")).expect("it counts");
        let counters = disk.read().expect("numbers");
        assert_eq!((counters.reads_count, counters.writes_count, counters.flushes_count), (10, 10, 7));
        assert!(part.is_partition() && !disk.is_partition());
        assert!(Counted::of(&at("254:2")).is_none());
    }
}
