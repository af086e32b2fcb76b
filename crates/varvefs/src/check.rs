//! Checks: of an open pool, and of one that cannot be opened.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result, in_words_of_the_library, path_buf};
use crate::memory::MemoryDisk;
use crate::pool::{Pool, PoolOptions, open_place, shown};

/// What a check found: [`Pool::check`] or [`PoolOptions::check`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct CheckReport {
    /// Empty if everything agrees. A thousand of the trees and their space and as many of the filesystem, at most.
    pub problems: Vec<Problem>,
    /// How many more there are.
    pub problems_omitted_count: u64,
    /// What is no problem, and less than there should be, such as a superblock that stands in one slot only: whole sentences.
    pub warnings: Vec<String>,
    /// Tree nodes visited.
    pub nodes_count: u64,
    /// Entries visited.
    pub entries_count: u64,
    /// The same by the name of the tree.
    pub trees: BTreeMap<String, u64>,
    /// Blocks of data verified.
    pub data_blocks_count: u64,
}

/// Something that a check found wrong. Shown with `{}` it is its kind and the sentence.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Problem {
    /// Of what kind: one of the names that docs/check.md lists, such as `data-unreadable`, which do not change.
    pub kind: String,
    /// What was found, and where: a whole sentence.
    pub text: String,
    /// The inode it is about, if it is about one.
    pub inode: Option<u64>,
    /// A path to that, from the root of the filesystem. (As JSON it is text; one that is no UTF-8 is a list of bytes.)
    #[serde(with = "text_or_bytes")]
    pub path: Option<PathBuf>,
    /// The range of that file that is lost or wrong begins here, in bytes.
    pub bytes_start: Option<u64>,
    /// And ends before this.
    pub bytes_end: Option<u64>,
    /// The blocks it is about begin at this address in the pool.
    pub block_address: Option<u64>,
    /// So many bytes.
    pub block_bytes: Option<u64>,
    /// The ranges of files that have these blocks, in all subvolumes and snapshots; 16 of them at most. The first is the one above.
    pub files: Vec<DamagedRange>,
    /// How many more there are.
    pub files_omitted_count: u64,
    /// There may be yet more: not everybody who may have the blocks was looked at.
    pub files_uncounted: bool,
}

/// A range of a file that has blocks which are damaged.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct DamagedRange {
    /// The file.
    pub inode: u64,
    /// A path to it, as [`Problem::path`].
    #[serde(with = "text_or_bytes")]
    pub path: Option<PathBuf>,
    /// The range begins here, in bytes.
    pub bytes_start: u64,
    /// And ends before this.
    pub bytes_end: u64,
}

/// Paths are bytes, and reports are written as text: what is none is written byte by byte.
mod text_or_bytes {
    use std::os::unix::ffi::OsStrExt;
    use std::path::PathBuf;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Deserialize, Serialize)]
    #[serde(untagged)]
    enum Written {
        Text(String),
        Bytes(Vec<u8>),
    }

    pub fn serialize<S: Serializer>(path: &Option<PathBuf>, to: S) -> Result<S::Ok, S::Error> {
        let written = path.as_ref().map(|path| match path.to_str() {
            Some(text) => Written::Text(text.to_owned()),
            None => Written::Bytes(path.as_os_str().as_bytes().to_vec()),
        });
        written.serialize(to)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<PathBuf>, D::Error> {
        let written = Option::<Written>::deserialize(from)?;
        Ok(written.map(|written| match written {
            Written::Text(text) => PathBuf::from(text),
            Written::Bytes(bytes) => crate::error::path_buf(&bytes),
        }))
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kind, self.text)
    }
}

impl Problem {
    fn of(problem: varve_fs::Problem) -> Problem {
        let files = problem.files.into_iter().map(|file| DamagedRange {
            inode: file.inode,
            path: file.path.as_deref().map(path_buf),
            bytes_start: file.bytes.0,
            bytes_end: file.bytes.1,
        });
        Problem {
            kind: problem.kind.name().to_owned(),
            text: problem.text,
            inode: problem.inode,
            path: problem.path.as_deref().map(path_buf),
            bytes_start: problem.bytes.map(|(start, _)| start),
            bytes_end: problem.bytes.map(|(_, end)| end),
            block_address: problem.blocks.map(|(address, _)| address),
            block_bytes: problem.blocks.map(|(_, bytes)| bytes),
            files: files.collect(),
            files_omitted_count: problem.files_omitted,
            files_uncounted: problem.files_uncounted,
        }
    }
}

impl CheckReport {
    fn of(report: varve_fs::CheckReport) -> CheckReport {
        CheckReport {
            problems: report.problems.into_iter().map(Problem::of).collect(),
            problems_omitted_count: report.omitted,
            warnings: report.warnings,
            nodes_count: report.nodes,
            entries_count: report.entries,
            trees: report.trees.iter().map(|(tree, count)| (tree.name().to_owned(), *count)).collect(),
            data_blocks_count: report.data_blocks,
        }
    }

    /// Whether everything agrees.
    pub fn is_clean(&self) -> bool {
        self.problems.is_empty()
    }
}

impl Pool {
    /// Compares everything that is derived with a full scan of everything that exists, and with `verify_data` reads all
    /// data too, every copy of it. Changes nothing but copies of metadata that are found bad beside a good one, and nobody waits while data
    /// is read; what is deleted meanwhile is given back when it ends. Meant for a quiet pool: what other threads change meanwhile may look
    /// wrong. Where something looks wrong and something was changed, by the pool's own background too, it looks again for some seconds.
    pub fn check(&self, verify_data: bool) -> Result<CheckReport> {
        self.run_long("check", |fs| Ok(CheckReport::of(fs.check(verify_data)?)))
    }
}

impl PoolOptions {
    /// Checks the pool in the file or block device `path` as [`Pool::check`] does, also where it is so damaged that it cannot be opened:
    /// what cannot be used is told and left out, and the rest is looked at. Nothing is written, also where the pool was not closed: its log
    /// is replayed in memory. Of the options [`PoolOptions::cache_bytes`] alone counts.
    ///
    /// What cannot even be told to be which pool has one problem, of kind `pool-unopenable`. An error means that nothing was looked at
    /// ([`crate::Reason::NotFound`]; [`crate::Reason::InUse`] by who writes; no permission), or that the check could not be finished.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("store.varve");
    /// # varvefs::Pool::create(&path, 64 << 20)?.close()?;
    /// let report = varvefs::PoolOptions::new().check(&path, true)?;
    /// for problem in &report.problems {
    ///     eprintln!("{problem}");
    /// }
    /// assert!(report.is_clean());
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn check(&self, path: impl AsRef<Path>, verify_data: bool) -> Result<CheckReport> {
        let path = path.as_ref();
        let device = open_place(path, true).map_err(|fault| Error::pool("check", &shown(path), fault))?;
        self.check_device(&shown(path), device, verify_data)
    }

    /// The same for the pool on `disk`.
    pub fn check_on(&self, disk: &MemoryDisk, verify_data: bool) -> Result<CheckReport> {
        let device = disk.device(true).map_err(|fault| Error::pool("check", "memory", fault))?;
        self.check_device("memory", device, verify_data)
    }

    fn check_device(
        &self,
        name: &str,
        device: Arc<dyn varve_device::Device>,
        verify_data: bool,
    ) -> Result<CheckReport> {
        match varve_fs::Filesystem::open_to_check(vec![device], self.to_look()) {
            Ok((fs, _)) => {
                let report = fs.check(verify_data).map_err(|error| Error::pool("check", name, error))?;
                Ok(CheckReport::of(report))
            }
            Err(error) => {
                let text = in_words_of_the_library(&error.to_string());
                let problem = varve_fs::Problem::new(varve_fs::ProblemKind::PoolUnopenable, text);
                Ok(CheckReport { problems: vec![Problem::of(problem)], ..CheckReport::default() })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    use varve_engine::{Store, StoreOptions, Transaction, TreeId};

    use super::*;
    use crate::MemoryDisk;

    // Goal: a check says how many problems it does not list. Method: 1,500 extended attributes in a forged pool whose keys are none.
    #[test]
    fn problems_that_are_not_listed_are_counted() {
        let disk = MemoryDisk::new(64 << 20);
        let options = PoolOptions::new().background(false);
        let pool = options.create_on(&disk).unwrap();
        let report = pool.check(false).unwrap();
        assert!(report.is_clean() && report.problems_omitted_count == 0);
        pool.close().unwrap();
        let forge = StoreOptions { background: false, ..StoreOptions::default() };
        let (store, _) = Store::open(vec![disk.device(false).unwrap()], forge).unwrap();
        let mut transaction = Transaction::new();
        for n in 0..1500_u16 {
            transaction.put(TreeId::XATTRS, &n.to_be_bytes(), b"forged");
        }
        store.apply(transaction, None).unwrap();
        store.close().unwrap();
        drop(store);
        let report = options.open_on(&disk).unwrap().check(false).unwrap();
        assert!(!report.is_clean() && report.problems.len() < 1500);
        assert_eq!(
            report.problems.len() as u64 + report.problems_omitted_count,
            1500,
            "{:?}",
            report.problems
        );
    }

    // Goal: a report as JSON comes back as it was, also with paths that are no text. Method: there and back; one that an
    // earlier version wrote, which knew nothing; the keys of docs/check.md.
    #[test]
    fn reports_are_plain_values() {
        assert_eq!(serde_json::from_str::<Problem>("{}").unwrap(), Problem::default());
        assert_eq!(serde_json::from_str::<CheckReport>("{}").unwrap(), CheckReport::default());
        let path = |bytes: &[u8]| Some(PathBuf::from(OsStr::from_bytes(bytes)));
        let file = DamagedRange { inode: 7, path: path(b"/\xff"), bytes_start: 0, bytes_end: 4096 };
        let problem = Problem {
            kind: "data-unreadable".to_owned(),
            inode: Some(7),
            path: path(b"/text"),
            bytes_end: Some(4096),
            files: vec![file],
            ..Problem::default()
        };
        let report = CheckReport { problems: vec![problem, Problem::default()], ..CheckReport::default() };
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["problems"][0]["path"], "/text");
        assert_eq!(json["problems"][0]["files"][0]["path"], serde_json::json!([47, 255]));
        assert_eq!(serde_json::from_value::<CheckReport>(json.clone()).unwrap(), report);
        let documented = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/check.md"));
        for key in json["problems"][0].as_object().unwrap().keys() {
            let row =
                |line: &str| line.starts_with("| ") && line.split(['|', ',']).any(|word| word.trim() == key);
            assert!(documented.lines().any(row), "{key}");
        }
    }
}
