//! Keys and values of the trees: one file a kind of record.
pub mod extent;
pub mod inode;
pub mod name;
pub mod orphan;
pub mod subvolume;
pub mod version;
pub mod xattr;
