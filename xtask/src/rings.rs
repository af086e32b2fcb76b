//! FUSE over io_uring for as long as something runs: kernels have it switched off, and a mount asks for it once, when it
//! begins.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";

/// Puts the switch back.
struct Before(String);

impl Drop for Before {
    fn drop(&mut self) {
        if let Err(error) = fs::write(SWITCH, &self.0) {
            println!("{SWITCH} could not be put back to {}: {error}", self.0);
        }
    }
}

/// Runs it with the switch on. `None`: this machine has none, or it may not be touched, and that has been said.
pub fn with<T>(run: impl FnOnce() -> Result<T>) -> Result<Option<T>> {
    let Ok(before) = fs::read_to_string(SWITCH) else {
        println!("SKIPPED: mounts through rings. This kernel has no FUSE over io_uring (Linux 6.14)");
        return Ok(None);
    };
    if !Path::new("/dev/fuse").exists() || fs::write(SWITCH, "Y").is_err() {
        println!("SKIPPED: mounts through rings. They need root, and {SWITCH}");
        return Ok(None);
    }
    let before = Before(before.trim().to_owned());
    let result = run();
    let now = fs::read_to_string(SWITCH).context("the switch of FUSE over io_uring is gone")?;
    drop(before);
    if now.trim() != "Y" {
        println!("note: somebody else has touched {SWITCH} meanwhile");
    }
    result.map(Some)
}
