//! The end of a mount: the pool is closed once, whoever asks first, and everybody who waits is told.

use std::sync::{Arc, OnceLock};

use varve_mount::{Health, Outside};

use crate::control::{Closed, Ending, Server};
use crate::current::Current;
use crate::names::in_words;
use crate::pool_file::PoolFile;
use crate::utab::Note;

/// What there is to close.
pub struct Closing {
    current: Arc<Current>,
    file: Arc<PoolFile>,
    health: Arc<Health>,
    outside: Outside,
    server: Option<Server>,
    note: Note,
    closed: OnceLock<Closed>,
}

impl Closing {
    /// Nothing is closed yet.
    pub fn new(
        current: Arc<Current>,
        file: Arc<PoolFile>,
        health: Arc<Health>,
        outside: Outside,
        server: Option<Server>,
        note: Note,
    ) -> Self {
        Closing { current, file, health, outside, server, note, closed: OnceLock::new() }
    }

    /// Whether all that was written is kept, once the pool has been closed.
    pub fn keeps_all(closed: &Closed) -> bool {
        matches!(closed, Ok(Ending::Durable))
    }

    /// Makes everything durable, closes the pool and says how it went. A second caller waits for the first.
    pub fn finish(&self) -> &Closed {
        self.closed.get_or_init(|| {
            if let Some(server) = &self.server {
                server.remove_socket();
            }
            // Some may still use it, after a signal.
            self.health.end_changes();
            // Before the pool is closed as well: that writes its end, and what was cut is as long as before then.
            self.file.look();
            // A panic in it is one of the mount.
            let _ = self.current.store_unstored(&self.outside);
            let unstored = self.outside.unstored().map(|(files, ino, error)| {
                format!(
                    "what was changed through mmap in {files} files (inode {} is one) could not be stored, and is lost: {}",
                    varve_fs::shown_number(ino),
                    in_words(&error)
                )
            });
            let ended = if self.health.panicked() {
                Err((
                    "a bug in VarveFS was hit while the pool was mounted, and nothing was written after that"
                        .to_owned(),
                    " before",
                ))
            } else {
                self.current.close().map_err(|error| (format!("closing the pool failed: {error}"), ""))
            };
            let loss = self.file.look().and_then(|report| report.loss).or(unstored);
            let closed = match (ended, loss) {
                (Ok(()), None) => Ok(Ending::Durable),
                (Ok(()), Some(loss)) => Ok(Ending::Lost(loss)),
                (Err((error, before)), None) => {
                    Err(format!("{error}; mount it again: everything that was synced{before} is there"))
                }
                (Err((error, _)), Some(loss)) => Err(format!("{error}; {loss}")),
            };
            // The pool waits for nobody's lock; who is told that it is closed finds no note.
            self.note.remove();
            match &closed {
                Ok(Ending::Durable) => tracing::info!("unmounted; everything is durable"),
                Ok(Ending::Lost(loss)) => tracing::error!("unmounted; {loss}"),
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
