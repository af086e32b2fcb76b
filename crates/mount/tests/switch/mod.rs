//! The kernel's switch of FUSE over io_uring, which is one for all tests of a machine.

use std::fs::File;

/// Held by who wants rings of a kernel that has them switched off: tests of the command line switch them on and off meanwhile, and know
/// this name, too. `None`: the file is another user's, who alone may switch.
pub fn hold() -> Option<File> {
    let file = File::create(std::env::temp_dir().join("varve-tests-rings.lock")).ok()?;
    file.lock().is_ok().then_some(file)
}
