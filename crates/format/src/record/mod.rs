//! Keys and values of the trees: one file a kind of record.
pub mod extent;
pub mod version;
