//! Extended attributes: a head and chunks.

use varve_engine::{EngineError, InodeId, Transaction, TreeId};
use varve_format::Corrupt;
use varve_format::record::name::NamePosition;
use varve_format::record::xattr::{XATTR_CHUNK_BYTES, XattrHead, decode_xattr_key, xattr_chunks, xattr_key};

use super::{Namespace, Result, corrupt};
use crate::subvolume::{Change, local};

/// One attribute as found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Xattr {
    /// Where it is.
    pub position: NamePosition,
    /// Its name, the length of its value and the beginning of it.
    pub head: XattrHead,
}

impl Namespace {
    /// Attributes of `ino` whose name has the hash of `name` (nearly always at most one).
    pub(crate) fn xattr_bucket(&self, ino: InodeId, name: &[u8]) -> Result<Vec<Xattr>> {
        let position = NamePosition::new(self.hasher.hash(name), 0);
        let key = xattr_key(self.family, local(ino), position, 0, self.key());
        let mut out = Vec::new();
        self.xattr_heads(&key[..23], &mut |xattr| out.push(xattr))?;
        Ok(out)
    }

    /// The first free position for `name` beside `bucket`. `None` if all 256 are taken.
    pub(crate) fn xattr_position(&self, bucket: &[Xattr], name: &[u8]) -> Option<NamePosition> {
        let base = NamePosition::new(self.hasher.hash(name), 0);
        (0..=255).map(|s| base.with_sequence(s)).find(|p| bucket.iter().all(|x| x.position != *p))
    }

    /// Where an attribute goes in a new inode that has `count` others.
    pub(crate) fn first_xattr_position(&self, name: &[u8], count: u8) -> NamePosition {
        NamePosition::new(self.hasher.hash(name), count)
    }

    /// Calls `each` with every attribute of `ino`.
    pub(crate) fn each_xattr(&self, ino: InodeId, each: &mut dyn FnMut(Xattr)) -> Result<()> {
        let key = xattr_key(self.family, local(ino), NamePosition(0), 0, self.key());
        self.xattr_heads(&key[..16], each)
    }

    fn xattr_heads(&self, prefix: &[u8], each: &mut dyn FnMut(Xattr)) -> Result<()> {
        self.scan(TreeId::XATTRS, prefix, prefix, &mut |key, value| {
            let (_, ino, position, chunk, _) =
                decode_xattr_key(key).map_err(corrupt(|| "the key of an attribute".into()))?;
            if chunk == 0 {
                let head = XattrHead::decode(value)
                    .map_err(corrupt(|| format!("an attribute of inode {}", ino.0)))?;
                each(Xattr { position, head });
            }
            Ok(true)
        })
    }

    /// The whole value of `xattr`.
    pub(crate) fn xattr_value(&self, ino: InodeId, xattr: &Xattr) -> Result<Vec<u8>> {
        let len = xattr.head.value_len as usize;
        let mut value = xattr.head.start.clone();
        for chunk in 1..xattr_chunks(len) {
            let key = xattr_key(self.family, local(ino), xattr.position, chunk, self.key());
            let bytes = self.get(TreeId::XATTRS, &key, <[u8]>::to_vec)?.unwrap_or_default();
            if bytes.len() != (len - value.len()).min(XATTR_CHUNK_BYTES) {
                let why =
                    Corrupt { what: "a chunk of a value is missing or of the wrong length", at: value.len() };
                return Err(EngineError::corrupt(format!("an attribute of inode {}", ino.0), why));
            }
            value.extend_from_slice(&bytes);
        }
        Ok(value)
    }
}

/// The entries of an attribute, by the number of the chunk: the head with the name, and what of the value does not fit there.
pub(crate) fn xattr_entries(name: &[u8], value: &[u8]) -> impl Iterator<Item = (u16, Box<[u8]>)> {
    let start = value[..value.len().min(XATTR_CHUNK_BYTES)].to_vec();
    let head = XattrHead { name: name.to_vec(), value_len: value.len() as u32, start };
    let rest = value.chunks(XATTR_CHUNK_BYTES).enumerate().skip(1);
    let rest = rest.map(|(chunk, bytes)| (chunk as u16, bytes.into()));
    std::iter::once((0, head.encode().into())).chain(rest)
}

impl Change {
    /// Stores an attribute, over `old_len` bytes of an earlier value at the same position.
    pub(crate) fn put_xattr(
        &self,
        tx: &mut Transaction,
        ino: InodeId,
        position: NamePosition,
        name: &[u8],
        value: &[u8],
        old_len: Option<u32>,
    ) -> Result<()> {
        let key = |chunk| xattr_key(self.family, local(ino), position, chunk, self.key());
        for (chunk, entry) in xattr_entries(name, value) {
            self.put(tx, TreeId::XATTRS, &key(chunk), entry)?;
        }
        let old = old_len.map_or(0, |len| xattr_chunks(len as usize));
        for chunk in xattr_chunks(value.len())..old {
            self.delete(tx, TreeId::XATTRS, &key(chunk))?;
        }
        Ok(())
    }

    /// Removes an attribute.
    pub(crate) fn delete_xattr(&self, tx: &mut Transaction, ino: InodeId, xattr: &Xattr) -> Result<()> {
        for chunk in 0..xattr_chunks(xattr.head.value_len as usize) {
            let key = xattr_key(self.family, local(ino), xattr.position, chunk, self.key());
            self.delete(tx, TreeId::XATTRS, &key)?;
        }
        Ok(())
    }

    /// Removes up to `entries_max` entries of the attributes of `ino`; true if there are more.
    pub(crate) fn delete_xattrs(
        &self,
        tx: &mut Transaction,
        ino: InodeId,
        entries_max: usize,
    ) -> Result<bool> {
        let key = xattr_key(self.family, local(ino), NamePosition(0), 0, self.key());
        let (mut keys, mut more) = (Vec::new(), false);
        self.scan(TreeId::XATTRS, &key[..16], &key[..16], &mut |key, _| {
            more = keys.len() == entries_max;
            if !more {
                keys.push(key.to_vec());
            }
            Ok(!more)
        })?;
        for key in keys {
            self.delete(tx, TreeId::XATTRS, &key)?;
        }
        Ok(more)
    }
}
