//! Devices that hold something else.

use super::*;

/// Nothing on `device` is other than it was `before`.
fn untouched(before: &MemoryDevice, device: &MemoryDevice, what: &str) {
    let (mut was, mut is) = (AlignedBuf::new(1 << 20), AlignedBuf::new(1 << 20));
    for at in (0..POOL_BYTES).step_by(1 << 20) {
        before.read_at(at, &mut was).expect("reads");
        device.read_at(at, &mut is).expect("reads");
        assert!(was[..] == is[..], "{what}: something was written at {at}");
    }
}

// Goal: a device that belongs to somebody else is not taken without being told to, and then nothing of him is left that would be found.
// Method: what volume managers, arrays and filesystems leave on a device, each where it leaves it, and bytes that nobody knows at both
// ends; a byte in the middle alone is nobody's. On an empty device no zeros are written.
#[test]
fn what_others_have_written_is_not_overwritten() {
    let raid: &[u8] = &[0xfc, 0x4e, 0x2b, 0xa9];
    let signs: &[(u64, &[u8], &str)] = &[
        (0, b"XFSB", "XFS"),
        (1080, &[0x53, 0xef], "ext4"),
        (65600, b"_BHRfS_M", "btrfs"),
        (4086, b"SWAPSPACE2", "swap"),
        (65526, b"SWAPSPACE2", "not empty"),
        (0, b"LUKS\xba\xbe", "LUKS"),
        (512, b"EFI PART", "GPT"),
        (510, &[0x55, 0xaa], "partition"),
        (512, b"LABELONE", "LVM"),
        (0, raid, "RAID"),
        (4096, raid, "RAID"),
        // Versions 1.0 and 0.90 of an array's superblock.
        (POOL_BYTES - (8 << 10), raid, "not empty"),
        (POOL_BYTES - (64 << 10), raid, "not empty"),
        (1024, &[0x10, 0x20, 0xf5, 0xf2], "F2FS"),
        (32769, b"CD001", "ISO 9660"),
        (32768, b"JFS1", "not empty"),
        (4096 + 24, b"\xc6\x85\x73\xf6", "bcache"),
        ((1 << 20) - 1, b"x", "not empty"),
        (POOL_BYTES - (1 << 20), b"x", "not empty"),
    ];
    let options = |force| FormatOptions {
        data: Profile::Single,
        metadata: Profile::Dup,
        pool_id: *b"0123456789abcdef",
        hash_seed: 7,
        force,
    };
    for (at, sign, word) in signs {
        let device = Arc::new(MemoryDevice::new(POOL_BYTES));
        let first = at / 4096 * 4096;
        let mut block = AlignedBuf::new(8192);
        block[(at - first) as usize..][..sign.len()].copy_from_slice(sign);
        let len = (POOL_BYTES - first).min(8192) as usize;
        device.write_at(first, &block[..len]).expect("writes");
        let before = device.snapshot();
        let devices = [device.clone() as Arc<dyn Device>];
        let error = Store::format(&devices, &options(false)).expect_err("it is somebody else's").to_string();
        assert!(error.contains(word) && error.contains("--force"), "{at}: {error}");
        untouched(&before, &device, word);
        Store::format(&devices, &options(true)).expect("it was told to");
        device.read_at(first, &mut block[..len]).expect("reads");
        assert_ne!(&block[(at - first) as usize..][..sign.len()], *sign, "{at}: the sign is still there");
    }
    let device = Arc::new(MemoryDevice::new(POOL_BYTES));
    device.write_at(32 << 20, &AlignedBuf::from_slice(&[1; 4096])).expect("writes");
    Store::format(&[device.clone() as Arc<dyn Device>], &options(false)).expect("nothing is known of it");
    assert!(device.stats().write_bytes < 1 << 20, "zeros were written over zeros");
}

// Goal: a device that somebody else has taken, and on which the last label of a pool is left, is not written to; it can be read. Method:
// the first block is another's, in a pool that was closed and in one that was not.
#[test]
fn what_others_have_begun_is_not_a_pool_to_write_to() {
    for closed in [true, false] {
        let device = Hooked::new();
        format(&device, Profile::Single, Profile::Dup);
        let store = open(&device);
        let lsn = put(&store, b"k", b"v");
        store.commit(lsn).expect("commits");
        if closed {
            store.close().expect("closes");
        }
        drop(store);
        let block = |fill: &dyn Fn(&mut [u8])| {
            let mut block = AlignedBuf::new(4096);
            fill(&mut block);
            device.inner.write_at(0, &block).expect("writes");
        };
        for (at, sign) in [(512, &b"LABELONE"[..]), (510, &[0x55, 0xaa]), (1080, &[0x53, 0xef])] {
            block(&|block| block[at..at + sign.len()].copy_from_slice(sign));
            let before = device.inner.snapshot();
            let error = try_open(&device).err().expect("it may be another's").to_string();
            assert!(error.contains("somebody else"), "{error}");
            untouched(&before, &device.inner, &error);
            let options = StoreOptions { read_only: true, background: false, ..StoreOptions::default() };
            let (store, _) =
                Store::open(vec![device.clone() as Arc<dyn Device>], options).expect("for reading");
            assert!(store.get(TREE, b"k").expect("reads").is_some());
        }
        // Of these the label, or zeros, are in front: an array of version 1.2 and bcache.
        let mut label = AlignedBuf::new(4096);
        block(&|_| {});
        drop(open(&device));
        device.inner.read_at(0, &mut label).expect("reads");
        assert_eq!(label[..8], varve_format::superblock::LABEL_MAGIC);
        let second = |at: usize, sign: &[u8]| {
            let mut block = AlignedBuf::new(4096);
            block[at..at + sign.len()].copy_from_slice(sign);
            device.inner.write_at(4096, &block).expect("writes");
        };
        let raid = (0, &[0xfc, 0x4e, 0x2b, 0xa9][..]);
        let bcache = (24, &[0xc6, 0x85, 0x73, 0xf6][..]);
        for (label_is_there, (at, sign)) in [(true, raid), (false, raid), (false, bcache)] {
            block(&|block| {
                if label_is_there {
                    block.copy_from_slice(&label)
                }
            });
            second(at, sign);
            let before = device.inner.snapshot();
            let error = try_open(&device).err().expect("it may be another's").to_string();
            assert!(error.contains("somebody else") && error.contains("dd "), "{error}");
            untouched(&before, &device.inner, &error);
        }
        // A whole label is younger than what bcache has left.
        block(&|block| block.copy_from_slice(&label));
        second(bcache.0, bcache.1);
        drop(open(&device));
        second(0, &[]);
        // A partition table may keep the boot code in front of it, and with it most of the label.
        block(&|block| {
            block[..440].copy_from_slice(&label[..440]);
            block[510..512].copy_from_slice(&[0x55, 0xaa]);
        });
        let before = device.inner.snapshot();
        let error = try_open(&device).err().expect("it may be another's").to_string();
        assert!(error.contains("somebody else"), "{error}");
        untouched(&before, &device.inner, &error);
        // A label that is torn is written again.
        block(&|block| block[..512].copy_from_slice(&label[..512]));
        drop(open(&device));
        let mut first = AlignedBuf::new(4096);
        device.inner.read_at(0, &mut first).expect("reads");
        assert!(first[..] == label[..]);
        second(0, &[]);
        // Zeros are nobody's, and then the label is there again; what nobody knows stays.
        block(&|block| block[100] = 7);
        drop(open(&device));
        device.inner.read_at(0, &mut first).expect("reads");
        assert_eq!(first[100], 7);
        block(&|_| {});
        open(&device).close().expect("closes");
        device.inner.read_at(0, &mut first).expect("reads");
        assert_eq!(first[..8], varve_format::superblock::LABEL_MAGIC);
    }
}

// Goal: somebody else's first blocks are not taken for the pool's because the device fails to read them: once, and who writes is refused all the
// same; longer, and what is there stays. Nor is a label written over that of the pool, which is whole. Method: the sign of a volume manager in the
// first block, of an array in the second, and a whole label; the device fails to read either block, once or from some time on.
#[test]
fn a_failed_read_makes_no_device_ours() {
    let device = Hooked::new();
    format(&device, Profile::Single, Profile::Dup);
    open(&device).close().expect("closes");
    let raid: &[u8] = &[0xfc, 0x4e, 0x2b, 0xa9];
    let signs: [(u64, usize, &[u8]); 3] = [(0, 512, b"LABELONE"), (4096, 0, raid), (0, 0, b"VARVELBL")];
    for (place, at, sign) in signs {
        let taken = device.inner.snapshot();
        let mut block = AlignedBuf::new(4096);
        taken.read_at(place, &mut block).expect("reads");
        block[at..at + sign.len()].copy_from_slice(sign);
        taken.write_at(place, &block).expect("writes");
        let foreign = !sign.starts_with(b"VARVE");
        for trigger in (1..=5).flat_map(|n| [Trigger::Nth(n), Trigger::From(n)]) {
            let what = format!("the sign at {}, {trigger:?}", place + at as u64);
            let rule = FaultRule::new(Operation::Read, trigger, Fault::Error).within(place..place + 4096);
            let device = Arc::new(FaultyDevice::new(taken.snapshot(), 1, vec![rule]));
            let opened = try_open(&device).map(|(store, _)| drop(store));
            if foreign && matches!(trigger, Trigger::Nth(_)) {
                let error = opened.expect_err(&what).to_string();
                assert!(error.contains("somebody else"), "{what}: {error}");
                untouched(&taken, device.inner(), &what);
            }
            let writes = device.stats().writes_count;
            assert!(foreign || writes == 0, "{what}: {writes} writes");
            let mut after = AlignedBuf::new(4096);
            device.inner().read_at(place, &mut after).expect("reads");
            assert!(after[..] == block[..], "{what}: somebody else's block was written over");
        }
    }
}
