//! What is said of damage that has valid checksums by whoever reads it, without a check.

use super::*;

// Goal: a node whose keys are outside the range that the node above gives it is an error for who reads it, each time, and not
// an inode that is not there. Method: the last key of a leaf of inodes is changed; its first inode is asked for, in a pool that
// is opened read-only and in one that is opened to be written.
#[test]
fn keys_outside_their_range_are_refused() {
    let world = build();
    for read_only in [true, false] {
        let mut damaged = world.again();
        let key = damaged.middle(TreeId::INODES);
        let mut first = None;
        damaged.image.edit_entries(TreeId::INODES, &key, |entries| {
            entries.truncate(4);
            let number: [u8; 8] = entries[0].0[8..16].try_into().unwrap();
            first = Some(InodeId(u64::from_be_bytes(number)));
            entries[3].0 = inode_key(FAMILY, InodeId(1 << 40), KEY).to_vec();
        });
        let options = OpenOptions {
            store: StoreOptions { read_only, background: false, ..StoreOptions::default() },
            dirty_bytes_max: 0,
            clock: Arc::new(TestClock(SimClock::new(1_700_000_000, 1000))),
            on_data_logged: None,
        };
        let device: Arc<dyn Device> = damaged.image.device.clone();
        let (fs, _) = Filesystem::open(vec![device], options).unwrap();
        let ino = first.unwrap();
        for _ in 0..2 {
            refused(fs.getattr(ino), 5);
        }
        if !read_only {
            let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
            refused(fs.setattr(Caller::ROOT, ino, set), 5);
        }
    }
}
