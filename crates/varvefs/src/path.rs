//! Paths inside a pool: bytes between slashes, and how they lead to inodes.
//!
//! Every path begins at the root, with or without a leading slash. "." and ".." and symbolic links work as in POSIX;
//! at most [`SYMLINKS_MAX`] links are followed, so every walk ends.

use std::borrow::Cow;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::error::{Fault, Reason};

/// Symbolic links followed on one way, at most.
const SYMLINKS_MAX: usize = 40;
/// Attempts at a name that others keep replacing or removing.
pub(crate) const RETRIES_MAX: usize = 64;

/// Something that names a place in the pool: text, bytes or a standard path.
///
/// Names in a pool are bytes (any but NUL and the slash), so `&[u8]` and `Vec<u8>` are as good as `&str` and
/// [`Path`]. A leading slash makes no difference: all paths begin at the root.
pub trait AsPath {
    /// The bytes of the path.
    fn as_path_bytes(&self) -> &[u8];
}

impl<T: AsPath + ?Sized> AsPath for &T {
    fn as_path_bytes(&self) -> &[u8] {
        (**self).as_path_bytes()
    }
}

macro_rules! as_path {
    ($($type:ty => |$path:ident| $bytes:expr;)*) => {
        $(impl AsPath for $type {
            fn as_path_bytes(&self) -> &[u8] {
                let $path = self;
                $bytes
            }
        })*
    };
}

as_path! {
    [u8] => |path| path;
    Vec<u8> => |path| path;
    str => |path| path.as_bytes();
    String => |path| path.as_bytes();
    OsStr => |path| path.as_bytes();
    OsString => |path| path.as_os_str().as_bytes();
    Path => |path| path.as_os_str().as_bytes();
    PathBuf => |path| path.as_os_str().as_bytes();
}

impl<const N: usize> AsPath for [u8; N] {
    fn as_path_bytes(&self) -> &[u8] {
        self
    }
}

/// What happens to a symbolic link at the end of the way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Last {
    /// It is followed.
    Follow,
    /// It is looked at itself, unless a slash comes after it.
    Keep,
    /// The name is what matters (removing, renaming, linking): a link is never followed.
    Entry,
    /// The name is for something new: unless a slash comes after it, nobody looks whether it is taken.
    New,
}

/// The end of the way.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    /// The directory that holds the name.
    pub parent: varve_fs::InodeId,
    /// The name; "." or ".." if the path ends with that or is the root.
    pub name: Vec<u8>,
    /// What is there.
    pub found: Option<varve_fs::Attr>,
    /// The path ends with a slash: only a directory will do.
    pub directory: bool,
}

impl Place {
    /// What is there, which must be.
    pub(crate) fn existing(&self) -> Result<varve_fs::Attr, Fault> {
        Ok(self.found.ok_or(Reason::NotFound)?)
    }

    /// The name, which must be one that can be given and taken away.
    pub(crate) fn entry(&self) -> Result<&[u8], Fault> {
        match &self.name[..] {
            b"." | b".." => {
                Err(Reason::Invalid("the path ends with the root, . or .., which cannot be changed").into())
            }
            name => Ok(name),
        }
    }
}

/// A path on the way: the caller's, and targets of links inside it.
struct Frame<'a> {
    bytes: Cow<'a, [u8]>,
    at: usize,
}

impl Frame<'_> {
    /// Puts the next name into `name`; false at the end.
    fn next(&mut self, name: &mut Vec<u8>) -> bool {
        let rest = &self.bytes[self.at..];
        let Some(begin) = rest.iter().position(|byte| *byte != b'/') else { return false };
        let len = rest[begin..].iter().position(|byte| *byte == b'/').unwrap_or(rest.len() - begin);
        name.clear();
        name.extend_from_slice(&rest[begin..begin + len]);
        self.at += begin + len;
        true
    }

    /// What comes after the last name taken.
    fn rest(&self) -> &[u8] {
        &self.bytes[self.at..]
    }
}

/// Walks `path` from the root. The last name need not exist; all before it must.
pub(crate) fn find(fs: &varve_fs::Filesystem, path: &[u8], last: Last) -> Result<Place, Fault> {
    if path.is_empty() {
        return Err(Reason::NotFound.into());
    }
    if path.contains(&0) {
        return Err(Reason::Invalid("a path cannot contain a NUL byte").into());
    }
    let mut frames = vec![Frame { bytes: Cow::Borrowed(path), at: 0 }];
    let mut name = Vec::new();
    let mut links = 0;
    // `None`: the root.
    let mut here: Option<Place> = None;
    // Where in the caller's path the present name ends (or the link on whose way it is).
    let mut present = 0;
    let blame = |reason: Reason, len: usize| {
        let whole = path[len..].iter().all(|byte| *byte == b'/');
        Fault { reason, at: (!whole).then_some(len), second: false }
    };
    while let Some(frame) = frames.last_mut() {
        if !frame.next(&mut name) {
            frames.pop();
            continue;
        }
        let before = present;
        if frames.len() == 1 {
            present = frames[0].at;
        }
        let dir = match &here {
            None => varve_fs::ROOT_INODE,
            Some(place) => match place.found {
                Some(attr) if attr.kind == varve_fs::FileKind::Directory => attr.ino,
                Some(_) => return Err(blame(Reason::NotADirectory, before)),
                None => return Err(blame(Reason::NotFound, before)),
            },
        };
        let is_last = frames.iter().all(|frame| frame.rest().iter().all(|byte| *byte == b'/'));
        let slash = is_last && frames.iter().any(|frame| !frame.rest().is_empty());
        let follow = !is_last || last == Last::Follow || (slash && last == Last::Keep);
        if last == Last::New && is_last && !slash {
            here = Some(Place { parent: dir, name: name.clone(), found: None, directory: false });
            continue;
        }
        let (found, target) = look(fs, dir, &name, follow).map_err(|fault| blame(fault.reason, present))?;
        if let Some(target) = target {
            links += 1;
            if links > SYMLINKS_MAX {
                return Err(blame(Reason::TooManySymlinks, present));
            }
            if target.first() == Some(&b'/') {
                here = None;
            }
            frames.push(Frame { bytes: Cow::Owned(target), at: 0 });
            continue;
        }
        if slash && found.is_some_and(|attr| attr.kind != varve_fs::FileKind::Directory) {
            return Err(Reason::NotADirectory.into());
        }
        here = Some(Place { parent: dir, name: name.clone(), found, directory: slash });
    }
    match here {
        Some(place) => Ok(place),
        None => {
            let root = varve_fs::ROOT_INODE;
            let found = Some(fs.getattr(root)?);
            Ok(Place { parent: root, name: b".".to_vec(), found, directory: true })
        }
    }
}

/// What `name` leads to in `dir`; and if it is a symbolic link that is to be followed, its target.
fn look(
    fs: &varve_fs::Filesystem,
    dir: varve_fs::InodeId,
    name: &[u8],
    follow: bool,
) -> Result<(Option<varve_fs::Attr>, Option<Vec<u8>>), Fault> {
    for _ in 0..RETRIES_MAX {
        let found = match fs.lookup(dir, name) {
            Ok(attr) => attr,
            Err(varve_fs::FsError::NotFound) => return Ok((None, None)),
            Err(error) => return Err(error.into()),
        };
        if found.kind != varve_fs::FileKind::Symlink || !follow {
            return Ok((Some(found), None));
        }
        match fs.readlink(found.ino) {
            // Another link has been renamed over it meanwhile.
            Err(varve_fs::FsError::NotFound) => {}
            target => return Ok((Some(found), Some(target?))),
        }
    }
    Ok((None, None))
}

/// Runs a verb on what `path` leads to, which must be there. When that is replaced before the verb gets to it, the verb
/// runs on what has replaced it: a name that is there all the time is never missed.
pub(crate) fn with_existing<T>(
    fs: &varve_fs::Filesystem,
    path: &[u8],
    last: Last,
    verb: impl Fn(varve_fs::Attr) -> Result<T, Fault>,
) -> Result<T, Fault> {
    for _ in 1..RETRIES_MAX {
        match verb(find_existing(fs, path, last)?) {
            Err(Fault { reason: Reason::NotFound, second: false, .. }) => {}
            result => return result,
        }
    }
    verb(find_existing(fs, path, last)?)
}

/// What `path` leads to, which must be there.
pub(crate) fn find_existing(
    fs: &varve_fs::Filesystem,
    path: &[u8],
    last: Last,
) -> Result<varve_fs::Attr, Fault> {
    find(fs, path, last)?.existing()
}
