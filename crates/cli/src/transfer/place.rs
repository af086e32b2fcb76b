//! `POOL:/PATH`: a place inside a pool that is not mounted.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use varve_fs::{Attr, FileKind, Filesystem, ROOT_INODE};

use crate::Usage;
use crate::names::Shown;

/// A directory in a pool, from the command line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PoolPath {
    /// File or block device of the pool.
    pub pool: PathBuf,
    /// The names below the pool's root, one after the other.
    pub names: Vec<Vec<u8>>,
}

impl PoolPath {
    /// Takes `POOL:/PATH` apart. Both may contain `:/`: the pool is the shortest beginning that exists.
    pub fn parse(text: &OsStr) -> Result<PoolPath, Usage> {
        let shown = text.shown();
        let bytes = text.as_bytes();
        let splits: Vec<usize> =
            bytes.windows(2).enumerate().filter(|(_, w)| w == b":/").map(|(i, _)| i).collect();
        let split = splits
            .iter()
            .find(|at| pool_of(bytes, **at).exists())
            .or(splits.first())
            .filter(|at| **at > 0)
            .ok_or_else(|| {
                Usage(format!("{shown} names no place in a pool: write POOL:/PATH, or POOL:/ for its root"))
            })?;
        let mut names = Vec::new();
        for name in bytes[split + 2..].split(|byte| *byte == b'/') {
            match name {
                b"" | b"." => {}
                b".." => return Err(Usage(format!("{shown}: a path in a pool is given without '..'"))),
                name => names.push(name.to_vec()),
            }
        }
        Ok(PoolPath { pool: pool_of(bytes, *split), names })
    }

    /// The path below the pool's root, as people write it.
    pub fn inside(&self) -> PathBuf {
        let names = self.names.iter().map(|name| OsStr::from_bytes(name));
        Path::new("/").join(names.collect::<PathBuf>())
    }
}

impl std::fmt::Display for PoolPath {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{}:{}", self.pool.shown(), self.inside().shown())
    }
}

fn pool_of(bytes: &[u8], split: usize) -> PathBuf {
    PathBuf::from(OsString::from_vec(bytes[..split].to_vec()))
}

/// Looks for the directory `place` of an open pool.
pub fn find_directory(filesystem: &Filesystem, place: &PoolPath) -> Result<Attr> {
    let mut attr = filesystem.getattr(ROOT_INODE)?;
    for name in &place.names {
        attr = match filesystem.lookup(attr.ino, name) {
            Ok(attr) => attr,
            Err(error) => bail!("{place}: {}: {error}", OsStr::from_bytes(name).shown()),
        };
        if attr.kind != FileKind::Directory {
            bail!("{place}: {} is not a directory", OsStr::from_bytes(name).shown());
        }
    }
    Ok(attr)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<(String, String), Usage> {
        let place = PoolPath::parse(OsStr::new(text))?;
        Ok((place.pool.shown(), place.inside().shown()))
    }

    // Goal: places parse as people write them. Method: one of each form, and what it means.
    #[test]
    fn places_parse() {
        for (text, pool, path) in [
            ("pool.img:/", "pool.img", "/"),
            ("pool.img:/a/b", "pool.img", "/a/b"),
            ("pool.img:/a//./b/", "pool.img", "/a/b"),
            ("/dev/disk:/x", "/dev/disk", "/x"),
            ("pool:/a:/b", "pool", "/a:/b"),
            ("a:b:/c", "a:b", "/c"),
        ] {
            assert_eq!(parse(text), Ok((pool.to_owned(), path.to_owned())), "{text}");
        }
    }

    // Goal: what is no place is refused with the form that is wanted. Method: one of each mistake.
    #[test]
    fn mistakes_are_refused() {
        for (text, word) in [
            ("pool.img", "POOL:/PATH"),
            ("pool.img:", "POOL:/PATH"),
            ("pool.img:path", "POOL:/PATH"),
            (":/path", "POOL:/PATH"),
            ("pool.img:/a/../b", "without '..'"),
        ] {
            let error = parse(text).expect_err(text);
            assert!(error.0.contains(word), "{text}: {error}");
        }
    }

    // Goal: of several ways to take a place apart, the one whose pool exists is taken. Method: a file that is there.
    #[test]
    fn the_pool_that_exists_is_meant() {
        let text = format!("{}/nothing:/{}", env!("CARGO_MANIFEST_DIR"), "x");
        let (pool, path) = parse(&text).expect("it parses");
        assert!(pool.ends_with("/nothing") && path == "/x");
        let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
        let (pool, path) = parse(&format!("{manifest}:/y:/z")).expect("it parses");
        assert_eq!((pool.as_str(), path.as_str()), (manifest, "/y:/z"));
    }
}
