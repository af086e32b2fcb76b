//! Which signals whoever started this program has had ignored: nohup does so with SIGHUP, a shell with SIGINT for what it starts beside itself.

/// A bit for each, from number 1 on.
pub struct Ignored(u64);

impl Ignored {
    /// As it is now: a signal that is handled is not ignored any more.
    pub fn now() -> Ignored {
        Ignored(mask().unwrap_or(0))
    }

    /// Whether this one is.
    pub fn has(&self, signal: i32) -> bool {
        self.0 & (1 << (signal - 1)) != 0
    }
}

fn mask() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"))?;
    u64::from_str_radix(mask.trim(), 16).ok()
}
