//! Versioned maps: see design; to be written.
