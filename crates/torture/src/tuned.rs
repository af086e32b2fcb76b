//! Runs the simulator in a process whose allocator keeps its memory.
//!
//! Every simulated crash allocates and frees a ring and an image; with glibc's defaults most of the time goes into
//! page faults of memory that was given back a moment ago (measured: 78 against 306 crashes a second). The allocator
//! reads its settings when a process starts, so the process starts itself again with them.

use std::env;
use std::process::{Command, ExitStatus};

const SETTINGS: [(&str, &str); 2] =
    [("MALLOC_MMAP_THRESHOLD_", "1073741824"), ("MALLOC_TRIM_THRESHOLD_", "4294967296")];

fn is_tuned() -> bool {
    SETTINGS.iter().all(|(name, _)| env::var_os(name).is_some())
}

fn again() -> Option<Command> {
    if is_tuned() {
        return None;
    }
    let mut command = Command::new(env::current_exe().ok()?);
    command.envs(SETTINGS);
    Some(command)
}

/// For programs: runs this program again, tuned, and gives its status. `None` in the tuned process (or when it cannot
/// be started): go on.
pub fn program() -> Option<ExitStatus> {
    again()?.args(env::args_os().skip(1)).status().ok()
}

/// For tests: runs the test `name` of this binary again, tuned. True if that has happened and it passed; false in the
/// tuned process: go on. Panics if it failed.
pub fn test(name: &str) -> bool {
    let Some(mut command) = again() else { return false };
    let Ok(status) = command.args([name, "--exact", "--nocapture", "--test-threads=1"]).status() else {
        return false;
    };
    assert!(status.success(), "{name} failed: see above");
    true
}
