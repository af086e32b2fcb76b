//! Everything that can be done with what is found in a pool. Each verb may fail as it likes.

use varve_fs::{
    Allocate, Caller, FileFlags, FileKind, Filesystem, InodeId, ROOT_INODE, RenameMode, SeekTo, SetAttr,
    XattrMode,
};

const CALLER: Caller = Caller::ROOT;
/// Names of one directory, levels, and files in all that are looked at and written to: a forged pool may have them without end.
const NAMES_MAX: usize = 12;
const DEPTH_MAX: usize = 4;
const FOUND_MAX: usize = 30;
const CHANGED_MAX: usize = 15;
/// Pages of a listing, a map or a diff.
const PAGES_MAX: usize = 4;

/// An entry of a directory.
struct Found {
    directory: InodeId,
    name: Vec<u8>,
    ino: InodeId,
    kind: FileKind,
}

fn find(fs: &Filesystem) -> Vec<Found> {
    let (mut todo, mut all) = (vec![(ROOT_INODE, 0)], Vec::new());
    while let Some((directory, depth)) = todo.pop() {
        let mut seen = 0;
        let _ = fs.readdir(directory, 0, &mut |entry| {
            seen += 1;
            if entry.name == b"." || entry.name == b".." {
                return true;
            }
            if entry.kind == FileKind::Directory && depth < DEPTH_MAX {
                todo.push((entry.ino, depth + 1));
            }
            let (name, ino, kind) = (entry.name, entry.ino, entry.kind);
            all.push(Found { directory, name, ino, kind });
            seen < NAMES_MAX
        });
        if all.len() >= FOUND_MAX {
            break;
        }
    }
    all
}

/// Reads.
pub fn look(fs: &Filesystem) {
    let _ = fs.statfs();
    let _ = fs.space();
    let all = find(fs);
    for Found { directory, name, ino, kind } in &all {
        let _ = fs.lookup(*directory, name);
        let size = fs.getattr(*ino).map_or(0, |attributes| attributes.size);
        for attribute in fs.listxattr(*ino).unwrap_or_default().iter().take(NAMES_MAX) {
            let _ = fs.getxattr(*ino, attribute);
        }
        let _ = fs.readlink(*ino);
        if *kind != FileKind::File {
            continue;
        }
        let _ = fs.read(*ino, 0, 20_000);
        let _ = fs.read(*ino, size.saturating_sub(5000), 20_000);
        let _ = fs.seek(*ino, 0, SeekTo::Data);
        let _ = fs.seek(*ino, 5000, SeekTo::Hole);
        let mut from = Some(0);
        for _ in 0..PAGES_MAX {
            let Some(at) = from else { break };
            from = fs.map(*ino, at, 8).ok().and_then(|page| page.next);
        }
    }
    let subvolumes = fs.list_subvolumes().unwrap_or_default();
    for pair in subvolumes.windows(2).take(PAGES_MAX) {
        for (old, new) in [(pair[0].root, pair[1].root), (pair[1].root, pair[0].root)] {
            let mut cursor = Vec::new();
            for _ in 0..PAGES_MAX {
                match fs.diff(old, new, &cursor, 5) {
                    Ok(page) => match page.next {
                        Some(next) => cursor = next,
                        None => break,
                    },
                    Err(_) => break,
                }
            }
        }
    }
}

/// Writes. `how`: in which order, and whether everything goes in the end.
pub fn change(fs: &Filesystem, how: u8) {
    let mut all = find(fs);
    if how & 16 != 0 {
        all.reverse();
    }
    all.truncate(CHANGED_MAX);
    if how & 32 != 0 {
        let _ = fs.snapshot(ROOT_INODE, ROOT_INODE, b"before", false, false);
    }
    for (at, found) in all.iter().enumerate() {
        let Found { directory, name, ino, kind } = found;
        let _ = fs.setxattr(*ino, b"user.new", &[1; 5000], XattrMode::Set);
        let _ = fs.setxattr(*ino, b"user.big", &[1; 50], XattrMode::Set);
        let _ = fs.removexattr(*ino, b"user.small");
        let _ = fs.setattr(CALLER, *ino, SetAttr { mode: Some(0o600), uid: Some(5), ..SetAttr::default() });
        let _ = fs.set_flags(CALLER, *ino, FileFlags::NONE);
        match kind {
            FileKind::File => change_file(fs, *ino, all[at / 2].ino),
            FileKind::Directory => change_directory(fs, *ino),
            _ => {}
        }
        let _ = fs.link(*ino, ROOT_INODE, b"linked");
        let _ = fs.unlink(ROOT_INODE, b"linked");
        if at % 4 == 1 {
            let _ = fs.rename(*directory, name, ROOT_INODE, b"renamed", RenameMode::Replace);
            let _ = fs.rename(ROOT_INODE, b"renamed", *directory, name, RenameMode::NoReplace);
            let before = &all[at - 1];
            let _ = fs.rename(*directory, name, before.directory, &before.name, RenameMode::Exchange);
        }
    }
    if let Ok(root) = fs.snapshot(ROOT_INODE, ROOT_INODE, b"snap", false, false) {
        let _ = fs.create(CALLER, root, b"made", 0o644);
        for found in all.iter().take(4) {
            let _ = fs.unlink(root, &found.name);
        }
    }
    let _ = fs.sync();
    let _ = fs.maintain();
    if how & 64 != 0 {
        for Found { directory, name, ino, kind } in all.iter().rev() {
            if *kind == FileKind::Directory {
                let _ = fs.rmdir(*directory, name);
                let _ = fs.delete_subvolume(*directory, name);
            } else {
                let _ = fs.open_inode(CALLER, *ino, false);
                let _ = fs.unlink(*directory, name);
                let _ = fs.release_inode(*ino);
            }
        }
        let _ = fs.delete_subvolume(ROOT_INODE, b"snap");
        let _ = fs.sync();
        let _ = fs.maintain();
    }
    if how & 128 != 0 {
        let _ = fs.checkpoint();
        let _ = fs.trim(0..u64::MAX, 0, &mut |_| true);
    }
}

fn change_file(fs: &Filesystem, ino: InodeId, other: InodeId) {
    let size = fs.getattr(ino).map_or(0, |attributes| attributes.size);
    let _ = fs.write(CALLER, ino, 100, &[7; 9000]);
    let _ = fs.write(CALLER, ino, size, &[7; 9000]);
    let _ = fs.fsync(ino);
    let _ = fs.fallocate(CALLER, ino, 0, 100_000, Allocate::Reserve { keep_size: true });
    let _ = fs.fallocate(CALLER, ino, 5000, 10_000, Allocate::Punch);
    let _ = fs.write(CALLER, ino, 50_000, &[7; 9000]);
    let _ = fs.fsync(ino);
    let _ = fs.insert_range(CALLER, ino, 4096, 4096);
    let _ = fs.collapse_range(CALLER, ino, 8192, 4096);
    let _ = fs.clone_file(CALLER, ino, ROOT_INODE, b"clone of it");
    let _ = fs.clone_range(CALLER, (ino, 0), (other, 1 << 20), 8192);
    let _ = fs.dedupe_range((ino, 4096), (other, (1 << 20) + 4096), 4096);
    let _ = fs.copy_range(CALLER, (other, 0), (ino, 60_000), 20_000);
    let _ = fs.write(CALLER, ino, 8192, &[7; 9000]);
    let _ = fs.fsync(ino);
    let _ = fs.unlink(ROOT_INODE, b"clone of it");
    for size in [6000, 600_000] {
        let _ = fs.setattr(CALLER, ino, SetAttr { size: Some(size), ..SetAttr::default() });
    }
}

fn change_directory(fs: &Filesystem, ino: InodeId) {
    let _ = fs.create(CALLER, ino, b"made", 0o644);
    let _ = fs.mkdir(CALLER, ino, b"made directory", 0o755);
    let _ = fs.rename(ino, b"made directory", ROOT_INODE, b"moved", RenameMode::Replace);
    let _ = fs.rmdir(ROOT_INODE, b"moved");
    let _ = fs.rename(ino, b"made", ino, b"n", RenameMode::Replace);
    let _ = fs.unlink(ino, b"n");
}
