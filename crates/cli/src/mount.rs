//! `varve mount`: checks what can be checked before anything is touched, then serves the mount here (`--foreground`) or
//! starts a process that does, and returns when it answers.
//!
//! The background process is this program started anew, not a fork: it begins with one thread and a clean slate.

use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, anyhow, bail};

use crate::args::MountArgs;
use crate::mountinfo::{self, MountTable};
use crate::names::Shown;
use crate::options::{self, Options};
use crate::{Outcome, Usage, control, create, daemon, log, remount, whose};

/// Dead mounts on top of each other that are taken away, at most.
const DEAD_MOUNTS_MAX: usize = 16;

/// The operation failed and everything about it has been printed or logged.
#[derive(Debug)]
pub struct Reported;

impl std::fmt::Display for Reported {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("failed; the reason has been given")
    }
}

impl std::error::Error for Reported {}

/// Runs the command.
pub fn run(args: &MountArgs) -> Result<Outcome> {
    if options::asks_remount(&args.options) {
        let ignored = [
            ("--create", args.create.is_some()),
            ("--foreground", args.foreground),
            ("--cache-size", args.cache_size.is_some()),
            ("--log", args.log.is_some()),
        ];
        if let Some((option, _)) = ignored.iter().find(|(_, given)| *given) {
            let text = format!(
                "{option} is of no use with -o remount, which changes a mount that is there; leave it away, or unmount and \
                 mount again with it"
            );
            return Err(Usage(text).into());
        }
        return remount::run(Some(&args.pool), &args.mountpoint, &args.options, false);
    }
    let root = rustix::process::geteuid().is_root();
    let mut options = if args.sloppy {
        Options::parse_sloppily(&args.options, root)?
    } else {
        Options::parse(&args.options, root)?
    };
    if let Some(cache_bytes) = args.cache_size {
        options.cache_bytes = cache_bytes;
    }
    if let Some(path) = &args.log {
        options.log = Some(path.clone());
    }
    if args.daemon_child {
        return daemon::serve(args, &options);
    }
    if options.discard {
        crate::tell(
            "varve mount: the option discard changes nothing: run fstrim or varve trim once a week or so instead",
        );
    }
    let mountpoint = free_mountpoint(&args.mountpoint)?;
    if let Some(path) = &options.log {
        log::must_lie_outside(path, &mountpoint)?;
    }
    if let Some(size_bytes) = args.create
        && !args.pool.exists()
    {
        create::create_file(&args.pool, size_bytes)?;
    }
    if args.foreground { daemon::serve(args, &options) } else { start_daemon(args) }
}

/// Makes sure that the mount point is a directory without a mount of ours on it, taking dead ones away; gives its path without symbolic
/// links.
fn free_mountpoint(mountpoint: &Path) -> Result<PathBuf> {
    let shown = mountpoint.shown();
    for _ in 0..DEAD_MOUNTS_MAX {
        let path: PathBuf = mountinfo::resolve(mountpoint).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => anyhow!("{shown} does not exist; make it first: mkdir {shown}"),
            _ => anyhow!("cannot use {shown} as a mount point: {error}"),
        })?;
        let table = MountTable::read()?;
        match table.at(&path).filter(|mount| mount.is_ours()) {
            Some(mount) if control::has_ended(mount) => {
                varve_mount::unmount(&path, true)
                    .with_context(|| format!("cannot take the dead mount on {shown} away"))?;
                crate::tell(&format!(
                    "varve mount: took away a dead mount of {} on {shown}; the process that served it had ended",
                    mount.source.shown()
                ));
            }
            Some(mount) => bail!(
                "{} is mounted on {shown} already; unmount it first (varve unmount {shown}) or use another directory",
                whose::pool_of(mount)
            ),
            None => {
                let metadata =
                    path.metadata().with_context(|| format!("cannot use {shown} as a mount point"))?;
                if !metadata.is_dir() {
                    bail!("{shown} is not a directory; a pool is mounted on a directory");
                }
                return Ok(path);
            }
        }
    }
    bail!(
        "there are more than {DEAD_MOUNTS_MAX} dead mounts on {shown}; take them away with: umount -l {shown}"
    )
}

/// Starts this program again, and waits until it says that the mount answers. If it fails it says why on the standard
/// error that we share.
fn start_daemon(args: &MountArgs) -> Result<Outcome> {
    let program = std::env::current_exe()
        .ok()
        .filter(|path| path.exists())
        .unwrap_or_else(|| PathBuf::from("/proc/self/exe"));
    let name = std::env::args_os().next().unwrap_or_else(|| "varve".into());
    let mut child = Command::new(program)
        .arg0(name)
        .args(daemon_words(args))
        // We are what a service manager started, if one did.
        .env_remove("NOTIFY_SOCKET")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start the background process")?;
    let output = child.stdout.take().expect("standard output was asked to be a pipe");
    let mut line = String::new();
    BufReader::new(output).read_line(&mut line).context("cannot hear from the background process")?;
    if line == daemon::READY {
        return Ok(Outcome::Done);
    }
    let status = child.wait().context("cannot wait for the background process")?;
    match status.signal() {
        Some(signal) => {
            bail!("the background process was ended by signal {signal} before the mount answered")
        }
        None => Err(Reported.into()),
    }
}

/// The command line of the background process: the same mount, whatever command line this process was started with.
fn daemon_words(args: &MountArgs) -> Vec<OsString> {
    let mut words: Vec<OsString> = vec!["mount".into(), "--daemon-child".into()];
    for list in &args.options {
        words.extend(["-o".into(), list.into()]);
    }
    if args.sloppy {
        words.push("--sloppy".into());
    }
    if let Some(bytes) = args.cache_size {
        words.extend(["--cache-size".into(), bytes.to_string().into()]);
    }
    if let Some(path) = &args.log {
        words.extend(["--log".into(), path.into()]);
    }
    #[cfg(feature = "record")]
    if let Some(path) = &args.record_log {
        words.extend(["--record-log".into(), path.into()]);
    }
    words.extend(["--".into(), (&args.pool).into(), (&args.mountpoint).into()]);
    words
}
