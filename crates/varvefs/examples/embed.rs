//! A crash-safe store of versions in few lines: every version of a document is kept, many documents are committed with
//! one flush, and a power failure in the middle of anything leaves whole versions only.
//!
//! Run it with `cargo run -p varvefs --example embed`.

use std::io;

use varvefs::{File, Filesystem, MemoryDisk, Pending, PoolOptions, wait_all};

/// Documents are directories, versions are files in them: `/documents/NAME/000001` and so on.
pub struct Store {
    fs: Filesystem,
}

impl Store {
    /// The store in this filesystem.
    pub fn new(fs: Filesystem) -> io::Result<Store> {
        fs.create_dir_all("/documents")?;
        Ok(Store { fs })
    }

    /// Versions of a document, oldest first.
    pub fn versions(&self, name: &str) -> io::Result<Vec<u32>> {
        let mut versions = Vec::new();
        for entry in self.fs.read_dir(format!("/documents/{name}"))? {
            // A name that is no number is a version whose writer did not live to finish it.
            versions.extend(entry?.file_name().to_str().and_then(|name| name.parse::<u32>().ok()));
        }
        versions.sort_unstable();
        Ok(versions)
    }

    /// Adds a version. It is whole as soon as it has its name; it lasts when what this returns has been waited for.
    pub fn put(&self, name: &str, contents: &[u8]) -> io::Result<(u32, Pending)> {
        let document = format!("/documents/{name}");
        self.fs.create_dir_all(&document)?;
        let unfinished = format!("{document}/unfinished-{:?}", std::thread::current().id());
        let file: File = self.fs.create(&unfinished)?;
        file.write_all_at(contents, 0)?;
        // The contents have their place in the log now, and the name comes after them.
        drop(file.start_sync()?);
        let mut version = self.versions(name)?.last().map_or(1, |last| last + 1);
        loop {
            match self.fs.rename_no_replace(&unfinished, format!("{document}/{version:06}")) {
                Ok(()) => return Ok((version, file.start_sync()?)),
                // Another thread has taken the number.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => version += 1,
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// The contents of a version.
    pub fn get(&self, name: &str, version: u32) -> io::Result<Vec<u8>> {
        Ok(self.fs.read(format!("/documents/{name}/{version:06}"))?)
    }
}

/// Writes versions, cuts the power, and looks at what is left.
pub fn main() -> io::Result<()> {
    let disk = MemoryDisk::new(64 << 20);
    let pool = PoolOptions::new().background(false).create_on(&disk)?;
    let store = Store::new(pool.filesystem())?;

    let flushes = || -> io::Result<u64> { Ok(pool.stats()?.devices[0].flushes_count) };
    let before = flushes()?;
    let mut pending = Vec::new();
    for n in 0..100 {
        pending.push(store.put(&format!("letter-{n}"), format!("Dear number {n}").as_bytes())?.1);
    }
    wait_all(pending)?;
    println!("100 documents are durable after {} flush", flushes()? - before);
    assert_eq!(flushes()? - before, 1);

    // A second version that nobody waits for, and the power fails.
    let (version, pending) = store.put("letter-7", b"Dear number 7, on second thoughts")?;
    assert!(version == 2 && !pending.is_durable());
    let left = disk.after_power_cut();

    let pool = PoolOptions::new().open_on(&left)?;
    let store = Store::new(pool.filesystem())?;
    println!("after the power cut letter-7 has the versions {:?}", store.versions("letter-7")?);
    for n in 0..100 {
        assert_eq!(store.get(&format!("letter-{n}"), 1)?, format!("Dear number {n}").as_bytes());
    }
    assert!(pool.check(true)?.is_clean());
    Ok(pool.close()?)
}
