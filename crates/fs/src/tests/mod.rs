//! Tests of the filesystem on a real store.
