//! How many clients of the control socket are served at once. Places are taken by kind, because a client that has gone
//! keeps its place for as long as what it asked for takes: syncs that wait for a disk that does not answer keep nobody from looking
//! at the counters or from unmounting.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Clients of each kind at once.
pub const CLIENTS_MAX: usize = 64;

/// Places of one kind.
#[derive(Debug, Default)]
pub struct Places(Arc<AtomicUsize>);

/// A place, until it is dropped, also by a panic.
#[derive(Debug)]
pub struct Taken(Arc<AtomicUsize>);

impl Places {
    /// `None`: there are `max` already.
    pub fn take(&self, max: usize) -> Option<Taken> {
        let taken = Taken(self.0.clone());
        // On refusal `taken` gives back what is counted here.
        (self.0.fetch_add(1, Relaxed) < max).then_some(taken)
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

/// The places of a mount's socket.
#[derive(Debug, Default)]
pub struct Admission {
    /// Everybody, until he is answered.
    pub clients: Places,
    /// Who looks at the counters.
    looking: Places,
    /// Who is about to unmount, and asks what would be lost.
    unmounting: Places,
    /// Who has asked for anything else that may take long.
    working: Places,
}

/// All who are connected: as many of each kind, and as many who have not said yet what they want or who only wait.
pub const CONNECTED_MAX: usize = 4 * CLIENTS_MAX;

impl Admission {
    /// A place for `request`. `Ok(None)`: it needs none, since it is answered at once.
    ///
    /// # Errors
    /// There are too many of its kind.
    pub fn admit(&self, request: &str) -> anyhow::Result<Option<Taken>> {
        let (places, kind) = match request {
            "ping" | "wait" => return Ok(None),
            "stats" => (&self.looking, "varve stats"),
            "objection" => (&self.unmounting, "varve unmount"),
            _ => (&self.working, "requests"),
        };
        match places.take(CLIENTS_MAX) {
            Some(taken) => Ok(Some(taken)),
            None => anyhow::bail!(
                "{CLIENTS_MAX} {kind} are being served and have not ended; try again, or see in the log and in varve stats whether the \
                 device still answers"
            ),
        }
    }
}
