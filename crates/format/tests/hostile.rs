//! Codecs of the engine's structures: what is written is read back, and hostile bytes give errors, never panics.

use varve_format::batch::{self, BatchHeader, OpRef};
use varve_format::node::{self, NodeHeader};
use varve_format::root::{ArrayRoot, NodePtr, RootBlock, TreeRoot};
use varve_format::superblock::{Chunk, Cut, FORMAT_VERSION, Label, ProfileField, Stripe, Superblock};
use varve_format::{BLOCK_BYTES, Lsn, PoolAddr, Run, TreeId};

struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

const POOL: [u8; 16] = *b"a pool of a test";

fn ptr(block: u64) -> NodePtr {
    NodePtr { addr: [PoolAddr::from_block(block), PoolAddr::from_block(block + 9)], birth: 3, checksum: 77 }
}

fn label() -> Label {
    Label {
        version: FORMAT_VERSION,
        pool_id: POOL,
        device_id: POOL,
        device_index: 0,
        size_bytes: 64 << 20,
        ring_bytes: 8 << 20,
    }
}

fn superblock() -> Superblock {
    let chunk = |start: u64, len_bytes| Chunk {
        start,
        len_bytes,
        kind: 0,
        profile: ProfileField { copies: 2, width: 1 },
        write_pointer: 0,
        stripes: vec![
            Stripe { device: 0, offset: start * 2 },
            Stripe { device: 0, offset: start * 2 + len_bytes },
        ],
    };
    Superblock {
        generation: 9,
        pool_id: POOL,
        incompatible: 0,
        read_only_compatible: 0,
        compatible: 0,
        hash_seed: 5,
        hash_kind: 1,
        closed: false,
        data: ProfileField { copies: 2, width: 1 },
        metadata: ProfileField { copies: 2, width: 1 },
        device_count: 1,
        total_blocks: 3000,
        position: Lsn(12),
        root: ptr(5),
        log_start: 4096 * 7,
        log_sequence: 3,
        log_previous: 1,
        epoch: 4,
        cuts: vec![Cut { epoch: 2, last_sequence: 5 }, Cut { epoch: 3, last_sequence: 5 }],
        chunks: vec![chunk(0, 2000 * 4096), chunk(2000 * 4096, 1000 * 4096)],
    }
}

fn root() -> RootBlock {
    let tree = |t: &TreeId| {
        let height = (t.0 % 3) as u8;
        TreeRoot { tree: *t, height, ptr: if height == 0 { NodePtr::NULL } else { ptr(t.0.into()) } }
    };
    RootBlock {
        position: Lsn(12),
        generation: 8,
        next_id: 99,
        trees: TreeId::ALL.iter().map(tree).collect(),
        checksums: ArrayRoot { pages: 3, ptr: ptr(50) },
        bitmap: ArrayRoot { pages: 1, ptr: NodePtr::NULL },
    }
}

fn leaf() -> Vec<u8> {
    let entries: Vec<(Vec<u8>, Vec<u8>)> =
        (0..40u8).map(|i| ([b"common prefix ".as_slice(), &[i]].concat(), vec![i; i as usize])).collect();
    let mut block = vec![0xee; BLOCK_BYTES];
    let header = NodeHeader { tree: TreeId::NAMES, level: 0, birth: 4, pool_tag: 6 };
    node::encode(
        header,
        b"common prefix ",
        entries.iter().map(|(k, v)| (k.as_slice(), v.as_slice())),
        &mut block,
    );
    block
}

fn interior() -> Vec<u8> {
    let mut value = Vec::new();
    ptr(3).encode(&mut value);
    let keys: Vec<Vec<u8>> = (0..40u8).map(|i| if i == 0 { vec![] } else { vec![7, 7, i] }).collect();
    let mut block = vec![0; BLOCK_BYTES];
    let header = NodeHeader { tree: TreeId::NAMES, level: 1, birth: 4, pool_tag: 6 };
    node::encode(header, &[7, 7], keys.iter().map(|k| (k.as_slice(), value.as_slice())), &mut block);
    block
}

fn sealed_batch() -> (BatchHeader, Vec<u8>) {
    let mut payload = Vec::new();
    for n in 1..4u64 {
        let at = batch::begin_transaction(&mut payload, Lsn(n));
        batch::put_op(&mut payload, TreeId::INODES, b"key", b"value");
        batch::delete_op(&mut payload, TreeId::NAMES, b"gone");
        batch::place_op(&mut payload, Run { addr: PoolAddr::from_block(n), blocks: 2 }, &[1, 2]);
        batch::free_op(&mut payload, Run { addr: PoolAddr::from_block(n + 20), blocks: 3 });
        batch::id_floor_op(&mut payload, 40 + n);
        batch::end_transaction(&mut payload, at, 5);
    }
    let header = BatchHeader {
        pool_id: POOL,
        epoch: 2,
        sequence: 8,
        previous: 55,
        superblock_generation: 3,
        flushed: 7,
        first: Lsn(1),
        last: Lsn(3),
        transactions: 3,
        payload_bytes: payload.len() as u32,
    };
    let mut bytes = vec![0; batch::batch_blocks(payload.len()) * BLOCK_BYTES];
    bytes[batch::BATCH_HEADER_BYTES..batch::BATCH_HEADER_BYTES + payload.len()].copy_from_slice(&payload);
    batch::seal(&header, &mut bytes);
    (header, bytes)
}

fn payload_of<'b>(header: &BatchHeader, bytes: &'b [u8]) -> &'b [u8] {
    &bytes[batch::BATCH_HEADER_BYTES..batch::BATCH_HEADER_BYTES + header.payload_bytes as usize]
}

// Goal: a superblock that has no room for the cuts that recovery may add is refused, not written out of its slot. Method: one as long as a
// slot, which has all of them already and one less than that.
#[test]
fn superblocks_leave_room_for_cuts() {
    let chunk = |at: u64, stripes: usize| Chunk {
        start: at * BLOCK_BYTES as u64,
        len_bytes: BLOCK_BYTES as u64,
        stripes: vec![Stripe { device: 0, offset: 0 }; stripes],
        ..superblock().chunks[0].clone()
    };
    for (stripes, right) in [(240, true), (247, false)] {
        let mut long = superblock();
        long.cuts.clear();
        long.chunks = (0..26).map(|at| chunk(at, stripes)).collect();
        long.total_blocks = 26;
        let bytes = long.encode();
        assert!(bytes.len() as u64 <= varve_format::superblock::SLOT_BYTES);
        assert_eq!(Superblock::decode(&bytes).is_ok(), right, "{stripes} stripes");
    }
}

// Goal: no block of a batch but the first looks like the beginning of one, whatever is in it, and what was in it comes back. Method: a
// payload whose blocks begin with the magic, with what the first masks make the magic, and with other things.
#[test]
fn no_other_block_begins_like_a_batch() {
    let magic = batch::BATCH_MAGIC;
    for (heads, mask) in
        [(vec![0, 7], 0), (vec![magic], 1), (vec![5, magic, magic ^ 1, magic ^ 2, magic ^ 9], 3)]
    {
        let mut payload = vec![3; BLOCK_BYTES * (heads.len() + 1) - batch::BATCH_HEADER_BYTES];
        for (i, head) in heads.iter().enumerate() {
            let at = BLOCK_BYTES * (i + 1) - batch::BATCH_HEADER_BYTES;
            payload[at..at + 8].copy_from_slice(&head.to_le_bytes());
        }
        let header = BatchHeader { payload_bytes: payload.len() as u32, ..sealed_batch().0 };
        let mut bytes = vec![0; batch::batch_blocks(payload.len()) * BLOCK_BYTES];
        bytes[batch::BATCH_HEADER_BYTES..].copy_from_slice(&payload);
        let checksum = batch::seal(&header, &mut bytes);
        assert_eq!(bytes[96..104], u64::to_le_bytes(mask));
        assert!(bytes.chunks(BLOCK_BYTES).skip(1).all(|block| block[..8] != magic.to_le_bytes()));
        assert!(batch::verify(&bytes, checksum));
        assert_eq!(batch::decode_header(&bytes, &POOL), Ok((header, checksum, bytes.len())));
        let found = batch::unmasked(&bytes);
        assert_eq!(found.is_some(), mask != 0);
        assert_eq!(payload_of(&header, found.as_ref().unwrap_or(&bytes)), payload);
    }
}

// Goal: what is written is read back. Method: one of each structure, all fields set.
#[test]
fn structures_survive_a_round_trip() {
    assert_eq!(Label::decode(&label().encode()), Ok(label()));
    assert_eq!(Superblock::decode(&superblock().encode()), Ok(superblock()));
    assert_eq!(RootBlock::decode(&root().encode()), Ok(root()));

    let view = node::decode(&leaf()).expect("decodes");
    assert_eq!((view.entries.len(), view.prefix_len, view.header.level), (40, 14, 0));
    let view = node::decode(&interior()).expect("decodes");
    assert_eq!((view.entries.len(), view.prefix_len, view.header.level), (40, 2, 1));

    let (header, bytes) = sealed_batch();
    let (got, checksum, len) = batch::decode_header(&bytes, &POOL).expect("decodes");
    assert_eq!((got, len), (header, bytes.len()));
    assert!(batch::verify(&bytes, checksum));
    let mut ops = Vec::new();
    assert_eq!(batch::for_each_op(payload_of(&header, &bytes), 100, |p, op| ops.push((p, op))), Ok(3));
    assert_eq!(ops.len(), 15);
    assert_eq!(ops[0], (Lsn(1), OpRef::Put(TreeId::INODES, b"key", b"value")));
    assert_eq!(
        ops[12].1,
        OpRef::Place(Run { addr: PoolAddr::from_block(3), blocks: 2 }, &[1, 0, 0, 0, 2, 0, 0, 0])
    );
    let beyond = batch::for_each_op(payload_of(&header, &bytes), 23, |_, _| ());
    assert!(beyond.is_err(), "a run beyond the pool's end");
}

// Goal: a changed bit is noticed where a checksum guards it. Method: every single-bit change of the first 256 bytes.
#[test]
fn guarded_structures_notice_every_bit() {
    let (_, batch_bytes) = sealed_batch();
    let (label, superblock) = (label().encode(), superblock().encode());
    for bit in 0..256 * 8 {
        let flip = |bytes: &[u8]| {
            let mut b = bytes.to_vec();
            b[bit / 8] ^= 1 << (bit % 8);
            b
        };
        // A changed version is reported as it is, for the message; magic and the rest are errors.
        let version = (64..80).contains(&bit);
        assert!(version || Label::decode(&flip(&label)).is_err(), "label bit {bit}");
        assert!(Superblock::decode(&flip(&superblock)).is_err(), "superblock bit {bit}");
        let b = flip(&batch_bytes);
        let noticed = match batch::decode_header(&b, &POOL) {
            Ok((_, sum, len)) => len != b.len() || !batch::verify(&b, sum),
            Err(_) => true,
        };
        assert!(noticed, "batch bit {bit}");
    }
}

// Goal: hostile bytes never panic, also where the checksum is right. Method: random damage by seed, checksums redone.
#[test]
fn hostile_bytes_give_errors() {
    let (header, batch_bytes) = sealed_batch();
    let seeds: [Vec<u8>; 5] = [label().encode(), superblock().encode(), root().encode(), leaf(), interior()];
    for seed in 1..20_000u64 {
        let mut rng = Rng(seed.wrapping_mul(0x2545_f491_4f6c_dd1d) | 1);
        for (kind, good) in seeds.iter().enumerate() {
            let mut b = good.clone();
            for _ in 0..1 + rng.below(4) {
                let reach = if rng.below(2) == 0 { 200 } else { b.len() as u64 };
                let at = rng.below(reach) as usize;
                b[at] = if rng.below(2) == 0 {
                    rng.next() as u8
                } else {
                    [0, 1, 0x7f, 0xff][rng.below(4) as usize]
                };
            }
            match kind {
                0 => {
                    let sum = varve_format::block_checksum(&b[..BLOCK_BYTES - 4]);
                    b[BLOCK_BYTES - 4..].copy_from_slice(&sum.to_le_bytes());
                    drop(Label::decode(&b));
                }
                1 => {
                    let len = u32::from_le_bytes([b[12], b[13], b[14], b[15]]) as usize;
                    if len + 4 <= b.len() {
                        let sum = varve_format::block_checksum(&b[..len]);
                        b[len..len + 4].copy_from_slice(&sum.to_le_bytes());
                    }
                    drop(Superblock::decode(&b));
                }
                2 => drop(RootBlock::decode(&b)),
                _ => drop(node::decode(&b)),
            }
        }
        let mut payload = payload_of(&header, &batch_bytes).to_vec();
        let at = rng.below(payload.len() as u64) as usize;
        payload[at] = rng.next() as u8;
        let _ = batch::for_each_op(&payload, 100, |_, op| {
            if let OpRef::Place(run, _) | OpRef::Free(run) = op {
                assert!(
                    run.addr.block() + u64::from(run.blocks) <= 100,
                    "seed {seed}: a run outside the pool"
                );
            }
        });
    }
}

// Goal: short input gives errors. Method: every prefix of every structure.
#[test]
fn truncated_bytes_give_errors() {
    let (_, batch_bytes) = sealed_batch();
    let (label, superblock, root, leaf) = (label().encode(), superblock().encode(), root().encode(), leaf());
    for n in 0..BLOCK_BYTES {
        assert!(Label::decode(&label[..n]).is_err());
        assert!(node::decode(&leaf[..n]).is_err());
        drop(Superblock::decode(&superblock[..n]));
        drop(RootBlock::decode(&root[..n]));
        drop(batch::decode_header(&batch_bytes[..n], &POOL));
    }
}
