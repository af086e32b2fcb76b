//! Entries of the extents tree: which stored blocks hold which piece of a file's data.
//!
//! Key (28 bytes, big-endian): family, segment (file offset / [`SEGMENT_BYTES`]), version key inverted, offset in the
//! segment. So one short range scan gives everything about a segment, newest version first. Value (little-endian): see
//! [`Extent`]; 8 bytes for plain data, 2 for a hole or a reservation, 36 for what these cannot say. An extent never crosses
//! its segment. Extents of one version key never overlap.
//!
//! This file knows the bytes only; what may be seen through which version is the engine's business.

use crate::codec::Reader;
use crate::{BLOCK_BYTES, Corrupt, FamilyId, Lsn, PoolAddr, Run, SEGMENT_BYTES, VersionKey};

/// Bytes in a [`DataKey`].
pub const DATA_KEY_BYTES: usize = 28;
/// Bytes in an [`Extent`] at most: in its long form.
pub const EXTENT_BYTES: usize = 36;
/// Bytes of plain data: stored as it is, with checksums, and birth 0.
pub const SHORT_DATA_BYTES: usize = 8;
/// Bytes of a hole or a reservation with birth 0.
pub const SHORT_GAP_BYTES: usize = 2;
/// Blocks that a short form can name: 48 bits.
const SHORT_BLOCKS_END: u64 = 1 << 48;
/// The largest segment number: the last byte of the last segment is at 2^63 - 1.
pub const SEGMENT_MAX: u64 = ((1 << 63) / SEGMENT_BYTES) - 1;
/// [`Extent::codec`]: stored as it is.
pub const CODEC_NONE: u8 = 0;
/// [`Extent::checksum`]: nothing is stored, so there is no checksum (holes, reservations).
pub const CHECKSUM_NONE: u8 = 0;
/// [`Extent::checksum`]: CRC-32C a block, in the checksum array.
pub const CHECKSUM_CRC32C: u8 = 1;

const BLOCK: u32 = BLOCK_BYTES as u32;

/// Bytes of what such keys begin with: whose data, which segment, and the version key, inverted.
pub(super) const PLACE_BYTES: usize = 24;

pub(super) fn encode_place(family: FamilyId, segment: u64, version: VersionKey) -> [u8; PLACE_BYTES] {
    let mut out = [0; PLACE_BYTES];
    out[0..8].copy_from_slice(&family.0.to_be_bytes());
    out[8..16].copy_from_slice(&segment.to_be_bytes());
    out[16..24].copy_from_slice(&(!version.0).to_be_bytes());
    out
}

#[inline]
pub(super) fn decode_place(reader: &mut Reader<'_>) -> Result<(FamilyId, u64, VersionKey), Corrupt> {
    let family = FamilyId(reader.u64_be()?);
    let segment = reader.u64_be()?;
    if segment > SEGMENT_MAX {
        return reader.corrupt("segment beyond the largest file");
    }
    Ok((family, segment, VersionKey(!reader.u64_be()?)))
}

/// Where an entry of the extents tree belongs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct DataKey {
    /// Whose data.
    pub family: FamilyId,
    /// File offset / [`SEGMENT_BYTES`].
    pub segment: u64,
    /// The version key that owns the entry (stored inverted: newest first).
    pub version: VersionKey,
    /// First byte of the extent, counted from the start of the segment.
    pub offset: u32,
}

impl DataKey {
    /// The bytes of the key.
    pub fn encode(&self) -> [u8; DATA_KEY_BYTES] {
        let mut out = [0; DATA_KEY_BYTES];
        out[..PLACE_BYTES].copy_from_slice(&encode_place(self.family, self.segment, self.version));
        out[PLACE_BYTES..].copy_from_slice(&self.offset.to_be_bytes());
        out
    }
    /// The key in `bytes`.
    ///
    /// # Errors
    /// Wrong length, a segment beyond [`SEGMENT_MAX`], an offset that is not a block's or lies outside the segment.
    #[inline]
    pub fn decode(bytes: &[u8]) -> Result<DataKey, Corrupt> {
        // Its length first: with that known, no field is checked against the end.
        let Ok(bytes) = <&[u8; DATA_KEY_BYTES]>::try_from(bytes) else {
            return Err(Corrupt { what: "length of the key of an extent", at: bytes.len() });
        };
        let mut reader = Reader::new(bytes);
        let (family, segment, version) = decode_place(&mut reader)?;
        let offset = reader.u32_be()?;
        if u64::from(offset) >= SEGMENT_BYTES || !offset.is_multiple_of(BLOCK) {
            return reader.corrupt("offset that is no block of the segment");
        }
        reader.finish()?;
        Ok(DataKey { family, segment, version, offset })
    }
    /// The first byte of the file that the entry covers.
    pub fn file_offset(&self) -> u64 {
        self.segment * SEGMENT_BYTES + u64::from(self.offset)
    }
}

/// What a piece of a file is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ExtentKind {
    /// Stored blocks.
    Data,
    /// Nothing: reads as zeros, and hides what an older version has there.
    Hole,
    /// Reads as zeros; space for it is set aside, blocks are not.
    Reserved,
}

/// The value of an entry of the extents tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// Data, hole or reservation.
    pub kind: ExtentKind,
    /// How the stored bytes were made from the raw ones; only [`CODEC_NONE`] today.
    pub codec: u8,
    /// How the stored blocks are checked.
    pub checksum: u8,
    /// No flag is defined: 0.
    pub flags: u8,
    /// Address of the stored extent. Null unless this is data.
    pub addr: PoolAddr,
    /// Bytes stored at `addr`, whole blocks.
    pub stored_len: u32,
    /// Bytes before encoding. Equal to `stored_len` without a codec.
    pub raw_len: u32,
    /// Where in the raw bytes this piece begins. Without a codec pieces are cut by moving `addr`, so it is 0.
    pub offset: u32,
    /// Bytes of the file that this entry covers, whole blocks.
    pub len: u32,
    /// Log position that wrote the data; 0: that of the transaction that logged this entry (not stored yet, because
    /// a transaction learns its position only when it is applied).
    pub birth: Lsn,
}

impl Extent {
    /// Uncompressed data in `run`, which is at most a segment long.
    pub fn data(run: Run) -> Extent {
        let len = run.bytes();
        debug_assert!(len <= SEGMENT_BYTES && len > 0 && !run.addr.is_null());
        let len = len as u32;
        Extent {
            kind: ExtentKind::Data,
            checksum: CHECKSUM_CRC32C,
            addr: run.addr,
            stored_len: len,
            raw_len: len,
            ..Extent::hole(len)
        }
    }
    /// A hole of `len` bytes, whole blocks.
    pub fn hole(len: u32) -> Extent {
        Extent {
            kind: ExtentKind::Hole,
            codec: CODEC_NONE,
            checksum: CHECKSUM_NONE,
            flags: 0,
            addr: PoolAddr::NULL,
            stored_len: 0,
            raw_len: 0,
            offset: 0,
            len,
            birth: Lsn(0),
        }
    }
    /// A reservation of `len` bytes, whole blocks.
    pub fn reserved(len: u32) -> Extent {
        Extent { kind: ExtentKind::Reserved, ..Extent::hole(len) }
    }
    /// The `len` bytes of this entry that begin `skip` bytes into it; both whole blocks.
    pub fn piece(&self, skip: u32, len: u32) -> Extent {
        debug_assert!(len > 0 && u64::from(skip) + u64::from(len) <= u64::from(self.len));
        let mut out = *self;
        out.len = len;
        if self.kind == ExtentKind::Data {
            if self.codec == CODEC_NONE {
                out.addr = PoolAddr(self.addr.0 + u64::from(self.offset) + u64::from(skip));
                (out.offset, out.stored_len, out.raw_len) = (0, len, len);
            } else {
                out.offset += skip;
            }
        }
        out
    }
    /// The blocks that this entry alone makes used. `None` for holes and reservations.
    pub fn run(&self) -> Option<Run> {
        (self.kind == ExtentKind::Data).then_some(Run { addr: self.addr, blocks: self.stored_len / BLOCK })
    }
    /// Whether `next`, which begins in the file where this one ends, can become part of this entry.
    pub fn continues(&self, next: &Extent) -> bool {
        self.kind == next.kind
            && (self.codec, self.checksum, self.flags, self.birth)
                == (next.codec, next.checksum, next.flags, next.birth)
            && match self.kind {
                ExtentKind::Data => {
                    self.codec == CODEC_NONE
                        && (self.offset, next.offset) == (0, 0)
                        && self.len == self.stored_len
                        && next.len == next.stored_len
                        && self.addr.0 + u64::from(self.stored_len) == next.addr.0
                }
                ExtentKind::Hole | ExtentKind::Reserved => true,
            }
    }
    /// Makes this entry cover `next` as well; only if [`Extent::continues`].
    pub fn append(&mut self, next: &Extent) {
        debug_assert!(self.continues(next));
        self.len += next.len;
        self.stored_len += next.stored_len;
        self.raw_len += next.raw_len;
    }
    /// The bytes of the value: the short form if there is one.
    pub fn encode(&self) -> EncodedExtent {
        let mut bytes = [0; EXTENT_BYTES];
        let whole = self.len > 0 && self.len.is_multiple_of(BLOCK) && u64::from(self.len) <= SEGMENT_BYTES;
        let block = self.addr.0 / BLOCK_BYTES as u64;
        let plain = match self.kind {
            ExtentKind::Data => {
                let run = Run { addr: self.addr, blocks: self.len / BLOCK };
                !self.addr.is_null()
                    && self.addr.0.is_multiple_of(BLOCK_BYTES as u64)
                    && block < SHORT_BLOCKS_END
                    && *self == Extent::data(run)
            }
            ExtentKind::Hole => *self == Extent::hole(self.len),
            ExtentKind::Reserved => *self == Extent::reserved(self.len),
        };
        if !(whole && plain) {
            return EncodedExtent { bytes: self.encode_long(), len: EXTENT_BYTES as u8 };
        }
        // Up to 256 blocks: one less fits a byte.
        bytes[1] = (self.len / BLOCK - 1) as u8;
        let len = match self.kind {
            ExtentKind::Data => {
                bytes[0] = 4;
                bytes[2..8].copy_from_slice(&block.to_le_bytes()[..6]);
                SHORT_DATA_BYTES
            }
            ExtentKind::Hole => {
                bytes[0] = 5;
                SHORT_GAP_BYTES
            }
            ExtentKind::Reserved => {
                bytes[0] = 6;
                SHORT_GAP_BYTES
            }
        };
        EncodedExtent { bytes, len: len as u8 }
    }
    /// The long form, which pools of before the short one hold.
    pub fn encode_long(&self) -> [u8; EXTENT_BYTES] {
        let mut out = [0; EXTENT_BYTES];
        out[0] = match self.kind {
            ExtentKind::Data => 1,
            ExtentKind::Hole => 2,
            ExtentKind::Reserved => 3,
        };
        (out[1], out[2], out[3]) = (self.codec, self.checksum, self.flags);
        out[4..12].copy_from_slice(&self.addr.0.to_le_bytes());
        out[12..16].copy_from_slice(&self.stored_len.to_le_bytes());
        out[16..20].copy_from_slice(&self.raw_len.to_le_bytes());
        out[20..24].copy_from_slice(&self.offset.to_le_bytes());
        out[24..28].copy_from_slice(&self.len.to_le_bytes());
        out[28..36].copy_from_slice(&self.birth.0.to_le_bytes());
        out
    }
    /// The extent in `bytes`.
    ///
    /// # Errors
    /// Unknown kind, codec, checksum kind or flag; lengths that are no whole blocks, longer than a segment or than
    /// what is stored; an address that is none.
    #[inline]
    pub fn decode(bytes: &[u8]) -> Result<Extent, Corrupt> {
        // What nearly all are.
        if let [4, more, block @ ..] = bytes
            && let Ok([a, b, c, d, e, f]) = <[u8; 6]>::try_from(block)
        {
            return short_data(*more, u64::from_le_bytes([a, b, c, d, e, f, 0, 0]));
        }
        Extent::decode_other(bytes)
    }

    fn decode_other(bytes: &[u8]) -> Result<Extent, Corrupt> {
        let mut reader = Reader::new(bytes);
        let kind = match reader.u8()? {
            short @ 4..=6 => return Extent::decode_short(short, reader),
            1 => ExtentKind::Data,
            2 => ExtentKind::Hole,
            3 => ExtentKind::Reserved,
            _ => return reader.corrupt("unknown kind of extent"),
        };
        let (codec, checksum, flags) = (reader.u8()?, reader.u8()?, reader.u8()?);
        let addr = PoolAddr(reader.u64()?);
        let (stored_len, raw_len, offset, len) = (reader.u32()?, reader.u32()?, reader.u32()?, reader.u32()?);
        let birth = Lsn(reader.u64()?);
        let bad = |what| Err(Corrupt { what, at: 0 });
        if flags != 0 {
            return bad("unknown flag of an extent");
        }
        if len == 0 || !len.is_multiple_of(BLOCK) || u64::from(len) > SEGMENT_BYTES {
            return bad("extent length that is no whole blocks of a segment");
        }
        if kind == ExtentKind::Data {
            let block = BLOCK_BYTES as u64;
            if codec != CODEC_NONE {
                return bad("unknown codec of an extent");
            }
            if checksum != CHECKSUM_CRC32C {
                return bad("unknown checksum kind of an extent");
            }
            if addr.is_null() || !addr.0.is_multiple_of(block) || addr.0.checked_add(SEGMENT_BYTES).is_none()
            {
                return bad("extent address that is no block of the pool");
            }
            if stored_len != raw_len
                || u64::from(raw_len) > SEGMENT_BYTES
                || !stored_len.is_multiple_of(BLOCK)
            {
                return bad("stored length of an extent");
            }
            // Without a codec every cut moves the address, so that an entry never keeps blocks it does not show.
            if offset != 0 || len != raw_len {
                return bad("plain extent that is longer than its entry");
            }
        } else if (codec, checksum, addr.0, stored_len, raw_len, offset) != (0, 0, 0, 0, 0, 0) {
            return bad("hole that names stored data");
        }
        reader.finish()?;
        Ok(Extent { kind, codec, checksum, flags, addr, stored_len, raw_len, offset, len, birth })
    }

    fn decode_short(kind: u8, mut reader: Reader<'_>) -> Result<Extent, Corrupt> {
        let blocks = u32::from(reader.u8()?) + 1;
        let extent = match kind {
            5 => Extent::hole(blocks * BLOCK),
            6 => Extent::reserved(blocks * BLOCK),
            // It has another length, or it would not have come here.
            _ => return reader.corrupt("length of the extent"),
        };
        reader.finish()?;
        Ok(extent)
    }
}

/// Plain data in its short form: blocks less one, and the number of the first.
#[inline]
fn short_data(more: u8, block: u64) -> Result<Extent, Corrupt> {
    // Below 2^60, so that nothing computed from it overflows.
    let addr = PoolAddr::from_block(block);
    if addr.is_null() {
        return Err(Corrupt { what: "extent address that is no block of the pool", at: SHORT_DATA_BYTES });
    }
    Ok(Extent::data(Run { addr, blocks: u32::from(more) + 1 }))
}

/// The bytes of an [`Extent`].
#[derive(Clone, Copy)]
pub struct EncodedExtent {
    bytes: [u8; EXTENT_BYTES],
    len: u8,
}

impl std::ops::Deref for EncodedExtent {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

/// Decodes a whole entry of the extents tree and checks that the extent stays in its segment.
///
/// # Errors
/// As [`DataKey::decode`] and [`Extent::decode`], and an extent that crosses the end of its segment.
#[inline]
pub fn decode_entry(key: &[u8], value: &[u8]) -> Result<(DataKey, Extent), Corrupt> {
    let key = DataKey::decode(key)?;
    let extent = Extent::decode(value)?;
    if u64::from(key.offset) + u64::from(extent.len) > SEGMENT_BYTES {
        return Err(Corrupt { what: "extent that crosses its segment", at: 0 });
    }
    Ok((key, extent))
}

/// The first 8 bytes of every key of `family`, for range scans.
pub fn family_prefix(family: FamilyId) -> [u8; 8] {
    family.0.to_be_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(family: u64, segment: u64, version: u64, offset: u32) -> DataKey {
        DataKey { family: FamilyId(family), segment, version: VersionKey(version), offset }
    }

    /// Goal: keys and values survive a round trip. Method: a table of edge cases.
    #[test]
    fn roundtrip() {
        for k in [key(1, 0, 1, 0), key(u64::MAX, SEGMENT_MAX, u64::MAX, (1 << 20) - 4096), key(7, 3, 0, 8192)]
        {
            assert_eq!(DataKey::decode(&k.encode()), Ok(k));
        }
        let run = Run { addr: PoolAddr(1 << 40), blocks: 256 };
        for e in [
            Extent::data(run),
            Extent::hole(4096),
            Extent::reserved(1 << 20),
            Extent::data(run).piece(8192, 4096),
        ] {
            assert!(e.encode().len() <= SHORT_DATA_BYTES);
            assert_eq!(Extent::decode(&e.encode()), Ok(e));
            assert_eq!(Extent::decode(&e.encode_long()), Ok(e));
        }
        let far = PoolAddr::from_block(SHORT_BLOCKS_END - 1);
        let last = Extent::data(Run { addr: far, blocks: 1 });
        let beyond = Extent::data(Run { addr: PoolAddr(far.0 + 4096), blocks: 1 });
        let late = Extent { birth: Lsn(5), ..last };
        for (e, len) in [(last, SHORT_DATA_BYTES), (beyond, EXTENT_BYTES), (late, EXTENT_BYTES)] {
            assert_eq!(e.encode().len(), len, "{e:?}");
            assert_eq!(Extent::decode(&e.encode()), Ok(e));
        }
        assert_eq!(family_prefix(FamilyId(7)), key(7, 3, 0, 0).encode()[..8]);
    }

    /// Goal: keys order by family, segment, newest version, offset. Method: a sorted list must encode sorted.
    #[test]
    fn order() {
        let sorted =
            [key(1, 9, 1, 0), key(2, 0, 9, 4096), key(2, 0, 8, 0), key(2, 0, 8, 4096), key(2, 1, 9, 0)];
        assert!(sorted.windows(2).all(|w| w[0].encode() < w[1].encode()));
    }

    /// Goal: hostile bytes are refused or give something that keeps the rules; never a panic. Method: every length,
    /// and every byte of a valid entry changed to every value.
    #[test]
    fn hostile() {
        let valid_key = key(1, 2, 3, 4096).encode();
        let data = Extent::data(Run { addr: PoolAddr(8192), blocks: 3 });
        for n in 0..valid_key.len() {
            assert!(DataKey::decode(&valid_key[..n]).is_err());
        }
        let forms =
            [data.encode().to_vec(), data.encode_long().to_vec(), Extent::hole(8192).encode().to_vec()];
        for valid in &forms {
            for n in 0..valid.len() {
                assert!(Extent::decode(&valid[..n]).is_err());
            }
            assert!(Extent::decode(&[&valid[..], &[0]].concat()).is_err(), "a byte too many");
            for at in 0..valid.len() {
                for byte in 0..=255 {
                    let mut bytes = valid.clone();
                    bytes[at] = byte;
                    if let Ok((k, e)) = decode_entry(&valid_key, &bytes) {
                        assert!(u64::from(k.offset + e.len) <= SEGMENT_BYTES && e.len >= 4096);
                        let again =
                            if bytes.len() == EXTENT_BYTES { &e.encode_long()[..] } else { &e.encode() };
                        assert_eq!(again, bytes);
                    }
                }
            }
        }
        let valid = &forms[0];
        for at in 0..valid_key.len() {
            for byte in 0..=255 {
                let mut bytes = valid_key;
                bytes[at] = byte;
                if let Ok((k, e)) = decode_entry(&bytes, valid) {
                    assert!(k.file_offset().checked_add(u64::from(e.len)).is_some());
                    assert_eq!(k.encode(), bytes);
                }
            }
        }
        let longest = Extent::data(Run { addr: PoolAddr(8192), blocks: 256 });
        assert!(decode_entry(&valid_key, &longest.encode()).is_err(), "crosses its segment");
    }

    /// Goal: cutting and joining are inverses. Method: cut one extent at every block, join the halves again.
    #[test]
    fn pieces() {
        for whole in [
            Extent::data(Run { addr: PoolAddr(1 << 20), blocks: 8 }),
            Extent::hole(8 * 4096),
            Extent::reserved(8 * 4096),
        ] {
            for cut in 1..8 {
                let (mut left, right) =
                    (whole.piece(0, cut * 4096), whole.piece(cut * 4096, (8 - cut) * 4096));
                assert!(left.continues(&right));
                assert!(whole.kind != ExtentKind::Data || !right.continues(&left));
                left.append(&right);
                assert_eq!(left, whole);
            }
        }
    }
}
