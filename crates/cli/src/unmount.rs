//! `varve unmount`: ends a mount and returns when everything is durable and its process is gone, so that the pool can be
//! used again at once.
//!
//! The pool stays open for as long as it is mounted in another place, too, or something is open in a mount that was detached.
//! That may be for good, so after a while it is said what is waited for.

use std::path::Path;
use std::sync::mpsc::{self, RecvTimeoutError, TryRecvError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::OwnedFd;
use rustix::fs::statvfs;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde_json::Value;

use crate::args::UnmountArgs;
use crate::control::{self, Client, NO_REQUEST};
use crate::mountinfo::{self, Mount, MountTable};
use crate::names::{Shown, in_words};
use crate::{Outcome, holders, pool, whose};

/// How long nothing is said.
const SILENCE: Duration = Duration::from_secs(2);
/// How long the filesystem that holds a pool's file may take to say how full it is, and the process of a mount to make all durable before it is said
/// what is waited for.
const HOST_PATIENCE: Duration = Duration::from_secs(2);
/// A filesystem with less left is called full: what a pool writes at once finds no space there.
const HOST_BYTES_MIN: u64 = 1 << 20;

/// How an unmount ended.
pub enum Ended {
    /// The pool is closed and its process gone.
    Closed,
    /// It is unmounted here, and still served for the sake of others, as this sentence says.
    InUse(String),
    /// As [`Ended::Closed`], but what it was stored in is lost, as this sentence says.
    Lost(String),
}

/// Runs the command.
pub fn run(args: &UnmountArgs) -> Result<Outcome> {
    match unmount("varve unmount", &args.mountpoint, args.wait, args.force)? {
        Ended::Closed => Ok(Outcome::Done),
        Ended::InUse(why) => bail!("{why}"),
        // That was known.
        Ended::Lost(loss) if args.force => {
            crate::tell(&format!("varve unmount: {loss}"));
            Ok(Outcome::Done)
        }
        Ended::Lost(loss) => bail!("{} is unmounted, but {loss}", args.mountpoint.shown()),
    }
}

/// Unmounts, and waits until the pool is closed, for at most so long. What it says meanwhile begins with `name`. Without `force` a pool whose
/// file would be lost then stays mounted.
pub fn unmount(name: &str, mountpoint: &Path, limit: Option<Duration>, force: bool) -> Result<Ended> {
    let shown = mountpoint.shown();
    let path = mountinfo::resolve(mountpoint).map_err(|error| {
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
    // Where its process waits for something nothing of this is answered, and the kernel does not let go before that has taken what was
    // stored through mmap.
    let waits = {
        let (begin, pool) =
            (format!("{name}: waiting for the process that serves {shown}"), mount.source.clone());
        move || format!("{begin}{}", full_host(&pool))
    };
    let found = speaking_after(SILENCE, waits, || {
        if control::has_ended(mount) {
            return Ok(None);
        }
        // As long as it stays mounted somewhere nothing is lost: as it is now, not as it was before all this was waited for, and until the kernel
        // has been asked.
        let mut _turn = None;
        if !force && let Some(mut client) = Client::connect(mount)? {
            let stays_elsewhere = || Ok::<_, anyhow::Error>(MountTable::read()?.stays_elsewhere(&path));
            let objection = objection(&mut client);
            if !matches!(objection, Ok(None)) {
                _turn = control::turn_to_unmount(mount)
                    .with_context(|| format!("{shown} stays mounted; try again"))?;
            }
            match objection {
                Ok(None) => {}
                _ if stays_elsewhere()? => {}
                Ok(Some(why)) => bail!("{shown} stays mounted: {why}"),
                Err(error) => bail!(
                    "{shown} stays mounted, because whether anything would be lost cannot be told ({error:#}); try again, or unmount it \
                     all the same: varve unmount --force {shown}"
                ),
            }
        }
        let server = Server::find(mount)?;
        varve_mount::unmount(&path, false).map_err(|error| busy(&path, &error))?;
        Ok::<_, anyhow::Error>(Some(server))
    })?;
    let Some(server) = found else { return take_away(mount, &path) };
    match server {
        Some(server) => server.wait(name, mount, limit),
        None => bail!(
            "{shown} was unmounted, but its process could not be asked whether everything is durable; \
             varve check {} will be refused until it is",
            whose::known(mount)
        ),
    }
}

/// Why the process that serves a mount should not end now.
///
/// # Errors
/// It does not say: it has too much to do, or met a bug over it. That is no permission.
fn objection(client: &mut Client) -> Result<Option<String>> {
    match client.request("objection") {
        Ok(Value::Null) => Ok(None),
        Ok(Value::String(why)) => Ok(Some(why)),
        Ok(other) => bail!("the process that serves the mount answers {other}"),
        // One of an earlier version does not know the question.
        Err(error) if error.to_string().starts_with(NO_REQUEST) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Runs `work`, and says what is waited for when it takes longer than this. Nobody waits for `what`, which may look at something that does not
/// answer; what it gives too late is not said.
fn speaking_after<T>(
    silence: Duration,
    what: impl FnOnce() -> String + Send + 'static,
    work: impl FnOnce() -> T,
) -> T {
    let (done, waits) = mpsc::channel::<()>();
    let speaker = thread::Builder::new().spawn(move || {
        if waits.recv_timeout(silence) == Err(RecvTimeoutError::Timeout) {
            let text = what();
            if waits.try_recv() == Err(TryRecvError::Empty) {
                crate::tell(&text);
            }
        }
    });
    let result = work();
    // Without a thread nothing is said.
    drop((done, speaker));
    result
}

/// What is to be added where somebody waits for a pool to be written and the filesystem that holds its file has no space left, so that its process
/// waits for some, or does not answer.
fn full_host(pool: &Path) -> String {
    let (shown, pool) = (pool.shown(), pool.to_owned());
    match within(HOST_PATIENCE, move || is_host_full(&pool)) {
        Ok(true) => format!("; the filesystem that holds {shown} is full, which may be why: make room there"),
        Err(RecvTimeoutError::Timeout) => {
            format!("; the filesystem that holds {shown} does not answer, which may be why")
        }
        // Without a thread nothing is known.
        Ok(false) | Err(RecvTimeoutError::Disconnected) => String::new(),
    }
}

fn is_host_full(pool: &Path) -> bool {
    // A name that the user chose is no path.
    let is_file = pool.is_absolute() && std::fs::metadata(pool).is_ok_and(|metadata| metadata.is_file());
    let left = || statvfs(pool).map_or(u64::MAX, |space| space.f_bavail.saturating_mul(space.f_frsize));
    is_file && left() < HOST_BYTES_MIN
}

/// What `look` gives, if it does so within `patience`; it may go on for ever on a thread that nobody waits for.
fn within<T: Send + 'static>(
    patience: Duration,
    look: impl FnOnce() -> T + Send + 'static,
) -> Result<T, RecvTimeoutError> {
    let (answer, answers) = mpsc::channel();
    let looking = thread::Builder::new().spawn(move || {
        // Nobody may want to know any more.
        let _ = answer.send(look());
    });
    let seen = answers.recv_timeout(patience);
    drop(looking);
    seen
}

/// Takes a dead mount away, which is not what was asked for.
fn take_away(mount: &Mount, path: &Path) -> Result<Ended> {
    let shown = path.shown();
    varve_mount::unmount(path, true)
        .with_context(|| format!("cannot take the dead mount on {shown} away"))?;
    bail!(
        "the process that served {shown} had ended, so the dead mount was only taken away; \
         mount {} again: everything that was synced is there",
        whose::known(mount)
    )
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
            None => table.unseen(path).unwrap_or_else(|| {
                anyhow!(
                    "no pool is mounted on {shown}; the directory it is mounted on is wanted (findmnt shows all)"
                )
            }),
        },
    }
}

/// Who may hold a mount that no table shows. Of many processes the first are named.
fn unseen_holders(processes: &[String]) -> String {
    const NAMED_MAX: usize = 5;
    let open = "something that is open in a mount that was detached (umount -l)";
    if processes.is_empty() {
        return format!("{open}, or a mount namespace that cannot be looked into");
    }
    let (named, more) = processes.split_at(processes.len().min(NAMED_MAX));
    let more = if more.is_empty() { String::new() } else { format!(" and {} more", more.len()) };
    format!("the mount namespace of {}{more}, in a chroot, or else {open}", named.join(", "))
}

fn busy(path: &Path, error: &std::io::Error) -> anyhow::Error {
    let shown = path.shown();
    match error.kind() {
        std::io::ErrorKind::ResourceBusy => {
            let holders = MountTable::read().map(|table| holders::of(&table, path)).unwrap_or_default();
            match &holders[..] {
                [] => anyhow!(
                    "{shown} is in use; close what uses it and try again (fuser -vm {shown} shows who does)"
                ),
                holders => anyhow!(
                    "{shown} is in use: {}; close that and try again (fuser -vm {shown} shows which processes use it, too)",
                    holders.join("; ")
                ),
            }
        }
        std::io::ErrorKind::PermissionDenied => anyhow!("you may not unmount {shown}"),
        _ => anyhow!("cannot unmount {shown}: {error}"),
    }
}

/// The process that serves a mount, held on to from before the unmount.
struct Server {
    client: Client,
    /// `None`: it is of an earlier version, and in a PID namespace that cannot be seen from here. Its end is that of the connection.
    process: Option<OwnedFd>,
    /// Its number here.
    id: Option<i32>,
    /// What it calls itself.
    name: Value,
}

impl Server {
    fn find(mount: &Mount) -> Result<Option<Server>> {
        let Some(mut client) = Client::connect(mount)? else { return Ok(None) };
        let (name, process) = client.enlist()?;
        // The number that it says itself may be another process's here.
        let id = client.server();
        // It cannot have ended and its number been reused: it has just spoken, and serves a live mount.
        let watch = |pid: Pid| {
            pidfd_open(pid, PidfdFlags::empty()).with_context(|| {
                format!("cannot watch process {} that serves the mount", pid.as_raw_nonzero())
            })
        };
        let process = match process {
            Some(process) => Some(process),
            None => id.and_then(Pid::from_raw).map(watch).transpose()?,
        };
        Ok(Some(Server { client, process, id, name }))
    }

    fn shown(&self) -> String {
        self.id.map_or_else(|| "a process of another container".to_owned(), |id| format!("process {id}"))
    }

    /// Waits for the last word and the end of the process.
    fn wait(mut self, name: &str, mount: &Mount, limit: Option<Duration>) -> Result<Ended> {
        let silence = limit.map_or(SILENCE, |limit| limit.min(SILENCE));
        if !self.client.speaks_within(silence)? {
            let mut left = limit.map(|limit| limit.saturating_sub(silence));
            // Who waits no longer hears at once what became of it.
            if left.is_none_or(|left| !left.is_zero()) {
                let begun = Instant::now();
                let patience = left.map_or(HOST_PATIENCE, |left| left.min(HOST_PATIENCE));
                let waits = self.what_it_waits_for(mount, patience);
                left = left.map(|left| left.saturating_sub(begun.elapsed()));
                // That took a moment, in which it may have ended.
                if !self.client.speaks_within(Duration::ZERO)? {
                    crate::tell(&format!("{name}: {waits}"));
                }
            }
            if let Some(left) = left
                && !self.client.speaks_within(left)?
                && let Some(why) = self.make_durable(mount)?
            {
                return Ok(Ended::InUse(why));
            }
        }
        let last_word = self.client.next_line();
        self.wait_end()?;
        let ended = |word: Value| match word.get("lost").and_then(|loss| loss.as_str()) {
            Some(loss) => Ended::Lost(loss.to_owned()),
            None => Ended::Closed,
        };
        last_word?.map(ended).ok_or_else(|| {
            anyhow!(
                "the process that served {} ended before it had closed the pool; \
                 mount {} again: everything that was synced is there",
                mount.mountpoint.shown(),
                whose::known(mount)
            )
        })
    }

    /// Waits until the process is gone, whatever it still says.
    fn wait_end(&mut self) -> Result<()> {
        let Some(process) = &self.process else {
            while !matches!(self.client.next_line(), Ok(None)) {}
            return Ok(());
        };
        loop {
            match poll(&mut [PollFd::new(process, PollFlags::IN)], None) {
                Ok(_) => return Ok(()),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error).context("cannot wait for the process that served the mount"),
            }
        }
    }

    fn what_it_waits_for(&self, mount: &Mount, patience: Duration) -> String {
        let (shown, process) = (mount.mountpoint.shown(), self.shown());
        let is_durable = self.makes_durable_within(mount, patience);
        let places = mountinfo::everywhere(mount);
        let durable = if is_durable {
            format!(
                " What was written until now is durable: nothing is lost if this is interrupted, and {process} closes the pool all the same"
            )
        } else {
            String::new()
        };
        if !places.seen.is_empty() {
            return format!(
                "{shown} is unmounted, but the pool is mounted in other places, too; waiting until it is unmounted there: {}{}{durable}",
                places.seen.join(", "),
                if is_durable { "." } else { "" }
            );
        }
        if is_durable {
            return format!(
                "{shown} is unmounted, but something that cannot be seen from here still holds the mount: {}; waiting until that ends.{durable}",
                unseen_holders(&places.unseen)
            );
        }
        format!(
            "{shown} is unmounted; waiting until {process}, which served it, has written everything and closed the pool{}",
            full_host(&mount.source)
        )
    }

    /// Whether the process still serves the mount, which it does only as long as the kernel has it somewhere, and has made everything durable
    /// within this time.
    fn makes_durable_within(&self, mount: &Mount, patience: Duration) -> bool {
        let client = Client::connect(mount).ok().flatten().filter(|client| client.server() == self.id);
        let name = client.and_then(|mut client| client.request_within("sync", patience).ok().flatten());
        name.is_some_and(|name| self.id.is_some() || name == self.name)
    }

    /// Nobody waits any longer: what was written until now is made durable at least. `None`: the pool is just being closed.
    fn make_durable(&self, mount: &Mount) -> Result<Option<String>> {
        let (shown, process) = (mount.mountpoint.shown(), self.shown());
        let client = Client::connect(mount)?;
        // A mount that was made meanwhile may have the number of the device, and so the socket's name.
        let Some(mut client) = client.filter(|client| client.server() == self.id) else {
            return Ok(None);
        };
        let name = client.request("sync").with_context(|| {
            format!("{shown} is unmounted, but what was written to it could not be made durable")
        })?;
        if self.id.is_none() && name != self.name {
            return Ok(None);
        }
        let places = mountinfo::everywhere(mount);
        Ok(Some(match &places.seen[..] {
            [] => format!(
                "{shown} is unmounted and everything in it durable, but {process} has not closed the pool yet; something that cannot be \
                 seen from here may still hold the mount: {}",
                unseen_holders(&places.unseen)
            ),
            places => format!(
                "{shown} is unmounted and everything in it durable, but {process} still serves the pool, which is \
                 mounted in other places, too: {}",
                places.join(", ")
            ),
        }))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::Shutdown;
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

    use super::*;

    // Goal: only who says that nothing is lost, or is too old to know, is unmounted without force. Method: one who answers in each way, or
    // ends without an answer.
    #[test]
    fn no_answer_is_no_permission() {
        let asked = |answer: &str| {
            let (ours, mut theirs) = UnixStream::pair().expect("a socket pair");
            theirs.write_all(answer.as_bytes()).expect("there is room");
            theirs.shutdown(Shutdown::Write).expect("it is open");
            objection(&mut Client::over(ours)).map_err(|error| error.to_string())
        };
        assert_eq!(asked("{\"ok\":null}\n"), Ok(None));
        assert_eq!(asked("{\"ok\":\"it is gone\"}\n"), Ok(Some("it is gone".to_owned())));
        let old = r#"{"error":"there is no request \"objection\"; this mount may be served by another version of varve"}"#;
        assert_eq!(asked(&format!("{old}\n")), Ok(None));
        for (answer, words) in [
            ("{\"error\":\"64 varve unmount are being served\"}\n", "64 varve unmount are being served"),
            ("{\"ok\":{\"lost\":\"all\"}}\n", "answers {\"lost\":\"all\"}"),
            ("nonsense\n", "nonsense"),
            ("", "has gone away"),
        ] {
            let error = asked(answer).expect_err("it did not say that nothing is lost");
            assert!(error.contains(words), "{answer:?}: {error}");
        }
    }

    // Goal: what is waited for is said once, when that takes longer than it may without a word. Method: work that takes no time, and work that
    // takes longer.
    #[test]
    fn long_waits_are_told() {
        let told = Arc::new(AtomicU32::new(0));
        let what = || {
            let told = told.clone();
            move || format!("told {} times", told.fetch_add(1, Relaxed) + 1)
        };
        assert_eq!(speaking_after(Duration::from_secs(3600), what(), || 7), 7);
        assert_eq!(told.load(Relaxed), 0);
        let begun = Instant::now();
        speaking_after(Duration::from_millis(1), what(), || {
            while told.load(Relaxed) == 0 && begun.elapsed() < Duration::from_secs(60) {
                thread::sleep(Duration::from_millis(1));
            }
        });
        assert_eq!(told.load(Relaxed), 1);
    }

    // Goal: who says what is waited for keeps nobody waiting himself, whatever he looks at. Method: a speaker that has begun and never ends, and a
    // look that never does, on another thread, so that a failure is none that never ends.
    #[test]
    fn a_speaker_that_never_ends_keeps_nobody() {
        let (ended, ends) = mpsc::channel();
        thread::spawn(move || {
            let (begin, begins) = mpsc::channel::<()>();
            let never = move || {
                let _ = begin.send(());
                loop {
                    thread::park();
                }
            };
            let result = speaking_after(Duration::from_millis(1), never, || begins.recv().map(|()| 7));
            let seen = within(Duration::from_millis(1), || {
                loop {
                    thread::park();
                }
            });
            let seen: Result<(), _> = seen;
            ended.send((result, seen)).expect("somebody listens");
        });
        let expected = (Ok(7), Err(RecvTimeoutError::Timeout));
        assert_eq!(ends.recv_timeout(Duration::from_secs(60)), Ok(expected));
    }

    // Goal: a filesystem that has room, or none to be asked, is not named as the reason. Method: a file in one, and no file.
    #[test]
    fn a_host_with_room_is_no_reason() {
        let program = std::env::current_exe().expect("it runs");
        for pool in [&*program, Path::new("/nowhere/at/all")] {
            assert_eq!(full_host(pool), "");
        }
    }
}
