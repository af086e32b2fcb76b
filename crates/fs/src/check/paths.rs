//! Paths of the inodes that problems are about. Found when there are problems, one subvolume after the other: its names are
//! read as it shows them, whatever is wrong with them.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use varve_engine::{InodeId, Problem, TreeId, View};
use varve_format::record::name::{NameRecord, decode_name_key};
use varve_format::text::escape;

use crate::shown_number;
use crate::subvolume::{Slot, local};
use crate::table::Namespace;

/// The directory and the name of each subvolume but the first.
pub type Above = HashMap<Slot, (InodeId, Vec<u8>)>;

/// Directories on the way to the root, at most.
const DEPTH_MAX: usize = 4096;

/// Gives the problems the paths of the inodes they are about, and puts them into their sentences.
pub(super) fn name(
    problems: Vec<&mut Problem>,
    view: &View,
    namespaces: &[Namespace],
    root: InodeId,
    above: &Above,
) {
    let inodes = problems.iter().flat_map(|problem| {
        problem.inode.into_iter().chain(problem.files.iter().map(|file| file.inode)).map(InodeId)
    });
    let mut paths = Paths { view, namespaces, root, above, known: HashMap::new() };
    paths.find(inodes.collect());
    for problem in problems {
        say(problem, &paths);
    }
}

struct Paths<'a> {
    view: &'a View,
    namespaces: &'a [Namespace],
    root: InodeId,
    above: &'a Above,
    /// Names on the way to an inode from the root of its subvolume, the last one first; `None`: none leads to it.
    known: HashMap<InodeId, Option<Vec<Vec<u8>>>>,
}

impl Paths<'_> {
    /// Finds the ways to these inodes, and to where their subvolumes are.
    fn find(&mut self, inodes: BTreeSet<InodeId>) {
        let mut wanted: BTreeMap<Slot, BTreeSet<InodeId>> = BTreeMap::new();
        for ino in inodes {
            wanted.entry(Slot::of(ino)).or_default().insert(ino);
        }
        // First all subvolumes on the way, so that the names of each are read once.
        let mut slots: Vec<Slot> = wanted.keys().copied().collect();
        while let Some(slot) = slots.pop() {
            let Some((dir, _)) = self.above.get(&slot) else { continue };
            let above = Slot::of(*dir);
            if !wanted.contains_key(&above) {
                slots.push(above);
            }
            wanted.entry(above).or_default().insert(*dir);
        }
        for (slot, inodes) in wanted {
            let names = self.names(slot);
            for ino in inodes {
                let way = self.way(&names, local(ino));
                self.known.insert(ino, way);
            }
        }
    }

    /// Of each inode of a subvolume the directory it is in and its name there; of several the last. Without slots.
    fn names(&self, slot: Slot) -> HashMap<InodeId, (InodeId, Vec<u8>)> {
        let mut names = HashMap::new();
        for namespace in self.namespaces.iter().filter(|namespace| namespace.slot == slot) {
            let family = namespace.family.0.to_be_bytes();
            // What cannot be read has no path.
            let _ = namespace.each(self.view, TreeId::NAMES, &family, &family, &mut |key, value| {
                if let (Ok((_, dir, ..)), Ok(NameRecord::Entry { ino, name, .. })) =
                    (decode_name_key(key), NameRecord::decode(value))
                {
                    names.insert(ino, (dir, name));
                }
                true
            });
        }
        names
    }

    fn way(&self, names: &HashMap<InodeId, (InodeId, Vec<u8>)>, ino: InodeId) -> Option<Vec<Vec<u8>>> {
        let (mut at, mut way) = (ino, Vec::new());
        while at != self.root {
            let (dir, name) = names.get(&at).filter(|_| way.len() < DEPTH_MAX)?;
            way.push(name.clone());
            at = *dir;
        }
        Some(way)
    }

    /// A path from the root of the pool, if names lead to `ino`.
    fn path(&self, ino: InodeId) -> Option<Vec<u8>> {
        let (mut at, mut names): (InodeId, Vec<&[u8]>) = (ino, Vec::new());
        loop {
            names.extend(self.known.get(&at)?.as_ref()?.iter().map(Vec::as_slice));
            let slot = Slot::of(at);
            if slot == Slot::FIRST {
                break;
            }
            let (dir, name) = self.above.get(&slot).filter(|_| names.len() < DEPTH_MAX)?;
            names.push(name);
            at = *dir;
        }
        let mut path: Vec<u8> = Vec::new();
        for name in names.iter().rev() {
            path.push(b'/');
            path.extend_from_slice(name);
        }
        if path.is_empty() {
            path.push(b'/');
        }
        Some(path)
    }
}

/// Puts paths into a problem and its sentence.
fn say(problem: &mut Problem, paths: &Paths<'_>) {
    let range = |bytes: Option<(u64, u64)>| {
        bytes.map_or(String::new(), |(from, to)| format!(", bytes {from} to {to}"))
    };
    problem.path = problem.inode.and_then(|ino| paths.path(InodeId(ino)));
    for file in &mut problem.files {
        file.path = paths.path(InodeId(file.inode));
        file.inode = shown_number(InodeId(file.inode));
    }
    problem.inode = problem.inode.map(|ino| shown_number(InodeId(ino)));
    let mut said = Vec::new();
    if let Some(path) = &problem.path {
        said.push(format!("{}{}", escape(path), range(problem.bytes)));
    }
    // The first is the one of the problem itself.
    for file in problem.files.iter().skip(1) {
        let name = file.path.as_deref().map_or_else(|| format!("inode {}", file.inode), escape);
        said.push(format!("also {name}{}", range(Some(file.bytes))));
    }
    match (problem.files_omitted, problem.files_uncounted) {
        (0, false) => {}
        (0, true) if said.is_empty() => said.push("in what files cannot be read".to_owned()),
        (0, true) => said.push("perhaps more".to_owned()),
        (more, false) => said.push(format!("and {more} more")),
        (more, true) => said.push(format!("and at least {more} more")),
    }
    if !said.is_empty() {
        problem.text.push_str(&format!(" ({})", said.join("; ")));
    }
}
