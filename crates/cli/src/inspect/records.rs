//! The records of each tree in words.

use varve_format::record::extent::{self, Extent, ExtentKind};
use varve_format::record::held;
use varve_format::record::inode::{self, InodeKind, InodeRecord, Time};
use varve_format::record::keyframe::{self, KeyframeKey};
use varve_format::record::name::{self, NameRecord};
use varve_format::record::orphan::{self, OrphanRecord, OrphanState};
use varve_format::record::reap::{self, Work};
use varve_format::record::shares::SharedRun;
use varve_format::record::subvolume::{SUBVOLUME_DELETING, SUBVOLUME_READ_ONLY, SubvolumeRecord};
use varve_format::record::version::{self, NO_LIMIT, VersionRecord};
use varve_format::record::xattr::{self, XattrHead};
use varve_format::root::NodePtr;
use varve_format::superblock::ProfileField;
use varve_format::{BLOCK_BYTES, Corrupt, TreeId};

use super::doc::{Doc, map};

/// An entry of a tree: what its key and value say, or why they cannot be read.
pub fn entry(tree: TreeId, key: &[u8], value: &[u8]) -> Doc {
    let mut doc = map! { "key": Doc::hex(key) };
    match decoded(tree, key, value) {
        Ok(more) => doc.extend(more),
        Err(corrupt) => doc.extend(map! { "problem": corrupt.to_string(), "value": Doc::hex(value) }),
    }
    doc
}

fn decoded(tree: TreeId, key: &[u8], value: &[u8]) -> Result<Doc, Corrupt> {
    Ok(match tree {
        TreeId::INODES => {
            let (family, ino, version) = inode::decode_inode_key(key)?;
            let mut doc = map! { "family": family.0, "inode": ino.0, "version_key": version.0 };
            doc.extend(inode_record(&InodeRecord::decode(value)?));
            doc
        }
        TreeId::NAMES => {
            let (family, dir, position, version) = name::decode_name_key(key)?;
            let mut doc = map! {
                "family": family.0, "directory": dir.0, "position": position.0, "version_key": version.0,
            };
            doc.extend(match NameRecord::decode(value)? {
                NameRecord::Entry { kind, ino, name, chained } => map! {
                    "name": Doc::name(&name), "inode": ino.0, "kind": kind_name(kind), "chained": chained,
                },
                NameRecord::Removed => map! {
                    "name": None::<u64>, "inode": None::<u64>, "kind": "removed", "chained": true,
                },
            });
            doc
        }
        TreeId::XATTRS => {
            let (family, ino, position, chunk, version) = xattr::decode_xattr_key(key)?;
            let mut doc = map! {
                "family": family.0, "inode": ino.0, "position": position.0, "chunk": chunk,
                "version_key": version.0,
            };
            doc.extend(if chunk == 0 {
                let head = XattrHead::decode(value)?;
                map! { "name": Doc::name(&head.name), "value_bytes": head.value_len, "value": Doc::name(&head.start) }
            } else {
                map! { "name": None::<u64>, "value_bytes": None::<u64>, "value": Doc::name(value) }
            });
            doc
        }
        TreeId::EXTENTS => {
            let (key, extent) = extent::decode_entry(key, value)?;
            let mut doc = map! {
                "family": key.family.0, "version_key": key.version.0, "file_offset": key.file_offset(),
            };
            doc.extend(extent_record(&extent));
            doc
        }
        TreeId::VERSIONS => {
            let (family, id) = version::decode_key(key)?;
            let mut doc = map! { "family": family.0, "version": id.0 };
            doc.extend(version_record(&VersionRecord::decode(value)?));
            doc
        }
        TreeId::ORPHANS => {
            let ino = orphan::decode_orphan_key(key)?;
            let record = OrphanRecord::decode(value)?;
            let state = match record.state {
                OrphanState::Open => "unlinked while open",
                _ => "being deleted",
            };
            let mut doc =
                map! { "inode": varve_format::record::subvolume::shown_inode(ino.0), "state": state };
            doc.extend(inode_record(&record.inode));
            doc
        }
        TreeId::SUBVOLUMES => {
            let record = SubvolumeRecord::decode(value)?;
            let mut doc = map! {
                "family": record.family.0, "version": record.version.0, "root": record.root.0,
                "hash_kind": record.hash_kind, "files_count": record.files, "files_known": record.files_known,
                "reserved_blocks": record.reserved_blocks, "slot": record.slot, "uuid": Doc::hex(&record.uuid),
                "read_only": record.flags & SUBVOLUME_READ_ONLY != 0,
                "deleting": record.flags & SUBVOLUME_DELETING != 0,
            };
            if let Some(place) = &record.place {
                doc.extend(map! {
                    "parent": place.parent, "directory": place.directory.0, "origin": place.origin,
                    "name": Doc::name(&place.name),
                });
            }
            doc
        }
        TreeId::HELD => {
            let (family, version, of, place) = held::decode_held_key(key)?;
            map! {
                "family": family.0, "version_key": version.0, "tree": of.name(), "place": Doc::hex(place),
            }
        }
        TreeId::REAP => {
            let (family, work) = reap::decode_reap_key(key)?;
            reap::check_reap_value(work, value)?;
            let mut doc = map! { "family": family.0 };
            doc.extend(match work {
                Work::Going(id) => map! { "work": "take away", "version": id.0 },
                Work::Recheck(id) => map! { "work": "recheck", "version": id.0 },
                Work::Place(id, of, place) => map! {
                    "work": "recheck", "version": id.0, "tree": of.name(), "place": Doc::hex(place),
                },
                Work::Rest(of, place) => map! {
                    "work": "recheck the rest", "tree": of.name(), "place": Doc::hex(place),
                },
            });
            doc.extend(map! { "cursor": Doc::hex(value) });
            doc
        }
        TreeId::SHARES => {
            let run = SharedRun::decode(key, value)?;
            map! { "address": run.first * BLOCK_BYTES as u64, "blocks": run.blocks, "extents": run.more.saturating_add(1) }
        }
        TreeId::KEYFRAMES => {
            let key = KeyframeKey::decode(key)?;
            let mut runs = Vec::new();
            let pieces = keyframe::decode_piece(&key, value, &mut runs)?;
            let runs = runs.iter().map(|run| {
                map! {
                    "offset": u64::from(run.first) * BLOCK_BYTES as u64, "blocks": u64::from(run.more) + 1,
                    "address": run.block * BLOCK_BYTES as u64, "version_key": run.owner.0,
                }
            });
            map! {
                "family": key.family.0, "segment": key.segment, "version_key": key.version.0, "piece": key.piece,
                "pieces": pieces, "runs": Doc::List(runs.collect()),
            }
        }
        _ => map! { "value": Doc::hex(value) },
    })
}

/// What kind of inode.
pub fn kind_name(kind: InodeKind) -> &'static str {
    match kind {
        InodeKind::File => "file",
        InodeKind::Directory => "directory",
        InodeKind::Symlink => "symlink",
        InodeKind::Fifo => "fifo",
        InodeKind::Socket => "socket",
        InodeKind::CharDevice => "char_device",
        InodeKind::BlockDevice => "block_device",
    }
}

/// In seconds since 1970. What is kept are whole seconds before, or exactly, and nanoseconds after them.
fn time(time: Time) -> String {
    let nanoseconds = time.nanoseconds;
    match (time.seconds, 1_000_000_000_u32.checked_sub(nanoseconds)) {
        (..0, Some(to_next)) if nanoseconds > 0 => {
            format!("-{}.{to_next:09}", (time.seconds + 1).unsigned_abs())
        }
        (seconds, _) => format!("{seconds}.{nanoseconds:09}"),
    }
}

/// The fields of an inode.
pub fn inode_record(record: &InodeRecord) -> Doc {
    let mut doc = map! {
        "kind": kind_name(record.kind),
        "mode": format!("{:04o}", record.mode),
        "uid": record.uid,
        "gid": record.gid,
        "links_count": record.links,
        "size_bytes": record.size,
        "flags": record.flags,
        "rdev": record.rdev,
        "project": record.project,
        "generation": record.generation,
        "change": record.change,
        "xattrs_count": record.xattr_count,
        "xattrs_bytes": record.xattr_bytes,
        "parent": record.parent.0,
        "data_family": record.data.family.0,
        "data_version": record.data.version.0,
        "has_versions": record.data.has_versions,
        "atime": time(record.atime),
        "mtime": time(record.mtime),
        "ctime": time(record.ctime),
        "btime": time(record.btime),
        "inline_bytes": record.inline.as_ref().map(Vec::len),
    };
    if let (InodeKind::Symlink, Some(target)) = (record.kind, &record.inline) {
        doc.extend(map! { "target": Doc::name(target) });
    }
    doc
}

/// The fields of an extent.
pub fn extent_record(extent: &Extent) -> Doc {
    let kind = match extent.kind {
        ExtentKind::Data => "data",
        ExtentKind::Hole => "hole",
        ExtentKind::Reserved => "reserved",
    };
    let addr = (!extent.addr.is_null()).then(|| Doc::address(extent.addr.0));
    map! {
        "kind": kind, "len_bytes": extent.len, "addr": addr, "stored_bytes": extent.stored_len,
        "raw_bytes": extent.raw_len, "offset": extent.offset, "codec": extent.codec, "checksum": extent.checksum,
    }
}

/// The fields of a version.
pub fn version_record(record: &VersionRecord) -> Doc {
    map! {
        "parent": record.parent.map(|parent| parent.0),
        "version_key": record.key.0,
        "refs_count": record.refs,
        "children_count": record.children,
        "children_xor": record.children_xor,
        "limit_bytes": (record.limit != NO_LIMIT).then_some(record.limit),
        "drain": format!("{:?}", record.drain).to_lowercase(),
    }
}

/// A pointer to a block of metadata.
pub fn pointer(ptr: &NodePtr) -> Doc {
    if ptr.is_null() {
        return Doc::Nothing;
    }
    map! {
        "addrs": ptr.copies().map(|addr| Doc::address(addr.0)).collect::<Vec<Doc>>(),
        "birth": ptr.birth,
        "checksum": Doc::address(u64::from(ptr.checksum)),
    }
}

/// A profile by its name, or by its numbers.
pub fn profile(profile: ProfileField) -> String {
    match (profile.copies, profile.width) {
        (1, 1) => "single".to_owned(),
        (2, 1) => "dup".to_owned(),
        (copies, width) => format!("{copies} copies on {width} devices"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Goal: times before 1970 are shown as what they are. Method: such with and without a part of a second, the first there is, and one after.
    #[test]
    fn times_before_1970_are_shown() {
        let shown = |seconds, nanoseconds| time(Time { seconds, nanoseconds });
        assert_eq!(shown(-1, 500_000_000), "-0.500000000");
        assert_eq!(shown(-2, 1), "-1.999999999");
        assert_eq!(shown(-2, 0), "-2.000000000");
        assert_eq!(shown(i64::MIN, 999_999_999), "-9223372036854775807.000000001");
        assert_eq!(shown(1, 5), "1.000000005");
    }
}
