//! A crash-safe copy-on-write filesystem that lives in a file, a block device or memory, linked into your program.
//!
//! No mount, no FUSE, no root: a [`Pool`] is opened by the process itself, and its [`Filesystem`] has the verbs of
//! [`std::fs`] and of POSIX: files with the [`std::io`] traits, directories, hard and symbolic links, renames (also over
//! a file, to a free name only, or swapping two), permissions, times, extended attributes.
//!
//! ```
//! use std::io::{Read, Seek, SeekFrom, Write};
//! use varvefs::{OpenOptions, Pool};
//!
//! // Or Pool::open_or_create("store.varve", 10 << 30), which makes a sparse file.
//! let pool = Pool::in_memory(64 << 20)?;
//! let fs = pool.filesystem();
//!
//! fs.create_dir_all("/projects/clay")?;
//! let mut notes = OpenOptions::new().read(true).write(true).create(true).open(&fs, "/projects/clay/notes")?;
//! notes.write_all(b"thin, ordered, countable\n")?;
//! notes.sync_all()?; // durable from here on
//!
//! let mut text = String::new();
//! notes.seek(SeekFrom::Start(0))?;
//! notes.read_to_string(&mut text)?;
//! assert_eq!(text, "thin, ordered, countable\n");
//!
//! // Many files, one flush.
//! let mut syncs = Vec::new();
//! for n in 0..10 {
//!     let path = format!("/projects/clay/layer-{n}");
//!     let layer = fs.create(&path)?;
//!     layer.write_all_at(&[n; 1000], 0)?;
//!     syncs.push(layer.start_sync()?);
//! }
//! varvefs::wait_all(syncs)?;
//!
//! let mut names = Vec::new();
//! for entry in fs.read_dir("/projects/clay")? {
//!     names.push(entry?.file_name());
//! }
//! assert_eq!(names.len(), 11);
//!
//! // Errors say what was being done, to what, and why it failed.
//! let error = fs.open("/projects/sand/notes").unwrap_err();
//! assert_eq!(
//!     error.to_string(),
//!     "cannot open \"/projects/sand/notes\": no such file or directory: \"/projects/sand\""
//! );
//! pool.close()?;
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! # Versions
//!
//! A subvolume is a directory of which snapshots can be taken, each in the time of one small record. What is to have versions lies in one, and
//! not in the root, which has snapshots too and cannot be put back.
//!
//! ```
//! use varvefs::{Pool, SnapshotOptions};
//!
//! let fs = Pool::in_memory(64 << 20)?.filesystem();
//! fs.create_subvolume("/live")?;
//! fs.write("/live/notes", "thin")?;
//! fs.snapshot("/live", "/first", SnapshotOptions::new().read_only(true).sync(true))?; // durable from here on
//!
//! fs.write("/live/notes", "thick")?;
//! for change in fs.diff("/first", "/live")? {
//!     println!("{:?}", change?); // in proportion to what has changed
//! }
//!
//! // Back to the first version. Between the two renames there is no "/live", after a crash then, too.
//! fs.snapshot("/first", "/next", SnapshotOptions::new())?;
//! fs.rename("/live", "/gone")?;
//! fs.rename("/next", "/live")?;
//! fs.delete_subvolume("/gone")?; // its space comes back in the background
//! assert_eq!(fs.read("/live/notes")?, b"thin");
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! # What a crash leaves
//!
//! After a crash at any instant the filesystem is what it was at one moment of its history: everything up to a point,
//! nothing after it. That point is never before what [`File::sync_all`], [`Filesystem::sync`] or [`Pool::close`] had
//! made durable when they returned. A verb on names happens wholly or not at all. A snapshot that nobody has made durable
//! ([`SnapshotOptions::new`] says how) is whole or not there, also where later changes are. Bytes that were written and not
//! synced may be lost, but a rename over a file, or an exchange of two, never shows an empty or half-written one, synced or
//! not; [`Filesystem::replace`] puts a whole file in the place of another. [`MemoryDisk`] lets your own tests cut the power.
//!
//! A lone sync costs one flush of the device. Threads that sync at the same time share flushes by themselves; one thread
//! does so with [`File::start_sync`] and [`wait_all`].
//!
//! Every block has a checksum. Bytes that do not match are never given out: with a second copy ([`Profile::Dup`]) they
//! are repaired, without one the read fails with [`Reason::Corrupt`]. After a failed write or flush, or a call that panicked, a
//! pool accepts nothing more until it is opened again ([`Reason::Stopped`]).
//!
//! # Handles
//!
//! [`Pool`], [`Filesystem`], [`File`] and the rest are handles of one open pool, which is closed when the last of them
//! goes, or for all of them by [`Pool::close`], the one that can report errors. One process at a time has a pool open for
//! writing, and then no other has it; any number may have it open read-only. All handles can be used from many threads at
//! once. A child made by fork(2) without exec is another process: in it they are refused ([`Reason::InUse`]) and do nothing
//! when they go, but its copies of the open files keep the pool locked if its parent ends before it, and a block device for as long as it lives. A program that forks opens its pools afterwards: the child of one that has
//! pools open has copies of the locks of their threads, and not the threads, so that even a pool of its own may wait for ever.
//!
//! Permissions are kept, not checked: whoever can open the pool can do everything in it. There is no umask and no
//! current directory; all paths begin at the root.
#![forbid(unsafe_code)]

mod check;
mod diff;
mod directory;
mod error;
mod extents;
mod file;
mod filesystem;
mod health;
mod memory;
mod metadata;
mod open_options;
mod path;
mod pending;
mod pool;
mod shared;
mod stats;
mod subvolumes;
mod unnamed;
mod verbs;
mod xattrs;

pub use check::{CheckReport, DamagedRange, Problem};
pub use diff::{Change, Diff, Place};
pub use directory::{DirEntry, ReadDir};
pub use error::{Error, Reason, Result};
pub use extents::{Extent, ExtentKind, Extents};
pub use file::File;
pub use filesystem::Filesystem;
pub use health::{FileState, Stopped};
pub use memory::MemoryDisk;
pub use metadata::{Allocate, FileType, Flags, Metadata, Times, XattrMode};
pub use open_options::OpenOptions;
pub use path::AsPath;
pub use pending::{Pending, wait_all};
pub use pool::{POOL_BYTES_MAX, POOL_BYTES_MIN, Pool, PoolOptions, Profile};
pub use stats::{
    CheckpointStats, DeviceStats, JournalStats, KeyframeStats, LatencyStats, NodeStats, ReapStats, Recovery,
    SpaceStats, StatFs, Stats, Trimmed,
};
pub use subvolumes::{SnapshotOptions, Subvolume};
