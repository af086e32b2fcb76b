//! `varve sync`: everything written to a mount is durable when it returns.

use std::cell::Cell;
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail};
use serde_json::Value;

use crate::args::SyncArgs;
use crate::control::Client;
use crate::mountinfo::{self, Mount, MountTable};
use crate::names::{Shown, in_words};
use crate::{Outcome, pages, whose};

/// Runs the command.
pub fn run(args: &SyncArgs) -> Result<Outcome> {
    let path = mountinfo::resolve(&args.path)
        .map_err(|error| anyhow!("cannot find {}: {}", args.path.shown(), in_words(&error)))?;
    let table = MountTable::read()?;
    let Some(mount) = table.containing(&path).filter(|mount| mount.is_ours()) else {
        return Err(table.unseen(&path).unwrap_or_else(|| {
            anyhow!(
                "{} is not inside a mounted pool; give the directory of a mount, or anything in it",
                args.path.shown()
            )
        }));
    };
    let failed = || format!("syncing {} failed", mount.mountpoint.shown());
    // Who may not, or whom nobody answers, hears of it first; and nobody is kept waiting meanwhile.
    drop(connect(mount)?);
    let written = pages::write_back_mount(mount, &path);
    connect(mount)?.request("sync").with_context(failed)?;
    written.context("what was changed through mmap cannot be written").with_context(failed)?;
    Ok(Outcome::Done)
}

/// Who is asked more than once, each time with a connection of its own. The kernel gives the number of a device again, and with it
/// the name of the socket: the mount must not be another one meanwhile.
pub struct Server {
    mount: Mount,
    process: Cell<Option<i32>>,
}

impl Server {
    /// Whoever serves `mount` when the first request comes.
    pub fn of(mount: &Mount) -> Server {
        Server { mount: mount.clone(), process: Cell::new(None) }
    }

    /// Sends a request and waits for its answer.
    pub fn request(&self, word: &str) -> Result<Value> {
        let mut client = connect(&self.mount)?;
        let process = client.server();
        let before = self.process.replace(process);
        if before.is_some() && before != process {
            bail!(
                "{} has been unmounted; the same number serves another mount now",
                self.mount.mountpoint.shown()
            );
        }
        client.request(word)
    }
}

/// The process that serves `mount`, or a sentence about why it does not answer.
pub fn connect(mount: &Mount) -> Result<Client> {
    if let Some(client) = Client::connect(mount)? {
        return Ok(client);
    }
    let shown: &Path = &mount.mountpoint;
    if mount.is_dead() {
        bail!(
            "the process that served {} has ended; mount the pool again: varve mount {} {}",
            shown.shown(),
            whose::known(mount),
            shown.shown()
        );
    }
    bail!(
        "the process that serves {} has no control socket that can be reached from here, as in a sandbox or container with a /run and /tmp of \
         its own; run this where the pool was mounted: nsenter -t PID -m varve ... (with -U, too, if that is in another user namespace), PID \
         being that process (fuser shows it for the pool's file)",
        shown.shown()
    )
}
