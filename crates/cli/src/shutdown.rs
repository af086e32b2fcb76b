//! SIGTERM and SIGINT end a mount as `varve unmount` does, with less patience for those who still use it. So does SIGHUP
//! where there is a terminal, which ends then; where there is none, or whoever started us has SIGHUP ignored (nohup), it comes from what
//! rotates logs, and the log file is opened anew. SIGINT that was ignored stays so: it is meant for a program beside us.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::closing::Closing;
use crate::ignored::Ignored;
use crate::log;
use crate::names::Shown;
use crate::pages;

/// How long open files may stay open after the mount has disappeared from the tree.
const GRACE: Duration = Duration::from_secs(5);

/// Signals that end nothing by themselves any more, and are noted until there is somebody who handles them.
pub struct Noted {
    signals: Signals,
    /// SIGHUP ends the mount.
    hangs_up: bool,
}

impl Noted {
    /// Notes them from now on: one that killed this process between mount(2) and its first answer would leave a dead mount and an open pool.
    pub fn begin() -> Result<Noted> {
        let ignored = Ignored::now();
        let handled =
            [SIGTERM, SIGHUP].into_iter().chain(Some(SIGINT).filter(|signal| !ignored.has(*signal)));
        let signals = Signals::new(handled).context("cannot handle signals")?;
        Ok(Noted { signals, hangs_up: File::open("/dev/tty").is_ok() && !ignored.has(SIGHUP) })
    }

    /// Handles them on a thread of its own, from now on.
    ///
    /// # Errors
    /// One that ends the mount has come already: nobody uses it yet, and the caller is to take it away.
    pub fn handle(mut self, mountpoint: PathBuf, device: (u32, u32), closing: Arc<Closing>) -> Result<()> {
        if let Some(signal) = self.signals.pending().find(|signal| *signal != SIGHUP || self.hangs_up) {
            bail!("signal {signal} came before the mount answered; it has been taken away again");
        }
        thread::Builder::new()
            .name("signals".into())
            .spawn(move || {
                for signal in &mut self.signals {
                    if signal == SIGHUP && !self.hangs_up {
                        reopen_log(signal, device);
                    } else {
                        end(signal, &mountpoint, device, &closing);
                    }
                }
            })
            .context("cannot start the thread that handles signals")?;
        Ok(())
    }
}

fn reopen_log(signal: i32, device: (u32, u32)) {
    match log::reopen(device) {
        Ok(true) => tracing::info!("signal {signal}: the log file has been opened anew"),
        Ok(false) => tracing::info!("signal {signal} changes nothing: there is no log file to open anew"),
        Err(error) => tracing::warn!("signal {signal}: {error:#}; messages go on to the file that was open"),
    }
}

/// Unmounts. With the last place where it is mounted the session ends, and with it the program, elsewhere.
fn end(signal: i32, mountpoint: &Path, device: (u32, u32), closing: &Closing) {
    tracing::info!("signal {signal}: unmounting {}", mountpoint.shown());
    if let Err(error) = varve_mount::unmount_device(mountpoint, device, false) {
        tracing::warn!(
            "{} cannot be unmounted at once ({error}); open files have {} s",
            mountpoint.shown(),
            GRACE.as_secs()
        );
        write_back(mountpoint, device);
        if let Err(error) = varve_mount::unmount_device(mountpoint, device, true) {
            tracing::warn!("{} cannot be detached: {error}", mountpoint.shown());
        }
    }
    thread::sleep(GRACE);
    // Still here: somebody holds files open, it is mounted in other places, or something has been mounted over it. What was
    // written is made durable; their next change is refused, and soon every call.
    let status = i32::from(!Closing::keeps_all(closing.finish()));
    std::process::exit(status);
}

/// Has the kernel write back what programs have stored through mmap, while it can be asked to: of a mount that has disappeared it does so
/// when the pages are old, and then nobody may be there to take them.
fn write_back(mountpoint: &Path, device: (u32, u32)) {
    let (tell, told) = mpsc::channel();
    let mountpoint = mountpoint.to_owned();
    // On a thread of its own: nothing here may wait for the mount's own answers for good.
    let asked = thread::Builder::new().name("write-back".into()).spawn(move || {
        // Nobody listens any more after a while.
        let _ = tell.send(pages::write_back_device(device, &mountpoint));
    });
    let written = asked.map(|_| told.recv_timeout(GRACE));
    if !matches!(written, Ok(Ok(Ok(())))) {
        tracing::warn!("what was changed through mmap and not synced may not all have been written back");
    }
}
