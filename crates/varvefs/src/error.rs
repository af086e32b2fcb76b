//! What can go wrong, in words a user of the library can act on.
//!
//! Every [`Error`] says what was being done, to which path or pool, and why it failed. It turns into a
//! [`std::io::Error`] of the right kind, which keeps it inside. Inside the crate a verb fails with a [`Fault`], which
//! becomes an [`Error`] at the door, where the path is known.
//! Must not know: how anything is done.

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// The result of the library's verbs.
pub type Result<T> = std::result::Result<T, Error>;

/// A failed operation: what was being done, to what, and why it failed.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// A verb on a path, or on a file opened by that path.
    Path {
        /// What was being done, such as "create the directory".
        doing: &'static str,
        /// To what. For an open file the path it was opened by, whatever it is called now.
        path: PathBuf,
        /// The second path of a verb that has two.
        to: Option<PathBuf>,
        /// The part of `path` at which the way ended, if that is not all of it.
        at: Option<PathBuf>,
        /// Why.
        reason: Reason,
    },
    /// A verb on a pool as a whole.
    Pool {
        /// What was being done, such as "open".
        doing: &'static str,
        /// Path of the pool, or what kind of memory it lies in.
        pool: String,
        /// Why.
        reason: Reason,
    },
}

/// Why an operation failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Reason {
    /// There is no such name.
    #[error("no such file or directory")]
    NotFound,
    /// The name is taken.
    #[error("it exists already")]
    Exists,
    /// A directory was needed.
    #[error("not a directory")]
    NotADirectory,
    /// It is a directory, and may not be one.
    #[error("it is a directory")]
    IsADirectory,
    /// The directory has entries.
    #[error("the directory is not empty")]
    NotEmpty,
    /// A name is longer than 255 bytes, or the target of a symbolic link longer than 4095.
    #[error("the name is too long")]
    NameTooLong,
    /// More symbolic links on the way than are followed (40), or one where none may be.
    #[error("too many symbolic links on the way")]
    TooManySymlinks,
    /// Arguments that make no sense, and why.
    #[error("{0}")]
    Invalid(&'static str),
    /// Not allowed to anybody, as a hard link to a directory, or forbidden by the flags of what would change ([`crate::Flags`]), which
    /// can be cleared.
    #[error("the operation is not permitted")]
    NotPermitted,
    /// Access was denied: by the operating system to the pool's device, or by the filesystem.
    #[error("permission denied{}", because(.0))]
    AccessDenied(String),
    /// The file was opened without this right.
    #[error("the file was not opened for {0}")]
    NotOpenedFor(&'static str),
    /// No such extended attribute.
    #[error("there is no such attribute")]
    NoAttribute,
    /// The name of an extended attribute is too long.
    #[error("the attribute's name is too long")]
    AttributeNameTooLong,
    /// The value of an extended attribute is larger than can be stored.
    #[error("the attribute's value is too large")]
    AttributeTooLarge,
    /// The attributes of one file or directory, their names and 64 bytes for each take 256 KiB at most.
    #[error("the attributes of one file take 256 KiB at most; remove some of them first")]
    AttributesFull,
    /// Beyond the largest file size (2^62 bytes).
    #[error("the file would be too large")]
    FileTooLarge,
    /// The file has more pieces behind the place than can be moved in one step.
    #[error(
        "the file is in too many pieces to move them in one step; copy it to a new file, which joins them"
    )]
    TooFragmented,
    /// The file has as many links as it can have.
    #[error("the file has too many links")]
    TooManyLinks,
    /// Not something this filesystem does.
    #[error("not supported")]
    NotSupported,
    /// From one subvolume to another.
    #[error("the two paths lie in different subvolumes")]
    CrossesSubvolumes,
    /// A read-only snapshot is not removed as a directory is.
    #[error("it is a read-only snapshot, which is deleted as one (with delete_subvolume)")]
    IsSubvolume,
    /// A subvolume takes the place of nothing by a rename, and gives its own to nothing; two exchange theirs
    /// ([`crate::Filesystem::exchange`]).
    #[error("no subvolume takes another one's place, or a directory's, by a rename: two can be exchanged")]
    OnlyExchanged,
    /// A subvolume was needed, and this is something else.
    #[error("not a subvolume")]
    NotASubvolume,
    /// The two subvolumes do not descend from one: neither is a snapshot of the other, nor both of a third one.
    #[error("neither is a snapshot of the other, nor both of a third one")]
    Unrelated,
    /// The subvolume has been deleted, and what is still open in it leads nowhere.
    #[error("the subvolume has been deleted")]
    SubvolumeDeleted,
    /// Nothing can be changed in this subvolume.
    #[error("the subvolume is read-only")]
    ReadOnlySubvolume,
    /// There is no room, and nothing that could be done now would make any.
    #[error("no space is left in the pool")]
    NoSpace,
    /// The pool was opened read-only.
    #[error("the pool is open read-only")]
    ReadOnly,
    /// The pool has been closed.
    #[error("the pool has been closed")]
    Closed,
    /// Somebody else has the pool open, or the process that this one was forked from. A whole sentence that names him where that can
    /// be found.
    #[error("{0}")]
    InUse(String),
    /// Something in the pool is not what it should be, in all of its copies. `check` says more.
    #[error("{0}")]
    Corrupt(String),
    /// What was to be opened is no pool. A whole sentence.
    #[error("{0}")]
    NotAPool(String),
    /// There is not the memory for what was asked for, as all of a huge file at once.
    #[error("there is not enough memory")]
    OutOfMemory,
    /// The device, or the operating system below it, failed a request.
    #[error("{0}")]
    Device(String),
    /// The filesystem in which the pool's file lies is full, or its owner may have no more of it (quota). A pool that could not write for
    /// that reason has stopped: make room there and open it again; until then it can be opened to be read. Whoever comes to a pool that
    /// has stopped already, perhaps in the background, hears [`Reason::Stopped`], and of that reason by
    /// [`crate::Pool::stopped`] (`host_full`).
    #[error("{0}: the filesystem that holds the pool's file is full")]
    HostFull(String),
    /// The snapshot has been made and is there, but could not be made durable, and why: a crash may take it away, and another one of this name
    /// cannot be made. [`crate::Filesystem::sync`] makes it durable, or says what keeps it from that; but where the pool has stopped
    /// ([`Reason::Stopped`]) nothing does, and when it is opened again the snapshot may be gone. Of [`crate::SnapshotOptions::sync`] alone.
    #[error("the snapshot is there, but it is not durable, and a crash may take it away: {}{}", .0, unless_stopped(.0))]
    NotDurable(Box<Reason>),
    /// A write or flush failed earlier, or a call panicked: nothing more is accepted until the pool is opened again. A whole sentence;
    /// [`crate::Pool::stopped`] says more.
    #[error("{0}")]
    Stopped(String),
    /// The pool cannot be created or opened, and why, in a sentence that says what to do. Of a pool that is open: a limit has been met
    /// (all numbers of subvolumes or inodes have been given out, too many names have one hash, a change is too large for one
    /// transaction), snapshots of a file are taken without a pause, or a damaged record leads outside of the pool.
    #[error("{0}")]
    Refused(String),
}

/// What is being done to two paths alike.
pub(crate) const EXCHANGE: &str = "exchange";

/// What to do about something that is not durable, where anything can be done.
fn unless_stopped(why: &Reason) -> &'static str {
    match why {
        Reason::Stopped(_) => "",
        _ => "; sync makes it durable, or says what keeps it from that",
    }
}

fn because(text: &str) -> String {
    if text.is_empty() { String::new() } else { format!(": {text}") }
}

impl Error {
    /// Why it failed.
    pub fn reason(&self) -> &Reason {
        match self {
            Error::Path { reason, .. } | Error::Pool { reason, .. } => reason,
        }
    }

    /// The path it was about, if it was about one.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Error::Path { path, .. } => Some(path),
            Error::Pool { .. } => None,
        }
    }

    /// The kind that the standard library gives such an error.
    pub fn kind(&self) -> io::ErrorKind {
        self.reason().kind()
    }

    pub(crate) fn pool(doing: &'static str, pool: &str, fault: impl Into<Fault>) -> Error {
        Error::Pool { doing, pool: pool.to_owned(), reason: fault.into().reason }
    }
}

impl Reason {
    /// The kind that the standard library gives such an error.
    pub fn kind(&self) -> io::ErrorKind {
        match self {
            Reason::NotFound | Reason::NoAttribute => io::ErrorKind::NotFound,
            Reason::Exists => io::ErrorKind::AlreadyExists,
            Reason::NotADirectory => io::ErrorKind::NotADirectory,
            Reason::IsADirectory => io::ErrorKind::IsADirectory,
            Reason::NotEmpty => io::ErrorKind::DirectoryNotEmpty,
            Reason::NameTooLong | Reason::AttributeNameTooLong => io::ErrorKind::InvalidFilename,
            // This kind has no stable name; the number of it has (Linux: too many levels of symbolic links).
            Reason::TooManySymlinks => io::Error::from_raw_os_error(40).kind(),
            Reason::Invalid(_) | Reason::NotASubvolume | Reason::Unrelated => io::ErrorKind::InvalidInput,
            Reason::NotPermitted
            | Reason::AccessDenied(_)
            | Reason::NotOpenedFor(_)
            | Reason::IsSubvolume
            | Reason::OnlyExchanged => io::ErrorKind::PermissionDenied,
            Reason::AttributeTooLarge => io::ErrorKind::ArgumentListTooLong,
            Reason::FileTooLarge | Reason::TooFragmented => io::ErrorKind::FileTooLarge,
            Reason::TooManyLinks => io::ErrorKind::TooManyLinks,
            Reason::NotSupported => io::ErrorKind::Unsupported,
            Reason::CrossesSubvolumes => io::ErrorKind::CrossesDevices,
            // As other filesystems say it.
            Reason::NoSpace | Reason::AttributesFull | Reason::HostFull(_) => io::ErrorKind::StorageFull,
            Reason::ReadOnly | Reason::ReadOnlySubvolume => io::ErrorKind::ReadOnlyFilesystem,
            Reason::SubvolumeDeleted => io::ErrorKind::StaleNetworkFileHandle,
            Reason::InUse(_) => io::ErrorKind::ResourceBusy,
            Reason::OutOfMemory => io::ErrorKind::OutOfMemory,
            Reason::Corrupt(_) | Reason::NotAPool(_) => io::ErrorKind::InvalidData,
            Reason::NotDurable(why) => why.kind(),
            Reason::Closed | Reason::Device(_) | Reason::Stopped(_) | Reason::Refused(_) => {
                io::ErrorKind::Other
            }
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // It has been done.
            Error::Path { path, to, reason: reason @ Reason::NotDurable(_), .. } => {
                write!(f, "{}: {reason}", Shown(to.as_ref().unwrap_or(path)))
            }
            Error::Path { doing, path, to, at, reason } => {
                write!(f, "cannot {doing} {}", Shown(path))?;
                if let Some(to) = to {
                    let between = if *doing == EXCHANGE { "and" } else { "to" };
                    write!(f, " {between} {}", Shown(to))?;
                }
                write!(f, ": {reason}")?;
                match at {
                    Some(at) => write!(f, ": {}", Shown(at)),
                    None => Ok(()),
                }
            }
            Error::Pool { doing, pool, reason } => {
                let text = reason.to_string();
                if says(&text, pool) {
                    write!(f, "cannot {doing} the pool: {text}")
                } else {
                    write!(f, "cannot {doing} the pool {pool}: {text}")
                }
            }
        }
    }
}

/// Whether a text names a pool, as a word of its own. A pool's name may be any word, or a part of one: only what is clearly a path counts,
/// and else it is named once more.
fn says(text: &str, pool: &str) -> bool {
    let around = |side: char| side.is_whitespace() || [':', ',', ';', '(', ')'].contains(&side);
    pool.contains('/')
        && text.match_indices(pool).any(|(at, _)| {
            text[..at].chars().next_back().is_none_or(around)
                && text[at + pool.len()..].chars().next().is_none_or(around)
        })
}

/// What the layers below say in words of the command line, and how the library says it.
const WORDS: [(&str, &str); 7] = [
    ("`varve create` makes one", "`PoolOptions::format` makes one"),
    ("create it again with --force", "make it again with `PoolOptions::format` and `PoolOptions::force`"),
    ("--force overwrites it", "`PoolOptions::force` lets it be overwritten"),
    ("unmount it, look at the device", "close it, look at the device"),
    (" (unmount and mount it)", ""),
    (
        "`varve export`, or a mount with -o ro, brings",
        "whoever opens it with `PoolOptions::read_only` brings",
    ),
    ("`varve check`", "`Pool::check`"),
];

pub(crate) fn in_words_of_the_library(text: &str) -> String {
    WORDS.iter().fold(text.to_owned(), |text, (below, here)| text.replace(below, here))
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        // The reason is part of the text already.
        None
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> io::Error {
        io::Error::new(error.kind(), error)
    }
}

/// A path in quotes; bytes that are no text, or would disturb a terminal, escaped.
struct Shown<'a>(&'a Path);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.to_str() {
            Some(text) if !text.chars().any(char::is_control) => write!(f, "\"{text}\""),
            _ => write!(f, "\"{}\"", self.0.as_os_str().as_bytes().escape_ascii()),
        }
    }
}

/// Why a verb failed, before it is known to the door which path it was about.
#[derive(Debug, Clone)]
pub(crate) struct Fault {
    pub reason: Reason,
    /// How many bytes of the path led to where the way ended; `None`: all.
    pub at: Option<usize>,
    /// It was the second of two paths.
    pub second: bool,
}

impl Fault {
    /// The error for a verb on `path`.
    pub(crate) fn on(self, doing: &'static str, path: &[u8]) -> Error {
        Error::Path {
            doing,
            path: path_buf(path),
            to: None,
            at: self.at.map(|len| path_buf(&path[..len])),
            reason: self.reason,
        }
    }

    /// The error for a verb on two paths.
    pub(crate) fn on_two(self, doing: &'static str, path: &[u8], to: &[u8]) -> Error {
        let blamed = if self.second { to } else { path };
        Error::Path {
            doing,
            path: path_buf(path),
            to: Some(path_buf(to)),
            at: self.at.map(|len| path_buf(&blamed[..len])),
            reason: self.reason,
        }
    }

    /// For a verb on a path: where a subvolume was and is deleted, there is nothing. Only who has something open in it can tell.
    pub(crate) fn of_path(self) -> Fault {
        match self.reason {
            Reason::SubvolumeDeleted => Fault { reason: Reason::NotFound, ..self },
            _ => self,
        }
    }

    /// Blames the second path.
    pub(crate) fn in_second(self) -> Fault {
        Fault { second: true, ..self }
    }
}

/// These bytes as a path.
pub(crate) fn path_buf(bytes: &[u8]) -> PathBuf {
    OsString::from_vec(bytes.to_vec()).into()
}

impl From<Reason> for Fault {
    fn from(reason: Reason) -> Fault {
        Fault { reason, at: None, second: false }
    }
}

impl From<varve_fs::FsError> for Fault {
    fn from(error: varve_fs::FsError) -> Fault {
        reason_of(error).into()
    }
}

impl From<varve_device::DeviceError> for Fault {
    fn from(error: varve_device::DeviceError) -> Fault {
        reason_of_device(error).into()
    }
}

fn reason_of(error: varve_fs::FsError) -> Reason {
    match error {
        varve_fs::FsError::NotFound => Reason::NotFound,
        varve_fs::FsError::Exists => Reason::Exists,
        varve_fs::FsError::NotDirectory => Reason::NotADirectory,
        varve_fs::FsError::IsDirectory => Reason::IsADirectory,
        varve_fs::FsError::NotEmpty => Reason::NotEmpty,
        varve_fs::FsError::NameTooLong => Reason::NameTooLong,
        varve_fs::FsError::Invalid => Reason::Invalid("the arguments make no sense here"),
        varve_fs::FsError::NotPermitted => Reason::NotPermitted,
        varve_fs::FsError::AccessDenied => Reason::AccessDenied(String::new()),
        varve_fs::FsError::NoAttribute => Reason::NoAttribute,
        varve_fs::FsError::Range => Reason::AttributeNameTooLong,
        varve_fs::FsError::TooBig => Reason::AttributeTooLarge,
        varve_fs::FsError::FileTooBig => Reason::FileTooLarge,
        varve_fs::FsError::TooFragmented => Reason::TooFragmented,
        varve_fs::FsError::TooManyLinks => Reason::TooManyLinks,
        varve_fs::FsError::AttributesFull => Reason::AttributesFull,
        varve_fs::FsError::HashFull | varve_fs::FsError::NumbersUsedUp | varve_fs::FsError::SlotsUsedUp => {
            Reason::Refused(in_words_of_the_library(&error.to_string()))
        }
        varve_fs::FsError::NotSupported => Reason::NotSupported,
        varve_fs::FsError::CrossDevice => Reason::CrossesSubvolumes,
        varve_fs::FsError::IsSubvolume => Reason::IsSubvolume,
        varve_fs::FsError::OnlyExchanged => Reason::OnlyExchanged,
        varve_fs::FsError::NotSubvolume => Reason::NotASubvolume,
        varve_fs::FsError::Unrelated => Reason::Unrelated,
        varve_fs::FsError::Stale => Reason::SubvolumeDeleted,
        varve_fs::FsError::NotDurable(why) => Reason::NotDurable(Box::new(reason_of(*why))),
        varve_fs::FsError::ReadOnlySubvolume => Reason::ReadOnlySubvolume,
        // Nobody outside of the filesystem meets it, unless snapshots are taken without a pause.
        error @ varve_fs::FsError::Frozen(_) => Reason::Refused(in_words_of_the_library(&error.to_string())),
        varve_fs::FsError::Engine(error) => match error {
            varve_engine::EngineError::NoSpace => Reason::NoSpace,
            varve_engine::EngineError::ReadOnly => Reason::ReadOnly,
            varve_engine::EngineError::Device(error) => reason_of_device(error),
            varve_engine::EngineError::Refused(text) => Reason::Refused(in_words_of_the_library(&text)),
            varve_engine::EngineError::NoPool(text) => Reason::NotAPool(in_words_of_the_library(&text)),
            error @ varve_engine::EngineError::Stopped(_) => {
                Reason::Stopped(in_words_of_the_library(&error.to_string()))
            }
            error => Reason::Corrupt(error.to_string()),
        },
    }
}

fn reason_of_device(error: varve_device::DeviceError) -> Reason {
    match error {
        varve_device::DeviceError::NotFound { .. } => Reason::NotFound,
        varve_device::DeviceError::AlreadyExists { .. } => Reason::Exists,
        varve_device::DeviceError::NotPermitted { text, .. } => Reason::AccessDenied(text),
        varve_device::DeviceError::LockedBy(text) => Reason::InUse(text),
        varve_device::DeviceError::Unsupported { text, .. } => Reason::Refused(text),
        // ENOSPC and EDQUOT.
        error if matches!(error.errno(), Some(28 | 122)) => Reason::HostFull(error.to_string()),
        // The path of the pool leads through a file, or has a name that is too long.
        error @ varve_device::DeviceError::Io { operation: varve_device::Operation::Open, .. } => {
            match error.errno() {
                Some(20) => Reason::NotADirectory,
                Some(36) => Reason::NameTooLong,
                _ => Reason::Device(error.to_string()),
            }
        }
        error => Reason::Device(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use varve_device::{DeviceError, Operation};

    use super::*;

    // Goal: a full filesystem below the pool's file is told from a device that fails, whatever was being done. Method: both, of each number.
    #[test]
    fn a_full_host_is_no_broken_device() {
        for operation in [Operation::Open, Operation::Write, Operation::Flush] {
            for (errno, kind) in [
                (28, io::ErrorKind::StorageFull),
                (122, io::ErrorKind::StorageFull),
                (5, io::ErrorKind::Other),
            ] {
                let error = DeviceError::Io {
                    operation,
                    device: "/pools/one".into(),
                    offset: 4096,
                    len_bytes: 4096,
                    errno: Some(errno),
                    text: "in words".into(),
                };
                let reason = reason_of_device(error);
                assert_eq!(reason.kind(), kind, "{operation} {errno}");
                assert_eq!(reason.to_string().contains("is full"), errno != 5, "{reason}");
            }
        }
    }
}
