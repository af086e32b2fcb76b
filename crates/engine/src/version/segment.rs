//! Segments
