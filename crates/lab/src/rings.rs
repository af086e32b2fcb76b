//! FUSE over io_uring for as long as an experiment runs. Kernels have it switched off; a mount asks for it once, when it
//! begins, so the switch matters only then.

use std::fs;

use anyhow::{Context, Result};

/// The kernel's switch.
pub const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";

/// Switched on. Dropping it puts the switch back as it was.
#[derive(Debug)]
pub struct Switched {
    before: String,
}

impl Switched {
    /// Switches it on. An error where the kernel has no such switch (Linux 6.14 and later do), or only root may.
    pub fn on() -> Result<Switched> {
        let before = fs::read_to_string(SWITCH)
            .with_context(|| {
                format!("this kernel has no FUSE over io_uring ({SWITCH}, Linux 6.14 and later)")
            })?
            .trim()
            .to_owned();
        fs::write(SWITCH, "Y").with_context(|| format!("cannot switch FUSE over io_uring on in {SWITCH}"))?;
        Ok(Switched { before })
    }
}

impl Drop for Switched {
    fn drop(&mut self) {
        if let Err(error) = fs::write(SWITCH, &self.before) {
            eprintln!("lab: {SWITCH} could not be put back to {}: {error}", self.before);
        }
    }
}

/// Whether mounts that begin now get rings; `None`: the kernel has none.
#[must_use]
pub fn enabled() -> Option<bool> {
    Some(fs::read_to_string(SWITCH).ok()?.trim() == "Y")
}
