//! Mutations that keep an input what it is: a head and whole edits. Of what is left to libFuzzer most would shift the edits.

use libfuzzer_sys::fuzzer_mutate;

use crate::edit::EDIT_BYTES;
use crate::{EDITS_MAX, HEAD_BYTES};

/// Where the number of an edit begins, and where its place.
const NUMBER_AT: usize = 8;

/// A generator of its own: the same seed gives the same mutation.
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
    fn below(&mut self, n: usize) -> usize {
        (self.next() >> 16) as usize % n
    }
    /// A number at which sums go astray.
    fn number(&mut self) -> u64 {
        match self.below(11) {
            0 => 0,
            1 => u64::MAX,
            2 => 1 << 62,
            3 => 1 << 63,
            4 => u64::from(u32::MAX),
            5 => i64::MAX as u64,
            6 => self.below(100) as u64,
            7 => u64::MAX - self.below(5000) as u64,
            8 => 1 << self.below(64),
            9 => (self.below(20_000) as u64) << 12,
            _ => self.next() >> self.below(64),
        }
    }
}

/// Changes the `size` bytes of `data`; how many there are then, at most `max_size`.
pub fn mutate(data: &mut [u8], size: usize, max_size: usize, seed: u32) -> usize {
    if max_size < HEAD_BYTES + EDIT_BYTES {
        return fuzzer_mutate(data, size, max_size);
    }
    let mut chance = Chance(u64::from(seed).wrapping_mul(0x2545_f491_4f6c_dd1d) | 1);
    let mut edits = size.saturating_sub(HEAD_BYTES) / EDIT_BYTES;
    let edits_max = EDITS_MAX.min((max_size - HEAD_BYTES) / EDIT_BYTES);
    if size < HEAD_BYTES {
        data[..HEAD_BYTES].copy_from_slice(&[chance.next() as u8, chance.next() as u8]);
    }
    match chance.below(8) {
        // Another pool, or another use of it.
        0 if edits > 0 => data[chance.below(HEAD_BYTES)] = chance.next() as u8,
        // An edit less.
        1 if edits > 1 => {
            let at = HEAD_BYTES + chance.below(edits) * EDIT_BYTES;
            data.copy_within(at + EDIT_BYTES..HEAD_BYTES + edits * EDIT_BYTES, at);
            edits -= 1;
        }
        // One more, or another one.
        kind @ 2..=4 if edits > 0 && (kind > 2 || edits == edits_max) => {
            let at = HEAD_BYTES + chance.below(edits) * EDIT_BYTES;
            let edit = &mut data[at..at + EDIT_BYTES];
            if kind == 3 {
                edit[NUMBER_AT..].copy_from_slice(&chance.number().to_le_bytes());
            } else {
                let byte = chance.below(NUMBER_AT);
                edit[byte] = chance.next() as u8;
            }
        }
        // Bytes as libFuzzer likes it.
        5 if edits > 0 => {
            let at = HEAD_BYTES + chance.below(edits) * EDIT_BYTES;
            fuzzer_mutate(&mut data[at..at + EDIT_BYTES], EDIT_BYTES, EDIT_BYTES);
        }
        _ => {
            let which = if edits == edits_max { chance.below(edits) } else { edits };
            let edit = &mut data[HEAD_BYTES + which * EDIT_BYTES..][..EDIT_BYTES];
            edit[..8].copy_from_slice(&chance.next().to_le_bytes());
            // Most records are short, and most trees have few entries.
            edit[4..6].copy_from_slice(&(chance.below(200) as u16).to_le_bytes());
            edit[NUMBER_AT..].copy_from_slice(&chance.number().to_le_bytes());
            edits = edits.max(which + 1);
        }
    }
    HEAD_BYTES + edits * EDIT_BYTES
}
