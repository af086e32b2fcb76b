//! `varve diff`: what differs between two subvolumes, in a mounted pool or in one that is not.
//!
//! The steps come in pages, each a request of its own, of as many steps as fit into an answer with their paths. What belongs to
//! one inode is put together and shown under its path; that takes memory for what was changed, not for what there is.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fmt::Write;
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail};
use serde::{Deserialize, Serialize};
use varve_fs::{Change, DiffPage, FileKind, Filesystem, InodeId, RecoveryReport};

use super::{Found, Request, args::DiffArgs, find, line_of, same_pool};
use crate::names::{Shown, escape};
use crate::{Outcome, pool, show, sync};

/// Steps in a page, at most.
pub const PAGE_STEPS: usize = 2048;
/// Bytes of names and paths in a page of more than one step, at most. One byte becomes six at worst ([`Bytes`]), and what
/// is said beside them takes less than they do: an answer on the control socket holds it.
const PAGE_BYTES: usize = 2 << 20;

/// A page on its way between the process that serves a mount and the command.
#[derive(Serialize, Deserialize, Default)]
pub struct Page {
    steps: Vec<Step>,
    next: Option<String>,
    /// How many steps the next page is best asked for.
    next_steps: usize,
    old_paths: Vec<(u64, Bytes)>,
    new_paths: Vec<(u64, Bytes)>,
    /// Of files with further names that are new: one they have had all the time, by its directory.
    stay: Vec<(u64, u64, Bytes)>,
    /// What is lost, so that this is without what came last.
    #[serde(default)]
    pub log_ended_reason: Option<String>,
}

/// A name or a path on its way: a text in which the character of the same number stands for each byte.
#[derive(Serialize, Deserialize, Clone)]
#[serde(into = "String", try_from = "String")]
struct Bytes(Vec<u8>);

impl From<Bytes> for String {
    fn from(bytes: Bytes) -> String {
        bytes.0.into_iter().map(char::from).collect()
    }
}

impl TryFrom<String> for Bytes {
    type Error = std::char::TryFromCharError;

    fn try_from(text: String) -> Result<Bytes, Self::Error> {
        text.chars().map(u8::try_from).collect::<Result<_, _>>().map(Bytes)
    }
}

/// A step on its way: [`Change`] without what the command does not show.
#[derive(Serialize, Deserialize)]
enum Step {
    Created(u64, String),
    Unlinked(u64, Bytes, u64, String),
    Linked(u64, Bytes, u64, String),
    Resized(u64, u64),
    Data(u64, u64, u64, bool),
    Attributes(u64, String, Vec<String>),
    XattrSet(u64, String, Bytes),
    XattrRemoved(u64, String, Bytes),
    Flags(u64, String, String),
    Deleted(u64, String),
}

/// The page of steps that begins at a cursor: `steps` of them, or fewer if their paths are long.
pub fn page(
    filesystem: &Filesystem,
    old: u64,
    new: u64,
    cursor: &str,
    steps: usize,
) -> Result<Option<Page>, varve_fs::FsError> {
    let digits = |at| cursor.get(at..at + 2).and_then(|pair| u8::from_str_radix(pair, 16).ok());
    let Some(cursor) = (0..cursor.len()).step_by(2).map(digits).collect::<Option<Vec<u8>>>() else {
        return Ok(None);
    };
    let mut steps = steps.clamp(1, PAGE_STEPS);
    let (page, next_steps) = loop {
        let page = filesystem.diff(InodeId(old), InodeId(new), &cursor, steps)?;
        let bytes = bytes_of(&page);
        // Somewhat fewer than the paths so far let expect, so that it seldom has to be done twice.
        let fitting = (steps * (PAGE_BYTES / 4 * 3) / bytes.max(1)).clamp(1, PAGE_STEPS);
        if bytes <= PAGE_BYTES || steps == 1 {
            break (page, fitting);
        }
        steps = fitting;
    };
    let kind = |kind: FileKind| word(kind).to_owned();
    let step = |change| match change {
        Change::Created { inode, kind: what, .. } => Step::Created(inode, kind(what)),
        Change::Unlinked { directory, name, inode, kind: what } => {
            Step::Unlinked(directory, Bytes(name), inode, kind(what))
        }
        Change::Linked { directory, name, inode, kind: what } => {
            Step::Linked(directory, Bytes(name), inode, kind(what))
        }
        Change::Resized { inode, size } => Step::Resized(inode, size),
        Change::Data { inode, offset, len, zeros } => Step::Data(inode, offset, len, zeros),
        Change::Attributes { inode, kind: what, mode, uid, gid, mtime } => {
            let differ = [mode.is_some(), uid.is_some(), gid.is_some(), mtime.is_some()];
            let named = ["mode", "uid", "gid", "mtime"].into_iter().zip(differ);
            let named = named.filter(|(_, differs)| *differs).map(|(name, _)| name.to_owned());
            Step::Attributes(inode, kind(what), named.collect())
        }
        Change::XattrSet { inode, kind: what, name, .. } => Step::XattrSet(inode, kind(what), Bytes(name)),
        Change::XattrRemoved { inode, kind: what, name } => {
            Step::XattrRemoved(inode, kind(what), Bytes(name))
        }
        Change::Flags { inode, kind: what, flags } => Step::Flags(inode, kind(what), flags.letters()),
        Change::Deleted { inode, kind: what } => Step::Deleted(inode, kind(what)),
    };
    let stay = page.originals.iter().filter_map(|(at, original)| match page.changes.get(*at)? {
        Change::Linked { inode, .. } => Some((*inode, original.directory, Bytes(original.name.clone()))),
        _ => None,
    });
    let stay = stay.collect();
    let steps = page.changes.into_iter().map(step).collect();
    let next = page.next.map(|next| next.iter().map(|byte| format!("{byte:02x}")).collect());
    let paths = |paths: Vec<(u64, Vec<u8>)>| paths.into_iter().map(|(of, path)| (of, Bytes(path))).collect();
    let (old_paths, new_paths) = (paths(page.old_paths), paths(page.new_paths));
    Ok(Some(Page { steps, next, next_steps, old_paths, new_paths, stay, log_ended_reason: None }))
}

/// Bytes of all names and paths.
fn bytes_of(page: &DiffPage) -> usize {
    let named = |change: &Change| match change {
        Change::Unlinked { name, .. }
        | Change::Linked { name, .. }
        | Change::XattrSet { name, .. }
        | Change::XattrRemoved { name, .. } => name.len(),
        _ => 0,
    };
    let paths = page.old_paths.iter().chain(&page.new_paths).map(|(_, path)| path.len());
    let stay = page.originals.values().map(|original| original.name.len());
    page.changes.iter().map(named).chain(paths).chain(stay).sum()
}

fn word(kind: FileKind) -> &'static str {
    match kind {
        FileKind::File => "file",
        FileKind::Directory => "directory",
        FileKind::Symlink => "symlink",
        FileKind::Fifo => "fifo",
        FileKind::Socket => "socket",
        FileKind::CharDevice => "char_device",
        FileKind::BlockDevice => "block_device",
    }
}

/// Runs the command.
pub fn run(args: &DiffArgs) -> Result<Outcome> {
    let (old, new) = (Path::new(&args.old), Path::new(&args.new));
    let (differences, outcome) = (|| {
        let (source, old, new) = open(&args.old, &args.new)?;
        let mut all = Differences::default();
        let (mut cursor, mut steps) = (Some(String::new()), PAGE_STEPS);
        let mut log_ended_reason = None;
        while let Some(at) = cursor {
            let mut page = source.page(old, new, &at, steps)?;
            steps = page.next_steps;
            log_ended_reason = page.log_ended_reason.take();
            cursor = all.add(page);
        }
        Ok::<_, anyhow::Error>((all, source.outcome(log_ended_reason.as_deref())))
    })()
    .with_context(|| format!("cannot compare {} and {}", old.shown(), new.shown()))?;
    let listed = differences.listed();
    if args.json {
        show(&format!("{}\n", serde_json::to_string_pretty(&listed)?))?;
    } else {
        show(&text(&listed))?;
    }
    Ok(outcome)
}

/// Where the pages come from.
enum Source {
    /// As long as something in it is held open, no other mount gets the number of its device.
    Mounted {
        server: sync::Server,
        held: Box<[Found; 2]>,
    },
    Pool(Box<(Filesystem, RecoveryReport)>),
}

impl Source {
    fn page(&self, old: u64, new: u64, cursor: &str, steps: usize) -> Result<Page> {
        let page = match self {
            Source::Pool(pool) => page(&pool.0, old, new, cursor, steps)?,
            Source::Mounted { server, .. } => {
                let request = Request::Diff { old, new, cursor: cursor.to_owned(), steps };
                serde_json::from_value(server.request(&line_of(&request)?)?)
                    .context("this mount is served by another version of varve")?
            }
        };
        page.context("it does not know where to go on")
    }

    /// A mount says with each page why the end of the log is missing, if it is.
    fn outcome(&self, log_ended_reason: Option<&str>) -> Outcome {
        match self {
            Source::Pool(pool) => pool::outcome(&pool.1),
            Source::Mounted { held, .. } => pool::outcome_of_mount(&held[0].mount, "diff", log_ended_reason),
        }
    }
}

/// Both subvolumes: paths in a mount if there is something, else POOL:/PATH of one pool.
fn open(old: &OsStr, new: &OsStr) -> Result<(Source, u64, u64)> {
    let places = (super::unmounted(old)?, super::unmounted(new)?);
    if let (Some(place), None) | (None, Some(place)) = &places
        && place.pool.exists()
    {
        bail!(
            "{place} is a place in a pool as it lies on its device, and the other a path in a mount; give two of one kind, paths if the pool is mounted"
        );
    }
    if let (Some(from), Some(to)) = places {
        let path = pool::resolve(&from.pool)?;
        if path != pool::resolve(&to.pool)? {
            bail!("they are in different pools, which share nothing");
        }
        let (filesystem, recovery) = pool::open_read_only(&path, "diff")?;
        let (old, new) = (super::walk(&filesystem, &from)?, super::walk(&filesystem, &to)?);
        for (place, ino) in [(&from, old), (&to, new)] {
            if !super::is_root(ino.0) {
                return Err(no_subvolume(&place.to_string(), &place.pool));
            }
        }
        return Ok((Source::Pool(Box::new((filesystem, recovery))), old.0, new.0));
    }
    let paths = [old, new].map(Path::new);
    let (old, new) = (find(paths[0])?, find(paths[1])?);
    same_pool(&old, &new)?;
    for (found, path) in [(&old, paths[0]), (&new, paths[1])] {
        if !found.is_subvolume() {
            return Err(no_subvolume(&path.shown(), &found.mount.mountpoint));
        }
    }
    let numbers = (old.number(), new.number());
    let server = sync::Server::of(&old.mount);
    Ok((Source::Mounted { server, held: Box::new([old, new]) }, numbers.0, numbers.1))
}

fn no_subvolume(shown: &str, of: &Path) -> anyhow::Error {
    let of = of.shown();
    anyhow!(
        "{shown} is neither a subvolume nor a snapshot; give two of those that varve subvolume list {of} shows"
    )
}

/// What was changed of one inode.
#[derive(Default)]
struct Inode {
    kind: String,
    created: bool,
    deleted: bool,
    /// Names that are gone, and new: directory and name.
    unlinked: BTreeSet<(u64, Vec<u8>)>,
    linked: BTreeSet<(u64, Vec<u8>)>,
    size: Option<u64>,
    data: Vec<Range>,
    attributes: Vec<String>,
    xattrs: BTreeMap<Vec<u8>, &'static str>,
    flags: Option<String>,
}

/// A range of a file's data, as `varve diff --json` shows it.
#[derive(Serialize, Clone, Copy)]
struct Range {
    offset_bytes: u64,
    len_bytes: u64,
    zeros: bool,
}

/// An inode that was changed, as `varve diff --json` shows it.
#[derive(Serialize)]
struct Listed {
    change: &'static str,
    kind: String,
    inode: u64,
    path: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    old_path: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    links_added: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    links_removed: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    size_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    data: Vec<Range>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    attributes: Vec<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    xattrs: BTreeMap<String, &'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    flags: Option<String>,
}

/// All that was changed.
#[derive(Default)]
struct Differences {
    inodes: BTreeMap<u64, Inode>,
    old_paths: BTreeMap<u64, Vec<u8>>,
    new_paths: BTreeMap<u64, Vec<u8>>,
    stay: BTreeMap<u64, (u64, Vec<u8>)>,
}

impl Differences {
    /// Adds a page; says where the next one begins.
    fn add(&mut self, page: Page) -> Option<String> {
        self.old_paths.extend(page.old_paths.into_iter().map(|(of, path)| (of, path.0)));
        self.new_paths.extend(page.new_paths.into_iter().map(|(of, path)| (of, path.0)));
        self.stay.extend(page.stay.into_iter().map(|(of, directory, name)| (of, (directory, name.0))));
        for step in page.steps {
            let inode = match &step {
                Step::Created(inode, _)
                | Step::Unlinked(_, _, inode, _)
                | Step::Linked(_, _, inode, _)
                | Step::Resized(inode, _)
                | Step::Data(inode, ..)
                | Step::Attributes(inode, ..)
                | Step::XattrSet(inode, ..)
                | Step::XattrRemoved(inode, ..)
                | Step::Flags(inode, ..)
                | Step::Deleted(inode, _) => *inode,
            };
            let of = self.inodes.entry(inode).or_default();
            match step {
                Step::Created(_, kind) => (of.created, of.kind) = (true, kind),
                Step::Deleted(_, kind) => (of.deleted, of.kind) = (true, kind),
                Step::Unlinked(directory, name, _, kind) => {
                    of.kind = kind;
                    of.unlinked.insert((directory, name.0));
                }
                Step::Linked(directory, name, _, kind) => {
                    of.kind = kind;
                    of.linked.insert((directory, name.0));
                }
                Step::Resized(_, size) => of.size = Some(size),
                Step::Data(_, offset, len, zeros) => match of.data.last_mut() {
                    // It may go on in the next page.
                    Some(last) if last.zeros == zeros && last.offset_bytes + last.len_bytes == offset => {
                        last.len_bytes += len;
                    }
                    _ => of.data.push(Range { offset_bytes: offset, len_bytes: len, zeros }),
                },
                Step::Attributes(_, kind, named) => (of.kind, of.attributes) = (kind, named),
                Step::XattrSet(_, kind, name) => {
                    of.kind = kind;
                    of.xattrs.insert(name.0, "set");
                }
                Step::XattrRemoved(_, kind, name) => {
                    of.kind = kind;
                    of.xattrs.insert(name.0, "removed");
                }
                Step::Flags(_, kind, letters) => (of.kind, of.flags) = (kind, Some(letters)),
            }
        }
        page.next
    }

    /// By path; what is in a directory after it.
    fn listed(&self) -> Vec<Listed> {
        let mut out: Vec<(Vec<u8>, Listed)> = Vec::new();
        for (number, inode) in &self.inodes {
            let path = |directories: &BTreeMap<u64, Vec<u8>>, (directory, name): &(u64, Vec<u8>)| {
                let above = directories.get(directory).cloned().unwrap_or_else(|| b"?".to_vec());
                if above.is_empty() { name.clone() } else { [&above[..], b"/", name].concat() }
            };
            let paths = |names: &BTreeSet<(u64, Vec<u8>)>, directories: &BTreeMap<u64, Vec<u8>>| {
                names.iter().map(|name| path(directories, name)).collect::<Vec<_>>()
            };
            let mut gone = paths(&inode.unlinked, &self.old_paths);
            let mut come = paths(&inode.linked, &self.new_paths);
            let here = self.new_paths.get(number).cloned();
            let (change, path, old_path) = if inode.created {
                ("created", if come.is_empty() { here.unwrap_or_default() } else { come.remove(0) }, None)
            } else if inode.deleted {
                ("deleted", if gone.is_empty() { Vec::new() } else { gone.remove(0) }, None)
            } else if !gone.is_empty() && !come.is_empty() {
                ("renamed", come.remove(0), Some(gone.remove(0)))
            } else {
                let stays = self.stay.get(number).map(|name| path(&self.new_paths, name));
                let first = come.first().or(gone.first()).cloned();
                ("modified", stays.or(here).or(first).unwrap_or_default(), None)
            };
            let listed = Listed {
                change,
                // Only files have sizes and data.
                kind: if inode.kind.is_empty() { "file".to_owned() } else { inode.kind.clone() },
                inode: *number,
                path: format!("/{}", escape(&path)),
                old_path: old_path.map(|old| format!("/{}", escape(&old))),
                links_added: come.iter().map(|path| format!("/{}", escape(path))).collect(),
                links_removed: gone.iter().map(|path| format!("/{}", escape(path))).collect(),
                size_bytes: inode.size,
                data: inode.data.clone(),
                attributes: inode.attributes.clone(),
                xattrs: inode.xattrs.iter().map(|(name, what)| (escape(name), *what)).collect(),
                // The library says nothing of new ones that have none: who makes one may get those of its directory.
                flags: inode.flags.clone().or_else(|| inode.created.then(String::new)),
            };
            out.push((path, listed));
        }
        out.sort_by(|a, b| a.0.cmp(&b.0));
        out.into_iter().map(|(_, listed)| listed).collect()
    }
}

/// One line an inode. Of a directory that only has other times, because something in it was changed, nothing is said.
fn text(all: &[Listed]) -> String {
    let mut out = String::new();
    for inode in all {
        let modified = inode.change == "modified";
        let only_times = inode.attributes.iter().all(|name| *name == "mtime");
        let quiet = inode.links_added.is_empty() && inode.links_removed.is_empty() && inode.xattrs.is_empty();
        let quiet = quiet && inode.data.is_empty() && inode.size_bytes.is_none() && inode.flags.is_none();
        let nothing = inode.kind == "directory" || inode.attributes.is_empty();
        if modified && only_times && quiet && nothing {
            continue;
        }
        let letter = match inode.change {
            "created" => 'A',
            "deleted" => 'D',
            "renamed" => 'R',
            _ => 'M',
        };
        let slash = if inode.kind == "directory" && inode.path != "/" { "/" } else { "" };
        let mut line = match &inode.old_path {
            Some(old) => format!("{letter} {old}{slash} -> {}{slash}", inode.path),
            None => format!("{letter} {}{slash}", inode.path),
        };
        let mut notes = Vec::new();
        if !matches!(inode.change, "created" | "deleted") {
            let bytes: u64 = inode.data.iter().map(|range| range.len_bytes).sum();
            if bytes > 0 {
                notes.push(format!("{bytes} bytes in {} ranges", inode.data.len()));
            }
            notes.extend(inode.size_bytes.map(|size| format!("now {size} bytes long")));
            notes.extend(inode.attributes.iter().filter(|name| *name != "mtime").cloned());
            // A name that says something else is told from a note.
            let named = |(name, what): (&String, &&str)| format!("{} {what}", name.replace(' ', "\\x20"));
            notes.extend(inode.xattrs.iter().map(named));
            notes.extend(inode.flags.iter().map(|letters| match letters.as_str() {
                "" => "no flags".to_owned(),
                letters => format!("flags {letters}"),
            }));
        }
        notes.extend(inode.links_added.iter().map(|path| format!("also {path}")));
        notes.extend(inode.links_removed.iter().map(|path| format!("no longer {path}")));
        if notes.is_empty() && inode.change == "modified" {
            notes.push("mtime".to_owned());
        }
        if !notes.is_empty() {
            // Writing to a string does not fail.
            let _ = write!(line, "  ({})", notes.join(", "));
        }
        line.push('\n');
        out.push_str(&line);
    }
    out
}
