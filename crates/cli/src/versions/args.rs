//! The arguments of `varve subvolume`, `varve snapshot`, `varve clone`, `varve extents` and `varve diff`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Subcommand};

/// Make, delete and list subvolumes of a mounted pool.
///
/// A subvolume is a directory of which snapshots can be taken. Files are moved across its border by copying, as between
/// filesystems; the subvolume itself can be renamed, and change places with another one in one step (`mv --exchange`). The root of a
/// pool is a subvolume, too.
///
/// These commands are for root and for the user who mounted the pool.
#[derive(Args, Debug)]
#[command(subcommand_help_heading = "What", subcommand_value_name = "WHAT", disable_help_subcommand = true)]
pub struct SubvolumeArgs {
    /// What to do
    #[command(subcommand)]
    pub verb: SubvolumeVerb,
}

/// What can be done with subvolumes.
#[derive(Subcommand, Debug)]
pub enum SubvolumeVerb {
    /// Make empty subvolumes, as root or who mounted the pool; you must be allowed to write to the directory
    Create {
        /// Where there is nothing yet, in a mounted pool
        #[arg(value_name = "PATH", required = true)]
        paths: Vec<PathBuf>,
    },
    /// Show all subvolumes of a pool, with the paths they have in it, to root and to who mounted it
    List {
        /// Anything inside a mount, or the file or device of a pool
        path: PathBuf,
        /// Print as JSON: id, parent_id, origin_id, path, inode, read_only, created_ns, uuid of each
        #[arg(long)]
        json: bool,
    },
    /// Delete subvolumes with all that is in them, but for those in which there are others
    ///
    /// You must be root, or the user who mounted the pool, own the subvolume and be allowed to write to the directory it is in. What is
    /// open in it fails from then on (ESTALE), but that what the kernel has in its cache of an open file can still be read; and what is mounted in it is unmounted, as by umount -l. Space that nothing else shares comes back in the background,
    /// after the command has returned: who deletes until there is enough of it needs --wait.
    Delete {
        /// Subvolumes in a mounted pool
        #[arg(value_name = "PATH", required = true)]
        paths: Vec<PathBuf>,
        /// Return when their space is free: when nothing that was deleted in the pool is left to do in the background
        ///
        /// That is also what others have deleted: it lasts until "to delete" of varve stats is 0. The deletion is durable then. A signal
        /// (Ctrl-C) ends the waiting (exit status 1); what is deleted stays so, and its space comes back all the same.
        #[arg(long)]
        wait: bool,
        /// Print as JSON: deleted (the paths), space_free (true: there was nothing left to do; false: the waiting was ended; null
        /// without --wait), elapsed_ns
        #[arg(long)]
        json: bool,
    },
}

/// Take a snapshot of a subvolume of a mounted pool.
///
/// A snapshot is a subvolume that shows what its source shows now, but for other subvolumes in it. It takes no longer for
/// a large source than for a small one, and no space until one of the two changes; then each pays for what it changes. What
/// was written before is in it (of files mapped into memory: what was msync'ed).
///
/// You must own SUBVOLUME and be allowed to write to the directory of DEST. For root and the user who mounted the pool.
#[derive(Args, Debug)]
pub struct SnapshotArgs {
    /// Nothing in the snapshot can be changed, ever; it can be deleted
    #[arg(long)]
    pub read_only: bool,
    /// The snapshot is durable when the command returns; else with the next sync
    ///
    /// Where that fails the snapshot is there all the same, and the error says so (exit status 1); varve sync tries again.
    #[arg(long)]
    pub sync: bool,
    /// Subvolume, or the root of a mounted pool
    pub subvolume: PathBuf,
    /// Where there is nothing yet, in the same pool
    pub dest: PathBuf,
}

/// Make a clone of a file in a mounted pool: another file that shares its data.
///
/// It takes no longer for a large file than for a small one, and no space until one of the two changes. Works across
/// subvolumes and from read-only snapshots. The clone has the permission bits of FILE and belongs to you. cp makes clones by
/// itself, of files below 2 GiB, with --reflink=auto (the default since coreutils 9.0). With --reflink=always it fails: what it
/// asks for then the kernel passes to no FUSE filesystem.
///
/// You must be allowed to read FILE and to write to the directory of DEST. For root and the user who mounted the pool;
/// others have cp.
#[derive(Args, Debug)]
pub struct CloneArgs {
    /// Regular file
    pub file: PathBuf,
    /// Where there is nothing yet, in the same pool
    pub dest: PathBuf,
}

/// Show where a file is in its pool, and what of it others share.
///
/// One line for each run of data, of space set aside, and for each hole; small files lie inline, in their inode. Data is shared
/// if another file, or the same one in another subvolume, has the very same blocks, or this file has them in two places; what
/// was deleted counts until its space has come back. The last line has the sums, in which every block counts once, and as
/// shared only if others have it, too: what is this file's alone is what deleting it would free. What was written and is not
/// yet on the device is written first, but not synced.
///
/// You must be allowed to read FILE. For root and the user who mounted the pool; of a pool that is not mounted, for who may
/// read its device.
#[derive(Args, Debug)]
pub struct ExtentsArgs {
    /// Regular file in a mounted pool, or in one that is not, such as backup.img:/images/root
    #[arg(value_name = "FILE|POOL:/PATH")]
    pub file: OsString,
    /// Show only what is shared; the sums are those of the whole file
    #[arg(long)]
    pub shared: bool,
    /// Print as JSON: extents (offset_bytes, len_bytes, kind: data, reserved, hole or inline, address_bytes, shared of each)
    /// and totals (size_bytes, data_count, data_bytes, shared_bytes, exclusive_bytes, repeated_bytes: what lies in blocks that
    /// the file has in another place already, inline_bytes, reserved_bytes, hole_count, hole_bytes)
    #[arg(long)]
    pub json: bool,
}

/// Show what differs between two subvolumes or snapshots, one of which descends from the other, or both from a third.
///
/// It takes as long as what was changed is much, not what is in them. One line for each file or directory: A for one that NEW
/// has and OLD has not, D for the reverse, R for a new name (of a directory: alone, whatever is in it), M for changes of data,
/// size, permission bits, owner, time, flags (chattr) or extended attributes. A directory of which nothing but
/// the time differs is not shown: something in it was changed, or its time was set (--json lists both). Data that was written again counts as changed, also if it is the same. Other subvolumes inside are left out. While
/// one of the two is being changed the answer may mix before and after: compare read-only snapshots.
///
/// Exit status 0 whether something differs or not; 1 if the log of a pool that was not closed cannot be read to its end, so that what was
/// done last is missing, also where it is mounted read-only. You must own both. For root and the user who mounted the pool; of a pool
/// that is not mounted, for who may read its device.
#[derive(Args, Debug)]
pub struct DiffArgs {
    /// Subvolume or snapshot in a mounted pool, or in one that is not, such as backup.img:/monday
    #[arg(value_name = "OLD|POOL:/OLD")]
    pub old: OsString,
    /// Another one, of the same origin
    #[arg(value_name = "NEW|POOL:/NEW")]
    pub new: OsString,
    /// Print as JSON: change (created, deleted, renamed, modified), kind, inode, path, and where it applies old_path,
    /// links_added, links_removed, size_bytes (the new size), data (offset_bytes, len_bytes, zeros), attributes (mode, uid,
    /// gid, mtime), flags (letters of chattr), xattrs (name: set or removed) of each
    #[arg(long)]
    pub json: bool,
}
