//! Where and from what a report comes: machine, kernel, commit, command.

use serde::Serialize;
use varve_mount::RingSwitch;

use crate::Options;

/// The part of a report that says how to get it again.
#[derive(Clone, Debug, Serialize)]
pub struct Provenance {
    /// Processor and number of cores.
    pub machine: String,
    /// Memory.
    pub memory_bytes: u64,
    /// Kernel and its release.
    pub kernel: String,
    /// Commit that the program was built from.
    pub commit: String,
    /// Whether the program was built with optimisation, or with assertions for debugging.
    pub build: String,
    /// Command line.
    pub command: String,
    /// Seconds since 1970 when it began.
    pub started_unix_s: u64,
}

impl Provenance {
    /// Of this machine and a run of the lab, now.
    #[must_use]
    pub fn here(options: &Options) -> Provenance {
        let uname = rustix::system::uname();
        let kernel = format!(
            "{} {} {}{}",
            uname.sysname().to_string_lossy(),
            uname.release().to_string_lossy(),
            uname.machine().to_string_lossy(),
            match RingSwitch::state() {
                Some(on) if on || options.rings => ", FUSE over io_uring on",
                Some(_) => ", FUSE over io_uring off",
                None => "",
            }
        );
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let started = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        Provenance {
            machine: format!(
                "{}, {cores} cores",
                field("/proc/cpuinfo", "model name").unwrap_or_else(|| "unknown processor".to_owned())
            ),
            memory_bytes: field("/proc/meminfo", "MemTotal")
                .and_then(|text| text.split(' ').next()?.parse::<u64>().ok())
                .unwrap_or(0)
                << 10,
            kernel,
            commit: env!("VARVE_LAB_COMMIT").to_owned(),
            build: if cfg!(debug_assertions) { "with debug assertions" } else { "release" }.to_owned(),
            command: options.command.clone(),
            started_unix_s: started.as_secs(),
        }
    }
}

/// The value of the first line `name: value`.
fn field(file: &str, name: &str) -> Option<String> {
    let text = std::fs::read_to_string(file).ok()?;
    text.lines()
        .find(|line| line.starts_with(name))
        .and_then(|line| Some(line.split_once(':')?.1.trim().to_owned()))
}
