//! Which process something belongs to. After fork(2) without exec the child has a copy of all that is in memory, and shares with
//! its parent the open files, their locks and the rings of io_uring: what was opened before is the parent's alone.
//!
//! The kernel tells: it gives a child one page of ours empty (MADV_WIPEONFORK), whichever way it was forked. So asking costs a read
//! of memory; the process's id would cost a system call each time, which is much beside a call that finds all in memory.
//! Kernels before 4.14 do not know that: there it is the id.

use std::ffi::c_void;
use std::ptr::{self, NonNull};
use std::sync::LazyLock;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

/// In the page: this process's number; 0 until it has one, as after a fork.
static MARK: LazyLock<Option<&'static AtomicU64>> = LazyLock::new(new_mark);
/// The next number. A child goes on where its parent was, so it gets none that an ancestor has.
static NEXT: AtomicU64 = AtomicU64::new(1);

/// A process.
#[derive(Debug, Clone, Copy)]
pub struct Process {
    mark: Option<&'static AtomicU64>,
    number: u64,
}

impl Process {
    /// The one that asks.
    #[must_use]
    pub fn current() -> Process {
        let mark = *MARK;
        let number = mark.map_or_else(|| std::process::id().into(), number_in);
        Process { mark, number }
    }

    /// Whether it is the one that asks, and not one that this was forked from.
    #[must_use]
    pub fn is_current(&self) -> bool {
        let number = self.mark.map_or_else(|| std::process::id().into(), |mark| mark.load(Relaxed));
        number == self.number
    }
}

fn number_in(mark: &AtomicU64) -> u64 {
    match mark.load(Relaxed) {
        0 => {
            let new = NEXT.fetch_add(1, Relaxed);
            mark.compare_exchange(0, new, Relaxed, Relaxed).map_or_else(|other| other, |_| new)
        }
        number => number,
    }
}

/// Whether the advice is taken, and not only accepted: emulators there are (older qemu-user) say yes to everything.
fn heeded(page: *mut c_void, advise: impl Fn(*mut c_void) -> bool) -> bool {
    // No page begins there.
    !advise(page.wrapping_byte_add(1)) && advise(page)
}

/// A page of zeros that a child does not get the contents of, for as long as the process lives.
fn new_mark() -> Option<&'static AtomicU64> {
    let len = rustix::param::page_size();
    // SAFETY: a mapping of the kernel's choice overlaps nothing that is there.
    let mapped = unsafe {
        mmap_anonymous(ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
    };
    let page = NonNull::new(mapped.ok()?)?;
    // SAFETY: advice about memory that is ours, and that nobody uses yet; or about what cannot be advised.
    let advise = |at: *mut c_void| unsafe { madvise(at, len, Advice::LinuxWipeOnFork) }.is_ok();
    if !heeded(page.as_ptr(), advise) {
        // SAFETY: nobody refers to it.
        let _ = unsafe { munmap(page.as_ptr(), len) };
        return None;
    }
    // SAFETY: it is zeros, aligned, never unmapped, and used as nothing else.
    Some(unsafe { page.cast::<AtomicU64>().as_ref() })
}

#[cfg(test)]
mod tests {
    use super::*;

    // Goal: advice that is accepted whatever it says is not relied on; that of a kernel is. Method: an answer that is always yes, one that is
    // always no, and one that knows pages.
    #[test]
    fn advice_that_is_not_taken_is_not_relied_on() {
        let page = ptr::dangling_mut::<[u64; 512]>().cast();
        assert!(!heeded(page, |_| true));
        assert!(!heeded(page, |_| false));
        assert!(heeded(page, |at| at == page));
    }
}
