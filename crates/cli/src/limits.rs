//! What whoever started the program has set for it, and a program that keeps a pool must not end by.
//!
//! A write beyond the limit on the size of files (RLIMIT_FSIZE) sends SIGXFSZ, which ends a process that does not handle it; with a
//! handler the write fails, and whoever wrote says so. With SIGCHLD ignored, which outlives exec, nobody hears how a child
//! ended: not that fusermount3 has mounted.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use signal_hook::consts::{SIGCHLD, SIGXFSZ};

/// Handles both signals, from now on.
pub fn handle_signals() -> Result<()> {
    for signal in [SIGXFSZ, SIGCHLD] {
        // Nobody looks at the flag: that there is a handler is all.
        let flag = Arc::new(AtomicBool::new(false));
        signal_hook::flag::register(signal, flag).context("cannot handle signals")?;
    }
    Ok(())
}

/// Raises the limit on the size of files as far as this process may: of the pools it writes to, and of what it exports. Where that is
/// not far enough, opening a pool for writing is refused, and so is the file that is exported.
pub fn raise_file_size() {
    let limit = getrlimit(Resource::Fsize);
    if limit.current != limit.maximum {
        // One that stays as it is shows there.
        let _ = setrlimit(Resource::Fsize, Rlimit { current: limit.maximum, ..limit });
    }
}
