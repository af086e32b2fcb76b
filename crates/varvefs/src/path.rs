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
pub(crate) struct Place<'a> {
    /// The directory that holds the name.
    pub parent: varve_fs::InodeId,
    /// The name; "." or ".." if the path ends with that or is the root.
    pub name: Cow<'a, [u8]>,
    /// What is there.
    pub found: Option<varve_fs::Attr>,
    /// The path ends with a slash: only a directory will do.
    pub directory: bool,
}

impl Place<'_> {
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

/// A path on the way: the caller's, and the targets of links inside it, the last of which comes first.
struct Way<'a> {
    path: &'a [u8],
    at: usize,
    /// Each with how far it has been gone. Nearly always there is none.
    links: Vec<(Vec<u8>, usize)>,
}

impl<'a> Way<'a> {
    /// The next name; `None` at the end.
    fn next(&mut self) -> Option<Cow<'a, [u8]>> {
        while let Some((target, at)) = self.links.last_mut() {
            if let Some(name) = next_name(target, at) {
                return Some(Cow::Owned(name.to_vec()));
            }
            self.links.pop();
        }
        next_name(self.path, &mut self.at).map(Cow::Borrowed)
    }

    /// What comes after the last name taken, in each.
    fn rests(&self) -> impl Iterator<Item = &[u8]> {
        std::iter::once(&self.path[self.at..]).chain(self.links.iter().map(|(target, at)| &target[*at..]))
    }
}

/// The first name behind `at`, which goes behind it.
fn next_name<'b>(bytes: &'b [u8], at: &mut usize) -> Option<&'b [u8]> {
    let begin = *at + bytes[*at..].iter().position(|byte| *byte != b'/')?;
    let len = bytes[begin..].iter().position(|byte| *byte == b'/').unwrap_or(bytes.len() - begin);
    *at = begin + len;
    Some(&bytes[begin..*at])
}

/// What a name on the way leads to.
struct Seen {
    ino: varve_fs::InodeId,
    kind: varve_fs::FileKind,
    /// Of the end of the way only: what lies before is not looked at beyond its name.
    attr: Option<varve_fs::Attr>,
}

/// Where a walk has got to.
struct Step<'a> {
    parent: varve_fs::InodeId,
    name: Cow<'a, [u8]>,
    found: Option<Seen>,
    directory: bool,
}

/// Walks `path` from the root. The last name need not exist; all before it must. When a subvolume on the way is deleted meanwhile,
/// what counts is where its name leads now.
pub(crate) fn find<'a>(fs: &varve_fs::Filesystem, path: &'a [u8], last: Last) -> Result<Place<'a>, Fault> {
    again(|| walk(fs, path, last))
}

/// Runs what looks at a path, again when a subvolume that it has come to is deleted meanwhile.
fn again<T>(verb: impl Fn() -> Result<T, Fault>) -> Result<T, Fault> {
    for _ in 1..RETRIES_MAX {
        match verb() {
            Err(Fault { reason: Reason::SubvolumeDeleted, .. }) => {}
            result => return result,
        }
    }
    verb().map_err(Fault::of_path)
}

fn walk<'a>(fs: &varve_fs::Filesystem, path: &'a [u8], last: Last) -> Result<Place<'a>, Fault> {
    if path.is_empty() {
        return Err(Reason::NotFound.into());
    }
    if path.contains(&0) {
        return Err(Reason::Invalid("a path cannot contain a NUL byte").into());
    }
    let mut way = Way { path, at: 0, links: Vec::new() };
    let mut links = 0;
    // `None`: the root.
    let mut here: Option<Step<'a>> = None;
    // Where in the caller's path the present name ends (or the link on whose way it is).
    let mut present = 0;
    let blame = |reason: Reason, len: usize| {
        let whole = path[len..].iter().all(|byte| *byte == b'/');
        Fault { reason, at: (!whole).then_some(len), second: false }
    };
    while let Some(name) = way.next() {
        let before = present;
        if way.links.is_empty() {
            present = way.at;
        }
        let dir = match &here {
            None => varve_fs::ROOT_INODE,
            Some(step) => match &step.found {
                Some(seen) if seen.kind == varve_fs::FileKind::Directory => seen.ino,
                Some(_) => return Err(blame(Reason::NotADirectory, before)),
                None => return Err(blame(Reason::NotFound, before)),
            },
        };
        let is_last = way.rests().all(|rest| rest.iter().all(|byte| *byte == b'/'));
        let slash = is_last && way.rests().any(|rest| !rest.is_empty());
        let follow = !is_last || last == Last::Follow || (slash && last == Last::Keep);
        if last == Last::New && is_last && !slash {
            here = Some(Step { parent: dir, name, found: None, directory: false });
            continue;
        }
        let (found, target) =
            look(fs, dir, &name, follow, is_last).map_err(|fault| blame(fault.reason, present))?;
        if let Some(target) = target {
            links += 1;
            if links > SYMLINKS_MAX {
                return Err(blame(Reason::TooManySymlinks, present));
            }
            if target.first() == Some(&b'/') {
                here = None;
            }
            way.links.push((target, 0));
            continue;
        }
        if slash && found.as_ref().is_some_and(|seen| seen.kind != varve_fs::FileKind::Directory) {
            return Err(Reason::NotADirectory.into());
        }
        here = Some(Step { parent: dir, name, found, directory: slash });
    }
    match here {
        Some(Step { parent, name, found, directory }) => {
            Ok(Place { parent, name, found: found.and_then(|seen| seen.attr), directory })
        }
        None => {
            let root = varve_fs::ROOT_INODE;
            let found = Some(fs.getattr(root)?);
            Ok(Place { parent: root, name: Cow::Borrowed(b"."), found, directory: true })
        }
    }
}

/// What `name` leads to in `dir`, with its attributes if they are `wanted`; and if it is a symbolic link that is to be
/// followed, its target.
fn look(
    fs: &varve_fs::Filesystem,
    dir: varve_fs::InodeId,
    name: &[u8],
    follow: bool,
    wanted: bool,
) -> Result<(Option<Seen>, Option<Vec<u8>>), Fault> {
    for _ in 0..RETRIES_MAX {
        let seen = if wanted {
            fs.lookup(dir, name).map(|attr| Seen { ino: attr.ino, kind: attr.kind, attr: Some(attr) })
        } else {
            fs.find(dir, name).map(|(ino, kind)| Seen { ino, kind, attr: None })
        };
        let seen = match seen {
            Ok(seen) => seen,
            Err(varve_fs::FsError::NotFound) => return Ok((None, None)),
            Err(error) => return Err(error.into()),
        };
        if seen.kind != varve_fs::FileKind::Symlink || !follow {
            return Ok((Some(seen), None));
        }
        match fs.readlink(seen.ino) {
            // Another link has been renamed over it meanwhile.
            Err(varve_fs::FsError::NotFound) => {}
            target => return Ok((Some(seen), Some(target?))),
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
            Err(Fault { reason: Reason::NotFound | Reason::SubvolumeDeleted, second: false, .. }) => {}
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
