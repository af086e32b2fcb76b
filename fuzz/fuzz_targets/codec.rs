//! Every decoder of the format on any bytes. None may panic or take memory for what a field says; what one takes, encoded again, is
//! taken again and is the same.
//!
//! The first byte of an input says which decoder. Checksums are made right first, where there is one inside.
#![no_main]

use std::fmt::Debug;

use libfuzzer_sys::fuzz_target;
use varve_format::batch::{self, OpRef};
use varve_format::codec::Reader;
use varve_format::node;
use varve_format::record::extent::{self, DataKey, Extent};
use varve_format::record::held::{decode_held_key, held_key};
use varve_format::record::inode::{InodeRecord, decode_inode_key, inode_key};
use varve_format::record::keyframe::{KEYFRAME_KEY_BYTES, KeyframeKey, decode_piece, encode_pieces};
use varve_format::record::name::{NameRecord, NameView, decode_name_key, name_key};
use varve_format::record::orphan::{OrphanRecord, decode_orphan_key, orphan_key};
use varve_format::record::reap::{check_reap_value, decode_reap_key, reap_key};
use varve_format::record::shares::{SHARES_KEY_BYTES, SharedRun};
use varve_format::record::subvolume::SubvolumeRecord;
use varve_format::record::version::{VersionRecord, decode_key, encode_key};
use varve_format::record::xattr::{XattrHead, decode_xattr_key, xattr_key};
use varve_format::root::{NODE_PTR_BYTES, NodePtr, RootBlock};
use varve_format::superblock::{Label, Superblock};
use varve_format::{BLOCK_BYTES, Corrupt, block_checksum, text};

/// Blocks of the pool that log records speak of.
const TOTAL_BLOCKS: u64 = 1 << 20;
/// Decoders.
const KINDS: u8 = 24;

/// What is taken, encoded again, is taken again and the same.
fn again<T: PartialEq + Debug, B: AsRef<[u8]>>(
    bytes: &[u8],
    decode: impl Fn(&[u8]) -> Result<T, Corrupt>,
    encode: impl Fn(&T) -> B,
) {
    if let Ok(found) = decode(bytes) {
        let encoded = encode(&found);
        assert_eq!(decode(encoded.as_ref()).as_ref(), Ok(&found));
    }
}

/// The same where there is one way to write something alone.
fn same<T: PartialEq + Debug, B: AsRef<[u8]>>(
    bytes: &[u8],
    decode: impl Fn(&[u8]) -> Result<T, Corrupt>,
    encode: impl Fn(&T) -> B,
) {
    if let Ok(found) = decode(bytes) {
        assert_eq!(encode(&found).as_ref(), bytes, "{found:?}");
    }
}

/// Whole blocks that begin with `bytes`.
fn padded(bytes: &[u8]) -> Vec<u8> {
    let mut out = bytes.to_vec();
    out.resize(bytes.len().max(1).next_multiple_of(BLOCK_BYTES), 0);
    out
}

fn sealed(bytes: &[u8], at: usize) -> Vec<u8> {
    let mut out = padded(bytes);
    if at + 4 <= out.len() {
        let checksum = block_checksum(&out[..at]);
        out[at..at + 4].copy_from_slice(&checksum.to_le_bytes());
    }
    out
}

fn log(bytes: &[u8]) {
    let mut payload = Vec::new();
    let mut last = None;
    let mut begun = 0;
    let mut ops = 0;
    let end = |payload: &mut [u8], begun: usize, ops: u32| batch::end_transaction(payload, begun, ops);
    let done = batch::for_each_op(bytes, TOTAL_BLOCKS, |position, op| {
        // Two transactions of one position are written as one: what is in them counts.
        if last != Some(position) {
            if last.is_some() {
                end(&mut payload, begun, ops);
            }
            begun = batch::begin_transaction(&mut payload, position);
            ops = 0;
            last = Some(position);
        }
        ops += 1;
        match op {
            OpRef::Put(tree, key, value) => batch::put_op(&mut payload, tree, key, value),
            OpRef::Delete(tree, key) => batch::delete_op(&mut payload, tree, key),
            OpRef::Place(run, sums) => {
                assert!(run.addr.block() + u64::from(run.blocks) <= TOTAL_BLOCKS);
                let sums = sums.chunks_exact(4).map(|sum| u32::from_le_bytes(sum.try_into().expect("four")));
                batch::place_op(&mut payload, run, &sums.collect::<Vec<_>>());
            }
            OpRef::Free(run) => {
                assert!(run.addr.block() + u64::from(run.blocks) <= TOTAL_BLOCKS);
                batch::free_op(&mut payload, run);
            }
            OpRef::IdFloor(floor) => batch::id_floor_op(&mut payload, floor),
        }
    });
    if last.is_some() {
        end(&mut payload, begun, ops);
    }
    if done.is_ok() {
        let all = |payload: &[u8]| {
            let mut all = Vec::new();
            let each = |position, op: OpRef<'_>| all.push(format!("{position:?} {op:?}"));
            batch::for_each_op(payload, TOTAL_BLOCKS, each).expect("it was encoded just now");
            all
        };
        assert_eq!(all(bytes), all(&payload));
    }
}

fn a_node(bytes: &[u8]) {
    let block = padded(bytes);
    let Ok(view) = node::decode(&block) else { return };
    let prefix = &block[node::NODE_HEADER_BYTES..][..view.prefix_len];
    let entries = |block: &[u8], view: &node::NodeView| {
        let entry = |e: &node::EntryAt| {
            let at = |from: usize, len: usize| block[from..from + len].to_vec();
            (at(e.suffix, e.suffix_len), at(e.value, e.value_len))
        };
        view.entries.iter().map(entry).collect::<Vec<_>>()
    };
    let found = entries(&block, &view);
    let mut out = vec![0; BLOCK_BYTES];
    node::encode_suffixes(view.header, prefix, found.iter().map(|(k, v)| (&k[..], &v[..])), &mut out);
    let second = node::decode(&out).expect("it was encoded just now");
    assert_eq!((second.header, second.prefix_len), (view.header, view.prefix_len));
    assert_eq!(entries(&out, &second), found);
}

fn a_batch(bytes: &[u8]) {
    let mut block = padded(bytes);
    block[..8].copy_from_slice(&batch::BATCH_MAGIC.to_le_bytes());
    let pool_id: [u8; 16] = block[8..24].try_into().expect("sixteen");
    let Ok((header, checksum, len)) = batch::decode_header(&block, &pool_id) else { return };
    if len != block.len() {
        return;
    }
    let _ = batch::verify(&block, checksum);
    let plain = batch::unmasked(&block).unwrap_or(block);
    let mut out = vec![0; len];
    let payload = batch::BATCH_HEADER_BYTES..batch::BATCH_HEADER_BYTES + header.payload_bytes as usize;
    out[payload.clone()].copy_from_slice(&plain[payload.clone()]);
    let sum = batch::seal(&header, &mut out);
    assert!(batch::verify(&out, sum));
    assert_eq!(batch::decode_header(&out, &pool_id), Ok((header, sum, len)));
    assert!(out.chunks(BLOCK_BYTES).skip(1).all(|block| block[..8] != batch::BATCH_MAGIC.to_le_bytes()));
    let out = batch::unmasked(&out).unwrap_or(out);
    assert_eq!(out[payload.clone()], plain[payload.clone()]);
    log(&out[payload]);
}

fn a_keyframe(bytes: &[u8]) {
    let Some((key, value)) = bytes.split_at_checked(KEYFRAME_KEY_BYTES) else { return };
    let Ok(key) = KeyframeKey::decode(key) else { return };
    let mut runs = Vec::new();
    if decode_piece(&key, value, &mut runs).is_ok()
        && let Some(pieces) = encode_pieces(key.version, &runs)
    {
        let mut found = Vec::new();
        for (piece, value) in pieces.iter().enumerate() {
            let key = KeyframeKey { piece: piece as u8, ..key };
            decode_piece(&key, value, &mut found).expect("it was encoded just now");
        }
        assert_eq!(found, runs);
    }
}

fn a_piece_of_a_pair(bytes: &[u8], key_bytes: usize, each: impl Fn(&[u8], &[u8])) {
    if let Some((key, value)) = bytes.split_at_checked(key_bytes) {
        each(key, value);
    }
}

fuzz_target!(|input: &[u8]| {
    let Some((which, bytes)) = input.split_first() else { return };
    match which % KINDS {
        0 => again(&sealed(bytes, BLOCK_BYTES - 4), Label::decode, Label::encode),
        1 => {
            let len = bytes.get(12..16).map_or(0, |len| u32::from_le_bytes(len.try_into().expect("four")));
            again(&sealed(bytes, len as usize), Superblock::decode, Superblock::encode);
        }
        2 => again(&padded(bytes), RootBlock::decode, RootBlock::encode),
        3 => a_node(bytes),
        4 => a_batch(bytes),
        5 => log(bytes),
        6 => again(bytes, InodeRecord::decode, InodeRecord::encode),
        7 => same(bytes, decode_inode_key, |(family, ino, version)| inode_key(*family, *ino, *version)),
        8 => {
            again(bytes, NameRecord::decode, NameRecord::encode);
            a_piece_of_a_pair(bytes, 5, |wanted, bytes| drop(NameView::decode_for(bytes, wanted).map(drop)));
        }
        9 => {
            same(bytes, decode_name_key, |(family, ino, at, version)| name_key(*family, *ino, *at, *version))
        }
        10 => again(bytes, XattrHead::decode, XattrHead::encode),
        11 => same(bytes, decode_xattr_key, |(family, ino, at, piece, version)| {
            xattr_key(*family, *ino, *at, *piece, *version)
        }),
        12 => again(bytes, OrphanRecord::decode, OrphanRecord::encode),
        13 => same(bytes, decode_orphan_key, |ino| orphan_key(*ino)),
        14 => same(bytes, DataKey::decode, DataKey::encode),
        15 => {
            again(bytes, Extent::decode, |extent| extent.encode().to_vec());
            again(bytes, Extent::decode, Extent::encode_long);
            a_piece_of_a_pair(bytes, extent::DATA_KEY_BYTES, |key, value| {
                drop(extent::decode_entry(key, value));
            });
        }
        16 => again(bytes, VersionRecord::decode, VersionRecord::encode),
        17 => same(bytes, decode_key, |(family, id)| encode_key(*family, *id)),
        18 => {
            if let Ok((family, version, tree, place)) = decode_held_key(bytes) {
                assert_eq!(held_key(family, version, tree, place), bytes);
            }
        }
        19 => {
            if let Ok((family, work)) = decode_reap_key(bytes) {
                let _ = check_reap_value(work, &bytes[..bytes.len().min(8)]);
                assert_eq!(reap_key(family, work), bytes);
            }
        }
        20 => a_piece_of_a_pair(bytes, SHARES_KEY_BYTES, |key, value| {
            if let Ok(run) = SharedRun::decode(key, value) {
                assert!(run.end() > run.first);
                assert_eq!((&run.key()[..], &run.value()[..]), (key, value));
            }
        }),
        21 => again(bytes, SubvolumeRecord::decode, SubvolumeRecord::encode),
        22 => a_keyframe(bytes),
        _ => {
            again(
                bytes,
                |bytes| NodePtr::decode(&mut Reader::new(bytes)),
                |ptr| {
                    let mut out = Vec::with_capacity(NODE_PTR_BYTES);
                    ptr.encode(&mut out);
                    out
                },
            );
            drop(text::escape(bytes));
        }
    }
});
