//! Single damages of a pool without versions, by the kind under which each must be found.

use super::*;

/// Does a damage.
pub type Plant = fn(&mut World);

/// Damage whose checksums are redone: only what is said is wrong.
pub const RECORDS: &[(Kind, Plant)] = &[
    (Kind::LabelsDiffer, |w| {
        let at = w.image.device.size_bytes() - BLOCK_BYTES as u64;
        let mut block = AlignedBuf::new(BLOCK_BYTES);
        w.image.device.read_at(at, &mut block).unwrap();
        let label = Label { device_id: [9; 16], ..Label::decode(&block).unwrap() };
        w.image.device.write_at(at, &AlignedBuf::from_slice(&label.encode())).unwrap();
    }),
    (Kind::SuperblockMisplaced, |w| w.image.write_slot(w.older_slot(), &w.image.superblock)),
    (Kind::SuperblockForeign, |w| {
        let mut s = w.image.superblock.clone();
        s.pool_id = [7; 16];
        w.image.write_slot(w.older_slot(), &s);
    }),
    (Kind::SuperblocksDiffer, |w| {
        let mut s = w.image.superblock.clone();
        s.compatible = 1;
        w.image.write_slot(SLOTS_PER_END + s.generation % SLOTS_PER_END, &s);
    }),
    (Kind::LogSenseless, |w| {
        let run = Run { addr: w.image.free_block(), blocks: 1 };
        w.log(|payload| batch::free_op(payload, run));
    }),
    (Kind::LogSenseless, |w| w.log(|payload| batch::id_floor_op(payload, u64::MAX))),
    (Kind::RootSenseless, |w| {
        w.image.root.position.0 += 1;
        w.image.commit();
    }),
    (Kind::BitmapBeyondPool, |w| {
        w.image.mark(PoolAddr::from_block(w.image.superblock.total_blocks + 3), true)
    }),
    (Kind::NodeMalformed, |w| {
        let key = w.middle(TreeId::INODES);
        w.image.edit_node(TreeId::INODES, &key, 0, |block| block[0] ^= 1);
    }),
    (Kind::NodeMalformed, |w| {
        let key = w.middle(TreeId::NAMES);
        w.image.edit_node(TreeId::NAMES, &key, 0, |block| block[9] = 0x7f);
    }),
    (Kind::NodeKeyOrder, |w| {
        let key = w.middle(TreeId::INODES);
        w.image.edit_entries(TreeId::INODES, &key, |entries| entries.swap(1, 2));
    }),
    (Kind::NodeKeyOrder, |w| {
        let key = w.middle(TreeId::NAMES);
        w.image.edit_entries(TreeId::NAMES, &key, |entries| {
            let twice = entries[1].clone();
            entries.insert(1, twice);
            entries.truncate(8);
        });
    }),
    (Kind::NodeForeign, |w| {
        let key = w.middle(TreeId::INODES);
        w.image.edit_node(TreeId::INODES, &key, 0, |block| block[4] = TreeId::NAMES.0 as u8);
    }),
    (Kind::NodeForeign, |w| {
        // A leaf in place of an interior node.
        let key = w.middle(TreeId::INODES);
        w.image.edit_node(TreeId::INODES, &key, 1, |block| block[6] = 2);
    }),
    (Kind::NodeGeneration, |w| {
        let key = w.middle(TreeId::INODES);
        w.image.edit_node(TreeId::INODES, &key, 0, |block| block[16] ^= 1);
    }),
    (Kind::NodeKeyRange, |w| {
        let key = w.middle(TreeId::INODES);
        w.image.edit_entries(TreeId::INODES, &key, |entries| {
            entries.truncate(4);
            entries[3].0 = inode_key(FAMILY, InodeId(1 << 40), KEY).to_vec();
        });
    }),
    (Kind::NodeEmpty, |w| {
        let key = w.xattr_key(b"user.small", 0);
        w.image.edit_entries(TreeId::XATTRS, &key, Vec::clear);
    }),
    (Kind::PointerOutside, |w| {
        let key = w.middle(TreeId::INODES);
        w.image.edit_leaf_ptr(TreeId::INODES, &key, |ptr| ptr.addr[1] = PoolAddr::from_block(1 << 30));
    }),
    (Kind::SharesMissing, |w| {
        let run = Run { addr: w.extent(w.file, 0).addr, blocks: 1 };
        w.put_extent(w.big, 5 << 20, Extent::data(run));
        w.change(w.big, |r| r.size = 6 << 20);
    }),
    (Kind::SharesMissing, |w| {
        // Three extents name a block, and two are counted.
        let addr = w.extent(w.file, 0).addr;
        for at in [5 << 20, 6 << 20] {
            w.put_extent(w.big, at, Extent::data(Run { addr, blocks: 2 }));
        }
        w.change(w.big, |r| r.size = 7 << 20);
        w.shared(addr, 1, 2);
        w.shared(PoolAddr(addr.0 + 4096), 1, 1);
    }),
    (Kind::SharesStray, |w| w.shared(w.extent(w.file, 0).addr, 2, 1)),
    (Kind::SharesStray, |w| w.shared(w.image.free_block(), 1, 1)),
    (Kind::SharesMalformed, |w| w.shared(w.extent(w.file, 0).addr, 1, 0)),
    (Kind::SharesMalformed, |w| w.image.put(TreeId::SHARES, &[0, 0, 1], &[])),
    (Kind::BlockUsedTwice, |w| {
        let first = w.image.entries(TreeId::INODES)[0].0.clone();
        let other = w.image.node_ptr(TreeId::INODES, &first, 0);
        let key = w.middle(TreeId::INODES);
        w.image.edit_leaf_ptr(TreeId::INODES, &key, |ptr| *ptr = other);
    }),
    (Kind::BlockLeaked, |w| w.image.mark(w.image.free_block(), true)),
    (Kind::BlockNotMarked, |w| w.image.mark(w.extent(w.file, 0).addr, false)),
    (Kind::DataUnreadable, |w| {
        let block = w.extent(w.file, 0).addr.block() as usize;
        w.image.edit_array(Array::Checksums, block / 1024, |page| page[block % 1024 * 4] ^= 1);
    }),
    (Kind::SubvolumeMissing, |w| w.image.delete(TreeId::SUBVOLUMES, &subvolume_key(FIRST_SUBVOLUME))),
    (Kind::EntryForeign, |w| {
        let record = w.inode(w.small).encode();
        w.image.put(TreeId::INODES, &inode_key(FamilyId(77), w.small, KEY), &record);
    }),
    (Kind::KeyMalformed, |w| {
        let key = name_key(FAMILY, w.dir, NamePosition(3), KEY);
        w.name_at(&key, InodeKind::File, w.small, b"x", false);
    }),
    (Kind::IdNotTaken, |w| {
        w.image.root.next_id = w.small.0;
        w.image.commit();
    }),
    (Kind::IdNotTaken, |w| {
        w.change(w.file, |r| (r.data.version, r.data.has_versions) = (VersionId(1 << 40), true))
    }),
    (Kind::InodeCount, |w| w.subvolume(|record| record.files += 1)),
    (Kind::ReservedCount, |w| w.subvolume(|record| record.reserved_blocks -= 1)),
    (Kind::RootDirectoryMissing, |w| w.forget(ROOT)),
    (Kind::InodeMalformed, |w| w.image.put(TreeId::INODES, &w.inode_key(w.small), b"garbage")),
    (Kind::InodeSenseless, |w| w.change(w.file, |r| r.rdev = 5)),
    (Kind::InodeFlags, |w| w.change(w.dir, |r| r.flags |= INODE_FLAG_IMMUTABLE)),
    (Kind::InodeSenseless, |w| w.change(w.link, |r| r.size += 1)),
    (Kind::InodeSenseless, |w| w.change(w.file, |r| r.inline = Some(Vec::new()))),
    (Kind::InodeLost, |w| w.image.put(TreeId::INODES, &w.inode_key(w.file), b"garbage")),
    (Kind::InodeUnlinked, |w| w.change(w.small, |r| r.links = 0)),
    (Kind::InodeNameless, |w| w.unname(ROOT, b"small")),
    (Kind::LinkCount, |w| w.change(w.small, |r| r.links = 3)),
    (Kind::NameMalformed, |w| w.image.put(TreeId::NAMES, &w.name_key(ROOT, b"small"), b"\x00\x09")),
    (Kind::NameDangling, |w| w.forget(w.small)),
    (Kind::NameKind, |w| w.name(ROOT, b"small", InodeKind::Fifo, w.small)),
    (Kind::NameMisplaced, |w| {
        w.unname(ROOT, b"small");
        let key = w.name_key(ROOT, b"another");
        w.name_at(&key, InodeKind::File, w.small, b"small", false);
    }),
    (Kind::NameDuplicate, |w| {
        let key = name_key(FAMILY, ROOT, w.position(b"small").with_sequence(1), KEY);
        w.name_at(&key, InodeKind::File, w.small, b"small", false);
        let key = w.name_key(ROOT, b"small");
        w.name_at(&key, InodeKind::File, w.small, b"small", true);
        w.change(w.small, |r| r.links = 2);
        w.change(ROOT, |r| r.size += 1);
    }),
    (Kind::NameChain, |w| {
        let key = name_key(FAMILY, ROOT, w.position(b"new").with_sequence(2), KEY);
        w.name_at(&key, InodeKind::File, w.small, b"new", false);
        w.change(w.small, |r| r.links = 2);
        w.change(ROOT, |r| r.size += 1);
    }),
    (Kind::NameStray, |w| {
        w.name(w.small, b"below a file", InodeKind::File, w.file);
        w.change(w.file, |r| r.links = 2);
    }),
    (Kind::NameOfOrphan, |w| {
        w.forget(w.small);
        let inode = InodeRecord { links: 0, ..w.again_inode() };
        let record = OrphanRecord { state: OrphanState::Open, inode };
        w.image.put(TreeId::ORPHANS, &orphan_key(w.small), &record.encode());
    }),
    (Kind::NamesLost, |w| {
        let key = w.middle(TreeId::NAMES);
        w.image.edit_node(TreeId::NAMES, &key, 0, |block| block[0] ^= 1);
    }),
    (Kind::DirectoryTwice, |w| {
        w.name(ROOT, b"inner again", InodeKind::Directory, w.inner);
        w.change(ROOT, |r| r.size += 1);
    }),
    (Kind::DirectoryParent, |w| w.change(w.inner, |r| r.parent = ROOT)),
    (Kind::DirectoryUnreachable, |w| {
        // The two directories contain each other.
        w.unname(ROOT, b"dir");
        w.name(w.inner, b"dir", InodeKind::Directory, w.dir);
        let inner = w.inner;
        w.change(w.dir, |r| r.parent = inner);
        w.change(w.inner, |r| r.size = 1);
        w.change(ROOT, |r| r.size -= 1);
    }),
    (Kind::DirectorySize, |w| w.change(w.dir, |r| r.size = 9)),
    (Kind::DirectoryLinks, |w| w.change(w.inner, |r| r.links = 2)),
    (Kind::DirectoryLinks, |w| w.change(w.dir, |r| r.rdev = 8)),
    (Kind::OrphanMalformed, |w| w.image.put(TreeId::ORPHANS, &orphan_key(InodeId(20)), b"\x07")),
    (Kind::OrphanLinked, |w| w.orphan(InodeId(15), 1)),
    (Kind::OrphanLive, |w| w.orphan(w.small, 0)),
    (Kind::DirectorySize, |w| {
        let inode = InodeRecord { links: 0, size: 5, ..w.inode(w.inner) };
        let record = OrphanRecord { state: OrphanState::Open, inode };
        w.image.put(TreeId::ORPHANS, &orphan_key(InodeId(15)), &record.encode());
    }),
    (Kind::XattrMalformed, |w| {
        let mut head = XattrHead { name: b"user.huge".to_vec(), value_len: 0, start: Vec::new() }.encode();
        head[1..5].copy_from_slice(&100_000u32.to_le_bytes());
        w.image.put(TreeId::XATTRS, &w.xattr_key(b"user.huge", 0), &head);
    }),
    (Kind::XattrStray, |w| w.xattr(InodeId(15), b"user.of nobody", 0, b"value")),
    (Kind::XattrMisplaced, |w| {
        let head = XattrHead { name: b"user.here".to_vec(), value_len: 0, start: Vec::new() };
        w.image.put(TreeId::XATTRS, &w.xattr_key(b"user.there", 0), &head.encode());
    }),
    (Kind::XattrDuplicate, |w| w.xattr(w.file, b"user.small", 1, b"value")),
    (Kind::XattrNamespace, |w| w.xattr(w.file, b"nonsense.name", 0, b"value")),
    (Kind::XattrIncomplete, |w| w.image.delete(TreeId::XATTRS, &w.xattr_key(b"user.big", 2))),
    (Kind::XattrPiece, |w| w.image.put(TreeId::XATTRS, &w.xattr_key(b"user.small", 1), b"more")),
    (Kind::XattrCount, |w| w.change(w.file, |r| r.xattr_bytes += 1)),
    (Kind::XattrsLost, |w| {
        let key = w.xattr_key(b"user.small", 0);
        w.image.edit_node(TreeId::XATTRS, &key, 0, |block| block[0] ^= 1);
    }),
    (Kind::ExtentMalformed, |w| w.put_extent(w.file, 0, Extent { codec: 9, ..w.extent(w.file, 0) })),
    (Kind::ExtentMalformed, |w| w.put_extent(w.file, 0, Extent { stored_len: 4096, ..w.extent(w.file, 0) })),
    (Kind::ExtentCrosses, |w| {
        let run = Run { addr: w.image.free_block(), blocks: 256 };
        w.put_extent(w.big, (5 << 20) + 4096, Extent::data(run));
    }),
    (Kind::ExtentOverlap, |w| {
        let run = Run { addr: w.image.free_block(), blocks: 1 };
        w.put_extent(w.file, 4096, Extent::data(run));
    }),
    (Kind::ExtentOutside, |w| {
        let run = Run { addr: PoolAddr::from_block(w.image.superblock.total_blocks - 1), blocks: 2 };
        w.put_extent(w.big, 2 << 20, Extent::data(run));
    }),
    (Kind::ExtentBeyondSize, |w| w.change(w.file, |r| r.size = 4096)),
    (Kind::ExtentOwnerless, |w| {
        let run = Run { addr: w.image.free_block(), blocks: 1 };
        w.put_extent(InodeId(15), 0, Extent::data(run));
    }),
    (Kind::ExtentVersion, |w| {
        let key = DataKey { family: FamilyId(w.file.0), segment: 9, version: VersionKey(5), offset: 0 };
        w.image.put(TreeId::EXTENTS, &key.encode(), &Extent::reserved(4096).encode());
    }),
    (Kind::ExtentIdle, |w| w.put_extent(w.big, (2 << 20) + 4096, Extent::hole(4096))),
    (Kind::ExtentsLost, |w| {
        let key = w.extent_key(w.big, 0);
        w.image.edit_node(TreeId::EXTENTS, &key, 0, |block| block[0] ^= 1);
    }),
    (Kind::VersionMalformed, |w| {
        w.image.put(TreeId::VERSIONS, &encode_key(FamilyId(w.big.0), VersionId(w.big.0)), b"garbage");
    }),
    (Kind::VersionParent, |w| w.versions(|_, child| child.parent = Some(VersionId(3)))),
    (Kind::VersionAge, |w| {
        let own = VersionId(w.big.0 + 1);
        w.versions(|_, child| child.parent = Some(own));
    }),
    (Kind::VersionChildren, |w| w.versions(|root, _| root.children = 2)),
    (Kind::VersionChildren, |w| w.versions(|root, _| root.children_xor ^= 8)),
    (Kind::VersionHolders, |w| w.versions(|_, child| child.refs = 2)),
    (Kind::VersionKey, |w| w.versions(|root, child| child.key = root.key)),
    (Kind::VersionKey, |w| w.versions(|_, child| child.key = VersionKey(child.key.0 + 1000))),
    (Kind::VersionDrain, |w| {
        w.versions(|root, child| (root.refs, child.drain, child.limit) = (1, Drain::Up, NO_LIMIT));
    }),
    (Kind::VersionLimit, |w| w.versions(|root, _| root.limit = 4096)),
    (Kind::VersionOfInode, |w| {
        w.versions(|_, _| ());
        w.change(w.big, |r| r.data.version = VersionId(99))
    }),
    (Kind::HeldMalformed, |w| w.image.put(TreeId::HELD, &[&w.big.0.to_be_bytes()[..], &[1]].concat(), &[])),
    (Kind::HeldMissing, |w| {
        let version = VersionKey(w.big.0 + 1);
        w.versions(|_, _| ());
        let key = DataKey { family: FamilyId(w.big.0), segment: 9, version, offset: 0 };
        w.image.put(TreeId::EXTENTS, &key.encode(), &Extent::reserved(4096).encode());
    }),
    (Kind::HeldStray, |w| {
        let (family, version) = (FamilyId(w.big.0), VersionKey(w.big.0 + 1));
        w.image.put(TreeId::HELD, &held_key(family, version, TreeId::EXTENTS, &[0; 8]), &[]);
    }),
    (Kind::KeyframeMalformed, |w| {
        w.image.put(TreeId::KEYFRAMES, &[&w.big.0.to_be_bytes()[..], &[1]].concat(), &[])
    }),
    (Kind::KeyframeMalformed, |w| w.keyframe(|value| value[0] += 1)),
    (Kind::KeyframeMalformed, |w| w.keyframe(|value| value[2] = 255)),
    (Kind::KeyframeWrong, |w| w.keyframe(|value| value[4] ^= 1)),
    (Kind::ReapMalformed, |w| w.image.put(TreeId::REAP, &[&w.big.0.to_be_bytes()[..], &[9]].concat(), &[])),
    (Kind::ReapMissing, |w| {
        let family = FamilyId(w.file.0);
        let record = VersionRecord { refs: 0, ..VersionRecord::implicit(family) };
        w.image.put(TreeId::VERSIONS, &encode_key(family, VersionId(family.0)), &record.encode());
    }),
    (Kind::ReapStray, |w| {
        let family = FamilyId(w.file.0);
        w.image.put(TreeId::REAP, &reap_key(family, Work::Going(VersionId(family.0))), &[]);
    }),
    // Of the names: nothing of them was ever shared.
    (Kind::ReapStray, |w| {
        w.image.put(TreeId::REAP, &reap_key(FAMILY, Work::Going(VersionId(FAMILY.0))), &[]);
    }),
    (Kind::ReapMalformed, |w| {
        let place = Work::Place(VersionId(KEY.0 + 9), TreeId::INODES, &[0; 16]);
        w.image.put(TreeId::REAP, &reap_key(FAMILY, place), &[]);
    }),
    (Kind::HeldStray, |w| {
        w.image.put(TreeId::HELD, &held_key(FAMILY, VersionKey(KEY.0 + 9), TreeId::INODES, &[0; 16]), &[]);
    }),
    (Kind::SubvolumeVersion, |w| {
        let record = VersionRecord { refs: 0, ..VersionRecord::implicit(FAMILY) };
        w.image.put(TreeId::VERSIONS, &encode_key(FAMILY, VersionId(FAMILY.0 + 9)), &record.encode());
    }),
    (Kind::KeyframeMalformed, World::keyframe_of_names),
    (Kind::ExtentOwnerless, World::extent_of_names),
];

/// Damage to bytes that a checksum guards.
pub const BYTES: &[(Kind, Plant)] = &[
    (Kind::LabelDamaged, |w| {
        let at = w.image.device.size_bytes() - BLOCK_BYTES as u64;
        w.image.device.write_at(at, &AlignedBuf::from_slice(&[0x5a; BLOCK_BYTES])).unwrap();
    }),
    (Kind::LabelDamaged, |w| {
        let mut label = AlignedBuf::new(BLOCK_BYTES);
        w.image.device.read_at(0, &mut label).unwrap();
        label[8] ^= 1;
        w.image.device.write_at(0, &label).unwrap();
    }),
    (Kind::SuperblockDamaged, |w| {
        let at = slot_offset(w.older_slot(), w.image.device.size_bytes());
        w.image.device.write_at(at, &AlignedBuf::from_slice(&[0x5a; BLOCK_BYTES])).unwrap();
    }),
    (Kind::SuperblockDamaged, |w| {
        // The newest, in one slot: the log says that it had been written.
        w.log(|payload| batch::id_floor_op(payload, 5));
        let slot = SLOTS_PER_END + w.image.superblock.generation % SLOTS_PER_END;
        let at = slot_offset(slot, w.image.device.size_bytes());
        w.image.device.write_at(at, &AlignedBuf::from_slice(&[0x5a; BLOCK_BYTES])).unwrap();
    }),
    (Kind::LogDamaged, |w| {
        // Two batches, the first of them lost; the second says that it had been flushed.
        w.log(|payload| batch::id_floor_op(payload, 5));
        let s = w.image.superblock.clone();
        let at = RING_START + s.log_start % (8 << 20);
        let mut block = AlignedBuf::new(BLOCK_BYTES);
        w.image.device.read_at(at, &mut block).unwrap();
        let (header, ..) = batch::decode_header(&block, &s.pool_id).unwrap();
        let header = BatchHeader { sequence: header.sequence + 1, ..header };
        batch::seal(&header, &mut block);
        w.image.device.write_at(at + BLOCK_BYTES as u64, &block).unwrap();
        w.image.device.write_at(at, &AlignedBuf::new(BLOCK_BYTES)).unwrap();
    }),
    (Kind::RootUnreadable, |w| {
        w.image.superblock.root.copies().for_each(|addr| w.image.write(addr, &[0x5a; BLOCK_BYTES]));
    }),
    (Kind::ArrayUnreadable, |w| {
        w.image.root.bitmap.ptr.copies().for_each(|addr| w.image.write(addr, &[0x5a; BLOCK_BYTES]));
    }),
    (Kind::NodeUnreadable, |w| {
        let key = w.middle(TreeId::INODES);
        w.spoil_leaf(TreeId::INODES, &key, 2);
    }),
    (Kind::NodeCopyDamaged, |w| {
        let key = w.middle(TreeId::INODES);
        w.spoil_leaf(TreeId::INODES, &key, 1);
    }),
    (Kind::DataUnreadable, |w| {
        w.image.write(PoolAddr(w.extent(w.file, 0).addr.0 + 4096), &[0x5a; BLOCK_BYTES])
    }),
];

impl World {
    fn again_inode(&self) -> InodeRecord {
        let mut record = self.inode(self.link);
        (record.kind, record.inline, record.size) = (InodeKind::File, Some(Vec::new()), 0);
        record.data.family = FamilyId(self.small.0);
        record.data.version = VersionId(self.small.0);
        record
    }
}
