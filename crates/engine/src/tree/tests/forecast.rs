//! What is forecast for a transaction, and what it makes: never more, and not much less. (`many` has the upper bound, over
//! transactions of chance.)

use super::many::{Beside, Changes, How};
use super::*;

/// Keys of which 40 bytes are the same, and no more of a hundred in a row, but for one at `differs`.
fn key(differs: usize, n: u32) -> Vec<u8> {
    let mut key = vec![7; 40];
    key.extend_from_slice(&(n << 20).to_be_bytes());
    if differs < 40 {
        key[differs] = 9;
    }
    key
}

fn put(key: Vec<u8>, len: usize) -> (Vec<u8>, Option<Vec<u8>>) {
    (key, Some(vec![1; len]))
}

/// A tree of one leaf that takes all of its block but for `room` bytes; an entry is 4 bytes of its key, 3 and `len`.
fn full_leaf(len: usize, room: usize) -> Beside {
    let mut beside = Beside::new();
    let bytes = BLOCK_BYTES - 32 - 40 - room;
    let count = bytes / (7 + len);
    let mut entries: Changes = (0..count as u32).map(|n| put(key(40, n * 2), len)).collect();
    let rest = bytes % (7 + len);
    entries[0] = put(key(40, 0), len + rest);
    beside.change(&entries, How::Spare(0));
    assert_eq!((beside.tree.height, beside.dirty), (1, 1));
    beside.forecast_added = 0;
    beside
}

// Goal: values that are replaced count by what they grow. Method: a leaf with one byte of room: all of its values again, other
// ones of the same length, one that is a byte longer, one that grows as another shrinks: no split is forecast; one that is two
// bytes longer: one split, and a new root.
#[test]
fn replaced_values_count_by_their_growth() {
    let mut beside = full_leaf(20, 1);
    let again: Changes = (1..100).map(|n| put(key(40, n * 2), 20)).collect();
    beside.change(&again, How::Spare(0));
    beside.change(&[put(key(40, 2), 30), put(key(40, 100), 10)], How::Spare(0));
    beside.change(&[put(key(40, 2), 20), put(key(40, 100), 20)], How::Spare(0));
    beside.change(&[put(key(40, 2), 21)], How::Spare(0));
    beside.change(&[put(key(40, 3), 20), (key(40, 4), None)], How::Spare(0));
    assert_eq!((beside.forecast_added, beside.dirty), (0, 1));
    beside.change(&[put(key(40, 6), 21)], How::Spare(0));
    assert_eq!((beside.forecast_added, beside.dirty), (2, 3));
}

// Goal: what all keys of a leaf begin with becomes shorter once, to what all have in common in the end, however many entries make
// it shorter. Method: leaves with the room that a number of such entries take, and with one byte less.
#[test]
fn a_prefix_becomes_shorter_once() {
    for differ in [&[30][..], &[30, 30, 30], &[30, 20, 35], &[38, 25, 12, 20]] {
        let shortest = *differ.iter().min().expect("there is one");
        let entries: Changes = differ.iter().zip(0..).map(|(at, n)| put(key(*at, n), 20)).collect();
        // Each entry that was there is longer by what is no longer common, and so are those that come.
        let bytes = |count: usize| 32 + shortest + (count + differ.len()) * (27 + 40 - shortest);
        let fits = (0..200).rev().find(|count| bytes(*count) <= BLOCK_BYTES).expect("one fits");
        for (count, added) in [(fits, 0), (fits + 1, 2)] {
            let mut beside = Beside::new();
            let there: Changes = (0..count as u32).map(|n| put(key(40, n), 20)).collect();
            beside.change(&there, How::Spare(0));
            beside.forecast_added = 0;
            beside.change(&entries, How::Spare(0));
            assert_eq!(beside.forecast_added, added, "{differ:?}, {count} entries");
            assert_eq!(beside.dirty, 1 + added as i64);
        }
    }
}

// Goal: an empty tree gets what its entries take, not a leaf for each of them. Method: ten small ones.
#[test]
fn the_first_entries_are_forecast_one_leaf() {
    let mut beside = Beside::new();
    beside.change(&(0..10).map(|n| put(key(40, n), 20)).collect::<Changes>(), How::Spare(0));
    assert_eq!((beside.forecast_added, beside.dirty), (1, 1));
}

// Goal: the forecast is near what happens. Method: entries put one by one and ten at a time, at places of chance and one behind
// another, on a pool with nothing to spare; all that is forecast to be added, beside all that is.
#[test]
fn little_more_is_forecast_than_happens() {
    for (at_once, ascending) in [(1, false), (1, true), (10, false), (10, true)] {
        let (mut beside, mut below) = (Beside::new(), chance(5));
        for transaction in 0..2_000 / at_once {
            let n = |i| if ascending { (transaction * at_once + i) as u32 } else { below(1 << 12) as u32 };
            let entries: Changes = (0..at_once).map(n).map(|n| put(key(40, n), 90)).collect();
            beside.change(&entries, How::Spare(0));
        }
        let (added, forecast) = (beside.dirty as u64, beside.forecast_added);
        assert!(
            added <= forecast && forecast * 10 <= added * 11,
            "{at_once} at once: {forecast} forecast, {added} added"
        );
    }
}
