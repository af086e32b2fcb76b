//! Keys and values of the trees: one file a kind of record.
