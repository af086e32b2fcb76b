//! The end of a mount: the pool is closed once, whoever asks first, and everybody who waits is told.

use std::sync::{Arc, OnceLock};

use varve_mount::Health;

use crate::control::{Closed, Server};
use crate::current::Current;
use crate::utab::Note;

/// What there is to close.
pub struct Closing {
    current: Arc<Current>,
    health: Arc<Health>,
    server: Option<Server>,
    note: Note,
    closed: OnceLock<Closed>,
}

impl Closing {
    /// Nothing is closed yet.
    pub fn new(current: Arc<Current>, health: Arc<Health>, server: Option<Server>, note: Note) -> Self {
        Closing { current, health, server, note, closed: OnceLock::new() }
    }

    /// Makes everything durable, closes the pool and says how it went. A second caller waits for the first.
    pub fn finish(&self) -> &Closed {
        self.closed.get_or_init(|| {
            if let Some(server) = &self.server {
                server.remove_socket();
            }
            // Some may still use it, after a signal.
            self.health.end_changes();
            let closed = if self.health.panicked() {
                Err("a bug in VarveFS was hit while the pool was mounted, and nothing was written after that; \
                     mount it again: everything that was synced before is there"
                    .to_owned())
            } else {
                self.current.close().map_err(|error| {
                    format!("closing the pool failed: {error}; mount it again: everything that was synced is there")
                })
            };
            // The pool waits for nobody's lock; who is told that it is closed finds no note.
            self.note.remove();
            match &closed {
                Ok(()) => tracing::info!("unmounted; everything is durable"),
                Err(error) => tracing::error!("{error}"),
            }
            if let Some(server) = &self.server {
                server.announce(&closed);
                server.wait_answered();
            }
            closed
        })
    }
}
