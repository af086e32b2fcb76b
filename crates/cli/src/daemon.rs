//! The process behind a mount: open (and recover) the pool, mount it, answer, close when it is unmounted.
//!
//! Order of the end: the session is over (no request is being served), the pool is closed (everything is durable), those
//! who wait are told, the process ends (the lock on the pool goes with it).

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::{Value, json};
use varve_fs::Caller;
use varve_mount::{Flags, MountOptions, Mounted, Outside, Policy};

use crate::args::MountArgs;
use crate::closing::Closing;
use crate::control::{Server, Service};
use crate::current::{Current, Opening};
use crate::log::LogFile;
use crate::mount::Reported;
use crate::names::{Shown, in_words};
use crate::options::Options;
use crate::pool_file::PoolFile;
use crate::shutdown::Noted;
use crate::versions::PANICKED;
use crate::{Outcome, log, pool, stats, trim, unstored, utab, versions};

/// What the process that started us waits for on our standard output.
pub const READY: &str = "ready\n";

/// Serves the mount until it is unmounted. Messages go to standard error until the mount answers.
pub fn serve(args: &MountArgs, options: &Options) -> Result<Outcome> {
    log::start();
    if args.daemon_child {
        // Away from the terminal that started us, so that its end is not ours.
        rustix::process::setsid().context("cannot start a session")?;
    }
    let pool = pool::resolve_to_mount(&args.pool, options.flags.read_only)?;
    let log_file = options.log.as_deref().map(LogFile::open).transpose()?;
    #[cfg(feature = "record")]
    let record_log = args.record_log.clone();
    #[cfg(not(feature = "record"))]
    let record_log = None;
    let opening = Opening { pool: pool.clone(), options: options.clone(), record_log };
    let is_wanted = || !args.daemon_child || !starter_is_gone();
    let current = Arc::new(Current::open(opening, &is_wanted)?);

    let mount_options = MountOptions {
        source: options.source.clone().map_or_else(|| pool.clone().into_os_string(), OsString::from),
        flags: options.flags,
        allow_other: options.allow_other,
        threads: options.threads,
        direct_io: options.direct_io,
        rings: options.rings,
    };
    let mounted = Noted::begin().and_then(|signals| {
        if !is_wanted() {
            bail!("who wanted {} mounted has ended; it is not mounted", pool.shown());
        }
        let mounted = match current.verbs() {
            Ok(filesystem) => Mounted::start(filesystem, &args.mountpoint, &mount_options),
            Err(exchange) => Mounted::start(exchange, &args.mountpoint, &mount_options),
        };
        Ok((signals, mounted?))
    });
    let (signals, mounted) = match mounted {
        Ok(mounted) => mounted,
        Err(error) => {
            // Recovery may have changed something: leave the pool closed.
            if let Err(error) = current.close() {
                tracing::warn!("closing {} again failed: {error}", pool.shown());
            }
            return Err(error);
        }
    };
    let mountpoint = mounted.mountpoint().to_path_buf();
    let file = Arc::new(PoolFile::new(current.clone(), &pool, &mountpoint));
    file.watch();
    unstored::watch(&current, mounted.outside());
    let closing = Arc::new(Closing::new(
        current.clone(),
        file.clone(),
        mounted.health().clone(),
        mounted.outside().clone(),
        start_server(&mounted, &current, &file, &pool, options),
        utab::Note::add(&mount_options.source.to_string_lossy(), &mountpoint),
    ));
    if let Err(error) = signals.handle(mountpoint.clone(), mounted.device(), closing.clone()).and_then(|()| {
        rustix::fs::statvfs(&mountpoint).context("the mount does not answer")?;
        tell_ready(args, log_file)
    }) {
        // Nobody would know of this mount: take it away again, and nothing that somebody has mounted over it.
        let _ = varve_mount::unmount_device(&mountpoint, mounted.device(), true);
        let _ = closing.finish();
        return Err(error);
    }
    tracing::info!("mounted {} at {}", pool.shown(), mountpoint.shown());

    let device = mounted.device();
    if let Err(error) = mounted.wait() {
        tracing::error!("{error}; unmounting {}", mountpoint.shown());
        // Perhaps it is gone already, and another one there.
        let _ = varve_mount::unmount_device(&mountpoint, device, true);
    }
    if Closing::keeps_all(closing.finish()) { Ok(Outcome::Done) } else { Err(Reported.into()) }
}

/// Whether nobody reads our standard output, a pipe, any more: the process that started us has been ended. Who did that does not expect a mount
/// to appear afterwards.
fn starter_is_gone() -> bool {
    let output = std::io::stdout();
    let mut polled = [PollFd::new(&output, PollFlags::empty())];
    let asked = poll(&mut polled, Some(&Timespec::default()));
    asked.is_ok() && polled[0].revents().contains(PollFlags::ERR)
}

/// The mount works without its control socket; other commands have to do without it then.
fn start_server(
    mounted: &Mounted,
    current: &Arc<Current>,
    file: &Arc<PoolFile>,
    pool: &Path,
    options: &Options,
) -> Option<Server> {
    let service = Served {
        current: current.clone(),
        file: file.clone(),
        pool: pool.to_path_buf(),
        mountpoint: mounted.mountpoint().to_path_buf(),
        options: options.clone(),
        policy: mounted.policy().clone(),
        outside: mounted.outside().clone(),
        rings: mounted.rings(),
    };
    Server::start(mounted.device(), Arc::new(service))
        .inspect_err(|error| {
            tracing::warn!("{error:#}: varve sync, stats and unmount cannot reach this mount");
        })
        .ok()
}

struct Served {
    current: Arc<Current>,
    file: Arc<PoolFile>,
    pool: PathBuf,
    mountpoint: PathBuf,
    options: Options,
    policy: Arc<Policy>,
    outside: Outside,
    rings: bool,
}

impl Served {
    /// Runs what only looks: a bug met in it ends all changes, as one met in any other request does.
    fn look<T>(&self, verb: &'static str, body: impl FnOnce() -> T) -> Result<T> {
        self.outside.look(verb, body).context(PANICKED)
    }
}

impl Service for Served {
    fn versions(&self, caller: Caller, request: &str) -> Result<Value> {
        let log_ended_reason = self.current.log_ended_reason();
        self.look("versions", || {
            self.current.with(|filesystem| {
                let (outside, policy) = (&self.outside, &self.policy);
                let current = &*self.current;
                let mounted = versions::Mounted { filesystem, current, outside, policy, log_ended_reason };
                versions::serve(&mounted, caller, request)
            })
        })?
    }

    fn stats(&self) -> Result<Value> {
        let collect = |filesystem: &_| stats::collect(filesystem, &self.pool, Some(&self.mountpoint));
        let mut stats = self.look("stats", || self.current.with(collect))?;
        if self.outside.panicked() {
            stats.note_panic();
        }
        stats.durable_at_once = match (self.policy.durable(), self.policy.durable_names()) {
            (true, _) => Some("everything".into()),
            (false, true) => Some("names".into()),
            (false, false) => None,
        };
        stats.rings = Some(self.rings);
        if let Some(report) = self.file.look() {
            stats.note_file(report);
        }
        stats.log_ended_reason = self.current.log_ended_reason();
        Ok(serde_json::to_value(stats)?)
    }

    fn sync(&self) -> Result<()> {
        self.store_unstored().context(PANICKED)?;
        let synced = self.outside.change("sync", || self.current.with(|filesystem| filesystem.sync()));
        synced.context(PANICKED)??;
        match self.outside.unstored() {
            None => Ok(()),
            Some((files, ino, error)) => Err(anyhow::Error::from(error).context(format!(
                "{files} files show changes made through mmap that could not be stored (find -inum {} finds one); have them stored \
                 again, or copy the files elsewhere, and remove or cut them",
                varve_fs::shown_number(ino)
            ))),
        }
    }

    fn checkpoint(&self) -> Result<()> {
        let done =
            self.outside.change("checkpoint", || self.current.with(|filesystem| filesystem.checkpoint()));
        Ok(done.context(PANICKED)??)
    }

    fn objection(&self) -> Option<String> {
        let lost = self.file.look().and_then(|report| report.advice.filter(|_| report.loss.is_some()));
        lost.or_else(|| {
            // What is still there after a panic is lost, too.
            let _ = self.store_unstored();
            let (files, ino, error) = self.outside.unstored()?;
            Some(format!(
                "{files} files show changes made through mmap that could not be stored, and would be lost (find -inum {} finds one): {}; make \
                 room, or copy the files elsewhere, then end this mount (varve unmount --force {})",
                varve_fs::shown_number(ino),
                in_words(&error),
                self.mountpoint.shown()
            ))
        })
    }

    fn trim(&self, request: &str) -> Result<Value> {
        let trim = || self.current.with(|filesystem| trim::serve(filesystem, request));
        self.outside.change("trim", trim).context(PANICKED)?
    }

    fn remount(&self, words: &str) -> Result<Value> {
        let flags = Flags { durable_names: self.policy.durable_names(), ..self.options.flags };
        let wanted = Options::parse_remount(&[words.to_owned()], flags)?;
        if wanted.flags.read_only {
            self.policy.set(wanted.flags);
            // The kernel has been told already, so nothing comes after this.
            self.sync()?;
        } else {
            self.current.make_writable(&self.outside)?;
            self.policy.set(wanted.flags);
        }
        Ok(json!({
            "cache_size": self.options.cache_bytes,
            "dirty_bytes": self.options.dirty_bytes_max,
            "threads": self.options.threads,
            "direct_io": self.options.direct_io,
            "allow_other": self.options.allow_other,
            "rings": self.rings,
            "log": self.options.log.as_ref().map(|log| log.shown()),
        }))
    }
}

impl Served {
    /// Not beside closing, which does it itself.
    fn store_unstored(&self) -> Option<()> {
        match self.current.begin_change() {
            Ok(_changing) => self.current.store_unstored(&self.outside),
            Err(_) => Some(()),
        }
    }
}

/// Says to systemd that a service of type `notify` has started (sd_notify(3)); it chooses the socket. Everything works
/// without. A mount in the background does not say it: the service may be that of a script which mounts and goes on, and which
/// waits for us.
fn tell_service_manager() {
    use std::os::linux::net::SocketAddrExt;
    let Some(name) = std::env::var_os("NOTIFY_SOCKET") else { return };
    let address = match name.as_bytes() {
        [b'@', rest @ ..] => SocketAddr::from_abstract_name(rest),
        path => SocketAddr::from_pathname(Path::new(OsStr::from_bytes(path))),
    };
    let told = address.and_then(|address| UnixDatagram::unbound()?.send_to_addr(b"READY=1", &address));
    if let Err(error) = told {
        tracing::warn!("cannot tell the service manager that the mount is ready: {error}");
    }
}

/// The mount answers: whoever waits may go on, and we have no terminal any more.
fn tell_ready(args: &MountArgs, log_file: Option<LogFile>) -> Result<()> {
    match log_file {
        Some(file) => log::to_file(file),
        None if args.daemon_child => log::to_system(),
        None => {}
    }
    if !args.daemon_child {
        tell_service_manager();
        return Ok(());
    }
    std::env::set_current_dir("/").context("cannot leave the current directory")?;
    let null = File::options().read(true).write(true).open("/dev/null").context("cannot open /dev/null")?;
    let mut output = std::io::stdout();
    // If whoever waited is killed between the mount and this, the mount is there all the same.
    let _ = output.write_all(READY.as_bytes()).and_then(|()| output.flush());
    rustix::stdio::dup2_stdin(null.as_fd())?;
    rustix::stdio::dup2_stdout(null.as_fd())?;
    rustix::stdio::dup2_stderr(null.as_fd())?;
    Ok(())
}
