//! Bounds that tests of the whole have low, so that they come to them.

#[cfg(feature = "internals")]
use std::sync::atomic::{AtomicBool, Ordering};

#[cfg(feature = "internals")]
static LOW: AtomicBool = AtomicBool::new(cfg!(test));

/// From now on, in this process, bounds are low.
#[cfg(feature = "internals")]
pub fn lower() {
    LOW.store(true, Ordering::Relaxed);
}

/// `usual`, or `low` if tests have asked for it.
#[inline]
pub(crate) fn bound(usual: usize, low: usize) -> usize {
    #[cfg(feature = "internals")]
    if LOW.load(Ordering::Relaxed) {
        return low;
    }
    let _ = low;
    usual
}
