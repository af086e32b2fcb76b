//! Keys and values of the trees: one file a kind of record.
pub mod extent;
pub mod held;
pub mod inode;
pub mod keyframe;
pub mod name;
pub mod orphan;
pub mod reap;
pub mod shares;
pub mod subvolume;
pub mod version;
pub mod xattr;
