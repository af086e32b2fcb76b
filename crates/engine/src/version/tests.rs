//! Property tests
