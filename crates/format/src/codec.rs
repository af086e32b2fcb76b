//! The one layer through which bytes become numbers and back: a bounded reader and a growing writer.

use crate::Corrupt;

/// Reads fixed-width fields from a slice; every read is checked against its end.
#[derive(Clone)]
pub struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

macro_rules! reads {
    ($($name:ident, $be:ident: $t:ty),*) => {$(
        /// The next little-endian field.
        #[inline]
        pub fn $name(&mut self) -> Result<$t, Corrupt> {
            Ok(<$t>::from_le_bytes(self.array()?))
        }
        /// The next big-endian field (keys).
        #[inline]
        pub fn $be(&mut self) -> Result<$t, Corrupt> {
            Ok(<$t>::from_be_bytes(self.array()?))
        }
    )*};
}

impl<'a> Reader<'a> {
    /// A reader at the start of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Reader { bytes, at: 0 }
    }
    /// Bytes read so far.
    pub fn position(&self) -> usize {
        self.at
    }
    /// Bytes left.
    pub fn remaining(&self) -> usize {
        self.bytes.len() - self.at
    }
    /// An error at the present position.
    pub fn corrupt<T>(&self, what: &'static str) -> Result<T, Corrupt> {
        Err(Corrupt { what, at: self.at })
    }
    /// The next `n` bytes.
    #[inline]
    pub fn bytes(&mut self, n: usize) -> Result<&'a [u8], Corrupt> {
        if n > self.remaining() {
            return self.corrupt("ends inside a field");
        }
        let out = &self.bytes[self.at..self.at + n];
        self.at += n;
        Ok(out)
    }
    /// The next `N` bytes as an array.
    #[inline]
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], Corrupt> {
        let mut out = [0; N];
        out.copy_from_slice(self.bytes(N)?);
        Ok(out)
    }
    reads!(u8, u8_be: u8, u16, u16_be: u16, u32, u32_be: u32, u64, u64_be: u64, i64, i64_be: i64);
    /// Succeeds only when everything has been read.
    pub fn finish(self) -> Result<(), Corrupt> {
        if self.remaining() == 0 { Ok(()) } else { self.corrupt("bytes left over") }
    }
}

macro_rules! writes {
    ($($name:ident, $be:ident: $t:ty),*) => {$(
        /// Appends a little-endian field.
        fn $name(&mut self, v: $t) { self.put_bytes(&v.to_le_bytes()) }
        /// Appends a big-endian field (keys).
        fn $be(&mut self, v: $t) { self.put_bytes(&v.to_be_bytes()) }
    )*};
}

/// Appends fixed-width fields.
pub trait Writer {
    /// Appends raw bytes.
    fn put_bytes(&mut self, bytes: &[u8]);
    writes!(put_u8, put_u8_be: u8, put_u16, put_u16_be: u16, put_u32, put_u32_be: u32, put_u64, put_u64_be: u64, put_i64, put_i64_be: i64);
}

impl Writer for Vec<u8> {
    fn put_bytes(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

/// Fills bytes of known length from the front: for records that are written all the time, where growing costs more than
/// the fields. What is left when the last field has been written is still to be filled.
impl Writer for &mut [u8] {
    #[inline]
    fn put_bytes(&mut self, bytes: &[u8]) {
        let (here, rest) = std::mem::take(self).split_at_mut(bytes.len());
        here.copy_from_slice(bytes);
        *self = rest;
    }
}
