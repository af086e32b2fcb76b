//! A key as it travels: in a transaction, in the log's replay, in an interior node.

use std::cmp::Ordering;

use varve_format::KEY_BYTES_MAX;

/// A key, inline.
#[derive(Clone, Copy)]
pub struct Key {
    len: u8,
    bytes: [u8; KEY_BYTES_MAX],
}

impl Key {
    /// The empty key.
    pub const EMPTY: Key = Key { len: 0, bytes: [0; KEY_BYTES_MAX] };
    /// A copy of `key`, at most [`KEY_BYTES_MAX`] long.
    pub fn new(key: &[u8]) -> Key {
        Key::joined(key, &[])
    }
    /// `prefix` and then `suffix`, together at most [`KEY_BYTES_MAX`] long.
    pub fn joined(prefix: &[u8], suffix: &[u8]) -> Key {
        let len = prefix.len() + suffix.len();
        let mut bytes = [0; KEY_BYTES_MAX];
        bytes[..prefix.len()].copy_from_slice(prefix);
        bytes[prefix.len()..len].copy_from_slice(suffix);
        Key { len: len as u8, bytes }
    }
    /// Its bytes.
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.len as usize]
    }
}

impl Default for Key {
    fn default() -> Key {
        Key::EMPTY
    }
}

impl std::ops::Deref for Key {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.as_slice()
    }
}

/// The order of two keys. They are short and begin alike: comparing words here beats calling memcmp, several times a
/// descent.
#[inline]
pub fn compare(a: &[u8], b: &[u8]) -> Ordering {
    let (words, other_words) = (a.as_chunks::<8>().0, b.as_chunks::<8>().0);
    for (x, y) in words.iter().zip(other_words) {
        if x != y {
            return u64::from_be_bytes(*x).cmp(&u64::from_be_bytes(*y));
        }
    }
    // One of them has fewer than eight bytes left.
    let done = words.len().min(other_words.len()) * 8;
    for (x, y) in a[done..].iter().zip(&b[done..]) {
        if x != y {
            return x.cmp(y);
        }
    }
    a.len().cmp(&b.len())
}

/// The first four bytes as a number that is ordered as they are; bytes that are not there count as zero.
#[inline]
pub fn word(bytes: &[u8]) -> u32 {
    match bytes.first_chunk::<4>() {
        Some(four) => u32::from_be_bytes(*four),
        None => bytes.iter().enumerate().fold(0, |word, (i, byte)| word | u32::from(*byte) << (24 - 8 * i)),
    }
}
