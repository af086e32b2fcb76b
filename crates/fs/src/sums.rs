//! What the blocks of a file come to: each counted once, and told apart by whether anybody else has it.
//!
//! A piece that no other holder sees through the same extent says how many extents name its blocks ([`FilePiece::names`]).
//! If this file has a block in as many places, all of these names are its own, and deleting it frees the block. Only what
//! is shared in some way is kept for that, 24 bytes a piece; the rest is added up as it comes.

use crate::api::{FilePiece, PieceKind};

/// The pieces of one file, gathered page by page.
#[derive(Clone, Debug, Default)]
pub struct ExtentSums {
    /// Bytes that one extent names.
    alone: u64,
    /// First byte in the pool, the one behind the last, and names: of what others may have, or this file in two places.
    runs: Vec<(u64, u64, u64)>,
}

/// Sums over the data of a file that lies in blocks, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DataSums {
    /// Distinct blocks.
    pub data: u64,
    /// Of these, what others have, too.
    pub shared: u64,
    /// Of these, the rest: what deleting the file frees.
    pub exclusive: u64,
    /// What lies in blocks that the file has in another place already: data of the file beyond `data`.
    pub repeated: u64,
}

impl ExtentSums {
    /// Adds the next piece of the file.
    pub fn add(&mut self, piece: &FilePiece) {
        let Some(address) = piece.address.filter(|_| piece.kind == PieceKind::Data) else { return };
        if !piece.shared {
            self.alone += piece.len;
            return;
        }
        let run = (address, address.saturating_add(piece.len), piece.names);
        match self.runs.last_mut() {
            Some(last) if (last.1, last.2) == (run.0, run.2) => last.1 = run.1,
            _ => self.runs.push(run),
        }
    }

    /// The sums. Exact if all pieces were of one state of the file, and nothing is left to be reaped.
    pub fn finish(mut self) -> DataSums {
        let mut ends: Vec<(u64, u64)> = self.runs.iter().map(|(_, end, names)| (*end, *names)).collect();
        ends.sort_unstable();
        self.runs.sort_unstable();
        let mut sums = DataSums { data: self.alone, exclusive: self.alone, ..DataSums::default() };
        // Places of this file that lead to where the sweep is: those that others see too, and the rest with their names.
        let (mut seen, mut own, mut names) = (0u64, 0u64, 0);
        let (mut at, mut next) = (0, 0);
        for (end, of_end) in ends {
            loop {
                let start = self.runs.get(next).filter(|(start, ..)| *start < end);
                let to = start.map_or(end, |(start, ..)| *start);
                let len = to - at;
                if seen + own > 0 {
                    sums.data += len;
                    sums.repeated += len * (seen + own - 1);
                    if seen == 0 && own == names {
                        sums.exclusive += len;
                    } else {
                        sums.shared += len;
                    }
                }
                at = to;
                let Some((.., of_start)) = start else { break };
                next += 1;
                if *of_start == 0 {
                    seen += 1;
                } else {
                    names = if own == 0 { *of_start } else { names.max(*of_start) };
                    own += 1;
                }
            }
            let count = if of_end == 0 { &mut seen } else { &mut own };
            *count = count.saturating_sub(1);
        }
        sums
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Goal: every block counts once, and is the file's own only if all its names are. Method: sums written out, of pieces that
    // lie beside, over and within each other, in any order.
    #[test]
    fn sums() {
        let piece = |address: u64, len, names| {
            let (kind, shared) = (PieceKind::Data, names != 1);
            FilePiece { offset: 0, len, kind, address: Some(address), shared, names }
        };
        let sums = |pieces: &[FilePiece]| {
            let mut sums = [ExtentSums::default(), ExtentSums::default()];
            pieces.iter().for_each(|piece| sums[0].add(piece));
            pieces.iter().rev().for_each(|piece| sums[1].add(piece));
            let [forth, back] = sums.map(|sums| {
                let DataSums { data, shared, exclusive, repeated } = sums.finish();
                [data, shared, exclusive, repeated]
            });
            assert_eq!(forth, back);
            forth
        };
        assert_eq!(sums(&[]), [0, 0, 0, 0]);
        assert_eq!(sums(&[piece(10, 5, 1), piece(30, 5, 1)]), [10, 0, 10, 0]);
        // Twice here and nowhere else; once more elsewhere; seen through the same extent.
        assert_eq!(sums(&[piece(10, 5, 2), piece(10, 5, 2)]), [5, 0, 5, 5]);
        assert_eq!(sums(&[piece(10, 5, 3), piece(10, 5, 3)]), [5, 5, 0, 5]);
        assert_eq!(sums(&[piece(10, 5, 0), piece(10, 5, 0)]), [5, 5, 0, 5]);
        assert_eq!(sums(&[piece(10, 5, 2), piece(10, 5, 0)]), [5, 5, 0, 5]);
        // In part: the rest has names elsewhere.
        assert_eq!(sums(&[piece(10, 10, 2), piece(15, 10, 2), piece(40, 1, 1)]), [16, 10, 6, 5]);
        // Side by side with other counts.
        let counts = [piece(10, 5, 2), piece(15, 5, 3), piece(10, 10, 0)];
        assert_eq!(sums(&counts), [10, 10, 0, 10]);
        let counts = [piece(10, 5, 2), piece(15, 5, 3), piece(15, 5, 3), piece(10, 5, 2), piece(15, 5, 3)];
        assert_eq!(sums(&counts), [10, 0, 10, 15]);
    }
}
