//! Reading
use super::*;
/// Where the bytes [`from`, `to`) of the file are: pieces in order, without gaps, from `from` rounded down to `to`
/// rounded up to a block. Pieces that lie side by side in file and pool are joined. Cost: one scan of the entries in
/// that range, however many holes there are.
pub fn resolve(read: &dyn Read, path: &Path, from: u64, to: u64) -> Result<Vec<Mapped>> { unimplemented!() }
/// As [`resolve`], but may stop early, when it has at least `pieces_max` pieces: go on at the end of the last one.
pub fn resolve_upto(read: &dyn Read, path: &Path, from: u64, to: u64, pieces_max: usize) -> Result<Vec<Mapped>> { unimplemented!() }
