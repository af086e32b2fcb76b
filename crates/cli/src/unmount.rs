//! `varve unmount`: ends a mount and returns when everything is durable and its process is gone, so that the pool can be
//! used again at once.

use std::path::Path;

use anyhow::{Context, Result, anyhow, bail};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::OwnedFd;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::args::UnmountArgs;
use crate::control::Client;
use crate::mountinfo::{self, Mount, MountTable};
use crate::names::{Shown, in_words};
use crate::{Outcome, pool};

/// Runs the command.
pub fn run(args: &UnmountArgs) -> Result<Outcome> {
    let shown = args.mountpoint.shown();
    let path = mountinfo::resolve(&args.mountpoint).map_err(|error| {
        anyhow!("cannot find {shown}: {}; give the directory that the pool is mounted on", in_words(&error))
    })?;
    let table = MountTable::read()?;
    let mount = match table.at(&path) {
        Some(mount) if mount.is_ours() => mount,
        Some(mount) => {
            bail!("{shown} is a mount of type {}, not a pool; use umount {shown}", mount.filesystem_type)
        }
        None => return Err(no_mount(&table, &path)),
    };
    if mount.is_dead() {
        varve_mount::unmount(&path, true)
            .with_context(|| format!("cannot take the dead mount on {shown} away"))?;
        bail!(
            "the process that served {shown} had ended, so the dead mount was only taken away; \
             mount {} again: everything that was synced is there",
            mount.source.shown()
        );
    }

    let server = Server::find(mount)?;
    varve_mount::unmount(&path, false).map_err(|error| busy(&path, &error))?;
    match server {
        Some(server) => server.wait(mount).map(|()| Outcome::Done),
        None => bail!(
            "{shown} was unmounted, but its process could not be asked whether everything is durable; \
             varve check {} will be refused until it is",
            mount.source.shown()
        ),
    }
}

fn no_mount(table: &MountTable, path: &Path) -> anyhow::Error {
    let shown = path.shown();
    match table.containing(path).filter(|mount| mount.is_ours()) {
        Some(mount) => {
            let place = mount.mountpoint.shown();
            anyhow!("{shown} lies inside the mount at {place}; to unmount that: varve unmount {place}")
        }
        None => match pool::mounted_at(path) {
            Some(place) => anyhow!(
                "{shown} is the pool that is mounted on {place}; to unmount that: varve unmount {place}"
            ),
            None => anyhow!(
                "no pool is mounted on {shown}; the directory it is mounted on is wanted (findmnt shows all)"
            ),
        },
    }
}

fn busy(path: &Path, error: &std::io::Error) -> anyhow::Error {
    let shown = path.shown();
    match error.kind() {
        std::io::ErrorKind::ResourceBusy => {
            anyhow!("{shown} is in use; close what uses it and try again (fuser -vm {shown} shows who does)")
        }
        std::io::ErrorKind::PermissionDenied => anyhow!("you may not unmount {shown}"),
        _ => anyhow!("cannot unmount {shown}: {error}"),
    }
}

/// The process that serves a mount, held on to from before the unmount.
struct Server {
    client: Client,
    process: OwnedFd,
}

impl Server {
    fn find(mount: &Mount) -> Result<Option<Server>> {
        let Some(mut client) = Client::connect(mount)? else { return Ok(None) };
        let answer = client.request("wait")?;
        let pid = answer
            .get("pid")
            .and_then(|pid| i32::try_from(pid.as_i64()?).ok())
            .and_then(Pid::from_raw)
            .context("the process that serves the mount does not say who it is")?;
        // It cannot have ended and its number been reused: it has just spoken, and serves a live mount.
        let process = pidfd_open(pid, PidfdFlags::empty()).with_context(|| {
            format!("cannot watch process {} that serves the mount", pid.as_raw_nonzero())
        })?;
        Ok(Some(Server { client, process }))
    }

    /// Waits for the last word and the end of the process.
    fn wait(mut self, mount: &Mount) -> Result<()> {
        let last_word = self.client.next_line();
        loop {
            match poll(&mut [PollFd::new(&self.process, PollFlags::IN)], None) {
                Ok(_) => break,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error).context("cannot wait for the process that served the mount"),
            }
        }
        last_word?.map(|_| ()).ok_or_else(|| {
            anyhow!(
                "the process that served {} ended before it had closed the pool; \
                 mount {} again: everything that was synced is there",
                mount.mountpoint.shown(),
                mount.source.shown()
            )
        })
    }
}
