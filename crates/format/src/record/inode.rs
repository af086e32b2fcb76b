//! Inode records: who owns a file, when it changed, where its data is.
//!
//! Key (versioned): family, inode, inverted version key. A small file's bytes and a symbolic link's target lie in
//! the record itself. An inode in inline mode ([`InodeRecord::inline`] is `Some`) has no extents; its size may lie
//! beyond the inline bytes, the rest reads as zeros.

use crate::codec::{Reader, Writer};
use crate::{BLOCK_BYTES, Corrupt, FamilyId, InodeId, VersionId, VersionKey};

/// Longest contents kept inside the record, in bytes.
pub const INLINE_BYTES_MAX: usize = 1700;
/// Bytes of an inode record without inline contents.
pub const INODE_FIXED_BYTES: usize = 168;
/// Bytes of an inode key.
pub const INODE_KEY_BYTES: usize = 24;

/// No file is larger, and no directory counts more entries.
pub const SIZE_MAX: u64 = 1 << 62;

/// The bytes past the end of the file in its last mapped block may be anything: they were cut off by a truncation.
/// Whoever lets the file grow zeroes them first.
pub const INODE_FLAG_STALE_TAIL: u32 = 1;
/// The file may have reservations. Its contents never go back into the record, except when it is cut to nothing.
pub const INODE_FLAG_RESERVED: u32 = 2;
/// Nothing of it may change: neither contents nor attributes, nor the names in it, nor its own.
pub const INODE_FLAG_IMMUTABLE: u32 = 4;
/// Bytes may be added at its end, or names to it; nothing else may change.
pub const INODE_FLAG_APPEND_ONLY: u32 = 8;
/// Not for backups.
pub const INODE_FLAG_NO_DUMP: u32 = 16;
/// Reading does not change its access time.
pub const INODE_FLAG_NO_ACCESS_TIME: u32 = 32;
/// Changes of it are durable before they are acknowledged.
pub const INODE_FLAG_DURABLE: u32 = 64;
/// Of a directory: changes of its names are durable before they are acknowledged.
pub const INODE_FLAG_DURABLE_NAMES: u32 = 128;
/// The flags that users set (chattr).
pub const INODE_FLAGS_SETTABLE: u32 = INODE_FLAG_IMMUTABLE
    | INODE_FLAG_APPEND_ONLY
    | INODE_FLAG_NO_DUMP
    | INODE_FLAG_NO_ACCESS_TIME
    | INODE_FLAG_DURABLE
    | INODE_FLAG_DURABLE_NAMES;
/// Every flag this version of the program knows.
pub const INODE_FLAGS_KNOWN: u32 = INODE_FLAG_STALE_TAIL | INODE_FLAG_RESERVED | INODE_FLAGS_SETTABLE;

const INLINE_BIT: u8 = 1;
const HAS_VERSIONS_BIT: u8 = 2;

/// What kind of file an inode is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[repr(u8)]
pub enum InodeKind {
    /// Regular file.
    File = 1,
    /// Directory.
    Directory = 2,
    /// Symbolic link.
    Symlink = 3,
    /// Fifo.
    Fifo = 4,
    /// Socket.
    Socket = 5,
    /// Character device.
    CharDevice = 6,
    /// Block device.
    BlockDevice = 7,
}

impl InodeKind {
    /// The kind with this code.
    pub fn from_code(code: u8) -> Option<InodeKind> {
        Some(match code {
            1 => InodeKind::File,
            2 => InodeKind::Directory,
            3 => InodeKind::Symlink,
            4 => InodeKind::Fifo,
            5 => InodeKind::Socket,
            6 => InodeKind::CharDevice,
            7 => InodeKind::BlockDevice,
            _ => return None,
        })
    }
}

/// Seconds since 1970 (negative before), and nanoseconds after that second.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Time {
    /// Seconds since 1970-01-01 UTC.
    pub seconds: i64,
    /// 0 to 999,999,999.
    pub nanoseconds: u32,
}

/// Which version of which family holds a file's data.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DataPointer {
    /// The family: as a rule the inode's own number.
    pub family: FamilyId,
    /// The version the inode stands at.
    pub version: VersionId,
    /// Whether the family has version records (it was forked or cut).
    pub has_versions: bool,
}

/// The value of an inode.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InodeRecord {
    /// Kind.
    pub kind: InodeKind,
    /// Permission bits with set-id and sticky (07777).
    pub mode: u16,
    /// `INODE_FLAG_*`.
    pub flags: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Names that lead here. Directories have 1.
    pub links: u32,
    /// Device number of device nodes.
    pub rdev: u32,
    /// Project, for quotas.
    pub project: u32,
    /// Extended attributes.
    pub xattr_count: u32,
    /// Bytes of their names and values, and 64 for each.
    pub xattr_bytes: u32,
    /// Bytes in a file or a link's target; entries of a directory.
    pub size: u64,
    /// Generation, for file handles.
    pub generation: u64,
    /// Counts changes.
    pub change: u64,
    /// The directory this directory is in (its own number for the root). Of everything else a hint: a directory in which it
    /// had a name last; 0 if not known.
    pub parent: InodeId,
    /// Where the data is.
    pub data: DataPointer,
    /// Last access.
    pub atime: Time,
    /// Last change of data.
    pub mtime: Time,
    /// Last change of the inode.
    pub ctime: Time,
    /// Creation.
    pub btime: Time,
    /// The contents, when they lie in the record.
    pub inline: Option<Vec<u8>>,
}

impl InodeRecord {
    /// The value's bytes.
    pub fn encode(&self) -> Vec<u8> {
        let inline = self.inline.as_deref().unwrap_or(&[]);
        debug_assert!(inline.len() <= INLINE_BYTES_MAX);
        let mut fixed = [0; INODE_FIXED_BYTES];
        let mut out = &mut fixed[..];
        out.put_u8(self.kind as u8);
        out.put_u8(
            if self.inline.is_some() { INLINE_BIT } else { 0 }
                | if self.data.has_versions { HAS_VERSIONS_BIT } else { 0 },
        );
        out.put_u16(self.mode);
        for field in [self.flags, self.uid, self.gid, self.links, self.rdev, self.project] {
            out.put_u32(field);
        }
        out.put_u32(self.xattr_count);
        out.put_u32(self.xattr_bytes);
        for field in [self.size, self.generation, self.change, self.parent.0] {
            out.put_u64(field);
        }
        out.put_u64(self.data.family.0);
        out.put_u64(self.data.version.0);
        for time in [self.atime, self.mtime, self.ctime, self.btime] {
            out.put_i64(time.seconds);
            out.put_u32(time.nanoseconds);
        }
        // Room for what later versions count per inode (quota marks, verity); zero now.
        out.put_bytes(&[0; 34]);
        out.put_u16(inline.len() as u16);
        debug_assert!(out.is_empty());
        let mut bytes = Vec::with_capacity(INODE_FIXED_BYTES + inline.len());
        bytes.extend_from_slice(&fixed);
        bytes.extend_from_slice(inline);
        bytes
    }

    /// Reads a value; anything that is not exactly one is an error.
    pub fn decode(bytes: &[u8]) -> Result<InodeRecord, Corrupt> {
        let mut r = Reader::new(bytes);
        let Some(kind) = InodeKind::from_code(r.u8()?) else { return r.corrupt("unknown inode kind") };
        let bits = r.u8()?;
        if bits & !(INLINE_BIT | HAS_VERSIONS_BIT) != 0 {
            return r.corrupt("unknown inode bits");
        }
        let mode = r.u16()?;
        if mode > 0o7777 {
            return r.corrupt("inode mode out of range");
        }
        let flags = r.u32()?;
        if flags & !INODE_FLAGS_KNOWN != 0 {
            return r.corrupt("unknown inode flags");
        }
        let (uid, gid, links, rdev, project) = (r.u32()?, r.u32()?, r.u32()?, r.u32()?, r.u32()?);
        let (xattr_count, xattr_bytes) = (r.u32()?, r.u32()?);
        let (size, generation, change, parent) = (r.u64()?, r.u64()?, r.u64()?, InodeId(r.u64()?));
        if size > SIZE_MAX {
            return r.corrupt("inode size out of range");
        }
        // A file that ends with its last block has nothing behind its end.
        let stale = if size.is_multiple_of(BLOCK_BYTES as u64) { INODE_FLAG_STALE_TAIL } else { 0 };
        let flags = flags & !stale;
        let data = DataPointer {
            family: FamilyId(r.u64()?),
            version: VersionId(r.u64()?),
            has_versions: bits & HAS_VERSIONS_BIT != 0,
        };
        let mut times = [Time::default(); 4];
        for time in &mut times {
            *time = Time { seconds: r.i64()?, nanoseconds: r.u32()? };
            if time.nanoseconds >= 1_000_000_000 {
                return r.corrupt("inode time out of range");
            }
        }
        if r.array::<34>()? != [0; 34] {
            return r.corrupt("inode fields of a newer format");
        }
        let inline_len = r.u16()? as usize;
        if inline_len > INLINE_BYTES_MAX || inline_len as u64 > size {
            return r.corrupt("inline contents longer than allowed");
        }
        if inline_len > 0 && bits & INLINE_BIT == 0 {
            return r.corrupt("inline contents of an inode with extents");
        }
        let contents = r.bytes(inline_len)?.to_vec();
        r.finish()?;
        let [atime, mtime, ctime, btime] = times;
        let inline = (bits & INLINE_BIT != 0).then_some(contents);
        Ok(InodeRecord {
            kind,
            mode,
            flags,
            uid,
            gid,
            links,
            rdev,
            project,
            xattr_count,
            xattr_bytes,
            size,
            generation,
            change,
            parent,
            data,
            atime,
            mtime,
            ctime,
            btime,
            inline,
        })
    }
}

/// The key of `ino` as version `version` of namespace `family` sees it.
pub fn inode_key(family: FamilyId, ino: InodeId, version: VersionKey) -> [u8; INODE_KEY_BYTES] {
    let mut key = [0; INODE_KEY_BYTES];
    key[..8].copy_from_slice(&family.0.to_be_bytes());
    key[8..16].copy_from_slice(&ino.0.to_be_bytes());
    key[16..].copy_from_slice(&(!version.0).to_be_bytes());
    key
}

/// Takes an inode key apart.
pub fn decode_inode_key(key: &[u8]) -> Result<(FamilyId, InodeId, VersionKey), Corrupt> {
    let mut r = Reader::new(key);
    let out = (FamilyId(r.u64_be()?), InodeId(r.u64_be()?), VersionKey(!r.u64_be()?));
    r.finish()?;
    Ok(out)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn sample(inline: Option<Vec<u8>>) -> InodeRecord {
        InodeRecord {
            kind: InodeKind::File,
            mode: 0o4755,
            flags: INODE_FLAG_STALE_TAIL | INODE_FLAG_APPEND_ONLY,
            uid: 1,
            gid: 2,
            links: 3,
            rdev: 4,
            project: 5,
            xattr_count: 6,
            xattr_bytes: 77,
            size: 5000,
            generation: 8,
            change: 9,
            parent: InodeId(10),
            data: DataPointer { family: FamilyId(11), version: VersionId(12), has_versions: true },
            atime: Time { seconds: -1, nanoseconds: 999_999_999 },
            mtime: Time { seconds: i64::MAX, nanoseconds: 1 },
            ctime: Time { seconds: i64::MIN, nanoseconds: 2 },
            btime: Time { seconds: 0, nanoseconds: 0 },
            inline,
        }
    }

    // Goal: what is written is what is read, with and without inline contents. Method: round trip.
    #[test]
    fn round_trip() {
        for inline in [None, Some(vec![]), Some(vec![7; INLINE_BYTES_MAX])] {
            let record = sample(inline);
            let bytes = record.encode();
            assert!(bytes.len() <= crate::VALUE_BYTES_MAX);
            assert_eq!(InodeRecord::decode(&bytes).unwrap(), record);
        }
        let key = inode_key(FamilyId(1), InodeId(2), VersionKey(3));
        assert_eq!(decode_inode_key(&key).unwrap(), (FamilyId(1), InodeId(2), VersionKey(3)));
        assert!(inode_key(FamilyId(1), InodeId(2), VersionKey(4)) < key, "newest first");
    }

    // Goal: hostile bytes give errors. Method: every truncation, and every byte set to every value; what decodes
    // must encode to the same bytes.
    #[test]
    fn hostile_bytes() {
        let good = sample(Some(vec![1, 2, 3])).encode();
        for len in 0..good.len() {
            assert!(InodeRecord::decode(&good[..len]).is_err(), "cut to {len}");
        }
        for at in 0..good.len() {
            for value in 0..=255 {
                let mut bad = good.clone();
                bad[at] = value;
                if let Ok(record) = InodeRecord::decode(&bad) {
                    assert_eq!(record.encode(), bad, "byte {at} = {value}");
                }
            }
        }
        assert!(decode_inode_key(&[0; 23]).is_err() && decode_inode_key(&[0; 25]).is_err());
    }
}
